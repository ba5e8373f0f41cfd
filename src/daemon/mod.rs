//! The daemon: opens the ports, shares them out, and keeps the threads that do the work.
//!
//! `run`, `replay` and `demo` are the same daemon; they differ in the devices behind the ports,
//! in whether the kernel is followed, and in what ends them.

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, bounded};
#[cfg(target_os = "linux")]
use netmap::Host;
use netmap::{
    OpenError, OpenOptions, Port, TxQueue,
    device::{
        self,
        spec::{Device, DeviceSpec},
    },
};

use crate::{
    config::{Config, ConfigErrors, Idle, OnExit},
    control::{
        Keeper, KeeperConfig, KeeperError, KeeperPort, Notice, WorkerLine,
        barrier::{Barrier, BarrierError},
        capture::Captures,
        diff::Comparison,
        metrics,
        reload::{Reloader, Reloads, Trigger},
        requests::Answerer,
        rib::PortSpec,
        setup,
        socket::{Access, Bound, CONTROL_SOCKET, ControlSocket, SocketError},
        translation::Translation,
    },
    forward::{
        assembly::{Assembly, WorkerLink, assemble, default_workers},
        flows::DEFAULT_FLOWS,
        idle::Patience,
        messages::ToKeeper,
    },
    stats::{
        file::{STATS_FILE, StatsError, StatsFile},
        metrics::{
            Exposition,
            server::{Listening, MetricsError, MetricsServer},
        },
        read::PortTotals,
    },
    tables::{Tables, publish::Publisher},
};

use ports::{Opener, Ports, PortsConfig};
use watchdog::{Health, Watchdog};

pub mod confine;
pub mod in_front;
pub mod machine;
pub mod ports;
mod sub_ports;
pub mod threads;
pub mod watchdog;

use confine::{Confinement, UserError};

/// The TUN device by which a worker hands packets up to the host's stack.
#[cfg(target_os = "linux")]
const TUN: &str = "sweepd%d";

/// Messages from workers that may wait for the keeper.
const TO_KEEPER: usize = 4096;

/// Why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// A device cannot be opened.
    #[error(transparent)]
    Device(#[from] OpenError),
    /// The counters cannot be kept.
    #[error(transparent)]
    Stats(#[from] StatsError),
    /// The kernel cannot be kept from forwarding.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
    /// What only shows when all of the configuration is put together.
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    /// The keeper cannot start.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The control socket cannot be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The daemon cannot become another user's.
    #[error(transparent)]
    User(#[from] UserError),
    /// The runtime directory cannot be made.
    #[error("cannot make {path} ({source}); make it, or set [daemon] runtime_dir")]
    RuntimeDir {
        /// Which.
        path: std::path::PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// `[daemon] cpus` names a core that is not there.
    #[error("daemon.cpus: {}", machine::no_core(*core, *cores))]
    NoCore {
        /// The core named.
        core: usize,
        /// How many there are.
        cores: usize,
    },
    /// `[daemon] socket_owner` or `socket_group` names nobody.
    #[error("daemon.{key}: {reason}")]
    NoAccount {
        /// The key.
        key: &'static str,
        /// What is not there.
        reason: String,
    },
    /// No memory, threads or descriptors.
    #[error("cannot start: {0}{hint}", hint = remedy(.0))]
    System(#[from] io::Error),
}

/// What to do where the system has no more of something.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => "; set fewer [daemon] flows, or let it have more memory",
        Some(libc::EMFILE) => "; let it open more files (ulimit -n)",
        Some(libc::EAGAIN) => "; let it start more threads (ulimit -u)",
        _ => "",
    }
}

impl DaemonError {
    /// The exit code that goes with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoCore { .. } | Self::NoAccount { .. } | Self::Config(_) => 2,
            Self::User(e) if e.is_usage() => 2,
            _ => 1,
        }
    }
}

/// Where the counters are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counters {
    /// In the runtime directory, for other processes to read.
    File,
    /// In memory.
    Memory,
}

