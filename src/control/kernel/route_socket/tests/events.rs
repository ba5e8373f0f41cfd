//! What the keeper hears, after one message and another.

use std::collections::BTreeMap;

use ipnet::IpNet;
use proptest::{collection::vec, prelude::*};

use super::{super::*, *};
use crate::control::kernel::{
    Address, Hop, KernelEvent, Link, Part, Parts, Placement, Report, Route, RouteKind, Way,
};

/// What a keeper would know, and the translator it hears.
struct Rig {
    translator: Translator,
    heard: Vec<Report>,
}

impl Rig {
    fn new() -> Self {
        Self { translator: Translator::new(true), heard: Vec::new() }
    }

    fn hear(&mut self, bytes: &[u8]) -> Vec<KernelEvent> {
        let mut out = Vec::new();
        self.translator.news(bytes, &mut out);
        assert!(out.iter().all(|report| !report.listed));
        self.heard.extend(out.clone());
        out.into_iter().map(|report| report.event).collect()
    }

    /// Lists a part, a few messages at a time.
    fn list(&mut self, part: Part, messages: &[Vec<u8>]) -> Vec<KernelEvent> {
        let bytes = messages.concat();
        let (mut out, mut taken) = (Vec::new(), 0);
        self.translator.begin(part, &mut out);
        loop {
            match self.translator.listed(part, &bytes[taken..], 2, &mut out).unwrap() {
                0 => break,
                more => taken += more,
            }
        }
        self.translator.end(part, true, &mut out);
        assert!(out.iter().all(|report| report.listed));
        self.heard.extend(out.clone());
        assert_eq!(out.remove(0).event, KernelEvent::DumpBegin(part));
        assert_eq!(out.pop().unwrap().event, KernelEvent::DumpEnd { part, complete: true });
        out.into_iter().map(|report| report.event).collect()
    }

    fn know_links(&mut self) {
        self.list(
            Part::Links,
            &[
                Build::link_listed(1, 0x8049, 0, 16384).with(IFP, &link(1, "lo0", &[])).done(),
                Build::link_listed(2, 0x8843, 2, 1500).with(IFP, &link(2, "ix0", &MAC)).done(),
                Build::link_listed(3, 0x8051, 0, 1500).with(IFP, &link(3, "tun0", &[])).done(),
            ],
        );
    }
}

fn through(kind: u8, to: &str, gateway: &str, index: u16) -> Build {
    let net: IpNet = to.parse().unwrap();
    let flags = UP | GATEWAY | if kind == GET { 0 } else { DONE };
    let built =
        Build::route(kind, index, flags).with(DST, &ip(&net.addr().to_string())).with(GW, &ip(gateway));
    let len = u32::from(net.prefix_len());
    built.with(MASK, &if net.addr().is_ipv4() { mask4(len) } else { mask6(len) })
}

fn hop(gateway: &str, index: u32, weight: u16) -> Hop {
    let gateway = Some(gateway.parse().unwrap());
    Hop { gateway, index: Some(index), weight, kernel_only: false, dead: false }
}

fn changed(to: &str, hops: &[Hop], placement: Placement) -> KernelEvent {
    KernelEvent::RouteChanged(route_to(to, hops), placement)
}

fn route_to(to: &str, hops: &[Hop]) -> Route {
    Route {
        to: to.parse().unwrap(),
        local_table: false,
        metric: 0,
        protocol: 0,
        kind: RouteKind::Unicast,
        way: Way::Hops(hops.to_vec()),
    }
}

#[test]
fn a_route_comes_changes_and_goes() {
    let mut rig = Rig::new();
    let (a, b) = (hop("192.0.2.1", 2, 1), hop("192.0.2.2", 2, 1));
    assert_eq!(
        rig.hear(&through(ADD, "10.0.0.0/8", "192.0.2.1", 2).done()),
        [changed("10.0.0.0/8", std::slice::from_ref(&a), Placement::Replace)]
    );
    assert_eq!(
        rig.hear(&through(CHANGE, "10.0.0.0/8", "192.0.2.2", 2).done()),
        [changed("10.0.0.0/8", std::slice::from_ref(&b), Placement::Replace)]
    );
    assert_eq!(
        rig.hear(&through(DELETE, "10.0.0.0/8", "192.0.2.2", 2).done()),
        [KernelEvent::RouteGone(route_to("10.0.0.0/8", &[b]))]
    );
    assert_eq!(rig.hear(&through(DELETE, "10.0.0.0/8", "192.0.2.2", 2).done()), []);
    assert_eq!(rig.translator.take_wanted(), Parts::default());
}

