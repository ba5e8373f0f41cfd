//! VLAN sub-ports: IEEE 802.1Q, 802.1ad.

use std::time::{Duration, Instant};

use sweepd::forward::{messages::ToKeeper, verdict::Verdict};
use sweepd::tables::ReversePath;

use crate::common::{host_mac, port_mac};
use crate::differences::TAGS_OF_NO_VLAN;
use crate::packets::{Ip4, ethernet, ip6, udp6};
use crate::router::{Answer, Router, Switch, alone, but, dies, everywhere, plain};
use crate::trunk::{
    NARROW, OTHER, PLAIN, S300, STACKED, TAGS, TRUNK, V100, V200, arp, behind, from_router, on_trunks,
    rings_of, router, tagged, to_router, udp, with,
};

/// Sends one frame from a port or sub-port to the router.
fn pass(router: &mut dyn Router, port: usize, packet: &[u8]) -> Vec<(usize, Vec<u8>)> {
    router.send(rings_of(port), &[to_router(port, packet)])
}

/// Rule 101. From every port and sub-port to every other: the tags that it has there, and none that
/// it had here; by the stages and by the careful path.
#[test]
fn a_frame_comes_and_goes_with_the_tags_of_its_sub_ports() {
    on_trunks(|router| {
        let mut passed = 0;
        for (from, to) in (0..NARROW).flat_map(|from| (0..NARROW).map(move |to| (from, to))) {
            let (mut frames, mut expected) = (Vec::new(), Vec::new());
            for len in [0, 10, 1400] {
                // Options make it odd.
                for options in [vec![], vec![1; 4]] {
                    let packet = Ip4 { options, ..udp(from, to, len) };
                    frames.push(to_router(from, &packet.build()));
                    expected.push((rings_of(to), from_router(to, &packet.ttl(63).build())));
                }
            }
            let addresses = (format!("2001:db8:a{from}::9"), format!("2001:db8:a{to}::9"));
            let packet = |hops| udp6(&addresses.0, &addresses.1, hops, 30);
            frames.push(to_router(from, &packet(64)));
            expected.push((rings_of(to), from_router(to, &packet(63))));
            for (frame, expected) in frames.iter().zip(expected) {
                assert_eq!(
                    router.send(rings_of(from), std::slice::from_ref(frame)),
                    [expected],
                    "{from} to {to}"
                );
                passed += 1;
            }
        }
        router.ended(&[("forwarded", passed)]);
    });
}

/// Rule 101. Each counts on its sub-port, without the tags.
#[test]
fn packets_count_on_their_sub_ports() {
    on_trunks(|router| {
        let before = [V100, V200, STACKED, OTHER].map(|port| router.totals(port));
        for (from, to) in [(V100, V200), (V100, PLAIN), (PLAIN, V200), (STACKED, OTHER)] {
            pass(router, from, &udp(from, to, 10).build());
        }
        let after = [V100, V200, STACKED, OTHER].map(|port| router.totals(port));
        let counts = [0, 1, 2, 3].map(|k| [0, 1, 2, 3].map(|n| after[k][n] - before[k][n]));
        assert_eq!(counts, [[2, 104, 0, 0], [0, 0, 2, 104], [1, 52, 0, 0], [0, 0, 1, 52]]);
        if let Some(tube) = router.tube("other packets of the test's count on the ports themselves") {
            assert_eq!(
                [TRUNK, PLAIN, S300].map(|port| tube.totals(port)),
                [[0, 0, 0, 0], [1, 52, 1, 52], [0, 0, 0, 0]]
            );
            // Behind them are the counters of ports that may come yet.
            let others = &tube.stats.snapshot()[TAGS.len()..];
            assert!(others.iter().all(|port| port.rx_packets + port.tx_packets == 0));
        }
    });
}

