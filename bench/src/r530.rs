//! `sweepd-bench r530`: the benchmark of FreeBSD's routing proposal, in one process.
//!
//! The original (a Dell R530 with 24 senders on each side, small UDP packets through the router
//! both ways, read off `netstat -w1 -d -h`) compared what a router forwards when every packet
//! locks and references its route with what it forwards when none does. Here two generators stand
//! for the two sides, and one loop over the same rings and tables takes its routes by each of four
//! [disciplines](crate::disciplines). A network card's work is not in it, so only the ratios can
//! stand beside the original's.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use netmap::{OpenOptions, device, device::PortControl};
use sweepd::{
    daemon::threads::pin,
    forward::{assembly::assemble, burst::Burst, idle::Patience, worker::Worker},
    stats::{
        file::StatsFile,
        netstat::{Netstat, NetstatOptions},
        read::PortTotals,
    },
    tables::{
        Action, NextHop, NextHopInfo, PortTable, Tables, fixed,
        prefixes::{Prefixes4, Prefixes6},
        publish::Publisher,
    },
};

use crate::{
    disciplines::{Discipline, Shared},
    plot::{self, Series},
    rig::{Headers, Rig},
    stepper, traffic,
};

/// Senders on each side.
const SENDERS: usize = 24;

/// The original's rates, in Mpps, by discipline; it had no fourth.
const ORIGINAL: [(Discipline, f64); 3] =
    [(Discipline::Current, 5.0), (Discipline::Stable, 5.8), (Discipline::Proposal, 8.4)];

/// Reproduce the routing proposal's benchmark
#[derive(Args)]
pub struct R530 {
    /// Streams per sender
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8, 16, 32, 100])]
    streams: Vec<usize>,
    /// Workers
    #[arg(long, value_delimiter = ',', default_values_t = default_workers())]
    workers: Vec<usize>,
    /// Measurements of each point; their median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Milliseconds of one measurement
    #[arg(long, default_value_t = 400)]
    milliseconds: u64,
    /// Where to write data and plots
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
}

fn default_workers() -> Vec<usize> {
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    [1, 2, 4, 8].into_iter().filter(|&n| n <= cores).collect()
}

/// The frames of a series.
#[derive(Clone, Copy)]
struct Frames {
    name: &'static str,
    /// Without FCS, as generated.
    bytes: usize,
    /// As the original's counter would count it.
    counted: u64,
}

/// 64 bytes of UDP payload, as the original had; and the least frame.
const FRAMES: [Frames; 2] = [
    Frames { name: "64-byte payload", bytes: 106, counted: 110 },
    Frames { name: "64-byte frame", bytes: 60, counted: 64 },
];

/// Packets a second that are offered while the live counter's rows are printed: from below to far
/// above what any discipline forwards.
const LOADS: [u64; 6] = [500_000, 2_000_000, 8_000_000, 32_000_000, 128_000_000, 256_000_000];

/// One measured point.
struct Point {
    frames: &'static str,
    discipline: Discipline,
    workers: usize,
    streams: usize,
    /// Packets per second out, and offered and not taken.
    out: f64,
    idrops: f64,
}

impl R530 {
    /// Measures, prints, and writes `r530.csv` and the plots.
    ///
    /// # Errors
    /// When there is not enough memory, or a file cannot be written.
    pub fn run(&self) -> io::Result<()> {
        fs::create_dir_all(&self.out)?;
        print_locked()?;
        let mut points = Vec::new();
        for frames in FRAMES {
            for &workers in &self.workers {
                println!(
                    "\n{}, {workers} {}: million packets per second forwarded",
                    frames.name,
                    plural(workers)
                );
                println!(
                    "{:>8}  {:>9} {:>9} {:>9} {:>9}",
                    "streams", "current", "stable", "proposal", "sweep"
                );
                for &streams in &self.streams {
                    let row = self.row(frames, workers, streams)?;
                    let cells: Vec<String> = row.iter().map(|p| format!("{:>9.2}", p.out / 1e6)).collect();
                    println!("{streams:>8}  {}", cells.join(" "));
                    points.extend(row);
                }
            }
        }
        self.print_ratios(&points);
        self.print_scaling(&points);
        self.print_rows()?;
        self.write(&points)
    }

