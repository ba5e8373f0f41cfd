//! DPDK's l3fwd, built from Debian's source with what `bench/dpdk/l3fwd.c` puts around it, and its
//! testpmd, which only moves packets from the one device to the other.

use std::{
    env, fs,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    rc::Rc,
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Case, Peer, port_of};
use crate::{cycles, rig::OUT_PORTS, rivals::dpdk::memory};

const SHIM: &str = include_str!("../../dpdk/l3fwd.c");
const SHIM_HEADER: &str = include_str!("../../dpdk/l3fwd.h");
const TABLE_HEADER: &str = include_str!("../../dpdk/table.h");

/// Megabytes for l3fwd's table and buffers.
const MEGABYTES: usize = 1024;

/// How often l3fwd says how far it is, in milliseconds.
const EVERY: u64 = 50;

/// Builds l3fwd, and starts it with each of its tables; they are stopped until their turn.
///
/// # Errors
/// Why there is nothing to compare with.
pub fn start(case: &Case) -> Result<Vec<Box<dyn Peer>>, String> {
    let l3fwd = build()?;
    let files = Rc::new(tempfile::tempdir().map_err(|e| e.to_string())?);
    write(files.path(), case).map_err(|e| e.to_string())?;
    let mut peers: Vec<Box<dyn Peer>> = Vec::new();
    for (lookup, name) in [("lpm", "DPDK l3fwd, LPM"), ("fib", "DPDK l3fwd, FIB")] {
        peers.push(Box::new(L3fwd::start(&l3fwd, files.clone(), case, lookup, name)?));
    }
    Ok(peers)
}

/// The program, built below the build directory.
///
/// # Errors
/// Why it cannot be built here.
pub fn build() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no project")?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let place = target.join("dpdk");
    let source = Command::new(root.join("scripts/debian-source.sh")).arg("dpdk").arg(&place).output();
    let source = source.map_err(|e| format!("scripts/debian-source.sh: {e}"))?;
    if !source.status.success() {
        return Err(String::from_utf8_lossy(&source.stderr).trim().to_owned());
    }
    let source = PathBuf::from(String::from_utf8_lossy(&source.stdout).trim());
    for (name, text) in [("l3fwd.c", SHIM), ("l3fwd.h", SHIM_HEADER), ("table.h", TABLE_HEADER)] {
        fs::write(place.join(name), text).map_err(|e| e.to_string())?;
    }
    let example = source.join("examples/l3fwd");
    // The files of routes are included by others.
    let files: Vec<PathBuf> = fs::read_dir(&example)
        .map_err(|e| format!("{}: {e}", example.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .filter(|path| !path.to_string_lossy().contains("route_parse"))
        .collect();
    let program = place.join("l3fwd");
    let built = Command::new("cc")
        .args(["-O3", "-march=native", "-w", "-DALLOW_EXPERIMENTAL_API", "-include"])
        .arg(place.join("l3fwd.h"))
        .args(crate::rivals::dpdk::flags("--cflags")?)
        .arg("-I")
        .arg(&example)
        .arg("-I")
        .arg(source.join("examples/common"))
        .args(files)
        .arg(place.join("l3fwd.c"))
        .arg("-o")
        .arg(&program)
        .args(crate::rivals::dpdk::flags("--libs")?)
        .output()
        .map_err(|e| format!("there is no C compiler ({e})"))?;
    match built.status.success() {
        true => Ok(program),
        false => Err(format!("it does not compile: {}", String::from_utf8_lossy(&built.stderr))),
    }
}

/// Writes the table, the capture and the rest that l3fwd reads.
fn write(directory: &Path, case: &Case) -> io::Result<()> {
    let mut table = Vec::new();
    for (address, length, next_hop) in case.routes.iter() {
        table.extend(address.to_ne_bytes());
        table.extend([length, 0]);
        table.extend(port_of(next_hop).to_ne_bytes());
    }
    fs::write(directory.join("table"), table)?;
    let destinations: Vec<u8> = case.destinations.iter().flat_map(|to| to.to_ne_bytes()).collect();
    fs::write(directory.join("destinations"), destinations)?;
    let mut capture = Vec::new();
    // The header of a pcap file: magic number, version 2.4, longest packet, Ethernet.
    for word in [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 65535, 1] {
        capture.extend(word.to_ne_bytes());
    }
    for (bytes, len) in &case.frames {
        for word in [0, 0, u32::from(*len), u32::from(*len)] {
            capture.extend(word.to_ne_bytes());
        }
        capture.extend(&bytes[..usize::from(*len)]);
    }
    fs::write(directory.join("in.pcap"), capture)?;
    // It insists on files of routes; these lead nobody anywhere.
    fs::write(directory.join("routes4"), "R240.0.0.1/32 1\n")?;
    fs::write(directory.join("routes6"), "R2001:db8::/32 1\n")
}

/// How far l3fwd was at one moment.
struct Report {
    /// Nanoseconds of its processor time.
    cpu: u64,
    received: u64,
    sent: Vec<u64>,
}

impl Report {
    fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.strip_prefix("at ")?.split(' ').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let (_stamp, cpu, received) = (next()?, next()?, next()?);
        Some(Self { cpu, received, sent: std::iter::from_fn(next).collect() })
    }
}

