//! Stage 3, rewrite: the next hop's MAC addresses, and one less to live.
//!
//! A packet whose next hop is a group goes on with the member that its flow's hash chooses. One
//! whose next hop is not simply "send there", or that is longer than the way out takes, becomes
//! odd here and is left as it came.

use super::{
    burst::{BURST, Burst, Lane, Odd, Ready},
    way_out::Hashed,
};
use crate::tables::Tables;

const ETHERNET: u16 = 14;

/// Rewrites the burst's routed packets and lists them as ready.
#[inline(always)]
pub fn rewrite(burst: &mut Burst, tables: &Tables) {
    let Burst { v4, v6, odd, ready, .. } = burst;
    for k in 0..v4.len.min(BURST) {
        if let Some(head) = send_on::<u32, 34>(v4, k, odd, ready, tables) {
            // RFC 1624 equation 3 for a TTL less by one: HC' = ~(~HC + ~0x0100).
            let sum = u32::from(!u16::from_be_bytes([head[24], head[25]])) + 0xfeff;
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            head[22] -= 1;
            [head[24], head[25]] = sum.to_be_bytes();
        }
    }
    for k in 0..v6.len.min(BURST) {
        if let Some(head) = send_on::<u128, 54>(v6, k, odd, ready, tables) {
            head[21] -= 1;
        }
    }
}

/// Writes the MAC addresses of the lane's `k`-th packet and lists it as ready, giving its first
/// `N` bytes; or lists it as odd.
#[inline(always)]
fn send_on<'a, Address: Hashed, const N: usize>(
    lane: &'a mut Lane<Address>,
    k: usize,
    odd: &mut Odd,
    ready: &mut Ready,
    tables: &Tables,
) -> Option<&'a mut [u8; N]> {
    let Some(next_hop) = lane.way_out(k, tables) else {
        odd.push(lane.at[k].into());
        return None;
    };
    let head = lane.frame[k].first::<N>()?;
    head[..12].copy_from_slice(&next_hop.macs);
    ready.push(lane.at[k], ETHERNET + lane.ip_len[k], next_hop.port, lane.next_hop[k]);
    Some(head)
}
