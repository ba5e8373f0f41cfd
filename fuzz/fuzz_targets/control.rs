//! Any bytes as what a client of the control socket sends: to the answerer line by line, beside a
//! keeper that answers.

use std::{cell::RefCell, net::Ipv4Addr, sync::Arc};

use crossbeam_channel::unbounded;
use netmap::device::PortControl;
use sweepd::{
    control::{
        Keeper, KeeperConfig, KeeperPort,
        capture::Captures,
        diff::Comparison,
        kernel::RouteKind,
        requests::{Answer, Answerer},
        rib::{PortSpec, StaticHop, StaticRoute},
        show::Cursor,
    },
    stats::file::StatsFile,
    tables::{Tables, publish::Publisher},
};

struct Nothing;

impl PortControl for Nothing {}

thread_local! {
    static RIG: RefCell<Rig> = RefCell::new(rig());
}

struct Rig {
    answerer: Answerer,
    _comparison: Comparison,
    _keeper: Keeper,
}

fn rig() -> Rig {
    let stats = Arc::new(StatsFile::anonymous(&["a".into()], 1).expect("memory"));
    let spec = PortSpec {
        name: "a".into(),
        device_mac: [2, 0, 0, 0, 0, 1],
        max_len: 2000,
        addresses: Some(vec!["10.0.0.1/24".parse().expect("an address")]),
        builtin_host: true,
        ..PortSpec::default()
    };
    let port = KeeperPort {
        spec,
        device: "pipe:a".into(),
        mode: "pipe".into(),
        rings: 1,
        control: Box::new(Nothing),
        block: stats.block(stats.keeper(), 0),
    };
    let mut config = KeeperConfig::new(vec![port]);
    config.routes = (0..100)
        .map(|n| StaticRoute {
            to: format!("{}/32", Ipv4Addr::from(0x6400_0000 + n)).parse().expect("a prefix"),
            kind: RouteKind::Unicast,
            hops: vec![StaticHop { gateway: "10.0.0.2".parse().ok(), port: None, weight: 1 }],
        })
        .collect();
    let (publisher, _) = Publisher::try_new(Tables::new, 0).expect("memory");
    let keeper =
        Keeper::start(config, publisher, unbounded().1, Vec::new(), unbounded().0).expect("a thread");
    let comparison = Comparison::start(keeper.queries()).expect("a thread");
    let differ = comparison.differ();
    let workers = Vec::new();
    let health = Box::new(|| (0, 0));
    let (queries, captures) = (keeper.queries(), Captures::default());
    let answerer = Answerer { queries, stats, reloads: None, differ, workers, captures, health };
    Rig { answerer, _comparison: comparison, _keeper: keeper }
}

/// Every line gets an answer that is one line of JSON.
pub fn any(input: &[u8]) {
    RIG.with_borrow(|rig| {
        for line in input.split(|byte| *byte == b'\n').take(8) {
            match rig.answerer.answer(line) {
                Answer::Line(said) | Answer::Last(said) => is_json(&said),
                // What is done meanwhile takes its time; the next request does not wait for it.
                Answer::Later(_) => {}
                // It begins when a socket is there for it; this one ends.
                Answer::Capture(_) => {}
                Answer::List(mut said) => {
                    let (mut cursor, mut first) = (Cursor::Start, true);
                    while cursor != Cursor::End {
                        let (page, next) = rig.answerer.more(cursor, first).expect("the keeper answers");
                        said += &page;
                        (cursor, first) = (next, false);
                    }
                    is_json(&said);
                }
            }
        }
    });
}

fn is_json(text: &str) {
    assert!(!text.contains('\n'));
    serde_json::from_str::<serde_json::Value>(text).expect("an answer is JSON");
}
