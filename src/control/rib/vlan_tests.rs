//! Sub-ports and the kernel's VLAN interfaces. No kernel with such interfaces was at hand: these
//! events are made by hand, as `kernel/parse/tests.rs` makes the messages.

use super::tests::{WAN, add, feed, hop, ip, kind, link, lookup, neighbor, net, route, spec};
use super::*;
use crate::control::kernel::{NeighborState, RouteKind, VlanLink};
use crate::tables::{Action, SubPort};
use crate::wire::vlan::Tags;

const VLAN: Index = 20;
const INNER: Index = 21;
/// The sub-ports' numbers.
const V100: PortId = 1;
const STACKED: PortId = 2;

fn sub(tags: &str, addresses: &[&str]) -> PortSpec {
    let sub = SubPort { parent: 0, tags: tags.parse().unwrap() };
    let addresses: Vec<_> = addresses.iter().map(|text| net(text)).collect();
    let addresses = given_addresses(false, &addresses);
    PortSpec { name: format!("wan.{tags}"), sub: Some(sub), max_len: 9000, addresses, ..PortSpec::default() }
}

/// A port with sub-ports 100 and s200.7, the second with an address of the configuration's.
fn rib() -> Rib {
    let mut rib = Rib::new(vec![spec("wan"), sub("100", &[]), sub("s200.7", &["10.7.0.1/24"])], &[], &[]);
    feed(&mut rib, [link(WAN, "wan", true)]);
    rib
}

/// A VLAN interface over `parent`.
fn vlan(index: Index, name: &str, parent: Index, tag: &str, up: bool) -> KernelEvent {
    let tag = tag.parse::<Tags>().unwrap().outer;
    match link(index, name, up) {
        KernelEvent::LinkChanged(link) => {
            KernelEvent::LinkChanged(Link { vlan: Some(VlanLink { parent, tag }), mtu: 1400, ..link })
        }
        other => other,
    }
}

fn address(index: Index, net_of: &str) -> KernelEvent {
    KernelEvent::AddressAdded(Address { index, net: net(net_of), secondary: false, ready: true })
}

#[test]
fn rule_104_a_sub_port_is_found_by_parent_and_tag_and_never_by_name() {
    let mut rib = rib();
    // The right name and the wrong tag, kind of tag or parent.
    feed(
        &mut rib,
        [
            vlan(30, "wan.100", WAN, "101", true),
            vlan(31, "wan.100s", WAN, "s100", true),
            vlan(32, "lan.100", 3, "100", true),
        ],
    );
    assert_eq!(rib.index_of(V100), None);
    feed(&mut rib, [vlan(VLAN, "customers", WAN, "100", true)]);
    assert_eq!((rib.index_of(V100), rib.port_of(VLAN)), (Some(VLAN), Some(V100)));
    feed(&mut rib, [vlan(VLAN, "renamed", WAN, "100", true)]);
    assert_eq!(rib.index_of(V100), Some(VLAN));
    // Made anew as another VLAN, under the same number.
    feed(&mut rib, [vlan(VLAN, "renamed", WAN, "102", true)]);
    assert_eq!(rib.index_of(V100), None);
}

