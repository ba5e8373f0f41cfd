//! The gateway's stages with everything shared taken anew for each packet, as the sources of the
//! published figures did before theirs took it once a burst.
//!
//! | table | taken for every packet |
//! |---|---|
//! | interfaces, of the port that it came in by and of the one that it leaves by | `ArcSwap::load`, twice |
//! | forwarding table | left-right, entered |
//! | adjacencies | `ArcSwap::load` |
//! | access rules | `ArcSwap::load_full`: an owned `Arc` |
//! | flow | read lock on one of 256 parts of a hash table, and a cloned `Arc` |
//!
//! Each is the cheapest that its kind has: locks are `parking_lot`'s, one in 256 is met by chance
//! only, the hash is ours, the flow's time is a relaxed store. Rules, forwarding table, edits and
//! rings are the worker's own, and flows never end: their timers are not in it.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use left_right::{Absorb, ReadHandle, ReadHandleFactory, WriteHandle};
use netmap::RxRing;
use parking_lot::RwLock;
use sweepd::{
    forward::{
        burst::SWEEP,
        flows::{End4, Flow, FlowTable, Secret},
        outputs::Outputs,
        translate::edit::{self, Side},
        verdict::Verdict,
        worker::Worker,
    },
    tables::{
        NextHop, PortId, PortTable, Tables,
        acl::{self, Acl},
    },
    wire::ipv4::{self, UDP},
};

/// Parts of the flow table, each with its lock.
const PARTS: usize = 256;

const ETHERNET: usize = 14;

/// The forwarding table, as left-right keeps it.
#[derive(Clone)]
struct Fib(Arc<Tables>);

/// A change of the forwarding table; there is none while it is measured.
struct NoChange;

impl Absorb<NoChange> for Fib {
    fn absorb_first(&mut self, _: &mut NoChange, _: &Self) {}
    fn sync_with(&mut self, first: &Self) {
        self.clone_from(first);
    }
}

/// Protocol, ports, and both addresses; its hash is made once.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    words: [u32; 4],
    hash: u32,
}

impl Key {
    #[inline(always)]
    fn new(secret: &Secret, protocol: u8, source: End4, destination: End4) -> Self {
        let ports = u32::from(source.port) << 16 | u32::from(destination.port);
        let words = [protocol.into(), ports, source.address, destination.address];
        Self { words, hash: secret.hash(&words) }
    }

    fn part(&self) -> usize {
        self.hash as usize % PARTS
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.hash);
    }
}

