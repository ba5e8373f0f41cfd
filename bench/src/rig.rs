//! The rig: one worker between a receive ring that is filled with the benchmark's packets and
//! transmit rings that swallow them, with nothing else in the way.
//!
//! Filling and emptying happen between the timed sweeps: the rig's devices do nothing in a sync
//! unless they were told to.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{
    stepper::{self, Counts},
    traffic::Frame,
};
use netmap::{
    Arena, Host, Kring, Port, PortInfo, RxDevice, RxQueue, RxRing, TxDevice, TxQueue, TxRing,
    device::PortControl, ring::Direction,
};
use sweepd::{
    forward::{
        assembly::{Assembly, assemble},
        burst::Burst,
        idle::Patience,
        messages::ToKeeper,
        worker::Worker,
    },
    stats::file::StatsFile,
    tables::{
        Action, NextHop, NextHopInfo, PortTable, Tables, fixed,
        prefixes::{Prefixes4, Prefixes6},
        publish::{Publisher, Reader},
    },
};

/// Ports that packets leave by; port 0 is where they come in.
pub const OUT_PORTS: u16 = 4;

/// Next hops that the routes use.
pub const NEXT_HOPS: u16 = 200;

/// The receiving port's MAC address.
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Slots of each ring.
pub const SLOTS: u32 = 1024;

/// Bytes of a frame, without FCS: the least of UDP over IPv6.
pub const FRAME: usize = 62;

/// Bytes of an IPv4 frame, without FCS.
const FRAME4: usize = 60;

/// Where the packets' headers are when the worker comes to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Headers {
    /// In the cache, as the generator left them.
    Cached,
    /// In memory, as a network card without cache placement leaves them.
    Memory,
}

struct Feed {
    ring: Kring,
    order: Arc<Order>,
}

/// What the next sync of the rig's devices is to do.
#[derive(Default)]
struct Order {
    /// Packets to put into the receive ring.
    fill: AtomicU32,
    /// Whether to empty the transmit rings (1) or to leave them alone (0).
    empty: AtomicU32,
    flows: std::sync::Mutex<Flows>,
}

#[derive(Default)]
struct Flows {
    templates: Vec<Frame>,
    state: u64,
    memory: bool,
    in_turn: bool,
}

impl Flows {
    /// Which template is next.
    fn pick(&mut self) -> usize {
        let count = self.templates.len() as u64;
        if self.in_turn {
            self.state = (self.state + 1) % count;
            return self.state as usize;
        }
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.state) * u128::from(count)) >> 64) as usize
    }
}

impl RxDevice for Feed {
    fn sync(&mut self) -> io::Result<()> {
        let n = self.order.fill.load(Ordering::Relaxed);
        if n > 0 {
            self.order.fill.store(0, Ordering::Relaxed);
            self.ring.take_all();
            let mut flows = self.order.flows.lock().expect("no holder of the lock panics");
            for _ in 0..n {
                let (pick, memory) = (flows.pick(), flows.memory);
                let (bytes, len) = &flows.templates[pick];
                let given = self.ring.give_with((*len).into(), |buffer| {
                    restore(bytes, buffer);
                    if memory {
                        flush(buffer);
                    }
                });
                if !given {
                    break;
                }
            }
            self.ring.publish();
        }
        Ok(())
    }
}

/// Copies a frame. IPv4's length is known when this is compiled, and takes no call.
fn restore(frame: &[u8; FRAME], buffer: &mut [u8]) {
    match <&mut [u8; FRAME4]>::try_from(&mut *buffer) {
        Ok(buffer) => buffer.copy_from_slice(&frame[..FRAME4]),
        Err(_) => buffer.copy_from_slice(&frame[..buffer.len()]),
    }
}

/// Writes the cache lines of `bytes` back to memory and drops them.
fn flush(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        // SAFETY: any readable address may be flushed; the bytes stay what they are.
        unsafe { std::arch::x86_64::_mm_clflush(line.as_ptr()) };
    }
}

struct Sink {
    ring: Kring,
    order: Arc<Order>,
}

impl TxDevice for Sink {
    fn sync(&mut self) -> io::Result<()> {
        if self.order.empty.load(Ordering::Relaxed) != 0 {
            self.ring.take_all();
            while self.ring.room() > 0 {
                self.ring.give();
            }
            self.ring.publish();
        }
        Ok(())
    }
}

/// A device that needs nothing.
pub struct Nothing;

impl PortControl for Nothing {}

/// A worker with its rings, its tables, and what fills and empties the rings.
pub struct Rig {
    /// The worker under test.
    pub worker: Worker,
    /// Its tables' publisher, unless a keeper has it.
    pub publisher: Option<Publisher<Tables>>,
    /// The counters.
    pub stats: StatsFile,
    order: Arc<Order>,
}

