//! What a filter wants to know of a packet, found with care: its protocol and ports behind options
//! and extension headers, and its place in a fragmented datagram.

use std::net::IpAddr;

use crate::{
    tables::acl::Kind,
    wire::{
        ipv4::{self, ICMP, TCP, UDP},
        ipv6::{self, AUTHENTICATION, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMP6, MOBILITY, ROUTING},
    },
};

/// Host Identity Protocol (RFC 7401) and Shim6 (RFC 5533): extension headers of the usual form.
const HIP: u8 = 139;
const SHIM6: u8 = 140;
/// For experiments (RFC 3692): may be extension headers, of nobody knows which form.
const EXPERIMENTS: [u8; 2] = [253, 254];

/// A fragment's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// What the fragments of one datagram share.
    pub id: u32,
    /// The protocol, which they share too, in IPv4 (RFC 791 section 3.2); 0 in IPv6, where it may
    /// differ (RFC 8200 section 4.5).
    pub protocol: u8,
    /// Where it lies, in bytes.
    pub offset: usize,
}

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upper<'a> {
    /// The upper layer's protocol; 0 when it is hidden.
    pub protocol: u8,
    /// Source port in the upper half, destination port in the lower; 0 without ports.
    pub ports: u32,
    /// What of that is known.
    pub kind: Kind,
    /// The upper layer's header and what follows; empty when it is hidden.
    pub payload: &'a [u8],
    /// Its place, when it is a fragment.
    pub fragment: Option<Fragment>,
    /// A fragment that no honest sender makes and that can deceive a filter: a first one that does
    /// not hold the upper layer's header (RFC 1858 section 3, RFC 7112), or a TCP fragment
    /// that overlays it (RFC 3128).
    pub forged: bool,
}

/// Addresses of the packet that begins here, and what was found in it; none when it is no IP
/// packet.
pub fn of(bytes: &[u8]) -> Option<(IpAddr, IpAddr, Upper<'_>)> {
    if bytes.first()? >> 4 == 4 {
        let packet = ipv4::parse(bytes).ok()?;
        let header = packet.header;
        Some((header.source().into(), header.destination().into(), of_ipv4(&packet)))
    } else {
        let packet = ipv6::parse(bytes).ok()?;
        let header = packet.header;
        Some((header.source().into(), header.destination().into(), of_ipv6(&packet)))
    }
}

/// Whether an IPv6 next header is, or may be, an extension header.
#[inline(always)]
pub const fn is_extension(next_header: u8) -> bool {
    matches!(
        next_header,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS | MOBILITY | HIP | SHIM6 | 253
            ..=254
    )
}

/// The shortest header of a protocol whose header a filter may look into, in bytes.
fn header_len(protocol: u8) -> usize {
    match protocol {
        TCP => 20,
        UDP => 8,
        ICMP | ICMP6 => 4,
        _ => 0,
    }
}

/// What the upper layer's first bytes say; `fragment` when they are those of a first fragment.
fn upper(protocol: u8, bytes: &[u8], fragment: Option<Fragment>) -> Upper<'_> {
    let ports = match (protocol, bytes) {
        (TCP | UDP, &[a, b, c, d, ..]) => Some(u32::from_be_bytes([a, b, c, d])),
        (TCP | UDP, _) => None,
        _ => Some(0),
    };
    Upper {
        protocol,
        ports: ports.unwrap_or(0),
        kind: if ports.is_some() { Kind::Whole } else { Kind::Hidden },
        payload: bytes,
        fragment,
        forged: fragment.is_some() && bytes.len() < header_len(protocol),
    }
}

/// A fragment other than the first.
fn later(protocol: u8, fragment: Fragment) -> Upper<'static> {
    let forged = protocol == TCP && fragment.offset < header_len(TCP);
    Upper { protocol, ports: 0, kind: Kind::Later, payload: &[], fragment: Some(fragment), forged }
}

/// A packet whose upper layer cannot be found.
fn hidden(fragment: Option<Fragment>) -> Upper<'static> {
    let first = fragment.is_some_and(|fragment| fragment.offset == 0);
    Upper { protocol: 0, ports: 0, kind: Kind::Hidden, payload: &[], fragment, forged: first }
}

/// What was found in an IPv4 packet, which may be a quoted one.
pub fn of_ipv4<'a>(packet: &ipv4::Ipv4<'a>) -> Upper<'a> {
    let header = packet.header;
    if !header.is_fragment() {
        return upper(header.protocol, packet.payload, None);
    }
    let (id, protocol) = (header.id.get().into(), header.protocol);
    let fragment = Fragment { id, protocol, offset: header.fragment_offset() };
    match fragment.offset {
        0 => upper(header.protocol, packet.payload, Some(fragment)),
        _ => later(header.protocol, fragment),
    }
}

/// What was found in an IPv6 packet, which may be a quoted one, behind its extension headers.
pub fn of_ipv6<'a>(packet: &ipv6::Ipv6<'a>) -> Upper<'a> {
    let (mut next, mut bytes) = (packet.header.next_header, packet.payload);
    let (mut fragment, mut fragmented) = (None, false);
    while is_extension(next) {
        let len = match (next, bytes) {
            (FRAGMENT, _) => Some(8),
            (AUTHENTICATION, &[_, len, ..]) => Some(4 * (usize::from(len) + 2)),
            (_, &[_, len, ..]) if !EXPERIMENTS.contains(&next) => Some(8 * (usize::from(len) + 1)),
            _ => None,
        };
        let Some((header, rest)) = len.and_then(|len| bytes.split_at_checked(len)) else {
            return hidden(fragment);
        };
        if next == FRAGMENT {
            if std::mem::replace(&mut fragmented, true) {
                // A fragment of a fragment: nobody makes such, and nobody knows how it is read.
                return hidden(fragment);
            }
            let offset = u16::from_be_bytes([header[2], header[3]]);
            let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            let here = Fragment { id, protocol: 0, offset: usize::from(offset & 0xfff8) };
            if here.offset > 0 {
                return if is_extension(header[0]) { hidden(Some(here)) } else { later(header[0], here) };
            }
            // One with nothing before and behind it is whole (RFC 6946).
            fragment = (offset & 1 != 0).then_some(here);
        }
        (next, bytes) = (header[0], rest);
    }
    upper(next, bytes, fragment)
}