/// Rule 101. A burst of many VLANs: all go on, those of one flow in order, and only who is spoofed
/// or expired dies.
#[test]
fn bursts_of_mixed_vlans_keep_the_order_of_each() {
    on_trunks(|router| {
        router.switch(Switch::Sources(ReversePath::Strict));
        let from = [TRUNK, V200, V100, S300, STACKED, V200, V100];
        let mut expected: Vec<Vec<u16>> = vec![Vec::new(); TAGS.len()];
        let frames = (0..60u16).map(|id| {
            let port = from[usize::from(id * id % 7)];
            let mut packet = udp(port, OTHER, 10);
            packet.id = id;
            packet.source = format!("172.16.{port}.{}", 1 + port).parse().unwrap();
            if port == V100 && id % 4 == 0 {
                packet.source = "172.16.1.9".parse().unwrap();
            } else {
                expected[port].push(id);
            }
            to_router(port, &packet.build())
        });
        let frames: Vec<_> = frames.collect();
        let mut got: Vec<Vec<u16>> = vec![Vec::new(); TAGS.len()];
        for (port, frame) in router.send(TRUNK, &frames) {
            assert_eq!((port, &frame[12..16]), (PLAIN, &[0x81, 0, 0, 100][..]));
            got[usize::from(frame[18 + 14])].push(u16::from_be_bytes([frame[22], frame[23]]));
        }
        assert_eq!(got, expected);
        let sent = expected.iter().map(Vec::len).sum::<usize>() as u64;
        router.ended(&[("forwarded", sent), ("reverse_path", 60 - sent)]);
    });
}

/// Rule 102. A tag with VID 0 is none, on a port without sub-ports.
#[test]
fn a_priority_tag_counts_as_none() {
    everywhere(|router| {
        let packet = plain();
        let frame = crate::router::to_router(0, &packet.build());
        let expected = crate::router::from_router(1, &packet.ttl(63).build());
        for control in [0, 0x2000, 0xa000, 0xf000] {
            assert_eq!(router.send(0, &[tagged(&[0x8100, control], &frame)]), [(1, expected.clone())]);
        }
        for len in 14..18 {
            dies(router, 0, &tagged(&[0x8100, 0], &frame)[..len], Verdict::Runt);
        }
        but(router, &TAGS_OF_NO_VLAN, |router| {
            dies(router, 0, &tagged(&[0x8100, 0, 0x8100, 0], &frame), Verdict::UnknownVlan);
        });
    });
}

/// Rule 102. Nor is it one on a port with sub-ports, alone or in front of a sub-port's tag.
#[test]
fn a_priority_tag_in_front_of_another_counts_as_none() {
    on_trunks(|router| {
        let packet = udp(TRUNK, PLAIN, 10);
        let frame = to_router(TRUNK, &packet.build());
        let expected = from_router(PLAIN, &packet.ttl(63).build());
        for control in [0, 0x2000, 0xf000] {
            let out = router.send(TRUNK, &[tagged(&[0x8100, control], &frame)]);
            assert_eq!(out, [(PLAIN, expected.clone())]);
        }
        let packet = udp(V100, PLAIN, 10);
        let frame = ethernet(port_mac(V100), host_mac(V100, 9), 0x0800, &packet.build());
        let out = router.send(TRUNK, &[tagged(&[0x8100, 0xe000, 0x8100, 100], &frame)]);
        assert_eq!(out, [(PLAIN, from_router(PLAIN, &packet.ttl(63).build()))]);
    });
}

/// The frame with this priority in its first tag.
fn of_priority(mut frame: Vec<u8>, bits: u16) -> Vec<u8> {
    frame[14] |= (bits >> 8) as u8;
    frame
}

/// Rule 102. Priority and drop eligibility go from tag to tag, by the stages and by the careful path,
/// also where there are other numbers of tags.
#[test]
fn the_priority_goes_from_tag_to_tag() {
    on_trunks(|router| {
        for bits in [0u16, 0x1000, 0x6000, 0xf000] {
            for (from, to, at) in [
                (V100, V200, 14),
                (OTHER, STACKED, 14),
                (OTHER, STACKED, 18),
                (OTHER, OTHER, 14),
                (OTHER, S300, 14),
            ] {
                for options in [vec![], vec![1; 4]] {
                    let packet = Ip4 { options, ..udp(from, to, 10) }.build();
                    let frame = of_priority(to_router(from, &packet), bits);
                    let out = router.send(rings_of(from), &[frame]);
                    assert_eq!(out.len(), 1);
                    assert_eq!(u16::from_be_bytes([out[0].1[at], out[0].1[at + 1]]) & 0xf000, bits);
                }
            }
        }
        // Both priorities of two tags.
        let mut frame = to_router(STACKED, &udp(STACKED, STACKED, 10).build());
        (frame[14], frame[18]) = (0x40 | 1, 0xa0);
        let out = router.send(TRUNK, &[frame]);
        assert_eq!(out[0].1[12..20], [0x88, 0xa8, 0x41, 44, 0x81, 0, 0xa0, 7]);
    });
}