#[test]
fn a_deletion_need_not_say_which_way() {
    let mut rig = Rig::new();
    rig.hear(&through(ADD, "10.0.0.0/8", "192.0.2.1", 2).done());
    let bytes = Build::route(DELETE, 0, DONE).with(DST, &ip("10.0.0.0")).with(MASK, &mask4(8)).done();
    let gone = KernelEvent::RouteGone(route_to("10.0.0.0/8", &[hop("192.0.2.1", 2, 1)]));
    assert_eq!(rig.hear(&bytes), [gone]);
}

#[test]
fn more_next_hops_for_a_prefix_make_one_route_of_several() {
    let mut rig = Rig::new();
    let (a, b) = (hop("192.0.2.1", 2, 1), hop("198.51.100.1", 3, 4));
    rig.hear(&through(ADD, "10.0.0.0/8", "192.0.2.1", 2).asked_by(9).done());
    assert_eq!(
        rig.hear(&through(ADD, "10.0.0.0/8", "198.51.100.1", 3).asked_by(9).weight(4).done()),
        [changed("10.0.0.0/8", &[a.clone(), b.clone()], Placement::Replace)]
    );
    assert_eq!(rig.translator.take_wanted(), Parts::default(), "all is known");
    assert_eq!(
        rig.hear(&through(DELETE, "10.0.0.0/8", "192.0.2.1", 2).done()),
        [changed("10.0.0.0/8", std::slice::from_ref(&b), Placement::Replace)]
    );
    assert_eq!(
        rig.hear(&through(DELETE, "10.0.0.0/8", "198.51.100.1", 0).done()),
        [KernelEvent::RouteGone(route_to("10.0.0.0/8", &[b]))]
    );
}

#[test]
fn what_the_news_leave_open_is_listed_again() {
    let wanted = |rig: &mut Rig| rig.translator.take_wanted();
    let four = Parts::from(Part::Routes4);
    // The kernel's own word does not have the weight.
    let mut rig = Rig::new();
    rig.hear(&through(ADD, "10.0.0.0/8", "192.0.2.1", 2).done());
    assert_eq!(wanted(&mut rig), Parts::default());
    rig.hear(&through(ADD, "10.0.0.0/8", "192.0.2.2", 2).done());
    assert_eq!(wanted(&mut rig), four);
    // Which of the two has changed?
    assert_eq!(rig.hear(&through(CHANGE, "10.0.0.0/8", "192.0.2.7", 2).done()), []);
    assert_eq!(wanted(&mut rig), four);
    // One that was not there is deleted.
    assert_eq!(rig.hear(&through(DELETE, "10.0.0.0/8", "192.0.2.99", 2).done()), []);
    assert_eq!(wanted(&mut rig), four);
    // A route through nobody knows where.
    assert_eq!(rig.hear(&through(ADD, "2001:db8::/32", "2001:db8:f::1", 0).done()), []);
    assert_eq!(wanted(&mut rig), Part::Routes6.into());
    rig.hear(&Build::route(REDIRECT, 0, GATEWAY | HOST | DONE).with(DST, &ip("10.0.0.1")).done());
    assert_eq!(wanted(&mut rig), four.with(Part::Routes6.into()));
}

