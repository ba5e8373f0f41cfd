//! ICMP errors about packets that could not be forwarded: whether one may be sent at all, and its
//! bytes (RFC 792, RFC 1812 section 4.3.2; RFC 4443).
//!
//! Pure functions: the caller has asked its token bucket, chosen the source address, and routes
//! what is written like a packet of its own. A packet for a directed broadcast address looks like
//! any other here: only the tables know, so the caller asks for no error about those.

use std::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::{U16, U32};

use crate::wire::icmp::{self, IcmpHeader};
use crate::wire::icmp6::{self, Icmp6Header};
use crate::wire::ipv4::{self, Ipv4Header};
use crate::wire::ipv6::{self, Ipv6Header};
use crate::wire::{checksum, ipv4::is_single_host};

/// How long an ICMP error may be, IP header included (RFC 1812 section 4.3.2.3).
pub const LONGEST4: usize = 576;

/// How long an ICMPv6 error may be, IPv6 header included (RFC 4443 section 2.4 (c)).
pub const LONGEST6: usize = ipv6::MIN_MTU;

/// Hops that an error may travel.
const TTL: u8 = 64;

/// Precedence 6, internetwork control, in the type of service (RFC 1812 section 4.3.2.5).
const INTERNETWORK_CONTROL: u8 = 0xc0;

/// How a frame was addressed on the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// To one MAC address.
    Unicast,
    /// To a multicast or broadcast MAC address.
    Group,
}

/// What an ICMP error says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmp4Error {
    /// 11/0: the TTL came to 0.
    TimeExceeded,
    /// 3/0: no route.
    NetUnreachable,
    /// 3/1: the destination or the next hop does not answer.
    HostUnreachable,
    /// 3/2: nobody here speaks the protocol.
    ProtocolUnreachable,
    /// 3/3: nobody listens on the port.
    PortUnreachable,
    /// 3/4: longer than the next link takes, and may not be fragmented (RFC 1191).
    FragmentationNeeded {
        /// The next link's MTU, in bytes.
        mtu: u16,
    },
    /// 3/5: the source route is refused.
    SourceRouteFailed,
    /// 3/13: forbidden by a rule.
    Prohibited,
    /// 5/1: for this host there is a better gateway on the link (RFC 1812 section 5.2.7.2).
    Redirect {
        /// Which.
        gateway: Ipv4Addr,
    },
    /// 12/0: a header field is wrong.
    ParameterProblem {
        /// Which, in bytes from the start of the IP header.
        pointer: u8,
    },
}

impl Icmp4Error {
    fn header(self) -> IcmpHeader {
        let (kind, code, id, sequence) = match self {
            Self::TimeExceeded => (icmp::TIME_EXCEEDED, 0, 0, 0),
            Self::NetUnreachable => (icmp::UNREACHABLE, 0, 0, 0),
            Self::HostUnreachable => (icmp::UNREACHABLE, 1, 0, 0),
            Self::ProtocolUnreachable => (icmp::UNREACHABLE, 2, 0, 0),
            Self::PortUnreachable => (icmp::UNREACHABLE, 3, 0, 0),
            Self::FragmentationNeeded { mtu } => (icmp::UNREACHABLE, 4, 0, mtu),
            Self::SourceRouteFailed => (icmp::UNREACHABLE, 5, 0, 0),
            Self::Prohibited => (icmp::UNREACHABLE, 13, 0, 0),
            Self::Redirect { gateway } => {
                let [a, b, c, d] = gateway.octets();
                (icmp::REDIRECT, 1, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
            }
            Self::ParameterProblem { pointer } => (icmp::PARAMETER_PROBLEM, 0, u16::from(pointer) << 8, 0),
        };
        IcmpHeader { kind, code, checksum: U16::new(0), id: U16::new(id), sequence: U16::new(sequence) }
    }
}

/// What an ICMPv6 error says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmp6Error {
    /// 1/0: no route.
    NoRoute,
    /// 1/1: forbidden by a rule.
    Prohibited,
    /// 1/2: the source's scope ends here (RFC 4007).
    BeyondScope,
    /// 1/3: the destination or the next hop does not answer.
    AddressUnreachable,
    /// 1/4: nobody listens on the port.
    PortUnreachable,
    /// 2/0: longer than the next link takes.
    PacketTooBig {
        /// The next link's MTU, in bytes.
        mtu: u32,
    },
    /// 3/0: the hop limit came to 0.
    HopLimitExceeded,
    /// 4: a header field is wrong.
    ParameterProblem {
        /// 0 erroneous field, 1 unknown next header, 2 unknown option.
        code: u8,
        /// Which, in bytes from the start of the IPv6 header.
        pointer: u32,
    },
}

