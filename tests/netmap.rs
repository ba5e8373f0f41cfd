//! The worker loop on ports of the kernel's netmap, the kernel being the stand-in of the ring
//! crate: interfaces with different numbers of rings, host rings, a VALE port.
#![cfg(any(target_os = "linux", target_os = "freebsd"))]

mod common;
#[path = "common/packets.rs"]
mod packets;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::{PortSpec, Tube, host_mac, port_mac};
use netmap::{
    OpenOptions, Port,
    device::{
        Device, DeviceSpec,
        kernel::{
            open_all_with,
            standin::{Nic, StandIn},
            system::System,
        },
    },
};
use packets::{Ip4, ethernet};
use sweepd::forward::{
    burst::Burst,
    idle::Patience,
    messages::{ToKeeper, ToWorker},
    verdict::Verdict,
};

/// Interfaces `n0`, `n1` … with these numbers of rings.
fn kernel(rings: &[u16]) -> Arc<StandIn> {
    let kernel = StandIn::new();
    for (k, &n) in rings.iter().enumerate() {
        let nic = Nic { rx_rings: n, tx_rings: n, mac: port_mac(k), ..Nic::default() };
        kernel.add_nic(&format!("n{k}"), nic);
    }
    kernel
}

fn open(kernel: &Arc<StandIn>, names: &[&str], carrier_wait: Duration) -> Vec<Port> {
    let options = OpenOptions { carrier_wait: Some(carrier_wait), ..OpenOptions::default() };
    let requests: Vec<_> = names
        .iter()
        .map(|name| match name.parse::<DeviceSpec>().unwrap().device {
            Device::Netmap(spec) => (spec, options.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    let system: Arc<dyn System> = kernel.clone();
    open_all_with(&system, &requests).unwrap_or_else(|e| panic!("{e}"))
}

/// A router over these ports: 10.0.k.1/24 each, 198.51.100.0/24 behind host 9 of port 1 and
/// 192.0.2.0/24 behind host 9 of port 0.
fn router(ports: Vec<Port>, workers: usize) -> Tube {
    let specs: Vec<PortSpec> = (0..ports.len())
        .map(|k| PortSpec { host_rings: true, ..PortSpec::new(&[&format!("10.0.{k}.1/24")]) })
        .collect();
    let mut tube = Tube::over(ports, &specs, workers);
    let (left, right) = (tube.routes.hop(0, 9, 1500), tube.routes.hop(1, 9, 1500));
    tube.routes.add("198.51.100.0/24", right);
    tube.routes.add("192.0.2.0/24", left);
    tube.publish();
    tube
}

fn to_router(port: usize, packet: &Ip4) -> Vec<u8> {
    ethernet(port_mac(port), host_mac(port, 9), 0x0800, &packet.build())
}

fn across(port: usize, len: usize) -> Ip4 {
    match port {
        0 => Ip4::udp("192.0.2.7", "198.51.100.3", len),
        _ => Ip4::udp("198.51.100.3", "192.0.2.7", len),
    }
}

#[test]
fn interfaces_of_different_numbers_of_rings_route_between_each_other() {
    for rings in [[1, 1], [4, 1], [1, 2], [3, 2]] {
        for workers in [1, 2, 3] {
            let kernel = kernel(&rings);
            let mut tube = router(open(&kernel, &["netmap:n0", "netmap:n1"], Duration::ZERO), workers);
            for port in 0..2 {
                let mut expected = Vec::new();
                for ring in 0..usize::from(rings[port]) {
                    for i in 0..30 {
                        let packet = across(port, 20 + i);
                        assert!(kernel.receive(&format!("n{port}"), ring, &to_router(port, &packet)));
                        let out = packet.ttl(63).build();
                        expected.push(ethernet(host_mac(1 - port, 9), port_mac(1 - port), 0x0800, &out));
                    }
                    tube.settle();
                    tube.check();
                }
                let mut sent = kernel.sent(&format!("n{}", 1 - port));
                sent.sort();
                expected.sort();
                assert!(sent == expected, "{workers} workers, rings {rings:?}, from port {port}");
            }
            assert_eq!(tube.verdicts(), [("forwarded", 30 * u64::from(rings[0] + rings[1]))]);
        }
    }
}

#[test]
fn what_is_the_hosts_goes_by_the_host_rings_both_ways() {
    let kernel = kernel(&[4, 1]);
    let mut tube = router(open(&kernel, &["netmap:n0", "netmap:n1"], Duration::ZERO), 2);
    let ping = to_router(0, &Ip4::udp("10.0.0.9", "10.0.0.1", 10));
    let arp = ethernet([0xff; 6], host_mac(0, 9), 0x0806, &[0; 46]);
    for ring in 0..4 {
        kernel.receive("n0", ring, &ping);
        kernel.receive("n0", ring, &arp);
    }
    tube.settle();
    tube.check();
    assert_eq!(kernel.host_received("n0").len(), 8);
    let answer = ethernet(host_mac(0, 9), port_mac(0), 0x0800, &[7; 50]);
    assert!(kernel.host_sends("n0", &answer));
    tube.settle();
    tube.check();
    assert_eq!(kernel.sent("n0"), [answer]);
    assert_eq!(tube.verdicts(), [("host", 8), ("from_host", 1)]);
}

#[test]
fn packets_go_between_an_interface_and_a_switch() {
    let kernel = kernel(&[2]);
    let mut tube = router(open(&kernel, &["netmap:n0", "vale0:r"], Duration::ZERO), 1);
    let mut guest = open(&kernel, &["vale0:guest"], Duration::ZERO).remove(0);
    for i in 0..100 {
        kernel.receive("n0", i % 2, &to_router(0, &across(0, 20 + i)));
    }
    tube.settle();
    tube.check();
    guest.rx[0].sync().unwrap();
    assert_eq!(guest.rx[0].ring.available(), 100);
    guest.rx[0].ring.advance(100);
    guest.rx[0].sync().unwrap();
    for i in 0..50 {
        assert!(guest.tx[0].ring.send(&to_router(1, &across(1, 20 + i))));
    }
    guest.tx[0].sync().unwrap();
    tube.settle();
    tube.check();
    assert_eq!(kernel.sent("n0").len(), 50);
    assert_eq!(tube.count(Verdict::Forwarded), 150);
}

#[test]
fn a_transmitter_that_hangs_drops_and_nothing_else_stops() {
    let kernel = kernel(&[1, 1]);
    let mut tube = router(open(&kernel, &["netmap:n0", "netmap:n1"], Duration::ZERO), 1);
    kernel.set_stuck("n1", true);
    for _ in 0..20 {
        for i in 0..50 {
            kernel.receive("n0", 0, &to_router(0, &across(0, 20 + i)));
        }
        kernel.receive("n1", 0, &to_router(1, &across(1, 20)));
        tube.settle();
        tube.check();
    }
    assert_eq!(tube.count(Verdict::TxFull), 20 * 50 - 63);
    assert_eq!(kernel.sent("n0").len(), 20);
    kernel.set_stuck("n1", false);
    kernel.receive("n0", 0, &to_router(0, &across(0, 20)));
    tube.settle();
    kernel.receive("n0", 0, &to_router(0, &across(0, 21)));
    tube.settle();
    assert!(!kernel.sent("n1").is_empty(), "the ring works again");
}

/// Waits until `done` says so.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn workers_sleep_wait_for_the_carrier_and_wake_for_packets() {
    let kernel = StandIn::new();
    for k in 0..2 {
        let nic = Nic { mac: port_mac(k), link_down_on_open: true, ..Nic::default() };
        kernel.add_nic(&format!("n{k}"), Nic { rx_rings: 2, tx_rings: 2, ..nic });
    }
    let mut tube = router(open(&kernel, &["netmap:n0", "netmap:n1"], Duration::from_secs(60)), 2);
    let threads: Vec<_> = std::mem::take(&mut tube.workers)
        .into_iter()
        .map(|mut worker| {
            worker.patience = Patience::Adaptive;
            std::thread::spawn(move || worker.run())
        })
        .collect();
    // The host speaks while the link is down: held, not lost.
    let hello = ethernet(host_mac(0, 9), port_mac(0), 0x0800, &[7; 50]);
    assert!(kernel.host_sends("n0", &hello));
    std::thread::sleep(Duration::from_millis(50));
    assert!(kernel.sent("n0").is_empty());
    for name in ["n0", "n1"] {
        kernel.set_carrier(name, true);
    }
    let mut from_n0 = Vec::new();
    eventually("the host's packet leaves", || {
        from_n0.extend(kernel.sent("n0"));
        from_n0 == [hello.clone()]
    });
    let mut got = 0;
    for i in 0..20 {
        std::thread::sleep(Duration::from_millis(3));
        kernel.receive("n0", i % 2, &to_router(0, &across(0, 20 + i)));
        eventually("the packet crosses", || {
            got += kernel.sent("n1").len();
            got > i
        });
    }
    assert_eq!(kernel.sent_without_carrier("n0") + kernel.sent_without_carrier("n1"), 0);
    for link in &tube.links {
        assert!(link.send(ToWorker::Stop));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(tube.verdicts(), [("forwarded", 20), ("from_host", 1)]);
    drop(tube);
    assert_eq!(kernel.open_descriptors(), 0);
}

#[test]
fn an_interface_that_vanishes_is_told_once_and_the_others_go_on() {
    let kernel = kernel(&[1, 1]);
    let mut tube = router(open(&kernel, &["netmap:n0", "netmap:n1"], Duration::ZERO), 1);
    kernel.remove_nic("n1");
    let mut burst = Burst::default();
    for _ in 0..10 {
        kernel.receive("n0", 0, &to_router(0, &Ip4::udp("10.0.0.9", "10.0.0.1", 10)));
        tube.workers[0].sweep(&mut burst);
    }
    assert_eq!(kernel.host_received("n0").len(), 10);
    // The first packet for the dead interface finds out, if nobody has; all others are dropped.
    for _ in 0..10 {
        kernel.receive("n0", 0, &to_router(0, &across(0, 10)));
        tube.workers[0].sweep(&mut burst);
    }
    assert!(tube.count(Verdict::PortDown) >= 9, "{:?}", tube.verdicts());
    let told: Vec<ToKeeper> = tube.to_keeper.try_iter().collect();
    assert!((1..=4).contains(&told.len()), "{told:?}");
    assert!(tube.controls[1].control.tend().is_err());
    assert!(tube.controls[0].control.tend().is_ok());
}
