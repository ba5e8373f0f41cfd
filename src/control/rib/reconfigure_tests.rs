//! Changing what the configuration gives: afterwards all is as if it had always been so, and
//! nothing else was touched.

use proptest::prelude::*;

use super::tests::{LAN, WAN, add, feed, hop, ip, kind, link, lookup, neighbor, net, route, spec};
use super::*;
use crate::control::kernel::{NeighborState, RouteKind};
use crate::tables::{Action, NextHop, NextHopInfo, ReversePath, fixed};

const ADDRESSES: [&str; 10] = [
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.9",
    "10.0.0.255",
    "10.0.1.1",
    "192.0.2.1",
    "192.0.2.129",
    "198.51.100.1",
    "2001:db8::2",
    "2001:db8:1::1",
];

/// What a configuration gives.
#[derive(Clone, Debug, Default)]
struct Given {
    ports: Vec<PortSettings>,
    routes: Vec<StaticRoute>,
    neighbors: Vec<StaticNeighbor>,
}

fn numbered(ports: &[PortSettings]) -> BTreeMap<PortId, PortSettings> {
    (0..).zip(ports.iter().cloned()).collect()
}

/// A port of the built-in host, and one of the kernel's.
fn specs(given: &Given) -> Vec<PortSpec> {
    let builtin = PortSpec { builtin_host: true, device_mac: [2; 6], max_len: 9000, ..PortSpec::default() };
    let kernel = PortSpec { device_mac: [4; 6], ..spec("lan") };
    [PortSpec { name: "a".into(), ..builtin }, kernel]
        .into_iter()
        .zip(&given.ports)
        .map(|(spec, settings)| PortSpec {
            mac: settings.mac,
            mtu: settings.mtu,
            addresses: given_addresses(spec.builtin_host, &settings.addresses),
            ..spec
        })
        .collect()
}

fn started(given: &Given) -> Rib {
    Rib::new(specs(given), &given.routes, &given.neighbors)
}

fn kernel_events() -> Vec<KernelEvent> {
    vec![
        link(LAN, "lan", true),
        add(route("203.0.113.0/24", vec![hop(None, LAN)])),
        add(route("192.0.2.0/24", vec![hop(Some("203.0.113.9"), LAN)])),
        add(kind("203.0.113.1/32", RouteKind::Local)),
        neighbor(LAN, "203.0.113.9", NeighborState::Reachable),
    ]
}

/// What becomes of a packet, whatever numbers next hops have; of a group, all its members.
type Fate = (NextHop, Action, Option<IpAddr>, Vec<(NextHop, Option<IpAddr>)>);

fn fate(rib: &Rib, address: &str) -> Fate {
    let (hop, info): (_, NextHopInfo) = rib.next_hop(lookup(rib, address));
    let mut members = Vec::new();
    if info.action == Action::Group {
        let mut ids = rib.group(info.group).unwrap().to_vec();
        ids.sort_unstable();
        ids.dedup();
        members.extend(ids.into_iter().map(|id| (rib.next_hop(id).0, rib.next_hop(id).1.gateway)));
        members.sort_by_key(|(hop, gateway)| (hop.port, *gateway));
    }
    (hop, info.action, info.gateway, members)
}

fn assert_alike(left: &Rib, right: &Rib) {
    for address in ADDRESSES.iter().chain(&["203.0.113.1", "203.0.113.9", "8.8.8.8"]) {
        assert_eq!(fate(left, address), fate(right, address), "{address}");
    }
    for port in 0..2 {
        assert_eq!(left.port(port), right.port(port));
    }
    assert_eq!(left.local(), right.local());
    assert_eq!(left.for_host(), right.for_host());
    assert_eq!(left.v4().installed.len(), right.v4().installed.len());
    assert_eq!(left.v6().installed.len(), right.v6().installed.len());
    assert_eq!(left.next_hops().len(), right.next_hops().len());
    let known = |rib: &Rib| rib.neighbors().map(|(p, a, n)| (p, a, n.mac)).collect::<Vec<_>>();
    assert_eq!(known(left), known(right));
}

