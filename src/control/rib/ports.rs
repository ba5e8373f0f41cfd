//! Ports that come, go and come back while the program runs.

use std::net::IpAddr;

use super::{NeighborSource, PortSpec, Rib, RibPort, own_index};
use crate::tables::PortId;

impl Rib {
    /// A port comes at this number, or another device behind it. Nothing leaves by it until
    /// [`Rib::port_back`]. Its addresses count from the next [`Rib::reconfigure`] on.
    pub fn enter_port(&mut self, port: PortId, spec: PortSpec) {
        let place = usize::from(port);
        while self.ports.len() <= place {
            self.ports.push(RibPort { gone: true, ..RibPort::new(PortSpec::default()) });
        }
        let entry = &mut self.ports[place];
        let table = entry.table.clone();
        entry.gone = true;
        entry.table.name.clone_from(&spec.name);
        entry.table.builtin_host = spec.builtin_host;
        if entry.spec.interface != spec.interface {
            entry.index = None;
        }
        entry.spec = spec;
        if entry.table != table {
            self.changes.ports.insert(port);
        }
        self.map_ports();
        self.reroute_port(port);
    }

    /// The device behind a port is there, and workers have its rings.
    pub fn port_back(&mut self, port: PortId) {
        let Some(entry) = self.ports.get_mut(usize::from(port)) else { return };
        entry.gone = false;
        self.map_ports();
        self.reroute_port(port);
    }

    /// The device behind a port is gone: nothing leaves by it any more.
    pub fn port_gone(&mut self, port: PortId) {
        let Some(entry) = self.ports.get_mut(usize::from(port)).filter(|entry| !entry.gone) else { return };
        entry.gone = true;
        self.reroute_port(port);
    }

    /// The configuration has no port of this number any more. Its addresses, routes and neighbours
    /// go with the next [`Rib::reconfigure`].
    pub(super) fn leave_port(&mut self, port: PortId) {
        let Some(entry) = self.ports.get_mut(usize::from(port)) else { return };
        if entry.gone && entry.table.name.is_empty() && entry.spec.interface.is_none() {
            return;
        }
        let index = entry.index.take();
        entry.spec = PortSpec::default();
        entry.gone = true;
        entry.table.name.clear();
        self.changes.ports.insert(port);
        let own = own_index(port);
        let of_port = |(key, neighbor): (&(IpAddr, u32), &super::Neighbor)| {
            (key.1 == own && neighbor.source == NeighborSource::Learned).then_some(key.0)
        };
        let learned: Vec<IpAddr> = self.neighbors.iter().filter_map(of_port).collect();
        for address in learned {
            self.forget_neighbor(own, address);
        }
        self.map_ports();
        self.reroute_port(port);
        if let Some(index) = index {
            // What leads there is the host's now.
            self.reroute(index);
            self.look_at_neighbors_of(index);
        }
    }

    /// Works out anew everything that stands on a port.
    fn reroute_port(&mut self, port: PortId) {
        self.refresh_port(port);
        self.reroute(own_index(port));
        if let Some(index) = self.index_of(port) {
            self.reroute(index);
        }
        self.reroute_sub_ports(own_index(port));
    }

    /// There is no port of this number any more, and no neighbour is behind it.
    pub fn forget_port(&mut self, port: PortId) {
        self.leave_port(port);
    }

    /// Has the devices told again which addresses are the host's, with the next publication.
    pub fn tell_local_again(&mut self) {
        self.changes.local = true;
    }

    /// The ports whose interface has gone since the last call.
    pub fn take_lost(&mut self) -> Vec<PortId> {
        std::mem::take(&mut self.lost)
    }
}
