//! The daemon beside a real kernel that changes faster than anybody can listen: in the end the
//! kernel, the RIB and the FIB agree, as `sweepd show routes --diff` tells. Needs root and
//! iproute2; says so and passes otherwise.

#![cfg(target_os = "linux")]

use std::{
    fmt::Write as _,
    fs::File,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use ipnet::{Ipv4Net, Ipv6Net};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sweepd::tables::{
    NextHopId,
    prefixes::{Prefixes4, Prefixes6},
    recorded, synthetic,
};

/// Longest wait for anything, on a busy machine.
const LONG: Duration = Duration::from_secs(120);

fn is_possible() -> bool {
    let root = nix::unistd::geteuid().is_root();
    let tool = Command::new("ip").arg("-V").output().is_ok();
    if !root || !tool {
        eprintln!("skipped: needs root and iproute2");
    }
    root && tool
}

fn run(line: &str) {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A network namespace with ports wan and lan, and a daemon in it; all gone when dropped.
struct Router {
    name: String,
    dir: tempfile::TempDir,
    child: Option<Child>,
}

impl Router {
    fn start(what: &str) -> Self {
        let name = format!("reload_{}_{what}", std::process::id());
        run(&format!("ip netns add {name}"));
        let mut router = Self { name, dir: tempfile::tempdir().unwrap(), child: None };
        router.ip("link set lo up");
        for (port, net) in [("wan", "203.0.113"), ("lan", "10.0.0")] {
            router.ip(&format!("link add {port} type veth peer name {port}_far"));
            for link in [port.to_owned(), format!("{port}_far")] {
                router.ip(&format!("link set {link} up"));
            }
            router.ip(&format!("addr add {net}.1/24 dev {port}"));
        }
        router.write("");
        router.restart();
        router
    }

    /// Starts the daemon, after an end of the one that runs.
    fn restart(&mut self) {
        self.end();
        let log = File::create(self.log_file()).unwrap();
        // `ip netns exec` becomes the command: the process is the daemon itself.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, env!("CARGO_BIN_EXE_sweepd"), "run", "--config"]);
        command.arg(self.file()).env_remove("JOURNAL_STREAM").stderr(log);
        self.child = Some(command.spawn().unwrap());
        let start = Instant::now();
        while !self.sweepd(&["show", "tables"]).0 {
            assert!(start.elapsed() < LONG, "it does not start:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn ip(&self, arguments: &str) {
        run(&format!("ip -n {} {arguments}", self.name));
    }

    /// Has `ip` carry out every line that it can.
    fn batch(&self, lines: &str) {
        let path = self.dir.path().join("batch");
        std::fs::write(&path, lines).unwrap();
        let status = Command::new("ip")
            .args(["-n", &self.name, "-force", "-batch"])
            .arg(path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.unwrap();
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("f")
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Writes the configuration with `more` in it.
    fn write(&self, more: &str) {
        let text = format!(
            "[daemon]\nruntime_dir = \"{}\"\n{more}\n\
             [[port]]\nname = \"wan\"\ndevice = \"xdp:wan\"\n[[port]]\nname = \"lan\"\ndevice = \"xdp:lan\"\n",
            self.dir.path().display()
        );
        std::fs::write(self.file(), text).unwrap();
    }

    /// Whether a command to the daemon succeeds, and its output.
    fn sweepd(&self, args: &[&str]) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sweepd"));
        let out = command.args(args).arg("--config").arg(self.file()).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        (out.status.success(), text)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.as_ref().unwrap().id() as i32), signal).unwrap();
    }

    /// Waits until nothing differs.
    fn wait_for_agreement(&self) {
        let start = Instant::now();
        loop {
            let (agree, text) = self.sweepd(&["show", "routes", "--diff"]);
            if agree {
                assert_eq!(text, "no differences\n");
                return;
            }
            assert!(start.elapsed() < LONG, "{text}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn prefixes(&self) -> u64 {
        self.tables("fib4_prefixes")
    }

    /// A number that `show tables` gives.
    fn tables(&self, key: &str) -> u64 {
        let (_, text) = self.sweepd(&["show", "tables", "--json"]);
        let tables: serde_json::Value = serde_json::from_str(&text).unwrap();
        tables[key].as_u64().unwrap()
    }

    /// The daemon's memory in bytes: now, and the most that it ever was.
    fn memory(&self) -> [u64; 2] {
        let path = format!("/proc/{}/status", self.child.as_ref().unwrap().id());
        let text = std::fs::read_to_string(path).unwrap();
        ["VmRSS:", "VmHWM:"].map(|key| {
            let line = text.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
        })
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.end();
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

#[test]
fn after_news_were_lost_kernel_rib_and_fib_agree() {
    if !is_possible() {
        return;
    }
    /// Far more news than the socket's buffer holds: some 170,000.
    const MANY: u32 = 400_000;
    let router = Router::start("overrun");
    router.wait_for_agreement();
    let few = router.prefixes();
    let mut lines = String::new();
    for n in 0..MANY {
        let (b, c, last) = (n >> 14, n >> 6 & 255, (n & 63) << 2);
        writeln!(lines, "route add 20.{b}.{c}.{last}/30 via 203.0.113.{}", 2 + n % 200).unwrap();
    }
    // What listens is asleep while they come.
    router.signal(Signal::SIGSTOP);
    router.batch(&lines);
    router.signal(Signal::SIGCONT);
    router.wait_for_agreement();
    assert!(router.log().contains("news from the kernel were lost"), "{}", router.log());
    let full = router.prefixes();
    assert!(full >= few + u64::from(MANY), "{full} prefixes");
    // The same with what goes and changes, while listings are under way.
    let mut lines = String::new();
    for n in 0..MANY {
        let (b, c, last) = (n >> 14, n >> 6 & 255, (n & 63) << 2);
        let to = format!("20.{b}.{c}.{last}/30");
        match n % 3 {
            0 => writeln!(lines, "route del {to}").unwrap(),
            1 => writeln!(lines, "route replace {to} via 10.0.0.{}", 2 + n % 200).unwrap(),
            _ => writeln!(lines, "route append blackhole {to}").unwrap(),
        }
    }
    router.signal(Signal::SIGSTOP);
    router.batch(&lines);
    router.signal(Signal::SIGCONT);
    router.batch("link set wan down\nlink set wan up\n");
    router.wait_for_agreement();
    // With wan went the routes through it; those through lan and the blackholes are left.
    let left = router.prefixes();
    assert!(left < full - u64::from(MANY) / 4 && left > u64::from(MANY) / 3, "{left} prefixes");
}

#[test]
fn another_table_of_the_kernels_is_followed_after_a_reload() {
    if !is_possible() {
        return;
    }
    let router = Router::start("table");
    router.ip("route add 198.51.100.0/24 via 203.0.113.9");
    router.ip("route add 192.0.2.0/24 via 203.0.113.9");
    router.ip("route add 192.0.2.0/24 via 10.0.0.9 table 100");
    router.ip("route add 100.64.0.0/10 via 10.0.0.9 table 100");
    router.ip("route add 10.0.0.0/24 dev lan table 100");
    router.ip("-6 route add 2001:db8::/32 dev lan table 100");
    router.wait_for_agreement();
    let way = |address: &str| {
        let (_, text) = router.sweepd(&["show", "routes", address, "--json"]);
        let fate: serde_json::Value = serde_json::from_str(&text).unwrap();
        fate["next_hop"].as_str().map(str::to_owned)
    };
    let (main, other) = (Some("203.0.113.9".to_owned()), Some("10.0.0.9".to_owned()));
    assert_eq!(
        (way("192.0.2.1"), way("198.51.100.1"), way("100.64.0.1")),
        (main.clone(), main.clone(), None)
    );
    router.write("[kernel]\ntable = 100");
    assert_eq!(router.sweepd(&["reload"]), (true, "reloaded\n".into()), "{}", router.log());
    assert_eq!((way("192.0.2.1"), way("198.51.100.1"), way("100.64.0.1")), (other.clone(), None, other));
    assert_eq!(way("2001:db8::7"), Some("2001:db8::7".into()));
    router.wait_for_agreement();
    router.write("[kernel]\nroutes = false");
    assert!(router.sweepd(&["reload"]).0, "{}", router.log());
    assert_eq!((way("192.0.2.1"), way("100.64.0.1")), (None, None));
    router.wait_for_agreement();
    router.write("");
    assert!(router.sweepd(&["reload"]).0, "{}", router.log());
    assert_eq!((way("192.0.2.1"), way("198.51.100.1"), way("100.64.0.1")), (main.clone(), main, None));
    router.wait_for_agreement();
}

/// Next hops of the full tables.
const NEXT_HOPS: NextHopId = 64;

/// The tables that `scripts/tables.sh` has fetched, or made-up ones of their size; says which.
fn full_tables() -> (Prefixes4, Prefixes6) {
    let dir = PathBuf::from(concat!(env!("CARGO_TARGET_TMPDIR"), "/../tables"));
    let v4 = dir.join("ipv4.csv");
    let v4 = if v4.exists() {
        recorded::ipv4(&v4, NEXT_HOPS).unwrap()
    } else {
        eprintln!(
            "skipped: the real IPv4 table, which scripts/tables.sh fetches; a made-up one stands for it"
        );
        synthetic::ipv4(886_117, NEXT_HOPS, 1)
    };
    let v6 = dir.join("ipv6.csv");
    let v6 = if v6.exists() {
        recorded::ipv6(&v6, NEXT_HOPS).unwrap()
    } else {
        eprintln!(
            "skipped: the real IPv6 table, which scripts/tables.sh fetches; a made-up one stands for it"
        );
        synthetic::ipv6(230_000, NEXT_HOPS, 1)
    };
    (v4, v6)
}

/// What `ip -batch` reads to set these routes.
fn lines(v4: &Prefixes4, v6: &Prefixes6) -> String {
    let mut lines = String::new();
    for (address, length, hop) in v4.iter() {
        let net = Ipv4Net::new(address.into(), length).unwrap();
        let via = ["203.0.113", "10.0.0"][usize::from(hop) % 2];
        writeln!(lines, "route add {net} via {via}.{}", 2 + hop).unwrap();
    }
    for (address, length, hop) in v6.iter() {
        let net = Ipv6Net::new(address.into(), length).unwrap();
        writeln!(
            lines,
            "route add {net} via fe80::{:x} dev {}",
            2 + hop,
            ["wan", "lan"][usize::from(hop) % 2]
        )
        .unwrap();
    }
    lines
}

#[test]
fn a_full_table_is_followed_to_the_last_prefix_in_little_memory() {
    if !is_possible() {
        return;
    }
    let (v4, v6) = full_tables();
    let router = Router::start("full");
    router.wait_for_agreement();
    let [few4, few6] = ["fib4_prefixes", "fib6_prefixes"].map(|key| router.tables(key));
    let start = Instant::now();
    router.batch(&lines(&v4, &v6));
    let loaded = start.elapsed();
    router.wait_for_agreement();
    let [rss, most] = router.memory();
    let pair = 2 * router.tables("fib4_bytes");
    println!(
        "{} + {} prefixes: loaded in {loaded:.1?}, all agreed after {:.1?}; IPv4 FIB pair {:.1} MB, \
         resident {:.0} MB, at most {:.0} MB",
        v4.len(),
        v6.len(),
        start.elapsed(),
        pair as f64 / 1e6,
        rss as f64 / 1e6,
        most as f64 / 1e6
    );
    // What a kernel does not take, such as a route to 240/4, is in neither.
    let [full4, full6] = ["fib4_prefixes", "fib6_prefixes"].map(|key| router.tables(key));
    assert!(full4 - few4 > v4.len() as u64 * 99 / 100, "{full4} of {}", v4.len());
    assert!(full6 - few6 > v6.len() as u64 * 99 / 100, "{full6} of {}", v6.len());
    assert!(pair <= 12_000_000, "{pair} bytes");
    assert!(most <= 400_000_000, "{most} bytes");
    // The same from what the kernel lists to a daemon that starts.
    let mut router = router;
    router.restart();
    router.wait_for_agreement();
    assert_eq!([full4, full6], ["fib4_prefixes", "fib6_prefixes"].map(|key| router.tables(key)));
    let [_, most] = router.memory();
    assert!(most <= 400_000_000, "{most} bytes");
}
