//! The gateway of the benchmark: rules, routes, flows, and a rig for each worker.

use std::{io, net::Ipv4Addr, sync::Arc};

use sweepd::{
    forward::burst::Burst,
    tables::{
        Tables, Timeouts,
        acl::{Acl, Compiled, Rule},
        masquerade::{self, Masquerade},
        prefixes::{Prefixes4, Prefixes6},
        synthetic::{self, Random},
    },
    wire::checksum::{self, pseudo4},
};

use super::SWEEP;
use crate::{
    rig::{self, Headers, NEXT_HOPS, OUT_PORTS, Rig},
    traffic::{self, Frame},
};

/// Ends inside of [`Series::Destinations`]; flows are these times up to [`DESTINATIONS`].
pub const ENDPOINTS: usize = 20_000;
/// Ends outside.
pub const DESTINATIONS: usize = 100;
/// Addresses in front of [`Series::Endpoints`], over all ports.
pub const POOL: usize = 64;
/// Inside ends of each host of [`Series::Endpoints`].
const ENDS_OF_HOST: usize = 32;

/// Whose the flows are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Series {
    /// Up to 20,000 ends inside talk to up to 100 destinations each: many flows share a mapping.
    Destinations,
    /// Every flow has an end inside, and a mapping, of its own; they share 64 addresses in front.
    Endpoints,
}

impl Series {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Destinations => "destinations",
            Self::Endpoints => "endpoints",
        }
    }

    /// The addresses in front at a port.
    fn pool(self, out: u16) -> Vec<Ipv4Addr> {
        let of_port = match self {
            Self::Destinations => 1,
            Self::Endpoints => POOL as u16 / OUT_PORTS,
        };
        let first = (out - 1) * of_port + 1;
        (first..first + of_port).map(|last| [203, 0, 113, last as u8].into()).collect()
    }

    /// Address and port inside of flow number `flow`, and the number of its destination.
    fn ends(self, flow: usize) -> (u32, u32, usize) {
        match self {
            Self::Destinations => {
                let end = flow % ENDPOINTS;
                // Each end talks to another destination in each round.
                let (host, port) = (end as u32 / 4, 2000 + (end as u32 * 7919) % 60_000);
                (0x0a01_0000 + host, port, flow / ENDPOINTS + end)
            }
            Self::Endpoints => {
                let (host, end) = (flow / ENDS_OF_HOST, flow % ENDS_OF_HOST);
                (0x0a01_0000 + host as u32, 1024 + end as u32 * 1999, flow)
            }
        }
    }
}
/// Access rules.
pub const RULES: u16 = 10;
/// Routes.
const ROUTES: usize = 1000;

/// The routes.
pub fn routes() -> Prefixes4 {
    synthetic::ipv4(ROUTES, NEXT_HOPS, 42)
}

/// Rules that every packet is compared with and that none fits.
fn rules() -> Vec<Rule> {
    let rule = |n: u16| Rule {
        in_ports: vec![0],
        protocol: Some(17),
        to_ports: vec![(n, n)],
        ..Rule::of_all("", true)
    };
    (1..=RULES).map(rule).collect()
}

/// The rules, with counters for so many workers.
///
/// # Errors
/// When they cannot be compiled.
pub fn acl(workers: usize) -> io::Result<Arc<Acl>> {
    let compiled = Compiled::new(rules()).map_err(io::Error::other)?;
    Ok(Arc::new(Acl::new(Arc::new(compiled), workers)))
}

/// Every port that leads outside has addresses in front. Flows last as long as the benchmark.
pub fn masquerade(series: Series) -> Masquerade {
    let rule = |out: u16| masquerade::Rule {
        out,
        from: Vec::new(),
        to: series.pool(out),
        first: 1024,
        last: 65535,
        timeouts: timeouts(),
        open: false,
        inbound_refresh: false,
        quota: 0,
        log: masquerade::Log::Nothing,
    };
    Masquerade::new((1..=OUT_PORTS).map(rule).collect(), Vec::new(), Vec::new())
}

