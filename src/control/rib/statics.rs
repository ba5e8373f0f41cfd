//! What the configuration says: ports, routes and neighbours.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use super::{
    Candidate, Changes, InRib, Neighbor, NeighborSource, Rib, RibPort, Source, own_index, paths::PathKey,
    special,
};
use crate::control::kernel::{Hop, NeighborState, Parts, RouteKind};
use crate::tables::{PortId, PortTable, fixed};

/// A port, as it was configured and opened.
#[derive(Clone, Debug, Default)]
pub struct PortSpec {
    /// Its name.
    pub name: String,
    /// The kernel's interface behind it.
    pub interface: Option<String>,
    /// The MAC address, if the kernel is not to say.
    pub mac: Option<[u8; 6]>,
    /// The device's own MAC address, until the kernel says otherwise.
    pub device_mac: [u8; 6],
    /// The MTU in bytes, if the kernel is not to say.
    pub mtu: Option<u16>,
    /// The longest IP packet in bytes that the device takes.
    pub max_len: u16,
    /// The addresses, if the kernel is not to say.
    pub addresses: Option<Vec<IpNet>>,
    /// Whether the built-in host answers, not the kernel.
    pub builtin_host: bool,
}

/// A next hop of a configured route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StaticHop {
    /// The gateway; none means on-link.
    pub gateway: Option<IpAddr>,
    /// The port; none means wherever the gateway is.
    pub port: Option<PortId>,
    /// The share of the flows, 1 or more.
    pub weight: u16,
}

/// A configured route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StaticRoute {
    /// The destinations.
    pub to: IpNet,
    /// What it does: unicast, blackhole, unreachable or prohibit.
    pub kind: RouteKind,
    /// Where it leads.
    pub hops: Vec<StaticHop>,
}

/// A configured neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaticNeighbor {
    /// The port.
    pub port: PortId,
    /// Its address.
    pub address: IpAddr,
    /// Its MAC address.
    pub mac: [u8; 6],
}

/// The path of what needs no next hops.
pub(super) fn fixed_path(kind: RouteKind) -> Option<PathKey> {
    Some(PathKey::Fixed(match kind {
        RouteKind::Unicast => return None,
        RouteKind::Local | RouteKind::Anycast => fixed::HOST,
        RouteKind::Broadcast => fixed::BROADCAST,
        RouteKind::Blackhole => fixed::BLACKHOLE,
        RouteKind::Unreachable => fixed::UNREACHABLE,
        RouteKind::Prohibit => fixed::PROHIBIT,
        RouteKind::Throw => fixed::NO_ROUTE,
    }))
}

impl Rib {
    /// A RIB that knows what the configuration says and nothing else yet. Everything counts as
    /// changed.
    pub fn new(ports: Vec<PortSpec>, routes: &[StaticRoute], neighbors: &[StaticNeighbor]) -> Self {
        let mut rib = Self {
            ports: ports.into_iter().map(RibPort::new).collect(),
            by_index: Default::default(),
            links: Default::default(),
            link_sweep: Default::default(),
            addresses: Default::default(),
            address_sweep: Default::default(),
            neighbors: Default::default(),
            neighbor_sweep: Default::default(),
            objects: Default::default(),
            object_sweep: Default::default(),
            paths: Default::default(),
            recursive: Default::default(),
            grouped: Default::default(),
            hops: Default::default(),
            groups: Vec::new(),
            v4: Default::default(),
            v6: Default::default(),
            local: Default::default(),
            broadcast: Default::default(),
            changes: Changes::default(),
            wanted: Parts::default(),
            full: false,
        };
        for (to, id) in special::SPECIAL {
            rib.add(to, Source::Special, PathKey::Fixed(id));
        }
        for port in 0..rib.ports.len() as PortId {
            rib.changes.ports.insert(port);
            rib.refresh_port(port);
            for net in rib.ports[usize::from(port)].spec.addresses.clone().unwrap_or_default() {
                rib.add_address(port, net);
            }
        }
        for neighbor in neighbors {
            let known = Neighbor {
                mac: Some(neighbor.mac),
                state: NeighborState::Permanent,
                source: NeighborSource::Static,
                mark: 0,
            };
            rib.set_neighbor(own_index(neighbor.port), neighbor.address, known);
        }
        for route in routes {
            rib.add_static(route);
        }
        rib.changes.local = true;
        rib.settle();
        rib
    }

    fn add(&mut self, to: IpNet, source: Source, key: PathKey) {
        match to {
            IpNet::V4(net) => self.add_to((u32::from(net.network()), net.prefix_len()), source, key),
            IpNet::V6(net) => self.add_to((u128::from(net.network()), net.prefix_len()), source, key),
        }
    }

    fn add_to<A: InRib>(&mut self, at: (A, u8), source: Source, key: PathKey) {
        let path = self.acquire_path(key);
        let new = Candidate { source, protocol: 0, mark: 0, metric: 0, path };
        let spare = A::table_mut(self).edit(at, |list| {
            if list.iter().any(|c| c.rank() == new.rank() && c.path == path) {
                return Some(path);
            }
            let place = list.partition_point(|c| c.rank() <= new.rank());
            list.insert(place, new);
            None
        });
        if let Some(path) = spare {
            self.release_path(path);
        }
        self.refresh(at);
    }

    /// An address of a port's that the configuration gives: the address itself, its network, and
    /// the network's broadcast address, which a /31 does not have (RFC 3021).
    fn add_address(&mut self, port: PortId, net: IpNet) {
        let own = IpNet::from(net.addr());
        if special::allows(own, RouteKind::Local) {
            self.add(own, Source::Local, PathKey::Fixed(fixed::HOST));
        }
        if special::allows(net.trunc(), RouteKind::Unicast) && net.prefix_len() < net.max_prefix_len() {
            let hop = Hop {
                gateway: None,
                index: Some(own_index(port)),
                weight: 1,
                kernel_only: false,
                dead: false,
            };
            self.add(net.trunc(), Source::Connected, PathKey::Hops(vec![hop]));
        }
        if let IpNet::V4(net) = net
            && net.prefix_len() < 31
        {
            let broadcast = IpNet::from(Ipv4Net::from(net.broadcast()));
            if special::allows(broadcast, RouteKind::Broadcast) {
                self.add(broadcast, Source::Local, PathKey::Fixed(fixed::BROADCAST));
            }
        }
    }

    fn add_static(&mut self, route: &StaticRoute) {
        if !special::allows(route.to, route.kind) {
            log::warn!("route to {}: this prefix has a meaning of its own and is never routed", route.to);
            return;
        }
        let key = fixed_path(route.kind).unwrap_or_else(|| {
            let hops = route.hops.iter().map(|hop| Hop {
                gateway: hop.gateway,
                index: hop.port.map(own_index),
                weight: hop.weight.max(1),
                kernel_only: false,
                dead: false,
            });
            PathKey::through(hops.collect())
        });
        self.add(route.to, Source::Static, key);
    }
}

impl RibPort {
    fn new(spec: PortSpec) -> Self {
        let table = PortTable {
            name: spec.name.clone(),
            mac: spec.mac.unwrap_or(spec.device_mac),
            mtu: 0,
            up: false,
            addresses4: Vec::new(),
            addresses6: Vec::new(),
            builtin_host: spec.builtin_host,
        };
        Self { spec, index: None, gone: false, table }
    }
}
