//! Random frames through the real router and through a slow, plain reference: the same verdict, the
//! same port, the same bytes.
//!
//! `SWEEPD_CASES` sets the number of frames, `SWEEPD_SEED` where they begin; a failure names both.

mod common;
#[path = "common/packets.rs"]
mod packets;
#[path = "common/reference.rs"]
mod reference;

use std::collections::BTreeMap;

use common::{PortSpec, Tube, host_mac, port_mac};
use packets::{checksum, ethernet};
use reference::{End, Port, Reference, To};
use sweepd::forward::messages::ToWorker;
use sweepd::tables::fixed;

/// Numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

/// The same router twice; the real one with so many rings to a port, and as many workers.
fn both(rings: u32) -> (Tube, Reference) {
    let addresses = |k: usize| {
        [
            format!("10.0.{k}.1/24"),
            format!("10.9.{k}.0/31"),
            format!("2001:db8:{k}::1/64"),
            format!("fe80::{k}:1/64"),
        ]
    };
    let specs =
        [0, 1].map(|k| PortSpec::new(&addresses(k).each_ref().map(String::as_str)).rings(rings).host_rings());
    let mut tube = Tube::new(&specs, rings as usize);
    let ports = [0, 1].map(|k| Port { mac: port_mac(k), addresses: specs[k].addresses.clone() });
    let mut routes = Vec::new();
    for (port, spec) in specs.iter().enumerate() {
        let nets =
            spec.addresses.iter().map(ipnet::IpNet::trunc).filter(|net| net.to_string() != "fe80::/64");
        routes.extend(nets.map(|net| (net, To::Link { port })));
    }
    for (prefixes, port, host, mtu) in [
        (["192.0.2.0/24", "2001:db8:beef::/48"], 0, 9, 1500),
        (["198.51.100.0/24", "2001:db8:cafe::/48"], 1, 9, 1500),
        (["203.0.113.0/24", "2001:db8:dead::/48"], 1, 8, 1280),
        (["203.0.113.128/25", "2001:db8:dead:1::/64"], 0, 7, 596),
        (["10.0.0.9/32", "2001:db8:0::9/128"], 0, 9, 1500),
        (["198.51.100.128/32", "2001:db8:cafe::128/128"], 1, 3, 1500),
    ] {
        let id = tube.routes.hop(port, host, mtu);
        for prefix in prefixes {
            tube.routes.add(prefix, id);
            let next = To::Next { port, mac: host_mac(port, host), mtu: mtu.into() };
            routes.push((prefix.parse().unwrap(), next));
        }
    }
    for (prefixes, id, to) in [
        (["8.1.0.0/16", "3fff:1::/32"], fixed::UNREACHABLE, To::Unreachable),
        (["8.2.0.0/16", "3fff:2::/32"], fixed::PROHIBIT, To::Prohibit),
        (["8.3.0.0/16", "3fff:3::/32"], fixed::BLACKHOLE, To::Blackhole),
        (["8.4.0.0/16", "3fff:4::/32"], fixed::HOST, To::Host),
    ] {
        for prefix in prefixes {
            tube.routes.add(prefix, id);
            routes.push((prefix.parse().unwrap(), to));
        }
    }
    tube.publish();
    tube.limit_errors(u32::MAX, u32::MAX);
    (tube, Reference { ports: ports.to_vec(), routes })
}

const ADDRESSES4: &[[u8; 4]] = &[
    [192, 0, 2, 7],
    [198, 51, 100, 3],
    [198, 51, 100, 128],
    [203, 0, 113, 5],
    [203, 0, 113, 200],
    [10, 0, 0, 9],
    [10, 0, 0, 1],
    [10, 0, 1, 1],
    [10, 0, 1, 77],
    [10, 0, 0, 255],
    [10, 0, 1, 255],
    [10, 0, 1, 0],
    [10, 9, 0, 0],
    [10, 9, 0, 1],
    [10, 9, 1, 1],
    [0, 0, 0, 0],
    [0, 1, 2, 3],
    [127, 0, 0, 1],
    [169, 254, 1, 1],
    [224, 0, 0, 5],
    [239, 1, 1, 1],
    [240, 0, 0, 1],
    [255, 255, 255, 255],
    [8, 1, 1, 1],
    [8, 2, 2, 2],
    [8, 3, 3, 3],
    [8, 4, 4, 4],
    [8, 8, 8, 8],
];

