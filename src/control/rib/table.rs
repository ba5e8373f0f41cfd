//! The candidates of each prefix, of one address family, and what came of them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{paths::PathId, sweep::Sweep};
use crate::tables::prefixes::{Address, Prefixes};

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
}

impl<A: Family> Default for Table<A> {
    fn default() -> Self {
        Self {
            candidates: BTreeMap::new(),
            installed: Prefixes::new(),
            changed: Vec::new(),
            looked_at: 0,
            sweep: Sweep::default(),
        }
    }
}

impl<A: Family> Table<A> {
    /// Lets `change` work on the candidates of `key`, which then go if none is left.
    pub fn edit<R>(&mut self, key: (A, u8), change: impl FnOnce(&mut Vec<Candidate>) -> R) -> R {
        let entry = self.candidates.entry(key).or_insert_with(|| Candidates::Many(Vec::new()));
        let result = entry.edit(change);
        if entry.is_empty() {
            self.candidates.remove(&key);
        }
        result
    }

    /// The candidates of `key`, best first.
    pub fn of(&self, key: (A, u8)) -> &[Candidate] {
        self.candidates.get(&key).map_or(&[], Candidates::as_slice)
    }
}