#[test]
fn a_change_that_may_be_older_than_the_listing_is_made_sure_of() {
    let mut rig = Rig::new();
    // The kernel had two next hops, changed one and deleted it; this is left.
    rig.list(Part::Routes4, &[through(GET, "10.0.0.0/8", "192.0.2.2", 2).done()]);
    rig.hear(&through(CHANGE, "10.0.0.0/8", "192.0.2.3", 2).done());
    rig.hear(&through(DELETE, "10.0.0.0/8", "192.0.2.3", 2).done());
    assert_eq!(rig.translator.take_wanted(), Part::Routes4.into());
    rig.translator.caught_up();
    rig.hear(&through(ADD, "10.0.0.0/8", "192.0.2.2", 2).done());
    rig.hear(&through(CHANGE, "10.0.0.0/8", "192.0.2.3", 2).done());
    assert_eq!(rig.translator.take_wanted(), Parts::default());
}

#[test]
fn the_next_hops_of_a_listed_route_are_gathered() {
    let mut rig = Rig::new();
    let line = |to, gateway, weight: u64| through(GET, to, gateway, 2).put(120, &weight.to_ne_bytes()).done();
    let events = rig.list(
        Part::Routes4,
        &[
            line("10.0.0.0/8", "192.0.2.1", 1),
            line("10.0.0.0/8", "192.0.2.2", 3),
            line("10.0.0.0/8", "192.0.2.3", 2),
            line("10.0.0.0/9", "192.0.2.1", 1),
            through(GET, "2001:db8::/32", "fe80::1", 2).done(),
        ],
    );
    let three = [hop("192.0.2.1", 2, 1), hop("192.0.2.2", 2, 3), hop("192.0.2.3", 2, 2)];
    assert_eq!(
        events,
        [
            changed("10.0.0.0/8", &three, Placement::After),
            changed("10.0.0.0/9", &three[..1], Placement::After)
        ]
    );
}

#[test]
fn a_listing_replaces_what_was_remembered_of_its_family() {
    let mut rig = Rig::new();
    rig.hear(&through(ADD, "10.0.0.0/8", "192.0.2.1", 2).done());
    rig.hear(&through(ADD, "2001:db8::/32", "fe80::1", 2).done());
    rig.list(Part::Routes4, &[]);
    // The IPv4 route is forgotten, so this is its only next hop; the IPv6 route gets a second.
    assert_eq!(
        rig.hear(&through(ADD, "10.0.0.0/8", "192.0.2.2", 2).done()),
        [changed("10.0.0.0/8", &[hop("192.0.2.2", 2, 1)], Placement::Replace)]
    );
    let two = [hop("fe80::1", 2, 1), hop("fe80::2", 2, 1)];
    assert_eq!(
        rig.hear(&through(ADD, "2001:db8::/32", "fe80::2", 2).asked_by(1).done()),
        [changed("2001:db8::/32", &two, Placement::Replace)]
    );
}

#[test]
fn next_hops_over_a_link_that_goes_down_are_forgotten() {
    let mut rig = Rig::new();
    rig.know_links();
    rig.hear(&through(ADD, "10.0.0.0/8", "192.0.2.1", 2).done());
    rig.hear(&through(ADD, "10.0.0.0/8", "198.51.100.1", 3).asked_by(1).done());
    rig.hear(&through(ADD, "10.1.0.0/16", "192.0.2.1", 2).done());
    rig.hear(&Build::link_news(2, 0x8842, 2, 1500).done());
    let third = hop("198.51.100.9", 3, 1);
    assert_eq!(
        rig.hear(&through(ADD, "10.1.0.0/16", "198.51.100.9", 3).asked_by(1).done()),
        [changed("10.1.0.0/16", std::slice::from_ref(&third), Placement::Replace)]
    );
    assert_eq!(
        rig.hear(&through(ADD, "10.0.0.0/8", "198.51.100.9", 3).asked_by(1).done()),
        [changed("10.0.0.0/8", &[hop("198.51.100.1", 3, 1), third], Placement::Replace)]
    );
}

