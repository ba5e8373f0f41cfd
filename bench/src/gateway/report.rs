//! What the gateway's benchmark prints and writes.

use std::{fs, io, path::Path};

use super::{Mode, SWEEP, setup};
use crate::{
    cycles::{self, Spread},
    plot::{self, Series},
    rig::Headers,
    stepper::Counts,
};

/// The published flows, and millions of packets per second before and after, with 8 workers.
const PUBLISHED: [(usize, f64, f64); 4] =
    [(1_000, 12.48, 14.65), (100_000, 11.04, 12.57), (1_000_000, 10.35, 11.63), (2_000_000, 10.15, 11.43)];
/// The published cycles and locked instructions per packet, before and after, at 1000 flows.
const PUBLISHED_CYCLES: [f64; 2] = [2828.0, 2411.0];
const PUBLISHED_LOCKED: [f64; 2] = [34.5, 10.8];

/// Most cycles a packet that 2 million flows may cost more than 1000.
const MORE_CYCLES: f64 = 90.0;
/// The rate of one sweep's mode over that of the other with two workers, at least.
const RATIO: f64 = 4.0;
/// Percent that the rate between devices may fall from the fewest flows to the most. The published
/// gateway's fell by 22.
const FEWER: f64 = 20.0;
/// Most bytes of a flow.
const BYTES: f64 = 80.0;

/// One measured point.
#[derive(Clone)]
pub struct Line {
    /// Workers.
    pub workers: usize,
    /// Flows over all of them.
    pub flows: usize,
    /// Where the headers were.
    pub headers: Headers,
    /// How the tables were taken.
    pub mode: Mode,
    /// Cycles per packet.
    pub cycles: Spread,
    /// Exact counts of one sweep.
    pub counts: Counts,
    /// Bytes of a flow.
    pub bytes: f64,
}

impl Line {
    fn locked(&self) -> f64 {
        self.counts.locked as f64 / f64::from(SWEEP)
    }

    fn instructions(&self) -> f64 {
        self.counts.instructions as f64 / f64::from(SWEEP)
    }
}

fn place(headers: Headers) -> &'static str {
    match headers {
        Headers::Cached => "cache",
        Headers::Memory => "memory",
    }
}

/// All points of a series.
pub struct Report {
    series: setup::Series,
    lines: Vec<Line>,
    /// Flows, and packets per second of each mode, between devices.
    rates: Vec<(usize, [Spread; 2])>,
}

impl Report {
    /// An empty one.
    pub fn new(series: setup::Series) -> Self {
        Self { series, lines: Vec::new(), rates: Vec::new() }
    }

    /// Prints what is measured and the table's head.
    pub fn head(&self) {
        let whose = match self.series {
            setup::Series::Destinations => {
                format!("up to {} ends inside, {} destinations", setup::ENDPOINTS, setup::DESTINATIONS)
            }
            setup::Series::Endpoints => format!("an end inside for each, {} addresses in front", setup::POOL),
        };
        println!(
            "\nmasquerade of known flows behind {} access rules; {whose};\n\
             cycles per packet (TSC), sweeps of {SWEEP}: median (10th to 90th percentile)\n",
            setup::RULES,
        );
        if cfg!(debug_assertions) {
            println!("NOT AN OPTIMISED BUILD: cycles and instructions mean nothing\n");
        }
        println!(
            "{:>7} {:>9} {:>8} {:>7}  {:>22} {:>8} {:>7} {:>13} {:>11}",
            "workers",
            "flows",
            "headers",
            "taken a",
            "cycles",
            "locked",
            "fences",
            "instructions",
            "bytes/flow"
        );
    }

    /// Keeps rates between devices.
    pub fn add_rates(&mut self, flows: usize, rates: [Spread; 2]) {
        self.rates.push((flows, rates));
    }

