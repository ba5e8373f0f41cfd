//! The keeper: the thread that makes the tables. It takes what the kernel, the workers and the
//! control socket say, in batches; works out what that changes; publishes it once a batch; and
//! looks for neighbours. Nothing that it waits for can keep a worker from its sweep.

mod change;
mod devices;
#[cfg(target_os = "linux")]
pub(crate) mod express;
#[cfg(not(target_os = "linux"))]
#[path = "keeper/no_express.rs"]
pub(crate) mod express;
pub(crate) mod filters;
mod ledger;
mod owed;
mod ports;
mod search;
#[cfg(test)]
mod tests;
mod translation;
mod work;

use std::{
    io,
    sync::{Arc, atomic::AtomicU32},
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use netmap::device::PortControl;

use super::{
    follower::Follower,
    kernel::{self, Follow},
    rib::{PortSpec, Rib, StaticNeighbor, StaticRoute},
    translation::Translation,
};
use crate::{
    forward::messages::{ToKeeper, ToWorker},
    stats::file::BlockRef,
    tables::{IcmpLimit, PortId, Tables, acl::Compiled, publish::Publisher},
};
pub use change::{Changed, Changer, Settings};
use work::Work;

/// Longest time that [`Keeper::start`] waits for the kernel to list what it has.
const FIRST_LISTING: Duration = Duration::from_secs(120);

/// A port, as the keeper needs to know it.
pub struct KeeperPort {
    /// What was configured and opened.
    pub spec: PortSpec,
    /// The device as the configuration names it.
    pub device: String,
    /// How it is driven, for people.
    pub mode: String,
    /// Number of receive rings.
    pub rings: usize,
    /// Holds the device open; comes back from [`Keeper::stop`].
    pub control: Box<dyn PortControl>,
    /// The keeper's own counters for the port.
    pub block: BlockRef,
}

/// How to reach a worker.
pub struct WorkerLine {
    /// Its commands.
    pub commands: Sender<ToWorker>,
    /// Makes it look at them, and at new tables, now.
    pub call: Box<dyn Fn() + Send>,
}

/// What the rest of the daemon has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The device behind a port is gone.
    PortGone {
        /// Which.
        port: PortId,
        /// The system's word.
        reason: String,
    },
    /// The kernel has something new about the interface of a port whose device is gone.
    PortSeen {
        /// Which.
        port: PortId,
    },
    /// A worker's inputs have all ended, and everything has left.
    Finished {
        /// Which worker.
        worker: usize,
    },
}

/// What the keeper works with.
pub struct KeeperConfig {
    /// Which kernel tables to follow; none when the kernel is not followed at all.
    pub follow: Option<Follow>,
    /// How the kernel's news are opened.
    pub open: kernel::Open,
    /// The ports, in the order of their numbers.
    pub ports: Vec<KeeperPort>,
    /// Routes that the configuration gives.
    pub routes: Vec<StaticRoute>,
    /// Neighbours that the configuration gives.
    pub neighbors: Vec<StaticNeighbor>,
    /// The access rules that the configuration gives.
    pub acl: Option<Arc<Compiled>>,
    /// How many ICMP errors each worker may send.
    pub icmp: IcmpLimit,
    /// Whether IPv4 source routes are followed.
    pub source_routes: bool,
    /// Which addresses are translated.
    pub translation: Translation,
    /// Makes this router choose differently from others among several next hops.
    pub hash_seed: u64,
    /// Time between two comparisons with everything that the kernel has.
    pub reconcile: Duration,
}

impl KeeperConfig {
    /// For these ports, with defaults for the rest.
    pub fn new(ports: Vec<KeeperPort>) -> Self {
        Self {
            follow: None,
            open: kernel::open,
            ports,
            routes: Vec::new(),
            neighbors: Vec::new(),
            acl: None,
            icmp: IcmpLimit::default(),
            source_routes: false,
            translation: Translation::default(),
            hash_seed: 0,
            reconcile: Duration::from_secs(60),
        }
    }
}

/// Why the keeper could not start.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The kernel's news cannot be had.
    #[error("cannot follow the kernel's routes: {0}")]
    Kernel(io::Error),
    /// No thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The first listing did not end.
    #[error(
        "the kernel has not listed its routes within {} s; try again, or set [kernel] routes = false",
        FIRST_LISTING.as_secs()
    )]
    Slow,
}

