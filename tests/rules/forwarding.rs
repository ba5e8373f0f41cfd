//! What is forwarded over IPv4, and what is not: RFC 1812 section 5.

use sweepd::forward::verdict::Verdict;

use crate::common::{host_mac, port_mac};
use crate::differences::{BROADCAST_SOURCE, CLASS_E, LINK_LOCAL_4, NETWORK_ZERO};
use crate::packets::{Ip4, checksum, ethernet, udp6};
use crate::router::{
    FAR, FAR6, NEAR, NEAR6, Router, To, answer, but, dies, everywhere, from_router, pass, plain, to_router,
};

/// Rules 1, 3, 23. With 2 to 255 hops left it leaves with one less and nothing else changed.
#[test]
fn a_packet_with_time_to_live_leaves_with_one_less() {
    everywhere(|router| {
        let frames: Vec<_> = (2..=255).map(|ttl| to_router(0, &plain().ttl(ttl).build())).collect();
        let one_less = (1..=254).map(|ttl| (1, from_router(1, &plain().ttl(ttl).build())));
        assert_eq!(router.send(0, &frames), one_less.collect::<Vec<_>>());
        for ttl in [0, 1] {
            assert_eq!(answer(router, &plain().ttl(ttl).build()).map(|a| a.says()), Some((11, 0)), "{ttl}");
        }
        router.ended(&[("forwarded", 254), ("ttl_expired", 2)]);
    });
}

/// Rules 23, 24. The checksum of the forwarded header is what full recomputation gives, for every
/// checksum that a header can have.
#[test]
fn the_forwarded_checksum_equals_full_recomputation_for_every_checksum() {
    everywhere(|router| {
        let mut packet = Ip4::udp(NEAR, FAR, 0);
        for first in (0..=u16::MAX).step_by(1024) {
            let frames = (first..=first + 1023).map(|id| {
                packet.id = id;
                to_router(0, &packet.build())
            });
            let out = router.send(0, &frames.collect::<Vec<_>>());
            assert_eq!(out.len(), 1024);
            for (_, frame) in out {
                // A header whose sum comes to 0 either way: 0 is what recomputation gives.
                let mut header = frame[14..34].to_vec();
                let sent = u16::from_be_bytes([header[10], header[11]]);
                header[10..12].fill(0);
                assert_eq!(sent, checksum(&header));
            }
        }
        router.ended(&[("forwarded", 65536)]);
    });
}

/// Rule 2. Time Exceeded code 0; a multicast packet gets none.
#[test]
fn a_packet_whose_time_is_up_is_answered_unless_it_is_multicast() {
    everywhere(|router| {
        let packet = plain().ttl(1).build();
        let said = answer(router, &packet).unwrap();
        assert_eq!((said.says(), said.quoted), ((11, 0), packet));
        dies(router, 0, &to_router(0, &Ip4::udp(NEAR, "224.1.2.3", 9).ttl(1).build()), Verdict::Multicast);
    });
}

