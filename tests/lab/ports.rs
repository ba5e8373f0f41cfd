//! Ports that come and go while sweepd runs: by the configuration, and because their devices do.

use std::{thread, time::Duration};

use serde_json::Value;

use crate::{
    needs_lab,
    net::{Lab, Router, SWEEPD, wait_for},
    sockets::{Receiver, missing_and_double, send_numbers},
};

/// What `show ports` says of the port called `name`.
fn shown(lab: &Lab, name: &str) -> Option<Value> {
    let config = lab.dir.path().join("sweepd.toml");
    let text = lab.router(&format!("{SWEEPD} show ports --json --config {}", config.display())).ok();
    let ports: Vec<Value> = serde_json::from_str(&text).unwrap();
    ports.into_iter().find(|port| port["name"] == name)
}

fn reload(lab: &Lab) -> (i32, String) {
    let config = lab.dir.path().join("sweepd.toml");
    let ran = lab.router(&format!("{SWEEPD} reload --config {}", config.display()));
    (ran.code, ran.text)
}

/// Numbers from host 1 to host 2 while `meanwhile` runs, of which none may be missing.
fn none_is_lost(lab: &Lab, router: &Router, count: u32, meanwhile: impl FnOnce()) {
    wait_for("the way is known", || lab.reaches(1, "10.0.2.2"));
    let receiver = Receiver::start(lab, 2, 7100);
    let before = router.verdict("forwarded");
    thread::scope(|scope| {
        let sender = scope.spawn(|| send_numbers(lab, 1, "10.0.2.2", 7100, count, 100));
        meanwhile();
        sender.join().unwrap();
    });
    assert_eq!(missing_and_double(&receiver.finish(), count), (vec![], vec![]));
    assert!(router.verdict("forwarded") >= before + u64::from(count));
}

#[test]
fn a_port_comes_and_goes_by_reload_and_two_others_lose_nothing() {
    needs_lab!();
    let lab = Lab::new(3);
    let mut router = lab.start_ports(2);
    none_is_lost(&lab, &router, 40_000, || {
        for round in 0..2 {
            lab.configure("", "");
            assert_eq!(reload(&lab).0, 0, "{}", router.log());
            wait_for("the port is there", || shown(&lab, "p3").is_some_and(|port| port["state"] == "up"));
            assert!(lab.has_program("p3"));
            wait_for("it forwards", || lab.reaches(3, "10.0.1.2") && lab.reaches(1, "fd00:3::2"));
            lab.configure_ports(2, "", "");
            assert_eq!(reload(&lab).0, 0, "round {round}: {}", router.log());
            assert!(shown(&lab, "p3").is_none());
            assert!(!lab.has_program("p3"), "the interface is the kernel's again");
        }
    });
    let log = router.log();
    assert!(log.contains(": port p3 added\n") && log.contains(": port p3 removed\n"), "{log}");
    assert!(router.is_running());
    router.stop();
}

#[test]
fn a_port_that_cannot_be_opened_changes_nothing() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    none_is_lost(&lab, &router, 5_000, || {
        lab.configure("", "[[port]]\nname = \"p9\"\ndevice = \"xdp:p9\"\n[[route]]\nto = \"192.0.2.0/24\"\ntype = \"blackhole\"\n");
        let (code, text) = reload(&lab);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("xdp:p9: no such interface"), "{text}");
    });
    assert!(shown(&lab, "p9").is_none());
    assert!(!lab.reaches(1, "192.0.2.1"));
    assert_eq!(router.verdict("blackhole"), 0);
    router.stop();
}

#[test]
fn an_interface_deleted_and_made_again_is_a_port_again_without_a_restart() {
    needs_lab!();
    let lab = Lab::new(3);
    let mut router = lab.start();
    for round in 0..2 {
        wait_for("it forwards", || lab.reaches(1, "10.0.3.2"));
        none_is_lost(&lab, &router, 30_000, || {
            lab.router("ip link del p3").ok();
            wait_for("it is gone", || shown(&lab, "p3").is_some_and(|port| port["state"] == "gone"));
            assert!(shown(&lab, "p3").unwrap()["reason"].is_string());
            lab.wire(3, 1);
            let took = wait_for("it is back", || shown(&lab, "p3").is_some_and(|port| port["state"] == "up"));
            println!("round {round}: back after {took:?}");
        });
        wait_for("its routes live again", || lab.reaches(1, "10.0.3.2") && lab.reaches(3, "fd00:1::2"));
    }
    let log = router.log();
    assert_eq!(log.matches("port p3: its device xdp:p3 is gone").count(), 2, "{log}");
    assert_eq!(log.matches("port p3: its device xdp:p3 is back").count(), 2, "{log}");
    assert!(router.is_running());
    router.stop();
}

#[test]
fn why_a_device_cannot_be_opened_again_is_told_once() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    lab.router("ip link del p2").ok();
    wait_for("it is gone", || shown(&lab, "p2").is_some_and(|port| port["state"] == "gone"));
    lab.router("ip link add p2 mtu 9000 type veth peer name other").ok();
    lab.router("ip link set other up").ok();
    lab.router("ip link set p2 up").ok();
    let tells = |port: Value| port["reason"].as_str().is_some_and(|reason| reason.contains("MTU 9000"));
    wait_for("the reason is shown", || shown(&lab, "p2").is_some_and(tells));
    thread::sleep(Duration::from_millis(2500));
    let log = router.log();
    assert_eq!(log.matches("port p2: cannot be opened again yet: xdp:p2: MTU 9000").count(), 1, "{log}");
    lab.router("ip link set p2 mtu 1500").ok();
    wait_for("it is back", || shown(&lab, "p2").is_some_and(|port| port["state"] == "up"));
    router.stop();
}

#[test]
fn an_interface_with_another_name_is_still_the_port() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    wait_for("it forwards", || lab.reaches(1, "10.0.2.2"));
    // A name is changed while the interface is up, as a device manager does.
    let renamed = lab.router("ip link set p2 name wan0");
    if renamed.code != 0 {
        // Older kernels want it down for that.
        lab.router("sh -c 'ip link set p2 down; ip link set p2 name wan0; ip link set wan0 up'").ok();
        lab.router("ip -6 addr replace fd00:2::1/64 dev wan0 nodad").ok();
    }
    wait_for("it is told", || router.log().contains("is called wan0 now"));
    wait_for("it goes on", || lab.reaches(1, "10.0.2.2") && lab.reaches(2, "10.0.1.2"));
    thread::sleep(Duration::from_millis(1500));
    assert!(lab.reaches(1, "10.0.2.2"));
    assert_eq!(router.log().matches("is called").count(), 1, "{}", router.log());
    assert!(!router.log().contains("is gone"), "{}", router.log());
    router.stop();
}
