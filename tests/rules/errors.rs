//! ICMP errors over IPv4: when, from whom, and what they say. RFC 1812 section 4.3.2, RFC 1191.

use std::time::Instant;

use sweepd::forward::verdict::Verdict;
use sweepd::tables::fixed;

use crate::common::{PortSpec, Tube, host_mac, port_mac};
use crate::packets::{Ip4, ethernet};
use crate::router::{Answer, FAR, NARROW, NEAR, answer, dies, pass, plain, router, to_router};

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
    let mut tube = router();
    for kind in [3, 4, 5, 11, 12] {
        dies(&mut tube, 0, &to_router(0, &icmp(kind).build()), Verdict::TtlExpired);
    }
    let mut later = plain().ttl(1);
    later.flags_offset = 0x2001;
    dies(&mut tube, 0, &to_router(0, &later.build()), Verdict::TtlExpired);
    for destination in ["224.0.0.5", "239.9.9.9", "255.255.255.255", "10.0.0.255", "10.0.1.255"] {
        let packet = Ip4::udp(NEAR, destination, 9).ttl(1).build();
        assert_eq!(pass(&mut tube, &packet), [], "to {destination}");
    }
    for source in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "240.0.0.1", "10.0.0.255", "10.0.1.255", "10.0.0.1"] {
        let packet = Ip4::udp(source, FAR, 9).ttl(1).build();
        assert_eq!(pass(&mut tube, &packet), [], "from {source}");
    }
    for group in [[0xff; 6], [1, 0, 0x5e, 1, 2, 3]] {
        let frame = ethernet(group, host_mac(0, 9), 0x0800, &plain().ttl(1).build());
        dies(&mut tube, 0, &frame, Verdict::LinkBroadcast);
    }
    for query in [0, 8, 13] {
        assert!(answer(&mut tube, &icmp(query).build()).is_some(), "but about a query of type {query}");
    }
    let mut first = plain().ttl(1);
    first.flags_offset = 0x2000;
    assert!(answer(&mut tube, &first.build()).is_some(), "and about a first fragment");
}

/// Rule 13. No more than the burst and what the rate allows, whatever comes; each is counted.
#[test]
fn errors_are_limited_by_a_token_bucket() {
    let mut tube = router();
    tube.limit_errors(100, 20);
    let began = Instant::now();
    let mut sent = 0;
    for _ in 0..100 {
        for _ in 0..32 {
            tube.inject(0, &to_router(0, &plain().ttl(1).build()));
        }
        tube.settle();
        sent += tube.arrived(0).len();
    }
    tube.check();
    let allowed = 20 + began.elapsed().as_millis() as usize / 10 + 1;
    assert!((20..=allowed).contains(&sent), "{sent} of {allowed}");
    assert_eq!(tube.verdicts(), [("ttl_expired", 3200)]);
    tube.limit_errors(0, 0);
    dies(&mut tube, 0, &to_router(0, &plain().ttl(1).build()), Verdict::TtlExpired);
}

/// Rules 12, 13. What must not be answered takes nothing from the limit of what may.
#[test]
fn a_flood_of_what_gets_no_error_does_not_silence_the_others() {
    let mut tube = router();
    tube.limit_errors(0, 1);
    for _ in 0..50 {
        dies(&mut tube, 0, &to_router(0, &icmp(11).build()), Verdict::TtlExpired);
        let nowhere = Ip4::udp("8.8.8.8", FAR, 9).ttl(1).build();
        dies(&mut tube, 0, &to_router(0, &nowhere), Verdict::TtlExpired);
    }
    assert!(answer(&mut tube, &plain().ttl(1).build()).is_some());
    dies(&mut tube, 0, &to_router(0, &plain().ttl(1).build()), Verdict::TtlExpired);
}

/// Rule 14. All of a short packet, of a long one what makes 576 bytes; options included.
#[test]
fn an_error_quotes_as_much_as_fits_576_bytes() {
    let mut tube = router();
    for len in [0, 1, 500, 520, 521, 1400] {
        let mut packet = Ip4::udp(NEAR, FAR, len).ttl(1);
        packet.options = vec![1; 8];
        let packet = packet.build();
        let said = answer(&mut tube, &packet).unwrap();
        assert_eq!(said.quoted, packet[..packet.len().min(548)], "{len}");
    }
}

