//! The reverse path check of sources: RFC 1812 section 5.3.8, RFC 3704.

use sweepd::forward::verdict::Verdict;
use sweepd::tables::ReversePath;

use crate::common::host_mac;
use crate::differences::{IPV6_SOURCES, SOURCES_OF_THE_HOSTS, UNROUTED_FIRST};
use crate::packets::{Ip4, ethernet, udp6};
use crate::router::{
    FAR, FAR6, NEAR, NEAR6, Router, Switch, To, answer, but, dies, everywhere, pass, plain, to_router,
};

/// A packet to FAR from this source, and whether it is IPv6.
fn from(source: &str) -> Vec<u8> {
    if source.contains(':') { udp6(source, FAR6, 64, 10) } else { Ip4::udp(source, FAR, 10).build() }
}

const CAREFUL: &str = "the path that a packet takes cannot be chosen from outside";

/// The packet passes, by the stages and by the careful path alone.
fn passes(router: &mut dyn Router, source: &str) {
    let packet = to_router(0, &from(source));
    assert_eq!(router.send(0, std::slice::from_ref(&packet)).len(), 1, "{source}");
    if let Some(tube) = router.tube(CAREFUL) {
        assert_eq!(tube.pass_carefully(0, &packet).1.len(), 1, "{source}");
    }
}

/// The packet dies by the check, in either way.
fn fails(router: &mut dyn Router, source: &str) {
    let packet = to_router(0, &from(source));
    let six = source.contains(':');
    let check = |router: &mut dyn Router| dies(router, 0, &packet, Verdict::ReversePath);
    if six {
        but(router, &IPV6_SOURCES, check)
    } else {
        check(router)
    }
    if let Some(tube) = router.tube(CAREFUL) {
        assert_eq!(tube.pass_carefully(0, &packet), (Verdict::ReversePath.into(), vec![]), "{source}");
    }
}

/// Rule 18. Without a word nothing is checked; and a port's check is that port's alone.
#[test]
fn sources_are_not_checked_by_default() {
    everywhere(|router| {
        for source in [NEAR, "198.51.100.9", "8.8.8.8", NEAR6, "2001:db8:cafe::9", "2a00::1"] {
            passes(router, source);
        }
        router.switch(Switch::Sources(ReversePath::Strict));
        let packet = Ip4::udp("8.8.8.8", NEAR, 10).build();
        assert_eq!(router.send(1, &[to_router(1, &packet)]).len(), 1);
    });
}

/// Rule 18. Strict: the way back leads out of the port that the packet came in by.
#[test]
fn strict_takes_what_the_way_back_leads_to() {
    everywhere(|router| {
        router.switch(Switch::Sources(ReversePath::Strict));
        for source in [NEAR, NEAR6, "10.0.0.9", "10.0.0.77", "2001:db8:0::77"] {
            passes(router, source);
        }
        for source in ["198.51.100.9", "203.0.113.9", "10.0.1.9", "10.0.1.77", "8.8.8.8"] {
            fails(router, source);
        }
        for source in ["2001:db8:cafe::9", "2001:db8:1::77", "2a00::1"] {
            fails(router, source);
        }
    });
}

/// Rule 18. Loose: there is a way back, wherever it leads.
#[test]
fn loose_takes_what_has_a_way_back() {
    everywhere(|router| {
        router.switch(Switch::Sources(ReversePath::Loose));
        for (prefix, to) in [
            ("8.1.0.0/16", To::Unreachable),
            ("8.2.0.0/16", To::Prohibited),
            ("8.3.0.0/16", To::Blackhole),
            ("2a00:3::/32", To::Blackhole),
        ] {
            router.route(prefix, &to);
        }
        router.publish();
        for source in [NEAR, "198.51.100.9", "10.0.1.77", NEAR6, "2001:db8:cafe::9"] {
            passes(router, source);
        }
        for source in ["8.1.0.9", "8.2.0.9", "8.3.0.9", "9.9.9.9", "2a00:3::1", "2a00:4::1"] {
            fails(router, source);
        }
    });
}

/// Rule 18. A way by a device that is no port is one for loose; strict has no use for it.
#[test]
fn a_way_by_another_device_is_a_way_back_for_loose_alone() {
    everywhere(|router| {
        router.switch(Switch::Sources(ReversePath::Loose));
        router.route("100.64.0.0/16", &To::Elsewhere);
        router.publish();
        passes(router, "100.64.0.9");
        router.switch(Switch::Sources(ReversePath::Strict));
        fails(router, "100.64.0.9");
    });
}

