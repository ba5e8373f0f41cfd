//! The filter in a router between pipes: which packets pass, each once, on the fast path and on the
//! careful one, whole and in fragments.

mod common;
#[path = "common/packets.rs"]
mod packets;

use std::sync::Arc;

use common::{PortSpec, Tube, host_mac, port_mac};
use packets::{Ip4, ethernet, ip6, udp6};
use sweepd::{
    forward::{messages::ToKeeper, verdict::Verdict},
    tables::{
        Action,
        acl::{Acl, Rule},
        fixed,
    },
};

const NEAR: &str = "192.0.2.7";
const FAR: &str = "198.51.100.3";
const NEAR6: &str = "2001:db8:beef::7";
const FAR6: &str = "2001:db8:cafe::3";

/// Three ports; networks behind host 9 of each: 192.0.2.0/24 and 2001:db8:beef::/48 behind port 0,
/// 198.51.100.0/24 and 2001:db8:cafe::/48 behind port 1, 203.0.113.0/24 behind port 2, which takes
/// 600 bytes.
fn router(workers: usize, rings: u32) -> Tube {
    let spec =
        |k: usize| PortSpec::new(&[&format!("10.0.{k}.1/24"), &format!("2001:db8:{k}::1/64")]).rings(rings);
    let mut tube = Tube::new(&[spec(0), spec(1), spec(2)], workers);
    let hops = [tube.routes.hop(0, 9, 1500), tube.routes.hop(1, 9, 1500), tube.routes.hop(2, 9, 600)];
    for (prefix, port) in [
        ("192.0.2.0/24", 0),
        ("2001:db8:beef::/48", 0),
        ("198.51.100.0/24", 1),
        ("2001:db8:cafe::/48", 1),
        ("203.0.113.0/24", 2),
    ] {
        tube.routes.add(prefix, hops[port]);
    }
    tube.publish();
    tube
}

fn deny(name: &str) -> Rule {
    Rule::of_all(name, true)
}

fn permit(name: &str) -> Rule {
    Rule { denies: false, ..deny(name) }
}

/// Of UDP to port 8192, which [`Ip4::udp`] makes.
fn to_8192(rule: Rule) -> Rule {
    Rule { protocol: Some(17), to_ports: vec![(8192, 8192)], ..rule }
}

fn to_router(port: usize, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    ethernet(port_mac(port), host_mac(port, 9), ethertype, packet)
}

/// How many packets leave when this one comes in at port 0; checks the laws.
fn leave(tube: &mut Tube, packet: &[u8]) -> usize {
    tube.pass(0, &to_router(0, packet)).len()
}

fn udp(to_port: u16) -> Ip4 {
    let mut packet = Ip4::udp(NEAR, FAR, 24);
    packet.payload[2..4].copy_from_slice(&to_port.to_be_bytes());
    packet.payload[6..8].copy_from_slice(&[0, 0]);
    packet
}

fn udp_over6(to_port: u16) -> Vec<u8> {
    let mut packet = udp6(NEAR6, FAR6, 64, 24);
    packet[42..44].copy_from_slice(&to_port.to_be_bytes());
    packet
}

#[test]
fn without_rules_nothing_is_looked_at() {
    let mut tube = router(1, 1);
    assert_eq!(leave(&mut tube, &udp(25).build()), 1);
    assert_eq!(tube.verdicts(), [("forwarded", 1)]);
}

#[test]
fn a_denied_packet_ends_in_silence_and_is_counted_by_verdict_and_rule() {
    let mut tube = router(1, 1);
    let acl = tube.filter(vec![permit("other").clone_for(53), to_8192(deny("no"))]);
    for (packet, passes) in
        [(udp(8192).build(), 0), (udp_over6(8192), 0), (udp(53).build(), 1), (udp(54).build(), 1)]
    {
        assert_eq!(leave(&mut tube, &packet), passes);
    }
    assert_eq!(tube.verdicts(), [("forwarded", 2), ("denied", 2)]);
    assert_eq!(acl.hits(), [1, 2, 1]);
}

trait CloneFor {
    fn clone_for(self, port: u16) -> Rule;
}

impl CloneFor for Rule {
    /// The rule for UDP to this port.
    fn clone_for(self, port: u16) -> Rule {
        Rule { protocol: Some(17), to_ports: vec![(port, port)], ..self }
    }
}

