//! The RFC 2544 tester with a real daemon between its ports, all in this process.

use std::{net::Ipv4Addr, time::Duration};

use netmap::{OpenOptions, device};
use sweepd::{
    config,
    daemon::{Counters, Daemon},
};
use sweepd_bench::rfc2544::{Side, Size, Tester, measure};

/// A router between two pipes, and a tester at their other ends.
fn router(left: &str, right: &str) -> (Daemon, Tester) {
    let text = format!(
        r#"
        [kernel]
        routes = false
        [[port]]
        name = "left"
        device = "pipe:{left}"
        mac = "02:00:00:00:00:01"
        addresses = ["198.18.0.1/24"]
        [[port]]
        name = "right"
        device = "pipe:{right}"
        mac = "02:00:00:00:00:02"
        addresses = ["198.19.0.1/24"]
        "#
    );
    let config = config::parse(&text, "test").unwrap();
    let daemon = Daemon::start(&config, Counters::Memory, false, None).unwrap();
    let open = |name: &str| (format!("pipe:{name}").parse().unwrap(), OpenOptions::default());
    let mut ports = device::open_all(&[open(left), open(right)]).unwrap().into_iter();
    let from = Side::new(ports.next().unwrap(), Ipv4Addr::new(198, 18, 0, 2));
    let to = Side::new(ports.next().unwrap(), Ipv4Addr::new(198, 19, 0, 2));
    let tester = Tester::new(from, to, Ipv4Addr::new(198, 18, 0, 1), None, 4).unwrap();
    (daemon, tester)
}

#[test]
fn a_router_is_measured_with_every_frame_accounted_for() {
    let (daemon, mut tester) = router("rfc-left", "rfc-right");
    tester.wait_for_the_way().unwrap();
    let trial = tester.trial(Size::Imix, 2000.0, Duration::from_millis(300)).unwrap();
    assert_eq!(trial.lost(), 0, "{} of {}", trial.received, trial.sent);
    assert!(trial.sent > 300 && trial.sent <= 601, "{}", trial.sent);
    assert!(trial.latency(0.5) > Duration::ZERO && trial.latency(0.5) <= trial.latency(0.999));
    let outcome = measure(&mut tester, Size::Bytes(128), Duration::from_millis(50), Some(20_000.0)).unwrap();
    assert!(outcome.throughput > 0.0 && outcome.throughput <= outcome.overload.0 * 1.1);
    assert_eq!(outcome.losses.len(), 10);
    daemon.stop();
}

#[test]
fn lost_frames_are_counted_as_lost() {
    let (daemon, mut tester) = router("lossy-left", "lossy-right");
    tester.wait_for_the_way().unwrap();
    daemon.stop();
    let trial = tester.trial(Size::Bytes(64), 1000.0, Duration::from_millis(100)).unwrap();
    assert_eq!(trial.received, 0);
    assert_eq!(trial.loss(), 1.0);
}
