//! The loop that takes one packet after the other, over the same rings and tables as the worker's:
//! what a router without bursts does.

use netmap::RxRing;
use sweepd::{
    forward::{outputs::Outputs, verdict::Verdict, worker::Worker},
    tables::{NextHop, Tables},
    wire::ipv4,
};

/// One pass over the worker's rings. `next_hop` finds the way of a destination (host order), by
/// whatever discipline. Gives the packets taken. IPv4 only: everything else is dropped, uncounted.
#[inline(always)]
pub fn sweep(worker: &mut Worker, mut next_hop: impl FnMut(&Tables, u32) -> NextHop) -> u32 {
    let Worker { inputs, out, reader, .. } = worker;
    let tables = reader.sweep();
    let mut taken = 0;
    for input in inputs.iter_mut() {
        input.queue.sync().expect("the benchmark's devices do not fail");
        let n = input.queue.ring.available().min(sweepd::forward::burst::SWEEP as u32);
        let (mut bytes, mut sent) = (0, 0);
        let mac = tables.ports[usize::from(input.port)].mac;
        for k in 0..n {
            let slot = input.queue.ring.index(k);
            let (len, left) = forward(&input.queue.ring, slot, mac, tables, out, &mut next_hop);
            bytes += len;
            sent += left;
        }
        input.queue.ring.advance(n);
        input.block.rx_packets.add(n.into());
        input.block.rx_bytes.add(bytes);
        input.block.count(Verdict::Forwarded, sent);
        input.block.count(Verdict::TxFull, u64::from(n) - sent);
        taken += n;
    }
    out.sync(|port, error| panic!("port {port}: {error}"));
    reader.quiescent();
    taken
}

/// Forwards one packet; gives its bytes and 1 if it left.
#[inline(always)]
fn forward(
    ring: &RxRing,
    slot: u32,
    mac: [u8; 6],
    tables: &Tables,
    out: &mut Outputs,
    next_hop: &mut impl FnMut(&Tables, u32) -> NextHop,
) -> (u64, u64) {
    // SAFETY: the slot lies between head and tail, and its frame ends with this function.
    let Some(mut frame) = (unsafe { ring.frame(slot) }) else { return (0, 0) };
    let len = frame.len();
    let Some(head) = frame.first::<34>() else { return (len.into(), 0) };
    let ip: &[u8; 20] = head[14..].try_into().expect("34 - 14 = 20");
    let total = u16::from_be_bytes([ip[2], ip[3]]);
    let source = u32::from_be_bytes([ip[12], ip[13], ip[14], ip[15]]);
    let plain = head[..6] == mac
        && head[12..15] == [0x08, 0x00, 0x45]
        && total >= 20
        && u32::from(total) + 14 <= len
        && ip[8] > 1
        && !matches!(ip[12], 0 | 127 | 224..)
        && !tables.local.may_contain4(source)
        && ipv4::header_sum_ok(ip);
    if !plain {
        return (len.into(), 0);
    }
    let hop = next_hop(tables, u32::from_be_bytes([ip[16], ip[17], ip[18], ip[19]]));
    if total > hop.max_len {
        return (len.into(), 0);
    }
    head[..12].copy_from_slice(&hop.macs);
    head[22] -= 1;
    // RFC 1624 equation 3 for a TTL less by one.
    let sum = u32::from(!u16::from_be_bytes([head[24], head[25]])) + 0xfeff;
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    [head[24], head[25]] = sum.to_be_bytes();
    (len.into(), out.forward(hop.port, ring, slot, u32::from(total) + 14).into())
}

/// The plain discipline: the sweep's own tables.
#[inline(always)]
pub fn by_tables(tables: &Tables, destination: u32) -> NextHop {
    *tables.next_hop(tables.fib4.lookup(destination))
}
