//! The careful path: every packet that is not plain, one at a time, by every rule.
//!
//! It is a complete forwarder of its own; the fast path only takes the plain packets away from
//! it. Here a packet finds its verdict, and here ICMP errors, fragments and answers are made.

use std::{collections::VecDeque, net::IpAddr, time::Instant};

use crossbeam_channel::Sender;
use netmap::Frame;

use super::{
    bucket::Bucket,
    builtin,
    clock::Clock,
    filter::{
        Filter, Moment,
        state::{Flows, Way},
    },
    flows::FlowTable,
    handover::{CELL_BYTES, Exit, Origin},
    hold::{Held, Hold, Limits, Meta, Pushed},
    icmp_error::{Icmp4Error, Icmp6Error},
    messages::ToKeeper,
    outputs::{Outputs, Sent},
    tap::{Seen, Tap},
    translate::{self as translation, Translator, pieces::Waiting},
    verdict::Verdict,
};
use crate::{
    stats::file::BlockRef,
    tables::{Action, IcmpLimit, NextHop, NextHopId, PortId, PortTable, ReversePath, Tables},
    wire::{
        self,
        ethernet::{self, EthernetHeader, is_group},
        vlan::{self, ADDRESSES, Priority, TAG_LEN},
    },
};

mod announce;
mod ipv4;
mod ipv6;
mod owner;
mod translate;

/// Bytes of an Ethernet header without tags.
const ETHERNET: usize = ethernet::HEADER_LEN;

/// What a packet on the careful path meets.
pub struct Context<'a> {
    /// This sweep's tables.
    pub tables: &'a Tables,
    /// The generation of the tables.
    pub generation: u64,
    /// The ways out.
    pub out: &'a mut Outputs,
    /// The port that the packet came in on.
    pub port: PortId,
    /// The worker's counters, by port.
    pub blocks: &'a [BlockRef],
}

/// How a packet's time on the careful path ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It has its verdict.
    Verdict(Verdict),
    /// Another worker will give it one.
    InTransit,
    /// It waits for a neighbour.
    Held,
}

impl Ending {
    /// Counts a received packet that ended so.
    pub fn count(self, block: &BlockRef) {
        match self {
            Self::Verdict(verdict) => block.count(verdict, 1),
            Self::InTransit => block.handed_over.add(1),
            Self::Held => block.held.add(1),
        }
    }
}

impl From<Verdict> for Ending {
    fn from(verdict: Verdict) -> Self {
        Self::Verdict(verdict)
    }
}

/// A packet's route: the next hop and what is to be done.
#[derive(Clone, Copy)]
struct Found {
    hop: NextHop,
    action: Action,
    gateway: Option<IpAddr>,
}

impl Found {
    /// Whether a packet of ours could go that way, at once or later.
    fn leads_on(&self) -> bool {
        matches!(self.action, Action::Forward | Action::Resolve | Action::Glean)
    }

    /// Whose MAC address a packet to `destination` needs on the link.
    fn neighbor(&self, destination: IpAddr) -> IpAddr {
        self.gateway.filter(|_| self.action != Action::Glean).unwrap_or(destination)
    }

    /// Whether the way leads to `destination` itself, by no gateway.
    fn is_direct(&self, destination: impl Into<IpAddr>) -> bool {
        self.gateway.is_none_or(|gateway| gateway == destination.into())
    }
}

/// The careful path's own state.
pub struct Slow {
    hold: Hold,
    errors: Bucket,
    redirects: Bucket,
    limit: IcmpLimit,
    started: Instant,
    generation: u64,
    scratch: Box<[u8; CELL_BYTES]>,
    keeper: Sender<ToKeeper>,
    /// The worker's part in filtering.
    pub filter: Filter,
    /// The worker's flows.
    pub flows: FlowTable,
    /// The worker's address translation.
    pub translator: Translator,
    /// The time by which flows end.
    pub clock: Clock,
    /// Fragments whose first one has come, to be dealt with next.
    released: VecDeque<Waiting>,
    /// Tells of packets, while somebody captures.
    pub tap: Option<Box<Tap>>,
}

impl Slow {
    /// A fresh state for worker number `worker`; `keeper` hears which neighbours are missing.
    pub fn new(worker: usize, keeper: Sender<ToKeeper>, flows: FlowTable, translator: Translator) -> Self {
        let limit = IcmpLimit::default();
        Self {
            hold: Hold::new(Limits::default()),
            errors: Bucket::new(limit, 0),
            redirects: Bucket::new(limit, 0),
            limit,
            started: Instant::now(),
            generation: 0,
            scratch: Box::new([0; CELL_BYTES]),
            filter: Filter::new(worker, keeper.clone()),
            keeper,
            flows,
            translator,
            clock: Clock::new(),
            released: VecDeque::new(),
            tap: None,
        }
    }

