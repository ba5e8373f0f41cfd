//! The routing information base: everything known about ways to everywhere, by source, and what is
//! to be done about it. It takes events (the kernel's, the configuration's, the built-in host's)
//! and keeps a list of what has changed since the last publication; nothing here reads a socket or
//! a clock, so that any history can be replayed in a test.

mod links;
mod neighbors;
pub mod paths;
mod ports;
mod resolve;
mod routes;
pub mod special;
mod statics;
mod sweep;
pub mod table;

#[cfg(test)]
mod facts_tests;
#[cfg(test)]
mod flow_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod reconfigure_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vlan_tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use crate::tables::{MAX_NEXT_HOPS, NextHopId, PortId, PortTable};

use super::{
    kernel::{Address, Index, KernelEvent, Link, NeighborState, NextHopObject, Part, Parts, Report},
    next_hops::NextHops,
};
pub use neighbors::{Neighbor, NeighborSource};
use paths::{PathId, Paths};
pub(super) use routes::{key_of, source_of};
pub(super) use statics::given_addresses;
pub use statics::{PortSettings, PortSpec, StaticHop, StaticNeighbor, StaticRoute};
use sweep::Sweep;
pub use table::{Candidate, Family, Source, Table};

/// Interface indices from here on are this program's, one for each port: what the configuration
/// says about a port holds whether or not the kernel knows an interface behind it.
pub const OWN_INDEX: Index = 1 << 31;

/// The index that stands for a port itself.
pub fn own_index(port: PortId) -> Index {
    OWN_INDEX | Index::from(port)
}

/// A port, as the RIB sees it.
#[derive(Debug)]
pub(crate) struct RibPort {
    spec: PortSpec,
    /// The kernel's interface behind it, once known.
    index: Option<Index>,
    /// Whether the device is gone, or not there yet.
    gone: bool,
    /// What workers see.
    table: PortTable,
}

/// The buckets of a group.
#[derive(Clone, Debug)]
struct GroupState {
    buckets: Box<[NextHopId; super::buckets::BUCKETS]>,
    filled: bool,
    /// The members' ports, whether packets can be sent to them now or not.
    ports: Vec<PortId>,
}

/// What has changed since the last publication.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Ports to be written anew.
    pub ports: BTreeSet<PortId>,
    /// Next hops to be written anew.
    pub next_hops: BTreeSet<NextHopId>,
    /// Groups to be written anew.
    pub groups: BTreeSet<u16>,
    /// IPv4 prefixes whose next hop has changed.
    pub prefixes4: Vec<(u32, u8)>,
    /// IPv6 prefixes whose next hop has changed.
    pub prefixes6: Vec<(u128, u8)>,
    /// Whether the host's own addresses have changed.
    pub local: bool,
}

impl Changes {
    /// These and others.
    pub fn add(&mut self, more: &Self) {
        self.ports.extend(&more.ports);
        self.next_hops.extend(&more.next_hops);
        self.groups.extend(&more.groups);
        self.prefixes4.extend(&more.prefixes4);
        self.prefixes6.extend(&more.prefixes6);
        self.local |= more.local;
    }

    /// Whether there is nothing to publish.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
            && self.next_hops.is_empty()
            && self.groups.is_empty()
            && self.prefixes4.is_empty()
            && self.prefixes6.is_empty()
            && !self.local
    }
}

/// The routing information base.
#[derive(Debug)]
pub struct Rib {
    ports: Vec<RibPort>,
    by_index: HashMap<Index, PortId>,
    links: BTreeMap<Index, (Link, u8)>,
    link_sweep: Sweep<Index>,
    addresses: BTreeMap<Index, Vec<(Address, u8)>>,
    address_sweep: Sweep<(Index, IpAddr)>,
    neighbors: BTreeMap<(IpAddr, Index), Neighbor>,
    neighbor_sweep: Sweep<(Index, IpAddr)>,
    objects: BTreeMap<u32, (NextHopObject, u8)>,
    object_sweep: Sweep<u32>,
    paths: Paths,
    recursive: BTreeSet<PathId>,
    grouped: BTreeSet<PathId>,
    hops: NextHops,
    groups: Vec<Option<GroupState>>,
    /// What a group that is made next begins with: the ways of the flows that it takes over.
    before: Option<Box<[NextHopId; super::buckets::BUCKETS]>>,
    v4: Table<u32>,
    v6: Table<u128>,
    /// The host's own addresses: local and anycast.
    local: BTreeSet<IpAddr>,
    /// Broadcast addresses.
    broadcast: BTreeSet<IpAddr>,
    changes: Changes,
    wanted: Parts,
    full: bool,
    /// Ports whose interface has gone.
    lost: Vec<PortId>,
}