/// A running l3fwd.
struct L3fwd {
    child: Child,
    lines: Receiver<String>,
    name: &'static str,
    /// Of each port's packets, how many of a replay it gets.
    shares: Vec<f64>,
    hertz: f64,
    _files: Rc<tempfile::TempDir>,
}

impl Drop for L3fwd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl L3fwd {
    fn start(
        program: &Path,
        files: Rc<tempfile::TempDir>,
        case: &Case,
        lookup: &str,
        name: &'static str,
    ) -> Result<Self, String> {
        let file = |name: &str| files.path().join(name);
        let mut command = Command::new(program);
        command
            .args(["--no-pci", "--no-telemetry", "--log-level", "4", "-l", "0", "-m", &MEGABYTES.to_string()])
            .arg("--force-max-simd-bitwidth=512")
            .args(memory(MEGABYTES))
            .arg("--vdev")
            .arg(format!("net_pcap0,rx_pcap={},infinite_rx=1", file("in.pcap").display()));
        for port in 0..OUT_PORTS {
            command.arg("--vdev").arg(format!("net_null{port}"));
        }
        let ports = format!("{:#x}", (1u32 << (OUT_PORTS + 1)) - 1);
        command
            .args([
                "--",
                "-p",
                &ports,
                "--lookup",
                lookup,
                "--config",
                "(0,0,0)",
                "--parse-ptype",
                "--no-numa",
            ])
            .arg(format!("--rule_ipv4={}", file("routes4").display()))
            .arg(format!("--rule_ipv6={}", file("routes6").display()))
            .env("TABLE", file("table"))
            .env("DESTINATIONS", file("destinations"))
            .env("EVERY", EVERY.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        let output = child.stdout.take().ok_or("its output is missing")?;
        let mut shares = vec![0.0; usize::from(OUT_PORTS)];
        for &to in &case.destinations {
            if let Some(share) = shares.get_mut(usize::from(case.port(to)).wrapping_sub(1)) {
                *share += 1.0 / case.destinations.len() as f64;
            }
        }
        let lines = follow(output);
        let peer = Self { child, lines, name, shares, hertz: cycles::hertz(), _files: files };
        peer.wait_until_it_forwards(case.sum())?;
        peer.signal(Signal::SIGSTOP);
        Ok(peer)
    }

    /// Waits for the table; its next hops must add up to `sum`.
    fn wait_until_it_forwards(&self, sum: u64) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(120);
        let mut agreed = false;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if let Some(theirs) = line.strip_prefix("sum ") {
                agreed = theirs.parse() == Ok(sum);
                if !agreed {
                    return Err(format!("its next hops add up to {theirs}, not to {sum}"));
                }
            }
            if agreed && Report::parse(&line).is_some_and(|report| report.received > 0) {
                return Ok(());
            }
        }
        Err("it does not start (too little memory? sysctl vm.nr_hugepages=1200)".into())
    }

    fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    /// The next report, others passed over.
    fn report(&self) -> io::Result<Report> {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(10));
            let line = line.map_err(|_| io::Error::other(format!("{} has ended", self.name)))?;
            if let Some(report) = Report::parse(&line) {
                return Ok(report);
            }
        }
    }

    /// Whether all that was received was sent, and by the ports that the table names.
    fn check(&self, before: &Report, after: &Report) -> io::Result<()> {
        let received = (after.received - before.received) as f64;
        let sent: Vec<f64> = after.sent.iter().zip(&before.sent).map(|(a, b)| (a - b) as f64).collect();
        let all: f64 = sent.iter().sum();
        // The counters are read one after the other while it runs.
        let near = |value: f64, wanted: f64| (value - wanted).abs() < 0.02 * received;
        if !near(all, received) {
            return Err(io::Error::other(format!(
                "{}: of {received} packets {all} were forwarded",
                self.name
            )));
        }
        match sent.iter().zip(&self.shares).position(|(sent, share)| !near(*sent, share * all)) {
            Some(port) => {
                Err(io::Error::other(format!("{}: port {} has sent {}", self.name, port + 1, sent[port])))
            }
            None => Ok(()),
        }
    }
}

impl Peer for L3fwd {
    fn name(&self) -> String {
        self.name.into()
    }

    fn measure(&mut self, time: Duration) -> io::Result<f64> {
        while self.lines.try_recv().is_ok() {}
        self.signal(Signal::SIGCONT);
        // The first one may be from before.
        self.report()?;
        let before = self.report()?;
        let until = Instant::now() + time;
        let mut after = self.report()?;
        while Instant::now() < until {
            after = self.report()?;
        }
        self.signal(Signal::SIGSTOP);
        self.check(&before, &after)?;
        let seconds = (after.cpu - before.cpu) as f64 / 1e9;
        Ok(seconds * self.hertz / (after.received - before.received).max(1) as f64)
    }
}

/// The lines of a program's output, as they come.
fn follow(output: ChildStdout) -> Receiver<String> {
    let (to, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                break;
            }
        }
    });
    lines
}
