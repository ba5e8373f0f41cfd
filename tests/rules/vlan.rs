//! VLAN sub-ports: IEEE 802.1Q, 802.1ad.
//!
//! Between pipes only: no kernel at hand has VLAN interfaces

use sweepd::forward::verdict::Verdict;
use sweepd::tables::{Action, ReversePath};

use crate::common::{PortSpec, Tube, host_mac, port_mac};
use crate::packets::{Ip4, ethernet, ip6, udp6};
use crate::router::Answer;

/// The ports' numbers.
const TRUNK: usize = 0;
const PLAIN: usize = 1;
const V100: usize = 2;
const V200: usize = 3;
const S300: usize = 4;
const STACKED: usize = 5;
const OTHER: usize = 6;

const TAGS: [&[u16]; 7] =
    [&[], &[], &[0x8100, 100], &[0x8100, 200], &[0x88a8, 300], &[0x88a8, 300, 0x8100, 7], &[0x8100, 100]];

/// Behind host 9 of a port.
fn behind(port: usize) -> String {
    format!("172.16.{port}.9")
}

/// Two ports with rings: the first with sub-ports 100, 200, s300 and s300.7, the second with 100 too.
/// All have 10.0.k.1/24 and 2001:db8:k::1/64, and networks behind host 9.
fn with(change: impl Fn(usize, PortSpec) -> PortSpec, workers: usize) -> Tube {
    let spec = |k: usize| {
        let spec = PortSpec::new(&[&format!("10.0.{k}.1/24"), &format!("2001:db8:{k}::1/64")]);
        let spec = match k {
            V100 => spec.of(TRUNK, "100"),
            V200 => spec.of(TRUNK, "200"),
            S300 => spec.of(TRUNK, "s300"),
            STACKED => spec.of(TRUNK, "s300.7"),
            OTHER => spec.of(PLAIN, "100"),
            _ => spec,
        };
        change(k, spec)
    };
    let mut tube = Tube::new(&(0..TAGS.len()).map(spec).collect::<Vec<_>>(), workers);
    for port in 0..TAGS.len() {
        let hop = tube.routes.neighbor(port, 9, 1500, &format!("10.0.{port}.9"));
        tube.routes.add(&format!("172.16.{port}.0/24"), hop);
        tube.routes.add(&format!("10.0.{port}.9/32"), hop);
        tube.routes.add(&format!("2001:db8:a{port}::/48"), hop);
    }
    tube.publish();
    tube
}

fn router() -> Tube {
    with(|_, spec| spec, 1)
}

/// The frame with these tags behind its MAC addresses.
fn tagged(tags: &[u16], frame: &[u8]) -> Vec<u8> {
    let tags: Vec<u8> = tags.iter().flat_map(|word| word.to_be_bytes()).collect();
    [&frame[..12], &tags, &frame[12..]].concat()
}

/// Which port with rings a port's frames go by.
fn rings_of(port: usize) -> usize {
    if port == PLAIN || port == OTHER { PLAIN } else { TRUNK }
}

/// From host 9 of a port or sub-port to the router, with its tags.
fn to_router(port: usize, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    tagged(TAGS[port], &ethernet(port_mac(port), host_mac(port, 9), ethertype, packet))
}

/// From the router to host 9 of a port or sub-port, with its tags.
fn from_router(port: usize, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    tagged(TAGS[port], &ethernet(host_mac(port, 9), port_mac(port), ethertype, packet))
}

fn udp(from: usize, to: usize, len: usize) -> Ip4 {
    Ip4::udp(&behind(from), &behind(to), len)
}

