//! The whole daemon, in this process, on devices that fail: interfaces of the kernel's netmap that
//! vanish and come back (the kernel being the stand-in of the ring crate), a device that makes its
//! worker panic, one that makes it hang.
#![cfg(any(target_os = "linux", target_os = "freebsd"))]

#[path = "common/mischief.rs"]
mod mischief;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use netmap::{
    OpenError, OpenOptions, Port,
    device::{
        self, Device, DeviceSpec,
        kernel::{
            open_all_with,
            standin::{Nic, StandIn},
            system::System,
        },
    },
};
use sweepd::{
    config,
    control::reload::Trigger,
    daemon::{Counters, Daemon, confine::Confinement, ports::Opener},
    forward::verdict::Verdict,
    stats::read::PortTotals,
};

use mischief::{Mischief, bad_port};

/// Longest wait for anything, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

#[track_caller]
fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An IPv4 packet from the neighbour behind interface `from` to what is behind another.
fn frame(from: u8, to: u8) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 51, 100, from, 203, 0, 113, to];
    let sum = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip.extend([0, 1, 0, 1, 0, 8, 0, 0]);
    [&[2, 0, 0, 0, from, 1][..], &[2, 0, 0, 1, from, 9], &[8, 0], &ip].concat()
}

/// A port of this netmap interface, and everything behind its neighbour.
fn section(n: u8) -> String {
    format!(
        "[[port]]\nname = \"p{n}\"\ndevice = \"netmap:n{n}\"\naddresses = [\"10.0.{n}.1/24\"]\n\
         [[neighbor]]\naddress = \"10.0.{n}.9\"\nmac = \"02:00:00:01:0{n}:09\"\nport = \"p{n}\"\n\
         [[route]]\nto = \"203.0.113.{n}/32\"\nvia = \"10.0.{n}.9\"\n"
    )
}

fn write(path: &Path, sections: &[String]) {
    std::fs::write(path, format!("[kernel]\nroutes = false\n{}", sections.concat())).unwrap();
}

/// A machine with netmap interfaces, and the daemon on some of them.
struct Machine {
    kernel: Arc<StandIn>,
    dir: tempfile::TempDir,
    daemon: Daemon,
}

impl Machine {
    fn start(interfaces: u8, ports: u8) -> Self {
        let kernel = StandIn::new();
        for n in 0..interfaces {
            kernel.add_nic(&format!("n{n}"), nic(n));
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write(&path, &(0..ports).map(section).collect::<Vec<_>>());
        let system: Arc<dyn System> = kernel.clone();
        let open: Opener = Arc::new(move |requests: &[(DeviceSpec, OpenOptions)]| {
            let requests: Vec<_> = requests
                .iter()
                .map(|(spec, options)| match &spec.device {
                    Device::Netmap(netmap) => {
                        let (rings, carrier_wait) = (spec.rings, Some(Duration::ZERO));
                        (netmap.clone(), OpenOptions { rings, carrier_wait, ..options.clone() })
                    }
                    other => panic!("{other:?}"),
                })
                .collect();
            open_all_with(&system, &requests)
        });
        let config = config::load(&path).unwrap();
        let daemon =
            Daemon::start_with(&config, Counters::Memory, false, Some(&path), Confinement::None, open)
                .unwrap();
        Self { kernel, dir, daemon }
    }

    /// Puts other ports in force.
    fn reload(&self, ports: &[u8]) {
        write(&self.dir.path().join("f"), &ports.iter().map(|n| section(*n)).collect::<Vec<_>>());
        self.daemon.reload(Trigger::Client);
    }

    /// Why the device of port number `port` is not there.
    fn gone(&self, port: usize) -> Option<String> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.daemon.keeper().ask(Box::new(move |view| {
            let gone = view.ports.get(port).and_then(Option::as_ref).and_then(|port| port.gone.clone());
            answer.send(gone).unwrap();
        }));
        answered.recv().unwrap()
    }

    fn totals(&self, name: &str) -> Option<PortTotals> {
        self.daemon.stats().snapshot().into_iter().find(|port| port.name == name)
    }

    /// Sends a packet until it comes out.
    #[track_caller]
    fn crosses(&self, from: u8, to: u8) {
        let (near, far) = (format!("n{from}"), format!("n{to}"));
        self.kernel.sent(&far);
        wait_for("a packet crosses", || {
            self.kernel.receive(&near, 0, &frame(from, to));
            std::thread::sleep(Duration::from_millis(2));
            !self.kernel.sent(&far).is_empty()
        });
    }

