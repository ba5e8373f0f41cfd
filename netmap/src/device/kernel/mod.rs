//! The kernel's netmap: interfaces, VALE ports and pipes, by `/dev/netmap` and API 14.
//!
//! A port has one *parent* descriptor, which binds all its rings and stays open as long as the
//! port does, so that the interface stays in netmap mode; and one more descriptor for each ring
//! pair, so that workers sync their own rings and nobody else's. All of them see the same memory,
//! which is mapped once.

use std::{io, sync::Arc, time::Duration};

use self::{
    queue::{Gate, KernelRx, KernelTx, Lane},
    region::Region,
    settings::Settings,
    system::{Descriptor, Kernel, System},
};
use super::{
    Host, OpenError, OpenOptions, Port, PortControl, PortInfo,
    spec::{NetmapSpec, PortKind, RingSet},
};
use crate::{
    abi::{self, nmreq_register},
    queue::{Losses, RxQueue, TxQueue},
    ring::{Direction, RingView, RxRing, TxRing},
};

mod errors;
mod interface;
mod queue;
mod region;
mod settings;
#[cfg(all(any(test, feature = "standin"), any(target_os = "linux", target_os = "freebsd")))]
pub mod standin;
pub mod system;
#[cfg(all(test, any(target_os = "linux", target_os = "freebsd")))]
mod tests;

/// How long the link may take to come back after an interface was opened.
pub const CARRIER_WAIT: Duration = Duration::from_secs(6);

/// Ethernet header and one VLAN tag, in bytes: what a frame is longer than the MTU.
const FRAME_OVER_MTU: u32 = 18;
/// Shortest Ethernet frame in bytes, without FCS.
const MIN_FRAME: u32 = 60;
/// `nr_mode`: one host ring.
const NR_REG_ONE_SW: u32 = 8;

/// Whether the system has netmap.
pub fn is_there() -> bool {
    std::path::Path::new("/dev/netmap").exists()
}

/// Opens ports of the kernel's netmap, in the order of the requests. Ports that bring their own
/// memory (VALE, pipes) are asked to share that of the first port opened, so that packets move
/// between all of them without a copy.
///
/// # Errors
/// The first port that could not be opened; the others are closed again.
pub fn open_all(requests: &[(NetmapSpec, OpenOptions)]) -> Result<Vec<Port>, OpenError> {
    let system: Arc<dyn System> = Arc::new(Kernel);
    open_all_with(&system, requests)
}

/// [`open_all`] on a system that may be a stand-in.
///
/// # Errors
/// As for [`open_all`].
pub fn open_all_with(
    system: &Arc<dyn System>,
    requests: &[(NetmapSpec, OpenOptions)],
) -> Result<Vec<Port>, OpenError> {
    // Interfaces first: theirs is the memory that cannot be chosen.
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&i| requests[i].0.kind != PortKind::Nic);
    let mut shared = None;
    let mut ports: Vec<Option<Port>> = requests.iter().map(|_| None).collect();
    for i in order {
        let (spec, options) = &requests[i];
        let (port, mem_id) = open_port(system, spec, options, shared)?;
        shared = shared.or(Some(mem_id));
        ports[i] = Some(port);
    }
    Ok(ports.into_iter().flatten().collect())
}

/// Opens one port on a system that may be a stand-in.
///
/// # Errors
/// When the port cannot be opened; in one line, what to do.
pub fn open_with(
    system: &Arc<dyn System>,
    spec: &NetmapSpec,
    options: &OpenOptions,
) -> Result<Port, OpenError> {
    Ok(open_port(system, spec, options, None)?.0)
}

