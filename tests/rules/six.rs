//! IPv6: what is forwarded, what is not, and what is answered. RFC 8200, RFC 4443, RFC 4291, RFC 4007.

use std::net::Ipv6Addr;

use sweepd::forward::{messages::ToWorker, verdict::Verdict};
use sweepd::tables::{Action, fixed};

use crate::common::{Tube, host_mac, port_mac};
use crate::packets::{ethernet, ip6, udp6};
use crate::router::{Answer, FAR6, NARROW6, NEAR6, answer, dies, from_router, pass, router, to_router};

fn packet(next: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    ip6(NEAR6.parse().unwrap(), FAR6.parse().unwrap(), hop_limit, next, payload)
}

/// Rule 33. With 2 to 255 hops left it leaves with one less and nothing else changed.
#[test]
fn a_packet_with_hops_left_leaves_with_one_less() {
    let mut tube = router();
    for hops in 2..=255 {
        let out = pass(&mut tube, &udp6(NEAR6, FAR6, hops, 9));
        assert_eq!(out, [(1, from_router(1, &udp6(NEAR6, FAR6, hops - 1, 9)))]);
    }
}

/// Rule 33. Whatever stands behind the header is forwarded: routing, fragments, options cut short,
/// unknown types, hop-by-hop options too, which RFC 8200 leaves to configuration.
#[test]
fn extension_headers_are_not_examined() {
    let mut tube = router();
    for next in 0..=255 {
        for payload in [&[][..], &[59, 200, 5, 2, 0, 0, 0, 0], &[59, 0, 0xc2, 4, 0xff, 0xff, 0, 0]] {
            let out = pass(&mut tube, &packet(next, 64, payload));
            assert_eq!(out, [(1, from_router(1, &packet(next, 63, payload)))], "{next}");
        }
    }
    assert_eq!(tube.verdicts(), [("forwarded", 768)]);
}

/// Rules 22, 32. It is answered with the MTU of the way out, as soon as it is one byte too long.
#[test]
fn a_packet_too_long_is_never_fragmented_but_answered_with_the_mtu() {
    let mut tube = router();
    assert_eq!(pass(&mut tube, &udp6(NEAR6, NARROW6, 64, 1232)).len(), 1);
    let long = udp6(NEAR6, NARROW6, 64, 1233);
    let said = answer(&mut tube, &long).unwrap();
    assert_eq!((said.says(), said.rest), ((2, 0), 1280));
    assert_eq!(said.quoted, long[..1232], "as it came");
    assert_eq!(tube.verdicts(), [("forwarded", 1), ("too_big", 1)]);
}

/// Rule 30. Code 0, with 1 hop left and with none.
#[test]
fn a_hop_limit_used_up_is_answered() {
    let mut tube = router();
    for hops in [0, 1] {
        let cause = udp6(NEAR6, FAR6, hops, 9);
        let said = answer(&mut tube, &cause).unwrap();
        assert_eq!((said.says(), said.rest), ((3, 0), 0));
        assert_eq!(said.quoted, cause);
        assert_eq!(said.source(), "2001:db8:0::1".parse::<Ipv6Addr>().unwrap().octets());
    }
}

/// Rule 28. All of a short packet, of a long one what makes 1280 bytes.
#[test]
fn an_error_quotes_as_much_as_fits_1280_bytes() {
    let mut tube = router();
    for len in [0, 100, 1183, 1184, 1185, 1400] {
        let cause = udp6(NEAR6, FAR6, 1, len);
        assert_eq!(answer(&mut tube, &cause).unwrap().quoted, cause[..cause.len().min(1232)], "{len}");
    }
}

/// Rule 29. One bucket for both families.
#[test]
fn errors_are_limited_over_ipv6_too() {
    let mut tube = router();
    tube.limit_errors(0, 3);
    let answered = (0..50).filter(|_| answer(&mut tube, &udp6(NEAR6, FAR6, 1, 9)).is_some()).count();
    assert_eq!((answered, tube.count(Verdict::TtlExpired)), (3, 50));
}

/// Rule 27. About an ICMPv6 error or redirect, a multicast, in a link multicast, or to a source that
/// is not a single node.
#[test]
fn there_is_no_error_where_rfc_4443_forbids_it() {
    let mut tube = router();
    for kind in [0, 1, 2, 3, 4, 100, 127, 137] {
        let cause = packet(58, 1, &[kind, 0, 0, 0, 0, 0, 0, 0]);
        dies(&mut tube, 0, &to_router(0, &cause), Verdict::TtlExpired);
        let behind = packet(60, 1, &[58, 0, 1, 4, 0, 0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0]);
        dies(&mut tube, 0, &to_router(0, &behind), Verdict::TtlExpired);
    }
    for destination in ["ff02::1", "ff0e::5"] {
        dies(&mut tube, 0, &to_router(0, &udp6(NEAR6, destination, 1, 9)), Verdict::Multicast);
    }
    for source in ["::", "::1", "ff02::1", "ff0e::1", "2001:db8:1::1"] {
        dies(&mut tube, 0, &to_router(0, &udp6(source, FAR6, 1, 9)), Verdict::Martian);
    }
    let frame = ethernet([0x33, 0x33, 0, 0, 0, 1], host_mac(0, 9), 0x86dd, &udp6(NEAR6, FAR6, 1, 9));
    dies(&mut tube, 0, &frame, Verdict::LinkBroadcast);
    for query in [128, 129, 200] {
        let said = answer(&mut tube, &packet(58, 1, &[query, 0, 0, 0, 0, 0, 0, 0]));
        assert!(said.is_some(), "but about type {query}");
    }
}

