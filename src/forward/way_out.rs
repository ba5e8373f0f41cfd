//! Which way a routed packet leaves: its next hop, if that simply says "send there" and takes a packet
//! of its length. Of a group of next hops the flow's hash chooses one, once, for all stages behind.

use netmap::Frame;

use super::{burst::Lane, flow_hash};
use crate::tables::{NextHop, NextHopId, Tables};

const ETHERNET: usize = 14;

/// The address of a family of packets, whose flows are hashed alike.
pub trait Hashed: Copy {
    /// The hash of the flow of the IP packet in these bytes, with a seed.
    const HASH: fn(u64, &[u8]) -> u32;
}

impl Hashed for u32 {
    const HASH: fn(u64, &[u8]) -> u32 = flow_hash::of_ipv4;
}

impl Hashed for u128 {
    const HASH: fn(u64, &[u8]) -> u32 = flow_hash::of_ipv6;
}

impl<Address: Hashed> Lane<Address> {
    /// The next hop that the lane's `k`-th packet leaves by; none when the careful path has to see
    /// it. Where the route leads to a group, its member takes the group's place in the lane.
    #[inline(always)]
    pub fn way_out<'t>(&mut self, k: usize, tables: &'t Tables) -> Option<&'t NextHop> {
        let hop = tables.next_hop(self.next_hop[k]);
        if self.ip_len[k] <= hop.max_len {
            return Some(hop);
        }
        self.next_hop[k] = member::<Address>(&self.frame[k], self.next_hop[k], tables);
        let hop = tables.next_hop(self.next_hop[k]);
        (self.ip_len[k] <= hop.max_len).then_some(hop)
    }
}

/// The member of a group that the packet's flow goes by, when `id` is one. Out of line, so that
/// packets with a single next hop have nothing of it in their way.
#[cold]
#[inline(never)]
fn member<Address: Hashed>(frame: &Frame, id: NextHopId, tables: &Tables) -> NextHopId {
    let packet = frame.bytes().get(ETHERNET..).unwrap_or_default();
    tables.member(id, || Address::HASH(tables.hash_seed, packet))
}