impl Rig {
    /// A rig whose worker routes by `routes`, `routes6`; next hops 1 to [`NEXT_HOPS`] of these
    /// lead to the ports in turn.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn new(routes: &Prefixes4, routes6: &Prefixes6) -> io::Result<Self> {
        let (publisher, readers) = Publisher::try_new(|| named_tables(&names(), routes, routes6), 1)?;
        let (keeper, _) = crossbeam_channel::bounded(64);
        let (rig, _) = Self::read(readers, &keeper)?;
        Ok(Self { publisher: Some(publisher), ..rig })
    }

    /// A rig whose worker reads tables that somebody else makes, by the one reader of these, and
    /// what remains besides: the way to the worker. `keeper` is its way to them.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn read(
        readers: Vec<Reader<Tables>>,
        keeper: &crossbeam_channel::Sender<ToKeeper>,
    ) -> io::Result<(Self, Assembly)> {
        let order = Arc::new(Order::default());
        let stats = StatsFile::anonymous(&names(), 1).map_err(io::Error::other)?;
        let mut assembly = assemble(ports(&order)?, None, &stats, readers, keeper, Patience::Spin)?;
        let worker = assembly.workers.remove(0);
        Ok((Self { worker, publisher: None, stats, order }, assembly))
    }

    /// Where the packets' headers are from now on.
    pub fn set_headers(&mut self, headers: Headers) {
        let mut flows = self.order.flows.lock().expect("no holder of the lock panics");
        flows.memory = headers == Headers::Memory;
    }

    /// The frames to be sent, chosen at random each time.
    pub fn set_flows(&mut self, templates: Vec<Frame>, headers: Headers) {
        let mut flows = self.order.flows.lock().expect("no holder of the lock panics");
        *flows = Flows { templates, state: 1, memory: headers == Headers::Memory, in_turn: false };
    }

    /// The frames of a capture, to be sent in their order, again and again.
    pub fn set_capture(&mut self, frames: Vec<Frame>, headers: Headers) {
        let mut flows = self.order.flows.lock().expect("no holder of the lock panics");
        *flows = Flows { templates: frames, state: 0, memory: headers == Headers::Memory, in_turn: true };
    }

    /// From now on the frames are chosen at random.
    pub fn pick_at_random(&mut self) {
        let mut flows = self.order.flows.lock().expect("no holder of the lock panics");
        flows.in_turn = false;
    }

    /// What one sweep of `packets` packets executes, after another one like it.
    ///
    /// # Errors
    /// Those of [`stepper::count`].
    pub fn count_sweep(&mut self, packets: u32) -> io::Result<Counts> {
        let mut burst = Burst::default();
        self.refill(packets);
        self.worker.sweep(&mut burst);
        self.refill(packets);
        stepper::count(10_000_000, || {
            self.worker.sweep(&mut burst);
        })
    }

    /// Puts `n` packets into the receive ring and empties the transmit rings. Untimed.
    pub fn refill(&mut self, n: u32) {
        self.order.fill.store(n, Ordering::Relaxed);
        self.order.empty.store(1, Ordering::Relaxed);
        for input in &mut self.worker.inputs {
            input.queue.sync().expect("the rig's devices do not fail");
        }
        for output in &mut self.worker.out.own {
            output.queue.sync().expect("the rig's devices do not fail");
        }
        self.order.empty.store(0, Ordering::Relaxed);
    }
}

/// The ports' names.
pub fn names() -> Vec<String> {
    (0..=OUT_PORTS).map(|id| format!("p{id}")).collect()
}

/// The ports: one that is filled, and those that swallow.
fn ports(order: &Arc<Order>) -> io::Result<Vec<Port>> {
    let rings = 1 + usize::from(OUT_PORTS);
    let mut arena = Arena::new(rings, rings as u32 * SLOTS, 0)?;
    let mut ports = Vec::new();
    for id in 0..=OUT_PORTS {
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        if id == 0 {
            let view = arena.ring(Direction::Rx, SLOTS, 0);
            let feed = Feed { ring: Kring::new(view.clone()), order: order.clone() };
            rx.push(RxQueue::new(RxRing::new(view), Box::new(feed)));
        } else {
            let view = arena.ring(Direction::Tx, SLOTS, 0);
            let sink = Sink { ring: Kring::new(view.clone()), order: order.clone() };
            tx.push(TxQueue::new(TxRing::new(view), Box::new(sink)));
        }
        let info = PortInfo {
            device: format!("rig:{id}"),
            interface: None,
            mac: Some(MAC),
            max_frame: 2048,
            mode: "rig".into(),
        };
        ports.push(Port { info, rx, tx, host: Host::Builtin, control: Box::new(Nothing) });
    }
    Ok(ports)
}

/// Tables as the rig has them.
///
/// # Errors
/// When there is not enough memory.
pub fn tables(routes: &Prefixes4, routes6: &Prefixes6) -> io::Result<Tables> {
    named_tables(&names(), routes, routes6)
}

/// Port 0 receives, the next hops lead to the others in turn.
fn named_tables(names: &[String], routes: &Prefixes4, routes6: &Prefixes6) -> io::Result<Tables> {
    let mut tables = Tables::new()?;
    for (id, name) in names.iter().enumerate() {
        let id = id as u8;
        tables.ports.push(PortTable {
            name: name.clone(),
            mac: [2, 0, 0, 0, id, 1],
            mtu: 1500,
            up: true,
            addresses4: vec![format!("192.0.2.{}/31", 2 * id).parse().expect("an address")],
            addresses6: Vec::new(),
            builtin_host: true,
            ..PortTable::default()
        });
    }
    for id in 0..NEXT_HOPS {
        let port = 1 + id % OUT_PORTS;
        let macs = [2, 1, 0, 0, (id >> 8) as u8, id as u8, 2, 0, 0, 0, port as u8, 1];
        let at = usize::from(fixed::FIRST_FREE + id);
        tables.next_hops[at] = NextHop { macs, port, max_len: 1500 };
        tables.info[at] = NextHopInfo { action: Action::Forward, ..NextHopInfo::default() };
    }
    let full = |e| io::Error::other(format!("{e:?}"));
    let mut shifted = Prefixes4::new();
    for (address, length, id) in routes.iter() {
        shifted.insert(address, length, fixed::FIRST_FREE + id % NEXT_HOPS);
    }
    tables.fib4.build(&shifted).map_err(full)?;
    let mut shifted = Prefixes6::new();
    for (address, length, id) in routes6.iter() {
        shifted.insert(address, length, fixed::FIRST_FREE + id % NEXT_HOPS);
    }
    tables.fib6.build(&shifted).map_err(full)?;
    Ok(tables)
}
