//! The worker loop between pipes: packets in, packets out, and what becomes of the others.

mod common;
#[path = "common/packets.rs"]
mod packets;

use common::{PortSpec, Tube, host_mac, port_mac};
use packets::{Ip4, checksum, ethernet, udp6};
use sweepd::{
    forward::{
        messages::{ToKeeper, ToWorker},
        verdict::Verdict,
    },
    tables::{Action, fixed},
};

/// Two ports, 10.0.k.1/24 and 2001:db8:k::1/64 each, 198.51.100.0/24 behind host 9 of port 1 and
/// 192.0.2.0/24 behind host 9 of port 0.
fn two_ports(workers: usize, rings: [u32; 2]) -> Tube {
    let spec = |k: usize| {
        PortSpec::new(&[&format!("10.0.{k}.1/24"), &format!("2001:db8:{k}::1/64")]).rings(rings[k])
    };
    let mut tube = Tube::new(&[spec(0), spec(1)], workers);
    let right = tube.routes.hop(1, 9, 1500);
    let left = tube.routes.hop(0, 9, 1500);
    tube.routes.add("198.51.100.0/24", right);
    tube.routes.add("2001:db8:cafe::/48", right);
    tube.routes.add("192.0.2.0/24", left);
    tube.routes.add("2001:db8:beef::/48", left);
    tube.publish();
    tube
}

fn to_router(port: usize, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    ethernet(port_mac(port), host_mac(port, 9), ethertype, packet)
}

#[test]
fn a_plain_packet_leaves_with_new_addresses_and_one_less_to_live() {
    let mut tube = two_ports(1, [1, 1]);
    let packet = Ip4::udp("192.0.2.7", "198.51.100.3", 30);
    let out = tube.pass(0, &to_router(0, &packet.build()));
    let expected = ethernet(host_mac(1, 9), port_mac(1), 0x0800, &packet.ttl(63).build());
    assert_eq!(out, [(1, expected)]);
    assert_eq!(tube.verdicts(), [("forwarded", 1)]);
    let stats = tube.stats.snapshot();
    assert_eq!((stats[0].rx_packets, stats[0].rx_bytes), (1, 72));
    assert_eq!((stats[1].tx_packets, stats[1].tx_bytes), (1, 72));
}

#[test]
fn an_ipv6_packet_leaves_with_one_hop_less() {
    let mut tube = two_ports(1, [1, 1]);
    let out = tube.pass(0, &to_router(0, &udp6("2001:db8:beef::7", "2001:db8:cafe::3", 64, 30)));
    let packet = udp6("2001:db8:beef::7", "2001:db8:cafe::3", 63, 30);
    assert_eq!(out, [(1, ethernet(host_mac(1, 9), port_mac(1), 0x86dd, &packet))]);
}

#[test]
fn link_padding_is_left_behind() {
    let mut tube = two_ports(1, [1, 1]);
    let mut frame = to_router(0, &Ip4::udp("192.0.2.7", "198.51.100.3", 2).build());
    let len = frame.len();
    frame.resize(60, 0xaa);
    let out = tube.pass(0, &frame);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].1.len(), len);
}

#[test]
fn the_checksum_is_right_for_every_ttl() {
    let mut tube = two_ports(1, [1, 1]);
    for ttl in 2..=255u8 {
        for id in [0u16, 1, 0xfeff, 0xffff, u16::from(ttl) << 7] {
            let mut packet = Ip4::udp("192.0.2.7", "198.51.100.3", 4).ttl(ttl);
            packet.id = id;
            let out = tube.pass(0, &to_router(0, &packet.build()));
            assert_eq!(checksum(&out[0].1[14..34]), 0);
            assert_eq!(out[0].1[22], ttl - 1);
        }
    }
}

#[test]
fn a_full_burst_and_more_keep_their_order() {
    let mut tube = two_ports(1, [1, 1]);
    let mut next = 0u16;
    let mut seen = 0u16;
    for n in [1, 31, 32, 33, 63, 2, 63, 40] {
        for _ in 0..n {
            let mut packet = Ip4::udp("192.0.2.7", "198.51.100.3", 4);
            packet.id = next;
            next += 1;
            tube.inject(0, &to_router(0, &packet.build()));
        }
        tube.settle();
        tube.check();
        for frame in tube.arrived(1) {
            assert_eq!(u16::from_be_bytes([frame[18], frame[19]]), seen);
            seen += 1;
        }
    }
    assert_eq!(seen, next);
}

