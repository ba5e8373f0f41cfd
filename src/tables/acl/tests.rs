//! Compiled rules against a plain list that is gone through from the top.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::prelude::*;

use super::*;
use crate::tables::synthetic::Random;

/// A packet, as the list sees it.
#[derive(Clone, Copy, Debug)]
struct Packet {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ports: (u16, u16),
    came_in: PortId,
    leaves_by: Option<PortId>,
    kind: Kind,
    established: bool,
}

/// The first rule that fits, by going through all: what the classifiers must say.
fn first_fit(rules: &[Rule], packet: &Packet) -> u32 {
    rules.iter().position(|rule| fits(rule, packet)).unwrap_or(rules.len()) as u32
}

fn fits(rule: &Rule, packet: &Packet) -> bool {
    let within =
        |nets: &[IpNet], address: IpAddr| nets.is_empty() || nets.iter().any(|n| n.contains(&address));
    let among =
        |ranges: &[(u16, u16)], port| ranges.is_empty() || ranges.iter().any(|r| (r.0..=r.1).contains(&port));
    let place = (rule.in_ports.is_empty() || rule.in_ports.contains(&packet.came_in))
        && (rule.out_ports.is_empty() || packet.leaves_by.is_some_and(|port| rule.out_ports.contains(&port)));
    let has_ports = !is_all(&rule.from_ports) || !is_all(&rule.to_ports);
    let protocol = rule.protocol.is_none_or(|protocol| protocol == packet.protocol);
    let upper = match packet.kind {
        Kind::Whole => {
            protocol && among(&rule.from_ports, packet.ports.0) && among(&rule.to_ports, packet.ports.1)
        }
        Kind::Later => protocol && !(rule.denies && has_ports),
        Kind::Hidden => (rule.protocol.is_none() && !has_ports) || rule.denies,
    };
    let state = rule.state.is_none_or(|state| (state == State::Established) == packet.established);
    place && within(&rule.from, packet.source) && within(&rule.to, packet.destination) && upper && state
}

/// Whether the ranges hold every port.
fn is_all(ranges: &[(u16, u16)]) -> bool {
    let mut next = 0;
    while let Some(range) = ranges.iter().find(|r| u32::from(r.0) <= next && next <= u32::from(r.1)) {
        next = u32::from(range.1) + 1;
    }
    ranges.is_empty() || next > 65535
}

fn find(compiled: &Compiled, p: &Packet) -> u32 {
    let (protocol, ports) = match p.kind {
        Kind::Whole => (p.protocol, u32::from(p.ports.0) << 16 | u32::from(p.ports.1)),
        Kind::Later => (p.protocol, 0),
        Kind::Hidden => (0, 0),
    };
    compiled.find(&key(compiled, p, protocol, ports), p.kind)
}

fn key(compiled: &Compiled, p: &Packet, protocol: u8, ports: u32) -> Key {
    let place = compiled.came_in(p.came_in) | compiled.leaves_by(p.leaves_by);
    let key = Key::new(p.source, p.destination, protocol, ports, place);
    if p.established { key.established() } else { key }
}

/// Addresses from few networks, so that rules and packets meet.
fn address4(random: &mut Random) -> u32 {
    let top = [10 << 24, 10 << 24 | 1 << 16, 192 << 24 | 168 << 16, 0xcb00_7100][random.below(4)];
    top | (random.bits() as u32 & [0xff, 0x3ff, 0xffff, 0x00ff_ffff][random.below(4)])
}

fn address6(random: &mut Random) -> u128 {
    let top = [0x2001_0db8_u128 << 96, 0x2001_0db8_0001 << 80, 0xfd00 << 112][random.below(3)];
    let low = u128::from(random.bits()) | u128::from(random.bits()) << 64;
    top | low & [0xff, 0xffff << 64 | 0xff, 0xff << 80, (1 << 80) - 1][random.below(4)]
}

fn net(random: &mut Random, v4: bool) -> IpNet {
    if v4 {
        let length = [0, 8, 12, 16, 20, 24, 24, 28, 30, 32][random.below(10)];
        Ipv4Net::new(address4(random).into(), length).unwrap().trunc().into()
    } else {
        let length = [0, 8, 32, 48, 48, 56, 64, 64, 80, 128][random.below(10)];
        Ipv6Net::new(address6(random).into(), length).unwrap().trunc().into()
    }
}

fn port_range(random: &mut Random) -> (u16, u16) {
    let first = [0, 25, 53, 80, 1024, 8000, 65535][random.below(7)];
    (first, first.saturating_add([0, 0, 1, 99, 1000, 65535][random.below(6)]))
}

