//! The express program, run by the kernel over random frames, against the worker, which is the
//! reference: what the program forwards the worker forwards as well, by the same port and with the same
//! bytes; and what is plain the program does forward.
//!
//! `SWEEPD_CASES` sets the number of frames, `SWEEPD_SEED` where they begin; a failure names both.

#![cfg(target_os = "linux")]

mod common;
#[path = "common/frames.rs"]
mod frames;
#[path = "common/packets.rs"]
mod packets;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, OwnedFd},
};

use common::{PortSpec, Tube, host_mac, port_mac};
use frames::{Random, frame, number, repair};
use netmap::device::xdp::bpf::{self, Map, MapType, TestRun};
use packets::ethernet;
use sweepd::{
    express::{Express, Length},
    forward::verdict::Verdict,
    tables::{self, Action, NextHopId, PortId, ReversePath, fixed, shown::Counts},
};

/// XDP results.
const PASS: u32 = 2;
const REDIRECT: u32 = 4;
/// The loopback: some interface that is always there. Nothing is sent in a test run.
const INTERFACE: u32 = 1;
const PORTS: usize = 3;

/// A router whose tables the program reads.
struct Router {
    tube: Tube,
    express: Express,
    programs: Vec<OwnedFd>,
    /// Prefixes to draw destinations from.
    prefixes: Vec<(IpAddr, u8)>,
}

/// Whether this process may load programs; says so when not.
fn allowed() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("skipped: needs root");
    }
    root
}

impl Router {
    fn new(random: &mut Random, length: Length) -> Self {
        let addresses =
            |k: usize| [format!("10.0.{k}.1/24"), format!("2001:db8:{k}::1/64"), format!("fe80::{k}:1/64")];
        let specs: Vec<PortSpec> =
            (0..PORTS).map(|k| PortSpec::new(&addresses(k).each_ref().map(String::as_str))).collect();
        let mut tube = Tube::new(&specs, 1);
        tube.change_ports(|_, port| port.express = tables::Express::Auto);
        let express = Express::new().unwrap();
        // No queue has a socket: what goes to a worker comes out as "pass".
        let sockets = Map::<4>::new("no_sockets", MapType::Sockets, 4, 1, 0).unwrap();
        let programs = (0..PORTS)
            .map(|port| express.load_as(length, port as PortId, sockets.as_fd()).unwrap())
            .collect();
        for port in 0..PORTS {
            express.set_device(port as PortId, Some(INTERFACE)).unwrap();
        }
        let mut this = Self { tube, express, programs, prefixes: Vec::new() };
        this.route(random);
        this.publish();
        this
    }

    /// Routes of every length to hosts, groups, and what is no host.
    fn route(&mut self, random: &mut Random) {
        let routes = &mut self.tube.routes;
        let mut hops: Vec<NextHopId> = Vec::new();
        for port in 0..PORTS {
            for (host, mtu) in [(9, 1500), (8, 1280), (7, 596), (3, 1500)] {
                hops.push(routes.hop(port, host, mtu));
            }
        }
        for _ in 0..4 {
            let members: Vec<NextHopId> = (0..2 + random.below(5)).map(|_| *random.of(&hops)).collect();
            let group = std::array::from_fn(|bucket| members[bucket * members.len() / 256]);
            hops.push(routes.group(group));
        }
        hops.push(routes.action(Action::Resolve, 1, Some([10, 0, 1, 77].into())));
        hops.extend([fixed::BLACKHOLE, fixed::UNREACHABLE, fixed::HOST]);
        for prefix in ["192.0.2.0/24", "203.0.113.0/24", "198.51.100.0/24", "2001:db8:beef::/48"] {
            routes.add(prefix, *random.of(&hops));
        }
        for n in 0..6000u32 {
            // Some close together, so that chunks, /24s and /64s are divided.
            let near = !n.is_multiple_of(3);
            let four = random.one_in(2);
            let (address, length): (IpAddr, u8) = if four {
                let length = 8 + random.below(25) as u8;
                let place =
                    if near { 20 << 24 | random.next() as u32 & 0xfffff } else { random.next() as u32 };
                let place = 1 << 24 | place & 0x5fff_ffff;
                (Ipv4Addr::from(place & u32::MAX << (32 - length)).into(), length)
            } else {
                let length = 16 + random.below(113) as u8;
                let far = u128::from(random.next()) << 64 | u128::from(random.next());
                let place = if near {
                    0x2a00_1234 << 96 | far & (0xf << 92 | 0xf3 << 64 | 0xff)
                } else {
                    far >> 3 | 1 << 125
                };
                (Ipv6Addr::from(place & u128::MAX << (128 - length)).into(), length)
            };
            routes.add(&format!("{address}/{length}"), *random.of(&hops));
            self.prefixes.push((address, length));
        }
    }

