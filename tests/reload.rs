//! A running daemon that reads its configuration again, as its operators meet it: `sweepd run`
//! between two generators, whose sinks look at every packet.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

/// Longest wait for anything, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A daemon, ended when dropped.
struct Daemon {
    dir: tempfile::TempDir,
    child: Child,
    log: Arc<Mutex<String>>,
}

/// Two generators that face each other, with `count` packets of each, and `more` sections.
fn config(dir: &std::path::Path, count: u64, more: &str) -> String {
    let common = format!("gen:flows=500,size=64,rate=20000,count={count},verify");
    format!(
        r#"
[daemon]
runtime_dir = "{}"
[kernel]
routes = false
[[port]]
name = "left"
device = "{common},src=198.18.0.0/16,dst=198.19.0.0/16,dmac=02:00:00:00:00:01"
addresses = ["192.0.2.0/31"]
mac = "02:00:00:00:00:01"
[[port]]
name = "right"
device = "{common},src=198.19.0.0/16,dst=198.18.0.0/16,dmac=02:00:00:00:00:02"
addresses = ["192.0.2.2/31"]
mac = "02:00:00:00:00:02"
[[route]]
to = "198.18.0.0/16"
via = "192.0.2.1"
[[route]]
to = "198.19.0.0/16"
via = "192.0.2.3"
[[neighbor]]
address = "192.0.2.1"
mac = "02:00:00:00:01:01"
port = "left"
[[neighbor]]
address = "192.0.2.3"
mac = "02:00:00:00:01:02"
port = "right"
{more}"#,
        dir.display()
    )
}

/// A section for a route that no packet takes.
fn route(to: &str, target: &str) -> String {
    format!("[[route]]\nto = \"{to}\"\n{target}\n")
}

