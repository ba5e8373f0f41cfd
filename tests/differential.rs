//! Random frames through the real router and through a slow, plain reference: the same verdict, the
//! same port, the same bytes.
//!
//! `SWEEPD_CASES` sets the number of frames, `SWEEPD_SEED` where they begin; a failure names both.

mod common;
#[path = "common/frames.rs"]
mod frames;
#[path = "common/packets.rs"]
mod packets;
#[path = "common/reference.rs"]
mod reference;

use std::collections::BTreeMap;

use common::{PortSpec, Tube, host_mac, port_mac};
use frames::{Random, frame, number, repair};
use reference::{End, Port, Reference, To};
use sweepd::forward::messages::ToWorker;
use sweepd::tables::fixed;

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