fn settings() -> impl Strategy<Value = Given> {
    let nets =
        prop::sample::subsequence(vec!["10.0.0.1/24", "10.0.0.9/24", "10.0.1.1/31", "2001:db8::1/64"], 0..=4);
    let port = |addresses: BoxedStrategy<Vec<&'static str>>| {
        (prop::option::of(Just([6; 6])), prop::option::of(Just(1400)), addresses).prop_map(
            |(mac, mtu, addresses)| PortSettings {
                mac,
                mtu,
                addresses: addresses.into_iter().map(net).collect(),
                ..PortSettings::default()
            },
        )
    };
    let second = prop::sample::subsequence(vec!["203.0.113.1/24", "198.51.100.1/24"], 0..=2);
    let hop = (
        prop::option::of(prop::sample::select(vec!["10.0.0.2", "10.0.1.1", "203.0.113.9"])),
        0..3u16,
        1..3u16,
    )
        .prop_map(|(gateway, port, weight)| StaticHop {
            gateway: gateway.map(ip),
            port: if gateway.is_none() { Some(port % 2) } else { Some(port).filter(|port| *port < 2) },
            weight,
        });
    let target = prop_oneof![
        1 => prop::sample::select(vec![RouteKind::Blackhole, RouteKind::Unreachable, RouteKind::Prohibit])
            .prop_map(|kind| (kind, Vec::new())),
        3 => prop::collection::vec(hop, 1..3).prop_map(|hops| (RouteKind::Unicast, hops)),
    ];
    let to =
        vec!["0.0.0.0/0", "192.0.2.0/24", "192.0.2.128/25", "198.51.100.0/24", "10.0.0.2/32", "127.1.0.0/16"];
    let routes = prop::collection::btree_map(prop::sample::select(to), target, 0..5).prop_map(|routes| {
        routes.into_iter().map(|(to, (kind, hops))| StaticRoute { to: net(to), kind, hops }).collect()
    });
    let who = prop::sample::select(vec!["10.0.0.2", "10.0.0.9", "203.0.113.9", "2001:db8::2"]);
    let neighbors = prop::collection::btree_map((0..2u16, who), 1..3u8, 0..4).prop_map(|list| {
        let neighbor =
            |((port, who), mac)| StaticNeighbor { port, address: ip(who), mac: [2, 0, 0, 0, 0, mac] };
        list.into_iter().map(neighbor).collect()
    });
    (port(nets.boxed()), port(second.boxed()), routes, neighbors)
        .prop_map(|(a, b, routes, neighbors)| Given { ports: vec![a, b], routes, neighbors })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn after_any_changes_all_is_as_if_it_had_always_been_so(
        history in prop::collection::vec(settings(), 1..5),
        kernel_after in 0..5usize,
    ) {
        let mut rib = started(&history[0]);
        for (turn, given) in history.iter().enumerate() {
            if turn == kernel_after {
                feed(&mut rib, kernel_events());
            }
            rib.reconfigure(&numbered(&given.ports), &given.routes, &given.neighbors);
            rib.take_changes();
            rib.recycle();
        }
        if kernel_after >= history.len() {
            feed(&mut rib, kernel_events());
        }
        let mut fresh = started(history.last().unwrap());
        feed(&mut fresh, kernel_events());
        assert_alike(&rib, &fresh);
    }
}

fn base() -> Given {
    let via = |gateway: &str| vec![StaticHop { gateway: Some(ip(gateway)), port: None, weight: 1 }];
    let unicast =
        |to: &str, gateway| StaticRoute { to: net(to), kind: RouteKind::Unicast, hops: via(gateway) };
    Given {
        ports: vec![
            PortSettings {
                addresses: vec![net("10.0.0.1/24"), net("10.0.0.9/24")],
                ..PortSettings::default()
            },
            PortSettings::default(),
        ],
        routes: vec![unicast("192.0.2.0/24", "10.0.0.2"), unicast("198.51.100.0/24", "10.0.0.2")],
        neighbors: vec![StaticNeighbor { port: 0, address: ip("10.0.0.2"), mac: [2, 0, 0, 0, 0, 9] }],
    }
}

#[test]
fn the_same_configuration_changes_nothing() {
    let given = base();
    let mut rib = started(&given);
    rib.take_changes();
    rib.reconfigure(&numbered(&given.ports), &given.routes, &given.neighbors);
    assert!(rib.take_changes().is_empty());
}

#[test]
fn only_what_differs_changes_and_a_next_hop_in_use_keeps_its_number() {
    let (old, mut new) = (base(), base());
    let mut rib = started(&old);
    rib.take_changes();
    let number = lookup(&rib, "192.0.2.1");
    new.routes[0].to = net("192.0.2.0/25");
    new.routes[1].kind = RouteKind::Prohibit;
    rib.reconfigure(&numbered(&new.ports), &new.routes, &new.neighbors);
    let mut changes = rib.take_changes();
    changes.prefixes4.sort_unstable();
    assert_eq!(changes.prefixes4, [(0xc000_0200, 24), (0xc000_0200, 25), (0xc633_6400, 24)]);
    assert!(changes.ports.is_empty() && changes.next_hops.is_empty() && !changes.local, "{changes:?}");
    assert_eq!(lookup(&rib, "192.0.2.1"), number);
    assert_eq!(lookup(&rib, "192.0.2.129"), fixed::NO_ROUTE);
    assert_eq!(lookup(&rib, "198.51.100.1"), fixed::PROHIBIT);
}

