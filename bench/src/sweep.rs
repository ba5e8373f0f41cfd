//! `sweepd-bench loop`: what a packet costs in the worker's loop, against a loop that takes one
//! packet after the other, in one run.

use std::io;

use netmap::{RxRing, TxRing};
use sweepd::{
    forward::burst::Burst,
    tables::{
        Tables,
        prefixes::{Prefixes4, Prefixes6},
    },
    wire::ipv4,
};

use crate::{
    cycles::{self, Spread},
    rig::{Headers, MAC, Rig},
    stepper, traffic,
};

/// Packets in a sweep.
const SWEEP: u32 = 256;

/// Timed sweeps of each kind, after a tenth as many to warm up.
const ROUNDS: usize = 2000;

/// One line of the table.
struct Line {
    routes: usize,
    flows: usize,
    headers: Headers,
    single: Spread,
    sweep: Spread,
}

/// Runs the benchmark and prints its table.
///
/// # Errors
/// When there is not enough memory, or the instructions cannot be counted.
pub fn run() -> io::Result<()> {
    println!("cycles per packet (TSC), IPv4, sweeps of {SWEEP}: median (10th to 90th percentile)\n");
    println!(
        "{:>9} {:>9} {:>8}  {:>22}  {:>22}  {:>6}",
        "routes", "flows", "headers", "one at a time", "burst", "ratio"
    );
    for routes in [1, 1_000_000] {
        let prefixes = table(routes);
        let mut rig = Rig::new(&prefixes, &Prefixes6::new())?;
        let flow_counts: &[usize] = if routes == 1 { &[1000] } else { &[1000, 100_000, 1_000_000] };
        for &flows in flow_counts {
            for headers in [Headers::Cached, Headers::Memory] {
                let line = measure(&mut rig, &prefixes, flows, headers);
                print(&line);
            }
        }
        let counts = instructions(&mut rig)?;
        let n = f64::from(SWEEP);
        println!(
            "{:>9} routes: {:.1} instructions, {} locked instructions and {} fences a packet",
            routes,
            counts.instructions as f64 / n,
            counts.locked as f64 / n,
            counts.fences as f64 / n
        );
    }
    Ok(())
}

fn print(line: &Line) {
    let headers = match line.headers {
        Headers::Cached => "cache",
        Headers::Memory => "memory",
    };
    println!(
        "{:>9} {:>9} {headers:>8}  {:>22}  {:>22}  {:>6.2}",
        line.routes,
        line.flows,
        line.single.to_string(),
        line.sweep.to_string(),
        line.single.median / line.sweep.median
    );
}

/// Times both loops in turn, sweep by sweep, so that what disturbs one disturbs the other.
fn measure(rig: &mut Rig, prefixes: &Prefixes4, flows: usize, headers: Headers) -> Line {
    rig.set_flows(traffic::frames4(prefixes, flows, 11), headers);
    let (mut single, mut sweep) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    let mut burst = Burst::default();
    for round in 0..ROUNDS + ROUNDS / 10 {
        rig.refill(SWEEP);
        let start = cycles::now();
        let swept = rig.worker.sweep(&mut burst);
        let took = cycles::now() - start;
        assert_eq!(swept.packets, SWEEP);
        rig.refill(SWEEP);
        let start = cycles::now();
        let sent = one_at_a_time(rig);
        let took_single = cycles::now() - start;
        assert_eq!(sent, SWEEP);
        if round >= ROUNDS / 10 {
            sweep.push(took as f64 / f64::from(SWEEP));
            single.push(took_single as f64 / f64::from(SWEEP));
        }
    }
    Line { routes: prefixes.len(), flows, headers, single: Spread::of(single), sweep: Spread::of(sweep) }
}

/// Exact counts of one steady sweep.
fn instructions(rig: &mut Rig) -> io::Result<stepper::Counts> {
    let mut burst = Burst::default();
    rig.refill(SWEEP);
    rig.worker.sweep(&mut burst);
    rig.refill(SWEEP);
    stepper::count(10_000_000, || {
        rig.worker.sweep(&mut burst);
    })
}

/// The same work on one packet after the other: what a router without bursts does. It takes the
/// tables once a sweep as well; only the order of the work differs.
#[inline(never)]
fn one_at_a_time(rig: &mut Rig) -> u32 {
    let tables = rig.worker.reader.sweep();
    let input = &mut rig.worker.inputs[0];
    let (own, wire) = (&mut rig.worker.out.own, &rig.worker.out.wire);
    let n = input.queue.ring.available();
    let mut sent = 0;
    for k in 0..n {
        let slot = input.queue.ring.index(k);
        if let Some((port, len)) = forward_one(&input.queue.ring, slot, tables)
            && let sweepd::forward::outputs::Way::Own(at) = wire[usize::from(port)]
        {
            let output: &mut TxRing = &mut own[usize::from(at)].queue.ring;
            sent += u32::from(output.forward(&input.queue.ring, slot, len));
        }
    }
    input.queue.ring.advance(n);
    for output in own.iter_mut() {
        output.queue.sync().expect("the rig's devices do not fail");
    }
    rig.worker.reader.quiescent();
    sent
}

#[inline(always)]
fn forward_one(ring: &RxRing, slot: u32, tables: &Tables) -> Option<(u16, u32)> {
    // SAFETY: the slot lies between head and tail, and its frame ends with this function.
    let mut frame = unsafe { ring.frame(slot) }?;
    let len = frame.len() as usize;
    let head = frame.first::<34>()?;
    let ip: &[u8; 20] = head[14..].try_into().expect("34 - 14 = 20");
    let total = u16::from_be_bytes([ip[2], ip[3]]);
    let plain = head[..6] == MAC
        && head[12..15] == [0x08, 0x00, 0x45]
        && total >= 20
        && usize::from(total) + 14 <= len
        && ip[8] > 1
        && !matches!(ip[12], 0 | 127 | 224..)
        && !tables.local.may_contain4(u32::from_be_bytes([ip[12], ip[13], ip[14], ip[15]]))
        && ipv4::header_sum_ok(ip);
    if !plain {
        return None;
    }
    let destination = u32::from_be_bytes([ip[16], ip[17], ip[18], ip[19]]);
    let hop = tables.next_hop(tables.fib4.lookup(destination));
    if total > hop.max_len {
        return None;
    }
    head[..12].copy_from_slice(&hop.macs);
    head[22] -= 1;
    let sum = u32::from(!u16::from_be_bytes([head[24], head[25]])) + 0xfeff;
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    [head[24], head[25]] = sum.to_be_bytes();
    Some((hop.port, u32::from(total) + 14))
}

fn table(routes: usize) -> Prefixes4 {
    if routes == 1 {
        let mut prefixes = Prefixes4::new();
        prefixes.insert(0, 0, 7);
        return prefixes;
    }
    sweepd::tables::synthetic::ipv4(routes, crate::rig::NEXT_HOPS, 42)
}
