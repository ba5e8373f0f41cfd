//! ICMP (RFC 792) for IPv4.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 8;

/// Answer to an echo request.
pub const ECHO_REPLY: u8 = 0;
/// The packet could not be delivered; the code says why.
pub const UNREACHABLE: u8 = 3;
/// Source quench (deprecated by RFC 6633).
pub const SOURCE_QUENCH: u8 = 4;
/// Use another gateway.
pub const REDIRECT: u8 = 5;
/// Ping.
pub const ECHO_REQUEST: u8 = 8;
/// The TTL came to 0 (code 0), or a fragment never came (code 1).
pub const TIME_EXCEEDED: u8 = 11;
/// A header field is wrong.
pub const PARAMETER_PROBLEM: u8 = 12;

/// The header, as it stands in the packet.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct IcmpHeader {
    /// What it says.
    pub kind: u8,
    /// The particulars.
    pub code: u8,
    /// Over header and payload.
    pub checksum: U16,
    /// Identifier of queries; of parameter problem, the pointer in the first byte.
    pub id: U16,
    /// Sequence number of queries; of "fragmentation needed", the next hop's MTU (RFC 1191).
    pub sequence: U16,
}

const _: () = assert!(size_of::<IcmpHeader>() == HEADER_LEN);

/// The header and what follows it, or `None` when the bytes do not hold one. The checksum is not
/// looked at.
pub fn parse(bytes: &[u8]) -> Option<(&IcmpHeader, &[u8])> {
    IcmpHeader::ref_from_prefix(bytes).ok()
}

/// Whether messages of this type report an error (redirects included), so that no error may be
/// sent about them (RFC 1812 section 4.3.2.7).
pub const fn is_error(kind: u8) -> bool {
    matches!(kind, UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM)
}

/// Whether messages of this type ask something or answer that: echo, router discovery, timestamp,
/// information, address mask, extended echo.
pub const fn is_query(kind: u8) -> bool {
    matches!(kind, ECHO_REPLY | ECHO_REQUEST | 9 | 10 | 13..=18 | 42 | 43)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_request_is_read() {
        let (header, rest) = parse(&[8, 0, 0, 0, 0x12, 0x34, 0, 7, 0xaa]).unwrap();
        assert_eq!((header.kind, header.id.get(), header.sequence.get(), rest), (8, 0x1234, 7, &[0xaa][..]));
        assert!(parse(&[8; 7]).is_none());
    }

    #[test]
    fn no_type_both_asks_and_reports() {
        assert!((0..=255).all(|kind| !(is_error(kind) && is_query(kind))));
    }
}
