//! Routes that flap at full speed under traffic.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use nix::sys::{
    socket::{
        ControlMessageOwned, MsgFlags, recvmsg, setsockopt,
        sockopt::{RcvBufForce, ReceiveTimeout, ReceiveTimestampns},
    },
    time::{TimeSpec, TimeVal},
};
use sweepd::tables::synthetic::Random;

use crate::{
    express, needs_lab,
    net::{Lab, SWEEPD, sh, wait_for},
    rtnetlink::{AT_ONCE, Change, History, Routes, What},
};

/// Changes of routes.
const CHANGES: usize = 100_000;
/// Within this a change of a route must show in forwarding.
const SETTLING: Duration = Duration::from_millis(100);
/// Prefixes that traffic goes to and that change now and then.
const WATCHED: usize = 40;
/// Prefixes that traffic goes to and that nothing happens to, between those that change.
const UNTOUCHED: usize = 16;
/// Between two packets to each of these.
const PAUSE: Duration = Duration::from_millis(2);
/// Where the packets go.
const PORT: u16 = 7100;

/// Host 2 and host 3, by family.
fn gateways() -> [Vec<IpAddr>; 2] {
    [["10.0.2.2", "10.0.3.2"], ["fd00:2::2", "fd00:3::2"]]
        .map(|all| all.iter().map(|address| address.parse().unwrap()).collect())
}

/// The `n`-th place of a family for a prefix of its own; places of one kind lie among the others.
fn place(n: usize, kind: u32, six: bool) -> IpNet {
    if six {
        let address = 0x2001_0db8 << 96 | u128::from(kind) << 76 | (n as u128) << 80;
        Ipv6Net::new(address.into(), 56).unwrap().trunc().into()
    } else {
        Ipv4Net::new((20 << 24 | (n as u32) << 8 | kind << 6).into(), 26).unwrap().into()
    }
}

/// A prefix that traffic goes to, and which host was right from when to when.
struct Watched {
    net: IpNet,
    /// The host, and since when: before the change was asked for.
    since: Vec<(u32, Duration)>,
    /// When the kernel had made the next change.
    until: Vec<Duration>,
}

/// The time of day, as the kernel stamps packets.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

impl Watched {
    /// Host 2's at first.
    fn new(n: usize) -> Self {
        Self { net: place(n * 97, 1, n % 2 == 1), since: vec![(2, Duration::ZERO)], until: Vec::new() }
    }

    fn route_to(&self, host: u32) -> Change {
        let gateways = &gateways()[usize::from(self.net.addr().is_ipv6())];
        Change { to: self.net, metric: 5, what: What::Set(vec![gateways[host as usize - 2]]) }
    }

    /// Moves it to another host, by a route of its own or, to host 3, by the one that covers all.
    fn change(&mut self, routes: &mut Routes, random: &mut Random) {
        let host = 5 - self.since.last().unwrap().0;
        let covered = host == 3 && random.below(2) == 0;
        let mut change = self.route_to(host);
        if covered {
            change.what = What::Remove;
        }
        let began = now();
        routes.change(&[change]);
        self.until.push(now());
        self.since.push((host, began));
    }

    /// How long after a change a packet that came to `host` at `at` was still sent by what was
    /// before; none if there never was such a route.
    fn lateness(&self, host: u32, at: Duration) -> Option<Duration> {
        let states = self.since.iter().zip(self.until.iter().map(Some).chain([None]));
        let right = states.filter(|((right, since), _)| *right == host && *since <= at);
        right.map(|(_, until)| until.map_or(Duration::ZERO, |until| at.saturating_sub(*until))).min()
    }
}

/// A packet: to which destination, its number, and when it came.
type Packet = (u32, u32, Duration);

/// Collects packets in a host.
struct Collector {
    done: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Packet>>,
}

impl Collector {
    fn start(lab: &Lab, host: u32) -> Self {
        let socket = lab.in_host(host, || UdpSocket::bind(("::", PORT)).unwrap());
        setsockopt(&socket, RcvBufForce, &(64 << 20)).unwrap();
        // The kernel notes when a packet comes: this thread may have to wait for its turn.
        setsockopt(&socket, ReceiveTimestampns, &true).unwrap();
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(0, 20_000)).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let until = done.clone();
        let thread = thread::spawn(move || {
            let mut got = Vec::new();
            loop {
                match receive(&socket) {
                    Some(packet) => got.push(packet),
                    None if until.load(Ordering::Relaxed) => return got,
                    None => {}
                }
            }
        });
        Self { done, thread }
    }

    fn finish(self) -> Vec<Packet> {
        self.done.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn receive(socket: &UdpSocket) -> Option<Packet> {
    let mut bytes = [0; 64];
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!(TimeSpec);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).ok()?;
    let at = message.cmsgs().unwrap().find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
        _ => None,
    });
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    Some((number(0), number(4), at.unwrap()))
}

/// Sends to all destinations in turn, from host 1, until told to stop; gives how many packets each
/// was sent.
fn send(lab: &Lab, destinations: &[IpAddr], done: &AtomicBool) -> u32 {
    let sockets = ["0.0.0.0:0", "[::]:0"].map(|any| lab.in_host(1, || UdpSocket::bind(any).unwrap()));
    let mut rounds = 0u32;
    while !done.load(Ordering::Relaxed) {
        for (n, &to) in (0u32..).zip(destinations) {
            let bytes = [n.to_be_bytes(), rounds.to_be_bytes()].concat();
            let socket = &sockets[usize::from(to.is_ipv6())];
            socket.send_to(&bytes, SocketAddr::new(to, PORT)).unwrap();
        }
        rounds += 1;
        thread::sleep(PAUSE);
    }
    rounds
}