#[test]
fn the_first_rule_that_fits_decides() {
    let mut tube = router(1, 1);
    let near = vec!["192.0.2.0/24".parse().unwrap()];
    let acl = tube.filter(vec![
        Rule { from: vec!["192.0.2.7/32".parse().unwrap()], ..permit("one host") },
        Rule { from: near, ..deny("its network") },
    ]);
    assert_eq!(leave(&mut tube, &udp(1).build()), 1);
    let mut other = udp(1);
    other.source = "192.0.2.8".parse().unwrap();
    assert_eq!(leave(&mut tube, &other.build()), 0);
    assert_eq!(acl.hits(), [1, 1, 0]);
}

#[test]
fn rules_know_the_ports_by_which_packets_come_and_go() {
    let mut tube = router(1, 1);
    tube.filter(vec![
        Rule { in_ports: vec![0], out_ports: vec![2], ..deny("0 to 2") },
        Rule { in_ports: vec![1], ..deny("from 1") },
    ]);
    assert_eq!(leave(&mut tube, &Ip4::udp(NEAR, FAR, 8).build()), 1);
    assert_eq!(leave(&mut tube, &Ip4::udp(NEAR, "203.0.113.5", 8).build()), 0);
    assert_eq!(tube.pass(1, &to_router(1, &Ip4::udp(FAR, NEAR, 8).build())).len(), 0);
    assert_eq!(tube.pass(2, &to_router(2, &Ip4::udp("203.0.113.5", NEAR, 8).build())).len(), 1);
    assert_eq!(tube.verdicts(), [("forwarded", 2), ("denied", 2)]);
}

#[test]
fn a_burst_keeps_its_order_when_some_of_it_is_denied() {
    let mut tube = router(1, 1);
    tube.filter(vec![to_8192(deny("no"))]);
    for id in 0..60u16 {
        let mut packet = udp(if id % 3 == 0 { 8192 } else { 9 });
        // Every seventh takes the careful path, for its options.
        packet.options = if id % 7 == 0 { vec![1, 1, 1, 0] } else { vec![] };
        packet.id = id;
        tube.inject(0, &to_router(0, &packet.build()));
    }
    tube.settle();
    tube.check();
    let mut ids: Vec<u16> =
        tube.arrived(1).iter().map(|frame| u16::from_be_bytes([frame[18], frame[19]])).collect();
    let fast: Vec<u16> = ids.iter().copied().filter(|id| id % 7 != 0).collect();
    assert!(fast.is_sorted(), "{fast:?}");
    ids.sort_unstable();
    assert_eq!(ids, (0..60).filter(|id| id % 3 != 0).collect::<Vec<u16>>());
    assert_eq!(tube.verdicts(), [("forwarded", 40), ("denied", 20)]);
}

#[test]
fn the_fast_and_the_careful_path_say_the_same() {
    let mut tube = router(1, 1);
    tube.filter(vec![
        permit("a").clone_for(53),
        Rule { protocol: Some(17), to_ports: vec![(50, 60), (8000, 9000)], ..deny("b") },
        Rule { out_ports: vec![1], protocol: Some(6), ..deny("c") },
    ]);
    for port in [1u16, 49, 50, 53, 60, 61, 7999, 8000, 9000, 9001] {
        for packet in [udp(port).build(), udp_over6(port), Ip4 { protocol: 6, ..udp(port) }.build()] {
            let frame = to_router(0, &packet);
            let fast = tube.pass(0, &frame);
            let (_, careful) = tube.pass_carefully(0, &frame);
            assert_eq!(fast, careful, "port {port}");
        }
    }
}

#[test]
fn a_group_is_filtered_by_the_member_that_is_chosen() {
    let mut tube = router(1, 1);
    let (one, two) = (tube.routes.hop(1, 9, 1500), tube.routes.hop(2, 9, 1500));
    let mut buckets = [one; 256];
    buckets[128..].fill(two);
    let group = tube.routes.group(buckets);
    tube.routes.add("198.18.0.0/15", group);
    tube.publish();
    let acl = tube.filter(vec![Rule { out_ports: vec![2], ..deny("not by 2") }]);
    let mut left = 0;
    for host in 0..100u8 {
        left += leave(&mut tube, &Ip4::udp(NEAR, &format!("198.18.0.{host}"), 8).build());
    }
    let denied = tube.count(Verdict::Denied);
    assert!(denied > 20 && left as u64 + denied == 100, "{:?}", tube.verdicts());
    assert_eq!(acl.hits(), [denied, left as u64]);
}

/// A datagram to this port in three fragments of 24, 24 and 12 bytes.
fn fragments(to_port: u16, id: u16) -> [Vec<u8>; 3] {
    let whole = Ip4 { id, ..udp(to_port) };
    let data = [whole.payload.clone(), vec![0xaa; 28]].concat();
    let piece = |at: usize, end: usize, more: u16| {
        Ip4 { flags_offset: more | (at / 8) as u16, payload: data[at..end].to_vec(), ..whole.clone() }.build()
    };
    [piece(0, 24, 0x2000), piece(24, 48, 0x2000), piece(48, 60, 0)]
}

