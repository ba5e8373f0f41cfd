//! The kernel's routes and next hop objects.
//!
//! The two families differ. Several IPv4 routes may share prefix and metric; the kernel uses the
//! first, and names each whole when it changes. IPv6 routes of the same prefix and metric that
//! have gateways are one route with several next hops: the kernel names all of them when one is
//! added, and the one alone when it is removed.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::{
    Candidate, InRib, Rib,
    paths::{PathId, PathKey},
    special,
    statics::fixed_path,
    table::{Candidates, Source},
};
use crate::control::kernel::{Hop, Index, NextHopObject, Part, Parts, Placement, Route, RouteKind, Way};

/// Which family a route belongs to, by the number of bits.
const IPV6_BITS: u8 = 128;

/// Whose word a route of the kernel's counts as.
pub(in crate::control) fn source_of(route: &Route) -> Source {
    let own = matches!(route.kind, RouteKind::Local | RouteKind::Anycast | RouteKind::Broadcast);
    if route.local_table || own { Source::Local } else { Source::Kernel }
}

fn has_gateway(key: &PathKey) -> bool {
    matches!(key, PathKey::Hops(hops) if hops.iter().any(|hop| hop.gateway.is_some()))
}

fn same_way(a: &Hop, b: &Hop) -> bool {
    a.gateway == b.gateway && a.index == b.index
}

/// Whether two paths have the same next hops, whatever their weights and states.
fn is_same(a: &PathKey, b: &PathKey) -> bool {
    is_part(a, b) && is_part(b, a)
}

/// Whether every hop of `part` is one of `whole`'s.
fn is_part(part: &PathKey, whole: &PathKey) -> bool {
    match (part, whole) {
        (PathKey::Hops(part), PathKey::Hops(whole)) => {
            part.iter().all(|p| whole.iter().any(|w| same_way(p, w)))
        }
        _ => part == whole,
    }
}

/// Where a route of the kernel's leads.
pub(in crate::control) fn key_of(route: &Route, is_up: impl Fn(Index) -> bool) -> PathKey {
    match (fixed_path(route.kind), &route.way) {
        (Some(key), _) => key,
        (None, Way::Object(id)) => PathKey::Object(*id),
        (None, Way::Hops(hops)) => PathKey::through(
            // While an interface is down all its hops are dead; they live when it is up again.
            hops.iter()
                .map(|hop| Hop { dead: hop.dead && hop.index.is_some_and(&is_up), ..hop.clone() })
                .collect(),
        ),
    }
}

impl Rib {
    fn key_of(&self, route: &Route) -> PathKey {
        key_of(route, |index| self.is_up(index))
    }

    pub(super) fn route_changed(&mut self, route: Route, placement: Placement, listed: bool) {
        match route.to {
            IpNet::V4(n) => {
                self.set_route((u32::from(n.network()), n.prefix_len()), &route, placement, listed)
            }
            IpNet::V6(n) => {
                self.set_route((u128::from(n.network()), n.prefix_len()), &route, placement, listed)
            }
        }
    }

    pub(super) fn route_gone(&mut self, route: &Route, listed: bool) {
        match route.to {
            IpNet::V4(n) => self.unset_route((u32::from(n.network()), n.prefix_len()), route, listed),
            IpNet::V6(n) => self.unset_route((u128::from(n.network()), n.prefix_len()), route, listed),
        }
    }

    fn set_route<A: InRib>(&mut self, at: (A, u8), route: &Route, placement: Placement, listed: bool) {
        let sweep = &mut A::table_mut(self).sweep;
        if !sweep.admits(at, listed) || !special::allows(route.to, route.kind) {
            return;
        }
        let mark = sweep.epoch();
        let key = self.key_of(route);
        if self.is_known(at, route, &key, mark) {
            return;
        }
        let before = self.best(A::table(self).of(at)).map(|candidate| candidate.path);
        let path = self.acquire_path_after(key.clone(), before);
        let new = Candidate {
            source: source_of(route),
            protocol: route.protocol,
            mark,
            metric: route.metric,
            path,
        };
        let placement = if listed { Placement::After } else { placement };
        let replaced = self.replaced_by(A::table(self).of(at), &new, &key, placement, A::BITS);
        // IPv6 puts a route behind its equals, whatever was asked.
        let in_front = placement == Placement::Before && A::BITS != IPV6_BITS;
        // What the configuration says besides stays.
        let is = |c: &Candidate, path: PathId| c.mark != 0 && c.rank() == new.rank() && c.path == path;
        let known = A::table_mut(self).edit(at, |list| {
            let known =
                list.iter_mut().find(|c| is(c, path)).map(|c| (c.mark, c.protocol) = (mark, new.protocol));
            if known.is_none() {
                let equal =
                    |c: &Candidate| if in_front { c.rank() < new.rank() } else { c.rank() <= new.rank() };
                let first = replaced.first().and_then(|old| list.iter().position(|c| is(c, *old)));
                list.insert(first.unwrap_or_else(|| list.partition_point(equal)), new);
            }
            list.retain(|c| !replaced.iter().any(|old| is(c, *old)));
            known.is_some()
        });
        for old in replaced.into_iter().chain(known.then_some(path)) {
            self.release_path(old);
        }
        self.refresh(at);
    }