    /// All disciplines at one point, in turn, round by round, so that what disturbs one disturbs
    /// all.
    fn row(&self, frames: Frames, workers: usize, streams: usize) -> io::Result<Vec<Point>> {
        let mut samples: Vec<Vec<(f64, f64)>> = vec![Vec::new(); Discipline::ALL.len()];
        for _ in 0..self.rounds.max(1) {
            for (discipline, samples) in Discipline::ALL.into_iter().zip(&mut samples) {
                let mut bench = Bench::new(frames, workers, streams, None)?;
                samples.push(bench.measure(discipline, Duration::from_millis(self.milliseconds)));
            }
        }
        let point = |(discipline, mut samples): (Discipline, Vec<(f64, f64)>)| {
            samples.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (out, idrops) = samples[samples.len() / 2];
            Point { frames: frames.name, discipline, workers, streams, out, idrops }
        };
        Ok(Discipline::ALL.into_iter().zip(samples).map(point).collect())
    }

    fn print_ratios(&self, points: &[Point]) {
        println!("\nratios to current (median over the numbers of streams), beside the original's");
        println!("{:>20} {:>8}  {:>9} {:>9} {:>9}", "", "workers", "stable", "proposal", "sweep");
        let original: Vec<f64> = ORIGINAL.iter().map(|(_, mpps)| mpps / ORIGINAL[0].1).collect();
        println!("{:>20} {:>8}  {:>9.2} {:>9.2} {:>9}", "R530", "36 cores", original[1], original[2], "-");
        for frames in FRAMES {
            for &workers in &self.workers {
                let median = |discipline| {
                    let of = |d: Discipline, streams: usize| {
                        let at = |p: &&Point| {
                            p.frames == frames.name
                                && p.workers == workers
                                && p.streams == streams
                                && p.discipline == d
                        };
                        points.iter().find(at).map_or(0.0, |p| p.out)
                    };
                    let mut ratios: Vec<f64> = self
                        .streams
                        .iter()
                        .map(|&s| of(discipline, s) / of(Discipline::Current, s))
                        .collect();
                    ratios.sort_by(f64::total_cmp);
                    ratios[ratios.len() / 2]
                };
                let [_, stable, proposal, sweep] = Discipline::ALL.map(median);
                println!("{:>20} {workers:>8}  {stable:>9.2} {proposal:>9.2} {sweep:>9.2}", frames.name);
            }
        }
    }

    /// How much each discipline gains from more workers: medians over the numbers of streams.
    fn print_scaling(&self, points: &[Point]) {
        let (Some(&few), Some(&many)) = (self.workers.iter().min(), self.workers.iter().max()) else {
            return;
        };
        if few == many {
            return;
        }
        println!("\nfrom {few} to {many} workers each forwards so many times as much");
        println!("{:>20} {:>9} {:>9} {:>9} {:>9}", "", "current", "stable", "proposal", "sweep");
        for frames in FRAMES {
            let gain = |d: Discipline| {
                let of = |workers: usize, streams: usize| {
                    let at = |p: &&Point| {
                        (p.frames, p.discipline, p.workers, p.streams) == (frames.name, d, workers, streams)
                    };
                    points.iter().find(at).map_or(0.0, |p| p.out)
                };
                let mut gains: Vec<f64> = self.streams.iter().map(|&s| of(many, s) / of(few, s)).collect();
                gains.sort_by(f64::total_cmp);
                format!("{:>9.2}", gains.get(gains.len() / 2).copied().unwrap_or(0.0))
            };
            println!("{:>20} {}", frames.name, Discipline::ALL.map(gain).join(" "));
        }
    }

    /// The live counter's rows, with the load from below to far above what `current` can do.
    fn print_rows(&self) -> io::Result<()> {
        let workers = self.workers.last().copied().unwrap_or(1);
        for frames in FRAMES {
            for discipline in Discipline::ALL {
                let name = discipline.name();
                println!("\n{}, {name} with {workers} {}, load rising", frames.name, plural(workers));
                let mut view = Netstat::new(NetstatOptions { drops: true, human: true }, None);
                print!("{}", view.header());
                for rate in LOADS {
                    let mut bench = Bench::new(frames, workers, 16, Some(rate))?;
                    let (before, after) = bench.second(discipline);
                    print!("{}", view.row(&before, &after));
                }
            }
        }
        Ok(())
    }

