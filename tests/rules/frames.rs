//! Frames as netmap's rings bring them: chains of slots, short ones, long ones. The kernel is the
//! stand-in of the ring crate.
//!
//! Between pipes only: netmap's own rings are needed, and the stand-in for it has them
#![cfg(any(target_os = "linux", target_os = "freebsd"))]

use std::sync::Arc;
use std::time::Duration;

use netmap::{
    OpenOptions,
    device::{
        Device, DeviceSpec,
        kernel::{
            open_all_with,
            standin::{Nic, StandIn},
            system::System,
        },
    },
};
use sweepd::forward::verdict::Verdict;

use crate::common::{PortSpec, Tube, host_mac, port_mac};
use crate::packets::{Ip4, ethernet};

/// The slot's packet goes on in the next one (`NS_MOREFRAG`).
const MORE: u16 = 0x20;

/// A router over interfaces `n0` and `n1` with so many rings: 198.51.100.0/24 behind host 9 of the
/// second.
fn router(rings: u16) -> (Arc<StandIn>, Tube) {
    let kernel = StandIn::new();
    for k in 0..2 {
        let nic = Nic { rx_rings: rings, tx_rings: rings, mac: port_mac(k), ..Nic::default() };
        kernel.add_nic(&format!("n{k}"), nic);
    }
    let ports = open(&kernel, &["netmap:n0", "netmap:n1"]).unwrap_or_else(|e| panic!("{e}"));
    let spec = |k: usize| PortSpec::new(&[&format!("10.0.{k}.1/24")]).host_rings();
    let mut tube = Tube::over(ports, &[spec(0), spec(1)], 1);
    let right = tube.routes.hop(1, 9, 1500);
    tube.routes.add("198.51.100.0/24", right);
    tube.publish();
    (kernel, tube)
}

