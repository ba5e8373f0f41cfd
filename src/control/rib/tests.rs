//! Histories of events, and what is to come of them.

use super::*;
use crate::control::kernel::{Hop, NeighborState, Placement, Route, RouteKind, Way};
use crate::tables::{Action, fixed};
use ipnet::IpNet;

/// Interface indices: two ports and a device that is none.
pub const WAN: Index = 2;
pub const LAN: Index = 3;
pub const TUNNEL: Index = 4;

pub fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn link(index: Index, name: &str, up: bool) -> KernelEvent {
    let mac = Some([2, 0, 0, 0, 0, index as u8]);
    KernelEvent::LinkChanged(Link { index, name: name.into(), mac, mtu: 1500, up, carrier: up, vlan: None })
}

pub fn hop(gateway: Option<&str>, index: Index) -> Hop {
    Hop { gateway: gateway.map(ip), index: Some(index), weight: 1, kernel_only: false, dead: false }
}

pub fn route(to: &str, hops: Vec<Hop>) -> Route {
    Route {
        to: net(to),
        local_table: false,
        metric: 0,
        protocol: 3,
        kind: RouteKind::Unicast,
        way: Way::Hops(hops),
    }
}

pub fn kind(to: &str, kind: RouteKind) -> Route {
    Route { kind, ..route(to, Vec::new()) }
}

pub fn add(route: Route) -> KernelEvent {
    KernelEvent::RouteChanged(route, Placement::Before)
}

pub fn neighbor(index: Index, address: &str, state: NeighborState) -> KernelEvent {
    let mac = state.is_usable().then_some([2, 1, 0, 0, 0, address.len() as u8]);
    KernelEvent::NeighborChanged { index, address: ip(address), mac, state }
}

pub fn feed(rib: &mut Rib, events: impl IntoIterator<Item = KernelEvent>) {
    for event in events {
        rib.take(Report { listed: false, event });
    }
    rib.settle();
}

fn listing(rib: &mut Rib, part: Part, events: impl IntoIterator<Item = KernelEvent>) {
    rib.take(Report { listed: true, event: KernelEvent::DumpBegin(part) });
    for event in events {
        rib.take(Report { listed: true, event });
    }
    rib.take(Report { listed: true, event: KernelEvent::DumpEnd { part, complete: true } });
    rib.settle();
}

pub fn spec(name: &str) -> PortSpec {
    PortSpec { name: name.into(), interface: Some(name.into()), max_len: 9000, ..PortSpec::default() }
}

/// Ports wan (number 0) and lan (number 1) with networks, and a tunnel that is no port.
pub fn rib() -> Rib {
    let mut rib = Rib::new(vec![spec("wan"), spec("lan")], &[], &[]);
    feed(
        &mut rib,
        [
            link(WAN, "wan", true),
            link(LAN, "lan", true),
            link(TUNNEL, "tun0", true),
            add(route("203.0.113.0/24", vec![hop(None, WAN)])),
            add(route("10.0.0.0/24", vec![hop(None, LAN)])),
            add(kind("10.0.0.1/32", RouteKind::Local)),
            add(kind("10.0.0.255/32", RouteKind::Broadcast)),
        ],
    );
    rib
}

pub fn lookup(rib: &Rib, address: &str) -> NextHopId {
    let found = match ip(address) {
        IpAddr::V4(a) => rib.v4().installed.longest_match(u32::from(a)),
        IpAddr::V6(a) => rib.v6().installed.longest_match(u128::from(a)),
    };
    found.map_or(fixed::NO_ROUTE, |(_, id)| id)
}

/// What becomes of a packet: action, port, and who is asked for or sent to.
pub fn fate(rib: &Rib, address: &str) -> (Action, PortId, Option<IpAddr>) {
    let (hop, info) = rib.next_hop(lookup(rib, address));
    (info.action, hop.port, info.gateway)
}