impl Icmp6Error {
    fn header(self) -> Icmp6Header {
        let (kind, code, rest) = match self {
            Self::NoRoute => (icmp6::UNREACHABLE, 0, 0),
            Self::Prohibited => (icmp6::UNREACHABLE, 1, 0),
            Self::BeyondScope => (icmp6::UNREACHABLE, 2, 0),
            Self::AddressUnreachable => (icmp6::UNREACHABLE, 3, 0),
            Self::PortUnreachable => (icmp6::UNREACHABLE, 4, 0),
            Self::PacketTooBig { mtu } => (icmp6::PACKET_TOO_BIG, 0, mtu),
            Self::HopLimitExceeded => (icmp6::TIME_EXCEEDED, 0, 0),
            Self::ParameterProblem { code, pointer } => (icmp6::PARAMETER_PROBLEM, code, pointer),
        };
        Icmp6Header { kind, code, checksum: U16::new(0), rest: U32::new(rest) }
    }

    /// Whether a multicast destination may be told too (RFC 4443 section 2.4 (e.3)).
    fn to_multicast(self) -> bool {
        matches!(self, Self::PacketTooBig { .. } | Self::ParameterProblem { code: 2, .. })
    }
}

/// Writes the ICMP error about `original`, a packet as it came, from its IPv4 header on (what
/// follows its total length is padding), and gives the length of the IP packet that now stands in
/// `out`. 576 bytes of room are always enough.
///
/// `source` is the router's address that the error comes from. The error is an atomic datagram
/// (RFC 6864): DF set, identification 0.
///
/// `None` where there must be no error (RFC 1812 section 4.3.2.7): about an ICMP error, about a
/// fragment other than the first, about a packet to a multicast or broadcast address or in a link
/// multicast or broadcast, to a source that is not a single host, or about a malformed packet; and
/// when `out` has not the room.
pub fn ipv4_error(
    original: &[u8],
    error: Icmp4Error,
    source: Ipv4Addr,
    link: Link,
    out: &mut [u8],
) -> Option<usize> {
    let packet = ipv4::parse(original).ok().filter(|packet| packet.sum_ok())?;
    if !may_answer4(&packet, link) {
        return None;
    }
    let quoted_len =
        (packet.header_len() + packet.payload.len()).min(LONGEST4 - ipv4::HEADER_LEN - icmp::HEADER_LEN);
    let quoted = original.get(..quoted_len)?;

    let len = ipv4::HEADER_LEN + icmp::HEADER_LEN + quoted_len;
    let (ip, message) = out.get_mut(..len)?.split_at_mut(ipv4::HEADER_LEN);
    let mut header = error.header();
    header.checksum.set(checksum::Sum::new().bytes(header.as_bytes()).bytes(quoted).checksum());
    message[..icmp::HEADER_LEN].copy_from_slice(header.as_bytes());
    message[icmp::HEADER_LEN..].copy_from_slice(quoted);

    let mut header = Ipv4Header::new(source, packet.header.source(), ipv4::ICMP, message.len() as u16);
    header.tos = INTERNETWORK_CONTROL;
    header.flags_offset.set(ipv4::DONT_FRAGMENT);
    header.ttl = TTL;
    ip.copy_from_slice(header.as_bytes());
    ipv4::fill_checksum(ip);
    Some(len)
}

/// Whether an error about `packet`, which passed the header checks, may be sent at all: RFC 1812
/// section 4.3.2.7. Cheap, so that it can be asked before the token bucket.
pub fn may_answer4(packet: &ipv4::Ipv4<'_>, link: Link) -> bool {
    let destination = packet.header.destination();
    // A message of a type unknown here might report an error: silence cannot make a loop.
    let about_icmp = packet.header.protocol == ipv4::ICMP;
    let is_query = packet.payload.first().is_some_and(|kind| icmp::is_query(*kind));
    link == Link::Unicast
        && packet.header.fragment_offset() == 0
        && is_single_host(packet.header.source())
        && !destination.is_multicast()
        && !destination.is_broadcast()
        && (!about_icmp || is_query)
}