/// A running daemon. Dropping it stops it.
pub struct Daemon {
    // In the order in which they must end: nobody asks any more, then packets stop, then the
    // devices close.
    control: Option<ControlSocket>,
    metrics: Option<MetricsServer>,
    watchdog: Watchdog,
    workers: threads::Workers,
    keeper: Keeper,
    // After the keeper, so that nothing is waited for that it would still do.
    ports: Ports,
    reloader: Option<Reloader>,
    comparison: Comparison,
    stats: Arc<StatsFile>,
    notices: Receiver<Notice>,
    barrier: Option<Barrier>,
}

impl Daemon {
    /// Opens the ports and starts the workers. Returns when packets are being forwarded.
    ///
    /// `file` is where the configuration was read from, and is read again when it changes or
    /// somebody asks for that.
    ///
    /// # Errors
    /// [`DaemonError`]; everything that was opened is closed again.
    pub fn start(
        config: &Config,
        counters: Counters,
        follow_kernel: bool,
        file: Option<&Path>,
    ) -> Result<Self, DaemonError> {
        Self::start_confined(config, counters, follow_kernel, file, Confinement::None)
    }

    /// As [`Daemon::start`], and gives up what is not needed once the ports are open. What it says
    /// of the process holds for this thread and for those that it starts.
    ///
    /// # Errors
    /// As for [`Daemon::start`]; the process may have given up something already.
    pub fn start_confined(
        config: &Config,
        counters: Counters,
        follow_kernel: bool,
        file: Option<&Path>,
        confinement: Confinement,
    ) -> Result<Self, DaemonError> {
        Self::start_with(config, counters, follow_kernel, file, confinement, Arc::new(device::open_all))
    }

