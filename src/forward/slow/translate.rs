//! The careful path's address translation: every packet that comes for an address in front, and
//! every one that leaves by a port that masquerades, unless the fast path knew its flow.
//!
//! A packet for an address in front is translated before it is routed, one from inside when its way
//! out is known; whatever is refused in between is refused as it came.

use super::{Context, ETHERNET, Ending, Slow, ipv4::unfit_source};
use crate::{
    forward::{
        flows::{Direction, End4, FlowId, Key4, OutsideKey},
        handover::{CELL_BYTES, Exit, Origin, Task},
        icmp_error::Icmp4Error,
        outputs::Sent,
        tap::Seen,
        translate::{
            Inward, Now, Outward,
            edit::{self, Side},
            mappings::Refused,
            pieces::{Fate, Piece, Waiting},
            upper::{Kind, Upper, upper},
        },
        verdict::Verdict,
    },
    tables::PortId,
    wire::{
        checksum,
        ipv4::{self, ICMP, Ipv4, TCP, UDP},
    },
};

/// What was done to a packet before it was routed.
#[derive(Clone, Copy)]
pub(super) struct Translated<'a> {
    /// The frame as it came.
    pub(super) original: &'a [u8],
}

/// The ends of the packet that an ICMP error quotes, if the error is one to be translated.
pub(super) fn quoted(packet: &Ipv4<'_>) -> Result<Upper, Verdict> {
    // RFC 5508 REQ-3: both checksums, and nothing about the transport's.
    if packet.header.is_fragment() {
        return Err(Verdict::NoMapping);
    }
    if checksum::checksum(packet.payload) != 0 {
        return Err(Verdict::BadChecksum);
    }
    let inner = packet.payload.get(8..).and_then(|bytes| ipv4::parse_quoted(bytes).ok());
    let inner = inner.ok_or(Verdict::BadHeader)?;
    if !inner.sum_ok() {
        return Err(Verdict::BadChecksum);
    }
    let ends = if inner.header.fragment_offset() == 0 { upper(&inner, true) } else { None };
    ends.filter(|ends| ends.kind != Kind::Error).ok_or(Verdict::NoMapping)
}

/// The ends of a fragment whose datagram's first one is known.
fn ends_of(packet: &Ipv4<'_>, piece: Piece) -> Upper {
    let header = packet.header;
    Upper {
        protocol: header.protocol,
        kind: match header.protocol {
            TCP | UDP => Kind::Ports,
            ICMP => Kind::Query,
            _ => Kind::Other,
        },
        source: End4::new(header.source().into(), piece.from),
        destination: End4::new(header.destination().into(), piece.to),
        tcp_flags: 0,
    }
}

impl<'a> Context<'a> {
    /// What the translator has to know now.
    fn now(&self, time: u32) -> Now<'a> {
        Now { rules: &self.tables.masquerade, timeouts: &self.tables.timeouts, time }
    }

    /// Hands a packet to the worker that knows its flow.
    pub(super) fn pass_on(&mut self, peer: usize, task: Task, frame: &[u8]) -> Ending {
        let exit = Exit::Worker { port: self.port, task };
        match self.out.hand_to(peer, exit, Origin::Received(self.port, Verdict::Forwarded), frame) {
            Sent::InTransit | Sent::Left => Ending::InTransit,
            Sent::Not(why) => why.into(),
        }
    }
}

impl Slow {
    /// A packet that another worker has received and that this one knows the flow of.
    pub fn take_over(&mut self, context: &mut Context<'_>, task: Task, frame: &mut [u8]) -> Ending {
        let ending = match task {
            Task::All => self.frame(context, frame),
            Task::Piece(piece) => self.ipv4(context, frame, false, Some(piece)),
            Task::Hairpin(piece) => {
                let original = copy_of(frame);
                let original = &original[..frame.len().min(CELL_BYTES)];
                self.translate_in(context, frame, piece, original)
            }
        };
        self.go_on(context);
        ending
    }

    /// Deals with fragments whose first one has come.
    pub(super) fn go_on(&mut self, context: &mut Context<'_>) {
        while let Some(Waiting { port, seen, mut frame }) = self.released.pop_front() {
            let before = std::mem::replace(&mut context.port, port);
            let seen_before = std::mem::replace(&mut context.out.seen, Seen::new(seen));
            let ending = self.frame(context, &mut frame);
            let block = &context.blocks[usize::from(port)];
            block.held.sub(1);
            ending.count(block);
            let seen = std::mem::replace(&mut context.out.seen, seen_before);
            self.tell_end(seen, port, ending);
            context.port = before;
        }
    }