#[test]
fn special_prefixes_are_always_there() {
    let rib = rib();
    for (address, action) in [
        ("0.1.2.3", Action::Martian),
        ("127.0.0.1", Action::Martian),
        ("224.0.0.5", Action::Multicast),
        ("240.0.0.1", Action::Martian),
        ("255.255.255.255", Action::Broadcast),
        ("169.254.1.1", Action::LinkLocal),
        ("::", Action::Martian),
        ("::1", Action::Martian),
        ("ff02::1", Action::Multicast),
        ("fe80::1", Action::LinkLocal),
        ("10.0.0.1", Action::Host),
        ("10.0.0.255", Action::Broadcast),
        ("10.0.0.7", Action::Glean),
        ("8.8.8.8", Action::NoRoute),
        ("2001:db8::1", Action::NoRoute),
    ] {
        assert_eq!(fate(&rib, address).0, action, "{address}");
    }
}

#[test]
fn nothing_is_routed_within_special_prefixes() {
    let mut rib = rib();
    feed(
        &mut rib,
        [
            add(route("fe80::/64", vec![hop(None, WAN)])),
            add(route("127.0.0.0/9", vec![hop(None, WAN)])),
            add(kind("127.0.0.1/32", RouteKind::Local)),
            add(kind("fe80::5/128", RouteKind::Local)),
            add(route("0.0.0.0/0", vec![hop(None, WAN)])),
        ],
    );
    assert_eq!(fate(&rib, "fe80::1").0, Action::LinkLocal);
    assert_eq!(fate(&rib, "fe80::5").0, Action::Host);
    assert_eq!(fate(&rib, "127.0.0.1").0, Action::Martian);
    assert_eq!(fate(&rib, "0.0.0.1").0, Action::Martian);
    assert_eq!(fate(&rib, "8.8.8.8").0, Action::Glean);
    assert_eq!(rib.local(), [ip("10.0.0.1"), ip("fe80::5")]);
    assert_eq!(rib.for_host(), [ip("10.0.0.1"), ip("10.0.0.255"), ip("fe80::5")]);
}

#[test]
fn route_and_neighbor_may_come_in_either_order() {
    let events = [
        add(route("0.0.0.0/0", vec![hop(Some("203.0.113.1"), WAN)])),
        neighbor(WAN, "203.0.113.1", NeighborState::Reachable),
    ];
    let mut route_first = rib();
    feed(&mut route_first, [events[0].clone()]);
    assert_eq!(fate(&route_first, "8.8.8.8"), (Action::Resolve, 0, Some(ip("203.0.113.1"))));
    assert_eq!(route_first.unresolved(), [(0, ip("203.0.113.1"))]);
    feed(&mut route_first, [events[1].clone()]);
    let mut neighbor_first = rib();
    feed(&mut neighbor_first, events.into_iter().rev());
    for rib in [&route_first, &neighbor_first] {
        assert_eq!(fate(rib, "8.8.8.8"), (Action::Forward, 0, Some(ip("203.0.113.1"))));
        assert_eq!(lookup(rib, "8.8.8.8"), lookup(rib, "203.0.113.1"), "one object for both");
        let (hop, _) = rib.next_hop(lookup(rib, "8.8.8.8"));
        assert_eq!(hop.macs, [2, 1, 0, 0, 0, 11, 2, 0, 0, 0, 0, WAN as u8]);
        assert_eq!(hop.max_len, 1500);
        assert!(rib.unresolved().is_empty());
    }
}

#[test]
fn a_neighbor_that_fails_changes_one_entry() {
    let mut rib = rib();
    feed(
        &mut rib,
        [
            add(route("0.0.0.0/0", vec![hop(Some("203.0.113.1"), WAN)])),
            neighbor(WAN, "203.0.113.1", NeighborState::Reachable),
        ],
    );
    let id = lookup(&rib, "8.8.8.8");
    rib.take_changes();
    feed(&mut rib, [neighbor(WAN, "203.0.113.1", NeighborState::Stale)]);
    assert!(rib.take_changes().is_empty());
    feed(&mut rib, [neighbor(WAN, "203.0.113.1", NeighborState::Failed)]);
    let changes = rib.take_changes();
    assert_eq!(changes.next_hops.iter().copied().collect::<Vec<_>>(), [id]);
    assert_eq!(changes.prefixes4, [(u32::from_be_bytes([203, 0, 113, 1]), 32)]);
    assert_eq!(fate(&rib, "8.8.8.8"), (Action::Resolve, 0, Some(ip("203.0.113.1"))));
    assert_eq!(fate(&rib, "203.0.113.1"), (Action::Glean, 0, None));
}