/// Rule 15. The address of the port that the error leaves by, wherever its cause came in; another
/// of ours when that has none.
#[test]
fn an_error_comes_from_the_port_towards_its_receiver() {
    let mut tube = router();
    assert_eq!(answer(&mut tube, &plain().ttl(1).build()).unwrap().source(), [10, 0, 0, 1]);
    // In at port 0 with a source behind port 1.
    let packet = Ip4::udp("198.51.100.3", "198.51.100.4", 9).ttl(1).build();
    let out = tube.pass(0, &to_router(0, &packet));
    assert_eq!(out[0].0, 1);
    assert_eq!(Answer::of(&out[0].1[14..]).source(), [10, 0, 1, 1]);

    let mut tube = Tube::new(&[PortSpec::new(&[]), PortSpec::new(&["10.0.1.1/24"])], 1);
    let left = tube.routes.hop(0, 9, 1500);
    tube.routes.add("192.0.2.0/24", left);
    tube.publish();
    assert_eq!(answer(&mut tube, &plain().ttl(1).build()).unwrap().source(), [10, 0, 1, 1], "unnumbered");
}

/// Rule 16. Precedence 6, whatever the packet's own.
#[test]
fn an_error_has_precedence_6() {
    let mut tube = router();
    for tos in [0, 0x28, 0xe0] {
        let mut packet = plain().ttl(1);
        packet.tos = tos;
        assert_eq!(answer(&mut tube, &packet.build()).unwrap().header[1] >> 5, 6);
    }
}

/// Rule 17. A packet that leaves by the port it came in on is forwarded, and nobody is redirected.
#[test]
fn no_redirect_is_sent() {
    let mut tube = router();
    let out = pass(&mut tube, &Ip4::udp("10.0.0.77", NEAR, 9).build());
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].0, &out[0].1[..6], out[0].1[23]), (0, &host_mac(0, 9)[..], 17));
    assert_eq!(tube.verdicts(), [("forwarded", 1)]);
}

/// Rule 21. With the MTU of the way out, as soon as the packet is one byte too long.
#[test]
fn fragmentation_needed_carries_the_next_hops_mtu() {
    let mut tube = router();
    let fits = Ip4::udp(NEAR, NARROW, 572).dont_fragment();
    assert_eq!(
        pass(&mut tube, &fits.build()).iter().map(|(p, f)| (*p, f.len())).collect::<Vec<_>>(),
        [(2, 614)]
    );
    let packet = Ip4::udp(NEAR, NARROW, 573).dont_fragment().build();
    let said = answer(&mut tube, &packet).unwrap();
    assert_eq!((said.says(), said.rest), ((3, 4), 600));
    assert_eq!(said.quoted, packet[..548], "as it came, with its time to live");
    assert_eq!(tube.verdicts(), [("forwarded", 1), ("too_big", 1)]);
}

/// Rules 11, 12. Routes that refuse: unreachable 3/1, prohibited 3/13, blackhole nothing.
#[test]
fn each_kind_of_refusing_route_gives_its_answer() {
    let mut tube = router();
    for (prefix, id, says, verdict) in [
        ("8.1.0.0/16", fixed::UNREACHABLE, Some((3, 1)), Verdict::Unreachable),
        ("8.2.0.0/16", fixed::PROHIBIT, Some((3, 13)), Verdict::Prohibited),
        ("8.3.0.0/16", fixed::BLACKHOLE, None, Verdict::Blackhole),
    ] {
        tube.routes.add(prefix, id);
        tube.publish();
        let destination = prefix.replace(".0/16", ".9");
        let said = answer(&mut tube, &Ip4::udp(NEAR, &destination, 9).build());
        assert_eq!(said.map(|a| a.says()), says, "{destination}");
        assert_eq!(tube.count(verdict), 1);
        let mut error = Ip4::udp(NEAR, &destination, 0);
        (error.protocol, error.payload) = (1, vec![3, 1, 0xfc, 0xfe, 0, 0, 0, 0]);
        dies(&mut tube, 0, &to_router(0, &error.build()), verdict);
    }
    assert_eq!(tube.pass(0, &ethernet(port_mac(1), host_mac(0, 9), 0x0800, &plain().build())), []);
    assert_eq!(tube.count(Verdict::NotForUs), 1, "what is not for our address gets no answer either");
}
