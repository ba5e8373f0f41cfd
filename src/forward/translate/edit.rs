//! Writing another end into an IPv4 packet, with every checksum that covers it brought along
//! (RFC 1624, RFC 3022 section 4.1).

use crate::{
    forward::flows::End4,
    wire::{
        checksum::{self, udp_update16, udp_update32, update16, update32},
        icmp,
        ipv4::{ICMP, OFFSET_MASK, TCP, UDP},
    },
};

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Where the packet comes from.
    Source,
    /// Where it goes.
    Destination,
}

fn word(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?))
}

fn set_word(packet: &mut [u8], at: usize, value: u16) {
    if let Some(place) = packet.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// Writes `end` into the packet that begins here, a whole one, a fragment or the beginning of one
/// that an ICMP error quotes; what is not there is left out. A packet without a right IPv4 header
/// is left alone.
pub fn set_end(packet: &mut [u8], side: Side, end: End4) {
    let at = if side == Side::Source { 12 } else { 16 };
    let Some(old) = packet.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes) else {
        return;
    };
    packet[at..at + 4].copy_from_slice(&end.address.to_be_bytes());
    let header_len = usize::from(packet[0] & 0x0f) * 4;
    let sum = word(packet, 10).unwrap_or(0);
    set_word(packet, 10, update32(sum, old, end.address));
    if word(packet, 6).unwrap_or(0) & OFFSET_MASK != 0 {
        return;
    }
    match packet[9] {
        TCP => set_port(packet, header_len, side, end, old, header_len + 16, (update32, update16)),
        UDP => set_port(packet, header_len, side, end, old, header_len + 6, (udp_update32, udp_update16)),
        ICMP => set_identifier(packet, header_len, side, end.port),
        _ => {}
    }
}

/// How a checksum follows a change of 32 and of 16 bits.
type Updates = (fn(u16, u32, u32) -> u16, fn(u16, u16, u16) -> u16);

fn set_port(
    packet: &mut [u8],
    header_len: usize,
    side: Side,
    end: End4,
    old_address: u32,
    sum_at: usize,
    (update32, update16): Updates,
) {
    let at = header_len + if side == Side::Source { 0 } else { 2 };
    let Some(old) = word(packet, at) else { return };
    set_word(packet, at, end.port);
    if let Some(sum) = word(packet, sum_at) {
        let sum = update16(update32(sum, old_address, end.address), old, end.port);
        set_word(packet, sum_at, sum);
    }
}

/// The identifier of an ICMP query is the port of who asks. ICMP's checksum covers no addresses.
fn set_identifier(packet: &mut [u8], header_len: usize, side: Side, identifier: u16) {
    let asks = match packet.get(header_len) {
        Some(&(icmp::ECHO_REQUEST | 13 | 15 | 17 | 42)) => Side::Source,
        Some(&(icmp::ECHO_REPLY | 14 | 16 | 18 | 43)) => Side::Destination,
        _ => return,
    };
    if asks != side {
        return;
    }
    let (Some(sum), Some(old)) = (word(packet, header_len + 2), word(packet, header_len + 4)) else { return };
    set_word(packet, header_len + 4, identifier);
    set_word(packet, header_len + 2, update16(sum, old, identifier));
}

/// Writes another identification into the packet that begins here.
pub fn set_id(packet: &mut [u8], id: u16) {
    let (Some(old), Some(sum)) = (word(packet, 4), word(packet, 10)) else { return };
    set_word(packet, 4, id);
    set_word(packet, 10, update16(sum, old, id));
}

