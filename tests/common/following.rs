//! A keeper that follows a real kernel, in a network namespace, without forwarding anything: what
//! it has made of the kernel's tables can be looked at.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    fs::File,
    net::IpAddr,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use netmap::device::PortControl;
use sweepd::{
    control::{Keeper, KeeperConfig, KeeperPort, WorkerLine, kernel::Follow, rib::PortSpec},
    forward::messages::{ToKeeper, ToWorker},
    stats::file::StatsFile,
    tables::{
        Action, PortId, Tables,
        publish::{Publisher, Reader},
    },
};

/// Longest time until a change shows.
const SETTLED: Duration = Duration::from_millis(100);

/// A network namespace, deleted at the end.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new(what: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("ctl_{}_{}_{what}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        run(&format!("ip netns add {name}"));
        Self(name)
    }

    /// Runs `ip` in it.
    pub fn ip(&self, arguments: &str) {
        run(&format!("ip -n {} {arguments}", self.0));
    }

    /// Moves this thread, and those that it starts, into it.
    pub fn enter(&self) {
        let file = File::open(format!("/var/run/netns/{}", self.0)).unwrap();
        nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn run(line: &str) {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn is_possible() -> bool {
    let root = nix::unistd::geteuid().is_root();
    let tool = Command::new("ip").arg("-V").output().is_ok();
    if !root || !tool {
        eprintln!("skipped: needs root and iproute2");
    }
    root && tool
}

/// A port that remembers which addresses it was told.
struct Told(Arc<Mutex<Vec<IpAddr>>>);

impl PortControl for Told {
    fn set_local(&mut self, addresses: &[IpAddr]) -> std::io::Result<()> {
        *self.0.lock().unwrap() = addresses.to_vec();
        Ok(())
    }
}

/// A router's namespace with ports wan and lan, whose other ends are in a peer's, and a keeper.
pub struct Lab {
    pub router: Namespace,
    pub peer: Namespace,
    pub keeper: Option<Keeper>,
    reader: Reader<Tables>,
    pub from_workers: Sender<ToKeeper>,
    pub to_worker: Receiver<ToWorker>,
    pub local: Arc<Mutex<Vec<IpAddr>>>,
    times: Vec<Duration>,
}

impl Lab {
    /// Whose namespaces `prepare` has prepared, and whose keeper is as `change` has it. It moves the
    /// calling thread into the router's.
    pub fn new(prepare: impl FnOnce(&Namespace, &Namespace), change: impl FnOnce(&mut KeeperConfig)) -> Self {
        let (router, peer) = (Namespace::new("router"), Namespace::new("peer"));
        router.ip("link set lo up");
        for (port, net) in [("wan", "203.0.113"), ("lan", "10.0.0")] {
            router.ip(&format!("link add {port} type veth peer name {port} netns {}", peer.0));
            for (side, last) in [(&router, 1), (&peer, 2)] {
                side.ip(&format!("link set {port} up"));
                side.ip(&format!("addr add {net}.{last}/24 dev {port}"));
            }
        }
        prepare(&router, &peer);
        router.enter();
        let local = Arc::new(Mutex::new(Vec::new()));
        let names = ["wan".to_string(), "lan".to_string()];
        let stats = StatsFile::anonymous(&names, 1).unwrap();
        let ports = names.iter().enumerate().map(|(number, name)| KeeperPort {
            spec: PortSpec {
                name: name.clone(),
                interface: Some(name.clone()),
                max_len: 9000,
                ..PortSpec::default()
            },
            device: format!("xdp:{name}"),
            mode: "test".into(),
            rings: 1,
            control: Box::new(Told(local.clone())),
            block: stats.block(stats.keeper(), number),
        });
        let mut config = KeeperConfig::new(ports.collect());
        config.follow = Some(Follow { table: Some(254) });
        change(&mut config);
        let (publisher, mut readers) = Publisher::try_new(Tables::new, 1).unwrap();
        let (from_workers, to_keeper) = unbounded();
        let (commands, to_worker) = unbounded();
        let worker = WorkerLine { commands, call: Box::new(|| {}) };
        let keeper = Keeper::start(config, publisher, to_keeper, vec![worker], unbounded().0).unwrap();
        let reader = readers.pop().unwrap();
        Self { router, peer, keeper: Some(keeper), reader, from_workers, to_worker, local, times: Vec::new() }
    }

    /// Looks at the tables in force.
    pub fn look<R>(&mut self, look: impl FnOnce(&Tables) -> R) -> R {
        let result = look(self.reader.sweep());
        self.reader.offline();
        result
    }

    /// What would become of a packet.
    pub fn fate(&mut self, address: &str) -> (Action, PortId, Option<IpAddr>) {
        let address: IpAddr = address.parse().unwrap();
        self.look(|tables| {
            let id = match address {
                IpAddr::V4(a) => tables.fib4.lookup(u32::from(a)),
                IpAddr::V6(a) => tables.fib6.lookup(u128::from(a)),
            };
            let info = tables.next_hop_info(id);
            (info.action, tables.next_hop(id).port, info.gateway)
        })
    }

    /// Waits until a packet to `address` meets this fate, and notes how long that took.
    pub fn wait_for(&mut self, address: &str, action: Action, port: PortId, gateway: Option<&str>) {
        let wanted = (action, port, gateway.map(|g| g.parse().unwrap()));
        let start = Instant::now();
        while self.fate(address) != wanted {
            let found = self.fate(address);
            assert!(start.elapsed() < Duration::from_secs(10), "{address}: {found:?}, not {wanted:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.times.push(start.elapsed());
    }

    /// Half of all changes showed in time; the rest may have met a busy machine.
    pub fn assert_quick(&mut self) {
        self.times.sort();
        let median = self.times[self.times.len() / 2];
        assert!(median <= SETTLED, "{:?}", self.times);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.reader.offline();
        drop(self.keeper.take());
    }
}

/// Runs a test on a thread of its own, which may move to another namespace.
pub fn in_lab(prepare: fn(&Namespace, &Namespace), test: fn(&mut Lab)) {
    if is_possible() {
        let result = std::thread::spawn(move || test(&mut Lab::new(prepare, |_| {}))).join();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    }
}
