//! The kernel's netmap interface, API 14: what the ring code needs of it.
//!
//! Struct types come from the crate `netmap_sys` where they are right (slot, ring, interface);
//! what it lacks stands here.

pub use netmap_sys::netmap::{NS_BUF_CHANGED, NS_MOREFRAG, netmap_if, netmap_ring, netmap_slot};

/// The API version to ask for. `netmap_sys` says 11, which kernels since 2019 refuse.
pub const NETMAP_API: u16 = 14;

/// Offset of `offset_mask` (u64) in `netmap_ring`; `netmap_sys` has it inside its padding.
pub const RING_OFFSET_MASK: usize = 56;
/// Offset of `buf_align` (u64) in `netmap_ring`.
pub const RING_BUF_ALIGN: usize = 64;

/// Buffers 0 and 1 belong to the kernel and never carry packets.
pub const FIRST_BUFFER: u32 = 2;
