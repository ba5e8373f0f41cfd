//! One message after the other, of each type.

use std::net::Ipv6Addr;

use super::{super::*, *};
use crate::control::kernel::{Address, Hop, NeighborState, RouteKind};

fn route_of(message: Option<Message>) -> RouteMessage {
    match message {
        Some(Message::Route(route)) => route,
        other => panic!("no route: {other:?}"),
    }
}

fn hop(gateway: Option<&str>, index: u32) -> Option<Hop> {
    let gateway = gateway.map(|g| g.parse().unwrap());
    Some(Hop { gateway, index: Some(index), weight: 1, kernel_only: false, dead: false })
}

#[test]
fn a_route_with_a_gateway_is_added() {
    let bytes = Build::route(ADD, 2, UP | GATEWAY | STATIC | DONE)
        .with(DST, &ip("10.1.0.0"))
        .with(GW, &ip("192.0.2.1"))
        .with(MASK, &mask4(16))
        .done();
    assert_eq!(bytes.len(), 152 + 16 + 16 + 16);
    let route = route_of(news(&bytes));
    assert_eq!(route.action, Action::Added);
    assert_eq!(route.to, "10.1.0.0/16".parse().unwrap());
    assert_eq!((route.kind, route.protocol), (RouteKind::Unicast, 4));
    assert_eq!(route.hop, hop(Some("192.0.2.1"), 2));
}

#[test]
fn short_netmasks_stand_for_their_leading_bytes() {
    let with = |mask: &[u8]| {
        let built = Build::route(ADD, 2, UP | GATEWAY | DONE).with(DST, &ip("10.0.0.0"));
        route_of(news(&built.with(GW, &ip("192.0.2.1")).with(MASK, mask).done())).to
    };
    // Five bytes: up to the first of the mask, whose family is not filled in.
    assert_eq!(with(&[5, 0, 0, 0, 255]), "10.0.0.0/8".parse().unwrap());
    assert_eq!(with(&[6, 0xff, 0xff, 0xff, 255, 128]), "10.0.0.0/9".parse().unwrap());
    assert_eq!(with(&[0]), "0.0.0.0/0".parse().unwrap());
    assert_eq!(with(&[4, 2, 0, 0]), "0.0.0.0/0".parse().unwrap());
    let mask = [&[12, 0, 0, 0, 0, 0, 0, 0][..], &[255, 255, 255, 254]].concat();
    let bytes = Build::route(ADD, 2, UP | GATEWAY | DONE)
        .with(DST, &ip("2001:db8::"))
        .with(GW, &ip("2001:db8:ff::1"))
        .with(MASK, &mask)
        .done();
    assert_eq!(route_of(news(&bytes)).to, "2001:db8::/31".parse().unwrap());
}

#[test]
fn a_mask_with_holes_is_malformed() {
    let bytes = Build::route(ADD, 2, UP | GATEWAY | DONE)
        .with(DST, &ip("10.0.0.0"))
        .with(GW, &ip("192.0.2.1"))
        .with(MASK, &ip("255.0.255.0"))
        .done();
    assert_eq!(message(&bytes, Form::News), Err(Malformed));
}

#[test]
fn the_address_that_follows_a_short_one_begins_at_a_multiple_of_eight() {
    let bytes = Build::route(ADD, 2, UP | GATEWAY | DONE)
        .with(DST, &ip("10.0.0.0"))
        .with(GW, &ip("192.0.2.1"))
        .with(MASK, &[5, 0, 0, 0, 255])
        .with(IFP, &link(2, "em0", &MAC))
        .with(IFA, &ip("192.0.2.9"))
        .done();
    assert_eq!(bytes.len(), 152 + 16 + 16 + 8 + 56 + 16);
    let addrs = sockaddr::SockAddrs::parse(0x37, &bytes[152..]).unwrap();
    assert_eq!(addrs.ip(sockaddr::Which::Address).unwrap().0, "192.0.2.9".parse::<IpAddr>().unwrap());
}

