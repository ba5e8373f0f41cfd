//! Several next hops for one prefix: which flow goes which way. RFC 2992, RFC 6437, RFC 6438.

use sweepd::control::buckets::distribute;
use sweepd::forward::{slow::Ending, verdict::Verdict};
use sweepd::tables::NextHopId;

use crate::common::{Tube, host_mac};
use crate::packets::{Ip4, udp6};
use crate::router::{NEAR, NEAR6, pass, router, to_router};

const FLOWS: usize = 2000;

/// The router with four ways to 100.64.0.0/10 and 3fff::/20: hosts 1 to 4 of port 1.
fn four_ways() -> (Tube, Vec<NextHopId>) {
    let mut tube = router();
    let hops: Vec<_> = (1..=4).map(|host| tube.routes.hop(1, host, 1500)).collect();
    let mut buckets = [0; 256];
    distribute(&mut buckets, &members(&hops), false);
    let group = tube.routes.group(buckets);
    tube.routes.add("100.64.0.0/10", group);
    tube.routes.add("3fff::/20", group);
    tube.publish();
    (tube, hops)
}

fn members(hops: &[NextHopId]) -> Vec<(NextHopId, u32)> {
    hops.iter().map(|hop| (*hop, 1)).collect()
}

/// A packet of IPv4 flow `n`.
fn flow4(n: usize) -> Vec<u8> {
    let mut packet = Ip4::udp(NEAR, &format!("100.64.{}.{}", n / 250, n % 250), 9);
    packet.payload[0] = n as u8;
    packet.build()
}

/// A packet of IPv6 flow `n`, by its flow label alone.
fn flow6(n: usize) -> Vec<u8> {
    let mut packet = udp6(NEAR6, "3fff::1", 64, 9);
    packet[1..4].copy_from_slice(&(n as u32).to_be_bytes()[1..]);
    packet
}

/// The host that each flow goes to.
fn ways(tube: &mut Tube, flow: fn(usize) -> Vec<u8>) -> Vec<u8> {
    let way = |n| {
        let out = pass(tube, &flow(n));
        assert_eq!((out.len(), out[0].0), (1, 1));
        (1..=4).find(|host| out[0].1[..6] == host_mac(1, *host)).expect("one of the members")
    };
    (0..FLOWS).map(way).collect()
}

fn shares(ways: &[u8]) -> [usize; 4] {
    [1, 2, 3, 4].map(|host| ways.iter().filter(|way| **way == host).count())
}

/// Rule 62. Packets of one flow go one way; flows spread over all, in IPv6 by source, destination
/// and flow label.
#[test]
fn flows_spread_over_all_ways_and_each_keeps_its_own() {
    let (mut tube, _) = four_ways();
    for flow in [flow4 as fn(usize) -> Vec<u8>, flow6] {
        let first = ways(&mut tube, flow);
        assert_eq!(first, ways(&mut tube, flow));
        // A fourth each, within five standard deviations.
        assert!(shares(&first).iter().all(|n| n.abs_diff(FLOWS / 4) < 100), "{:?}", shares(&first));
    }
    let ports = |port: u8| {
        let mut packet = flow6(7);
        packet[41] = port;
        packet
    };
    let mut way = |packet: &[u8]| pass(&mut tube, packet)[0].1[..6].to_vec();
    let first = way(&ports(0));
    assert!((1..50).all(|port| way(&ports(port)) == first), "ports do not count in IPv6, the label does");
}

/// Rule 62. All fragments of a datagram go one way, though only the first has ports.
#[test]
fn fragments_of_a_datagram_go_one_way() {
    let (mut tube, _) = four_ways();
    for n in 0..100 {
        let fragment = |flags_offset: u16, byte: u8| {
            let mut packet = Ip4::udp(NEAR, &format!("100.64.9.{n}"), 100);
            (packet.flags_offset, packet.payload[0]) = (flags_offset, byte);
            packet.build()
        };
        let mut way = |packet: &[u8]| pass(&mut tube, packet)[0].1[..6].to_vec();
        assert_eq!(way(&fragment(0x2000, 0)), way(&fragment(0x0010, 99)));
    }
}

/// Rule 62. The fast path and the careful path choose alike and send the same bytes; a packet with
/// options, or too long to go on whole, goes the way of its flow too.
#[test]
fn both_paths_choose_the_same_way_and_send_the_same_bytes() {
    let (mut tube, _) = four_ways();
    for n in 0..200 {
        for packet in [flow4(n), flow6(n)] {
            let fast = pass(&mut tube, &packet);
            let (ending, careful) = tube.pass_carefully(0, &to_router(0, &packet));
            assert_eq!((ending, careful), (Ending::Verdict(Verdict::Forwarded), fast));
        }
        let mut packet = Ip4::udp(NEAR, &format!("100.64.8.{n}"), 9);
        let fast = pass(&mut tube, &packet.build());
        packet.options = vec![1; 4];
        assert_eq!(pass(&mut tube, &packet.build())[0].1[..6], fast[0].1[..6], "options");
    }
    assert_eq!(tube.count(Verdict::Forwarded), 800);
}

/// Rule 63. Of four ways one goes: its flows move, a quarter and no more, and no others. It comes
/// back, and again only its share moves.
#[test]
fn a_way_that_goes_moves_its_own_flows_and_no_others() {
    let (mut tube, hops) = four_ways();
    for flow in [flow4 as fn(usize) -> Vec<u8>, flow6] {
        let mut buckets = [0; 256];
        distribute(&mut buckets, &members(&hops), false);
        tube.routes.change_group(0, buckets);
        tube.publish();
        let before = ways(&mut tube, flow);
        distribute(&mut buckets, &members(&[hops[0], hops[1], hops[3]]), true);
        tube.routes.change_group(0, buckets);
        tube.publish();
        let without = ways(&mut tube, flow);
        assert!(before.iter().zip(&without).all(|(old, new)| old == new || *old == 3));
        assert_eq!(shares(&without)[2], 0);
        distribute(&mut buckets, &members(&hops), true);
        tube.routes.change_group(0, buckets);
        tube.publish();
        let back = ways(&mut tube, flow);
        let moved = without.iter().zip(&back).filter(|(old, new)| old != new).count();
        assert!(moved.abs_diff(FLOWS / 4) < 100, "{moved} of {FLOWS} moved");
    }
}
