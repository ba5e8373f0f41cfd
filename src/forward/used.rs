//! Which next hops are in use, so that the keeper can keep their neighbours fresh.
//!
//! One packet of each burst is marked, another one each time. That is enough to find every
//! neighbour in use, and costs next to nothing.

use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use super::{
    burst::{BURST, Burst},
    messages::ToKeeper,
};
use crate::tables::{MAX_NEXT_HOPS, NextHopId};

/// How often the keeper hears of the next hops in use.
const EVERY: Duration = Duration::from_secs(10);

/// Marks of the next hops used since the last report.
#[derive(Debug)]
pub struct Used {
    marks: Box<[u64]>,
    turn: usize,
    last: Instant,
}

impl Default for Used {
    fn default() -> Self {
        Self { marks: vec![0; MAX_NEXT_HOPS / 64].into(), turn: 0, last: Instant::now() }
    }
}

impl Used {
    /// Marks the next hop of one of the burst's forwarded packets.
    #[inline(always)]
    pub fn mark(&mut self, burst: &Burst) {
        let n = burst.ready.len;
        if n > 0 {
            self.turn = self.turn.wrapping_add(1);
            let k = if self.turn % BURST < n { self.turn % BURST } else { 0 };
            self.mark_id(burst.ready.next_hop[k % BURST]);
        }
    }

    /// Marks one next hop.
    #[inline(always)]
    pub fn mark_id(&mut self, id: NextHopId) {
        if let Some(word) = self.marks.get_mut(usize::from(id / 64)) {
            *word |= 1 << (id % 64);
        }
    }

    /// Tells the keeper, if it is time.
    #[cold]
    pub fn report(&mut self, keeper: &Sender<ToKeeper>) {
        if self.last.elapsed() < EVERY {
            return;
        }
        self.last = Instant::now();
        let mut next_hops = Vec::new();
        for (i, word) in self.marks.iter_mut().enumerate() {
            while *word != 0 {
                next_hops.push((i * 64) as NextHopId + word.trailing_zeros() as NextHopId);
                *word &= *word - 1;
            }
        }
        if !next_hops.is_empty() {
            // A full channel means that the keeper is busy; the marks come again.
            let _ = keeper.try_send(ToKeeper::Used { next_hops });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_next_hops_are_reported_once() {
        let (to, from) = crossbeam_channel::bounded(4);
        let mut used = Used { last: Instant::now() - 2 * EVERY, ..Used::default() };
        for id in [0, 17, 63, 64, 32767] {
            used.mark_id(id);
        }
        used.report(&to);
        assert_eq!(from.try_recv(), Ok(ToKeeper::Used { next_hops: vec![0, 17, 63, 64, 32767] }));
        used.last = Instant::now() - 2 * EVERY;
        used.report(&to);
        assert!(from.try_recv().is_err());
    }
}
