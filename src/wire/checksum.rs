//! The Internet checksum: full (RFC 1071) and incremental (RFC 1624).
//!
//! All values are in host order: a checksum field read with `get()` and written with `set()`.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A one's complement sum that is being made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// An empty sum.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds bytes as 16-bit words; a last odd byte counts as padded with zero, so that only the
    /// last part of what is summed may have an odd length.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        let mut words = bytes.chunks_exact(4);
        for word in &mut words {
            // A 32-bit word counts as its two halves: 2^16 is 1 in this arithmetic.
            let word: [u8; 4] = word.try_into().unwrap_or_default();
            self.0 += u64::from(u32::from_be_bytes(word));
        }
        let mut last = [0; 4];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        self.0 += u64::from(u32::from_be_bytes(last));
        self
    }

    /// Adds one word.
    #[must_use]
    pub const fn word(mut self, word: u16) -> Self {
        self.0 += word as u64;
        self
    }

    /// The sum in 16 bits.
    pub const fn fold(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 32) + (sum & 0xffff_ffff);
        fold32(sum as u32)
    }

    /// The checksum: the complement of the sum.
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }
}

/// One's complement sum of the two halves.
const fn fold32(sum: u32) -> u16 {
    // The upper half becomes the sum of both halves and of the carry out of the lower.
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// The checksum of `bytes`, with the checksum field in them zero; over bytes whose checksum field
/// is filled in, the result is 0 when it is right.
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::new().bytes(bytes).checksum()
}

/// The sum of IPv4's pseudo header (RFC 793, RFC 768), for an upper layer of `len` bytes.
pub fn pseudo4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u16) -> Sum {
    Sum::new().bytes(&source.octets()).bytes(&destination.octets()).word(protocol.into()).word(len)
}

/// The sum of IPv6's pseudo header (RFC 8200 section 8.1), for an upper layer of `len` bytes.
pub fn pseudo6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, len: u32) -> Sum {
    Sum::new()
        .bytes(&source.octets())
        .bytes(&destination.octets())
        .bytes(&len.to_be_bytes())
        .word(protocol.into())
}

/// The checksum after one word under it changed from `old` to `new` (RFC 1624 equation 3).
///
/// Equal to a full recomputation whenever the checksum was one and the words summed are not all
/// zero, which no IP, TCP, UDP or ICMPv6 checksum is.
pub const fn update16(checksum: u16, old: u16, new: u16) -> u16 {
    // ~(~HC + ~m + m'): at most 3 * 0xffff, so that two halves hold it.
    let sum = !checksum as u32 + !old as u32 + new as u32;
    !fold32(sum)
}

/// The checksum after two words under it changed, such as an IPv4 address (RFC 1624 equation 3).
pub const fn update32(checksum: u16, old: u32, new: u32) -> u16 {
    let sum = !checksum as u32 + (!old >> 16) + (!old & 0xffff) + (new >> 16) + (new & 0xffff);
    !fold32(sum)
}

/// The IPv4 header checksum after the TTL went down by one: [`update16`] for the only change that
/// every forwarded packet sees, in which the TTL is a word's upper half and so `~m + m'` is always
/// 0xfeff.
pub const fn after_ttl_decrement(checksum: u16) -> u16 {
    !fold32(!checksum as u32 + 0xfeff)
}