const ADDRESSES6: &[&str] = &[
    "2001:db8:beef::7",
    "2001:db8:cafe::3",
    "2001:db8:cafe::128",
    "2001:db8:dead::5",
    "2001:db8:dead:1::5",
    "2001:db8:0::9",
    "2001:db8:0::1",
    "2001:db8:1::1",
    "2001:db8:1::77",
    "2001:db8:0::",
    "::",
    "::1",
    "::5",
    "::ffff:192.0.2.7",
    "fe80::9",
    "fe80::0:1",
    "fe80::1:1",
    "febf::1",
    "fec0::1",
    "fd00::1",
    "ff00::1",
    "ff01::1",
    "ff02::1",
    "ff05::2",
    "ff0e::9",
    "3fff:1::1",
    "3fff:2::1",
    "3fff:3::1",
    "3fff:4::1",
    "3fff:8::1",
];

const OPTIONS: &[&[u8]] = &[
    &[1, 1, 1, 1],
    &[0, 0, 0, 0],
    &[148, 4, 0, 0],
    &[131, 7, 4, 10, 0, 0, 1, 0],
    &[137, 3, 4, 0],
    &[7, 7, 4, 0, 0, 0, 0, 0],
    &[7, 11, 8, 1, 2, 3, 4, 0, 0, 0, 0, 148, 4, 0, 0, 1],
    &[7, 3, 4, 0],
    &[7, 7, 3, 0],
    &[68, 8, 5, 0, 0, 0, 0, 0],
    &[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    &[68, 12, 5, 3, 10, 0, 1, 1, 0, 0, 0, 0],
    &[68, 8, 9, 0x70, 0, 0, 0, 0],
    &[68, 4, 5, 0xf0],
    &[130, 5, 1, 2, 3, 7, 7, 4, 0, 0, 0, 0],
    &[148, 1, 0, 0],
];

/// A frame that is nearly right, of one of the kinds that rules speak of.
fn frame(random: &mut Random, port: usize) -> Vec<u8> {
    let six = random.one_in(3);
    let mut packet = if six { packet6(random) } else { packet4(random) };
    if random.one_in(4) {
        spoil(random, &mut packet);
    }
    let to = match random.below(24) {
        0 => [0xff; 6],
        1 => [1, 0, 0x5e, 0, 0, 5],
        2 => [0x33, 0x33, 0, 0, 0, 1],
        3 => port_mac(1 - port),
        _ => port_mac(port),
    };
    let from = if random.one_in(20) { [0xff; 6] } else { host_mac(port, random.below(4) as u8) };
    let ethertype = match random.below(40) {
        0 => *random.of(&[0x0806, 0x8100, 0x88a8, 0x88cc, 0x0800, 0x86dd, 0, 46]),
        _ if six => 0x86dd,
        _ => 0x0800,
    };
    let mut frame = ethernet(to, from, ethertype, &packet);
    match random.below(16) {
        0 => frame.truncate(1 + random.below(frame.len())),
        1 | 2 => frame.resize((frame.len() + random.below(40)).min(1514), 0x5a),
        _ => {}
    }
    frame
}

fn length(random: &mut Random) -> usize {
    match random.below(8) {
        0 => random.below(8),
        1 => 520 + random.below(80),
        2 => 1180 + random.below(80),
        3 => 1400 + random.below(15),
        _ => random.below(200),
    }
}

fn packet4(random: &mut Random) -> Vec<u8> {
    let options = match random.below(6) {
        0 => random.of(OPTIONS).to_vec(),
        1 if random.one_in(2) => {
            let words = random.below(11);
            random.bytes(4 * words)
        }
        _ => Vec::new(),
    };
    let header = 20 + options.len();
    let len = length(random);
    let mut payload = random.bytes(len);
    let protocol = *random.of(&[1, 6, 17, 17, 17, 41, 255]);
    if let (1, Some(kind)) = (protocol, payload.first_mut()) {
        *kind = *random.of(&[0, 3, 4, 5, 8, 8, 11, 12, 13, 40, 42]);
    }
    let flags: u16 = match random.below(6) {
        0 => 0x4000,
        1 => 0x2000 | random.below(0x2000) as u16,
        2 => random.below(0x10000) as u16,
        _ => 0,
    };
    let total = (header + payload.len()) as u16;
    let mut packet = vec![0x40 | (header / 4) as u8, random.next() as u8];
    packet.extend(total.to_be_bytes());
    packet.extend(random.bytes(2));
    packet.extend(flags.to_be_bytes());
    packet.extend([*random.of(&[0, 1, 2, 64, 64, 64, 255]), protocol, 0, 0]);
    packet.extend(if random.one_in(3) { *random.of(ADDRESSES4) } else { [192, 0, 2, random.next() as u8] });
    packet.extend(random.of(ADDRESSES4));
    packet.extend(options);
    repair(&mut packet);
    packet.extend(payload);
    packet
}

/// Makes the header's checksum right, as far as there is a header.
fn repair(packet: &mut [u8]) {
    let header = (usize::from(packet[0] & 15) * 4).min(packet.len());
    if header >= 20 {
        packet[10..12].fill(0);
        let sum = checksum(&packet[..header]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

fn packet6(random: &mut Random) -> Vec<u8> {
    let next = *random.of(&[0, 6, 17, 17, 43, 44, 51, 58, 58, 59, 60, 135, 200]);
    let len = length(random);
    let mut payload = random.bytes(len);
    for (at, byte) in payload.iter_mut().enumerate().take(24).filter(|(at, _)| at % 8 < 2) {
        *byte = match (next, at % 8) {
            (58, 0) => *random.of(&[1, 2, 3, 4, 128, 129, 135, 137, 200]),
            (_, 0) => *random.of(&[17, 43, 44, 51, 58, 60]),
            _ => random.below(3) as u8,
        };
    }
    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut packet = random.bytes(4);
    packet[0] = 0x60 | packet[0] & 15;
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, *random.of(&[0, 1, 2, 64, 64, 64, 255])]);
    packet.extend(address(if random.one_in(2) { random.of::<&str>(ADDRESSES6) } else { "2001:db8:beef::7" }));
    packet.extend(address(random.of::<&str>(ADDRESSES6)));
    packet.extend(payload);
    packet
}

/// Changes some bytes, mostly of the header; then mostly repairs the checksum.
fn spoil(random: &mut Random, packet: &mut [u8]) {
    for _ in 0..1 + random.below(3) {
        let at =
            if random.one_in(4) { random.below(packet.len()) } else { random.below(packet.len().min(24)) };
        packet[at] = if random.one_in(2) { packet[at] ^ 1 << random.below(8) } else { random.next() as u8 };
    }
    if packet.len() >= 20 && packet[0] >> 4 == 4 && !random.one_in(4) {
        repair(packet);
    }
}

/// What came of some frames: how many ended with each verdict, and what left where, sorted.
#[derive(Default, PartialEq, Eq, Debug)]
struct Outcome {
    verdicts: BTreeMap<&'static str, u64>,
    out: Vec<(usize, Vec<u8>)>,
    up: Vec<(usize, Vec<u8>)>,
}

fn expected(ends: &[(usize, Vec<u8>, End)]) -> Outcome {
    let mut all = Outcome::default();
    for (port, _, end) in ends {
        *all.verdicts.entry(end.verdict).or_default() += 1;
        all.out.extend(end.out.iter().cloned());
        if end.up {
            all.up.push((*port, end.frame.clone()));
        }
    }
    all.out.sort();
    all.up.sort();
    all
}

/// Sends the frames through the router. A neighbour that some wait for does not answer.
fn routed(
    tube: &mut Tube,
    batch: &[(usize, Vec<u8>, End)],
    before: &mut BTreeMap<&'static str, u64>,
) -> Outcome {
    let rings = tube.peers[0].tx.len();
    for (n, (port, frame, _)) in batch.iter().enumerate() {
        tube.inject_on(*port, n % rings, frame);
    }
    tube.settle();
    if let Some((port, address)) = batch.last().and_then(|(_, _, end)| end.waits_for) {
        for link in &tube.links {
            link.send(ToWorker::Failed { port: port as u16, address });
        }
        tube.settle();
        tube.to_keeper.try_iter().for_each(drop);
    }
    let mut all = Outcome::default();
    for port in 0..2 {
        all.out.extend(tube.arrived(port).into_iter().map(|frame| (port, frame)));
        all.up.extend(tube.arrived_at_host(port).into_iter().map(|frame| (port, frame)));
    }
    all.out.sort();
    all.up.sort();
    let now: BTreeMap<_, _> = tube.verdicts().into_iter().collect();
    for (verdict, n) in &now {
        let new = n - before.get(verdict).unwrap_or(&0);
        if new > 0 {
            all.verdicts.insert(verdict, new);
        }
    }
    *before = now;
    all
}

/// Puts the time that the router has entered where the reference has left it open.
fn take_time(batch: &mut [(usize, Vec<u8>, End)], out: &[(usize, Vec<u8>)]) {
    let Some((_, _, End { out: ours, time_at: Some(at), .. })) = batch.last_mut() else { return };
    let first = ours[0].1.clone();
    // The reference's first frame is the one of its length and identification with that option.
    let same = |frame: &Vec<u8>| {
        frame.len() == first.len() && frame[..24] == first[..24] && frame[26..*at] == first[26..*at]
    };
    if let Some((_, theirs)) = out.iter().find(|(_, frame)| same(frame)) {
        let header = 14 + usize::from(first[14] & 15) * 4;
        let frame = &mut ours[0].1;
        frame[*at..*at + 4].copy_from_slice(&theirs[*at..*at + 4]);
        repair(&mut frame[14..header]);
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

#[test]
fn random_frames_come_out_as_from_the_reference() {
    compare(1);
}

#[test]
fn two_workers_send_what_the_reference_does() {
    compare(2);
}

fn compare(rings: u32) {
    let (cases, seed) = (number("SWEEPD_CASES", 150_000), number("SWEEPD_SEED", rings.into()));
    let (mut tube, reference) = both(rings);
    let (mut random, mut before, mut done) = (Random(seed), BTreeMap::new(), 0);
    while done < cases {
        let mut batch = Vec::new();
        for _ in 0..1 + random.below(16) {
            let port = random.below(2);
            let frame = frame(&mut random, port);
            let end = reference.frame(port, &frame);
            let last = end.waits_for.is_some() || end.time_at.is_some();
            batch.push((port, frame, end));
            if last {
                break;
            }
        }
        done += batch.len() as u64;
        let got = routed(&mut tube, &batch, &mut before);
        take_time(&mut batch, &got.out);
        let wanted = expected(&batch);
        if got != wanted {
            for (port, frame, end) in &batch {
                eprintln!("port {port}: {} -> {}", hex(frame), end.verdict);
            }
            let only = |a: &[(usize, Vec<u8>)], b: &[(usize, Vec<u8>)]| {
                a.iter()
                    .filter(|x| !b.contains(x))
                    .map(|(p, f)| format!("\n  {p}: {}", hex(f)))
                    .collect::<String>()
            };
            panic!(
                "SWEEPD_SEED={seed} SWEEPD_CASES={done}\nrouter    {:?}\nreference {:?}\nonly the router sends{}\nonly the reference sends{}\nup {} {}",
                got.verdicts,
                wanted.verdicts,
                only(&got.out, &wanted.out),
                only(&wanted.out, &got.out),
                only(&got.up, &wanted.up),
                only(&wanted.up, &got.up),
            );
        }
        if done % 64 < 16 {
            tube.check();
        }
    }
    tube.check();
    // The frames are worth something: they reach every verdict that the reference knows.
    for verdict in [
        "forwarded",
        "fragmented",
        "host",
        "runt",
        "bad_header",
        "bad_checksum",
        "not_for_us",
        "link_broadcast",
        "martian",
        "multicast",
        "broadcast",
        "link_local",
        "source_route",
        "ttl_expired",
        "no_route",
        "blackhole",
        "unreachable",
        "prohibited",
        "too_big",
        "neighbor_failed",
    ] {
        assert!(before.get(verdict).is_some_and(|n| *n >= cases / 3000), "{verdict}: {before:?}");
    }
}

fn hex(bytes: &[u8]) -> String {
    let shown: String = bytes.iter().take(96).map(|byte| format!("{byte:02x}")).collect();
    format!("{shown} ({} bytes)", bytes.len())
}
