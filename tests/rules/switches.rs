//! What a router does only when it is switched on: redirects (RFC 1812 section 5.2.7.2, RFC 4861
//! section 8.2) and source routes (RFC 1812 sections 4.2.2.1 and 5.2.4.1). On `xdp:` ports a source
//! route that has come to an address of the router's is its kernel's, whose switch is on then too.

use std::{net::Ipv6Addr, time::Instant};

use sweepd::forward::verdict::Verdict;

use crate::common::{host_mac, port_mac};
use crate::differences::{
    OPTION_LENGTH, OPTION_LENGTH_XDP, QUOTED_AS_IT_LEAVES, STRICT_ELSEWHERE, TOLD_AT_ONCE,
};
use crate::packets::{Ip4, checksum, ethernet, pseudo6, udp6};
use crate::router::{
    Answer, FAR, NEAR, Router, Switch, To, answer, but, dies, everywhere, from_router, least, pass, plain,
    to_router,
};

/// Switches redirects on at port 0, behind whose host 3 is a network.
fn switch_on(router: &mut dyn Router) {
    router.switch(Switch::Redirects(true));
    router.route("100.64.0.0/16", &To::Host(0, 3));
    router.publish();
}

/// The packets for this host of port 0, without their headers.
fn for_host(out: &[(usize, Vec<u8>)], host: u8) -> Vec<Vec<u8>> {
    assert!(out.iter().all(|(port, _)| *port == 0), "{out:?}");
    let frames = out.iter().filter(|(_, frame)| frame[..6] == host_mac(0, host));
    frames.map(|(_, frame)| frame[14..].to_vec()).collect()
}

/// Rule 17. A host redirect with the better gateway, from our address on that network; the packet
/// goes on.
#[test]
fn a_sender_on_the_link_is_told_of_the_better_gateway() {
    everywhere(|router| {
        switch_on(router);
        let packet = Ip4::udp("10.0.0.9", "100.64.0.1", 30);
        let out = pass(router, &packet.build());
        let (on, told) = (for_host(&out, 3), for_host(&out, 9));
        assert_eq!(on, [packet.clone().ttl(63).build()]);
        let said = Answer::of(&told[0]);
        assert_eq!((told.len(), said.says(), said.rest), (1, (5, 1), 0x0a00_0003));
        assert_eq!(said.source(), [10, 0, 0, 1]);
        but(router, &QUOTED_AS_IT_LEAVES, |_| assert_eq!(said.quoted, packet.build()));
        router.ended(&[("forwarded", 1)]);
        // To a station of the link itself: that station. From another, since Linux lets each wait.
        let packet = Ip4::udp("10.0.0.5", "10.0.0.2", 30).build();
        let out = pass(router, &packet);
        let told = for_host(&out, 5);
        assert_eq!((out.len(), Answer::of(&told[0]).rest), (2, 0x0a00_0002));
    });
}

/// Rule 17. Not by default; not to a sender beyond the link, about another link, an ICMP error or a
/// later fragment.
#[test]
fn a_redirect_is_sent_only_where_it_may_be() {
    everywhere(|router| {
        switch_on(router);
        let on_link = || Ip4::udp("10.0.0.9", "100.64.0.1", 30);
        let beyond = Ip4::udp(NEAR, "100.64.0.1", 30);
        let other_link = Ip4::udp("10.0.0.9", FAR, 30);
        let mut error = on_link();
        (error.protocol, error.payload) = (1, vec![3, 1, 0xfc, 0xfe, 0, 0, 0, 0]);
        let mut later = on_link();
        later.flags_offset = 0x2001;
        for packet in [beyond, other_link, error, later] {
            let out = pass(router, &packet.build());
            assert_eq!(out.len(), 1, "only the packet itself: {out:?}");
        }
        router.switch(Switch::Redirects(false));
        assert_eq!(pass(router, &on_link().build()).len(), 1);
    });
}

/// Rules 17, 19. Nor about a source route that is followed.
#[test]
fn a_source_route_gives_no_cause_for_a_redirect() {
    everywhere(|router| {
        switch_on(router);
        router.switch(Switch::SourceRoutes(true));
        let mut packet = Ip4::udp("10.0.0.2", "100.64.0.1", 30);
        packet.options = vec![131, 7, 8, 9, 9, 9, 9, 0];
        assert_eq!(pass(router, &packet.build()).len(), 1);
        packet.options.clear();
        assert_eq!(pass(router, &packet.build()).len(), 2, "but without one");
    });
}

