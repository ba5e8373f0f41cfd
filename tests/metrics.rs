//! The metrics as a collector meets them: a daemon on generated traffic, scraped over TCP; the
//! dashboard's queries, asked from a real Prometheus where there is one.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);

/// A process that is ended when dropped.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn command(dir: &Path, metrics: SocketAddr) -> Command {
    let file = dir.join("sweepd.toml");
    let text = format!(
        "[daemon]\nruntime_dir = {:?}\nmetrics = \"{metrics}\"\non_exit = \"forward\"\n[kernel]\nroutes = false\n
         [[port]]\nname = \"left\"\naddresses = [\"192.0.2.0/31\"]\nmac = \"02:00:00:00:00:01\"
         device = \"gen:rate=20000,dst=198.19.0.0/16,dmac=02:00:00:00:00:01\"
         [[port]]\nname = \"right\"\naddresses = [\"192.0.2.2/31\"]\nmac = \"02:00:00:00:00:02\"
         device = \"gen:rate=1000,dst=198.18.0.0/16,dmac=02:00:00:00:00:02\"
         [[acl]]\nname = \"no-dns\"\naction = \"deny\"\nprotocol = \"udp\"\nto_ports = [53]
         [[acl]]\nname = \"all\"\naction = \"permit\"\nstate = \"new\"
         [[route]]\nto = \"198.19.0.0/16\"\nvia = \"192.0.2.3\"
         [[neighbor]]\naddress = \"192.0.2.3\"\nmac = \"02:00:00:00:01:02\"\nport = \"right\"\n",
        dir.join("run")
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sweepd"));
    command.args(["run", "--config"]).arg(file).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A daemon that serves its metrics at the address given.
fn daemon(dir: &Path) -> (Ends, SocketAddr) {
    let address = free_address();
    let mut child = Ends(command(dir, address).stderr(Stdio::null()).spawn().unwrap());
    let start = Instant::now();
    while TcpStream::connect(address).is_err() || scrape(address).is_none() {
        assert!(child.0.try_wait().unwrap().is_none(), "it ended");
        assert!(start.elapsed() < SOON);
        thread::sleep(Duration::from_millis(20));
    }
    (child, address)
}

/// The body of an answer with status 200.
fn scrape(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200 ").then(|| body.to_owned())
}

/// The sum of all series of a family's.
fn sum(text: &str, family: &str) -> f64 {
    let of = |line: &&str| line.strip_prefix(family).is_some_and(|rest| rest.starts_with(['{', ' ']));
    text.lines().filter(of).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// The names of the samples.
fn names(text: &str) -> BTreeSet<String> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
}

/// Every query of the dashboard's, and its legend.
fn queries() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/grafana/sweepd.json");
    let board: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_scrape_shows_packets_verdicts_workers_and_tables() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, address) = daemon(dir.path());
    let start = Instant::now();
    let text = loop {
        let text = scrape(address).unwrap();
        let flows = sum(&text, "sweepd_worker_flows");
        if sum(&text, "sweepd_port_transmit_packets_total") > 1000.0 && flows > 100.0 {
            break text;
        }
        assert!(start.elapsed() < SOON, "{text}");
    };
    assert!(text.ends_with("\n# EOF\n"));
    assert!(sum(&text, "sweepd_verdict_packets_total") > 1000.0);
    assert!(sum(&text, "sweepd_worker_receive_packets_total") > 1000.0);
    assert!(
        sum(&text, "sweepd_tables_generation") >= 1.0 && sum(&text, "sweepd_fib_prefixes") > 0.0,
        "{text}"
    );
    let rule = |name: &str| {
        let series = format!("sweepd_acl_rule_packets_total{{rule=\"{name}\"");
        let line = text.lines().find(|line| line.starts_with(&series)).unwrap_or_else(|| panic!("{text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(rule("all") > 0.0 && rule("no-dns") == 0.0, "{text}");
    assert!(sum(&text, "sweepd_worker_flows_limit") > 1e4, "{text}");
    if cfg!(target_os = "linux") {
        assert!(text.contains("\nsweepd_worker_cpu_seconds_total{worker=\"0\"} "), "{text}");
    }
}

#[test]
fn a_flood_of_hostile_clients_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let (mut daemon, address) = daemon(dir.path());
    let before = sum(&scrape(address).unwrap(), "sweepd_port_receive_packets_total");
    let mut open = Vec::new();
    for round in 0..400usize {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let bytes: Vec<u8> = match round % 4 {
            0 => (0..4000).map(|n| (n * round) as u8).collect(),
            1 => b"GET /metrics HTTP/1.1\r\nA: ".to_vec(),
            2 => b"GET /metrics HTTP/1.1\r\n\r\n".repeat(50),
            _ => Vec::new(),
        };
        let _ = stream.write_all(&bytes);
        open.push(stream);
    }
    let text = scrape(address).expect("it still answers");
    drop(open);
    assert!(daemon.0.try_wait().unwrap().is_none());
    // The flood may be over before the worker has had a turn.
    let (mut text, start) = (text, Instant::now());
    while sum(&text, "sweepd_port_receive_packets_total") <= before {
        assert!(start.elapsed() < SOON, "packets go on");
        thread::sleep(Duration::from_millis(20));
        text = scrape(address).expect("it still answers");
    }
}

#[test]
fn an_address_in_use_ends_the_start_with_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = other.local_addr().unwrap();
    let out = command(dir.path(), address).output().unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    let errors: Vec<_> = text.lines().filter(|line| line.starts_with("sweepd: ")).collect();
    assert_eq!((out.status.code(), errors.len()), (Some(1), 1), "{text}");
    assert!(errors[0].contains("daemon.metrics") && errors[0].contains(&address.to_string()), "{text}");
    assert_eq!(std::fs::read_dir(dir.path().join("run")).unwrap().count(), 0, "files are left");
}

