//! What the keeper's thread does: the batches, the publications and the listings.

use std::{
    collections::{BTreeSet, HashSet},
    sync::atomic::AtomicU32,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, never, select};
use netmap::device::PortControl;

use super::{
    KeeperConfig, Notice, PortState, Query, View, WorkerLine,
    change::{Order, Unanswered},
    express::Driver,
    filters::Filters,
    owed::{Owed, Settings},
    translation::{Announcement, HostSockets},
};
use crate::{
    control::{
        follower::{Follower, News},
        kernel::{Follow, KernelEvent, NeighborState, Open, Parts, Report},
        learned::Learned,
        resolver::{Resolver, Step, Who},
        rib::{Rib, StaticRoute},
        translation::Translation,
    },
    forward::messages::ToKeeper,
    tables::{PortId, Tables, fib4::FibFull, masquerade::Masquerade, publish::Publisher, shown::Counts},
};

/// Shortest and longest time between two listings that were not planned; in between it is
/// [`LISTING_SHARE`] times what the last one took.
const LISTING_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const LISTING_SHARE: u32 = 10;
/// Time between two tries to listen to the kernel again.
const REOPEN: Duration = Duration::from_secs(1);
/// Time between two looks at what devices have lost.
const LOSSES: Duration = Duration::from_millis(100);
/// How long a publication waits for a worker; one that takes longer than this for a sweep is
/// waited for no longer, until it moves on.
const STUCK: Duration = Duration::from_millis(100);
/// How long a worker is stuck until that is told.
const TELL_STUCK: Duration = Duration::from_secs(1);
/// Time between two looks at whether a stuck worker has moved on.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Longest sleep.
const TICK: Duration = Duration::from_secs(1);
/// Messages taken in before their effects are published.
const BATCH: usize = 256;
/// Taking in may last so long: many changes share what a publication costs by itself, and none of
/// them waits long for it.
const TAKING: Duration = Duration::from_millis(20);

/// A worker that has not ended its sweep.
#[derive(Debug)]
pub(super) struct StuckWorker {
    worker: usize,
    since: Instant,
    told: bool,
}

/// Whoever waits for a step of a port's.
type StepAnswer = Sender<Option<Box<dyn PortControl>>>;

/// What the thread works on.
pub(super) struct Work {
    pub(super) rib: Rib,
    pub(super) publisher: Publisher<Tables>,
    pub(super) ports: Vec<Option<PortState>>,
    pub(super) workers: Vec<WorkerLine>,
    pub(super) notices: Sender<Notice>,
    pub(super) follow: Option<Follow>,
    pub(super) open: Open,
    pub(super) follower: Option<Follower>,
    pub(super) resolver: Resolver,
    pub(super) learned: Learned,
    pub(super) filters: Filters,
    /// What forwards plain packets in the driver.
    pub(super) express: Driver,
    /// How many want every packet to come to a worker.
    pub(super) captures: AtomicU32,
    /// Gateways that the kernel has been asked to look after by itself.
    pub(super) kept: BTreeSet<Who>,
    /// Routes of the configuration's, of which those that lead nowhere are to be told.
    pub(super) to_report: Option<Vec<StaticRoute>>,
    pub(super) settings: Settings,
    pub(super) translation: Translation,
    pub(super) host_sockets: HostSockets,
    pub(super) announcements: Vec<Announcement>,
    /// Whether a setting has changed that is not the RIB's, and is not published yet.
    pub(super) switched: bool,
    pub(super) reconcile: Duration,
    /// Parts of the first listing that have not ended.
    pub(super) awaited: Parts,
    pub(super) ready: Option<Sender<()>>,
    pub(super) wanted: Parts,
    /// Parts that are being listed.
    pub(super) listing: Parts,
    pub(super) listed_at: Instant,
    pub(super) listing_began: Instant,
    pub(super) listing_pause: Duration,
    pub(super) losses_at: Instant,
    pub(super) looked_at: Instant,
    /// Whether a FIB lacks what the RIB holds, for want of room.
    pub(super) behind: bool,
    /// What the instance of the tables that is not in force still lacks, while a worker has it.
    pub(super) owed: Option<Owed>,
    /// The worker that keeps the tables from being changed.
    pub(super) stuck: Option<StuckWorker>,
    pub(super) reopen_at: Option<Instant>,
    pub(super) unparsed: u64,
    /// Ports whose wrong TCP checksums have been told.
    pub(super) told_sums: HashSet<PortId>,
    /// Changes that are not in force yet.
    pub(super) unanswered: Vec<Unanswered>,
    /// Steps of ports that are not in force yet, and what they give.
    pub(super) steps: Vec<(StepAnswer, Option<Box<dyn PortControl>>)>,
}