    /// Whether this very route is all that there is to the prefix; it then bears `mark` as well.
    /// Most of a listing is known.
    fn is_known<A: InRib>(&mut self, at: (A, u8), route: &Route, key: &PathKey, mark: u8) -> bool {
        let Some(path) = self.paths.id_of(key) else { return false };
        let Some(Candidates::One(only)) = A::table_mut(self).candidates.get_mut(&at) else { return false };
        let known = Candidate {
            source: source_of(route),
            protocol: route.protocol,
            mark: only.mark,
            metric: route.metric,
            path,
        };
        let is_known = only.mark != 0 && *only == known;
        if is_known {
            only.mark = mark;
        }
        is_known
    }

    /// The paths of the candidates, equal to `new` in rank, that it takes the place of.
    fn replaced_by(
        &self,
        list: &[Candidate],
        new: &Candidate,
        key: &PathKey,
        placement: Placement,
        bits: u8,
    ) -> Vec<PathId> {
        let equal = list.iter().filter(|c| c.mark != 0 && c.rank() == new.rank());
        // One that is there already is told again when the next hop object that it names changes.
        if placement == Placement::Replace && equal.clone().any(|c| c.path == new.path) {
            return Vec::new();
        }
        let key_of = |c: &Candidate| self.paths.get(c.path).map(|path| &*path.key);
        let mut paths: Vec<PathId> = match (placement, bits) {
            (Placement::Replace, IPV6_BITS) => {
                let gateways = has_gateway(key);
                let alike: Vec<_> = equal
                    .clone()
                    .filter(|c| key_of(c).is_some_and(|k| has_gateway(k) == gateways))
                    .map(|c| c.path)
                    .collect();
                match (gateways, alike.first()) {
                    (true, Some(_)) => alike,
                    (false, Some(first)) => vec![*first],
                    (_, None) => equal.take(1).map(|c| c.path).collect(),
                }
            }
            (Placement::Replace, _) => equal.take(1).map(|c| c.path).collect(),
            // More next hops for the same route.
            (_, IPV6_BITS) if has_gateway(key) => equal
                .filter(|c| key_of(c).is_some_and(|k| has_gateway(k) && is_part(k, key)))
                .map(|c| c.path)
                .collect(),
            // The same route, in another state.
            (_, _) => equal.filter(|c| key_of(c).is_some_and(|k| is_same(k, key))).map(|c| c.path).collect(),
        };
        paths.retain(|path| *path != new.path);
        paths
    }

