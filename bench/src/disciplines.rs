//! Four ways of taking a route, over the same rings and the same forwarding table.
//!
//! | discipline | taken for every packet |
//! |---|---|
//! | `current` | read lock on the table; reference and mutex on the route entry; read lock on the link-layer entry |
//! | `stable` | read lock on the table; reference on the route entry; link-layer entry under the same read lock |
//! | `proposal` | one seqlock read; the next hop copied out |
//! | `sweep` | nothing: the tables are taken once a sweep |
//!
//! Locks and references are `parking_lot`'s and `Arc`'s: the best that the others could have.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use seqlock::SeqLock;
use sweepd::{
    forward::{burst::Burst, worker::Worker},
    tables::{MAX_NEXT_HOPS, NextHop, Tables},
};

use crate::single;

/// A way of taking a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discipline {
    /// FreeBSD 12-CURRENT's, before the proposal.
    Current,
    /// FreeBSD 11-STABLE's.
    Stable,
    /// The routing proposal's.
    Proposal,
    /// Ours.
    Sweep,
}

impl Discipline {
    /// All of them, slowest first.
    pub const ALL: [Discipline; 4] = [Self::Current, Self::Stable, Self::Proposal, Self::Sweep];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Stable => "stable",
            Self::Proposal => "proposal",
            Self::Sweep => "sweep",
        }
    }
}

/// A route entry: who may change it holds the mutex.
struct RouteEntry {
    link: Mutex<usize>,
    /// The same, for those who do not lock.
    link_unlocked: usize,
}

/// The routing table of the locking disciplines.
struct Table {
    tables: Arc<Tables>,
    entries: Vec<Arc<RouteEntry>>,
}

/// What the proposal reads: where the tables are.
#[derive(Clone, Copy)]
struct Descriptor {
    tables: *const Tables,
}

/// Everything that the disciplines share among workers.
pub struct Shared {
    table: RwLock<Table>,
    /// Link-layer entries: the rewritten header of each next hop.
    links: Vec<RwLock<NextHop>>,
    descriptor: SeqLock<Descriptor>,
    tables: Arc<Tables>,
}

// SAFETY: the descriptor's pointer leads into `tables`, which lives as long as the value and is
// not changed.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The disciplines' structures over these tables.
    pub fn new(tables: Tables) -> Self {
        let tables = Arc::new(tables);
        let links = tables.next_hops.iter().map(|hop| RwLock::new(*hop)).collect();
        let entry = |id| Arc::new(RouteEntry { link: Mutex::new(id), link_unlocked: id });
        let entries = (0..MAX_NEXT_HOPS).map(entry).collect();
        Self {
            table: RwLock::new(Table { tables: tables.clone(), entries }),
            links,
            descriptor: SeqLock::new(Descriptor { tables: Arc::as_ptr(&tables) }),
            tables,
        }
    }

    fn current(&self, destination: u32) -> NextHop {
        let entry = {
            let table = self.table.read();
            table.entries[usize::from(table.tables.fib4.lookup(destination))].clone()
        };
        let link = *entry.link.lock();
        *self.links[link].read()
    }

    fn stable(&self, destination: u32) -> NextHop {
        let entry = {
            let table = self.table.read();
            table.entries[usize::from(table.tables.fib4.lookup(destination))].clone()
        };
        *self.links[entry.link_unlocked].read()
    }

    fn proposal(&self, destination: u32) -> NextHop {
        let descriptor = self.descriptor.read();
        debug_assert_eq!(descriptor.tables, Arc::as_ptr(&self.tables));
        // SAFETY: the pointer leads to `self.tables`.
        let tables = unsafe { &*descriptor.tables };
        *tables.next_hop(tables.fib4.lookup(destination))
    }

    /// One pass of the worker over its rings, by `discipline`. Gives the packets taken.
    pub fn sweep(&self, discipline: Discipline, worker: &mut Worker, burst: &mut Burst) -> u32 {
        match discipline {
            Discipline::Current => single::sweep(worker, |_, to| self.current(to)),
            Discipline::Stable => single::sweep(worker, |_, to| self.stable(to)),
            Discipline::Proposal => single::sweep(worker, |_, to| self.proposal(to)),
            Discipline::Sweep => worker.sweep(burst).packets,
        }
    }
}