/// A family that has its table in the RIB.
pub(crate) trait InRib: Family {
    fn table(rib: &Rib) -> &Table<Self>;
    fn table_mut(rib: &mut Rib) -> &mut Table<Self>;
}

impl InRib for u32 {
    fn table(rib: &Rib) -> &Table<Self> {
        &rib.v4
    }
    fn table_mut(rib: &mut Rib) -> &mut Table<Self> {
        &mut rib.v4
    }
}

impl InRib for u128 {
    fn table(rib: &Rib) -> &Table<Self> {
        &rib.v6
    }
    fn table_mut(rib: &mut Rib) -> &mut Table<Self> {
        &mut rib.v6
    }
}

impl Rib {
    /// Takes in one piece of news. Call [`Rib::settle`] after a batch of them.
    pub fn take(&mut self, report: Report) {
        let listed = report.listed;
        match report.event {
            KernelEvent::LinkChanged(link) => self.link_changed(link, listed),
            KernelEvent::LinkGone(index) => self.link_gone(index, listed),
            KernelEvent::AddressAdded(address) => self.address_added(address, listed),
            KernelEvent::AddressRemoved(address) => self.address_removed(address, listed),
            // Linux lists groups and broadcast addresses among its neighbours.
            KernelEvent::NeighborChanged { address, mac, state, .. } if is_for_many(address, mac, state) => {}
            KernelEvent::NeighborChanged { index, address, mac, state } => {
                if self.neighbor_sweep.admits((index, address), listed) {
                    let mark = self.neighbor_sweep.epoch();
                    let source = NeighborSource::Kernel;
                    self.set_neighbor(index, address, Neighbor { mac, state, source, mark });
                }
            }
            KernelEvent::NeighborGone { index, address } => {
                if self.neighbor_sweep.admits((index, address), listed) {
                    self.forget_neighbor(index, address);
                }
            }
            KernelEvent::RouteChanged(route, placement) => self.route_changed(route, placement, listed),
            KernelEvent::RouteGone(route) => self.route_gone(&route, listed),
            KernelEvent::NextHopChanged(id, object) => self.object_changed(id, object, listed),
            KernelEvent::NextHopGone(id) => self.object_gone(id, listed),
            KernelEvent::DumpBegin(part) => self.listing_begins(part),
            KernelEvent::DumpEnd { part, complete } => self.listing_ends(part, complete),
            KernelEvent::Overrun => {
                self.link_sweep.taint();
                self.address_sweep.taint();
                self.neighbor_sweep.taint();
                self.object_sweep.taint();
                self.v4.sweep.taint();
                self.v6.sweep.taint();
                self.wanted = Parts::ALL;
            }
        }
    }

    fn listing_begins(&mut self, part: Part) {
        match part {
            Part::Links => self.link_sweep.begin(),
            Part::NextHops => self.object_sweep.begin(),
            Part::Addresses => self.address_sweep.begin(),
            Part::Neighbors => self.neighbor_sweep.begin(),
            Part::Routes4 => self.v4.sweep.begin(),
            Part::Routes6 => self.v6.sweep.begin(),
        }
    }

    fn listing_ends(&mut self, part: Part, complete: bool) {
        match part {
            Part::Links => self.sweep_links(complete),
            Part::NextHops => self.sweep_objects(complete),
            Part::Addresses => self.sweep_addresses(complete),
            Part::Neighbors => self.sweep_neighbors(complete),
            Part::Routes4 => self.sweep_routes::<u32>(complete),
            Part::Routes6 => self.sweep_routes::<u128>(complete),
        }
    }

    /// What should be listed again, because the kernel does more than it says.
    pub fn take_wanted(&mut self) -> Parts {
        std::mem::take(&mut self.wanted)
    }

    /// What has changed since the last call; its values are read from the RIB as it is then.
    pub fn take_changes(&mut self) -> Changes {
        self.v4.looked_at = 0;
        self.v6.looked_at = 0;
        let mut changes = std::mem::take(&mut self.changes);
        changes.prefixes4 = std::mem::take(&mut self.v4.changed);
        changes.prefixes6 = std::mem::take(&mut self.v6.changed);
        changes
    }