/// Writes the ICMPv6 error about `original`, a packet as it came, from its IPv6 header on (what
/// follows its payload is padding), and gives the length of the IPv6 packet that now stands in
/// `out`. 1280 bytes of room are always enough.
///
/// `None` where there must be no error (RFC 4443 section 2.4 (e)): about an ICMPv6 error or a
/// redirect, about a packet to a multicast address or in a link multicast or broadcast (but for
/// packet too big and parameter problem code 2), to a source that is not a single node, or about a
/// malformed packet; and when `out` has not the room. A later fragment of an ICMPv6 message, which
/// might be an error's, gets none either.
pub fn ipv6_error(
    original: &[u8],
    error: Icmp6Error,
    source: Ipv6Addr,
    link: Link,
    out: &mut [u8],
) -> Option<usize> {
    let packet = ipv6::parse(original).ok()?;
    if !may_answer6(&packet, error, link) {
        return None;
    }
    let quoted_len =
        (ipv6::HEADER_LEN + packet.payload.len()).min(LONGEST6 - ipv6::HEADER_LEN - icmp6::HEADER_LEN);
    let quoted = original.get(..quoted_len)?;

    let len = ipv6::HEADER_LEN + icmp6::HEADER_LEN + quoted_len;
    let (ip, message) = out.get_mut(..len)?.split_at_mut(ipv6::HEADER_LEN);
    let destination = packet.header.source();
    message[..icmp6::HEADER_LEN].copy_from_slice(error.header().as_bytes());
    message[icmp6::HEADER_LEN..].copy_from_slice(quoted);
    icmp6::fill_checksum(source, destination, message);

    let header = Ipv6Header::new(source, destination, ipv6::ICMP6, TTL, message.len() as u16);
    ip.copy_from_slice(header.as_bytes());
    Some(len)
}

/// Whether `error` about `packet` may be sent at all: RFC 4443 section 2.4 (e). Cheap, so that it can
/// be asked before the token bucket.
pub fn may_answer6(packet: &ipv6::Ipv6<'_>, error: Icmp6Error, link: Link) -> bool {
    let (source, destination) = (packet.header.source(), packet.header.destination());
    let to_group = link == Link::Group || destination.is_multicast();
    let from_one = !source.is_unspecified() && !source.is_multicast() && !source.is_loopback();
    from_one && (!to_group || error.to_multicast()) && !reports_icmp6_error(packet)
}

