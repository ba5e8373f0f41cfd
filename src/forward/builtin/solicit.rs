//! Questions of our own: who has this address?

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use zerocopy::IntoBytes;

use super::{begin, ndp};
use crate::tables::PortTable;
use crate::wire::arp::{ArpPacket, PACKET_LEN, REQUEST};
use crate::wire::ethernet;
use crate::wire::icmp6;
use crate::wire::ipv6;
use crate::wire::ndp::{
    LINK_ADDRESS_LEN, MESSAGE_LEN, NeighborMessage, SOURCE_LINK_ADDRESS, link_address_option,
};

/// Writes the frame that asks for the MAC address of `target` on `port` into `out`, with the VLAN
/// tag's 16 bits if there is to be one, and gives its length in bytes: an ARP request, or a
/// neighbour solicitation to the target's solicited-node group. 90 bytes of room are enough.
///
/// It comes from our address in the target's prefix, else from the port's first. `None` when the
/// port has no address of the family, when nobody can have the target, or when there is no room.
pub fn solicit(port: &PortTable, tag: Option<u16>, target: IpAddr, out: &mut [u8]) -> Option<usize> {
    match target {
        IpAddr::V4(target) => arp_request(port, tag, target, out),
        IpAddr::V6(target) => neighbor_solicitation(port, tag, target, out),
    }
}

fn arp_request(port: &PortTable, tag: Option<u16>, target: Ipv4Addr, out: &mut [u8]) -> Option<usize> {
    if !crate::wire::ipv4::is_single_host(target) {
        return None;
    }
    let in_prefix = port.addresses4.iter().find(|net| net.contains(&target));
    let source = in_prefix.or(port.addresses4.first()).map(Ipv4Net::addr)?;
    let request = ArpPacket::new(REQUEST, (port.mac, source), ([0; 6], target));
    let (len, place) = begin(out, (ethernet::BROADCAST, port.mac), tag, ethernet::ARP, PACKET_LEN)?;
    place.copy_from_slice(request.as_bytes());
    Some(len)
}

fn neighbor_solicitation(
    port: &PortTable,
    tag: Option<u16>,
    target: Ipv6Addr,
    out: &mut [u8],
) -> Option<usize> {
    if target.is_multicast() || target.is_unspecified() || target.is_loopback() {
        return None;
    }
    let in_prefix = port.addresses6.iter().find(|net| net.contains(&target));
    // A link-local target hears best from a link-local address, whatever its prefix length.
    let link_local = port.addresses6.iter().find(|net| net.addr().is_unicast_link_local());
    let near = in_prefix.or(link_local.filter(|_| target.is_unicast_link_local()));
    let source = near.or(port.addresses6.first()).map(Ipv6Net::addr)?;
    let group = ipv6::solicited_node(target);
    let macs = (ethernet::ipv6_multicast(&group.octets()), port.mac);
    let len = ipv6::HEADER_LEN + MESSAGE_LEN + LINK_ADDRESS_LEN;
    let (frame_len, place) = begin(out, macs, tag, ethernet::IPV6, len)?;
    let message = NeighborMessage::new(icmp6::NEIGHBOR_SOLICITATION, 0, target);
    ndp::write(place, (source, group), &message, &link_address_option(SOURCE_LINK_ADDRESS, port.mac));
    Some(frame_len)
}
