//! Redirects: a packet that leaves by the link that it came in on could have gone there without us
//! (RFC 1812 section 5.2.7.2, RFC 4861 section 8.2). Switched off, but for ports that ask for them.
//!
//! The stage only finds such packets, between route and rewrite; the careful path, which sends them
//! on like any other, knows whether their senders may be told.

use std::net::Ipv6Addr;

use zerocopy::IntoBytes;

use super::{
    burst::{Burst, Lane, Odd},
    icmp_error::LONGEST6,
};
use crate::{
    tables::{Action, PortId, Tables},
    wire::{
        icmp6,
        ipv6::{self, Ipv6Header},
        ndp,
    },
};

/// Hop limit of neighbour discovery: nobody has forwarded the packet.
const HOP_LIMIT: u8 = 255;

/// Length of a redirect up to its options, in bytes.
const MESSAGE: usize = 40;

/// Makes odd those of the burst's routed packets that may leave by the port they came in on.
#[inline(never)]
pub fn turn_back(burst: &mut Burst, tables: &Tables, port: PortId) {
    let Burst { v4, v6, odd, .. } = burst;
    take_out(v4, odd, tables, port);
    take_out(v6, odd, tables, port);
}

fn take_out<Address: Copy>(lane: &mut Lane<Address>, odd: &mut Odd, tables: &Tables, port: PortId) {
    let next_hops = lane.next_hop;
    lane.retain(|k, at| {
        let hop = tables.next_hop(next_hops[k]);
        let info = tables.next_hop_info(next_hops[k]);
        let back = match tables.groups.get(usize::from(info.group)) {
            Some(group) if info.action == Action::Group => group.ports.contains(&port),
            _ => hop.max_len > 0 && hop.port == port,
        };
        if back {
            odd.push(at.into());
        }
        !back
    });
}

/// Writes the ICMPv6 redirect about `original`, a packet as it came, from its IPv6 header on, and
/// gives the length of the IPv6 packet that now stands in `out`; `None` when `original` is malformed
/// or `out` too short: 1280 bytes are always enough.
///
/// `source` is the router's link-local address, `target` the better first hop: another router's
/// link-local address, or the destination itself. `mac` is the target's, if known.
pub fn message6(
    original: &[u8],
    source: Ipv6Addr,
    target: Ipv6Addr,
    mac: Option<&[u8; 6]>,
    out: &mut [u8],
) -> Option<usize> {
    let packet = ipv6::parse(original).ok()?;
    let (receiver, destination) = (packet.header.source(), packet.header.destination());
    let link_address = mac.map(|mac| ndp::link_address_option(ndp::TARGET_LINK_ADDRESS, *mac));
    let link_address = link_address.as_ref().map_or(&[][..], |option| option);
    let options = ipv6::HEADER_LEN + MESSAGE + link_address.len();
    // Options are counted in units of 8 bytes.
    let quoted_len = (ipv6::HEADER_LEN + packet.payload.len()).min(LONGEST6 - options - 8) / 8 * 8;
    let quoted = original.get(..quoted_len)?;

    let len = options + 8 + quoted_len;
    let (ip, message) = out.get_mut(..len)?.split_at_mut(ipv6::HEADER_LEN);
    message[..8].copy_from_slice(&[icmp6::REDIRECT, 0, 0, 0, 0, 0, 0, 0]);
    message[8..24].copy_from_slice(&target.octets());
    message[24..MESSAGE].copy_from_slice(&destination.octets());
    let (known, redirected) = message[MESSAGE..].split_at_mut(link_address.len());
    known.copy_from_slice(link_address);
    redirected[..8].copy_from_slice(&[ndp::REDIRECTED_HEADER, (1 + quoted_len / 8) as u8, 0, 0, 0, 0, 0, 0]);
    redirected[8..].copy_from_slice(quoted);
    icmp6::fill_checksum(source, receiver, message);
    ip.copy_from_slice(
        Ipv6Header::new(source, receiver, ipv6::ICMP6, HOP_LIMIT, message.len() as u16).as_bytes(),
    );
    Some(len)
}