#[test]
fn nothing_of_a_denied_datagram_passes_behind_its_first_fragment() {
    let mut tube = router(1, 1);
    let acl = tube.filter(vec![to_8192(deny("no")), permit("rest")]);
    for piece in fragments(8192, 1) {
        assert_eq!(leave(&mut tube, &piece), 0);
    }
    for piece in fragments(8193, 2) {
        assert_eq!(leave(&mut tube, &piece), 1);
    }
    assert_eq!(acl.hits(), [3, 3, 0]);
    assert_eq!(tube.verdicts(), [("forwarded", 3), ("denied", 3)]);
}

#[test]
fn a_denied_datagram_is_never_completed_in_whatever_order_its_fragments_come() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut tube = router(1, 1);
        tube.filter(vec![to_8192(deny("no")), Rule { protocol: Some(17), ..permit("udp") }, deny("all")]);
        let pieces = fragments(8192, 1);
        let mut out = Vec::new();
        for n in order {
            out.extend(tube.pass(0, &to_router(0, &pieces[n])));
        }
        let first = |frame: &Vec<u8>| u16::from_be_bytes([frame[20], frame[21]]) & 0x1fff == 0;
        assert!(!out.iter().any(|(_, frame)| first(frame)), "{order:?}: the first fragment passed");
        // And what comes behind it does not pass either.
        let behind = order.iter().skip_while(|n| **n != 0).count();
        assert!(tube.count(Verdict::Denied) >= behind as u64);
    }
}

#[test]
fn a_permitted_datagram_passes_in_whatever_order_its_fragments_come() {
    for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
        let mut tube = router(1, 1);
        tube.filter(vec![to_8192(permit("yes")), deny("all")]);
        let pieces = fragments(8192, 1);
        let passed: usize = order.iter().map(|n| leave(&mut tube, &pieces[*n])).sum();
        assert_eq!(passed, 3, "{order:?}");
    }
}

#[test]
fn with_other_rules_what_was_decided_about_a_first_fragment_no_longer_holds() {
    let mut tube = router(1, 1);
    tube.filter(vec![to_8192(permit("yes"))]);
    let [first, second, _] = fragments(8192, 1);
    assert_eq!(leave(&mut tube, &first), 1);
    tube.filter(vec![deny("all")]);
    assert_eq!(leave(&mut tube, &second), 0);
}

#[test]
fn a_first_fragment_with_other_ports_does_not_open_the_way_for_a_denied_datagram() {
    // The same datagram, begun twice: with ports that are denied and with ports that are not.
    let mut tube = router(1, 1);
    tube.filter(vec![to_8192(deny("no"))]);
    let [denied, ..] = fragments(8192, 1);
    let [other, second, _] = fragments(9, 1);
    assert_eq!(leave(&mut tube, &denied), 0);
    assert_eq!(leave(&mut tube, &other), 0);
    assert_eq!(leave(&mut tube, &second), 0);
}

#[test]
fn fragments_made_to_deceive_a_filter_are_denied() {
    let mut tube = router(1, 1);
    tube.filter(vec![to_8192(deny("no"))]);
    // RFC 1858: a first fragment without all of the TCP header, and one that overlays its flags.
    let tcp = |at: u16, more: u16, len: usize| {
        Ip4 { protocol: 6, flags_offset: more | (at / 8), payload: vec![0; len], ..udp(9) }.build()
    };
    assert_eq!(leave(&mut tube, &tcp(0, 0x2000, 8)), 0);
    assert_eq!(leave(&mut tube, &tcp(0, 0x2000, 16)), 0);
    assert_eq!(leave(&mut tube, &tcp(8, 0, 24)), 0);
    assert_eq!(leave(&mut tube, &tcp(0, 0x2000, 24)), 1);
    assert_eq!(leave(&mut tube, &tcp(24, 0, 24)), 1);
    assert_eq!(tube.verdicts(), [("forwarded", 2), ("denied", 3)]);
}

/// Extension headers in front of UDP to this port.
fn behind(headers: &[(u8, Vec<u8>)], to_port: u16) -> Vec<u8> {
    let upper = udp_over6(to_port)[40..].to_vec();
    let mut payload = Vec::new();
    for (n, (_, rest)) in headers.iter().enumerate() {
        payload.push(headers.get(n + 1).map_or(17, |next| next.0));
        payload.extend(rest);
    }
    payload.extend(upper);
    ip6(NEAR6.parse().unwrap(), FAR6.parse().unwrap(), 64, headers.first().map_or(17, |h| h.0), &payload)
}

