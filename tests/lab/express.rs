//! Express: plain packets are forwarded in the driver, whatever happens around them.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    needs_lab,
    net::{Lab, Router, SWEEPD, wait_for},
    sockets::{Receiver, Sender, missing_and_double, send_numbers},
};

/// What `show ports` says of the port called `name`.
fn shown(lab: &Lab, name: &str) -> Value {
    let config = lab.dir.path().join("sweepd.toml");
    let text = lab.router(&format!("{SWEEPD} show ports --json --config {}", config.display())).ok();
    let ports: Vec<Value> = serde_json::from_str(&text).unwrap();
    ports.into_iter().find(|port| port["name"] == name).unwrap()
}

fn reload(lab: &Lab) {
    let config = lab.dir.path().join("sweepd.toml");
    lab.router(&format!("{SWEEPD} reload --config {}", config.display())).ok();
}

/// A lab whose hosts take redirected frames.
pub fn lab(hosts: u32) -> Lab {
    let lab = Lab::new(hosts);
    (1..=hosts).for_each(|host| take_frames(&lab, host, true));
    lab
}

/// Switches what makes a veth take redirected frames: its other end's GRO.
pub fn take_frames(lab: &Lab, host: u32, on: bool) {
    lab.host(host, &format!("ethtool -K eth0 gro {}", if on { "on" } else { "off" })).ok();
}

/// Waits until express is on and knows the ways of both families to the host's neighbours.
pub fn is_on(lab: &Lab, router: &Router, hosts: u32) {
    for port in 1..=hosts {
        wait_for("express is on", || {
            let port = shown(lab, &format!("p{port}"));
            port["express"] == "on" && port["takes_frames"] == true
        });
    }
    for host in 2..=hosts {
        for address in [format!("10.0.{host}.2"), format!("fd00:{host}::2")] {
            // Workers know it first. The counters are brought up to date ten times a second.
            wait_for("express knows the way, and the way back", || {
                let before = express(router);
                lab.reaches(1, &address) && {
                    thread::sleep(Duration::from_millis(150));
                    express(router) >= before + 2
                }
            });
        }
    }
    assert!(!router.log().contains("express"), "{}", router.log());
}

/// How many packets express has forwarded on all ports.
fn express(router: &Router) -> u64 {
    router.counters().snapshot().iter().map(|port| port.express).sum()
}

#[test]
fn plain_packets_are_forwarded_in_the_driver_and_counted() {
    needs_lab!();
    let lab = lab(2);
    let mut router = lab.start();
    is_on(&lab, &router, 2);
    let (before, sent_before) = (express(&router), router.counters().snapshot()[1].tx_packets);
    for (address, port) in [("10.0.2.2", 7100), ("fd00:2::2", 7101)] {
        let receiver = Receiver::start(&lab, 2, port);
        send_numbers(&lab, 1, address, port, 2000, 100);
        assert_eq!(missing_and_double(&receiver.finish(), 2000), (vec![], vec![]));
    }
    wait_for("they are counted", || express(&router) >= before + 4000);
    router.adds_up();
    assert!(router.counters().snapshot()[1].tx_packets >= sent_before + 4000);
    assert!(shown(&lab, "p1")["express_packets"].as_u64().unwrap() >= 4000);
    // TCP has its checksums right, and segments that GRO has put together come through.
    lab.host(2, "iperf3 -s -D -1").ok();
    thread::sleep(Duration::from_millis(300));
    lab.host(1, "iperf3 -c 10.0.2.2 -n 20M").ok();
    // What is not plain goes to the worker: the TTL runs out, and the answer comes.
    let text = lab.host(1, "ping -c 1 -W 1 -t 1 10.0.2.2").text;
    assert!(text.contains("Time to live exceeded"), "{text}");
    lab.host(1, "ping -c 1 -W 2 -s 3000 10.0.2.2").ok();
    lab.kernel_has_not_forwarded();
    // A kill takes the program away as well.
    router.signal(Signal::SIGKILL);
    router.wait();
    wait_for("nothing is left", || !lab.has_program("p1") && !lab.has_program("p2"));
}

/// A lab of two hosts whose router forwards by express; its configuration, and what that says.
fn started() -> (Lab, Router, PathBuf, String) {
    let lab = lab(2);
    let router = lab.start();
    is_on(&lab, &router, 2);
    let path = lab.configure("", "");
    let plain = fs::read_to_string(&path).unwrap();
    (lab, router, path, plain)
}

/// Sends numbers by both families while `meanwhile` runs, of which none may be missing.
fn none_is_lost(lab: &Lab, meanwhile: impl FnOnce()) {
    let flows = [("10.0.2.2", 7100), ("fd00:2::2", 7101)];
    let receivers = flows.map(|(_, port)| Receiver::start(lab, 2, port));
    let senders = flows.map(|(to, port)| Sender::start(lab, 1, to, port));
    thread::sleep(Duration::from_millis(50));
    meanwhile();
    thread::sleep(Duration::from_millis(50));
    let sent = senders.map(Sender::finish);
    for (receiver, sent) in receivers.into_iter().zip(sent) {
        assert_eq!(missing_and_double(&receiver.finish(), sent), (vec![], vec![]), "of {sent}");
    }
}

