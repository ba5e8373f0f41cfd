//! The filter, between route and rewrite: which of the packets that have a way out may take it.
//!
//! A packet that is forwarded passes here once. Whole packets that nothing is odd about go through
//! in bursts; fragments, and packets whose ports do not stand where they usually do, take the
//! careful path, which asks here for one packet at a time ([`Filter::passes`]).
//!
//! A fragment other than the first has no ports. What was decided about its first fragment is
//! remembered for a while and holds for it too; where nothing is remembered, the rules decide as
//! for packets whose ports are not known ([`acl`]). Fragments that are made
//! to get ports or flags past a filter are always denied ([`upper`]).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::Sender;
use netmap::Frame;

use self::{
    datagrams::Datagrams,
    state::{Flows, Way},
};
use super::{
    bucket::Bucket,
    burst::{BURST, Burst, Lane, Odd},
    messages::{Judged, ToKeeper},
    verdict::Verdict,
    way_out::Hashed,
};
use crate::{
    stats::file::BlockRef,
    tables::{
        IcmpLimit, PortId, Tables,
        acl::{self, Acl, Key, Key4, Key6, Keys, Kind, TOGETHER, V4, V6},
    },
    wire,
};

mod datagrams;
pub mod state;
pub mod upper;

const TCP: u8 = wire::ipv4::TCP;
const UDP: u8 = wire::ipv4::UDP;

/// Log lines of a worker: a second, and at once.
const LINES: IcmpLimit = IcmpLimit { rate: 5, burst: 20 };
/// Packets that are not looked at when there may be no line, before the clock is read again.
const SKIP: u32 = 64;

/// What a packet on the careful path is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// It leaves.
    Leaves,
    /// It is held, and will be asked about again before it leaves: only a denial is counted.
    Waits,
}

/// A worker's own state for filtering.
pub struct Filter {
    worker: usize,
    datagrams: Datagrams,
    log: Log,
    /// Of the burst's packets, by family.
    keys4: Box<Keys<V4>>,
    keys6: Box<Keys<V6>>,
}

const _: () = assert!(BURST <= TOGETHER && BURST <= 32);

/// What a worker tells the keeper, and how often.
struct Log {
    keeper: Sender<ToKeeper>,
    bucket: Bucket,
    started: Instant,
    skip: u32,
    unlogged: u64,
}

impl Filter {
    /// A fresh state for worker number `worker`; `keeper` hears what is to be logged.
    pub fn new(worker: usize, keeper: Sender<ToKeeper>) -> Self {
        let log =
            Log { keeper, bucket: Bucket::new(LINES, 0), started: Instant::now(), skip: 0, unlogged: 0 };
        Self { worker, datagrams: Datagrams::default(), log, keys4: Box::default(), keys6: Box::default() }
    }

    /// Whether the packet in `bytes`, from its IP header on, may go its way; without a port to leave
    /// by that is to one of the host's devices that are no ports. The header has been checked; what
    /// is not an IP packet passes. Where rules ask for flows, `flows` has to be those of the worker
    /// that knows the packet's.
    ///
    /// # Errors
    /// Why not.
    pub fn passes(
        &mut self,
        acl: &Acl,
        mut flows: Flows<'_>,
        bytes: &[u8],
        way: Way,
        moment: Moment,
    ) -> Result<(), Verdict> {
        let Way { came_in, leaves_by } = way;
        let Some((source, destination, upper)) = upper::of(bytes) else { return Ok(()) };
        if upper.forged {
            return Err(Verdict::Denied);
        }
        let place = acl.came_in(came_in) | acl.leaves_by(leaves_by);
        let mut key = Key::new(source, destination, upper.protocol, upper.ports, place);
        let now = self.log.started.elapsed();
        let member = if acl.has_state() { state::member(source, destination, &upper) } else { None };
        let mut ended = None;
        if let Some(known) = member.and_then(|member| flows.known(&member)) {
            key = key.established();
            ended = flows.judge(acl, known, way).err();
        }
        let rule = ended.unwrap_or_else(|| self.rule(acl, &key, &upper, came_in, now));
        let denied = acl.denies(rule);
        if denied || moment == Moment::Leaves {
            acl.count(self.worker, rule, 1);
            if acl.logs(rule) {
                self.log.note(acl, rule, &key, came_in, leaves_by);
            }
        }
        match member {
            _ if denied => Err(Verdict::Denied),
            Some(member) if moment == Moment::Leaves => {
                flows.note(acl, &member, way).map_err(|_| Verdict::FlowsFull)
            }
            _ => Ok(()),
        }
    }

