//! Namespaces, the hosts and the router in them, and the sweepd that runs in the router's.

use std::{
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CloneFlags, setns},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use sweepd::stats::read::{PortTotals, StatsReader};
use tempfile::TempDir;

/// The binary under test.
pub const SWEEPD: &str = env!("CARGO_BIN_EXE_sweepd");

/// Longest time until something that must happen has happened, on a machine that is busy.
pub const SOON: Duration = Duration::from_secs(10);

/// Whether the lab can be made; says so when not.
pub fn is_possible() -> bool {
    let missing = if !nix::unistd::geteuid().is_root() {
        "root".to_owned()
    } else {
        let tools = ["ip", "ethtool", "ping", "traceroute", "iperf3", "setpriv", "nft", "curl"];
        tools.into_iter().filter(|tool| !is_there(tool)).collect::<Vec<_>>().join(", ")
    };
    if missing.is_empty() {
        return true;
    }
    let required = std::env::var_os("SWEEPD_REQUIRE_LAB").is_some_and(|value| value == "1");
    assert!(!required, "SWEEPD_REQUIRE_LAB=1, but the lab needs {missing}");
    eprintln!("skipped: needs {missing}");
    false
}

/// Whether there is such a command.
pub fn is_there(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':').any(|dir| PathBuf::from(dir).join(tool).exists())
}

/// How a command ended, and all that it printed.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub text: String,
}

impl Ran {
    /// That it succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}", self.text);
        self.text
    }
}

/// Runs a line of the shell's.
pub fn sh(line: &str) -> Ran {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let out = Command::new("sh").args(["-c", line]).env("PATH", path).env("LC_ALL", "C").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    Ran { code: out.status.code().unwrap_or(-1), text }
}

/// Waits until `condition` gives true, at most for [`SOON`].
#[track_caller]
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "{what}: not within {SOON:?}");
        thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}

/// A router with ports `p1`, `p2` …, and a host at each. Host *n* is 10.0.*n*.2 and fd00:*n*::2 on
/// its `eth0`; the router is 10.0.*n*.1 and fd00:*n*::1 there, and its kernel does not forward.
/// Everything is gone when it is dropped.
pub struct Lab {
    name: String,
    hosts: u32,
    pub dir: TempDir,
    _turn: Turn,
}

/// Tests that measure times take it for themselves, all others share it.
static TURNS: RwLock<()> = RwLock::new(());

/// Held for a lab's life, for nothing but its end.
enum Turn {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

impl Lab {
    /// With so many hosts, on interfaces of one queue.
    pub fn new(hosts: u32) -> Self {
        Self::with_queues(&vec![1; hosts as usize])
    }

    /// With so many hosts, and no other lab at the same time.
    pub fn alone(hosts: u32) -> Self {
        Self::make(&vec![1; hosts as usize], Turn::Alone { _guard: TURNS.write() })
    }

    /// With a host for each number: that of the queues of its router's port.
    pub fn with_queues(queues: &[u32]) -> Self {
        Self::make(queues, Turn::Shared { _guard: TURNS.read_recursive() })
    }

    fn make(queues: &[u32], turn: Turn) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let lab = Self {
            name: format!("lab{}_{number}", std::process::id()),
            hosts: queues.len() as u32,
            dir: tempfile::tempdir().unwrap(),
            _turn: turn,
        };
        for ns in lab.all() {
            sh(&format!("ip netns add {ns} && ip -n {ns} link set lo up")).ok();
            // Nobody else has the lab's addresses: no second is spent on finding out.
            sh(&format!(
                "ip netns exec {ns} sh -c 'echo 0 | tee /proc/sys/net/ipv6/conf/*/accept_dad; \
                 echo 0 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding'"
            ))
            .ok();
        }
        for (n, queues) in (1..).zip(queues) {
            lab.wire(n, *queues);
        }
        lab
    }

