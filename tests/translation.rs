//! Address translation against a plain model of it, and under a flood.

#[path = "common/mod.rs"]
mod common;
#[path = "rules/gateway.rs"]
#[allow(dead_code)]
mod gateway;
#[path = "common/packets.rs"]
mod packets;

use std::collections::HashMap;

use proptest::prelude::*;
use sweepd::{
    forward::{
        flows::{FlowTable, Secret},
        messages::{Mapped, Means, ToKeeper},
        verdict::Verdict,
    },
    tables::masquerade::Log,
};

use common::{host_mac, port_mac};
use gateway::{A, ACK, B, FRONT, Gateway, SYN, X, echo, end, said, tcp, udp};
use packets::ethernet;

/// What happens.
#[derive(Clone, Debug)]
enum Step {
    /// A packet from an inside end to a remote one: protocol, host, port, remote.
    Out(u8, u8, u16, u8),
    /// A packet from a remote end to where the mapping of an inside end is or was.
    In(u8, u8, u16, u8),
    /// Seconds pass.
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let ends = || (prop::sample::select(vec![1u8, 6, 17]), 7..10u8, 4000..4003u16, 3..6u8);
    prop_oneof![
        4 => ends().prop_map(|(p, h, port, r)| Step::Out(p, h, port, r)),
        4 => ends().prop_map(|(p, h, port, r)| Step::In(p, h, port, r)),
        1 => prop::sample::select(vec![1u64, 50, 70, 170, 250]).prop_map(Step::Pass),
    ]
}

/// A packet of this protocol; a query's identifier is the port of who asks.
fn packet(protocol: u8, from: (&str, u16), to: (&str, u16), asks: bool) -> Vec<u8> {
    match protocol {
        1 => echo(from.0, to.0, asks, if asks { from.1 } else { to.1 }),
        // Not a SYN back, or the connection would be established.
        6 => tcp(from, to, if asks { SYN } else { ACK }),
        _ => udp(from, to),
    }
}

fn lifetime(protocol: u8) -> u64 {
    match protocol {
        1 => 60,
        6 => 240,
        _ => 300,
    }
}

/// A mapping's outside port, and when each of its flows was last used.
type Front = (u16, HashMap<u8, u64>);

/// The model: mappings with their outside ports, and when each of their flows was last used from
/// inside.
#[derive(Default)]
struct Model {
    now: u64,
    mappings: HashMap<(u8, u8, u16), Front>,
}

/// What the model knows of a flow.
#[derive(PartialEq, Eq, Debug)]
enum Life {
    Alive,
    Over,
    /// Within the seconds that the wheel may take.
    Unsure,
}

impl Model {
    fn life(&self, protocol: u8, used: u64) -> Life {
        let age = self.now - used;
        match lifetime(protocol) {
            most if age < most => Life::Alive,
            most if age > most + 3 => Life::Over,
            _ => Life::Unsure,
        }
    }

    /// The lives of a mapping's flows.
    fn lives(&self, key: (u8, u8, u16)) -> Vec<Life> {
        let flows = self.mappings.get(&key).map(|(_, flows)| flows.values().copied().collect::<Vec<_>>());
        flows.unwrap_or_default().into_iter().map(|used| self.life(key.0, used)).collect()
    }
}

