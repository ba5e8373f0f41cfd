//! DPDK's tables, in a small C program (`bench/dpdk/lookup.c`) that is built here when DPDK's
//! headers are installed, and answers over a pipe.

use std::{
    cell::RefCell,
    fs,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    rc::Rc,
};

use sweepd::tables::prefixes::Prefixes4;

use super::{Cost, Measured, Rival};
use crate::lookup::Trace;

/// The program's source.
const SOURCE: &str = include_str!("../../dpdk/lookup.c");
const TABLE_HEADER: &str = include_str!("../../dpdk/table.h");

/// The ways of asking, by the program's names, with the table that each belongs to.
const WAYS: [(&str, &str, &str); 4] = [
    ("rte_lpm", "rte_lpm", "rte_lpm, one by one"),
    ("rte_lpm_bulk", "rte_lpm", "rte_lpm, bursts of 32"),
    ("rte_fib_scalar", "rte_fib", "rte_fib scalar, bursts of 32"),
    ("rte_fib_avx512", "rte_fib", "rte_fib AVX-512, bursts of 32"),
];

/// Megabytes that the program's two tables take with a million prefixes, and some more.
const MEGABYTES: usize = 1024;

/// The running program.
struct Program {
    child: Child,
    ask: ChildStdin,
    answer: BufReader<ChildStdout>,
    // Holds the tables and traces that it has read.
    _files: tempfile::TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One way of asking one of its tables.
struct Way {
    program: Rc<RefCell<Program>>,
    library: &'static str,
    name: &'static str,
    cost: Cost,
}

/// Builds and starts the program, and waits until its tables are built.
///
/// # Errors
/// Why there is nothing to compare with: DPDK is not installed, or does not work here.
pub fn start(prefixes: &Prefixes4, traces: &[Trace<u32>]) -> Result<Vec<Box<dyn Rival<u32>>>, String> {
    let files = tempfile::tempdir().map_err(|e| e.to_string())?;
    let program = build(files.path())?;
    let arguments = write_tables(files.path(), prefixes, traces).map_err(|e| e.to_string())?;
    let mut child = Command::new(program)
        .args(["--no-pci", "--no-telemetry", "--log-level", "4", "-l", "0", "-m", &MEGABYTES.to_string()])
        .arg("--force-max-simd-bitwidth=512")
        .args(memory(MEGABYTES))
        .arg("--")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| e.to_string())?;
    let (Some(ask), Some(answer)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("its pipes are missing".into());
    };
    let mut program = Program { child, ask, answer: BufReader::new(answer), _files: files };
    let costs = program.costs()?;
    let program = Rc::new(RefCell::new(program));
    let way = |(library, table, name): (&'static str, &'static str, &'static str)| {
        let cost = costs.iter().find(|(name, _)| name == table).map_or(Cost::default(), |c| c.1);
        Box::new(Way { program: program.clone(), library, name, cost }) as Box<dyn Rival<u32>>
    };
    Ok(WAYS.into_iter().map(way).collect())
}

/// What the compiler needs for DPDK: `--cflags` or `--libs`.
pub fn flags(what: &str) -> Result<Vec<String>, String> {
    match Command::new("pkg-config").args([what, "libdpdk"]).output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect())
        }
        _ => Err("DPDK is not installed (Debian: apt-get install libdpdk-dev pkg-config)".to_owned()),
    }
}

/// Compiles the program; gives its path.
fn build(directory: &Path) -> Result<PathBuf, String> {
    let (compile, link) = (flags("--cflags")?, flags("--libs")?);
    let source = directory.join("lookup.c");
    let program = directory.join("lookup");
    fs::write(&source, SOURCE).map_err(|e| e.to_string())?;
    fs::write(directory.join("table.h"), TABLE_HEADER).map_err(|e| e.to_string())?;
    let built = Command::new("cc")
        .args(["-O3", "-march=native", "-DALLOW_EXPERIMENTAL_API"])
        .args(compile)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .args(link)
        .output()
        .map_err(|e| format!("there is no C compiler ({e})"))?;
    match built.status.success() {
        true => Ok(program),
        false => Err(format!("does not compile: {}", String::from_utf8_lossy(&built.stderr))),
    }
}

/// Huge pages where enough of them are free, as DPDK's own programs want; else ordinary ones.
pub fn memory(megabytes: usize) -> &'static [&'static str] {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok()).unwrap_or(0)
    };
    if value("HugePages_Free:") * value("Hugepagesize:") >= megabytes << 10 {
        return &["--in-memory"];
    }
    println!(
        "  DPDK runs without huge pages: fewer than {megabytes} MB are free (sysctl vm.nr_hugepages=1800)"
    );
    &["--no-huge", "--no-shconf"]
}

/// Writes the table and the traces as the program reads them; gives the files' paths.
fn write_tables(directory: &Path, prefixes: &Prefixes4, traces: &[Trace<u32>]) -> io::Result<Vec<PathBuf>> {
    let mut bytes = Vec::new();
    for (address, length, next_hop) in prefixes.iter() {
        bytes.extend(address.to_ne_bytes());
        bytes.extend([length, 0]);
        bytes.extend(next_hop.to_ne_bytes());
    }
    let mut files = vec![directory.join("prefixes")];
    fs::write(&files[0], bytes)?;
    for trace in traces {
        let file = directory.join(trace.name);
        fs::write(&file, trace.addresses.iter().flat_map(|a| a.to_ne_bytes()).collect::<Vec<_>>())?;
        files.push(file);
    }
    Ok(files)
}

impl Program {
    /// What the tables cost, by name, once they are built.
    fn costs(&mut self) -> Result<Vec<(String, Cost)>, String> {
        let mut costs = Vec::new();
        loop {
            let line = self.line().map_err(|e| format!("the program does not start: {e}"))?;
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["ready"] => return Ok(costs),
                ["table", name, bytes, build, p50, p99] => {
                    let number = |s: &str| s.parse::<u64>().unwrap_or(0);
                    let update = Some((number(p50), number(p99))).filter(|u| u.0 > 0);
                    let build = build.parse().unwrap_or(0.0);
                    costs.push((name.to_owned(), Cost { bytes: number(bytes) as usize, build, update }));
                }
                _ => return Err(format!("unexpected: {line:?}")),
            }
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.answer.read_line(&mut line)? {
            0 => Err(io::Error::other("it has ended")),
            _ => Ok(line.trim().to_owned()),
        }
    }
}

impl Rival<u32> for Way {
    fn name(&self) -> String {
        self.name.into()
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn measure(&mut self, at: usize, _trace: &[u32]) -> io::Result<Measured> {
        let mut program = self.program.borrow_mut();
        writeln!(program.ask, "{} {at}", self.library)?;
        let line = program.line()?;
        let (rate, sum) = line.split_once(' ').unwrap_or_default();
        match (rate.parse(), sum.parse()) {
            (Ok(rate), Ok(sum)) => Ok(Measured { rate, sum }),
            _ => Err(io::Error::other(format!("{}: {line:?} is no result", self.name))),
        }
    }
}