#[test]
fn a_transmit_ring_that_nobody_empties_drops_and_counts() {
    let mut tube = two_ports(1, [1, 1]);
    for _ in 0..5 {
        for i in 0..60 {
            tube.inject(0, &to_router(0, &Ip4::udp("192.0.2.7", "198.51.100.3", i).build()));
        }
        tube.settle();
        tube.check();
    }
    // 63 in the far end's receive ring, 63 in the transmit ring before it.
    assert_eq!(tube.verdicts(), [("forwarded", 126), ("tx_full", 174)]);
    assert_eq!(tube.stats.snapshot()[1].tx_dropped, 174);
    assert_eq!(tube.arrived(1).len(), 63);
}

#[test]
fn packets_reach_the_worker_that_owns_the_ring_whichever_receives_them() {
    for rings in [[1, 2], [2, 1], [2, 2], [1, 1]] {
        for workers in [1, 2, 3] {
            let mut tube = two_ports(workers, rings);
            for port in 0..2 {
                for ring in 0..rings[port] as usize {
                    for i in 0..20 {
                        let packet = match port {
                            0 => Ip4::udp("192.0.2.7", "198.51.100.3", i),
                            _ => Ip4::udp("198.51.100.3", "192.0.2.7", i),
                        };
                        tube.inject_on(port, ring, &to_router(port, &packet.build()));
                    }
                    tube.settle();
                    tube.check();
                    let got = tube.arrived(1 - port);
                    assert_eq!(got.len(), 20, "{workers} workers, rings {rings:?}, port {port}");
                    for (i, frame) in got.iter().enumerate() {
                        assert_eq!(frame.len(), 42 + i, "in order");
                    }
                }
            }
            let total = 20 * u64::from(rings[0] + rings[1]);
            assert_eq!(tube.verdicts(), [("forwarded", total)]);
        }
    }
}

#[test]
fn what_is_the_hosts_goes_up_and_its_own_packets_leave() {
    for workers in [1, 2] {
        for rings in [1, 2] {
            let spec = |k: usize| {
                PortSpec::new(&[&format!("10.0.{k}.1/24")]).rings(if k == 0 { rings } else { 1 }).host_rings()
            };
            let mut tube = Tube::new(&[spec(0), spec(1)], workers);
            for ring in 0..rings as usize {
                let frame = to_router(0, &Ip4::udp("10.0.0.9", "10.0.0.1", 10).build());
                let arp = ethernet([0xff; 6], host_mac(0, 9), 0x0806, &[0; 28]);
                tube.inject_on(0, ring, &frame);
                tube.inject_on(0, ring, &arp);
                tube.settle();
                tube.check();
                assert_eq!(tube.arrived_at_host(0), [frame, arp]);
                let answer = ethernet(host_mac(0, 9), port_mac(0), 0x0800, &[7; 50]);
                tube.inject_from_host(0, ring, &answer);
                tube.settle();
                tube.check();
                assert_eq!(tube.arrived(0), [answer]);
            }
            let n = u64::from(rings);
            assert_eq!(tube.verdicts(), [("host", 2 * n), ("from_host", n)]);
        }
    }
}

#[test]
fn a_full_ring_towards_the_host_drops_and_holds_up_nothing_else() {
    let spec = |k: usize| PortSpec::new(&[&format!("10.0.{k}.1/24")]).host_rings();
    let mut tube = Tube::new(&[spec(0), spec(1)], 1);
    let right = tube.routes.hop(1, 9, 1500);
    tube.routes.add("198.51.100.0/24", right);
    tube.publish();
    let up = to_router(0, &Ip4::udp("192.0.2.7", "10.0.0.1", 9).build());
    let on = to_router(0, &Ip4::udp("192.0.2.7", "198.51.100.3", 9).build());
    for _ in 0..10 {
        for _ in 0..20 {
            tube.inject(0, &up);
            tube.inject(0, &on);
        }
        tube.settle();
        tube.check();
        assert_eq!(tube.arrived(1).len(), 20, "what is forwarded goes on");
    }
    // The ring and the one before it.
    assert_eq!(tube.verdicts(), [("forwarded", 200), ("host", 126), ("host_full", 74)]);
    assert_eq!(tube.arrived_at_host(0).len(), 63);
    tube.settle();
    tube.pass(0, &up);
    assert_eq!(tube.count(Verdict::HostFull), 74, "there is room again");
}

