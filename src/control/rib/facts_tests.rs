//! What the RIB says beside forwarding: why configured routes are not in force, which neighbours
//! are gateways, and interfaces that change their names.

use super::{
    tests::{LAN, WAN, add, fate, feed, hop, ip, link, neighbor, net, rib, route, spec},
    *,
};
use crate::{
    control::kernel::{Hop, NeighborState, NextHopObject, Placement, Route, RouteKind, Way},
    tables::Action,
};

fn configured(to: &str, gateway: Option<&str>, port: Option<PortId>) -> StaticRoute {
    let hops = vec![StaticHop { gateway: gateway.map(ip), port, weight: 1 }];
    StaticRoute { to: net(to), kind: RouteKind::Unicast, hops }
}

/// A hop to wherever the gateway is.
fn recursive(gateway: &str) -> Hop {
    Hop { index: None, ..hop(Some(gateway), LAN) }
}

/// The ports as they are.
fn kept(rib: &Rib) -> BTreeMap<PortId, PortSettings> {
    (0..rib.ports() as PortId).map(|port| (port, PortSettings::default())).collect()
}

#[test]
fn a_configured_route_that_is_not_in_force_says_why() {
    let routes = [
        configured("192.0.2.0/24", Some("198.51.100.9"), None),
        configured("192.0.3.0/24", Some("10.0.0.9"), None),
        configured("192.0.4.0/24", None, Some(1)),
        configured("192.0.5.0/24", Some("192.0.5.1"), None),
        configured("192.0.6.0/24", Some("10.0.0.1"), None),
    ];
    let mut rib = Rib::new(vec![spec("wan"), spec("lan")], &routes, &[]);
    feed(&mut rib, [link(WAN, "wan", true), link(LAN, "lan", false)]);
    feed(&mut rib, [super::tests::kind("10.0.0.1/32", RouteKind::Local)].map(add));
    let why = |rib: &Rib| routes.each_ref().map(|route| rib.why_inactive(route).unwrap_or_default());
    let on_none =
        |gateway| format!("its gateway {gateway} is on no network of any port, and no route leads to it");
    assert_eq!(
        why(&rib),
        [
            on_none("198.51.100.9"),
            on_none("10.0.0.9"),
            "port lan is down".into(),
            on_none("192.0.5.1"),
            "its gateway 10.0.0.1 is this router itself, or never forwarded to".into()
        ]
    );
    feed(&mut rib, [link(LAN, "lan", true), add(route("10.0.0.0/24", vec![hop(None, LAN)]))]);
    let now = why(&rib);
    assert_eq!((now[0].clone(), &now[1..3]), (on_none("198.51.100.9"), &[String::new(), String::new()][..]));
    assert_eq!(rib.port_of_hop(&recursive("10.0.0.9")), Some(1));
    assert_eq!(rib.port_of_hop(&recursive("198.51.100.9")), None);
}

#[test]
fn gateways_are_those_that_routes_lead_through() {
    let mut rib = rib();
    let shared = route("192.0.2.0/24", vec![hop(Some("10.0.0.8"), LAN), hop(Some("10.0.0.9"), LAN)]);
    feed(
        &mut rib,
        [
            neighbor(LAN, "10.0.0.7", NeighborState::Reachable),
            neighbor(WAN, "203.0.113.1", NeighborState::Reachable),
            add(route("0.0.0.0/0", vec![hop(Some("203.0.113.1"), WAN)])),
            add(shared.clone()),
        ],
    );
    let lan = |last: u8| (1, IpAddr::from([10, 0, 0, last]));
    let wan = (0, ip("203.0.113.1"));
    assert_eq!(rib.gateways(), [wan, lan(8), lan(9)].into());
    // The same neighbour, named by the configuration.
    rib.reconfigure(&kept(&rib), &[configured("192.0.9.0/24", Some("10.0.0.7"), Some(1))], &[]);
    assert_eq!(rib.gateways(), [wan, lan(7), lan(8), lan(9)].into());
    rib.reconfigure(&kept(&rib), &[], &[]);
    feed(&mut rib, [KernelEvent::RouteGone(shared)]);
    assert_eq!(rib.gateways(), [wan].into());
}

