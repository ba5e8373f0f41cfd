//! `sweepd-bench gateway`: access rules and masquerade for flows that are known, in the shape of
//! the published figures of a DPDK gateway that went from taking its tables once a packet to once a
//! burst.
//!
//! Both ways run here in one process, in turn, sweep by sweep: the worker as it is, which takes
//! its tables once a sweep and has its flows for itself, and a loop over the same rings, rules and
//! routes that takes everything shared [packet by packet](by_packet). Packets go from the inside
//! out; every flow has been made before, so none takes the careful path. With two workers each has
//! rings and a thread of its own and half of the flows, as a card's hash would give them, and both
//! begin each timed sweep together. At the end one worker forwards between `pcap:` devices,
//! which are in the measurement then.

pub mod by_packet;
mod devices;
mod report;
pub mod setup;

use std::{
    collections::HashMap,
    fs, io,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use clap::Args;
use sweepd::{
    daemon::threads::pin,
    forward::{burst::Burst, verdict::Verdict},
    tables::prefixes::Prefixes4,
};

use self::{
    by_packet::{Keeper, Shared, Taker},
    report::{Line, Report},
    setup::Series,
};
use crate::{
    cycles::{self, Spread},
    heap,
    rig::{Headers, Rig},
    stepper::{self, Counts},
};

/// Packets in a sweep.
pub const SWEEP: u32 = 256;

/// Instructions of one sweep at most.
const LIMIT: u64 = 50_000_000;

/// Measure access rules and masquerade, tables taken once a sweep and once a packet
#[derive(Args)]
pub struct Gateway {
    /// Flows, over all workers; at most 2 million
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 100_000, 1_000_000, 2_000_000])]
    flows: Vec<usize>,
    /// Workers
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    workers: Vec<usize>,
    /// Whose the flows are
    #[arg(long, value_delimiter = ',', default_values = ["destinations", "endpoints"])]
    series: Vec<Series>,
    /// Flows between `pcap:` devices, in packets per second; 0 for none
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 2_000_000])]
    device_flows: Vec<usize>,
    /// Timed sweeps of each kind, after a tenth as many to warm up
    #[arg(long, default_value_t = 2000)]
    rounds: usize,
    /// Turns of a tenth of a second of each kind between `pcap:` devices
    #[arg(long, default_value_t = 30)]
    turns: usize,
    /// Where to write data and plot
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
}

/// A way of taking the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Once a packet, as the published gateway did before.
    Packet,
    /// Once a sweep: the worker as it is.
    Sweep,
}

impl Mode {
    /// Both.
    pub const ALL: [Mode; 2] = [Self::Packet, Self::Sweep];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Sweep => "sweep",
        }
    }
}

impl Gateway {
    /// Measures, prints, and writes a csv and a plot of each series.
    ///
    /// # Errors
    /// When there is not enough memory, the instructions cannot be counted, a file cannot be
    /// written, or packets were lost.
    pub fn run(&self) -> io::Result<()> {
        let most = setup::ENDPOINTS * setup::DESTINATIONS;
        let range = 64..=most;
        let mut flows = self.flows.iter().chain(self.device_flows.iter().filter(|flows| **flows > 0));
        if !self.workers.iter().all(|n| (1..=64).contains(n)) || !flows.all(|flows| range.contains(flows)) {
            return Err(io::Error::other(format!(
                "flows are numbers from 64 to {most}, and workers from 1 to 64"
            )));
        }
        fs::create_dir_all(&self.out)?;
        let routes = setup::routes();
        self.series.iter().try_for_each(|series| self.series(&routes, *series))
    }

    fn series(&self, routes: &Prefixes4, series: Series) -> io::Result<()> {
        let mut report = Report::new(series);
        report.head();
        let mut counted: HashMap<usize, [Counts; 2]> = HashMap::new();
        for &workers in &self.workers {
            for &flows in &self.flows {
                let mut bench = Bench::new(routes, series, flows, workers)?;
                // Another worker beside it changes nothing in what one executes.
                let counts = match counted.get(&flows) {
                    Some(counts) => *counts,
                    None => [bench.count(Mode::Packet)?, bench.count(Mode::Sweep)?],
                };
                counted.insert(flows, counts);
                for headers in [Headers::Cached, Headers::Memory] {
                    let spreads = bench.measure(self.rounds.max(10), headers)?;
                    for ((mode, counts), cycles) in Mode::ALL.into_iter().zip(counts).zip(spreads) {
                        let bytes = bench.bytes(mode);
                        report.add(Line { workers, flows, headers, mode, cycles, counts, bytes });
                    }
                }
            }
        }
        for &flows in self.device_flows.iter().filter(|flows| **flows > 0) {
            let rates = devices::measure(routes, series, flows, self.turns.max(1))?;
            report.add_rates(flows, rates);
        }
        report.print();
        report.write(&self.out)
    }
}

/// Rigs with their flows, and what is shared by those that take it packet by packet.
struct Bench {
    rigs: Vec<Rig>,
    shared: Shared,
    shared_bytes: f64,
    flows: usize,
    _keeper: Keeper,
}

