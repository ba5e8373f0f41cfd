//! The ports of a running daemon: opens those that come, closes those that go, and opens again
//! those whose device went away and came back. A thread of its own, since opening and closing take
//! seconds; neither keeper nor workers wait for it.
//!
//! A port comes in this order: its device opens; the tables get its number; workers get its rings;
//! routes may lead there. It goes the other way round. So no packet meets a number without a port,
//! and none is sent to rings that are going. All other ports are left alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, after, bounded, never, select, unbounded};
use netmap::{Host, OpenError, OpenOptions, Port, device::spec::DeviceSpec};

use super::open_way_up;
use crate::{
    config::{self, Config},
    control::{
        Changed, Changer, KeeperPort, Notice, Settings,
        reload::{PutInForce, Refusal},
        setup::{self, Numbers},
    },
    forward::{
        assembly::{WorkerLink, split},
        messages::ToWorker,
        plug::{Plug, Reply, Rings, Share, Up},
    },
    stats::file::StatsFile,
    tables::PortId,
};

/// How devices are opened.
pub type Opener = Arc<dyn Fn(&[(DeviceSpec, OpenOptions)]) -> Result<Vec<Port>, OpenError> + Send + Sync>;

/// Longest wait for a worker between two sweeps; one that takes longer hangs.
const WORKER: Duration = Duration::from_secs(5);
/// How long a transmit ring that is going may take to send what is in it.
const SENDING: Duration = Duration::from_millis(100);
/// Wait between two looks at that.
const AGAIN: Duration = Duration::from_millis(2);
/// First and longest wait between two tries to open a device that is gone.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
/// An interface that the kernel has just made is still being set up.
const SEEN: Duration = Duration::from_millis(50);
/// Longest wait for the kernel to list another table; a client waits twice as long.
const LISTING: Duration = Duration::from_secs(30);

/// A new configuration, and who waits for it to be in force.
struct Request {
    new: Config,
    answer: Sender<Result<Changed, Refusal>>,
}

/// The way to put a configuration in force.
pub struct Requests(Sender<Request>);

impl PutInForce for Requests {
    fn put(&mut self, new: &Config) -> Result<Changed, Refusal> {
        let (answer, answered) = bounded(1);
        let ending = || Refusal { error: "the daemon is ending".into(), configuration: false };
        self.0.send(Request { new: new.clone(), answer }).map_err(|_| ending())?;
        answered.recv().map_err(|_| ending())?
    }
}

/// The thread that looks after the ports. It ends when the keeper has; dropping it waits for that.
pub struct Ports {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread works with.
pub struct PortsConfig {
    /// How devices are opened.
    pub open: Opener,
    /// Whether the kernel is followed at all.
    pub follow_kernel: bool,
    /// The ports that are open, by number.
    pub open_ports: BTreeMap<PortId, config::Port>,
    /// The ways to the workers.
    pub links: Vec<WorkerLink>,
    /// The way to the keeper.
    pub changer: Changer,
    /// The counters.
    pub stats: Arc<StatsFile>,
    /// What the keeper has to say.
    pub notices: Receiver<Notice>,
    /// Gets what is not for this thread.
    pub pass_on: Sender<Notice>,
    /// Whether the first worker has a way up to the host's stack.
    pub has_way_up: bool,
}

impl Ports {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(config: PortsConfig) -> io::Result<Self> {
        let (sender, requests) = unbounded();
        let docks = config.open_ports.iter().map(|(id, port)| (*id, Dock { port: port.clone(), gone: None }));
        let mut work = Work { docks: docks.collect(), left: BTreeMap::new(), lost: BTreeSet::new(), config };
        let thread = std::thread::Builder::new().name("ports".into()).spawn(move || work.run(&requests))?;
        Ok(Self { requests: Some(sender), thread: Some(thread) })
    }