#[test]
fn a_network_stays_while_another_address_is_in_it() {
    let (old, mut new) = (base(), base());
    let mut rib = started(&old);
    new.ports[0].addresses.remove(0);
    rib.reconfigure(&numbered(&new.ports), &new.routes, &new.neighbors);
    assert_eq!(fate(&rib, "10.0.0.77").1, Action::Glean);
    assert_eq!(fate(&rib, "10.0.0.1").1, Action::Glean);
    assert_eq!(fate(&rib, "10.0.0.9").1, Action::Host);
    new.ports[0].addresses.clear();
    rib.reconfigure(&numbered(&new.ports), &new.routes, &new.neighbors);
    assert_eq!(fate(&rib, "10.0.0.77").1, Action::NoRoute);
    assert!(rib.local().is_empty());
}

#[test]
fn the_check_of_sources_changes_with_the_configuration() {
    let mut rib = Rib::new(vec![spec("wan")], &[], &[]);
    rib.take_changes();
    for how in [ReversePath::Strict, ReversePath::Off] {
        let settings = PortSettings { reverse_path: how, ..PortSettings::default() };
        rib.reconfigure(&numbered(&[settings]), &[], &[]);
        assert_eq!(rib.port(0).map(|port| port.reverse_path), Some(how));
        assert!(rib.take_changes().ports.contains(&0));
    }
}

#[test]
fn a_configured_mtu_is_no_more_than_the_interfaces_own() {
    let mut rib = Rib::new(vec![PortSpec { mtu: Some(1400), ..spec("wan") }], &[], &[]);
    let mut mtu_with = |mtu| {
        let KernelEvent::LinkChanged(wan) = link(WAN, "wan", true) else { unreachable!() };
        feed(&mut rib, [KernelEvent::LinkChanged(Link { mtu, ..wan })]);
        rib.port(0).map(|port| port.mtu)
    };
    assert_eq!([1500, 1300, 9000].map(&mut mtu_with), [Some(1400), Some(1300), Some(1400)]);
}

#[test]
fn what_the_kernel_says_comes_back_when_the_configuration_no_longer_says_it() {
    let given = Given {
        ports: vec![
            PortSettings {
                addresses: vec![net("203.0.113.1/24")],
                mac: Some([6; 6]),
                mtu: Some(1300),
                ..PortSettings::default()
            },
            PortSettings::default(),
        ],
        ..Given::default()
    };
    let mut spec = spec("wan");
    (spec.mac, spec.mtu, spec.addresses) = (Some([6; 6]), Some(1300), Some(given.ports[0].addresses.clone()));
    let mut rib = Rib::new(vec![spec], &[], &[]);
    feed(&mut rib, [link(WAN, "wan", true)]);
    assert_eq!(rib.port(0).map(|port| (port.mac, port.mtu)), Some(([6; 6], 1300)));
    rib.reconfigure(&numbered(&[PortSettings::default()]), &[], &[]);
    assert_eq!(rib.port(0).map(|port| (port.mac, port.mtu)), Some(([2, 0, 0, 0, 0, WAN as u8], 1500)));
    assert_eq!(fate(&rib, "203.0.113.7").1, Action::NoRoute);
}

#[test]
fn an_address_stays_while_either_the_kernel_or_the_configuration_has_it() {
    let given = PortSettings { addresses: vec![net("10.0.0.1/24")], ..PortSettings::default() };
    let spec = PortSpec { addresses: Some(given.addresses.clone()), ..spec("lan") };
    let mut rib = Rib::new(vec![spec], &[], &[]);
    let own = kind("10.0.0.1/32", RouteKind::Local);
    feed(&mut rib, [link(LAN, "lan", true), add(own.clone())]);
    feed(&mut rib, [KernelEvent::RouteGone(own.clone())]);
    assert_eq!(fate(&rib, "10.0.0.1").1, Action::Host);
    feed(&mut rib, [add(own.clone())]);
    rib.reconfigure(&numbered(&[PortSettings::default()]), &[], &[]);
    assert_eq!(fate(&rib, "10.0.0.1").1, Action::Host);
    rib.reconfigure(&numbered(&[given]), &[], &[]);
    feed(&mut rib, [KernelEvent::RouteGone(own)]);
    assert_eq!(fate(&rib, "10.0.0.1").1, Action::Host);
    rib.reconfigure(&numbered(&[PortSettings::default()]), &[], &[]);
    assert_eq!(fate(&rib, "10.0.0.1").1, Action::NoRoute);
}
