//! Stage 4, hand over: the packets' buffers go into the transmit rings.

use netmap::RxRing;

use super::{
    burst::{BURST, Burst},
    handover::Origin,
    outputs::{Outputs, Sent},
    verdict::Verdict,
};
use crate::{stats::file::BlockRef, tables::PortId};

/// Sends the burst's ready packets, received on `port`, and counts how each ended.
#[inline(always)]
pub fn hand_over(burst: &Burst, rx: &RxRing, out: &mut Outputs, port: PortId, block: &BlockRef) {
    let mut left = 0;
    let origin = Origin::Received(port, Verdict::Forwarded);
    let ready = &burst.ready;
    for k in 0..ready.len.min(BURST) {
        let slot = rx.index(burst.place(ready.at[k]));
        if out.forward(ready.port[k], rx, slot, ready.frame_len[k].into()) {
            left += 1;
        } else {
            match out.forward_elsewhere(ready.port[k], origin, rx, slot, ready.frame_len[k].into()) {
                Sent::Left => left += 1,
                Sent::InTransit => block.handed_over.add(1),
                Sent::Not(verdict) => block.count(verdict, 1),
            }
        }
    }
    if left > 0 {
        block.count(Verdict::Forwarded, left);
    }
}