    /// Prints the point and keeps it.
    pub fn add(&mut self, line: Line) {
        println!(
            "{:>7} {:>9} {:>8} {:>7}  {:>22} {:>8.2} {:>7.2} {:>13.1} {:>11.1}",
            line.workers,
            line.flows,
            place(line.headers),
            line.mode.name(),
            line.cycles.to_string(),
            line.locked(),
            line.counts.fences as f64 / f64::from(SWEEP),
            line.instructions(),
            line.bytes
        );
        self.lines.push(line);
    }

    fn find(&self, workers: usize, flows: usize, headers: Headers, mode: Mode) -> Option<&Line> {
        self.lines.iter().find(|line| {
            (line.workers, line.flows, line.headers, line.mode) == (workers, flows, headers, mode)
        })
    }

    /// Cycles of a packet's mode over a sweep's.
    fn ratio(&self, workers: usize, flows: usize, headers: Headers) -> Option<f64> {
        let cycles = |mode| Some(self.find(workers, flows, headers, mode)?.cycles.median);
        Some(cycles(Mode::Packet)? / cycles(Mode::Sweep)?)
    }

    /// The numbers of workers, of flows: each once, in order.
    fn each(&self, of: impl Fn(&Line) -> usize) -> Vec<usize> {
        let mut all: Vec<usize> = self.lines.iter().map(of).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Prints the ratios beside the published ones, and the goals.
    pub fn print(&self) {
        self.print_rates();
        self.print_device_rates();
        self.print_goals();
    }

    fn print_device_rates(&self) {
        if self.rates.is_empty() {
            return;
        }
        println!("\nmillion packets per second of one worker between pcap: devices, which are in it");
        println!("{:>9}  {:>22} {:>22} {:>7}", "flows", "packet", "sweep", "ratio");
        for (flows, rates) in &self.rates {
            let [packet, sweep] = rates.each_ref().map(|rate| {
                let Spread { median, low, high } = rate;
                format!("{:.2} ({:.2} to {:.2})", median / 1e6, low / 1e6, high / 1e6)
            });
            let ratio = rates[1].median / rates[0].median;
            println!("{flows:>9}  {packet:>22} {sweep:>22} {ratio:>7.2}");
        }
    }

    /// Percent of the rate with the fewest flows that are missing with the most, between devices.
    fn fewer(&self) -> Option<f64> {
        let (few, many) = (self.rates.first()?, self.rates.last()?);
        (few.0 < many.0).then(|| 100.0 * (1.0 - many.1[1].median / few.1[1].median))
    }

    fn print_rates(&self) {
        let hertz = cycles::hertz();
        println!(
            "\nmillion packets per second of all workers together, by the medians, headers in the cache"
        );
        println!(
            "{:>9} {:>9}  {:>9} {:>9} {:>7}    {:>26}",
            "workers", "flows", "packet", "sweep", "ratio", "published (8): ratio"
        );
        for workers in self.each(|line| line.workers) {
            for flows in self.each(|line| line.flows) {
                let rate = |mode| {
                    let line = self.find(workers, flows, Headers::Cached, mode)?;
                    Some(workers as f64 * hertz / line.cycles.median / 1e6)
                };
                let (Some(packet), Some(sweep)) = (rate(Mode::Packet), rate(Mode::Sweep)) else { continue };
                let published = match PUBLISHED.iter().find(|(of, ..)| *of == flows) {
                    Some((_, before, after)) => {
                        format!("{before:.2} to {after:.2}: {:.2}", after / before)
                    }
                    None => String::new(),
                };
                let ratio = sweep / packet;
                println!(
                    "{workers:>9} {flows:>9}  {packet:>9.2} {sweep:>9.2} {ratio:>7.2}    {published:>26}"
                );
            }
        }
        println!(
            "published at 1000 flows: {:.0} to {:.0} cycles, {} to {} locked instructions a packet, whole gateway",
            PUBLISHED_CYCLES[0], PUBLISHED_CYCLES[1], PUBLISHED_LOCKED[0], PUBLISHED_LOCKED[1]
        );
    }

    fn print_goals(&self) {
        let sweeps = || self.lines.iter().filter(|line| line.mode == Mode::Sweep);
        let most = |of: &dyn Fn(&Line) -> f64| sweeps().map(of).fold(0.0, f64::max);
        println!("\n{:58}{:>10} {:>9}", "goals", "measured", "goal");
        let say = |what: &str, measured: f64, goal: String, met: bool| {
            println!("{what:58}{measured:>10.2} {goal:>9}  {}", if met { "met" } else { "NOT MET" });
        };
        let locked = most(&|line| line.locked());
        say("locked instructions a packet", locked, "0".into(), locked == 0.0);
        let bytes = most(&|line| line.bytes);
        say("bytes a flow, of a full table", bytes, format!("<= {BYTES}"), bytes <= BYTES);
        if let Some(fewer) = self.fewer() {
            let what = "percent fewer packets per second with most flows, devices";
            say(what, fewer, format!("<= {FEWER}"), fewer <= FEWER);
        }
        let flows = self.each(|line| line.flows);
        let (Some(&few), Some(&many)) = (flows.first(), flows.last()) else { return };
        for headers in [Headers::Cached, Headers::Memory] {
            for workers in self.each(|line| line.workers) {
                let at =
                    |flows| self.find(workers, flows, headers, Mode::Sweep).map(|line| line.cycles.median);
                if let (Some(low), Some(high)) = (at(few), at(many)) {
                    let what = format!("cycles more from {few} to {many}, {workers} w., {}", place(headers));
                    say(&what, high - low, format!("<= {MORE_CYCLES}"), high - low <= MORE_CYCLES);
                }
            }
            for &flows in &flows {
                if let Some(ratio) = self.ratio(2, flows, headers) {
                    let what = format!("sweep over packet, 2 workers, {flows} flows, {}", place(headers));
                    say(&what, ratio, format!(">= {RATIO}"), ratio >= RATIO);
                }
            }
        }
    }

    /// Writes a csv and a plot.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, out: &Path) -> io::Result<()> {
        let mut csv = String::from(
            "workers,flows,headers,mode,cycles_median,cycles_p10,cycles_p90,locked,fences,instructions,bytes_per_flow\n",
        );
        let mut devices = String::from("flows,mode,pps_median,pps_p10,pps_p90\n");
        for line in &self.lines {
            let Spread { median, low, high } = line.cycles;
            csv += &format!(
                "{},{},{},{},{median:.1},{low:.1},{high:.1},{:.2},{:.2},{:.1},{:.1}\n",
                line.workers,
                line.flows,
                place(line.headers),
                line.mode.name(),
                line.locked(),
                line.counts.fences as f64 / f64::from(SWEEP),
                line.instructions(),
                line.bytes
            );
        }
        let name = match self.series {
            setup::Series::Destinations => "gateway".to_owned(),
            setup::Series::Endpoints => format!("gateway-{}", self.series.name()),
        };
        for (flows, rates) in &self.rates {
            for mode in Mode::ALL {
                let Spread { median, low, high } = rates[mode as usize];
                devices += &format!("{flows},{},{median:.0},{low:.0},{high:.0}\n", mode.name());
            }
        }
        fs::write(out.join(format!("{name}.csv")), csv)?;
        if !self.rates.is_empty() {
            fs::write(out.join(format!("{name}-devices.csv")), devices)?;
        }
        let mut series = Vec::new();
        for workers in self.each(|line| line.workers) {
            for mode in Mode::ALL {
                let points = self.lines.iter().filter(|line| {
                    (line.workers, line.mode, line.headers) == (workers, mode, Headers::Cached)
                });
                series.push(Series {
                    name: format!("tables once a {}, {workers} w.", mode.name()),
                    points: points.map(|line| (line.flows as f64, line.cycles.median)).collect(),
                });
            }
        }
        let title = "access rules and masquerade, known flows, headers in the cache";
        plot::lines(&out.join(format!("{name}.svg")), title, "flows", "cycles per packet", &series)?;
        println!("\nwritten: {}", out.join(format!("{name}.csv, {name}.svg")).display());
        Ok(())
    }
}