/// Opens one port; also gives the id of its memory.
fn open_port(
    system: &Arc<dyn System>,
    spec: &NetmapSpec,
    options: &OpenOptions,
    shared: Option<u16>,
) -> Result<(Port, u16), OpenError> {
    let failed = |reason: String| OpenError::new(spec.to_string(), reason);
    let interface = (spec.kind == PortKind::Nic).then_some(spec.name.as_str());
    let descriptor = Descriptor::open(system).map_err(|e| failed(errors::device(&e, spec)))?;
    // From here on, settings restores what was changed when opening fails.
    let mut settings = interface.map(|name| Settings::take(system, name)).transpose().map_err(failed)?;
    let parent = Parent::new(system, descriptor, spec, options, shared).map_err(failed)?;
    parent.check(spec, options, settings.as_ref()).map_err(failed)?;
    if let Some(settings) = &mut settings {
        settings.set_promiscuous().map_err(failed)?;
    }
    let gate = interface
        .filter(|_| spec.rings != RingSet::Host)
        .map(|name| Gate::new(system, name, options.carrier_wait.unwrap_or(CARRIER_WAIT)));
    let (rx, tx, host) = open_rings(&parent, spec, gate).map_err(failed)?;
    let info = PortInfo {
        device: spec.to_string(),
        interface: interface.map(str::to_owned),
        mac: interface.filter(|_| spec.rings != RingSet::Host).and_then(|name| system.mac(name)),
        max_frame: parent.buf_size(&rx, &tx),
        mode: format!(
            "netmap, {} receive and {} transmit rings, memory {}",
            rx.len(),
            tx.len(),
            parent.reply.nr_mem_id
        ),
    };
    let mem_id = parent.reply.nr_mem_id;
    let at_open = interface.map(|name| system.losses(name)).unwrap_or_default();
    let control = Box::new(KernelControl { _parent: parent, settings, at_open });
    Ok((Port { info, rx, tx, host, control }, mem_id))
}

type Rings = (Vec<RxQueue>, Vec<TxQueue>, Host);

/// Opens the ring pairs that the spec asks for, and the host's.
fn open_rings(parent: &Parent, spec: &NetmapSpec, gate: Option<Arc<Gate>>) -> Result<Rings, String> {
    let reply = &parent.reply;
    let (mut host_rx, mut host_tx) = (Vec::new(), Vec::new());
    for k in 0..reply.nr_host_rx_rings.max(reply.nr_host_tx_rings) {
        let (rx, tx) = parent.open_pair(Pair::Host(k), None)?;
        host_rx.extend(rx);
        host_tx.extend(tx);
    }
    let pairs = match spec.rings {
        RingSet::Host if host_rx.is_empty() || host_tx.is_empty() => {
            return Err("the interface has no host rings, leave out the ^".into());
        }
        RingSet::Host => return Ok((host_rx, host_tx, Host::Builtin)),
        RingSet::One(ring) => ring..ring + 1,
        RingSet::All => 0..reply.nr_rx_rings.max(reply.nr_tx_rings),
    };
    let (mut rx, mut tx) = (Vec::new(), Vec::new());
    for k in pairs {
        let (r, t) = parent.open_pair(Pair::Port(k), gate.clone())?;
        rx.extend(r);
        tx.extend(t);
    }
    if rx.is_empty() || tx.is_empty() {
        return Err("the ring has only one direction, choose one below the smaller number of rings".into());
    }
    if spec.kind == PortKind::Nic {
        tx.iter_mut().for_each(|queue| queue.ring.pad_to(MIN_FRAME));
    }
    let host = if host_rx.is_empty() && host_tx.is_empty() {
        Host::Builtin
    } else {
        Host::Rings { to: host_tx, from: host_rx }
    };
    Ok((rx, tx, host))
}

/// A ring pair of a port.
#[derive(Clone, Copy, Debug)]
enum Pair {
    /// Pair `k` of the port itself.
    Port(u16),
    /// Pair `k` to and from the host.
    Host(u16),
}

/// The descriptor that holds the port, and the memory behind it.
#[derive(Debug)]
struct Parent {
    system: Arc<dyn System>,
    name: String,
    interface: Option<Arc<str>>,
    reply: nmreq_register,
    region: Region,
    _descriptor: Descriptor,
}

impl Parent {
    fn new(
        system: &Arc<dyn System>,
        descriptor: Descriptor,
        spec: &NetmapSpec,
        options: &OpenOptions,
        shared: Option<u16>,
    ) -> Result<Self, String> {
        let reply = register(system, &descriptor, spec, options, shared)?;
        let pools = descriptor.pools_info(&spec.name).ok();
        let region = Region::new(&descriptor, &reply, pools.as_ref())?;
        let interface = (spec.kind == PortKind::Nic).then(|| Arc::from(spec.name.as_str()));
        let (system, name) = (system.clone(), spec.name.clone());
        Ok(Self { system, name, interface, reply, region, _descriptor: descriptor })
    }