/// Rule 101. From every port and sub-port to every other: the tags that it has there, and none that
/// it had here; by the stages and by the careful path.
#[test]
fn a_frame_comes_and_goes_with_the_tags_of_its_sub_ports() {
    let mut tube = router();
    for (from, to) in (0..TAGS.len()).flat_map(|from| (0..TAGS.len()).map(move |to| (from, to))) {
        for len in [0, 10, 1400] {
            let packet = udp(from, to, len);
            let out = tube.pass(rings_of(from), &to_router(from, &packet.build()));
            let expected = from_router(to, &packet.clone().ttl(63).build());
            assert_eq!(out, [(rings_of(to), expected)], "{from} to {to}");
            // Options make it odd.
            let packet = Ip4 { options: vec![1; 4], ..packet };
            let out = tube.pass(rings_of(from), &to_router(from, &packet.build()));
            assert_eq!(out, [(rings_of(to), from_router(to, &packet.ttl(63).build()))], "{from} to {to}");
        }
        let addresses = (format!("2001:db8:a{from}::9"), format!("2001:db8:a{to}::9"));
        let packet = |hops| udp6(&addresses.0, &addresses.1, hops, 30);
        let out = tube.pass(rings_of(from), &to_router(from, &packet(64)));
        assert_eq!(out, [(rings_of(to), from_router(to, &packet(63)))], "{from} to {to}");
    }
    assert_eq!(tube.verdicts(), [("forwarded", 7 * 49)]);
}

/// Rule 101. Each counts on its sub-port, without the tags.
#[test]
fn packets_count_on_their_sub_ports() {
    let mut tube = router();
    for (from, to) in [(V100, V200), (V100, PLAIN), (PLAIN, V200), (STACKED, OTHER)] {
        tube.pass(rings_of(from), &to_router(from, &udp(from, to, 10).build()));
    }
    let totals = tube.stats.snapshot();
    let counts: Vec<_> =
        totals.iter().map(|p| (p.rx_packets, p.rx_bytes, p.tx_packets, p.tx_bytes)).collect();
    let expected = [
        (0, 0, 0, 0),
        (1, 52, 1, 52),
        (2, 104, 0, 0),
        (0, 0, 2, 104),
        (0, 0, 0, 0),
        (1, 52, 0, 0),
        (0, 0, 1, 52),
    ];
    // Behind them are the counters of ports that may come yet.
    assert_eq!(counts[..expected.len()], expected);
    assert!(counts[expected.len()..].iter().all(|&c| c == (0, 0, 0, 0)), "{counts:?}");
}

/// Rule 101. A burst of many VLANs: all go on, those of one flow in order, and only who is spoofed
/// or expired dies.
#[test]
fn bursts_of_mixed_vlans_keep_the_order_of_each() {
    let mut tube = router();
    tube.change_ports(|port, table| {
        table.reverse_path = if port == V200 { ReversePath::Strict } else { ReversePath::Off };
    });
    let from = [TRUNK, V100, V200, S300, STACKED, V100, V200];
    let mut expected: Vec<Vec<u16>> = vec![Vec::new(); TAGS.len()];
    for id in 0..60u16 {
        let port = from[usize::from(id * id % 7)];
        let mut packet = udp(port, OTHER, 10);
        packet.id = id;
        packet.source = format!("172.16.{port}.{}", 1 + port).parse().unwrap();
        if port == V200 && id % 4 == 0 {
            packet.source = "172.16.1.9".parse().unwrap();
        } else {
            expected[port].push(id);
        }
        tube.inject(TRUNK, &to_router(port, &packet.build()));
    }
    tube.settle();
    tube.check();
    let mut got: Vec<Vec<u16>> = vec![Vec::new(); TAGS.len()];
    for frame in tube.arrived(PLAIN) {
        assert_eq!(frame[12..16], [0x81, 0, 0, 100]);
        got[usize::from(frame[18 + 14])].push(u16::from_be_bytes([frame[22], frame[23]]));
    }
    assert_eq!(got, expected);
    let sent = expected.iter().map(Vec::len).sum::<usize>() as u64;
    assert_eq!(tube.verdicts(), [("forwarded", sent), ("reverse_path", 60 - sent)]);
}