#[test]
fn one_link_local_gateway_address_on_two_ports_is_two_neighbors() {
    let mut rib = rib();
    feed(
        &mut rib,
        [
            add(route("2001:db8:1::/48", vec![hop(Some("fe80::1"), WAN)])),
            add(route("2001:db8:2::/48", vec![hop(Some("fe80::1"), LAN)])),
            neighbor(LAN, "fe80::1", NeighborState::Reachable),
        ],
    );
    assert_eq!(fate(&rib, "2001:db8:1::1"), (Action::Resolve, 0, Some(ip("fe80::1"))));
    assert_eq!(fate(&rib, "2001:db8:2::1"), (Action::Forward, 1, Some(ip("fe80::1"))));
    assert_eq!(fate(&rib, "fe80::1").0, Action::LinkLocal);
}

#[test]
fn an_ipv4_route_may_lead_through_an_ipv6_gateway() {
    let mut rib = rib();
    feed(
        &mut rib,
        [
            add(route("198.51.100.0/24", vec![hop(Some("fe80::1"), WAN)])),
            neighbor(WAN, "fe80::1", NeighborState::Delay),
        ],
    );
    assert_eq!(fate(&rib, "198.51.100.1"), (Action::Forward, 0, Some(ip("fe80::1"))));
}

#[test]
fn a_gateway_outside_the_own_network_is_taken_at_its_word() {
    // A /32 address and an onlink gateway, as hosting companies have it.
    let mut rib = rib();
    feed(
        &mut rib,
        [
            add(kind("192.0.2.7/32", RouteKind::Local)),
            add(route("0.0.0.0/0", vec![hop(Some("100.64.0.1"), WAN)])),
            neighbor(WAN, "100.64.0.1", NeighborState::Reachable),
        ],
    );
    assert_eq!(fate(&rib, "8.8.8.8"), (Action::Forward, 0, Some(ip("100.64.0.1"))));
    // Its own address is reached as the route says, since no network of the link holds it.
    assert_eq!(rib.v4().of((u32::from_be_bytes([100, 64, 0, 1]), 32)).len(), 0);
}

#[test]
fn both_addresses_of_a_31_are_hosts() {
    let mut spec = spec("p");
    (spec.interface, spec.builtin_host) = (None, true);
    spec.addresses = Some(vec![net("192.0.2.0/31"), net("192.0.2.5/30"), net("2001:db8::1/64")]);
    let rib = Rib::new(vec![spec], &[], &[]);
    for (address, action) in [
        ("192.0.2.0", Action::Host),
        ("192.0.2.1", Action::Glean),
        ("192.0.2.5", Action::Host),
        ("192.0.2.6", Action::Glean),
        ("192.0.2.7", Action::Broadcast),
        ("2001:db8::1", Action::Host),
        ("2001:db8::2", Action::Glean),
    ] {
        assert_eq!(fate(&rib, address).0, action, "{address}");
    }
    let port = rib.port(0).unwrap();
    assert!(port.up);
    assert_eq!(port.addresses4.len(), 2);
}

