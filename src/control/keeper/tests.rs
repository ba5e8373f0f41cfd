//! The keeper beside workers that do not do what they should.

use std::{net::Ipv4Addr, time::Instant};

use super::*;
use crate::{
    control::{
        kernel::RouteKind,
        rib::{PortSettings, StaticHop},
    },
    stats::file::StatsFile,
    tables::{Action, fixed, publish::Reader},
};

/// What must happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(5);

struct NoDevice;

impl PortControl for NoDevice {}

/// A keeper with one port, 10.0.0.1/24, and the workers' ends of its tables.
fn keeper(workers: usize) -> (Keeper, Vec<Reader<Tables>>) {
    let stats = StatsFile::anonymous(&["a".into()], 1).unwrap();
    let spec = PortSpec {
        name: "a".into(),
        device_mac: [2, 0, 0, 0, 0, 1],
        max_len: 2000,
        addresses: Some(vec!["10.0.0.1/24".parse().unwrap()]),
        builtin_host: true,
        ..PortSpec::default()
    };
    let port = KeeperPort {
        spec,
        device: "pipe:a".into(),
        mode: "pipe".into(),
        rings: 1,
        control: Box::new(NoDevice),
        block: stats.block(stats.keeper(), 0),
    };
    let (publisher, readers) = Publisher::try_new(Tables::new, workers).unwrap();
    let config = KeeperConfig::new(vec![port]);
    let keeper = Keeper::start(config, publisher, unbounded().1, Vec::new(), unbounded().0).unwrap();
    (keeper, readers)
}

/// Routes to the first `count` addresses of 100.64.0.0.
fn settings(count: u32) -> Settings {
    let route = |n| StaticRoute {
        to: format!("{}/32", Ipv4Addr::from(0x6440_0000 + n)).parse().unwrap(),
        kind: RouteKind::Unicast,
        hops: vec![StaticHop { gateway: "10.0.0.2".parse().ok(), port: None, weight: 1 }],
    };
    let addresses = vec!["10.0.0.1/24".parse().unwrap()];
    Settings {
        ports: [(0, PortSettings { addresses, ..PortSettings::default() })].into(),
        routes: (0..count).map(route).collect(),
        ..Settings::default()
    }
}

fn generation(keeper: &Keeper) -> u64 {
    let (answer, answered) = bounded(1);
    keeper.ask(Box::new(move |view| answer.send(view.generation).unwrap()));
    answered.recv_timeout(SOON).expect("the keeper answers")
}

/// Whether a worker's tables have the `n`th route.
fn has(worker: &mut Reader<Tables>, n: u32) -> bool {
    let tables = worker.sweep();
    let id = tables.fib4.lookup(0x6440_0000 + n);
    worker.quiescent();
    id != fixed::NO_ROUTE
}

#[test]
fn a_stuck_worker_delays_changes_and_holds_up_nothing_else() {
    let (keeper, mut workers) = keeper(2);
    let [stuck, other] = &mut workers[..] else { unreachable!() };
    // In the middle of a sweep, for ever.
    stuck.sweep();
    let changer = keeper.changer();
    assert_eq!(changer.change(settings(1), SOON).unwrap(), Changed::Fully);
    let first = generation(&keeper);
    assert!(has(other, 0));
    for count in 2..=40 {
        assert_eq!(changer.change(settings(count), Duration::from_millis(1)).unwrap(), Changed::Later);
    }
    let start = Instant::now();
    assert_eq!(generation(&keeper), first, "the other instance is still being read");
    assert!(start.elapsed() < SOON / 2, "{:?}", start.elapsed());
    assert!(has(other, 0) && !has(other, 1));
    // It goes on: everything that has gathered is one publication.
    stuck.sweep();
    stuck.quiescent();
    let start = Instant::now();
    while !has(other, 39) {
        assert!(start.elapsed() < SOON, "the changes do not come");
        stuck.sweep();
        stuck.quiescent();
    }
    assert_eq!(generation(&keeper), first + 1);
    assert!(has(stuck, 39));
    let tables = other.sweep();
    assert_eq!(tables.info[usize::from(tables.fib4.lookup(0x6440_0000))].action, Action::Resolve);
    other.quiescent();
    // Both instances have them.
    assert_eq!(changer.change(settings(41), SOON).unwrap(), Changed::Fully);
    assert!(has(other, 0) && has(other, 39) && has(other, 40) && has(stuck, 40));
}

#[test]
fn a_keeper_ends_beside_a_stuck_worker() {
    let (keeper, mut workers) = keeper(1);
    workers[0].sweep();
    assert_eq!(keeper.changer().change(settings(1), SOON).unwrap(), Changed::Fully);
    assert_eq!(keeper.changer().change(settings(2), Duration::from_millis(1)).unwrap(), Changed::Later);
    let start = Instant::now();
    assert_eq!(keeper.stop().len(), 1);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}
