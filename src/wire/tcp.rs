//! TCP headers (RFC 9293).

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a header without options, in bytes.
pub const HEADER_LEN: usize = 20;

/// Flag: no more data from the sender.
pub const FIN: u8 = 0x01;
/// Flag: opens a connection.
pub const SYN: u8 = 0x02;
/// Flag: breaks a connection off.
pub const RST: u8 = 0x04;
/// Flag: the acknowledgement number counts.
pub const ACK: u8 = 0x10;

/// The header without its options, as it stands in the packet.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct TcpHeader {
    /// Port of the sender.
    pub source: U16,
    /// Port of the receiver.
    pub destination: U16,
    /// Sequence number.
    pub sequence: U32,
    /// Acknowledgement number.
    pub acknowledgement: U32,
    /// Length of the header in units of 4 bytes (upper 4 bits).
    pub data_offset: u8,
    /// [`FIN`], [`SYN`], [`RST`], [`ACK`] and others.
    pub flags: u8,
    /// Receive window.
    pub window: U16,
    /// Over the pseudo header, header and payload.
    pub checksum: U16,
    /// Urgent pointer.
    pub urgent: U16,
}

const _: () = assert!(size_of::<TcpHeader>() == HEADER_LEN);

/// The header and its options and payload, or `None` when the bytes do not hold the fixed part, or
/// its own length is less than that or more than there is. The checksum is not looked at.
pub fn parse(bytes: &[u8]) -> Option<(&TcpHeader, &[u8], &[u8])> {
    let (header, rest) = TcpHeader::ref_from_prefix(bytes).ok()?;
    let options_len = usize::from(header.data_offset >> 4).checked_mul(4)?.checked_sub(HEADER_LEN)?;
    let (options, payload) = rest.split_at_checked(options_len)?;
    Some((header, options, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_payload_are_told_apart() {
        let mut segment = [0u8; 26];
        segment[12] = 0x60;
        segment[13] = SYN | ACK;
        let (header, options, payload) = parse(&segment).unwrap();
        assert_eq!((header.flags, options.len(), payload.len()), (SYN | ACK, 4, 2));
    }

    #[test]
    fn a_header_length_that_cannot_be_is_refused() {
        let mut segment = [0u8; 24];
        for words in 0..16u8 {
            segment[12] = words << 4;
            assert_eq!(parse(&segment).is_some(), words == 5 || words == 6, "{words} words");
        }
    }
}
