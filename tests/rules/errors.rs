//! ICMP errors over IPv4: when, from whom, and what they say. RFC 1812 section 4.3.2, RFC 1191.

use std::time::Instant;

use sweepd::forward::verdict::Verdict;

use crate::common::{PortSpec, Tube, host_mac, port_mac};
use crate::differences::BROADCAST_SOURCE;
use crate::packets::{Ip4, ethernet};
use crate::router::{
    Answer, FAR, NARROW, NEAR, Router, To, alone, answer, but, dies, everywhere, least, pass, plain,
    to_router,
};

/// A packet that would be answered if it were not for its payload.
fn icmp(kind: u8) -> Ip4 {
    let mut packet = plain().ttl(1);
    (packet.protocol, packet.payload) = (1, vec![kind, 0, !kind, 0xff, 0, 0, 0, 0]);
    packet
}

/// Rule 12. About an ICMP error, a later fragment, a broadcast or multicast, in a link broadcast, or
/// to a source that is not a single host.
#[test]
fn there_is_no_error_where_there_must_be_none() {
    everywhere(|router| {
        for kind in [3, 4, 5, 11, 12] {
            dies(router, 0, &to_router(0, &icmp(kind).build()), Verdict::TtlExpired);
        }
        let mut later = plain().ttl(1);
        later.flags_offset = 0x2001;
        dies(router, 0, &to_router(0, &later.build()), Verdict::TtlExpired);
        for destination in ["224.0.0.5", "239.9.9.9", "255.255.255.255", "10.0.0.255", "10.0.1.255"] {
            silence(router, NEAR, destination);
        }
        for source in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "240.0.0.1", "10.0.0.1"] {
            silence(router, source, FAR);
        }
        for source in ["10.0.0.255", "10.0.1.255"] {
            but(router, &BROADCAST_SOURCE, |router| silence(router, source, FAR));
        }
        for group in [[0xff; 6], [1, 0, 0x5e, 1, 2, 3]] {
            let frame = ethernet(group, host_mac(0, 9), 0x0800, &plain().ttl(1).build());
            dies(router, 0, &frame, Verdict::LinkBroadcast);
        }
        for query in [0, 8, 13] {
            assert!(answer(router, &icmp(query).build()).is_some(), "but about a query of type {query}");
        }
        let mut first = plain().ttl(1);
        first.flags_offset = 0x2000;
        assert!(answer(router, &first.build()).is_some(), "and about a first fragment");
    });
}

/// Nothing is said to such a packet when its time is up.
fn silence(router: &mut dyn Router, source: &str, destination: &str) {
    let packet = Ip4::udp(source, destination, 9).ttl(1).build();
    assert_eq!(pass(router, &packet), [], "from {source} to {destination}");
}

/// Rule 13. No more than the burst and what the rate allows, whatever comes; each is counted.
#[test]
fn errors_are_limited_by_a_token_bucket() {
    everywhere(|router| {
        let (rate, burst) = router.limit_errors(100, 20);
        let (began, mut sent) = (Instant::now(), 0);
        for _ in 0..100 {
            sent += router.send(0, &vec![to_router(0, &plain().ttl(1).build()); 32]).len() as u64;
        }
        let allowed = burst + rate * began.elapsed().as_millis() as u64 / 1000 + 1;
        assert!((least(router, burst)..=allowed).contains(&sent), "{sent} of {allowed}");
        router.ended(&[("ttl_expired", 3200)]);
        if let Some(tube) = router.tube("neither sweepd nor Linux can be told to say nothing at all") {
            tube.limit_errors(0, 0);
            dies(tube, 0, &to_router(0, &plain().ttl(1).build()), Verdict::TtlExpired);
        }
    });
}

/// Rule 13. Each worker has a limit of its own, which a flood at another one does not use up.
#[test]
fn every_worker_has_its_own_limit() {
    alone("which worker a ring belongs to cannot be chosen from outside");
    let mut tube = Tube::new(&[PortSpec::new(&["10.0.0.1/24"]).rings(2)], 2);
    let left = tube.routes.hop(0, 9, 1500);
    tube.routes.add("192.0.2.0/24", left);
    Tube::publish(&mut tube);
    Tube::limit_errors(&mut tube, 0, 5);
    for (ring, said) in [(0, 5), (1, 5), (0, 0), (1, 0)] {
        for _ in 0..20 {
            tube.inject_on(0, ring, &to_router(0, &plain().ttl(1).build()));
        }
        tube.settle();
        tube.check();
        assert_eq!(tube.arrivals().len(), said);
    }
}

/// Rules 12, 13. What must not be answered takes nothing from the limit of what may.
#[test]
fn a_flood_of_what_gets_no_error_does_not_silence_the_others() {
    everywhere(|router| {
        let (rate, burst) = router.limit_errors(0, 1);
        let nowhere = Ip4::udp("8.8.8.8", FAR, 9).ttl(1).build();
        let flood = [to_router(0, &icmp(11).build()), to_router(0, &nowhere)];
        let frames = flood.iter().cycle().take(100 + 2 * (rate + burst) as usize);
        assert_eq!(router.send(0, &frames.cloned().collect::<Vec<_>>()), []);
        assert!(answer(router, &plain().ttl(1).build()).is_some());
        if let Some(tube) = router.tube("one token is left: other limits are not so low") {
            dies(tube, 0, &to_router(0, &plain().ttl(1).build()), Verdict::TtlExpired);
        }
    });
}

