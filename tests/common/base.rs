//! What every router of the tests begins with: its ports' entries, and the routes that are always there.

use ipnet::IpNet;
use sweepd::tables::{Action, PortTable, SubPort, Trunk, fixed};

use super::{PortSpec, Routes, port_mac};

/// A port's entry in the tables.
pub fn port_table(id: usize, spec: &PortSpec, specs: &[PortSpec]) -> PortTable {
    let sub = |spec: &PortSpec| spec.sub.map(|(parent, tags)| SubPort { parent: parent as u16, tags });
    let subs = specs.iter().zip(0..).filter_map(|(spec, port)| Some((sub(spec)?, port)));
    let subs = subs.filter(|(sub, _)| usize::from(sub.parent) == id).map(|(sub, port)| (sub.tags, port));
    let addresses4 = spec.addresses.iter().filter_map(|a| match a {
        IpNet::V4(net) => Some(*net),
        IpNet::V6(_) => None,
    });
    let addresses6 = spec.addresses.iter().filter_map(|a| match a {
        IpNet::V6(net) => Some(*net),
        IpNet::V4(_) => None,
    });
    PortTable {
        name: format!("p{id}"),
        mac: port_mac(id),
        mtu: spec.mtu,
        up: true,
        addresses4: addresses4.collect(),
        addresses6: addresses6.collect(),
        builtin_host: !spec.host_rings,
        sub: sub(spec),
        trunk: Trunk::new(subs).map(Box::new),
        ..PortTable::default()
    }
}

/// The prefixes that every router has: its own addresses, the links', and the special ones.
pub fn base_routes(specs: &[PortSpec]) -> Routes {
    let mut routes = Routes::default();
    for (prefix, id) in [
        ("0.0.0.0/8", fixed::MARTIAN),
        ("127.0.0.0/8", fixed::MARTIAN),
        ("224.0.0.0/4", fixed::MULTICAST),
        ("240.0.0.0/4", fixed::MARTIAN),
        ("255.255.255.255/32", fixed::BROADCAST),
        ("169.254.0.0/16", fixed::LINK_LOCAL),
        ("::/128", fixed::MARTIAN),
        ("::1/128", fixed::MARTIAN),
        ("fe80::/10", fixed::LINK_LOCAL),
        ("ff00::/8", fixed::MULTICAST),
    ] {
        routes.add(prefix, id);
    }
    for (port, spec) in specs.iter().enumerate() {
        let glean = routes.action(Action::Glean, port, None);
        spec.addresses.iter().for_each(|address| routes.link(*address, glean));
    }
    specs.iter().flat_map(|s| &s.addresses).for_each(|address| routes.host(*address));
    routes
}
