//! `sweepd-bench locked`: what every way through the router executes a packet, counted one
//! instruction at a time: instructions, locked instructions, fences, system calls, and the functions
//! that the costly ones are in.
//!
//! With `--check` the counts are held against those recorded in `bench/locked.csv`: no way may
//! gain a locked instruction, a fence or a system call, or 2 % more instructions. The compiler has
//! its moods, so instructions are compared only where the compiler is the recorded one.

use std::{collections::HashMap, fs, io, path::PathBuf};

use clap::Args;
use sweepd::forward::burst::Burst;

use crate::{
    disciplines::{Discipline, Shared},
    paths::{self, Way},
    rig::{self, Rig},
    stepper::{self, Kind, Trace},
};

/// More instructions than were recorded that pass.
const MORE: f64 = 1.02;

/// Instructions of one sweep at most.
const LIMIT: u64 = 20_000_000;

/// Count instructions, locked instructions, fences and system calls of every way a packet goes
#[derive(Args)]
pub struct Locked {
    /// Fail when a count is above the recorded one
    #[arg(long, conflicts_with = "record")]
    check: bool,
    /// Record the counts
    #[arg(long)]
    record: bool,
    /// The recorded counts
    #[arg(long, default_value = "bench/locked.csv")]
    file: PathBuf,
}

/// The counts of one way, a packet.
#[derive(Clone, PartialEq, Debug)]
struct Line {
    name: String,
    instructions: f64,
    locked: f64,
    fences: f64,
    syscalls: f64,
}

impl Line {
    fn new(name: &str, trace: &Trace, packets: u32) -> Self {
        let per = |n: u64| n as f64 / f64::from(packets);
        let counts = trace.counts;
        Self {
            name: name.into(),
            instructions: per(counts.instructions),
            locked: per(counts.locked),
            fences: per(counts.fences),
            syscalls: per(counts.syscalls),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(',');
        let name = words.next()?.to_owned();
        let mut number = || words.next()?.trim().parse().ok();
        let (instructions, locked, fences, syscalls) = (number()?, number()?, number()?, number()?);
        Some(Self { name, instructions, locked, fences, syscalls })
    }

    /// What is worse here than in `recorded`.
    fn worse(&self, recorded: &Self, same_compiler: bool) -> Option<String> {
        let more = |what: &str, now: f64, then: f64, factor: f64| {
            (now > then * factor + 0.005)
                .then(|| format!("{}: {now:.2} {what} a packet, recorded {then:.2}", self.name))
        };
        more("locked instructions", self.locked, recorded.locked, 1.0)
            .or_else(|| more("fences", self.fences, recorded.fences, 1.0))
            .or_else(|| more("system calls", self.syscalls, recorded.syscalls, 1.0))
            .or_else(|| {
                more("instructions", self.instructions, recorded.instructions, MORE).filter(|_| same_compiler)
            })
    }
}

impl Locked {
    /// Counts and prints.
    ///
    /// # Errors
    /// Instructions cannot be counted here, or with `--check` there are more than recorded.
    pub fn run(&self) -> io::Result<()> {
        if cfg!(debug_assertions) {
            return Err(io::Error::other(
                "this is no optimised build: cargo run --release -p sweepd-bench -- locked",
            ));
        }
        println!("a packet, counted one instruction at a time");
        println!("{:28}{:>13}{:>9}{:>9}{:>14}", "", "instructions", "locked", "fences", "system calls");
        let (mut lines, mut traces) = (Vec::new(), Vec::new());
        for way in paths::all() {
            let trace = trace(&way)?;
            lines.push(print(Line::new(way.name, &trace, way.packets)));
            traces.push((way.name, way.packets, trace));
        }
        for discipline in Discipline::ALL {
            let name = format!("ipv4, discipline {}", discipline.name());
            let (trace, packets) = by_discipline(discipline)?;
            lines.push(print(Line::new(&name, &trace, packets)));
        }
        for (name, packets, trace) in &traces {
            offenders(name, *packets, trace);
        }
        if self.record {
            fs::write(&self.file, recorded(&lines))?;
            println!("\nrecorded in {}", self.file.display());
        }
        if self.check { self.compare(&lines) } else { Ok(()) }
    }