/// Rule 102. While a packet waits for a neighbour, whom the built-in host asks for; and into fragments.
#[test]
fn the_priority_outlives_waiting_and_fragmentation() {
    on_trunks(|router| {
        let frame = to_router(V100, &Ip4::udp(&behind(V100), "10.0.3.50", 10).build());
        assert_eq!(router.send(TRUNK, &[of_priority(frame, 0x6000)]), []);
        let out = router.resolves(V200, 50, 1);
        assert_eq!((out.len(), &out[0].1[12..16]), (1, &[0x81, 0, 0x60, 200][..]));
        let frame = to_router(V100, &udp(V100, NARROW, 1000).build());
        let out = router.send(TRUNK, &[of_priority(frame, 0x6000)]);
        assert_eq!(out.len(), 2);
        let tag = [0x81, 0, 0x61, 0x90];
        assert!(out.iter().all(|(_, frame)| frame[12..16] == tag[..] && frame.len() <= 618), "{out:x?}");
        router.ended(&[("forwarded", 1), ("fragmented", 1)]);
    });
}

/// Rule 102. And from worker to worker.
#[test]
fn the_priority_goes_from_worker_to_worker() {
    alone("which worker a ring belongs to cannot be chosen from outside");
    let mut tube = with(|k, spec| if k == PLAIN { spec.rings(2) } else { spec }, 2);
    for (bits, to) in [(0x6000, STACKED), (0xf000, OTHER), (0x1000, S300)] {
        for options in [vec![], vec![1; 4]] {
            let packet = Ip4 { options, ..udp(OTHER, to, 10) }.build();
            for ring in 0..2 {
                tube.inject_on(PLAIN, ring, &of_priority(to_router(OTHER, &packet), bits));
                tube.settle();
                tube.check();
                let out = tube.arrivals();
                assert_eq!(u16::from_be_bytes([out[0].1[14], out[0].1[15]]) & 0xf000, bits);
            }
        }
    }
}

/// Rule 101. A VLAN that is no sub-port's is not misrouted: the host's, if there is one, with the
/// tag; else counted.
#[test]
fn an_unknown_vlan_is_the_hosts_or_nobodys() {
    on_trunks(|router| {
        for tags in [&[0x8100, 101][..], &[0x88a8, 101], &[0x8100, 101, 0x8100, 100]] {
            for port in [TRUNK, PLAIN] {
                let frame = to_router(port, &udp(TRUNK, PLAIN, 10).build());
                assert_eq!(router.send(port, &[tagged(tags, &frame)]), [], "{tags:x?}");
            }
        }
        router.ended(&[("unknown_vlan", 6)]);
        let Some(_) = router.tube("what reaches a kernel's own stack cannot be seen") else { return };
        let mut tube = with(|_, spec| spec.host_rings(), 1);
        let frame = tagged(&[0x8100, 0x2065], &to_router(TRUNK, &udp(TRUNK, PLAIN, 10).build()));
        assert_eq!(tube.pass(TRUNK, &frame), []);
        assert_eq!(tube.arrived_at_host(TRUNK), [frame]);
        assert_eq!(tube.verdicts(), [("host", 1)]);
    });
}

