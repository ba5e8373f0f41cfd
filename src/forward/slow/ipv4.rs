//! The careful path for IPv4: RFC 1812.

use std::net::{IpAddr, Ipv4Addr};

use super::{Context, ETHERNET, Ending, Found, Slow, translate::Translated};
use crate::{
    forward::{
        filter::Moment,
        flow_hash,
        fragment::Fragments,
        handover::{CELL_BYTES, Exit, Origin},
        icmp_error::{Icmp4Error, Link, ipv4_error, may_answer4},
        ipv4_options,
        outputs::Sent,
        translate::pieces::Piece,
        verdict::Verdict,
    },
    tables::{Action, NextHop, PortId},
    wire::{
        Malformed,
        ipv4::{self, Ipv4, Ipv4Header},
    },
};

impl Slow {
    /// An IPv4 packet in a frame for our MAC address, or for a group of stations.
    /// `piece` says what its datagram's first fragment said, if that is known.
    pub(super) fn ipv4(
        &mut self,
        context: &mut Context<'_>,
        frame: &mut [u8],
        group: bool,
        piece: Option<Piece>,
    ) -> Ending {
        if !group && let Err(pointer) = context.follow_source_route(&mut frame[ETHERNET..]) {
            let error = Icmp4Error::ParameterProblem { pointer };
            return self.refuse4(context, &frame[ETHERNET..], error, Verdict::BadHeader);
        }
        let packet = match ipv4::parse(&frame[ETHERNET..]) {
            Ok(packet) => packet,
            Err(Malformed::Short) => return Verdict::Runt.into(),
            Err(Malformed::Field) => return Verdict::BadHeader.into(),
        };
        if !packet.sum_ok() {
            return Verdict::BadChecksum.into();
        }
        let destination = packet.header.destination();
        let rules = &context.tables.masquerade;
        if !group
            && rules.is_on()
            && rules.may_be_in_front(destination.into())
            && let Some(out) = rules.out_of(destination.into())
        {
            return self.for_front4(context, frame, out, piece);
        }
        self.route4(context, frame, group, None, piece)
    }

    /// Finds the way of a packet and sends it there. One whose destination was `translated` is
    /// refused, or held, as it came.
    pub(super) fn route4(
        &mut self,
        context: &mut Context<'_>,
        frame: &mut [u8],
        group: bool,
        translated: Option<Translated<'_>>,
        piece: Option<Piece>,
    ) -> Ending {
        let Ok(packet) = ipv4::parse(&frame[ETHERNET..]) else { return Verdict::Runt.into() };
        let destination = packet.header.destination();
        let found = context.find4(destination, &packet);
        let everybody = destination.is_multicast() || found.action == Action::Broadcast;
        if group {
            // RFC 1812 5.3.4: what all stations of a link got is not forwarded; what is meant for
            // them all is the host's.
            return match everybody {
                true => self.hand_up(context, frame, verdict_of(found.action)),
                false => Verdict::LinkBroadcast.into(),
            };
        }
        match found.action {
            Action::Host | Action::LinkLocal => {
                if let Err(ending) = self.passes_up(context, frame, found, destination.into()) {
                    return ending;
                }
                return self.hand_up(context, frame, verdict_of(found.action));
            }
            Action::Broadcast if context.is_broadcast_of_port(destination) => {
                return self.hand_up(context, frame, Verdict::Broadcast);
            }
            Action::Broadcast | Action::Multicast | Action::Martian => {
                return verdict_of(found.action).into();
            }
            _ => {}
        }
        if translated.is_none()
            && let Some(verdict) = unfit_source(context, packet.header.source())
        {
            return verdict.into();
        }
        let source = packet.header.source();
        if translated.is_none() && !context.takes_source(|tables| tables.fib4.lookup(source.into())) {
            return Verdict::ReversePath.into();
        }
        let source_routed = ipv4_options::has_source_route(packet.options);
        if source_routed && !context.tables.source_routes {
            return Verdict::SourceRoute.into();
        }
        let strict = source_routed && ipv4_options::is_strict(packet.options);
        let piece = match translated {
            None if context.has_owners() => match self.find_owner4(context, frame, found, piece) {
                Ok(piece) => piece,
                Err(ending) => return ending,
            },
            _ => piece,
        };
        let error = match found.action {
            _ if packet.header.ttl <= 1 => (Icmp4Error::TimeExceeded, Verdict::TtlExpired),
            _ if strict && !found.is_direct(destination) => {
                (Icmp4Error::SourceRouteFailed, Verdict::SourceRoute)
            }
            Action::NoRoute => (Icmp4Error::NetUnreachable, Verdict::NoRoute),
            Action::Unreachable => (Icmp4Error::HostUnreachable, Verdict::Unreachable),
            Action::Prohibit => (Icmp4Error::Prohibited, Verdict::Prohibited),
            Action::Resolve | Action::Glean => {
                let end = ETHERNET + usize::from(packet.header.total_len.get());
                let came = translated.map_or(&*frame, |translated| translated.original);
                return self.hold(context, &came[..end], &frame[ETHERNET..], found);
            }
            Action::Forward => return self.forward4(context, frame, found, translated, piece),
            other => return verdict_of(other).into(),
        };
        let came = translated.map_or(&*frame, |translated| translated.original);
        self.refuse4(context, &came[ETHERNET..], error.0, error.1)
    }

