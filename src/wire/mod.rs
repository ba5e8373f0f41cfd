//! Byte views of the protocols: what stands where in a frame, and nothing that keeps state.
//!
//! Each header is a struct whose fields lie in memory as they do on the wire (network byte order,
//! no alignment asked), so that a view costs no copy. Parsing is total: any bytes at all give a
//! view or a refusal, never a panic, and lengths are tested before anything is read.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod icmp6;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod tcp;
pub mod udp;
pub mod vlan;

/// What is wrong with a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Fewer bytes than the header itself has, or than its own length field says.
    Short,
    /// A field that must not have this value: version, header length or total length.
    Field,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_parser_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), first in any::<u8>()) {
            let _ = ethernet::parse(&bytes);
            let _ = vlan::parse(&bytes);
            let _ = arp::ArpPacket::parse(&bytes);
            let _ = ipv4::parse(&bytes);
            let _ = ipv4::parse_quoted(&bytes);
            let _ = ipv6::parse(&bytes);
            let _ = ipv6::parse_quoted(&bytes);
            let _ = ipv6::upper_layer(first, &bytes);
            let _ = icmp::parse(&bytes);
            let _ = icmp6::parse(&bytes);
            let _ = ndp::NeighborMessage::parse(&bytes);
            let _ = ndp::link_address(&bytes, ndp::SOURCE_LINK_ADDRESS);
            let _ = udp::parse(&bytes);
            let _ = tcp::parse(&bytes);
        }

        #[test]
        fn no_ip_parser_panics_behind_a_right_version(mut bytes in prop::collection::vec(any::<u8>(), 20..200)) {
            for first in 0x40..=0x4f {
                bytes[0] = first;
                if let Ok(packet) = ipv4::parse(&bytes) {
                    prop_assert!(packet.header_len() + packet.payload.len() <= bytes.len());
                    let _ = packet.sum_ok();
                }
            }
            bytes[0] = 0x60;
            if let Ok(packet) = ipv6::parse(&bytes) {
                prop_assert!(40 + packet.payload.len() <= bytes.len());
                let _ = ipv6::upper_layer(packet.header.next_header, packet.payload);
            }
        }
    }
}
