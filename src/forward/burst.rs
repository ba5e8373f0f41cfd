//! Bursts: up to [`BURST`] packets that go through the stages together, so that the cache misses
//! of one overlap those of the others.

use netmap::{Frame, RxRing, prefetch};

use super::translate::stages::Translations;
use crate::{
    tables::{NextHopId, PortId},
    wire::vlan::Priority,
};

/// Packets that go through the stages together.
pub const BURST: usize = 32;

/// Packets that a worker takes from one ring before it turns to the next: enough to spread the
/// cost of a sync, few enough to stay in the cache. A multiple of [`BURST`].
pub const SWEEP: usize = 256;

const _: () = assert!(SWEEP.is_multiple_of(BURST) && SWEEP <= 256);

/// The burst's plain packets of one family. The arrays run in parallel: entry *k* of each belongs
/// to the *k*-th of them.
#[derive(Debug)]
pub struct Lane<Address> {
    /// Number of packets.
    pub len: usize,
    /// Which packet of the burst each is.
    pub at: [u8; BURST],
    /// Where each packet's bytes are.
    pub frame: [Frame; BURST],
    /// Its destination, host order.
    pub destination: [Address; BURST],
    /// Length of the IP packet in bytes, without link padding.
    pub ip_len: [u16; BURST],
    /// The next hop that the route stage found.
    pub next_hop: [NextHopId; BURST],
}

impl<Address: Copy + Default> Default for Lane<Address> {
    fn default() -> Self {
        Self {
            len: 0,
            at: [0; BURST],
            frame: [Frame::EMPTY; BURST],
            destination: [Address::default(); BURST],
            ip_len: [0; BURST],
            next_hop: [0; BURST],
        }
    }
}

impl<Address: Copy> Lane<Address> {
    /// Adds packet `at` of the burst.
    #[inline(always)]
    pub fn push(&mut self, at: usize, frame: Frame, destination: Address, ip_len: u16) {
        // The compiler is told what the caller knows: a lane never outgrows its burst.
        let k = self.len % BURST;
        self.at[k] = at as u8;
        self.frame[k] = frame;
        self.destination[k] = destination;
        self.ip_len[k] = ip_len;
        self.len = k + 1;
    }

    /// Keeps the packets for which `keep` says so, of their number in the lane and in the burst; the
    /// order stays.
    #[inline(always)]
    pub fn retain(&mut self, mut keep: impl FnMut(usize, u8) -> bool) {
        let mut kept = 0;
        for k in 0..self.len.min(BURST) {
            if !keep(k, self.at[k]) {
                continue;
            }
            if kept < k {
                self.shift(k, kept);
            }
            kept += 1;
        }
        self.len = kept;
    }

    /// Copies packet `k` of the lane to place `to` before it.
    #[inline(always)]
    pub fn shift(&mut self, k: usize, to: usize) {
        let (k, to) = (k % BURST, to % BURST);
        self.at[to] = self.at[k];
        self.frame[to] = self.frame[k];
        self.destination[to] = self.destination[k];
        self.ip_len[to] = self.ip_len[k];
        self.next_hop[to] = self.next_hop[k];
    }
}

/// The burst's odd packets, one bit each: whichever stage finds them, they come out in order of
/// arrival.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Odd(u64);

const _: () = assert!(BURST <= 64);

