//! `sweepd-bench acl`: what access rules cost, from none to ten thousand, in the worker's loop and
//! by themselves, beside a list that is gone through from the top.

use std::{hint::black_box, io, net::IpAddr, sync::Arc, time::Instant};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sweepd::{
    forward::burst::Burst,
    tables::{
        acl::{self, Acl, Compiled, Keys, Rule, TOGETHER},
        prefixes::{Prefixes4, Prefixes6},
        synthetic::{self, Random},
    },
};

use crate::{
    cycles::{self, Spread},
    rig::{Headers, NEXT_HOPS, Rig},
    traffic::{self, Frame},
};

/// Numbers of rules.
const RULES: [usize; 5] = [0, 10, 100, 1000, 10_000];
/// Packets in a sweep.
const SWEEP: u32 = 256;
/// Timed sweeps, after a tenth as many to warm up.
const ROUNDS: usize = 1000;
/// Flows of the random trace and of the hot one.
const TRACES: [(&str, usize); 2] = [("random", 100_000), ("hot", 64)];
/// Routes of each family.
const ROUTES: usize = 1000;
/// Packets that the list is gone through for, in all: it is slow.
const LISTED: usize = 512;

/// Runs the benchmark and prints its table.
///
/// # Errors
/// When there is not enough memory, or the instructions cannot be counted.
pub fn run() -> io::Result<()> {
    println!("access rules; cycles (TSC) per packet: median (10th to 90th percentile); sweeps of {SWEEP}\n");
    println!(
        "{:>6} {:>7} {:>7}  {:>20} {:>13} {:>6}  {:>16}  {:>16}  {:>9} {:>8}",
        "family",
        "trace",
        "rules",
        "loop",
        "instructions",
        "locked",
        "rules alone",
        "plain list",
        "build ms",
        "MB"
    );
    let routes4 = synthetic::ipv4(ROUTES, NEXT_HOPS, 42);
    let routes6 = synthetic::ipv6(ROUTES, NEXT_HOPS, 42);
    let mut rig = Rig::new(&routes4, &routes6)?;
    for v4 in [true, false] {
        for n in RULES {
            let rules = rules(n, v4, &routes4, &routes6);
            let start = Instant::now();
            let compiled = Compiled::new(rules.clone()).map_err(io::Error::other)?;
            let built = start.elapsed();
            let compiled = Arc::new(compiled);
            let acl = (n > 0).then(|| Arc::new(Acl::new(compiled.clone(), 1)));
            rig.worker.reader.offline();
            rig.publisher
                .as_mut()
                .expect("this rig has no keeper")
                .publish(|tables| tables.acl.clone_from(&acl));
            for (name, flows) in TRACES {
                let packets = packets(&rules, flows, v4, &routes4, &routes6);
                let frames = packets.iter().map(Packet::frame).collect();
                rig.set_flows(frames, Headers::Cached);
                let (whole, counts) = (in_loop(&mut rig), rig.count_sweep(SWEEP)?);
                println!(
                    "{:>6} {name:>7} {n:>7}  {:>20} {:>13.1} {:>6}  {:>16}  {:>16}  {:>9.1} {:>8.2}",
                    if v4 { "IPv4" } else { "IPv6" },
                    whole.to_string(),
                    counts.instructions as f64 / f64::from(SWEEP),
                    counts.locked + counts.fences,
                    alone(&compiled, &packets).to_string(),
                    listed(&rules, &packets).to_string(),
                    built.as_secs_f64() * 1e3,
                    compiled.bytes() as f64 / 1e6,
                );
            }
        }
    }
    Ok(())
}

/// A packet of UDP.
struct Packet {
    source: IpAddr,
    destination: IpAddr,
    ports: u32,
}

impl Packet {
    fn frame(&self) -> Frame {
        match (self.source, self.destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => traffic::frame4(s.into(), d.into(), self.ports),
            (IpAddr::V6(s), IpAddr::V6(d)) => traffic::frame6(s.into(), d.into(), self.ports),
            _ => unreachable!("both are of one family"),
        }
    }
}

/// Rules as a border router has them: most name a host or a network inside and one outside, some
/// only one of them; services by port, ranges above 1023, or whole protocols. All permit, so that
/// what is measured leaves.
fn rules(n: usize, v4: bool, routes4: &Prefixes4, routes6: &Prefixes6) -> Vec<Rule> {
    let mut random = Random::new(7);
    let outside4 = synthetic::addresses(routes4, n, &mut random);
    let outside6 = synthetic::addresses(routes6, n, &mut random);
    (0..n)
        .map(|k| {
            let (from, to): (IpNet, IpNet) = if v4 {
                let length = [16, 20, 24, 24, 28, 32, 32][random.below(7)];
                let other = [16, 24, 24, 32, 32][random.below(5)];
                (net4(0x0a00_0000 | random.below(1 << 24) as u32, length), net4(outside4[k], other))
            } else {
                let length = [32, 48, 56, 64, 64, 128][random.below(6)];
                let other = [32, 48, 64, 128][random.below(4)];
                (net6(0xfd00_u128 << 112 | u128::from(random.bits()) << 48, length), net6(outside6[k], other))
            };
            let protocol = [Some(17), Some(17), Some(6), Some(6), None][random.below(5)];
            let service = [22u16, 25, 53, 80, 123, 443, 8080][random.below(7)];
            let to_ports = match (protocol, random.below(4)) {
                (None, _) | (_, 0) => vec![],
                (_, 1) => vec![(1024, 65535)],
                _ => vec![(service, service)],
            };
            // None leaves both open: it would fit nearly everything, and hide the rules behind it.
            let open = [random.below(4) == 0, random.below(4) == 0];
            let source_is_open = random.below(2) == 0;
            Rule {
                from: if source_is_open && open[0] { vec![] } else { vec![from] },
                to: if !source_is_open && open[1] { vec![] } else { vec![to] },
                protocol,
                to_ports,
                ..Rule::of_all("", false)
            }
        })
        .collect()
}