#[test]
fn the_dashboard_asks_for_what_there_is_and_for_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, address) = daemon(dir.path());
    // What is there only after a reload.
    let reload = Command::new(env!("CARGO_BIN_EXE_sweepd"))
        .args(["reload", "--config"])
        .arg(dir.path().join("sweepd.toml"))
        .status();
    assert!(reload.unwrap().success());
    thread::sleep(Duration::from_millis(200));
    let there = names(&scrape(address).unwrap());
    let asked: BTreeSet<String> = queries()
        .iter()
        .flat_map(|query| query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')))
        .filter(|word| word.starts_with("sweepd_"))
        .map(str::to_owned)
        .collect();
    let missing: Vec<_> = asked.difference(&there).collect();
    assert!(missing.is_empty() && asked.len() > 15, "not in the metrics: {missing:?}");
    let unseen: Vec<_> = there.difference(&asked).map(String::as_str).collect();
    assert_eq!(unseen, ["sweepd_build_info", "sweepd_last_reload_timestamp_seconds"], "no panel shows these");
}

#[test]
fn the_manual_page_lists_what_there_is() {
    let page = include_str!("../man/sweepd.8");
    let listed: BTreeSet<String> = page
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("sweepd_"))
        .map(str::to_owned)
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, address) = daemon(dir.path());
    let there = names(&scrape(address).unwrap());
    let missing: Vec<_> = there.difference(&listed).collect();
    assert!(missing.is_empty(), "not in the page: {missing:?}");
    let more: Vec<_> = listed.difference(&there).map(String::as_str).collect();
    assert_eq!(more, ["sweepd_last_reload_success", "sweepd_last_reload_timestamp_seconds"]);
}

/// Asks each query from a Prometheus that scrapes the daemon.
#[test]
fn a_real_prometheus_scrapes_it_and_answers_the_dashboards_queries() {
    let Some(prometheus) = program("prometheus").filter(|_| program("promtool").is_some()) else {
        eprintln!("skipped: the queries, for want of prometheus and promtool");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, address) = daemon(dir.path());
    let config = dir.path().join("prometheus.yml");
    let jobs = format!("[{{job_name: sweepd, static_configs: [{{targets: ['{address}']}}]}}]");
    std::fs::write(&config, format!("global: {{scrape_interval: 250ms}}\nscrape_configs: {jobs}\n")).unwrap();
    let server = free_address();
    let _server = Ends(
        Command::new(prometheus)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={server}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let ask = |query: &str| {
        let query = query.replace("$instance", ".*").replace("$port", ".*").replace("$__rate_interval", "5s");
        let url = format!("http://{server}");
        let out = Command::new("promtool").args(["query", "instant", &url, &query]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        (out.status.success(), said)
    };
    let start = Instant::now();
    while !ask("rate(sweepd_port_receive_packets_total[5s]) > 0").1.contains("left") {
        assert!(start.elapsed() < SOON, "{:?}", ask("up"));
        thread::sleep(Duration::from_millis(200));
    }
    for query in queries() {
        let (fine, said) = ask(&query);
        // Nothing was reloaded; everything else has a value.
        let value = said.contains("=>") || query.contains("reload");
        assert!(fine && value, "{query}: {said}");
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.exists())
}