fn open(kernel: &Arc<StandIn>, names: &[&str]) -> Result<Vec<netmap::Port>, netmap::OpenError> {
    let options = OpenOptions { carrier_wait: Some(Duration::ZERO), ..OpenOptions::default() };
    let requests: Vec<_> = names
        .iter()
        .map(|name| match name.parse::<DeviceSpec>().unwrap().device {
            Device::Netmap(spec) => (spec, options.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    let system: Arc<dyn System> = kernel.clone();
    open_all_with(&system, &requests)
}

fn frame(len: usize) -> Vec<u8> {
    let packet = Ip4::udp("192.0.2.7", "198.51.100.3", len).build();
    ethernet(port_mac(0), host_mac(0, 9), 0x0800, &packet)
}

/// Rule 106. Each slot of a chain counts, none of them is taken for a packet of its own, and the next
/// whole packet goes on.
#[test]
fn a_chain_of_slots_is_dropped_whole() {
    let (kernel, mut tube) = router(1);
    for flags in [MORE, MORE, 0, 0] {
        assert!(kernel.receive_flagged("n0", 0, &frame(20), flags));
    }
    tube.settle();
    tube.check();
    assert_eq!(kernel.sent("n1").len(), 1);
    assert_eq!(tube.verdicts(), [("forwarded", 1), ("chained", 3)]);
}

/// Rule 106. Also where the sweep ends in the middle of it, after any of its slots.
#[test]
fn a_chain_that_sweeps_cut_is_dropped_whole() {
    let (kernel, mut tube) = router(1);
    for cut in 1..4 {
        for (k, flags) in [MORE, MORE, 0, 0].into_iter().enumerate() {
            if k == cut {
                tube.settle();
            }
            assert!(kernel.receive_flagged("n0", 0, &frame(20), flags));
        }
        tube.settle();
        tube.check();
        assert_eq!(kernel.sent("n1").len(), 1, "cut after {cut}");
    }
    assert_eq!(tube.verdicts(), [("forwarded", 3), ("chained", 9)]);
}

/// Rule 106. A chain of one ring says nothing about the packets of another.
#[test]
fn chains_of_two_rings_do_not_mix() {
    let (kernel, mut tube) = router(2);
    assert!(kernel.receive_flagged("n0", 0, &frame(20), MORE));
    tube.settle();
    assert!(kernel.receive_flagged("n0", 1, &frame(20), 0));
    tube.settle();
    assert_eq!(kernel.sent("n1").len(), 1);
    assert!(kernel.receive_flagged("n0", 1, &frame(20), MORE));
    assert!(kernel.receive_flagged("n0", 0, &frame(20), 0));
    tube.settle();
    assert_eq!(kernel.sent("n1").len(), 0);
    for ring in [0, 1] {
        assert!(kernel.receive_flagged("n0", ring, &frame(20), 0));
    }
    tube.settle();
    tube.check();
    assert_eq!(kernel.sent("n1").len(), 1, "the second ring's chain has just ended");
    assert_eq!(tube.verdicts(), [("forwarded", 2), ("chained", 4)]);
}

/// Rule 106. Slots at the end of the ring and at its beginning.
#[test]
fn a_chain_around_the_end_of_the_ring_is_dropped_whole() {
    let (kernel, mut tube) = router(1);
    for _ in 0..3 {
        for _ in 0..30 {
            assert!(kernel.receive_flagged("n0", 0, &frame(20), 0));
        }
        for flags in [MORE, MORE, MORE, MORE, 0] {
            assert!(kernel.receive_flagged("n0", 0, &frame(20), flags));
        }
        tube.settle();
        tube.check();
        assert_eq!(kernel.sent("n1").len(), 30);
    }
    assert_eq!(tube.verdicts(), [("forwarded", 90), ("chained", 15)]);
}

/// Rules 7, 107. Short packets leave a card's ring with 60 bytes, the rest zeroes, whatever padding
/// they came with.
#[test]
fn short_packets_are_padded_with_zeroes_on_the_way_to_a_card() {
    let (kernel, mut tube) = router(1);
    for len in 0..30 {
        let mut padded = frame(len);
        padded.resize(padded.len().max(60), 0xee);
        kernel.receive("n0", 0, &padded);
        // Made here, not exchanged: odd by its options.
        let packet = Ip4 { options: vec![1; 4], ..Ip4::udp("192.0.2.7", "198.51.100.3", len) };
        kernel.receive("n0", 0, &ethernet(port_mac(0), host_mac(0, 9), 0x0800, &packet.build()));
        tube.settle();
        let sent = kernel.sent("n1");
        for (frame, whole) in sent.iter().zip([42 + len, 46 + len]) {
            assert_eq!(frame.len(), whole.max(60), "{len}");
            assert!(frame[whole..].iter().all(|b| *b == 0), "{len}: {frame:x?}");
        }
    }
    tube.check();
    assert_eq!(tube.verdicts(), [("forwarded", 60)]);
}

/// Rules 6, 105. Shorter than its headers say is a runt; shorter than 60 bytes alone is not.
#[test]
fn only_a_frame_shorter_than_its_own_headers_is_a_runt() {
    let (kernel, mut tube) = router(1);
    let whole = frame(0);
    for len in 1..whole.len() {
        kernel.receive("n0", 0, &whole[..len]);
        tube.settle();
        assert_eq!(tube.verdicts(), [("runt", len as u64)], "{len} bytes");
    }
    kernel.receive("n0", 0, &whole);
    tube.settle();
    tube.check();
    assert_eq!((whole.len(), tube.count(Verdict::Forwarded)), (42, 1));
    assert_eq!(tube.stats.snapshot()[0].rx_errors, 41);
}

/// Rule 106. An interface whose MTU does not fit the buffers is refused, with what to do.
#[test]
fn an_mtu_beyond_the_buffers_is_refused_when_the_port_opens() {
    let kernel = StandIn::new();
    kernel.add_nic("jumbo0", Nic { mtu: 9000, ..Nic::default() });
    let error = open(&kernel, &["netmap:jumbo0"]).err().unwrap().to_string();
    assert!(error.contains("MTU of 9000") && error.contains("buf_size"), "{error}");
}