/// Rule 18. A default route is a way like any other (RFC 3704 2.2, 2.4): loose then takes every
/// source but those whose routes refuse; strict takes them on the default route's port.
#[test]
fn a_default_route_is_a_way_back() {
    everywhere(|router| {
        router.switch(Switch::Sources(ReversePath::Loose));
        for prefix in ["0.0.0.0/0", "::/0"] {
            router.route(prefix, &To::Host(1, 9));
        }
        router.route("8.3.0.0/16", &To::Blackhole);
        router.publish();
        for source in ["9.9.9.9", "2a00::1"] {
            passes(router, source);
        }
        fails(router, "8.3.0.9");
        router.switch(Switch::Sources(ReversePath::Strict));
        for source in ["9.9.9.9", "2a00::1"] {
            fails(router, source);
        }
        for prefix in ["0.0.0.0/0", "::/0"] {
            router.route(prefix, &To::Host(0, 9));
        }
        router.publish();
        for source in ["9.9.9.9", "2a00::1"] {
            passes(router, source);
        }
        fails(router, "198.51.100.9");
    });
}

/// Rule 18. Of several next hops any will do (RFC 8704 2.3), also one that no packet is sent to now.
#[test]
fn strict_takes_a_source_behind_any_of_several_next_hops() {
    everywhere(|router| {
        router.switch(Switch::Sources(ReversePath::Strict));
        for (prefix, ways) in [
            ("9.1.0.0/16", vec![(1, 9), (1, 2), (2, 9)]),
            ("9.2.0.0/16", vec![(1, 9), (1, 2), (2, 9), (0, 9)]),
            ("9.3.0.0/16", vec![(1, 9), (1, 2), (2, 9), (0, 50)]),
        ] {
            router.route(prefix, &To::Among(ways));
        }
        router.publish();
        for n in 1..20 {
            fails(router, &format!("9.1.0.{n}"));
            passes(router, &format!("9.2.0.{n}"));
            passes(router, &format!("9.3.0.{n}"));
        }
    });
}

/// Rules 12, 18. In silence, whatever else is wrong with the packet.
#[test]
fn nobody_is_told_of_a_failed_check() {
    everywhere(|router| {
        router.switch(Switch::Sources(ReversePath::Strict));
        let spoofed = |ttl| Ip4::udp("198.51.100.9", FAR, 10).ttl(ttl);
        assert_eq!(answer(router, &spoofed(1).build()), None);
        but(router, &UNROUTED_FIRST, |router| {
            assert_eq!(pass(router, &Ip4::udp("198.51.100.9", "8.8.8.8", 10).build()), []);
        });
        let mut options = spoofed(64);
        options.options = vec![1; 4];
        assert_eq!(answer(router, &options.build()), None);
        router.ended(&[("reverse_path", 3)]);
    });
}

/// Rules 8, 18, 34. Sources that are no host's keep their own verdicts, and what is the host's is not
/// checked: it is not forwarded.
#[test]
fn what_is_not_forwarded_is_not_checked() {
    everywhere(|router| {
        router.switch(Switch::Sources(ReversePath::Strict));
        for (source, verdict) in [
            ("0.0.0.0", Verdict::Martian),
            ("127.0.0.1", Verdict::Martian),
            ("169.254.7.7", Verdict::LinkLocal),
        ] {
            dies(router, 0, &to_router(0, &Ip4::udp(source, FAR, 9).build()), verdict);
        }
        assert_eq!(answer(router, &udp6("fe80::9", FAR6, 64, 9)).map(|a| a.says()), Some((1, 2)));
        let discover = Ip4::udp("0.0.0.0", "255.255.255.255", 300).build();
        assert_eq!(router.send(0, &[ethernet([0xff; 6], host_mac(0, 9), 0x0800, &discover)]), []);
        // An echo request to the router itself, from behind the other port.
        let mut echo = Ip4::udp("198.51.100.3", "10.0.0.1", 0);
        (echo.protocol, echo.payload) = (1, vec![8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
        but(router, &SOURCES_OF_THE_HOSTS, |router| assert_eq!(pass(router, &echo.build()).len(), 1));
        assert_eq!(router.counted(Verdict::ReversePath).unwrap_or(0), 0);
    });
}

/// Rule 18. In a burst the others go on, in order, and each is counted for what it is.
#[test]
fn only_the_spoofed_packets_of_a_burst_die() {
    everywhere(|router| {
        router.switch(Switch::Sources(ReversePath::Strict));
        let (mut frames, mut expected) = (Vec::new(), Vec::new());
        for i in 0..60 {
            let source = if i % 3 == 1 { "198.51.100.9" } else { NEAR };
            let mut packet = Ip4::udp(source, FAR, i);
            packet.id = i as u16;
            if source == NEAR {
                expected.push(42 + i);
            }
            frames.push(to_router(0, &packet.build()));
        }
        let out = router.send(0, &frames);
        assert_eq!(out.iter().map(|(_, frame)| frame.len()).collect::<Vec<_>>(), expected);
        router.ended(&[("forwarded", 40), ("reverse_path", 20)]);
        router.switch(Switch::Sources(ReversePath::Off));
        assert_eq!(pass(router, &plain().build()).len(), 1);
    });
}
