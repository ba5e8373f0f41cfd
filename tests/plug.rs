//! Ports that come and go, and faults that a worker survives, while packets of other ports go on.

mod common;
#[path = "common/packets.rs"]
mod packets;

use common::{PortSpec, Tube, host_mac, port_mac};
use packets::{Ip4, ethernet};
use sweepd::forward::{
    plug::{Plug, Reply},
    verdict::Verdict,
};

/// Two ports, 10.0.k.1/24 each; 198.51.100.0/24 behind host 9 of port 1, 192.0.2.0/24 of port 0.
fn two_ports(workers: usize, rings: [u32; 2]) -> Tube {
    let spec = |k: usize| PortSpec::new(&[&format!("10.0.{k}.1/24")]).rings(rings[k]);
    let mut tube = Tube::new(&[spec(0), spec(1)], workers);
    let (left, right) = (tube.routes.hop(0, 9, 1500), tube.routes.hop(1, 9, 1500));
    tube.routes.add("198.51.100.0/24", right);
    tube.routes.add("192.0.2.0/24", left);
    tube.publish();
    tube
}

fn to_router(port: usize, packet: &Ip4) -> Vec<u8> {
    ethernet(port_mac(port), host_mac(port, 9), 0x0800, &packet.build())
}

#[test]
fn a_port_comes_and_goes_between_two_that_lose_nothing() {
    for (workers, rings) in [(1, 1), (2, 2), (3, 2)] {
        let mut tube = two_ports(workers, [2, 1]);
        let pass = |tube: &mut Tube| {
            for ring in 0..2 {
                tube.inject_on(0, ring, &to_router(0, &Ip4::udp("192.0.2.7", "198.51.100.3", 9)));
            }
            tube.settle();
            tube.check();
            assert_eq!(tube.arrived(1).len(), 2, "{workers} workers, {rings} rings");
        };
        pass(&mut tube);
        for round in 0..2 {
            // Before the rings come, something still waits to be swept.
            tube.inject(0, &to_router(0, &Ip4::udp("192.0.2.7", "198.51.100.3", 9)));
            tube.add_port(&PortSpec::new(&[&format!("10.0.{}.1/24", 2 + round)]).rings(rings));
            let port = 2 + round as usize;
            let hop = tube.routes.hop(port, 9, 1500);
            tube.routes.add("203.0.113.0/24", hop);
            tube.publish();
            tube.settle();
            assert_eq!(tube.arrived(1).len(), 1);
            pass(&mut tube);
            for ring in 0..2 {
                tube.inject_on(0, ring, &to_router(0, &Ip4::udp("192.0.2.7", "203.0.113.3", 9)));
            }
            for ring in 0..rings as usize {
                tube.inject_on(port, ring, &to_router(port, &Ip4::udp("203.0.113.3", "192.0.2.7", 9)));
            }
            tube.settle();
            tube.check();
            assert_eq!((tube.arrived(port).len(), tube.arrived(0).len()), (2, rings as usize));
            tube.routes.remove("203.0.113.0/24");
            tube.publish();
            tube.inject(0, &to_router(0, &Ip4::udp("192.0.2.7", "198.51.100.3", 9)));
            tube.remove_port(port);
            tube.settle();
            tube.check();
            assert_eq!(tube.arrived(1).len(), 1);
            let rings_back: usize = tube.given_back.iter().map(|r| r.rx.len() + r.tx.len()).sum();
            assert_eq!(rings_back, 2 * (round as usize + 1) * rings as usize);
            pass(&mut tube);
        }
        let others: Vec<_> = tube.verdicts().into_iter().filter(|(name, _)| *name != "forwarded").collect();
        assert_eq!(others, [], "{workers} workers, {rings} rings");
    }
}

#[test]
fn rings_that_move_up_are_still_found() {
    // With one worker, port 1's ring takes the place of port 0's among the worker's own.
    let mut tube = two_ports(1, [1, 1]);
    tube.add_port(&PortSpec::new(&["10.0.2.1/24"]));
    let (one, two) = (tube.routes.hop(1, 9, 1500), tube.routes.hop(2, 9, 1500));
    tube.routes.add("198.51.100.0/24", one);
    tube.routes.add("203.0.113.0/24", two);
    tube.publish();
    tube.remove_port(0);
    for (from, to, at) in [("198.51.100.3", "203.0.113.3", 2), ("203.0.113.3", "198.51.100.3", 1)] {
        tube.inject(3 - at, &to_router(3 - at, &Ip4::udp(from, to, 9)));
        tube.settle();
        tube.check();
        assert_eq!(tube.arrived(at).len(), 1);
    }
    // What still leads to the port is lost with a reason.
    tube.inject(1, &to_router(1, &Ip4::udp("198.51.100.3", "192.0.2.3", 9)));
    tube.settle();
    tube.check();
    assert_eq!(tube.verdicts(), [("forwarded", 2), ("port_down", 1)]);
}

