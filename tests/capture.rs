//! Taps: what a worker tells of packets while somebody captures, between pipes.

mod common;
#[path = "common/packets.rs"]
mod packets;

use std::{collections::BTreeMap, sync::Arc};

use common::{PortSpec, Tube, host_mac, port_mac};
use packets::{Ip4, ethernet};
use sweepd::{
    forward::{
        messages::{ToKeeper, ToWorker},
        tap::{self, End, Tap, Told, Wanted, ring},
    },
    tables::{
        Action,
        acl::{Rule, State},
    },
};

/// A tap on every worker, and what it tells.
struct Taps {
    rings: Vec<ring::Consumer>,
}

fn everything() -> Wanted {
    Wanted { ports: None, ends: u64::MAX }
}

impl Taps {
    fn on(tube: &mut Tube, wanted: Wanted, bytes: usize) -> Self {
        let (wanted, mut rings) = (Arc::new(wanted), Vec::new());
        for worker in 0..tube.workers.len() {
            let (producer, consumer) = ring::ring(bytes, 8);
            let tap = Tap::new(producer, wanted.clone(), 2048, 1, worker);
            assert!(tube.links[worker].send(ToWorker::Tap(Some(Box::new(tap)))));
            rings.push(consumer);
        }
        tube.settle();
        Self { rings }
    }

    /// Every packet with its end, those that were told later put together.
    fn told(&mut self) -> Vec<(Told, Vec<u8>)> {
        let (mut packets, mut later) = (Vec::<(Told, Vec<u8>)>::new(), BTreeMap::new());
        let mut bytes = Vec::new();
        for ring in &mut self.rings {
            while let Some(told) = tap::read(ring, &mut bytes) {
                if told.later {
                    assert!(later.insert(told.id, told).is_none(), "ended twice");
                } else {
                    packets.push((told, bytes.clone()));
                }
            }
        }
        for (packet, _) in &mut packets {
            if let Some(told) = later.remove(&packet.id) {
                assert!(!packet.end.is_final());
                (packet.end, packet.leaves_by) = (told.end, told.leaves_by);
            }
        }
        assert!(later.is_empty(), "ends without packets: {later:?}");
        packets
    }

    fn ends(&mut self) -> Vec<(&'static str, u16, Option<u16>)> {
        self.told().iter().map(|(told, _)| (told.end.name(), told.came_in, told.leaves_by)).collect()
    }
}

/// Ports 10.0.k.1/24, 198.51.100.0/24 behind port 1, 192.0.2.0/24 behind port 0.
fn router(rings: [u32; 2], workers: usize) -> Tube {
    let spec = |k: usize| PortSpec::new(&[&format!("10.0.{k}.1/24")]).rings(rings[k]);
    let mut tube = Tube::new(&[spec(0), spec(1)], workers);
    let (right, left) = (tube.routes.hop(1, 9, 1500), tube.routes.hop(0, 9, 1500));
    tube.routes.add("198.51.100.0/24", right);
    tube.routes.add("192.0.2.0/24", left);
    tube.publish();
    tube
}

fn frame(packet: &Ip4) -> Vec<u8> {
    ethernet(port_mac(0), host_mac(0, 9), 0x0800, &packet.build())
}

fn to(destination: &str, len: usize) -> Ip4 {
    Ip4::udp("192.0.2.7", destination, len)
}

#[test]
fn every_packet_is_told_once_as_it_came_with_its_verdict() {
    let mut tube = router([1, 1], 1);
    let mut taps = Taps::on(&mut tube, everything(), 1 << 20);
    let frames = [
        frame(&to("198.51.100.3", 30)),
        frame(&to("203.0.113.1", 30)),
        frame(&to("198.51.100.3", 30).ttl(1)),
        frame(&to("10.0.0.1", 30)),
        frame(&to("198.51.100.3", 30))[..30].to_vec(),
        frame(&to("127.0.0.1", 30)),
    ];
    frames.iter().for_each(|frame| tube.inject(0, frame));
    tube.settle();
    tube.check();
    let mut told = taps.told();
    told.sort_by_key(|(told, _)| told.id);
    let ends: Vec<_> = told.iter().map(|(told, _)| (told.end.name(), told.leaves_by)).collect();
    let expected = [
        ("forwarded", Some(1)),
        ("no_route", None),
        ("ttl_expired", None),
        ("unknown_protocol", None),
        ("runt", None),
        ("martian", None),
    ];
    assert_eq!(ends, expected);
    for ((told, bytes), frame) in told.iter().zip(&frames) {
        assert_eq!((bytes, told.len as usize), (frame, frame.len()), "as it came");
        assert_eq!(told.came_in, 0);
    }
    // What is made here, ICMP errors, is nobody's packet.
    assert!(tube.arrivals().len() > 1);
}