    /// As [`Daemon::start_confined`], with devices that `open` opens.
    ///
    /// # Errors
    /// As for [`Daemon::start_confined`].
    pub fn start_with(
        config: &Config,
        counters: Counters,
        follow_kernel: bool,
        file: Option<&Path>,
        confinement: Confinement,
        open: Opener,
    ) -> Result<Self, DaemonError> {
        let available = std::thread::available_parallelism().map_or(1, |n| n.get());
        check_cores(config, machine::core_count())?;
        let user = confinement.user(config)?;
        let numbers = setup::numbers(config);
        let acl = setup::acl(config, &numbers)?;
        if follow_kernel {
            in_front::doubts(config).iter().for_each(|doubt| log::warn!("{doubt}"));
        }
        let socket = open_socket(config, counters)?;
        let listening = open_metrics(config, counters)?;
        let barrier = raise_barrier(config, counters)?;
        let ports = open_ports(config, &open)?;
        let count = match &config.daemon.cpus {
            Some(cpus) => cpus.len().max(1),
            None => default_workers(&ports, available),
        };
        let names: Vec<String> = config.ports.iter().map(|p| p.name.clone()).collect();
        let stats = open_counters(config, counters, &names, count)?;
        let specs: Vec<PortSpec> =
            config.ports.iter().zip(&ports).map(|(c, p)| setup::port_spec(c, &p.info, &p.host)).collect();
        let rings: Vec<usize> = ports.iter().map(|p| p.rx.len()).collect();
        let sub_ports = sub_ports::keeper_ports(config, &numbers, &ports, &stats);
        let up = open_way_up(ports.iter());
        let has_way_up = up.is_some();
        confinement.enter(config, user.as_ref())?;
        let (publisher, readers) = Publisher::try_new(Tables::new, count)?;
        let (to_keeper, from_workers) = bounded(TO_KEEPER);
        let patience = match config.daemon.idle {
            Idle::Spin => Patience::Spin,
            Idle::Adaptive => Patience::Adaptive,
        };
        let mut assembly = assemble(ports, up, &stats, readers, &to_keeper, patience)?;
        if config.daemon.flows != DEFAULT_FLOWS {
            assembly.make_room(config.daemon.flows)?;
        }
        let (notify, notices) = crossbeam_channel::unbounded();
        let Assembly { workers, links, ports } = assembly;
        let keeper_ports =
            specs.into_iter().zip(ports).zip(rings).enumerate().map(|(id, ((spec, port), rings))| {
                KeeperPort {
                    spec,
                    device: port.info.device,
                    mode: port.info.mode,
                    rings,
                    control: port.control,
                    block: stats.block(stats.keeper(), id),
                }
            });
        let keeper_ports = keeper_ports.chain(sub_ports);
        let keeper_config = KeeperConfig {
            follow: if follow_kernel { setup::follow(config) } else { None },
            routes: setup::static_routes(config, &numbers),
            neighbors: setup::static_neighbors(config, &numbers),
            icmp: config.daemon.icmp,
            source_routes: config.daemon.source_routes,
            acl,
            translation: Translation::new(config, &numbers),
            hash_seed: random_seed()?,
            ..KeeperConfig::new(keeper_ports.collect())
        };
        let lines = links.iter().map(|link| {
            let bell = link.bell.clone();
            WorkerLine { commands: link.commands.clone(), call: Box::new(move || bell.call()) }
        });
        let keeper = start_keeper(keeper_config, publisher, from_workers, lines.collect(), notify)?;
        let cores = threads::cores(config.daemon.cpus.as_deref(), count, available);
        let ways = links.clone();
        let (to_workers, changer) = (links.clone(), keeper.changer());
        let workers = threads::start(workers, links, &cores, confinement)?;
        log::info!(
            "{} {}, {count} {}: forwarding",
            names.len(),
            if names.len() == 1 { "port" } else { "ports" },
            if count == 1 { "worker" } else { "workers" }
        );
        let stats = Arc::new(stats);
        let watchdog = Watchdog::start(to_workers.clone())?;
        let (pass_on, passed_on) = crossbeam_channel::unbounded();
        let comparison = Comparison::start(keeper.queries())?;
        let ports = Ports::start(PortsConfig {
            open,
            follow_kernel,
            open_ports: (0..).zip(config.ports.iter().cloned()).collect(),
            links: to_workers,
            changer,
            stats: stats.clone(),
            notices,
            pass_on,
            has_way_up,
        })?;
        // From here on, whatever fails, all of it ends in the right order.
        let mut daemon = Self {
            control: None,
            metrics: None,
            watchdog,
            workers,
            keeper,
            ports,
            reloader: None,
            comparison,
            stats,
            notices: passed_on,
            barrier,
        };
        if let Some(file) = file {
            let force = Box::new(daemon.ports.requests());
            daemon.reloader = Some(Reloader::start(file, config.clone(), force, daemon.barrier.clone())?);
        }
        let reloads = daemon.reloader.as_ref().map(Reloader::reloads);
        if let Some(socket) = socket {
            daemon.control = Some(socket.serve(daemon.answerer(ways, reloads.clone()))?);
        }
        if let Some(socket) = listening {
            let health = daemon.watchdog.health();
            let others = metrics::Others {
                reloads,
                flows: config.daemon.flows as u64,
                health: Box::new(move || (health.faults_of_each(), health.stalls())),
            };
            let source = metrics::source(daemon.keeper.queries(), others);
            let mut exposition = Exposition::new(daemon.stats.clone(), source);
            daemon.metrics = Some(socket.serve(move || exposition.text())?);
        }
        if confinement == Confinement::Full {
            confine::restrict_descriptors();
        }
        Ok(daemon)
    }

    /// What answers the control socket's clients.
    fn answerer(&self, workers: Vec<WorkerLink>, reloads: Option<Reloads>) -> Answerer {
        Answerer {
            queries: self.keeper.queries(),
            stats: self.stats.clone(),
            reloads,
            differ: self.comparison.differ(),
            workers,
            captures: Captures::default(),
            health: Box::new({
                let health = self.watchdog.health();
                move || (health.faults(), health.stalls())
            }),
        }
    }

    /// What the daemon has to say: captures that ended.
    pub fn notices(&self) -> &Receiver<Notice> {
        &self.notices
    }

