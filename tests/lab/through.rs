//! What goes through the router, and what is the router's own.

use std::{
    net::{TcpListener, TcpStream},
    time::Duration,
};

use crate::{
    needs_lab,
    net::{Lab, Router, SOON, SWEEPD, sh, wait_for},
    sockets::{Receiver, connect, exchange, missing_and_double, send_numbers},
};

const MIB: usize = 1 << 20;

/// TCP both ways between two hosts, and every UDP datagram, in both families.
fn everything_goes_through(lab: &Lab, router: &Router) {
    for (from, to, address) in
        [(1, 2, "10.0.2.2"), (2, 1, "10.0.1.2"), (1, 2, "fd00:2::2"), (2, 1, "fd00:1::2")]
    {
        let listener = lab.in_host(to, || TcpListener::bind((address, 0)).unwrap());
        let to_listener = listener.local_addr().unwrap();
        let (server, caller) =
            connect(listener, || lab.in_host(from, || TcpStream::connect(to_listener).unwrap()));
        exchange(server, caller, 4 * MIB);
        let before = router.verdict("forwarded");
        let receiver = Receiver::start(lab, to, 7000);
        send_numbers(lab, from, address, 7000, 1000, 1000);
        let got = receiver.finish();
        assert_eq!(
            missing_and_double(&got, 1000),
            (vec![], vec![]),
            "{from} to {address}: {:#?}",
            router.counters().snapshot()
        );
        let forwarded = router.verdict("forwarded") - before;
        assert!(forwarded >= 1000, "{forwarded} packets went through sweepd");
    }
    lab.kernel_has_not_forwarded();
}

#[test]
fn tcp_and_udp_go_through_in_both_directions_and_families() {
    needs_lab!();
    let lab = Lab::new(2);
    assert!(!lab.reaches(1, "10.0.2.2"), "nothing else forwards");
    assert!(!lab.reaches(1, "fd00:2::2"), "nothing else forwards");
    let router = lab.start();
    everything_goes_through(&lab, &router);
    router.stop();
    assert!(!lab.reaches(1, "10.0.2.2"), "nothing else forwards");
}

#[test]
fn iperf3_goes_through() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    for options in ["-c 10.0.2.2", "-c fd00:2::2 -R", "-c 10.0.2.2 -u -b 20M", "-c fd00:2::2 -u -b 20M -R"] {
        let _server = lab.host_starts(2, "iperf3 -s -1");
        wait_for("iperf3 listens", || !lab.host(2, "ss -Hltn sport = :5201").ok().is_empty());
        let before = router.verdict("forwarded");
        let text = lab.host(1, &format!("timeout 20 iperf3 {options} -t 2 -f m")).ok();
        let line = text.lines().rev().find(|line| line.ends_with("receiver")).unwrap();
        println!("iperf3 {options}: {}", line.trim());
        let rate: f64 = {
            let words: Vec<_> = line.split_whitespace().collect();
            let unit = words.iter().position(|word| *word == "Mbits/sec").unwrap();
            words[unit - 1].parse().unwrap()
        };
        // Far below what a busy machine manages; TCP with wrong checksums would be at zero.
        assert!(rate > 5.0, "{line}");
        assert!(router.verdict("forwarded") - before > 1000);
    }
    lab.kernel_has_not_forwarded();
    router.stop();
}

#[test]
fn two_workers_and_ports_of_one_and_two_queues_lose_nothing() {
    needs_lab!();
    for queues in [[2, 1], [2, 2]] {
        let lab = Lab::with_queues(&queues);
        let router = lab.start_with("cpus = [0, 1]", "");
        assert!(router.log().contains("2 workers: forwarding"), "{}", router.log());
        assert!(router.log().contains("2 rings)"), "{}", router.log());
        everything_goes_through(&lab, &router);
        // The host's side is there whichever ring it comes by.
        for flow in 0..8 {
            lab.host(1, &format!("ping -c 1 -W 2 -p {flow:02x} 10.0.2.1")).ok();
            lab.host(2, &format!("ping -c 1 -W 2 -p {flow:02x} fd00:1::1")).ok();
        }
        router.stop();
    }
}

#[test]
fn ping_and_traceroute_show_the_router() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    for (address, hop) in [("10.0.2.2", "10.0.1.1"), ("fd00:2::2", "fd00:1::1")] {
        let text = lab.host(1, &format!("ping -c 3 -i 0.2 -W 2 {address}")).ok();
        assert!(text.contains("ttl=63") && text.contains(" 0% packet loss"), "{text}");
        // One hop after the other, as the tool's many questions at once make too many errors.
        let text = lab.host(1, &format!("traceroute -n -q 1 -N 1 -w 2 {address}")).ok();
        let hops: Vec<_> = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(hops, [hop, address], "{text}");
    }
    assert!(router.verdict("ttl_expired") >= 2);
    router.stop();
}