    fn unset_route<A: InRib>(&mut self, at: (A, u8), route: &Route, listed: bool) {
        if !A::table_mut(self).sweep.admits(at, listed) {
            return;
        }
        let key = self.key_of(route);
        let rank = (source_of(route), route.metric);
        let equal: Vec<Candidate> =
            A::table(self).of(at).iter().filter(|c| c.mark != 0 && c.rank() == rank).copied().collect();
        let Some(any) = equal.first() else { return };
        let exact = self.paths.id_of(&key).filter(|path| equal.iter().any(|c| c.path == *path));
        let whole = exact.or_else(|| {
            let holds = |c: &&Candidate| {
                self.paths.get(c.path).is_some_and(|path| {
                    if A::BITS == IPV6_BITS { is_part(&key, &path.key) } else { is_same(&key, &path.key) }
                })
            };
            equal.iter().find(holds).map(|c| c.path)
        });
        let Some(whole) = whole else {
            // Not what was thought to be there: look at all of it.
            self.wanted =
                self.wanted.with(if A::BITS == IPV6_BITS { Part::Routes6 } else { Part::Routes4 }.into());
            return;
        };
        let rest = match (&key, self.paths.get(whole).map(|path| &*path.key)) {
            (PathKey::Hops(gone), Some(PathKey::Hops(all))) if exact.is_none() => {
                let rest = all.iter().filter(|hop| !gone.iter().any(|g| same_way(g, hop))).cloned();
                Some(rest.collect::<Vec<_>>()).filter(|rest| !rest.is_empty())
            }
            _ => None,
        };
        let rest = rest.map(|hops| self.acquire_path_after(PathKey::through(hops), Some(whole)));
        let mark = any.mark;
        A::table_mut(self).edit(at, |list| {
            let is = |c: &Candidate| c.mark != 0 && c.rank() == rank && c.path == whole;
            let Some(place) = list.iter().position(is) else { return };
            match rest {
                Some(path) => list[place] = Candidate { path, mark, ..list[place] },
                None => {
                    list.remove(place);
                }
            }
        });
        self.release_path(whole);
        self.refresh(at);
    }

    /// Takes out every candidate of these prefixes that `unwanted` holds for.
    pub(super) fn remove_from<A: InRib>(
        &mut self,
        keys: Vec<(A, u8)>,
        unwanted: impl Fn(&(A, u8), &Candidate) -> bool,
    ) {
        for key in keys {
            let mut paths = Vec::new();
            A::table_mut(self).edit(key, |list| {
                list.retain(|candidate| {
                    let keep = !unwanted(&key, candidate);
                    if !keep {
                        paths.push(candidate.path);
                    }
                    keep
                });
            });
            for path in paths {
                self.release_path(path);
            }
            self.refresh(key);
        }
    }

    pub(super) fn sweep_routes<A: InRib>(&mut self, complete: bool) {
        let Some(stale) = A::table_mut(self).sweep.end(complete) else { return };
        let found = |key: &(A, u8), list: &[Candidate]| list.iter().any(|c| stale(c.mark, key));
        let candidates = A::table(self).candidates.iter();
        let keys = candidates.filter(|(key, list)| found(key, list.as_slice())).map(|(key, _)| *key);
        self.remove_from(keys.collect(), |key, candidate| stale(candidate.mark, key));
    }

    pub(super) fn object_changed(&mut self, id: u32, object: NextHopObject, listed: bool) {
        if !self.object_sweep.admits(id, listed) {
            return;
        }
        let mark = self.object_sweep.epoch();
        let old = self.objects.insert(id, (object.clone(), mark));
        if old.is_none_or(|(old, _)| old != object) {
            self.resolve_over_object(id);
        }
    }

    pub(super) fn object_gone(&mut self, id: u32, listed: bool) {
        if !self.object_sweep.admits(id, listed) || self.objects.remove(&id).is_none() {
            return;
        }
        self.resolve_over_object(id);
        // The kernel drops the routes through it as well, without a word.
        self.wanted = self.wanted.with(Parts::ROUTES);
    }

    pub(super) fn sweep_objects(&mut self, complete: bool) {
        let Some(stale) = self.object_sweep.end(complete) else { return };
        let gone: Vec<u32> =
            self.objects.iter().filter(|(id, (_, mark))| stale(*mark, id)).map(|(id, _)| *id).collect();
        for id in gone {
            self.objects.remove(&id);
            self.resolve_over_object(id);
        }
    }

    /// Resolves anew what leads over an object, directly or by a group that it is in.
    fn resolve_over_object(&mut self, id: u32) {
        let over = |key: u32| {
            key == id
                || matches!(self.objects.get(&key), Some((NextHopObject::Group(members), _))
                    if members.iter().any(|(member, _)| *member == id))
        };
        let paths = self.paths.select(|path| matches!(&*path.key, PathKey::Object(key) if over(*key)));
        self.resolve_all(paths);
    }

    /// The objects that lead over an interface, groups included.
    pub(super) fn objects_on(&self, index: Index) -> BTreeSet<u32> {
        self.objects
            .keys()
            .filter(|id| self.object_hops(**id).iter().any(|hop| hop.index == Some(index)))
            .copied()
            .collect()
    }
}