    /// Ends it: no descriptor is left open, and the packets add up.
    fn stop(self) {
        wait_for("the packets add up", || self.daemon.stats().snapshot().iter().all(adds_up));
        self.daemon.stop();
        assert_eq!(self.kernel.open_descriptors(), 0);
    }
}

fn nic(n: u8) -> Nic {
    Nic { mac: [2, 0, 0, 0, n, 1], ..Nic::default() }
}

fn adds_up(port: &PortTotals) -> bool {
    port.rx_packets == port.verdicts.iter().sum::<u64>() + port.held + port.in_transit
}

/// Sends packets from n0 to n1 while `meanwhile` runs; all of them must arrive.
fn none_is_lost(machine: &Machine, meanwhile: impl FnOnce()) {
    machine.crosses(0, 1);
    // What was sent before it arrived belongs to nobody.
    std::thread::sleep(Duration::from_millis(100));
    machine.kernel.sent("n1");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let (mut sent, mut arrived) = (0, 0);
            while !over.load(Ordering::Relaxed) {
                sent += usize::from(machine.kernel.receive("n0", 0, &frame(0, 1)));
                std::thread::sleep(Duration::from_micros(200));
                arrived += machine.kernel.sent("n1").len();
            }
            wait_for("the rest arrives", || {
                arrived += machine.kernel.sent("n1").len();
                arrived >= sent
            });
            assert_eq!(arrived, sent);
            sent
        });
        // Whatever comes of it, the traffic has to end.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        over.store(true, Ordering::Relaxed);
        let sent = traffic.join().unwrap();
        if let Err(failure) = result {
            std::panic::resume_unwind(failure);
        }
        println!("{sent} packets, none lost");
    });
}

#[test]
fn a_device_that_vanishes_and_comes_back_is_opened_again() {
    let machine = Machine::start(3, 3);
    machine.crosses(0, 2);
    let before = machine.totals("p2").unwrap().tx_packets;
    none_is_lost(&machine, || {
        for _ in 0..2 {
            machine.kernel.remove_nic("n2");
            wait_for("it is gone", || machine.gone(2).is_some());
            // Its route is dead meanwhile; nobody waits for anything.
            let lost = machine.totals("p0").unwrap();
            machine.kernel.receive("n0", 0, &frame(0, 2));
            wait_for("the packet ends", || machine.totals("p0").unwrap().verdicts != lost.verdicts);
            machine.kernel.add_nic("n2", nic(2));
            wait_for("it is back", || machine.gone(2).is_none());
            machine.crosses(0, 2);
            machine.crosses(2, 0);
        }
    });
    assert!(machine.totals("p2").unwrap().tx_packets > before, "its counters go on");
    machine.stop();
}

#[test]
fn ports_come_and_go_by_reload_and_the_kernel_has_them_again() {
    let machine = Machine::start(4, 2);
    let opened = || machine.kernel.open_descriptors();
    let of_two = opened();
    none_is_lost(&machine, || {
        for _ in 0..3 {
            machine.reload(&[0, 1, 2, 3]);
            wait_for("the ports come", || machine.totals("p3").is_some());
            machine.crosses(2, 3);
            machine.crosses(3, 0);
            machine.reload(&[1, 0]);
            wait_for("the ports go", || machine.totals("p2").is_none() && opened() == of_two);
        }
        // An interface under another name is taken from the one and given to the other.
        machine.reload(&[0, 1, 2]);
        wait_for("the port comes", || machine.totals("p2").is_some());
        let renamed = section(2).replace("\"p2\"", "\"other\"");
        write(&machine.dir.path().join("f"), &[section(0), section(1), renamed]);
        machine.daemon.reload(Trigger::Client);
        wait_for("it has another name", || {
            machine.totals("other").is_some() && machine.totals("p2").is_none()
        });
        machine.crosses(0, 2);
    });
    machine.stop();
}

#[test]
fn what_cannot_be_opened_leaves_everything_as_it_was() {
    let machine = Machine::start(3, 3);
    none_is_lost(&machine, || {
        let before = machine.kernel.open_descriptors();
        // n7 is not there; p2 would go, and p1 would get a route.
        let text = [section(0), section(1).replace("203.0.113.1/32", "203.0.113.0/24"), section(7)];
        write(&machine.dir.path().join("f"), &text);
        machine.daemon.reload(Trigger::Client);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(machine.kernel.open_descriptors(), before);
        machine.crosses(0, 2);
        assert!(machine.totals("p7").is_none());
        // The device of p2 has to be closed before p3 can have it; as that fails, p2 has it again.
        let p3 = section(2).replace("\"p2\"", "\"p3\"").replace("netmap:n2", "netmap:n2/rings=7");
        let text = [section(0), section(1), p3];
        write(&machine.dir.path().join("f"), &text);
        machine.daemon.reload(Trigger::Client);
        std::thread::sleep(Duration::from_millis(300));
        machine.crosses(0, 2);
        assert!(machine.totals("p3").is_none() && machine.totals("p2").is_some());
    });
    machine.stop();
}

