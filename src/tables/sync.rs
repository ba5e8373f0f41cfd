//! The few things that publication is made of, so that the same protocol can run under loom.
//!
//! Built normally these are the standard atomics and the `seqlock` crate. With `--cfg loom` they
//! are loom's, which tries every interleaving that the memory model allows; loom can't see into
//! the crate, so a seqlock of the same steps over loom's atomics takes its place.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};

use std::ptr::NonNull;
#[cfg(not(loom))]
use std::time::Duration;

/// What a sweep takes: which tables, and their generation.
#[derive(Debug)]
pub(crate) struct Descriptor<T> {
    pub generation: u64,
    pub tables: NonNull<T>,
}

impl<T> Clone for Descriptor<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Descriptor<T> {}

// SAFETY: a number and an address; whoever dereferences it answers for that.
unsafe impl<T: Send + Sync> Send for Descriptor<T> {}

/// The descriptor in force, behind a seqlock.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Current<T> {
    #[cfg(not(loom))]
    descriptor: seqlock::SeqLock<Descriptor<T>>,
    #[cfg(loom)]
    descriptor: model::SeqLock<T>,
}

impl<T> Current<T> {
    #[cfg(not(loom))]
    pub fn new(descriptor: Descriptor<T>) -> Self {
        Self { descriptor: seqlock::SeqLock::new(descriptor) }
    }

    #[cfg(loom)]
    pub fn new(descriptor: Descriptor<T>) -> Self {
        Self { descriptor: model::SeqLock::new(descriptor) }
    }

    #[inline(always)]
    pub fn read(&self) -> Descriptor<T> {
        self.descriptor.read()
    }

    #[cfg(not(loom))]
    pub fn write(&self, descriptor: Descriptor<T>) {
        *self.descriptor.lock_write() = descriptor;
    }

    #[cfg(loom)]
    pub fn write(&self, descriptor: Descriptor<T>) {
        self.descriptor.write(descriptor);
    }

    /// Stops in the middle of a write for `time`, as a writer that lost its core would.
    #[cfg(all(test, not(loom)))]
    pub fn stop_mid_write(&self, time: Duration) {
        let guard = self.descriptor.lock_write();
        std::thread::sleep(time);
        drop(guard);
    }
}

/// Waits a little before the `round`th look at a condition, leaving the core to others.
#[cfg(not(loom))]
pub(crate) fn pause(round: u32) {
    std::thread::sleep(Duration::from_micros(20 << round.min(5)));
}

/// Lets loom run the other threads.
#[cfg(loom)]
pub(crate) fn pause(_round: u32) {
    loom::thread::yield_now();
}

#[cfg(loom)]
mod model {
    //! The steps of the `seqlock` crate over loom's atomics, for a single writer.

    use std::ptr::NonNull;

    use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

    use super::Descriptor;

    #[derive(Debug)]
    pub struct SeqLock<T> {
        sequence: AtomicUsize,
        generation: AtomicU64,
        tables: AtomicPtr<T>,
    }

    impl<T> SeqLock<T> {
        pub fn new(descriptor: Descriptor<T>) -> Self {
            Self {
                sequence: AtomicUsize::new(0),
                generation: AtomicU64::new(descriptor.generation),
                tables: AtomicPtr::new(descriptor.tables.as_ptr()),
            }
        }

        pub fn read(&self) -> Descriptor<T> {
            loop {
                let before = self.sequence.load(Ordering::Acquire);
                if before & 1 != 0 {
                    loom::thread::yield_now();
                    continue;
                }
                let generation = self.generation.load(Ordering::Relaxed);
                let tables = self.tables.load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    let tables = NonNull::new(tables).expect("only non-null pointers are written");
                    return Descriptor { generation, tables };
                }
                loom::thread::yield_now();
            }
        }

        pub fn write(&self, descriptor: Descriptor<T>) {
            let sequence = self.sequence.load(Ordering::Relaxed);
            self.sequence.store(sequence + 1, Ordering::Relaxed);
            fence(Ordering::Release);
            self.generation.store(descriptor.generation, Ordering::Relaxed);
            self.tables.store(descriptor.tables.as_ptr(), Ordering::Relaxed);
            self.sequence.store(sequence + 2, Ordering::Release);
        }
    }
}
