//! The daemon under a service manager: what systemd is told, and what its unit promises.
#![cfg(target_os = "linux")]

use std::{
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

const CONFIG: &str = r#"
[kernel]
routes = false
[[port]]
name = "left"
device = "gen:rate=1000"
addresses = ["192.0.2.0/31"]
"#;

#[test]
fn readiness_signs_of_life_and_the_end_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let said = || {
        let mut buffer = [0; 4096];
        let n = socket.recv(&mut buffer).expect("something is said in time");
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    };
    let file = dir.path().join("sweepd.toml");
    std::fs::write(&file, format!("[daemon]\nruntime_dir = {:?}\n{CONFIG}", dir.path().join("run"))).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_sweepd"))
        .args(["run", "--config"])
        .arg(&file)
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .env("WATCHDOG_USEC", "200000")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(said(), "READY=1\nSTATUS=Forwarding between 1 port\n");
    // From then on the socket is there: whoever waits for readiness can ask.
    let show =
        Command::new(env!("CARGO_BIN_EXE_sweepd")).args(["show", "ports", "--config"]).arg(&file).output();
    assert!(show.unwrap().status.success());
    let start = Instant::now();
    for _ in 0..4 {
        assert_eq!(said(), "WATCHDOG=1\n");
    }
    assert!(start.elapsed() > Duration::from_millis(100), "not more often than is wanted");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let last = (0..100).map(|_| said()).find(|text| text != "WATCHDOG=1\n");
    assert_eq!(last.as_deref(), Some("STOPPING=1\n"));
    assert!(child.wait().unwrap().success());
}

/// What a directive of the unit's says, all its lines together.
fn directive(unit: &str, name: &str) -> String {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    lines.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_unit_has_the_user_and_the_capabilities_that_its_files_promise() {
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf");
    let unit = std::fs::read_to_string(conf.join("sweepd.service")).unwrap();
    let user = directive(&unit, "User");
    let sysusers = std::fs::read_to_string(conf.join("sysusers.conf")).unwrap();
    assert!(sysusers.lines().any(|line| line.starts_with(&format!("u {user} "))), "{sysusers}");
    assert_eq!(directive(&unit, "AmbientCapabilities"), "CAP_NET_ADMIN CAP_NET_RAW CAP_BPF");
    assert_eq!(directive(&unit, "CapabilityBoundingSet"), directive(&unit, "AmbientCapabilities"));
    assert_eq!(directive(&unit, "Type"), "notify");
    assert!(directive(&unit, "WatchdogSec").parse::<u32>().unwrap() >= 5);
}

/// A child that is killed when dropped.
struct Ends(std::process::Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a configuration with `more` sections, and starts the daemon in a shell after `before`.
fn start(dir: &Path, before: &str, more: &str) -> Ends {
    let file = dir.join("sweepd.toml");
    std::fs::write(&file, format!("[daemon]\nruntime_dir = {:?}\n{CONFIG}{more}", dir.join("run"))).unwrap();
    let command = format!("{before}exec {} run --config {}", env!("CARGO_BIN_EXE_sweepd"), file.display());
    let child = Command::new("sh")
        .args(["-c", &command])
        .env_remove("JOURNAL_STREAM")
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.join("log")).unwrap())
        .spawn();
    Ends(child.unwrap())
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn with_any_amount_of_memory_it_starts_or_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let said = || std::fs::read_to_string(dir.path().join("log")).unwrap();
    let mut outcomes = Vec::new();
    for kib in [50, 100, 200, 300, 400, 600, 800, 1000, 1500, 3000].map(|mib| mib << 10) {
        let mut daemon = start(dir.path(), &format!("ulimit -v {kib}; "), "");
        let mut ended = None;
        wait_for("it starts or ends", || {
            ended = daemon.0.try_wait().unwrap();
            ended.is_some() || said().contains(": forwarding")
        });
        let status = ended.unwrap_or_else(|| {
            kill(Pid::from_raw(daemon.0.id() as i32), Signal::SIGTERM).unwrap();
            daemon.0.wait().unwrap()
        });
        let errors = said().lines().filter(|line| line.starts_with("sweepd: ")).count();
        match status.code() {
            Some(0) => assert_eq!(errors, 0, "{}", said()),
            Some(1) => assert_eq!(errors, 1, "{kib} KiB: {}", said()),
            // Too little for the program itself.
            Some(127) => assert!(!said().is_empty()),
            code => panic!("{kib} KiB: {code:?}, {status:?}: {}", said()),
        }
        outcomes.push(status.code());
    }
    assert!(outcomes.contains(&Some(0)) && outcomes.contains(&Some(1)), "{outcomes:?}");
}