    /// Sends a packet, whole or in pieces.
    fn forward4(
        &mut self,
        context: &mut Context<'_>,
        frame: &mut [u8],
        found: Found,
        translated: Option<Translated<'_>>,
        piece: Option<Piece>,
    ) -> Ending {
        let Ok(packet) = ipv4::parse(&frame[ETHERNET..]) else { return Verdict::Runt.into() };
        let (total, header_len) = (packet.header.total_len.get(), packet.header_len());
        let leaves_by = Some(found.hop.port);
        context.out.seen.leaves_by = found.hop.port;
        if let Err(verdict) = self.passes(context, &frame[ETHERNET..], leaves_by, Moment::Leaves) {
            return verdict.into();
        }
        if total > found.hop.max_len && packet.header.dont_fragment() {
            let error = Icmp4Error::FragmentationNeeded { mtu: found.hop.max_len };
            let came = translated.map_or(&*frame, |translated| translated.original);
            return self.refuse4(context, &came[ETHERNET..], error, Verdict::TooBig);
        }
        if translated.is_none() && found.hop.port == context.port && context.port().redirects {
            self.redirect4(context, &frame[ETHERNET..], found);
        }
        let masquerades = translated.is_none() && context.tables.masquerade.is_out(found.hop.port);
        if masquerades && let Err(ending) = self.translate_out(context, frame, found.hop.port, piece) {
            return ending;
        }
        if let Err(pointer) = context.record(found, &mut frame[ETHERNET..ETHERNET + header_len]) {
            if masquerades {
                // The sender would not know the packet that the error quotes.
                return Verdict::BadHeader.into();
            }
            let error = Icmp4Error::ParameterProblem { pointer };
            let came = translated.map_or(&*frame, |translated| translated.original);
            return self.refuse4(context, &came[ETHERNET..], error, Verdict::BadHeader);
        }
        if let Ok((header, _)) = <Ipv4Header as zerocopy::FromBytes>::mut_from_prefix(&mut frame[ETHERNET..])
        {
            header.decrement_ttl();
        }
        frame[..12].copy_from_slice(&found.hop.macs);
        let frame = &frame[..ETHERNET + usize::from(total)];
        if total <= found.hop.max_len {
            return context.send(Exit::Wire(found.hop.port), Verdict::Forwarded, frame);
        }
        fragment4(context, &mut self.scratch, frame, found.hop).into()
    }