#[test]
fn rule_104_a_sub_port_takes_the_addresses_neighbours_and_routes_of_its_interface() {
    let mut rib = rib();
    let table = |rib: &Rib| rib.port(V100).unwrap().clone();
    assert!(table(&rib).builtin_host && table(&rib).up);
    assert_eq!((table(&rib).mac, table(&rib).mtu), ([2, 0, 0, 0, 0, WAN as u8], 1500), "its parent's");
    feed(
        &mut rib,
        [
            vlan(VLAN, "x", WAN, "100", true),
            address(VLAN, "10.1.0.1/24"),
            add(route("10.1.0.0/24", vec![hop(None, VLAN)])),
            add(kind("10.1.0.1/32", RouteKind::Local)),
            add(route("198.51.100.0/24", vec![hop(Some("10.1.0.9"), VLAN)])),
            neighbor(VLAN, "10.1.0.9", NeighborState::Reachable),
        ],
    );
    assert!(!table(&rib).builtin_host);
    assert_eq!((table(&rib).addresses4, table(&rib).mtu), (vec!["10.1.0.1/24".parse().unwrap()], 1400));
    let (hop, info) = rib.next_hop(lookup(&rib, "198.51.100.1"));
    assert_eq!((info.action, hop.port, info.gateway), (Action::Forward, V100, Some(ip("10.1.0.9"))));
    assert_eq!((hop.max_len, &hop.macs[6..]), (1400, &[2, 0, 0, 0, 0, VLAN as u8][..]));
    assert_eq!(rib.port(0).unwrap().trunk.as_ref().unwrap().find(Tags::vlan(100)), Some(V100));

    feed(&mut rib, [KernelEvent::LinkGone(VLAN)]);
    assert!(table(&rib).builtin_host && table(&rib).addresses4.is_empty());
    assert_eq!(rib.next_hop(lookup(&rib, "198.51.100.1")).1.action, Action::NoRoute);
}

#[test]
fn rule_104_two_tags_are_an_interface_over_an_interface() {
    let mut rib = rib();
    feed(&mut rib, [vlan(INNER, "b", VLAN, "7", true)]);
    assert_eq!(rib.index_of(STACKED), None);
    feed(&mut rib, [vlan(VLAN, "a", WAN, "s200", true)]);
    assert_eq!(rib.index_of(STACKED), Some(INNER));
    assert!(!rib.port(STACKED).unwrap().builtin_host);
    // The configuration's address holds all the same.
    assert_eq!(rib.port(STACKED).unwrap().addresses4, ["10.7.0.1/24".parse().unwrap()]);
    feed(&mut rib, [KernelEvent::LinkGone(VLAN)]);
    assert_eq!(rib.index_of(STACKED), None);
}

#[test]
fn a_sub_port_without_an_interface_has_the_configurations_addresses() {
    let mut rib = rib();
    let (hop, info) = rib.next_hop(lookup(&rib, "10.7.0.9"));
    assert_eq!((info.action, hop.port), (Action::Glean, STACKED));
    assert_eq!(rib.local(), [ip("10.7.0.1")]);
    let known = Neighbor {
        mac: Some([9; 6]),
        state: NeighborState::Reachable,
        source: NeighborSource::Learned,
        mark: 0,
    };
    rib.set_neighbor(own_index(STACKED), ip("10.7.0.9"), known);
    rib.settle();
    let (hop, info) = rib.next_hop(lookup(&rib, "10.7.0.9"));
    assert_eq!((info.action, hop.port, &hop.macs[..6]), (Action::Forward, STACKED, &[9; 6][..]));
}

#[test]
fn a_sub_port_goes_down_with_its_parent() {
    let mut rib = rib();
    feed(&mut rib, [vlan(VLAN, "x", WAN, "100", true)]);
    rib.take_changes();
    feed(&mut rib, [link(WAN, "wan", false)]);
    assert!(!rib.port(V100).unwrap().up && !rib.port(STACKED).unwrap().up);
    assert_eq!(rib.next_hop(lookup(&rib, "10.7.0.9")).1.action, Action::NoRoute);
    assert!(rib.take_changes().ports.is_superset(&[0, V100, STACKED].into()));
    feed(&mut rib, [link(WAN, "wan", true)]);
    assert!(rib.port(V100).unwrap().up);
    assert_eq!(rib.next_hop(lookup(&rib, "10.7.0.9")).1.action, Action::Glean);
    feed(&mut rib, [vlan(VLAN, "x", WAN, "100", false)]);
    assert!(!rib.port(V100).unwrap().up && rib.port(STACKED).unwrap().up);
}