/// Spreads a hash of 32 bits over 64.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys write one word");
    }

    #[inline(always)]
    fn write_u32(&mut self, hash: u32) {
        self.0 = u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A flow that workers share.
struct SharedFlow {
    external: End4,
    out: PortId,
    seen: AtomicU32,
    state: AtomicU8,
}

type Part = HashMap<Key, Arc<SharedFlow>, BuildHasherDefault<Spread>>;

/// On a line of its own, so that one part's lock does not disturb another's.
#[repr(align(128))]
struct Locked(RwLock<Part>);

/// What the workers share.
pub struct Shared {
    interfaces: ArcSwap<Vec<PortTable>>,
    adjacencies: ArcSwap<Vec<NextHop>>,
    acl: ArcSwap<Acl>,
    flows: Vec<Locked>,
    secret: Secret,
    fib: ReadHandleFactory<Fib>,
}

/// Keeps the forwarding table alive.
pub struct Keeper {
    _writer: WriteHandle<Fib, NoChange>,
}

impl Shared {
    /// The structures over these tables, without flows.
    ///
    /// # Panics
    /// When the tables have no access rules.
    pub fn new(tables: Tables) -> (Self, Keeper) {
        let tables = Arc::new(tables);
        let (writer, reader) = left_right::new_from_empty(Fib(tables.clone()));
        let part = || Locked(RwLock::new(Part::default()));
        let shared = Self {
            interfaces: ArcSwap::from_pointee(tables.ports.clone()),
            adjacencies: ArcSwap::from_pointee(tables.next_hops.to_vec()),
            acl: ArcSwap::new(tables.acl.clone().expect("a gateway has access rules")),
            flows: std::iter::repeat_with(part).take(PARTS).collect(),
            secret: Secret::from_seed(1),
            fib: reader.factory(),
        };
        (shared, Keeper { _writer: writer })
    }

    /// Enters every flow that this table has, with the same translation.
    pub fn copy_flows(&self, table: &FlowTable) {
        let mut from = 0;
        loop {
            let (flows, next) = table.page(from, 1 << 16);
            flows.for_each(|(_, flow)| self.enter(flow));
            from = next;
            if from == 0 {
                return;
            }
        }
    }

    fn enter(&self, flow: &Flow) {
        let ((inside, remote), translation) = (flow.ends4(), flow.translation());
        let key = Key::new(&self.secret, flow.protocol(), inside, remote);
        let flow = SharedFlow {
            external: translation.external,
            out: translation.out,
            seen: AtomicU32::new(flow.seen),
            state: AtomicU8::new(flow.state),
        };
        self.flows[key.part()].0.write().insert(key, Arc::new(flow));
    }

    /// How many flows there are.
    pub fn len(&self) -> usize {
        self.flows.iter().map(|part| part.0.read().len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline(always)]
    fn flow(&self, key: &Key) -> Option<Arc<SharedFlow>> {
        self.flows[key.part()].0.read().get(key).cloned()
    }
}

/// What one worker has of its own.
pub struct Taker<'a> {
    shared: &'a Shared,
    fib: ReadHandle<Fib>,
    /// Its number, for the counters.
    worker: usize,
    time: u32,
    id: u16,
}

/// What is read of a packet.
struct Packet {
    total: u16,
    source: End4,
    destination: End4,
    ports: u32,
}

impl<'a> Taker<'a> {
    /// For worker number `worker`.
    pub fn new(shared: &'a Shared, worker: usize) -> Self {
        Self { shared, fib: shared.fib.handle(), worker, time: 0, id: 0 }
    }

    /// One pass of the worker over its rings. Known UDP flows over IPv4 only: everything else is
    /// dropped, uncounted.
    #[inline(never)]
    pub fn sweep(&mut self, worker: &mut Worker) {
        let Worker { inputs, out, .. } = worker;
        self.time = self.time.wrapping_add(1);
        for input in inputs.iter_mut() {
            input.queue.sync().expect("the benchmark's devices do not fail");
            let n = input.queue.ring.available().min(SWEEP as u32);
            let (mut bytes, mut sent) = (0u64, 0u64);
            for k in 0..n {
                let slot = input.queue.ring.index(k);
                if let Some(len) = self.forward(&input.queue.ring, slot, input.port, out) {
                    bytes += u64::from(len);
                    sent += 1;
                }
            }
            input.queue.ring.advance(n);
            input.block.rx_packets.add(n.into());
            input.block.rx_bytes.add(bytes);
            input.block.count(Verdict::Forwarded, sent);
        }
        out.sync(|port, error| panic!("port {port}: {error}"));
    }

    /// Forwards one packet; gives its length if it left.
    #[inline(always)]
    fn forward(&mut self, ring: &RxRing, slot: u32, port: PortId, out: &mut Outputs) -> Option<u32> {
        let shared = self.shared;
        // SAFETY: the slot lies between head and tail, and its frame ends with this function.
        let mut frame = unsafe { ring.frame(slot) }?;
        let len = frame.len();
        let incoming = shared.interfaces.load();
        let packet = read(frame.first()?, len, incoming.get(usize::from(port))?)?;
        let id = self.fib.enter()?.0.fib4.lookup(packet.destination.address);
        let hop = *shared.adjacencies.load().get(usize::from(id))?;
        let outgoing = shared.interfaces.load();
        if packet.total > hop.max_len || !outgoing.get(usize::from(hop.port))?.up {
            return None;
        }
        let flow = shared.flow(&Key::new(&shared.secret, UDP, packet.source, packet.destination))?;
        if flow.out != hop.port || !self.passes(&packet, port, hop.port) {
            return None;
        }
        flow.seen.store(self.time, Relaxed);
        flow.state.store(flow.state.load(Relaxed), Relaxed);
        self.id = self.id.wrapping_add(1);
        let bytes = &mut frame.bytes_mut()[ETHERNET..];
        edit::set_id(bytes, self.id);
        edit::set_end(bytes, Side::Source, flow.external);
        rewrite(frame.first()?, &hop);
        out.forward(hop.port, ring, slot, u32::from(packet.total) + ETHERNET as u32).then_some(len)
    }

    #[inline(always)]
    fn passes(&self, packet: &Packet, came_in: PortId, leaves_by: PortId) -> bool {
        let acl = self.shared.acl.load_full();
        let place = acl.came_in(came_in) | acl.leaves_by(Some(leaves_by));
        let key = acl::key4(packet.source.address, packet.destination.address, UDP, packet.ports, place);
        let rule = acl.find(&acl::Key::V4(key), acl::Kind::Whole);
        acl.count(self.worker, rule, 1);
        !acl.denies(rule)
    }
}

/// The packet, if nothing is odd about it.
#[inline(always)]
fn read(head: &mut [u8; 42], len: u32, table: &PortTable) -> Option<Packet> {
    let ip: &[u8; 20] = head[ETHERNET..34].try_into().expect("34 - 14 = 20");
    let address = |at: usize| u32::from_be_bytes([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
    let total = u16::from_be_bytes([ip[2], ip[3]]);
    let plain = head[..6] == table.mac
        && head[12..15] == [0x08, 0x00, 0x45]
        && total >= 28
        && u32::from(total) + ETHERNET as u32 <= len
        && u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff == 0
        && ip[8] > 1
        && ip[9] == UDP
        && !matches!(ip[12], 0 | 127 | 224..)
        && ipv4::header_sum_ok(ip);
    let ports = u32::from_be_bytes([head[34], head[35], head[36], head[37]]);
    plain.then(|| Packet {
        total,
        source: End4::new(address(12), (ports >> 16) as u16),
        destination: End4::new(address(16), ports as u16),
        ports,
    })
}

/// Writes the next hop's header and takes one from the TTL.
#[inline(always)]
fn rewrite(head: &mut [u8; 34], hop: &NextHop) {
    head[..12].copy_from_slice(&hop.macs);
    head[22] -= 1;
    // RFC 1624 equation 3 for a TTL less by one.
    let sum = u32::from(!u16::from_be_bytes([head[24], head[25]])) + 0xfeff;
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    [head[24], head[25]] = sum.to_be_bytes();
}
