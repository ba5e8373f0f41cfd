//! Fragments on their way through the translation (RFC 4787 REQ-14): only the first of a datagram
//! has ports, and it need not come first. What it said is remembered for the others; those that
//! come before it are held, so many and no more.

use std::collections::HashMap;

use crate::tables::PortId;

/// Datagrams remembered at most.
const DATAGRAMS: usize = 16_384;

/// Fragments held at most, of all datagrams and of one.
const HELD: usize = 256;
const HELD_OF_ONE: usize = 48;

/// How long a datagram is remembered, in milliseconds.
const REMEMBERED: u32 = 5_000;

/// How long fragments wait for the first one, in milliseconds.
const WAIT: u32 = 2_000;

/// What fragments of one datagram share: source, destination (host order), protocol,
/// identification.
pub type Datagram = (u32, u32, u8, u16);

/// What the first fragment said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The source's port.
    pub from: u16,
    /// The destination's port.
    pub to: u16,
    /// The identification that all of them get on their way out.
    pub id: u16,
}

/// A fragment that was held.
#[derive(Debug)]
pub struct Waiting {
    /// The port that it came in by.
    pub port: PortId,
    /// Its number in a capture; 0 for none.
    pub seen: u64,
    /// The frame as it came.
    pub frame: Vec<u8>,
}

#[derive(Debug)]
struct Known {
    since: u32,
    piece: Option<Piece>,
    waiting: Vec<Waiting>,
}

/// The datagrams that are known.
#[derive(Debug, Default)]
pub struct Pieces {
    datagrams: HashMap<Datagram, Known>,
    held: usize,
    /// When the old ones were last looked for.
    cleaned: u32,
}

/// What to do with a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Treat it as the first one.
    Known(Piece),
    /// It is held.
    Held,
    /// There is no room to hold it.
    Full,
}

impl Pieces {
    /// Whether fragments are held.
    #[inline(always)]
    pub fn holds(&self) -> bool {
        self.held > 0
    }

    /// The first fragment: what it says, and an identification for the way out. Gives what the
    /// datagram goes by (a first fragment that comes again changes nothing) and the fragments that
    /// waited for it.
    pub fn first(
        &mut self,
        datagram: Datagram,
        ports: (u16, u16),
        id: impl FnOnce() -> u16,
        now: u32,
    ) -> (Piece, Vec<Waiting>) {
        let room = self.datagrams.len() < DATAGRAMS;
        if !room && !self.datagrams.contains_key(&datagram) {
            return (Piece { from: ports.0, to: ports.1, id: id() }, Vec::new());
        }
        let known = self.datagrams.entry(datagram).or_insert_with(|| Known {
            since: now,
            piece: None,
            waiting: Vec::new(),
        });
        let piece = match known.piece {
            // The same datagram, or another one with the same identification.
            Some(piece) if (piece.from, piece.to) == ports => piece,
            _ => Piece { from: ports.0, to: ports.1, id: id() },
        };
        (known.piece, known.since) = (Some(piece), now);
        self.held -= known.waiting.len();
        (piece, std::mem::take(&mut known.waiting))
    }

    /// A later fragment, which came in by a port and has a number in a capture.
    pub fn later(&mut self, datagram: Datagram, (port, seen): (PortId, u64), frame: &[u8], now: u32) -> Fate {
        if let Some(Known { piece: Some(piece), .. }) = self.datagrams.get(&datagram) {
            return Fate::Known(*piece);
        }
        let new = !self.datagrams.contains_key(&datagram);
        if self.held >= HELD || new && self.datagrams.len() >= DATAGRAMS {
            return Fate::Full;
        }
        let known = self.datagrams.entry(datagram).or_insert_with(|| Known {
            since: now,
            piece: None,
            waiting: Vec::new(),
        });
        if known.waiting.len() >= HELD_OF_ONE {
            return Fate::Full;
        }
        known.waiting.push(Waiting { port, seen, frame: frame.to_vec() });
        self.held += 1;
        Fate::Held
    }

    /// Forgets what is old; gives the ports of the fragments that waited in vain, and their
    /// numbers in a capture. Does nothing more
    /// often than every half second.
    pub fn forget(&mut self, now: u32) -> Vec<(PortId, u64)> {
        let mut lost = Vec::new();
        if self.datagrams.is_empty() || now.wrapping_sub(self.cleaned) < 500 {
            return lost;
        }
        self.cleaned = now;
        self.datagrams.retain(|_, known| {
            let age = now.wrapping_sub(known.since);
            let keep = age < if known.piece.is_some() { REMEMBERED } else { WAIT };
            if !keep {
                lost.extend(known.waiting.iter().map(|waiting| (waiting.port, waiting.seen)));
            }
            keep
        });
        self.held -= lost.len();
        lost
    }

    /// Whether any datagram is remembered.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Datagram = (1, 2, 17, 3);

    #[test]
    fn rule_50_later_fragments_wait_for_the_first_and_go_by_it() {
        let mut pieces = Pieces::default();
        assert_eq!(pieces.later(ONE, (5, 0), &[1], 0), Fate::Held);
        assert_eq!(pieces.later(ONE, (5, 0), &[2], 0), Fate::Held);
        let (piece, waited) = pieces.first(ONE, (10, 20), || 77, 100);
        assert_eq!(piece, Piece { from: 10, to: 20, id: 77 });
        assert_eq!(waited.iter().map(|w| w.frame[0]).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(pieces.later(ONE, (5, 0), &[3], 200), Fate::Known(piece));
        assert_eq!(pieces.first(ONE, (10, 20), || 78, 300).0, piece);
        assert!(!pieces.holds());
        assert!(pieces.forget(10_000).is_empty());
        assert!(pieces.is_empty());
    }

    #[test]
    fn what_is_held_is_bounded_and_given_up() {
        let mut pieces = Pieces::default();
        let of = |id| (1, 2, 17, id);
        let held = (0..2000u16).filter(|n| pieces.later(of(n / 60), (3, 0), &[0], 0) == Fate::Held).count();
        assert_eq!(held, HELD);
        assert_eq!(pieces.forget(WAIT).len(), HELD);
        assert!(pieces.is_empty() && !pieces.holds());
        for n in 0..20_000 {
            pieces.first(of(n), (1, 2), || 1, 0);
        }
        assert_eq!(pieces.datagrams.len(), DATAGRAMS);
        assert_eq!(pieces.later(of(19_999), (3, 0), &[0], 0), Fate::Full);
    }
}
