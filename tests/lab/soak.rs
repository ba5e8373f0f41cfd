//! Everything at once: routes that flap, reloads that bring a port and take it away, links that flap,
//! floods, scrapes, and a worker that panics and hangs. `SWEEPD_SOAK_SECONDS` says for how long;
//! `make soak` for an hour.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use sweepd::tables::synthetic::Random;

use crate::{
    faulty, needs_lab,
    net::{Lab, Router, SWEEPD, sh, wait_for},
    sockets::{Receiver, Sender, missing_and_double},
};

/// How long, unless `SWEEPD_SOAK_SECONDS` says otherwise.
const SECONDS: u64 = 20;
/// Every kind of trouble has come by then, so that nothing more is allocated for the first time.
const WARM: usize = 122;
const DAEMON: &str = "metrics = \"127.0.0.1:9188\"";
/// Between two packets of the flow that nothing may happen to.
const PAUSE: Duration = Duration::from_millis(2);
/// Where those go.
const PORT: u16 = 7070;

/// What can be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    Routes,
    Reload,
    Link,
    Flood,
    Scrape,
    Panic,
    Hang,
}

impl Trouble {
    /// The troubles by turns. A worker that panics twice within a second rests, and one that hangs
    /// takes seconds: these come seldom.
    fn of(turn: usize) -> Self {
        use Trouble::*;
        match turn % 120 {
            119 => Hang,
            n if n % 40 == 20 => Panic,
            n => [Routes, Reload, Scrape, Link, Routes, Flood, Scrape][n % 7],
        }
    }
}

/// A router in all these troubles.
struct Soak {
    // Ends before its directory is gone.
    router: Router,
    lab: Lab,
    random: Random,
    panics: usize,
    hangs: usize,
}

impl Soak {
    /// Hosts 1 and 2 have a flow that must not suffer; host 3 is flooded, the link to host 4 flaps,
    /// the port to host 5 comes and goes.
    fn start() -> Self {
        // Floods would make other tests lose packets.
        let lab = Lab::alone(5);
        // A link that was down has its addresses again.
        lab.router("sh -c 'echo 1 >/proc/sys/net/ipv6/conf/p4/keep_addr_on_down'").ok();
        lab.configure(DAEMON, faulty::BAD_PORT);
        let router = faulty::launch(&lab);
        Self { router, lab, random: Random::new(7), panics: 0, hangs: 0 }
    }

    fn do_one(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Routes => self.flap_routes(),
            Trouble::Reload => self.reload(),
            Trouble::Link => {
                let line = format!("ip -n {0} link set p4 down && ip -n {0} link set p4 up", self.lab.r());
                sh(&line).ok();
            }
            Trouble::Flood => self.flood(),
            Trouble::Scrape => {
                let text = self.lab.in_router(scrape);
                assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("# EOF\n"), "{text}");
            }
            Trouble::Panic => {
                self.panics += 1;
                self.router.signal(Signal::SIGUSR1);
                self.is_told(self.panics, "met a fault of its own");
            }
            Trouble::Hang => {
                self.hangs += 1;
                self.router.signal(Signal::SIGUSR2);
                self.is_told(self.hangs, " has ended no sweep for ");
                self.is_told(self.hangs, " goes on\n");
            }
        }
    }

    fn is_told(&self, times: usize, what: &str) {
        wait_for(what, || self.router.log().matches(what).count() == times);
    }

    /// Two hundred routes, of which some go, some change their gateway, and some come.
    fn flap_routes(&mut self) {
        let lines: String = (0..200)
            .map(|n| match self.random.below(4) {
                0 => format!("route del 198.18.{n}.0/24\n"),
                host => format!("route replace 198.18.{n}.0/24 via 10.0.{}.2\n", host + 1),
            })
            .collect();
        let batch = self.lab.dir.path().join("batch");
        fs::write(&batch, lines).unwrap();
        // What is not there cannot be deleted, and a gateway behind a link that is down is none.
        sh(&format!("ip -n {} -force -batch {}", self.lab.r(), batch.display()));
    }

    fn reload(&mut self) {
        let net = self.random.below(256);
        let more =
            format!("[[route]]\nto = \"203.0.113.{net}/32\"\ntype = \"blackhole\"\n{}", faulty::BAD_PORT);
        let config = self.lab.configure_ports(4 + self.random.below(2) as u32, DAEMON, &more);
        self.lab.router(&format!("{SWEEPD} reload --config {}", config.display())).ok();
    }

    /// As much as a thread can to where routes flap, for a moment.
    fn flood(&mut self) {
        let to = format!("198.18.{}.9", self.random.below(200));
        let floods = [(3, to.as_str()), (4, "10.0.3.2"), (3, "fd00:4::2")];
        let floods = floods.map(|(from, to)| Sender::flood(&self.lab, from, to, 7071));
        thread::sleep(Duration::from_millis(300));
        assert!(floods.into_iter().all(|flood| flood.finish() > 0));
    }
}

