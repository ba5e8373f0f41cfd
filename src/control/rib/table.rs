//! The candidates of each prefix, of one address family, and what came of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{paths::PathId, sweep::Sweep};
use crate::tables::prefixes::{Address, Prefixes};

/// A list of prefixes over a path grows without a look at what has left it up to this length.
const FEW: usize = 64;

/// Whose word a candidate is; the earlier, the better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Source {
    /// A prefix with a meaning of its own.
    Special,
    /// An address of the host's own.
    Local,
    /// The configuration's.
    Static,
    /// The network of an address that the configuration gives.
    Connected,
    /// The kernel's.
    Kernel,
    /// A neighbour on the link.
    Neighbor,
}

/// One way to a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Whose word it is.
    pub source: Source,
    /// The kernel's number for who made it.
    pub protocol: u8,
    /// When a listing named it last; 0 if it is not the kernel's.
    pub mark: u8,
    /// The lower, the better, among those of one source.
    pub metric: u32,
    /// Where it leads.
    pub path: PathId,
}

impl Candidate {
    /// What decides between candidates.
    pub fn rank(&self) -> (Source, u32) {
        (self.source, self.metric)
    }
}

/// The candidates of one prefix, best first. Nearly every prefix has one.
#[derive(Clone, Debug)]
pub enum Candidates {
    /// One.
    One(Candidate),
    /// Any number.
    Many(Vec<Candidate>),
}

impl Candidates {
    /// All of them.
    pub fn as_slice(&self) -> &[Candidate] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    /// Lets `change` work on them as a list. Gives whether any is left.
    pub fn edit<R>(&mut self, change: impl FnOnce(&mut Vec<Candidate>) -> R) -> R {
        let mut list = match self {
            Self::One(one) => vec![*one],
            Self::Many(many) => std::mem::take(many),
        };
        let result = change(&mut list);
        *self = match list.as_slice() {
            [one] => Self::One(*one),
            _ => Self::Many(list),
        };
        result
    }

    fn leads_over(&self, path: PathId) -> bool {
        self.as_slice().iter().any(|candidate| candidate.path == path)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }
}

/// An address family's addresses, as numbers and as people know them.
pub trait Family: Address + std::hash::Hash {
    /// The address for people.
    fn ip(self) -> IpAddr;
    /// The prefix for people; `length` at most [`Address::BITS`].
    fn net(self, length: u8) -> IpNet;
}

impl Family for u32 {
    fn ip(self) -> IpAddr {
        Ipv4Addr::from(self).into()
    }
    fn net(self, length: u8) -> IpNet {
        let address = Ipv4Addr::from(self);
        Ipv4Net::new(address, length).unwrap_or(Ipv4Net::from(address)).into()
    }
}

impl Family for u128 {
    fn ip(self) -> IpAddr {
        Ipv6Addr::from(self).into()
    }
    fn net(self, length: u8) -> IpNet {
        let address = Ipv6Addr::from(self);
        Ipv6Net::new(address, length).unwrap_or(Ipv6Net::from(address)).into()
    }
}

/// All prefixes of one family.
#[derive(Debug)]
pub struct Table<A: Family> {
    /// Every candidate.
    pub candidates: BTreeMap<(A, u8), Candidates>,
    /// The best usable one of each prefix: what the FIB is made of.
    pub installed: Prefixes<A>,
    /// Prefixes whose best one has changed since the last publication; some may stand here twice.
    pub changed: Vec<(A, u8)>,
    /// How many of `changed` have been looked at for neighbours on the link.
    pub looked_at: usize,
    /// The kernel's listings.
    pub sweep: Sweep<(A, u8)>,
    /// For each path, by its number: every prefix with a candidate that leads there, so that a
    /// change of the path looks at no others. Some may have none any more, or stand here twice.
    over: Vec<Vec<(A, u8)>>,
}