    fn compare(&self, lines: &[Line]) -> io::Result<()> {
        let text = fs::read_to_string(&self.file)
            .map_err(|e| io::Error::other(format!("{}: {e}; --record makes it", self.file.display())))?;
        let same_compiler = text.lines().next() == Some(&compiler());
        if !same_compiler {
            println!("\nSKIPPED: instruction counts, which were recorded with another compiler");
        }
        let recorded: HashMap<String, Line> =
            text.lines().filter_map(Line::parse).map(|line| (line.name.clone(), line)).collect();
        let worse: Vec<String> = lines
            .iter()
            .filter_map(|line| match recorded.get(&line.name) {
                Some(recorded) => line.worse(recorded, same_compiler),
                None => Some(format!("{}: not recorded; sweepd-bench locked --record", line.name)),
            })
            .collect();
        if !worse.is_empty() {
            return Err(io::Error::other(worse.join("; ")));
        }
        println!("\nnothing is above what is recorded in {}", self.file.display());
        Ok(())
    }
}

fn print(line: Line) -> Line {
    println!(
        "{:28}{:>13.1}{:>9.2}{:>9.2}{:>14.2}",
        line.name, line.instructions, line.locked, line.fences, line.syscalls
    );
    line
}

fn recorded(lines: &[Line]) -> String {
    let mut text = format!("{}\nway,instructions,locked,fences,system calls\n", compiler());
    for line in lines {
        let Line { name, instructions, locked, fences, syscalls } = line;
        text +=
            &format!("{},{instructions:.2},{locked:.2},{fences:.2},{syscalls:.2}\n", name.replace(',', ";"));
    }
    text
}

/// The compiler's own words, as the first line of the record.
fn compiler() -> String {
    let said = std::process::Command::new("rustc").arg("--version").output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    format!("# {}", said.unwrap_or_else(|_| "unknown compiler".into()))
}

/// One steady sweep of the way's packets.
fn trace(way: &Way) -> io::Result<Trace> {
    let mut burst = Burst::default();
    let mut rig = way.ready(&mut burst)?;
    stepper::trace(LIMIT, || {
        rig.worker.sweep(&mut burst);
    })
}

fn by_discipline(discipline: Discipline) -> io::Result<(Trace, u32)> {
    let (v4, v6) = paths::routes();
    let way = &paths::all()[0];
    let mut rig: Rig = (way.make)()?;
    let shared = Shared::new(rig::tables(&v4, &v6)?);
    let mut burst = Burst::default();
    for _ in 0..2 {
        rig.refill(way.packets);
        shared.sweep(discipline, &mut rig.worker, &mut burst);
    }
    rig.refill(way.packets);
    let trace = stepper::trace(LIMIT, || {
        shared.sweep(discipline, &mut rig.worker, &mut burst);
    })?;
    Ok((trace, way.packets))
}

/// The functions in which locked instructions, fences and system calls are, and those in which most
/// instructions are.
fn offenders(name: &str, packets: u32, trace: &Trace) {
    let mut shared: HashMap<String, u64> = HashMap::new();
    let mut plain: HashMap<String, u64> = HashMap::new();
    for (&at, &(executed, kind)) in &trace.places {
        let function = symbol(at);
        if kind != Kind::Plain {
            *shared.entry(function.clone()).or_default() += executed;
        }
        *plain.entry(function).or_default() += executed;
    }
    let show = |what: &str, counts: HashMap<String, u64>, most: usize| {
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), name.clone()));
        for (function, n) in counts.into_iter().take(most) {
            println!("  {what:22}{:>9.2}  {function}", n as f64 / f64::from(packets));
        }
    };
    println!("\n{name}");
    show("locked, fences, calls", shared, 5);
    show("instructions", plain, 5);
}

/// The function that an address lies in: the innermost that was not inlined away.
fn symbol(at: u64) -> String {
    let mut name = None;
    backtrace::resolve(at as usize as *mut std::ffi::c_void, |symbol| {
        name = name.take().or_else(|| symbol.name().map(|name| format!("{name:#}")));
    });
    name.unwrap_or_else(|| format!("{at:#x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(instructions: f64, locked: f64) -> Line {
        Line { name: "ipv4".into(), instructions, locked, fences: 0.0, syscalls: 0.0 }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let lines = [line(285.25, 0.0), line(300.5, 8.0)];
        let read: Vec<_> = recorded(&lines).lines().filter_map(Line::parse).collect();
        assert_eq!(read, lines);
    }

    #[test]
    fn one_locked_instruction_more_is_worse_and_so_are_three_percent() {
        let recorded = line(285.0, 0.0);
        assert_eq!(line(285.0, 0.0).worse(&recorded, true), None);
        assert_eq!(line(290.0, 0.0).worse(&recorded, true), None);
        assert!(line(285.0, 0.01).worse(&recorded, false).is_some());
        assert!(line(294.0, 0.0).worse(&recorded, true).unwrap().contains("recorded 285.00"));
        assert_eq!(line(294.0, 0.0).worse(&recorded, false), None);
    }
}
