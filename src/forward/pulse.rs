//! A worker's pulse: by which others see that it goes on, at the cost of one plain store a sweep.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a worker shows of how it is. A cache line of its own (two, since processors fetch them in
/// pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Pulse {
    sweeps: AtomicU64,
    faults: AtomicU64,
}

impl Pulse {
    /// Another sweep is over. Only the worker calls this.
    #[inline(always)]
    pub fn beat(&self) {
        // No other writer: a load and a store need no lock prefix.
        self.sweeps.store(self.sweeps.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Sweeps so far.
    pub fn sweeps(&self) -> u64 {
        self.sweeps.load(Ordering::Relaxed)
    }

    /// The worker has met a fault of its own. Only the worker calls this.
    pub fn fault(&self) {
        self.faults.store(self.faults() + 1, Ordering::Relaxed);
    }

    /// Faults so far.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }
}