/// Writes `end` into the packet that the ICMP error in `packet` quotes, and `outer` into the
/// error's own header at `outer_side`; the error's checksum is made anew. Nothing is done when
/// there is no error to be found.
pub fn set_quoted(packet: &mut [u8], side: Side, end: End4, outer_side: Side, outer: u32) {
    let header_len = usize::from(packet.first().copied().unwrap_or(0) & 0x0f) * 4;
    let total = usize::from(word(packet, 2).unwrap_or(0)).min(packet.len());
    let Some(message) = packet.get_mut(header_len..total).filter(|m| m.len() > icmp::HEADER_LEN) else {
        return;
    };
    set_end(&mut message[icmp::HEADER_LEN..], side, end);
    set_word(message, 2, 0);
    let sum = checksum::checksum(message);
    set_word(message, 2, sum);
    set_end(packet, outer_side, End4::new(outer, 0));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::wire::{
        checksum::{Sum, pseudo4},
        ipv4::{self, Ipv4Header},
    };

    /// A packet of this protocol with right checksums; `None` for a UDP checksum.
    fn packet(protocol: u8, payload: &[u8], unsummed: bool) -> Vec<u8> {
        let (a, b) = ([10, 0, 0, 1].into(), [198, 51, 100, 1].into());
        let mut header = Ipv4Header::new(a, b, protocol, payload.len() as u16);
        ipv4::fill_checksum(header.as_mut_bytes());
        let mut packet = [header.as_bytes(), payload].concat();
        let at = 20
            + match protocol {
                TCP => 16,
                UDP => 6,
                _ => 2,
            };
        set_word(&mut packet, at, 0);
        let sum = upper_sum(&packet);
        set_word(&mut packet, at, if unsummed { 0 } else { checksum::udp_sent(!sum.fold()) });
        packet
    }

    fn upper_sum(packet: &[u8]) -> Sum {
        let parsed = ipv4::parse(packet).unwrap();
        let (header, payload) = (parsed.header, parsed.payload);
        let pseudo = match header.protocol {
            ICMP => Sum::new(),
            p => pseudo4(header.source(), header.destination(), p, payload.len() as u16),
        };
        pseudo.bytes(payload)
    }

    proptest! {
        #[test]
        fn every_checksum_is_right_afterwards_and_all_comes_back(
            payload in prop::collection::vec(any::<u8>(), 20..60), protocol in prop::sample::select(vec![TCP, UDP, ICMP]),
            address in any::<u32>(), port in any::<u16>(), source in any::<bool>(), kind in prop::sample::select(vec![0u8, 8, 13]),
        ) {
            let mut payload = payload;
            if protocol == ICMP {
                payload[0] = kind;
            }
            let before = packet(protocol, &payload, false);
            let side = if source { Side::Source } else { Side::Destination };
            let mut after = before.clone();
            set_end(&mut after, side, End4::new(address, port));
            let parsed = ipv4::parse(&after).unwrap();
            prop_assert!(parsed.sum_ok());
            prop_assert_eq!(upper_sum(&after).fold(), 0xffff);
            let at = if source { 12 } else { 16 };
            prop_assert_eq!(&after[at..at + 4], &address.to_be_bytes());
            let old_address = if source { 0x0a00_0001 } else { 0xc633_6401 };
            let old_port = match protocol {
                ICMP => word(&before, 24).unwrap(),
                _ => word(&before, if source { 20 } else { 22 }).unwrap(),
            };
            set_end(&mut after, side, End4::new(old_address, old_port));
            prop_assert_eq!(after, before);
        }

        #[test]
        fn rule_25_a_udp_checksum_of_0_stays_0(address in any::<u32>(), port in any::<u16>()) {
            let mut bytes = packet(UDP, &[1; 20], true);
            set_end(&mut bytes, Side::Source, End4::new(address, port));
            prop_assert_eq!(word(&bytes, 26), Some(0));
        }

        #[test]
        fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), first in 0x40..0x50u8) {
            if let Some(byte) = bytes.first_mut() {
                *byte = first;
            }
            for side in [Side::Source, Side::Destination] {
                set_end(&mut bytes, side, End4::new(1, 2));
                set_quoted(&mut bytes, side, End4::new(1, 2), Side::Source, 3);
            }
            set_id(&mut bytes, 7);
        }
    }

    #[test]
    fn a_later_fragment_keeps_its_payload() {
        let mut bytes = packet(UDP, &[9; 20], false);
        bytes[7] = 3;
        let payload = bytes[20..].to_vec();
        set_end(&mut bytes, Side::Destination, End4::new(7, 8));
        assert_eq!(bytes[20..], payload);
    }
}
