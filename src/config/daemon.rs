//! `[daemon]` and `[kernel]`: how the program runs, and what it takes from the kernel.

use std::{net::SocketAddr, path::PathBuf};

use toml::de::DeValue;

use super::{
    problem::Problems,
    reader::{Placed, Reader, refuse_twice},
    support::{Feature, Uses},
    value,
};
use crate::tables::IcmpLimit;

/// Where the control socket and the counters are, unless the file says otherwise.
pub const RUNTIME_DIR: &str = "/var/run/sweepd";

/// The kernel's table that is followed, unless the file says otherwise: Linux's main table.
#[cfg(not(target_os = "freebsd"))]
pub const KERNEL_TABLE: u32 = 254;
/// The kernel's table that is followed, unless the file says otherwise: the first FIB.
#[cfg(target_os = "freebsd")]
pub const KERNEL_TABLE: u32 = 0;

/// Flows that a worker has room for, unless the file says otherwise.
pub const DEFAULT_FLOWS: usize = 1 << 21;
/// Most flows that the file may ask for.
const MAX_FLOWS: i64 = 8_000_000;

/// `[daemon]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Daemon {
    /// The cores of the workers, one each; `None`: chosen at start.
    pub cpus: Option<Vec<usize>>,
    /// Where the control socket and the counters are; absolute.
    pub runtime_dir: PathBuf,
    /// The user whose the control socket is, by name or number; `None`: the daemon's.
    pub socket_owner: Option<String>,
    /// The group that may use the control socket too, by name or number; `None`: the owner alone.
    pub socket_group: Option<String>,
    /// The user to become once the ports are open.
    pub user: Option<String>,
    /// Where to serve OpenMetrics.
    pub metrics: Option<SocketAddr>,
    /// What the kernel does with the ports afterwards.
    pub on_exit: OnExit,
    /// What a worker without packets does.
    pub idle: Idle,
    /// How many ICMP errors a worker may send.
    pub icmp: IcmpLimit,
    /// Whether IPv4 source routes are followed.
    pub source_routes: bool,
    /// Flows that each worker has room for.
    pub flows: usize,
}

impl Default for Daemon {
    fn default() -> Self {
        Self {
            cpus: None,
            runtime_dir: RUNTIME_DIR.into(),
            socket_owner: None,
            socket_group: None,
            user: None,
            metrics: None,
            on_exit: OnExit::Forward,
            idle: Idle::Adaptive,
            icmp: IcmpLimit::default(),
            source_routes: false,
            flows: DEFAULT_FLOWS,
        }
    }
}

/// What the kernel does with packets between the ports once the daemon is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnExit {
    /// It forwards them, if it is set to forward.
    Forward,
    /// It drops them.
    Drop,
}

/// What a worker does that finds no packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Looks again at once: lowest latency, a whole core.
    Spin,
    /// Sleeps until packets come.
    Adaptive,
}

/// `[kernel]`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// Whether to follow the kernel's routes.
    pub routes: bool,
    /// Which of its tables: on Linux the table's id, on FreeBSD the FIB's number.
    pub table: u32,
}

impl Default for Kernel {
    fn default() -> Self {
        Self { routes: true, table: KERNEL_TABLE }
    }
}

