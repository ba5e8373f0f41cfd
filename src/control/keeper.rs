//! The keeper: the thread that makes the tables. It takes what the kernel, the workers and the
//! control socket say, in batches; works out what that changes; publishes it once a batch; and
//! looks for neighbours. Nothing that it waits for can keep a worker from its sweep.

use std::{
    io,
    net::IpAddr,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, bounded, never, select, unbounded};
use netmap::device::PortControl;

use super::{
    apply,
    follower::{Follower, News},
    kernel::{Follow, KernelEvent, NeighborState, Parts, Report},
    learned::Learned,
    next_hops::Adjacency,
    resolver::{Means, Resolver, Step, Who},
    rib::{Neighbor, NeighborSource, PortSpec, Rib, StaticNeighbor, StaticRoute, own_index},
};
use crate::{
    forward::{
        messages::{ToKeeper, ToWorker},
        verdict::Verdict,
    },
    stats::file::BlockRef,
    tables::{IcmpLimit, PortId, Tables, publish::Publisher},
};

/// Longest time that [`Keeper::start`] waits for the kernel to list what it has.
const FIRST_LISTING: Duration = Duration::from_secs(120);
/// Shortest and longest time between two listings that were not planned; in between it is
/// [`LISTING_SHARE`] times what the last one took.
const LISTING_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const LISTING_SHARE: u32 = 10;
/// Time between two tries to listen to the kernel again.
const REOPEN: Duration = Duration::from_secs(1);
/// Time between two looks at what devices have lost.
const LOSSES: Duration = Duration::from_millis(100);
/// Longest sleep.
const TICK: Duration = Duration::from_secs(1);
/// Messages taken in before their effects are published.
const BATCH: usize = 256;

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
    /// The ports, in the order of their numbers.
    pub ports: Vec<KeeperPort>,
    /// Routes that the configuration gives.
    pub routes: Vec<StaticRoute>,
    /// Neighbours that the configuration gives.
    pub neighbors: Vec<StaticNeighbor>,
    /// How many ICMP errors each worker may send.
    pub icmp: IcmpLimit,
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
            ports,
            routes: Vec::new(),
            neighbors: Vec::new(),
            icmp: IcmpLimit::default(),
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
    /// The ports.
    pub ports: &'a [PortState],
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
    control: Box<dyn PortControl>,
    block: BlockRef,
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
        let (ready, is_ready) = bounded(1);
        let follower = match config.follow {
            Some(follow) => Some(Follower::start(follow).map_err(KeeperError::Kernel)?),
            None => None,
        };
        if follower.is_some() {
            super::advice::log_forwarding();
        }
        let work = Work::new(config, publisher, workers, notices, follower, ready);
        let thread = std::thread::Builder::new()
            .name("keeper".into())
            .spawn(move || work.run(&from_workers, &asked, &stopped))
            .map_err(KeeperError::Thread)?;
        let keeper = Self { stop, thread: Some(thread), queries };
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

/// What the thread works on.
struct Work {
    rib: Rib,
    publisher: Publisher<Tables>,
    ports: Vec<PortState>,
    workers: Vec<WorkerLine>,
    notices: Sender<Notice>,
    follow: Option<Follow>,
    follower: Option<Follower>,
    resolver: Resolver,
    learned: Learned,
    icmp: IcmpLimit,
    hash_seed: u64,
    reconcile: Duration,
    /// Parts of the first listing that have not ended.
    awaited: Parts,
    ready: Option<Sender<()>>,
    wanted: Parts,
    /// Parts that are being listed.
    listing: Parts,
    listed_at: Instant,
    listing_began: Instant,
    listing_pause: Duration,
    losses_at: Instant,
    looked_at: Instant,
    /// Whether a FIB lacks what the RIB holds, for want of room.
    behind: bool,
    reopen_at: Option<Instant>,
    unparsed: u64,
}

impl Work {
    fn new(
        config: KeeperConfig,
        publisher: Publisher<Tables>,
        workers: Vec<WorkerLine>,
        notices: Sender<Notice>,
        follower: Option<Follower>,
        ready: Sender<()>,
    ) -> Self {
        let specs = config.ports.iter().map(|port| port.spec.clone()).collect();
        let now = Instant::now();
        let ports = config.ports.into_iter().map(|port| PortState {
            device: port.device,
            mode: port.mode,
            rings: port.rings,
            interface: port.spec.interface,
            control: port.control,
            block: port.block,
        });
        Self {
            rib: Rib::new(specs, &config.routes, &config.neighbors),
            publisher,
            ports: ports.collect(),
            workers,
            notices,
            follow: config.follow,
            awaited: if follower.is_some() { Parts::ALL } else { Parts::default() },
            wanted: if follower.is_some() { Parts::ALL } else { Parts::default() },
            follower,
            resolver: Resolver::default(),
            learned: Learned::default(),
            icmp: config.icmp,
            hash_seed: config.hash_seed,
            reconcile: config.reconcile,
            ready: Some(ready),
            listing: Parts::default(),
            listed_at: now,
            listing_began: now,
            listing_pause: Duration::ZERO,
            losses_at: now,
            looked_at: now,
            behind: false,
            reopen_at: None,
            unparsed: 0,
        }
    }

