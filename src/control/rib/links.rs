//! Links and addresses, and the ports that stand on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use netmap::device::Vlan;

use super::{InRib, PortSpec, Rib, RibPort, own_index, paths::PathKey};
use crate::control::kernel::{Address, Index, Link, NextHopObject, Parts, VlanLink};
use crate::tables::{PortId, SubPort, Trunk};

/// Length of an IP packet in bytes that every Ethernet takes.
const USUAL_MTU: u16 = 1500;

impl Rib {
    pub(super) fn link_changed(&mut self, link: Link, listed: bool) {
        let index = link.index;
        if !self.link_sweep.admits(index, listed) {
            return;
        }
        let mark = self.link_sweep.epoch();
        let (up, carrier) = (link.up, link.carrier);
        let (name, vlan) = (link.name.clone(), link.vlan);
        let old = self.links.insert(index, (link, mark));
        let was_up = old.as_ref().is_some_and(|(old, _)| old.up);
        let carrier_moved = old.as_ref().is_some_and(|(old, _)| old.carrier != carrier);
        let other_vlan = old.as_ref().is_some_and(|(old, _)| old.vlan != vlan);
        let old_name = old.map(|(old, _)| old.name);
        let renamed = old_name.as_ref() != Some(&name) || other_vlan;
        if renamed {
            self.map_ports();
        }
        if let Some(port) = self.port_of(index) {
            if let Some(old) = old_name.filter(|old| *old != name) {
                let port = &self.ports[usize::from(port)].spec.name;
                log::info!("port {port}: its interface {old} is called {name} now; the port goes on");
            }
            self.refresh_port(port);
        }
        if renamed || was_up != up {
            self.reroute(index);
            self.reroute_sub_ports(index);
        }
        if was_up && !up {
            self.purge(index);
        } else if was_up != up || carrier_moved {
            // Next hops that the kernel had set aside may be in use again, or the other way round.
            self.wanted = self.wanted.with(Parts::ROUTES);
        }
    }

    pub(super) fn link_gone(&mut self, index: Index, listed: bool) {
        if !self.link_sweep.admits(index, listed) || self.links.remove(&index).is_none() {
            return;
        }
        self.addresses.remove(&index);
        let gone: Vec<_> = self.neighbors.keys().filter(|(_, i)| *i == index).copied().collect();
        for (address, index) in gone {
            self.forget_neighbor(index, address);
        }
        let port = self.port_of(index);
        self.map_ports();
        if let Some(port) = port {
            if self.ports.get(usize::from(port)).is_some_and(|entry| entry.spec.sub.is_none()) {
                self.lost.push(port);
            }
            self.refresh_port(port);
            self.reroute(own_index(port));
        }
        self.reroute(index);
        self.purge(index);
    }

    pub(super) fn sweep_links(&mut self, complete: bool) {
        let Some(stale) = self.link_sweep.end(complete) else { return };
        let gone: Vec<_> =
            self.links.iter().filter(|(i, (_, mark))| stale(*mark, i)).map(|(i, _)| *i).collect();
        for index in gone {
            self.link_gone(index, false);
        }
    }

    /// Finds the interface of every port: by its number if it was found before, whatever it is
    /// called now, else by its name; a sub-port's by the interface of its parent and by its tags.
    pub(super) fn map_ports(&mut self) {
        let before = std::mem::take(&mut self.by_index);
        let mut moved = BTreeSet::new();
        let (subs, others): (Vec<_>, Vec<_>) =
            (0..self.ports.len()).partition(|&port| self.ports[port].spec.sub.is_some());
        // Parents first.
        for port in others.into_iter().chain(subs) {
            let RibPort { spec, index, gone, .. } = &self.ports[port];
            let stays = !gone && spec.sub.is_none() && spec.interface.is_some();
            let known = index.filter(|index| stays && self.links.contains_key(index));
            let index = known.or_else(|| self.find_interface(spec));
            let entry = &mut self.ports[port];
            if entry.index != index {
                moved.extend(entry.index);
                moved.extend(index);
                moved.insert(own_index(port as PortId));
            }
            entry.index = index;
            if let Some(index) = index {
                self.by_index.insert(index, port as PortId);
            }
        }
        // For a moment two ports may have claimed one interface: then it changes hands, though the
        // port that has it now had it before as well.
        let indexes = before.keys().chain(self.by_index.keys());
        moved.extend(indexes.filter(|&index| before.get(index) != self.by_index.get(index)));
        for index in moved {
            if let Some(port) = self.port_of(index) {
                self.refresh_port(port);
            }
            self.reroute(index);
            self.look_at_neighbors_of(index);
        }
    }