    /// The way to put a configuration in force.
    pub fn requests(&self) -> Requests {
        // Taken only when `self` is dropped.
        Requests(self.requests.clone().expect("there until dropped"))
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A configured port.
struct Dock {
    port: config::Port,
    /// Set while the device is not there.
    gone: Option<Gone>,
}

/// A device that is not there.
struct Gone {
    next: Instant,
    pause: Duration,
    /// When it was tried last.
    tried: Option<Instant>,
    /// Why that failed, as has been said.
    said: Option<String>,
}

struct Work {
    config: PortsConfig,
    docks: BTreeMap<PortId, Dock>,
    /// Numbers of ports that the configuration has no more, and the ports' names.
    left: BTreeMap<PortId, String>,
    /// Numbers whose rings a worker has not given back: they cannot be used again.
    lost: BTreeSet<PortId>,
}

/// What a new configuration means for the ports.
#[derive(Default)]
struct Plan {
    /// Numbers of the new configuration's ports.
    numbers: Numbers,
    /// Those that were not there.
    added: Vec<PortId>,
    /// Those with another device.
    changed: Vec<PortId>,
    /// Those that are not there any more.
    removed: Vec<PortId>,
    /// Those of the old devices that have to close before a new one can open.
    in_the_way: BTreeSet<PortId>,
    /// The ports that have to wait for that.
    blocked: BTreeSet<PortId>,
}

impl Work {
    fn run(&mut self, requests: &Receiver<Request>) {
        let mut requests = requests.clone();
        loop {
            let next = self.docks.values().filter_map(|dock| dock.gone.as_ref()).map(|gone| gone.next).min();
            let due = next.map_or_else(never, |at| after(at.saturating_duration_since(Instant::now())));
            select! {
                recv(requests) -> request => match request {
                    Ok(Request { new, answer }) => {
                        // Nobody waits any more only when the daemon ends.
                        let _ = answer.try_send(self.put(&new));
                    }
                    Err(_) => requests = never(),
                },
                recv(self.config.notices) -> notice => match notice {
                    Ok(notice) => self.hear(notice),
                    Err(_) => return,
                },
                recv(due) -> _ => {}
            }
            let now = Instant::now();
            let due =
                self.docks.iter().filter(|(_, dock)| dock.gone.as_ref().is_some_and(|gone| gone.next <= now));
            for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.try_again(id);
            }
        }
    }

    fn hear(&mut self, notice: Notice) {
        match notice {
            Notice::PortGone { port, reason } => self.device_gone(port, &reason),
            Notice::PortSeen { port } => {
                if let Some(gone) = self.docks.get_mut(&port).and_then(|dock| dock.gone.as_mut()) {
                    // What a try does to an interface is news of it as well, and no reason for another.
                    let next =
                        (Instant::now() + SEEN).max(gone.tried.map_or_else(Instant::now, |t| t + FIRST));
                    gone.next = gone.next.min(next);
                }
            }
            other => {
                // Nobody listens only when the daemon ends.
                let _ = self.config.pass_on.send(other);
            }
        }
    }

    fn device_gone(&mut self, id: PortId, reason: &str) {
        let Some(dock) = self.docks.get(&id).filter(|dock| dock.gone.is_none() && dock.port.sub.is_none())
        else {
            return;
        };
        let (name, device) = (dock.port.name.clone(), dock.port.device.to_string());
        log::error!(
            "port {name}: its device {device} is gone ({reason}); nothing goes through it until it is back"
        );
        self.take_down(id, reason, true, false);
        self.wait_for_device(id);
        // What else was said about the device that is closed now.
        let said: Vec<Notice> = self.config.notices.try_iter().collect();
        for notice in said {
            if !matches!(notice, Notice::PortGone { port, .. } if port == id) {
                self.hear(notice);
            }
        }
    }

    fn wait_for_device(&mut self, id: PortId) {
        if let Some(dock) = self.docks.get_mut(&id) {
            dock.gone = Some(Gone { next: Instant::now() + FIRST, pause: FIRST, tried: None, said: None });
        }
    }

    fn try_again(&mut self, id: PortId) {
        let Some(port) = self.docks.get(&id).map(|dock| dock.port.clone()) else { return };
        match self.open(&[&port]).and_then(|mut opened| self.bring_up(id, &port, opened.pop())) {
            Ok(mode) => {
                log::info!("port {}: its device {} is back ({mode})", port.name, port.device);
                if let Some(dock) = self.docks.get_mut(&id) {
                    dock.gone = None;
                }
            }
            Err(e) => {
                let Some(gone) = self.docks.get_mut(&id).and_then(|dock| dock.gone.as_mut()) else { return };
                let now = Instant::now();
                gone.pause = (gone.pause * 2).min(LONGEST);
                (gone.next, gone.tried) = (now + gone.pause, Some(now));
                if gone.said.as_ref() != Some(&e) {
                    log::warn!("port {}: cannot be opened again yet: {e}", port.name);
                    gone.said = Some(e.clone());
                    // An error means that the keeper ends.
                    let _ = self.config.changer.lower(id, &e);
                }
            }
        }
    }

    fn open(&self, ports: &[&config::Port]) -> Result<Vec<Port>, String> {
        if ports.is_empty() {
            return Ok(Vec::new());
        }
        let requests: Vec<_> = ports.iter().map(|port| super::sub_ports::open_request(port)).collect();
        (self.config.open)(&requests).map_err(|e| e.to_string())
    }

    /// Puts an open device behind the port, and lets packets through. Gives how it is driven.
    fn bring_up(&mut self, id: PortId, config: &config::Port, port: Option<Port>) -> Result<String, String> {
        let port = port.ok_or("no device was opened")?;
        let mode = port.info.mode.clone();
        let shares = self.enter(id, config, port)?;
        self.plug_in(id, shares)?;
        Ok(mode)
    }

    /// Tells the keeper of an open device. Gives the workers' shares of it.
    fn enter(&mut self, id: PortId, config: &config::Port, port: Port) -> Result<Vec<Share>, String> {
        if matches!(port.host, Host::Kernel) && !self.config.has_way_up {
            self.give_way_up(&port)?;
        }
        let rings = port.rx.len();
        let spec = setup::port_spec(config, &port.info, &port.host);
        let stats = &self.config.stats;
        let block = stats.block(stats.keeper(), usize::from(id));
        let (shares, rest) = split(id, port, self.config.links.len(), self.config.has_way_up);
        let (device, mode) = (rest.info.device, rest.info.mode);
        self.config
            .changer
            .enter(id, KeeperPort { spec, device, mode, rings, control: rest.control, block })?;
        Ok(shares)
    }

    /// Opens the way up to the host's stack, for the first port that needs it.
    fn give_way_up(&mut self, port: &Port) -> Result<(), String> {
        if let Some(queue) = open_way_up([port].into_iter()) {
            self.tell(0, Plug::WayUp(Box::new(Up(queue))))?;
            self.config.has_way_up = true;
        }
        Ok(())
    }

    /// Gives the workers their shares, and then lets packets through.
    fn plug_in(&self, id: PortId, shares: Vec<Share>) -> Result<(), String> {
        for (worker, share) in shares.into_iter().enumerate() {
            self.tell(worker, Plug::In(Box::new(share)))?;
        }
        self.config.changer.raise(id)
    }

    /// Takes a port's rings from the workers and closes its device; `at_once` gives up what is in
    /// its rings. With `forget` the port goes altogether.
    fn take_down(&mut self, id: PortId, reason: &str, at_once: bool, forget: bool) {
        let taken = self.config.changer.lower(id, reason).and_then(|()| self.take_rings(id, at_once));
        let control = self.config.changer.leave(id, forget);
        match taken {
            // In this order: first the rings close, then the device.
            Ok(rings) => {
                drop(rings);
                drop(control);
            }
            Err(e) => {
                log::error!("port number {id}: its rings stay open: {e}");
                self.lost.insert(id);
            }
        }
    }

    fn take_rings(&self, id: PortId, at_once: bool) -> Result<Vec<Rings>, String> {
        let workers = 0..self.config.links.len();
        let mut taken = Vec::new();
        // Twice: the second time also for what another worker was asked to do with a packet.
        for worker in workers.clone().chain(workers.clone()) {
            if let Reply::Done(rings) = self.tell(worker, Plug::Quiet(id))? {
                taken.push(rings);
            }
        }
        let until = Instant::now() + SENDING;
        for worker in workers {
            loop {
                let force = at_once || Instant::now() > until;
                match self.tell(worker, Plug::Out { port: id, force })? {
                    Reply::Done(rings) => break taken.push(rings),
                    Reply::Sending => std::thread::sleep(AGAIN),
                }
            }
        }
        Ok(taken)
    }

    fn tell(&self, worker: usize, plug: Plug) -> Result<Reply, String> {
        let (answer, answered) = bounded(1);
        let link = self.config.links.get(worker).ok_or("there is no such worker")?;
        let sent = link.send(ToWorker::Plug { plug, answer });
        let answer = if sent { answered.recv_timeout(WORKER).ok() } else { None };
        answer.ok_or_else(|| format!("worker {worker} does not answer"))
    }
}

impl Work {
    /// Puts a new configuration in force, wholly or not at all.
    fn put(&mut self, new: &Config) -> Result<Changed, Refusal> {
        let refuse = |error: String| Refusal { error, configuration: false };
        let plan = self.plan(new).map_err(refuse)?;
        let settings = setup::settings(new, self.config.follow_kernel, &plan.numbers)
            .map_err(|errors| Refusal { error: errors.to_string(), configuration: true })?;
        let of = |id: &PortId| new.ports.iter().find(|port| plan.numbers.get(&port.name) == Some(id));
        let wanted: Vec<(PortId, &config::Port)> =
            plan.added.iter().chain(&plan.changed).filter_map(|id| Some((*id, of(id)?))).collect();
        let (later, first): (Vec<_>, Vec<_>) = wanted.iter().partition(|(id, _)| plan.blocked.contains(id));
        let open = |work: &Self, ports: &[(PortId, &config::Port)]| {
            let opened = work.open(&ports.iter().map(|(_, port)| *port).collect::<Vec<_>>())?;
            Ok::<Vec<_>, String>(ports.iter().map(|(id, _)| *id).zip(opened).collect())
        };
        let mut opened = open(self, &first).map_err(refuse)?;
        for &id in &plan.in_the_way {
            self.take_down(id, "its device is being opened anew", false, false);
        }
        let entered = match open(self, &later) {
            Ok(more) => {
                opened.extend(more);
                self.settle(new, settings, &plan, opened)
            }
            Err(e) => {
                drop(opened);
                Err(e)
            }
        };
        match entered {
            Ok((shares, changed)) => {
                self.finish(new, &plan, shares);
                Ok(changed)
            }
            Err(e) => {
                plan.in_the_way.iter().for_each(|&id| self.restore(id));
                Err(refuse(e))
            }
        }
    }