    /// A packet from outside or inside for an address in front, which belongs to the port `out`.
    pub(super) fn for_front4(
        &mut self,
        context: &mut Context<'_>,
        frame: &mut [u8],
        out: PortId,
        piece: Option<Piece>,
    ) -> Ending {
        let Ok(packet) = ipv4::parse(&frame[ETHERNET..]) else { return Verdict::Runt.into() };
        let (ends, piece) = match self.ends4(context, frame, &packet, piece) {
            Ok(ends) => ends,
            Err(ending) => return ending,
        };
        if let Some(verdict) = unfit_source(context, packet.header.source()) {
            return verdict.into();
        }
        if !context.takes_source(|tables| tables.fib4.lookup(packet.header.source().into())) {
            return Verdict::ReversePath.into();
        }
        let original = copy_of(frame);
        let original = &original[..frame.len().min(CELL_BYTES)];
        let rules = &context.tables.masquerade;
        let inside_asks = context.port != out && rules.is_inside(out, ends.source.address);
        if !inside_asks {
            return self.translate_in(context, frame, piece, original);
        }
        // From inside, for what the inside has outside: there and back (RFC 4787 REQ-9).
        if ends.kind == Kind::Error {
            return match self.error_out4(context, frame, out) {
                Ok(true) => self.error_in4(context, frame, original),
                Ok(false) => self.route4(context, frame, false, None, None),
                Err(ending) => ending,
            };
        }
        let to = ends.destination;
        let leads_in = rules.static_in(ends.protocol, to.address, to.port).is_some()
            || matches!(ends.kind, Kind::Ports | Kind::Query)
                && rules.is_given_out(ends.protocol, to.address, to.port);
        if !leads_in {
            return self.route4(context, frame, false, None, piece);
        }
        match self.translate_out(context, frame, out, piece) {
            Ok(piece) => self.translate_in(context, frame, piece, original),
            Err(ending) => ending,
        }
    }

    /// Translates a packet's destination and routes it.
    fn translate_in(
        &mut self,
        context: &mut Context<'_>,
        frame: &mut [u8],
        piece: Option<Piece>,
        original: &[u8],
    ) -> Ending {
        let Ok(packet) = ipv4::parse(&frame[ETHERNET..]) else { return Verdict::Runt.into() };
        let (ends, piece) = match self.ends4(context, frame, &packet, piece) {
            Ok(ends) => ends,
            Err(ending) => return ending,
        };
        if ends.kind == Kind::Error {
            return self.error_in4(context, frame, original);
        }
        let now = context.now(self.clock.now());
        let (protocol, external, remote) = (ends.protocol, ends.destination, ends.source);
        let seed = context.tables.hash_seed;
        let owner = self.translator.owner_outside(&now, seed, protocol, ends.kind, external, remote);
        if !self.translator.is(owner) {
            // A source in front means that the first half of a hairpin is done.
            let hairpin = now.rules.out_of(remote.address).is_some();
            let task = match piece {
                _ if hairpin => Task::Hairpin(piece),
                Some(piece) => Task::Piece(piece),
                None => Task::All,
            };
            return context.pass_on(self.translator.peer(owner), task, frame);
        }
        match self.translator.inward(&mut self.flows, &now, &ends) {
            Inward::To(id, inside) => {
                self.note_inward(&now, id, &ends);
                edit::set_end(&mut frame[ETHERNET..], Side::Destination, inside);
                self.route4(context, frame, false, Some(Translated { original }), piece)
            }
            Inward::Host if context.tables.local.contains(packet.header.destination().into()) => {
                self.route4(context, frame, false, None, piece)
            }
            Inward::Host | Inward::Refused => Verdict::Unsolicited.into(),
            Inward::Full => Verdict::FlowsFull.into(),
            Inward::UnexpectedSyn => {
                let came = (context.port, context.out.seen.id);
                let held = self.translator.syns.hold((external, remote), came, original, now.time);
                if held { Ending::Held } else { Verdict::Unsolicited.into() }
            }
        }
    }

    /// Notes a packet from outside in its flow. It keeps the flow alive only where the rule says so
    /// (RFC 4787 REQ-6), or where somebody outside has begun it.
    fn note_inward(&mut self, now: &Now<'_>, id: FlowId, ends: &Upper) {
        let rule = self.flows.flow(id).translation().rule;
        let refreshes = now.rules.rules.get(usize::from(rule)).is_none_or(|rule| rule.inbound_refresh);
        let flow = self.flows.flow_mut(id);
        let (_, swapped) = Key4::new(ends.protocol, ends.source, flow.inside());
        let direction = flow.direction(swapped);
        flow.note_packet(direction, ends.tcp_flags);
        if refreshes || direction == Direction::Forth {
            flow.seen = now.time;
        }
    }