/// Changes routes at full speed; the watched ones evenly among all others.
fn flap(routes: &mut Routes, watched: &mut [Watched], history: &mut History) -> Duration {
    let mut random = Random::new(2);
    let start = Instant::now();
    let mut made = 0;
    for round in 0..CHANGES / AT_ONCE + 1 {
        let some: Vec<_> = (0..AT_ONCE).map(|_| history.next()).collect();
        made += routes.change(&some);
        if round % 3 == 0 {
            let one = random.below(watched.len());
            watched[one].change(routes, &mut random);
        }
    }
    assert!(made >= CHANGES, "only {made} changes");
    start.elapsed()
}

/// One storm. Gives the longest time that a change of a watched route took to show.
fn storm(lab: &Lab, seed: u64) -> Duration {
    let mut routes = lab.in_router(Routes::open);
    let mut watched: Vec<Watched> = (0..WATCHED).map(Watched::new).collect();
    let untouched: Vec<IpNet> = (0..UNTOUCHED).map(|n| place(n * 211 + 5, 2, n % 2 == 1)).collect();
    let mut setup: Vec<Change> = watched.iter().map(|watched| watched.route_to(2)).collect();
    for (cover, host) in [("20.0.0.0/8", 3), ("2001:db8::/32", 3)] {
        setup.push(Change {
            to: cover.parse().unwrap(),
            ..watched[usize::from(cover.contains(':'))].route_to(host)
        });
    }
    for (n, net) in untouched.iter().enumerate() {
        setup.push(Change { to: *net, ..watched[n % 2].route_to(2) });
    }
    assert_eq!(routes.change(&setup), setup.len());
    agree(lab);

    let prefixes: Vec<IpNet> = (0..4096).map(|n| place(n, 0, n % 4 == 3)).collect();
    let mut history = History::new(seed, prefixes, gateways());
    let nets: Vec<IpNet> = watched.iter().map(|watched| watched.net).chain(untouched).collect();
    let destinations: Vec<IpAddr> = nets.iter().map(|net| net.hosts().nth(3).unwrap()).collect();
    let collectors = [2, 3].map(|host| Collector::start(lab, host));
    let done = AtomicBool::new(false);
    let (sent, took) = thread::scope(|scope| {
        let sender = scope.spawn(|| send(lab, &destinations, &done));
        thread::sleep(SETTLING);
        let took = flap(&mut routes, &mut watched, &mut history);
        thread::sleep(2 * SETTLING);
        done.store(true, Ordering::Relaxed);
        (sender.join().unwrap(), took)
    });
    thread::sleep(SETTLING);
    let got = collectors.map(Collector::finish);
    println!("{CHANGES} changes took {took:.1?}; {sent} packets to each of {} prefixes", nets.len());
    agree(lab);
    nothing_lost(&got, sent);
    let packets = (2..).zip(&got).flat_map(|(host, got)| got.iter().map(move |packet| (host, packet)));
    let watched_ones = packets.filter(|(_, packet)| (packet.0 as usize) < WATCHED);
    let late = watched_ones.map(|(host, (to, _, at))| {
        watched[*to as usize].lateness(host, *at).expect("a way that there never was")
    });
    late.max().unwrap()
}

/// That every packet came to one host, once; and those to untouched prefixes to host 2.
fn nothing_lost(got: &[Vec<Packet>; 2], sent: u32) {
    let mut times = vec![vec![0u8; sent as usize]; WATCHED + UNTOUCHED];
    for (to, number, _) in got.iter().flatten() {
        times[*to as usize][*number as usize] += 1;
    }
    for (to, times) in times.iter().enumerate() {
        let wrong = times.iter().filter(|times| **times != 1).count();
        assert_eq!(wrong, 0, "destination {to}: of {sent} packets, lost or doubled");
    }
    let astray = got[1].iter().filter(|(to, ..)| *to as usize >= WATCHED).count();
    assert_eq!(astray, 0, "packets to untouched prefixes came elsewhere");
}

/// Waits until kernel, RIB and FIB agree.
fn agree(lab: &Lab) {
    let config = lab.dir.path().join("sweepd.toml");
    let command = format!("{SWEEPD} show routes --diff --config {}", config.display());
    wait_for("kernel, RIB and FIB agree", || sh(&command).text == "no differences\n");
}

#[test]
fn a_hundred_thousand_changes_at_full_speed_mislead_no_packet() {
    needs_lab!();
    flaps(false);
}

#[test]
fn nor_do_they_where_packets_are_forwarded_in_the_driver() {
    needs_lab!();
    flaps(true);
}

/// Storms until one shows in time; with `express` where the driver forwards.
fn flaps(express: bool) {
    let lab = Lab::alone(3);
    (1..=3).filter(|_| express).for_each(|host| express::take_frames(&lab, host, true));
    for host in [2, 3] {
        lab.host(host, "ip route add local 20.0.0.0/8 dev lo").ok();
        lab.host(host, "ip -6 route add local 2001:db8::/32 dev lo").ok();
    }
    let router = lab.start();
    // The gateways are known; how one is found is measured elsewhere.
    for gateway in gateways().iter().flatten() {
        wait_for("gateways answer", || lab.reaches(1, &gateway.to_string()));
    }
    if express {
        express::is_on(&lab, &router, 3);
    }
    // On a machine that does much else at the moment a thread may have to wait for its turn.
    let mut tries = (0..3).map(|seed| {
        let late = storm(&lab, seed);
        println!("the last packet by a way that had gone, {late:.1?} after its end");
        late
    });
    assert!(tries.any(|late| late <= SETTLING), "not within {SETTLING:?}");
    drop(tries);
    let by_express: u64 = router.counters().snapshot().iter().map(|port| port.express).sum();
    assert_eq!(by_express > router.verdict("forwarded") / 2, express, "{by_express}");
    router.stop();
}