#[test]
fn nothing_passes_a_rule_once_its_reload_is_answered() {
    needs_lab!();
    let (lab, router, path, plain) = started();
    let denying = plain.clone() + "[[acl]]\nname = \"none\"\naction = \"deny\"\nprotocol = \"udp\"\n";
    let by_express = express(&router);
    for round in 0..10 {
        let receiver = Receiver::start(&lab, 2, 7100);
        let sender = Sender::flood(&lab, 1, "10.0.2.2", 7100);
        wait_for("it goes by express", || sender.sent() > 20 && shown(&lab, "p1")["express"] == "on");
        let done = AtomicBool::new(false);
        let sent = thread::scope(|scope| {
            // While routes change, the programs' copies are always some milliseconds behind.
            scope.spawn(|| {
                for n in (0..250).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                    lab.router(&format!("ip route replace 192.0.2.{n}/32 dev p2")).ok();
                }
            });
            thread::sleep(Duration::from_millis(50));
            fs::write(&path, &denying).unwrap();
            reload(&lab);
            let sent = sender.sent();
            done.store(true, Ordering::Relaxed);
            sent
        });
        sender.finish();
        let last = receiver.finish().iter().map(|(n, _)| *n).max().unwrap();
        // One may have been under way.
        assert!(
            last <= sent,
            "round {round}: {last} came, and {sent} had been sent when the rule was in force"
        );
        fs::write(&path, &plain).unwrap();
        reload(&lab);
    }
    assert!(express(&router) > by_express + 100);
}

#[test]
fn express_is_switched_under_traffic_and_nothing_is_lost() {
    needs_lab!();
    let (lab, router, path, plain) = started();
    let with = |line: &str| plain.replace("device = \"xdp:p1\"\n", &format!("device = \"xdp:p1\"\n{line}\n"));
    let acl = "[[acl]]\nname = \"all\"\naction = \"permit\"\n";
    none_is_lost(&lab, || {
        for round in 0..4 {
            for (text, state, reason) in [
                (with("express = \"off\""), "off", "off"),
                (with("express = \"on\""), "on", ""),
                (with("urpf = \"strict\""), "off", "urpf"),
                (plain.clone() + acl, "off", "acl"),
                (plain.clone(), "on", ""),
            ] {
                fs::write(&path, text).unwrap();
                reload(&lab);
                // What is in force is in force at once; the program may come a moment later.
                let is_so = |port: &Value| {
                    port["express"] == state && port["express_reason"].as_str().unwrap_or("") == reason
                };
                wait_for("it is switched", || is_so(&shown(&lab, "p1")));
                if state == "off" {
                    let port = shown(&lab, "p1");
                    assert!(is_so(&port), "round {round}: {port}");
                }
            }
        }
    });
    router.stop();
}

#[test]
fn an_interface_that_takes_no_frames_gets_its_packets_from_workers() {
    needs_lab!();
    let lab = lab(2);
    take_frames(&lab, 2, false);
    let router = lab.start();
    wait_for("p2 takes none", || shown(&lab, "p2")["takes_frames"] == false);
    wait_for("the way is known", || lab.reaches(1, "10.0.2.2") && lab.reaches(1, "fd00:2::2"));
    let text = lab
        .router(&format!("{SWEEPD} show ports --config {}", lab.dir.path().join("sweepd.toml").display()))
        .ok();
    assert!(text.contains("port p2: express is on; its interface takes no redirected frames"), "{text}");
    none_is_lost(&lab, || thread::sleep(Duration::from_millis(200)));
    // The kernel tells of it: from now on they go in the driver, and none is lost on the way there.
    none_is_lost(&lab, || {
        take_frames(&lab, 2, true);
        wait_for("p2 takes them", || shown(&lab, "p2")["takes_frames"] == true);
        thread::sleep(Duration::from_millis(200));
    });
    let before = express(&router);
    none_is_lost(&lab, || thread::sleep(Duration::from_millis(100)));
    wait_for("express forwards", || express(&router) > before + 100);
    router.stop();
}

#[test]
fn another_users_daemon_has_express_as_well() {
    needs_lab!();
    let lab = lab(2);
    fs::set_permissions(lab.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let router = lab.start_with("user = \"nobody\"", "");
    is_on(&lab, &router, 2);
    let before = express(&router);
    none_is_lost(&lab, || thread::sleep(Duration::from_millis(100)));
    wait_for("express forwards", || express(&router) > before + 100);
    router.stop();
}

#[test]
fn a_capture_gets_every_packet() {
    needs_lab!();
    let lab = lab(2);
    let router = lab.start();
    is_on(&lab, &router, 2);
    let config = lab.dir.path().join("sweepd.toml");
    let before = express(&router);
    none_is_lost(&lab, || {
        let text = lab.router(&format!("{SWEEPD} capture p1 -c 200 --config {}", config.display())).ok();
        assert!(text.matches("forwarded").count() >= 200, "{text}");
    });
    wait_for("express is on again", || shown(&lab, "p1")["express"] == "on");
    none_is_lost(&lab, || thread::sleep(Duration::from_millis(100)));
    wait_for("express forwards", || express(&router) > before + 100);
    router.stop();
}
