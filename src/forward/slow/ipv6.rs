//! The careful path for IPv6: RFC 8200, RFC 4443, RFC 4007.

use std::net::{IpAddr, Ipv6Addr};

use super::{Context, ETHERNET, Ending, Found, Slow, ipv4::verdict_of};
use crate::{
    forward::{
        filter::Moment,
        flow_hash,
        handover::Exit,
        icmp_error::{Icmp6Error, Link, ipv6_error, may_answer6},
        redirect,
        verdict::Verdict,
    },
    tables::{Action, NextHop, PortId},
    wire::{
        Malformed,
        ipv6::{self, Ipv6, Ipv6Header},
    },
};

impl Slow {
    /// An IPv6 packet in a frame for our MAC address, or for a group of stations.
    pub(super) fn ipv6(&mut self, context: &mut Context<'_>, frame: &mut [u8], group: bool) -> Ending {
        let packet = match ipv6::parse(&frame[ETHERNET..]) {
            Ok(packet) => packet,
            Err(Malformed::Short) => return Verdict::Runt.into(),
            Err(Malformed::Field) => return Verdict::BadHeader.into(),
        };
        let destination = packet.header.destination();
        let found = context.find6(destination, &packet);
        if group {
            return match destination.is_multicast() {
                // RFC 4291 2.7: nothing of scope 0 or 1 comes from a link.
                true if destination.octets()[1] & 0x0f <= 1 => Verdict::Multicast.into(),
                true => self.hand_up(context, frame, Verdict::Multicast),
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
            Action::Multicast | Action::Martian => return verdict_of(found.action).into(),
            _ => {}
        }
        if let Some(verdict) = unfit_source(context, packet.header.source()) {
            if verdict == Verdict::LinkLocal {
                self.tell_beyond_scope(context, frame);
            }
            return verdict.into();
        }
        if !context.takes_source(|tables| tables.fib6.lookup(packet.header.source().into())) {
            return Verdict::ReversePath.into();
        }
        if context.has_state()
            && let Err(ending) = self.find_owner(context, frame)
        {
            return ending;
        }
        let hop_limit = packet.header.hop_limit;
        let end = ETHERNET + ipv6::HEADER_LEN + packet.payload.len();
        let frame = &mut frame[..end];
        if hop_limit <= 1 {
            return self.refuse6(
                context,
                &frame[ETHERNET..],
                Icmp6Error::HopLimitExceeded,
                Verdict::TtlExpired,
            );
        }
        match found.action {
            Action::NoRoute => {
                self.refuse6(context, &frame[ETHERNET..], Icmp6Error::NoRoute, Verdict::NoRoute)
            }
            Action::Unreachable => {
                self.refuse6(context, &frame[ETHERNET..], Icmp6Error::NoRoute, Verdict::Unreachable)
            }
            Action::Prohibit => {
                self.refuse6(context, &frame[ETHERNET..], Icmp6Error::Prohibited, Verdict::Prohibited)
            }
            Action::Resolve | Action::Glean => self.hold(context, frame, &frame[ETHERNET..], found),
            Action::Forward => self.forward6(context, frame, found),
            other => verdict_of(other).into(),
        }
    }

    fn forward6(&mut self, context: &mut Context<'_>, frame: &mut [u8], found: Found) -> Ending {
        let leaves_by = Some(found.hop.port);
        context.out.seen.leaves_by = found.hop.port;
        if let Err(verdict) = self.passes(context, &frame[ETHERNET..], leaves_by, Moment::Leaves) {
            return verdict.into();
        }
        let mtu = found.hop.max_len;
        if frame.len() - ETHERNET > usize::from(mtu) {
            // RFC 8200 section 5: a router never fragments.
            let error = Icmp6Error::PacketTooBig { mtu: mtu.into() };
            return self.refuse6(context, &frame[ETHERNET..], error, Verdict::TooBig);
        }
        if found.hop.port == context.port && context.port().redirects {
            self.redirect6(context, &frame[ETHERNET..], found);
        }
        if let Ok((header, _)) = <Ipv6Header as zerocopy::FromBytes>::mut_from_prefix(&mut frame[ETHERNET..])
        {
            header.decrement_hop_limit();
        }
        frame[..12].copy_from_slice(&found.hop.macs);
        context.send(Exit::Wire(found.hop.port), Verdict::Forwarded, frame)
    }

    /// Tells a neighbour on the port's link that the way on is by another station of the same link,
    /// as far as the rules and the limit allow: RFC 4861 section 8.2. `packet` goes on all the same.
    fn redirect6(&mut self, context: &mut Context<'_>, packet: &[u8], found: Found) {
        let Ok(parsed) = ipv6::parse(packet) else { return };
        let (sender, destination) = (parsed.header.source(), parsed.header.destination());
        // A router is known by its link-local address only: section 4.5.
        let target = match found.gateway {
            Some(IpAddr::V6(gateway)) if gateway.is_unicast_link_local() || gateway == destination => gateway,
            None => destination,
            Some(_) => return,
        };
        let mut own = context.port().addresses6.iter().map(|net| net.addr());
        let Some(source) = own.find(Ipv6Addr::is_unicast_link_local) else { return };
        let back = context.find6(sender, &parsed);
        if back.hop.port != context.port
            || !back.leads_on()
            || !back.is_direct(sender)
            || !may_answer6(&parsed, Icmp6Error::NoRoute, Link::Unicast)
            || !self.may_redirect(context)
        {
            return;
        }
        let mac = found.hop.macs.first_chunk().filter(|_| found.action == Action::Forward);
        let place = &mut self.scratch[ETHERNET..];
        let Some(len) = redirect::message6(packet, source, target, mac, place) else { return };
        self.send_made(context, back, sender.into(), len);
    }

    /// Ends a packet with `verdict` and tells its sender, as far as the rules and the limit allow.
    pub(super) fn refuse6(
        &mut self,
        context: &mut Context<'_>,
        packet: &[u8],
        error: Icmp6Error,
        verdict: Verdict,
    ) -> Ending {
        self.tell_sender6(context, packet, error);
        verdict.into()
    }

    fn tell_sender6(&mut self, context: &mut Context<'_>, packet: &[u8], error: Icmp6Error) {
        // What the rules forbid takes no token, or a flood of it would silence all other errors.
        let Ok(parsed) = ipv6::parse(packet) else { return };
        if !may_answer6(&parsed, error, Link::Unicast) {
            return;
        }
        let sender = parsed.header.source();
        let found = context.find6(sender, &parsed);
        if !found.leads_on() || !self.may_send_error(context) {
            return;
        }
        let Some(source) = context.own_address6(found) else { return };
        let place = &mut self.scratch[ETHERNET..];
        let Some(len) = ipv6_error(packet, error, source, Link::Unicast, place) else { return };
        self.send_made(context, found, sender.into(), len);
    }
}

impl Slow {
    /// Tells a sender with a link-local address that it has no scope beyond its link: RFC 4443
    /// section 3.1 code 2, RFC 4007 section 9. Its link is where the frame came from, and so is its
    /// MAC address: no route leads there.
    fn tell_beyond_scope(&mut self, context: &mut Context<'_>, frame: &[u8]) {
        let (link, packet) = frame.split_at(ETHERNET);
        let (error, table) = (Icmp6Error::BeyondScope, context.port());
        let Ok(parsed) = ipv6::parse(packet) else { return };
        let sender = parsed.header.source();
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&link[6..12]);
        macs[6..].copy_from_slice(&table.mac);
        let mut ours = table.addresses6.iter().map(|net| net.addr());
        if link[6] & 1 != 0
            || ours.clone().any(|address| address == sender)
            || !may_answer6(&parsed, error, Link::Unicast)
            || !self.may_send_error(context)
        {
            return;
        }
        // A link-local address of ours, if the port's table has one: RFC 6724 rule 2.
        let Some(source) =
            ours.find(Ipv6Addr::is_unicast_link_local).or_else(|| table.addresses6.first().map(|n| n.addr()))
        else {
            return;
        };
        let Some(len) = ipv6_error(packet, error, source, Link::Unicast, &mut self.scratch[ETHERNET..])
        else {
            return;
        };
        let hop = NextHop { macs, port: context.port, max_len: table.mtu };
        let found = Found { hop, action: Action::Forward, gateway: None };
        self.send_made(context, found, sender.into(), len);
    }
}