    fn write(&self, points: &[Point]) -> io::Result<()> {
        let mut csv = String::from("frames,discipline,workers,streams,forwarded_pps,idrops_pps\n");
        for p in points {
            let name = p.discipline.name();
            csv += &format!("{},{name},{},{},{:.0},{:.0}\n", p.frames, p.workers, p.streams, p.out, p.idrops);
        }
        fs::write(self.out.join("r530.csv"), csv)?;
        let series = |pick: &dyn Fn(&Point) -> Option<f64>| {
            let line = |d: Discipline| {
                let points = points.iter().filter(|p| p.frames == FRAMES[0].name && p.discipline == d);
                Series {
                    name: d.name().into(),
                    points: points.filter_map(|p| Some((pick(p)?, p.out / 1e6))).collect(),
                }
            };
            Discipline::ALL.map(line)
        };
        let most = self.workers.iter().copied().max().unwrap_or(1);
        let title = format!("forwarded by {most} {}, {}", plural(most), FRAMES[0].name);
        let over_streams = series(&|p| (p.workers == most).then_some(p.streams as f64));
        plot::lines(&self.out.join("r530-streams.svg"), &title, "streams per sender", "Mpps", &over_streams)?;
        let streams = self.streams.get(self.streams.len() / 2).copied().unwrap_or(1);
        let over_workers = series(&|p| (p.streams == streams).then_some(p.workers as f64));
        let title = format!("{streams} streams per sender, {}", FRAMES[0].name);
        plot::lines(&self.out.join("r530-workers.svg"), &title, "workers", "Mpps", &over_workers)?;
        println!(
            "\nwritten: {}",
            Path::new(&self.out).join("r530.csv, r530-streams.svg, r530-workers.svg").display()
        );
        Ok(())
    }
}

fn plural(workers: usize) -> &'static str {
    if workers == 1 { "worker" } else { "workers" }
}

/// Locked instructions, fences and instructions of each discipline, exactly.
fn print_locked() -> io::Result<()> {
    println!("per packet, counted one instruction at a time");
    println!("{:>10}  {:>12} {:>8} {:>14}", "", "locked", "fences", "instructions");
    let prefixes = routes();
    for discipline in Discipline::ALL {
        let mut rig = Rig::new(&prefixes, &Prefixes6::new())?;
        let shared = Shared::new(crate::rig::tables(&prefixes, &Prefixes6::new())?);
        rig.set_flows(traffic::frames4(&prefixes, 1000, 5), Headers::Cached);
        let mut burst = Burst::default();
        for _ in 0..2 {
            rig.refill(256);
            shared.sweep(discipline, &mut rig.worker, &mut burst);
        }
        rig.refill(256);
        let counts = stepper::count(10_000_000, || {
            shared.sweep(discipline, &mut rig.worker, &mut burst);
        })?;
        let per = |n: u64| n as f64 / 256.0;
        println!(
            "{:>10}  {:>12.2} {:>8.2} {:>14.1}",
            discipline.name(),
            per(counts.locked),
            per(counts.fences),
            per(counts.instructions)
        );
    }
    Ok(())
}

/// The routes: the two sides' networks.
fn routes() -> Prefixes4 {
    [(0xc612_0000, 16, 1), (0xc613_0000, 16, 2)].into_iter().collect()
}

/// Two generators, a router between them, and what the disciplines share.
struct Bench {
    workers: Vec<Worker>,
    controls: Vec<Box<dyn PortControl>>,
    stats: StatsFile,
    shared: Arc<Shared>,
    counted: u64,
    _publisher: Publisher<Tables>,
}

