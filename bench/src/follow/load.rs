//! What a packet costs in the worker's loop while routes come by the hundred thousand.
//!
//! The worker is the [rig](crate::rig)'s, on a core of its own, with packets in memory and nothing
//! else in the way; its tables come from a keeper as the daemon has it, which follows the kernel of
//! a namespace on the other cores, beside the program that sets the routes there. The packets go to
//! prefixes that have routes all the time, so that they cost the same but for what the keeper does
//! to caches, memory and tables.

use std::{
    io,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{bounded, unbounded};
use ipnet::IpNet;
use sweepd::{
    control::{
        Keeper, KeeperConfig, KeeperPort, WorkerLine,
        diff::Comparison,
        kernel::{self, KernelEvent, KernelSource, Part, Report},
        rib::PortSpec,
    },
    daemon::threads::pin,
    forward::{assembly::Assembly, burst::Burst},
    tables::{Tables, prefixes::Prefixes4, publish::Publisher},
};

use super::{
    Follow, FullTables,
    figures::Figures,
    rtnetlink::Routes,
    space::{Space, Ways},
    storm,
};
use crate::{
    cycles::{self, Spread},
    plot::{self, Series},
    rig::{self, Headers, Rig},
    traffic::{self, Frame},
};

/// Packets in a sweep.
const SWEEP: u32 = 256;
/// Flows, each to a prefix of its own.
const FLOWS: usize = 100_000;
/// How long nothing is done where nothing is to be done.
const IDLE: Duration = Duration::from_secs(4);
/// Points of the plot lie so far apart.
const STEP: Duration = Duration::from_millis(100);
/// An address that nobody needs.
const SPARE: &str = "127.0.0.2/32 dev lo";
/// A packet may cost so much more than when nothing is done.
const GOAL: f64 = 1.3;

/// What goes on, in order: with each second one nothing changes, so that what is done stands between
/// two times when nothing is.
const PHASES: [(&str, &str); 7] = [
    ("half", "half of the table is there"),
    ("load", "the other half is loaded"),
    ("idle", "nothing changes"),
    ("listing", "everything is listed again"),
    ("idle2", "nothing changes"),
    ("storm", "a storm of changes"),
    ("idle3", "nothing changes"),
];

/// A timed sweep.
#[derive(Clone, Copy)]
pub struct Sample {
    phase: usize,
    at: Duration,
    /// For one packet.
    cycles: f64,
    headers: Headers,
}

/// The router's namespace, with an interface for each of the rig's ports.
fn place() -> io::Result<(Space, Ways)> {
    let router = Space::new("follow", "load")?;
    let mut ways = Vec::new();
    for (n, name) in rig::names().into_iter().enumerate() {
        router.ip(&format!("link add {name} type veth peer name far{n}"))?;
        router.ip(&format!("link set {name} up"))?;
        router.ip(&format!("link set far{n} up"))?;
        if n > 0 {
            ways.push((name, format!("02:00:00:00:02:{n:02}")));
        }
    }
    router.ip(&format!("addr add {SPARE}"))?;
    let ways = Ways::new(ways);
    ways.prepare(&router)?;
    Ok((router, ways))
}

/// Listings of all routes that have ended.
static LISTINGS: AtomicUsize = AtomicUsize::new(0);

/// Counts the listings that pass.
struct Counting(Box<dyn KernelSource>);

impl KernelSource for Counting {
    fn wait(&mut self, out: &mut Vec<Report>) -> io::Result<bool> {
        let goes_on = self.0.wait(out)?;
        let ends = |report: &&Report| {
            matches!(report.event, KernelEvent::DumpEnd { part: Part::Routes6, complete: true })
        };
        LISTINGS.fetch_add(out.iter().filter(ends).count(), Ordering::Relaxed);
        Ok(goes_on)
    }
}

fn open(follow: kernel::Follow) -> io::Result<kernel::Opened> {
    let (source, commands) = kernel::open(follow)?;
    Ok((Box::new(Counting(source)), commands))
}

/// A keeper that follows this thread's kernel, and the rig whose worker reads what it publishes.
fn keeper() -> io::Result<(Keeper, Rig)> {
    let (publisher, readers) = Publisher::try_new(Tables::new, 1)?;
    let (to_keeper, from_workers) = bounded(4096);
    let (rig, Assembly { links, .. }) = Rig::read(readers, &to_keeper)?;
    let ports = rig::names().into_iter().enumerate().map(|(id, name)| KeeperPort {
        spec: PortSpec {
            name: name.clone(),
            interface: Some(name),
            mac: Some([2, 0, 0, 0, id as u8, 1]),
            max_len: 2034,
            ..PortSpec::default()
        },
        device: "rig".into(),
        mode: "rig".into(),
        rings: 1,
        control: Box::new(rig::Nothing),
        block: rig.stats.block(rig.stats.keeper(), id),
    });
    let mut config = KeeperConfig::new(ports.collect());
    config.follow = Some(kernel::Follow { table: Some(254) });
    config.open = open;
    // No listing comes but those that are asked for.
    config.reconcile = Duration::from_secs(86_400);
    let lines = links
        .into_iter()
        .map(|link| WorkerLine { commands: link.commands.clone(), call: Box::new(move || link.bell.call()) });
    let keeper = Keeper::start(config, publisher, from_workers, lines.collect(), unbounded().0);
    Ok((keeper.map_err(io::Error::other)?, rig))
}

/// Measures; gives every sweep.
///
/// # Errors
/// The system's.
pub fn measure(follow: &Follow, tables: &FullTables, figures: &mut Figures) -> io::Result<Vec<Sample>> {
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    if cores < 2 {
        println!("SKIPPED: the loop's cycles under load, which take two cores");
        return Ok(Vec::new());
    }
    let (router, ways) = place()?;
    // In table order a half would be a half of the address space: every second prefix instead.
    let half = |odd: usize| tables.v4.iter().skip(odd).step_by(2);
    let mut lines = String::new();
    half(0).for_each(|route| ways.line4(route, &mut lines));
    tables.v6.iter().for_each(|route| ways.line6(route, &mut lines));
    router.batch(&lines)?;
    lines.clear();
    half(1).for_each(|route| ways.line4(route, &mut lines));
    let flows: Prefixes4 = half(0).filter(|(address, ..)| is_routed(*address)).collect();
    // A thread of its own, since it moves to another namespace, and to the cores that are left.
    let samples = thread::scope(|scope| {
        let run = || -> io::Result<Vec<Sample>> {
            leave_last_core(cores)?;
            router.enter()?;
            let (keeper, mut rig) = keeper()?;
            let flapping = tables.between();
            rig.set_flows(frames(&flows, &flapping), Headers::Cached);
            let samples = phases(&router, &lines, &mut rig, cores - 1, || {
                let mut routes = Routes::open();
                storm(&mut routes, flapping, ways.gateways(), follow.changes);
            })?;
            let comparison = Comparison::start(keeper.queries())?;
            let differences = comparison.differ().ask().recv().map_err(io::Error::other)?;
            drop(comparison);
            match differences {
                Ok(rows) if rows.is_empty() => Ok(samples),
                other => Err(io::Error::other(format!("kernel, RIB and FIB differ: {other:?}"))),
            }
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    report(&samples, figures);
    Ok(samples)
}

/// The packets: to none of the prefixes that flap, as these may be black holes for a while.
fn frames(flows: &Prefixes4, flapping: &[IpNet]) -> Vec<Frame> {
    let nets = flapping.iter().filter_map(|net| match net {
        IpNet::V4(net) => Some((u32::from(net.network()), net.prefix_len(), 1)),
        IpNet::V6(_) => None,
    });
    let flapping: Prefixes4 = nets.collect();
    let to = |frame: &Frame| u32::from_be_bytes([frame.0[30], frame.0[31], frame.0[32], frame.0[33]]);
    let mut frames = traffic::frames4(flows, 2 * FLOWS, 11);
    frames.retain(|frame| flapping.longest_match(to(frame)).is_none());
    frames.truncate(FLOWS);
    frames
}

/// Whether packets to it are forwarded at all.
fn is_routed(address: u32) -> bool {
    !matches!(address >> 24, 0 | 10 | 127 | 224..) && address >> 16 != 0xa9fe
}

/// Does what is to be done in each phase while the worker sweeps.
fn phases(
    router: &Space,
    lines: &str,
    rig: &mut Rig,
    core: usize,
    storm: impl FnOnce(),
) -> io::Result<Vec<Sample>> {
    let (phase, done) = (&AtomicUsize::new(0), &AtomicBool::new(false));
    thread::scope(|scope| {
        let worker = scope.spawn(move || sweep(rig, core, phase, done));
        let idle = |number: usize| {
            phase.store(number, Ordering::Relaxed);
            thread::sleep(IDLE);
            phase.store(number + 1, Ordering::Relaxed);
        };
        let run = || -> io::Result<()> {
            idle(0);
            router.batch(lines)?;
            idle(2);
            let before = LISTINGS.load(Ordering::Relaxed);
            // After an address has gone, the kernel is asked for all routes.
            router.ip(&format!("addr del {SPARE}"))?;
            while LISTINGS.load(Ordering::Relaxed) == before {
                thread::sleep(STEP / 100);
            }
            idle(4);
            storm();
            idle(6);
            Ok(())
        };
        let result = run();
        done.store(true, Ordering::Relaxed);
        let samples = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        result.and(samples)
    })
}

/// Sweeps until told to stop, and times each sweep.
fn sweep(rig: &mut Rig, core: usize, phase: &AtomicUsize, done: &AtomicBool) -> io::Result<Vec<Sample>> {
    pin(core)?;
    let (mut samples, mut burst) = (Vec::new(), Burst::default());
    let start = Instant::now();
    let mut lost = 0;
    for round in 0u64.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        if rig.worker.bell.was_called() {
            rig.worker.obey();
        }
        let headers = if round % 2 == 0 { Headers::Cached } else { Headers::Memory };
        rig.set_headers(headers);
        rig.refill(SWEEP);
        let began = cycles::now();
        let swept = rig.worker.sweep(&mut burst);
        let took = cycles::now() - began;
        lost += SWEEP - swept.packets;
        samples.push(Sample {
            phase: phase.load(Ordering::Relaxed),
            at: start.elapsed(),
            cycles: took as f64 / f64::from(SWEEP),
            headers,
        });
    }
    // The keeper waits for nobody any more.
    rig.worker.reader.offline();
    let totals = rig.stats.snapshot();
    let (received, sent) =
        totals.iter().fold((0, 0), |(r, s), port| (r + port.rx_packets, s + port.tx_packets));
    if lost > 0 || received != sent {
        return Err(io::Error::other(format!("of {received} packets only {sent} were forwarded")));
    }
    Ok(samples)
}

/// Leaves the last core to the worker.
fn leave_last_core(cores: usize) -> io::Result<()> {
    let mut set = nix::sched::CpuSet::new();
    for core in 0..cores - 1 {
        set.set(core)?;
    }
    Ok(nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)?)
}

fn report(samples: &[Sample], figures: &mut Figures) {
    println!("\ncycles per packet in the worker's loop (TSC), {FLOWS} flows, sweeps of {SWEEP}");
    println!("{:8} {:28} {:>24}  times idle", "headers", "", "median (10th to 90th)");
    for (headers, name) in [(Headers::Cached, "cache"), (Headers::Memory, "memory")] {
        let spreads: Vec<Spread> = (0..PHASES.len()).map(|phase| spread(samples, phase, headers)).collect();
        for (phase, (key, what)) in PHASES.into_iter().enumerate() {
            let (median, all) = (spreads[phase].median, spreads[phase].to_string());
            if phase % 2 == 0 {
                println!("{name:8} {what:28} {all:>24}");
                let what = format!("cycles a packet, headers in the {name}: {what}");
                figures.add(&format!("cycles_{name}_{key}"), &what, median, "");
                continue;
            }
            let ratio = 2.0 * median / (spreads[phase - 1].median + spreads[phase + 1].median);
            println!("{name:8} {what:28} {all:>24}  {ratio:.2}");
            let what = format!("{what}: times as before and after");
            figures.add_with_goal(&format!("cycles_{name}_{key}_ratio"), &what, ratio, "", GOAL);
        }
    }
}

fn spread(samples: &[Sample], phase: usize, headers: Headers) -> Spread {
    let of = samples.iter().filter(|s| s.phase == phase && s.headers == headers);
    let cycles: Vec<f64> = of.map(|sample| sample.cycles).collect();
    if cycles.is_empty() { Spread { median: 0.0, low: 0.0, high: 0.0 } } else { Spread::of(cycles) }
}

/// Draws the cycles over time.
///
/// # Errors
/// When the file cannot be written.
pub fn plot(samples: &[Sample], path: &Path) -> io::Result<()> {
    let mut series = Vec::new();
    for headers in [Headers::Memory, Headers::Cached] {
        for (phase, (_, what)) in PHASES.into_iter().enumerate() {
            let of: Vec<_> = samples.iter().filter(|s| s.phase == phase && s.headers == headers).collect();
            let steps = of.chunk_by(|a, b| step_of(a) == step_of(b));
            let points = steps.map(|step| {
                let median = Spread::of(step.iter().map(|sample| sample.cycles).collect()).median;
                (step[0].at.as_secs_f64(), median)
            });
            let named = headers == Headers::Memory && phase < 6 && phase != 4;
            let name = if named { what.into() } else { String::new() };
            series.push(Series { name, points: points.collect() });
        }
    }
    let title = "cycles per packet: headers in memory (above) and in the cache (below)";
    plot::over_time(path, title, "cycles", &series, PHASES.len())
}

fn step_of(sample: &Sample) -> u128 {
    sample.at.as_nanos() / STEP.as_nanos()
}
