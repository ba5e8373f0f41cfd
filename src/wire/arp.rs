//! ARP for IPv4 over Ethernet (RFC 826); no other hardware or protocol is parsed.

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ethernet::{self, Mac};

/// Length of a packet without the Ethernet header, in bytes.
pub const PACKET_LEN: usize = 28;

/// Who has this address?
pub const REQUEST: u16 = 1;
/// I have it.
pub const REPLY: u16 = 2;

/// An ARP packet for IPv4 over Ethernet, as it stands behind the Ethernet header.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct ArpPacket {
    hardware: U16,
    protocol: U16,
    hardware_len: u8,
    protocol_len: u8,
    /// [`REQUEST`] or [`REPLY`]; others occur.
    pub operation: U16,
    /// The sender's MAC address.
    pub sender_mac: Mac,
    sender: [u8; 4],
    /// The target's MAC address; in a request it says nothing.
    pub target_mac: Mac,
    target: [u8; 4],
}

const _: () = assert!(size_of::<ArpPacket>() == PACKET_LEN);

impl ArpPacket {
    /// A packet with all fields given.
    pub fn new(operation: u16, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Self {
        Self {
            hardware: U16::new(1),
            protocol: U16::new(ethernet::IPV4),
            hardware_len: 6,
            protocol_len: 4,
            operation: U16::new(operation),
            sender_mac: sender.0,
            sender: sender.1.octets(),
            target_mac: target.0,
            target: target.1.octets(),
        }
    }

    /// The packet at the start of `bytes`, or `None` when it is too short or not about IPv4 over
    /// Ethernet. What follows (the link's padding) does not matter.
    pub fn parse(bytes: &[u8]) -> Option<&Self> {
        let (packet, _) = Self::ref_from_prefix(bytes).ok()?;
        let ours = packet.hardware.get() == 1
            && packet.protocol.get() == ethernet::IPV4
            && packet.hardware_len == 6
            && packet.protocol_len == 4;
        ours.then_some(packet)
    }

    /// The sender's IPv4 address; 0.0.0.0 in an address probe (RFC 5227).
    pub fn sender(&self) -> Ipv4Addr {
        self.sender.into()
    }

    /// The IPv4 address asked for or answered to.
    pub fn target(&self) -> Ipv4Addr {
        self.target.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_written_is_the_packet_read() {
        let sender = ([2, 0, 0, 0, 0, 1], Ipv4Addr::new(192, 0, 2, 1));
        let target = ([0; 6], Ipv4Addr::new(192, 0, 2, 2));
        let packet = ArpPacket::new(REQUEST, sender, target);
        let bytes = packet.as_bytes();
        assert_eq!(bytes[..8], [0, 1, 8, 0, 6, 4, 0, 1]);
        let read = ArpPacket::parse(bytes).unwrap();
        assert_eq!((read.sender(), read.target(), read.operation.get()), (sender.1, target.1, REQUEST));
        assert!(ArpPacket::parse(&bytes[..27]).is_none());
    }

    #[test]
    fn other_hardware_is_refused() {
        let packet = ArpPacket::new(REQUEST, ([2; 6], [1; 4].into()), ([0; 6], [2; 4].into()));
        for place in [1, 3, 4, 5] {
            let mut bytes = packet.as_bytes().to_vec();
            bytes[place] ^= 0x40;
            assert!(ArpPacket::parse(&bytes).is_none(), "byte {place}");
        }
    }
}
