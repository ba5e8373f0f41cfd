//! `sweepd-bench report`: every benchmark after the other, each as a process of its own, and what
//! they said in `docs/performance.md`, between marked lines.
//!
//! How quiet the machine was stands beside it: before each part one core does the same small piece of
//! work again and again, and the spread of its times is the noise; and the share of time that the
//! host gave to others while a part ran, where the kernel knows it.

use std::{
    env, fs,
    hint::black_box,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use clap::Args;

use crate::cycles::{self, Spread};

/// Pieces of work by which the noise is measured.
const PIECES: usize = 2000;

/// A benchmark, with its arguments in a long and in a short run.
struct Part {
    name: &'static str,
    long: &'static [&'static str],
    brief: &'static [&'static str],
    /// Whether it takes `--out`.
    writes: bool,
}

impl Part {
    const fn new(name: &'static str, writes: bool, long: &'static [&str], brief: &'static [&str]) -> Self {
        Self { name, long, brief, writes }
    }
}

/// All of them, in the order in which they run.
const PARTS: [Part; 8] = [
    Part::new("loop", true, &[], &[]),
    Part::new("lookup", true, &[], &["--against", "1"]),
    Part::new("r530", true, &[], &["--rounds", "1", "--milliseconds", "100"]),
    Part::new(
        "gateway",
        true,
        &[],
        &["--rounds", "200", "--flows", "1000,100000", "--series", "destinations", "--device-flows", "1000"],
    ),
    Part::new("acl", false, &[], &[]),
    Part::new("peers", true, &[], &["--rounds", "1", "--milliseconds", "300"]),
    Part::new("veth", true, &[], &["--rounds", "1", "--milliseconds", "200"]),
    Part::new("locked", false, &["--brief"], &["--brief"]),
];

/// Run all benchmarks and write what they say into a document
#[derive(Args)]
pub struct All {
    /// Only these parts: loop, lookup, r530, gateway, acl, peers, veth, locked
    #[arg(long, value_delimiter = ',')]
    parts: Vec<String>,
    /// Short runs, to see that everything works
    #[arg(long)]
    brief: bool,
    /// The Markdown file to put the results into, where the last ones stand
    #[arg(long)]
    document: Option<PathBuf>,
    /// Where scripts/tables.sh has put the real tables
    #[arg(long, default_value_os_t = default_tables())]
    tables: PathBuf,
    /// Where to write data and plots
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
}

fn default_tables() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from).join("tables")
}

impl All {
    /// Runs them, one after the other.
    ///
    /// # Errors
    /// There is no part of that name; or, after all have run, which of them failed.
    pub fn run(&self) -> io::Result<()> {
        if let Some(name) = self.parts.iter().find(|name| !PARTS.iter().any(|part| part.name == **name)) {
            let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
            return Err(io::Error::other(format!("there is no part {name}; there are {}", names.join(", "))));
        }
        fs::create_dir_all(&self.out)?;
        let (begun, mut quiet, mut failed) = (Instant::now(), Quiet::default(), Vec::new());
        let wanted = |part: &&Part| self.parts.is_empty() || self.parts.iter().any(|name| name == part.name);
        let parts: Vec<&Part> = PARTS.iter().filter(wanted).collect();
        for (n, part) in parts.iter().enumerate() {
            let minutes = begun.elapsed().as_secs_f64() / 60.0;
            println!("\n=== {}, {} of {}, after {minutes:.1} minutes", part.name, n + 1, parts.len());
            quiet.before(part.name);
            let said = self.part(part)?;
            quiet.after();
            match (said, &self.document) {
                (None, _) => failed.push(part.name),
                (Some(text), Some(document)) => put(document, part.name, &format!("```\n{text}```\n"))?,
                (Some(_), None) => {}
            }
        }
        let text = quiet.table(begun.elapsed().as_secs_f64());
        print!("\n{text}");
        if let Some(document) = &self.document {
            put(document, "machine", &format!("```\n{text}```\n"))?;
            println!("written: {}", document.display());
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(io::Error::other(format!("failed: {}", failed.join(", ")))),
        }
    }