    /// Has the configuration read again, if it came from a file; the log says how that went.
    pub fn reload(&self, trigger: Trigger) {
        if let Some(reloader) = &self.reloader {
            // Nobody waits for the outcome.
            drop(reloader.reloads().ask(trigger));
        }
    }

    /// The keeper, to be asked.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// The counters.
    pub fn stats(&self) -> &Arc<StatsFile> {
        &self.stats
    }

    /// What keeps the kernel from forwarding between the ports when this daemon does not. It stays
    /// when the daemon ends, until it is taken away.
    pub fn barrier(&self) -> Option<&Barrier> {
        self.barrier.as_ref()
    }

    /// How often a worker met a fault of its own and was restarted.
    pub fn faults(&self) -> u64 {
        self.health().faults()
    }

    /// How often a worker was found to hang.
    pub fn stalls(&self) -> u64 {
        self.health().stalls()
    }

    fn health(&self) -> Health {
        self.watchdog.health()
    }

    /// Whether all workers still run.
    pub fn workers_alive(&self) -> bool {
        self.workers.all_alive()
    }

    /// Whether every worker has swept since this was asked last.
    pub fn workers_sweep(&self) -> bool {
        self.workers.all_sweep()
    }

    /// Waits until every worker has said that its inputs have ended, or `until`. Gives whether
    /// all have.
    pub fn wait_finished(&self, until: Instant) -> bool {
        let mut waiting: Vec<bool> = vec![true; self.workers.count()];
        while waiting.contains(&true) {
            match self.notices.recv_deadline(until) {
                Ok(Notice::Finished { worker }) => {
                    if let Some(waits) = waiting.get_mut(worker) {
                        *waits = false;
                    }
                }
                Ok(Notice::PortGone { .. } | Notice::PortSeen { .. }) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Stops: packets first, then the devices are closed. Gives the last counters, and
    /// what each device says that it has lost.
    pub fn stop(self) -> Vec<(PortTotals, netmap::Losses)> {
        let Self {
            control,
            metrics,
            watchdog,
            mut workers,
            keeper,
            ports,
            reloader,
            comparison,
            stats,
            notices,
            barrier: _,
        } = self;
        drop((control, metrics, watchdog));
        workers.stop();
        drop(notices);
        let mut controls = keeper.stop();
        // The thread that waits for another goes first.
        drop((reloader, ports, comparison));
        stats.snapshot().into_iter().zip(controls.iter_mut().map(|control| control.losses())).collect()
    }
}

fn check_cores(config: &Config, cores: usize) -> Result<(), DaemonError> {
    let missing = config.daemon.cpus.iter().flatten().copied().find(|&core| core >= cores);
    missing.map_or(Ok(()), |core| Err(DaemonError::NoCore { core, cores }))
}

/// Keeps the kernel from forwarding between the ports, before the first of them opens, or lets it,
/// as the configuration says; whatever an earlier daemon has left.
fn raise_barrier(config: &Config, counters: Counters) -> Result<Option<Barrier>, DaemonError> {
    if counters == Counters::Memory {
        return Ok(None);
    }
    let (barrier, interfaces) = (Barrier::new(&config.daemon.runtime_dir), config.interfaces());
    if config.daemon.on_exit == OnExit::Drop && !interfaces.is_empty() {
        barrier.raise(&interfaces)?;
    } else if let Err(e) = barrier.lower() {
        log::warn!("an earlier sweepd has left the kernel's forwarding closed: {e}");
    }
    Ok(Some(barrier))
}

fn open_ports(config: &Config, open: &Opener) -> Result<Vec<Port>, DaemonError> {
    let with_device = config.ports.iter().filter(|port| port.sub.is_none());
    let requests: Vec<(DeviceSpec, OpenOptions)> = with_device.map(sub_ports::open_request).collect();
    let ports = open(&requests)?;
    for (port, config) in ports.iter().zip(&config.ports) {
        let rings = port.rx.len().max(port.tx.len());
        log::info!(
            "{}: {} ({}, {rings} {})",
            config.name,
            port.info.device,
            port.info.mode,
            if rings == 1 { "ring" } else { "rings" }
        );
    }
    Ok(ports)
}

/// Takes the control socket's name, before any port is touched: only one daemon can have it.
fn open_socket(config: &Config, counters: Counters) -> Result<Option<Bound>, DaemonError> {
    if counters == Counters::Memory {
        return Ok(None);
    }
    let access = access(config)?;
    make_runtime_dir(&config.daemon.runtime_dir)?;
    Ok(Some(Bound::new(&config.daemon.runtime_dir.join(CONTROL_SOCKET), access)?))
}

/// Who may use the control socket, by the configuration.
fn access(config: &Config) -> Result<Access, DaemonError> {
    let wrong = |key| move |reason| DaemonError::NoAccount { key, reason };
    let (owner, group) = (config.daemon.socket_owner.as_deref(), config.daemon.socket_group.as_deref());
    Ok(Access {
        owner: owner.map(machine::user).transpose().map_err(wrong("socket_owner"))?,
        group: group.map(machine::group).transpose().map_err(wrong("socket_group"))?,
    })
}

/// Takes the address for metrics, before any port is touched as well.
fn open_metrics(config: &Config, counters: Counters) -> Result<Option<Listening>, DaemonError> {
    let Some(address) = config.daemon.metrics.filter(|_| counters == Counters::File) else {
        return Ok(None);
    };
    let listening = Listening::on(address)?;
    log::info!("metrics are at http://{}/metrics", listening.address());
    Ok(Some(listening))
}

fn open_counters(
    config: &Config,
    counters: Counters,
    names: &[String],
    workers: usize,
) -> Result<StatsFile, DaemonError> {
    if counters == Counters::Memory {
        return Ok(StatsFile::anonymous(names, workers)?);
    }
    Ok(StatsFile::create(&config.daemon.runtime_dir.join(STATS_FILE), names, workers)?)
}

/// Makes the directory for the daemon's files, if it is not there.
///
/// # Errors
/// [`DaemonError::RuntimeDir`].
fn make_runtime_dir(path: &Path) -> Result<(), DaemonError> {
    std::fs::create_dir_all(path).map_err(|source| DaemonError::RuntimeDir { path: path.to_owned(), source })
}

/// The way up to the host's stack for ports whose device has none of its own. Without it the
/// router works; only what a worker would hand up is lost, and counted.
#[cfg(target_os = "linux")]
fn open_way_up<'a>(ports: impl Iterator<Item = &'a Port>) -> Option<TxQueue> {
    let kernel = ports.filter(|p| matches!(p.host, Host::Kernel));
    let mtu = kernel.map(|p| p.info.max_frame.saturating_sub(14)).max()?;
    match device::tun::open(TUN, mtu) {
        Ok(tun) => Some(tun.queue),
        Err(e) => {
            log::warn!("{e}; packets through devices that are no ports are dropped");
            None
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn open_way_up<'a>(_ports: impl Iterator<Item = &'a Port>) -> Option<TxQueue> {
    None
}

fn random_seed() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}

fn start_keeper(
    config: KeeperConfig,
    publisher: Publisher<Tables>,
    from_workers: Receiver<ToKeeper>,
    lines: Vec<WorkerLine>,
    notify: crossbeam_channel::Sender<Notice>,
) -> Result<Keeper, KeeperError> {
    Keeper::start(config, publisher, from_workers, lines, notify)
}

/// Devices that read captures instead of the network, for `replay`.
pub fn capture_device(input: Option<&Path>, output: Option<&Path>) -> DeviceSpec {
    let input = input.map(Path::to_owned).unwrap_or_default();
    let device = Device::Pcap { input, output: output.map(Path::to_owned) };
    DeviceSpec { device, rings: None, slots: None }
}

/// How long `replay` waits for packets that are held.
pub const REPLAY_PATIENCE: Duration = Duration::from_secs(3600);
