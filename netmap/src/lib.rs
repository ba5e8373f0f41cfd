//! Netmap rings for everything that moves packets.
//!
//! A *ring* is a circle of slots; a slot names a buffer by its index in an *arena* (one shared
//! memory region) and gives the packet's length. The owner of a ring works on the slots between
//! `head` and `tail`, moves `head`, and calls `sync`; the device does the rest. That is the whole
//! interface: the kernel's netmap, AF_XDP, capture files, in-process pipes and the traffic
//! generator differ only in what their `sync` does. Nothing in this crate knows about routing.
//!
//! The layout of rings and slots is the kernel's (`netmap_sys`), for the devices of this process
//! as well: a packet moves between two rings of one arena by exchanging two 32-bit indices.

pub mod abi;
pub mod arena;
pub mod device;
pub mod queue;
pub mod ring;

pub use arena::{Arena, ArenaId, Mapping};
pub use device::{Host, OpenError, OpenOptions, Port, PortInfo};
pub use queue::{Losses, RxDevice, RxQueue, SyncError, TxDevice, TxQueue, Wait};
pub use ring::{Frame, Kring, RingView, RxRing, TxRing};

/// Asks the processor to bring the cache line at `p` closer; never faults, whatever `p` is.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; the instruction reads nothing that the program can see and
    // does not fault on any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}