impl<A: Family> Default for Table<A> {
    fn default() -> Self {
        Self {
            candidates: BTreeMap::new(),
            installed: Prefixes::new(),
            changed: Vec::new(),
            looked_at: 0,
            sweep: Sweep::default(),
            over: Vec::new(),
        }
    }
}

impl<A: Family> Table<A> {
    /// Lets `change` work on the candidates of `key`, which then go if none is left.
    pub fn edit<R>(&mut self, key: (A, u8), change: impl FnOnce(&mut Vec<Candidate>) -> R) -> R {
        let entry = self.candidates.entry(key).or_insert_with(|| Candidates::Many(Vec::new()));
        let before = entry.clone();
        let result = entry.edit(change);
        let after = entry.clone();
        if after.is_empty() {
            self.candidates.remove(&key);
        }
        for path in after.as_slice().iter().map(|candidate| candidate.path) {
            if before.as_slice().iter().all(|candidate| candidate.path != path) {
                self.note_over(path, key);
            }
        }
        result
    }

    /// Leaves of the list of changes one entry for each prefix, once it is longer than the table.
    pub fn compact(&mut self) {
        if self.changed.len() > 2 * self.candidates.len() + 1024 && self.looked_at == self.changed.len() {
            self.changed.sort_unstable();
            self.changed.dedup();
            self.looked_at = self.changed.len();
        }
    }

    /// Notes that `key` has a candidate with this path.
    fn note_over(&mut self, path: PathId, key: (A, u8)) {
        let place = path as usize;
        if self.over.len() <= place {
            self.over.resize_with(place + 1, Vec::new);
        }
        let list = &mut self.over[place];
        if list.len() == list.capacity() && list.len() >= FEW {
            // Before it grows: what has left it goes. It takes in half as many as stay until this
            // is done again, so that a change costs the same however long the list is.
            list.sort_unstable();
            list.dedup();
            list.retain(|key| self.candidates.get(key).is_some_and(|list| list.leads_over(path)));
            list.reserve(list.len() / 2 + FEW);
        }
        list.push(key);
    }

    /// The prefixes with a candidate that has one of these paths, in order.
    pub fn over(&self, paths: &BTreeSet<PathId>) -> Vec<(A, u8)> {
        let mut keys = Vec::new();
        for path in paths {
            let all = self.over.get(*path as usize).map_or(&[][..], Vec::as_slice);
            let leads = |key: &&(A, u8)| self.candidates.get(key).is_some_and(|list| list.leads_over(*path));
            keys.extend(all.iter().filter(leads));
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Nothing leads over a path any more, and its number may become another's.
    pub fn forget_path(&mut self, path: PathId) {
        if let Some(list) = self.over.get_mut(path as usize) {
            *list = Vec::new();
        }
    }

    /// The candidates of `key`, best first.
    pub fn of(&self, key: (A, u8)) -> &[Candidate] {
        self.candidates.get(&key).map_or(&[], Candidates::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(path: PathId) -> Candidate {
        Candidate { source: Source::Kernel, protocol: 0, mark: 1, metric: 0, path }
    }

    #[test]
    fn prefixes_that_move_from_path_to_path_stand_where_they_are_and_take_no_more_room() {
        let mut table = Table::<u32>::default();
        let keys: Vec<_> = (0..1000).map(|n| (n << 8, 24)).collect();
        for round in 0..200 {
            for (n, &key) in keys.iter().enumerate() {
                let path = (n as u32 + round) % 3;
                table.edit(key, |list| *list = vec![candidate(path)]);
            }
        }
        for path in 0..3 {
            let over = table.over(&[path].into());
            assert!(over.iter().all(|key| table.of(*key) == [candidate(path)]));
            assert!((333..=334).contains(&over.len()) && table.over[path as usize].capacity() < 2000);
        }
        assert_eq!(table.over(&[0, 1, 2, 7].into()), keys);
        table.edit(keys[0], |list| list.clear());
        assert_eq!(table.over(&[0, 1, 2].into()), keys[1..]);
        table.forget_path(1);
        assert_eq!(table.over(&[1].into()), []);
    }
}