#[test]
fn held_packets_of_a_port_that_goes_end_and_those_of_others_stay() {
    for workers in [1, 2] {
        let mut tube = two_ports(workers, [1, 1]);
        tube.add_port(&PortSpec::new(&["10.0.2.1/24"]));
        // From 0 for a neighbour on 2, from 2 for one on 1, from 0 for one on 1.
        tube.inject(0, &to_router(0, &Ip4::udp("192.0.2.7", "10.0.2.9", 9)));
        tube.routes.add("10.0.2.0/24", sweepd::tables::fixed::NO_ROUTE);
        let glean = tube.routes.action(sweepd::tables::Action::Glean, 2, None);
        tube.routes.add("10.0.2.0/24", glean);
        let towards_port_2 = tube.routes.hop(2, 9, 1500);
        tube.routes.add("203.0.113.0/24", towards_port_2);
        tube.publish();
        tube.inject(2, &to_router(2, &Ip4::udp("203.0.113.3", "10.0.1.9", 9)));
        tube.inject(0, &to_router(0, &Ip4::udp("192.0.2.7", "10.0.1.9", 9)));
        tube.settle();
        tube.check();
        assert_eq!(tube.stats.snapshot().iter().map(|p| p.held).sum::<u64>(), 3, "{:?}", tube.verdicts());
        tube.remove_port(2);
        tube.settle();
        tube.check();
        assert_eq!(tube.verdicts(), [("port_down", 2)]);
        assert_eq!(tube.stats.snapshot()[0].held, 1);
        let known = tube.routes.hop(1, 9, 1500);
        tube.routes.add("10.0.1.9/32", known);
        tube.publish();
        // The generation is noticed at the end of one sweep, and acted on in the next.
        tube.settle();
        tube.settle();
        assert_eq!(tube.arrived(1).len(), 1);
    }
}

#[test]
fn a_full_transmit_ring_is_waited_for_unless_forced() {
    let mut tube = two_ports(1, [1, 1]);
    for _ in 0..3 {
        for _ in 0..60 {
            tube.inject(0, &to_router(0, &Ip4::udp("192.0.2.7", "198.51.100.3", 9)));
        }
        tube.settle();
    }
    tube.tell(0, Plug::Quiet(1));
    for (force, done) in [(false, false), (true, true)] {
        let reply = tube.workers[0].plug(Plug::Out { port: 1, force });
        assert_eq!(matches!(reply, Reply::Done(_)), done);
    }
}

#[test]
fn a_fault_in_a_sweep_loses_that_sweep_counted_and_nothing_else() {
    for workers in [1, 2] {
        let mut tube = two_ports(workers, [1, 1]);
        // One waits for its neighbour when it happens.
        tube.inject(0, &to_router(0, &Ip4::udp("192.0.2.7", "10.0.1.9", 9)));
        tube.settle();
        for _ in 0..40 {
            tube.inject(0, &to_router(0, &Ip4::udp("192.0.2.7", "198.51.100.3", 9)));
        }
        // A port whose table is missing is no possible state: the stages panic.
        for worker in &mut tube.workers {
            worker.reader.offline();
        }
        let mut saved = Vec::new();
        tube.publisher.publish(|tables| saved = std::mem::take(&mut tables.ports));
        assert!(tube.sweep_may_panic(0));
        tube.check();
        assert_eq!(tube.verdicts(), [("worker_fault", 41)]);
        for worker in &mut tube.workers {
            worker.reader.offline();
        }
        tube.publisher.publish(|tables| tables.ports = saved.clone());
        for ring in 0..30 {
            tube.inject(
                ring % 2,
                &to_router(
                    ring % 2,
                    &match ring % 2 {
                        0 => Ip4::udp("192.0.2.7", "198.51.100.3", 9),
                        _ => Ip4::udp("198.51.100.3", "192.0.2.7", 9),
                    },
                ),
            );
        }
        tube.settle();
        tube.check();
        assert_eq!((tube.arrived(0).len(), tube.arrived(1).len()), (15, 15));
        assert_eq!((tube.count(Verdict::Forwarded), tube.count(Verdict::WorkerFault)), (30, 41));
    }
}
