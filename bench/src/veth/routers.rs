//! The routers that are compared: each is started for its turn and taken away after it.

use std::{
    env, fs,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sweepd::config::schema;

use super::{
    place::{ADDRESS, INSIDE, OUTSIDE, Place, Table, text},
    wire::{To, Wanted, hop_mac},
};
use crate::{peers::dpdk, rivals};

/// The restricted C of the XDP router.
const XDP_SOURCE: &str = include_str!("../../xdp/forward.c");
/// Megabytes for l3fwd's table and buffers.
const MEGABYTES: usize = 1024;
/// Flows when addresses are translated.
const TRANSLATED_FLOWS: usize = 8192;

/// A router.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Router {
    /// The kernel.
    Kernel,
    /// The kernel, with nftables' masquerade.
    Nftables,
    /// An XDP program that asks the kernel's tables.
    Xdp,
    /// DPDK's l3fwd on this driver.
    L3fwd(&'static str),
    /// This program.
    Sweepd {
        /// Whether the XDP program forwards what it can.
        express: bool,
        /// Whether addresses are translated.
        masquerade: bool,
    },
}

/// A router, and on how many cores it runs with the generator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contestant {
    /// Its name in the data.
    pub key: &'static str,
    /// What it is.
    pub name: &'static str,
    /// The router.
    pub router: Router,
    /// Whether it has a core without the generator.
    pub own_core: bool,
}

impl Contestant {
    const fn new(key: &'static str, name: &'static str, router: Router, own_core: bool) -> Self {
        Self { key, name, router, own_core }
    }

    /// How many of the flows it gets.
    pub fn flows(&self) -> usize {
        if self.translates() { TRANSLATED_FLOWS } else { super::wire::FLOWS }
    }

    fn translates(&self) -> bool {
        matches!(self.router, Router::Nftables | Router::Sweepd { masquerade: true, .. })
    }

    /// What its packets must be like.
    pub fn wanted(&self) -> Wanted {
        let to = match self.router {
            // It knows one neighbour for each device.
            Router::L3fwd(_) => To::Mac(hop_mac(1)),
            _ => To::Hop,
        };
        Wanted { ttl: 63, to, source: self.translates().then_some(ADDRESS.into()) }
    }
}

/// All of them; this program's express only where it has that.
pub fn all() -> Vec<Contestant> {
    let sweepd = |express, masquerade| Router::Sweepd { express, masquerade };
    let mut all = vec![
        Contestant::new("kernel", "Linux forwarding", Router::Kernel, false),
        Contestant::new("nftables", "Linux, nftables masquerade", Router::Nftables, false),
        Contestant::new("xdp-fib", "XDP, bpf_fib_lookup", Router::Xdp, false),
        Contestant::new("sweepd", "sweepd, worker", sweepd(false, false), false),
        Contestant::new("sweepd-masquerade", "sweepd, masquerade", sweepd(false, true), false),
        Contestant::new("sweepd-2", "sweepd, worker, own core", sweepd(false, false), true),
        Contestant::new("l3fwd-xdp", "DPDK l3fwd, net_af_xdp", Router::L3fwd("net_af_xdp"), true),
        Contestant::new("l3fwd-packet", "DPDK l3fwd, net_af_packet", Router::L3fwd("net_af_packet"), true),
    ];
    if has_express() {
        all.insert(4, Contestant::new("sweepd-express", "sweepd, express", sweepd(true, false), false));
    }
    all
}

fn has_express() -> bool {
    schema::PORT.keys.contains(&"express")
}

/// What was made once and serves every start.
pub struct Programs {
    files: tempfile::TempDir,
    sweepd: PathBuf,
    /// The compiled XDP router.
    xdp: Option<PathBuf>,
    /// DPDK's l3fwd, and what DPDK is told about memory.
    l3fwd: Option<(PathBuf, &'static [&'static str])>,
}