impl Bench {
    fn new(routes: &Prefixes4, series: Series, flows: usize, workers: usize) -> io::Result<Self> {
        let mut rigs = Vec::with_capacity(workers);
        for worker in 0..workers {
            let mut rig = setup::gateway(routes, series)?;
            setup::begin_flows(&mut rig, setup::frames(routes, series, flows, worker, workers))?;
            rigs.push(rig);
        }
        let (shared, keeper) = Shared::new(setup::tables(routes, workers)?);
        let before = heap::in_use();
        rigs.iter().for_each(|rig| shared.copy_flows(&rig.worker.slow.flows));
        let shared_bytes = heap::in_use().saturating_sub(before) as f64 / flows as f64;
        match shared.len() == flows {
            true => Ok(Self { rigs, shared, shared_bytes, flows, _keeper: keeper }),
            false => Err(io::Error::other("the shared table has not all flows")),
        }
    }

    /// Bytes of a flow: of the worker's table when it is full; of the shared one, what its flows
    /// took of the heap.
    fn bytes(&self, mode: Mode) -> f64 {
        let table = &self.rigs[0].worker.slow.flows;
        match mode {
            Mode::Packet => self.shared_bytes,
            Mode::Sweep => table.bytes() as f64 / table.capacity() as f64,
        }
    }

    /// Exact counts of one steady sweep of the first worker.
    fn count(&mut self, mode: Mode) -> io::Result<Counts> {
        let (rig, mut burst) = (&mut self.rigs[0], Burst::default());
        let mut taker = Taker::new(&self.shared, 0);
        for _ in 0..2 {
            rig.refill(SWEEP);
            sweep(mode, rig, &mut burst, &mut taker);
        }
        rig.refill(SWEEP);
        stepper::count(LIMIT, || {
            sweep(mode, rig, &mut burst, &mut taker);
        })
    }

    /// Cycles per packet of both modes, over all workers.
    fn measure(&mut self, rounds: usize, headers: Headers) -> io::Result<[Spread; 2]> {
        let Self { rigs, shared, .. } = self;
        let (gate, count) = (Gate::default(), rigs.len());
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let samples: Vec<Samples> = thread::scope(|scope| {
            let threads: Vec<_> = rigs
                .iter_mut()
                .enumerate()
                .map(|(index, rig)| {
                    let (gate, taker) = (gate.of(count), Taker::new(shared, index));
                    scope.spawn(move || {
                        // A worker that cannot be bound runs where it can; the spread shows it.
                        let _ = pin((cores.saturating_sub(count) + index) % cores);
                        rig.set_headers(headers);
                        time(rig, taker, gate, rounds)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a timed thread does not panic")).collect()
        });
        if samples.iter().any(|samples| samples.lost > 0) {
            return Err(io::Error::other("packets of known flows did not leave"));
        }
        let known: usize = rigs.iter().map(|rig| rig.worker.slow.flows.len()).sum();
        if known != self.flows {
            return Err(io::Error::other(format!("{} flows became {known}", self.flows)));
        }
        let of =
            |mode: Mode| Spread::of(samples.iter().flat_map(|s| s.cycles[mode as usize].clone()).collect());
        Ok(Mode::ALL.map(of))
    }
}

/// What one worker has measured.
#[derive(Default)]
struct Samples {
    /// Cycles per packet, by mode.
    cycles: [Vec<f64>; 2],
    /// Packets that did not leave.
    lost: u64,
}

/// Times both modes in turn, sweep by sweep.
fn time(rig: &mut Rig, mut taker: Taker<'_>, mut gate: Waiter<'_>, rounds: usize) -> Samples {
    let (mut samples, mut burst) = (Samples::default(), Burst::default());
    let warm_up = rounds / 10;
    let forwarded = |rig: &Rig| rig.worker.inputs[0].block.verdicts[Verdict::Forwarded as usize].get();
    let before = forwarded(rig);
    for round in 0..rounds + warm_up {
        for mode in Mode::ALL {
            rig.refill(SWEEP);
            gate.wait();
            let start = cycles::now();
            sweep(mode, rig, &mut burst, &mut taker);
            let took = cycles::now() - start;
            if round >= warm_up {
                samples.cycles[mode as usize].push(took as f64 / f64::from(SWEEP));
            }
        }
    }
    let offered = (rounds + warm_up) as u64 * Mode::ALL.len() as u64 * u64::from(SWEEP);
    samples.lost = offered.saturating_sub(forwarded(rig) - before);
    samples
}

#[inline(always)]
fn sweep(mode: Mode, rig: &mut Rig, burst: &mut Burst, taker: &mut Taker<'_>) {
    match mode {
        Mode::Packet => taker.sweep(&mut rig.worker),
        Mode::Sweep => _ = rig.worker.sweep(burst),
    }
}

/// Where workers wait for each other, so that what they share is wanted by all of them at once.
#[derive(Default)]
struct Gate(AtomicUsize);

impl Gate {
    fn of(&self, count: usize) -> Waiter<'_> {
        Waiter { gate: self, count, turn: 0 }
    }
}

/// One worker's place at the gate.
struct Waiter<'a> {
    gate: &'a Gate,
    count: usize,
    turn: usize,
}

impl Waiter<'_> {
    /// Returns when all have come.
    fn wait(&mut self) {
        if self.count == 1 {
            return;
        }
        self.turn += self.count;
        self.gate.0.fetch_add(1, Ordering::AcqRel);
        let mut spins = 0u32;
        while self.gate.0.load(Ordering::Acquire) < self.turn {
            spins += 1;
            // With fewer cores than workers the other one needs this one's.
            if spins.is_multiple_of(1 << 16) { thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}