    /// Begins anew after a fault: no packet waits for a neighbour any more. Flows and mappings stay,
    /// with what waits for them.
    #[cold]
    pub fn restart(&mut self, blocks: &[BlockRef]) {
        while let Some(meta) = self.hold.take_where(|_, _| true) {
            if !meta.made {
                blocks[usize::from(meta.from)].held.sub(1);
            }
        }
        self.hold = Hold::new(Limits::default());
        self.generation = 0;
    }

    /// Nanoseconds since the worker began.
    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Finds the packet's verdict and does what it asks for.
    pub fn packet(&mut self, context: &mut Context<'_>, frame: &mut Frame) -> Ending {
        if frame.len() == 0 {
            return if frame.continues() { Verdict::Chained } else { Verdict::BadSlot }.into();
        }
        let ending = self.frame(context, frame.bytes_mut());
        self.go_on(context);
        ending
    }

    fn frame(&mut self, context: &mut Context<'_>, frame: &mut [u8]) -> Ending {
        let Some((header, _)) = ethernet::parse(frame) else { return Verdict::Runt.into() };
        let EthernetHeader { destination, ethertype, .. } = *header;
        let group = is_group(&destination);
        if !group && destination != context.port().mac {
            return Verdict::NotForUs.into();
        }
        match ethertype.get() {
            ethernet::IPV4 => self.ipv4(context, frame, group, None),
            ethernet::IPV6 => self.ipv6(context, frame, group),
            ethernet::VLAN | ethernet::SERVICE_VLAN => self.tagged(context, frame),
            ethernet::ARP => match self.announced(context, frame) {
                Some(ending) => ending,
                None => self.hand_up(context, frame, Verdict::UnknownProtocol),
            },
            _ => self.hand_up(context, frame, Verdict::UnknownProtocol),
        }
    }

    /// A frame with a tag that is none of a sub-port's. One with VID 0 counts as untagged; the VLAN of
    /// any other is not ours, and perhaps the host's.
    fn tagged(&mut self, context: &mut Context<'_>, frame: &mut [u8]) -> Ending {
        match vlan::parse(&frame[ETHERNET..]) {
            Some((tag, _)) if tag.vlan() == 0 => {
                let control = tag.control.get();
                context.out.priority = Priority::of(control, control);
                frame.copy_within(..ADDRESSES, TAG_LEN);
                let frame = &mut frame[TAG_LEN..];
                // A second one of these is nobody's.
                if vlan::is_tag(u16::from_be_bytes([frame[12], frame[13]])) {
                    return Verdict::UnknownVlan.into();
                }
                self.frame(context, frame)
            }
            Some(_) if context.port().builtin_host => Verdict::UnknownVlan.into(),
            Some(_) => self.hand_up(context, frame, Verdict::UnknownVlan),
            None => Verdict::Runt.into(),
        }
    }

    /// Gives a frame to the host: up its stack, or to the built-in one. `otherwise` is the verdict
    /// when nobody there wants it.
    fn hand_up(&mut self, context: &mut Context<'_>, frame: &[u8], otherwise: Verdict) -> Ending {
        let port = context.port;
        if !context.port().builtin_host {
            return context.send(Exit::Host(port), Verdict::Host, frame);
        }
        let outcome = builtin::handle(&context.tables.ports, port, frame, &mut self.scratch[..]);
        if let Some(builtin::Learned { address, mac, create, replace }) = outcome.learned {
            // A full channel means that the keeper is busy; the neighbour will speak again.
            let _ = self.keeper.try_send(ToKeeper::Learned { port, address, mac, create, replace });
        }
        if let Some((address, mac)) = outcome.conflict {
            let _ = self.keeper.try_send(ToKeeper::Conflict { port, address, mac });
        }
        if let Some(len) = outcome.reply {
            context.out.send(Exit::Wire(port), Origin::Made, &self.scratch[..len]);
        }
        match (outcome.verdict, otherwise) {
            (Verdict::UnknownProtocol, why) if why != Verdict::Host => why,
            // A route of the host's that leads out of no port: here is no host to take it.
            (Verdict::NotForUs, Verdict::Host) => Verdict::NoRoute,
            (verdict, _) => verdict,
        }
        .into()
    }

