//! IPv6: what is forwarded, what is not, and what is answered. RFC 8200, RFC 4443, RFC 4291, RFC 4007.

use std::net::Ipv6Addr;
use std::time::Instant;

use sweepd::forward::verdict::Verdict;

use crate::common::{Tube, host_mac, port_mac};
use crate::differences::{
    ABOUT_A_REDIRECT, HOP_BY_HOP, LINK_LOCAL_DESTINATION, OTHER_LINK_LOCAL, OTHER_LINK_LOCAL_XDP,
    TIME_BEFORE_SCOPE, TO_NOWHERE,
};
use crate::packets::{ethernet, ip6, udp6};
use crate::router::{
    Answer, FAR6, NARROW6, NEAR6, Router, To, alone, answer, but, dies, everywhere, from_router, least, pass,
    to_router,
};

fn packet(next: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    ip6(NEAR6.parse().unwrap(), FAR6.parse().unwrap(), hop_limit, next, payload)
}

/// Rule 33. With 2 to 255 hops left it leaves with one less and nothing else changed.
#[test]
fn a_packet_with_hops_left_leaves_with_one_less() {
    everywhere(|router| {
        let frames: Vec<_> = (2..=255).map(|hops| to_router(0, &udp6(NEAR6, FAR6, hops, 9))).collect();
        let one_less = (1..=254).map(|hops| (1, from_router(1, &udp6(NEAR6, FAR6, hops, 9))));
        assert_eq!(router.send(0, &frames), one_less.collect::<Vec<_>>());
    });
}

/// Rule 33. Whatever stands behind the header is forwarded: routing, fragments, options cut short,
/// unknown types, hop-by-hop options too, which RFC 8200 leaves to configuration.
#[test]
fn extension_headers_are_not_examined() {
    everywhere(|router| {
        let payloads = [&[][..], &[59, 200, 5, 2, 0, 0, 0, 0], &[59, 0, 0xc2, 4, 0xff, 0xff, 0, 0]];
        for payload in payloads {
            let frames: Vec<_> = (1..=255).map(|next| to_router(0, &packet(next, 64, payload))).collect();
            let expected = (1..=255).map(|next| (1, from_router(1, &packet(next, 63, payload))));
            assert_eq!(router.send(0, &frames), expected.collect::<Vec<_>>());
        }
        for payload in payloads {
            but(router, &HOP_BY_HOP, |router| {
                let out = pass(router, &packet(0, 64, payload));
                assert_eq!(out, [(1, from_router(1, &packet(0, 63, payload)))]);
            });
        }
        router.ended(&[("forwarded", 768)]);
    });
}

/// Rules 22, 32. It is answered with the MTU of the way out, as soon as it is one byte too long.
#[test]
fn a_packet_too_long_is_never_fragmented_but_answered_with_the_mtu() {
    everywhere(|router| {
        assert_eq!(pass(router, &udp6(NEAR6, NARROW6, 64, 1232)).len(), 1);
        let long = udp6(NEAR6, NARROW6, 64, 1233);
        let said = answer(router, &long).unwrap();
        assert_eq!((said.says(), said.rest), ((2, 0), 1280));
        assert_eq!(said.quoted, long[..1232], "as it came");
        router.ended(&[("forwarded", 1), ("too_big", 1)]);
    });
}

/// Rule 30. Code 0, with 1 hop left and with none.
#[test]
fn a_hop_limit_used_up_is_answered() {
    everywhere(|router| {
        for hops in [0, 1] {
            let cause = udp6(NEAR6, FAR6, hops, 9);
            let said = answer(router, &cause).unwrap();
            assert_eq!((said.says(), said.rest), ((3, 0), 0));
            assert_eq!(said.quoted, cause);
            assert_eq!(said.source(), "2001:db8:0::1".parse::<Ipv6Addr>().unwrap().octets());
        }
    });
}

