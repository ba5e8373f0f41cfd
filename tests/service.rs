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
