//! Ping: echo requests to the router's addresses are answered (RFC 1812 section 4.3.3.6, RFC 4443
//! section 4), back to the device that sent the frame.

use std::net::Ipv4Addr;

use zerocopy::{FromBytes, IntoBytes};

use super::{Here, Outcome};
use crate::forward::ipv4_options::has_source_route;
use crate::forward::verdict::Verdict;
use crate::wire::checksum::checksum;
use crate::wire::icmp::{self, IcmpHeader};
use crate::wire::icmp6::{self, Icmp6Header};
use crate::wire::ipv4::{self, Ipv4, Ipv4Header};
use crate::wire::ipv6::{self, Ipv6Header};

/// Hops that a reply may travel.
const TTL: u8 = 64;

/// The precedence and differentiated services of the type of service, without congestion bits.
const SERVICE: u8 = 0xfc;

/// An IPv4 packet. Options do not come back with the reply.
pub(super) fn handle4(here: &Here, out: &mut [u8]) -> Result<Outcome, Verdict> {
    let packet = ipv4::parse(here.link.payload)?;
    check4(here, &packet)?;
    let (header, _) = icmp::parse(packet.payload).ok_or(Verdict::Runt)?;
    if checksum(packet.payload) != 0 {
        return Err(Verdict::BadChecksum);
    }
    if (header.kind, header.code) != (icmp::ECHO_REQUEST, 0) {
        return Err(Verdict::UnknownProtocol);
    }
    let (from, to) = (packet.header.destination(), packet.header.source());
    let len = ipv4::HEADER_LEN + packet.payload.len();
    let reply = here.begin_reply(out, here.link.source, len).map(|(frame_len, place)| {
        let (ip, message) = place.split_at_mut(ipv4::HEADER_LEN);
        let mut header = Ipv4Header::new(from, to, ipv4::ICMP, message.len() as u16);
        // The reply has the request's precedence (RFC 1812 section 4.3.2.5), and as an atomic
        // datagram no identification (RFC 6864).
        header.tos = packet.header.tos & SERVICE;
        header.flags_offset.set(ipv4::DONT_FRAGMENT);
        header.ttl = TTL;
        ip.copy_from_slice(header.as_bytes());
        ipv4::fill_checksum(ip);
        message.copy_from_slice(packet.payload);
        make_reply4(message);
        frame_len
    });
    Ok(Outcome { reply, ..Outcome::ANSWERED })
}

/// Turns an echo request into its reply.
fn make_reply4(message: &mut [u8]) {
    if let Ok((header, _)) = IcmpHeader::mut_from_prefix(message) {
        header.kind = icmp::ECHO_REPLY;
        header.checksum.set(0);
    }
    let sum = checksum(message);
    if let Ok((header, _)) = IcmpHeader::mut_from_prefix(message) {
        header.checksum.set(sum);
    }
}

/// Whether the packet is for us, is ICMP, and may be answered.
fn check4(here: &Here, packet: &Ipv4) -> Result<(), Verdict> {
    if !packet.sum_ok() {
        return Err(Verdict::BadChecksum);
    }
    let (source, destination) = (packet.header.source(), packet.header.destination());
    if !ipv4::is_single_host(source) || here.is_ours4(source) {
        return Err(Verdict::Martian);
    }
    if destination.is_multicast() {
        return Err(Verdict::Multicast);
    }
    if !here.is_ours4(destination) {
        let broadcast = destination.is_broadcast() || is_directed_broadcast(here, destination);
        return Err(if broadcast { Verdict::Broadcast } else { Verdict::NotForUs });
    }
    here.check_unicast()?;
    if has_source_route(packet.options) {
        return Err(Verdict::SourceRoute);
    }
    if packet.header.protocol != ipv4::ICMP || packet.header.is_fragment() {
        return Err(Verdict::UnknownProtocol);
    }
    Ok(())
}

fn is_directed_broadcast(here: &Here, address: Ipv4Addr) -> bool {
    let mut links = here.ports.iter().flat_map(|port| &port.addresses4);
    links.any(|net| net.prefix_len() < 31 && net.broadcast() == address)
}

/// An echo request over IPv6, whose checksum and destination have been checked. One to a multicast
/// address is not answered.
pub(super) fn handle6(
    here: &Here,
    ip: &Ipv6Header,
    request: &[u8],
    out: &mut [u8],
) -> Result<Outcome, Verdict> {
    let (from, to) = (ip.destination(), ip.source());
    if from.is_multicast() {
        return Err(Verdict::Multicast);
    }
    if to.is_unspecified() || here.is_ours6(to) {
        return Err(Verdict::Martian);
    }
    let len = ipv6::HEADER_LEN + request.len();
    let reply = here.begin_reply(out, here.link.source, len).map(|(frame_len, place)| {
        let (header, message) = place.split_at_mut(ipv6::HEADER_LEN);
        let reply = Ipv6Header::new(from, to, ipv6::ICMP6, TTL, message.len() as u16);
        header.copy_from_slice(reply.as_bytes());
        message.copy_from_slice(request);
        if let Ok((header, _)) = Icmp6Header::mut_from_prefix(message) {
            header.kind = icmp6::ECHO_REPLY;
        }
        icmp6::fill_checksum(from, to, message);
        frame_len
    });
    Ok(Outcome { reply, ..Outcome::ANSWERED })
}