#[test]
fn a_host_route_has_no_mask() {
    let flags = UP | GATEWAY | HOST | DONE;
    let built = Build::route(DELETE, 2, flags).with(DST, &ip("10.1.2.3")).with(GW, &ip("192.0.2.1"));
    let route = route_of(news(&built.clone().done()));
    assert_eq!((route.action, route.to), (Action::Deleted, "10.1.2.3/32".parse().unwrap()));
    // A mask that the request had stays in its echo.
    assert_eq!(route_of(news(&built.with(MASK, &mask4(24)).done())).to, "10.1.2.3/32".parse().unwrap());
}

#[test]
fn a_connected_network_has_a_link_for_gateway() {
    let bytes = Build::route(GET, 3, UP | PINNED)
        .with(DST, &ip("192.0.2.0"))
        .with(GW, &link(3, "", &[]))
        .with(MASK, &mask4(24))
        .with(IFP, &link(3, "ix1", &MAC))
        .with(IFA, &ip("192.0.2.9"))
        .done();
    let route = route_of(listed(&bytes));
    assert_eq!((route.action, route.protocol), (Action::Listed, 2));
    assert_eq!(route.hop, hop(None, 3));
    // Answers to others' questions are no news.
    assert_eq!(news(&bytes), None);
}

#[test]
fn a_link_local_gateway_loses_its_scope_in_either_form() {
    let with = |gateway: &[u8]| {
        let built = Build::route(ADD, 7, UP | GATEWAY | DONE).with(DST, &ip("2001:db8::"));
        route_of(news(&built.with(GW, gateway).with(MASK, &mask6(32)).done())).hop
    };
    let plain: Ipv6Addr = "fe80::1".parse().unwrap();
    assert_eq!(with(&scoped(plain, 7)), hop(Some("fe80::1"), 7));
    assert_eq!(with(&scoped("fe80:7::1".parse().unwrap(), 0)), hop(Some("fe80::1"), 7));
}

#[test]
fn the_scope_names_the_interface_when_nothing_else_does() {
    let bytes = Build::route(ADD, 0, UP | GATEWAY | DONE)
        .with(DST, &ip("2001:db8::"))
        .with(GW, &scoped("fe80:9::1".parse().unwrap(), 0))
        .with(MASK, &mask6(32))
        .done();
    assert_eq!(route_of(news(&bytes)).hop, hop(Some("fe80::1"), 9));
}

#[test]
fn reject_and_blackhole_routes_are_told_apart() {
    let with = |flag| {
        let built = Build::route(ADD, 1, UP | GATEWAY | flag | PROTO1 | DONE).with(DST, &ip("10.0.0.0"));
        let route = route_of(news(&built.with(GW, &ip("127.0.0.1")).with(MASK, &mask4(8)).done()));
        (route.kind, route.protocol)
    };
    assert_eq!(with(REJECT), (RouteKind::Unreachable, 0));
    assert_eq!(with(BLACKHOLE), (RouteKind::Blackhole, 0));
}

#[test]
fn a_failed_request_and_one_not_done_yet_are_no_news() {
    let built = |flags| {
        Build::route(ADD, 2, flags)
            .with(DST, &ip("10.0.0.0"))
            .with(GW, &ip("192.0.2.1"))
            .with(MASK, &mask4(8))
    };
    assert_eq!(news(&built(UP | GATEWAY).done()), None);
    assert_eq!(news(&built(UP | GATEWAY | DONE).put(24, &17u32.to_ne_bytes()).done()), None);
    assert!(news(&built(UP | GATEWAY | DONE).done()).is_some());
}

#[test]
fn routes_that_mean_something_on_one_link_only_are_left_out() {
    for to in ["fe80::", "ff02::"] {
        let built = Build::route(GET, 2, UP).with(DST, &scoped(to.parse().unwrap(), 2));
        assert_eq!(listed(&built.with(GW, &link(2, "", &[])).with(MASK, &mask6(64)).done()), None);
    }
}

#[test]
fn the_hosts_own_address_by_the_loopback_interface_is_left_out() {
    // Interface 1 is lo0, the address is interface 2's.
    let own = Build::route(GET, 1, UP | HOST | STATIC | PINNED)
        .with(DST, &ip("192.0.2.9"))
        .with(GW, &link(2, "", &[]))
        .done();
    assert_eq!(listed(&own), None);
    let peer = Build::route(GET, 2, UP | HOST | PINNED).with(DST, &ip("192.0.2.8"));
    assert!(listed(&peer.with(GW, &link(2, "", &[])).done()).is_some());
}

