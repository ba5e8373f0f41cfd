//! A heap that knows how much of it is in use, so that the size of other people's tables can be
//! read off. It adds nothing to what is timed: nothing that is timed allocates.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// The system's heap, counted. A program that wants [`in_use`] makes it its global allocator.
pub struct Counted;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Bytes that are allocated and not freed, as they were asked for; 0 when [`Counted`] is not the
/// global allocator.
pub fn in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}