impl Programs {
    /// Finds and builds them; says what is not there.
    ///
    /// # Errors
    /// This program's own daemon is not there.
    pub fn new() -> io::Result<Self> {
        let files = tempfile::tempdir()?;
        let sweepd = env::current_exe()?.with_file_name("sweepd");
        if !sweepd.exists() {
            let what = format!("there is no {}: build it with cargo build --release", sweepd.display());
            return Err(io::Error::other(what));
        }
        let xdp = compile(files.path()).map_err(|e| println!("SKIPPED: XDP with bpf_fib_lookup: {e}")).ok();
        let l3fwd = dpdk::build().map_err(|e| println!("SKIPPED: DPDK's l3fwd: {e}")).ok();
        let l3fwd = l3fwd.map(|program| (program, rivals::dpdk::memory(MEGABYTES)));
        if !has_express() {
            println!("SKIPPED: express, which this sweepd does not have");
        }
        Ok(Self { files, sweepd, xdp, l3fwd })
    }

    /// Whether this router can be started here.
    pub fn has(&self, router: Router) -> bool {
        match router {
            Router::Xdp => self.xdp.is_some(),
            Router::L3fwd(_) => self.l3fwd.is_some(),
            _ => true,
        }
    }

    /// Writes what l3fwd reads of this table.
    ///
    /// # Errors
    /// No room for the files.
    pub fn take_table(&self, table: &Table) -> io::Result<()> {
        let mut routes = Vec::with_capacity(table.routes.len() * 8);
        for (address, length, _) in table.routes.iter() {
            routes.extend(address.to_ne_bytes());
            routes.extend([length, 0]);
            // All next hops are behind the one device.
            routes.extend(1u16.to_ne_bytes());
        }
        let destinations: Vec<u8> = table.flows.iter().flat_map(|f| f.destination.to_ne_bytes()).collect();
        fs::write(self.files.path().join("table"), routes)?;
        fs::write(self.files.path().join("destinations"), destinations)?;
        fs::write(self.files.path().join("routes4"), "R240.0.0.1/32 1\n")?;
        fs::write(self.files.path().join("routes6"), "R2001:db8::/32 1\n")
    }