#[test]
fn the_verdicts_told_are_those_that_are_counted() {
    for workers in [1, 2, 3] {
        let mut tube = router([workers as u32, 1], workers);
        tube.filter(vec![
            Rule { to_ports: vec![(7, 7)], protocol: Some(17), ..Rule::of_all("no echo", true) },
            Rule { state: Some(State::Established), ..Rule::of_all("known", false) },
            Rule { state: Some(State::New), ..Rule::of_all("new", false) },
        ]);
        let mut taps = Taps::on(&mut tube, everything(), 1 << 20);
        for n in 0..300usize {
            let destination = ["198.51.100.3", "203.0.113.1", "198.51.100.9", "10.0.0.1"][n % 4];
            let mut packet = to(destination, 20 + n % 30);
            if n % 5 == 0 {
                packet = packet.ttl(1);
            }
            let mut frame = frame(&packet);
            if n % 3 == 0 {
                frame[36..38].copy_from_slice(&7u16.to_be_bytes());
            }
            tube.inject_on(0, n % workers, &frame);
            if n % 40 == 39 {
                tube.settle();
                tube.arrivals();
            }
        }
        tube.settle();
        tube.check();
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        taps.ends().iter().for_each(|(end, ..)| *counts.entry(end).or_default() += 1);
        let counted: BTreeMap<&str, u64> = tube.verdicts().into_iter().collect();
        assert_eq!(counts, counted, "{workers} workers");
        assert!(counts["denied"] > 0 && counts["forwarded"] > 0, "{counts:?}");
    }
}

#[test]
fn a_packet_handed_to_another_worker_is_told_as_it_came() {
    let mut tube = router([2, 1], 2);
    let mut taps = Taps::on(&mut tube, everything(), 1 << 20);
    let sent = frame(&to("198.51.100.3", 30));
    tube.inject_on(0, 1, &sent);
    tube.settle();
    let told = taps.told();
    assert_eq!((told[0].0.end.name(), told[0].0.leaves_by, told.len()), ("forwarded", Some(1), 1));
    assert_eq!(told[0].1, sent);
}

#[test]
fn a_held_packet_is_told_as_held_and_later_how_it_ended() {
    let mut tube = router([1, 1], 1);
    let gateway = "10.0.1.77".parse().unwrap();
    let gone = tube.routes.action(Action::Resolve, 1, Some(gateway));
    tube.routes.add("198.51.100.0/24", gone);
    tube.publish();
    let mut taps = Taps::on(&mut tube, everything(), 1 << 20);
    let sent = frame(&to("198.51.100.3", 30));
    tube.inject(0, &sent);
    tube.settle();
    let mut bytes = Vec::new();
    let held = tap::read(&mut taps.rings[0], &mut bytes).unwrap();
    assert_eq!((held.end, held.later, &bytes), (End::HELD, false, &sent));
    assert!(tube.to_keeper.try_iter().any(|said| matches!(said, ToKeeper::Resolve { .. })));
    assert!(tube.links[0].send(ToWorker::Failed { port: 1, address: gateway }));
    tube.settle();
    let end = tap::read(&mut taps.rings[0], &mut bytes).unwrap();
    assert_eq!((end.later, end.id, end.end.name()), (true, held.id, "neighbor_failed"));
    // And one whose neighbour is found.
    tube.inject(0, &sent);
    tube.settle();
    let hop = tube.routes.hop(1, 77, 1500);
    tube.routes.change(gone, hop);
    tube.publish();
    // The worker looks after what it holds in the sweep after that.
    tube.settle();
    tube.settle();
    assert_eq!(taps.ends(), [("forwarded", 0, Some(1))]);
}