/// Rule 3. What is for the router itself needs no time to live, at whichever port it comes in.
#[test]
fn a_packet_for_the_router_is_taken_with_its_last_hop() {
    everywhere(|router| {
        for address in ["10.0.0.1", "10.0.1.1"] {
            let mut echo = Ip4::udp(NEAR, address, 0).ttl(1);
            (echo.protocol, echo.payload) = (1, vec![8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
            let out = pass(router, &echo.build());
            assert_eq!(out.iter().map(|(p, f)| (*p, f[34])).collect::<Vec<_>>(), [(0, 0)], "{address}");
        }
        router.ended(&[("answered", 2)]);
    });
}

/// Rule 4. Nothing has to be switched on for it: these are the limits that tables begin with.
#[test]
fn time_exceeded_is_sent_by_default() {
    everywhere(|router| {
        let limit = sweepd::tables::IcmpLimit::default();
        assert!(limit.rate > 0 && limit.burst > 0);
        assert!(answer(router, &plain().ttl(1).build()).is_some());
    });
}

/// Rule 5. Each fragment leaves at once and as it came, in whatever order, without the others.
#[test]
fn fragments_on_their_way_are_not_reassembled() {
    everywhere(|router| {
        for (flags_offset, len) in [(0x2010, 64), (0x0020, 30), (0x2000, 128)] {
            let mut packet = plain();
            packet.flags_offset = flags_offset;
            packet.payload = vec![7; len];
            let expected = packet.clone().ttl(63).build();
            assert_eq!(pass(router, &packet.build()), [(1, from_router(1, &expected))]);
        }
        router.ended(&[("forwarded", 3)]);
    });
}

/// Rule 6. Each header check fails in silence and is counted, as an input error of the port.
#[test]
fn a_header_that_fails_a_check_is_discarded_in_silence_and_counted() {
    everywhere(|router| {
        let good = plain().build();
        let fixed = |mut bad: Vec<u8>| {
            bad[10..12].fill(0);
            let len = (usize::from(bad[0] & 15) * 4).clamp(20, bad.len());
            let sum = checksum(&bad[..len]);
            bad[10..12].copy_from_slice(&sum.to_be_bytes());
            bad
        };
        let with = |at: usize, value: u8| {
            let mut bad = good.clone();
            bad[at] = value;
            bad
        };
        let cases = [
            (good[..19].to_vec(), Verdict::Runt),
            (with(10, good[10] ^ 0x40), Verdict::BadChecksum),
            (with(16, good[16] ^ 1), Verdict::BadChecksum),
            (fixed(with(0, 0x55)), Verdict::BadHeader),
            (fixed(with(0, 0x05)), Verdict::BadHeader),
            (fixed(with(0, 0x44)), Verdict::BadHeader),
            (fixed(with(3, 19)), Verdict::BadHeader),
            (fixed([&with(0, 0x4f)[..], &[0; 2]].concat()), Verdict::BadHeader),
            (fixed(with(2, 1)), Verdict::Runt),
        ];
        let mut errors = 0;
        for (packet, verdict) in cases {
            let frame = ethernet(port_mac(0), host_mac(0, 9), 0x0800, &packet);
            dies(router, 0, &frame, verdict);
            errors += 1;
        }
        if let Some(tube) = router.tube("an interface sends no frame that is shorter than its header") {
            for cut in 0..14 {
                dies(tube, 0, &to_router(0, &good)[..cut.max(1)], Verdict::Runt);
                errors += 1;
            }
            assert_eq!(tube.stats.snapshot()[0].rx_errors, errors);
        }
    });
}

/// Rule 7. What is behind the total length stays behind; a packet that is not all there is none.
#[test]
fn link_padding_is_stripped_and_a_packet_cut_short_discarded() {
    everywhere(|router| {
        let (packet, packet6) = (Ip4::udp(NEAR, FAR, 2), udp6(NEAR6, FAR6, 64, 2));
        for pad in [1, 7, 300] {
            let padded = [packet.build(), vec![0xaa; pad]].concat();
            assert_eq!(pass(router, &padded), [(1, from_router(1, &packet.clone().ttl(63).build()))]);
            let padded = [packet6.clone(), vec![0xaa; pad]].concat();
            assert_eq!(pass(router, &padded), [(1, from_router(1, &udp6(NEAR6, FAR6, 63, 2)))]);
        }
        for whole in [packet.build(), packet6] {
            dies(router, 0, &to_router(0, &whole[..whole.len() - 1]), Verdict::Runt);
        }
    });
}

/// Rule 8. By source and by destination, and no answer to either.
#[test]
fn martians_are_not_forwarded() {
    everywhere(|router| {
        for source in [
            "0.0.0.0",
            "127.0.0.1",
            "127.9.9.9",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "10.0.0.1",
            "10.0.1.1",
        ] {
            martian(router, source, FAR);
        }
        for destination in ["0.0.0.0", "127.0.0.1"] {
            martian(router, NEAR, destination);
        }
        but(router, &NETWORK_ZERO, |router| martian(router, "0.1.2.3", FAR));
        // From another host each: Linux says "no route" once a second to each, after the first five.
        but(router, &NETWORK_ZERO, |router| martian(router, "192.0.2.21", "0.1.2.3"));
        but(router, &CLASS_E, |router| martian(router, "240.0.0.1", FAR));
        but(router, &CLASS_E, |router| martian(router, "192.0.2.22", "240.0.0.1"));
        but(router, &CLASS_E, |router| martian(router, "192.0.2.23", "255.255.255.254"));
        for broadcast in ["10.0.0.255", "10.0.1.255"] {
            but(router, &BROADCAST_SOURCE, |router| martian(router, broadcast, FAR));
        }
        dies(router, 0, &to_router(0, &Ip4::udp(NEAR, "239.1.2.3", 10).build()), Verdict::Multicast);
        let link_local = to_router(0, &Ip4::udp("169.254.1.1", FAR, 10).build());
        but(router, &LINK_LOCAL_4, |router| dies(router, 0, &link_local, Verdict::LinkLocal));
    });
}

fn martian(router: &mut dyn Router, source: &str, destination: &str) {
    for ttl in [64, 1] {
        let frame = to_router(0, &Ip4::udp(source, destination, 10).ttl(ttl).build());
        dies(router, 0, &frame, Verdict::Martian);
    }
}

/// Rule 9. Neither IPv4 nor IPv6, whether the group is everybody or multicast.
#[test]
fn unicast_in_a_link_broadcast_or_multicast_is_not_forwarded() {
    everywhere(|router| {
        for group in [[0xff; 6], [1, 0, 0x5e, 0, 0, 9], [0x33, 0x33, 0, 0, 0, 1]] {
            for (ethertype, packet) in [
                (0x0800, plain().build()),
                (0x0800, plain().ttl(1).build()),
                (0x0800, Ip4::udp(NEAR, "10.0.0.1", 9).build()),
                (0x86dd, udp6(NEAR6, FAR6, 64, 9)),
                (0x86dd, udp6(NEAR6, FAR6, 1, 9)),
            ] {
                let frame = ethernet(group, host_mac(0, 9), ethertype, &packet);
                dies(router, 0, &frame, Verdict::LinkBroadcast);
            }
        }
    });
}

/// Rule 10. Neither the limited broadcast nor that of any of our links, from whichever port.
#[test]
fn broadcasts_are_never_forwarded() {
    everywhere(|router| {
        for destination in ["255.255.255.255", "10.0.0.255", "10.0.1.255"] {
            for ttl in [64, 1] {
                let packet = Ip4::udp(NEAR, destination, 10).ttl(ttl).build();
                for to in [port_mac(0), [0xff; 6]] {
                    dies(router, 0, &ethernet(to, host_mac(0, 9), 0x0800, &packet), Verdict::Broadcast);
                }
            }
        }
    });
}

/// Rule 11. The longest prefix wins, then the default route; without any, 3/0.
#[test]
fn the_longest_match_wins_then_the_default_and_else_the_network_is_unreachable() {
    everywhere(|router| {
        let stranger = Ip4::udp(NEAR, "8.8.8.8", 10);
        assert_eq!(answer(router, &stranger.build()).map(|a| a.says()), Some((3, 0)));
        for (prefix, host) in [("0.0.0.0/0", 2), ("8.0.0.0/8", 3), ("8.8.8.0/24", 4), ("8.8.8.8/32", 5)] {
            router.route(prefix, &To::Host(1, host));
        }
        router.publish();
        for (destination, host) in [("9.9.9.9", 2), ("8.9.9.9", 3), ("8.8.8.9", 4), ("8.8.8.8", 5)] {
            let out = pass(router, &Ip4::udp(NEAR, destination, 10).build());
            assert_eq!((out[0].0, &out[0].1[..6]), (1, &host_mac(1, host)[..]), "{destination}");
        }
    });
}
