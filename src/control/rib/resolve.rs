//! From where a route leads to a next hop's number: interfaces that are ports, gateways that
//! other routes lead to, groups.

use std::{collections::BTreeSet, net::IpAddr};

use super::{
    GroupState, InRib, Rib,
    paths::{Path, PathId, PathKey},
    table::Source,
};
use crate::control::{
    buckets::{self, BUCKETS},
    kernel::{Hop, Index, NextHopObject},
    next_hops::Adjacency,
};
use crate::tables::{Action, NextHop, NextHopId, NextHopInfo, PortId, fixed};

/// Rounds in which recursive routes may change each other; what still changes then is a loop.
const ROUNDS: usize = 8;

/// Where one hop leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Fixed(NextHopId),
    At(Adjacency),
}

impl Rib {
    /// The path of `key`, with one user more.
    pub(super) fn acquire_path(&mut self, key: PathKey) -> PathId {
        self.acquire_path_after(key, None)
    }

    /// The path of `key`, with one user more. When it is a new one for what led over `before` until
    /// now, flows keep their ways as far as those are among the new ones.
    pub(super) fn acquire_path_after(&mut self, key: PathKey, before: Option<PathId>) -> PathId {
        let (id, new) = self.paths.acquire(key);
        if new {
            if self.paths.get(id).is_some_and(|path| path.key.is_recursive()) {
                self.recursive.insert(id);
            }
            self.before = before.and_then(|id| self.buckets_of(id));
            self.resolve(id);
            self.before = None;
        }
        id
    }

    /// Which way the flows over a path go.
    fn buckets_of(&self, id: PathId) -> Option<Box<[NextHopId; BUCKETS]>> {
        let path = self.paths.get(id)?;
        match path.group {
            Some(place) => Some(self.groups.get(usize::from(place))?.as_ref()?.buckets.clone()),
            None => Some(Box::new([path.resolved?; BUCKETS])),
        }
    }

    /// One user of a path less.
    pub(super) fn release_path(&mut self, id: PathId) {
        let Some(path) = self.paths.release(id) else { return };
        self.recursive.remove(&id);
        self.grouped.remove(&id);
        self.v4.forget_path(id);
        self.v6.forget_path(id);
        self.release_hops(path);
    }

    fn release_hops(&mut self, path: Path) {
        for (member, _) in path.members {
            self.hops.release(member);
        }
        if let (Some(place), Some(id)) = (path.group, path.resolved) {
            self.hops.release(id);
            self.hops.return_group(place);
            self.groups[usize::from(place)] = None;
        }
    }

    /// Resolves these paths anew, and everything that leads over those that changed.
    pub(super) fn resolve_all(&mut self, paths: Vec<PathId>) {
        let changed: BTreeSet<PathId> = paths.into_iter().filter(|id| self.resolve(*id)).collect();
        if !changed.is_empty() {
            self.refresh_over::<u32>(&changed);
            self.refresh_over::<u128>(&changed);
        }
    }

    /// Ends a batch: routes through other routes, and neighbours on the link, follow what changed.
    pub fn settle(&mut self) {
        for round in 0..=ROUNDS {
            self.look_at_neighbors_of_changes::<u32>();
            self.look_at_neighbors_of_changes::<u128>();
            let recursive: Vec<PathId> = self.recursive.iter().copied().collect();
            let changed: BTreeSet<PathId> = recursive.into_iter().filter(|id| self.resolve(*id)).collect();
            if changed.is_empty() {
                break;
            }
            if round == ROUNDS {
                // They keep changing each other: none of them leads anywhere.
                for id in &changed {
                    self.set_members(*id, Vec::new());
                }
            }
            self.refresh_over::<u32>(&changed);
            self.refresh_over::<u128>(&changed);
        }
        self.look_at_neighbors_of_changes::<u32>();
        self.look_at_neighbors_of_changes::<u128>();
    }

