//! Counts that a device keeps outside the rings.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count with one writer and any number of readers: a load and a store.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    /// Adds `n`; only for the one writer.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