/// What UDP sends for a checksum: 0 means none, so a sum that comes to 0 is sent as 0xffff
/// (RFC 768).
pub const fn udp_sent(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// [`update16`] for a UDP checksum over IPv4: no checksum stays none (RFC 768).
pub const fn udp_update16(checksum: u16, old: u16, new: u16) -> u16 {
    if checksum == 0 { 0 } else { udp_sent(update16(checksum, old, new)) }
}

/// [`update32`] for a UDP checksum over IPv4: no checksum stays none (RFC 768).
pub const fn udp_update32(checksum: u16, old: u32, new: u32) -> u16 {
    if checksum == 0 { 0 } else { udp_sent(update32(checksum, old, new)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The checksum made the long way, word for word.
    fn slow(words: &[u16]) -> u16 {
        let mut sum = 0u32;
        for word in words {
            sum += u32::from(*word);
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    fn bytes(words: &[u16]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_be_bytes()).collect()
    }

    #[test]
    fn the_example_of_rfc_1071_section_3_comes_out() {
        assert_eq!(Sum::new().bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).fold(), 0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624_section_4_comes_out() {
        assert_eq!(update16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn rule_23_24_every_new_word_gives_what_full_recomputation_gives() {
        let others: &[&[u16]] = &[
            &[0x4500, 0x0054, 0x1234, 0x4000, 0x4001, 0x0a00, 0x0001, 0xc000, 0x0201],
            &[0x0001],
            &[0xffff],
            &[0xfffe, 0x0001],
            &[0x8000, 0x7fff, 0x0001],
        ];
        for others in others {
            for old in [0x0000, 0x0001, 0x00ff, 0x0100, 0x7fff, 0x8000, 0xcd7a, 0xfffe, 0xffff] {
                let before = slow(&[others, &[old][..]].concat());
                for new in 0..=0xffff {
                    let full = slow(&[others, &[new][..]].concat());
                    assert_eq!(update16(before, old, new), full, "{others:x?} {old:#x} to {new:#x}");
                }
            }
        }
    }

    #[test]
    fn rule_24_every_old_word_and_every_checksum_lead_to_the_corner_rightly() {
        // Whatever the other words come to, the change that makes the sum 0xffff gives 0x0000,
        // never 0xffff.
        for other in 1..=0xffffu16 {
            let before = slow(&[other, 0x1234]);
            assert_eq!(update16(before, 0x1234, !other), 0x0000, "other {other:#x}");
            assert_eq!(update16(slow(&[other, 0]), 0, 0xffff), slow(&[other, 0xffff]));
            assert_eq!(update16(slow(&[other, 0xffff]), 0xffff, 0), slow(&[other, 0]));
        }
    }

    #[test]
    fn rule_24_a_ttl_decrement_equals_full_recomputation_for_every_checksum() {
        for other in 0..=0xffffu16 {
            for ttl_and_protocol in [0x0106u16, 0x0211, 0x4001, 0x80ff, 0xff00] {
                let before = slow(&[other, ttl_and_protocol]);
                let after = slow(&[other, ttl_and_protocol - 0x0100]);
                if other != 0 {
                    assert_eq!(after_ttl_decrement(before), after);
                }
                assert_eq!(
                    after_ttl_decrement(before),
                    update16(before, ttl_and_protocol, ttl_and_protocol - 0x100)
                );
            }
        }
    }

    #[test]
    fn rule_25_26_udp_without_a_checksum_stays_without_and_none_is_ever_made_zero() {
        for new in 0..=0xffffu16 {
            assert_eq!(udp_update16(0, 0x1234, new), 0);
            assert_eq!(udp_update32(0, 0x0a00_0001, u32::from(new)), 0);
            let before = udp_sent(slow(&[0x0011, 0x1234]));
            let after = udp_sent(slow(&[0x0011, new]));
            assert_eq!(udp_update16(before, 0x1234, new), after);
            assert_ne!(after, 0);
        }
        assert_eq!(udp_update16(slow(&[0x0011, 0]), 0, 0xffee), 0xffff);
        // A datagram that came with 0xffff is updated from what it stands for.
        assert_eq!(udp_update16(0xffff, 0xffee, 0x1234), slow(&[0x0011, 0x1234]));
    }

    #[test]
    fn pseudo_headers_are_summed_as_their_rfcs_lay_them_out() {
        let (source, destination) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 2));
        let laid_out = [192, 0, 2, 1, 198, 51, 100, 2, 0, 17, 0x12, 0x34];
        assert_eq!(pseudo4(source, destination, 17, 0x1234).checksum(), checksum(&laid_out));

        let source: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let destination: Ipv6Addr = "2001:db8:ffff::2".parse().unwrap();
        let mut laid_out = [source.octets(), destination.octets()].concat();
        laid_out.extend([0x00, 0x01, 0x12, 0x34, 0, 0, 0, 58]);
        assert_eq!(pseudo6(source, destination, 58, 0x1_1234).checksum(), checksum(&laid_out));
    }

    proptest! {
        #[test]
        fn the_full_checksum_is_the_one_made_word_for_word(words in prop::collection::vec(any::<u16>(), 0..800)) {
            prop_assert_eq!(checksum(&bytes(&words)), slow(&words));
        }

        #[test]
        fn an_odd_last_byte_counts_as_padded(bytes in prop::collection::vec(any::<u8>(), 0..99)) {
            let mut padded = bytes.clone();
            if padded.len() % 2 == 1 { padded.push(0); }
            prop_assert_eq!(checksum(&bytes), checksum(&padded));
        }

        #[test]
        fn rule_23_an_address_changed_equals_full_recomputation(
            others in prop::collection::vec(any::<u16>(), 1..12), old in any::<u32>(), new in any::<u32>(),
        ) {
            let with = |a: u32| slow(&[&others[..], &[(a >> 16) as u16, a as u16]].concat());
            prop_assume!(others.iter().any(|w| *w != 0));
            prop_assert_eq!(update32(with(old), old, new), with(new));
        }
    }
}
