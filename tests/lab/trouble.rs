//! Packets that cannot go on, and neighbours that do not answer, or not yet, or differently.

use std::{thread, time::Duration};

use crate::{
    needs_lab,
    net::{Lab, wait_for},
    sockets::{Receiver, Sender, connect, exchange, missing_and_double, send_numbers},
};

#[test]
fn packets_too_big_are_fragmented_or_answered() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    lab.host(1, "ping -c 1 -W 2 -s 1472 -M do 10.0.2.2").ok();
    lab.router("ip link set p2 mtu 1400").ok();
    lab.host(2, "ip link set eth0 mtu 1400").ok();
    wait_for("the new MTU is in force", || {
        lab.host(1, "ping -c 1 -W 1 -s 1472 -M dont 10.0.2.2").ok();
        router.verdict("fragmented") > 0
    });
    assert_eq!(router.verdict("too_big"), 0);
    let text = lab.host(1, "ping -c 1 -W 2 -s 1472 -M do 10.0.2.2").text;
    assert!(text.contains("From 10.0.1.1") && text.contains("(mtu = 1400)"), "{text}");
    assert_eq!(router.verdict("too_big"), 1);
    // What fits exactly goes on as it is.
    lab.host(1, "ping -c 1 -W 2 -s 1372 -M do 10.0.2.2").ok();
    let text = lab.host(1, "ping -c 1 -W 2 -s 1452 -M do fd00:2::2").text;
    assert!(text.contains("From fd00:1::1") && text.contains("Packet too big: mtu=1400"), "{text}");
    assert_eq!(router.verdict("too_big"), 2);
    lab.host(1, "ping -c 1 -W 2 -s 1352 -M do fd00:2::2").ok();
    lab.host(1, "ping -c 1 -W 2 -s 4000 -M want fd00:2::2").ok();
    router.stop();
}

#[test]
fn tcp_finds_the_path_mtu() {
    needs_lab!();
    let lab = Lab::new(2);
    lab.router("ip link set p2 mtu 1300").ok();
    lab.host(2, "ip link set eth0 mtu 1300").ok();
    // The far host invites segments as long as its own link does not take, so that the near one
    // has to learn it from the router.
    lab.host(2, "ip route replace default via 10.0.2.1 advmss 1460").ok();
    lab.host(2, "ip -6 route replace default via fd00:2::1 advmss 1440").ok();
    let router = lab.start();
    for address in ["10.0.2.2", "fd00:2::2"] {
        let listener = lab.in_host(2, || std::net::TcpListener::bind((address, 0)).unwrap());
        let to = listener.local_addr().unwrap();
        let (server, caller) =
            connect(listener, || lab.in_host(1, || std::net::TcpStream::connect(to).unwrap()));
        let before = router.verdict("too_big");
        exchange(server, caller, 1 << 20);
        assert!(router.verdict("too_big") > before, "{address}");
    }
    router.stop();
}

#[test]
fn each_kind_of_route_answers_as_it_should() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    for (kind, net4, net6) in [
        ("unreachable", "198.51.100.0/26", "2001:db8:1::/48"),
        ("prohibit", "198.51.100.64/26", "2001:db8:2::/48"),
        ("blackhole", "198.51.100.128/26", "2001:db8:3::/48"),
    ] {
        lab.router(&format!("ip route add {kind} {net4}")).ok();
        lab.router(&format!("ip -6 route add {kind} {net6}")).ok();
    }
    thread::sleep(Duration::from_millis(100));
    for (address, answer, verdict) in [
        ("198.51.100.1", "From 10.0.1.1 icmp_seq=1 Destination Host Unreachable", "unreachable"),
        ("198.51.100.65", "From 10.0.1.1 icmp_seq=1 Packet filtered", "prohibited"),
        ("198.51.100.129", "", "blackhole"),
        ("203.0.113.1", "From 10.0.1.1 icmp_seq=1 Destination Net Unreachable", "no_route"),
        ("2001:db8:1::1", "From fd00:1::1 icmp_seq=1 Destination unreachable: No route", "unreachable"),
        (
            "2001:db8:2::1",
            "From fd00:1::1 icmp_seq=1 Destination unreachable: Administratively prohibited",
            "prohibited",
        ),
        ("2001:db8:3::1", "", "blackhole"),
        ("2001:db8:4::1", "From fd00:1::1 icmp_seq=1 Destination unreachable: No route", "no_route"),
    ] {
        let before = router.verdict(verdict);
        let ran = lab.host(1, &format!("ping -c 1 -W 1 {address}"));
        assert_eq!(ran.code, 1, "{address}: {}", ran.text);
        match answer {
            "" => assert!(!ran.text.contains("From"), "{address}: {}", ran.text),
            answer => assert!(ran.text.contains(answer), "{address}: {}", ran.text),
        }
        assert_eq!(router.verdict(verdict), before + 1, "{address}");
    }
    router.stop();
}

#[test]
fn a_neighbor_that_does_not_answer_is_unreachable_after_some_seconds() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    for (address, answer) in [
        ("10.0.2.77", "From 10.0.1.1 icmp_seq=1 Destination Host Unreachable"),
        ("fd00:2::77", "From fd00:1::1 icmp_seq=1 Destination unreachable: Address unreachable"),
    ] {
        let ran = lab.host(1, &format!("ping -c 1 -W 8 {address}"));
        assert!(ran.code == 1 && ran.text.contains(answer), "{}", ran.text);
    }
    assert_eq!(router.verdict("neighbor_failed"), 2);
    router.stop();
}

