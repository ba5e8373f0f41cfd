//! The fast path takes nothing shared: not one locked instruction, fence or system call a packet,
//! counted by running the worker's loop one instruction at a time.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::sync::Arc;

use sweepd::{
    forward::burst::Burst,
    tables::{
        Timeouts,
        acl::{Acl, Compiled, Rule},
        masquerade::{self, Masquerade},
        prefixes::{Prefixes4, Prefixes6},
    },
};
use sweepd_bench::{
    rig::{Headers, OUT_PORTS, Rig},
    stepper::{self, Counts},
    traffic,
};

/// Packets in a sweep.
const PACKETS: u32 = 256;

/// Instructions that one packet may take in an optimised build, with some room for the compiler's
/// moods.
const INSTRUCTIONS: u64 = 320;

fn routes() -> (Prefixes4, Prefixes6) {
    (sweepd::tables::synthetic::ipv4(1000, 100, 1), sweepd::tables::synthetic::ipv6(1000, 100, 1))
}

/// Steps through one steady sweep of a worker that has seen packets before.
fn steady_sweep(rig: &mut Rig) -> Counts {
    let mut burst = Burst::default();
    for _ in 0..2 {
        rig.refill(PACKETS);
        assert_eq!(rig.worker.sweep(&mut burst).packets, PACKETS);
    }
    rig.refill(PACKETS);
    stepper::count(PACKETS as u64 * 5000, || {
        rig.worker.sweep(&mut burst);
    })
    .expect("tracing a child of one's own is allowed")
}

fn assert_nothing_shared(counts: Counts) {
    assert_eq!((counts.locked, counts.fences, counts.syscalls), (0, 0, 0), "{counts:?}");
    println!("{:.1} instructions a packet", counts.instructions as f64 / f64::from(PACKETS));
    if !cfg!(debug_assertions) {
        assert!(counts.instructions < INSTRUCTIONS * u64::from(PACKETS), "{counts:?}");
    }
}

#[test]
fn forwarding_ipv4_takes_nothing_shared() {
    let (v4, v6) = routes();
    let mut rig = Rig::new(&v4, &v6).unwrap();
    rig.set_flows(traffic::frames4(&v4, 1000, 3), Headers::Cached);
    assert_nothing_shared(steady_sweep(&mut rig));
}

#[test]
fn forwarding_ipv6_takes_nothing_shared() {
    let (v4, v6) = routes();
    let mut rig = Rig::new(&v4, &v6).unwrap();
    rig.set_flows(traffic::frames6(&v6, 1000, 3), Headers::Cached);
    let counts = steady_sweep(&mut rig);
    assert_eq!((counts.locked, counts.fences, counts.syscalls), (0, 0, 0), "{counts:?}");
}

/// Rules that every packet is compared with, and that permit it.
fn rules(n: u16) -> Vec<Rule> {
    let rule = |port: u16| Rule {
        name: String::new(),
        denies: true,
        logs: false,
        in_ports: vec![0],
        out_ports: vec![],
        from: vec![],
        to: vec![],
        protocol: Some(6),
        from_ports: vec![],
        to_ports: vec![(port, port)],
    };
    (0..n).map(rule).collect()
}

#[test]
fn filtering_takes_nothing_shared() {
    let (v4, v6) = routes();
    let mut rig = Rig::new(&v4, &v6).unwrap();
    for (n, is_v4) in [(10, true), (1000, true), (10, false), (1000, false)] {
        let acl = Arc::new(Acl::new(Arc::new(Compiled::new(rules(n)).unwrap()), 1));
        rig.worker.reader.offline();
        rig.publisher.as_mut().unwrap().publish(|tables| tables.acl = Some(acl.clone()));
        let frames = if is_v4 { traffic::frames4(&v4, 1000, 3) } else { traffic::frames6(&v6, 1000, 3) };
        rig.set_flows(frames, Headers::Cached);
        let counts = steady_sweep(&mut rig);
        assert_eq!((counts.locked, counts.fences, counts.syscalls), (0, 0, 0), "{n} rules: {counts:?}");
        println!("{n} rules: {:.1} instructions a packet", counts.instructions as f64 / f64::from(PACKETS));
        // Each packet was filtered.
        assert_eq!(acl.hits().last(), Some(&(2 * u64::from(PACKETS))));
    }
}

#[test]
fn new_tables_are_taken_without_a_lock_as_well() {
    let (v4, v6) = routes();
    let mut rig = Rig::new(&v4, &v6).unwrap();
    rig.set_flows(traffic::frames4(&v4, 1000, 3), Headers::Cached);
    let mut burst = Burst::default();
    rig.refill(PACKETS);
    rig.worker.sweep(&mut burst);
    rig.worker.reader.offline();
    rig.publisher.as_mut().unwrap().publish(|tables| tables.hash_seed += 1);
    // The way back from offline has its one fence; it is paid before the packets come.
    rig.worker.sweep(&mut burst);
    rig.refill(PACKETS);
    let counts = stepper::count(PACKETS as u64 * 5000, || {
        rig.worker.sweep(&mut burst);
    })
    .unwrap();
    assert_nothing_shared(counts);
}

/// Instructions that one packet of a known flow may take in an optimised build.
const TRANSLATED: u64 = 700;

#[test]
fn translating_known_flows_takes_nothing_shared() {
    let (v4, v6) = routes();
    let mut rig = Rig::new(&v4, &v6).unwrap();
    rig.set_flows(traffic::frames4(&v4, 1000, 3), Headers::Cached);
    rig.worker.reader.offline();
    rig.publisher.as_mut().expect("of its own").publish(|tables| {
        let rule = |out: u16| masquerade::Rule {
            out,
            from: Vec::new(),
            to: vec![[203, 0, 113, out as u8].into()],
            first: 1024,
            last: 32767,
            timeouts: Timeouts::default(),
            open: false,
            inbound_refresh: false,
            quota: 0,
            log: false,
        };
        tables.masquerade = Masquerade::new((1..=OUT_PORTS).map(rule).collect(), Vec::new(), Vec::new());
        tables.keeps_flows = true;
    });
    // The first packet of every flow takes the careful path.
    let mut burst = Burst::default();
    for _ in 0..64 {
        rig.refill(PACKETS);
        rig.worker.sweep(&mut burst);
    }
    let flows = rig.worker.slow.flows.len();
    assert!(flows > 900, "{flows}");
    let counts = steady_sweep(&mut rig);
    assert_eq!(rig.worker.slow.flows.len(), flows);
    assert_eq!((counts.locked, counts.fences, counts.syscalls), (0, 0, 0), "{counts:?}");
    println!("{:.1} instructions a packet", counts.instructions as f64 / f64::from(PACKETS));
    if !cfg!(debug_assertions) {
        assert!(counts.instructions < TRANSLATED * u64::from(PACKETS), "{counts:?}");
    }
}