#[test]
fn a_packet_that_does_not_leave_is_told_with_the_way_that_was_found() {
    let mut tube = router([1, 1], 1);
    let narrow = tube.routes.hop(1, 9, 600);
    tube.routes.add("203.0.113.0/24", narrow);
    let wait = tube.routes.action(Action::Resolve, 1, Some("10.0.1.77".parse().unwrap()));
    tube.routes.add("198.51.100.128/25", wait);
    tube.publish();
    tube.filter(vec![Rule { to_ports: vec![(7, 7)], protocol: Some(17), ..Rule::of_all("no echo", true) }]);
    let mut taps = Taps::on(&mut tube, everything(), 1 << 20);
    let to_port = |mut frame: Vec<u8>, port: u16| {
        let at = 14 + usize::from(frame[14] & 15) * 4 + 2;
        frame[at..at + 2].copy_from_slice(&port.to_be_bytes());
        frame
    };
    // Denied by the stage, and among packets that go on; on the careful path; and before it waits.
    let odd = Ip4 { options: vec![1; 4], ..to("198.51.100.3", 30) };
    for frame in [
        to_port(frame(&to("198.51.100.3", 30)), 9),
        to_port(frame(&to("198.51.100.3", 30)), 7),
        to_port(frame(&odd), 7),
        to_port(frame(&to("198.51.100.200", 30)), 7),
        frame(&to("203.0.113.5", 1000).dont_fragment()),
        frame(&to("198.51.100.200", 30)),
        frame(&to("8.8.8.8", 30)),
    ] {
        tube.inject(0, &frame);
    }
    tube.settle();
    tube.check();
    let mut ends = taps.ends();
    ends.sort_unstable();
    let expected = [
        ("denied", 0, Some(1)),
        ("denied", 0, Some(1)),
        ("denied", 0, Some(1)),
        ("forwarded", 0, Some(1)),
        ("held", 0, Some(1)),
        ("no_route", 0, None),
        ("too_big", 0, Some(1)),
    ];
    assert_eq!(ends, expected);
}

#[test]
fn only_what_is_wanted_is_told() {
    let mut tube = router([1, 1], 1);
    let verdict = |name: &str| End::all().find(|end| end.name() == name).unwrap().bit();
    let wanted = Wanted { ports: None, ends: verdict("no_route") | verdict("martian") };
    let mut taps = Taps::on(&mut tube, wanted, 1 << 20);
    let [forwarded, lost] = ["198.51.100.3", "203.0.113.1"].map(|to_| frame(&to(to_, 30)));
    tube.inject(0, &forwarded);
    tube.inject(0, &lost);
    tube.settle();
    assert_eq!(taps.ends(), [("no_route", 0, None)]);
    // By port 1 leaves what came in by port 0.
    let wanted = Wanted { ports: Some([false, true].into()), ends: u64::MAX };
    let mut taps = Taps::on(&mut tube, wanted, 1 << 20);
    tube.inject(0, &forwarded);
    tube.inject(0, &lost);
    tube.settle();
    assert_eq!(taps.ends(), [("forwarded", 0, Some(1))]);
}

#[test]
fn a_full_ring_of_the_captures_costs_no_packet_but_the_copy() {
    let mut tube = router([1, 1], 1);
    let mut taps = Taps::on(&mut tube, everything(), 4096);
    let frame = frame(&to("198.51.100.3", 400));
    for _ in 0..50 {
        tube.inject(0, &frame);
    }
    tube.settle();
    tube.check();
    assert_eq!(tube.verdicts(), [("forwarded", 50)]);
    let told = taps.told().len() as u64;
    assert!(told > 0 && told < 50, "{told}");
    assert_eq!((taps.rings[0].lost(0), taps.rings[0].lost(1)), (50 - told, 0));
}

#[test]
fn frames_of_a_sub_port_are_told_with_their_tags() {
    let specs = [
        PortSpec::new(&["10.0.0.1/24"]),
        PortSpec::new(&["10.0.1.1/24"]),
        PortSpec::new(&["10.0.2.1/24"]).of(0, "100"),
    ];
    let mut tube = Tube::new(&specs, 1);
    let right = tube.routes.hop(1, 9, 1500);
    tube.routes.add("198.51.100.0/24", right);
    tube.publish();
    let mut taps = Taps::on(&mut tube, everything(), 1 << 20);
    let plain =
        ethernet(port_mac(2), host_mac(2, 9), 0x0800, &Ip4::udp("10.0.2.7", "198.51.100.3", 30).build());
    let mut tagged = plain[..12].to_vec();
    tagged.extend([0x81, 0x00, 0, 100]);
    tagged.extend(&plain[12..]);
    tube.inject(0, &tagged);
    tube.settle();
    let told = taps.told();
    assert_eq!((told[0].0.end.name(), told[0].0.came_in, told[0].0.leaves_by), ("forwarded", 2, Some(1)));
    assert_eq!(told[0].1, tagged);
}

#[test]
fn a_tap_that_is_taken_away_lets_go_of_its_ring() {
    let mut tube = router([1, 1], 1);
    let taps = Taps::on(&mut tube, everything(), 4096);
    assert!(!taps.rings[0].is_alone());
    assert!(tube.links[0].send(ToWorker::Tap(None)));
    tube.settle();
    assert!(taps.rings[0].is_alone());
    tube.pass(0, &frame(&to("198.51.100.3", 30)));
}