impl Daemon {
    /// Starts one and waits until it forwards.
    fn start(count: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), config(dir.path(), count, "")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_sweepd"))
            .args(["run", "--config"])
            .arg(dir.path().join("f"))
            .env_remove("JOURNAL_STREAM")
            .env("RUST_LOG", "info")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (log, err) = (Arc::new(Mutex::new(String::new())), child.stderr.take().unwrap());
        let to = log.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                *to.lock().unwrap() += &format!("{line}\n");
            }
        });
        let daemon = Self { dir, child, log };
        daemon.wait("the control socket", || daemon.connect().is_some());
        daemon
    }

    fn wait(&self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < LONG, "no {what} within {LONG:?}; the log:\n{}", self.logged());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn logged(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("f")
    }

    /// Writes the configuration with `more` sections, under another name first, as editors do.
    fn write(&self, count: u64, more: &str) {
        let new = self.dir.path().join("f.new");
        std::fs::write(&new, config(self.dir.path(), count, more)).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    fn connect(&self) -> Option<UnixStream> {
        let stream = UnixStream::connect(self.dir.path().join("control.sock")).ok()?;
        stream.set_read_timeout(Some(LONG)).unwrap();
        Some(stream)
    }

    fn ask(&self, request: &Value) -> Value {
        let mut stream = self.connect().unwrap();
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"))
    }

    fn show(&self, what: &str) -> Value {
        self.ask(&json!({ "version": 1, "command": "show", "what": what }))["data"].clone()
    }

    /// The verdict for a packet to `address`.
    fn fate(&self, address: &str) -> String {
        let request = json!({ "version": 1, "command": "show", "what": "routes", "address": address });
        self.ask(&request)["data"]["verdict"].as_str().unwrap().to_owned()
    }

    /// Exit code, standard output and standard error of a command to this daemon.
    fn sweepd(&self, args: &[&str]) -> (i32, String, String) {
        let out = Command::new(env!("CARGO_BIN_EXE_sweepd"))
            .args(args)
            .arg("--config")
            .arg(self.file())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (out.status.code().unwrap(), text(out.stdout), text(out.stderr).replace(&self.name(), "FILE"))
    }

    fn name(&self) -> String {
        self.file().display().to_string()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits until all packets have come, and checks that each was forwarded and arrived whole.
    fn assert_nothing_was_lost(&self, count: u64) {
        let sum = |ports: &Value, key: &str| {
            ports.as_array().unwrap().iter().map(|port| port[key].as_u64().unwrap()).sum::<u64>()
        };
        // What the generators could not place in a full ring was never sent: it counts as dropped.
        self.wait("end of the traffic", || {
            let ports = self.show("ports");
            sum(&ports, "rx_packets") + sum(&ports, "rx_dropped") >= 2 * count
                && sum(&ports, "rx_packets") == sum(&ports, "tx_packets")
        });
        let (ports, verdicts) = (self.show("ports"), self.show("verdicts"));
        let received = sum(&ports, "rx_packets");
        let ended: u64 = verdicts.as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!((received, verdicts["forwarded"].as_u64()), (ended, Some(received)), "{verdicts}");
        assert_eq!(verdicts["no_route"], 0, "{verdicts}");
        assert!(received > count, "{ports}");
        for key in ["rx_errors", "tx_errors", "tx_dropped"] {
            assert_eq!(sum(&ports, key), 0, "{key}: {ports}");
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn fifty_reloads_under_traffic_lose_no_packet() {
    const COUNT: u64 = 100_000;
    let daemon = Daemon::start(COUNT);
    for turn in 0..50 {
        let mut more = String::new();
        for n in 0..turn % 7 {
            let target = ["type = \"blackhole\"", "via = \"192.0.2.3\"", "port = \"left\""][(turn + n) % 3];
            more += &route(&format!("203.0.{n}.0/24"), target);
        }
        if turn % 2 == 1 {
            // More specific than the generators' networks, and yet the same way.
            more += &route("198.19.128.0/17", "via = \"192.0.2.3\"");
            more += "[[neighbor]]\naddress = \"192.0.2.99\"\nmac = \"02:00:00:00:01:09\"\nport = \"right\"\n";
        }
        daemon.write(COUNT, &more);
        assert_eq!(daemon.sweepd(&["reload"]), (0, "reloaded\n".into(), String::new()), "turn {turn}");
        let expected = if turn % 7 == 0 {
            "no_route"
        } else if turn % 3 == 0 {
            "blackhole"
        } else {
            "forwarded"
        };
        assert_eq!(daemon.fate("203.0.0.1"), expected, "turn {turn}");
    }
    let tables = daemon.show("tables");
    assert!(tables["reloads"].as_u64().unwrap() >= 50, "{tables}");
    assert_eq!((&tables["last_reload_ok"], &tables["reloads_refused"]), (&json!(true), &json!(0)));
    daemon.assert_nothing_was_lost(COUNT);
}

#[test]
fn a_bad_file_changes_nothing_and_says_why() {
    const COUNT: u64 = 20_000;
    let daemon = Daemon::start(COUNT);
    let generation = || daemon.show("tables")["generation"].clone();
    // Neighbours that the generators show may still come in.
    daemon.wait("quiet tables", || {
        let before = generation();
        std::thread::sleep(Duration::from_millis(300));
        before == generation()
    });
    let before = (generation(), daemon.show("routes"));
    let good = config(daemon.dir.path(), COUNT, "");
    let lines = good.lines().count();
    std::fs::write(daemon.file(), good.clone() + "[[route]]\nto = \"10.0.0.1/8\"\nvia = \"x\"\n").unwrap();
    let (code, out, err) = daemon.sweepd(&["reload"]);
    assert_eq!((code, out.as_str()), (2, ""));
    let expected = format!(
        "FILE:{}: route.to: 10.0.0.1/8 has host bits set; write 10.0.0.0/8\n\
         FILE:{}: route.via: \"x\" is not an IP address; write one as \"203.0.113.1\" or \"2001:db8::1\"\n",
        lines + 2,
        lines + 3
    );
    assert_eq!(err, expected);
    for line in expected.lines() {
        let logged = daemon.logged();
        assert!(logged.contains(&line.replace("FILE", &daemon.name())), "{logged}");
    }
    let tables = daemon.show("tables");
    assert_eq!(tables["last_reload_ok"], false);
    assert_eq!(tables["last_reload_errors"].as_array().map(Vec::len), Some(2));
    // What takes a restart is refused as a whole, with what could have been changed.
    let text =
        good.replace("[kernel]", "cpus = [0]\n[kernel]") + &route("203.0.113.0/24", "type = \"blackhole\"");
    std::fs::write(daemon.file(), text).unwrap();
    let (code, _, err) = daemon.sweepd(&["reload"]);
    assert_eq!((code, err.as_str()), (2, "FILE: daemon.cpus: restart to change the workers' cores\n"));
    // No file at all is no reason to stop either.
    std::fs::remove_file(daemon.file()).unwrap();
    daemon.signal(Signal::SIGHUP);
    daemon.wait("refusal", || daemon.logged().contains("No such file"));
    assert_eq!((generation(), daemon.show("routes")), before);
    std::fs::write(daemon.file(), good).unwrap();
    let (code, out, _) = daemon.sweepd(&["show", "tables"]);
    assert!(code == 0 && out.contains("\nreloads refused "), "{out}");
    daemon.assert_nothing_was_lost(COUNT);
}

#[test]
fn a_signal_a_command_and_the_file_itself_each_put_it_in_force() {
    const COUNT: u64 = 20_000;
    let daemon = Daemon::start(COUNT);
    let target = "type = \"prohibit\"";
    assert_eq!(daemon.fate("203.0.113.1"), "no_route");
    daemon.write(COUNT, &route("203.0.113.0/24", target));
    daemon.wait("notice of the renamed file", || daemon.fate("203.0.113.1") == "prohibited");
    let text = config(daemon.dir.path(), COUNT, &route("203.0.113.0/25", target));
    std::fs::write(daemon.file(), text).unwrap();
    daemon.wait("notice of the written file", || daemon.fate("203.0.113.129") == "no_route");
    daemon.write(COUNT, &route("203.0.113.128/25", target));
    daemon.signal(Signal::SIGHUP);
    daemon.wait("answer to the signal", || daemon.fate("203.0.113.129") == "prohibited");
    daemon.write(COUNT, "");
    assert_eq!(daemon.sweepd(&["reload"]).0, 0);
    assert_eq!(daemon.fate("203.0.113.129"), "no_route");
    let logged = daemon.logged();
    for part in [
        "configuration read again (the file has changed): 1 route added\n",
        "configuration read again (the file has changed): 1 route added, 1 route removed\n",
        "configuration read again (asked for by a signal): 1 route added, 1 route removed\n",
        "configuration read again (asked for by sweepd reload): 1 route removed\n",
    ] {
        assert!(logged.contains(part), "{part}{logged}");
    }
    daemon.assert_nothing_was_lost(COUNT);
}

#[test]
fn addresses_mac_and_mtu_of_a_port_change_while_it_stays_open() {
    const COUNT: u64 = 20_000;
    let daemon = Daemon::start(COUNT);
    let text = config(daemon.dir.path(), COUNT, "").replace(
        "addresses = [\"192.0.2.2/31\"]",
        "addresses = [\"192.0.2.2/31\", \"10.0.0.1/24\"]\nmtu = 1400",
    );
    std::fs::write(daemon.file(), text).unwrap();
    assert_eq!(daemon.sweepd(&["reload"]).0, 0);
    let port = daemon.show("ports")[1].clone();
    assert_eq!((&port["mtu"], &port["addresses"][1]), (&json!(1400), &json!("10.0.0.1/24")), "{port}");
    assert_eq!(daemon.fate("10.0.0.1"), "host");
    daemon.assert_nothing_was_lost(COUNT);
}

/// Sections for one port more, with a route over it.
fn third(device: &str) -> String {
    format!(
        "[[port]]\nname = \"third\"\ndevice = \"{device}\"\naddresses = [\"10.9.0.1/24\"]\n\
         [[neighbor]]\naddress = \"10.9.0.2\"\nmac = \"02:00:00:00:01:03\"\nport = \"third\"\n\
         [[route]]\nto = \"203.0.113.0/24\"\nvia = \"10.9.0.2\"\n"
    )
}

#[test]
fn ports_come_and_go_under_traffic_of_two_others_that_lose_nothing() {
    const COUNT: u64 = 80_000;
    let daemon = Daemon::start(COUNT);
    for turn in 0..20 {
        daemon.write(COUNT, &third(["pipe:third", "pipe:third/rings=2", "gen:count=0"][turn % 3]));
        assert_eq!(daemon.sweepd(&["reload"]), (0, "reloaded\n".into(), String::new()), "turn {turn}");
        let ports = daemon.show("ports");
        assert_eq!((ports.as_array().unwrap().len(), &ports[2]["name"]), (3, &json!("third")), "{ports}");
        daemon.wait("the port", || daemon.show("ports")[2]["state"] == "up");
        assert_eq!(daemon.fate("203.0.113.1"), "forwarded", "turn {turn}");
        assert_eq!(daemon.fate("10.9.0.1"), "host");
        daemon.write(COUNT, "");
        assert_eq!(daemon.sweepd(&["reload"]), (0, "reloaded\n".into(), String::new()), "turn {turn}");
        assert_eq!(daemon.show("ports").as_array().unwrap().len(), 2);
        assert_eq!(
            (daemon.fate("203.0.113.1"), daemon.fate("10.9.0.1")),
            ("no_route".into(), "no_route".into())
        );
    }
    let logged = daemon.logged();
    assert!(logged.contains(": port third added, ") && logged.contains(": port third removed, "), "{logged}");
    daemon.assert_nothing_was_lost(COUNT);
}

#[test]
fn a_port_that_cannot_be_opened_refuses_everything() {
    const COUNT: u64 = 20_000;
    let daemon = Daemon::start(COUNT);
    daemon.write(COUNT, &third("pcap:/nowhere/in.pcap"));
    let (code, out, err) = daemon.sweepd(&["reload"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("/nowhere/in.pcap"), "{err}");
    assert_eq!(daemon.show("ports").as_array().unwrap().len(), 2);
    assert_eq!(daemon.fate("203.0.113.1"), "no_route");
    daemon.write(COUNT, &third("pipe:third"));
    assert_eq!(daemon.sweepd(&["reload"]).0, 0);
    assert_eq!(daemon.fate("203.0.113.1"), "forwarded");
    daemon.assert_nothing_was_lost(COUNT);
}

#[test]
fn a_port_gets_another_device_and_counts_on() {
    const COUNT: u64 = 20_000;
    let daemon = Daemon::start(COUNT);
    daemon.wait("traffic", || daemon.show("ports")[1]["tx_packets"].as_u64() > Some(1000));
    let other = |text: String| {
        text.replace("name = \"right\"\ndevice = \"gen:", "name = \"right\"\ndevice = \"gen:seed=7,")
    };
    std::fs::write(daemon.file(), other(config(daemon.dir.path(), COUNT, ""))).unwrap();
    assert_eq!(daemon.sweepd(&["reload"]).0, 0);
    let port = daemon.show("ports")[1].clone();
    assert!(port["device"].as_str().unwrap().contains("seed=7"), "{port}");
    assert!(port["tx_packets"].as_u64() > Some(1000), "{port}");
    assert!(daemon.logged().contains(": port right: another device\n"), "{}", daemon.logged());
    // The new one sends all of its packets, and what is for it gets there again.
    let forwarded = |n: usize| daemon.show("ports")[n]["rx_packets"].as_u64().unwrap();
    let before = forwarded(1);
    daemon.wait("traffic from the new device", || forwarded(1) > before + COUNT / 2);
    daemon.wait("the sum of the verdicts", || {
        let (ports, verdicts) = (daemon.show("ports"), daemon.show("verdicts"));
        let received: u64 = ports.as_array().unwrap().iter().map(|p| p["rx_packets"].as_u64().unwrap()).sum();
        received == verdicts.as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum::<u64>()
    });
}

#[test]
fn a_storm_of_reloads_is_harmless() {
    const COUNT: u64 = 60_000;
    let daemon = Daemon::start(COUNT);
    let line = b"{\"version\":1,\"command\":\"reload\"}\n";
    // Clients that ask and go, ask in heaps and wait for nothing, or ask and read.
    let mut lingering = Vec::new();
    for turn in 0..200 {
        if turn % 10 == 0 {
            let more = if turn % 20 == 0 {
                route("203.0.113.0/24", "type = \"blackhole\"")
            } else {
                "[[x]]\n".into()
            };
            daemon.write(COUNT, &more);
        }
        let Some(mut stream) = daemon.connect() else { continue };
        // The daemon may have too many clients already, and hang up.
        let _ = stream.write_all(&line.repeat(1 + turn % 3 * 50));
        if turn % 2 == 0 {
            lingering.push(stream);
        }
        daemon.signal(Signal::SIGHUP);
    }
    drop(lingering);
    daemon.write(COUNT, &route("203.0.113.0/24", "type = \"prohibit\""));
    daemon.wait("an answer after the storm", || daemon.sweepd(&["reload"]).0 == 0);
    assert_eq!(daemon.fate("203.0.113.1"), "prohibited");
    daemon.assert_nothing_was_lost(COUNT);
}
