//! A router on real interfaces: one end of four veth pairs in a network namespace of its own, whose
//! kernel forwards, or where sweepd runs on `xdp:` ports. The far ends are in another namespace,
//! which has no addresses and says nothing; the test sends and receives whole frames there.
//!
//! Nothing waits for silence. Behind the frames of a test go markers: packets of our own that come
//! out at every port and back from the router's own stack. A ring is a queue, so when the markers
//! have arrived, so has everything that came before them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use netmap::device::xdp::bpf;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Mutex, MutexGuard};
use sweepd::{forward::verdict::Verdict, stats::read::StatsReader, tables::ReversePath};

use crate::common::{host_mac, port_mac};
use crate::namespace::{FarEnd, Namespace, command, is_chatter, mac_text};
use crate::packets::{Ip4, checksum};
use crate::plan::Plan;
use crate::router::{NEAR, Place, Router, Switch, To, to_router};
use crate::trunk;

/// Longest time until something that must happen has happened, on a machine that is busy.
const SOON: Duration = Duration::from_secs(10);
/// Frames that go in before the next markers.
const CHUNK: usize = 64;

/// Why the interfaces cannot be made here, if so.
pub fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("root".to_owned());
    }
    let is_there = |tool: &&str| {
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        path.split(':').any(|dir| Path::new(dir).join(tool).exists())
    };
    let missing: Vec<_> = ["ip", "ethtool", "setpriv"].into_iter().filter(|tool| !is_there(tool)).collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// The router of that place, made when it is first asked for, for one test at a time.
pub fn of(plan: Plan, place: Place) -> MutexGuard<'static, Wires> {
    static ALL: [OnceLock<Mutex<Wires>>; 3] = [const { OnceLock::new() }; 3];
    let cell = match (plan, place) {
        (Plan::Plain, Place::Xdp) => &ALL[0],
        (Plan::Plain, _) => &ALL[1],
        (Plan::Trunk, _) => &ALL[2],
    };
    let mut wires = cell.get_or_init(|| Mutex::new(Wires::new(plan, place))).lock();
    wires.begin();
    wires
}

/// The router, its far ends, and sweepd when it runs there.
pub struct Wires {
    plan: Plan,
    place: Place,
    router: Namespace,
    _far: Namespace,
    ends: Vec<FarEnd>,
    /// Has the far ends take frames that are redirected in the driver: express is on.
    _takers: Vec<OwnedFd>,
    daemon: Option<Daemon>,
    marker: u64,
    /// How often it was asked whether sweepd has followed.
    probes: usize,
    /// Frames that went in, ever.
    sent: u64,
    /// Verdicts that are not of this test's frames: those before it, and those of the markers.
    aside: BTreeMap<&'static str, u64>,
    /// How often `dies` has seen each verdict.
    died: BTreeMap<&'static str, u64>,
    changes: String,
    undo: Vec<String>,
    /// What sweepd is configured with besides what it has at the start: of the daemon, and of the
    /// port that has switches.
    keys: [String; 2],
}

struct Daemon {
    child: Child,
    config: PathBuf,
    log: PathBuf,
    counters: StatsReader,
}