#[test]
fn a_link_that_goes_down_takes_its_routes_along() {
    let mut rib = rib();
    feed(
        &mut rib,
        [
            add(route("0.0.0.0/0", vec![hop(Some("203.0.113.1"), WAN)])),
            add(route("10.9.0.0/16", vec![hop(Some("203.0.113.1"), WAN), hop(Some("10.0.0.9"), LAN)])),
            neighbor(WAN, "203.0.113.1", NeighborState::Reachable),
        ],
    );
    rib.take_wanted();
    feed(&mut rib, [link(WAN, "wan", false)]);
    assert_eq!(fate(&rib, "8.8.8.8").0, Action::NoRoute);
    assert_eq!(fate(&rib, "203.0.113.1").0, Action::NoRoute);
    assert_eq!(fate(&rib, "10.9.1.1"), (Action::Resolve, 1, Some(ip("10.0.0.9"))));
    assert!(rib.take_wanted().has(Part::Routes4), "and what else went is asked for");
    assert!(rib.v4().of((0, 0)).is_empty(), "Linux does not bring it back");
    feed(&mut rib, [link(WAN, "wan", true)]);
    assert_eq!(fate(&rib, "8.8.8.8").0, Action::NoRoute);
    assert_eq!(fate(&rib, "10.9.1.1").0, Action::Group, "the other half revives");
    assert!(!rib.port(0).unwrap().addresses4.iter().any(|_| true));
}

#[test]
fn carrier_loss_alone_removes_nothing() {
    let mut rib = rib();
    let KernelEvent::LinkChanged(mut wan) = link(WAN, "wan", true) else { unreachable!() };
    wan.carrier = false;
    feed(&mut rib, [KernelEvent::LinkChanged(wan)]);
    assert_eq!(fate(&rib, "203.0.113.9").0, Action::Glean);
    assert!(!rib.port(0).unwrap().up);
}

#[test]
fn a_route_out_of_a_device_that_is_no_port_is_the_hosts() {
    let mut rib = rib();
    feed(&mut rib, [add(route("172.16.0.0/12", vec![hop(None, TUNNEL)]))]);
    assert_eq!(fate(&rib, "172.16.1.1").0, Action::Host);
    assert!(!rib.local().contains(&ip("172.16.1.1")));
    let encapsulated = Hop { kernel_only: true, ..hop(Some("203.0.113.1"), WAN) };
    feed(&mut rib, [add(route("172.16.0.0/16", vec![encapsulated]))]);
    assert_eq!(fate(&rib, "172.16.1.1").0, Action::Host);
}

#[test]
fn the_lower_metric_wins_and_the_higher_takes_over() {
    let mut rib = rib();
    let best = Route { metric: 10, ..route("198.51.100.0/24", vec![hop(Some("203.0.113.1"), WAN)]) };
    let other = Route { metric: 20, ..route("198.51.100.0/24", vec![hop(Some("10.0.0.9"), LAN)]) };
    feed(&mut rib, [add(other.clone()), add(best.clone())]);
    assert_eq!(fate(&rib, "198.51.100.1").1, 0);
    feed(&mut rib, [KernelEvent::RouteGone(best)]);
    assert_eq!(fate(&rib, "198.51.100.1").1, 1);
    feed(&mut rib, [KernelEvent::RouteGone(other)]);
    assert_eq!(fate(&rib, "198.51.100.1").0, Action::NoRoute);
}

#[test]
fn replacing_appending_and_prepending_keep_the_kernels_order() {
    let mut rib = rib();
    rib.take_wanted();
    let to = "198.51.100.0/24";
    let (a, b, c) = (
        route(to, vec![hop(Some("203.0.113.1"), WAN)]),
        route(to, vec![hop(Some("203.0.113.2"), WAN)]),
        route(to, vec![hop(Some("203.0.113.3"), WAN)]),
    );
    let asked = |rib: &Rib| fate(rib, "198.51.100.1").2.unwrap().to_string();
    feed(&mut rib, [add(a.clone()), KernelEvent::RouteChanged(b.clone(), Placement::After)]);
    assert_eq!(asked(&rib), "203.0.113.1");
    feed(&mut rib, [KernelEvent::RouteChanged(c.clone(), Placement::Replace)]);
    assert_eq!(asked(&rib), "203.0.113.3");
    feed(&mut rib, [add(a.clone())]);
    assert_eq!(asked(&rib), "203.0.113.1");
    feed(&mut rib, [KernelEvent::RouteGone(a)]);
    assert_eq!(asked(&rib), "203.0.113.3");
    feed(&mut rib, [KernelEvent::RouteGone(c)]);
    assert_eq!(asked(&rib), "203.0.113.2");
    assert_eq!(rib.take_wanted(), Parts::default(), "nothing was in doubt");
}

