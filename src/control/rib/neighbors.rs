//! Neighbours: who is on the links. One that can be sent to gets a route of its own while its
//! address lies in its link's network, so that packets to it need no further look.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{
    Candidate, InRib, Rib, own_index,
    paths::{PathId, PathKey},
    special,
    table::Source,
};
use crate::control::{
    kernel::{Hop, Index, NeighborState},
    next_hops::Adjacency,
};
use crate::tables::PortId;

/// Who knows a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NeighborSource {
    /// The kernel.
    Kernel,
    /// The configuration.
    Static,
    /// The built-in host has heard it.
    Learned,
}

/// What is known of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbor {
    /// Its MAC address.
    pub mac: Option<[u8; 6]>,
    /// What is known of it.
    pub state: NeighborState,
    /// Who knows it.
    pub source: NeighborSource,
    /// When a listing named it last; 0 if it is not the kernel's.
    pub mark: u8,
}

impl Neighbor {
    /// The MAC address to send to.
    fn usable(&self) -> Option<[u8; 6]> {
        self.mac.filter(|_| self.state.is_usable())
    }
}

impl Rib {
    /// Notes what is known of a neighbour. A configured one stays as it is.
    pub fn set_neighbor(&mut self, index: Index, address: IpAddr, neighbor: Neighbor) {
        let old = self.neighbors.get(&(address, index)).copied();
        if neighbor.source != NeighborSource::Static
            && old.is_some_and(|n| n.source == NeighborSource::Static)
        {
            return;
        }
        self.neighbors.insert((address, index), neighbor);
        if old.and_then(|old| old.usable()) != neighbor.usable() {
            self.neighbor_moved(index, address);
        }
    }

    /// Forgets a neighbour.
    pub fn forget_neighbor(&mut self, index: Index, address: IpAddr) {
        if self.neighbors.remove(&(address, index)).is_some_and(|old| old.usable().is_some()) {
            self.neighbor_moved(index, address);
        }
    }

    pub(super) fn sweep_neighbors(&mut self, complete: bool) {
        let Some(stale) = self.neighbor_sweep.end(complete) else { return };
        let gone: Vec<_> = self
            .neighbors
            .iter()
            .filter(|((address, index), neighbor)| stale(neighbor.mark, &(*index, *address)))
            .map(|(key, _)| *key)
            .collect();
        for (address, index) in gone {
            self.forget_neighbor(index, address);
        }
    }

    /// The MAC address to send to, for a neighbour that packets can be sent to.
    pub fn mac_of(&self, port: PortId, address: IpAddr) -> Option<[u8; 6]> {
        let own = self.neighbors.get(&(address, own_index(port))).and_then(Neighbor::usable);
        own.or_else(|| self.neighbors.get(&(address, self.index_of(port)?)).and_then(Neighbor::usable))
    }

    /// What is known of a neighbour.
    pub fn neighbor(&self, port: PortId, address: IpAddr) -> Option<&Neighbor> {
        let own = self.neighbors.get(&(address, own_index(port)));
        own.or_else(|| self.neighbors.get(&(address, self.index_of(port)?)))
    }

