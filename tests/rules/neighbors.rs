//! Neighbours: whom the built-in host learns, whom it answers, and the packets that wait for them.
//! RFC 826, RFC 5227, RFC 4861, RFC 3021, RFC 6164.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sweepd::forward::messages::ToKeeper;

use crate::common::{Tube, host_mac, port_mac};
use crate::packets::{Ip4, ethernet, ip6, pseudo6, udp6};
use crate::router::{Answer, NEAR, NEAR6, everywhere, pass, to_router};

/// An ARP packet from host 9 of port 0.
fn arp(operation: u16, sender: &str, target: &str) -> Vec<u8> {
    let address = |text: &str| text.parse::<Ipv4Addr>().unwrap().octets();
    let mut packet = vec![0, 1, 8, 0, 6, 4];
    packet.extend(operation.to_be_bytes());
    packet.extend(host_mac(0, 9));
    packet.extend(address(sender));
    packet.extend([0; 6]);
    packet.extend(address(target));
    ethernet(if operation == 1 { [0xff; 6] } else { port_mac(0) }, host_mac(0, 9), 0x0806, &packet)
}

/// A neighbour solicitation from host 9 of port 0, with its link-layer address.
fn solicitation(target: &str, hop_limit: u8, code: u8) -> Vec<u8> {
    let (source, target): (Ipv6Addr, Ipv6Addr) = ("2001:db8::9".parse().unwrap(), target.parse().unwrap());
    let last = target.octets();
    let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, last[13], last[14], last[15]]);
    let mut message = vec![135, code, 0, 0, 0, 0, 0, 0];
    message.extend(last);
    message.extend([1, 1]);
    message.extend(host_mac(0, 9));
    let sum = pseudo6(source, group, 58, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mac = [0x33, 0x33, 0xff, last[13], last[14], last[15]];
    ethernet(mac, host_mac(0, 9), 0x86dd, &ip6(source, group, hop_limit, 58, &message))
}

/// The keeper was told of these: address, and whether that makes an entry.
fn learned(tube: Option<&mut Tube>, expected: &[(IpAddr, bool)]) {
    let Some(tube) = tube else { return };
    let told = tube.to_keeper.try_iter();
    let told = told.filter_map(|word| match word {
        ToKeeper::Learned { port: 0, address, mac, create, .. } if mac == host_mac(0, 9) => {
            Some((address, create))
        }
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

/// Rule 36. Who asks for us is learned; who asks for another is only brought up to date; who is not
/// of the link is neither.
#[test]
fn neighbors_are_learned_from_what_concerns_them_and_us() {
    everywhere(|router| {
        let nine: IpAddr = "10.0.0.9".parse().unwrap();
        assert_eq!(router.send(0, &[arp(1, "10.0.0.9", "10.0.0.1")]).len(), 1, "answered");
        learned(router.tube("here the kernel learns"), &[(nine, true)]);
        assert_eq!(router.send(0, &[arp(1, "10.0.0.9", "10.0.0.5")]), []);
        learned(router.tube("here the kernel learns"), &[(nine, false)]);
        assert_eq!(router.send(0, &[arp(1, "10.0.7.9", "10.0.0.5")]), []);
        learned(router.tube("here the kernel learns"), &[]);
        let ours_elsewhere = [arp(1, "10.0.0.9", "10.0.1.1")];
        assert_eq!(router.send(0, &ours_elsewhere), [], "no proxying, not for our other ports");
    });
}

/// Rule 37. Hop limit 255, code 0 and the checksum, or nothing is answered and nobody learned.
#[test]
fn a_solicitation_that_may_come_from_afar_is_ignored() {
    everywhere(|router| {
        let out = router.send(0, &[solicitation("2001:db8::1", 255, 0)]);
        assert_eq!(out.iter().map(|(p, f)| (*p, f[54])).collect::<Vec<_>>(), [(0, 136)]);
        learned(router.tube("here the kernel learns"), &[("2001:db8::9".parse().unwrap(), true)]);
        let mut wrong_sum = solicitation("2001:db8::1", 255, 0);
        wrong_sum[56] ^= 1;
        for frame in [solicitation("2001:db8::1", 254, 0), solicitation("2001:db8::1", 255, 1), wrong_sum] {
            assert_eq!(router.send(0, &[frame]), []);
            learned(router.tube("here the kernel learns"), &[]);
        }
    });
}

/// Rule 38. The last few packets for each neighbour wait, in both families, and leave in order.
#[test]
fn packets_wait_for_an_unresolved_neighbor() {
    everywhere(|router| {
        for i in 0..3 {
            assert_eq!(pass(router, &Ip4::udp(NEAR, "10.0.1.50", i).build()), []);
            assert_eq!(pass(router, &udp6(NEAR6, "2001:db8:1::50", 64, i)), []);
        }
        if let Some(tube) = router.tube("the kernel asks, as often as it likes") {
            assert_eq!((tube.stats.snapshot()[0].held, tube.verdicts().len()), (6, 0));
            assert_eq!(tube.to_keeper.try_iter().count(), 2, "each is asked for once");
        }
        let out: Vec<_> = router.resolves(1, 50, 6).into_iter().map(|(_, frame)| frame).collect();
        let of = |ethertype: u8| out.iter().filter(|f| f[12] == ethertype).map(Vec::len).collect::<Vec<_>>();
        assert_eq!((of(0x08), of(0x86)), (vec![42, 43, 44], vec![62, 63, 64]));
        router.ended(&[("forwarded", 6)]);
    });
}

/// Rule 39. Both addresses of a /31 are hosts: none is a broadcast, and errors reach them.
#[test]
fn a_31_has_no_broadcast_address() {
    everywhere(|router| {
        for (ours, theirs) in [("10.9.0.0/31", "10.9.0.1"), ("10.9.0.3/31", "10.9.0.2")] {
            router.address(0, ours);
            router.neighbor(0, theirs, 9);
            router.publish();
            let out = router.send(1, &[to_router(1, &Ip4::udp("10.0.1.9", theirs, 9).build())]);
            assert_eq!((out.len(), out[0].0), (1, 0), "to {theirs}");
            let out = pass(router, &Ip4::udp(theirs, "8.8.8.8", 9).build());
            assert_eq!(Answer::of(&out[0].1[14..]).says(), (3, 0), "from {theirs}");
        }
        router.ended(&[("forwarded", 2), ("no_route", 2)]);
    });
}

/// Rule 40. Both addresses of a /127 are hosts: its first is no anycast address of all routers.
#[test]
fn a_127_is_a_link_of_two_hosts() {
    everywhere(|router| {
        for (ours, theirs) in [("2001:db8:9::/127", "2001:db8:9::1"), ("2001:db8:9::3/127", "2001:db8:9::2")]
        {
            router.address(0, ours);
            router.neighbor(0, theirs, 9);
            router.publish();
            let out = router.send(1, &[to_router(1, &udp6("2001:db8:1::9", theirs, 64, 9))]);
            assert_eq!((out.len(), out[0].0), (1, 0), "to {theirs}");
            let out = pass(router, &udp6(theirs, "3fff::1", 64, 9));
            assert_eq!(Answer::of(&out[0].1[14..]).says(), (1, 0), "from {theirs}");
        }
    });
}
