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

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
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
        let log = File::create(router.log_file()).unwrap();
        // `ip netns exec` becomes the command: the process is the daemon itself.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &router.name, env!("CARGO_BIN_EXE_sweepd"), "run", "--config"]);
        command.arg(router.file()).env_remove("JOURNAL_STREAM").stderr(log);
        router.child = Some(command.spawn().unwrap());
        let start = Instant::now();
        while !router.sweepd(&["show", "tables"]).0 {
            assert!(start.elapsed() < LONG, "it does not start:\n{}", router.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        router
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
        let (_, text) = self.sweepd(&["show", "tables", "--json"]);
        let tables: serde_json::Value = serde_json::from_str(&text).unwrap();
        tables["fib4_prefixes"].as_u64().unwrap()
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
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