    /// Publishes the routes, and what the program is to see of them.
    fn publish(&mut self) {
        self.tube.publish();
        let express = &self.express;
        // The idle one comes first.
        let mut instance = 1 - self.tube.publisher.live();
        self.tube.publisher.publish(|tables| {
            if tables.shown.is_none() {
                tables.move_to(&express.house(instance)).unwrap();
            }
            instance = 1 - instance;
            for id in 0..sweepd::tables::MAX_NEXT_HOPS {
                tables.show_group_of(id as u16);
            }
            for place in 0..tables.groups.len() {
                tables.show_group(place as u16);
            }
            tables.show();
        });
        self.express.activate(self.tube.publisher.live());
    }

    fn run(&self, port: usize, frame: &[u8]) -> TestRun {
        bpf::test_run(self.programs[port].as_fd(), frame).unwrap()
    }

    fn counts(&self) -> [Counts; PORTS] {
        std::array::from_fn(|port| self.express.counts(port as PortId))
    }

    /// A destination that some prefix is near to.
    fn destination(&self, random: &mut Random) -> IpAddr {
        match *random.of(&self.prefixes) {
            (IpAddr::V4(address), length) => {
                let rest = (u64::from(u32::MAX) >> length) as u32;
                Ipv4Addr::from(u32::from(address) ^ random.next() as u32 & (rest << 1 | 1)).into()
            }
            (IpAddr::V6(address), length) => {
                let rest = u128::MAX.checked_shr(length.into()).unwrap_or(0);
                let bits = u128::from(random.next()) << 64 | u128::from(random.next());
                Ipv6Addr::from(address.to_bits() ^ bits & (rest << 1 | 1)).into()
            }
        }
    }

    /// A frame with nothing odd about it, and how long its packet is.
    fn plain(&self, random: &mut Random, port: usize) -> (Vec<u8>, IpAddr, u16) {
        let destination = self.destination(random);
        let most = if random.one_in(4) { 1461 } else { 80 };
        let payload = random.below(most);
        let payload = random.bytes(payload);
        let (packet, kind) = match destination {
            IpAddr::V4(to) => {
                let mut packet = vec![0x45, random.next() as u8];
                packet.extend((20 + payload.len() as u16).to_be_bytes());
                packet.extend(random.bytes(2));
                packet.extend([*random.of(&[0, 0, 0x40, 0x20]), *random.of(&[0, 0, 0, 7])]);
                packet.extend([2 + random.below(254) as u8, *random.of(&[1, 6, 17, 47]), 0, 0]);
                packet.extend([172, 16, random.next() as u8, random.next() as u8]);
                packet.extend(to.octets());
                repair(&mut packet);
                packet.extend(payload);
                (packet, 0x0800)
            }
            IpAddr::V6(to) => {
                let mut packet = random.bytes(4);
                packet[0] = 0x60 | packet[0] & 15;
                packet.extend((payload.len() as u16).to_be_bytes());
                packet.extend([*random.of(&[0, 6, 17, 43, 44, 58]), 2 + random.below(254) as u8]);
                packet.extend([0xfd, 0, 0, 7, 0, 0, 0, random.next() as u8]);
                packet.extend(random.bytes(8));
                packet.extend(to.octets());
                packet.extend(payload);
                (packet, 0x86dd)
            }
        };
        let mut frame = ethernet(port_mac(port), host_mac(port, 4), kind, &packet);
        if random.one_in(4) {
            frame.resize((frame.len() + random.below(40)).min(1514), 0x5a);
        }
        (frame, destination, packet.len() as u16)
    }