/// Rules 13, 17. Limited like errors, by a bucket of their own.
#[test]
fn redirects_are_limited_and_silence_no_error() {
    everywhere(|router| {
        switch_on(router);
        let (rate, burst) = router.limit_errors(0, 2);
        let packet = to_router(0, &Ip4::udp("10.0.0.4", "100.64.0.1", 30).build());
        let (began, n) = (Instant::now(), 1000);
        let out = router.send(0, &vec![packet; n]);
        let told = for_host(&out, 4).len() as u64;
        let allowed = burst + rate * began.elapsed().as_millis() as u64 / 1000 + 1;
        assert!((least(router, burst)..=allowed).contains(&told), "{told} of {allowed}");
        assert_eq!(for_host(&out, 3).len(), n, "all go on");
        assert!(answer(router, &plain().ttl(1).build()).is_some());
    });
}

/// Rule 17. IPv6: type 137 with target, destination, the target's MAC address and the packet, from
/// our link-local address with hop limit 255.
#[test]
fn an_ipv6_neighbour_is_told_of_the_better_first_hop() {
    everywhere(|router| {
        switch_on(router);
        router.route("2001:db8:64::/48", &To::Via(0, 3, "fe80::3"));
        router.route("2001:db8:65::/48", &To::Via(0, 3, "2001:db8:0::3"));
        for host in [2, 9] {
            router.neighbor(0, &format!("2001:db8:0::{host}"), host);
        }
        router.publish();
        for (destination, target, host) in
            [("2001:db8:64::1", "fe80::3", 3), ("2001:db8:0::2", "2001:db8:0::2", 2)]
        {
            is_told(router, &udp6("2001:db8:0::9", destination, 64, 35), [destination, target], host);
        }
        // Beyond the link, and by a router whose link-local address is not known.
        assert_eq!(pass(router, &udp6("2001:db8:beef::7", "2001:db8:64::1", 64, 9)).len(), 1);
        assert_eq!(pass(router, &udp6("2001:db8:0::9", "2001:db8:65::1", 64, 9)).len(), 1);
        // A long packet is cut so that the message is no longer than 1280 bytes.
        let out = pass(router, &udp6("2001:db8:0::9", "2001:db8:64::1", 64, 1400));
        assert!(out.iter().any(|(_, f)| f.len() == 14 + 1280 && f[54] == 137), "{:?}", out.len());
    });
}

/// About this packet from host 9, which goes on, a redirect says that `host` is better.
fn is_told(router: &mut dyn Router, packet: &[u8], [destination, target]: [&str; 2], host: u8) {
    let out = pass(router, packet);
    assert_eq!((out.len(), for_host(&out, host).len()), (2, 1), "the packet goes on");
    let told = &for_host(&out, 9)[0];
    let (header, message) = told.split_at(40);
    let address = |text: &str| text.parse::<Ipv6Addr>().unwrap();
    let (from, to) = (address("fe80::1"), address("2001:db8:0::9"));
    assert_eq!((header[6], header[7]), (58, 255));
    assert_eq!((&header[8..24], &header[24..40]), (&from.octets()[..], &to.octets()[..]));
    assert_eq!(pseudo6(from, to, 58, message), 0);
    assert_eq!(message[..2], [137, 0]);
    assert_eq!(message[8..24], address(target).octets());
    assert_eq!(message[24..40], address(destination).octets());
    assert_eq!((&message[40..42], &message[42..48]), (&[2, 1][..], &host_mac(0, host)[..]));
    // 40 + 8 + 35 bytes: what fills units of eight.
    assert_eq!((&message[48..50], &message[56..]), (&[4, 11][..], &packet[..80]));
}

/// Rule 17. A packet that is held for the better first hop gives cause for a redirect when it leaves.
#[test]
fn a_held_packet_is_told_of_when_it_leaves() {
    everywhere(|router| {
        switch_on(router);
        let mut out = pass(router, &Ip4::udp("10.0.0.3", "10.0.0.66", 30).build());
        but(router, &TOLD_AT_ONCE, |_| assert_eq!(out, []));
        out.extend(router.resolves(0, 66, 2 - out.len()));
        let (on, told) = (for_host(&out, 66), for_host(&out, 3));
        assert_eq!((out.len(), on.len(), told.len()), (2, 1, 1));
        assert_eq!((Answer::of(&told[0]).says(), Answer::of(&told[0]).rest), ((5, 1), 0x0a00_0042));
    });
}

fn with(destination: &str, options: &[u8]) -> Ip4 {
    Ip4 { options: options.to_vec(), ..Ip4::udp(NEAR, destination, 10) }
}

/// It goes to host 9 of port 1 with this destination and these options; the UDP checksum, which a
/// source route's last address belongs to, is not a router's.
fn goes_to(router: &mut dyn Router, packet: &Ip4, destination: &str, options: &[u8]) {
    let expected = from_router(1, &with(destination, options).ttl(63).build());
    let out = pass(router, &packet.build());
    assert_eq!((out.len(), out[0].0, out[0].1.len()), (1, 1, expected.len()));
    let header = 14 + 20 + options.len();
    assert_eq!(out[0].1[..header], expected[..header]);
}