#[test]
fn an_unknown_variant_that_goes_is_a_reason_to_look_again() {
    let mut rib = rib();
    feed(&mut rib, [add(route("198.51.100.0/24", vec![hop(Some("203.0.113.1"), WAN)]))]);
    rib.take_wanted();
    let gone = route("198.51.100.0/24", vec![hop(Some("203.0.113.77"), WAN)]);
    feed(&mut rib, [KernelEvent::RouteGone(gone)]);
    assert_eq!(rib.take_wanted(), Part::Routes4.into());
    feed(&mut rib, [KernelEvent::RouteGone(route("198.51.101.0/24", vec![hop(None, WAN)]))]);
    assert_eq!(rib.take_wanted(), Parts::default());
}

#[test]
fn ipv6_next_hops_come_and_go_one_by_one() {
    let mut rib = rib();
    let to = "2001:db8:5::/48";
    let one = route(to, vec![hop(Some("fe80::1"), WAN)]);
    let both = route(to, vec![hop(Some("fe80::1"), WAN), hop(Some("fe80::2"), LAN)]);
    feed(&mut rib, [add(one.clone()), KernelEvent::RouteChanged(both, Placement::After)]);
    assert_eq!(fate(&rib, "2001:db8:5::1").0, Action::Group);
    assert_eq!(rib.v6().candidates.len(), 5);
    feed(&mut rib, [KernelEvent::RouteGone(one)]);
    assert_eq!(fate(&rib, "2001:db8:5::1"), (Action::Resolve, 1, Some(ip("fe80::2"))));
    let device_routes = [route(to, vec![hop(None, WAN)]), route(to, vec![hop(None, LAN)])];
    feed(&mut rib, device_routes.map(add));
    assert_eq!(fate(&rib, "2001:db8:5::1").0, Action::Resolve, "the first stays the first");
}

#[test]
fn unresolved_members_of_a_group_are_left_out() {
    let mut rib = rib();
    let mut second = hop(Some("203.0.113.2"), WAN);
    second.weight = 3;
    feed(&mut rib, [add(route("198.51.100.0/24", vec![hop(Some("203.0.113.1"), WAN), second]))]);
    let place = rib.next_hop(lookup(&rib, "198.51.100.1")).1.group;
    let share = |rib: &Rib, gateway: &str| {
        let id = rib.next_hops().id_of(crate::control::next_hops::Adjacency::Neighbor(0, ip(gateway)));
        rib.group(place).unwrap().iter().filter(|member| Some(**member) == id).count()
    };
    assert_eq!((share(&rib, "203.0.113.1"), share(&rib, "203.0.113.2")), (64, 192), "none is resolved");
    rib.take_changes();
    feed(&mut rib, [neighbor(WAN, "203.0.113.2", NeighborState::Reachable)]);
    assert_eq!((share(&rib, "203.0.113.1"), share(&rib, "203.0.113.2")), (0, 256));
    assert!(rib.take_changes().groups.contains(&place));
    feed(&mut rib, [neighbor(WAN, "203.0.113.1", NeighborState::Reachable)]);
    assert_eq!((share(&rib, "203.0.113.1"), share(&rib, "203.0.113.2")), (64, 192));
    feed(&mut rib, [neighbor(WAN, "203.0.113.2", NeighborState::Failed)]);
    assert_eq!((share(&rib, "203.0.113.1"), share(&rib, "203.0.113.2")), (256, 0));
}