    /// Whether a plain packet is simply sent on, by the tables that workers have.
    fn is_sent(&self, to: IpAddr, length: u16, source: &[u8]) -> bool {
        let tables = self.tube.publisher.tables();
        let (id, watched) = match to {
            IpAddr::V4(to) => {
                let source = u32::from_be_bytes(source[12..16].try_into().unwrap());
                (tables.fib4.lookup(to.into()), tables.local.may_contain4(source))
            }
            IpAddr::V6(to) => {
                let source = u128::from_be_bytes(source[8..24].try_into().unwrap());
                (tables.fib6.lookup(to.to_bits()), tables.local.may_contain6(source))
            }
        };
        let hash = || match to {
            IpAddr::V4(_) => sweepd::forward::flow_hash::of_ipv4(tables.hash_seed, source),
            IpAddr::V6(_) => sweepd::forward::flow_hash::of_ipv6(tables.hash_seed, source),
        };
        !watched && length <= tables.next_hop(tables.member(id, hash)).max_len
    }
}

/// Sends the frames that the program has forwarded through the worker, and compares.
fn compare(
    router: &mut Router,
    forwarded: &[(usize, Vec<u8>)],
    mut out: Vec<(usize, Vec<u8>)>,
    failed: &str,
) {
    let before = router.tube.count(Verdict::Forwarded);
    for (port, frame) in forwarded {
        router.tube.inject_on(*port, 0, frame);
    }
    router.tube.settle();
    let mut theirs: Vec<(usize, Vec<u8>)> = Vec::new();
    for port in 0..PORTS {
        theirs.extend(router.tube.arrived(port).into_iter().map(|frame| (port, frame)));
    }
    theirs.sort();
    out.sort();
    let verdicts = router.tube.count(Verdict::Forwarded) - before;
    assert!(
        theirs == out && verdicts == forwarded.len() as u64,
        "{failed}: of {} frames the worker forwards {verdicts}\nin {forwarded:02x?}\nprogram {out:02x?}\nworker {theirs:02x?}",
        forwarded.len(),
    );
}

#[test]
fn what_the_program_forwards_the_worker_forwards_alike() {
    if !allowed() {
        return;
    }
    for length in [Length::Asked, Length::Counted] {
        let mut random = Random(number("SWEEPD_SEED", 1));
        let router = Router::new(&mut random, length);
        forward_alike(router, random);
    }
}

fn forward_alike(mut router: Router, mut random: Random) {
    let (cases, seed) = (number("SWEEPD_CASES", 100_000), number("SWEEPD_SEED", 1));
    let (mut done, mut express, mut plain) = (0, 0, 0);
    while done < cases {
        let (mut forwarded, mut out) = (Vec::new(), Vec::new());
        for _ in 0..32 {
            done += 1;
            let port = random.below(2);
            let is_plain = random.one_in(2);
            let (frame, must) = if is_plain {
                let (frame, to, length) = router.plain(&mut random, port);
                let must = router.is_sent(to, length, &frame[14..]);
                (frame, Some(must))
            } else {
                (frame(&mut random, port), None)
            };
            if frame.len() < 14 {
                // The kernel runs no program over those.
                continue;
            }
            let before = router.counts();
            let ran = router.run(port, &frame);
            let failed = format!("SWEEPD_SEED={seed} SWEEPD_CASES={done}");
            assert!(
                must.is_none_or(|must| must == (ran.result == REDIRECT)),
                "{failed}: {must:?} {frame:02x?}"
            );
            plain += u64::from(must == Some(true));
            let counted = differences(&before, &router.counts());
            if ran.result == REDIRECT {
                express += 1;
                let to = sent_by(&counted, port, frame.len(), ran.frame.len());
                out.push((to.unwrap_or_else(|| panic!("{failed}: {counted:?}")), ran.frame));
                forwarded.push((port, frame));
            } else {
                assert_eq!((ran.result, &ran.frame), (PASS, &frame), "{failed}");
                assert_eq!(counted, [Counts::default(); PORTS], "{failed}");
            }
        }
        compare(&mut router, &forwarded, out, &format!("SWEEPD_SEED={seed} SWEEPD_CASES={done}"));
    }
    println!("{done} frames, {express} forwarded by the program, {plain} of which had to be");
    assert!(plain > cases / 5 && express > plain, "{express} {plain}");
    let used = router.express.take_used();
    assert!(used.len() >= 12 && used.iter().all(|id| *id >= fixed::FIRST_FREE), "{used:?}");
    assert!(router.express.take_used().is_empty());
}