    /// Whether the access rules let a packet pass, which is given from its IP header on, and would
    /// leave by the port `leaves_by`, or by a device of the host's that is no port; if not, why not.
    fn passes(
        &mut self,
        context: &Context<'_>,
        packet: &[u8],
        leaves_by: Option<PortId>,
        moment: Moment,
    ) -> Result<(), Verdict> {
        let Some(acl) = &context.tables.acl else { return Ok(()) };
        let (now, timeouts) = (self.clock.now(), &context.tables.timeouts);
        let flows = Flows { table: &mut self.flows, timeouts, now };
        let way = Way { came_in: context.port, leaves_by };
        self.filter.passes(acl, flows, packet, way, moment)
    }

    /// Whether the access rules let a packet go up that is not the host's own: the host will
    /// forward it by a device that is no port.
    fn passes_up(
        &mut self,
        context: &mut Context<'_>,
        frame: &[u8],
        found: Found,
        to: IpAddr,
    ) -> Result<(), Ending> {
        if found.action != Action::Host || context.tables.acl.is_none() || context.tables.local.contains(to) {
            return Ok(());
        }
        if context.has_state() {
            self.find_owner(context, frame)?;
        }
        self.passes(context, &frame[ETHERNET..], None, Moment::Leaves).map_err(Ending::from)
    }

    /// Holds a frame, as it came, until the neighbour behind `found` is known, or for a while.
    /// `packet` is what would leave, from its IP header on: that is what is routed and judged.
    fn hold(&mut self, context: &mut Context<'_>, frame: &[u8], packet: &[u8], found: Found) -> Ending {
        let (port, now) = (found.hop.port, self.now());
        let Some(to) = destination(packet) else { return Verdict::BadHeader.into() };
        let neighbor = found.neighbor(to);
        context.out.seen.leaves_by = port;
        if let Err(verdict) = self.passes(context, packet, Some(port), Moment::Waits) {
            return verdict.into();
        }
        let (priority, seen) = (context.out.priority, context.out.seen.id);
        let meta = Meta { from: context.port, to, made: false, priority, seen };
        let Ok(pushed) = self.hold.push((port, neighbor), frame, meta, now) else {
            return Verdict::HoldFull.into();
        };
        self.pushed(context, pushed, port, neighbor);
        Ending::Held
    }

    /// Does what the hold asks for when it has taken a packet.
    fn pushed(&mut self, context: &Context<'_>, pushed: Pushed, port: PortId, address: IpAddr) {
        if let Some(displaced) = pushed.displaced {
            self.let_go(context, displaced, Verdict::HoldFull.into());
        }
        if pushed.ask {
            // A full channel means that the keeper is busy; the question comes again.
            let _ = self.keeper.try_send(ToKeeper::Resolve { port, address });
        }
    }

    /// Keeps the flows, once a sweep in which `packets` were taken: looks at the time, and at a few
    /// flows that may have ended; at more of them when there is little else to do.
    #[inline]
    pub fn keep_flows(&mut self, tables: &Tables, packets: u32) {
        if !tables.keeps_flows && self.flows.is_empty() {
            return;
        }
        self.clock.read();
        let budget = if packets < 32 { LOOKS_IDLE } else { LOOKS };
        let Self { flows, translator, clock, .. } = self;
        let rules = &tables.masquerade;
        flows.expire(
            clock.now(),
            budget,
            |flow| flow.timeout(translation::timeouts(rules, &tables.timeouts, flow)),
            |_, flow| translator.flow_ended(rules, flow),
        );
    }

    /// Whether packets are held.
    #[inline(always)]
    pub fn waits(&self) -> bool {
        !self.hold.is_empty() || self.translator.waits()
    }
}

impl Slow {
    /// Whether one more ICMP error may be sent now: RFC 1812 4.3.2.8, RFC 4443 2.4 (f). Asked
    /// before anything is built.
    fn may_send_error(&mut self, context: &Context<'_>) -> bool {
        let now = self.follow_limit(context);
        self.errors.take(now)
    }

    /// Whether one more redirect may be sent now. They have a bucket of their own, so that they
    /// silence nothing else.
    fn may_redirect(&mut self, context: &Context<'_>) -> bool {
        let now = self.follow_limit(context);
        self.redirects.take(now)
    }

    /// Puts another limit in force; gives the time.
    fn follow_limit(&mut self, context: &Context<'_>) -> u64 {
        let now = self.now();
        if self.limit != context.tables.icmp {
            self.limit = context.tables.icmp;
            self.errors.set_limit(self.limit, now);
            self.redirects.set_limit(self.limit, now);
        }
        now
    }

