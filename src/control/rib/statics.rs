//! What the configuration says: ports, routes and neighbours.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
};

use ipnet::{IpNet, Ipv4Net};

use super::{
    Candidate, Changes, InRib, Neighbor, NeighborSource, Rib, RibPort, Source, own_index,
    paths::{Path, PathKey},
    special,
};
use crate::control::kernel::{Hop, NeighborState, Parts, RouteKind};
use crate::tables::{Express, PortId, PortTable, ReversePath, SubPort, fixed};

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
    /// A VLAN sub-port: of which port, and with which tags. It is the kernel's VLAN interface with
    /// them; while there is none, the built-in host answers.
    pub sub: Option<SubPort>,
    /// How the sources of its packets are checked.
    pub reverse_path: ReversePath,
    /// Whether senders on its link are told of better first hops.
    pub redirects: bool,
    /// Whether its plain packets are forwarded in the driver.
    pub express: Express,
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

/// What a port's section may change while the port is open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortSettings {
    /// The MAC address, if neither the kernel nor the device is to say.
    pub mac: Option<[u8; 6]>,
    /// The MTU in bytes, if the kernel is not to say.
    pub mtu: Option<u16>,
    /// The addresses; empty: the kernel's.
    pub addresses: Vec<IpNet>,
    /// How the sources of its packets are checked.
    pub reverse_path: ReversePath,
    /// Whether senders on its link are told of better first hops.
    pub redirects: bool,
    /// Whether its plain packets are forwarded in the driver.
    pub express: Express,
}