fn run(gateway: &mut Gateway, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    for step in steps {
        match *step {
            Step::Pass(seconds) => {
                gateway.pass(seconds);
                gateway.tube.arrivals();
                model.now += seconds;
            }
            Step::Out(protocol, host, port, remote) => {
                let (inside, outside) = (format!("10.0.0.{host}"), format!("198.51.100.{remote}"));
                let out = gateway.out(&packet(protocol, (&inside, port), (&outside, 53), true));
                let front = said(&out).1;
                prop_assert_eq!(front.0.as_str(), FRONT);
                let (key, now) = ((protocol, host, port), model.now);
                let lives = model.lives(key);
                let alive = lives.contains(&Life::Alive);
                let unsure = lives.contains(&Life::Unsure);
                if let (true, Some((before, _))) = (alive, model.mappings.get(&key)) {
                    prop_assert_eq!(*before, front.1, "one outside end");
                }
                for (other, (taken, _)) in &model.mappings {
                    let shared = other.0 == protocol && *other != key && *taken == front.1;
                    prop_assert!(!shared || !model.lives(*other).contains(&Life::Alive), "given out twice");
                }
                let entry = model.mappings.entry(key).or_insert((front.1, HashMap::new()));
                let may_still_be = unsure && entry.0 == front.1;
                if !alive && !may_still_be {
                    *entry = (front.1, HashMap::new());
                }
                entry.1.insert(remote, now);
            }
            Step::In(protocol, host, port, remote) => {
                let Some((front, flows)) = model.mappings.get(&(protocol, host, port)) else { continue };
                let (front, used) = (*front, flows.get(&remote).copied());
                // Another end may have the port by now, and have talked to the same remote.
                let holders =
                    model.mappings.iter().filter(|(key, (taken, _))| key.0 == protocol && *taken == front);
                if holders.count() > 1 {
                    continue;
                }
                let life = used.map_or(Life::Over, |used| model.life(protocol, used));
                let outside = format!("198.51.100.{remote}");
                let came = gateway.send(1, &packet(protocol, (&outside, 53), (FRONT, front), false));
                match (life, &came[..]) {
                    (Life::Unsure, _) => {}
                    (Life::Alive, [(0, packet)]) => {
                        gateway::check_sums(packet);
                        let to = said(packet).2;
                        prop_assert_eq!(to, (format!("10.0.0.{host}"), port));
                    }
                    (Life::Over, []) => {}
                    (life, came) => prop_assert!(false, "{life:?}, but {came:x?}: {step:?}"),
                }
            }
        }
    }
    gateway.tube.check();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_translation_does_what_a_plain_model_does(steps in prop::collection::vec(step(), 1..80), workers in prop::sample::select(vec![1usize, 2, 4])) {
        run(&mut Gateway::new(workers), &steps)?;
    }
}

#[test]
fn a_host_has_its_quota_over_all_workers() {
    for workers in [1, 2, 4] {
        let mut gateway = Gateway::new(workers);
        gateway.mapped((A, 3999), (X, 53));
        // One flow is there when the rule gets its quota.
        gateway.change(|rule| rule.quota = 10);
        let open = |gateway: &mut Gateway| {
            let leaves =
                |port: &u16| gateway.send(0, &udp((A, *port), (X, 53))).iter().any(|(at, _)| *at == 1);
            (4000..4030u16).filter(leaves).collect::<Vec<_>>()
        };
        let first = open(&mut gateway);
        assert_eq!(first.len(), 9, "{workers} workers");
        assert_eq!(gateway.tube.count(Verdict::OverQuota), 21);
        assert_eq!(open(&mut gateway), first, "known flows go on");
        gateway.mapped((B, 4000), (X, 53));
        gateway.pass(310);
        assert_eq!(open(&mut gateway).len(), 10, "{workers} workers");
    }
}

/// What workers have told the keeper about mappings and blocks.
fn logged(gateway: &Gateway) -> Vec<Mapped> {
    let of_mappings = |message| match message {
        ToKeeper::Mapped(mapped) => Some(*mapped),
        _ => None,
    };
    gateway.tube.to_keeper.try_iter().filter_map(of_mappings).collect()
}