    /// Works out where a path leads now. Gives whether its next hop is another one.
    fn resolve(&mut self, id: PathId) -> bool {
        let Some(path) = self.paths.get(id) else { return false };
        let key = path.key.clone();
        let mut targets = Vec::new();
        match &*key {
            PathKey::Fixed(id) => targets.push((Target::Fixed(*id), 1)),
            PathKey::Hops(hops) => {
                for hop in hops {
                    self.follow(hop, u32::from(hop.weight), &mut vec![id], &mut targets);
                }
            }
            PathKey::Object(object) => match self.objects.get(object) {
                Some((NextHopObject::Blackhole, _)) => targets.push((Target::Fixed(fixed::BLACKHOLE), 1)),
                _ => {
                    for hop in self.object_hops(*object) {
                        self.follow(&hop, u32::from(hop.weight), &mut vec![id], &mut targets);
                    }
                }
            },
        }
        self.set_members(id, targets)
    }

    /// Adds where `hop` leads to `out`. `stack` holds the paths that led here, so that none is
    /// followed twice.
    fn follow(&self, hop: &Hop, weight: u32, stack: &mut Vec<PathId>, out: &mut Vec<(Target, u32)>) {
        match (hop.index, hop.gateway) {
            _ if hop.dead => {}
            (Some(index), gateway) => {
                out.extend(self.target(index, gateway, hop.kernel_only).map(|t| (t, weight)))
            }
            (None, Some(gateway)) => self.follow_gateway(gateway, weight, stack, out),
            (None, None) => {}
        }
    }

    /// Where an interface and a gateway lead; `None` while the interface is down or unknown.
    fn target(&self, index: Index, gateway: Option<IpAddr>, kernel_only: bool) -> Option<Target> {
        let host = Target::Fixed(fixed::HOST);
        match self.port_of(index) {
            Some(port) if !self.is_live(port) => None,
            Some(_) if kernel_only => Some(host),
            Some(port) => Some(Target::At(match gateway {
                Some(gateway) => Adjacency::Neighbor(port, gateway),
                None => Adjacency::Network(port),
            })),
            None => self.is_up(index).then_some(host),
        }
    }

    /// The port by which a hop's packets leave now, if it is one.
    pub fn port_of_hop(&self, hop: &Hop) -> Option<PortId> {
        let mut targets = Vec::new();
        self.follow(hop, 1, &mut Vec::new(), &mut targets);
        targets.iter().find_map(|(target, _)| match target {
            Target::At(adjacency) => adjacency.port(),
            Target::Fixed(_) => None,
        })
    }

    /// Why a hop leads nowhere, for people.
    pub(super) fn why_dead(&self, hop: &Hop) -> String {
        match (hop.index, hop.gateway) {
            (Some(index), _) => match self.port_of(index).and_then(|port| self.port(port)) {
                Some(port) => format!("port {} is down", port.name),
                None => "its interface is down or gone".into(),
            },
            (None, Some(gateway)) => match self.path_to(gateway).and_then(|id| self.paths.get(id)) {
                None => {
                    format!("its gateway {gateway} is on no network of any port, and no route leads to it")
                }
                Some(path) if matches!(*path.key, PathKey::Fixed(_)) => {
                    format!("its gateway {gateway} is this router itself, or never forwarded to")
                }
                Some(_) => format!("the route to its gateway {gateway} leads nowhere, or back to it"),
            },
            (None, None) => "it has no way out".into(),
        }
    }

    /// Where the route to `gateway` leads.
    fn follow_gateway(
        &self,
        gateway: IpAddr,
        weight: u32,
        stack: &mut Vec<PathId>,
        out: &mut Vec<(Target, u32)>,
    ) {
        let Some(id) = self.path_to(gateway) else { return };
        if stack.contains(&id) {
            return;
        }
        let Some(path) = self.paths.get(id) else { return };
        let object_hops;
        let hops = match &*path.key {
            // A gateway that is the host itself, or that is never reached, leads nowhere.
            PathKey::Fixed(_) => return,
            PathKey::Hops(hops) => hops,
            PathKey::Object(object) => {
                object_hops = self.object_hops(*object);
                &object_hops
            }
        };
        stack.push(id);
        for hop in hops {
            let weight = weight.saturating_mul(u32::from(hop.weight));
            match (hop.index, hop.gateway) {
                _ if hop.dead => {}
                (Some(index), None) => {
                    let target = self.target(index, Some(gateway), hop.kernel_only);
                    out.extend(target.map(|t| (t, weight)));
                }
                _ => self.follow(hop, weight, stack, out),
            }
        }
        stack.pop();
    }

