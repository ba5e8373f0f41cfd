//! `sweepd-bench loop`: what a packet costs in the worker's loop, against a loop that takes one
//! packet after the other, in one run.

use std::{fs, io, path::PathBuf};

use clap::Args;
use sweepd::{
    forward::{burst::Burst, worker::Worker},
    tables::prefixes::{Prefixes4, Prefixes6},
};

use crate::{
    cycles::{self, Spread},
    rig::{Headers, Rig},
    single, traffic,
};

/// Packets in a sweep.
const SWEEP: u32 = 256;

/// Timed sweeps of each kind, after a tenth as many to warm up.
const ROUNDS: usize = 2000;

/// One line of the table.
struct Line {
    routes: usize,
    flows: usize,
    headers: Headers,
    single: Spread,
    sweep: Spread,
}

/// Measure the worker's loop against one that takes one packet after the other
#[derive(Args)]
pub struct Loop {
    /// Where to write the data
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
}

impl Loop {
    /// Measures, prints, and writes `loop.csv`.
    ///
    /// # Errors
    /// When there is not enough memory, the instructions cannot be counted, or the file cannot be
    /// written.
    pub fn run(&self) -> io::Result<()> {
        let mut csv = String::from(
            "routes,flows,headers,single_cycles,single_p10,single_p90,burst_cycles,burst_p10,burst_p90\n",
        );
        println!("cycles per packet (TSC), IPv4, sweeps of {SWEEP}: median (10th to 90th percentile)\n");
        println!(
            "{:>9} {:>9} {:>8}  {:>22}  {:>22}  {:>6}",
            "routes", "flows", "headers", "one at a time", "burst", "ratio"
        );
        for routes in [1, 1_000_000] {
            let prefixes = table(routes);
            let mut rig = Rig::new(&prefixes, &Prefixes6::new())?;
            let flow_counts: &[usize] = if routes == 1 { &[1000] } else { &[1000, 100_000, 1_000_000] };
            for &flows in flow_counts {
                for headers in [Headers::Cached, Headers::Memory] {
                    let line = measure(&mut rig, &prefixes, flows, headers);
                    print(&line);
                    csv += &line.csv();
                }
            }
            let counts = rig.count_sweep(SWEEP)?;
            let n = f64::from(SWEEP);
            println!(
                "{:>9} routes: {:.1} instructions, {} locked instructions and {} fences a packet",
                routes,
                counts.instructions as f64 / n,
                counts.locked as f64 / n,
                counts.fences as f64 / n
            );
        }
        fs::create_dir_all(&self.out)?;
        fs::write(self.out.join("loop.csv"), csv)?;
        println!("\nwritten: {}", self.out.join("loop.csv").display());
        Ok(())
    }
}

impl Line {
    fn headers(&self) -> &'static str {
        match self.headers {
            Headers::Cached => "cache",
            Headers::Memory => "memory",
        }
    }

    fn csv(&self) -> String {
        let spread = |s: &Spread| format!("{:.1},{:.1},{:.1}", s.median, s.low, s.high);
        format!(
            "{},{},{},{},{}\n",
            self.routes,
            self.flows,
            self.headers(),
            spread(&self.single),
            spread(&self.sweep)
        )
    }
}

fn print(line: &Line) {
    let headers = line.headers();
    println!(
        "{:>9} {:>9} {headers:>8}  {:>22}  {:>22}  {:>6.2}",
        line.routes,
        line.flows,
        line.single.to_string(),
        line.sweep.to_string(),
        line.single.median / line.sweep.median
    );
}

/// Times both loops in turn, sweep by sweep, so that what disturbs one disturbs the other.
fn measure(rig: &mut Rig, prefixes: &Prefixes4, flows: usize, headers: Headers) -> Line {
    rig.set_flows(traffic::frames4(prefixes, flows, 11), headers);
    let (mut single, mut sweep) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    let mut burst = Burst::default();
    for round in 0..ROUNDS + ROUNDS / 10 {
        rig.refill(SWEEP);
        let start = cycles::now();
        let swept = rig.worker.sweep(&mut burst);
        let took = cycles::now() - start;
        assert_eq!(swept.packets, SWEEP);
        rig.refill(SWEEP);
        let start = cycles::now();
        let sent = one_at_a_time(&mut rig.worker);
        let took_single = cycles::now() - start;
        assert_eq!(sent, SWEEP);
        if round >= ROUNDS / 10 {
            sweep.push(took as f64 / f64::from(SWEEP));
            single.push(took_single as f64 / f64::from(SWEEP));
        }
    }
    Line { routes: prefixes.len(), flows, headers, single: Spread::of(single), sweep: Spread::of(sweep) }
}

/// Kept out of line, so that both loops are calls.
#[inline(never)]
fn one_at_a_time(worker: &mut Worker) -> u32 {
    single::sweep(worker, single::by_tables)
}

fn table(routes: usize) -> Prefixes4 {
    if routes == 1 {
        let mut prefixes = Prefixes4::new();
        prefixes.insert(0, 0, 7);
        return prefixes;
    }
    sweepd::tables::synthetic::ipv4(routes, crate::rig::NEXT_HOPS, 42)
}
