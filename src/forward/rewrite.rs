//! Stage 3, rewrite: the next hop's MAC addresses, and one less to live.
//!
//! A packet whose next hop is not simply "send there", or that is longer than the way out takes,
//! becomes odd here and is left as it came.

use super::burst::{BURST, Burst};
use crate::tables::Tables;

/// Rewrites the burst's routed packets and lists them as ready.
#[inline(always)]
pub fn rewrite(burst: &mut Burst, tables: &Tables) {
    for k in 0..burst.v4.len().min(BURST) {
        let i = burst.v4.get(k);
        if let Some(head) = destined::<34>(burst, tables, i) {
            // RFC 1624 equation 3 for a TTL less by one: HC' = ~(~HC + ~0x0100).
            let sum = u32::from(!u16::from_be_bytes([head[24], head[25]])) + 0xfeff;
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            head[22] -= 1;
            [head[24], head[25]] = sum.to_be_bytes();
        }
    }
    for k in 0..burst.v6.len().min(BURST) {
        let i = burst.v6.get(k);
        if let Some(head) = destined::<22>(burst, tables, i) {
            head[21] -= 1;
        }
    }
}

/// Writes the MAC addresses of packet `i` and lists it as ready, giving its first `N` bytes; or
/// lists it as odd.
#[inline(always)]
fn destined<'a, const N: usize>(burst: &'a mut Burst, tables: &Tables, i: usize) -> Option<&'a mut [u8; N]> {
    let next_hop = tables.next_hop(burst.next_hop[i]);
    if burst.ip_len[i] > next_hop.max_len {
        burst.odd.push(i);
        return None;
    }
    burst.port[i] = next_hop.port;
    burst.ready.push(i);
    let head = burst.frame[i].first::<N>()?;
    head[..12].copy_from_slice(&next_hop.macs);
    Some(head)
}