    /// The path of the best route to `address`.
    fn path_to(&self, address: IpAddr) -> Option<PathId> {
        match address {
            IpAddr::V4(a) => self.path_to_number(u32::from(a)),
            IpAddr::V6(a) => self.path_to_number(u128::from(a)),
        }
    }

    fn path_to_number<A: InRib>(&self, address: A) -> Option<PathId> {
        let table = A::table(self);
        let (length, _) = table.installed.longest_match(address)?;
        self.best(table.of((address.network(length), length))).map(|candidate| candidate.path)
    }

    /// The best usable one of some candidates.
    pub fn best<'a>(&self, candidates: &'a [super::Candidate]) -> Option<&'a super::Candidate> {
        candidates.iter().find(|candidate| self.paths.resolved(candidate.path).is_some())
    }

    /// The hops of a next hop object of the kernel's, groups taken apart.
    pub fn object_hops(&self, id: u32) -> Vec<Hop> {
        match self.objects.get(&id).map(|(object, _)| object) {
            Some(NextHopObject::Single(hop)) => vec![hop.clone()],
            Some(NextHopObject::Group(members)) => members
                .iter()
                .filter_map(|(member, weight)| match self.objects.get(member) {
                    Some((NextHopObject::Single(hop), _)) => Some(Hop { weight: *weight, ..hop.clone() }),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Gives a path its next hops. Gives whether the one that it comes to is another.
    fn set_members(&mut self, id: PathId, targets: Vec<(Target, u32)>) -> bool {
        let mut members: Vec<(NextHopId, u32)> = Vec::with_capacity(targets.len());
        for (target, weight) in targets {
            let Some(member) = self.acquire(target) else { continue };
            match members.iter_mut().find(|(known, _)| *known == member) {
                Some((_, sum)) => {
                    *sum = sum.saturating_add(weight);
                    self.hops.release(member);
                }
                None => members.push((member, weight)),
            }
        }
        let Some(path) = self.paths.get_mut(id) else { return false };
        let unchanged = path.members == members;
        let old_members = std::mem::replace(&mut path.members, members);
        let (old, old_group, several) = (path.resolved, path.group, path.members.len() > 1);
        let single = path.members.first().map(|(member, _)| *member);
        for (member, _) in old_members {
            self.hops.release(member);
        }
        if unchanged {
            return false;
        }
        let (resolved, group) = match (several, old_group) {
            (true, Some(place)) => (old, Some(place)),
            (true, None) => match self.new_group() {
                Some((id, place)) => (Some(id), Some(place)),
                // Without a place for a group, its first member has to do.
                None => (single, None),
            },
            (false, Some(place)) => {
                if let Some(id) = old {
                    self.hops.release(id);
                }
                self.hops.return_group(place);
                self.groups[usize::from(place)] = None;
                (single, None)
            }
            (false, None) => (single, None),
        };
        if let Some(path) = self.paths.get_mut(id) {
            (path.resolved, path.group) = (resolved, group);
        }
        if group.is_some() {
            self.grouped.insert(id);
            self.fill_group(id);
        } else {
            self.grouped.remove(&id);
        }
        resolved != old
    }

    fn acquire(&mut self, target: Target) -> Option<NextHopId> {
        let adjacency = match target {
            Target::Fixed(id) => return Some(id),
            Target::At(adjacency) => adjacency,
        };
        let Some((id, new)) = self.hops.acquire(adjacency) else {
            self.report_full();
            return None;
        };
        if new {
            self.changes.next_hops.insert(id);
        }
        Some(id)
    }

    fn report_full(&mut self) {
        if !std::mem::replace(&mut self.full, true) {
            log::error!("all next hops are taken: routes to further gateways are left out");
        }
    }

    fn new_group(&mut self) -> Option<(NextHopId, u16)> {
        let place = self.hops.take_group()?;
        let Some((id, _)) = self.hops.acquire(Adjacency::Group(place)) else {
            self.hops.return_group(place);
            self.report_full();
            return None;
        };
        let index = usize::from(place);
        if self.groups.len() <= index {
            self.groups.resize(index + 1, None);
        }
        let before = self.before.take();
        let filled = before.is_some();
        let buckets = before.unwrap_or_else(|| Box::new([0; BUCKETS]));
        self.groups[index] = Some(GroupState { buckets, filled, ports: Vec::new() });
        self.changes.next_hops.insert(id);
        self.changes.groups.insert(place);
        Some((id, place))
    }

    /// Shares a group's buckets out among the members that can be sent to; among all of them, when
    /// none can (packets are then held for the one that the hash picks).
    pub(super) fn fill_group(&mut self, id: PathId) {
        let Some(path) = self.paths.get(id) else { return };
        let Some(place) = path.group else { return };
        let ready: Vec<_> = path.members.iter().copied().filter(|(id, _)| self.is_ready(*id)).collect();
        let mut ports: Vec<_> =
            path.members.iter().filter_map(|(id, _)| self.hops.adjacency(*id)?.port()).collect();
        ports.sort_unstable();
        ports.dedup();
        let members = if ready.is_empty() { path.members.clone() } else { ready };
        let Some(Some(state)) = self.groups.get_mut(usize::from(place)) else { return };
        let before = *state.buckets;
        buckets::distribute(&mut state.buckets, &members, state.filled);
        if !state.filled || before != *state.buckets || state.ports != ports {
            (state.filled, state.ports) = (true, ports);
            self.changes.groups.insert(place);
        }
    }

    /// Whether packets can be sent to a next hop at once.
    fn is_ready(&self, id: NextHopId) -> bool {
        match self.hops.adjacency(id) {
            Some(Adjacency::Neighbor(port, address)) => self.mac_of(port, address).is_some(),
            _ => true,
        }
    }

    /// What workers see of a next hop.
    pub fn next_hop(&self, id: NextHopId) -> (NextHop, NextHopInfo) {
        let mut hop = NextHop::default();
        let mut info = NextHopInfo::default();
        if let Some(action) = fixed::ACTIONS.get(usize::from(id)) {
            info.action = *action;
            return (hop, info);
        }
        match self.hops.adjacency(id) {
            None => {}
            Some(Adjacency::Group(place)) => (info.action, info.group) = (Action::Group, place),
            Some(Adjacency::Network(port)) => {
                info.action = Action::Glean;
                self.fill_in_port(&mut hop, port);
            }
            Some(Adjacency::Neighbor(port, address)) => {
                info.gateway = Some(address);
                info.action = Action::Resolve;
                self.fill_in_port(&mut hop, port);
                if let (Some(mac), Some(table)) = (self.mac_of(port, address), self.port(port)) {
                    info.action = Action::Forward;
                    hop.macs[..6].copy_from_slice(&mac);
                    hop.max_len = table.mtu;
                }
            }
        }
        (hop, info)
    }

    fn fill_in_port(&self, hop: &mut NextHop, port: PortId) {
        hop.port = port;
        if let Some(table) = self.port(port) {
            hop.macs[6..].copy_from_slice(&table.mac);
        }
    }

    /// Chooses the best candidate of a prefix anew.
    pub(super) fn refresh<A: InRib>(&mut self, key: (A, u8)) {
        let table = A::table(self);
        let best = self.best(table.of(key)).copied();
        let id = best.and_then(|candidate| self.paths.resolved(candidate.path));
        let table = A::table_mut(self);
        let old = table.installed.get(key.0, key.1);
        if key.1 == A::BITS {
            let source = best.map(|candidate| candidate.source);
            self.note_local(key.0.ip(), source == Some(Source::Local), id);
        }
        if old == id {
            return;
        }
        let table = A::table_mut(self);
        match id {
            Some(id) => table.installed.insert(key.0, key.1, id),
            None => table.installed.remove(key.0, key.1),
        };
        table.changed.push(key);
    }

    /// Keeps the lists of the host's own addresses.
    fn note_local(&mut self, address: IpAddr, local: bool, id: Option<NextHopId>) {
        let own = local && id == Some(fixed::HOST);
        let broadcast = local && id == Some(fixed::BROADCAST);
        for (set, wanted) in [(&mut self.local, own), (&mut self.broadcast, broadcast)] {
            let changed = if wanted { set.insert(address) } else { set.remove(&address) };
            self.changes.local |= changed;
        }
    }

    /// Chooses anew for every prefix that has a candidate with one of these paths.
    fn refresh_over<A: InRib>(&mut self, paths: &BTreeSet<PathId>) {
        for key in A::table(self).over(paths) {
            self.refresh(key);
        }
    }
}