fn some<T>(random: &mut Random, most: usize, mut make: impl FnMut(&mut Random) -> T) -> Vec<T> {
    let n = if random.below(2) == 0 { 0 } else { 1 + random.below(most) };
    (0..n).map(|_| make(random)).collect()
}

fn random_rule(random: &mut Random) -> Rule {
    let v4 = random.below(3) < 2;
    let protocol = [None, Some(6), Some(17), Some(1), Some(47)][random.below(5)];
    let has_ports = matches!(protocol, Some(6 | 17));
    let ports = |random: &mut Random| if has_ports { some(random, 3, port_range) } else { vec![] };
    Rule {
        denies: random.below(2) == 0,
        in_ports: some(random, 2, |r| r.below(3) as PortId),
        out_ports: some(random, 2, |r| r.below(3) as PortId),
        from: some(random, 3, |r| net(r, v4)),
        to: some(random, 3, |r| net(r, v4)),
        protocol,
        from_ports: ports(random),
        to_ports: ports(random),
        state: [None, None, Some(State::New), Some(State::Established)][random.below(4)],
        ..Rule::of_all("", false)
    }
}

fn random_packet(random: &mut Random, rules: &[Rule]) -> Packet {
    let v4 = random.below(2) == 0;
    // At the borders of a rule's prefix, or anywhere near.
    let near = |random: &mut Random, nets: fn(&Rule) -> &Vec<IpNet>| -> IpAddr {
        let known = rules.get(random.below(rules.len().max(1))).map(nets).and_then(|nets| nets.first());
        match known {
            Some(IpNet::V4(net)) if v4 && random.below(2) == 0 => {
                [net.network(), net.broadcast()][random.below(2)].into()
            }
            Some(IpNet::V6(net)) if !v4 && random.below(2) == 0 => {
                [net.network(), net.broadcast()][random.below(2)].into()
            }
            _ if v4 => Ipv4Addr::from(address4(random)).into(),
            _ => Ipv6Addr::from(address6(random)).into(),
        }
    };
    let protocol = [6, 6, 17, 17, 1, 47, 58][random.below(7)];
    let port =
        |random: &mut Random| [0, 25, 26, 53, 80, 1023, 1024, 8000, 8099, 8100, 65535][random.below(11)];
    let has_ports = matches!(protocol, 6 | 17);
    Packet {
        source: near(random, |rule| &rule.from),
        destination: near(random, |rule| &rule.to),
        protocol,
        ports: if has_ports { (port(random), port(random)) } else { (0, 0) },
        came_in: random.below(4) as PortId,
        leaves_by: [None, Some(0), Some(1), Some(2), Some(3)][random.below(5)],
        kind: [Kind::Whole, Kind::Whole, Kind::Later, Kind::Hidden][random.below(4)],
        established: random.below(2) == 0,
    }
}