/// The running keeper.
pub struct Keeper {
    stop: Sender<()>,
    thread: Option<JoinHandle<Vec<Box<dyn PortControl>>>>,
    queries: Sender<Query>,
    changer: Changer,
}

/// Something to be answered from the keeper's own state.
pub type Query = Box<dyn FnOnce(&View<'_>) + Send>;

/// What a [`Query`] may look at.
pub struct View<'a> {
    /// The routing information base, as published.
    pub rib: &'a Rib,
    /// The tables in force.
    pub tables: &'a Tables,
    /// Their generation.
    pub generation: u64,
    /// Which kernel tables are followed.
    pub follow: Option<Follow>,
    /// The ports, by number; none at the numbers of ports that have gone.
    pub ports: &'a [Option<PortState>],
    /// The access rules.
    pub filters: &'a filters::Filters,
    /// Why no port's packets are forwarded in the driver, where they could be.
    pub no_express: Option<&'a str>,
    /// How many there are who want every packet to come to a worker. One who counts himself in is
    /// heeded before the keeper answers again.
    pub captures: &'a AtomicU32,
}

/// A port, as the keeper holds it.
pub struct PortState {
    /// The device as the configuration names it.
    pub device: String,
    /// How it is driven, for people.
    pub mode: String,
    /// Number of receive rings.
    pub rings: usize,
    /// The kernel's interface behind it.
    pub interface: Option<String>,
    /// Why the device is not there, while it is not.
    pub gone: Option<String>,
    /// The port's part in forwarding in the driver.
    pub express: express::OfPort,
    /// Whether it was up when that was last looked at.
    told_up: Option<bool>,
    control: Option<Box<dyn PortControl>>,
    block: BlockRef,
    /// What the block has counted before this device.
    base: ports::Counted,
}

impl Keeper {
    /// Starts the keeper's thread. Returns when the first tables are published: with everything
    /// that the kernel has listed, if it is followed.
    ///
    /// # Errors
    /// [`KeeperError`].
    pub fn start(
        config: KeeperConfig,
        publisher: Publisher<Tables>,
        from_workers: Receiver<ToKeeper>,
        workers: Vec<WorkerLine>,
        notices: Sender<Notice>,
    ) -> Result<Self, KeeperError> {
        let (stop, stopped) = bounded(1);
        let (queries, asked) = unbounded();
        let (changer, changes) = Changer::new();
        let (ready, is_ready) = bounded(1);
        let follower = match config.follow {
            Some(follow) => Some(Follower::start(config.open, follow).map_err(KeeperError::Kernel)?),
            None => None,
        };
        if follower.is_some() && config.ports.iter().any(|port| port.spec.interface.is_some()) {
            super::advice::log_forwarding();
        }
        let work = Work::new(config, publisher, workers, notices, follower, ready);
        let thread = std::thread::Builder::new()
            .name("keeper".into())
            .spawn(move || work.run(&from_workers, &asked, &changes, &stopped))
            .map_err(KeeperError::Thread)?;
        let keeper = Self { stop, thread: Some(thread), queries, changer };
        match is_ready.recv_timeout(FIRST_LISTING) {
            Ok(()) => Ok(keeper),
            Err(_) => Err(KeeperError::Slow),
        }
    }

    /// Has `query` run on the keeper's thread, between two batches: it must be short.
    pub fn ask(&self, query: Query) {
        // A keeper that has ended answers nobody.
        let _ = self.queries.send(query);
    }

    /// The way to [`Keeper::ask`] for other threads.
    pub fn queries(&self) -> Sender<Query> {
        self.queries.clone()
    }

    /// The way to change what the configuration gives.
    pub fn changer(&self) -> Changer {
        self.changer.clone()
    }

    /// Ends the thread and gives the ports' controls back, in the order of the ports.
    pub fn stop(mut self) -> Vec<Box<dyn PortControl>> {
        self.end()
    }

    fn end(&mut self) -> Vec<Box<dyn PortControl>> {
        let _ = self.stop.try_send(());
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}
