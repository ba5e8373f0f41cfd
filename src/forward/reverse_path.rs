//! Between parse and route, on ports that ask for it: the reverse path check of every plain packet's
//! source (RFC 3704). One that fails becomes odd; the careful path gives the verdict.

use super::{
    burst::{BURST, Burst, Lane, Odd},
    route::lookup4,
};
use crate::tables::{NextHopId, PortId, ReversePath, Tables};

/// Looks up the sources of the burst's plain packets, received on `port`, and takes out those that
/// do not pass.
#[inline(never)]
pub fn reverse_path(burst: &mut Burst, tables: &Tables, port: PortId, how: ReversePath) {
    let Burst { v4, v6, odd, .. } = burst;
    let mut next_hops = [0; BURST];
    let sources = sources::<u32, 34, 4>(v4, 26).map(u32::from_be_bytes);
    let n = v4.len.min(BURST);
    lookup4(&sources[..n], &mut next_hops[..n], tables);
    take_out(v4, odd, &next_hops, tables, port, how);
    let n = v6.len.min(BURST);
    if n > 0 {
        let sources = self::sources::<u128, 54, 16>(v6, 22).map(u128::from_be_bytes);
        tables.fib6.lookup_batch(&sources[..n], &mut next_hops[..n]);
        take_out(v6, odd, &next_hops, tables, port, how);
    }
}

/// The `N` bytes at `at` of each of the lane's packets, which have at least `HEAD`.
#[inline(always)]
fn sources<Address, const HEAD: usize, const N: usize>(
    lane: &mut Lane<Address>,
    at: usize,
) -> [[u8; N]; BURST] {
    let mut sources = [[0; N]; BURST];
    for (frame, source) in lane.frame[..lane.len.min(BURST)].iter_mut().zip(&mut sources) {
        if let Some(head) = frame.first::<HEAD>() {
            source.copy_from_slice(&head[at..at + N]);
        }
    }
    sources
}

/// Makes odd what came in by a port that it cannot have come by.
#[inline(always)]
fn take_out<Address: Copy>(
    lane: &mut Lane<Address>,
    odd: &mut Odd,
    sources: &[NextHopId; BURST],
    tables: &Tables,
    port: PortId,
    how: ReversePath,
) {
    lane.retain(|k, at| {
        let passes = tables.takes_source(sources[k % BURST], port, how);
        if !passes {
            odd.push(at.into());
        }
        passes
    });
}
