//! The daemon itself, between three hosts: what it makes of a kernel that has a full table.

use std::{
    fs,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use super::{
    Follow, FullTables,
    figures::Figures,
    probe::{self, Latencies, Probes},
    rtnetlink::Routes,
    space::{Space, Ways},
    storm,
};

/// Longest wait for a line of the daemon's log.
const PATIENCE: Duration = Duration::from_secs(300);
/// An address that nobody needs: when it goes, the daemon has the kernel list all routes.
const SPARE: &str = "127.0.0.2/32 dev lo";
/// Bytes that a megabyte has.
const MB: f64 = 1e6;

/// The namespaces: a router with ports p1, p2 and p3, and a host at each.
struct Place {
    router: Space,
    hosts: [Space; 3],
    ways: Ways,
}

impl Place {
    fn new() -> io::Result<Self> {
        let router = Space::new("follow", "router")?;
        let hosts = [Space::new("follow", "h1")?, Space::new("follow", "h2")?, Space::new("follow", "h3")?];
        let mut ports = Vec::new();
        for (n, host) in (1..).zip(&hosts) {
            let mac = format!("02:00:00:00:01:{n:02}");
            router
                .ip(&format!("link add p{n} type veth peer name eth0 address {mac} netns {}", host.name()))?;
            host.exec("ethtool -K eth0 tx off")?;
            router.ip(&format!("link set p{n} up"))?;
            host.ip("link set eth0 up")?;
            ports.push((format!("p{n}"), mac));
        }
        router.ip("addr add 10.99.0.1/24 dev p1")?;
        router.ip(&format!("addr add {SPARE}"))?;
        hosts[0].ip("addr add 10.99.0.2/24 dev eth0")?;
        hosts[0].ip("route add default via 10.99.0.1")?;
        for host in &hosts[1..] {
            host.ip(&format!("addr add {}/32 dev lo", probe::DESTINATION))?;
            host.ip("route add default dev eth0")?;
        }
        // Even next hops are at p2, odd ones at p3.
        let ways = Ways::new(ports.split_off(1));
        ways.prepare(&router)?;
        Ok(Self { router, hosts, ways })
    }
}

/// A running daemon; killed when dropped.
struct Daemon {
    child: Child,
    /// When each line of its log came.
    log: Receiver<(Instant, String)>,
    program: PathBuf,
    config: PathBuf,
}

impl Daemon {
    fn start(router: &Space, dir: &Path) -> io::Result<Self> {
        let program = std::env::current_exe()?.with_file_name("sweepd");
        if !program.exists() {
            return Err(io::Error::other(format!(
                "there is no {}: run cargo build --release",
                program.display()
            )));
        }
        let config = dir.join("sweepd.toml");
        let mut text = format!("[daemon]\nruntime_dir = \"{}\"\n", dir.join("run").display());
        for n in 1..=3 {
            text += &format!("[[port]]\nname = \"p{n}\"\ndevice = \"xdp:p{n}\"\n");
        }
        fs::write(&config, text)?;
        // `ip netns exec` becomes the command: the process is the daemon itself.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", router.name()]).arg(&program).args(["run", "--config"]).arg(&config);
        command.env("RUST_LOG", "debug").env_remove("JOURNAL_STREAM").stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (sender, log) = channel();
        let stderr = child.stderr.take().ok_or_else(|| io::Error::other("no log"))?;
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, log, program, config })
    }

    /// When the log says so.
    fn says(&self, what: &str) -> io::Result<Instant> {
        let mut last = String::new();
        loop {
            match self.log.recv_timeout(PATIENCE) {
                Ok((at, line)) if line.contains(what) => return Ok(at),
                Ok((_, line)) => last = line,
                Err(_) => {
                    return Err(io::Error::other(format!(
                        "sweepd does not say {what:?}; its last word: {last}"
                    )));
                }
            }
        }
    }

    /// Whether the log has said so since it was last looked at.
    fn has_said(&self, what: &str) -> bool {
        self.log.try_iter().filter(|(_, line)| line.contains(what)).count() > 0
    }

    /// What the daemon answers to a command.
    fn ask(&self, arguments: &[&str]) -> io::Result<String> {
        let output =
            Command::new(&self.program).args(arguments).arg("--config").arg(&self.config).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A number of `show tables`.
    fn number(&self, key: &str) -> io::Result<f64> {
        let tables: serde_json::Value =
            serde_json::from_str(&self.ask(&["show", "tables", "--json"])?).map_err(io::Error::other)?;
        tables[key].as_f64().ok_or_else(|| io::Error::other(format!("show tables has no {key}")))
    }

    /// Memory in bytes, by the key that the kernel gives it.
    fn memory(&self, key: &str) -> io::Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find(|line| line.starts_with(key));
        let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
        number
            .map(|kib| kib * 1024.0)
            .ok_or_else(|| io::Error::other(format!("the kernel does not say {key}")))
    }

    /// Processor time that following the kernel has taken: that of the threads which listen and keep.
    fn following_time(&self) -> io::Result<Duration> {
        let mut ticks = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let stat = fs::read_to_string(task?.path().join("stat"))?;
            // The name, in brackets, may hold anything.
            let Some((name, rest)) = stat.rsplit_once(')') else { continue };
            if name.ends_with("(keeper") || name.ends_with("(kernel-news") {
                let times = rest.split_whitespace().skip(11).take(2);
                ticks += times.filter_map(|time| time.parse::<u64>().ok()).sum::<u64>();
            }
        }
        // The kernel counts in hundredths of a second, for every program.
        Ok(Duration::from_millis(10 * ticks))
    }

    /// Waits until kernel, RIB and FIB agree; gives how long the last comparison took.
    fn agrees(&self) -> io::Result<Duration> {
        let start = Instant::now();
        loop {
            let asked = Instant::now();
            let said = self.ask(&["show", "routes", "--diff"])?;
            if said == "no differences\n" {
                return Ok(asked.elapsed());
            }
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("kernel, RIB and FIB differ: {said}")));
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures; gives how long changes took to show, alone and in a storm.
///
/// # Errors
/// The system's.
pub fn measure(follow: &Follow, tables: &FullTables, figures: &mut Figures) -> io::Result<Vec<Latencies>> {
    let place = Place::new()?;
    let routes = (tables.v4.len() + tables.v6.len()) as f64;
    let mut lines = String::new();
    tables.v4.iter().for_each(|route| place.ways.line4(route, &mut lines));
    tables.v6.iter().for_each(|route| place.ways.line6(route, &mut lines));
    let took = place.router.batch(&lines)?;
    drop(lines);
    println!("\nthe daemon beside a kernel that has them all");
    figures.add(
        "ip_batch_routes_per_s",
        "routes a second that `ip -batch` sets",
        routes / took.as_secs_f64(),
        "/s",
    );
    let dir = tempfile::tempdir()?;
    let daemon = Daemon::start(&place.router, dir.path())?;
    from_listing_to_fib(&daemon, figures)?;
    let mut probes =
        Probes::new(&place.router, &place.hosts[0], [&place.hosts[1], &place.hosts[2]], &place.ways)?;
    let mut all = vec![probes.measure("nothing else changes", follow.rounds)?];
    // What the log has told of earlier listings is not this one's.
    daemon.has_said("");
    place.router.ip(&format!("addr del {SPARE}"))?;
    daemon.says("rtnetlink: NextHops listed")?;
    let mut times = Vec::new();
    while !daemon.has_said("rtnetlink: Routes6 listed") {
        times.extend(probes.measure("while everything is listed", 4)?.times);
    }
    times.sort_unstable();
    all.push(Latencies { name: "while everything is listed", times });
    // A storm for as long as it takes.
    let mut flapping = place.router.within(|| Ok(Routes::open()))?;
    let (prefixes, gateways) = (tables.between(), place.ways.gateways());
    let busy = daemon.following_time()?;
    let (measured, took) = thread::scope(|scope| {
        let storm = scope.spawn(|| {
            let start = Instant::now();
            storm(&mut flapping, prefixes, gateways, follow.changes);
            start.elapsed()
        });
        let mut times = Vec::new();
        while !storm.is_finished() {
            match probes.measure("in a storm of changes", 10) {
                Ok(latencies) => times.extend(latencies.times),
                Err(e) => return (Err(e), Duration::ZERO),
            }
        }
        times.sort_unstable();
        let took = storm.join().unwrap_or_default();
        (Ok(Latencies { name: "in a storm of changes", times }), took)
    });
    all.push(measured?);
    let rate = follow.changes as f64 / took.as_secs_f64();
    figures.add("storm_changes_per_s", "changes a second in the storm", rate, "/s");
    let each = (daemon.following_time()? - busy).as_secs_f64() * 1e6 / follow.changes as f64;
    figures.add("storm_us_per_change", "processor time for each of them", each, "µs");
    for (latencies, key) in all.iter().zip(["", "listing_", "storm_"]) {
        for (percent, q) in [("50", 0.5), ("99", 0.99)] {
            let what = format!("from a change to forwarding, {}, p{percent}", latencies.name);
            let time = latencies
                .quantile(q)
                .ok_or_else(|| io::Error::other(format!("nothing was measured {}", latencies.name)))?;
            figures.add(&format!("{key}latency_p{percent}_ms"), &what, time.as_secs_f64() * 1e3, "ms");
        }
    }
    daemon.agrees()?;
    figures.add_with_goal(
        "resident_most_mb",
        "resident at most, ever",
        daemon.memory("VmHWM:")? / MB,
        "MB",
        400.0,
    );
    Ok(all)
}