/// Whether the packet is, or may be a part of, an ICMPv6 error or redirect.
fn reports_icmp6_error(packet: &ipv6::Ipv6) -> bool {
    match ipv6::upper_layer(packet.header.next_header, packet.payload) {
        Some(upper) if upper.protocol == ipv6::ICMP6 => {
            let kind = upper.bytes.first().filter(|_| !upper.later_fragment);
            kind.is_none_or(|kind| icmp6::is_error(*kind) || *kind == icmp6::REDIRECT)
        }
        // Extension headers that are cut short lead to no ICMPv6 error.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const US: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const SENDER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
    const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);

    fn packet4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let header = Ipv4Header::new(source, destination, protocol, payload.len() as u16);
        let mut packet = [header.as_bytes(), payload].concat();
        ipv4::fill_checksum(&mut packet[..20]);
        packet
    }

    fn error4(original: &[u8], error: Icmp4Error) -> Option<Vec<u8>> {
        let mut out = [0u8; LONGEST4];
        ipv4_error(original, error, US, Link::Unicast, &mut out).map(|len| out[..len].to_vec())
    }

    fn checked4(written: &[u8]) -> (&Ipv4Header, &IcmpHeader, &[u8]) {
        let packet = ipv4::parse(written).unwrap();
        assert!(packet.sum_ok());
        assert_eq!(checksum::checksum(packet.payload), 0, "the ICMP checksum is right");
        let (header, quoted) = icmp::parse(packet.payload).unwrap();
        (packet.header, header, quoted)
    }

    #[test]
    fn rule_14_the_error_quotes_as_much_as_fits_576_bytes() {
        let long = packet4(SENDER, FAR, ipv4::UDP, &[0xaa; 1400]);
        let written = error4(&long, Icmp4Error::TimeExceeded).unwrap();
        assert_eq!(written.len(), 576);
        assert_eq!(checked4(&written).2, &long[..548]);
        let short = packet4(SENDER, FAR, ipv4::UDP, &[0xbb; 9]);
        let mut padded = short.clone();
        padded.extend([0; 17]);
        assert_eq!(checked4(&error4(&padded, Icmp4Error::TimeExceeded).unwrap()).2, short, "rule 7");
    }

    #[test]
    fn rule_15_16_the_error_goes_from_us_to_the_sender_with_precedence_6_and_ttl_64() {
        let written = error4(&packet4(SENDER, FAR, ipv4::UDP, &[1; 8]), Icmp4Error::HostUnreachable).unwrap();
        let (ip, _, _) = checked4(&written);
        assert_eq!((ip.source(), ip.destination()), (US, SENDER));
        assert_eq!((ip.tos >> 5, ip.ttl, ip.protocol), (6, 64, ipv4::ICMP));
        assert!(ip.dont_fragment(), "an atomic datagram needs no identification (RFC 6864)");
    }

    #[test]
    fn rule_21_fragmentation_needed_carries_the_next_hops_mtu() {
        let error = Icmp4Error::FragmentationNeeded { mtu: 1400 };
        let written = error4(&packet4(SENDER, FAR, ipv4::UDP, &[1; 1472]), error).unwrap();
        assert_eq!(
            checked4(&written).1.as_bytes(),
            [&[3, 4][..], &written[22..24], &[0, 0, 0x05, 0x78]].concat()
        );
    }

    #[test]
    fn every_error_has_its_type_and_code() {
        let original = packet4(SENDER, FAR, ipv4::UDP, &[1; 8]);
        for (error, kind, code) in [
            (Icmp4Error::TimeExceeded, 11, 0),
            (Icmp4Error::NetUnreachable, 3, 0),
            (Icmp4Error::HostUnreachable, 3, 1),
            (Icmp4Error::ProtocolUnreachable, 3, 2),
            (Icmp4Error::PortUnreachable, 3, 3),
            (Icmp4Error::SourceRouteFailed, 3, 5),
            (Icmp4Error::Prohibited, 3, 13),
            (Icmp4Error::ParameterProblem { pointer: 20 }, 12, 0),
        ] {
            let written = error4(&original, error).unwrap();
            let (_, header, _) = checked4(&written);
            assert_eq!((header.kind, header.code), (kind, code), "{error:?}");
            let pointer = if kind == 12 { 20 } else { 0 };
            assert_eq!(header.id.as_bytes()[0], pointer);
        }
    }

    #[test]
    fn rule_12_there_is_no_error_about_an_icmp_error_but_about_a_query() {
        for kind in 0..=255u8 {
            let packet = packet4(SENDER, FAR, ipv4::ICMP, &[kind, 0, 0, 0, 0, 0, 0, 0]);
            let answered = error4(&packet, Icmp4Error::TimeExceeded).is_some();
            assert!(!(answered && icmp::is_error(kind)), "type {kind}");
            assert_eq!(answered, icmp::is_query(kind), "type {kind}");
        }
        assert!(error4(&packet4(SENDER, FAR, ipv4::ICMP, &[]), Icmp4Error::TimeExceeded).is_none());
    }

    #[test]
    fn rule_12_there_is_an_error_about_the_first_fragment_only() {
        for (flags_offset, answered) in
            [(ipv4::MORE_FRAGMENTS, true), (ipv4::MORE_FRAGMENTS | 1, false), (185, false)]
        {
            let mut packet = packet4(SENDER, FAR, ipv4::UDP, &[1; 8]);
            packet[6..8].copy_from_slice(&flags_offset.to_be_bytes());
            ipv4::fill_checksum(&mut packet[..20]);
            assert_eq!(error4(&packet, Icmp4Error::TimeExceeded).is_some(), answered, "{flags_offset:#x}");
        }
    }

    #[test]
    fn rule_12_there_is_no_error_about_multicast_and_broadcast_and_link_broadcast() {
        for destination in ["224.0.0.1", "239.1.2.3", "255.255.255.255"] {
            let packet = packet4(SENDER, destination.parse().unwrap(), ipv4::UDP, &[1; 8]);
            assert!(error4(&packet, Icmp4Error::TimeExceeded).is_none(), "{destination}");
        }
        let packet = packet4(SENDER, FAR, ipv4::UDP, &[1; 8]);
        let mut out = [0u8; LONGEST4];
        assert_eq!(ipv4_error(&packet, Icmp4Error::TimeExceeded, US, Link::Group, &mut out), None);
    }

    #[test]
    fn rule_12_there_is_no_error_to_a_source_that_is_not_a_single_host() {
        for source in ["0.0.0.0", "0.1.1.1", "127.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"] {
            let packet = packet4(source.parse().unwrap(), FAR, ipv4::UDP, &[1; 8]);
            assert!(error4(&packet, Icmp4Error::NetUnreachable).is_none(), "{source}");
        }
    }

    #[test]
    fn there_is_no_error_about_a_packet_that_fails_the_header_checks() {
        let good = packet4(SENDER, FAR, ipv4::UDP, &[1; 8]);
        let mut wrong_sum = good.clone();
        wrong_sum[10] ^= 1;
        assert!(error4(&wrong_sum, Icmp4Error::TimeExceeded).is_none());
        assert!(error4(&good[..27], Icmp4Error::TimeExceeded).is_none());
        let mut out = [0u8; 55];
        assert_eq!(ipv4_error(&good, Icmp4Error::TimeExceeded, US, Link::Unicast, &mut out), None, "no room");
    }

    fn six(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn packet6(source: &str, destination: &str, next: u8, payload: &[u8]) -> Vec<u8> {
        let header = Ipv6Header::new(six(source), six(destination), next, 1, payload.len() as u16);
        [header.as_bytes(), payload].concat()
    }

    fn error6(original: &[u8], error: Icmp6Error) -> Option<Vec<u8>> {
        let mut out = [0u8; LONGEST6];
        let source = six("2001:db8::1");
        ipv6_error(original, error, source, Link::Unicast, &mut out).map(|len| out[..len].to_vec())
    }

    fn checked6(written: &[u8]) -> (&Ipv6Header, &Icmp6Header, &[u8]) {
        let packet = ipv6::parse(written).unwrap();
        let (source, destination) = (packet.header.source(), packet.header.destination());
        assert!(icmp6::sum_ok(source, destination, packet.payload));
        let (header, quoted) = icmp6::parse(packet.payload).unwrap();
        (packet.header, header, quoted)
    }

    #[test]
    fn rule_28_the_error_quotes_as_much_as_fits_1280_bytes() {
        let long = packet6("2001:db8:1::7", "2001:db8:2::9", 17, &[0xaa; 1460]);
        let written = error6(&long, Icmp6Error::PacketTooBig { mtu: 1400 }).unwrap();
        assert_eq!(written.len(), 1280);
        let (ip, icmp, quoted) = checked6(&written);
        assert_eq!(quoted, &long[..1232]);
        assert_eq!((ip.destination(), ip.hop_limit), (six("2001:db8:1::7"), 64));
        assert_eq!((icmp.kind, icmp.code, icmp.rest.get()), (2, 0, 1400), "rule 32");
    }

    #[test]
    fn rule_30_31_32_every_error_has_its_type_and_code() {
        let original = packet6("2001:db8:1::7", "2001:db8:2::9", 17, &[1; 8]);
        for (error, says) in [
            (Icmp6Error::NoRoute, (1, 0, 0)),
            (Icmp6Error::Prohibited, (1, 1, 0)),
            (Icmp6Error::BeyondScope, (1, 2, 0)),
            (Icmp6Error::AddressUnreachable, (1, 3, 0)),
            (Icmp6Error::PortUnreachable, (1, 4, 0)),
            (Icmp6Error::PacketTooBig { mtu: 1280 }, (2, 0, 1280)),
            (Icmp6Error::HopLimitExceeded, (3, 0, 0)),
            (Icmp6Error::ParameterProblem { code: 1, pointer: 6 }, (4, 1, 6)),
        ] {
            let written = error6(&original, error).unwrap();
            let (_, header, _) = checked6(&written);
            assert_eq!((header.kind, header.code, header.rest.get()), says, "{error:?}");
        }
    }

    #[test]
    fn rule_27_there_is_no_error_about_an_icmpv6_error_or_redirect() {
        for kind in 0..=255u8 {
            let packet = packet6("2001:db8:1::7", "2001:db8:2::9", ipv6::ICMP6, &[kind, 0, 0, 0, 0, 0, 0, 0]);
            let answered = error6(&packet, Icmp6Error::HopLimitExceeded).is_some();
            assert_eq!(answered, kind >= 128 && kind != 137, "type {kind}");
        }
    }

    #[test]
    fn rule_27_an_icmpv6_error_is_found_behind_extension_headers() {
        let mut payload = vec![ipv6::ROUTING, 0, 1, 4, 0, 0, 0, 0];
        payload.extend([ipv6::FRAGMENT, 0, 0, 0, 0, 0, 0, 0]);
        payload.extend([ipv6::ICMP6, 0, 0, 1, 0, 0, 0, 9]);
        payload.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        let packet = packet6("2001:db8:1::7", "2001:db8:2::9", ipv6::HOP_BY_HOP, &payload);
        assert!(error6(&packet, Icmp6Error::PacketTooBig { mtu: 1280 }).is_none());
        payload[24] = icmp6::ECHO_REQUEST;
        let packet = packet6("2001:db8:1::7", "2001:db8:2::9", ipv6::HOP_BY_HOP, &payload);
        assert!(error6(&packet, Icmp6Error::PacketTooBig { mtu: 1280 }).is_some());
        payload[19] = 9;
        let packet = packet6("2001:db8:1::7", "2001:db8:2::9", ipv6::HOP_BY_HOP, &payload);
        assert!(error6(&packet, Icmp6Error::HopLimitExceeded).is_none(), "later fragment of ICMPv6");
    }

    #[test]
    fn rule_27_a_multicast_destination_hears_of_packet_too_big_and_code_2_only() {
        let packet = packet6("2001:db8:1::7", "ff0e::1", 17, &[1; 8]);
        assert!(error6(&packet, Icmp6Error::HopLimitExceeded).is_none());
        assert!(error6(&packet, Icmp6Error::ParameterProblem { code: 1, pointer: 0 }).is_none());
        assert!(error6(&packet, Icmp6Error::ParameterProblem { code: 2, pointer: 0 }).is_some());
        assert!(error6(&packet, Icmp6Error::PacketTooBig { mtu: 1280 }).is_some());
        let unicast = packet6("2001:db8:1::7", "2001:db8:2::9", 17, &[1; 8]);
        let mut out = [0u8; LONGEST6];
        let us = six("2001:db8::1");
        assert!(ipv6_error(&unicast, Icmp6Error::NoRoute, us, Link::Group, &mut out).is_none());
        let too_big = Icmp6Error::PacketTooBig { mtu: 1280 };
        assert!(ipv6_error(&unicast, too_big, us, Link::Group, &mut out).is_some());
    }

    #[test]
    fn rule_27_there_is_no_error_to_a_source_that_is_not_a_single_node() {
        for source in ["::", "::1", "ff02::1"] {
            let packet = packet6(source, "2001:db8:2::9", 17, &[1; 8]);
            assert!(error6(&packet, Icmp6Error::NoRoute).is_none(), "{source}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_an_error_panic_or_outgrow_its_bounds(
            mut bytes in prop::collection::vec(any::<u8>(), 0..1600), version in 0..8u8, room in 0..1400usize,
        ) {
            let mut out = vec![0; room];
            if let Some(first) = bytes.first_mut() { *first = [0x45, 0x46, 0x4f, 0x60, 0x61, 0, 0x44, 0xff][usize::from(version)]; }
            if bytes.len() >= 20 && bytes[0] >> 4 == 4 {
                let len = bytes.len() as u16;
                bytes[2..4].copy_from_slice(&len.to_be_bytes());
                let header = usize::from(bytes[0] & 15) * 4;
                if header <= bytes.len() { ipv4::fill_checksum(&mut bytes[..header]); }
            }
            if let Some(len) = ipv4_error(&bytes, Icmp4Error::TimeExceeded, US, Link::Unicast, &mut out) {
                prop_assert!(len <= LONGEST4 && len <= room);
                prop_assert!(error4(&out[..len], Icmp4Error::TimeExceeded).is_none(), "no error about our error");
            }
            if let Some(len) = ipv6_error(&bytes, Icmp6Error::NoRoute, six("2001:db8::1"), Link::Unicast, &mut out) {
                prop_assert!(len <= LONGEST6 && len <= room);
                prop_assert!(error6(&out[..len], Icmp6Error::NoRoute).is_none(), "no error about our error");
            }
        }
    }
}
