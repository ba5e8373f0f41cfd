//! The IPv6 forwarding table against an oracle, at its limits, and emptied again.

use super::*;
use prefix_trie::PrefixMap;
use proptest::prelude::*;
use std::net::Ipv6Addr;

type Oracle = PrefixMap<ipnet::Ipv6Net, NextHopId>;

fn net(address: u128, length: u8) -> ipnet::Ipv6Net {
    ipnet::Ipv6Net::new(Ipv6Addr::from(address), length).unwrap().trunc()
}

/// Compares lookups with every kind of instruction with the oracle around every prefix's
/// borders.
fn compare(fib: &mut Fib6, oracle: &Oracle, extra: &[u128]) {
    let mut addresses = vec![0, 1, u128::MAX, 1 << 127, (1 << 127) - 1];
    addresses.extend(extra);
    for (prefix, _) in oracle.iter() {
        let (first, last) = (u128::from(prefix.network()), u128::from(prefix.broadcast()));
        addresses.extend([first, first.wrapping_sub(1), last, last.wrapping_add(1), first / 2 + last / 2]);
        addresses.extend([first | u128::from(u64::MAX), first.wrapping_add(1 << 64)]);
    }
    let mut kinds = 0;
    for name in ["avx512", "avx2", "plain"] {
        if !fib.set_instructions(name) {
            println!("no {name} here");
            continue;
        }
        kinds += 1;
        let mut batch = vec![0; addresses.len()];
        fib.lookup_batch(&addresses, &mut batch);
        for (&address, &batched) in addresses.iter().zip(&batch) {
            let expected = oracle.get_lpm(&net(address, 128)).map_or(0, |(_, next_hop)| *next_hop);
            assert_eq!(batched, expected, "{name}, batched {}", Ipv6Addr::from(address));
            assert_eq!(fib.lookup(address), expected, "{name} {}", Ipv6Addr::from(address));
        }
    }
    assert!(kinds >= 1);
}