    /// Tells a sender on the port's link that the way on is by another station of the same link, as
    /// far as the rules and the limit allow: RFC 1812 section 5.2.7.2. `packet` goes on all the same.
    fn redirect4(&mut self, context: &mut Context<'_>, packet: &[u8], found: Found) {
        let Ok(parsed) = ipv4::parse(packet) else { return };
        let sender = parsed.header.source();
        let next = match found.gateway {
            Some(IpAddr::V4(gateway)) => gateway,
            Some(IpAddr::V6(_)) => return,
            None => parsed.header.destination(),
        };
        // From the address that the sender knows as its gateway: RFC 1122 section 3.2.2.2.
        let shared = |net: &&ipnet::Ipv4Net| net.contains(&sender) && net.contains(&next);
        let Some(source) = context.port().addresses4.iter().find(shared).map(|net| net.addr()) else {
            return;
        };
        let back = context.find4(sender, &parsed);
        if back.hop.port != context.port
            || !back.leads_on()
            || ipv4_options::has_source_route(parsed.options)
            || !may_answer4(&parsed, Link::Unicast)
            || !self.may_redirect(context)
        {
            return;
        }
        let (error, place) = (Icmp4Error::Redirect { gateway: next }, &mut self.scratch[ETHERNET..]);
        let Some(len) = ipv4_error(packet, error, source, Link::Unicast, place) else { return };
        self.send_made(context, back, sender.into(), len);
    }

    /// Ends a packet with `verdict` and tells its sender, as far as the rules and the limit allow.
    pub(super) fn refuse4(
        &mut self,
        context: &mut Context<'_>,
        packet: &[u8],
        error: Icmp4Error,
        verdict: Verdict,
    ) -> Ending {
        self.tell_sender4(context, packet, error);
        verdict.into()
    }

    fn tell_sender4(&mut self, context: &mut Context<'_>, packet: &[u8], error: Icmp4Error) {
        // What the rules forbid takes no token, or a flood of it would silence all other errors.
        let Ok(parsed) = ipv4::parse(packet) else { return };
        if !may_answer4(&parsed, Link::Unicast) {
            return;
        }
        let found = context.find4(parsed.header.source(), &parsed);
        if !found.leads_on() || !self.may_send_error(context) {
            return;
        }
        let Some(source) = context.own_address4(found) else { return };
        let place = &mut self.scratch[ETHERNET..];
        let Some(len) = ipv4_error(packet, error, source, Link::Unicast, place) else { return };
        self.send_made(context, found, parsed.header.source().into(), len);
    }
}

/// Sends the packet in `frame`, already rewritten, in fragments of at most `mtu` bytes. The
/// packet counts as fragmented when all its fragments have left. Where there is no room for all of
/// them, none is sent: nobody could put the others together.
fn fragment4(
    context: &mut Context<'_>,
    scratch: &mut [u8; CELL_BYTES],
    frame: &[u8],
    hop: NextHop,
) -> Verdict {
    let (link, packet) = frame.split_at(ETHERNET);
    let Ok(mut fragments) = Fragments::new(packet, hop.max_len) else { return Verdict::BadHeader };
    let pieces = fragments.remaining();
    if context.out.room(hop.port, pieces) < pieces {
        return context.out.no_room(hop.port);
    }
    scratch[..ETHERNET].copy_from_slice(link);
    while let Some(len) = fragments.write_next(&mut scratch[ETHERNET..]) {
        let piece = &scratch[..ETHERNET + len];
        if let Sent::Not(verdict) = context.out.send(Exit::Wire(hop.port), Origin::Made, piece) {
            return verdict;
        }
    }
    if fragments.remaining() == 0 { Verdict::Fragmented } else { Verdict::TooBig }
}

/// Why a packet with this source must not be forwarded, if so: RFC 1812 5.3.7, RFC 3927 2.7.
pub(super) fn unfit_source(context: &Context<'_>, source: Ipv4Addr) -> Option<Verdict> {
    let broadcast = || {
        let id = context.tables.fib4.lookup(source.into());
        context.tables.next_hop_info(id).action == Action::Broadcast
    };
    if !ipv4::is_single_host(source) || context.tables.local.contains(source.into()) || broadcast() {
        return Some(Verdict::Martian);
    }
    source.is_link_local().then_some(Verdict::LinkLocal)
}

/// The verdict of a packet that ends by its next hop's action alone.
pub(super) fn verdict_of(action: Action) -> Verdict {
    match action {
        Action::NoRoute | Action::Group => Verdict::NoRoute,
        Action::Forward => Verdict::Forwarded,
        Action::Resolve | Action::Glean => Verdict::NeighborFailed,
        Action::Host => Verdict::Host,
        Action::Blackhole => Verdict::Blackhole,
        Action::Unreachable => Verdict::Unreachable,
        Action::Prohibit => Verdict::Prohibited,
        Action::Martian => Verdict::Martian,
        Action::Multicast => Verdict::Multicast,
        Action::Broadcast => Verdict::Broadcast,
        Action::LinkLocal => Verdict::LinkLocal,
    }
}