#[test]
fn news_of_a_link_get_the_name_from_the_listing() {
    let mut rig = Rig::new();
    assert_eq!(rig.hear(&Build::link_news(2, 0x8843, 2, 1500).done()), [], "not known yet");
    assert_eq!(rig.translator.take_wanted(), Part::Links.into());
    rig.know_links();
    let link = Link {
        index: 2,
        name: "ix0".into(),
        mac: Some(MAC),
        mtu: 9000,
        up: true,
        carrier: false,
        vlan: None,
    };
    assert_eq!(rig.hear(&Build::link_news(2, 0x8843, 1, 9000).done()), [KernelEvent::LinkChanged(link)]);
    assert_eq!(rig.hear(&Build::announcement(2, "ix0", 1)), [KernelEvent::LinkGone(2)]);
    rig.translator.take_wanted();
    assert_eq!(rig.hear(&Build::announcement(2, "wan", 0)), []);
    let all = [Part::Links, Part::Addresses, Part::Neighbors];
    let wanted = rig.translator.take_wanted();
    assert!(all.iter().all(|part| wanted.has(*part)), "{wanted:?}");
}

fn own(to: &str, kind: RouteKind) -> Route {
    let way = Way::Hops(Vec::new());
    Route { to: to.parse().unwrap(), local_table: true, metric: 0, protocol: 2, kind, way }
}

#[test]
fn an_address_brings_the_routes_that_make_it_the_hosts_own() {
    let mut rig = Rig::new();
    rig.know_links();
    let news = |kind| {
        let built = Build::address_news(kind, 2).with(MASK, &mask4(24)).with(IFA, &ip("192.0.2.9"));
        built.with(BRD, &ip("192.0.2.255")).done()
    };
    let address = Address { index: 2, net: "192.0.2.9/24".parse().unwrap(), secondary: false, ready: true };
    let (local, broadcast) =
        (own("192.0.2.9/32", RouteKind::Local), own("192.0.2.255/32", RouteKind::Broadcast));
    assert_eq!(
        rig.hear(&news(NEWADDR)),
        [
            KernelEvent::AddressAdded(address),
            KernelEvent::RouteChanged(local.clone(), Placement::Replace),
            KernelEvent::RouteChanged(broadcast.clone(), Placement::Replace),
        ]
    );
    assert_eq!(
        rig.hear(&news(DELADDR)),
        [
            KernelEvent::AddressRemoved(address),
            KernelEvent::RouteGone(local.clone()),
            KernelEvent::RouteGone(broadcast.clone()),
        ]
    );
    let line = Build::address_listed(2).with(MASK, &mask4(24)).with(IFA, &ip("192.0.2.9"));
    let line = line.with(BRD, &ip("192.0.2.255")).done();
    assert_eq!(rig.list(Part::Addresses, std::slice::from_ref(&line)), [KernelEvent::AddressAdded(address)]);
    assert_eq!(
        rig.list(Part::Routes4, &[line]),
        [
            KernelEvent::RouteChanged(local, Placement::After),
            KernelEvent::RouteChanged(broadcast, Placement::After)
        ]
    );
}

#[test]
fn the_other_end_of_a_link_and_the_second_of_two_hosts_are_no_broadcast_addresses() {
    let mut rig = Rig::new();
    rig.know_links();
    let routes = |rig: &mut Rig, index, len, brd| {
        let line = Build::address_listed(index).with(MASK, &mask4(len)).with(IFA, &ip("192.0.2.8"));
        rig.list(Part::Routes4, &[line.with(BRD, &ip(brd)).done()]).len()
    };
    assert_eq!(routes(&mut rig, 3, 24, "192.0.2.255"), 1);
    assert_eq!(routes(&mut rig, 2, 31, "192.0.2.9"), 1);
    assert_eq!(routes(&mut rig, 2, 30, "192.0.2.11"), 2);
}

#[test]
fn without_a_table_to_follow_only_what_is_local_is_reported() {
    let mut rig = Rig { translator: Translator::new(false), heard: Vec::new() };
    assert_eq!(rig.hear(&through(ADD, "10.0.0.0/8", "192.0.2.1", 2).done()), []);
    let address = Build::address_listed(2).with(MASK, &mask4(24)).with(IFA, &ip("192.0.2.9")).done();
    let events = rig.list(Part::Routes4, &[address, through(GET, "10.0.0.0/8", "192.0.2.1", 2).done()]);
    assert_eq!(events, [KernelEvent::RouteChanged(own("192.0.2.9/32", RouteKind::Local), Placement::After)]);
}

