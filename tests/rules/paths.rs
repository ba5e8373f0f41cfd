//! Several next hops for one prefix: which flow goes which way. RFC 2992, RFC 6437, RFC 6438.

use sweepd::forward::{slow::Ending, verdict::Verdict};

use crate::common::host_mac;
use crate::differences::HASH_THRESHOLD;
use crate::packets::{Ip4, udp6};
use crate::router::{NEAR, NEAR6, Router, To, alone, but, everywhere, pass, router, to_router};

const FLOWS: usize = 2000;

/// All ways to 100.64.0.0/10 and 3fff::/20 are these hosts of port 1.
fn set_ways(router: &mut dyn Router, hosts: &[u8]) {
    for prefix in ["100.64.0.0/10", "3fff::/20"] {
        router.route(prefix, &To::Ways(1, hosts.to_vec()));
    }
    router.publish();
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

/// The host that each packet goes to.
fn ways(router: &mut dyn Router, packets: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let frames: Vec<_> = packets.map(|packet| to_router(0, &packet)).collect();
    let out = router.send(0, &frames);
    assert_eq!(out.len(), frames.len());
    let host = |frame: &[u8]| (2..=5).find(|host| frame[..6] == host_mac(1, *host));
    out.iter().map(|(_, frame)| host(frame).expect("one of the members")).collect()
}

fn flows(flow: fn(usize) -> Vec<u8>) -> impl Iterator<Item = Vec<u8>> {
    (0..FLOWS).map(flow)
}

fn shares(ways: &[u8]) -> [usize; 4] {
    [2, 3, 4, 5].map(|host| ways.iter().filter(|way| **way == host).count())
}

/// Rule 62. Packets of one flow go one way; flows spread over all, in IPv6 by source, destination
/// and flow label.
#[test]
fn flows_spread_over_all_ways_and_each_keeps_its_own() {
    everywhere(|router| {
        set_ways(router, &[2, 3, 4, 5]);
        for flow in [flow4 as fn(usize) -> Vec<u8>, flow6] {
            let first = ways(router, flows(flow));
            assert_eq!(first, ways(router, flows(flow)));
            // A fourth each, within five standard deviations.
            assert!(shares(&first).iter().all(|n| n.abs_diff(FLOWS / 4) < 100), "{:?}", shares(&first));
        }
        let ports = (0..50).map(|port| {
            let mut packet = flow6(7);
            packet[41] = port;
            packet
        });
        let ways = ways(router, ports);
        assert!(ways.iter().all(|way| *way == ways[0]), "ports do not count in IPv6, the label does");
    });
}

/// Rule 62. Source, destination and flow label: each by itself spreads IPv6 flows.
#[test]
fn each_of_source_destination_and_label_counts() {
    everywhere(|router| {
        set_ways(router, &[2, 3, 4, 5]);
        // Behind the prefix, and the low bits of the label.
        for at in [23, 39, 3] {
            let packets = (0..200u8).map(|n| {
                let mut packet = flow6(0);
                packet[at] = n;
                packet
            });
            let ways = ways(router, packets);
            assert!(shares(&ways).iter().all(|n| (15..110).contains(n)), "byte {at}: {:?}", shares(&ways));
        }
    });
}

/// Rule 62. All fragments of a datagram go one way, though only the first has ports.
#[test]
fn fragments_of_a_datagram_go_one_way() {
    everywhere(|router| {
        set_ways(router, &[2, 3, 4, 5]);
        let fragment = |n: u8, flags_offset: u16, byte: u8| {
            let mut packet = Ip4::udp(NEAR, &format!("100.64.9.{n}"), 100);
            (packet.flags_offset, packet.payload[0]) = (flags_offset, byte);
            packet.build()
        };
        let first = ways(router, (0..100).map(|n| fragment(n, 0x2000, 0)));
        assert_eq!(first, ways(router, (0..100).map(|n| fragment(n, 0x0010, 99))));
    });
}

/// Rule 62. The fast path and the careful path choose alike and send the same bytes; a packet with
/// options, or too long to go on whole, goes the way of its flow too.
#[test]
fn both_paths_choose_the_same_way_and_send_the_same_bytes() {
    alone("the path that a packet takes cannot be chosen from outside");
    let mut tube = router();
    set_ways(&mut tube, &[2, 3, 4, 5]);
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
    everywhere(|router| {
        for flow in [flow4 as fn(usize) -> Vec<u8>, flow6] {
            set_ways(router, &[2, 3, 4, 5]);
            let before = ways(router, flows(flow));
            set_ways(router, &[2, 3, 5]);
            let without = ways(router, flows(flow));
            assert_eq!(shares(&without)[2], 0);
            set_ways(router, &[2, 3, 4, 5]);
            let back = ways(router, flows(flow));
            but(router, &HASH_THRESHOLD, |_| {
                assert!(before.iter().zip(&without).all(|(old, new)| old == new || *old == 4));
                let moved = without.iter().zip(&back).filter(|(old, new)| old != new).count();
                assert!(moved.abs_diff(FLOWS / 4) < 100, "{moved} of {FLOWS} moved");
            });
        }
    });
}