/// Two generators that face each other, by two workers, and a port that does mischief, which
/// belongs to the first of them.
fn between_generators(count: u64, mischief: &Arc<Mischief>) -> Daemon {
    let side = |name: &str, n: u8, from: &str, to: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\n\
             device = \"gen:flows=500,size=64,rate=20000,count={count},verify,rings=2,src={from},dst={to},dmac=02:00:00:00:00:0{n}\"\n\
             addresses = [\"192.0.2.{}/31\"]\nmac = \"02:00:00:00:00:0{n}\"\n\
             [[route]]\nto = \"{from}\"\nvia = \"192.0.2.{}\"\n\
             [[neighbor]]\naddress = \"192.0.2.{}\"\nmac = \"02:00:00:00:01:0{n}\"\nport = \"{name}\"\n",
            2 * n,
            2 * n + 1,
            2 * n + 1
        )
    };
    let text = format!(
        "[daemon]\ncpus = [0, 1]\n[kernel]\nroutes = false\n{}{}[[port]]\nname = \"bad\"\ndevice = \"pipe:bad\"\n",
        side("left", 1, "198.18.0.0/16", "198.19.0.0/16"),
        side("right", 2, "198.19.0.0/16", "198.18.0.0/16")
    );
    let mischief = mischief.clone();
    let open: Opener = Arc::new(move |requests: &[(DeviceSpec, OpenOptions)]| {
        let (bad, good): (Vec<_>, Vec<_>) =
            requests.iter().cloned().partition(|(spec, _)| matches!(spec.device, Device::Pipe(_)));
        let mut ports: Vec<Port> = device::open_all(&good)?;
        ports.extend(bad.iter().map(|_| bad_port(&mischief)));
        Ok::<_, OpenError>(ports)
    });
    let config = config::parse(&text, "test").unwrap();
    Daemon::start_with(&config, Counters::Memory, false, None, Confinement::None, open).unwrap()
}

fn sum(daemon: &Daemon, of: impl Fn(&PortTotals) -> u64) -> u64 {
    daemon.stats().snapshot().iter().map(of).sum()
}

#[test]
fn a_worker_that_panics_goes_on_and_every_packet_has_its_verdict() {
    const COUNT: u64 = 60_000;
    let mischief = Arc::new(Mischief::default());
    let daemon = between_generators(COUNT, &mischief);
    for fault in 1..=3 {
        wait_for("traffic", || sum(&daemon, |port| port.rx_packets + port.rx_dropped) > fault * 20_000);
        mischief.panic.store(true, Ordering::Relaxed);
        wait_for("the fault is noticed", || daemon.faults() == fault);
    }
    wait_for("the traffic's end", || sum(&daemon, |port| port.rx_packets + port.rx_dropped) >= 2 * COUNT);
    wait_for("the packets add up", || daemon.stats().snapshot().iter().all(adds_up));
    // Nothing was in the middle of the stages when it happened, so nothing is lost.
    assert_eq!(sum(&daemon, |port| port.verdicts[Verdict::WorkerFault as usize]), 0);
    assert!(daemon.workers_alive());
    daemon.stop();
}

#[test]
fn a_worker_that_hangs_is_told_once_and_does_not_keep_the_daemon_from_its_end() {
    let mischief = Arc::new(Mischief::default());
    let daemon = between_generators(1 << 40, &mischief);
    wait_for("traffic", || sum(&daemon, |port| port.rx_packets) > 1000);
    mischief.hang.store(true, Ordering::Relaxed);
    wait_for("it is noticed", || daemon.stalls() == 1);
    // The other one goes on, and the keeper answers.
    let before = sum(&daemon, |port| port.tx_packets);
    wait_for("the other worker's traffic", || sum(&daemon, |port| port.tx_packets) > before + 1000);
    let (answer, answered) = crossbeam_channel::bounded(1);
    daemon.keeper().ask(Box::new(move |view| answer.send(view.generation).unwrap()));
    answered.recv_timeout(LONG).unwrap();
    // It may come to itself again, and hang again.
    mischief.hang.store(false, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(daemon.stalls(), 1);
    mischief.hang.store(true, Ordering::Relaxed);
    wait_for("it is noticed", || daemon.stalls() == 2);
    let start = Instant::now();
    daemon.stop();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    mischief.hang.store(false, Ordering::Relaxed);
}
