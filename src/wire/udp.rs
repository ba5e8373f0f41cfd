//! UDP headers (RFC 768).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 8;

/// The header, as it stands in the packet.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct UdpHeader {
    /// Port of the sender.
    pub source: U16,
    /// Port of the receiver.
    pub destination: U16,
    /// Length of header and payload, in bytes.
    pub len: U16,
    /// 0 for none (IPv4 only).
    pub checksum: U16,
}

const _: () = assert!(size_of::<UdpHeader>() == HEADER_LEN);

/// The header and what follows it, or `None` when the bytes do not hold one. Neither its length
/// field nor its checksum is looked at: the bytes may be a first fragment's.
pub fn parse(bytes: &[u8]) -> Option<(&UdpHeader, &[u8])> {
    UdpHeader::ref_from_prefix(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_in_network_order() {
        let (header, rest) = parse(&[0x12, 0x34, 0, 53, 0, 9, 0, 0, 1]).unwrap();
        assert_eq!((header.source.get(), header.destination.get(), rest.len()), (0x1234, 53, 1));
        assert!(parse(&[0; 7]).is_none());
    }
}
