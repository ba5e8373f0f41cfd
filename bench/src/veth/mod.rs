//! `sweepd-bench veth`: routers of every kind on the same veth pairs, with the same generator and the
//! same tables, in turn.
//!
//! A sender, a router and a sink are network namespaces; generator and sink are XDP programs
//! (`wire`) that cost little and look at every packet. Everything happens on one core: generator,
//! router and sink, so that the processor time of a packet is that of the whole way, and the
//! generator's, measured with a sink in the router's place, can be taken off. A router that never
//! sleeps (DPDK) cannot share a core, so it has one for itself, and sweepd does the same beside it;
//! there only the router's own process counts.

mod place;
mod report;
mod routers;
mod wire;

use std::{
    fs, io,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use nix::{
    time::{ClockId, clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};
use sweepd::daemon::threads::pin;

use self::{
    place::{Place, ROUTER, Table},
    report::Report,
    routers::{Contestant, Programs},
    wire::{Arrived, Generator, Sink, To, Wanted},
};

/// How long packets may be under way after the last was sent.
const DRAIN: Duration = Duration::from_millis(30);
/// How long a router may take until its first packet comes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measure the kernel, XDP, DPDK and this program as routers on veth pairs (as root)
#[derive(Args)]
pub struct Veth {
    /// Rounds; the medians count
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of one measurement
    #[arg(long, default_value_t = 800)]
    milliseconds: u64,
    /// The large table, as scripts/tables.sh fetches it; a made-up one stands for it
    #[arg(long, default_value_os_t = default_table())]
    table4: PathBuf,
    /// Only these, by their names in the data
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Leave the large table out
    #[arg(long)]
    small: bool,
    /// Where to write data and plots
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
}

fn default_table() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from).join("tables/ipv4.csv")
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Packets put in.
    pub offered: u64,
    /// Packets that came out, all of them right.
    pub forwarded: u64,
    /// How long it took.
    pub took: Duration,
    /// Processor time of generator, router, sink and what the kernel did for them.
    pub cpu: Duration,
    /// Of that, the router's own process.
    pub own: Duration,
}

impl Veth {
    /// Measures, prints, and writes `veth.csv` and the plot.
    ///
    /// # Errors
    /// Without root, `ip`, `ethtool` and the daemon's program beside this one; a router does not start
    /// or sends wrong packets.
    pub fn run(&self) -> io::Result<()> {
        if !nix::unistd::geteuid().is_root() {
            return Err(io::Error::other("network namespaces take root: run it as root"));
        }
        fs::create_dir_all(&self.out)?;
        let programs = Programs::new()?;
        let place = Place::new()?;
        let chosen = |c: &Contestant| self.only.is_empty() || self.only.iter().any(|key| key == c.key);
        let mut contestants: Vec<Contestant> =
            routers::all().into_iter().filter(|c| programs.has(c.router) && chosen(c)).collect();
        let mut report = Report::default();
        let mut tables = vec![Table::small()];
        if !self.small {
            tables.push(Table::full(&self.table4)?);
        }
        for table in &tables {
            let took = place.set_routes(table)?;
            println!("\n{}, set by `ip -batch` in {:.1} s", table.name, took.as_secs_f64());
            programs.take_table(table)?;
            self.table(&place, &programs, table, &mut contestants, &mut report)?;
            report.print(&table.name);
        }
        report.write(&self.out)
    }

    /// All contestants with one table, in turn, round by round. One that cannot run here is left out
    /// from then on.
    fn table(
        &self,
        place: &Place,
        programs: &Programs,
        table: &Table,
        contestants: &mut Vec<Contestant>,
        report: &mut Report,
    ) -> io::Result<()> {
        let time = Duration::from_millis(self.milliseconds);
        for round in 1..=self.rounds.max(1) {
            report.add_floor(&table.name, floor(place, table, time)?);
            let mut left_out = Vec::new();
            for contestant in contestants.iter() {
                eprint!("\r{}: round {round}: {:<32}", table.name, contestant.name);
                match measure(place, programs, table, contestant, time) {
                    Ok(sample) => report.add(&table.name, *contestant, sample),
                    // What others cannot do here is said; this program has to.
                    Err(e) if matches!(contestant.router, routers::Router::L3fwd(_)) => {
                        println!("\rSKIPPED: {}: {e}", contestant.name);
                        left_out.push(contestant.key);
                    }
                    Err(e) => return Err(io::Error::other(format!("{}: {e}", contestant.name))),
                }
            }
            contestants.retain(|c| !left_out.contains(&c.key));
        }
        eprintln!("\r{:72}", "");
        Ok(())
    }
}

