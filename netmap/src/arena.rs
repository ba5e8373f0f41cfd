//! Arenas: the shared memory that holds rings and buffers.
//!
//! Two rings may exchange buffers only when they live in the same arena. The kernel's netmap
//! brings its own (one per memory id); all devices of this process that can, share one made here.

use std::{
    io,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    abi::{self, netmap_ring, netmap_slot},
    ring::{Direction, RingView},
};

/// Which memory a ring's buffers live in; rings with equal ids may exchange buffers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ArenaId(u64);

impl ArenaId {
    /// The kernel's netmap memory with this `nr_mem_id`, for rings whose slots hold offsets in the
    /// bits of `offset_mask` (0: none). A ring that does not know of offsets must not get the
    /// buffers of one that does, although they live in one memory.
    pub fn kernel(mem_id: u16, offset_mask: u64) -> Self {
        Self(u64::from(mem_id) | u64::from(offset_mask.count_ones()) << 16)
    }

    /// A new id for memory of this process.
    pub fn process() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1 << 32);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A memory mapping, undone when the last ring that lives in it is gone.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory; who may touch which part of it is the ring protocol's
// business, not the mapping's.
unsafe impl Send for Mapping {}
// SAFETY: as above; the mapping itself only hands out its address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Takes over a mapping of `len` bytes at `start` and undoes it by `munmap` when dropped.
    ///
    /// # Safety
    /// `start` and `len` are what a successful `mmap` gave and nobody else unmaps them.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }

    /// Zeroed anonymous memory, at least `len` bytes, aligned to 2 MiB and asking for huge pages.
    ///
    /// # Errors
    /// The kernel's, when there is not enough memory.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        const HUGE: usize = 2 << 20;
        let len = len.max(1).next_multiple_of(HUGE);
        // SAFETY: a fresh anonymous mapping; no existing memory is touched.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len + HUGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let aligned = (raw as usize).next_multiple_of(HUGE);
        let before = aligned - raw as usize;
        // SAFETY: both cuts lie inside the mapping just made, outside the part that is kept.
        unsafe {
            if before > 0 {
                libc::munmap(raw, before);
            }
            if before < HUGE {
                libc::munmap((aligned + len) as *mut _, HUGE - before);
            }
            #[cfg(target_os = "linux")]
            libc::madvise(aligned as *mut _, len, libc::MADV_HUGEPAGE);
        }
        let start = NonNull::new(aligned as *mut u8).expect("mmap gave no null");
        Ok(Self { start, len })
    }

    /// First byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and len are a live mapping that this value owns.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// An arena of this process: rings are cut from it one after the other, each with its buffers.
///
/// Layout: the rings first, then, aligned to 2 MiB, the buffers. Buffer `i` starts `i * 2048`
/// bytes after the first, so that the buffers can be registered with AF_XDP as one UMEM with
/// 2048-byte chunks.
#[derive(Debug)]
pub struct Arena {
    mapping: Arc<Mapping>,
    id: ArenaId,
    buffers_at: usize,
    num_bufs: u32,
    next_ring: usize,
    next_buf: u32,
}

/// Bytes of one buffer in a process arena.
pub const BUF_SIZE: u32 = 2048;

impl Arena {
    /// Memory for `rings` rings with `slots` slots in all, each slot with its buffer, and `spare`
    /// more buffers.
    ///
    /// # Errors
    /// The kernel's, when there is not enough memory.
    pub fn new(rings: usize, slots: u32, spare: u32) -> io::Result<Self> {
        let header = size_of::<netmap_ring>();
        let ring_bytes = rings * (header + 128) + slots as usize * size_of::<netmap_slot>();
        let buffers_at = ring_bytes.next_multiple_of(2 << 20);
        let num_bufs = slots + spare + abi::FIRST_BUFFER;
        let mapping = Mapping::anonymous(buffers_at + num_bufs as usize * BUF_SIZE as usize)?;
        Ok(Self {
            mapping: Arc::new(mapping),
            id: ArenaId::process(),
            buffers_at,
            num_bufs,
            next_ring: 0,
            next_buf: abi::FIRST_BUFFER,
        })
    }

    /// Which arena this is.
    pub fn id(&self) -> ArenaId {
        self.id
    }

    /// Address and length in bytes of the buffers, page-aligned: what AF_XDP registers.
    pub fn buffers(&self) -> (NonNull<u8>, usize) {
        // SAFETY: buffers_at lies inside the mapping.
        let start = unsafe { self.mapping.start().add(self.buffers_at) };
        (start, self.num_bufs as usize * BUF_SIZE as usize)
    }

    /// Number of buffers, the two reserved ones included.
    pub fn num_bufs(&self) -> u32 {
        self.num_bufs
    }

    /// The memory itself; rings hold it alive.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Takes a spare buffer out of the arena for good; `None` when all are taken.
    pub fn take_buffer(&mut self) -> Option<u32> {
        (self.next_buf < self.num_bufs).then(|| {
            self.next_buf += 1;
            self.next_buf - 1
        })
    }

    /// Cuts a ring of `slots` slots, a buffer in each. A receive ring starts empty (head = tail =
    /// 0); a transmit ring starts with all but one slot free.
    ///
    /// # Panics
    /// When more is asked for than [`Arena::new`] was told.
    pub fn ring(&mut self, direction: Direction, slots: u32, ringid: u16) -> RingView {
        let at = self.next_ring.next_multiple_of(128);
        let bytes = size_of::<netmap_ring>() + slots as usize * size_of::<netmap_slot>();
        assert!(at + bytes <= self.buffers_at, "arena has no room for another ring");
        assert!(self.next_buf + slots <= self.num_bufs, "arena has no buffers for another ring");
        self.next_ring = at + bytes;
        let first = self.next_buf;
        self.next_buf += slots;
        // SAFETY: the range [at, at + bytes) was checked to lie inside the ring part of the
        // mapping and belongs to no other ring; it is zeroed memory, aligned to 128.
        unsafe {
            let ring = self.mapping.start().add(at).cast::<netmap_ring>();
            let r = ring.as_ptr();
            (*r).buf_ofs = (self.buffers_at - at) as i64;
            (*r).num_slots = slots;
            (*r).nr_buf_size = BUF_SIZE;
            (*r).ringid = ringid;
            (*r).dir = direction as u16;
            ring.cast::<u8>().add(abi::RING_OFFSET_MASK).cast::<u64>().write(u64::from(BUF_SIZE) - 1);
            if direction == Direction::Tx {
                (*r).tail = slots - 1;
            }
            let slot = ring.add(1).cast::<netmap_slot>();
            for i in 0..slots {
                slot.add(i as usize).write(netmap_slot { buf_idx: first + i, len: 0, flags: 0, ptr: 0 });
            }
            RingView::new(ring, self.num_bufs, self.id, self.mapping.clone())
        }
    }
}