impl Work {
    pub(super) fn new(
        config: KeeperConfig,
        publisher: Publisher<Tables>,
        workers: Vec<WorkerLine>,
        notices: Sender<Notice>,
        follower: Option<Follower>,
        ready: Sender<()>,
    ) -> Self {
        let specs = config.ports.iter().map(|port| port.spec.clone()).collect();
        let now = Instant::now();
        let ports = config.ports.into_iter().map(|port| Some(PortState::new(port, Counts::default())));
        Self {
            rib: Rib::new(specs, &config.routes, &config.neighbors),
            publisher,
            ports: ports.collect(),
            filters: Filters::new(config.acl, workers.len()),
            express: Driver::default(),
            captures: AtomicU32::new(0),
            workers,
            notices,
            follow: config.follow,
            open: config.open,
            awaited: if follower.is_some() { Parts::ALL } else { Parts::default() },
            wanted: if follower.is_some() { Parts::ALL } else { Parts::default() },
            follower,
            resolver: Resolver::default(),
            learned: Learned::default(),
            kept: BTreeSet::new(),
            to_report: Some(config.routes),
            settings: Settings {
                icmp: config.icmp,
                source_routes: config.source_routes,
                hash_seed: config.hash_seed,
                masquerade: Masquerade::default(),
            },
            translation: config.translation,
            host_sockets: HostSockets::default(),
            announcements: Vec::new(),
            switched: false,
            reconcile: config.reconcile,
            ready: Some(ready),
            listing: Parts::default(),
            listed_at: now,
            listing_began: now,
            listing_pause: Duration::ZERO,
            losses_at: now,
            looked_at: now,
            behind: false,
            owed: None,
            stuck: None,
            reopen_at: None,
            unparsed: 0,
            told_sums: HashSet::new(),
            unanswered: Vec::new(),
            steps: Vec::new(),
        }
    }

