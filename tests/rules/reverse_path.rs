//! The reverse path check of sources: RFC 1812 section 5.3.8, RFC 3704.
//!
//! Between pipes only: each of them needs a router with other switches

use sweepd::forward::verdict::Verdict;
use sweepd::tables::{Action, ReversePath, fixed};

use crate::common::{Tube, host_mac, port_mac};
use crate::packets::{Ip4, ethernet, udp6};
use crate::router::{FAR, FAR6, NEAR, NEAR6, answer, dies, pass, plain, router, to_router};

/// The router, with sources checked at port 0.
fn checking(how: ReversePath) -> Tube {
    let mut tube = router();
    tube.change_ports(|port, table| table.reverse_path = if port == 0 { how } else { ReversePath::Off });
    tube
}

/// A packet to FAR from this source, and whether it is IPv6.
fn from(source: &str) -> Vec<u8> {
    if source.contains(':') { udp6(source, FAR6, 64, 10) } else { Ip4::udp(source, FAR, 10).build() }
}

/// The packet passes, by the stages and by the careful path alone.
fn passes(tube: &mut Tube, source: &str) {
    let packet = to_router(0, &from(source));
    assert_eq!(tube.pass(0, &packet).len(), 1, "{source}: {:?}", tube.verdicts());
    assert_eq!(tube.pass_carefully(0, &packet).1.len(), 1, "{source}");
}

/// The packet dies by the check, in either way.
fn fails(tube: &mut Tube, source: &str) {
    let packet = to_router(0, &from(source));
    dies(tube, 0, &packet, Verdict::ReversePath);
    assert_eq!(tube.pass_carefully(0, &packet), (Verdict::ReversePath.into(), vec![]), "{source}");
}

/// Rule 18. Without a word nothing is checked; and a port's check is that port's alone.
#[test]
fn sources_are_not_checked_by_default() {
    let mut tube = router();
    for source in [NEAR, "198.51.100.9", "8.8.8.8", NEAR6, "2001:db8:cafe::9", "2a00::1"] {
        passes(&mut tube, source);
    }
    let mut tube = checking(ReversePath::Strict);
    let packet = Ip4::udp("8.8.8.8", NEAR, 10).build();
    assert_eq!(tube.pass(1, &to_router(1, &packet)).len(), 1);
}

/// Rule 18. Strict: the way back leads out of the port that the packet came in by.
#[test]
fn strict_takes_what_the_way_back_leads_to() {
    let mut tube = checking(ReversePath::Strict);
    for source in [NEAR, NEAR6, "10.0.0.9", "10.0.0.77", "2001:db8:0::77"] {
        passes(&mut tube, source);
    }
    for source in ["198.51.100.9", "203.0.113.9", "10.0.1.9", "10.0.1.77", "8.8.8.8"] {
        fails(&mut tube, source);
    }
    for source in ["2001:db8:cafe::9", "2001:db8:1::77", "2a00::1"] {
        fails(&mut tube, source);
    }
}

/// Rule 18. Loose: there is a way back, wherever it leads.
#[test]
fn loose_takes_what_has_a_way_back() {
    let mut tube = checking(ReversePath::Loose);
    let host = fixed::HOST;
    tube.routes.add("100.64.0.0/16", host);
    for (prefix, id) in [
        ("8.1.0.0/16", fixed::UNREACHABLE),
        ("8.2.0.0/16", fixed::PROHIBIT),
        ("8.3.0.0/16", fixed::BLACKHOLE),
        ("2a00:3::/32", fixed::BLACKHOLE),
    ] {
        tube.routes.add(prefix, id);
    }
    tube.publish();
    for source in [NEAR, "198.51.100.9", "10.0.1.77", "100.64.0.9", NEAR6, "2001:db8:cafe::9"] {
        passes(&mut tube, source);
    }
    for source in ["8.1.0.9", "8.2.0.9", "8.3.0.9", "9.9.9.9", "2a00:3::1", "2a00:4::1"] {
        fails(&mut tube, source);
    }
    // Strict has no use for a way by a device that is no port.
    tube.change_ports(|_, table| table.reverse_path = ReversePath::Strict);
    fails(&mut tube, "100.64.0.9");
}

/// Rule 18. A default route is a way like any other (RFC 3704 2.2, 2.4): loose then takes every
/// source but those whose routes refuse; strict takes them on the default route's port.
#[test]
fn a_default_route_is_a_way_back() {
    let mut tube = checking(ReversePath::Loose);
    let (left, right) = (tube.routes.hop(0, 9, 1500), tube.routes.hop(1, 9, 1500));
    for prefix in ["0.0.0.0/0", "::/0"] {
        tube.routes.add(prefix, right);
    }
    tube.routes.add("8.3.0.0/16", fixed::BLACKHOLE);
    tube.publish();
    for source in ["9.9.9.9", "2a00::1"] {
        passes(&mut tube, source);
    }
    fails(&mut tube, "8.3.0.9");
    tube.change_ports(|_, table| table.reverse_path = ReversePath::Strict);
    for source in ["9.9.9.9", "2a00::1"] {
        fails(&mut tube, source);
    }
    for prefix in ["0.0.0.0/0", "::/0"] {
        tube.routes.add(prefix, left);
    }
    tube.publish();
    for source in ["9.9.9.9", "2a00::1"] {
        passes(&mut tube, source);
    }
    fails(&mut tube, "198.51.100.9");
}