    /// The rule that decides about one packet.
    fn rule(
        &mut self,
        acl: &Acl,
        key: &Key,
        upper: &upper::Upper<'_>,
        came_in: PortId,
        now: Duration,
    ) -> u32 {
        let Some(fragment) = upper.fragment else { return acl.find(key, upper.kind) };
        let datagram = (key.addresses(), fragment.protocol, fragment.id, came_in);
        if upper.kind == Kind::Whole {
            let rule = acl.find(key, Kind::Whole);
            // A datagram whose first fragment has been denied once stays denied.
            let before = self.datagrams.find(&datagram, acl.serial(), now).filter(|&rule| acl.denies(rule));
            let rule = before.unwrap_or(rule);
            self.datagrams.remember(&datagram, acl.serial(), rule, now);
            return rule;
        }
        let known = self.datagrams.find(&datagram, acl.serial(), now);
        known.unwrap_or_else(|| acl.find(key, upper.kind))
    }
}

impl Log {
    /// Tells the keeper about a packet, if that is not too often.
    #[cold]
    fn note(&mut self, acl: &Acl, rule: u32, key: &Key, came_in: PortId, leaves_by: Option<PortId>) {
        if self.skip > 0 {
            self.skip -= 1;
            self.unlogged += 1;
            return;
        }
        if !self.bucket.take(self.started.elapsed().as_nanos() as u64) {
            self.skip = SKIP;
            self.unlogged += 1;
            return;
        }
        let (source, destination) = key.addresses();
        let judged = Judged {
            rules: Arc::clone(acl.compiled()),
            rule,
            came_in,
            leaves_by,
            source,
            destination,
            protocol: key.protocol(),
            ports: key.ports(),
            unlogged: self.unlogged,
        };
        // A full channel means that the keeper is busy: then this one is not logged either.
        match self.keeper.try_send(ToKeeper::Judged(Box::new(judged))) {
            Ok(()) => self.unlogged = 0,
            Err(_) => self.unlogged += 1,
        }
    }
}

/// Filters the burst's routed packets, which came in by `came_in`. What is denied is counted and
/// gone from its lane; what is not simply forwarded becomes odd, and is filtered on the careful
/// path.
#[inline(never)]
pub fn filter(
    burst: &mut Burst,
    tables: &Tables,
    acl: &Acl,
    state: &mut Filter,
    came_in: PortId,
    block: &BlockRef,
) {
    let Burst { v4, v6, odd, .. } = burst;
    let Filter { worker, log, keys4, keys6, .. } = state;
    let mut lanes = Lanes { odd, tables, acl, worker: *worker, log, came_in, denied: 0 };
    if v4.len > 0 {
        lanes.filter(v4, keys4);
    }
    if v6.len > 0 {
        lanes.filter(v6, keys6);
    }
    if lanes.denied > 0 {
        block.count(Verdict::Denied, lanes.denied);
    }
}

/// What both lanes are filtered with.
struct Lanes<'a> {
    odd: &'a mut Odd,
    tables: &'a Tables,
    acl: &'a Acl,
    worker: usize,
    log: &'a mut Log,
    came_in: PortId,
    denied: u64,
}