    fn run(
        mut self,
        from_workers: &Receiver<ToKeeper>,
        queries: &Receiver<Query>,
        stop: &Receiver<()>,
    ) -> Vec<Box<dyn PortControl>> {
        let mut from_workers = from_workers.clone();
        loop {
            self.step();
            let news = self.follower.as_ref().map_or_else(never, |follower| follower.news().clone());
            let timeout = self.pause();
            select! {
                recv(news) -> message => self.hear(message.unwrap_or_else(|_| News::lost())),
                recv(from_workers) -> message => match message {
                    Ok(message) => self.worker_says(message),
                    Err(_) => from_workers = never(),
                },
                recv(queries) -> query => {
                    if let Ok(query) = query {
                        self.answer(query);
                    }
                }
                recv(stop) -> _ => break,
                default(timeout) => {}
            }
            // What else has come meanwhile belongs to the same batch.
            for _ in 0..BATCH {
                if let Ok(message) = news.try_recv() {
                    self.hear(message);
                } else if let Ok(message) = from_workers.try_recv() {
                    self.worker_says(message);
                } else {
                    break;
                }
            }
        }
        self.ports.into_iter().map(|port| port.control).collect()
    }

    /// How long to sleep at most.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        let mut pause = if self.ports.is_empty() { TICK } else { LOSSES };
        let timers = [
            self.resolver.next(),
            (self.wanted != Parts::default() && self.listing == Parts::default())
                .then(|| self.listed_at + self.listing_pause),
            self.reopen_at,
        ];
        for at in timers.into_iter().flatten() {
            pause = pause.min(at.saturating_duration_since(now));
        }
        // Something due that could not be done is tried again soon, not at once.
        pause.max(Duration::from_millis(1))
    }

    /// Does what a batch has made necessary, and what is due.
    fn step(&mut self) {
        self.rib.settle();
        self.wanted = self.wanted.with(self.rib.take_wanted());
        let now = Instant::now();
        if self.awaited == Parts::default() {
            self.publish(now);
            if let Some(ready) = self.ready.take() {
                // Whoever started this thread may have stopped waiting.
                let _ = ready.try_send(());
            }
        }
        if now.saturating_duration_since(self.looked_at) >= TICK {
            self.looked_at = now;
            self.look_for_gateways(now);
            self.forget_the_silent(now);
            self.report_unparsed();
        }
        self.search(now);
        self.list(now);
        self.reopen(now);
        if now.saturating_duration_since(self.losses_at) >= LOSSES {
            self.losses_at = now;
            self.count_losses();
        }
    }

    fn publish(&mut self, now: Instant) {
        let changes = self.rib.take_changes();
        if changes.is_empty() {
            return;
        }
        let (rib, whole) = (&self.rib, self.behind);
        let (icmp, seed) = (self.icmp, self.hash_seed);
        let mut result = Ok(());
        let waited = self.publisher.publish(|tables| {
            (tables.icmp, tables.hash_seed) = (icmp, seed);
            result = apply::apply(tables, rib, &changes, whole);
        });
        log::trace!("generation {} published, waited {waited:?}", self.publisher.generation());
        match result {
            Err(e) if !self.behind => log::error!("routes are missing from forwarding: {e}"),
            Ok(()) if self.behind => log::info!("forwarding has all routes again"),
            _ => {}
        }
        self.behind = result.is_err();
        self.rib.recycle();
        if changes.local {
            self.tell_local();
        }
        if !changes.next_hops.is_empty() || !changes.prefixes4.is_empty() || !changes.prefixes6.is_empty() {
            for worker in &self.workers {
                (worker.call)();
            }
            self.look_for_gateways(now);
        }
    }

    /// Tells the devices which packets are the host's.
    fn tell_local(&mut self) {
        let addresses = self.rib.for_host();
        for port in &mut self.ports {
            if let Err(e) = port.control.set_local(&addresses) {
                log::error!("{}: cannot set the host's addresses: {e}", port.device);
            }
        }
    }

    fn means(&self, port: PortId) -> Means {
        let builtin = self.rib.port(port).is_some_and(|port| port.builtin_host);
        if builtin { Means::Builtin } else { Means::Kernel }
    }

    fn look_for_gateways(&mut self, now: Instant) {
        let missing = self.rib.unresolved();
        let missing: Vec<(Who, Means)> = missing.into_iter().map(|who| (who, self.means(who.0))).collect();
        self.resolver.gateways(missing, now);
    }

    /// Asks for neighbours, and gives up on those that do not answer.
    fn search(&mut self, now: Instant) {
        let mut steps = Vec::new();
        self.resolver.due(now, &mut steps);
        for step in steps {
            self.carry_out(step);
        }
    }

    fn carry_out(&mut self, step: Step) {
        match step {
            Step::Ask((port, address)) if self.means(port) == Means::Builtin => {
                // Ring 0 of every port, its transmit side too, belongs to the first worker.
                if let Some(worker) = self.workers.first() {
                    let _ = worker.commands.try_send(ToWorker::Solicit { port, address });
                    (worker.call)();
                }
            }
            Step::Ask((port, address)) => {
                let index = self.rib.index_of(port);
                if let (Some(follower), Some(index)) = (&self.follower, index) {
                    follower.resolve(index, address);
                }
            }
            Step::GiveUp((port, address)) => {
                if self.learned.forget((port, address)) {
                    self.rib.forget_neighbor(own_index(port), address);
                }
                for worker in &self.workers {
                    let _ = worker.commands.try_send(ToWorker::Failed { port, address });
                    (worker.call)();
                }
            }
        }
    }

    fn worker_says(&mut self, message: ToKeeper) {
        let now = Instant::now();
        match message {
            ToKeeper::Resolve { port, address } => {
                if self.rib.mac_of(port, address).is_none() {
                    self.resolver.wanted((port, address), self.means(port), now);
                }
            }
            ToKeeper::Learned { port, address, mac, create, replace } => {
                self.learn((port, address), mac, create, replace, now);
            }
            ToKeeper::Conflict { port, address, mac } => self.warn_of_conflict(port, address, mac, now),
            ToKeeper::Used { next_hops } => {
                for id in next_hops {
                    if let Some(Adjacency::Neighbor(port, address)) = self.rib.next_hops().adjacency(id) {
                        self.refresh(port, address, now);
                    }
                }
            }
            ToKeeper::PortGone { port, reason } => {
                let device = self.ports.get(usize::from(port)).map_or("?", |port| &port.device);
                log::error!("{device}: the device is gone: {reason}");
                self.rib.port_gone(port);
                let _ = self.notices.send(Notice::PortGone { port, reason });
            }
            ToKeeper::Finished { worker } => {
                let _ = self.notices.send(Notice::Finished { worker });
            }
        }
    }

    /// The built-in host has heard a neighbour. What nobody asked for makes no new entry unless
    /// `create` says so, and changes an address that is known only if `replace` does.
    fn learn(&mut self, who: Who, mac: [u8; 6], create: bool, replace: bool, now: Instant) {
        let (port, address) = who;
        if self.means(port) != Means::Builtin || mac[0] & 1 != 0 {
            return;
        }
        let known = self.rib.neighbor(port, address).copied();
        let other = known.and_then(|known| known.mac).is_some_and(|known| known != mac);
        let asked = self.resolver.is_searching(who);
        if (known.is_none() && !create && !asked) || (other && !replace) || !self.learned.hear(who, now) {
            return;
        }
        self.resolver.found(who);
        let neighbor = Neighbor {
            mac: Some(mac),
            state: NeighborState::Reachable,
            source: NeighborSource::Learned,
            mark: 0,
        };
        self.rib.set_neighbor(own_index(port), address, neighbor);
    }

    /// Someone else on the link uses an address of ours.
    fn warn_of_conflict(&mut self, port: PortId, address: IpAddr, mac: [u8; 6], now: Instant) {
        if !self.learned.may_refresh((port, address), now) {
            return;
        }
        let name = self.rib.port(port).map_or("?", |port| &port.name);
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        log::error!("port {name}: {mac} uses {address}, which is ours: give one of the two another address");
    }

    /// Packets are being sent to a neighbour: makes sure that it still is where it was.
    fn refresh(&mut self, port: PortId, address: IpAddr, now: Instant) {
        let Some(neighbor) = self.rib.neighbor(port, address) else { return };
        match neighbor.source {
            NeighborSource::Static => {}
            NeighborSource::Learned => {
                if self.learned.is_old((port, address), now) {
                    self.resolver.wanted((port, address), Means::Builtin, now);
                }
            }
            NeighborSource::Kernel => {
                if neighbor.state == NeighborState::Stale
                    && self.learned.may_refresh((port, address), now)
                    && let (Some(follower), Some(index)) = (&self.follower, self.rib.index_of(port))
                {
                    follower.resolve(index, address);
                }
            }
        }
    }

    fn forget_the_silent(&mut self, now: Instant) {
        for (port, address) in self.learned.expire(now) {
            self.rib.forget_neighbor(own_index(port), address);
        }
    }

    /// Takes in what the kernel says.
    fn hear(&mut self, news: News) {
        match news {
            News::Reports(reports) => {
                let mut steps = Vec::new();
                for report in reports {
                    self.note(&report, &mut steps);
                    self.rib.take(report);
                }
                if !steps.is_empty() {
                    // Packets held for a neighbour that has failed, after what came before it.
                    self.rib.settle();
                    steps.into_iter().for_each(|step| self.carry_out(step));
                }
            }
            News::Lost(e) => {
                log::error!("the kernel's news have stopped: {e}; opening them anew");
                self.follower = None;
                self.reopen_at = Some(Instant::now() + REOPEN);
            }
        }
    }

    /// What a piece of news means for searches and listings.
    fn note(&mut self, report: &Report, steps: &mut Vec<Step>) {
        match &report.event {
            KernelEvent::NeighborChanged { index, address, state, mac } if !report.listed => {
                let Some(port) = self.rib.port_of(*index) else { return };
                if state.is_usable() && mac.is_some() {
                    self.resolver.found((port, *address));
                } else if *state == NeighborState::Failed {
                    self.resolver.failed((port, *address), steps);
                }
            }
            KernelEvent::DumpBegin(part) => self.listing = self.listing.with((*part).into()),
            KernelEvent::DumpEnd { part, .. } => {
                self.listing = self.listing.without(*part);
                self.awaited = self.awaited.without(*part);
                self.listed_at = Instant::now();
                if self.listing == Parts::default() {
                    let took = self.listed_at.saturating_duration_since(self.listing_began);
                    self.listing_pause = (took * LISTING_SHARE).clamp(LISTING_PAUSE, LONGEST_PAUSE);
                    log::debug!("the kernel has listed its tables in {took:?}");
                }
            }
            KernelEvent::Overrun => log::warn!("news from the kernel were lost; listing everything again"),
            _ => {}
        }
    }

    /// Asks for listings that are wanted or due, not too often.
    fn list(&mut self, now: Instant) {
        let Some(follower) = &self.follower else { return };
        let since = now.saturating_duration_since(self.listed_at);
        if since >= self.reconcile {
            self.wanted = Parts::ALL;
        }
        if self.wanted != Parts::default() && self.listing == Parts::default() && since >= self.listing_pause
        {
            self.listing = std::mem::take(&mut self.wanted);
            follower.list(self.listing);
            (self.listed_at, self.listing_began) = (now, now);
        }
    }

    /// Says when the kernel has said something that is not understood.
    fn report_unparsed(&mut self) {
        let unparsed = self.follower.as_ref().map_or(0, Follower::unparsed);
        if unparsed > self.unparsed {
            log::warn!(
                "{} messages of the kernel's were not understood and skipped",
                unparsed - self.unparsed
            );
        }
        self.unparsed = unparsed;
    }

    fn reopen(&mut self, now: Instant) {
        let (Some(at), Some(follow)) = (self.reopen_at, self.follow) else { return };
        if now < at {
            return;
        }
        match Follower::start(follow) {
            Ok(follower) => {
                self.follower = Some(follower);
                self.reopen_at = None;
                self.listing = Parts::default();
                self.wanted = Parts::ALL;
            }
            Err(e) => {
                log::debug!("still no news from the kernel: {e}");
                self.reopen_at = Some(now + REOPEN);
            }
        }
    }

    /// Counts what devices did outside the rings.
    fn count_losses(&mut self) {
        for port in &mut self.ports {
            let losses = port.control.losses();
            let block = &port.block;
            block.rx_packets.set(losses.passed_up);
            block.rx_bytes.set(losses.passed_up_bytes);
            block.verdicts[Verdict::Host as usize].set(losses.passed_up);
            block.rx_dropped.set(losses.rx_dropped);
            block.rx_errors.set(losses.rx_errors);
            block.tx_dropped.set(losses.tx_dropped);
            block.tx_errors.set(losses.tx_errors);
        }
    }

    fn answer(&self, query: Query) {
        query(&View {
            rib: &self.rib,
            tables: self.publisher.tables(),
            generation: self.publisher.generation(),
            ports: &self.ports,
        });
    }
}