/// Rules 31, 38. 0 no route and unreachable, 1 prohibited, 3 a neighbour that does not answer.
#[test]
fn destination_unreachable_says_why() {
    let mut tube = router();
    let gateway = "2001:db8:1::77".parse().unwrap();
    let resolve = tube.routes.action(Action::Resolve, 1, Some(gateway));
    for (prefix, id) in [
        ("3fff:1::/32", fixed::UNREACHABLE),
        ("3fff:2::/32", fixed::PROHIBIT),
        ("3fff:3::/32", fixed::BLACKHOLE),
    ] {
        tube.routes.add(prefix, id);
    }
    tube.routes.add("3fff:4::/32", resolve);
    tube.publish();
    for (destination, says) in [
        ("3fff::1", Some((1, 0))),
        ("3fff:1::1", Some((1, 0))),
        ("3fff:2::1", Some((1, 1))),
        ("3fff:3::1", None),
    ] {
        let said = answer(&mut tube, &udp6(NEAR6, destination, 64, 9));
        assert_eq!(said.map(|a| a.says()), says, "{destination}");
    }
    assert_eq!(pass(&mut tube, &udp6(NEAR6, "3fff:4::1", 64, 9)), []);
    tube.links[0].send(ToWorker::Failed { port: 1, address: gateway });
    tube.settle();
    let out = tube.arrived(0);
    assert_eq!(Answer::of(&out[0][14..]).says(), (1, 3));
    assert_eq!(tube.count(Verdict::NeighborFailed), 1);
}

/// Rules 31, 34. Code 2, beyond scope, from our link-local address, straight back to who sent it.
#[test]
fn a_link_local_source_is_told_that_its_scope_ends_here() {
    let mut tube = router();
    for hops in [64, 1] {
        let cause = udp6("fe80::9", FAR6, hops, 9);
        let said = answer(&mut tube, &cause).unwrap();
        assert_eq!((said.says(), said.quoted.clone()), ((1, 2), cause));
        assert_eq!(said.source(), "fe80::0:1".parse::<Ipv6Addr>().unwrap().octets());
    }
    assert_eq!(tube.verdicts(), [("link_local", 2)]);
    let error = ip6("fe80::9".parse().unwrap(), FAR6.parse().unwrap(), 64, 58, &[1, 0, 0, 0, 0, 0, 0, 0]);
    dies(&mut tube, 0, &to_router(0, &error), Verdict::LinkLocal);
    dies(&mut tube, 0, &to_router(0, &udp6("fe80::0:1", FAR6, 64, 9)), Verdict::LinkLocal);
}

/// Rule 34. Not by the link it came from either, nor with `::` as source.
#[test]
fn link_local_and_unspecified_addresses_are_never_forwarded() {
    let mut tube = router();
    for destination in ["fe80::77", "fe80::1:9", "febf::1"] {
        for source in [NEAR6, "fe80::9"] {
            let ended = tube.count(Verdict::LinkLocal) + tube.count(Verdict::NotForUs);
            let out = pass(&mut tube, &udp6(source, destination, 64, 9));
            assert_eq!(out, [], "{source} to {destination}");
            assert_eq!(tube.count(Verdict::LinkLocal) + tube.count(Verdict::NotForUs), ended + 1);
        }
    }
    dies(&mut tube, 0, &to_router(0, &udp6("::", FAR6, 64, 9)), Verdict::Martian);
    dies(&mut tube, 0, &to_router(0, &udp6(NEAR6, "::", 64, 9)), Verdict::Martian);
}

/// Rule 35. The loopback address neither way; multicast of no scope; multicast scopes 0 and 1 do not
/// even reach the host.
#[test]
fn loopback_and_multicast_stay_where_they_are() {
    let mut tube = router();
    dies(&mut tube, 0, &to_router(0, &udp6("::1", FAR6, 64, 9)), Verdict::Martian);
    dies(&mut tube, 0, &to_router(0, &udp6(NEAR6, "::1", 64, 9)), Verdict::Martian);
    for scope in 0..16 {
        let group = format!("ff0{scope:x}::1:2");
        dies(&mut tube, 0, &to_router(0, &udp6(NEAR6, &group, 64, 9)), Verdict::Multicast);
    }
    let mut tube = with_host_rings();
    for scope in 0..16u8 {
        let group = format!("ff0{scope:x}::1:2");
        let mac = [0x33, 0x33, 0, 1, 0, 2];
        let frame = ethernet(mac, host_mac(0, 9), 0x86dd, &udp6("fe80::9", &group, 64, 9));
        assert_eq!(tube.pass(0, &frame), [], "{group}");
        assert_eq!(tube.arrived_at_host(0).len(), usize::from(scope > 1), "{group}");
    }
}

fn with_host_rings() -> Tube {
    Tube::new(&[crate::common::PortSpec::new(&["2001:db8::1/64"]).host_rings()], 1)
}

/// Rule 6. Of IPv6: version, and a payload that is all there.
#[test]
fn an_ipv6_header_that_fails_a_check_is_discarded_in_silence() {
    let mut tube = router();
    let good = udp6(NEAR6, FAR6, 64, 9);
    for (cut, verdict) in [(39, Verdict::Runt), (good.len() - 1, Verdict::Runt)] {
        let frame = ethernet(port_mac(0), host_mac(0, 9), 0x86dd, &good[..cut]);
        dies(&mut tube, 0, &frame, verdict);
    }
    for version in [0, 4, 5, 7, 15] {
        let mut bad = good.clone();
        bad[0] = version << 4 | (bad[0] & 15);
        dies(&mut tube, 0, &ethernet(port_mac(0), host_mac(0, 9), 0x86dd, &bad), Verdict::BadHeader);
    }
}
