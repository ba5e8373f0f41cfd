//! ICMPv6 (RFC 4443).

use std::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::pseudo6;
use super::ipv6::ICMP6;

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 8;

/// The packet could not be delivered; the code says why.
pub const UNREACHABLE: u8 = 1;
/// Longer than the next link takes.
pub const PACKET_TOO_BIG: u8 = 2;
/// The hop limit came to 0 (code 0).
pub const TIME_EXCEEDED: u8 = 3;
/// A header field is wrong.
pub const PARAMETER_PROBLEM: u8 = 4;
/// Ping.
pub const ECHO_REQUEST: u8 = 128;
/// Answer to an echo request.
pub const ECHO_REPLY: u8 = 129;
/// Who has this address? (RFC 4861)
pub const NEIGHBOR_SOLICITATION: u8 = 135;
/// I have it (RFC 4861).
pub const NEIGHBOR_ADVERTISEMENT: u8 = 136;
/// Use another router (RFC 4861).
pub const REDIRECT: u8 = 137;

/// The header, as it stands in the packet.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Icmp6Header {
    /// What it says.
    pub kind: u8,
    /// The particulars.
    pub code: u8,
    /// Over the pseudo header, header and payload.
    pub checksum: U16,
    /// MTU, pointer, identifier and sequence number, or flags, by type.
    pub rest: U32,
}

const _: () = assert!(size_of::<Icmp6Header>() == HEADER_LEN);

/// The header and what follows it, or `None` when the bytes do not hold one. The checksum is not
/// looked at.
pub fn parse(bytes: &[u8]) -> Option<(&Icmp6Header, &[u8])> {
    Icmp6Header::ref_from_prefix(bytes).ok()
}

/// Whether messages of this type report an error: all below 128 do (RFC 4443 section 2.1).
pub const fn is_error(kind: u8) -> bool {
    kind < 128
}

/// Whether a message (from its ICMPv6 header on) carries the right checksum.
pub fn sum_ok(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> bool {
    pseudo6(source, destination, ICMP6, message.len() as u32).bytes(message).fold() == 0xffff
}

/// Makes the checksum of a message and fills it in; a message shorter than its header is left
/// alone.
pub fn fill_checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &mut [u8]) {
    let sum = pseudo6(source, destination, ICMP6, message.len() as u32).bytes(message);
    if let Ok((header, _)) = Icmp6Header::mut_from_prefix(message) {
        let without = sum.word(!header.checksum.get());
        header.checksum.set(without.checksum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_filled_in_is_right_whatever_stood_there() {
        let (source, destination) = ("fe80::1".parse().unwrap(), "ff02::1".parse().unwrap());
        let mut message = [128, 0, 0xab, 0xcd, 0, 1, 0, 2, 3];
        assert!(!sum_ok(source, destination, &message));
        fill_checksum(source, destination, &mut message);
        assert!(sum_ok(source, destination, &message));
        assert!(!sum_ok(source, source, &message), "the addresses count");
    }
}
