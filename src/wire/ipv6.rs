//! IPv6 headers (RFC 8200), and the way through extension headers to the upper layer.
//!
//! A forwarder does not look at extension headers; ICMPv6 errors, the built-in host and
//! filters do.

use std::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Malformed;

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 40;

/// The smallest MTU that a link may have (RFC 8200 section 5).
pub const MIN_MTU: usize = 1280;

/// Protocol number of ICMPv6.
pub const ICMP6: u8 = 58;
/// Hop-by-hop options.
pub const HOP_BY_HOP: u8 = 0;
/// A routing header.
pub const ROUTING: u8 = 43;
/// A fragment header.
pub const FRAGMENT: u8 = 44;
/// An authentication header (RFC 4302).
pub const AUTHENTICATION: u8 = 51;
/// Nothing follows.
pub const NO_NEXT_HEADER: u8 = 59;
/// Destination options.
pub const DESTINATION_OPTIONS: u8 = 60;
/// Mobility header (RFC 6275).
pub const MOBILITY: u8 = 135;

/// The header, as it stands in the packet.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Ipv6Header {
    /// Version (4 bits), traffic class (8 bits) and flow label (20 bits).
    pub version_class_flow: U32,
    /// Length of all that follows the header, in bytes.
    pub payload_len: U16,
    /// What follows.
    pub next_header: u8,
    /// Hops left.
    pub hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

const _: () = assert!(size_of::<Ipv6Header>() == HEADER_LEN);

impl Ipv6Header {
    /// A header for `payload_len` bytes, traffic class and flow label 0.
    pub fn new(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        next_header: u8,
        hop_limit: u8,
        payload_len: u16,
    ) -> Self {
        Self {
            version_class_flow: U32::new(6 << 28),
            payload_len: U16::new(payload_len),
            next_header,
            hop_limit,
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// Who sent the packet.
    pub fn source(&self) -> Ipv6Addr {
        self.source.into()
    }

    /// Who is to receive it.
    pub fn destination(&self) -> Ipv6Addr {
        self.destination.into()
    }

    /// The flow label (RFC 6437).
    pub const fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & 0x000f_ffff
    }

    /// The traffic class.
    pub const fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }

    /// Takes one from the hop limit and gives the new one. A hop limit of 0 stays.
    pub const fn decrement_hop_limit(&mut self) -> u8 {
        self.hop_limit = self.hop_limit.saturating_sub(1);
        self.hop_limit
    }
}

/// A packet taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a> {
    /// The header.
    pub header: &'a Ipv6Header,
    /// What the header announces, extension headers included, without the link's padding.
    pub payload: &'a [u8],
}

/// Takes a packet apart, from its IPv6 header on: there are 40 bytes, the version is 6, and the
/// payload is all there.
///
/// # Errors
/// [`Malformed::Short`] when bytes are missing, [`Malformed::Field`] when the version is wrong.
pub fn parse(bytes: &[u8]) -> Result<Ipv6<'_>, Malformed> {
    let packet = parse_quoted(bytes)?;
    let whole = packet.payload.len() == usize::from(packet.header.payload_len.get());
    if whole { Ok(packet) } else { Err(Malformed::Short) }
}

/// Like [`parse`], for a packet quoted in an ICMPv6 error, whose payload may be cut short.
///
/// # Errors
/// [`Malformed::Short`] when the header is not all there, [`Malformed::Field`] when the version is
/// wrong.
pub fn parse_quoted(bytes: &[u8]) -> Result<Ipv6<'_>, Malformed> {
    let (header, rest) = Ipv6Header::ref_from_prefix(bytes).map_err(|_| Malformed::Short)?;
    if header.version_class_flow.get() >> 28 != 6 {
        return Err(Malformed::Field);
    }
    let payload_len = usize::from(header.payload_len.get()).min(rest.len());
    Ok(Ipv6 { header, payload: &rest[..payload_len] })
}

/// What [`upper_layer`] found behind the extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upper<'a> {
    /// The upper layer's protocol number; [`NO_NEXT_HEADER`] when there is none.
    pub protocol: u8,
    /// Where it begins, in bytes from the end of the IPv6 header.
    pub offset: usize,
    /// Its bytes; of a later fragment, bytes from its midst.
    pub bytes: &'a [u8],
    /// Whether a fragment header was passed (RFC 6946's atomic fragments too).
    pub fragment: bool,
    /// Whether it is a fragment other than the first, so that `bytes` does not start with the
    /// upper layer's header.
    pub later_fragment: bool,
    /// Whether a routing header was passed that has more to visit, so that the destination is not
    /// the last.
    pub segments_left: bool,
}