    fn find_interface(&self, spec: &PortSpec) -> Option<Index> {
        let find = |is: &dyn Fn(&Link) -> bool| {
            self.links.values().find(|(link, _)| is(link)).map(|(link, _)| link.index)
        };
        let Some(SubPort { parent, tags }) = spec.sub else {
            let name = spec.interface.as_deref()?;
            return find(&|link| link.name == name);
        };
        let vlan_of = |parent, tag| find(&|link| link.vlan == Some(VlanLink { parent, tag }));
        let outer = vlan_of(self.index_of(parent)?, tags.outer)?;
        tags.inner.map_or(Some(outer), |inner| vlan_of(outer, inner))
    }

    /// The sub-ports of a port.
    pub fn sub_ports(&self, parent: PortId) -> Vec<PortId> {
        let of_parent = |entry: &RibPort| entry.spec.sub.is_some_and(|sub| sub.parent == parent);
        (0..).zip(&self.ports).filter(|(_, entry)| of_parent(entry)).map(|(port, _)| port).collect()
    }

    /// How the frames of a port's VLANs are shared between the rings and the host.
    pub fn vlans(&self, port: PortId) -> Vec<Vlan> {
        let mut vlans: BTreeMap<u16, Vlan> = BTreeMap::new();
        for entry in self.sub_ports(port).into_iter().filter_map(|sub| self.ports.get(usize::from(sub))) {
            let Some(SubPort { tags, .. }) = entry.spec.sub else { continue };
            let id = tags.outer.vlan;
            let vlan = vlans.entry(id).or_insert(Vlan { id, host: true, stacked: false });
            vlan.host &= entry.index.is_some();
            vlan.stacked |= tags.inner.is_some();
        }
        vlans.into_values().collect()
    }

    /// Works out anew where paths over the sub-ports of the port behind an interface lead.
    pub(super) fn reroute_sub_ports(&mut self, index: Index) {
        let Some(port) = self.port_of(index) else { return };
        for sub in self.sub_ports(port) {
            self.reroute(own_index(sub));
        }
    }

    /// Takes out what the kernel drops without a word when an interface goes down: its routes
    /// (RTM_DELROUTE comes for none of IPv4's), and the next hop objects on it.
    fn purge(&mut self, index: Index) {
        let dead_objects: Vec<u32> = self
            .objects
            .iter()
            .filter(|(_, (object, _))| matches!(object, NextHopObject::Single(h) if h.index == Some(index)))
            .map(|(id, _)| *id)
            .collect();
        for id in dead_objects {
            self.object_gone(id, false);
        }
        let dead: BTreeSet<_> = self
            .paths
            .select(|path| path.resolved.is_none() && path.key.mentions(index))
            .into_iter()
            .collect();
        if !dead.is_empty() {
            self.drop_kernel_routes::<u32>(&dead);
            self.drop_kernel_routes::<u128>(&dead);
        }
        self.wanted = self.wanted.with(Parts::ROUTES);
    }

    fn drop_kernel_routes<A: InRib>(&mut self, dead: &BTreeSet<u32>) {
        let keys = A::table(self).over(dead);
        self.remove_from(keys, |_, candidate| candidate.mark != 0 && dead.contains(&candidate.path));
    }

    pub(super) fn address_added(&mut self, address: Address, listed: bool) {
        if !self.address_sweep.admits((address.index, address.net.addr()), listed) {
            return;
        }
        let mark = self.address_sweep.epoch();
        let list = self.addresses.entry(address.index).or_default();
        match list.iter_mut().find(|(a, _)| a.net.addr() == address.net.addr()) {
            Some(known) => *known = (address, mark),
            None => {
                list.push((address, mark));
                // Next hops that the kernel had set aside are in use again.
                self.wanted = self.wanted.with(if listed { Parts::default() } else { Parts::ROUTES });
            }
        }
        if let Some(port) = self.port_of(address.index) {
            self.refresh_port(port);
        }
    }

    pub(super) fn address_removed(&mut self, address: Address, listed: bool) {
        if !self.address_sweep.admits((address.index, address.net.addr()), listed) {
            return;
        }
        if let Some(list) = self.addresses.get_mut(&address.index) {
            list.retain(|(a, _)| a.net.addr() != address.net.addr());
        }
        if let Some(port) = self.port_of(address.index) {
            self.refresh_port(port);
        }
        // Which routes went with it, the kernel does not say.
        self.wanted = self.wanted.with(Parts::ROUTES);
    }

    pub(super) fn sweep_addresses(&mut self, complete: bool) {
        let Some(stale) = self.address_sweep.end(complete) else { return };
        for (index, list) in &mut self.addresses {
            list.retain(|(a, mark)| !stale(*mark, &(*index, a.net.addr())));
        }
        for port in 0..self.ports.len() as PortId {
            self.refresh_port(port);
        }
    }

