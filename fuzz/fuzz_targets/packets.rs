//! Frames that get past the first checks, so that the bytes of the input end up further inside: an
//! IPv4 or IPv6 packet, an ICMP message, an ARP packet or a message of neighbour discovery, and
//! frames with VLAN tags.

use sweepd::wire::{checksum, ethernet, icmp6, ipv6};

use crate::frame::{How, all};

const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn frame(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [[2, 0, 0, 0, 0, 1], SOURCE].concat();
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An IPv4 packet whose version, length and checksum are right.
pub fn ipv4(input: &[u8]) {
    let Some((mut how, packet)) = How::split(input) else { return };
    let mut packet = packet.to_vec();
    let Some(first) = packet.first_mut() else { return };
    *first = 0x40 | (*first & 15).max(5);
    how.bits |= 3;
    all(how, frame(ethernet::IPV4, &packet));
}

/// An IPv6 packet whose version and payload length are right.
pub fn ipv6(input: &[u8]) {
    let Some((mut how, packet)) = How::split(input) else { return };
    let mut packet = packet.to_vec();
    if packet.len() < ipv6::HEADER_LEN {
        return;
    }
    packet[0] = 0x60 | packet[0] & 15;
    let len = (packet.len() - ipv6::HEADER_LEN) as u16;
    packet[4..6].copy_from_slice(&len.to_be_bytes());
    how.bits |= 1;
    all(how, frame(ethernet::IPV6, &packet));
}

/// An ICMP or ICMPv6 message with a right checksum, from a neighbour or from afar, to the router or
/// beyond: one byte each for the family and hops, the source and the destination, then the message.
pub fn icmp(input: &[u8]) {
    let Some((mut how, rest)) = How::split(input) else { return };
    let [hops, source, destination, message @ ..] = rest else { return };
    how.bits |= 7;
    if hops & 1 == 0 {
        let address = |byte: u8| match byte % 4 {
            0 => [192, 0, 2, 1],
            1 => [192, 0, 2, byte],
            2 => [198, 51, 100, 1],
            _ => [byte, 1, 2, 3],
        };
        let mut packet = vec![0x45, 0, 0, 0, 0, 1, 0, 0, *hops, 1, 0, 0];
        packet.extend(address(*source));
        packet.extend(address(*destination));
        packet.extend(message);
        return all(how, frame(ethernet::IPV4, &packet));
    }
    let address = |byte: u8| match byte % 4 {
        0 => "2001:db8::1".parse::<std::net::Ipv6Addr>().expect("an address").octets(),
        1 => [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte],
        2 => [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte],
        _ => [0x20, byte, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    };
    all(how, frame(ethernet::IPV6, &around(*hops, address(*source), address(*destination), message)));
}

/// An IPv6 packet with an ICMPv6 message, whose checksum is filled in.
fn around(hops: u8, source: [u8; 16], destination: [u8; 16], message: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((message.len() as u16).to_be_bytes());
    packet.extend([58, hops]);
    packet.extend(source);
    packet.extend(destination);
    let mut message = message.to_vec();
    if message.len() >= 4 {
        icmp6::fill_checksum(source.into(), destination.into(), &mut message);
    }
    packet.extend(message);
    packet
}

/// ARP, or neighbour discovery with hop limit 255: one byte says which, and whether it goes to
/// everybody.
pub fn neighbors(input: &[u8]) {
    let Some((mut how, rest)) = How::split(input) else { return };
    let [kind, message @ ..] = rest else { return };
    how.bits = how.bits & !7 | u8::from(kind & 2 == 0);
    if kind & 1 == 0 {
        let mut packet = vec![0, 1, 8, 0, 6, 4];
        packet.extend(message);
        let mut frame = frame(ethernet::ARP, &packet);
        frame[..6].fill(0xff);
        return all(how, frame);
    }
    let us = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let them = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 1];
    let source = if kind & 4 == 0 { them } else { [0; 16] };
    let destination = if kind & 8 == 0 { us } else { group };
    let mut message = message.to_vec();
    if let (Some(first), true) = (message.first_mut(), kind & 16 == 0) {
        *first = 133 + *first % 5;
    }
    let mut frame = frame(ethernet::IPV6, &around(255, source, destination, &message));
    frame[..6].copy_from_slice(&[0x33, 0x33, 0xff, 0, 0, 1]);
    all(how, frame);
}

/// Up to three VLAN tags in front of an EtherType and a packet: one byte says how many and of which
/// kinds, then two for each, then the rest.
pub fn vlan(input: &[u8]) {
    let Some((mut how, rest)) = How::split(input) else { return };
    let [kinds, rest @ ..] = rest else { return };
    let tags = usize::from(kinds & 3);
    let Some((ids, inner)) = rest.split_at_checked(2 * tags) else { return };
    how.bits |= 1;
    let mut bytes = frame(0, &[]);
    bytes.truncate(12);
    for (n, id) in ids.chunks(2).enumerate() {
        bytes.extend([[0x81, 0], [0x88, 0xa8], [0x91, 0], [0x81, 0]][usize::from(kinds >> (2 + 2 * n)) & 3]);
        bytes.extend(id);
    }
    bytes.extend(inner);
    // What the packet inside says of itself is made right where it can be.
    let at = 12 + 4 * tags + 2;
    if let Some(header) = bytes.get_mut(at..at + 20).filter(|header| header[0] == 0x45) {
        header[10..12].fill(0);
        let sum = checksum::checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    all(how, bytes);
}
