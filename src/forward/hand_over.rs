//! Stage 4, hand over: the packets' buffers go into the transmit rings.
//!
//! Packets that came with tags, and have been without since [`untag`](super::untag), have a way of
//! their own: it puts tags back into the room in front, or copies.

use netmap::RxRing;

use super::{
    burst::{BURST, Burst},
    handover::Origin,
    outputs::{Outputs, Sent},
    verdict::Verdict,
};
use crate::{stats::file::BlockRef, tables::PortId, wire::vlan::Priority};

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

/// The same for packets whose tags were taken off.
#[inline(never)]
pub fn hand_over_untagged(burst: &mut Burst, rx: &RxRing, out: &mut Outputs, port: PortId, block: &BlockRef) {
    let mut left = 0;
    let origin = Origin::Received(port, Verdict::Forwarded);
    for k in 0..burst.ready.len.min(BURST) {
        let (at, to, len) = (burst.ready.at[k], burst.ready.port[k], burst.ready.frame_len[k]);
        let slot = rx.index(burst.place(at));
        let at = usize::from(at) % BURST;
        let skipped = burst.untagged.skipped[at].into();
        out.priority = burst.untagged.priority[at];
        let Some(frame) = burst.frames().get(at).copied() else { continue };
        match out.forward_untagged(to, origin, rx, slot, &frame, len.into(), skipped) {
            Sent::Left => left += 1,
            Sent::InTransit => block.handed_over.add(1),
            Sent::Not(verdict) => block.count(verdict, 1),
        }
    }
    out.priority = Priority::default();
    if left > 0 {
        block.count(Verdict::Forwarded, left);
    }
}