#[test]
fn the_upper_layer_is_found_behind_extension_headers() {
    let mut tube = router(1, 1);
    tube.filter(vec![to_8192(deny("no"))]);
    let options = || [vec![0], vec![1, 4, 0, 0, 0, 0]].concat();
    let chains: [Vec<(u8, Vec<u8>)>; 5] = [
        vec![(0, options())],
        vec![(60, options()), (43, vec![0, 4, 0, 0, 0, 0, 0])],
        vec![(51, vec![1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1])],
        vec![(44, vec![0, 0, 0, 0, 0, 0, 9])],
        vec![(139, options()), (140, options())],
    ];
    for chain in chains {
        assert_eq!(leave(&mut tube, &behind(&chain, 8192)), 0, "{chain:?}");
        assert_eq!(leave(&mut tube, &behind(&chain, 8193)), 1, "{chain:?}");
    }
}

#[test]
fn a_packet_whose_upper_layer_is_hidden_is_decided_for_the_worse() {
    let hidden = [
        // An experimental extension header, one that is cut short, a fragment of a fragment.
        behind(&[(253, vec![0, 0, 0, 0, 0, 0, 0])], 9),
        behind(&[(60, vec![200, 0, 0, 0, 0, 0, 0])], 9),
        behind(&[(44, vec![0, 0, 0, 0, 0, 0, 1]), (44, vec![0, 0, 8, 0, 0, 0, 2])], 9),
        // UDP without its ports.
        Ip4 { payload: vec![0, 1, 2], ..udp(9) }.build(),
    ];
    for packet in hidden {
        let mut tube = router(1, 1);
        tube.filter(vec![to_8192(permit("some")), deny("all")]);
        assert_eq!(leave(&mut tube, &packet), 0, "not what is permitted");
        tube.filter(vec![to_8192(deny("some"))]);
        assert_eq!(leave(&mut tube, &packet), 0, "perhaps what is denied");
        tube.filter(vec![Rule { out_ports: vec![2], ..deny("elsewhere") }]);
        assert_eq!(leave(&mut tube, &packet), 1, "nothing to do with it");
    }
}

#[test]
fn ipv6_fragments_follow_their_first_one() {
    let piece = |to_port: u16, at: u16, more: u16, id: u8| {
        let data = udp_over6(to_port)[40..].to_vec();
        let field = (at | more).to_be_bytes();
        let mut payload = vec![17, 0, field[0], field[1], 0, 1, 0, id];
        payload.extend(&data[usize::from(at)..usize::from(at) + 16]);
        ip6(NEAR6.parse().unwrap(), FAR6.parse().unwrap(), 64, 44, &payload)
    };
    let mut tube = router(1, 1);
    tube.filter(vec![to_8192(deny("no")), permit("rest")]);
    for (port, id, passes) in [(8192, 1, 0), (9, 2, 1)] {
        assert_eq!(leave(&mut tube, &piece(port, 0, 1, id)), passes);
        assert_eq!(leave(&mut tube, &piece(port, 16, 0, id)), passes);
    }
    // RFC 7112: the first fragment has to hold all headers.
    let mut short = piece(9, 0, 1, 3)[..40 + 8 + 4].to_vec();
    short[4..6].copy_from_slice(&12u16.to_be_bytes());
    assert_eq!(leave(&mut tube, &short), 0);
}

#[test]
fn a_held_packet_is_filtered_when_it_comes_and_when_it_goes_and_counted_once() {
    let mut tube = router(1, 1);
    let acl = tube.filter(vec![to_8192(deny("no"))]);
    // Denied ones are not held, and ask for no neighbour.
    assert_eq!(leave(&mut tube, &Ip4::udp(NEAR, "10.0.1.77", 8).build()), 0);
    assert_eq!(tube.verdicts(), [("denied", 1)]);
    assert!(tube.to_keeper.try_iter().next().is_none());
    let waits = |host: &str, tube: &mut Tube| {
        let mut packet = udp(9);
        packet.destination = host.parse().unwrap();
        assert_eq!(leave(tube, &packet.build()), 0);
    };
    waits("10.0.1.78", &mut tube);
    assert_eq!(acl.hits(), [1, 0]);
    let found = tube.routes.hop(1, 78, 1500);
    tube.routes.add("10.0.1.78/32", found);
    tube.publish();
    tube.settle();
    tube.settle();
    assert_eq!(tube.arrived(1).len(), 1);
    assert_eq!(acl.hits(), [1, 1]);
    // Rules that have changed meanwhile hold for it.
    waits("10.0.1.79", &mut tube);
    let acl = tube.filter(vec![deny("all")]);
    let found = tube.routes.hop(1, 79, 1500);
    tube.routes.add("10.0.1.79/32", found);
    tube.publish();
    tube.settle();
    tube.settle();
    tube.check();
    assert_eq!(tube.arrived(1).len(), 0);
    assert_eq!(acl.hits(), [1, 0]);
    assert_eq!(tube.verdicts(), [("forwarded", 1), ("denied", 2)]);
}

