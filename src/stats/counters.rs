//! The counters' memory layout: what a worker writes and any process may read.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::forward::verdict::{VERDICTS_MAX, Verdict};

/// A counter with one writer and any number of readers: plain loads and stores.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the counter's one writer may call this.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        // A load and a store, not fetch_add: there is no other writer, so no lock prefix.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Takes `n` away, for gauges. Only the counter's one writer may call this.
    #[inline(always)]
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(n), Ordering::Relaxed);
    }

    /// Sets the value. Only the counter's one writer may call this.
    #[inline(always)]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The value.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one writer (a worker, or the keeper) for one port.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct PortBlock {
    /// Packets received.
    pub rx_packets: Counter,
    /// Bytes received, without FCS.
    pub rx_bytes: Counter,
    /// Lost before a worker saw them.
    pub rx_dropped: Counter,
    /// Arrived damaged, by the device's word; malformed frames are verdicts.
    pub rx_errors: Counter,
    /// Packets sent.
    pub tx_packets: Counter,
    /// Bytes sent, without FCS.
    pub tx_bytes: Counter,
    /// Lost after the transmit ring, by the device's word.
    pub tx_dropped: Counter,
    /// Packets meant for this port that found its transmit ring full.
    pub tx_full: Counter,
    /// Refused by the device on the way out.
    pub tx_errors: Counter,
    /// Packets made here and sent out of this port: ICMP errors, fragments, answers.
    pub made: Counter,
    /// Packets received here that wait for a neighbour now.
    pub held: Counter,
    /// Packets received here that were put into a hand-over ring, ever.
    pub handed_over: Counter,
    /// Packets taken out of a hand-over ring, ever, that were received on this port.
    pub taken_over: Counter,
    /// Packets that express forwarded from this port.
    pub express: Counter,
    /// Packets taken from the host's own stack, to be sent out of this port.
    pub from_host: Counter,
    /// Flows that the writer keeps now; in the block of its last place alone, for all ports.
    pub flows: Counter,
    /// Packets received on this port, by verdict.
    pub verdicts: [Counter; VERDICTS_MAX],
    reserved2: [Counter; 8],
}

const _: () = assert!(size_of::<PortBlock>().is_multiple_of(128));

impl PortBlock {
    /// All counters, in the order in which they lie.
    fn all(&self) -> &[Counter] {
        // SAFETY: the block is nothing but counters, one behind the other.
        unsafe {
            std::slice::from_raw_parts(
                std::ptr::from_ref(self).cast(),
                size_of::<Self>() / size_of::<Counter>(),
            )
        }
    }

    /// Adds everything that `other` counts and sets `other` to zero. Only while neither has a writer,
    /// but for `flows`, which stay.
    pub fn absorb(&self, other: &Self) {
        for (mine, theirs) in self.all().iter().zip(other.all()) {
            if std::ptr::eq(mine, &self.flows) {
                continue;
            }
            mine.add(theirs.get());
            theirs.set(0);
        }
    }

    /// Counts `n` packets received on this port as ended by `verdict`.
    #[inline(always)]
    pub fn count(&self, verdict: Verdict, n: u64) {
        self.verdicts[verdict as usize].add(n);
    }
}