    /// Translates the source of a packet that leaves by `out`, or leaves it alone. Gives what the
    /// packet's later fragments go by from here on; `Err` when this is the packet's end here.
    pub(super) fn translate_out(
        &mut self,
        context: &mut Context<'_>,
        frame: &mut [u8],
        out: PortId,
        piece: Option<Piece>,
    ) -> Result<Option<Piece>, Ending> {
        let Ok(packet) = ipv4::parse(&frame[ETHERNET..]) else { return Err(Verdict::Runt.into()) };
        let source = packet.header.source();
        if !context.tables.masquerade.is_inside(out, source.into()) {
            return Ok(piece);
        }
        let (ends, piece) = self.ends4(context, frame, &packet, piece)?;
        if ends.kind == Kind::Error {
            return self.error_out4(context, frame, out).map(|_| None);
        }
        let now = context.now(self.clock.now());
        let seed = context.tables.hash_seed;
        let (inside, remote) = (ends.source, ends.destination);
        let owner = self.translator.owner_inside(seed, ends.protocol, ends.kind, inside, remote);
        if !self.translator.is(owner) {
            let task = piece.map_or(Task::All, Task::Piece);
            return Err(context.pass_on(self.translator.peer(owner), task, frame));
        }
        match self.translator.outward(&mut self.flows, &now, out, &ends) {
            Outward::AsItIs => Ok(piece),
            Outward::Refused(refused) => {
                let verdict = match refused {
                    Refused::NoPort => Verdict::OutOfPorts,
                    Refused::Quota => Verdict::OverQuota,
                    Refused::Full => Verdict::FlowsFull,
                };
                // RFC 5508 REQ-8.
                Err(self.refuse4(context, &frame[ETHERNET..], Icmp4Error::Prohibited, verdict))
            }
            Outward::From(id, external) => {
                let flow = self.flows.flow_mut(id);
                let (_, swapped) = Key4::new(ends.protocol, inside, remote);
                flow.note_packet(flow.direction(swapped), ends.tcp_flags);
                flow.seen = now.time;
                if !self.translator.syns.is_empty() {
                    self.opened_at_once(context, external, remote);
                }
                let may_be_cut = !packet.header.dont_fragment() || packet.header.is_fragment();
                let packet = &mut frame[ETHERNET..];
                if may_be_cut {
                    let id = piece.map_or_else(|| self.translator.next_id(), |piece| piece.id);
                    edit::set_id(packet, id);
                }
                edit::set_end(packet, Side::Source, external);
                Ok(piece.map(|piece| Piece { from: external.port, ..piece }))
            }
        }
    }

    /// Forgets the SYN that is held for a connection which the inside has opened itself.
    fn opened_at_once(&mut self, context: &Context<'_>, external: End4, remote: End4) {
        if let Some(syn) = self.translator.syns.take(external, remote) {
            let block = &context.blocks[usize::from(syn.port)];
            block.held.sub(1);
            block.count(Verdict::Unsolicited, 1);
            self.tell_end(Seen::new(syn.seen), syn.port, Verdict::Unsolicited.into());
        }
    }

    /// An ICMP error from outside about a packet of ours: it goes where that packet came from
    /// (RFC 5508 REQ-4).
    fn error_in4(&mut self, context: &mut Context<'_>, frame: &mut [u8], original: &[u8]) -> Ending {
        let Ok(packet) = ipv4::parse(&frame[ETHERNET..]) else { return Verdict::Runt.into() };
        let destination = packet.header.destination();
        let is_local = context.tables.local.contains(destination.into());
        let ends = match quoted(&packet) {
            Ok(ends) => ends,
            Err(Verdict::NoMapping) if is_local => return self.route4(context, frame, false, None, None),
            Err(verdict) => return verdict.into(),
        };
        let (external, remote) = (ends.source, ends.destination);
        let now = context.now(self.clock.now());
        let seed = context.tables.hash_seed;
        let owner = self.translator.owner_outside(&now, seed, ends.protocol, ends.kind, external, remote);
        if !self.translator.is(owner) {
            let task = if now.rules.out_of(packet.header.source().into()).is_some() {
                Task::Hairpin(None)
            } else {
                Task::All
            };
            return context.pass_on(self.translator.peer(owner), task, frame);
        }
        let id = self.flows.find(&OutsideKey::new(ends.protocol, external, remote));
        match id.filter(|_| u32::from(destination) == external.address) {
            Some(id) => {
                let inside = self.flows.flow(id).inside();
                let (quoted, outer) = (Side::Source, Side::Destination);
                edit::set_quoted(&mut frame[ETHERNET..], quoted, inside, outer, inside.address);
                self.route4(context, frame, false, Some(Translated { original }), None)
            }
            // It may be about a packet of the host's own.
            None if is_local => self.route4(context, frame, false, None, None),
            None => Verdict::Unsolicited.into(),
        }
    }