/// Rule 103. The service tag stands outside, and another one's frames are another sub-port's.
#[test]
fn a_service_tag_stands_outside() {
    on_trunks(|router| {
        let packet = udp(PLAIN, STACKED, 10);
        let out = router.send(PLAIN, &[to_router(PLAIN, &packet.build())]);
        assert_eq!(out[0].1[12..22], [0x88, 0xa8, 0x01, 44, 0x81, 0, 0, 7, 0x08, 0x00]);
        // The service VLAN by itself carries other customers' frames: nobody's here. And a customer's
        // VLAN of that number is another one.
        for (mac, tags, arrives) in [
            (S300, &[0x88a8, 300][..], 1),
            (S300, &[0x88a8, 300, 0x8100, 8], 0),
            (TRUNK, &[0x8100, 300], 0),
            (TRUNK, &[0x88a8, 100], 0),
        ] {
            let packet = udp(S300, PLAIN, 10).build();
            let frame = ethernet(port_mac(mac), host_mac(S300, 9), 0x0800, &packet);
            assert_eq!(router.send(TRUNK, &[tagged(tags, &frame)]).len(), arrives, "{tags:x?}");
        }
        router.ended(&[("forwarded", 2), ("unknown_vlan", 3)]);
    });
}

/// Rules 36, 101. Without the kernel the built-in host answers on the sub-port, with its tags: ARP,
/// echo.
#[test]
fn the_built_in_host_answers_on_a_sub_port() {
    on_trunks(|router| {
        for port in [V100, STACKED] {
            let out = router.send(TRUNK, &[arp(port, 1, 9, [10, 0, port as u8, 1])]);
            let answer = tagged(TAGS[port], &ethernet(host_mac(port, 9), port_mac(port), 0x0806, &[]));
            assert_eq!(out.len(), 1);
            assert_eq!((out[0].0, &out[0].1[..answer.len()]), (TRUNK, &answer[..]));
            assert_eq!(out[0].1[answer.len() + 8..answer.len() + 14], port_mac(port));
            let mut echo = Ip4::udp(&format!("10.0.{port}.9"), &format!("10.0.{port}.1"), 0);
            (echo.protocol, echo.payload) = (1, vec![8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
            let out = pass(router, port, &echo.build());
            assert_eq!(out[0].1[..12 + 2 * TAGS[port].len()], answer[..12 + 2 * TAGS[port].len()]);
        }
        // Asked for the address of another sub-port it says nothing.
        assert_eq!(router.send(TRUNK, &[arp(V100, 1, 9, [10, 0, V200 as u8, 1])]), []);
    });
}

/// Rule 36. A station that claims our address (RFC 5227) is neither answered nor learned, and told of.
#[test]
fn a_station_that_claims_our_address_is_told_of() {
    on_trunks(|router| {
        let mut claim = arp(V100, 1, 9, [10, 0, 2, 1]);
        // The sender's address, behind Ethernet header and tag.
        claim[18 + 14..18 + 18].copy_from_slice(&[10, 0, 2, 1]);
        assert_eq!(router.send(TRUNK, &[claim]), []);
        if let Some(tube) = router.tube("a daemon tells the log") {
            let mut told = tube.to_keeper.try_iter();
            assert!(matches!(told.next(), Some(ToKeeper::Conflict { port: 2, .. })), "{told:?}");
            assert!(told.next().is_none(), "nobody is learned");
            return;
        }
        let (start, claimed) = (Instant::now(), "02:00:00:01:02:09 uses 10.0.2.1, which is ours");
        while !router.log().contains(claimed) {
            assert!(start.elapsed() < Duration::from_secs(10), "{}", router.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

/// Rule 101. With an interface of the kernel's behind it, what is the host's goes up the parent's
/// ring with its tags, and what the host sends passes as it is.
#[test]
fn what_is_the_hosts_goes_up_with_its_tags() {
    alone("no kernel at hand has VLAN interfaces");
    for workers in [1, 2] {
        let mut tube =
            with(|k, spec| if k == PLAIN { spec.host_rings().rings(2) } else { spec.host_rings() }, workers);
        for (port, rings) in [(V100, TRUNK), (STACKED, TRUNK), (OTHER, PLAIN)] {
            let mut frame = to_router(port, &Ip4::udp(&behind(port), &format!("10.0.{port}.1"), 10).build());
            frame[14] |= 0x60;
            let all = tagged(TAGS[port], &ethernet([0xff; 6], host_mac(port, 9), 0x0806, &[0; 28]));
            for frame in [frame, all] {
                assert_eq!(tube.pass(rings, &frame), []);
                assert_eq!(tube.arrived_at_host(rings), [frame]);
            }
            let answer = tagged(TAGS[port], &ethernet(host_mac(port, 9), port_mac(port), 0x0800, &[7; 50]));
            tube.inject_from_host(rings, 0, &answer);
            tube.settle();
            tube.check();
            assert_eq!(tube.arrived(rings), [answer]);
        }
        assert_eq!(tube.verdicts(), [("host", 6), ("from_host", 3)]);
    }
}

/// Rules 4, 15, 21, 101. Errors go back with the tags, from the sub-port's address.
#[test]
fn errors_about_tagged_packets_go_back_tagged() {
    on_trunks(|router| {
        let expired = udp(V100, PLAIN, 10).ttl(1).build();
        let long = udp(V100, NARROW, 1000).dont_fragment().build();
        for (packet, says, rest) in [(expired, (11, 0), 0), (long, (3, 4), 600)] {
            let out = pass(router, V100, &packet);
            assert_eq!((out.len(), out[0].0, &out[0].1[12..16]), (1, TRUNK, &[0x81, 0, 0, 100][..]));
            let said = Answer::of(&out[0].1[18..]);
            assert_eq!((said.says(), said.rest, said.source()), (says, rest, &[10, 0, V100 as u8, 1][..]));
        }
    });
}

/// Rule 17. Two sub-ports of one port are two links: nobody is redirected from one to the other.
#[test]
fn from_vlan_to_vlan_there_is_no_redirect() {
    on_trunks(|router| {
        router.switch(Switch::Redirects(true));
        let packet = Ip4::udp("10.0.2.9", &behind(V200), 10).build();
        assert_eq!(pass(router, V100, &packet).len(), 1);
        let packet = Ip4::udp("10.0.2.9", "10.0.2.3", 10).build();
        assert_eq!(pass(router, V100, &packet).len(), 2, "but within one");
    });
}

/// Rules 6, 101. Cut anywhere, a tagged frame is a runt or not ours, and nothing else happens.
#[test]
fn short_tagged_frames_are_counted() {
    on_trunks(|router| {
        let whole = to_router(STACKED, &udp(STACKED, PLAIN, 10).build());
        let sent_by_none =
            if router.tube("an interface sends no frame that is shorter than its header").is_some() {
                0
            } else {
                14
            };
        for len in sent_by_none..whole.len() {
            assert_eq!(router.send(TRUNK, &[whole[..len].to_vec()]), [], "cut to {len}");
        }
        // Without the inner tag it is the service VLAN's, whose MAC address is another.
        let ends = [Verdict::Runt, Verdict::UnknownVlan, Verdict::BadSlot, Verdict::NotForUs];
        let dead: Option<u64> = ends.into_iter().map(|verdict| router.counted(verdict)).sum();
        assert!(dead.is_none_or(|dead| dead == whole.len() as u64), "{dead:?}");
    });
}

/// Rule 101. A full transmit ring drops on the sub-port that the packets were for.
#[test]
fn a_full_ring_drops_on_the_sub_port() {
    alone("interfaces have larger rings, which nothing keeps full");
    let mut tube = router();
    for from in [V100, PLAIN, V100, PLAIN] {
        for i in 0..60 {
            tube.inject(rings_of(from), &to_router(from, &udp(from, V200, i).build()));
        }
        tube.settle();
        tube.check();
    }
    assert_eq!(tube.verdicts(), [("forwarded", 126), ("tx_full", 114)]);
    let totals = tube.stats.snapshot();
    assert_eq!((totals[V200].tx_dropped, totals[TRUNK].tx_dropped), (114, 0));
    assert_eq!((totals[V200].tx_packets, totals[TRUNK].tx_packets), (126, 0));
}

/// Rules 34, 101. IPv6 neighbour discovery for a sub-port's group addresses stays on it.
#[test]
fn neighbours_of_a_sub_port_are_asked_for_with_its_tags() {
    alone("the worker is told to ask, by nobody else's doing");
    let mut tube = router();
    let target = "2001:db8:3::77".parse().unwrap();
    let command = sweepd::forward::messages::ToWorker::Solicit { port: V200 as u16, address: target };
    tube.links[0].send(command);
    tube.settle();
    let out = tube.arrivals();
    assert_eq!((out.len(), out[0].0, &out[0].1[12..18]), (1, TRUNK, &[0x81, 0, 0, 200, 0x86, 0xdd][..]));
    let multicast = ip6("fe80::9".parse().unwrap(), "ff02::1".parse().unwrap(), 1, 17, &[0; 8]);
    let frame = ethernet([0x33, 0x33, 0, 0, 0, 1], host_mac(V200, 9), 0x86dd, &multicast);
    assert_eq!(tube.pass(TRUNK, &tagged(TAGS[V200], &frame)), []);
}

/// A message of rtnetlink's about a VLAN interface, made by hand.
#[cfg(target_os = "linux")]
fn vlan_link(index: u32, parent: u32, vlan: u16) -> Vec<u8> {
    let attribute = |kind: u16, value: &[u8]| {
        let mut bytes = [((4 + value.len()) as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let up = (libc_flags::UP | libc_flags::LOWER_UP).to_ne_bytes();
    let mut message = [&[0; 4][..], &index.to_ne_bytes(), &up, &[0; 4]].concat();
    let data = [attribute(1, &vlan.to_ne_bytes()), attribute(5, &0x8100u16.to_be_bytes())].concat();
    let info = [attribute(1, b"vlan\0"), attribute(2, &data)].concat();
    for (kind, value) in
        [(3, &b"customers\0"[..]), (4, &1400u32.to_ne_bytes()), (5, &parent.to_ne_bytes()), (18, &info)]
    {
        message.extend(attribute(kind, value));
    }
    message
}

/// Flags of an interface.
#[cfg(target_os = "linux")]
mod libc_flags {
    pub const UP: u32 = 1;
    pub const LOWER_UP: u32 = 1 << 16;
}

/// Rule 104. By rtnetlink's messages a sub-port becomes the kernel's interface with its parent and
/// tag; what is for the host then goes up instead of being answered here.
#[cfg(target_os = "linux")]
#[test]
fn a_sub_port_is_the_kernels_vlan_interface_while_there_is_one() {
    alone("no kernel at hand has VLAN interfaces");
    use sweepd::control::kernel::{KernelEvent, Link, Report, parse};
    use sweepd::control::rib::{PortSpec as Spec, Rib};
    use sweepd::tables::SubPort;

    let sub = Some(SubPort { parent: 0, tags: "100".parse().unwrap() });
    let parent = Spec { interface: Some("eth0".into()), max_len: 1500, ..Spec::default() };
    let mut rib = Rib::new(vec![parent, Spec { sub, max_len: 1500, ..Spec::default() }], &[], &[]);
    let feed = |rib: &mut Rib, event| {
        rib.take(Report { listed: false, event });
        rib.settle();
    };
    let (mac, name) = (Some(port_mac(TRUNK)), "eth0".to_owned());
    let link = Link { index: 7, name, mac, mtu: 1500, up: true, carrier: true, vlan: None };
    feed(&mut rib, KernelEvent::LinkChanged(link));
    let ping = {
        let mut echo = Ip4::udp("10.0.2.9", "10.0.2.1", 0);
        (echo.protocol, echo.payload) = (1, vec![8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
        to_router(V100, &echo.build())
    };
    let mut tube = with(|k, spec| if k == TRUNK { spec.host_rings() } else { spec }, 1);
    let take = |tube: &mut crate::common::Tube, rib: &Rib| {
        let builtin = rib.port(1).unwrap().builtin_host;
        tube.change_ports(|port, table| table.builtin_host = if port == V100 { builtin } else { false });
    };
    take(&mut tube, &rib);
    assert_eq!(tube.pass(TRUNK, &ping).len(), 1);
    for (bytes, kind) in [(vlan_link(20, 7, 100), 16u16), (vlan_link(20, 7, 100), 17)] {
        let header = parse::Header { len: 16 + bytes.len(), kind, flags: 0, sequence: 0 };
        feed(&mut rib, parse::message(header, &bytes, None).unwrap().unwrap());
        take(&mut tube, &rib);
        let up = kind == 16;
        assert_eq!(rib.index_of(1), up.then_some(20));
        assert_eq!(tube.pass(TRUNK, &ping).is_empty(), up);
        assert_eq!(tube.arrived_at_host(TRUNK).len(), usize::from(up));
    }
}