#[test]
fn without_memory_for_a_new_port_a_reload_is_refused_and_packets_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = start(dir.path(), "", "");
    let ask = |words: &str| {
        let line = format!(
            "{} {words} --config {}",
            env!("CARGO_BIN_EXE_sweepd"),
            dir.path().join("sweepd.toml").display()
        );
        Command::new("sh").args(["-c", &line]).output().unwrap()
    };
    wait_for("it answers", || ask("show ports").status.success());
    let received = || {
        let ports = ask("show ports --json");
        let ports: serde_json::Value = serde_json::from_slice(&ports.stdout).unwrap();
        assert_eq!(ports.as_array().unwrap().len(), 1, "{ports}");
        ports[0]["rx_packets"].as_u64().unwrap()
    };
    let pid = daemon.0.id();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size: u64 = size.split_whitespace().next().unwrap().parse().unwrap();
    // Room for what is small, and for nothing like the rings of a port.
    let limit = (size + (8 << 10)) << 10;
    // SAFETY: it reads one limit, which lives, and writes nothing.
    let limited = unsafe {
        let limit = libc::rlimit { rlim_cur: limit, rlim_max: libc::RLIM_INFINITY };
        libc::prlimit(pid as i32, libc::RLIMIT_AS, &limit, std::ptr::null_mut())
    };
    assert_eq!(limited, 0);
    let large = "[[port]]\nname = \"right\"\ndevice = \"gen:rate=1000,slots=16384\"\naddresses = [\"192.0.2.2/31\"]\n";
    let file = dir.path().join("sweepd.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + large).unwrap();
    let refused = ask("reload");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("right") || said.contains("memory"), "{said}");
    let before = received();
    wait_for("packets go on", || received() > before + 100);
    assert!(daemon.0.try_wait().unwrap().is_none());
}

#[test]
fn with_any_number_of_descriptors_it_starts_or_says_why_and_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sweepd.toml");
    // Nobody has this address: it was ours a moment ago.
    let metrics = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run = dir.path().join("run");
    let text = format!("[daemon]\nruntime_dir = {run:?}\nmetrics = \"{metrics}\"\n{CONFIG}");
    std::fs::write(&file, text).unwrap();
    let mut outcomes = Vec::new();
    for limit in 8..48 {
        let log = dir.path().join("log");
        let command = format!(
            "ulimit -n {limit}; exec {} run --config {}",
            env!("CARGO_BIN_EXE_sweepd"),
            file.display()
        );
        let mut child = Command::new("sh")
            .args(["-c", &command])
            .env_remove("JOURNAL_STREAM")
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let child_id = child.id() as i32;
        let said = || std::fs::read_to_string(&log).unwrap();
        let start = Instant::now();
        let mut ends = |wants: &dyn Fn() -> bool| loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if wants() {
                break None;
            }
            if start.elapsed() > Duration::from_secs(30) {
                child.kill().unwrap();
                panic!("limit {limit}: it does not end: {}", said());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let early = ends(&|| said().contains(": forwarding"));
        let status = early.or_else(|| {
            // What comes after the last line of a start has failed as well, or has not.
            std::thread::sleep(Duration::from_millis(50));
            let _ = kill(Pid::from_raw(child_id), Signal::SIGTERM);
            ends(&|| false)
        });
        let code = status.and_then(|status| status.code());
        assert!(matches!(code, Some(0 | 1 | 127)), "limit {limit}: {code:?}: {}", said());
        assert!(code == Some(0) || !said().is_empty(), "limit {limit}: not a word");
        outcomes.push(code);
    }
    assert!(outcomes.contains(&Some(0)) && outcomes.contains(&Some(1)), "{outcomes:?}");
}