/// Rule 102. A tag with VID 0 is none: on a port with sub-ports and on one without.
#[test]
fn a_priority_tag_counts_as_none() {
    let mut tube = with(|_, spec| spec, 1);
    let packet = udp(TRUNK, PLAIN, 10);
    let frame = ethernet(port_mac(TRUNK), host_mac(TRUNK, 9), 0x0800, &packet.build());
    let expected = from_router(PLAIN, &packet.ttl(63).build());
    for control in [0, 0x2000, 0xf000] {
        let out = tube.pass(TRUNK, &tagged(&[0x8100, control], &frame));
        assert_eq!(out, [(PLAIN, expected.clone())]);
    }
    // In front of a sub-port's tag.
    let packet = udp(V100, PLAIN, 10);
    let frame = ethernet(port_mac(V100), host_mac(V100, 9), 0x0800, &packet.build());
    let out = tube.pass(TRUNK, &tagged(&[0x8100, 0xe000, 0x8100, 100], &frame));
    assert_eq!(out, [(PLAIN, from_router(PLAIN, &packet.ttl(63).build()))]);

    let mut tube = crate::router::router();
    let packet = crate::router::plain();
    let frame = crate::router::to_router(0, &packet.build());
    let out = tube.pass(0, &tagged(&[0x8100, 0xa000], &frame));
    assert_eq!(out, [(1, crate::router::from_router(1, &packet.ttl(63).build()))]);
    for len in 14..18 {
        crate::router::dies(&mut tube, 0, &tagged(&[0x8100, 0], &frame)[..len], Verdict::Runt);
    }
    crate::router::dies(&mut tube, 0, &tagged(&[0x8100, 0, 0x8100, 0], &frame), Verdict::UnknownVlan);
}

/// Rule 102. Priority and drop eligibility go from tag to tag, also while a packet waits for a
/// neighbour, in fragments, and from worker to worker.
#[test]
fn the_priority_goes_from_tag_to_tag() {
    for workers in [1, 2] {
        let rings = |k, spec: PortSpec| if k == PLAIN { spec.rings(workers as u32) } else { spec };
        let mut tube = with(rings, workers);
        for bits in [0u16, 0x1000, 0x6000, 0xf000] {
            let packet = udp(V100, V200, 10).build();
            let mut frame = to_router(V100, &packet);
            frame[14] |= (bits >> 8) as u8;
            let out = tube.pass(TRUNK, &frame);
            assert_eq!(out[0].1[14..16], (bits | 200).to_be_bytes());
            // Odd, with other numbers of tags, and on a ring that perhaps another worker owns.
            for (to, at) in [(STACKED, 14), (STACKED, 18), (OTHER, 14), (S300, 14)] {
                for options in [vec![], vec![1; 4]] {
                    let packet = Ip4 { options, ..udp(OTHER, to, 10) }.build();
                    let mut frame = to_router(OTHER, &packet);
                    frame[14] |= (bits >> 8) as u8;
                    for ring in 0..workers {
                        tube.inject_on(PLAIN, ring, &frame);
                        tube.settle();
                        tube.check();
                        let out = tube.arrivals();
                        assert_eq!(u16::from_be_bytes([out[0].1[at], out[0].1[at + 1]]) & 0xf000, bits);
                    }
                }
            }
        }
        // Both priorities of two tags.
        let mut frame = to_router(STACKED, &udp(STACKED, STACKED, 10).build());
        (frame[14], frame[18]) = (0x40 | 1, 0xa0);
        let out = tube.pass(TRUNK, &frame);
        assert_eq!(out[0].1[12..20], [0x88, 0xa8, 0x41, 44, 0x81, 0, 0xa0, 7]);
    }
    let mut tube = router();
    let wait = tube.routes.action(Action::Resolve, V200, Some("10.0.3.50".parse().unwrap()));
    tube.routes.add("203.0.113.0/24", wait);
    let narrow = tube.routes.hop(V200, 9, 600);
    tube.routes.add("203.0.113.128/25", narrow);
    tube.publish();
    let mut frame = to_router(V100, &Ip4::udp(&behind(V100), "203.0.113.9", 10).build());
    frame[14] |= 0x60;
    assert_eq!(tube.pass(TRUNK, &frame), []);
    let known = tube.routes.hop(V200, 9, 1500);
    tube.routes.add("203.0.113.0/24", known);
    tube.publish();
    tube.settle();
    tube.settle();
    let out = tube.arrivals();
    assert_eq!((out.len(), &out[0].1[12..16]), (1, &[0x81, 0, 0x60, 200][..]));
    let mut frame = to_router(V100, &Ip4::udp(&behind(V100), "203.0.113.200", 1000).build());
    frame[14] |= 0x60;
    let out = tube.pass(TRUNK, &frame);
    assert_eq!(out.len(), 2);
    assert!(out.iter().all(|(_, frame)| frame[12..16] == [0x81, 0, 0x60, 200] && frame.len() <= 618));
}

