//! Stage 4, hand over: the packets' buffers go into the transmit rings.
//!
//! Packets that came with tags, and have been without since [`untag`](super::untag), have a way of
//! their own: it puts tags back into the room in front, or copies.

use netmap::RxRing;

use super::{
    burst::{BURST, Burst},
    handover::Origin,
    outputs::{Outputs, Sent},
    slow::{Ending, Slow},
    tap::Seen,
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

/// The same for either while somebody captures: how each packet of the burst has ended is told, also of
/// those that the filter has taken out of it.
#[inline(never)]
pub fn hand_over_tapped<const SOME: bool>(
    burst: &mut Burst,
    rx: &RxRing,
    out: &mut Outputs,
    port: PortId,
    block: &BlockRef,
    slow: &mut Slow,
) {
    let Some(tap) = &mut slow.tap else { return };
    let origin = Origin::Received(port, Verdict::Forwarded);
    let whole = (1u64 << burst.len().min(BURST)) - 1;
    let mut denied = if SOME { burst.untagged.only } else { whole };
    burst.odd.for_each(|at| denied &= !(1 << at));
    for k in 0..burst.ready.len.min(BURST) {
        let (place, to, len) = (burst.ready.at[k], burst.ready.port[k], burst.ready.frame_len[k].into());
        let (slot, at) = (rx.index(burst.place(place)), usize::from(place) % BURST);
        denied &= !(1 << at);
        out.seen = Seen { id: tap.id(at), leaves_by: to };
        let sent = if SOME {
            out.priority = burst.untagged.priority[at];
            let skipped = burst.untagged.skipped[at].into();
            let Some(frame) = burst.frames().get(at).copied() else { continue };
            out.forward_untagged(to, origin, rx, slot, &frame, len, skipped)
        } else if out.forward(to, rx, slot, len) {
            Sent::Left
        } else {
            out.forward_elsewhere(to, origin, rx, slot, len)
        };
        let ending = sent.ending(Verdict::Forwarded);
        ending.count(block);
        tap.tell(at, port, ending, to);
    }
    (out.priority, out.seen) = (Priority::default(), Seen::NOT);
    for at in (0..BURST).filter(|at| denied >> at & 1 != 0) {
        tap.tell(at, port, Ending::Verdict(Verdict::Denied), tap.way(at));
    }
}