fn timeouts() -> Timeouts {
    Timeouts { udp: 1 << 30, ..Timeouts::default() }
}

/// The tables of the mode that takes them packet by packet.
///
/// # Errors
/// When there is not enough memory.
pub fn tables(routes: &Prefixes4, workers: usize) -> io::Result<Tables> {
    let mut tables = rig::tables(routes, &Prefixes6::new())?;
    tables.acl = Some(acl(workers)?);
    Ok(tables)
}

/// A worker whose tables have rules and masquerade.
///
/// # Errors
/// When there is not enough memory.
pub fn gateway(routes: &Prefixes4, series: Series) -> io::Result<Rig> {
    let mut rig = Rig::new(routes, &Prefixes6::new())?;
    let acl = acl(1)?;
    rig.worker.reader.offline();
    let publisher = rig.publisher.as_mut().expect("this rig has no keeper");
    publisher.publish(|tables| translate(tables, &acl, series));
    Ok(rig)
}

/// Puts rules and masquerade into a worker's tables.
pub fn translate(tables: &mut Tables, acl: &Arc<Acl>, series: Series) {
    tables.acl = Some(acl.clone());
    tables.masquerade = masquerade(series);
    tables.timeouts = timeouts();
    tables.keeps_flows = true;
}

/// Destinations that the tables route. What shares its bit with an address in front takes a closer
/// look (one address in a thousand): it is left out.
fn destinations(routes: &Prefixes4, series: Series) -> Vec<u32> {
    let front = masquerade(series);
    let mut found: Vec<u32> = synthetic::addresses(routes, 4 * DESTINATIONS, &mut Random::new(7));
    found.sort_unstable();
    found.dedup();
    found.retain(|address| !front.may_be_in_front(*address));
    let step = found.len() / DESTINATIONS;
    found.into_iter().step_by(step).take(DESTINATIONS).collect()
}

/// A frame of each of the flows that belong to worker number `worker`: it has the inside ends that
/// a hash would give it.
pub fn frames(routes: &Prefixes4, series: Series, flows: usize, worker: usize, workers: usize) -> Vec<Frame> {
    let destinations = destinations(routes, series);
    let frame = |flow: usize| {
        let (address, port, to) = series.ends(flow);
        summed(traffic::frame4(address, destinations[to % destinations.len()], port << 16 | 443))
    };
    (0..flows).filter(|flow| flow % ENDPOINTS % workers == worker).map(frame).collect()
}

/// Packet number `n` of a flood, from anywhere in 10/8, and from no end twice within 2^39.
pub fn spoofed(n: u64, destinations: &[u32]) -> Frame {
    // Times an odd number: each remainder is met once.
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) & ((1 << 39) - 1);
    let (address, port) = (0x0a00_0000 | (mixed >> 15) as u32, 1024 + (mixed as u32 & 0x7fff));
    let to = destinations[n as usize % destinations.len()];
    summed(traffic::frame4(address, to, port << 16 | 443))
}

/// With the UDP checksum, so that it has to be brought along.
fn summed((mut bytes, len): Frame) -> Frame {
    let address = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).expect("four bytes").into();
    let sum = pseudo4(address(26), address(30), 17, 26).bytes(&bytes[34..60]);
    let sum = checksum::udp_sent(!sum.fold());
    bytes[40..42].copy_from_slice(&sum.to_be_bytes());
    (bytes, len)
}

/// Sends every flow once, so that the careful path makes it.
///
/// # Errors
/// When not all became flows.
pub fn begin_flows(rig: &mut Rig, frames: Vec<Frame>) -> io::Result<()> {
    let wanted = frames.len();
    rig.set_capture(frames, Headers::Cached);
    let mut burst = Burst::default();
    for _ in 0..wanted.div_ceil(SWEEP as usize) {
        rig.refill(SWEEP);
        rig.worker.sweep(&mut burst);
    }
    rig.pick_at_random();
    let have = rig.worker.slow.flows.len();
    if have != wanted {
        return Err(io::Error::other(format!("{wanted} flows were sent, and {have} are known")));
    }
    Ok(())
}