impl Context<'_> {
    /// The next hop towards `destination` for this packet.
    pub(super) fn find4(&self, destination: Ipv4Addr, packet: &Ipv4<'_>) -> Found {
        let id = self.tables.fib4.lookup(destination.into());
        self.found(id, || flow_hash::ipv4(self.tables.hash_seed, packet))
    }

    /// The address that errors sent by way of `found` carry: RFC 1812 4.3.2.4, the outgoing
    /// port's; else any of ours.
    fn own_address4(&self, found: Found) -> Option<Ipv4Addr> {
        let of =
            |port: PortId| self.tables.ports.get(usize::from(port))?.addresses4.first().map(|n| n.addr());
        let any = || (0..self.tables.ports.len() as PortId).find_map(of);
        let local = || {
            self.tables.local.iter().find_map(|a| match a {
                IpAddr::V4(a) if !a.is_loopback() => Some(*a),
                _ => None,
            })
        };
        of(found.hop.port).or_else(|| of(self.port)).or_else(any).or_else(local)
    }

    /// Where source routes are followed: takes a packet that has come to an address of ours on to
    /// the next one of its source route, if one is left, and enters the address that it leaves by
    /// (RFC 791 section 3.1, RFC 1812 section 5.2.4.1). Packets that are malformed stay as they are.
    /// An error is the place of what is wrong in the options, in bytes from the start of the header.
    fn follow_source_route(&self, packet: &mut [u8]) -> Result<(), u8> {
        let has_options = packet.first().is_some_and(|first| first & 15 > 5);
        if !self.tables.source_routes || !has_options {
            return Ok(());
        }
        // Several addresses of ours may follow each other; a header has room for nine.
        for _ in 0..9 {
            let Ok(parsed) = ipv4::parse(packet) else { return Ok(()) };
            if !parsed.sum_ok() || !self.tables.local.contains(parsed.header.destination().into()) {
                return Ok(());
            }
            let route =
                ipv4_options::source_route(parsed.options).map_err(|at| (ipv4::HEADER_LEN + at) as u8)?;
            let Some(route) = route else { return Ok(()) };
            let Some(ours) = self.own_address4(self.find4(route.next, &parsed)) else { return Ok(()) };
            let header_len = parsed.header_len();
            let header = &mut packet[..header_len];
            header[16..20].copy_from_slice(&route.next.octets());
            route.advance(&mut header[ipv4::HEADER_LEN..], ours);
            ipv4::fill_checksum(header);
        }
        Ok(())
    }

    /// Enters the address of the way out and the time into the header's record route and timestamp
    /// options. An error is the place of what is wrong, in bytes from the start of the header.
    fn record(&self, found: Found, header: &mut [u8]) -> Result<(), u8> {
        if header.len() == ipv4::HEADER_LEN {
            return Ok(());
        }
        let here = ipv4_options::Here {
            address: self.own_address4(found),
            is_ours: &|address| self.tables.local.contains(address.into()),
            time: ipv4_options::milliseconds_of_the_day(),
        };
        // On a copy, for an error quotes the header as it came.
        let mut copy = [0; ipv4::HEADER_MAX - ipv4::HEADER_LEN];
        let options = &mut header[ipv4::HEADER_LEN..];
        let copy = &mut copy[..options.len()];
        copy.copy_from_slice(options);
        ipv4_options::record(copy, &here).map_err(|at| (ipv4::HEADER_LEN + at) as u8)?;
        options.copy_from_slice(copy);
        ipv4::fill_checksum(header);
        Ok(())
    }

    /// Whether `destination` means every station on the arrival port's own link.
    fn is_broadcast_of_port(&self, destination: Ipv4Addr) -> bool {
        destination.is_broadcast()
            || self.port().addresses4.iter().any(|n| n.prefix_len() < 31 && n.broadcast() == destination)
    }
}