#[test]
fn a_group_knows_the_ports_of_all_its_members() {
    let mut rib = rib();
    let both = vec![hop(Some("203.0.113.1"), WAN), hop(Some("10.0.0.2"), LAN)];
    feed(&mut rib, [add(route("198.51.100.0/24", both))]);
    let place = rib.next_hop(lookup(&rib, "198.51.100.1")).1.group;
    feed(&mut rib, [neighbor(WAN, "203.0.113.1", NeighborState::Reachable)]);
    assert_eq!(rib.group_ports(place), [0, 1], "one of them is not resolved");
}

#[test]
fn next_hop_objects_may_be_deleted_and_come_back() {
    let mut rib = rib();
    let through = |id| Route { way: Way::Object(id), ..route("198.51.100.0/24", Vec::new()) };
    let single = |gateway, index| NextHopObject::Single(hop(Some(gateway), index));
    feed(
        &mut rib,
        [
            KernelEvent::NextHopChanged(1, single("203.0.113.1", WAN)),
            KernelEvent::NextHopChanged(2, single("10.0.0.9", LAN)),
            KernelEvent::NextHopChanged(9, NextHopObject::Group(vec![(1, 1), (2, 1)])),
            add(through(9)),
        ],
    );
    assert_eq!(fate(&rib, "198.51.100.1").0, Action::Group);
    feed(&mut rib, [KernelEvent::NextHopGone(1)]);
    assert_eq!(fate(&rib, "198.51.100.1"), (Action::Resolve, 1, Some(ip("10.0.0.9"))));
    feed(&mut rib, [KernelEvent::NextHopChanged(2, single("203.0.113.2", WAN))]);
    assert_eq!(fate(&rib, "198.51.100.1"), (Action::Resolve, 0, Some(ip("203.0.113.2"))));
    rib.take_wanted();
    feed(&mut rib, [KernelEvent::NextHopGone(9)]);
    assert_eq!(fate(&rib, "198.51.100.1").0, Action::NoRoute);
    assert!(rib.take_wanted().has(Part::Routes4));
    feed(&mut rib, [KernelEvent::NextHopChanged(9, NextHopObject::Blackhole)]);
    assert_eq!(fate(&rib, "198.51.100.1").0, Action::Blackhole);
}

#[test]
fn what_a_listing_does_not_name_is_gone() {
    let mut rib = rib();
    let (kept, lost) = (route("1.0.0.0/8", vec![hop(None, LAN)]), route("2.0.0.0/8", vec![hop(None, LAN)]));
    feed(&mut rib, [add(kept.clone()), add(lost)]);
    listing(&mut rib, Part::Routes4, [add(kept.clone())]);
    assert_eq!(fate(&rib, "1.1.1.1").0, Action::Glean);
    assert_eq!(fate(&rib, "2.1.1.1").0, Action::NoRoute);
    assert_eq!(fate(&rib, "10.0.0.1").0, Action::NoRoute);
    assert_eq!(fate(&rib, "127.0.0.1").0, Action::Martian, "what is not the kernel's stays");
    // News during the listing are fresher than its lines.
    rib.take(Report { listed: true, event: KernelEvent::DumpBegin(Part::Routes4) });
    feed(&mut rib, [KernelEvent::RouteGone(kept.clone()), add(route("3.0.0.0/8", vec![hop(None, LAN)]))]);
    rib.take(Report { listed: true, event: add(kept) });
    rib.take(Report { listed: true, event: KernelEvent::DumpEnd { part: Part::Routes4, complete: true } });
    assert_eq!(fate(&rib, "1.1.1.1").0, Action::NoRoute);
    assert_eq!(fate(&rib, "3.1.1.1").0, Action::Glean);
}