    /// Makes the link between the router and host *n*.
    pub fn wire(&self, n: u32, queues: u32) {
        let (r, h) = (self.r(), self.h(n));
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        sh(&format!(
            "set -e
             ip -n {r} link add p{n} {queues} type veth peer name eth0 {queues} netns {h}
             ip netns exec {h} ethtool -K eth0 tx off
             ip -n {r} addr add 10.0.{n}.1/24 dev p{n}
             ip -n {r} addr add fd00:{n}::1/64 dev p{n} nodad
             ip -n {h} addr add 10.0.{n}.2/24 dev eth0
             ip -n {h} addr add fd00:{n}::2/64 dev eth0 nodad
             ip -n {r} link set p{n} up
             ip -n {h} link set eth0 up
             ip -n {h} route add default via 10.0.{n}.1
             ip -n {h} route add default via fd00:{n}::1"
        ))
        .ok();
    }

    /// The router's namespace.
    pub fn r(&self) -> String {
        format!("{}_r", self.name)
    }

    /// Host *n*'s namespace; host 0 is the router itself.
    pub fn h(&self, n: u32) -> String {
        if n == 0 {
            return self.r();
        }
        format!("{}_h{n}", self.name)
    }

    fn all(&self) -> Vec<String> {
        (1..=self.hosts).map(|n| self.h(n)).chain([self.r()]).collect()
    }

    /// Runs a line in the router's namespace.
    pub fn router(&self, line: &str) -> Ran {
        sh(&format!("ip netns exec {} {line}", self.r()))
    }

    /// Runs a line in host *n*.
    pub fn host(&self, n: u32, line: &str) -> Ran {
        sh(&format!("ip netns exec {} {line}", self.h(n)))
    }

    /// Starts a line in host *n* that goes on; ended when dropped.
    pub fn host_starts(&self, n: u32, line: &str) -> Background {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.h(n)]).args(line.split_whitespace());
        Background(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Calls `f` on a thread in host *n*. Sockets opened there stay there.
    pub fn in_host<T: Send>(&self, n: u32, f: impl FnOnce() -> T + Send) -> T {
        within(&self.h(n), f)
    }

    /// Calls `f` on a thread in the router's namespace.
    pub fn in_router<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        within(&self.r(), f)
    }

    /// Whether a program of ours, or anybody's, is attached to the router's interface.
    pub fn has_program(&self, interface: &str) -> bool {
        sh(&format!("ip -n {} -d link show {interface}", self.r())).ok().contains("prog/xdp")
    }

    /// Writes a configuration with all ports, `daemon` among the keys of `[daemon]`, and `more`.
    pub fn configure(&self, daemon: &str, more: &str) -> PathBuf {
        self.configure_ports(self.hosts, daemon, more)
    }

    /// As [`Lab::configure`], with the first ports alone.
    pub fn configure_ports(&self, ports: u32, daemon: &str, more: &str) -> PathBuf {
        let mut text = format!("[daemon]\nruntime_dir = {:?}\n{daemon}\n", self.runtime_dir());
        for n in 1..=ports {
            text += &format!("[[port]]\nname = \"p{n}\"\ndevice = \"xdp:p{n}\"\n");
        }
        self.configuration(&(text + more))
    }

    /// Writes a configuration as it stands.
    pub fn configuration(&self, text: &str) -> PathBuf {
        let path = self.dir.path().join("sweepd.toml");
        fs::write(&path, text).unwrap();
        path
    }

    pub fn runtime_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Starts sweepd as the router, and waits until it forwards.
    #[track_caller]
    pub fn start(&self) -> Router {
        self.start_with("", "")
    }

    /// As [`Lab::start`], with more of a configuration.
    #[track_caller]
    pub fn start_with(&self, daemon: &str, more: &str) -> Router {
        self.configure(daemon, more);
        self.start_configured()
    }

    /// As [`Lab::start`], on the first ports alone; the other interfaces are the kernel's.
    #[track_caller]
    pub fn start_ports(&self, ports: u32) -> Router {
        self.configure_ports(ports, "", "");
        self.start_configured()
    }

    /// Starts the daemon with the configuration that was written last.
    #[track_caller]
    pub fn start_configured(&self) -> Router {
        let mut router = self.launch("");
        self.wait_for_start(&mut router);
        router
    }

    /// Starts sweepd with the configuration that was written last, by way of `prefix`.
    pub fn launch(&self, prefix: &str) -> Router {
        self.launch_binary(Path::new(SWEEPD), prefix)
    }

    /// As [`Lab::launch`], from a copy of the binary.
    pub fn launch_binary(&self, binary: &Path, prefix: &str) -> Router {
        let config = self.dir.path().join("sweepd.toml");
        let mut command = prefix.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        command.extend(
            [binary.as_os_str(), "run".as_ref(), "--config".as_ref(), config.as_os_str()].map(OsString::from),
        );
        self.launch_command(&command)
    }

    /// Starts what serves as the router, whatever it is.
    pub fn launch_command(&self, command: &[OsString]) -> Router {
        let log = self.dir.path().join("log");
        let child = Command::new("ip")
            .args(["netns", "exec", &self.r()])
            .args(command)
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Router { child, log, runtime_dir: self.runtime_dir() }
    }

    /// Waits until what was launched forwards.
    #[track_caller]
    pub fn wait_for_start(&self, router: &mut Router) {
        wait_for("sweepd forwards", || {
            assert!(router.is_running(), "it ended: {}", router.log());
            router.log().contains(": forwarding\n")
        });
    }

    /// Whether a host's packets reach another: no other way but through sweepd.
    pub fn reaches(&self, from: u32, address: &str) -> bool {
        self.host(from, &format!("ping -c 1 -W 1 {address}")).code == 0
    }

    /// That the router's kernel has forwarded nothing.
    pub fn kernel_has_not_forwarded(&self) {
        let snmp = self.router("cat /proc/net/snmp").ok();
        let mut ip = snmp.lines().filter(|line| line.starts_with("Ip:")).map(str::split_whitespace);
        let (names, values) = (ip.next().unwrap(), ip.next().unwrap());
        let forwarded = names.zip(values).find(|(name, _)| *name == "ForwDatagrams").unwrap().1;
        assert_eq!(forwarded, "0");
        let snmp6 = self.router("cat /proc/net/snmp6").ok();
        let line = snmp6.lines().find(|line| line.starts_with("Ip6OutForwDatagrams")).unwrap();
        assert!(line.ends_with("\t0"), "{line}");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for ns in self.all() {
            sh(&format!("kill -KILL $(ip netns pids {ns}) 2>/dev/null; ip netns del {ns}"));
        }
    }
}