impl Lanes<'_> {
    /// Filters one lane. Written for bursts in which nothing is denied or logged: those cost a key
    /// for each packet, the search, and little more.
    #[inline(always)]
    fn filter<Address: Family<K>, const K: usize>(&mut self, lane: &mut Lane<Address>, keys: &mut Keys<K>) {
        let strange = self.read(lane, keys);
        if strange != 0 {
            self.leave_out(strange, lane, keys);
        }
        let mut found = [0; TOGETHER];
        let n = lane.len.min(BURST);
        Address::search(self.acl, keys, n, &mut found);
        if self.acl.count_all(self.worker, &found[..n]) {
            self.judge(lane, keys, &found);
        }
    }

    /// Reads the packets' keys. Gives, one bit each, those that leave no way that can be told, or
    /// whose keys take a closer look.
    #[inline(always)]
    fn read<Address: Family<K>, const K: usize>(&self, lane: &mut Lane<Address>, keys: &mut Keys<K>) -> u32 {
        let place = self.acl.came_in(self.came_in) | state::bits(self.acl);
        let mut strange = 0;
        for k in 0..lane.len.min(BURST) {
            let key = lane.way_out(k, self.tables).map(|hop| hop.port).and_then(|port| {
                let place = place | self.acl.leaves_by(Some(port));
                Address::key(&mut lane.frame[k], lane.destination[k], lane.ip_len[k], place)
            });
            match key {
                Some(key) => keys.set(k, key),
                None => strange |= 1 << k,
            }
        }
        strange
    }

    /// Makes the packets with these bits odd.
    #[cold]
    fn leave_out<Address: Copy, const K: usize>(
        &mut self,
        strange: u32,
        lane: &mut Lane<Address>,
        keys: &mut Keys<K>,
    ) {
        let mut kept = 0;
        lane.retain(|k, at| {
            let stays = strange >> k & 1 == 0;
            if stays {
                keys.set(kept, keys.get(k));
                kept += 1;
            } else {
                self.odd.push(at.into());
            }
            stays
        });
    }

    /// Logs and discards the packets of which rules say so.
    #[inline(never)]
    fn judge<Address: Family<K>, const K: usize>(
        &mut self,
        lane: &mut Lane<Address>,
        keys: &Keys<K>,
        found: &[u32; TOGETHER],
    ) {
        let n = lane.len.min(BURST);
        for (k, &rule) in found[..n].iter().enumerate() {
            if self.acl.logs(rule) {
                let port = self.tables.next_hop(lane.next_hop[k]).port;
                self.log.note(self.acl, rule, &Address::any(keys.get(k)), self.came_in, Some(port));
            }
        }
        lane.retain(|k, _| !self.acl.denies(found[k]));
        self.denied += (n - lane.len) as u64;
    }
}

/// What the two families' lanes do differently; a key has `K` words.
trait Family<const K: usize>: Hashed {
    /// The key of a packet of `ip_len` bytes in this frame for `destination`; none when it takes a
    /// closer look to find its ports.
    fn key(frame: &mut Frame, destination: Self, ip_len: u16, place: u32) -> Option<[u32; K]>;
    fn search(acl: &Acl, keys: &Keys<K>, n: usize, found: &mut [u32; TOGETHER]);
    fn any(key: [u32; K]) -> Key;
}

impl Family<V4> for u32 {
    #[inline(always)]
    fn key(frame: &mut Frame, destination: Self, ip_len: u16, place: u32) -> Option<Key4> {
        let head = frame.first::<38>()?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (fragment, protocol) = (u16::from_be_bytes([head[20], head[21]]) & 0x3fff, head[23]);
        let has_ports = (protocol == TCP) | (protocol == UDP);
        if (fragment != 0) | (has_ports & (ip_len < 24)) {
            return None;
        }
        let ports = if has_ports { word(34) } else { 0 };
        Some(acl::key4(word(26), destination, protocol, ports, place))
    }

    #[inline(always)]
    fn search(acl: &Acl, keys: &Keys<V4>, n: usize, found: &mut [u32; TOGETHER]) {
        acl.search4(keys, n, found);
    }

    fn any(key: Key4) -> Key {
        Key::V4(key)
    }
}

impl Family<V6> for u128 {
    #[inline(always)]
    fn key(frame: &mut Frame, destination: Self, ip_len: u16, place: u32) -> Option<Key6> {
        let head = frame.first::<58>()?;
        let protocol = head[20];
        let has_ports = (protocol == TCP) | (protocol == UDP);
        if (has_ports & (ip_len < 44)) | upper::is_extension(protocol) {
            return None;
        }
        let source = u128::from_be_bytes(*head[22..].first_chunk()?);
        let ports = u32::from_be_bytes(*head[54..].first_chunk()?);
        let ports = if has_ports { ports } else { 0 };
        Some(acl::key6(source, destination, protocol, ports, place))
    }

    #[inline(always)]
    fn search(acl: &Acl, keys: &Keys<V6>, n: usize, found: &mut [u32; TOGETHER]) {
        acl.search6(keys, n, found);
    }

    fn any(key: Key6) -> Key {
        Key::V6(key)
    }
}