    /// What cannot be right although the kernel has agreed.
    fn check(
        &self,
        spec: &NetmapSpec,
        options: &OpenOptions,
        settings: Option<&Settings>,
    ) -> Result<(), String> {
        if let (Some(settings), Some(buf_size)) = (settings, self.region.buf_size()) {
            errors::check_mtu(settings.mtu, buf_size)?;
        }
        let pairs = self.reply.nr_rx_rings.max(self.reply.nr_tx_rings);
        if pairs == 0 || self.reply.nr_rx_rings == 0 || self.reply.nr_tx_rings == 0 {
            return Err("the port has no rings to receive from or to send to".into());
        }
        match (options.rings, spec.kind, spec.rings) {
            (Some(wanted), PortKind::Nic, RingSet::All) if wanted != u32::from(pairs) => {
                Err(errors::ring_count(&self.name, pairs, wanted))
            }
            _ => Ok(()),
        }
    }

    fn buf_size(&self, rx: &[RxQueue], tx: &[TxQueue]) -> u32 {
        let rx = rx.iter().map(|q| q.ring.view().buf_size());
        rx.chain(tx.iter().map(|q| q.ring.view().buf_size())).min().unwrap_or(0)
    }

    /// Binds one ring pair to a descriptor of its own. A port may have more rings of one
    /// direction than of the other; the pairs past the end then have only one half.
    fn open_pair(
        &self,
        pair: Pair,
        gate: Option<Arc<Gate>>,
    ) -> Result<(Option<RxQueue>, Option<TxQueue>), String> {
        let (k, has_rx, has_tx) = match pair {
            Pair::Port(k) => (k, k < self.reply.nr_rx_rings, k < self.reply.nr_tx_rings),
            Pair::Host(k) => (k, k < self.reply.nr_host_rx_rings, k < self.reply.nr_host_tx_rings),
        };
        let mut body = nmreq_register { nr_ringid: k, ..nmreq_register::default() };
        body.nr_mode = match pair {
            Pair::Port(_) => abi::NR_REG_ONE_NIC,
            Pair::Host(_) if self.reply.nr_host_rx_rings.max(self.reply.nr_host_tx_rings) == 1 => {
                body.nr_ringid = 0;
                abi::NR_REG_SW
            }
            Pair::Host(_) => NR_REG_ONE_SW,
        };
        body.nr_flags = abi::NR_NO_TX_POLL
            | match (has_rx, has_tx) {
                (true, false) => abi::NR_RX_RINGS_ONLY,
                (false, true) => abi::NR_TX_RINGS_ONLY,
                _ => 0,
            };
        let error = |e: io::Error| format!("ring {k}: {}", errors::plain(&e));
        let descriptor = Descriptor::open(&self.system).map_err(error)?;
        descriptor.register(&self.name, &mut body).map_err(error)?;
        if body.nr_mem_id != self.reply.nr_mem_id {
            return Err(format!("ring {k}: its memory is not that of the port; open the port again"));
        }
        let lane = Lane {
            descriptor: Arc::new(descriptor),
            gate,
            system: self.system.clone(),
            interface: self.interface.clone(),
        };
        let rx = if has_rx { Some(self.rx_queue(&lane, &body, pair)?) } else { None };
        let tx = if has_tx { Some(self.tx_queue(&lane, &body, pair)?) } else { None };
        Ok((rx, tx))
    }

    fn ring(&self, body: &nmreq_register, pair: Pair, direction: Direction) -> Result<RingView, String> {
        let (index, host) = match pair {
            Pair::Port(k) => (k, false),
            Pair::Host(k) => (k, true),
        };
        let found = self.region.ring(body.nr_offset, direction, host, index)?;
        found.ok_or_else(|| format!("ring {index}: the kernel has not bound it; close other netmap programs"))
    }

    fn rx_queue(&self, lane: &Lane, body: &nmreq_register, pair: Pair) -> Result<RxQueue, String> {
        let view = self.ring(body, pair, Direction::Rx)?;
        Ok(RxQueue::new(RxRing::new(view), Box::new(KernelRx(lane.clone()))))
    }