    /// Starts a router on this core.
    ///
    /// # Errors
    /// It does not start.
    pub fn start<'p>(&self, place: &'p Place, router: Router, core: usize) -> io::Result<Running<'p>> {
        let mut running = Running { place, child: None, undo: Vec::new() };
        // Beside another router the kernel's must not forward what that one leaves to it.
        place.kernel_forwards(matches!(router, Router::Kernel | Router::Nftables | Router::Xdp))?;
        place.take_frames()?;
        place.set_neighbors()?;
        match router {
            Router::Kernel => {}
            Router::Nftables => {
                place.router.exec("nft add table ip bench")?;
                running.undo.push("nft delete table ip bench".into());
                place
                    .router
                    .exec("nft add chain ip bench post { type nat hook postrouting priority srcnat ; }")?;
                place.router.exec(&format!("nft add rule ip bench post oifname {OUTSIDE} masquerade"))?;
            }
            Router::Xdp => {
                let object = self.xdp.as_deref().unwrap_or(Path::new("")).display().to_string();
                running.undo.push(format!("ip link set dev {INSIDE} xdpdrv off"));
                place.router.exec(&format!("ip link set dev {INSIDE} xdpdrv obj {object} sec xdp"))?;
            }
            Router::L3fwd(driver) => running.child = Some(self.l3fwd(place, driver, core)?),
            Router::Sweepd { express, masquerade } => {
                running.child = Some(self.sweepd(place, core, express, masquerade)?);
            }
        }
        Ok(running)
    }

    fn l3fwd(&self, place: &Place, driver: &str, core: usize) -> io::Result<Child> {
        let none = || io::Error::other("there is no l3fwd");
        let (program, memory) = self.l3fwd.as_ref().ok_or_else(none)?;
        let file = |name: &str| self.files.path().join(name);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", place.router.name()]).arg(program);
        command.args(["--no-pci", "--no-telemetry", "--log-level", "4", "-l", &core.to_string()]);
        command.args(["-m", &MEGABYTES.to_string(), "--force-max-simd-bitwidth=512"]).args(*memory);
        for (n, device) in [INSIDE, OUTSIDE].iter().enumerate() {
            command.arg("--vdev").arg(format!("{driver}{n},iface={device}"));
        }
        command.args(["--", "-p", "0x3", "--lookup", "lpm", "--parse-ptype", "--no-numa"]);
        command.arg("--config").arg(format!("(0,0,{core}),(1,0,{core})"));
        for port in 0..2 {
            command.arg(format!("--eth-dest={port},{}", text(hop_mac(1))));
        }
        command.arg(format!("--rule_ipv4={}", file("routes4").display()));
        command.arg(format!("--rule_ipv6={}", file("routes6").display()));
        command.env("TABLE", file("table")).env("DESTINATIONS", file("destinations")).env("EVERY", "100");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or_else(none)?;
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        if !lines.any(|line| line.starts_with("at ")) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(io::Error::other(format!("l3fwd does not start on {driver}")));
        }
        // Nobody reads the rest, but it must not stand in the way.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(child)
    }

    fn sweepd(&self, place: &Place, core: usize, express: bool, masquerade: bool) -> io::Result<Child> {
        let (config, log) = (self.files.path().join("sweepd.toml"), self.files.path().join("sweepd.log"));
        let run = self.files.path().join("run");
        let mut text = format!("[daemon]\nruntime_dir = \"{}\"\ncpus = [{core}]\n", run.display());
        for device in [INSIDE, OUTSIDE] {
            text += &format!("[[port]]\nname = \"{device}\"\ndevice = \"xdp:{device}\"\n");
            if has_express() {
                text += &format!("express = \"{}\"\n", if express { "on" } else { "off" });
            }
        }
        if masquerade {
            text += &format!("[[masquerade]]\nout = \"{OUTSIDE}\"\nfrom = [\"10.1.0.0/16\"]\n");
        }
        fs::write(&config, text)?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", place.router.name(), "taskset", "-c", &core.to_string()]);
        command.arg(&self.sweepd).args(["run", "--config"]).arg(&config).env_remove("JOURNAL_STREAM");
        let mut child = command.stderr(fs::File::create(&log)?).spawn()?;
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let said = fs::read_to_string(&log)?;
            if said.contains(": forwarding") {
                return Ok(child);
            }
            if Instant::now() > until || !matches!(child.try_wait(), Ok(None)) {
                let _ = child.kill();
                let _ = child.wait();
                let last = said.lines().last().unwrap_or_default();
                return Err(io::Error::other(format!("sweepd does not forward; its last word: {last}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Compiles the XDP router.
fn compile(directory: &Path) -> Result<PathBuf, String> {
    let (source, object) = (directory.join("forward.c"), directory.join("forward.o"));
    fs::write(&source, XDP_SOURCE).map_err(|e| e.to_string())?;
    let mut command = Command::new("clang");
    command.args(["-O2", "-g", "-target", "bpf", "-c"]).arg(&source).arg("-o").arg(&object);
    // Debian keeps the headers of the architecture in a directory of its own.
    command.arg("-I").arg(format!("/usr/include/{}-linux-gnu", env::consts::ARCH));
    let output = command.output().map_err(|e| format!("clang: {e} (apt-get install clang libbpf-dev)"))?;
    match output.status.success() {
        true => Ok(object),
        false => Err(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned()),
    }
}

/// A router at work; it ends when dropped.
pub struct Running<'p> {
    place: &'p Place,
    child: Option<Child>,
    /// Commands that take it away.
    undo: Vec<String>,
}

impl Running<'_> {
    /// Whether it is a process, and not all in the kernel.
    pub fn is_a_process(&self) -> bool {
        self.child.is_some()
    }

    /// The processor time that its own process has had.
    pub fn cpu(&self) -> Duration {
        self.child.as_ref().map_or(Duration::ZERO, |child| super::cpu_of(child.id()))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
            let until = Instant::now() + Duration::from_secs(5);
            while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        for line in &self.undo {
            let _ = self.place.router.exec(line);
        }
    }
}
