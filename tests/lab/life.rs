//! How sweepd begins and ends: signals, and what the kernel does afterwards.

use std::{thread, time::Duration};

use nix::sys::signal::Signal;

use crate::{
    needs_lab,
    net::{Lab, SWEEPD},
    sockets::{Receiver, Sender, missing_and_double},
};

#[test]
fn a_signal_ends_it_and_the_kernel_goes_on() {
    needs_lab!();
    let lab = Lab::new(2);
    lab.router("sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'").ok();
    lab.router("sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/forwarding'").ok();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut router = lab.start();
        assert!(lab.has_program("p1") && lab.has_program("p2"));
        lab.host(1, "ping -c 2 -i 0.1 -W 2 10.0.2.2").ok();
        assert!(router.verdict("forwarded") >= 4);
        router.adds_up();
        router.signal(signal);
        assert_eq!(router.wait(), Some(0), "{}", router.log());
        assert!(router.log().ends_with("ended; the ports are the kernel's again\n"), "{}", router.log());
        assert!(!lab.has_program("p1") && !lab.has_program("p2"));
        assert_eq!(std::fs::read_dir(lab.runtime_dir()).unwrap().count(), 0, "files are left");
        lab.host(1, "ping -c 2 -i 0.1 -W 2 10.0.2.2").ok();
        lab.host(1, "ping -c 2 -i 0.1 -W 2 fd00:2::2").ok();
    }
}

#[test]
fn a_signal_while_it_starts_leaves_nothing_behind() {
    needs_lab!();
    let lab = Lab::new(2);
    lab.configure("", "");
    for ms in (0..60).step_by(2).chain([80, 120, 160]) {
        let mut router = lab.launch("");
        thread::sleep(Duration::from_millis(ms));
        router.signal(Signal::SIGTERM);
        // None: before it could listen to signals.
        let code = router.wait();
        assert!(matches!(code, None | Some(0)), "after {ms} ms: {code:?}: {}", router.log());
        assert!(!router.log().contains("panicked"), "{}", router.log());
        assert!(!lab.has_program("p1") && !lab.has_program("p2"), "after {ms} ms");
    }
    lab.start().stop();
}

#[test]
fn an_upgrade_in_place_interrupts_a_flow_for_a_moment() {
    needs_lab!();
    let lab = Lab::new(2);
    lab.router("sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'").ok();
    let mut old = lab.start();
    lab.host(1, "ping -c 1 -W 2 10.0.2.2").ok();
    let receiver = Receiver::start(&lab, 2, 7061);
    let sender = Sender::start(&lab, 1, "10.0.2.2", 7061);
    thread::sleep(Duration::from_millis(300));
    // Another file takes the old one's place, as a package manager does it.
    let new = lab.dir.path().join("sweepd-new");
    std::fs::copy(SWEEPD, &new).unwrap();
    old.signal(Signal::SIGTERM);
    assert_eq!(old.wait(), Some(0), "{}", old.log());
    // Meanwhile the kernel forwards.
    thread::sleep(Duration::from_millis(300));
    let mut router = lab.launch_binary(&new, "");
    lab.wait_for_start(&mut router);
    thread::sleep(Duration::from_millis(500));
    let sent = sender.finish();
    let got = receiver.finish();
    let (missing, double) = missing_and_double(&got, sent);
    let longest = got.windows(2).map(|two| two[1].1 - two[0].1).max().unwrap();
    println!("{} of {sent} packets lost, nothing came for {longest:.0?} at most", missing.len());
    assert!(sent > 500 && longest < Duration::from_secs(1) && double.is_empty(), "{longest:?} {double:?}");
    assert!(router.verdict("forwarded") > 100);
    router.stop();
}

#[test]
fn a_second_one_is_refused_and_the_first_goes_on() {
    needs_lab!();
    let lab = Lab::new(2);
    let mut first = lab.start();
    let config = lab.dir.path().join("sweepd.toml");
    let again = || lab.router(&format!("{} run --config {}", SWEEPD, config.display()));
    let second = again();
    assert_eq!(second.code, 1, "{}", second.text);
    let errors: Vec<_> = second.text.lines().filter(|line| line.starts_with("sweepd: ")).collect();
    println!("{}", errors.join("\n"));
    assert_eq!(errors.len(), 1, "{}", second.text);
    assert!(first.is_running());
    lab.host(1, "ping -c 2 -i 0.1 -W 2 10.0.2.2").ok();
    assert!(first.verdict("forwarded") >= 4);
    first.stop();
}