impl Bench {
    fn new(frames: Frames, workers: usize, streams: usize, rate: Option<u64>) -> io::Result<Self> {
        let flows = SENDERS * streams;
        let rate = rate.map_or(String::new(), |r| format!(",rate={}", r / 2));
        let side = |src: &str, dst: &str, mac: u8| {
            format!(
                "gen:flows={flows},size={},src={src},dst={dst},dmac=02:00:00:00:00:0{mac},rings={workers}{rate}",
                frames.bytes
            )
        };
        let specs = [side("198.18.0.0/16", "198.19.0.0/16", 1), side("198.19.0.0/16", "198.18.0.0/16", 2)];
        let parsed: Result<Vec<_>, _> =
            specs.iter().map(|s| Ok((s.parse()?, OpenOptions::default()))).collect();
        let parsed = parsed.map_err(|e: device::spec::SpecError| io::Error::other(e.to_string()))?;
        let ports = device::open_all(&parsed).map_err(io::Error::other)?;
        let names = ["left".to_owned(), "right".to_owned()];
        let stats = StatsFile::anonymous(&names, workers).map_err(io::Error::other)?;
        let (publisher, readers) = Publisher::try_new(tables, workers)?;
        let (keeper, _) = crossbeam_channel::bounded(64);
        let made = assemble(ports, None, &stats, readers, &keeper, Patience::Spin)?;
        Ok(Self {
            workers: made.workers,
            controls: made.ports.into_iter().map(|p| p.control).collect(),
            stats,
            shared: Arc::new(Shared::new(tables()?)),
            counted: frames.counted,
            _publisher: publisher,
        })
    }

    /// Runs for `time` after a tenth as long to warm up; gives packets out and lost a second.
    fn measure(&mut self, discipline: Discipline, time: Duration) -> (f64, f64) {
        let (before, after, took) = self.go(discipline, time);
        let per_second = |n: u64| n as f64 / took.as_secs_f64();
        (per_second(after.tx_packets - before.tx_packets), per_second(after.rx_dropped - before.rx_dropped))
    }

    /// One second's counters, bytes as the original's counter would count them.
    fn second(&mut self, discipline: Discipline) -> (PortTotals, PortTotals) {
        let (before, after, _) = self.go(discipline, Duration::from_secs(1));
        let counted = |t: PortTotals| PortTotals {
            rx_bytes: (t.rx_packets + t.rx_dropped) * self.counted,
            tx_bytes: t.tx_packets * self.counted,
            ..t
        };
        (counted(before), counted(after))
    }

    fn go(&mut self, discipline: Discipline, time: Duration) -> (PortTotals, PortTotals, Duration) {
        let stop = AtomicBool::new(false);
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let Self { workers, controls, stats, shared, .. } = self;
        let first = cores.saturating_sub(workers.len());
        thread::scope(|scope| {
            for (i, worker) in workers.iter_mut().enumerate() {
                let (stop, shared) = (&stop, &*shared);
                scope.spawn(move || {
                    // A worker that cannot be bound runs where it can; the spread shows it.
                    let _ = pin((first + i) % cores);
                    let mut burst = Burst::default();
                    while !stop.load(Ordering::Relaxed) {
                        for _ in 0..64 {
                            shared.sweep(discipline, worker, &mut burst);
                        }
                    }
                });
            }
            thread::sleep(time / 10);
            let start = Instant::now();
            let before = totals(stats, controls);
            thread::sleep(time);
            let after = totals(stats, controls);
            let took = start.elapsed();
            stop.store(true, Ordering::Relaxed);
            (before, after, took)
        })
    }
}

/// Both ports together, with what the generators could not place.
fn totals(stats: &StatsFile, controls: &mut [Box<dyn PortControl>]) -> PortTotals {
    let mut sum = PortTotals::default();
    for port in stats.snapshot() {
        sum += &port;
    }
    sum.rx_dropped = controls.iter_mut().map(|c| c.losses().rx_dropped).sum();
    sum
}

/// The router's tables: each side's network behind its port.
fn tables() -> io::Result<Tables> {
    let mut tables = Tables::new()?;
    let mut prefixes = Prefixes4::new();
    for (address, length, side) in routes().iter() {
        let id = side as u8;
        let port = u16::from(id) - 1;
        tables.ports.push(PortTable {
            name: format!("port {id}"),
            mac: [2, 0, 0, 0, 0, id],
            mtu: 1500,
            up: true,
            addresses4: Vec::new(),
            addresses6: Vec::new(),
            builtin_host: true,
            ..PortTable::default()
        });
        let at = fixed::FIRST_FREE + port;
        let macs = [2, 0, 0, 0, 1, id, 2, 0, 0, 0, 0, id];
        tables.next_hops[usize::from(at)] = NextHop { macs, port, max_len: 1500 };
        tables.info[usize::from(at)] = NextHopInfo { action: Action::Forward, ..NextHopInfo::default() };
        prefixes.insert(address, length, at);
    }
    tables.fib4.build(&prefixes).map_err(|e| io::Error::other(format!("{e:?}")))?;
    Ok(tables)
}