    /// An ICMP error from inside about a packet from outside: it says what the outside knows
    /// (RFC 5508 REQ-5). Gives whether it was translated.
    fn error_out4(
        &mut self,
        context: &mut Context<'_>,
        frame: &mut [u8],
        out: PortId,
    ) -> Result<bool, Ending> {
        let Ok(packet) = ipv4::parse(&frame[ETHERNET..]) else { return Err(Verdict::Runt.into()) };
        let ends = quoted(&packet).map_err(Ending::from)?;
        let (remote, inside) = (ends.source, ends.destination);
        let seed = context.tables.hash_seed;
        let owner = self.translator.owner_inside(seed, ends.protocol, ends.kind, inside, remote);
        if !self.translator.is(owner) {
            return Err(context.pass_on(self.translator.peer(owner), Task::All, frame));
        }
        let (key, _) = Key4::new(ends.protocol, remote, inside);
        let flow = self.flows.find(&key).map(|id| self.flows.flow(id));
        let flow = flow.filter(|f| f.is_translated() && f.translation().out == out && f.inside() == inside);
        let Some(flow) = flow else { return Err(Verdict::NoMapping.into()) };
        let external = flow.translation().external;
        let (quoted, outer) = (Side::Destination, Side::Source);
        edit::set_quoted(&mut frame[ETHERNET..], quoted, external, outer, external.address);
        Ok(true)
    }

    /// The ends of a packet; those of a later fragment by the first one. `Err` when the packet is
    /// held, handed over or malformed.
    pub(super) fn ends4(
        &mut self,
        context: &mut Context<'_>,
        frame: &[u8],
        packet: &Ipv4<'_>,
        piece: Option<Piece>,
    ) -> Result<(Upper, Option<Piece>), Ending> {
        let header = packet.header;
        if let Some(piece) = piece {
            let ends = ends_of(packet, piece);
            let whole = if header.fragment_offset() == 0 { upper(packet, false) } else { None };
            return Ok((whole.unwrap_or(ends), Some(piece)));
        }
        if !header.is_fragment() {
            return Ok((upper(packet, false).ok_or(Verdict::Runt)?, None));
        }
        let (source, destination) = (u32::from(header.source()), u32::from(header.destination()));
        let (protocol, id) = (header.protocol, header.id.get());
        let owner =
            self.translator.owner_of_pieces(context.tables.hash_seed, (source, destination, protocol, id));
        if !self.translator.is(owner) {
            return Err(context.pass_on(self.translator.peer(owner), Task::All, frame));
        }
        let datagram = (source, destination, protocol, id);
        let now = self.clock.now();
        if header.fragment_offset() == 0 {
            let ends = upper(packet, false).ok_or(Verdict::Runt)?;
            let ports = (ends.source.port, ends.destination.port);
            let fresh = self.translator.next_id();
            let (piece, waiting) = self.translator.pieces.first(datagram, ports, || fresh, now);
            self.released.extend(waiting);
            return Ok((ends, Some(piece)));
        }
        match self.translator.pieces.later(datagram, (context.port, context.out.seen.id), frame, now) {
            Fate::Known(piece) => Ok((ends_of(packet, piece), Some(piece))),
            Fate::Held => Err(Ending::Held),
            Fate::Full => Err(Verdict::OrphanFragment.into()),
        }
    }

    /// Looks after what the translation holds, once a sweep while it holds anything.
    pub(super) fn look_after_translation(&mut self, context: &mut Context<'_>) {
        let now = self.clock.now();
        while let Some(syn) = self.translator.syns.take_due(now) {
            context.port = syn.port;
            let block = &context.blocks[usize::from(syn.port)];
            block.held.sub(1);
            let packet = syn.frame.get(ETHERNET..).unwrap_or_default();
            let ending = self.refuse4(context, packet, Icmp4Error::PortUnreachable, Verdict::Unsolicited);
            ending.count(block);
            self.tell_end(Seen::new(syn.seen), syn.port, ending);
        }
        for (port, seen) in self.translator.pieces.forget(now) {
            let block = &context.blocks[usize::from(port)];
            block.held.sub(1);
            block.count(Verdict::OrphanFragment, 1);
            self.tell_end(Seen::new(seen), port, Verdict::OrphanFragment.into());
        }
    }
}

/// A copy of a frame: what an error quotes and the hold keeps is the packet as it came.
fn copy_of(frame: &[u8]) -> [u8; CELL_BYTES] {
    let mut copy = [0; CELL_BYTES];
    let len = frame.len().min(CELL_BYTES);
    copy[..len].copy_from_slice(&frame[..len]);
    copy
}