#[test]
fn fragments_that_are_made_here_are_filtered_once_as_a_whole() {
    let mut tube = router(1, 1);
    let acl = tube.filter(vec![to_8192(permit("yes")), deny("all")]);
    let out = tube.pass(0, &to_router(0, &Ip4::udp(NEAR, "203.0.113.5", 1000).build()));
    assert_eq!(out.len(), 2);
    assert_eq!(acl.hits(), [1, 0, 0]);
    assert_eq!(tube.verdicts(), [("fragmented", 1)]);
}

#[test]
fn what_is_the_hosts_is_not_filtered_and_what_it_would_forward_is() {
    let spec = |k: usize| PortSpec::new(&[&format!("10.0.{k}.1/24")]).host_rings();
    let mut tube = Tube::new(&[spec(0), spec(1)], 1);
    // 192.168.9.0/24 lies behind a device that is no port.
    tube.routes.add("192.168.9.0/24", fixed::HOST);
    let back = tube.routes.hop(0, 9, 1500);
    tube.routes.add("192.0.2.0/24", back);
    tube.publish();
    let acl = tube.filter(vec![to_8192(deny("no"))]);
    tube.pass(0, &to_router(0, &Ip4::udp(NEAR, "10.0.0.1", 8).build()));
    assert_eq!(tube.arrived_at_host(0).len(), 1, "to the host itself");
    tube.pass(0, &to_router(0, &Ip4::udp(NEAR, "192.168.9.4", 8).build()));
    assert_eq!(tube.arrived_at_host(0).len(), 0, "denied");
    let mut other = udp(9);
    other.destination = "192.168.9.4".parse().unwrap();
    tube.pass(0, &to_router(0, &other.build()));
    assert_eq!(tube.arrived_at_host(0).len(), 1, "permitted");
    assert_eq!(acl.hits(), [1, 1]);
}

#[test]
fn errors_of_the_routers_own_pass_whatever_the_rules() {
    let mut tube = router(1, 1);
    tube.filter(vec![deny("all")]);
    let out = tube.pass(0, &to_router(0, &Ip4::udp(NEAR, FAR, 8).ttl(1).build()));
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].0, out[0].1[34]), (0, 11));
    let unreachable = tube.routes.action(Action::Unreachable, 0, None);
    tube.routes.add("198.18.0.0/15", unreachable);
    tube.publish();
    assert_eq!(leave(&mut tube, &Ip4::udp(NEAR, "198.18.0.1", 8).build()), 1);
}

#[test]
fn a_rule_with_log_tells_the_keeper_and_not_too_often() {
    let mut tube = router(1, 1);
    let rules = vec![Rule { logs: true, ..to_8192(deny("no")) }];
    tube.filter(rules.clone());
    for _ in 0..40 {
        for _ in 0..50 {
            tube.inject(0, &to_router(0, &udp(8192).build()));
        }
        tube.settle();
    }
    let told: Vec<_> = tube
        .to_keeper
        .try_iter()
        .filter_map(|message| if let ToKeeper::Judged(judged) = message { Some(judged) } else { None })
        .collect();
    assert!((1..=60).contains(&told.len()), "{}", told.len());
    let first = &told[0];
    assert_eq!((first.rule, first.protocol, first.ports), (0, 17, (0x1000, 8192)));
    assert_eq!((first.came_in, first.leaves_by, first.unlogged), (0, Some(1), 0));
    assert_eq!(first.rules.rules(), rules);
    assert_eq!(tube.count(Verdict::Denied), 2000);
}

#[test]
fn every_worker_counts_for_itself_and_all_are_added_up() {
    let mut tube = router(2, 2);
    let acl: Arc<Acl> = tube.filter(vec![to_8192(deny("no"))]);
    for ring in [0, 1, 1] {
        tube.inject_on(0, ring, &to_router(0, &udp(8192).build()));
        tube.inject_on(0, ring, &to_router(0, &udp(9).build()));
    }
    tube.settle();
    tube.check();
    assert_eq!(acl.hits(), [3, 3]);
    assert_eq!(tube.verdicts(), [("forwarded", 3), ("denied", 3)]);
}