#[test]
fn a_listing_that_news_were_lost_in_removes_nothing() {
    let mut rib = rib();
    rib.take(Report { listed: true, event: KernelEvent::DumpBegin(Part::Routes4) });
    rib.take(Report { listed: false, event: KernelEvent::Overrun });
    rib.take(Report { listed: true, event: KernelEvent::DumpEnd { part: Part::Routes4, complete: true } });
    assert_eq!(fate(&rib, "10.0.0.7").0, Action::Glean);
    assert_eq!(rib.take_wanted(), Parts::ALL);
    listing(&mut rib, Part::Links, [link(WAN, "wan", true)]);
    assert_eq!(fate(&rib, "10.0.0.7").0, Action::NoRoute, "lan is gone");
    listing(&mut rib, Part::Neighbors, []);
}

#[test]
fn a_static_route_follows_the_route_to_its_gateway() {
    let to = |to: &str, gateway: &str| StaticRoute {
        to: net(to),
        kind: RouteKind::Unicast,
        hops: vec![StaticHop { gateway: Some(ip(gateway)), port: None, weight: 1 }],
    };
    let routes = [to("1.0.0.0/8", "2.0.0.1"), to("2.0.0.0/8", "203.0.113.1"), to("5.0.0.0/8", "5.0.0.1")];
    let mut rib = Rib::new(vec![spec("wan"), spec("lan")], &routes, &[]);
    assert_eq!(fate(&rib, "1.1.1.1").0, Action::NoRoute);
    feed(
        &mut rib,
        [
            link(WAN, "wan", true),
            link(LAN, "lan", true),
            add(route("203.0.113.0/24", vec![hop(None, WAN)])),
            add(route("10.0.0.0/24", vec![hop(None, LAN)])),
        ],
    );
    assert_eq!(fate(&rib, "1.1.1.1"), (Action::Resolve, 0, Some(ip("203.0.113.1"))));
    assert_eq!(fate(&rib, "5.1.1.1").0, Action::NoRoute, "through itself");
    feed(&mut rib, [add(route("203.0.113.1/32", vec![hop(Some("10.0.0.9"), LAN)]))]);
    assert_eq!(fate(&rib, "1.1.1.1"), (Action::Resolve, 1, Some(ip("10.0.0.9"))), "the middle moved");
    feed(&mut rib, [link(LAN, "lan", false)]);
    assert_eq!(fate(&rib, "1.1.1.1"), (Action::Resolve, 0, Some(ip("203.0.113.1"))));
    feed(&mut rib, [link(WAN, "wan", false)]);
    assert_eq!(fate(&rib, "1.1.1.1").0, Action::NoRoute);
}

#[test]
fn static_routes_that_lead_to_each_other_lead_nowhere() {
    let to = |to: &str, gateway: &str| StaticRoute {
        to: net(to),
        kind: RouteKind::Unicast,
        hops: vec![StaticHop { gateway: Some(ip(gateway)), port: None, weight: 1 }],
    };
    let routes = [to("1.0.0.0/8", "2.0.0.1"), to("2.0.0.0/8", "1.0.0.1")];
    let mut rib = Rib::new(vec![spec("wan")], &routes, &[]);
    feed(&mut rib, [link(WAN, "wan", true), add(route("0.0.0.0/0", vec![hop(None, WAN)]))]);
    // With a default route behind them they would change each other for ever.
    assert_ne!(fate(&rib, "9.9.9.9").0, Action::NoRoute);
    rib.settle();
}

#[test]
fn a_static_route_wins_over_the_kernels() {
    let statics = [StaticRoute { to: net("10.0.0.0/24"), kind: RouteKind::Prohibit, hops: Vec::new() }];
    let neighbors = [StaticNeighbor { port: 0, address: ip("203.0.113.9"), mac: [6; 6] }];
    let mut rib = Rib::new(vec![spec("wan"), spec("lan")], &statics, &neighbors);
    feed(
        &mut rib,
        [
            link(LAN, "lan", true),
            link(WAN, "wan", true),
            add(route("10.0.0.0/24", vec![hop(None, LAN)])),
            neighbor(LAN, "10.0.0.5", NeighborState::Reachable),
            neighbor(WAN, "203.0.113.9", NeighborState::Failed),
            add(route("203.0.113.0/24", vec![hop(None, WAN)])),
        ],
    );
    assert_eq!(fate(&rib, "10.0.0.7").0, Action::Prohibit);
    assert_eq!(fate(&rib, "10.0.0.5").0, Action::Prohibit, "its network does not lead to the link");
    assert_eq!(fate(&rib, "203.0.113.9"), (Action::Forward, 0, Some(ip("203.0.113.9"))));
    assert_eq!(rib.next_hop(lookup(&rib, "203.0.113.9")).0.macs[..6], [6; 6]);
}