    fn tx_queue(&self, lane: &Lane, body: &nmreq_register, pair: Pair) -> Result<TxQueue, String> {
        let view = self.ring(body, pair, Direction::Tx)?;
        let name = match pair {
            Pair::Port(k) => format!("netmap:{} ring {k}", self.name),
            Pair::Host(k) => format!("netmap:{} host ring {k}", self.name),
        };
        Ok(TxQueue::new(TxRing::new(view.clone()), Box::new(KernelTx::new(lane.clone(), view, name))))
    }
}

/// Binds the rings that the spec asks for to the parent descriptor.
fn register(
    system: &Arc<dyn System>,
    descriptor: &Descriptor,
    spec: &NetmapSpec,
    options: &OpenOptions,
    shared: Option<u16>,
) -> Result<nmreq_register, String> {
    let mut body = nmreq_register { nr_flags: abi::NR_NO_TX_POLL, ..nmreq_register::default() };
    (body.nr_mode, body.nr_ringid) = match (spec.kind, spec.rings) {
        (_, RingSet::One(k)) => (abi::NR_REG_ONE_NIC, k),
        (_, RingSet::Host) => (abi::NR_REG_SW, 0),
        (PortKind::Nic, RingSet::All) => (abi::NR_REG_NIC_SW, 0),
        (_, RingSet::All) => (abi::NR_REG_ALL_NIC, 0),
    };
    if spec.kind != PortKind::Nic {
        body.nr_tx_rings = options.rings.unwrap_or(0) as u16;
        body.nr_rx_rings = body.nr_tx_rings;
        body.nr_tx_slots = options.slots.unwrap_or(0);
        body.nr_rx_slots = body.nr_tx_slots;
        body.nr_mem_id = spec.mem_id.or(shared).unwrap_or(0);
    } else {
        body.nr_mem_id = spec.mem_id.unwrap_or(0);
    }
    let mut reply = body;
    let mut result = descriptor.register(&spec.name, &mut reply);
    let refused = |r: &io::Result<()>, codes: &[i32]| {
        r.as_ref().is_err_and(|e| e.raw_os_error().is_some_and(|code| codes.contains(&code)))
    };
    // Somebody else's pipe, or a memory that is full: its own memory is second best.
    if spec.mem_id.is_none() && body.nr_mem_id != 0 && refused(&result, &[libc::EINVAL, libc::ENOMEM]) {
        body.nr_mem_id = 0;
        reply = body;
        result = descriptor.register(&spec.name, &mut reply);
    }
    // An interface without host rings.
    if body.nr_mode == abi::NR_REG_NIC_SW && refused(&result, &[libc::EINVAL]) {
        reply = nmreq_register { nr_mode: abi::NR_REG_ALL_NIC, ..body };
        if descriptor.register(&spec.name, &mut reply).is_ok() {
            (reply.nr_host_rx_rings, reply.nr_host_tx_rings) = (0, 0);
            return Ok(reply);
        }
    }
    match result {
        Ok(()) => Ok(reply),
        Err(e) => Err(errors::register(&e, system, descriptor, spec)),
    }
}

/// Holds the port. Fields are dropped in this order: the interface leaves netmap mode, then its
/// settings are restored.
struct KernelControl {
    _parent: Parent,
    settings: Option<Settings>,
    at_open: Losses,
}

impl PortControl for KernelControl {
    fn losses(&mut self) -> Losses {
        let Some(settings) = &self.settings else { return Losses::default() };
        let (now, then) = (settings.losses(), &self.at_open);
        Losses {
            rx_dropped: now.rx_dropped.saturating_sub(then.rx_dropped),
            rx_errors: now.rx_errors.saturating_sub(then.rx_errors),
            tx_dropped: now.tx_dropped.saturating_sub(then.tx_dropped),
            tx_errors: now.tx_errors.saturating_sub(then.tx_errors),
            ..Losses::default()
        }
    }

    fn link_up(&mut self) -> Option<bool> {
        self.settings.as_ref()?.carrier()
    }

    fn tend(&mut self) -> io::Result<()> {
        self.settings.as_mut().map_or(Ok(()), Settings::tend)
    }
}