/// Rule 14. All of a short packet, of a long one what makes 576 bytes; options included.
#[test]
fn an_error_quotes_as_much_as_fits_576_bytes() {
    everywhere(|router| {
        for len in [0, 1, 500, 520, 521, 1400] {
            let mut packet = Ip4::udp(NEAR, FAR, len).ttl(1);
            packet.options = vec![1; 8];
            let packet = packet.build();
            let said = answer(router, &packet).unwrap();
            assert_eq!(said.quoted, packet[..packet.len().min(548)], "{len}");
        }
    });
}

/// Rule 15. The address of the port that the error leaves by, wherever its cause came in; another
/// of ours when that has none.
#[test]
fn an_error_comes_from_the_port_towards_its_receiver() {
    everywhere(|router| {
        assert_eq!(answer(router, &plain().ttl(1).build()).unwrap().source(), [10, 0, 0, 1]);
        // In at port 0 with a source behind port 1.
        let packet = Ip4::udp("198.51.100.3", "198.51.100.4", 9).ttl(1).build();
        let out = pass(router, &packet);
        assert_eq!(out[0].0, 1);
        assert_eq!(Answer::of(&out[0].1[14..]).source(), [10, 0, 1, 1]);
    });
}

/// Rule 15. From another of its addresses when that port has none.
#[test]
fn an_error_from_a_port_without_addresses_has_another_one() {
    alone("the interfaces have addresses");
    let mut tube = Tube::new(&[PortSpec::new(&[]), PortSpec::new(&["10.0.1.1/24"])], 1);
    let left = tube.routes.hop(0, 9, 1500);
    tube.routes.add("192.0.2.0/24", left);
    Tube::publish(&mut tube);
    assert_eq!(answer(&mut tube, &plain().ttl(1).build()).unwrap().source(), [10, 0, 1, 1]);
}

/// Rule 16. Precedence 6, whatever the packet's own.
#[test]
fn an_error_has_precedence_6() {
    everywhere(|router| {
        for tos in [0, 0x28, 0xe0] {
            let mut packet = plain().ttl(1);
            packet.tos = tos;
            assert_eq!(answer(router, &packet.build()).unwrap().header[1] >> 5, 6);
        }
    });
}

/// Rule 17. A packet that leaves by the port it came in on is forwarded, and nobody is redirected.
#[test]
fn no_redirect_is_sent() {
    everywhere(|router| {
        let out = pass(router, &Ip4::udp("10.0.0.77", NEAR, 9).build());
        assert_eq!(out.len(), 1);
        assert_eq!((out[0].0, &out[0].1[..6], out[0].1[23]), (0, &host_mac(0, 9)[..], 17));
        router.ended(&[("forwarded", 1)]);
    });
}

/// Rule 21. With the MTU of the way out, as soon as the packet is one byte too long.
#[test]
fn fragmentation_needed_carries_the_next_hops_mtu() {
    everywhere(|router| {
        let fits = Ip4::udp(NEAR, NARROW, 572).dont_fragment();
        assert_eq!(
            pass(router, &fits.build()).iter().map(|(p, f)| (*p, f.len())).collect::<Vec<_>>(),
            [(2, 614)]
        );
        let packet = Ip4::udp(NEAR, NARROW, 573).dont_fragment().build();
        let said = answer(router, &packet).unwrap();
        assert_eq!((said.says(), said.rest), ((3, 4), 600));
        assert_eq!(said.quoted, packet[..548], "as it came, with its time to live");
        router.ended(&[("forwarded", 1), ("too_big", 1)]);
    });
}

/// Rules 11, 12. Routes that refuse: unreachable 3/1, prohibited 3/13, blackhole nothing.
#[test]
fn each_kind_of_refusing_route_gives_its_answer() {
    everywhere(|router| {
        for (prefix, to, says, verdict) in [
            ("8.1.0.0/16", To::Unreachable, Some((3, 1)), Verdict::Unreachable),
            ("8.2.0.0/16", To::Prohibited, Some((3, 13)), Verdict::Prohibited),
            ("8.3.0.0/16", To::Blackhole, None, Verdict::Blackhole),
        ] {
            router.route(prefix, &to);
            router.publish();
            let destination = prefix.replace(".0/16", ".9");
            // From another host each: Linux says such things once a second to each, after the first five.
            let source = format!("192.0.2.{}", prefix.as_bytes()[2]);
            let said = answer(router, &Ip4::udp(&source, &destination, 9).build());
            assert_eq!(said.map(|a| a.says()), says, "{destination}");
            assert_eq!(router.counted(verdict).unwrap_or(1), 1);
            let mut error = Ip4::udp(NEAR, &destination, 0);
            (error.protocol, error.payload) = (1, vec![3, 1, 0xfc, 0xfe, 0, 0, 0, 0]);
            dies(router, 0, &to_router(0, &error.build()), verdict);
        }
        // What is not for our address gets no answer either.
        let frame = ethernet(port_mac(1), host_mac(0, 9), 0x0800, &plain().build());
        dies(router, 0, &frame, Verdict::NotForUs);
    });
}