/// One entry of a table that the configuration gives.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Given {
    to: IpNet,
    source: Source,
    key: PathKey,
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
            before: None,
            v4: Default::default(),
            v6: Default::default(),
            local: Default::default(),
            broadcast: Default::default(),
            changes: Changes::default(),
            wanted: Parts::default(),
            full: false,
            lost: Vec::new(),
        };
        for (to, id) in special::SPECIAL {
            rib.add(&Given { to, source: Source::Special, key: PathKey::Fixed(id) });
        }
        for port in 0..rib.ports.len() as PortId {
            rib.changes.ports.insert(port);
            rib.refresh_port(port);
        }
        rib.give(routes, neighbors);
        rib.changes.local = true;
        rib.settle();
        rib
    }

    /// Brings what the configuration gives up to these settings and lists; everything else stays.
    /// Ports that are not mentioned leave. What is added comes before what goes, so that a next hop
    /// that stays in use keeps its number.
    pub fn reconfigure(
        &mut self,
        ports: &BTreeMap<PortId, PortSettings>,
        routes: &[StaticRoute],
        neighbors: &[StaticNeighbor],
    ) {
        let left = (0..self.ports.len() as PortId).filter(|port| !ports.contains_key(port));
        for port in left.collect::<Vec<_>>() {
            self.leave_port(port);
        }
        for (&port, settings) in ports {
            let Some(entry) = self.ports.get_mut(usize::from(port)) else { continue };
            let spec = &mut entry.spec;
            (spec.mac, spec.mtu) = (settings.mac, settings.mtu);
            (spec.reverse_path, spec.redirects) = (settings.reverse_path, settings.redirects);
            spec.express = settings.express;
            spec.addresses = given_addresses(spec.builtin_host, &settings.addresses);
            self.refresh_port(port);
        }
        self.give(routes, neighbors);
        self.settle();
    }

    fn give(&mut self, routes: &[StaticRoute], neighbors: &[StaticNeighbor]) {
        let mut old = HashSet::new();
        self.given::<u32>(&mut old);
        self.given::<u128>(&mut old);
        let addresses = (0..).zip(&self.ports).flat_map(|(port, entry): (PortId, _)| {
            let nets = entry.spec.addresses.iter().flatten();
            nets.flat_map(move |net| given_by_address(port, *net))
        });
        let new: Vec<Given> = addresses.chain(routes.iter().filter_map(given_by_route)).collect();
        for given in new {
            if !old.remove(&given) {
                self.add(&given);
            }
        }
        self.give_neighbors(neighbors);
        for given in old {
            self.withdraw(&given);
        }
    }

    fn give_neighbors(&mut self, neighbors: &[StaticNeighbor]) {
        let is_static = |neighbor: &Neighbor| neighbor.source == NeighborSource::Static;
        let mut old: BTreeSet<_> =
            self.neighbors.iter().filter(|(_, known)| is_static(known)).map(|(key, _)| *key).collect();
        for neighbor in neighbors {
            let index = own_index(neighbor.port);
            let known = Neighbor {
                mac: Some(neighbor.mac),
                state: NeighborState::Permanent,
                source: NeighborSource::Static,
                mark: 0,
            };
            old.remove(&(neighbor.address, index));
            self.set_neighbor(index, neighbor.address, known);
        }
        for (address, index) in old {
            self.forget_neighbor(index, address);
        }
    }

    /// Why a route of the configuration's is not in force; `None` when it is.
    pub fn why_inactive(&self, route: &StaticRoute) -> Option<String> {
        let given = given_by_route(route)?;
        match self.paths.id_of(&given.key).and_then(|id| self.paths.get(id)) {
            Some(path) => self.why_unresolved(path),
            None => Some("it is not among the routes".into()),
        }
    }

    /// Why a path leads nowhere; `None` when it does not.
    pub fn why_unresolved(&self, path: &Path) -> Option<String> {
        let PathKey::Hops(hops) = &*path.key else { return None };
        if path.resolved.is_some() {
            return None;
        }
        let mut reasons: Vec<String> = hops.iter().map(|hop| self.why_dead(hop)).collect();
        reasons.dedup();
        Some(reasons.join("; "))
    }

    /// Adds to `out` what the configuration gives now.
    fn given<A: InRib>(&self, out: &mut HashSet<Given>) {
        let configured =
            |c: &&Candidate| c.mark == 0 && !matches!(c.source, Source::Special | Source::Neighbor);
        for ((address, length), list) in &A::table(self).candidates {
            for candidate in list.as_slice().iter().filter(configured) {
                let Some(path) = self.paths.get(candidate.path) else { continue };
                let to = address.net(*length);
                out.insert(Given { to, source: candidate.source, key: PathKey::clone(&path.key) });
            }
        }
    }

    fn add(&mut self, given: &Given) {
        match given.to {
            IpNet::V4(net) => self.add_to((u32::from(net.network()), net.prefix_len()), given),
            IpNet::V6(net) => self.add_to((u128::from(net.network()), net.prefix_len()), given),
        }
    }

    fn add_to<A: InRib>(&mut self, at: (A, u8), given: &Given) {
        let before = self.best(A::table(self).of(at)).map(|candidate| candidate.path);
        let path = self.acquire_path_after(given.key.clone(), before);
        let new = Candidate { source: given.source, protocol: 0, mark: 0, metric: 0, path };
        let spare = A::table_mut(self).edit(at, |list| {
            if list.iter().any(|c| c.mark == 0 && c.rank() == new.rank() && c.path == path) {
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

    fn withdraw(&mut self, given: &Given) {
        match given.to {
            IpNet::V4(net) => self.withdraw_from((u32::from(net.network()), net.prefix_len()), given),
            IpNet::V6(net) => self.withdraw_from((u128::from(net.network()), net.prefix_len()), given),
        }
    }

    fn withdraw_from<A: InRib>(&mut self, at: (A, u8), given: &Given) {
        let Some(path) = self.paths.id_of(&given.key) else { return };
        let is = |c: &Candidate| c.mark == 0 && c.source == given.source && c.path == path;
        let found = A::table_mut(self).edit(at, |list| {
            let before = list.len();
            list.retain(|c| !is(c));
            before > list.len()
        });
        if found {
            self.release_path(path);
            self.refresh(at);
        }
    }
}

/// The addresses of a port: the kernel's, unless the configuration gives some or the kernel has no
/// part in it.
pub(in crate::control) fn given_addresses(builtin_host: bool, addresses: &[IpNet]) -> Option<Vec<IpNet>> {
    (builtin_host || !addresses.is_empty()).then(|| addresses.to_vec())
}

/// What an address of a port's gives: the address itself, its network, and the network's broadcast
/// address, which a /31 does not have (RFC 3021).
fn given_by_address(port: PortId, net: IpNet) -> Vec<Given> {
    let mut list = Vec::new();
    let own = IpNet::from(net.addr());
    if special::allows(own, RouteKind::Local) {
        list.push(Given { to: own, source: Source::Local, key: PathKey::Fixed(fixed::HOST) });
    }
    if special::allows(net.trunc(), RouteKind::Unicast) && net.prefix_len() < net.max_prefix_len() {
        let hop =
            Hop { gateway: None, index: Some(own_index(port)), weight: 1, kernel_only: false, dead: false };
        let key = PathKey::Hops(vec![hop]);
        list.push(Given { to: net.trunc(), source: Source::Connected, key });
    }
    if let IpNet::V4(net) = net
        && net.prefix_len() < 31
    {
        let to = IpNet::from(Ipv4Net::from(net.broadcast()));
        if special::allows(to, RouteKind::Broadcast) {
            list.push(Given { to, source: Source::Local, key: PathKey::Fixed(fixed::BROADCAST) });
        }
    }
    list
}

/// What a configured route gives; nothing within a prefix with a meaning of its own.
fn given_by_route(route: &StaticRoute) -> Option<Given> {
    if !special::allows(route.to, route.kind) {
        log::warn!("route to {}: this prefix has a meaning of its own and is never routed", route.to);
        return None;
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
    Some(Given { to: route.to, source: Source::Static, key })
}

impl RibPort {
    pub(super) fn new(spec: PortSpec) -> Self {
        let table = PortTable {
            name: spec.name.clone(),
            mac: spec.mac.unwrap_or(spec.device_mac),
            mtu: 0,
            up: false,
            addresses4: Vec::new(),
            addresses6: Vec::new(),
            builtin_host: spec.builtin_host,
            reverse_path: spec.reverse_path,
            redirects: spec.redirects,
            express: spec.express,
            ..PortTable::default()
        };
        Self { spec, index: None, gone: false, table }
    }
}