fn differences(before: &[Counts; PORTS], after: &[Counts; PORTS]) -> [Counts; PORTS] {
    std::array::from_fn(|port| Counts {
        rx_packets: after[port].rx_packets - before[port].rx_packets,
        rx_bytes: after[port].rx_bytes - before[port].rx_bytes,
        tx_packets: after[port].tx_packets - before[port].tx_packets,
        tx_bytes: after[port].tx_bytes - before[port].tx_bytes,
    })
}

/// Which port sent a frame, by the counts; none when these do not fit.
fn sent_by(counted: &[Counts; PORTS], port: usize, came: usize, left: usize) -> Option<usize> {
    let to = counted.iter().position(|counts| counts.tx_packets == 1)?;
    let mut fit = [Counts::default(); PORTS];
    (fit[port].rx_packets, fit[port].rx_bytes) = (1, came as u64);
    (fit[to].tx_packets, fit[to].tx_bytes) = (1, left as u64);
    (fit == *counted).then_some(to)
}

#[test]
fn stages_that_must_see_every_packet_keep_it_from_the_program() {
    if !allowed() {
        return;
    }
    let mut random = Random(7);
    let mut router = Router::new(&mut random, Length::Asked);
    let frame = loop {
        let (frame, to, length) = router.plain(&mut random, 0);
        if router.is_sent(to, length, &frame[14..]) {
            break frame;
        }
    };
    assert_eq!(router.run(0, &frame).result, REDIRECT);
    type Change = fn(&mut sweepd::tables::PortTable);
    let changes: [(&str, Change); 3] = [
        ("off", |port| port.express = tables::Express::Off),
        ("urpf", |port| port.reverse_path = ReversePath::Loose),
        ("redirects", |port| port.redirects = true),
    ];
    for (obstacle, change) in changes {
        router.tube.change_ports(|_, port| {
            *port = sweepd::tables::PortTable {
                express: tables::Express::On,
                reverse_path: ReversePath::Off,
                redirects: false,
                ..port.clone()
            };
            change(port);
        });
        router.publish();
        assert_eq!(router.tube.publisher.tables().obstacle(0).unwrap().text(), obstacle);
        assert_eq!(router.run(0, &frame).result, PASS, "{obstacle}");
    }
    router.tube.change_ports(|_, port| (port.express, port.redirects) = (tables::Express::On, false));
    router.publish();
    assert_eq!(router.run(0, &frame).result, REDIRECT);
    router.tube.filter(Vec::new());
    router.publish();
    assert_eq!(router.tube.publisher.tables().obstacle(0).unwrap().text(), "acl");
    assert_eq!(router.run(0, &frame).result, PASS);
}

#[test]
fn what_leaves_by_an_interface_that_takes_no_frames_goes_to_the_worker() {
    if !allowed() {
        return;
    }
    let mut random = Random(9);
    let router = Router::new(&mut random, Length::Asked);
    for port in 0..PORTS {
        router.express.set_device(port as PortId, None).unwrap();
    }
    for _ in 0..100 {
        let (frame, ..) = router.plain(&mut random, 0);
        let ran = router.run(0, &frame);
        assert_eq!((ran.result, ran.frame), (PASS, frame));
    }
    assert_eq!(router.counts(), [Counts::default(); PORTS]);
}