impl Odd {
    /// Adds packet `at` of the burst.
    #[inline(always)]
    pub fn push(&mut self, at: usize) {
        self.0 |= 1 << (at % BURST);
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

/// The packets that were rewritten and are ready to leave.
#[derive(Default, Debug)]
pub struct Ready {
    /// Number of packets.
    pub len: usize,
    /// Which packet of the burst each is.
    pub at: [u8; BURST],
    /// Length of its frame in bytes, without link padding.
    pub frame_len: [u16; BURST],
    /// The port to leave by.
    pub port: [PortId; BURST],
    /// The next hop it was rewritten for.
    pub next_hop: [NextHopId; BURST],
}

impl Ready {
    /// Adds packet `at` of the burst.
    #[inline(always)]
    pub fn push(&mut self, at: u8, frame_len: u16, port: PortId, next_hop: NextHopId) {
        let k = self.len % BURST;
        self.at[k] = at;
        self.frame_len[k] = frame_len;
        self.port[k] = port;
        self.next_hop[k] = next_hop;
        self.len = k + 1;
    }
}

/// What the frames of a burst from a port with VLANs had for tags, and whose they are.
#[derive(Default, Debug)]
pub struct Untagged {
    /// The port or sub-port of each packet of the burst.
    pub port: [PortId; BURST],
    /// Bytes of tags that were in front of what the packet's frame is now.
    pub skipped: [u8; BURST],
    /// The tags' priorities.
    pub priority: [Priority; BURST],
    /// The packets that the stages see now, one bit each.
    pub only: u64,
}

/// Packets taken from a ring whose sweep has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unfinished {
    /// Packets taken.
    pub taken: u32,
    /// Those among them that have been through all stages.
    pub done: u32,
}

/// The packets of one ring in this sweep, and those of them that go through the stages now.
#[derive(Debug)]
pub struct Burst {
    frames: Box<[Frame; SWEEP]>,
    taken: usize,
    first: usize,
    len: usize,
    /// IPv4 packets that need nothing but forwarding.
    pub v4: Lane<u32>,
    /// IPv6 packets that need nothing but forwarding.
    pub v6: Lane<u128>,
    /// Packets for the careful path ([`slow`](super::slow)).
    pub odd: Odd,
    /// Packets that have been rewritten.
    pub ready: Ready,
    /// Bursts from a port with VLANs only.
    pub untagged: Untagged,
    /// What the stages of translation know of the burst; only while anything is translated.
    pub translations: Translations,
}

impl Default for Burst {
    fn default() -> Self {
        Self {
            frames: Box::new([Frame::EMPTY; SWEEP]),
            taken: 0,
            first: 0,
            len: 0,
            v4: Lane::default(),
            v6: Lane::default(),
            odd: Odd::default(),
            ready: Ready::default(),
            untagged: Untagged::default(),
            translations: Translations::default(),
        }
    }
}

impl Burst {
    /// Takes the packets that wait in `ring`, at most [`SWEEP`]; gives their number. Each slot is
    /// read here, once. A packet whose slot makes no sense has an empty frame.
    ///
    /// A packet that spans several buffers is not supported: each of its slots becomes a
    /// [`Frame::CHAINED`], and `chain` remembers between sweeps that one is not over.
    #[inline(always)]
    pub fn take(&mut self, ring: &RxRing, chain: &mut bool) -> u32 {
        let n = (ring.available() as usize).min(SWEEP);
        let mut chained = *chain;
        for (i, place) in self.frames[..n].iter_mut().enumerate() {
            // SAFETY: the slot lies between head and tail, and no other frame of it is in use: a
            // worker is done with the frames of one sweep before it takes the next.
            let frame = unsafe { ring.frame(ring.index(i as u32)) }.unwrap_or(Frame::EMPTY);
            chained |= frame.continues();
            *place = frame;
        }
        if chained {
            self.mark_chains(n, chain);
        }
        for frame in &self.frames[..n.min(BURST)] {
            prefetch(frame.start());
        }
        (self.taken, self.first, self.len) = (n, 0, 0);
        n as u32
    }

    #[cold]
    fn mark_chains(&mut self, n: usize, chain: &mut bool) {
        for frame in &mut self.frames[..n] {
            let continues = frame.continues();
            if *chain || continues {
                *frame = Frame::CHAINED;
            }
            *chain = continues;
        }
    }

    /// Goes on to the next burst of the packets taken, and prefetches the headers of the one after
    /// it. `false` when there are no more.
    #[inline(always)]
    pub fn advance(&mut self) -> bool {
        self.first += self.len;
        self.len = (self.taken - self.first).min(BURST);
        (self.v4.len, self.v6.len, self.ready.len) = (0, 0, 0);
        self.odd = Odd::default();
        let after = (self.first + self.len).min(self.taken);
        for frame in &self.frames[after..(after + BURST).min(self.taken)] {
            prefetch(frame.start());
        }
        self.len > 0
    }

    /// Lets the stages see these packets of the burst and no others, from the beginning.
    #[inline(always)]
    pub fn restrict(&mut self, only: u64) {
        self.untagged.only = only;
        (self.v4.len, self.v6.len, self.ready.len) = (0, 0, 0);
        self.odd = Odd::default();
    }

    /// What was taken, while a burst of it is in the stages.
    pub fn unfinished(&self) -> Option<Unfinished> {
        (self.len > 0).then_some(Unfinished { taken: self.taken as u32, done: self.first as u32 })
    }

    /// The first of the packets taken.
    pub fn first(&self) -> Option<&Frame> {
        self.frames[..self.taken].first()
    }

    /// Number of packets in this burst.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the burst has no packets.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The burst's packets, in order of arrival.
    #[inline(always)]
    pub fn frames(&mut self) -> &mut [Frame] {
        &mut self.frames[self.first..self.first + self.len]
    }

    /// The burst's packets, and what the parse stage fills.
    #[inline(always)]
    pub fn parts(&mut self) -> (&mut [Frame], &mut Lane<u32>, &mut Lane<u128>, &mut Odd) {
        let frames = &mut self.frames[self.first..self.first + self.len];
        (frames, &mut self.v4, &mut self.v6, &mut self.odd)
    }

    /// How many places after the ring's head packet `at` of the burst stands.
    #[inline(always)]
    pub fn place(&self, at: u8) -> u32 {
        (self.first + usize::from(at)) as u32
    }
}