/// The upper layer of a packet, past all extension headers, or `None` when one of them is cut
/// short. The walk ends at a protocol that it does not know (ESP among them) and gives that.
pub fn upper_layer(next_header: u8, payload: &[u8]) -> Option<Upper<'_>> {
    let mut upper = Upper {
        protocol: next_header,
        offset: 0,
        bytes: payload,
        fragment: false,
        later_fragment: false,
        segments_left: false,
    };
    loop {
        // All of these begin with the next header's number and a length.
        let len = match upper.protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY => {
                8 * (usize::from(*upper.bytes.get(1)?) + 1)
            }
            AUTHENTICATION => 4 * (usize::from(*upper.bytes.get(1)?) + 2),
            FRAGMENT => 8,
            _ => return Some(upper),
        };
        let (header, rest) = upper.bytes.split_at_checked(len)?;
        if upper.protocol == FRAGMENT {
            upper.fragment = true;
            upper.later_fragment = u16::from_be_bytes([header[2], header[3]]) & 0xfff8 != 0;
        }
        upper.segments_left |= upper.protocol == ROUTING && header[3] != 0;
        upper.protocol = header[0];
        upper.bytes = rest;
        upper.offset += len;
        if upper.later_fragment {
            return Some(upper);
        }
    }
}

/// The solicited-node group of an address (RFC 4291 section 2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let a = address.octets();
    Ipv6Addr::from_octets([0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a[13], a[14], a[15]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_taken_apart_and_its_padding_left_out() {
        let (source, destination) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let header = Ipv6Header::new(source, destination, 17, 64, 3);
        let mut packet = header.as_bytes().to_vec();
        packet.extend([1, 2, 3, 0, 0]);
        let parsed = parse(&packet).unwrap();
        assert_eq!((parsed.payload, parsed.header.source()), (&[1u8, 2, 3][..], source));
        assert_eq!(parse(&packet[..42]).err(), Some(Malformed::Short));
        assert_eq!(parse_quoted(&packet[..42]).unwrap().payload, [1, 2]);
        packet[0] = 0x40;
        assert_eq!(parse(&packet).err(), Some(Malformed::Field));
    }

    #[test]
    fn rule_33_the_hop_limit_goes_down_by_one() {
        let mut header = Ipv6Header::new(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 17, 2, 0);
        assert_eq!([(); 3].map(|()| header.decrement_hop_limit()), [1, 0, 0]);
    }

    #[test]
    fn the_upper_layer_is_found_behind_every_extension_header() {
        let mut payload = vec![ROUTING, 0, 0, 0, 0, 0, 0, 0];
        payload.extend([DESTINATION_OPTIONS, 1]);
        payload.extend([0; 14]);
        payload.extend([AUTHENTICATION, 0, 0, 0, 0, 0, 0, 0]);
        payload.extend([FRAGMENT, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        payload.extend([ICMP6, 0, 0, 1, 0, 0, 0, 9]);
        payload.extend([128, 0]);
        let upper = upper_layer(HOP_BY_HOP, &payload).unwrap();
        assert_eq!((upper.protocol, upper.offset, upper.bytes), (ICMP6, 52, &[128u8, 0][..]));
        assert!(upper.fragment && !upper.later_fragment);
        for cut in 0..52 {
            assert_eq!(upper_layer(HOP_BY_HOP, &payload[..cut]), None, "cut to {cut} bytes");
        }
    }

    #[test]
    fn a_routing_header_with_segments_left_is_told() {
        let mut payload = [17, 0, 4, 0, 0, 0, 0, 0];
        assert!(!upper_layer(ROUTING, &payload).unwrap().segments_left);
        payload[3] = 1;
        assert!(upper_layer(ROUTING, &payload).unwrap().segments_left);
        assert!(!upper_layer(DESTINATION_OPTIONS, &payload).unwrap().segments_left);
    }

    #[test]
    fn a_later_fragment_has_no_upper_layer_header() {
        let payload = [DESTINATION_OPTIONS, 0, 0x00, 0x09, 0, 0, 0, 9, 0xaa];
        let upper = upper_layer(FRAGMENT, &payload).unwrap();
        assert!(upper.later_fragment);
        assert_eq!((upper.protocol, upper.bytes), (DESTINATION_OPTIONS, &[0xaau8][..]));
    }

    #[test]
    fn the_solicited_node_group_takes_the_last_24_bits() {
        let group = solicited_node("2001:db8::1:2345:6789".parse().unwrap());
        assert_eq!(group, "ff02::1:ff45:6789".parse::<Ipv6Addr>().unwrap());
    }
}