    pub(super) fn run(
        mut self,
        from_workers: &Receiver<ToKeeper>,
        queries: &Receiver<Query>,
        changes: &Receiver<Order>,
        stop: &Receiver<()>,
    ) -> Vec<Box<dyn PortControl>> {
        let mut from_workers = from_workers.clone();
        loop {
            self.step();
            let news = self.follower.as_ref().map_or_else(never, |follower| follower.news().clone());
            let timeout = self.pause();
            let bell = self.express.bell();
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
                recv(changes) -> change => {
                    // What workers said about a port comes before what becomes of it.
                    while let Ok(message) = from_workers.try_recv() {
                        self.worker_says(message);
                    }
                    if let Ok(order) = change {
                        self.obey(order);
                    }
                }
                // A grace period is over, or an interface may have changed.
                recv(bell) -> _ => self.express.look_again(),
                recv(stop) -> _ => break,
                default(timeout) => {}
            }
            // What else has come meanwhile belongs to the same batch.
            let began = Instant::now();
            for _ in 0..BATCH {
                if began.elapsed() >= TAKING {
                    break;
                }
                if let Ok(message) = news.try_recv() {
                    self.hear(message);
                } else if let Ok(message) = from_workers.try_recv() {
                    self.worker_says(message);
                } else {
                    break;
                }
            }
        }
        self.release_gateways();
        self.ports.into_iter().flatten().filter_map(|port| port.control).collect()
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
            self.stuck.as_ref().map(|_| now + LOOK_AGAIN),
        ];
        for at in timers.into_iter().flatten() {
            pause = pause.min(at.saturating_duration_since(now));
        }
        // Something due that could not be done is tried again soon, not at once.
        pause.max(Duration::from_millis(1))
    }

    /// Does what a batch has made necessary, and what is due.
    fn step(&mut self) {
        for port in self.rib.take_lost() {
            // Nobody hears it only when the daemon ends.
            let reason = "its interface is gone".into();
            let _ = self.notices.send(Notice::PortGone { port, reason });
        }
        self.rib.settle();
        self.wanted = self.wanted.with(self.rib.take_wanted());
        let now = Instant::now();
        if self.awaited == Parts::default() {
            self.start_express();
            if self.publish(now) {
                self.express.refresh(&self.settings, &self.rib);
                self.answer_changes();
                self.report_inactive();
            }
            if let Some(ready) = self.ready.take() {
                // Whoever started this thread may have stopped waiting.
                let _ = ready.try_send(());
            }
            self.drive_express(now);
        }
        if now.saturating_duration_since(self.looked_at) >= TICK {
            self.looked_at = now;
            self.look_for_gateways(now);
            self.keep_gateways();
            self.forget_the_silent(now);
            self.report_unparsed();
            self.report_links();
            self.tend();
            self.look_at_sockets(now);
        }
        self.announce(now);
        self.search(now);
        self.list(now);
        self.reopen(now);
        if now.saturating_duration_since(self.losses_at) >= LOSSES {
            self.losses_at = now;
            self.count_losses();
        }
    }

    /// Publishes what has changed. Gives whether all of it is in force: while a worker is stuck in
    /// its sweep, changes gather in the RIB, and are published together afterwards.
    fn publish(&mut self, now: Instant) -> bool {
        if !self.catch_up(now) {
            return false;
        }
        let changes = self.rib.take_changes();
        let acl = self.filters.next();
        let translates_anew = self.translate_anew();
        let switched = std::mem::take(&mut self.switched) | translates_anew;
        if changes.is_empty() && !switched && acl.is_none() {
            return true;
        }
        // Nobody has it: everybody has caught up.
        let mut owed = Owed { changes, whole: self.behind, acl };
        let Some(result) = self.change_idle(&owed, Duration::ZERO) else { return false };
        self.publisher.switch();
        log::trace!("generation {} published", self.publisher.generation());
        match result {
            Err(e) if !self.behind => log::error!("routes are missing from forwarding: {e}"),
            Ok(()) if self.behind => log::info!("forwarding has all routes again"),
            _ => {}
        }
        self.behind = result.is_err();
        owed.whole |= self.behind;
        self.express.published(&owed, self.publisher.tables());
        let changes = &owed.changes;
        if changes.local || translates_anew {
            self.tell_local();
        }
        if !changes.ports.is_empty() {
            self.tell_vlans();
            self.express.look_again();
        }
        if !changes.next_hops.is_empty() || !changes.prefixes4.is_empty() || !changes.prefixes6.is_empty() {
            for worker in &self.workers {
                (worker.call)();
            }
            self.look_for_gateways(now);
        }
        let filtered = owed.acl.is_some();
        self.owed = Some(owed);
        self.catch_up(now);
        if filtered {
            self.filters.published();
        }
        true
    }

    /// Changes the instance of the tables that is not in force as `owed` says, to what the RIB
    /// holds now; `None` when a worker still has it after `limit`.
    fn change_idle(&mut self, owed: &Owed, limit: Duration) -> Option<Result<(), FibFull>> {
        match self.publisher.idle(limit) {
            Ok(tables) => Some(self.settings.write(tables, &self.rib, owed)),
            Err(stuck) => {
                self.note_stuck(stuck.reader);
                None
            }
        }
    }

    /// Repeats the last changes on the instance of the tables that was in force before. Gives
    /// whether that could be done.
    ///
    /// The RIB may have gone on meanwhile, and what it holds now is taken: all of that is written
    /// before this instance is in force, so no worker sees a part of it.
    fn catch_up(&mut self, now: Instant) -> bool {
        let Some(owed) = self.owed.take() else { return true };
        // Whoever is known to be stuck is looked at and not waited for.
        let limit = if self.stuck.is_some() { Duration::ZERO } else { STUCK };
        if self.change_idle(&owed, limit).is_none() {
            self.owed = Some(owed);
            self.rib.compact();
            return false;
        }
        if let Some(stuck) = self.stuck.take().filter(|stuck| stuck.told) {
            let time = now.saturating_duration_since(stuck.since).as_secs_f32();
            log::info!("worker {} goes on after {time:.1} s: changes are published again", stuck.worker);
        }
        // Numbers that what waits in the RIB has given back may still be in the tables in force.
        if self.rib.is_published() {
            self.rib.recycle();
        }
        true
    }

    /// Says once that a worker has been stuck for long.
    fn note_stuck(&mut self, worker: usize) {
        let now = Instant::now();
        if self.stuck.as_ref().is_none_or(|stuck| stuck.worker != worker) {
            self.stuck = Some(StuckWorker { worker, since: now, told: false });
        }
        let Some(stuck) = &mut self.stuck else { return };
        if !stuck.told && now.saturating_duration_since(stuck.since) >= TELL_STUCK {
            stuck.told = true;
            log::error!(
                "worker {worker} has not ended its sweep for {} s: it forwards nothing, and changes of routes \
                 wait until it does; if it stays so, restart sweepd",
                TELL_STUCK.as_secs()
            );
        }
    }

    /// Takes in what the kernel says.
    fn hear(&mut self, news: News) {
        match news {
            News::Reports(reports) => {
                let mut steps = Vec::new();
                for report in reports {
                    self.note(&report, &mut steps);
                    let link = match &report.event {
                        KernelEvent::LinkChanged(link) => Some((link.name.clone(), link.up)),
                        _ => None,
                    };
                    self.rib.take(report);
                    if let Some((name, up)) = link {
                        self.look_at_link(&name, up);
                    }
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

    /// A link is there: perhaps that of a port whose device is gone.
    fn look_at_link(&self, name: &str, up: bool) {
        let waits = |port: &Option<PortState>| {
            port.as_ref().is_some_and(|port| port.gone.is_some() && port.interface.as_deref() == Some(name))
        };
        if up && let Some(port) = self.ports.iter().position(waits) {
            let _ = self.notices.send(Notice::PortSeen { port: port as PortId });
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
            KernelEvent::DumpEnd { part, complete } => {
                if *complete {
                    self.unanswered
                        .iter_mut()
                        .for_each(|change| change.awaits = change.awaits.without(*part));
                }
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

    fn reopen(&mut self, now: Instant) {
        let (Some(at), Some(follow)) = (self.reopen_at, self.follow) else { return };
        if now < at {
            return;
        }
        match Follower::start(self.open, follow) {
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

    fn answer(&self, query: Query) {
        query(&View {
            rib: &self.rib,
            tables: self.publisher.tables(),
            generation: self.publisher.generation(),
            follow: self.follow,
            ports: &self.ports,
            filters: &self.filters,
            no_express: self.express.trouble(),
            captures: &self.captures,
        });
    }
}