#[test]
fn malformed_and_foreign_frames_are_counted_by_their_fault() {
    let mut tube = two_ports(1, [1, 1]);
    let good = Ip4::udp("192.0.2.7", "198.51.100.3", 10).build();
    let with = |at: usize, value: u8| {
        let mut bad = good.clone();
        bad[at] = value;
        to_router(0, &bad)
    };
    let cases = [
        (to_router(0, &good)[..10].to_vec(), Verdict::Runt),
        (to_router(0, &good)[..30].to_vec(), Verdict::Runt),
        (to_router(0, &good[..30]), Verdict::Runt),
        (with(0, 0x55), Verdict::BadHeader),
        (with(0, 0x44), Verdict::BadHeader),
        (with(10, good[10] ^ 1), Verdict::BadChecksum),
        (ethernet(host_mac(0, 3), host_mac(0, 9), 0x0800, &good), Verdict::NotForUs),
        (ethernet([0xff; 6], host_mac(0, 9), 0x0800, &good), Verdict::LinkBroadcast),
        (ethernet(port_mac(0), host_mac(0, 9), 0x88cc, &good), Verdict::UnknownProtocol),
        (to_router(0, &Ip4::udp("127.0.0.1", "198.51.100.3", 10).build()), Verdict::Martian),
        (to_router(0, &Ip4::udp("10.0.1.1", "198.51.100.3", 10).build()), Verdict::Martian),
        (to_router(0, &Ip4::udp("192.0.2.7", "240.0.0.1", 10).build()), Verdict::Martian),
        (to_router(0, &Ip4::udp("192.0.2.7", "224.0.0.9", 10).build()), Verdict::Multicast),
        (to_router(0, &Ip4::udp("192.0.2.7", "10.0.1.255", 10).build()), Verdict::Broadcast),
    ];
    for (frame, verdict) in cases {
        let before = tube.count(verdict);
        assert_eq!(tube.pass(0, &frame), [], "{verdict:?}");
        assert_eq!(tube.count(verdict), before + 1, "{verdict:?}, got {:?}", tube.verdicts());
    }
    assert_eq!(tube.stats.snapshot()[0].rx_errors, 6);
}

#[test]
fn an_expired_packet_is_answered_from_the_port_towards_its_sender() {
    let mut tube = two_ports(1, [1, 1]);
    let packet = Ip4::udp("192.0.2.7", "198.51.100.3", 10).ttl(1).build();
    let out = tube.pass(0, &to_router(0, &packet));
    assert_eq!(out.len(), 1);
    let (port, frame) = &out[0];
    assert_eq!(*port, 0);
    assert_eq!(frame[..12], [host_mac(0, 9), port_mac(0)].concat());
    assert_eq!(frame[26..30], [10, 0, 0, 1]);
    assert_eq!(frame[30..34], [192, 0, 2, 7]);
    assert_eq!(frame[34..36], [11, 0]);
    assert_eq!(frame[42..42 + packet.len()], packet);
    assert_eq!(tube.verdicts(), [("ttl_expired", 1)]);
    assert_eq!(tube.stats.snapshot()[0].made, 1);
}

#[test]
fn each_kind_of_route_gets_its_answer() {
    let mut tube = two_ports(1, [1, 1]);
    tube.routes.add("203.0.113.0/26", fixed::BLACKHOLE);
    tube.routes.add("203.0.113.64/26", fixed::UNREACHABLE);
    tube.routes.add("203.0.113.128/26", fixed::PROHIBIT);
    tube.publish();
    for (destination, answer, verdict) in [
        ("203.0.113.1", None, Verdict::Blackhole),
        ("203.0.113.65", Some([3, 1]), Verdict::Unreachable),
        ("203.0.113.129", Some([3, 13]), Verdict::Prohibited),
        ("203.0.113.200", Some([3, 0]), Verdict::NoRoute),
    ] {
        let out = tube.pass(0, &to_router(0, &Ip4::udp("192.0.2.7", destination, 10).build()));
        assert_eq!(out.first().map(|(_, f)| [f[34], f[35]]), answer, "{destination}");
        assert_eq!(tube.count(verdict), 1);
    }
}

