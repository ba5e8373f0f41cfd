//! What the routers have done, as a table, as data and as a plot.

use std::{fs, io, path::Path};

use super::{Contestant, Sample};
use crate::plot::{self, Bar};

/// One contestant with one table.
struct Line {
    table: String,
    contestant: Contestant,
    samples: Vec<Sample>,
}

/// A figure of several rounds.
#[derive(Clone, Copy)]
struct Rounds {
    median: f64,
    low: f64,
    high: f64,
}

impl Rounds {
    fn of(samples: &[Sample], figure: impl Fn(&Sample) -> f64) -> Self {
        let mut all: Vec<f64> = samples.iter().map(figure).collect();
        all.sort_by(f64::total_cmp);
        let at = |n: usize| all.get(n).copied().unwrap_or(0.0);
        Self { median: at(all.len() / 2), low: at(0), high: at(all.len().saturating_sub(1)) }
    }
}

/// Everything measured.
#[derive(Default)]
pub struct Report {
    lines: Vec<Line>,
    floors: Vec<(String, Vec<Sample>)>,
}

fn rate(sample: &Sample) -> f64 {
    sample.forwarded as f64 / sample.took.as_secs_f64()
}

fn loss(sample: &Sample) -> f64 {
    1.0 - sample.forwarded as f64 / sample.offered.max(1) as f64
}

fn nanoseconds(sample: &Sample) -> f64 {
    sample.cpu.as_nanos() as f64 / sample.forwarded.max(1) as f64
}

fn own_nanoseconds(sample: &Sample) -> f64 {
    sample.own.as_nanos() as f64 / sample.forwarded.max(1) as f64
}

impl Report {
    /// Notes the generator by itself.
    pub fn add_floor(&mut self, table: &str, sample: Sample) {
        match self.floors.iter_mut().find(|(of, _)| of == table) {
            Some((_, samples)) => samples.push(sample),
            None => self.floors.push((table.into(), vec![sample])),
        }
    }

    /// Notes one measurement.
    pub fn add(&mut self, table: &str, contestant: Contestant, sample: Sample) {
        match self.lines.iter_mut().find(|l| l.table == table && l.contestant == contestant) {
            Some(line) => line.samples.push(sample),
            None => self.lines.push(Line { table: table.into(), contestant, samples: vec![sample] }),
        }
    }

    fn floor(&self, table: &str) -> Rounds {
        let samples = self.floors.iter().find(|(of, _)| of == table).map_or(&[][..], |(_, s)| s);
        Rounds::of(samples, nanoseconds)
    }

    /// Processor time of a packet without the generator's; none where the generator is elsewhere.
    fn cost(&self, line: &Line) -> Option<Rounds> {
        let floor = self.floor(&line.table).median;
        let less = |sample: &Sample| (nanoseconds(sample) - floor).max(0.0);
        (!line.contestant.own_core).then(|| Rounds::of(&line.samples, less))
    }

    /// Prints the table of one table of routes.
    pub fn print(&self, table: &str) {
        let lines = || self.lines.iter().filter(|line| line.table == table);
        let rounds = lines().map(|line| line.samples.len()).max().unwrap_or(0);
        let floor = self.floor(table);
        println!(
            "\n{table}: {rounds} rounds in turn, medians (lowest to highest); packets of 60 bytes, all of"
        );
        println!("those that came were right. Generator and one wire alone, taken off the CPU time:");
        println!("{:.0} ns ({:.0} to {:.0}) a packet", floor.median, floor.low, floor.high);
        println!(
            "  {:28}{:>24}{:>8}{:>26}{:>14}",
            "", "Mpps forwarded", "lost", "CPU ns a packet", "own process"
        );
        for line in lines() {
            let pps = Rounds::of(&line.samples, rate);
            let lost = Rounds::of(&line.samples, loss).median;
            let cost = self.cost(line).map_or("-".into(), |cost| {
                format!("{:.0} ({:.0} to {:.0})", cost.median, cost.low, cost.high)
            });
            let own = Rounds::of(&line.samples, own_nanoseconds).median;
            let own = if own > 0.0 { format!("{own:.0}") } else { "-".into() };
            println!(
                "  {:28}{:>24}{:>7.1}%{cost:>26}{own:>14}",
                line.contestant.name,
                format!("{:.2} ({:.2} to {:.2})", pps.median / 1e6, pps.low / 1e6, pps.high / 1e6),
                lost * 100.0,
            );
        }
        self.print_ratios(table);
    }

    /// This program beside the others, round by round.
    fn print_ratios(&self, table: &str) {
        let find = |key: &str| self.lines.iter().find(|l| l.table == table && l.contestant.key == key);
        let pairs = [
            ("sweepd", "kernel"),
            ("sweepd", "xdp-fib"),
            ("sweepd-express", "kernel"),
            ("sweepd-express", "xdp-fib"),
            ("sweepd-masquerade", "nftables"),
            ("sweepd-2", "l3fwd-xdp"),
            ("sweepd-2", "l3fwd-packet"),
        ];
        println!("  times the packets a second, and times the packets for the same CPU time:");
        for (ours, theirs) in pairs {
            let (Some(a), Some(b)) = (find(ours), find(theirs)) else { continue };
            let floor = self.floor(table).median;
            let of = |line: &Line, sample: &Sample| match line.contestant.own_core {
                true => own_nanoseconds(sample),
                false => (nanoseconds(sample) - floor).max(1.0),
            };
            let median = |mut ratios: Vec<f64>| {
                ratios.sort_by(f64::total_cmp);
                ratios.get(ratios.len() / 2).copied().unwrap_or(0.0)
            };
            let each = || a.samples.iter().zip(&b.samples);
            let rates = median(each().map(|(x, y)| rate(x) / rate(y)).collect());
            let costs = median(each().map(|(x, y)| of(b, y) / of(a, x)).collect());
            println!("  {:28}over {:28}{rates:>8.2}{costs:>8.2}", a.contestant.name, b.contestant.name);
        }
    }

    /// Writes `veth.csv` and `veth.svg`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, out: &Path) -> io::Result<()> {
        let mut csv = String::from(
            "table,router,own_core,forwarded_pps,forwarded_pps_low,forwarded_pps_high,lost,cpu_ns,own_process_ns,floor_ns\n",
        );
        for line in &self.lines {
            let pps = Rounds::of(&line.samples, rate);
            csv += &format!(
                "{},{},{},{:.0},{:.0},{:.0},{:.4},{},{:.1},{:.1}\n",
                line.table,
                line.contestant.key,
                line.contestant.own_core,
                pps.median,
                pps.low,
                pps.high,
                Rounds::of(&line.samples, loss).median,
                self.cost(line).map_or(String::new(), |cost| format!("{:.1}", cost.median)),
                Rounds::of(&line.samples, own_nanoseconds).median,
                self.floor(&line.table).median
            );
        }
        fs::write(out.join("veth.csv"), csv)?;
        let bars: Vec<Bar> = self
            .lines
            .iter()
            .map(|line| {
                let pps = Rounds::of(&line.samples, rate);
                Bar {
                    group: line.table.clone(),
                    name: line.contestant.name.into(),
                    value: pps.median / 1e6,
                    low: pps.low / 1e6,
                    high: pps.high / 1e6,
                }
            })
            .collect();
        plot::bars(&out.join("veth.svg"), "forwarded between veth pairs", "Mpps", &bars)?;
        println!("\nwritten: {}", out.join("veth.csv, veth.svg").display());
        Ok(())
    }
}
