//! Flows over several next hops when a route's next hops change: who moves, and who does not.

use super::{
    Rib,
    tests::{LAN, WAN, add, feed, hop, route},
    tests::{ip, lookup, neighbor, rib},
};
use crate::control::{
    buckets::BUCKETS,
    kernel::{Hop, KernelEvent, NeighborState, Placement},
    next_hops::Adjacency,
};
use crate::tables::Action;

/// The gateway that each bucket leads to.
fn buckets(rib: &Rib, address: &str) -> Vec<&'static str> {
    let id = lookup(rib, address);
    let gateway = |id| {
        let known = ["203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4"];
        let is = |gateway: &&str| rib.next_hops().id_of(Adjacency::Neighbor(0, ip(gateway))) == Some(id);
        known.into_iter().find(is).expect("one of the gateways")
    };
    match rib.next_hop(id).1 {
        info if info.action == Action::Group => rib.group(info.group).unwrap().map(gateway).to_vec(),
        _ => vec![gateway(id); BUCKETS],
    }
}

fn through(last: &[u8]) -> Vec<Hop> {
    last.iter().map(|n| hop(Some(&format!("203.0.113.{n}")), WAN)).collect()
}

fn resolved() -> Rib {
    let mut rib = rib();
    feed(&mut rib, (1..=4).map(|n| neighbor(WAN, &format!("203.0.113.{n}"), NeighborState::Reachable)));
    rib
}

#[test]
fn rule_63_a_route_replaced_by_one_with_other_next_hops_moves_no_more_flows_than_it_must() {
    let mut rib = resolved();
    let to = "198.51.100.0/24";
    let address = "198.51.100.1";
    let replace = |last| KernelEvent::RouteChanged(route(to, through(last)), Placement::Replace);
    feed(&mut rib, [add(route(to, through(&[1, 2, 3, 4])))]);
    let all = buckets(&rib, address);
    for (last, gone) in [(&[1, 2, 4][..], "203.0.113.3"), (&[1, 4], "203.0.113.2"), (&[1], "203.0.113.4")] {
        let before = buckets(&rib, address);
        feed(&mut rib, [replace(last)]);
        let after = buckets(&rib, address);
        assert!(before.iter().zip(&after).all(|(old, new)| old == new || *old == gone), "without {gone}");
        assert!(!after.contains(&gone));
    }
    for (last, came) in [(&[1, 2][..], "203.0.113.2"), (&[1, 2, 3], "203.0.113.3")] {
        let before = buckets(&rib, address);
        feed(&mut rib, [replace(last)]);
        let after = buckets(&rib, address);
        assert!(before.iter().zip(&after).all(|(old, new)| old == new || *new == came), "with {came}");
        let moved = before.iter().zip(&after).filter(|(old, new)| old != new).count();
        assert!(moved.abs_diff(BUCKETS / last.len()) <= 1, "{moved}");
    }
    assert!(rib.take_changes().groups.len() > 1 && all.len() == BUCKETS);
}

#[test]
fn rule_63_a_next_hop_taken_out_of_an_ipv6_route_moves_its_own_flows() {
    let mut rib = resolved();
    let to = "2001:db8:5::/48";
    let hops =
        |last: &[u16]| last.iter().map(|n| hop(Some(&format!("2001:db8::{n}")), LAN)).collect::<Vec<_>>();
    feed(&mut rib, [add(route(to, hops(&[1, 2, 3])))]);
    let group = |rib: &Rib| *rib.group(rib.next_hop(lookup(rib, "2001:db8:5::1")).1.group).unwrap();
    let before = group(&rib);
    feed(&mut rib, [KernelEvent::RouteGone(route(to, hops(&[2])))]);
    let after = group(&rib);
    let moved: Vec<_> =
        before.iter().zip(&after).filter(|(old, new)| old != new).map(|(old, _)| *old).collect();
    assert!(!moved.is_empty() && moved.iter().all(|old| *old == moved[0] && !after.contains(old)));
}