/// Prefixes, and what leads there: what a keeper that hears `heard` has in the end.
fn heard_table(heard: &[Report]) -> BTreeMap<IpNet, Vec<Hop>> {
    let mut table = BTreeMap::new();
    let mut unnamed: Vec<IpNet> = Vec::new();
    for report in heard {
        match &report.event {
            KernelEvent::DumpBegin(Part::Routes4) => unnamed = table.keys().copied().collect(),
            KernelEvent::DumpEnd { part: Part::Routes4, .. } => {
                unnamed.drain(..).for_each(|to| drop(table.remove(&to)));
            }
            KernelEvent::RouteChanged(Route { to, way: Way::Hops(hops), .. }, _) => {
                unnamed.retain(|other| other != to);
                table.insert(*to, hops.clone());
            }
            KernelEvent::RouteGone(route) => drop(table.remove(&route.to)),
            _ => {}
        }
    }
    table
}

fn sorted(table: &BTreeMap<IpNet, Vec<Hop>>) -> BTreeMap<IpNet, Vec<String>> {
    let strings = |hops: &Vec<Hop>| {
        let mut all: Vec<_> = hops.iter().map(|hop| format!("{hop:?}")).collect();
        all.sort();
        all
    };
    table.iter().map(|(to, hops)| (*to, strings(hops))).collect()
}

proptest! {
    /// A kernel of eight prefixes and four gateways, that does what FreeBSD's does; what was said
    /// before a listing may be heard after it.
    #[test]
    fn what_is_heard_becomes_what_the_kernel_has(
        steps in vec((0..8u8, 0..4u8, 0..3u8, any::<bool>(), 0..10u8), 1..80),
    ) {
        let mut rig = Rig::new();
        let mut kernel: BTreeMap<IpNet, Vec<Hop>> = BTreeMap::new();
        let mut queue: Vec<Vec<u8>> = Vec::new();
        let listing = |kernel: &BTreeMap<IpNet, Vec<Hop>>| -> Vec<Vec<u8>> {
            let line = |to: &IpNet, hop: &Hop| {
                let gateway = hop.gateway.unwrap().to_string();
                let built = through(GET, &to.to_string(), &gateway, hop.index.unwrap() as u16);
                built.put(120, &u64::from(hop.weight).to_ne_bytes()).done()
            };
            kernel.iter().flat_map(|(to, hops)| hops.iter().map(move |hop| line(to, hop))).collect()
        };
        for (prefix, gateway, action, asked, timing) in steps {
            let to = format!("10.{prefix}.0.0/16");
            let net: IpNet = to.parse().unwrap();
            let gateway = format!("192.0.2.{gateway}");
            let new = hop(&gateway, 2, 1);
            let hops = kernel.entry(net).or_default();
            let has = hops.contains(&new);
            let kind = match action {
                0 if !has => {
                    hops.push(new);
                    ADD
                }
                1 if has => {
                    hops.retain(|hop| *hop != new);
                    DELETE
                }
                2 if !has && !hops.is_empty() => {
                    let which = usize::from(timing) % hops.len();
                    hops[which] = new;
                    CHANGE
                }
                _ => 0,
            };
            kernel.retain(|_, hops| !hops.is_empty());
            let built = through(kind, &to, &gateway, 2);
            if kind != 0 {
                queue.push(if asked { built.asked_by(1).done() } else { built.done() });
            }
            if timing == 9 {
                rig.list(Part::Routes4, &listing(&kernel));
            }
            if timing % 2 == 0 {
                queue.drain(..).for_each(|bytes| drop(rig.hear(&bytes)));
                rig.translator.caught_up();
            }
        }
        queue.drain(..).for_each(|bytes| drop(rig.hear(&bytes)));
        if rig.translator.take_wanted().has(Part::Routes4) {
            rig.list(Part::Routes4, &listing(&kernel));
        }
        prop_assert_eq!(sorted(&heard_table(&rig.heard)), sorted(&kernel));
    }
}