fn scrape() -> String {
    let mut text = String::new();
    let mut stream = TcpStream::connect("127.0.0.1:9188").unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Holds {
    /// Resident memory in KiB.
    memory: u64,
    threads: u64,
    descriptors: usize,
}

impl Holds {
    fn of(router: &Router) -> Self {
        let status = fs::read_to_string(format!("/proc/{}/status", router.pid())).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let descriptors = fs::read_dir(format!("/proc/{}/fd", router.pid())).unwrap().count();
        Self { memory: field("VmRSS:"), threads: field("Threads:"), descriptors }
    }

    /// That it holds no more than once before, but for what an allocator keeps back.
    fn is_no_more_than(&self, before: &Self) {
        assert!(self.memory < before.memory + 4096, "memory grew: {before:?}, {self:?}");
        assert_eq!(self.threads, before.threads, "{before:?}, {self:?}");
        assert!(self.descriptors <= before.descriptors + 2, "{before:?}, {self:?}");
    }
}

#[test]
fn everything_at_once_leaves_memory_flat_the_sum_exact_and_other_flows_alone() {
    needs_lab!();
    let seconds = std::env::var("SWEEPD_SOAK_SECONDS");
    let seconds = seconds.map_or(SECONDS, |n| n.parse().expect("SWEEPD_SOAK_SECONDS is a number"));
    let mut soak = Soak::start();
    wait_for("it forwards", || soak.lab.reaches(1, "10.0.2.2"));
    let receiver = Receiver::start(&soak.lab, 2, PORT);
    let sender = Sender::every(PAUSE, &soak.lab, 1, "10.0.2.2", PORT);
    let (start, mut turn, mut warm, mut told) = (Instant::now(), 0, None, 0);
    let end = Duration::from_secs(seconds);
    while start.elapsed() < end || turn < 2 * WARM {
        soak.do_one(Trouble::of(turn));
        turn += 1;
        assert!(soak.router.is_running(), "{}", soak.router.log());
        if turn == WARM {
            warm = Some(settled(&mut soak));
        }
        if start.elapsed().as_secs() / 60 > told {
            told = start.elapsed().as_secs() / 60;
            println!("{told} minutes, {turn} troubles, {:?}", Holds::of(&soak.router));
        }
    }
    let (warm, late) = (warm.unwrap(), settled(&mut soak));
    late.is_no_more_than(&warm);
    let sent = sender.finish();
    let (missing, double) = missing_and_double(&receiver.finish(), sent);
    println!(
        "{turn} troubles in {:.0?}, {} panics and {} hangs among them; {} packets forwarded; of {sent} of the flow aside {} are missing; {warm:?}, {late:?}",
        start.elapsed(),
        soak.panics,
        soak.hangs,
        soak.router.verdict("forwarded"),
        missing.len(),
    );
    assert!(sent > 1000 && missing.is_empty() && double.is_empty(), "missing {missing:?}, double {double:?}");
    ends_well(soak);
}

/// What the router holds when it has all ports, and nothing waits.
fn settled(soak: &mut Soak) -> Holds {
    let config = soak.lab.configure(DAEMON, faulty::BAD_PORT);
    soak.lab.router(&format!("{SWEEPD} reload --config {}", config.display())).ok();
    thread::sleep(Duration::from_millis(300));
    Holds::of(&soak.router)
}

fn ends_well(soak: Soak) {
    let Soak { mut router, lab, panics, hangs, .. } = soak;
    for (from, to) in [(1, "10.0.3.2"), (3, "fd00:4::2"), (4, "10.0.5.2"), (5, "fd00:1::2")] {
        wait_for(&format!("{from} reaches {to}"), || lab.reaches(from, to));
    }
    let config = lab.dir.path().join("sweepd.toml");
    wait_for("its routes are the kernel's", || {
        lab.router(&format!("{SWEEPD} show routes --diff --config {}", config.display())).code == 0
    });
    router.adds_up();
    router.signal(Signal::SIGTERM);
    assert_eq!(router.wait(), Some(0), "{}", router.log());
    let log = router.log();
    assert_eq!(log.matches("panicked at").count(), panics, "{log}");
    assert!(panics > 0 && hangs > 0);
    assert!(!log.contains("port  is "), "something is said of no port: {log}");
    assert_eq!(fs::read_dir(lab.runtime_dir()).unwrap().count(), 0, "files are left");
}