    /// Runs one part, shows what it says and gives it; none when it failed.
    fn part(&self, part: &Part) -> io::Result<Option<String>> {
        let mut command = Command::new(env::current_exe()?);
        command.arg(part.name).args(if self.brief { part.brief } else { part.long });
        if part.writes {
            command.arg("--out").arg(&self.out);
        }
        let (v4, v6) = (self.tables.join("ipv4.csv"), self.tables.join("ipv6.csv"));
        if part.name == "veth" || (matches!(part.name, "lookup" | "peers") && v4.exists()) {
            command.arg("--table4").arg(&v4);
        }
        if part.name == "lookup" && v6.exists() {
            command.arg("--table6").arg(&v6);
        }
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("its output is missing"))?;
        let mut text = String::new();
        for line in BufReader::new(output).lines() {
            let line = line?;
            println!("{line}");
            // Where the files are is said beside the results.
            if !line.starts_with("written: ") {
                text += &line;
                text.push('\n');
            }
        }
        let text = format!("{}\n", text.trim_matches('\n'));
        Ok(child.wait()?.success().then_some(text))
    }
}

/// How quiet the machine was.
#[derive(Default)]
struct Quiet {
    parts: Vec<Moment>,
}

/// One part's time.
struct Moment {
    part: &'static str,
    begun: Instant,
    /// Nanoseconds of the piece of work before it.
    noise: Spread,
    /// Ticks of all cores, and those that the host gave to others; first before, then of the part.
    ticks: (u64, u64),
    seconds: f64,
}

impl Quiet {
    fn before(&mut self, part: &'static str) {
        let noise = noise();
        self.parts.push(Moment { part, begun: Instant::now(), noise, ticks: ticks(), seconds: 0.0 });
    }

    fn after(&mut self) {
        if let Some(moment) = self.parts.last_mut() {
            let (all, stolen) = ticks();
            moment.ticks = (all - moment.ticks.0, stolen - moment.ticks.1);
            moment.seconds = moment.begun.elapsed().as_secs_f64();
        }
    }

    /// The machine, and how quiet it was.
    fn table(&self, seconds: f64) -> String {
        let mut text = format!(
            "{}\nTSC {:.2} GHz; in all {:.1} minutes\n\n{:10}{:>9}{:>34}{:>12}\n",
            machine(),
            cycles::hertz() / 1e9,
            seconds / 60.0,
            "part",
            "seconds",
            "a piece of work before it, ns",
            "host's, %"
        );
        for Moment { part, noise, ticks, seconds, .. } in &self.parts {
            let stolen = 100.0 * ticks.1 as f64 / ticks.0.max(1) as f64;
            text += &format!("{part:10}{seconds:>9.0}{:>34}{stolen:>12.2}\n", noise.to_string());
        }
        text
    }
}

/// The same piece of work, some 100 µs long, again and again.
fn noise() -> Spread {
    let piece = |_| {
        let start = Instant::now();
        let mut state = black_box(1u64);
        for _ in 0..50_000 {
            state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        black_box(state);
        start.elapsed().as_nanos() as f64
    };
    Spread::of((0..PIECES).map(piece).collect())
}

/// Ticks of all cores since the start, and those of them that the host gave to others.
fn ticks() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let all: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    (all.iter().sum(), all.get(7).copied().unwrap_or(0))
}

/// Processor, cores, kernel and compiler.
fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("model name"));
    let model = line.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let said = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output();
        output.map_or_else(|_| program.into(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
    };
    format!("{model}, {cores} cores; {}; {}", said("uname", "-sr"), said("rustc", "--version"))
}

/// Puts `text` into a Markdown file, between the lines that mark the place called `name`.
///
/// # Errors
/// The system's; when the file has no such lines.
pub fn put(path: &Path, name: &str, text: &str) -> io::Result<()> {
    let (begin, end) = (format!("<!-- {name}: from here -->"), format!("<!-- {name}: to here -->"));
    let old = fs::read_to_string(path)?;
    let parts = old.split_once(&begin).and_then(|(head, rest)| Some((head, rest.split_once(&end)?.1)));
    let Some((head, tail)) = parts else {
        return Err(io::Error::other(format!("{}: no lines {begin} and {end}", path.display())));
    };
    fs::write(path, format!("{head}{begin}\n{text}{end}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_text_takes_the_place_of_the_last_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "a\n<!-- x: from here -->\nold\n<!-- x: to here -->\nb\n").unwrap();
        put(file.path(), "x", "new\n").unwrap();
        let text = fs::read_to_string(file.path()).unwrap();
        assert_eq!(text, "a\n<!-- x: from here -->\nnew\n<!-- x: to here -->\nb\n");
        assert!(put(file.path(), "y", "").unwrap_err().to_string().contains("no lines"));
    }

    #[test]
    fn the_document_has_a_place_for_every_part() {
        let document = include_str!("../../docs/performance.md");
        for name in PARTS.iter().map(|part| part.name).chain(["machine", "follow"]) {
            for line in [format!("<!-- {name}: from here -->"), format!("<!-- {name}: to here -->")] {
                assert_eq!(document.matches(&line).count(), 1, "{line}");
            }
        }
    }
}
