//! `sweepd-bench locked`: what every way through the router executes a packet, counted one
//! instruction at a time: instructions, locked instructions, fences, system calls, and the functions
//! that the costly ones are in.
//!
//! With `--check` the counts are held against those recorded in `bench/locked.csv`: no way may
//! gain a locked instruction, a fence or a system call, or 2 % more instructions. Compilers have
//! their moods, and code chooses its instructions by the processor's features, so instructions are
//! compared only where both are the recorded ones. The build of the tests and an optimised one are
//! recorded beside each other.

use std::{collections::HashMap, fmt, fs, io, path::PathBuf};

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
    /// Leave out in which functions they are
    #[arg(long)]
    brief: bool,
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
    fn worse(&self, recorded: &Self, same_place: bool) -> Option<String> {
        let more = |what: &str, now: f64, then: f64, factor: f64| {
            (now > then * factor + 0.005)
                .then(|| format!("{}: {now:.2} {what} a packet, recorded {then:.2}", self.name))
        };
        more("locked instructions", self.locked, recorded.locked, 1.0)
            .or_else(|| more("fences", self.fences, recorded.fences, 1.0))
            .or_else(|| more("system calls", self.syscalls, recorded.syscalls, 1.0))
            .or_else(|| {
                more("instructions", self.instructions, recorded.instructions, MORE).filter(|_| same_place)
            })
    }
}

impl Locked {
    /// Counts and prints.
    ///
    /// # Errors
    /// Instructions cannot be counted here, or with `--check` there are more than recorded.
    pub fn run(&self) -> io::Result<()> {
        println!("a packet, counted one instruction at a time; {}", Place::here());
        println!("{:28}{:>13}{:>9}{:>9}{:>14}", "", "instructions", "locked", "fences", "system calls");
        let (mut lines, mut traces) = (Vec::new(), Vec::new());
        for way in paths::all() {
            let trace = trace(&way)?;
            lines.push(print(Line::new(way.name, &trace, way.packets)));
            traces.push((way.name, way.packets, trace));
        }
        for discipline in Discipline::ALL {
            let name = format!("ipv4; discipline {}", discipline.name());
            let (trace, packets) = by_discipline(discipline)?;
            lines.push(print(Line::new(&name, &trace, packets)));
        }
        if !self.brief {
            for (name, packets, trace) in &traces {
                offenders(name, *packets, trace);
            }
        }
        let here = Place::here();
        if self.record {
            let text = fs::read_to_string(&self.file).unwrap_or_default();
            fs::write(&self.file, Records::parse(&text).with(Record { place: here, lines }).text())?;
            println!("\nrecorded in {}", self.file.display());
            return Ok(());
        }
        if self.check { self.compare(&here, &lines) } else { Ok(()) }
    }

    fn compare(&self, here: &Place, lines: &[Line]) -> io::Result<()> {
        let text = fs::read_to_string(&self.file)
            .map_err(|e| io::Error::other(format!("{}: {e}; --record makes it", self.file.display())))?;
        let records = Records::parse(&text);
        let Some(record) = records.nearest(here) else {
            return Err(io::Error::other(format!(
                "{}: there is no record in it; --record makes one",
                self.file.display()
            )));
        };
        let same = record.place == *here;
        if !same {
            println!("\nSKIPPED: instructions a packet, which were recorded with {}", record.place);
        }
        let worse: Vec<String> = lines
            .iter()
            .filter_map(|line| match record.lines.iter().find(|l| l.name == line.name) {
                Some(recorded) => line.worse(recorded, same),
                None => Some(format!("{}: not recorded", line.name)),
            })
            .collect();
        if !worse.is_empty() {
            return Err(io::Error::other(format!(
                "{}\nif it has to be so, record anew: CONTRIBUTING.md says how",
                worse.join("\n")
            )));
        }
        println!("\nnothing is above what is recorded in {}", self.file.display());
        Ok(())
    }
}

/// What the number of instructions depends on besides the source.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    /// Whether the build is optimised, or that of the tests.
    optimised: bool,
    /// The compiler's own words.
    compiler: String,
    /// The C library, whose copying is counted as well.
    libc: String,
    /// The processor's features by which code is chosen.
    features: String,
}

impl Place {
    /// This program, on this machine.
    fn here() -> Self {
        let said = std::process::Command::new("rustc").arg("--version").output();
        let compiler = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        Self {
            optimised: !cfg!(debug_assertions),
            compiler: compiler.unwrap_or_else(|_| "unknown compiler".into()),
            libc: libc_version(),
            features: features(),
        }
    }