/// Rule 19. Switched on: what comes to our address goes on to the next one, and ours is recorded.
#[test]
fn a_loose_source_route_is_followed_when_switched_on() {
    everywhere(|router| {
        router.switch(Switch::SourceRoutes(true));
        let packet = with("10.0.0.1", &[131, 11, 4, 198, 51, 100, 3, 9, 9, 9, 9, 0]);
        goes_to(router, &packet, FAR, &[131, 11, 8, 10, 0, 1, 1, 9, 9, 9, 9, 0]);
        // Over two of our addresses at once.
        let packet = with("10.0.0.1", &[131, 11, 4, 10, 0, 1, 1, 198, 51, 100, 3, 0]);
        let out = pass(router, &packet.build());
        assert_eq!((&out[0].1[30..34], out[0].1[36]), (&[198, 51, 100, 3][..], 12));
        assert_eq!(checksum(&out[0].1[14..46]), 0);
        // On its way to another router it is only forwarded, used up or not.
        for options in [[131, 7, 4, 9, 9, 9, 9, 0], [131, 7, 8, 9, 9, 9, 9, 0]] {
            let packet = with(FAR, &options);
            assert_eq!(pass(router, &packet.build()), [(1, from_router(1, &packet.ttl(63).build()))]);
        }
        router.switch(Switch::SourceRoutes(false));
        for destination in [FAR, "10.0.0.1"] {
            let packet = with(destination, &[131, 7, 4, 198, 51, 100, 3, 0]).build();
            assert_eq!(pass(router, &packet), [], "to {destination}");
        }
    });
}

/// Rule 19. A strict one only to a neighbour itself; else 3/5.
#[test]
fn a_strict_source_route_goes_to_neighbours_only() {
    everywhere(|router| {
        router.switch(Switch::SourceRoutes(true));
        let packet = with("10.0.0.1", &[137, 7, 4, 10, 0, 1, 9, 0]);
        goes_to(router, &packet, "10.0.1.9", &[137, 7, 8, 10, 0, 1, 1, 0]);
        let says = |router: &mut dyn Router, destination: &str, options: [u8; 8]| {
            answer(router, &with(destination, &options).build()).map(|a| a.says())
        };
        assert_eq!(says(router, "10.0.0.1", [137, 7, 4, 198, 51, 100, 3, 0]), Some((3, 5)));
        but(router, &STRICT_ELSEWHERE, |router| {
            assert_eq!(says(router, FAR, [137, 7, 8, 198, 51, 100, 3, 0]), Some((3, 5)));
        });
        router.ended(&[("forwarded", 1), ("source_route", 2)]);
    });
}

/// Rule 19. One that leads nowhere is a parameter problem that points at what is wrong.
#[test]
fn a_malformed_source_route_is_a_parameter_problem() {
    everywhere(|router| {
        router.switch(Switch::SourceRoutes(true));
        for (options, pointer) in [
            (&[131, 7, 3, 9, 9, 9, 9, 0][..], 22),
            (&[131, 7, 5, 9, 9, 9, 9, 0], 22),
            (&[131, 2, 0, 0], 21),
            (&[131, 3, 4, 131, 7, 4, 9, 9, 9, 9, 0, 0], 23),
        ] {
            points_at(router, options, pointer);
        }
        but(router, &OPTION_LENGTH, |router| {
            but(router, &OPTION_LENGTH_XDP, |router| points_at(router, &[131, 60, 4, 9, 9, 9, 9, 0], 21));
        });
    });
}

fn points_at(router: &mut dyn Router, options: &[u8], pointer: u32) {
    let said = answer(router, &with("10.0.0.1", options).build()).unwrap();
    assert_eq!((said.says(), said.rest >> 24), ((12, 0), pointer), "{options:?}");
}

/// Rules 9, 19. Nor is it followed in a link broadcast.
#[test]
fn a_source_route_in_a_link_broadcast_leads_nowhere() {
    everywhere(|router| {
        router.switch(Switch::SourceRoutes(true));
        let packet = with("10.0.0.1", &[131, 7, 4, 198, 51, 100, 3, 0]).build();
        dies(router, 0, &ethernet([0xff; 6], host_mac(0, 9), 0x0800, &packet), Verdict::LinkBroadcast);
        let frame = ethernet(port_mac(0), host_mac(0, 9), 0x0800, &packet);
        assert_eq!(router.send(0, &[frame]).len(), 1);
    });
}
