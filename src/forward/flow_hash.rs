//! The flow hash that chooses among several next hops.
//!
//! Packets of one flow get one hash: addresses, protocol and ports for whole IPv4 packets, the
//! addresses and protocol alone for fragments (only the first has ports), addresses and flow label
//! for IPv6 (RFC 6437, RFC 6438). Every router has a seed of its own, so that routers in a row do
//! not all choose alike.

use crate::wire::{
    ipv4::{self as wire4, Ipv4},
    ipv6::{self as wire6, Ipv6},
};

/// Mixes `word` into `hash`; the multiplier is the 64-bit golden ratio, made odd.
#[inline(always)]
fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    (product >> 64) as u64 ^ product as u64
}

fn finish(hash: u64) -> u32 {
    (mix(hash, 0x2545_f491_4f6c_dd1d) >> 32) as u32
}

/// The hash of an IPv4 packet's flow.
pub fn ipv4(seed: u64, packet: &Ipv4<'_>) -> u32 {
    let header = packet.header;
    let addresses = u64::from(u32::from(header.source())) << 32 | u64::from(u32::from(header.destination()));
    let ports = match (header.protocol, packet.payload) {
        (6 | 17, &[a, b, c, d, ..]) if !header.is_fragment() => u32::from_be_bytes([a, b, c, d]),
        _ => 0,
    };
    finish(mix(mix(seed, addresses), u64::from(header.protocol) << 32 | u64::from(ports)))
}

/// The hash of the flow of the IPv4 packet that begins here; 0 when it is malformed.
pub fn of_ipv4(seed: u64, bytes: &[u8]) -> u32 {
    wire4::parse(bytes).map_or(0, |packet| ipv4(seed, &packet))
}

/// The hash of the flow of the IPv6 packet that begins here; 0 when it is malformed.
pub fn of_ipv6(seed: u64, bytes: &[u8]) -> u32 {
    wire6::parse(bytes).map_or(0, |packet| ipv6(seed, &packet))
}

/// The hash of an IPv6 packet's flow.
pub fn ipv6(seed: u64, packet: &Ipv6<'_>) -> u32 {
    let halves = |a: std::net::Ipv6Addr| {
        let bits = a.to_bits();
        ((bits >> 64) as u64, bits as u64)
    };
    let (s1, s2) = halves(packet.header.source());
    let (d1, d2) = halves(packet.header.destination());
    let hash = [s1, s2, d1, d2, packet.header.flow_label().into()].into_iter().fold(seed, mix);
    finish(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet4(source: u32, port: u16, flags_offset: u16) -> Vec<u8> {
        let mut p = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
        p[6..8].copy_from_slice(&flags_offset.to_be_bytes());
        p.extend(source.to_be_bytes());
        p.extend([192, 0, 2, 1]);
        p.extend(port.to_be_bytes());
        p.extend([0, 53, 0, 8, 0, 0]);
        p
    }

    fn hash4(seed: u64, bytes: &[u8]) -> u32 {
        ipv4(seed, &wire4::parse(bytes).unwrap())
    }

    #[test]
    fn fragments_of_one_datagram_hash_alike() {
        let first = packet4(1, 1000, 0x2000);
        let later = packet4(1, 7777, 0x0010);
        assert_eq!(hash4(5, &first), hash4(5, &later));
        assert_ne!(hash4(5, &packet4(1, 1000, 0)), hash4(5, &packet4(1, 7777, 0)));
    }

    /// Chi-square over 16 buckets: 15 degrees of freedom, 99.9 % below 37.7.
    fn spread(hashes: impl Iterator<Item = u32>) -> f64 {
        let mut counts = [0f64; 16];
        hashes.for_each(|h| counts[(h >> 28) as usize] += 1.0);
        let expected = counts.iter().sum::<f64>() / 16.0;
        counts.iter().map(|c| (c - expected).powi(2) / expected).sum()
    }

    #[test]
    fn flows_spread_evenly_and_differently_on_routers_with_other_seeds() {
        let flow = |i: u32| packet4(0x0a00_0000 | i >> 4, 1024 + (i & 15) as u16, 0);
        assert!(spread((0..8000).map(|i| hash4(1, &flow(i)))) < 37.7);
        // What the first router sent one way spreads over all ways of the second.
        let chosen = (0..64_000).map(flow).filter(|p| hash4(1, p) >> 28 == 3).collect::<Vec<_>>();
        assert!(spread(chosen.iter().map(|p| hash4(2, p))) < 37.7);
        assert!(spread(chosen.iter().map(|p| hash4(1, p))) > 1000.0);
    }

    #[test]
    fn the_flow_label_counts_in_ipv6() {
        let hash = |label: u32| {
            let mut bytes = [0; 40];
            bytes[..4].copy_from_slice(&(6 << 28 | label).to_be_bytes());
            bytes[23] = 1;
            ipv6(9, &wire6::parse(&bytes).unwrap())
        };
        assert!(spread((0..8000).map(hash)) < 37.7);
    }
}
