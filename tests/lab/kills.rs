//! SIGKILL at any moment, under load: while it starts, while it reads its configuration again, while
//! it forwards. `SWEEPD_KILLS` says how often; `make kill9` a thousand times.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use sweepd::{
    stats::{file::StatsError, read::StatsReader},
    tables::synthetic::Random,
};

use crate::{
    needs_lab,
    net::{Lab, Router, sh, wait_for},
    sockets::Sender,
};

/// How often, unless `SWEEPD_KILLS` says otherwise.
const KILLS: u64 = 20;
/// What is killed in its start is at most so old: then a start is over, on an idle machine.
const START: Duration = Duration::from_millis(400);
/// How long a reload lasts that opens or closes a port.
const RELOAD: Duration = Duration::from_millis(60);

/// What the daemon does when it is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    Start,
    Reload,
    Forwarding,
}

impl Moment {
    fn of(round: u64) -> Self {
        [Self::Start, Self::Reload, Self::Forwarding][(round % 3) as usize]
    }

    /// Brings a daemon that has just been launched there. Gives whether it had begun to forward.
    fn wait(self, lab: &Lab, router: &mut Router, random: &mut Random) -> bool {
        let up_to = |random: &mut Random, longest: Duration| {
            thread::sleep(longest.mul_f64(random.fraction()));
        };
        if self == Self::Start {
            up_to(random, START);
            return router.log().contains(": forwarding\n");
        }
        lab.wait_for_start(router);
        if self == Self::Reload {
            // One port more or less, and a route.
            let route =
                format!("[[route]]\nto = \"203.0.113.{}/32\"\ntype = \"blackhole\"\n", random.below(256));
            lab.configure_ports(2 + random.below(2) as u32, "", &route);
            router.signal(Signal::SIGHUP);
            up_to(random, RELOAD);
        } else {
            up_to(random, RELOAD);
            wait_for("packets are forwarded", || router.verdict("forwarded") > 100);
        }
        true
    }
}

/// That nothing of a killed daemon's is left but files that the next one takes over: no program,
/// no device, no socket, and counters that can be read as a whole if they are there.
fn nothing_is_left(lab: &Lab) {
    wait_for("the ports are the kernel's", || (1..=3).all(|n| !lab.has_program(&format!("p{n}"))));
    let links = sh(&format!("ip -n {} link", lab.r())).ok();
    assert!(!links.contains("sweepd"), "a device is left: {links}");
    let sockets = lab.router("cat /proc/net/unix").ok();
    assert!(!sockets.contains(lab.dir.path().to_str().unwrap()), "a socket is left: {sockets}");
    match StatsReader::open(&lab.runtime_dir().join("stats")) {
        Ok(reader) => {
            assert!(!reader.daemon_lives());
            for port in reader.snapshot() {
                let ended = port.verdicts.iter().sum::<u64>() + port.held;
                assert!(ended <= port.rx_packets, "more packets ended than came: {port:?}");
            }
        }
        Err(StatsError::NotRunning { .. }) => {}
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_kill_at_any_moment_under_load_gives_the_ports_back_and_the_next_starts() {
    needs_lab!();
    let kills = std::env::var("SWEEPD_KILLS").map_or(KILLS, |n| n.parse().expect("SWEEPD_KILLS is a number"));
    let lab = Lab::alone(3);
    lab.router("sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'").ok();
    lab.configure_ports(2, "", "");
    let load = [(1, "10.0.2.2"), (2, "10.0.1.2")].map(|(from, to)| Sender::flood(&lab, from, to, 7060));
    let (begun, mut random) = (Instant::now(), Random::new(9));
    let (mut forwarding, mut slowest) = (0, Duration::ZERO);
    for round in 0..kills {
        let moment = Moment::of(round);
        let mut router = lab.launch("");
        forwarding += u64::from(moment.wait(&lab, &mut router, &mut random));
        assert!(router.is_running(), "{round}, {moment:?}: it ended by itself: {}", router.log());
        let killed = Instant::now();
        router.signal(Signal::SIGKILL);
        assert_eq!(router.wait(), None);
        assert!(!router.log().contains("panicked"), "{round}, {moment:?}: {}", router.log());
        nothing_is_left(&lab);
        wait_for("the kernel forwards", || lab.reaches(1, "10.0.2.2"));
        slowest = slowest.max(killed.elapsed());
        if (round + 1) % 50 == 0 {
            println!("{} kills in {:.0?}", round + 1, begun.elapsed());
        }
    }
    println!(
        "{kills} kills in {:.0?}, {forwarding} of them while it forwarded; the kernel forwards again {slowest:.0?} after one at the latest",
        begun.elapsed()
    );
    assert!(forwarding >= kills * 2 / 3, "too few were under load: {forwarding}");
    let left: Vec<_> = fs::read_dir(lab.runtime_dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    println!("what the last one left, for the next to take over: {left:?}");
    assert!(load.into_iter().all(|load| load.finish() > 1000));
    lab.configure("", "");
    let router = lab.start_configured();
    for address in ["10.0.2.2", "10.0.3.2", "fd00:2::2"] {
        lab.host(1, &format!("ping -c 2 -i 0.1 -W 2 {address}")).ok();
    }
    router.stop();
}