#[test]
fn a_packet_too_long_is_fragmented_or_refused_with_the_mtu() {
    let mut tube = two_ports(1, [1, 1]);
    let narrow = tube.routes.hop(1, 9, 600);
    tube.routes.add("198.51.100.0/24", narrow);
    tube.routes.add("2001:db8:cafe::/48", narrow);
    tube.publish();
    let long = Ip4::udp("192.0.2.7", "198.51.100.3", 1400);
    let out = tube.pass(0, &to_router(0, &long.build()));
    assert_eq!(out.iter().map(|(p, f)| (*p, f.len())).collect::<Vec<_>>(), [(1, 610), (1, 610), (1, 290)]);
    assert_eq!(tube.count(Verdict::Fragmented), 1);
    assert_eq!(tube.stats.snapshot()[1].made, 3);
    let out = tube.pass(0, &to_router(0, &long.dont_fragment().build()));
    assert_eq!((out[0].0, &out[0].1[34..36], &out[0].1[40..42]), (0, &[3, 4][..], &600u16.to_be_bytes()[..]));
    let out = tube.pass(0, &to_router(0, &udp6("2001:db8:beef::7", "2001:db8:cafe::3", 64, 1400)));
    assert_eq!((out[0].0, &out[0].1[54..56], &out[0].1[58..62]), (0, &[2, 0][..], &600u32.to_be_bytes()[..]));
    assert_eq!(tube.count(Verdict::TooBig), 2);
}

#[test]
fn packets_wait_for_their_neighbour_and_leave_in_order() {
    let mut tube = two_ports(1, [1, 1]);
    for i in 0..20 {
        assert_eq!(tube.pass(0, &to_router(0, &Ip4::udp("192.0.2.7", "10.0.1.9", i).build())), []);
    }
    let asked = ToKeeper::Resolve { port: 1, address: "10.0.1.9".parse().unwrap() };
    assert_eq!(tube.to_keeper.try_iter().collect::<Vec<_>>(), [asked]);
    let held = tube.stats.snapshot()[0].held;
    assert_eq!(tube.verdicts(), [("hold_full", 20 - held)]);
    let known = tube.routes.hop(1, 9, 1500);
    tube.routes.add("10.0.1.9/32", known);
    tube.publish();
    tube.settle();
    tube.settle();
    tube.check();
    let lengths: Vec<_> = tube.arrived(1).iter().map(Vec::len).collect();
    assert_eq!(lengths, (20 - held as usize..20).map(|i| 42 + i).collect::<Vec<_>>());
    assert_eq!(tube.stats.snapshot()[0].held, 0);
    assert_eq!(tube.verdicts(), [("forwarded", held), ("hold_full", 20 - held)]);
}

#[test]
fn a_neighbour_that_fails_answers_the_packets_held_for_it() {
    let mut tube = two_ports(1, [1, 1]);
    let gateway = "10.0.1.77".parse().unwrap();
    let resolve = tube.routes.action(Action::Resolve, 1, Some(gateway));
    tube.routes.add("203.0.113.0/24", resolve);
    tube.publish();
    tube.pass(0, &to_router(0, &Ip4::udp("192.0.2.7", "203.0.113.5", 1).build()));
    assert_eq!(tube.stats.snapshot()[0].held, 1);
    tube.links[0].send(ToWorker::Failed { port: 1, address: gateway });
    let out: Vec<_> = tube.pass(0, &to_router(0, &Ip4::udp("192.0.2.7", "198.51.100.3", 1).build()));
    assert_eq!(out.iter().map(|(p, f)| (*p, f[34], f[35])).collect::<Vec<_>>()[0], (0, 3, 1));
    assert_eq!(tube.verdicts(), [("forwarded", 1), ("neighbor_failed", 1)]);
}

#[test]
fn an_icmp_error_waits_for_its_receiver_too() {
    let mut tube = two_ports(1, [1, 1]);
    let sender = "10.0.0.9".parse().unwrap();
    for fails in [true, false] {
        assert_eq!(tube.pass(0, &to_router(0, &Ip4::udp("10.0.0.9", "198.51.100.3", 1).ttl(1).build())), []);
        let asked = ToKeeper::Resolve { port: 0, address: sender };
        assert_eq!(tube.to_keeper.try_iter().collect::<Vec<_>>(), if fails { vec![asked] } else { vec![] });
        assert_eq!(tube.stats.snapshot()[0].held, 0, "only received packets count as held");
        if fails {
            tube.links[0].send(ToWorker::Failed { port: 0, address: sender });
            tube.settle();
            assert_eq!(tube.arrived(0), [[0u8; 0]; 0], "no error about an error");
        }
    }
    let known = tube.routes.hop(0, 9, 1500);
    tube.routes.add("10.0.0.9/32", known);
    tube.publish();
    tube.settle();
    tube.settle();
    tube.check();
    let out = tube.arrived(0);
    assert_eq!(out.iter().map(|f| (f[34], f[35])).collect::<Vec<_>>(), [(11, 0)]);
    assert_eq!(tube.stats.snapshot()[0].made, 1);
    assert_eq!(tube.verdicts(), [("ttl_expired", 2)]);
}