    fn build(&self) -> &'static str {
        if self.optimised { "optimised build" } else { "build of the tests" }
    }

    /// As [`fmt::Display`] writes it.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split("; ").map(str::to_owned);
        let optimised = parts.next()? == "optimised build";
        Some(Self { optimised, compiler: parts.next()?, libc: parts.next()?, features: parts.next()? })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}; {}; {}", self.build(), self.compiler, self.libc, self.features)
    }
}

#[cfg(target_env = "gnu")]
fn libc_version() -> String {
    // SAFETY: gives a pointer to a string that lives for ever.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    format!("glibc {}", version.to_string_lossy())
}

#[cfg(not(target_env = "gnu"))]
fn libc_version() -> String {
    "another C library".into()
}

/// Those that our code asks for, and those by which the C library chooses how to copy.
fn features() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! those {
            ($($name:tt)*) => {
                [$(($name, std::is_x86_feature_detected!($name))),*]
            };
        }
        let all = those!("popcnt" "bmi1" "bmi2" "avx" "avx2" "avx512f" "avx512vl" "avx512bw" "ermsb");
        let there: Vec<&str> = all.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect();
        there.join(" ")
    }
    #[cfg(not(target_arch = "x86_64"))]
    String::new()
}

/// What one build executed on one machine.
struct Record {
    place: Place,
    lines: Vec<Line>,
}

/// The recorded counts: at most one record of each build.
#[derive(Default)]
struct Records(Vec<Record>);

impl Records {
    fn parse(text: &str) -> Self {
        let mut records = Self::default();
        for line in text.lines() {
            if let Some(place) = line.strip_prefix("# ").and_then(Place::parse) {
                records.0.push(Record { place, lines: Vec::new() });
            } else if let (Some(record), Some(line)) = (records.0.last_mut(), Line::parse(line)) {
                record.lines.push(line);
            }
        }
        records
    }

    /// The record of the same build, else the other.
    fn nearest(&self, place: &Place) -> Option<&Record> {
        self.0.iter().find(|r| r.place.optimised == place.optimised).or(self.0.first())
    }

    /// With this record in the place of the one of the same build.
    fn with(mut self, record: Record) -> Self {
        self.0.retain(|r| r.place.optimised != record.place.optimised);
        self.0.push(record);
        self.0.sort_by_key(|r| r.place.optimised);
        self
    }

    fn text(&self) -> String {
        let mut text = String::from("way,instructions,locked,fences,system calls\n");
        for Record { place, lines } in &self.0 {
            text += &format!("# {place}\n");
            for Line { name, instructions, locked, fences, syscalls } in lines {
                text += &format!("{name},{instructions:.2},{locked:.2},{fences:.2},{syscalls:.2}\n");
            }
        }
        text
    }
}

fn print(line: Line) -> Line {
    println!(
        "{:28}{:>13.1}{:>9.2}{:>9.2}{:>14.2}",
        line.name, line.instructions, line.locked, line.fences, line.syscalls
    );
    line
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

    fn place(optimised: bool) -> Place {
        Place {
            optimised,
            compiler: "rustc 1.95.0".into(),
            libc: "glibc 2.36".into(),
            features: "avx2".into(),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let lines = vec![line(285.25, 0.0), line(300.5, 8.0)];
        let records = Records::default()
            .with(Record { place: place(true), lines: vec![line(9.0, 0.0)] })
            .with(Record { place: place(false), lines: lines.clone() });
        let read = Records::parse(&records.text());
        assert_eq!(read.text(), records.text());
        let nearest = read.nearest(&place(false)).unwrap();
        assert_eq!((&nearest.place, &nearest.lines), (&place(false), &lines));
    }

    #[test]
    fn a_new_record_takes_the_place_of_its_builds_last_one() {
        let record = |optimised, n| Record { place: place(optimised), lines: vec![line(n, 0.0)] };
        let records = Records::default().with(record(true, 1.0)).with(record(false, 2.0));
        let records = records.with(record(true, 3.0));
        assert_eq!(records.0.len(), 2);
        assert_eq!(records.nearest(&place(true)).unwrap().lines[0].instructions, 3.0);
        assert_eq!(records.nearest(&place(false)).unwrap().lines[0].instructions, 2.0);
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
