//! Stage 4, hand over: the packets' buffers go into the transmit rings.

use netmap::RxRing;

use super::{
    burst::{BURST, Burst},
    handover::Origin,
    outputs::{Outputs, Sent},
    verdict::Verdict,
};
use crate::{stats::file::BlockRef, tables::PortId};

/// Bytes of an Ethernet header without tags.
const ETHERNET: u32 = 14;

/// Sends the burst's ready packets, received on `port`, and counts how each ended.
#[inline(always)]
pub fn hand_over(burst: &Burst, rx: &RxRing, out: &mut Outputs, port: PortId, block: &BlockRef) {
    let mut left = 0;
    let origin = Origin::Received(port, Verdict::Forwarded);
    for k in 0..burst.ready.len().min(BURST) {
        let i = burst.ready.get(k);
        let len = ETHERNET + u32::from(burst.ip_len[i]);
        match out.forward(burst.port[i], origin, rx, burst.slot[i], len) {
            Sent::Left => left += 1,
            Sent::InTransit => block.handed_over.add(1),
            Sent::Not(verdict) => block.count(verdict, 1),
        }
    }
    if left > 0 {
        block.count(Verdict::Forwarded, left);
    }
}