#[test]
fn the_weight_of_a_next_hop_is_known_from_a_listing_and_from_a_request() {
    let built = |kind, flags| {
        Build::route(kind, 2, UP | GATEWAY | flags)
            .with(DST, &ip("10.0.0.0"))
            .with(GW, &ip("192.0.2.1"))
            .with(MASK, &mask4(8))
    };
    let weight = |route: RouteMessage| (route.hop.unwrap().weight, route.weighed);
    let in_listing = built(GET, 0).put(120, &5u64.to_ne_bytes()).done();
    assert_eq!(weight(route_of(listed(&in_listing))), (5, true));
    let huge = built(GET, 0).put(120, &16_777_215u64.to_ne_bytes()).done();
    assert_eq!(weight(route_of(listed(&huge))), (u16::MAX, true));
    assert_eq!(weight(route_of(news(&built(ADD, DONE).asked_by(99).weight(7).done()))), (7, true));
    assert_eq!(weight(route_of(news(&built(ADD, DONE).asked_by(99).done()))), (1, true));
    assert_eq!(weight(route_of(news(&built(ADD, DONE).done()))), (1, false));
}

#[test]
fn neighbors_come_in_the_listing_with_their_state() {
    let v4 = |flags, mac: &[u8], expire: u64| {
        let built = Build::route(GET, 2, UP | HOST | LLDATA | flags).with(DST, &ip("192.0.2.1"));
        let bytes = built.with(GW, &link(2, "", mac)).put(64, &expire.to_ne_bytes()).done();
        assert_eq!(bytes.len(), 224, "the kernel's struct for it");
        match listed(&bytes) {
            Some(Message::Neighbor { index: 2, mac, state, .. }) => Some((mac, state.unwrap())),
            None => None,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(v4(0, &MAC, 77), Some((Some(MAC), NeighborState::Reachable)));
    assert_eq!(v4(0, &[], 77), Some((None, NeighborState::Incomplete)));
    assert_eq!(v4(STATIC, &MAC, 0), Some((Some(MAC), NeighborState::Permanent)));
    assert_eq!(v4(PINNED | STATIC, &MAC, 0), None, "the host's own");
    let v6 = |state: u64| {
        let built = Build::route(GET, 2, UP | HOST | LLDATA | GATEWAY)
            .with(DST, &scoped("fe80::1".parse().unwrap(), 2))
            .with(GW, &link(2, "", &MAC));
        let bytes = built.put(64, &9u64.to_ne_bytes()).put(120, &state.to_ne_bytes()).done();
        assert_eq!(bytes.len(), 240, "the kernel's struct for it");
        match listed(&bytes) {
            Some(Message::Neighbor { address, state, .. }) => {
                assert_eq!(address, "fe80::1".parse::<IpAddr>().unwrap());
                state.unwrap()
            }
            other => panic!("{other:?}"),
        }
    };
    use NeighborState::{Delay, Incomplete, Probe, Reachable, Stale};
    assert_eq!([0, 1, 2, 3, 4].map(v6), [Incomplete, Reachable, Stale, Delay, Probe]);
}

#[test]
fn news_of_a_neighbor_name_its_interface_in_the_link_address() {
    // The kernel leaves rtm_index zero here.
    let built = |kind, flags| Build::route(kind, 0, HOST | LLDATA | DONE | flags).with(DST, &ip("192.0.2.1"));
    let mac = Some(MAC);
    let address = "192.0.2.1".parse().unwrap();
    assert_eq!(
        news(&built(ADD, UP).with(GW, &link(4, "", &MAC)).done()),
        Some(Message::Neighbor { index: 4, address, mac, state: Some(NeighborState::Reachable) })
    );
    assert_eq!(
        news(&built(DELETE, 0).with(GW, &link(4, "", &[0; 6])).done()),
        Some(Message::Neighbor { index: 4, address, mac: Some([0; 6]), state: None })
    );
    assert_eq!(message(&built(ADD, UP).done(), Form::News), Err(Malformed), "which interface?");
}

#[test]
fn a_listed_link_has_a_name_and_a_mac_address() {
    let bytes = Build::link_listed(3, 0x8843, 2, 9000).with(IFP, &link(3, "ix1", &MAC)).done();
    assert_eq!(
        listed(&bytes),
        Some(Message::Link {
            index: 3,
            name: "ix1".into(),
            mac: Some(MAC),
            mtu: 9000,
            up: true,
            carrier: true,
            broadcast: true,
        })
    );
}

#[test]
fn a_listed_header_may_grow() {
    let mut built = Build::link_listed(3, 0x1, 1, 1500).put(16, &184u16.to_ne_bytes());
    built.bytes.resize(184, 0xaa);
    match listed(&built.with(IFP, &link(3, "ix1", &MAC)).done()) {
        Some(Message::Link { name, mtu: 1500, up: true, carrier: false, .. }) => assert_eq!(name, "ix1"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn news_of_a_link_have_no_name() {
    let state = |flags, state| match news(&Build::link_news(3, flags, state, 1500).done()) {
        Some(Message::Link { name, mac: None, up, carrier, .. }) if name.is_empty() => (up, carrier),
        other => panic!("{other:?}"),
    };
    assert_eq!(state(0x1, 0), (true, true), "a device that cannot tell");
    assert_eq!(state(0x1, 1), (true, false));
    assert_eq!(state(0x0, 2), (false, true));
}

#[test]
fn addresses_come_and_go() {
    let address = |net: &str| Address { index: 3, net: net.parse().unwrap(), secondary: false, ready: true };
    let bytes = Build::address_news(NEWADDR, 3)
        .with(MASK, &mask4(24))
        .with(IFP, &link(3, "ix1", &MAC))
        .with(IFA, &ip("192.0.2.9"))
        .with(BRD, &ip("192.0.2.255"))
        .done();
    let broadcast = Some("192.0.2.255".parse().unwrap());
    assert_eq!(
        news(&bytes),
        Some(Message::Address { address: address("192.0.2.9/24"), broadcast, gone: false })
    );
    let bytes = Build::address_news(DELADDR, 3)
        .with(MASK, &mask6(64))
        .with(IFP, &link(3, "ix1", &MAC))
        .with(IFA, &scoped("fe80:3::9".parse().unwrap(), 0))
        .done();
    assert_eq!(
        news(&bytes),
        Some(Message::Address { address: address("fe80::9/64"), broadcast: None, gone: true })
    );
    let bytes = Build::address_listed(3).with(MASK, &mask4(31)).with(IFA, &ip("192.0.2.9")).done();
    assert_eq!(
        listed(&bytes),
        Some(Message::Address { address: address("192.0.2.9/31"), broadcast: None, gone: false })
    );
    let unset = Build::address_listed(3).with(MASK, &mask4(8)).with(IFA, &ip("0.0.0.0")).done();
    assert_eq!(listed(&unset), None);
    let other = Build::address_listed(3).with(IFA, &link(3, "ix1", &MAC)).done();
    assert_eq!(listed(&other), None);
}

#[test]
fn interfaces_arrive_and_depart() {
    assert_eq!(news(&Build::announcement(5, "tap0", 0)), Some(Message::Arrived(5)));
    assert_eq!(news(&Build::announcement(5, "tap0", 1)), Some(Message::Departed(5)));
    assert_eq!(news(&Build::announcement(5, "tap0", 9)), None);
}

#[test]
fn other_types_and_families_are_none_of_ours_and_another_version_is_not_understood() {
    let miss = Build::route(7, 0, DONE).with(DST, &ip("10.0.0.1")).done();
    assert_eq!(news(&miss), None);
    let appletalk = Build::route(ADD, 2, UP | DONE).with(DST, &[16, 16, 0, 0]);
    let mut bytes = appletalk.bytes.clone();
    bytes.resize(152 + 16, 0);
    assert_eq!(news(&Build { bytes, ..appletalk }.done()), None);
    let mut later = miss;
    later[2] = 6;
    assert_eq!(message(&later, Form::News), Err(Malformed));
}

#[test]
fn a_redirect_counts_when_it_was_taken() {
    let built = Build::route(REDIRECT, 0, GATEWAY | HOST | DONE).with(DST, &ip("10.0.0.1"));
    assert_eq!(news(&built.clone().done()), Some(Message::Redirected));
    assert_eq!(news(&built.put(24, &51u32.to_ne_bytes()).done()), None);
}