#[test]
fn a_renamed_interface_keeps_its_port() {
    let mut rib = rib();
    feed(&mut rib, [link(LAN, "lan", false), link(LAN, "inside", false), link(LAN, "inside", true)]);
    feed(&mut rib, [add(route("10.0.0.0/24", vec![hop(None, LAN)]))]);
    assert_eq!((rib.port_of(LAN), rib.interface_of(1)), (Some(1), Some("inside")));
    assert_eq!((fate(&rib, "10.0.0.7").0, fate(&rib, "10.0.0.7").1), (Action::Glean, 1));
    // Another one with the old name is another one, until the first is gone.
    feed(&mut rib, [link(9, "lan", true)]);
    assert_eq!((rib.port_of(LAN), rib.port_of(9)), (Some(1), None));
    feed(&mut rib, [KernelEvent::LinkGone(LAN)]);
    assert_eq!((rib.port_of(LAN), rib.port_of(9)), (None, Some(1)));
}

#[test]
fn groups_and_broadcast_addresses_are_no_neighbors() {
    let mut rib = rib();
    let entry = |address: &str, mac: [u8; 6], state| KernelEvent::NeighborChanged {
        index: LAN,
        address: ip(address),
        mac: Some(mac),
        state,
    };
    feed(
        &mut rib,
        [
            entry("224.0.0.22", [1, 0, 0x5e, 0, 0, 0x16], NeighborState::NoArp),
            entry("ff02::16", [0x33, 0x33, 0, 0, 0, 0x16], NeighborState::NoArp),
            entry("10.0.0.255", [0xff; 6], NeighborState::NoArp),
            entry("10.0.0.8", [2, 0, 0, 0, 0, 8], NeighborState::NoArp),
            entry("10.0.0.9", [2, 0, 0, 0, 0, 9], NeighborState::Reachable),
        ],
    );
    let known: Vec<IpAddr> = rib.neighbors().map(|(_, address, _)| address).collect();
    assert_eq!(known, [ip("10.0.0.8"), ip("10.0.0.9")]);
}

#[test]
fn ports_that_exchange_their_interfaces_take_the_routes_with_them() {
    let mut rib = rib();
    feed(&mut rib, [add(route("10.0.0.0/24", vec![hop(None, LAN)]))]);
    feed(&mut rib, [add(route("203.0.113.0/24", vec![hop(None, WAN)]))]);
    let ways =
        |rib: &Rib| [fate(rib, "10.0.0.7"), fate(rib, "203.0.113.7")].map(|(action, port, _)| (action, port));
    for (first, second) in [("lan", "wan"), ("wan", "lan"), ("lan", "wan")] {
        for (port, interface) in [(0, first), (1, second)] {
            rib.port_gone(port);
            rib.enter_port(port, spec(interface));
            rib.port_back(port);
            rib.settle();
        }
        let lan = PortId::from(first == "wan");
        assert_eq!(ways(&rib), [(Action::Glean, lan), (Action::Glean, 1 - lan)]);
    }
}

#[test]
fn an_object_that_changes_under_a_second_route_leaves_the_first_in_force() {
    let mut rib = rib();
    let object = |gateway| KernelEvent::NextHopChanged(3, NextHopObject::Single(hop(Some(gateway), LAN)));
    let to = "198.51.100.0/24";
    let first = route(to, vec![hop(Some("203.0.113.1"), WAN)]);
    let second = Route { way: Way::Object(3), ..route(to, Vec::new()) };
    let told = |route: &Route, placement| KernelEvent::RouteChanged(route.clone(), placement);
    for to in [Placement::After, Placement::Replace] {
        // The kernel tells the second again, as one that takes the place of what it is.
        feed(&mut rib, [object("10.0.0.3"), add(first.clone()), told(&second, Placement::After)]);
        feed(&mut rib, [object("10.0.0.4"), told(&second, to)]);
        assert_eq!(fate(&rib, "198.51.100.1").2, Some(ip("203.0.113.1")));
        feed(&mut rib, [KernelEvent::RouteGone(first.clone())]);
        assert_eq!(fate(&rib, "198.51.100.1").2, Some(ip("10.0.0.4")));
        feed(&mut rib, [KernelEvent::RouteGone(second.clone())]);
    }
}
