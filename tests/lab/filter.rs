//! The filter on real interfaces, and what the kernel does when the daemon is not there.

use std::{fs, thread, time::Duration};

use nix::sys::signal::Signal;

use crate::{
    needs_lab,
    net::{Lab, SWEEPD, wait_for},
    sockets::{Receiver, Sender},
};

const DENIED: u16 = 7777;
const PERMITTED: u16 = 7778;

/// Denies UDP to one port, whichever way.
fn rules(more: &str) -> String {
    format!("[[acl]]\nname = \"no\"\naction = \"deny\"\nprotocol = \"udp\"\nto_ports = [{DENIED}]\n{more}")
}

/// The tables of nftables' in the router.
fn tables(lab: &Lab) -> String {
    lab.router("nft list tables").ok()
}

/// Lets the router's kernel forward, and shows that it does: the way round sweepd is open.
fn open_kernel(lab: &Lab) {
    lab.router("sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'").ok();
    wait_for("the kernel forwards", || lab.reaches(1, "10.0.2.2"));
}

#[test]
fn nothing_denied_gets_out_when_it_starts_is_reloaded_is_killed_and_starts_again() {
    needs_lab!();
    let lab = Lab::new(2);
    open_kernel(&lab);
    let mut router = lab.start_with("", &rules(""));
    let (got_denied, got) = (Receiver::start(&lab, 2, DENIED), Receiver::start(&lab, 2, PERMITTED));
    let bad = Sender::start(&lab, 1, "10.0.2.2", DENIED);
    let good = Sender::start(&lab, 1, "10.0.2.2", PERMITTED);
    wait_for("both kinds have come", || router.verdict("denied") > 50 && router.verdict("forwarded") > 50);

    // Other rules, several times, the denying one among them at another place.
    for n in 1..=3 {
        lab.configure("", &rules(&format!("[[acl]]\nname = \"more-{n}\"\naction = \"permit\"\n")));
        router.signal(Signal::SIGHUP);
        wait_for("the rules are read", || router.log().matches("configuration read again").count() >= n);
    }
    let config = lab.dir.path().join("sweepd.toml");
    let shown = lab.router(&format!("{SWEEPD} show acl --json --config {}", config.display())).ok();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown[0]["rule"], &shown[0]["action"]), (&"no".into(), &"deny".into()));
    assert!(shown[0]["hits"].as_u64().unwrap() > 50 && shown[1]["rule"] == "more-3", "{shown}");

    for _ in 0..3 {
        router.signal(Signal::SIGKILL);
        assert_eq!(router.wait(), None);
        wait_for("the ports are the kernel's", || !lab.has_program("p1") && !lab.has_program("p2"));
        thread::sleep(Duration::from_millis(100));
        // The host itself goes on as always.
        lab.host(1, "ping -c 1 -W 2 10.0.1.1").ok();
        assert!(!lab.reaches(1, "10.0.2.2"), "the kernel forwards");
        router = lab.start_with("", &rules(""));
        let before = router.verdict("forwarded");
        wait_for("it forwards again", || router.verdict("forwarded") > before + 20);
    }
    assert!(bad.finish() > 100);
    good.finish();
    thread::sleep(Duration::from_millis(100));
    let (leaked, passed) = (got_denied.finish(), got.finish());
    assert!(leaked.is_empty(), "{} denied packets got out", leaked.len());
    assert!(passed.len() > 100, "{}", passed.len());

    // The operator's word takes the barrier away.
    assert!(tables(&lab).contains("sweepd"));
    router.stop();
    assert!(!tables(&lab).contains("sweepd"));
    assert!(lab.reaches(1, "10.0.2.2"), "the kernel does not forward");
}

#[test]
fn on_exit_decides_what_a_killed_one_leaves_and_follows_the_configuration() {
    needs_lab!();
    let lab = Lab::new(2);
    open_kernel(&lab);
    // Without rules nothing is closed; rules that come while it runs close it.
    let mut router = lab.start();
    assert!(!tables(&lab).contains("sweepd"));
    lab.configure("", &rules(""));
    router.signal(Signal::SIGHUP);
    wait_for("the kernel's forwarding is closed", || tables(&lab).contains("sweepd"));
    router.signal(Signal::SIGKILL);
    assert_eq!(router.wait(), None);
    wait_for("the ports are the kernel's", || !lab.has_program("p1") && !lab.has_program("p2"));
    assert!(!lab.reaches(1, "10.0.2.2"), "the kernel forwards");
    // Who wants it open has it opened by the next start.
    let mut router = lab.start_with("on_exit = \"forward\"", &rules(""));
    assert!(!tables(&lab).contains("sweepd"));
    router.signal(Signal::SIGKILL);
    assert_eq!(router.wait(), None);
    wait_for("the kernel forwards", || lab.reaches(1, "10.0.2.2"));
}

#[test]
fn a_refused_reload_leaves_closed_what_was_closed() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start_with("", &rules(""));
    let closed = || lab.router("nft list ruleset").ok();
    let before = closed();
    assert!(before.contains("p1") && before.contains("p2"), "{before}");
    // One port goes, another cannot be opened.
    let file = lab.dir.path().join("sweepd.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("\"xdp:p2\"", "\"xdp:nosuch\"")).unwrap();
    wait_for("it is refused", || router.log().contains("the configuration is refused"));
    assert_eq!(closed(), before);
    // What is taken back is as it was.
    fs::write(&file, text).unwrap();
    router.stop();
    assert!(!tables(&lab).contains("sweepd"));
}
