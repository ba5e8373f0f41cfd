//! The wheel: when to look at a flow again.
//!
//! Sixty-four lists, one for each second and a bit, linked through the flows' records. A packet
//! does not move its flow: it writes the time into the record, and when the wheel comes to the
//! flow it either has outlived itself or is put where it would. A flow that would live longer than
//! the wheel reaches is looked at once a turn, so that one whose end has come closer (a connection
//! that was closed) is noticed within a minute. That costs a table of two million flows some thirty
//! thousand looks a second.

/// Milliseconds of a list: 2^10.
const SHIFT: u32 = 10;
/// Lists.
const LISTS: u32 = 64;
/// How far ahead a flow can be put, in milliseconds.
const REACH: u32 = (LISTS - 1) << SHIFT;

/// The lists' first flows.
#[derive(Debug)]
pub(super) struct Wheel {
    heads: [u32; LISTS as usize],
    /// The beginning of the list that is looked at, in milliseconds; a multiple of a list's.
    at: u32,
}

impl Wheel {
    /// A wheel that begins now.
    pub(super) fn new(now: u32) -> Self {
        Self { heads: [0; LISTS as usize], at: now >> SHIFT << SHIFT }
    }

    fn list(time: u32) -> usize {
        (time >> SHIFT) as usize % LISTS as usize
    }

    /// The head of the list for a flow that ends at `end`: the flow goes in front of it.
    #[inline]
    pub(super) fn list_for(&mut self, now: u32, end: u32) -> &mut u32 {
        // Times go round; an end that is over counts as now.
        let left = end.wrapping_sub(now);
        let left = if left as i32 <= 0 { 0 } else { left.min(REACH - (1 << SHIFT)) };
        let mut time = now.wrapping_add(left);
        // A wheel that has fallen behind may not be overtaken from behind.
        let ahead = time.wrapping_sub(self.at);
        if ahead > REACH {
            time = self.at.wrapping_add(REACH);
        }
        &mut self.heads[Self::list(time)]
    }

    /// The head of the oldest list that is over and has flows in it; `None` when none has.
    #[inline]
    pub(super) fn due(&mut self, now: u32) -> Option<&mut u32> {
        for _ in 0..LISTS {
            if now.wrapping_sub(self.at) < 1 << SHIFT {
                return None;
            }
            if self.heads[Self::list(self.at)] != 0 {
                return Some(&mut self.heads[Self::list(self.at)]);
            }
            self.at = self.at.wrapping_add(1 << SHIFT);
        }
        // Every list is empty: nothing is skipped.
        self.at = now >> SHIFT << SHIFT;
        None
    }
}