/// Rule 101. A VLAN that is no sub-port's is not misrouted: the host's, if there is one, with the
/// tag; else counted.
#[test]
fn an_unknown_vlan_is_the_hosts_or_nobodys() {
    let mut tube = router();
    for tags in [&[0x8100, 101][..], &[0x88a8, 100], &[0x8100, 101, 0x8100, 100]] {
        for port in [TRUNK, PLAIN] {
            let frame = ethernet(port_mac(port), host_mac(port, 9), 0x0800, &udp(TRUNK, PLAIN, 10).build());
            let before = tube.count(Verdict::UnknownVlan);
            assert_eq!(tube.pass(port, &tagged(tags, &frame)), [], "{tags:x?}");
            assert_eq!(tube.count(Verdict::UnknownVlan), before + 1, "{:?}", tube.verdicts());
        }
    }
    let mut tube = with(|_, spec| spec.host_rings(), 1);
    let frame = ethernet(port_mac(TRUNK), host_mac(TRUNK, 9), 0x0800, &udp(TRUNK, PLAIN, 10).build());
    let frame = tagged(&[0x8100, 0x2065], &frame);
    assert_eq!(tube.pass(TRUNK, &frame), []);
    assert_eq!(tube.arrived_at_host(TRUNK), [frame]);
    assert_eq!(tube.verdicts(), [("host", 1)]);
}

/// Rule 103. The service tag stands outside, and another one's frames are another sub-port's.
#[test]
fn a_service_tag_stands_outside() {
    let mut tube = router();
    let packet = udp(PLAIN, STACKED, 10);
    let out = tube.pass(PLAIN, &to_router(PLAIN, &packet.build()));
    assert_eq!(out[0].1[12..22], [0x88, 0xa8, 0x01, 44, 0x81, 0, 0, 7, 0x08, 0x00]);
    // The service VLAN by itself carries other customers' frames: nobody's here.
    let frame = ethernet(port_mac(S300), host_mac(S300, 9), 0x0800, &udp(S300, PLAIN, 10).build());
    for (tags, arrives) in [(&[0x88a8, 300][..], 1), (&[0x88a8, 300, 0x8100, 8], 0)] {
        assert_eq!(tube.pass(TRUNK, &tagged(tags, &frame)).len(), arrives, "{tags:x?}");
    }
    let frame = ethernet(port_mac(TRUNK), host_mac(TRUNK, 9), 0x0800, &udp(TRUNK, PLAIN, 10).build());
    assert_eq!(tube.pass(TRUNK, &tagged(&[0x8100, 300], &frame)), []);
    assert_eq!(tube.count(Verdict::UnknownVlan), 2);
}