    /// Sends the IP packet of `len` bytes that stands in the scratch buffer behind the Ethernet
    /// header, or holds it until its neighbour is known. Of the hold such packets take half at
    /// most; above that they are dropped: their senders will give cause for others.
    fn send_made(&mut self, context: &mut Context<'_>, found: Found, to: IpAddr, len: usize) {
        let (port, macs, action) = (found.hop.port, found.hop.macs, found.action);
        let ethertype = if to.is_ipv6() { ethernet::IPV6 } else { ethernet::IPV4 };
        match action {
            Action::Forward => {
                self.scratch[..12].copy_from_slice(&macs);
                self.scratch[12..ETHERNET].copy_from_slice(&ethertype.to_be_bytes());
                context.out.send(Exit::Wire(port), Origin::Made, &self.scratch[..ETHERNET + len]);
            }
            Action::Resolve | Action::Glean if self.hold.len() < Limits::default().cells / 2 => {
                let priority = context.out.priority;
                let meta = Meta { from: context.port, to, made: true, priority, seen: 0 };
                let (frame, neighbor, now) =
                    (&self.scratch[..ETHERNET + len], found.neighbor(to), self.now());
                let Ok(pushed) = self.hold.push((port, neighbor), frame, meta, now) else { return };
                self.pushed(context, pushed, port, neighbor);
            }
            _ => {}
        }
    }

    /// Sends a packet of ours that was held, the first `len` bytes of the scratch buffer. One whose
    /// neighbour has not been found is dropped: nobody is told of an error about an error.
    fn send_held(&mut self, context: &mut Context<'_>, len: usize, to: IpAddr) {
        let Some(packet) = self.scratch.get(ETHERNET..len) else { return };
        let Some(found) = context.find(packet, to) else { return };
        if found.action == Action::Forward {
            self.send_made(context, found, to, len - ETHERNET);
        }
    }

    /// Looks after the held packets, once a sweep while there are any: sends those whose neighbour
    /// is known by now, asks again for the others, and gives up on the oldest.
    #[cold]
    pub fn look_after(&mut self, context: &mut Context<'_>) {
        if self.generation != context.generation {
            self.generation = context.generation;
            // One round for each neighbour: whoever is waited for again stands behind the others.
            for _ in 0..self.hold.neighbors() {
                let Some((port, address)) = self.hold.find_ready(|held| context.has_resolved(held)) else {
                    break;
                };
                self.release(context, port, address, |slow, context, frame| slow.frame(context, frame));
            }
        }
        self.look_after_translation(context);
        let now = self.now();
        while let Some(held) = self.hold.expire(now, HOLD_AT_MOST) {
            let (port, neighbor, meta) = (held.port, held.neighbor, held.meta);
            self.let_go(context, meta, Verdict::NeighborFailed.into());
            self.failed(context, port, neighbor);
        }
        let keeper = &self.keeper;
        self.hold.ask_again(now, |port, address| {
            // A full channel means that the keeper is busy; the question comes again.
            let _ = keeper.try_send(ToKeeper::Resolve { port, address });
        });
    }

    /// The neighbour does not answer: the packets held for it at this moment are refused.
    #[cold]
    pub fn failed(&mut self, context: &mut Context<'_>, port: PortId, address: IpAddr) {
        self.release(context, port, address, |slow, context, frame| match frame.get(12..ETHERNET) {
            Some([0x08, 0x00]) => slow.refuse4(
                context,
                &frame[ETHERNET..],
                Icmp4Error::HostUnreachable,
                Verdict::NeighborFailed,
            ),
            _ => slow.refuse6(
                context,
                &frame[ETHERNET..],
                Icmp6Error::AddressUnreachable,
                Verdict::NeighborFailed,
            ),
        });
    }

    /// A port goes: packets received there, and those held for a neighbour there, end with
    /// `verdict`.
    #[cold]
    pub fn port_leaves(&mut self, context: &mut Context<'_>, port: PortId, verdict: Verdict) {
        while let Some(meta) = self.hold.take_where(|to, meta| to == port || meta.from == port) {
            if !meta.made {
                self.let_go(context, meta, verdict.into());
            }
        }
    }