/// Rule 28. All of a short packet, of a long one what makes 1280 bytes.
#[test]
fn an_error_quotes_as_much_as_fits_1280_bytes() {
    everywhere(|router| {
        for len in [0, 100, 1183, 1184, 1185, 1400] {
            let cause = udp6(NEAR6, FAR6, 1, len);
            assert_eq!(answer(router, &cause).unwrap().quoted, cause[..cause.len().min(1232)], "{len}");
        }
    });
}

/// Rule 29. One bucket for both families.
#[test]
fn errors_are_limited_over_ipv6_too() {
    everywhere(|router| {
        let (rate, burst) = router.limit_errors(0, 3);
        let (began, n) = (Instant::now(), 64 + 4 * burst);
        let sent = router.send(0, &vec![to_router(0, &udp6(NEAR6, FAR6, 1, 9)); n as usize]).len() as u64;
        let allowed = burst + rate * began.elapsed().as_millis() as u64 / 1000 + 1;
        assert!((least(router, burst)..=allowed).contains(&sent), "{sent} of {allowed}");
        router.ended(&[("ttl_expired", n)]);
    });
}

/// Rule 27. About an ICMPv6 error or redirect, a multicast, in a link multicast, or to a source that
/// is not a single node.
#[test]
fn there_is_no_error_where_rfc_4443_forbids_it() {
    everywhere(|router| {
        for kind in [0, 1, 2, 3, 4, 100, 127] {
            no_error_about(router, kind);
        }
        but(router, &ABOUT_A_REDIRECT, |router| no_error_about(router, 137));
        for destination in ["ff02::1", "ff0e::5"] {
            dies(router, 0, &to_router(0, &udp6(NEAR6, destination, 1, 9)), Verdict::Multicast);
        }
        for source in ["::", "::1", "ff02::1", "ff0e::1", "2001:db8:1::1"] {
            dies(router, 0, &to_router(0, &udp6(source, FAR6, 1, 9)), Verdict::Martian);
        }
        let frame = ethernet([0x33, 0x33, 0, 0, 0, 1], host_mac(0, 9), 0x86dd, &udp6(NEAR6, FAR6, 1, 9));
        dies(router, 0, &frame, Verdict::LinkBroadcast);
        for query in [128, 129, 200] {
            let said = answer(router, &packet(58, 1, &[query, 0, 0, 0, 0, 0, 0, 0]));
            assert!(said.is_some(), "but about type {query}");
        }
    });
}

/// Nothing is said about an ICMPv6 message of this type, behind an extension header either.
fn no_error_about(router: &mut dyn Router, kind: u8) {
    let cause = packet(58, 1, &[kind, 0, 0, 0, 0, 0, 0, 0]);
    dies(router, 0, &to_router(0, &cause), Verdict::TtlExpired);
    let behind = packet(60, 1, &[58, 0, 1, 4, 0, 0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0]);
    dies(router, 0, &to_router(0, &behind), Verdict::TtlExpired);
}

/// Rules 31, 38. 0 no route and unreachable, 1 prohibited, 3 a neighbour that does not answer.
#[test]
fn destination_unreachable_says_why() {
    everywhere(|router| {
        router.route("3fff:1::/32", &To::Unreachable);
        router.route("3fff:2::/32", &To::Prohibited);
        router.route("3fff:3::/32", &To::Blackhole);
        router.route("3fff:4::/32", &To::Host(1, 77));
        router.publish();
        for (destination, says) in [
            ("3fff::1", Some((1, 0))),
            ("3fff:1::1", Some((1, 0))),
            ("3fff:2::1", Some((1, 1))),
            ("3fff:3::1", None),
        ] {
            let said = answer(router, &udp6(NEAR6, destination, 64, 9));
            assert_eq!(said.map(|a| a.says()), says, "{destination}");
        }
        let cause = udp6(NEAR6, "3fff:4::1", 64, 9);
        let out = router.fails(1, "2001:db8:1::77".parse().unwrap(), &to_router(0, &cause));
        assert_eq!(out.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [0]);
        assert_eq!(Answer::of(&out[0].1[14..]).says(), (1, 3));
        assert_eq!(router.counted(Verdict::NeighborFailed).unwrap_or(1), 1);
    });
}

