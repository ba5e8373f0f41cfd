//! Messages made by hand, as the kernel sends them.

use proptest::prelude::*;

use super::*;
use crate::control::kernel::{Care, Part, request};

const MAIN: u32 = 254;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn header_of(kind: u16, flags: i32) -> Header {
    Header { len: 0, kind, flags: flags as u16, sequence: 0 }
}

fn parse(kind: u16, flags: i32, parts: &[Vec<u8>]) -> Option<KernelEvent> {
    message(header_of(kind, flags), &parts.concat(), Some(MAIN)).unwrap()
}

/// struct rtmsg.
fn rtmsg(family: u8, len: u8, table: u8, kind: u8) -> Vec<u8> {
    vec![family, len, 0, 0, table, 3, 0, kind, 0, 0, 0, 0]
}

fn route_of(event: Option<KernelEvent>) -> Route {
    match event {
        Some(KernelEvent::RouteChanged(route, _) | KernelEvent::RouteGone(route)) => route,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_route_with_a_gateway() {
    let parts = [
        rtmsg(INET, 24, 254, libc::RTN_UNICAST),
        attribute(libc::RTA_DST, &[198, 51, 100, 0]),
        attribute(libc::RTA_GATEWAY, &[203, 0, 113, 1]),
        attribute(libc::RTA_OIF, &7u32.to_ne_bytes()),
        attribute(libc::RTA_PRIORITY, &20u32.to_ne_bytes()),
    ];
    let event = parse(libc::RTM_NEWROUTE, libc::NLM_F_REPLACE, &parts);
    let Some(KernelEvent::RouteChanged(route, Placement::Replace)) = event else { panic!("{event:?}") };
    assert_eq!(route.to.to_string(), "198.51.100.0/24");
    assert_eq!((route.metric, route.protocol, route.local_table), (20, 3, false));
    let Way::Hops(hops) = route.way else { panic!() };
    assert_eq!(hops.len(), 1);
    assert_eq!(hops[0].gateway, Some("203.0.113.1".parse().unwrap()));
    assert_eq!((hops[0].index, hops[0].weight, hops[0].dead), (Some(7), 1, false));
    assert!(matches!(parse(libc::RTM_DELROUTE, 0, &parts), Some(KernelEvent::RouteGone(_))));
    for (flags, placement) in [(libc::NLM_F_APPEND, Placement::After), (0, Placement::Before)] {
        let event = parse(libc::RTM_NEWROUTE, flags, &parts);
        assert!(matches!(event, Some(KernelEvent::RouteChanged(_, p)) if p == placement));
    }
}

#[test]
fn a_default_route_names_no_destination() {
    let parts = [rtmsg(INET6, 0, 254, libc::RTN_UNICAST), attribute(libc::RTA_OIF, &7u32.to_ne_bytes())];
    assert_eq!(route_of(parse(libc::RTM_NEWROUTE, 0, &parts)).to.to_string(), "::/0");
}

#[test]
fn several_next_hops_with_weights_and_states() {
    let hop = |flags: u8, weight: u8, index: u32, gateway: Vec<u8>| {
        let mut bytes = ((8 + gateway.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&[flags, weight]);
        bytes.extend_from_slice(&index.to_ne_bytes());
        bytes.extend_from_slice(&gateway);
        bytes
    };
    let mut via6 = libc::AF_INET6.to_ne_bytes()[..2].to_vec();
    via6.extend_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let hops = [
        hop(0, 0, 7, attribute(libc::RTA_GATEWAY, &[10, 0, 0, 1])),
        hop(RTNH_F_DEAD, 2, 8, attribute(libc::RTA_VIA, &via6)),
        hop(0, 255, 9, attribute(RTA_ENCAP, &[])),
    ];
    let parts = [
        rtmsg(INET, 8, 254, libc::RTN_UNICAST),
        attribute(libc::RTA_DST, &[10, 0, 0, 0]),
        attribute(libc::RTA_MULTIPATH, &hops.concat()),
    ];
    let Way::Hops(hops) = route_of(parse(libc::RTM_NEWROUTE, 0, &parts)).way else { panic!() };
    assert_eq!(hops.iter().map(|h| h.weight).collect::<Vec<_>>(), [1, 3, 256]);
    assert_eq!(hops.iter().map(|h| h.dead).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(hops.iter().map(|h| h.kernel_only).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(hops[1].gateway, Some("fe80::1".parse().unwrap()));
    // A length beyond the end, or too short for the header.
    for len in [3u16, 200] {
        let mut bad = hop(0, 0, 7, Vec::new());
        bad[..2].copy_from_slice(&len.to_ne_bytes());
        let parts = [rtmsg(INET, 8, 254, libc::RTN_UNICAST), attribute(libc::RTA_MULTIPATH, &bad)];
        assert!(message(header_of(libc::RTM_NEWROUTE, 0), &parts.concat(), Some(MAIN)).is_err());
    }
}

#[test]
fn only_the_followed_table_and_the_local_one_matter() {
    let of = |table: u8, extra: &[Vec<u8>]| {
        let mut parts =
            vec![rtmsg(INET, 32, table, libc::RTN_LOCAL), attribute(libc::RTA_DST, &[10, 0, 0, 1])];
        parts.extend_from_slice(extra);
        parse(libc::RTM_NEWROUTE, 0, &parts)
    };
    assert!(route_of(of(255, &[])).local_table);
    assert!(!route_of(of(254, &[])).local_table);
    assert_eq!(of(253, &[]), None);
    // Ids beyond 255 stand in an attribute.
    assert_eq!(of(254, &[attribute(libc::RTA_TABLE, &1000u32.to_ne_bytes())]), None);
}

#[test]
fn routes_that_are_not_for_every_packet_are_the_kernels_alone() {
    let plain = rtmsg(INET, 0, 254, libc::RTN_UNICAST);
    for (place, value) in [(2, 8), (3, 0x10), (9, 2)] {
        let mut special = plain.clone();
        special[place] = value;
        assert_eq!(parse(libc::RTM_NEWROUTE, 0, &[special]), None);
    }
    assert_eq!(parse(libc::RTM_NEWROUTE, 0, &[rtmsg(INET, 0, 254, libc::RTN_MULTICAST)]), None);
    assert_eq!(parse(libc::RTM_NEWROUTE, 0, &[rtmsg(28, 0, 254, libc::RTN_UNICAST)]), None);
}

#[test]
fn a_route_through_a_next_hop_object() {
    let parts = [
        rtmsg(INET, 8, 254, libc::RTN_UNICAST),
        attribute(libc::RTA_DST, &[10, 0, 0, 0]),
        attribute(RTA_NH_ID, &42u32.to_ne_bytes()),
        attribute(libc::RTA_OIF, &7u32.to_ne_bytes()),
    ];
    assert_eq!(route_of(parse(libc::RTM_NEWROUTE, 0, &parts)).way, Way::Object(42));
}

#[test]
fn next_hop_objects_and_groups() {
    let nhmsg = vec![INET, 0, 0, 0, 0, 0, 0, 0];
    let id = |id: u32| attribute(NHA_ID, &id.to_ne_bytes());
    let single = [
        nhmsg.clone(),
        id(5),
        attribute(NHA_OIF, &7u32.to_ne_bytes()),
        attribute(NHA_GATEWAY, &[10, 0, 0, 1]),
    ];
    let event = parse(RTM_NEWNEXTHOP, 0, &single);
    let Some(KernelEvent::NextHopChanged(5, NextHopObject::Single(hop))) = event else { panic!("{event:?}") };
    assert_eq!((hop.index, hop.gateway), (Some(7), Some("10.0.0.1".parse().unwrap())));
    let mut members = Vec::new();
    for (id, weight, high) in [(5u32, 0u8, 0u8), (6, 2, 0), (7, 255, 1)] {
        members.extend_from_slice(&id.to_ne_bytes());
        members.extend_from_slice(&[weight, high, 0, 0]);
    }
    let event = parse(RTM_NEWNEXTHOP, 0, &[nhmsg.clone(), id(9), attribute(NHA_GROUP, &members)]);
    let group = NextHopObject::Group(vec![(5, 1), (6, 3), (7, 512)]);
    assert_eq!(event, Some(KernelEvent::NextHopChanged(9, group)));
    let event = parse(RTM_NEWNEXTHOP, 0, &[nhmsg.clone(), id(3), attribute(NHA_BLACKHOLE, &[])]);
    assert_eq!(event, Some(KernelEvent::NextHopChanged(3, NextHopObject::Blackhole)));
    assert_eq!(parse(RTM_DELNEXTHOP, 0, &[nhmsg.clone(), id(3)]), Some(KernelEvent::NextHopGone(3)));
    let bridge = [nhmsg, id(3), attribute(NHA_FDB, &[]), attribute(NHA_GATEWAY, &[10, 0, 0, 1])];
    assert_eq!(parse(RTM_NEWNEXTHOP, 0, &bridge), None);
}

#[test]
fn links_come_and_go() {
    let mut ifinfo = vec![0u8; 16];
    ifinfo[4..8].copy_from_slice(&7u32.to_ne_bytes());
    ifinfo[8..12].copy_from_slice(&((libc::IFF_UP | libc::IFF_LOWER_UP) as u32).to_ne_bytes());
    let parts = [
        ifinfo.clone(),
        attribute(libc::IFLA_IFNAME, b"eth0\0"),
        attribute(libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]),
        attribute(libc::IFLA_MTU, &9000u32.to_ne_bytes()),
        attribute(IFLA_CARRIER, &[0]),
        attribute(12345, &[1, 2, 3]),
    ];
    let link = Link {
        index: 7,
        name: "eth0".into(),
        mac: Some([2, 0, 0, 0, 0, 1]),
        mtu: 9000,
        up: true,
        carrier: false,
        vlan: None,
    };
    assert_eq!(parse(libc::RTM_NEWLINK, 0, &parts), Some(KernelEvent::LinkChanged(link)));
    assert_eq!(parse(libc::RTM_DELLINK, 0, &[ifinfo.clone()]), Some(KernelEvent::LinkGone(7)));
    ifinfo[0] = libc::AF_BRIDGE as u8;
    assert_eq!(parse(libc::RTM_DELLINK, 0, &[ifinfo]), None, "a bridge lets go of its port");
}

#[test]
fn rule_104_a_vlan_interface_knows_its_parent_its_vlan_and_the_kind_of_tag() {
    let ifinfo = || {
        let mut ifinfo = vec![0u8; 16];
        ifinfo[4..8].copy_from_slice(&9u32.to_ne_bytes());
        ifinfo
    };
    let data = |id: u16, protocol: u16| {
        let data = [
            attribute(IFLA_VLAN_ID, &id.to_ne_bytes()),
            attribute(2, &[0; 8]),
            attribute(IFLA_VLAN_PROTOCOL, &protocol.to_be_bytes()),
        ];
        let info = [attribute(IFLA_INFO_KIND, b"vlan\0"), attribute(IFLA_INFO_DATA, &data.concat())];
        attribute(IFLA_LINKINFO, &info.concat())
    };
    let vlan = |parts: &[Vec<u8>]| {
        let all = [vec![ifinfo(), attribute(libc::IFLA_IFNAME, b"x\0")], parts.to_vec()].concat();
        match parse(libc::RTM_NEWLINK, 0, &all) {
            Some(KernelEvent::LinkChanged(link)) => link.vlan,
            other => panic!("{other:?}"),
        }
    };
    let below = attribute(libc::IFLA_LINK, &7u32.to_ne_bytes());
    let known = |service, vlan| Some(VlanLink { parent: 7, tag: Tag { service, vlan } });
    assert_eq!(vlan(&[below.clone(), data(100, 0x8100)]), known(false, 100));
    assert_eq!(vlan(&[data(200, 0x88a8), below.clone()]), known(true, 200));
    // A macvlan has something below it too; a veth's IFLA_LINK is its peer.
    let other = attribute(IFLA_LINKINFO, &attribute(IFLA_INFO_KIND, b"macvlan\0"));
    assert_eq!(vlan(&[below.clone(), other]), None);
    assert_eq!(vlan(std::slice::from_ref(&below)), None);
    // The interface below is another namespace's, where numbers mean something else.
    let elsewhere = attribute(IFLA_LINK_NETNSID, &0u32.to_ne_bytes());
    assert_eq!(vlan(&[below.clone(), data(100, 0x8100), elsewhere]), None);
    // Other kinds have other things of any length under the same numbers.
    let of_kind = |kind: &[u8]| {
        let data = [attribute(IFLA_VLAN_ID, &[1]), attribute(IFLA_VLAN_PROTOCOL, &[0])].concat();
        let info = [attribute(IFLA_INFO_DATA, &data), attribute(IFLA_INFO_KIND, kind)];
        attribute(IFLA_LINKINFO, &info.concat())
    };
    for kind in [&b"tun\0"[..], b"vxlan\0", b"bond\0", b"ipip\0"] {
        assert_eq!(vlan(&[of_kind(kind)]), None);
    }
    let short = of_kind(b"vlan\0");
    let parts = [ifinfo(), attribute(libc::IFLA_IFNAME, b"x\0"), below, short];
    assert_eq!(message(header_of(libc::RTM_NEWLINK, 0), &parts.concat(), None), Err(Malformed));
}

#[test]
fn addresses_know_whether_they_are_ready_and_first() {
    let ifaddr = |family: u8, len: u8, flags: u8| {
        let mut bytes = vec![family, len, flags, 0];
        bytes.extend_from_slice(&7u32.to_ne_bytes());
        bytes
    };
    let address = |parts: &[Vec<u8>]| match parse(libc::RTM_NEWADDR, 0, parts) {
        Some(KernelEvent::AddressAdded(address)) => address,
        other => panic!("{other:?}"),
    };
    let plain = address(&[ifaddr(INET, 24, 1), attribute(libc::IFA_LOCAL, &[10, 0, 0, 1])]);
    assert_eq!((plain.net.to_string().as_str(), plain.secondary, plain.ready), ("10.0.0.1/24", true, true));
    let peer = address(&[
        ifaddr(INET, 24, 0),
        attribute(libc::IFA_LOCAL, &[10, 0, 0, 1]),
        attribute(libc::IFA_ADDRESS, &[10, 0, 0, 2]),
    ]);
    assert_eq!(peer.net.to_string(), "10.0.0.1/32");
    let flags = attribute(IFA_FLAGS, &IFA_F_TENTATIVE.to_ne_bytes());
    let tentative = address(&[ifaddr(INET6, 64, 0), attribute(libc::IFA_ADDRESS, &[0x20; 16]), flags]);
    assert!(!tentative.ready);
    let too_long = [ifaddr(INET, 33, 0), attribute(libc::IFA_LOCAL, &[10, 0, 0, 1])];
    assert!(message(header_of(libc::RTM_NEWADDR, 0), &too_long.concat(), None).is_err());
}

#[test]
fn neighbors_have_states() {
    let ndmsg = |state: u16, flags: u8| {
        let mut bytes = vec![INET, 0, 0, 0];
        bytes.extend_from_slice(&7u32.to_ne_bytes());
        bytes.extend_from_slice(&state.to_ne_bytes());
        bytes.extend_from_slice(&[flags, 0]);
        bytes
    };
    let who = attribute(libc::NDA_DST, &[10, 0, 0, 9]);
    let mac = attribute(libc::NDA_LLADDR, &[2, 0, 0, 0, 0, 9]);
    let address: IpAddr = "10.0.0.9".parse().unwrap();
    for (bits, state) in [
        (libc::NUD_REACHABLE, NeighborState::Reachable),
        (libc::NUD_STALE, NeighborState::Stale),
        (libc::NUD_FAILED, NeighborState::Failed),
        (libc::NUD_PERMANENT, NeighborState::Permanent),
    ] {
        let event = parse(libc::RTM_NEWNEIGH, 0, &[ndmsg(bits, 0), who.clone(), mac.clone()]);
        let mac = Some([2, 0, 0, 0, 0, 9]);
        assert_eq!(event, Some(KernelEvent::NeighborChanged { index: 7, address, mac, state }));
    }
    let gone = Some(KernelEvent::NeighborGone { index: 7, address });
    assert_eq!(parse(libc::RTM_DELNEIGH, 0, &[ndmsg(0, 0), who.clone()]), gone);
    assert_eq!(parse(libc::RTM_NEWNEIGH, 0, &[ndmsg(libc::NUD_NONE, 0), who.clone()]), gone);
    assert_eq!(parse(libc::RTM_NEWNEIGH, 0, &[ndmsg(2, libc::NTF_PROXY), who]), None);
}

#[test]
fn requests_say_their_own_length() {
    for part in Part::ALL {
        let bytes = request::list(part, 9);
        let header = header(&bytes).unwrap();
        assert_eq!((header.len, header.sequence), (bytes.len(), 9));
    }
    for (care, len) in [(Care::Once, 48), (Care::Keep, 56), (Care::Release, 48)] {
        let bytes = request::resolve(7, "fe80::1".parse().unwrap(), care, 3);
        assert_eq!((header(&bytes).unwrap().len, bytes.len()), (len, len));
        // Read as news, it names the neighbour that is asked for.
        let event = message(header(&bytes).unwrap(), &bytes[HEADER..], None).unwrap();
        assert_eq!(event, Some(KernelEvent::NeighborGone { index: 7, address: "fe80::1".parse().unwrap() }));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 16u16..108) {
        let _ = header(&bytes);
        let _ = message(header_of(kind, 0), &bytes, Some(MAIN));
    }

    #[test]
    fn no_attributes_make_it_panic(
        family in prop_oneof![Just(INET), Just(INET6), any::<u8>()],
        rest in proptest::collection::vec(any::<u8>(), 11),
        list in proptest::collection::vec((0u16..35, proptest::collection::vec(any::<u8>(), 0..24)), 0..8),
        kind in 16u16..108,
    ) {
        let mut bytes = vec![family];
        bytes.extend(rest);
        bytes.extend(list.into_iter().flat_map(|(kind, value)| attribute(kind, &value)));
        let _ = message(header_of(kind, 0), &bytes, Some(MAIN));
    }
}
