//! The fast paths take nothing shared: not one locked instruction, fence or system call a packet,
//! counted by running the worker's loop one instruction at a time. They are listed in
//! `sweepd_bench::paths`, and `sweepd-bench locked` prints them.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use sweepd::forward::burst::Burst;
use sweepd_bench::{
    paths::{self, Way},
    stepper::{self, Counts},
};

/// Steps through one sweep of the way's packets after its warm-up.
fn steady_sweep(way: &Way) -> Counts {
    let mut burst = Burst::default();
    let mut rig = way.ready(&mut burst).unwrap();
    let flows = rig.worker.slow.flows.len();
    let counts = stepper::count(u64::from(way.packets) * 5000, || {
        rig.worker.sweep(&mut burst);
    })
    .expect("tracing a child of one's own is allowed");
    // What the child did is not seen here; done once more, it shows that the packets went the
    // way that was meant.
    assert_eq!(rig.worker.sweep(&mut burst).packets, way.packets);
    assert_eq!(rig.worker.slow.flows.len(), flows, "{}: no new flows", way.name);
    let tables = rig.worker.reader.sweep();
    assert_eq!(tables.masquerade.is_on(), flows == 1000, "{}: {flows} flows", way.name);
    if let Some(acl) = &tables.acl {
        let filtered: u64 = acl.hits().iter().sum();
        assert!(filtered >= u64::from(way.packets * (way.warm_up + 1)), "{}: {filtered}", way.name);
    }
    counts
}

fn assert_nothing_shared(way: &Way, counts: Counts) {
    assert_eq!((counts.locked, counts.fences, counts.syscalls), (0, 0, 0), "{}: {counts:?}", way.name);
    println!(
        "{}: {:.1} instructions a packet",
        way.name,
        counts.instructions as f64 / f64::from(way.packets)
    );
    if let Some(most) = way.most.filter(|_| !cfg!(debug_assertions)) {
        assert!(counts.instructions < most * u64::from(way.packets), "{}: {counts:?}", way.name);
    }
}

#[test]
fn fast_paths_take_nothing_shared() {
    let ways: Vec<Way> = paths::all().into_iter().filter(|way| way.fast).collect();
    assert!(ways.len() >= 8, "no way has been lost");
    for way in &ways {
        assert_nothing_shared(way, steady_sweep(way));
    }
}

#[test]
fn new_tables_are_taken_without_a_lock_as_well() {
    let way = &paths::all()[0];
    let mut burst = Burst::default();
    let mut rig = way.ready(&mut burst).unwrap();
    rig.worker.sweep(&mut burst);
    rig.worker.reader.offline();
    rig.publisher.as_mut().unwrap().publish(|tables| tables.hash_seed += 1);
    // The way back from offline has its one fence; it is paid before the packets come.
    rig.worker.sweep(&mut burst);
    rig.refill(way.packets);
    let counts = stepper::count(u64::from(way.packets) * 5000, || {
        rig.worker.sweep(&mut burst);
    })
    .unwrap();
    assert_nothing_shared(way, counts);
}