/// Prefixes crowded into a few places, so that they nest and touch, on both sides of /64 and
/// inside and outside of 2000::/3.
fn crowded() -> impl Strategy<Value = (u128, u8, NextHopId)> {
    let place = prop::sample::select(vec![
        0u128,
        0x2001_0db8 << 96,
        0x2001_0db8_0000_0001 << 64,
        0x2001_0fff_ffff_ffff << 64,
        0x3fff_ffff_ffff_ffff << 64,
        0xfd00 << 112,
        0xfd0f_ffff_ffff_ffff << 64,
        u128::MAX,
    ]);
    let length = prop_oneof![
        1 => Just(0u8), 2 => 1u8..20, 5 => 20u8..65, 2 => Just(64u8), 5 => 65u8..129, 2 => Just(128u8)
    ];
    let next_hop = prop_oneof![4 => 0u16..5, 1 => 32760u16..=32767];
    (place, 0u128..4096, 0u32..14, length, next_hop).prop_map(|(place, low, shift, length, next_hop)| {
        ((place ^ low << (shift * 8)).network(length), length, next_hop)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn lookups_agree_with_the_oracle_through_random_changes(
        start in prop::collection::vec(crowded(), 0..80),
        changes in prop::collection::vec((crowded(), any::<bool>()), 1..60),
        probes in prop::collection::vec(any::<u128>(), 64),
    ) {
        let mut prefixes: Prefixes6 = start.iter().copied().collect();
        let mut oracle: Oracle = prefixes.iter().map(|(a, l, n)| (net(a, l), n)).collect();
        let mut fib = Fib6::new().unwrap();
        fib.build(&prefixes).unwrap();
        compare(&mut fib, &oracle, &probes);
        for ((mut address, mut length, next_hop), insert) in changes {
            if insert {
                prefixes.insert(address, length, next_hop);
                oracle.insert(net(address, length), next_hop);
            } else {
                let n = next_hop as usize % prefixes.len().max(1);
                let Some(found) = prefixes.iter().nth(n) else { continue };
                (address, length) = (found.0, found.1);
                prefixes.remove(address, length);
                oracle.remove(&net(address, length));
            }
            fib.update(&prefixes, address, length).unwrap();
        }
        compare(&mut fib, &oracle, &probes);
        let mut fresh = Fib6::new().unwrap();
        fresh.build(&prefixes).unwrap();
        prop_assert_eq!(fresh.stats().used, fib.stats().used, "trees were lost");
    }

    #[test]
    fn many_prefixes_in_one_chunk_make_a_deep_tree(seed in any::<u64>(), count in 500usize..2000) {
        let mut prefixes = Prefixes6::new();
        let mut state = seed;
        for n in 0..count {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let address = (0x2001_0db8u128 << 96) | u128::from(state >> 20) << 48;
            let length = [48, 56, 64, 64, 96, 128][n % 6];
            prefixes.insert(address, length, (n % 32768) as u16);
        }
        let oracle: Oracle = prefixes.iter().map(|(a, l, n)| (net(a, l), n)).collect();
        let mut fib = Fib6::new().unwrap();
        fib.build(&prefixes).unwrap();
        compare(&mut fib, &oracle, &[]);
    }
}

#[test]
fn every_next_hop_works_on_all_levels() {
    let mut prefixes = Prefixes6::new();
    let place = |next_hop: u16| (0x2000_0000u128 | u128::from(next_hop) << 12) << 96;
    for next_hop in 0..=32767 {
        prefixes.insert(place(next_hop), 20, next_hop);
        prefixes.insert((0xfd00u128 << 112) | u128::from(next_hop) << 64, 64, next_hop);
        prefixes.insert((0xfc00u128 << 112) | u128::from(next_hop), 128, next_hop);
    }
    let mut fib = Fib6::new().unwrap();
    fib.build(&prefixes).unwrap();
    for next_hop in 0..=32767 {
        assert_eq!(fib.lookup(place(next_hop) | 77), next_hop);
        assert_eq!(fib.lookup((0xfd00u128 << 112) | u128::from(next_hop) << 64 | 5), next_hop);
        assert_eq!(fib.lookup((0xfc00u128 << 112) | u128::from(next_hop)), next_hop);
    }
    assert_eq!(fib.lookup((0xfc00u128 << 112) | 32768), 0);
}

#[test]
fn removing_everything_leaves_no_tree() {
    let mut prefixes: Prefixes6 = (0..3000u128)
        .map(|n| (n.wrapping_mul(0x9e37_79b1_85eb_ca87_c2b2_ae3d_27d4_eb4f), (n % 129) as u8, n as u16))
        .collect();
    let mut fib = Fib6::new().unwrap();
    fib.build(&prefixes).unwrap();
    assert!(fib.stats().used > 0);
    let all: Vec<_> = prefixes.iter().filter(|prefix| prefix.1 > 4).collect();
    let short: Vec<_> = prefixes.iter().filter(|prefix| prefix.1 <= 4).map(|p| (p.0, p.1)).collect();
    for (address, length, _) in all {
        prefixes.remove(address, length);
        fib.update(&prefixes, address, length).unwrap();
    }
    short.iter().for_each(|&(address, length)| {
        prefixes.remove(address, length);
    });
    fib.update_all(&prefixes, &short).unwrap();
    assert_eq!((prefixes.len(), fib.stats().used), (0, 0));
    assert!((0..100_000u128).all(|n| fib.lookup(n << 108 | n) == 0));
}

#[test]
fn a_full_table_stays_as_it_was() {
    let mut fib = Fib6::new().unwrap();
    fib.limit(8192);
    let (mut prefixes, mut oracle) = (Prefixes6::new(), Oracle::new());
    let mut added = 0u128;
    loop {
        let (address, next_hop) = ((0x2000 << 112) | added << 108 | added << 70, added as u16 + 1);
        prefixes.insert(address, 64, next_hop);
        if let Err(full) = fib.update(&prefixes, address, 64) {
            assert_eq!(full.capacity, 8192);
            prefixes.remove(address, 64);
            break;
        }
        oracle.insert(net(address, 64), next_hop);
        added += 1;
    }
    assert_eq!(added, 128, "one line each");
    compare(&mut fib, &oracle, &[]);
    prefixes.insert(0, 0, 30_000);
    prefixes.insert(0xfd00 << 112, 65, 30_001);
    assert!(fib.update_all(&prefixes, &[(0, 0), (0xfd00 << 112, 65)]).is_err());
    assert!(fib.build(&prefixes).is_err());
    compare(&mut fib, &oracle, &[]);
    let first = 0x2000 << 112;
    prefixes.remove(0, 0);
    prefixes.remove(0xfd00 << 112, 65);
    prefixes.remove(first, 64);
    oracle.remove(&net(first, 64));
    fib.update(&prefixes, first, 64).unwrap();
    compare(&mut fib, &oracle, &[]);
}