/// Rules 36, 101. Without the kernel the built-in host answers on the sub-port, with its tags: ARP,
/// neighbour discovery, echo.
#[test]
fn the_built_in_host_answers_on_a_sub_port() {
    let mut tube = router();
    for port in [V100, STACKED] {
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
        arp.extend(host_mac(port, 9));
        arp.extend([10, 0, port as u8, 9, 0, 0, 0, 0, 0, 0, 10, 0, port as u8, 1]);
        let frame = tagged(TAGS[port], &ethernet([0xff; 6], host_mac(port, 9), 0x0806, &arp));
        let out = tube.pass(TRUNK, &frame);
        let answer = tagged(TAGS[port], &ethernet(host_mac(port, 9), port_mac(port), 0x0806, &[]));
        assert_eq!(out.len(), 1);
        assert_eq!((out[0].0, &out[0].1[..answer.len()]), (TRUNK, &answer[..]));
        assert_eq!(out[0].1[answer.len() + 8..answer.len() + 14], port_mac(port));
        let mut echo = Ip4::udp(&format!("10.0.{port}.9"), &format!("10.0.{port}.1"), 0);
        (echo.protocol, echo.payload) = (1, vec![8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
        let out = tube.pass(TRUNK, &to_router(port, &echo.build()));
        assert_eq!(out[0].1[..12 + 2 * TAGS[port].len()], answer[..12 + 2 * TAGS[port].len()]);
    }
    // Asked for the address of another sub-port it says nothing.
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend(host_mac(V100, 9));
    arp.extend([10, 0, V100 as u8, 9, 0, 0, 0, 0, 0, 0, 10, 0, V200 as u8, 1]);
    let frame = tagged(TAGS[V100], &ethernet([0xff; 6], host_mac(V100, 9), 0x0806, &arp));
    assert_eq!(tube.pass(TRUNK, &frame), []);
}

/// Rule 101. With an interface of the kernel's behind it, what is the host's goes up the parent's
/// ring with its tags, and what the host sends passes as it is.
#[test]
fn what_is_the_hosts_goes_up_with_its_tags() {
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
    let mut tube = router();
    let narrow = tube.routes.hop(V200, 9, 600);
    tube.routes.add("203.0.113.0/24", narrow);
    tube.publish();
    let expired = udp(V100, PLAIN, 10).ttl(1).build();
    let long = Ip4::udp(&behind(V100), "203.0.113.9", 1000).dont_fragment().build();
    for (packet, says, rest) in [(expired, (11, 0), 0), (long, (3, 4), 600)] {
        let out = tube.pass(TRUNK, &to_router(V100, &packet));
        assert_eq!((out.len(), out[0].0, &out[0].1[12..16]), (1, TRUNK, &[0x81, 0, 0, 100][..]));
        let said = Answer::of(&out[0].1[18..]);
        assert_eq!((said.says(), said.rest, said.source()), (says, rest, &[10, 0, V100 as u8, 1][..]));
    }
}

/// Rule 17. Two sub-ports of one port are two links: nobody is redirected from one to the other.
#[test]
fn from_vlan_to_vlan_there_is_no_redirect() {
    let mut tube = router();
    tube.change_ports(|_, table| table.redirects = true);
    let packet = Ip4::udp("10.0.2.9", &behind(V200), 10).build();
    assert_eq!(tube.pass(TRUNK, &to_router(V100, &packet)).len(), 1);
    let packet = Ip4::udp("10.0.2.9", &behind(V100), 10).build();
    let hop = tube.routes.neighbor(V100, 3, 1500, "10.0.2.3");
    tube.routes.add("172.16.2.0/24", hop);
    tube.publish();
    assert_eq!(tube.pass(TRUNK, &to_router(V100, &packet)).len(), 2, "but within one");
}

/// Rules 6, 101. Cut anywhere, a tagged frame is a runt or not ours, and nothing else happens.
#[test]
fn short_tagged_frames_are_counted() {
    let mut tube = router();
    let whole = to_router(STACKED, &udp(STACKED, PLAIN, 10).build());
    for len in 0..whole.len() {
        let out = tube.pass(TRUNK, &whole[..len]);
        assert_eq!(out, [], "cut to {len}");
    }
    // Without the inner tag it is the service VLAN's, whose MAC address is another.
    let ends = [Verdict::Runt, Verdict::UnknownVlan, Verdict::BadSlot, Verdict::NotForUs];
    let dead: u64 = ends.into_iter().map(|verdict| tube.count(verdict)).sum();
    assert_eq!(dead, whole.len() as u64, "{:?}", tube.verdicts());
}

/// Rule 101. A full transmit ring drops on the sub-port that the packets were for.
#[test]
fn a_full_ring_drops_on_the_sub_port() {
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
    let take = |tube: &mut Tube, rib: &Rib| {
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
