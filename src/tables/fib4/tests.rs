//! The IPv4 forwarding table against an oracle, at its limits, and emptied again.

use super::*;
use prefix_trie::PrefixMap;
use proptest::prelude::*;
use std::net::Ipv4Addr;

type Oracle = PrefixMap<ipnet::Ipv4Net, NextHopId>;

fn net(address: u32, length: u8) -> ipnet::Ipv4Net {
    ipnet::Ipv4Net::new(Ipv4Addr::from(address), length).unwrap().trunc()
}

fn expected(oracle: &Oracle, address: u32) -> NextHopId {
    oracle.get_lpm(&net(address, 32)).map_or(0, |(_, next_hop)| *next_hop)
}

/// Compares single and batched lookups with the oracle around every prefix's borders.
fn compare(fib: &Fib4, oracle: &Oracle, extra: &[u32]) {
    let mut addresses = vec![0, 1, u32::MAX, 0x7fff_ffff, 0x8000_0000];
    addresses.extend(extra);
    for (prefix, _) in oracle.iter() {
        let (first, last) = (u32::from(prefix.network()), u32::from(prefix.broadcast()));
        addresses.extend([first, first.wrapping_sub(1), last, last.wrapping_add(1), first / 2 + last / 2]);
    }
    let mut batch = vec![0; addresses.len()];
    fib.lookup_batch(&addresses, &mut batch);
    for (&address, &batched) in addresses.iter().zip(&batch) {
        let expected = expected(oracle, address);
        assert_eq!(fib.lookup(address), expected, "{}", Ipv4Addr::from(address));
        assert_eq!(batched, expected, "batched {}", Ipv4Addr::from(address));
    }
}