/// Rule 18. Of several next hops any will do (RFC 8704 2.3), also one that no packet is sent to now.
#[test]
fn strict_takes_a_source_behind_any_of_several_next_hops() {
    let mut tube = checking(ReversePath::Strict);
    let (left, right) = (tube.routes.hop(0, 9, 1500), tube.routes.hop(1, 9, 1500));
    let waiting = tube.routes.action(Action::Resolve, 0, Some("10.0.0.50".parse().unwrap()));
    let mut buckets = [right; 256];
    let behind_one = tube.routes.group(buckets);
    buckets[77] = left;
    let behind_both = tube.routes.group(buckets);
    buckets[77] = waiting;
    let behind_waiting = tube.routes.group(buckets);
    for (prefix, id) in
        [("9.1.0.0/16", behind_one), ("9.2.0.0/16", behind_both), ("9.3.0.0/16", behind_waiting)]
    {
        tube.routes.add(prefix, id);
    }
    tube.publish();
    fails(&mut tube, "9.1.0.9");
    passes(&mut tube, "9.2.0.9");
    passes(&mut tube, "9.3.0.9");
}

/// Rules 12, 18. In silence, whatever else is wrong with the packet.
#[test]
fn nobody_is_told_of_a_failed_check() {
    let mut tube = checking(ReversePath::Strict);
    let spoofed = |ttl| Ip4::udp("198.51.100.9", FAR, 10).ttl(ttl);
    assert_eq!(answer(&mut tube, &spoofed(1).build()), None);
    assert_eq!(answer(&mut tube, &Ip4::udp("198.51.100.9", "8.8.8.8", 10).build()), None);
    let mut options = spoofed(64);
    options.options = vec![1; 4];
    assert_eq!(answer(&mut tube, &options.build()), None);
    assert_eq!(tube.verdicts(), [("reverse_path", 3)]);
}

/// Rules 8, 18, 34. Sources that are no host's keep their own verdicts, and what is the host's is not
/// checked: it is not forwarded.
#[test]
fn what_is_not_forwarded_is_not_checked() {
    let mut tube = checking(ReversePath::Strict);
    for (source, verdict) in
        [("0.0.0.0", Verdict::Martian), ("127.0.0.1", Verdict::Martian), ("169.254.7.7", Verdict::LinkLocal)]
    {
        dies(&mut tube, 0, &to_router(0, &Ip4::udp(source, FAR, 9).build()), verdict);
    }
    assert_eq!(answer(&mut tube, &udp6("fe80::9", FAR6, 64, 9)).map(|a| a.says()), Some((1, 2)));
    let discover = Ip4::udp("0.0.0.0", "255.255.255.255", 300).build();
    assert_eq!(tube.pass(0, &ethernet([0xff; 6], host_mac(0, 9), 0x0800, &discover)), []);
    assert_eq!(tube.count(Verdict::ReversePath), 0);
    // An echo request to the router itself, from behind the other port.
    let mut echo = Ip4::udp("198.51.100.3", "10.0.0.1", 0);
    (echo.protocol, echo.payload) = (1, vec![8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
    assert_eq!(pass(&mut tube, &echo.build()).len(), 1);
    assert_eq!(tube.count(Verdict::ReversePath), 0);
}

/// Rule 18. In a burst the others go on, in order, and each is counted for what it is.
#[test]
fn only_the_spoofed_packets_of_a_burst_die() {
    let mut tube = checking(ReversePath::Strict);
    let mut expected = Vec::new();
    for i in 0..60 {
        let source = if i % 3 == 1 { "198.51.100.9" } else { NEAR };
        let mut packet = Ip4::udp(source, FAR, i);
        packet.id = i as u16;
        if source == NEAR {
            expected.push(42 + i);
        }
        tube.inject(0, &ethernet(port_mac(0), host_mac(0, 9), 0x0800, &packet.build()));
    }
    tube.settle();
    tube.check();
    assert_eq!(tube.arrived(1).iter().map(Vec::len).collect::<Vec<_>>(), expected);
    assert_eq!(tube.verdicts(), [("forwarded", 40), ("reverse_path", 20)]);
    tube.change_ports(|_, table| table.reverse_path = ReversePath::Off);
    assert_eq!(pass(&mut tube, &plain().build()).len(), 1);
}