    /// Whether routes may lead through a port.
    pub(super) fn is_live(&self, port: PortId) -> bool {
        let Some(entry) = self.ports.get(usize::from(port)) else { return false };
        if entry.gone {
            return false;
        }
        if let Some(sub) = entry.spec.sub {
            // Without an interface of the kernel's the sub-port is as its parent is.
            return self.is_live(sub.parent) && entry.index.is_none_or(|index| self.is_up(index));
        }
        match (&entry.spec.interface, entry.index) {
            (None, _) => true,
            (Some(_), Some(index)) => self.is_up(index),
            // No kernel is followed, so nobody can say that it is down.
            (Some(_), None) => self.links.is_empty(),
        }
    }

    /// Whether the kernel's interface is switched on.
    pub(super) fn is_up(&self, index: Index) -> bool {
        self.links.get(&index).is_some_and(|(link, _)| link.up)
    }

    /// Works out anew what workers see of a port.
    pub(super) fn refresh_port(&mut self, port: PortId) {
        let live = self.is_live(port);
        let Some(entry) = self.ports.get(usize::from(port)) else { return };
        let link = entry.index.and_then(|index| self.links.get(&index)).map(|(link, _)| link);
        let mut table = entry.table.clone();
        let parent = entry.spec.sub.and_then(|sub| self.port(sub.parent));
        table.up = live && parent.is_none_or(|parent| parent.up) && link.is_none_or(|link| link.carrier);
        let device_mac = parent.map_or(entry.spec.device_mac, |parent| parent.mac);
        table.mac = entry.spec.mac.or(link.and_then(|link| link.mac)).unwrap_or(device_mac);
        let kernel_mtu = link.map(|link| u16::try_from(link.mtu).unwrap_or(u16::MAX));
        // What is longer than the interface's own MTU it drops without a word.
        let device_mtu = kernel_mtu.or(parent.map(|parent| parent.mtu));
        let mtu = match (entry.spec.mtu, device_mtu) {
            (Some(given), Some(device)) => given.min(device),
            (given, device) => given.or(device).unwrap_or(USUAL_MTU),
        };
        table.mtu = mtu.min(entry.spec.max_len);
        table.builtin_host = entry.spec.builtin_host || entry.spec.sub.is_some() && entry.index.is_none();
        table.sub = entry.spec.sub;
        let subs = self.sub_ports(port);
        let tags = |sub: &PortId| Some((self.ports[usize::from(*sub)].spec.sub?.tags, *sub));
        table.trunk = Trunk::new(subs.iter().filter_map(tags)).map(Box::new);
        (table.reverse_path, table.redirects) = (entry.spec.reverse_path, entry.spec.redirects);
        table.express = entry.spec.express;
        let mut nets: Vec<IpNet> = match (&entry.spec.addresses, entry.index) {
            (Some(nets), _) => nets.clone(),
            (None, Some(index)) => {
                let list = self.addresses.get(&index).map_or(&[][..], Vec::as_slice);
                let mut ready: Vec<_> = list.iter().map(|(a, _)| a).filter(|a| a.ready).collect();
                ready.sort_by_key(|a| a.secondary);
                ready.into_iter().map(|a| a.net).collect()
            }
            (None, None) => Vec::new(),
        };
        nets.sort_by_key(|net| is_link_local(net.addr()));
        table.addresses4 =
            nets.iter().filter_map(|n| if let IpNet::V4(n) = n { Some(*n) } else { None }).collect();
        table.addresses6 =
            nets.iter().filter_map(|n| if let IpNet::V6(n) = n { Some(*n) } else { None }).collect();
        if table == entry.table {
            return;
        }
        let rewrite = table.mac != entry.table.mac || table.mtu != entry.table.mtu;
        self.ports[usize::from(port)].table = table;
        self.changes.ports.insert(port);
        if rewrite {
            let of_port = self.hops.iter().filter(|(_, adjacency)| adjacency.port() == Some(port));
            self.changes.next_hops.extend(of_port.map(|(id, _)| id));
        }
        for sub in subs {
            self.refresh_port(sub);
        }
    }

    /// Works out anew where the paths over an interface lead.
    pub(super) fn reroute(&mut self, index: Index) {
        let objects: BTreeSet<u32> = self.objects_on(index);
        let paths = self.paths.select(|path| match &*path.key {
            PathKey::Object(id) => objects.contains(id),
            key => key.mentions(index),
        });
        self.resolve_all(paths);
        if let Some(port) = self.port_of(index)
            && index == own_index(port)
        {
            self.look_at_neighbors_of(index);
        } else if let Some(port) = self.port_of(index) {
            self.reroute(own_index(port));
            self.look_at_neighbors_of(index);
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}