    /// Opens again what was closed for nothing.
    fn restore(&mut self, id: PortId) {
        self.wait_for_device(id);
        self.try_again(id);
        if let Some(dock) = self.docks.get(&id).filter(|dock| dock.gone.is_some()) {
            log::error!(
                "port {}: its device {} cannot be opened again; trying on",
                dock.port.name,
                dock.port.device
            );
        }
    }

    /// Puts in force all but the rings: one publication. Gives the new devices that are not plugged
    /// in yet.
    fn settle(
        &mut self,
        new: &Config,
        settings: Settings,
        plan: &Plan,
        opened: Vec<(PortId, Port)>,
    ) -> Result<(Vec<(PortId, Waiting)>, Changed), String> {
        let mut waiting = Vec::new();
        let mut entered = Vec::new();
        let result = opened.into_iter().try_for_each(|(id, port)| {
            let Some(config) = new.ports.iter().find(|port| plan.numbers.get(&port.name) == Some(&id)) else {
                return Ok(());
            };
            if !plan.added.contains(&id) {
                waiting.push((id, Waiting::Device(port)));
                return Ok(());
            }
            let afresh = self.left.get(&id) != Some(&config.name);
            self.config.stats.take_place(id.into(), &config.name, afresh).map_err(|e| e.to_string())?;
            entered.push(id);
            waiting.push((id, Waiting::Shares(self.enter(id, config, port)?)));
            Ok(())
        });
        let result = result.and_then(|()| self.config.changer.change(settings, LISTING));
        match result {
            Ok(changed) => Ok((waiting, changed)),
            Err(e) => {
                for id in entered {
                    // The keeper closes what it does not give back.
                    drop(self.config.changer.leave(id, true));
                    self.config.stats.leave_place(id.into());
                    self.left.entry(id).or_default();
                }
                Err(e)
            }
        }
    }