/// Rules 31, 34. Code 2, beyond scope, from our link-local address, straight back to who sent it.
#[test]
fn a_link_local_source_is_told_that_its_scope_ends_here() {
    everywhere(|router| {
        beyond_scope(router, 64);
        but(router, &TIME_BEFORE_SCOPE, |router| beyond_scope(router, 1));
        router.ended(&[("link_local", 2)]);
        let error = ip6("fe80::9".parse().unwrap(), FAR6.parse().unwrap(), 64, 58, &[1, 0, 0, 0, 0, 0, 0, 0]);
        dies(router, 0, &to_router(0, &error), Verdict::LinkLocal);
        dies(router, 0, &to_router(0, &udp6("fe80::0:1", FAR6, 64, 9)), Verdict::LinkLocal);
    });
}

fn beyond_scope(router: &mut dyn Router, hops: u8) {
    let cause = udp6("fe80::9", FAR6, hops, 9);
    let said = answer(router, &cause).unwrap();
    assert_eq!((said.says(), said.quoted.clone()), ((1, 2), cause));
    assert_eq!(said.source(), "fe80::0:1".parse::<Ipv6Addr>().unwrap().octets());
}

/// Rule 34. Not by the link it came from either, nor with `::` as source.
#[test]
fn link_local_and_unspecified_addresses_are_never_forwarded() {
    everywhere(|router| {
        for destination in ["fe80::77", "fe80::1:9"] {
            for source in [NEAR6, "fe80::9"] {
                let packet = udp6(source, destination, 64, 9);
                but(router, &LINK_LOCAL_DESTINATION, |router| {
                    assert_eq!(pass(router, &packet), [], "{source} to {destination}");
                });
            }
        }
        for source in [NEAR6, "fe80::9"] {
            let packet = udp6(source, "febf::1", 64, 9);
            but(router, &OTHER_LINK_LOCAL_XDP, |router| {
                but(router, &OTHER_LINK_LOCAL, |router| assert_eq!(pass(router, &packet), []));
            });
        }
        dies(router, 0, &to_router(0, &udp6("::", FAR6, 64, 9)), Verdict::Martian);
        but(router, &TO_NOWHERE, |router| {
            dies(router, 0, &to_router(0, &udp6(NEAR6, "::", 64, 9)), Verdict::Martian);
        });
    });
}

/// Rule 35. The loopback address neither way; nor multicast of any scope.
#[test]
fn loopback_and_multicast_stay_where_they_are() {
    everywhere(|router| {
        dies(router, 0, &to_router(0, &udp6("::1", FAR6, 64, 9)), Verdict::Martian);
        dies(router, 0, &to_router(0, &udp6(NEAR6, "::1", 64, 9)), Verdict::Martian);
        for scope in 0..16 {
            let group = format!("ff0{scope:x}::1:2");
            dies(router, 0, &to_router(0, &udp6(NEAR6, &group, 64, 9)), Verdict::Multicast);
        }
    });
}

/// Rule 35. What is of scope 0 or 1 does not even reach the host.
#[test]
fn multicast_of_no_scope_does_not_reach_the_host() {
    alone("what reaches a kernel's own stack cannot be seen");
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
    everywhere(|router| {
        let good = udp6(NEAR6, FAR6, 64, 9);
        for (cut, verdict) in [(39, Verdict::Runt), (good.len() - 1, Verdict::Runt)] {
            let frame = ethernet(port_mac(0), host_mac(0, 9), 0x86dd, &good[..cut]);
            dies(router, 0, &frame, verdict);
        }
        for version in [0, 4, 5, 7, 15] {
            let mut bad = good.clone();
            bad[0] = version << 4 | (bad[0] & 15);
            dies(router, 0, &ethernet(port_mac(0), host_mac(0, 9), 0x86dd, &bad), Verdict::BadHeader);
        }
    });
}