    /// All that tables hold besides prefixes.
    pub fn everything(&self) -> Changes {
        Changes {
            ports: (0..self.ports.len() as PortId).collect(),
            next_hops: (0..MAX_NEXT_HOPS as NextHopId).collect(),
            groups: (0..self.groups.len() as u16).collect(),
            local: true,
            ..Changes::default()
        }
    }

    /// Whether [`Rib::take_changes`] has given everything that has changed.
    pub fn is_published(&self) -> bool {
        self.changes.is_empty() && self.v4.changed.is_empty() && self.v6.changed.is_empty()
    }

    /// Keeps the list of changes short while they cannot be taken. To be called after
    /// [`Rib::settle`].
    pub fn compact(&mut self) {
        self.v4.compact();
        self.v6.compact();
    }

    /// To be called when no worker holds older tables any more.
    pub fn recycle(&mut self) {
        self.hops.recycle();
    }

    /// The IPv4 routes.
    pub fn v4(&self) -> &Table<u32> {
        &self.v4
    }

    /// The IPv6 routes.
    pub fn v6(&self) -> &Table<u128> {
        &self.v6
    }

    /// A path.
    pub fn path(&self, id: PathId) -> Option<&paths::Path> {
        self.paths.get(id)
    }

    /// The host's own addresses, sorted.
    pub fn local(&self) -> Vec<IpAddr> {
        self.local.iter().copied().collect()
    }

    /// The addresses whose packets are the host's: its own, and broadcast ones.
    pub fn for_host(&self) -> Vec<IpAddr> {
        self.local.union(&self.broadcast).copied().collect()
    }

    /// Whether an address is the host's own.
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.local.contains(&address)
    }

    /// A port, as workers see it.
    pub fn port(&self, port: PortId) -> Option<&PortTable> {
        self.ports.get(usize::from(port)).map(|p| &p.table)
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// The kernel's interface behind a port.
    pub fn index_of(&self, port: PortId) -> Option<Index> {
        self.ports.get(usize::from(port))?.index
    }

    /// The port that an interface stands behind.
    pub fn port_of(&self, index: Index) -> Option<PortId> {
        if index & OWN_INDEX != 0 {
            let port = (index & !OWN_INDEX) as PortId;
            return (usize::from(port) < self.ports.len()).then_some(port);
        }
        self.by_index.get(&index).copied()
    }

    /// The name of an interface.
    pub fn link_name(&self, index: Index) -> Option<&str> {
        match self.port_of(index) {
            Some(port) => Some(&self.ports.get(usize::from(port))?.spec.name),
            None => self.links.get(&index).map(|(link, _)| link.name.as_str()),
        }
    }

    /// The name that the kernel's interface behind a port has now.
    pub fn interface_of(&self, port: PortId) -> Option<&str> {
        self.links.get(&self.index_of(port)?).map(|(link, _)| link.name.as_str())
    }

    /// The interfaces: number, name, whether switched on.
    pub fn links(&self) -> impl Iterator<Item = (Index, &str, bool)> {
        self.links.values().map(|(link, _)| (link.index, link.name.as_str(), link.up))
    }

    /// The buckets of the group at `place`.
    pub fn group(&self, place: u16) -> Option<&[NextHopId; super::buckets::BUCKETS]> {
        Some(&self.groups.get(usize::from(place))?.as_ref()?.buckets)
    }

    /// The ports of all members of the group at `place`.
    pub fn group_ports(&self, place: u16) -> &[PortId] {
        self.groups.get(usize::from(place)).and_then(Option::as_ref).map_or(&[], |group| &group.ports)
    }

    /// The next hops that have a number.
    pub fn next_hops(&self) -> &NextHops {
        &self.hops
    }

    /// The next hop objects of the kernel's.
    pub fn objects(&self) -> impl Iterator<Item = (u32, &NextHopObject)> {
        self.objects.iter().map(|(id, (object, _))| (*id, object))
    }

    /// A next hop object of the kernel's.
    pub fn object(&self, id: u32) -> Option<&NextHopObject> {
        self.objects.get(&id).map(|(object, _)| object)
    }
}

/// Whether an entry among the kernel's neighbours stands for more than one station.
fn is_for_many(address: IpAddr, mac: Option<[u8; 6]>, state: NeighborState) -> bool {
    let to_all = state == NeighborState::NoArp && mac == Some([0xff; 6]);
    address.is_multicast() || to_all
}