/// What the daemon does when it starts.
fn from_listing_to_fib(daemon: &Daemon, figures: &mut Figures) -> io::Result<()> {
    let began = daemon.says("rtnetlink: Links listed")?;
    let ended = daemon.says("rtnetlink: Routes6 listed")?;
    let ready = daemon.says(": forwarding")?;
    let resident = daemon.memory("VmRSS:")?;
    let (v4, v6) = (daemon.number("fib4_prefixes")?, daemon.number("fib6_prefixes")?);
    let rate = (v4 + v6) / (ready - began).as_secs_f64();
    figures.add("routes_per_s", "routes a second, from the listing's begin to the FIB", rate, "/s");
    let after = (ready - ended).as_secs_f64();
    figures.add_with_goal("ready_after_listing_s", "FIB ready after the listing's end", after, "s", 3.0);
    figures.add_with_goal("resident_mb", "resident then", resident / MB, "MB", 400.0);
    figures.add("resident_bytes_per_route", "resident, of each route", resident / (v4 + v6), "bytes");
    let (bytes4, bytes6) = (daemon.number("fib4_bytes")?, daemon.number("fib6_bytes")?);
    figures.add_with_goal("fib4_pair_mb", "the two IPv4 FIBs", 2.0 * bytes4 / MB, "MB", 12.0);
    figures.add("fib6_pair_mb", "the two IPv6 FIBs", 2.0 * bytes6 / MB, "MB");
    figures.add("fib4_bytes_per_route", "an IPv4 FIB, of each route", bytes4 / v4, "bytes");
    figures.add("fib6_bytes_per_route", "an IPv6 FIB, of each route", bytes6 / v6, "bytes");
    let took = daemon.agrees()?;
    figures.add("compare_s", "comparing kernel, RIB and FIB (`show routes --diff`)", took.as_secs_f64(), "s");
    Ok(())
}
