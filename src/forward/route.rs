//! Stage 2, route: the next hop of every plain packet, by longest match.
//!
//! Each step of a lookup is done for the whole burst before the next one, behind a prefetch, so
//! that the burst waits for memory once a step and not once a packet.

use super::burst::{BURST, Burst};
use crate::tables::{NextHopId, Tables};

/// Looks up the destinations of the burst's plain packets.
#[inline(always)]
pub fn route(burst: &mut Burst, tables: &Tables) {
    let lane = &mut burst.v4;
    let n = lane.len.min(BURST);
    lookup4(&lane.destination[..n], &mut lane.next_hop[..n], tables);
    let lane = &mut burst.v6;
    let n = lane.len.min(BURST);
    if n > 0 {
        tables.fib6.lookup_batch(&lane.destination[..n], &mut lane.next_hop[..n]);
    }
}

/// The next hops of IPv4 addresses in host order, [`BURST`] at most.
#[inline(always)]
pub(super) fn lookup4(addresses: &[u32], next_hops: &mut [NextHopId], tables: &Tables) {
    let mut words = [tables.fib4.dir(0); BURST];
    for (word, &address) in words.iter_mut().zip(addresses) {
        *word = tables.fib4.dir(address);
        tables.fib4.prefetch_block(*word);
    }
    for ((next_hop, &address), &word) in next_hops.iter_mut().zip(addresses).zip(&words) {
        *next_hop = tables.fib4.leaf(address, word);
    }
}