impl Wires {
    fn new(plan: Plan, place: Place) -> Self {
        let (router, far) = (Namespace::new(), Namespace::new());
        let off = "tx off rx off gro off tso off gso off";
        router.sh("cd /proc/sys/net
             ip link set lo up
             ip link add other type veth peer name beyond
             ip link set other up; ip link set beyond up
             echo 0 | tee ipv6/conf/*/accept_dad ipv6/conf/*/router_solicitations >/dev/null
             echo 1 | tee ipv6/conf/default/addr_gen_mode ipv4/conf/*/arp_ignore >/dev/null
             echo 0 | tee ipv4/conf/*/rp_filter ipv4/conf/*/send_redirects \
                 ipv4/conf/*/accept_source_route ipv4/icmp_ratemask ipv6/icmp/ratelimit >/dev/null");
        far.sh("echo 1 | tee /proc/sys/net/ipv6/conf/*/disable_ipv6 >/dev/null");
        for (k, mtu) in plan.mtus().iter().enumerate() {
            let mac = mac_text(port_mac(k));
            router.sh(&format!(
                "ip link add p{k} address {mac} type veth peer name f{k}
                 ethtool -K p{k} {off}; ethtool -K f{k} {off}
                 ip link set f{k} netns {}
                 ip link set p{k} mtu {mtu} up",
                far.thread
            ));
            far.sh(&format!("ip link set f{k} up"));
        }
        let ports = plan.mtus().len();
        router.sh(&(0..ports).map(|k| plan.set_up_port(k)).collect::<String>());
        let ends = far.run(move || (0..ports).map(|k| FarEnd::open(&format!("f{k}"))).collect());
        let takers = if place == Place::Xdp {
            far.run(move || (0..ports).map(|k| takes_redirected(&format!("f{k}"))).collect())
        } else {
            Vec::new()
        };
        let forwards = u8::from(place == Place::Kernel);
        router.sh(&format!(
            "echo {forwards} >/proc/sys/net/ipv4/ip_forward
             echo {forwards} >/proc/sys/net/ipv6/conf/all/forwarding
             echo 0 | tee /proc/sys/net/ipv4/conf/*/send_redirects \
                 /proc/sys/net/ipv4/conf/*/accept_source_route >/dev/null"
        ));
        let daemon = (place == Place::Xdp).then(|| Daemon::start(plan, &router));
        Self {
            plan,
            place,
            router,
            _far: far,
            ends,
            _takers: takers,
            daemon,
            marker: 0,
            probes: 0,
            sent: 0,
            aside: BTreeMap::new(),
            died: BTreeMap::new(),
            changes: String::new(),
            undo: Vec::new(),
            keys: Default::default(),
        }
    }

    /// Before a test: what earlier ones counted is not this one's.
    fn begin(&mut self) {
        self.aside = self.raw();
        self.died.clear();
    }

    /// After a test: what it changed is undone, and every verdict that it saw was counted.
    pub fn finish(&mut self) {
        let ours = self.verdicts();
        let up = ours.get("host").copied().unwrap_or(0);
        for (name, n) in std::mem::take(&mut self.died) {
            let counted = ours.get(name).copied().unwrap_or(0);
            assert!(self.daemon.is_none() || counted + up >= n, "{n} were {name}, but {ours:?}");
        }
        self.undo();
    }

    /// Takes the changes of the test back, whether it passed or not.
    pub fn undo(&mut self) {
        if std::mem::take(&mut self.keys) != <[String; 2]>::default() {
            self.configure();
        }
        self.changes.clear();
        for line in std::mem::take(&mut self.undo).into_iter().rev() {
            self.changes += &line;
        }
        self.publish();
    }

    /// What sweepd has counted, once it has counted every frame that went in.
    fn raw(&self) -> BTreeMap<&'static str, u64> {
        let Some(daemon) = &self.daemon else { return BTreeMap::new() };
        let start = Instant::now();
        loop {
            let ports = daemon.counters.snapshot();
            let all: u64 = ports.iter().map(|p| p.verdicts.iter().sum::<u64>() + p.held).sum();
            if all == self.sent {
                let sum = |v: Verdict| ports.iter().map(|p| p.verdicts[v as usize]).sum();
                return Verdict::ALL.iter().map(|&v| (v.name(), sum(v))).collect();
            }
            assert!(start.elapsed() < SOON, "{all} of {} frames are counted: {ports:#?}", self.sent);
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// How this test's frames ended. Nothing when no sweepd runs.
    fn verdicts(&self) -> BTreeMap<&'static str, u64> {
        let ours = self.raw().into_iter();
        let ours = ours.map(|(name, n)| (name, n - self.aside.get(name).copied().unwrap_or(0)));
        ours.filter(|(_, n)| *n > 0).collect()
    }

    fn put(&mut self, port: usize, frame: &[u8]) {
        self.ends[port].send(frame);
        self.sent += 1;
    }

    /// Sends frames and markers, and collects until all markers are back.
    fn send_chunk(&mut self, port: usize, frames: &[Vec<u8>]) -> Vec<(usize, Vec<u8>)> {
        frames.iter().for_each(|frame| self.put(port, frame));
        self.marker += 1;
        let mark = [&b"the marker"[..], &self.marker.to_be_bytes()].concat();
        for k in 0..self.ends.len() {
            let mut packet = Ip4::udp(NEAR, &format!("10.0.{k}.9"), 0);
            packet.payload.extend(&mark);
            // With an option that says nothing a worker has to send it: behind all before it, while
            // one that is forwarded in the driver would overtake those.
            packet.options = vec![1; 4];
            self.put(port, &to_router(port, &packet.build()));
        }
        *self.aside.entry("forwarded").or_default() += self.ends.len() as u64;
        let mut echo = Ip4::udp(&format!("10.0.{port}.9"), &format!("10.0.{port}.1"), 0);
        (echo.protocol, echo.payload) = (1, [&[8, 0, 0, 0, 0, 0, 0, 0], &mark[..]].concat());
        let sum = checksum(&echo.payload).to_be_bytes();
        echo.payload[2..4].copy_from_slice(&sum);
        self.put(port, &to_router(port, &echo.build()));
        *self.aside.entry("host").or_default() += 1;
        self.collect(port, &mark)
    }

    fn collect(&mut self, port: usize, mark: &[u8]) -> Vec<(usize, Vec<u8>)> {
        let mut waiting = vec![1; self.ends.len()];
        waiting[port] += 1;
        let (mut came, start) = (Vec::new(), Instant::now());
        loop {
            for (k, end) in self.ends.iter_mut().enumerate() {
                while let Some(frame) = end.receive() {
                    // A datagram, or an echo reply.
                    if frame.ends_with(mark) && (frame[23] == 17 || frame[34] == 0) {
                        waiting[k] -= 1;
                    } else if !is_chatter(&frame) {
                        came.push((k, frame));
                    }
                }
            }
            if waiting.iter().all(|n| *n == 0) {
                came.sort_by_key(|(k, _)| *k);
                return came;
            }
            assert!(start.elapsed() < SOON, "markers are missing, by port: {waiting:?}; came: {came:x?}");
            let mut fds: Vec<_> =
                self.ends.iter().map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN)).collect();
            poll(&mut fds, PollTimeout::from(100u8)).unwrap();
        }
    }

    /// Runs what was asked for; with sweepd, waits until it has followed. The kernel's news come in
    /// order, so it has when it knows a route that was added last.
    fn apply(&mut self) {
        let lines = std::mem::take(&mut self.changes);
        if lines.is_empty() {
            return;
        }
        self.router.sh(&lines);
        if self.daemon.is_none() {
            return;
        }
        let before = self.raw();
        self.probes += 1;
        let host = [2, 3][self.probes % 2];
        self.router.sh(&format!("ip route replace 100.127.0.1 via 10.0.1.{host} dev p1"));
        self.wait_until_routed_to(host);
        for (name, n) in self.raw() {
            *self.aside.entry(name).or_default() += n - before[name];
        }
    }

    /// Has sweepd read its configuration, with other keys.
    fn configure(&self) {
        let Some(running) = &self.daemon else { return };
        let dir = running.config.parent().expect("its folder");
        fs::write(&running.config, self.plan.configuration(dir, &self.keys)).unwrap();
        let out =
            command(env!("CARGO_BIN_EXE_sweepd")).args(["reload", "--config"]).arg(&running.config).output();
        let out = out.unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

    fn wait_until_routed_to(&mut self, host: u8) {
        let frame = [to_router(0, &Ip4::udp(NEAR, "100.127.0.1", 9).build())];
        let start = Instant::now();
        // Markers are put aside twice here, once as they are sent and once with all the rest.
        let aside = self.aside.clone();
        while self.send_chunk(0, &frame).iter().all(|(_, frame)| frame[..6] != host_mac(1, host)) {
            assert!(start.elapsed() < SOON, "sweepd does not follow the kernel's routes: {}", self.lookups());
        }
        self.aside = aside;
    }

    /// Where the kernel, the keeper, the driver's program and a worker send the last probe.
    fn lookups(&mut self) -> String {
        let mut text = self.router.sh("ip route show 100.127.0.1; ip neigh show dev p1");
        if let Some(running) = &self.daemon {
            for what in [&["show", "routes", "100.127.0.1"][..], &["show", "routes", "--diff"]] {
                let mut show = command(env!("CARGO_BIN_EXE_sweepd"));
                let out = show.args(what).arg("--config").arg(&running.config).output().unwrap();
                text += &String::from_utf8_lossy(&[out.stdout, out.stderr].concat());
            }
        }
        for options in [vec![], vec![1; 4]] {
            let probe = Ip4 { options, ..Ip4::udp(NEAR, "100.127.0.1", 9) };
            let out = self.send_chunk(0, &[to_router(0, &probe.build())]);
            text += &format!("{} bytes of options: {out:x?}\n", probe.options.len());
        }
        text
    }
}