/// Reads `[daemon]`; gives it, and `on_exit` if it is in the file.
pub(super) fn read_daemon(
    section: &Reader<'_>,
    problems: &mut Problems<'_>,
    uses: &mut Uses,
) -> (Daemon, Option<OnExit>) {
    let cpus = section.list(problems, "cpus", |v| value::integer(v, 0..=4095));
    if let Some(cpus) = &cpus {
        refuse_twice(problems, &section.path("cpus"), cpus);
    }
    let socket_owner = section.read(problems, "socket_owner", |v| account(v, "user"));
    let socket_group = section.read(problems, "socket_group", |v| account(v, "group"));
    let user = section.read(problems, "user", |v| account(v, "user"));
    let metrics = section.read(problems, "metrics", value::socket_address);
    let words = [("forward", OnExit::Forward), ("drop", OnExit::Drop)];
    let on_exit = section.read(problems, "on_exit", |v| value::choice(v, &words));
    let words = [("adaptive", Idle::Adaptive), ("spin", Idle::Spin)];
    let idle = section.read(problems, "idle", |v| value::choice(v, &words));
    let runtime_dir = read_runtime_dir(section, problems);
    let usual = IcmpLimit::default();
    let icmp = IcmpLimit {
        rate: read_count(section, problems, "icmp_rate").unwrap_or(usual.rate),
        burst: read_count(section, problems, "icmp_burst").unwrap_or(usual.burst),
    };
    let flows = section.read(problems, "flows", |v| value::integer(v, 1024..=MAX_FLOWS));
    let source_routes = section.read(problems, "source_routes", value::boolean);
    let mut note = |feature, used: bool, key: &str| {
        if used {
            uses.note(problems, feature, section.place(key), section.path(key));
        }
    };
    note(Feature::User, user.is_some(), "user");
    note(Feature::Metrics, metrics.is_some(), "metrics");
    let on_exit = on_exit.map(|placed| placed.value);
    let daemon = Daemon {
        cpus: cpus.map(|cpus| cpus.iter().filter_map(|cpu| usize::try_from(cpu.value).ok()).collect()),
        runtime_dir,
        socket_owner: socket_owner.map(|placed| placed.value),
        socket_group: socket_group.map(|placed| placed.value),
        user: user.map(|placed| placed.value),
        metrics: metrics.map(|placed| placed.value),
        on_exit: on_exit.unwrap_or(OnExit::Forward),
        idle: idle.map_or(Idle::Adaptive, |placed| placed.value),
        icmp,
        source_routes: source_routes.is_some_and(|placed| placed.value),
        flows: flows.and_then(|placed| usize::try_from(placed.value).ok()).unwrap_or(DEFAULT_FLOWS),
    };
    (daemon, on_exit)
}

/// Reads how many of something there may be.
fn read_count(section: &Reader<'_>, problems: &mut Problems<'_>, key: &str) -> Option<u32> {
    let count = section.read(problems, key, |v| value::integer(v, 0..=1_000_000))?;
    u32::try_from(count.value).ok()
}

/// The name or the number of a user or a group.
fn account(value: &DeValue<'_>, what: &str) -> Result<String, String> {
    match value::text(value)? {
        name if value::is_name(name, 32) || value::is_name(name.trim_start_matches('_'), 31) => {
            Ok(name.into())
        }
        name => {
            Err(format!("{name:?} is no {what}'s name; write one that this machine knows, or its number"))
        }
    }
}

/// Reads `daemon.runtime_dir` alone.
pub(super) fn read_runtime_dir(section: &Reader<'_>, problems: &mut Problems<'_>) -> PathBuf {
    // A Unix socket's address holds 104 bytes on FreeBSD, 108 on Linux, with the zero at the end.
    const LONGEST: usize = 103 - "/control.sock".len();
    let absolute = |v: &DeValue<'_>| match value::text(v)? {
        path if path.contains('\0') => Err("a path cannot contain a zero byte; remove it".into()),
        path if !path.starts_with('/') => {
            Err(format!("{path:?} is not absolute; write the whole path, as {RUNTIME_DIR:?}"))
        }
        path if path.len() > LONGEST => {
            Err(format!("{} bytes are too long for a socket; use {LONGEST} at most", path.len()))
        }
        path => Ok(PathBuf::from(path)),
    };
    section.read(problems, "runtime_dir", absolute).map_or_else(|| RUNTIME_DIR.into(), |p: Placed<_>| p.value)
}

/// Reads `[kernel]`.
pub(super) fn read_kernel(section: &Reader<'_>, problems: &mut Problems<'_>) -> Kernel {
    let routes = section.read(problems, "routes", value::boolean);
    let table = section.read(problems, "table", |v| {
        if cfg!(target_os = "freebsd") {
            return value::integer(v, 0..=65535);
        }
        match value::integer(v, 1..=i64::from(u32::MAX))? {
            255 => Err("255 is the kernel's table of local addresses; 254 is the main table".into()),
            table => Ok(table),
        }
    });
    let ours = Kernel::default();
    Kernel {
        routes: routes.map_or(ours.routes, |placed| placed.value),
        table: table.and_then(|placed| u32::try_from(placed.value).ok()).unwrap_or(ours.table),
    }
}