#[test]
fn logged_blocks_say_whose_every_port_is() {
    for workers in [1, 2, 4] {
        let mut gateway = Gateway::new(workers);
        gateway.change(|rule| rule.log = Log::Blocks);
        let mut used = Vec::new();
        for n in 0..100 {
            for host in [A, B] {
                used.push((host, gateway.mapped((host, 4000 + n), (X, 53)).1));
                let out = gateway.out(&tcp((host, 4000 + n), (X, 80), SYN));
                used.push((host, said(&out).1.1));
            }
        }
        let given = logged(&gateway);
        assert!(given.len() < 4 * workers + 8, "{} lines with {workers} workers", given.len());
        for (host, port) in used {
            let of_port = |block: &&Mapped| block.begins && (block.first..=block.last).contains(&port);
            let holders: Vec<_> = given.iter().filter(of_port).collect();
            assert_eq!(holders.len(), 1);
            assert_eq!(
                (holders[0].inside.to_string(), holders[0].outside.to_string()),
                (host.into(), FRONT.into())
            );
            assert_eq!((holders[0].means, holders[0].unlogged), (Means::Block, 0));
        }
        gateway.pass(310);
        let key = |block: &Mapped| (block.inside, block.first, block.last);
        let mut back: Vec<_> = logged(&gateway).iter().filter(|block| !block.begins).map(key).collect();
        let mut given: Vec<_> = given.iter().map(key).collect();
        back.sort_unstable();
        given.sort_unstable();
        assert_eq!(back, given, "all come back");
    }
}

#[test]
fn logged_mappings_have_a_line_as_they_begin_and_one_as_they_end() {
    let mut gateway = Gateway::new(2);
    gateway.change(|rule| rule.log = Log::Mappings);
    let (_, port) = gateway.mapped((A, 4000), (X, 53));
    gateway.mapped((A, 4000), (X, 54));
    gateway.pass(310);
    let lines = logged(&gateway);
    let told: Vec<_> = lines.iter().map(|line| (line.begins, line.first, line.last, line.means)).collect();
    let means = Means::Mapping { protocol: 17, port: 4000 };
    assert_eq!(told, [(true, port, port, means), (false, port, port, means)]);
}

/// New flows of the flood; `SWEEPD_FLOOD` asks for another number.
const FLOOD: u32 = 100_000;

#[test]
fn a_flood_of_new_flows_fills_what_there_is_room_for_and_ends_no_other() {
    let flood = std::env::var("SWEEPD_FLOOD").ok().and_then(|n| n.parse().ok()).unwrap_or(FLOOD);
    let mut gateway = Gateway::new(2);
    gateway.change(|rule| rule.to = (1..=16).map(|n| [203, 0, 113, n].into()).collect());
    const ROOM: usize = 20_000;
    for worker in &mut gateway.tube.workers {
        worker.slow.flows = FlowTable::new(ROOM, Secret::from_seed(1)).unwrap();
    }
    let front = gateway.mapped((A, 4000), (X, 53));
    let (mut refused, mut sent) = (0, 0u32);
    while sent < flood {
        for k in 0..32 {
            let source = format!("10.{}.{}.{}", 1 + (sent >> 16) % 250, (sent >> 8) & 255, sent & 255);
            let packet = udp((&source, 1024 + (sent % 50_000) as u16), (X, 53));
            let frame = ethernet(port_mac(0), host_mac(0, 9), 0x0800, &packet);
            gateway.tube.inject_on(0, k % 2, &frame);
            sent += 1;
        }
        gateway.tube.settle();
        refused += gateway.tube.arrived(0).len();
        gateway.tube.arrived(1);
    }
    gateway.tube.check();
    let full = gateway.tube.count(Verdict::FlowsFull) + gateway.tube.count(Verdict::OutOfPorts);
    let flows: usize = gateway.tube.workers.iter().map(|worker| worker.slow.flows.len()).sum();
    assert!(flows <= 2 * ROOM && flows > ROOM, "{flows}");
    assert_eq!(full + flows as u64, u64::from(sent) + 1, "{:?}", gateway.tube.verdicts());
    assert!(refused as u64 <= full, "no more answers than refusals");
    assert_eq!(gateway.mapped((A, 4000), (X, 53)), front);
    assert_eq!(said(&gateway.back(&udp((X, 53), end(&front)))).2, (A.to_string(), 4000));
}