impl Router for Wires {
    fn place(&self) -> Place {
        self.place
    }

    fn send(&mut self, port: usize, frames: &[Vec<u8>]) -> Vec<(usize, Vec<u8>)> {
        if frames.is_empty() {
            return self.send_chunk(port, &[]);
        }
        let mut came: Vec<_> = frames.chunks(CHUNK).flat_map(|some| self.send_chunk(port, some)).collect();
        came.sort_by_key(|(k, _)| *k);
        came
    }

    fn route(&mut self, prefix: &str, to: &To) {
        let hop = |port: usize, host: u8| {
            let net = if prefix.contains(':') { "2001:db8:" } else { "10.0." };
            let sep = if prefix.contains(':') { "::" } else { "." };
            format!("via {net}{port}{sep}{host} dev p{port}")
        };
        let way = match to {
            To::Host(port, host) => format!("{prefix} {}", hop(*port, *host)),
            To::Via(port, _, address) => format!("{prefix} via {address} dev p{port}"),
            To::Ways(port, hosts) => {
                let hops = hosts.iter().map(|host| format!(" nexthop {}", hop(*port, *host)));
                format!("{prefix}{}", hops.collect::<String>())
            }
            To::Among(hosts) => {
                let hops = hosts.iter().map(|(port, host)| format!(" nexthop {}", hop(*port, *host)));
                format!("{prefix}{}", hops.collect::<String>())
            }
            To::Elsewhere => format!("{prefix} dev other"),
            To::Unreachable => format!("unreachable {prefix}"),
            To::Prohibited => format!("prohibit {prefix}"),
            To::Blackhole => format!("blackhole {prefix}"),
        };
        let family = if prefix.contains(':') { 6 } else { 4 };
        self.changes += &format!("ip -{family} route replace {way}\n");
        self.undo.push(format!("ip -{family} route del {prefix} || true\n"));
    }

