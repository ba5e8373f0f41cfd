//! A burst: up to [`BURST`] packets that go through the stages together, so that the cache misses
//! of one overlap those of the others.
//!
//! The arrays run in parallel: entry *i* of each belongs to the *i*-th packet of the burst. A
//! [`List`] names the packets that a stage is about.

use netmap::{Frame, RxRing};

use crate::tables::{NextHopId, PortId};

/// Packets that go through the stages together.
pub const BURST: usize = 32;

/// Some of a burst's packets, in order of arrival.
#[derive(Clone, Copy, Debug)]
pub struct List {
    len: usize,
    at: [u8; BURST],
}

impl List {
    const EMPTY: List = List { len: 0, at: [0; BURST] };

    /// Adds packet `i`.
    #[inline(always)]
    pub fn push(&mut self, i: usize) {
        // The mask tells the compiler what the caller knows: a list never outgrows its burst.
        self.at[self.len % BURST] = i as u8;
        self.len += 1;
    }

    /// The `k`-th packet's number within the burst.
    #[inline(always)]
    pub fn get(&self, k: usize) -> usize {
        self.at[k % BURST] as usize % BURST
    }

    /// Number of packets.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no packet is in it.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Empties the list.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

/// The burst's odd packets, one bit each: whichever stage finds them, they come out in order of
/// arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Odd(u64);

const _: () = assert!(BURST <= 64);

impl Odd {
    /// Adds packet `i`.
    #[inline(always)]
    pub fn push(&mut self, i: usize) {
        self.0 |= 1 << (i % BURST);
    }

    /// Whether no packet is odd.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Iterator for Odd {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let first = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (first < BURST).then_some(first)
    }
}

/// Packets on their way through the stages.
#[derive(Debug)]
pub struct Burst {
    /// Number of packets.
    pub len: usize,
    /// The slot that each came in.
    pub slot: [u32; BURST],
    /// Where each packet's bytes are.
    pub frame: [Frame; BURST],
    /// IPv4 packets that need nothing but forwarding.
    pub v4: List,
    /// IPv6 packets that need nothing but forwarding.
    pub v6: List,
    /// Packets for the careful path ([`slow`](super::slow)).
    pub odd: Odd,
    /// Packets rewritten and ready to leave.
    pub ready: List,
    /// Of `v4` packets: the destination address, host order.
    pub destination4: [u32; BURST],
    /// Of the `k`-th packet in `v6`: the destination address, host order.
    pub destination6: [u128; BURST],
    /// Length of the IP packet in bytes, without link padding.
    pub ip_len: [u16; BURST],
    /// The next hop that the route stage found.
    pub next_hop: [NextHopId; BURST],
    /// Of `ready` packets: the port to leave by.
    pub port: [PortId; BURST],
}

impl Default for Burst {
    fn default() -> Self {
        Self {
            len: 0,
            slot: [0; BURST],
            frame: [Frame::EMPTY; BURST],
            v4: List::EMPTY,
            v6: List::EMPTY,
            odd: Odd(0),
            ready: List::EMPTY,
            destination4: [0; BURST],
            destination6: [0; BURST],
            ip_len: [0; BURST],
            next_hop: [0; BURST],
            port: [0; BURST],
        }
    }
}

impl Burst {
    /// Starts a burst with the packets of `ring` from the `done`-th on, up to the `end`-th (at most
    /// [`RxRing::available`]), and prefetches the headers of the burst after it. A packet whose
    /// slot makes no sense has an empty frame.
    ///
    /// A packet that spans several buffers is not supported: each of its slots becomes a
    /// [`Frame::CHAINED`], and `chain` remembers between bursts that one is not over.
    #[inline(always)]
    pub fn take(&mut self, ring: &RxRing, done: u32, end: u32, chain: &mut bool) {
        debug_assert!(done < end && end <= ring.available());
        let waiting = end - done;
        let n = waiting.min(BURST as u32);
        self.len = n as usize;
        self.v4.clear();
        self.v6.clear();
        self.odd = Odd(0);
        self.ready.clear();
        if done == 0 {
            for i in 0..n {
                ring.prefetch(i);
            }
        }
        for i in 0..(waiting - n).min(BURST as u32) {
            ring.prefetch(done + n + i);
        }
        let mut chained = *chain;
        for i in 0..n {
            let slot = ring.index(done + i);
            self.slot[i as usize] = slot;
            // SAFETY: the slot lies between head and tail, and no other frame of it is in use: a
            // worker is done with one burst before it takes the next, and takes each slot once.
            let frame = unsafe { ring.frame(slot) }.unwrap_or(Frame::EMPTY);
            chained |= frame.continues();
            self.frame[i as usize] = frame;
        }
        if chained {
            self.mark_chains(chain);
        }
    }

    #[cold]
    fn mark_chains(&mut self, chain: &mut bool) {
        for frame in &mut self.frame[..self.len] {
            let continues = frame.continues();
            if *chain || continues {
                *frame = Frame::CHAINED;
            }
            *chain = continues;
        }
    }
}
