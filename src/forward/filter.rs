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
        acl::{self, Acl, Key, Key4, Key6, Kind},
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
}

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
        Self { worker, datagrams: Datagrams::default(), log }
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
    let mut denied = 0;
    if v4.len > 0 {
        denied += filter_lane(v4, odd, tables, acl, state, came_in);
    }
    if v6.len > 0 {
        denied += filter_lane(v6, odd, tables, acl, state, came_in);
    }
    if denied > 0 {
        block.count(Verdict::Denied, denied);
    }
}

/// Filters one lane; gives how many packets were denied.
#[inline(always)]
fn filter_lane<Address: Family>(
    lane: &mut Lane<Address>,
    odd: &mut Odd,
    tables: &Tables,
    acl: &Acl,
    state: &mut Filter,
    came_in: PortId,
) -> u64 {
    let mut keys = [Address::NO_KEY; BURST];
    let mut found = [0; BURST];
    let place = acl.came_in(came_in) | state::bits(acl);
    let mut n = 0;
    for k in 0..lane.len.min(BURST) {
        let Some(port) = lane.way_out(k, tables).map(|hop| hop.port) else {
            odd.push(lane.at[k].into());
            continue;
        };
        let Some(key) = Address::key(&mut lane.frame[k], lane.ip_len[k], place | acl.leaves_by(Some(port)))
        else {
            odd.push(lane.at[k].into());
            continue;
        };
        if n < k {
            lane.shift(k, n);
        }
        keys[n] = key;
        n += 1;
    }
    Address::search(acl, &keys[..n], &mut found[..n]);
    let mut kept = 0;
    for k in 0..n {
        let rule = found[k];
        acl.count(state.worker, rule, 1);
        if acl.logs(rule) {
            let port = tables.next_hop(lane.next_hop[k]).port;
            state.log.note(acl, rule, &Address::any(keys[k]), came_in, Some(port));
        }
        if !acl.denies(rule) {
            if kept < k {
                lane.shift(k, kept);
            }
            kept += 1;
        }
    }
    lane.len = kept;
    (n - kept) as u64
}

/// What the two families' lanes do differently.
trait Family: Hashed {
    type Key: Copy;
    const NO_KEY: Self::Key;
    /// The key of a packet of `ip_len` bytes in this frame; none when it takes a closer look to
    /// find its ports.
    fn key(frame: &mut Frame, ip_len: u16, place: u32) -> Option<Self::Key>;
    fn search(acl: &Acl, keys: &[Self::Key], found: &mut [u32]);
    fn any(key: Self::Key) -> Key;
}

impl Family for u32 {
    type Key = Key4;
    const NO_KEY: Key4 = [0; 4];

    #[inline(always)]
    fn key(frame: &mut Frame, ip_len: u16, place: u32) -> Option<Key4> {
        let head = frame.first::<38>()?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (fragment, protocol) = (u16::from_be_bytes([head[20], head[21]]) & 0x3fff, head[23]);
        let has_ports = (protocol == TCP) | (protocol == UDP);
        if (fragment != 0) | (has_ports & (ip_len < 24)) {
            return None;
        }
        let ports = if has_ports { word(34) } else { 0 };
        Some(acl::key4(word(26), word(30), protocol, ports, place))
    }

    #[inline(always)]
    fn search(acl: &Acl, keys: &[Key4], found: &mut [u32]) {
        acl.search4(keys, found);
    }

    fn any(key: Key4) -> Key {
        Key::V4(key)
    }
}

impl Family for u128 {
    type Key = Key6;
    const NO_KEY: Key6 = [0; 10];

    #[inline(always)]
    fn key(frame: &mut Frame, ip_len: u16, place: u32) -> Option<Key6> {
        let head = frame.first::<58>()?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let protocol = head[20];
        let has_ports = (protocol == TCP) | (protocol == UDP);
        if (has_ports & (ip_len < 44)) | upper::is_extension(protocol) {
            return None;
        }
        let ports = if has_ports { word(54) } else { 0 };
        let [a, b, c, d, e, f, g, h] = [22, 26, 30, 34, 38, 42, 46, 50].map(word);
        Some([a, b, c, d, e, f, g, h, ports, place | u32::from(protocol)])
    }

    #[inline(always)]
    fn search(acl: &Acl, keys: &[Key6], found: &mut [u32]) {
        acl.search6(keys, found);
    }

    fn any(key: Key6) -> Key {
        Key::V6(key)
    }
}
