//! Connections from outside that nobody inside has asked for (RFC 5382 REQ-4): the SYN is kept in
//! silence for six seconds. If the host inside opens the same connection meanwhile, both were
//! opening at once and nothing is said; else the sender is told that nobody listens.

use std::collections::VecDeque;

use crate::{forward::flows::End4, tables::PortId};

/// How long a SYN is held, in milliseconds.
pub const HELD_FOR: u32 = 6000;

/// SYNs held at most; above that they are dropped in silence at once.
const MOST: usize = 256;

/// Bytes of a frame that are kept: more than the longest headers.
const LONGEST: usize = 256;

/// A SYN that is held.
#[derive(Debug)]
pub struct Syn {
    /// The end in front.
    pub external: End4,
    /// Who sent it.
    pub remote: End4,
    /// The port it came in by.
    pub port: PortId,
    /// Its number in a capture; 0 for none.
    pub seen: u64,
    since: u32,
    /// The frame as it came.
    pub frame: Vec<u8>,
}

/// All that are held, the oldest first.
#[derive(Debug, Default)]
pub struct Syns(VecDeque<Syn>);

impl Syns {
    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Holds a SYN between these ends, which `came` in by a port and has a number in a capture. `false` when it is not held: there are too many, the same one is held already,
    /// or it is too long.
    pub fn hold(
        &mut self,
        (external, remote): (End4, End4),
        (port, seen): (PortId, u64),
        frame: &[u8],
        now: u32,
    ) -> bool {
        let same = |syn: &Syn| (syn.external, syn.remote) == (external, remote);
        if self.0.len() >= MOST || frame.len() > LONGEST || self.0.iter().any(same) {
            return false;
        }
        self.0.push_back(Syn { external, remote, port, seen, since: now, frame: frame.to_vec() });
        true
    }

    /// Takes the SYN of a connection that the inside opens itself.
    pub fn take(&mut self, external: End4, remote: End4) -> Option<Syn> {
        let at = self.0.iter().position(|syn| (syn.external, syn.remote) == (external, remote))?;
        self.0.remove(at)
    }

    /// Takes one that was held long enough.
    pub fn take_due(&mut self, now: u32) -> Option<Syn> {
        let due = now.wrapping_sub(self.0.front()?.since) >= HELD_FOR;
        if due { self.0.pop_front() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_52_a_syn_is_held_for_six_seconds_unless_the_inside_opens_too() {
        let (external, mut syns) = (End4::new(1, 2), Syns::default());
        for n in 0..3 {
            assert!(syns.hold((external, End4::new(9, n)), (0, 0), &[n as u8], 1000));
        }
        assert!(!syns.hold((external, End4::new(9, 1)), (0, 0), &[1], 1000), "again");
        assert_eq!(syns.take(external, End4::new(9, 1)).unwrap().frame, [1]);
        assert!(syns.take_due(6999).is_none());
        assert_eq!(syns.take_due(7000).unwrap().frame, [0]);
        assert_eq!(syns.take_due(7000).unwrap().frame, [2]);
        assert!(syns.is_empty() && syns.take_due(7000).is_none());
    }

    #[test]
    fn no_more_are_held_than_there_is_room_for() {
        let mut syns = Syns::default();
        let ends = |n| (End4::new(1, 2), End4::new(n, 3));
        let held = (0..10_000).filter(|n| syns.hold(ends(*n), (0, 0), &[0; 60], 0)).count();
        assert_eq!(held, MOST);
        assert!(!Syns::default().hold(ends(1), (0, 0), &[0; 300], 0));
    }
}