#[test]
fn the_routers_own_addresses_answer() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    for address in ["10.0.1.1", "10.0.2.1", "fd00:1::1", "fd00:2::1"] {
        lab.host(1, &format!("ping -c 2 -i 0.2 -W 2 {address}")).ok();
    }
    // ARP and neighbour discovery brought these.
    let neighbors = lab.host(1, "ip neigh").ok();
    assert!(neighbors.contains("10.0.1.1 dev eth0 lladdr"), "{neighbors}");
    assert!(neighbors.contains("fd00:1::1 dev eth0 lladdr"), "{neighbors}");
    // And the link-local address, which no route leads to.
    let link = lab.router("ip -6 -br addr show dev p1 scope link").ok();
    let address = link.split_whitespace().find(|word| word.starts_with("fe80")).unwrap();
    let address = address.split('/').next().unwrap();
    lab.host(1, &format!("ping -c 2 -i 0.2 -W 2 {address}%eth0")).ok();
    // An address added later is the host's at once.
    lab.router("ip addr add 192.0.2.99/32 dev lo").ok();
    wait_for("a new address answers", || lab.reaches(1, "192.0.2.99"));
    router.stop();
}

#[test]
fn a_listener_on_the_router_is_reached() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    for address in ["10.0.1.1", "10.0.2.1", "fd00:1::1", "fd00:2::1"] {
        let listener = lab.in_router(|| TcpListener::bind((address, 0)).unwrap());
        let to = listener.local_addr().unwrap();
        let (server, caller) = connect(listener, || lab.in_host(1, || TcpStream::connect(to).unwrap()));
        exchange(server, caller, MIB / 2);
    }
    // And from the router to a host.
    let listener = lab.in_host(2, || TcpListener::bind("[::]:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    let (server, caller) =
        connect(listener, || lab.in_router(|| TcpStream::connect(("10.0.2.2", port)).unwrap()));
    exchange(server, caller, MIB / 2);
    router.stop();
}

#[test]
fn stat_shows_what_goes_through() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    let config = lab.dir.path().join("sweepd.toml");
    let pings = lab.host_starts(1, "ping -i 0.01 -c 400 10.0.2.2");
    let text = sh(&format!("{} stat -w 1 -q 2 --config {}", SWEEPD, config.display())).ok();
    drop(pings);
    let last: Vec<u64> =
        text.lines().last().unwrap().split_whitespace().map(|number| number.parse().unwrap()).collect();
    // Packets in and out of two ports: each echo and its reply are one each.
    assert!(last[0] >= 20 && last[4] >= 20, "{text}");
    router.stop();
}

#[test]
fn unfinished_checksums_are_told_with_the_command_that_helps() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    lab.host(1, "ethtool -K eth0 tx on").ok();
    let listener = lab.in_host(2, || TcpListener::bind("10.0.2.2:0").unwrap());
    let to = listener.local_addr().unwrap();
    let dial = |patience| lab.in_host(1, || TcpStream::connect_timeout(&to, patience));
    for _ in 0..4 {
        assert!(dial(Duration::from_millis(200)).is_err(), "the checksums were right after all");
    }
    wait_for("the log says why", || router.log().contains("port p1: TCP arrives with wrong checksums"));
    let said = router.log().matches("ethtool -K").count();
    lab.host(1, "ethtool -K eth0 tx off").ok();
    dial(SOON).unwrap();
    assert_eq!(said, 1);
    router.stop();
}

#[test]
fn show_tells_what_is_there() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    lab.router("ip route add 192.0.2.0/24 via 10.0.2.2").ok();
    lab.host(1, "ping -c 2 -i 0.2 -W 2 10.0.2.2").ok();
    let show = |what: &str| {
        sh(&format!("{SWEEPD} show {what} --config {}", lab.dir.path().join("sweepd.toml").display())).ok()
    };
    wait_for("the route is there", || show("routes").contains("192.0.2.0/24"));
    let text = show("routes 192.0.2.9");
    assert!(text.contains("192.0.2.0/24") && text.contains("10.0.2.2"), "{text}");
    let text = show("ports");
    assert!(text.contains("p1") && text.contains("xdp:p2"), "{text}");
    let text = show("neighbors");
    assert!(text.contains("10.0.1.2") && text.contains("10.0.2.2"), "{text}");
    let verdicts: serde_json::Value = serde_json::from_str(&show("verdicts --json")).unwrap();
    assert!(verdicts["forwarded"].as_u64().unwrap() >= 4, "{verdicts}");
    let tables: serde_json::Value = serde_json::from_str(&show("tables --json")).unwrap();
    assert!(tables["fib4_prefixes"].as_u64().unwrap() >= 3, "{tables}");
    router.stop();
}