/// Why a packet with this source must not be forwarded, if so: RFC 4291 2.5.2, 2.5.3, 2.5.6, 2.7.
fn unfit_source(context: &Context<'_>, source: Ipv6Addr) -> Option<Verdict> {
    if source.is_unspecified() || source.is_loopback() || source.is_multicast() {
        return Some(Verdict::Martian);
    }
    if source.is_unicast_link_local() {
        return Some(Verdict::LinkLocal);
    }
    context.tables.local.contains(source.into()).then_some(Verdict::Martian)
}

impl Context<'_> {
    /// The next hop towards `destination` for this packet.
    pub(super) fn find6(&self, destination: Ipv6Addr, packet: &Ipv6<'_>) -> Found {
        let id = self.tables.fib6.lookup(destination.into());
        self.found(id, || flow_hash::ipv6(self.tables.hash_seed, packet))
    }

    /// The address that errors sent by way of `found` carry: RFC 4443 2.2, a global address of the
    /// outgoing port; else any global one of ours.
    fn own_address6(&self, found: Found) -> Option<Ipv6Addr> {
        let of = |port: PortId| {
            let global = |a: &Ipv6Addr| !a.is_unicast_link_local();
            self.tables.ports.get(usize::from(port))?.addresses6.iter().map(|n| n.addr()).find(global)
        };
        let any = || (0..self.tables.ports.len() as PortId).find_map(of);
        let local = || {
            self.tables.local.iter().find_map(|a| match a {
                IpAddr::V6(a) if !a.is_loopback() && !a.is_unicast_link_local() => Some(*a),
                _ => None,
            })
        };
        of(found.hop.port).or_else(|| of(self.port)).or_else(any).or_else(local)
    }
}