#[test]
fn a_more_specific_route_takes_a_neighbor_from_the_link() {
    let mut rib = rib();
    feed(&mut rib, [neighbor(LAN, "10.0.0.5", NeighborState::Stale)]);
    assert_eq!(fate(&rib, "10.0.0.5").0, Action::Forward);
    let specific = route("10.0.0.4/30", vec![hop(Some("203.0.113.1"), WAN)]);
    feed(&mut rib, [add(specific.clone())]);
    assert_eq!(fate(&rib, "10.0.0.5"), (Action::Resolve, 0, Some(ip("203.0.113.1"))));
    feed(&mut rib, [KernelEvent::RouteGone(specific)]);
    assert_eq!(fate(&rib, "10.0.0.5"), (Action::Forward, 1, Some(ip("10.0.0.5"))));
}

#[test]
fn a_port_takes_mac_mtu_and_addresses_from_the_kernel() {
    let mut rib = rib();
    let address = |text: &str, secondary| Address { index: WAN, net: net(text), secondary, ready: true };
    feed(
        &mut rib,
        [
            KernelEvent::AddressAdded(address("203.0.113.3/24", true)),
            KernelEvent::AddressAdded(address("203.0.113.2/24", false)),
            KernelEvent::AddressAdded(address("fe80::2/64", false)),
            KernelEvent::AddressAdded(address("2001:db8::2/64", false)),
            neighbor(WAN, "203.0.113.1", NeighborState::Reachable),
        ],
    );
    let port = rib.port(0).unwrap();
    assert_eq!(port.addresses4[0].to_string(), "203.0.113.2/24");
    assert_eq!(port.addresses6[0].to_string(), "2001:db8::2/64");
    assert_eq!((port.mac, port.mtu, port.up), ([2, 0, 0, 0, 0, WAN as u8], 1500, true));
    rib.take_changes();
    let KernelEvent::LinkChanged(mut wan) = link(WAN, "wan", true) else { unreachable!() };
    (wan.mtu, wan.mac) = (65535, Some([7; 6]));
    feed(&mut rib, [KernelEvent::LinkChanged(wan)]);
    let (hop, _) = rib.next_hop(lookup(&rib, "203.0.113.1"));
    assert_eq!((hop.max_len, &hop.macs[6..]), (9000, &[7; 6][..]), "no more than the device takes");
    assert!(rib.take_changes().next_hops.contains(&lookup(&rib, "203.0.113.1")));
    rib.take_wanted();
    feed(&mut rib, [KernelEvent::AddressRemoved(address("203.0.113.2/24", false))]);
    assert_eq!(rib.port(0).unwrap().addresses4[0].to_string(), "203.0.113.3/24");
    assert!(rib.take_wanted().has(Part::Routes4));
}

#[test]
fn an_interface_may_go_and_come_back_under_another_number() {
    let mut rib = rib();
    feed(&mut rib, [KernelEvent::LinkGone(WAN)]);
    assert_eq!(fate(&rib, "203.0.113.9").0, Action::NoRoute);
    assert!(!rib.port(0).unwrap().up);
    feed(&mut rib, [link(77, "wan", true), add(route("203.0.113.0/24", vec![hop(None, 77)]))]);
    assert_eq!(fate(&rib, "203.0.113.9"), (Action::Glean, 0, None));
    rib.port_gone(0);
    rib.settle();
    assert_eq!(fate(&rib, "203.0.113.9").0, Action::NoRoute);
}