/// Calls `f` on a thread in a namespace.
fn within<T: Send>(ns: &str, f: impl FnOnce() -> T + Send) -> T {
    let file = File::open(format!("/run/netns/{ns}")).unwrap();
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(file, CloneFlags::CLONE_NEWNET).unwrap();
            f()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A process that goes on until it is dropped.
pub struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running sweepd. Killed when dropped; a test ends it with [`Router::stop`].
pub struct Router {
    child: Child,
    log: PathBuf,
    runtime_dir: PathBuf,
}

impl Router {
    /// All that it has said.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap()).into_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for its end; gives its exit code, or none when a signal ended it.
    #[track_caller]
    pub fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < SOON, "it does not end: {}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn counters(&self) -> StatsReader {
        StatsReader::open(&self.runtime_dir.join("stats")).unwrap()
    }

    /// How many packets ended so, on all ports.
    #[track_caller]
    pub fn verdict(&self, name: &str) -> u64 {
        let counters = self.counters();
        let at = counters.verdicts().iter().position(|(verdict, _)| verdict == name);
        let at = at.unwrap_or_else(|| panic!("no verdict is called {name}"));
        counters.snapshot().iter().map(|port| port.verdicts[at]).sum()
    }

    /// That on every port packets in = the sum of the verdicts + held + in transit, as soon as
    /// nothing moves.
    #[track_caller]
    pub fn adds_up(&self) {
        let counters = self.counters();
        let law = |port: &PortTotals| {
            port.rx_packets == port.verdicts.iter().sum::<u64>() + port.held + port.in_transit
        };
        let start = Instant::now();
        loop {
            let ports = counters.snapshot();
            if ports.iter().all(law) {
                return;
            }
            assert!(start.elapsed() < SOON, "packets in are not the sum of the verdicts: {ports:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The usual end of a test: the counters add up, SIGTERM ends it with exit code 0, nothing
    /// panicked, and nothing is left behind.
    #[track_caller]
    pub fn stop(mut self) {
        self.adds_up();
        self.signal(Signal::SIGTERM);
        assert_eq!(self.wait(), Some(0), "{}", self.log());
        assert!(!self.log().contains("panicked"), "{}", self.log());
        let left: Vec<_> = fs::read_dir(&self.runtime_dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the log of sweepd:\n{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
