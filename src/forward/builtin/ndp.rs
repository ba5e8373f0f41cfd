//! Neighbour discovery (RFC 4861 section 7): solicitations for the port's addresses are answered,
//! and neighbours heard. ICMPv6 checksum
//! and code have been checked before.

use std::net::Ipv6Addr;

use zerocopy::IntoBytes;

use super::{Here, Learned, Outcome, is_on_link6};
use crate::forward::verdict::Verdict;
use crate::wire::ethernet::{self, Mac};
use crate::wire::icmp6;
use crate::wire::ipv6::{self, Ipv6Header};
use crate::wire::ndp::{
    LINK_ADDRESS_LEN, MESSAGE_LEN, NeighborMessage, OVERRIDE, ROUTER, SOLICITED, SOURCE_LINK_ADDRESS,
    TARGET_LINK_ADDRESS, link_address, link_address_option,
};

/// Hop limit of all neighbour discovery: no router has been passed.
pub(super) const HOP_LIMIT: u8 = 255;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A neighbour solicitation (RFC 4861 section 7.1.1 says which are valid).
pub(super) fn solicitation(
    here: &Here,
    ip: &Ipv6Header,
    message: &[u8],
    out: &mut [u8],
) -> Result<Outcome, Verdict> {
    let (message, link_address) = valid(ip, message, SOURCE_LINK_ADDRESS)?;
    let (source, target) = (ip.source(), message.target());
    let is_probe = source.is_unspecified();
    if is_probe && (link_address.is_some() || !is_solicited_node(ip.destination())) {
        return Err(Verdict::BadHeader);
    }
    if !here.port.addresses6.iter().any(|net| net.addr() == target) {
        return Ok(Outcome::ANSWERED);
    }
    let learned = link_address.filter(|_| is_on_link6(here.port, source)).map(|mac| Learned {
        address: source.into(),
        mac,
        create: true,
        replace: true,
    });
    let (to, to_mac, flags) = if is_probe {
        (ALL_NODES, ethernet::ipv6_multicast(&ALL_NODES.octets()), ROUTER | OVERRIDE)
    } else {
        (source, link_address.unwrap_or(here.link.source), ROUTER | SOLICITED | OVERRIDE)
    };
    let advertisement = NeighborMessage::new(icmp6::NEIGHBOR_ADVERTISEMENT, flags, target);
    let len = ipv6::HEADER_LEN + MESSAGE_LEN + LINK_ADDRESS_LEN;
    let reply = here.begin_reply(out, to_mac, len).map(|(frame_len, place)| {
        let option = link_address_option(TARGET_LINK_ADDRESS, here.port.mac);
        write(place, (target, to), &advertisement, &option);
        frame_len
    });
    Ok(Outcome { reply, learned, ..Outcome::ANSWERED })
}

/// A neighbour advertisement (RFC 4861 section 7.1.2 says which are valid).
pub(super) fn advertisement(here: &Here, ip: &Ipv6Header, message: &[u8]) -> Result<Outcome, Verdict> {
    let (message, link_address) = valid(ip, message, TARGET_LINK_ADDRESS)?;
    let (flags, target) = (message.flags.get(), message.target());
    if ip.destination().is_multicast() && flags & SOLICITED != 0 {
        return Err(Verdict::BadHeader);
    }
    let Some(mac) = link_address else { return Ok(Outcome::ANSWERED) };
    if here.port.addresses6.iter().any(|net| net.addr() == target) {
        let conflict = Some((target.into(), mac));
        return Ok(Outcome { conflict, ..Outcome::ANSWERED });
    }
    let replace = flags & OVERRIDE != 0;
    // Nobody is learned whom nobody asked for (section 7.2.5).
    let learned = Learned { address: target.into(), mac, create: false, replace };
    let learned = (!target.is_unspecified() && !target.is_loopback()).then_some(learned);
    Ok(Outcome { learned, ..Outcome::ANSWERED })
}

/// What solicitations and advertisements must both be; gives the message and the link-layer
/// address in its options.
fn valid<'a>(
    ip: &Ipv6Header,
    message: &'a [u8],
    option: u8,
) -> Result<(&'a NeighborMessage, Option<Mac>), Verdict> {
    let (message, options) = NeighborMessage::parse(message).ok_or(Verdict::Runt)?;
    let link_address = link_address(options, option).map_err(|_| Verdict::BadHeader)?;
    let good = ip.hop_limit == HOP_LIMIT
        && !message.target().is_multicast()
        && link_address.is_none_or(|mac| ethernet::is_unicast(&mac));
    if good { Ok((message, link_address)) } else { Err(Verdict::BadHeader) }
}

fn is_solicited_node(address: Ipv6Addr) -> bool {
    ipv6::solicited_node(address) == address
}

/// Writes an IPv6 packet with a message and its one option into `place`, which is exactly as long.
pub(super) fn write(
    place: &mut [u8],
    (source, destination): (Ipv6Addr, Ipv6Addr),
    message: &NeighborMessage,
    option: &[u8; LINK_ADDRESS_LEN],
) {
    let (ip, body) = place.split_at_mut(ipv6::HEADER_LEN);
    let header = Ipv6Header::new(source, destination, ipv6::ICMP6, HOP_LIMIT, body.len() as u16);
    ip.copy_from_slice(header.as_bytes());
    body[..MESSAGE_LEN].copy_from_slice(message.as_bytes());
    body[MESSAGE_LEN..].copy_from_slice(option);
    icmp6::fill_checksum(source, destination, body);
}