    fn address(&mut self, port: usize, address: &str) {
        let nodad = if address.contains(':') { "nodad" } else { "" };
        self.changes += &format!("ip addr add {address} dev p{port} {nodad}\n");
        self.undo.push(format!("ip addr del {address} dev p{port}\n"));
    }

    fn neighbor(&mut self, port: usize, address: &str, host: u8) {
        if self.plan.hosts(port).contains(&(address.to_owned(), host)) {
            return;
        }
        let mac = mac_text(host_mac(port, host));
        self.changes += &format!("ip neigh replace {address} lladdr {mac} dev p{port} nud permanent\n");
        self.undo.push(format!("ip neigh del {address} dev p{port} || true\n"));
    }

    fn publish(&mut self) {
        self.apply();
    }

    fn counted(&self, _: Verdict) -> Option<u64> {
        None
    }

    fn expect(&mut self, verdict: Verdict) {
        *self.died.entry(verdict.name()).or_default() += 1;
    }

    fn ended(&mut self, verdicts: &[(&'static str, u64)]) {
        if self.daemon.is_none() {
            return;
        }
        let ours = self.verdicts();
        let expected: BTreeMap<_, _> = verdicts.iter().copied().collect();
        // What the program on the interface passes up by itself is the host's, whatever it is.
        let n = |of: &BTreeMap<_, _>, name: &str| of.get(name).copied().unwrap_or(0);
        let no_more = ours.iter().all(|(name, count)| *name == "host" || *count <= n(&expected, name));
        let answered = n(&expected, "answered").min(n(&ours, "host"));
        let all: u64 = ours.values().sum();
        let right = no_more && all == expected.values().sum::<u64>() && answered <= n(&ours, "host");
        assert!(right, "{ours:?}, not {expected:?}");
    }

    fn switch(&mut self, switch: Switch) {
        if self.daemon.is_some() {
            let (of, key) = match switch {
                Switch::Sources(ReversePath::Off) => (1, "urpf = \"off\"\n".to_owned()),
                Switch::Sources(ReversePath::Loose) => (1, "urpf = \"loose\"\n".to_owned()),
                Switch::Sources(ReversePath::Strict) => (1, "urpf = \"strict\"\n".to_owned()),
                Switch::Redirects(on) => (1, format!("redirects = {on}\n")),
                Switch::SourceRoutes(on) => (0, format!("source_routes = {on}\n")),
            };
            let name = key.split(' ').next().expect("a key");
            let others = self.keys[of].lines().filter(|line| !line.starts_with(name));
            self.keys[of] = others.map(|line| format!("{line}\n")).collect::<String>() + &key;
            self.configure();
        }
        let (files, value) = match (switch, self.place) {
            // What comes to an address of the router's is its kernel's, which forwards it then.
            (Switch::SourceRoutes(on), Place::Xdp) => ("conf/*/accept_source_route ip_forward", u8::from(on)),
            (Switch::SourceRoutes(on), _) => ("conf/*/accept_source_route", u8::from(on)),
            (_, Place::Xdp) => return,
            (Switch::Sources(ReversePath::Off), _) => ("conf/p0/rp_filter", 0),
            (Switch::Sources(ReversePath::Strict), _) => ("conf/p0/rp_filter", 1),
            (Switch::Sources(ReversePath::Loose), _) => ("conf/p0/rp_filter", 2),
            (Switch::Redirects(on), _) => ("conf/p0/send_redirects", u8::from(on)),
        };
        let set = |value| format!("(cd /proc/sys/net/ipv4; echo {value} | tee {files} >/dev/null)\n");
        self.router.sh(&set(value));
        self.undo.push(set(0));
    }

    fn limit_errors(&mut self, _: u32, _: u32) -> (u64, u64) {
        if self.daemon.is_some() {
            // What it begins with: after a lower limit the tests that follow had to wait for more.
            let limit = sweepd::tables::IcmpLimit::default();
            return (limit.rate.into(), limit.burst.into());
        }
        let [limit, none] = ["echo 10 >$v6; echo 10 >$v4; echo 6168 >$mask", "echo 0 >$v6; echo 0 >$mask"]
            .map(|line| {
                format!(
                    "v4=/proc/sys/net/ipv4/icmp_ratelimit v6=/proc/sys/net/ipv6/icmp/ratelimit
                     mask=/proc/sys/net/ipv4/icmp_ratemask; {line}\n"
                )
            });
        self.router.sh(&limit);
        self.undo.push(none);
        // One in 10 ms, four times as many towards a prefix of 64 bits or less, six at once.
        (400, 6)
    }

    fn fails(&mut self, port: usize, _: IpAddr, frame: &[u8]) -> Vec<(usize, Vec<u8>)> {
        let [hasten, undo] = [10, 1000].map(|ms| {
            format!("echo {ms} | tee /proc/sys/net/ipv[46]/neigh/p{port}/retrans_time_ms >/dev/null\n")
        });
        self.router.sh(&hasten);
        self.undo.push(undo);
        let mut came = self.send(0, &[frame.to_vec()]);
        let start = Instant::now();
        while came.is_empty() {
            assert!(start.elapsed() < SOON, "nothing comes of a neighbour that does not answer");
            came = self.send(0, &[]);
        }
        came
    }

    fn resolves(&mut self, port: usize, host: u8, frames: usize) -> Vec<(usize, Vec<u8>)> {
        if port < self.ends.len() {
            for address in [format!("10.0.{port}.{host}"), format!("2001:db8:{port}::{host}")] {
                self.neighbor(port, &address, host);
            }
            let lines = std::mem::take(&mut self.changes);
            self.router.sh(&lines);
        } else {
            // Here it is sweepd that asks.
            let reply = trunk::arp(port, 2, host, [10, 0, port as u8, 1]);
            let came = self.send(trunk::rings_of(port), &[reply]);
            *self.aside.entry("answered").or_default() += 1;
            if came.len() >= frames {
                return came;
            }
            assert_eq!(came, []);
        }
        let (mut came, start) = (Vec::new(), Instant::now());
        while came.len() < frames {
            assert!(start.elapsed() < SOON, "only {} frames come", came.len());
            came.extend(self.send(0, &[]));
        }
        came
    }

    fn log(&self) -> String {
        let Some(daemon) = &self.daemon else { return String::new() };
        let log = fs::read_to_string(&daemon.log).unwrap_or_default();
        format!("sweepd, process {}:\n{log}", daemon.child.id())
    }

    fn totals(&self, port: usize) -> [u64; 4] {
        self.raw();
        let Some(daemon) = &self.daemon else { return [0; 4] };
        let all = daemon.counters.snapshot();
        let port = all.iter().find(|of| of.name == self.plan.name(port)).expect("it is there");
        [port.rx_packets, port.rx_bytes, port.tx_packets, port.tx_bytes]
    }
}

impl Daemon {
    fn start(plan: Plan, router: &Namespace) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rules-{plan:?}").to_lowercase());
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let (config, log) = (dir.join("sweepd.toml"), dir.join("log"));
        fs::write(&config, plan.configuration(&dir, &Default::default())).unwrap();
        let stderr = File::create(&log).unwrap();
        // It ends with the thread that started it, which is when the tests do.
        let path = config.clone();
        let child = router.run(move || {
            command("setpriv")
                .args(["--pdeathsig", "TERM", env!("CARGO_BIN_EXE_sweepd"), "run", "--config"])
                .arg(path)
                .stdout(Stdio::null())
                .stderr(stderr)
                .spawn()
        });
        let (mut child, start) = (child.unwrap(), Instant::now());
        loop {
            let said = fs::read_to_string(&log).unwrap_or_default();
            if said.contains(": forwarding\n") {
                break;
            }
            assert!(child.try_wait().unwrap().is_none(), "sweepd ended: {said}");
            assert!(start.elapsed() < SOON, "sweepd does not start: {said}");
            thread::sleep(Duration::from_millis(5));
        }
        let counters = StatsReader::open(&dir.join("run/stats")).unwrap();
        Self { child, config, log, counters }
    }
}

/// Has a veth's other end take redirected frames, as long as this is open: by an XDP program that lets
/// everything pass. (GRO would do as well, and put frames together.)
fn takes_redirected(interface: &str) -> OwnedFd {
    let index = nix::net::if_::if_nametoindex(interface).unwrap();
    // r0 = XDP_PASS; exit
    let program = bpf::load("passes", &[2 << 32 | 0xb7, 0x95]).unwrap();
    bpf::attach(program.as_fd(), index, bpf::AttachMode::Native).unwrap()
}