#[test]
fn a_host_that_comes_up_late_gets_what_was_held() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    for (address, mask) in [("10.0.2.9", 24), ("fd00:2::9", 64)] {
        let receiver = Receiver::start(&lab, 2, 7005);
        send_numbers(&lab, 1, address, 7005, 5, 200);
        wait_for("they are held", || {
            router.counters().snapshot().iter().map(|port| port.held).sum::<u64>() == 5
        });
        thread::sleep(Duration::from_millis(500));
        lab.host(2, &format!("ip addr add {address}/{mask} dev eth0")).ok();
        wait_for("none is held", || router.counters().snapshot().iter().all(|port| port.held == 0));
        let got: Vec<u32> = receiver.finish().into_iter().map(|(n, _)| n).collect();
        assert_eq!(got, [0, 1, 2, 3, 4], "{address}");
    }
    router.stop();
}

#[test]
fn an_announced_new_mac_address_is_followed_at_once() {
    needs_lab!();
    let lab = Lab::new(2);
    lab.host(2, "sh -c 'echo 1 >/proc/sys/net/ipv4/conf/eth0/arp_notify'").ok();
    lab.host(2, "sh -c 'echo 1 >/proc/sys/net/ipv6/conf/eth0/ndisc_notify'").ok();
    let router = lab.start();
    lab.host(1, "ping -c 1 -W 2 10.0.2.2").ok();
    // The kernel believes no new address for a second (locktime).
    thread::sleep(Duration::from_millis(1100));
    lab.host(2, "ip link set eth0 address 02:00:00:00:02:99").ok();
    let took = wait_for("the new address is used", || lab.reaches(1, "10.0.2.2"));
    assert!(took < Duration::from_secs(3), "{took:?}");
    router.stop();
}

#[test]
fn a_silently_changed_mac_address_is_noticed_within_a_minute() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    lab.host(1, "ping -c 1 -W 2 10.0.2.2").ok();
    lab.host(1, "ping -c 1 -W 2 fd00:2::2").ok();
    lab.host(2, "ip link set eth0 address 02:00:00:00:02:99").ok();
    assert!(!lab.reaches(1, "10.0.2.2"), "nobody knows yet");
    // One ping a second in either family, until one each is answered.
    for address in ["10.0.2.2", "fd00:2::2"] {
        let text = lab.host(
            1,
            &format!(
                "sh -c 'for i in $(seq 60); do ping -c 1 -W 1 {address} && echo after $i && exit; done'"
            ),
        );
        println!("{address}: {}", text.text.lines().last().unwrap_or_default());
        assert!(text.text.contains("after"), "{address}: not within a minute");
    }
    router.stop();
}

#[test]
fn a_link_that_goes_down_and_up_is_used_again() {
    needs_lab!();
    let lab = Lab::new(2);
    let mut router = lab.start();
    lab.host(1, "ping -c 1 -W 2 10.0.2.2").ok();
    // Administratively.
    lab.router("ip link set p2 down").ok();
    let text = lab.host(1, "ping -c 2 -i 0.2 -W 1 10.0.2.2").text;
    assert!(text.contains("From 10.0.1.1") && text.contains("Unreachable"), "{text}");
    lab.router("ip link set p2 up").ok();
    wait_for("it goes on", || lab.reaches(1, "10.0.2.2"));
    // By its carrier.
    lab.host(2, "ip link set eth0 down").ok();
    assert!(!lab.reaches(1, "10.0.2.2"));
    lab.host(2, "ip link set eth0 up").ok();
    lab.host(2, "ip route add default via 10.0.2.1").ok();
    wait_for("it goes on", || lab.reaches(1, "10.0.2.2"));
    assert!(router.is_running());
    let receiver = Receiver::start(&lab, 2, 7006);
    send_numbers(&lab, 1, "10.0.2.2", 7006, 500, 100);
    assert_eq!(missing_and_double(&receiver.finish(), 500), (vec![], vec![]));
    router.stop();
}

#[test]
fn ports_that_flap_under_load_are_not_stuck() {
    needs_lab!();
    let lab = Lab::with_queues(&[2, 1]);
    let router = lab.start_with("cpus = [0, 1]", "");
    wait_for("it forwards", || lab.reaches(1, "10.0.2.2"));
    let load = [(1, "10.0.2.2"), (2, "10.0.1.2")].map(|(from, to)| Sender::flood(&lab, from, to, 7007));
    for _ in 0..5 {
        lab.router("ip link set p2 down").ok();
        thread::sleep(Duration::from_millis(100));
        lab.router("ip link set p2 up").ok();
        thread::sleep(Duration::from_millis(300));
    }
    for load in load {
        assert!(load.finish() > 1000);
    }
    wait_for("it forwards again", || lab.reaches(1, "10.0.2.2") && lab.reaches(2, "10.0.1.2"));
    let receiver = Receiver::start(&lab, 2, 7008);
    send_numbers(&lab, 1, "10.0.2.2", 7008, 1000, 100);
    assert_eq!(missing_and_double(&receiver.finish(), 1000), (vec![], vec![]));
    // Each complaint at most once, and none of a device that would be gone.
    assert!(!router.log().contains("is gone"), "{}", router.log());
    assert!(router.log().lines().count() < 20, "{}", router.log());
    router.stop();
}