    /// Gives the workers what comes, and takes from them what goes. Nothing of this can be refused
    /// any more.
    fn finish(&mut self, new: &Config, plan: &Plan, waiting: Vec<(PortId, Waiting)>) {
        let mut docks = BTreeMap::new();
        for port in &new.ports {
            let Some(&id) = plan.numbers.get(&port.name) else { continue };
            let gone = self.docks.get_mut(&id).and_then(|dock| dock.gone.take());
            let gone = gone.filter(|_| !plan.changed.contains(&id));
            docks.insert(id, Dock { port: port.clone(), gone });
        }
        let old = std::mem::replace(&mut self.docks, docks);
        for &id in plan.removed.iter().chain(&plan.changed) {
            let forget = plan.removed.contains(&id);
            if forget || !plan.in_the_way.contains(&id) {
                self.take_down(id, "its device is being opened anew", false, forget);
            }
        }
        for (id, dock) in old.into_iter().filter(|(id, _)| plan.removed.contains(id)) {
            self.config.stats.leave_place(id.into());
            self.left.insert(id, dock.port.name);
        }
        for (id, device) in waiting {
            self.left.remove(&id);
            let result = match device {
                Waiting::Shares(shares) => self.plug_in(id, shares),
                Waiting::Device(port) => {
                    let config = self.docks.get(&id).map(|dock| dock.port.clone());
                    config.map_or(Ok(()), |config| self.bring_up(id, &config, Some(port)).map(drop))
                }
            };
            if let (Err(e), Some(dock)) = (result, self.docks.get(&id)) {
                log::error!("port {}: {e}; trying on", dock.port.name);
                self.take_down(id, &e, true, false);
                self.wait_for_device(id);
            }
        }
    }

