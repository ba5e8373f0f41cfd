//! Stage 2, route: the next hop of every plain packet, by longest match.
//!
//! Each step of a lookup is done for the whole burst before the next one, behind a prefetch, so
//! that the burst waits for memory once a step and not once a packet.

use super::burst::{BURST, Burst};
use crate::tables::Tables;

/// Looks up the destinations of the burst's plain packets.
#[inline(always)]
pub fn route(burst: &mut Burst, tables: &Tables) {
    let n = burst.v4.len().min(BURST);
    let mut dirs = [tables.fib4.dir(0); BURST];
    for (k, slot) in dirs.iter_mut().enumerate().take(n) {
        let dir = tables.fib4.dir(burst.destination4[burst.v4.get(k)]);
        *slot = dir;
        tables.fib4.prefetch_block(dir);
    }
    for (k, &dir) in dirs.iter().enumerate().take(n) {
        let i = burst.v4.get(k);
        burst.next_hop[i] = tables.fib4.leaf(burst.destination4[i], dir);
    }
    let n = burst.v6.len().min(BURST);
    if n > 0 {
        let mut found = [0; BURST];
        tables.fib6.lookup_batch(&burst.destination6[..n], &mut found[..n]);
        for (k, &id) in found.iter().enumerate().take(n) {
            burst.next_hop[burst.v6.get(k)] = id;
        }
    }
}