    /// All neighbours on ports.
    pub fn neighbors(&self) -> impl Iterator<Item = (PortId, IpAddr, &Neighbor)> + '_ {
        self.neighbors
            .iter()
            .filter_map(|((address, index), neighbor)| Some((self.port_of(*index)?, *address, neighbor)))
    }

    /// The gateways, and other neighbours in use, that cannot be sent to now: whom to look for.
    pub fn unresolved(&self) -> Vec<(PortId, IpAddr)> {
        let missing = |(port, address): &(PortId, IpAddr)| {
            self.is_live(*port) && self.mac_of(*port, *address).is_none()
        };
        let neighbors = self.hops.iter().filter_map(|(_, adjacency)| match adjacency {
            Adjacency::Neighbor(port, address) => Some((port, address)),
            _ => None,
        });
        neighbors.filter(missing).collect()
    }

    /// The neighbours that routes lead through; not those that are only on a link.
    pub fn gateways(&self) -> BTreeSet<(PortId, IpAddr)> {
        let mut gateways = BTreeSet::new();
        for (id, path) in self.paths.iter() {
            for (member, _) in &path.members {
                if let Some(Adjacency::Neighbor(port, address)) = self.hops.adjacency(*member)
                    && (path.users > 1 || !self.is_own_route(id, address))
                {
                    gateways.insert((port, address));
                }
            }
        }
        gateways
    }

    /// Whether a neighbour's own route has this path.
    fn is_own_route(&self, id: PathId, address: IpAddr) -> bool {
        let is = |c: &Candidate| c.source == Source::Neighbor && c.path == id;
        match address {
            IpAddr::V4(a) => self.v4.of((u32::from(a), 32)).iter().any(is),
            IpAddr::V6(a) => self.v6.of((u128::from(a), 128)).iter().any(is),
        }
    }

    /// A neighbour can be sent to now, or no longer, or elsewhere.
    fn neighbor_moved(&mut self, index: Index, address: IpAddr) {
        let Some(port) = self.port_of(index) else { return };
        if let Some(id) = self.hops.id_of(Adjacency::Neighbor(port, address)) {
            self.changes.next_hops.insert(id);
            let over: Vec<PathId> = self
                .grouped
                .iter()
                .copied()
                .filter(|path| {
                    self.paths
                        .get(*path)
                        .is_some_and(|path| path.members.iter().any(|(member, _)| *member == id))
                })
                .collect();
            for path in over {
                self.fill_group(path);
            }
        }
        self.look_at(port, address);
    }

    /// Gives a neighbour its own route, or takes it away, as things are.
    fn look_at(&mut self, port: PortId, address: IpAddr) {
        match address {
            IpAddr::V4(a) => self.look_at_number(port, address, u32::from(a)),
            IpAddr::V6(a) => self.look_at_number(port, address, u128::from(a)),
        }
    }

    fn look_at_number<A: InRib>(&mut self, port: PortId, address: IpAddr, number: A) {
        let network = self.hops.id_of(Adjacency::Network(port));
        let table = A::table(self);
        let at = (number, A::BITS);
        let on_link =
            network.is_some() && table.installed.cover(number, A::BITS).map(|(_, id)| id) == network;
        let wanted = on_link
            && self.is_live(port)
            && special::is_ordinary(address)
            && self.mac_of(port, address).is_some();
        let hop = Hop {
            gateway: Some(address),
            index: Some(own_index(port)),
            weight: 1,
            kernel_only: false,
            dead: false,
        };
        let key = PathKey::Hops(vec![hop]);
        let known = self
            .paths
            .id_of(&key)
            .filter(|path| table.of(at).iter().any(|c| c.source == Source::Neighbor && c.path == *path));
        match (wanted, known) {
            (true, None) => {
                let path = self.acquire_path(key);
                let new = Candidate { source: Source::Neighbor, protocol: 0, mark: 0, metric: 0, path };
                A::table_mut(self).edit(at, |list| list.push(new));
            }
            (false, Some(path)) => {
                A::table_mut(self).edit(at, |list| {
                    list.retain(|c| c.source != Source::Neighbor || c.path != path);
                });
                self.release_path(path);
            }
            _ => return,
        }
        self.refresh(at);
    }

    /// Looks at all neighbours on an interface.
    pub(super) fn look_at_neighbors_of(&mut self, index: Index) {
        let Some(port) = self.port_of(index) else { return };
        let all: Vec<IpAddr> =
            self.neighbors.keys().filter(|(_, i)| *i == index).map(|(address, _)| *address).collect();
        for address in all {
            self.look_at(port, address);
        }
    }

    /// Looks at the neighbours within every prefix that has changed since the last look.
    pub(super) fn look_at_neighbors_of_changes<A: InRib>(&mut self) {
        let family4 = A::BITS == 32;
        let highest =
            if family4 { IpAddr::from(Ipv4Addr::BROADCAST) } else { Ipv6Addr::from(u128::MAX).into() };
        let lowest = if family4 { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        loop {
            let table = A::table_mut(self);
            let Some(new) = table.changed.get(table.looked_at..).filter(|new| !new.is_empty()) else {
                return;
            };
            let new: Vec<_> = new.to_vec();
            table.looked_at = table.changed.len();
            if self.neighbors.range((lowest, 0)..=(highest, Index::MAX)).next().is_none() {
                return;
            }
            let mut seen = BTreeSet::new();
            for (address, length) in new {
                let range = (address.ip(), 0)..=(address.last(length).ip(), Index::MAX);
                seen.extend(self.neighbors.range(range).map(|(key, _)| *key));
            }
            for (address, index) in seen {
                if let Some(port) = self.port_of(index) {
                    self.look_at(port, address);
                }
            }
        }
    }
}