    fn plan(&self, new: &Config) -> Result<Plan, String> {
        let mut plan = Plan::default();
        let known: BTreeMap<&str, PortId> =
            self.docks.iter().map(|(id, dock)| (dock.port.name.as_str(), *id)).collect();
        for port in &new.ports {
            let id = match known.get(port.name.as_str()) {
                Some(&id) => {
                    // A sub-port goes with its parent.
                    let dock = self.docks.get(&id).filter(|_| port.sub.is_none());
                    if dock.is_some_and(|dock| dock.port.device != port.device) {
                        plan.changed.push(id);
                    }
                    id
                }
                None => {
                    let id = self.free_number(&port.name, &plan)?;
                    plan.added.push(id);
                    id
                }
            };
            plan.numbers.insert(port.name.clone(), id);
        }
        plan.removed =
            self.docks.keys().filter(|id| !plan.numbers.values().any(|n| n == *id)).copied().collect();
        for port in &new.ports {
            let Some(&id) = plan.numbers.get(&port.name) else { continue };
            if !plan.added.contains(&id) && !plan.changed.contains(&id) {
                continue;
            }
            let Some(claim) = port.claim() else { continue };
            let goes = plan.removed.iter().chain(&plan.changed).copied();
            let holds = |id: &PortId| {
                let dock = self.docks.get(id).filter(|dock| dock.gone.is_none());
                dock.filter(|dock| dock.port.sub.is_none()).and_then(|dock| dock.port.claim()).as_ref()
                    == Some(&claim)
            };
            let in_the_way: Vec<PortId> = goes.filter(holds).collect();
            if !in_the_way.is_empty() {
                plan.blocked.insert(id);
                plan.in_the_way.extend(in_the_way);
            }
        }
        Ok(plan)
    }

    /// A number for a new port: the one it had before, else one that nobody had, else one whose port
    /// has gone. No ring and no published table mentions any of these.
    fn free_number(&self, name: &str, plan: &Plan) -> Result<PortId, String> {
        let places = self.config.stats.places();
        let taken = |id: &PortId| {
            self.docks.contains_key(id) || self.lost.contains(id) || plan.numbers.values().any(|n| n == id)
        };
        let before = self.left.iter().find(|(_, left)| *left == name).map(|(id, _)| *id);
        let all = || 0..PortId::try_from(places).unwrap_or(PortId::MAX);
        let fresh = all().find(|id| !taken(id) && !self.left.contains_key(id));
        before.filter(|id| !taken(id)).or(fresh).or(all().find(|id| !taken(id))).ok_or_else(|| {
            format!("port {name:?}: {places} ports is the most that this run can have; restart sweepd to have more")
        })
    }
}

/// A new device whose rings no worker has.
enum Waiting {
    /// The keeper knows of it.
    Shares(Vec<Share>),
    /// It takes the place of another one that is still there.
    Device(Port),
}