fn compare(seed: u64, rules: usize, packets: usize) {
    let mut random = Random::new(seed);
    let rules: Vec<Rule> = (0..rules).map(|_| random_rule(&mut random)).collect();
    let compiled = Compiled::new(rules.clone()).unwrap();
    for _ in 0..packets {
        let packet = random_packet(&mut random, &rules);
        let (found, expected) = (find(&compiled, &packet), first_fit(&rules, &packet));
        assert_eq!(found, expected, "seed {seed}, {} rules, {packet:?}", rules.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn the_first_rule_that_fits_is_found(seed in any::<u64>(), rules in 0..80usize) {
        compare(seed, rules, 300);
    }
}

#[test]
fn many_rules_are_searched_as_rightly_as_few() {
    for seed in 0..3 {
        compare(seed, 1500, 3000);
    }
}

fn compare_bursts(seed: u64, rules: usize, bursts: usize) {
    let mut random = Random::new(seed);
    let rules: Vec<Rule> = (0..rules).map(|_| random_rule(&mut random)).collect();
    let compiled = Compiled::new(rules.clone()).unwrap();
    let (mut keys4, mut keys6, mut found) = (Keys::default(), Keys::default(), [0; TOGETHER]);
    for _ in 0..bursts {
        let n = random.below(TOGETHER + 1);
        let (mut expected4, mut expected6) = (Vec::new(), Vec::new());
        while expected4.len() < n || expected6.len() < n {
            let p = Packet { kind: Kind::Whole, ..random_packet(&mut random, &rules) };
            let ports = u32::from(p.ports.0) << 16 | u32::from(p.ports.1);
            let first = first_fit(&rules, &p);
            match key(&compiled, &p, p.protocol, ports) {
                Key::V4(key) if p.source.is_ipv4() && expected4.len() < n => {
                    keys4.set(expected4.len(), key);
                    assert_eq!(keys4.get(expected4.len()), key);
                    expected4.push(first);
                }
                Key::V6(key) if expected6.len() < n => {
                    keys6.set(expected6.len(), key);
                    expected6.push(first);
                }
                _ => {}
            }
        }
        compiled.search4(&keys4, n, &mut found);
        assert_eq!(found[..n], expected4, "seed {seed}, {} rules", rules.len());
        compiled.search6(&keys6, n, &mut found);
        assert_eq!(found[..n], expected6, "seed {seed}, {} rules", rules.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn a_whole_burst_gets_the_answers_of_its_packets(seed in any::<u64>(), rules in 0..80usize) {
        compare_bursts(seed, rules, 10);
    }

    #[test]
    fn a_burst_is_compared_with_few_rules_as_rightly(seed in any::<u64>(), rules in 0..6usize) {
        compare_bursts(seed, rules, 10);
    }
}

#[test]
fn a_key_tells_what_it_was_made_of() {
    for (source, destination) in [("10.0.0.1", "192.0.2.9"), ("2001:db8::1", "fd00:1:2:3:4:5:6:7")] {
        let (source, destination): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
        let key = Key::new(source, destination, 17, 1234 << 16 | 53, 7 << 8);
        assert_eq!((key.addresses(), key.protocol(), key.ports()), ((source, destination), 17, (1234, 53)));
    }
}

#[test]
fn without_rules_nothing_fits() {
    let compiled = Compiled::new(vec![]).unwrap();
    let key = Key::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, 0, compiled.came_in(3));
    assert_eq!([Kind::Whole, Kind::Later, Kind::Hidden].map(|kind| compiled.find(&key, kind)), [0; 3]);
    assert!(!compiled.denies(0) && !compiled.logs(0));
}

#[test]
fn rules_that_all_overlap_take_bounded_memory() {
    // Every rule wants another pair of wide port ranges: no window divides them.
    let mut random = Random::new(1);
    let mut range = || {
        let (a, b) = (random.bits() as u16, random.bits() as u16);
        vec![(a.min(b), a.max(b))]
    };
    let rules: Vec<Rule> = (0..3000)
        .map(|_| Rule {
            protocol: Some(17),
            from_ports: range(),
            to_ports: range(),
            ..Rule::of_all("", true)
        })
        .collect();
    let compiled = Compiled::new(rules.clone()).unwrap();
    assert!(compiled.bytes() < 64 << 20, "{} bytes", compiled.bytes());
    let mut random = Random::new(2);
    for _ in 0..2000 {
        let packet = Packet {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            protocol: 17,
            ports: (random.bits() as u16, random.bits() as u16),
            came_in: 0,
            leaves_by: None,
            kind: Kind::Whole,
            established: false,
        };
        assert_eq!(find(&compiled, &packet), first_fit(&rules, &packet));
    }
}

#[test]
fn too_many_combinations_are_refused() {
    let list: Vec<IpNet> = (0..1000).map(|n| Ipv4Net::new((n << 9).into(), 24).unwrap().into()).collect();
    let rules = vec![Rule { from: list.clone(), to: list, ..Rule::of_all("", true) }];
    assert_eq!(Compiled::new(rules).unwrap_err(), TooMany::Combinations);
}

#[test]
fn hits_of_all_workers_are_added_up() {
    let acl =
        Acl::new(Compiled::new(vec![Rule::of_all("a", true), Rule::of_all("b", false)]).unwrap().into(), 2);
    acl.count(0, 1, 5);
    acl.count(1, 1, 2);
    acl.count(1, 2, 9);
    acl.count(7, 0, 1);
    assert_eq!(acl.hits(), [0, 7, 9]);
    assert!(acl.denies(0) && !acl.denies(1) && !acl.denies(2));
}

#[test]
fn a_burst_is_counted_by_rule_and_says_whether_one_denies() {
    let acl =
        Acl::new(Compiled::new(vec![Rule::of_all("a", true), Rule::of_all("b", false)]).unwrap().into(), 2);
    assert!(!acl.count_all(0, &[]));
    assert!(!acl.count_all(0, &[1, 1, 1]));
    assert!(!acl.count_all(1, &[1, 2, 1]));
    assert!(acl.count_all(0, &[0, 0]));
    assert!(acl.count_all(1, &[2, 0, 2]));
    assert_eq!(acl.hits(), [3, 5, 3]);
}