/// Prefixes crowded into a few places, so that they nest and touch.
fn crowded() -> impl Strategy<Value = (u32, u8, NextHopId)> {
    let place = prop::sample::select(vec![0u32, 0x0a00_0000, 0x0a00_3f00, 0xc0a8_0100, 0xffff_ff00]);
    let length = prop_oneof![1 => Just(0u8), 2 => 1u8..16, 5 => 16u8..25, 5 => 25u8..33, 2 => Just(32u8)];
    let next_hop = prop_oneof![4 => 0u16..5, 1 => 32760u16..=32767];
    (place, any::<u16>(), length, next_hop).prop_map(|(place, low, length, next_hop)| {
        let spread = u32::from(low).rotate_left(u32::from(low) % 3 * 4) & 0x000f_ffff;
        ((place ^ spread).network(length), length, next_hop)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn lookups_agree_with_the_oracle_through_random_changes(
        start in prop::collection::vec(crowded(), 0..60),
        changes in prop::collection::vec((crowded(), any::<bool>()), 1..60),
        probes in prop::collection::vec(any::<u32>(), 64),
    ) {
        let mut prefixes: Prefixes4 = start.iter().copied().collect();
        let mut oracle: Oracle = prefixes.iter().map(|(a, l, n)| (net(a, l), n)).collect();
        let mut fib = Fib4::new().unwrap();
        fib.build(&prefixes).unwrap();
        compare(&fib, &oracle, &probes);
        for ((address, length, next_hop), insert) in changes {
            if insert {
                prefixes.insert(address, length, next_hop);
                oracle.insert(net(address, length), next_hop);
            } else {
                let n = next_hop as usize % prefixes.len().max(1);
                let Some((address, length, _)) = prefixes.iter().nth(n) else { continue };
                prefixes.remove(address, length);
                oracle.remove(&net(address, length));
                fib.update(&prefixes, address, length).unwrap();
                continue;
            }
            fib.update(&prefixes, address, length).unwrap();
        }
        compare(&fib, &oracle, &probes);
        let mut fresh = Fib4::new().unwrap();
        fresh.build(&prefixes).unwrap();
        prop_assert_eq!(fresh.stats().used, fib.stats().used, "blocks were lost");
    }
}

#[test]
fn every_next_hop_works_shared_and_in_blocks() {
    let mut prefixes = Prefixes4::new();
    for next_hop in 0..=32767u16 {
        prefixes.insert(u32::from(next_hop) << 8, 24, next_hop);
        prefixes.insert(0x8000_0000 | u32::from(next_hop) << 14, 18, next_hop);
        prefixes.insert(0x4000_0000 | u32::from(next_hop) << 8 | 77, 32, next_hop);
    }
    let mut fib = Fib4::new().unwrap();
    fib.build(&prefixes).unwrap();
    for next_hop in 0..=32767u16 {
        assert_eq!(fib.lookup(u32::from(next_hop) << 8 | 200), next_hop);
        assert_eq!(fib.lookup(0x8000_0000 | u32::from(next_hop) << 14 | 5000), next_hop);
        assert_eq!(fib.lookup(0x4000_0000 | u32::from(next_hop) << 8 | 77), next_hop);
        assert_eq!(fib.lookup(0x4000_0000 | u32::from(next_hop) << 8 | 78), 0);
    }
}

#[test]
fn hundreds_of_thousands_of_host_routes_fit() {
    let hosts = (0..60_000u32).flat_map(|n| (0..4).map(move |i| ((n << 8) | (i * 61 + n % 50), n)));
    let prefixes: Prefixes4 =
        hosts.map(|(address, n)| (0x0a00_0000 + address, 32, (n % 999) as u16 + 1)).collect();
    let mut fib = Fib4::new().unwrap();
    fib.build(&prefixes).unwrap();
    assert!(prefixes.len() > 200_000 && fib.bytes() < 8 << 20, "{} bytes", fib.bytes());
    for (address, _, next_hop) in prefixes.iter() {
        assert_eq!(fib.lookup(address), next_hop);
    }
}

#[test]
fn removing_everything_leaves_no_block() {
    let mut prefixes: Prefixes4 =
        (0..5000u32).map(|n| (n.wrapping_mul(0x9e37_79b1), (n % 33) as u8, n as u16)).collect();
    let mut fib = Fib4::new().unwrap();
    fib.build(&prefixes).unwrap();
    let all: Vec<_> = prefixes.iter().collect();
    for (address, length, _) in all {
        prefixes.remove(address, length);
        fib.update(&prefixes, address, length).unwrap();
    }
    assert_eq!(fib.stats().used, 0);
    assert!((0..100_000u32).all(|n| fib.lookup(n.wrapping_mul(0x9e37_79b1)) == 0));
}

#[test]
fn a_full_table_stays_as_it_was() {
    let mut fib = Fib4::new().unwrap();
    fib.limit(4096);
    let mut prefixes = Prefixes4::new();
    let mut oracle = Oracle::new();
    let mut added = 0;
    loop {
        let (address, next_hop) = ((added << 14) | ((added % 64) << 8), added as u16 + 1);
        prefixes.insert(address, 24, next_hop);
        if let Err(full) = fib.update(&prefixes, address, 24) {
            assert_eq!(full.capacity, 4096);
            prefixes.remove(address, 24);
            break;
        }
        oracle.insert(net(address, 24), next_hop);
        added += 1;
    }
    assert!(added >= 100, "{added}");
    compare(&fib, &oracle, &[]);
    // All or nothing also where many blocks are needed at once, and for a whole build.
    prefixes.insert(0, 0, 30_000);
    prefixes.insert(0xf000_0000, 24, 30_001);
    assert!(fib.update_all(&prefixes, &[(0, 0), (0xf000_0000, 24)]).is_err());
    assert!(fib.build(&prefixes).is_err());
    compare(&fib, &oracle, &[]);
    // And it can still shrink.
    let first = net(0, 24);
    prefixes.remove(0, 0);
    prefixes.remove(0xf000_0000, 24);
    prefixes.remove(u32::from(first.network()), 24);
    oracle.remove(&first);
    fib.update(&prefixes, u32::from(first.network()), 24).unwrap();
    compare(&fib, &oracle, &[]);
}