/// The cores of the machine: that of the router, and that of a generator that leaves it alone.
fn cores(own_core: bool) -> (usize, usize) {
    let last = thread::available_parallelism().map_or(1, |n| n.get()) - 1;
    if own_core { (last, last.saturating_sub(1)) } else { (last, last) }
}

/// The generator and one wire by themselves.
fn floor(place: &Place, table: &Table, time: Duration) -> io::Result<Sample> {
    let sink = place.early_sink(Wanted { ttl: 64, to: To::Mac(ROUTER), source: None })?;
    let (generator, _held) = place.generator(table, wire::FLOWS)?;
    let (_, core) = cores(false);
    let run = Run { place, generator: &generator, sink: &sink, own: &|| Duration::ZERO, time };
    run.on(core, false)
}

fn measure(
    place: &Place,
    programs: &Programs,
    table: &Table,
    contestant: &Contestant,
    time: Duration,
) -> io::Result<Sample> {
    let sink = place.sink(contestant.wanted())?;
    let (generator, _held) = place.generator(table, contestant.flows())?;
    let (core, generators) = cores(contestant.own_core);
    let router = programs.start(place, contestant.router, core)?;
    let run = Run { place, generator: &generator, sink: &sink, own: &|| router.cpu(), time };
    // A process on the generator's own core comes first.
    let gives_way = !contestant.own_core && router.is_a_process();
    run.on(generators, gives_way)
}

/// One measurement about to be made.
struct Run<'a> {
    place: &'a Place,
    generator: &'a Generator,
    sink: &'a Sink,
    /// The processor time of the router's own process.
    own: &'a (dyn Fn() -> Duration + Sync),
    time: Duration,
}

impl Run<'_> {
    /// Generates on this core; with `gives_way`, only when nobody else wants it.
    fn on(&self, core: usize, gives_way: bool) -> io::Result<Sample> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.place.enter_sender()?;
                pin(core).map_err(io::Error::other)?;
                if gives_way {
                    idle_only()?;
                }
                self.warm_up()?;
                self.measure()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Sends all flows until some come through, and then once more.
    fn warm_up(&self) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            self.generator.send(wire::FLOWS as u32)?;
            thread::sleep(DRAIN);
            let arrived = self.sink.arrived()?;
            if arrived.right > 0 {
                return Ok(());
            }
            if Instant::now() > until {
                let why = arrived.complaint().unwrap_or_else(|| "no packet comes through".into());
                return Err(io::Error::other(why));
            }
        }
    }

    fn measure(&self) -> io::Result<Sample> {
        let before: Arrived = self.sink.arrived()?;
        let times = || (cpu_of_thread(), (self.own)(), cpu_of_softirqs());
        let (start, (cpu, own, softirqs)) = (Instant::now(), times());
        let mut offered = 0;
        while start.elapsed() < self.time {
            self.generator.send(wire::FLOWS as u32)?;
            offered += wire::FLOWS as u64;
        }
        let took = start.elapsed();
        thread::sleep(DRAIN);
        let (cpu_after, own_after, softirqs_after) = times();
        let arrived = self.sink.arrived()?.since(&before);
        if let Some(complaint) = arrived.complaint() {
            return Err(io::Error::other(complaint));
        }
        if arrived.right > offered {
            return Err(io::Error::other(format!("of {offered} packets {} came", arrived.right)));
        }
        let own = own_after - own;
        let cpu = cpu_after - cpu + own + (softirqs_after - softirqs);
        Ok(Sample { offered, forwarded: arrived.right, took, cpu, own })
    }
}

/// Has the calling thread run only when nobody else wants its core.
fn idle_only() -> io::Result<()> {
    let nothing = libc::sched_param { sched_priority: 0 };
    // SAFETY: sets the scheduling of the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const nothing) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The processor time that the calling thread has had; what interrupts do on its account is in it.
fn cpu_of_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The processor time that a process has had.
fn cpu_of(pid: u32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid as i32));
    clock.and_then(clock_gettime).map_or(Duration::ZERO, Duration::from)
}

/// The processor time of the kernel's threads for what interrupts leave over.
fn cpu_of_softirqs() -> Duration {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_one = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("ksoftirqd/"))
    };
    pids.filter(is_one).map(cpu_of).sum()
}