    /// Takes the packets held for a neighbour, in order, and lets `end` deal with each; not with
    /// those that it holds again.
    fn release(
        &mut self,
        context: &mut Context<'_>,
        port: PortId,
        address: IpAddr,
        mut end: impl FnMut(&mut Self, &mut Context<'_>, &mut [u8]) -> Ending,
    ) {
        let mut copy = [0; CELL_BYTES];
        for _ in 0..self.hold.count(port, address) {
            let Some(held) = self.hold.take(port, address) else { break };
            let (len, meta) = (held.frame.len(), held.meta);
            (context.port, context.out.priority) = (meta.from, meta.priority);
            context.out.seen = Seen::new(meta.seen);
            if meta.made {
                self.scratch[..len].copy_from_slice(held.frame);
                self.send_held(context, len, meta.to);
                continue;
            }
            copy[..len].copy_from_slice(held.frame);
            let ending = end(self, context, &mut copy[..len]);
            self.let_go(context, meta, ending);
        }
        context.out.seen = Seen::NOT;
        self.go_on(context);
        context.out.priority = Priority::default();
    }

    /// Counts a packet that is no longer held.
    fn let_go(&mut self, context: &Context<'_>, meta: Meta, ending: Ending) {
        if meta.made {
            return;
        }
        let block = &context.blocks[usize::from(meta.from)];
        block.held.sub(1);
        ending.count(block);
        let out = context.out.seen;
        let seen = if out.id == meta.seen { out } else { Seen::new(meta.seen) };
        self.tell_end(seen, meta.from, ending);
    }

    /// Tells whoever captures how a packet has ended that was told of before.
    pub(super) fn tell_end(&mut self, seen: Seen, came_in: PortId, ending: Ending) {
        if let Some(tap) = &mut self.tap {
            tap.tell_end(seen, came_in, ending);
        }
    }

    /// Sends an ARP request or a neighbour solicitation for `address` on the link of `port`.
    #[cold]
    pub fn solicit(&mut self, context: &mut Context<'_>, port: PortId, address: IpAddr) {
        let Some(table) = context.tables.ports.get(usize::from(port)) else { return };
        if let Some(len) = builtin::solicit(table, None, address, &mut self.scratch[..]) {
            context.out.send(Exit::Wire(port), Origin::Made, &self.scratch[..len]);
        }
    }
}

/// Flows that a busy sweep looks at, and one that is not.
const LOOKS: usize = 8;
const LOOKS_IDLE: usize = 128;

/// An IP packet's destination; none for one that is malformed.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => wire::ipv4::parse(packet).ok().map(|p| p.header.destination().into()),
        _ => wire::ipv6::parse(packet).ok().map(|p| p.header.destination().into()),
    }
}

/// How long a packet is held at most, in nanoseconds; the keeper gives up sooner.
const HOLD_AT_MOST: u64 = 6_000_000_000;

impl<'a> Context<'a> {
    /// Whether a held packet would go on now.
    fn has_resolved(&self, held: &Held<'_>) -> bool {
        let packet = held.frame.get(ETHERNET..).unwrap_or_default();
        self.find(packet, held.meta.to).is_none_or(|f| !matches!(f.action, Action::Resolve | Action::Glean))
    }

    /// The next hop towards `to` for an IP packet; none for one that is malformed.
    fn find(&self, packet: &[u8], to: IpAddr) -> Option<Found> {
        match to {
            IpAddr::V4(to) => wire::ipv4::parse(packet).ok().map(|p| self.find4(to, &p)),
            IpAddr::V6(to) => wire::ipv6::parse(packet).ok().map(|p| self.find6(to, &p)),
        }
    }

    fn port(&self) -> &'a PortTable {
        &self.tables.ports[usize::from(self.port)]
    }

    /// Whether a packet that came in by this port passes the port's reverse path check; `lookup`
    /// finds its source's next hop.
    fn takes_source(&self, lookup: impl FnOnce(&Tables) -> NextHopId) -> bool {
        let how = self.port().reverse_path;
        how == ReversePath::Off || self.tables.takes_source(lookup(self.tables), self.port, how)
    }

    /// The next hop `id`, or the member of its group that the flow's hash chooses.
    fn found(&self, id: NextHopId, hash: impl FnOnce() -> u32) -> Found {
        let id = self.tables.member(id, hash);
        let info = self.tables.next_hop_info(id);
        Found { hop: *self.tables.next_hop(id), action: info.action, gateway: info.gateway }
    }

    /// Sends a received packet and tells how it ended.
    fn send(&mut self, exit: Exit, verdict: Verdict, frame: &[u8]) -> Ending {
        if let Exit::Wire(port) = exit {
            self.out.seen.leaves_by = port;
        }
        match self.out.send(exit, Origin::Received(self.port, verdict), frame) {
            Sent::Left => verdict.into(),
            Sent::InTransit => Ending::InTransit,
            Sent::Not(why) => why.into(),
        }
    }
}
