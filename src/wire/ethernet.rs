//! Ethernet II frames: two MAC addresses and the EtherType.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A MAC address.
pub type Mac = [u8; 6];

/// Everyone on the link.
pub const BROADCAST: Mac = [0xff; 6];

/// Length of the header without a VLAN tag, in bytes.
pub const HEADER_LEN: usize = 14;

/// IPv4.
pub const IPV4: u16 = 0x0800;
/// ARP.
pub const ARP: u16 = 0x0806;
/// A VLAN tag follows (IEEE 802.1Q).
pub const VLAN: u16 = 0x8100;
/// A service VLAN tag follows (IEEE 802.1ad).
pub const SERVICE_VLAN: u16 = 0x88a8;
/// IPv6.
pub const IPV6: u16 = 0x86dd;

/// The header, as it stands in the frame.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct EthernetHeader {
    /// Who is to take the frame.
    pub destination: Mac,
    /// Who sent it.
    pub source: Mac,
    /// What follows.
    pub ethertype: U16,
}

const _: () = assert!(size_of::<EthernetHeader>() == HEADER_LEN);

/// The header and what follows it, or `None` when the frame is shorter than that.
pub fn parse(frame: &[u8]) -> Option<(&EthernetHeader, &[u8])> {
    EthernetHeader::ref_from_prefix(frame).ok()
}

/// Whether the address is of a group: multicast or broadcast.
pub const fn is_group(mac: &Mac) -> bool {
    mac[0] & 1 != 0
}

/// Whether a single device can have this address: no group, and not all zero.
pub const fn is_unicast(mac: &Mac) -> bool {
    !is_group(mac) && (mac[0] | mac[1] | mac[2] | mac[3] | mac[4] | mac[5]) != 0
}

/// The group address for an IPv6 multicast destination (RFC 2464 section 7).
pub const fn ipv6_multicast(destination: &[u8; 16]) -> Mac {
    [0x33, 0x33, destination[12], destination[13], destination[14], destination[15]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_in_network_order() {
        let mut frame = [0u8; 20];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        let (header, rest) = parse(&frame).unwrap();
        assert_eq!((header.ethertype.get(), header.source[5], rest.len()), (IPV4, 2, 6));
        assert!(parse(&frame[..13]).is_none());
    }

    #[test]
    fn broadcast_and_multicast_are_groups_and_nobody_has_them() {
        assert!(is_group(&BROADCAST) && is_group(&[0x33, 0x33, 0, 0, 0, 1]));
        assert!(!is_unicast(&BROADCAST) && !is_unicast(&[0; 6]));
        assert!(is_unicast(&[2, 0, 0, 0, 0, 1]));
    }
}