fn net4(address: u32, length: u8) -> IpNet {
    Ipv4Net::new(address.into(), length).expect("at most 32").trunc().into()
}

fn net6(address: u128, length: u8) -> IpNet {
    Ipv6Net::new(address.into(), length).expect("at most 128").trunc().into()
}

/// Packets: every other one is such as a rule fits, chosen at random; the others come from and go
/// to anywhere.
fn packets(rules: &[Rule], n: usize, v4: bool, routes4: &Prefixes4, routes6: &Prefixes6) -> Vec<Packet> {
    let mut random = Random::new(8);
    let outside4 = synthetic::addresses(routes4, n, &mut random);
    let outside6 = synthetic::addresses(routes6, n, &mut random);
    let within = |net: &IpNet, random: &mut Random| -> IpAddr {
        match net {
            IpNet::V4(net) => {
                (net.network().to_bits() | random.bits() as u32 & net.hostmask().to_bits()).into_v4()
            }
            IpNet::V6(net) => {
                let bits = u128::from(random.bits()) << 64 | u128::from(random.bits());
                IpAddr::V6((net.network().to_bits() | bits & net.hostmask().to_bits()).into())
            }
        }
    };
    (0..n)
        .map(|k| {
            let (mut source, mut destination): (IpAddr, IpAddr) = if v4 {
                ((0x0a00_0000 | random.below(1 << 24) as u32).into_v4(), outside4[k].into_v4())
            } else {
                let inside = 0xfd00_u128 << 112 | u128::from(random.bits()) << 48 | 1;
                (IpAddr::V6(inside.into()), IpAddr::V6(outside6[k].into()))
            };
            let mut ports = random.bits() as u32;
            if k % 2 == 0 && !rules.is_empty() {
                let rule = &rules[random.below(rules.len())];
                source = rule.from.first().map_or(source, |net| within(net, &mut random));
                destination = rule.to.first().map_or(destination, |net| within(net, &mut random));
                ports = ports & 0xffff_0000 | u32::from(rule.to_ports.first().map_or(ports as u16, |r| r.0));
            }
            Packet { source, destination, ports }
        })
        .collect()
}

trait IntoV4 {
    fn into_v4(self) -> IpAddr;
}

impl IntoV4 for u32 {
    fn into_v4(self) -> IpAddr {
        IpAddr::V4(self.into())
    }
}

/// The whole loop, cycles per packet.
fn in_loop(rig: &mut Rig) -> Spread {
    let mut burst = Burst::default();
    let mut values = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS + ROUNDS / 10 {
        rig.refill(SWEEP);
        let start = cycles::now();
        let swept = rig.worker.sweep(&mut burst);
        let took = cycles::now() - start;
        assert_eq!(swept.packets, SWEEP);
        if round >= ROUNDS / 10 {
            values.push(took as f64 / f64::from(SWEEP));
        }
    }
    Spread::of(values)
}

/// The classifier alone, in bursts, cycles per packet.
fn alone(compiled: &Compiled, packets: &[Packet]) -> Spread {
    let mut values = Vec::new();
    for _ in 0..(100_000 / packets.len()).max(2) {
        for burst in packets.chunks(TOGETHER) {
            let (mut keys4, mut keys6, mut found) = (Keys::default(), Keys::default(), [0; TOGETHER]);
            let mut is_v4 = true;
            for (k, packet) in burst.iter().enumerate() {
                match acl::Key::new(packet.source, packet.destination, 17, packet.ports, 0) {
                    acl::Key::V4(key) => keys4.set(k, key),
                    acl::Key::V6(key) => {
                        keys6.set(k, key);
                        is_v4 = false;
                    }
                }
            }
            let start = cycles::now();
            if is_v4 {
                compiled.search4(black_box(&keys4), burst.len(), black_box(&mut found));
            } else {
                compiled.search6(black_box(&keys6), burst.len(), black_box(&mut found));
            }
            values.push((cycles::now() - start) as f64 / burst.len() as f64);
        }
    }
    Spread::of(values)
}

/// An entry of the plain list: each address with its mask, the ports and the protocol.
struct Line {
    source: (u128, u128),
    destination: (u128, u128),
    ports: (u16, u16),
    protocol: Option<u8>,
}

/// Going through the list from the top, cycles per packet.
fn listed(rules: &[Rule], packets: &[Packet]) -> Spread {
    let net = |nets: &[IpNet]| match nets.first() {
        None => (0, 0),
        Some(IpNet::V4(net)) => (net.network().to_bits().into(), net.netmask().to_bits().into()),
        Some(IpNet::V6(net)) => (net.network().to_bits(), net.netmask().to_bits()),
    };
    let lines: Vec<Line> = rules
        .iter()
        .map(|rule| Line {
            source: net(&rule.from),
            destination: net(&rule.to),
            ports: rule.to_ports.first().copied().unwrap_or((0, u16::MAX)),
            protocol: rule.protocol,
        })
        .collect();
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    let values = packets.iter().take(LISTED).map(|packet| {
        let (source, destination) = (number(packet.source), number(packet.destination));
        let port = packet.ports as u16;
        let start = cycles::now();
        black_box(lines.iter().position(|line| {
            source & line.source.1 == line.source.0
                && destination & line.destination.1 == line.destination.0
                && (line.ports.0..=line.ports.1).contains(&port)
                && line.protocol.is_none_or(|protocol| protocol == 17)
        }));
        (cycles::now() - start) as f64
    });
    Spread::of(values.collect())
}
