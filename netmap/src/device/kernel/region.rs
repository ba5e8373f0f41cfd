//! The memory that the kernel shares: finding rings in it, and checking, once, that everything
//! they lead to lies inside.

use std::{ptr::NonNull, sync::Arc};

use super::{errors, system::Descriptor};
use crate::{
    abi::{self, netmap_if, netmap_ring, netmap_slot, nmreq_pools_info, nmreq_register},
    arena::{ArenaId, Mapping},
    ring::{Direction, RingView},
};

/// Rings have at most this many slots.
const MAX_SLOTS: u32 = 1 << 16;
/// Buffers have at least and at most this many bytes.
const BUF_SIZES: std::ops::RangeInclusive<u32> = 64..=1 << 16;

/// The mapped memory of a port.
#[derive(Debug)]
pub(super) struct Region {
    memory: Arc<Mapping>,
    mem_id: u16,
    /// Where the buffers begin, how many there are and how long each is, by the kernel's account
    /// of its memory.
    pool: Option<(u64, u32, u32)>,
}

impl Region {
    /// Maps the memory of the port registered on `descriptor`.
    pub(super) fn new(
        descriptor: &Descriptor,
        reply: &nmreq_register,
        pools: Option<&nmreq_pools_info>,
    ) -> Result<Self, String> {
        let len = usize::try_from(reply.nr_memsize).unwrap_or(0);
        if len < size_of::<netmap_if>() {
            return Err("the kernel gave no memory for the port; load netmap again".into());
        }
        let memory = descriptor
            .map(len)
            .map_err(|e| format!("netmap memory of {len} bytes: {}", errors::plain(&e)))?;
        let pool = pools
            .filter(|p| p.nr_mem_id == reply.nr_mem_id && p.nr_buf_pool_objtotal > 0)
            .map(|p| (p.nr_buf_pool_offset, p.nr_buf_pool_objtotal, p.nr_buf_pool_objsize));
        Ok(Self { memory: Arc::new(memory), mem_id: reply.nr_mem_id, pool })
    }

    /// Bytes of one buffer, where the kernel has told.
    pub(super) fn buf_size(&self) -> Option<u32> {
        self.pool.map(|(_, _, size)| size)
    }

    /// Address of a `T` that lies `at` bytes into the region; `None` when it would not fit or not
    /// be aligned.
    fn at<T>(&self, at: u64) -> Option<NonNull<T>> {
        let start = usize::try_from(at).ok()?;
        let end = start.checked_add(size_of::<T>())?;
        // SAFETY: start lies inside the mapping.
        (end <= self.memory.len() && start.is_multiple_of(align_of::<T>()))
            .then(|| unsafe { self.memory.start().add(start).cast() })
    }

    fn read<T: Copy>(&self, at: u64) -> Option<T> {
        // SAFETY: the address lies inside the mapping and is aligned; any bytes are a T, which is
        // an integer in all uses; the kernel may write at any time, hence volatile.
        self.at::<T>(at).map(|p| unsafe { p.as_ptr().read_volatile() })
    }

    /// Ring `index` of a direction, of the port or of the host, by the `netmap_if` that lies
    /// `nifp` bytes into the region. `None` when the ring is not bound to the descriptor that the
    /// `netmap_if` belongs to.
    ///
    /// `ring_ofs` holds transmit rings, host transmit rings, receive rings, host receive rings.
    /// The `netmap_if` keeps a place for a host ring even where there is none.
    pub(super) fn ring(
        &self,
        nifp: u64,
        direction: Direction,
        host: bool,
        index: u16,
    ) -> Result<Option<RingView>, String> {
        let outside = || "the kernel's netmap_if lies outside its memory; load netmap again".to_owned();
        let count = |offset: usize| -> Result<u64, String> {
            let at = nifp.checked_add(offset as u64).ok_or_else(outside)?;
            self.read::<u32>(at).map(u64::from).ok_or_else(outside)
        };
        let tx = count(std::mem::offset_of!(netmap_if, ni_tx_rings))?;
        let rx = count(std::mem::offset_of!(netmap_if, ni_rx_rings))?;
        let host_tx = count(abi::IF_HOST_TX_RINGS)?;
        let first = match (direction, host) {
            (Direction::Tx, false) => 0,
            (Direction::Tx, true) => tx,
            (Direction::Rx, false) => tx + host_tx,
            (Direction::Rx, true) => tx + host_tx + rx,
        };
        let place = nifp + size_of::<netmap_if>() as u64 + (first + u64::from(index)) * 8;
        match self.read::<i64>(place).ok_or_else(outside)? {
            0 => Ok(None),
            offset => {
                let at = nifp.checked_add_signed(offset).ok_or_else(outside)?;
                self.view(at, direction)
                    .map(Some)
                    .map_err(|what| format!("the kernel's ring {index} cannot be: {what}; load netmap again"))
            }
        }
    }

    /// The ring `at` bytes into the region, checked with all that it leads to.
    fn view(&self, at: u64, direction: Direction) -> Result<RingView, &'static str> {
        let ring = self.at::<netmap_ring>(at).ok_or("it lies outside the memory")?;
        // SAFETY: inside the mapping and aligned; the kernel writes these fields once, before the
        // register returns.
        let (buf_ofs, num_slots, buf_size, dir) = unsafe {
            let r = ring.as_ptr();
            ((*r).buf_ofs, (*r).num_slots, (*r).nr_buf_size, (*r).dir)
        };
        if dir != direction as u16 {
            return Err("its direction is wrong");
        }
        if !(2..=MAX_SLOTS).contains(&num_slots) || !BUF_SIZES.contains(&buf_size) {
            return Err("so many slots, or such buffers, there are not");
        }
        let len = self.memory.len() as u64;
        let end = at + (size_of::<netmap_ring>() + num_slots as usize * size_of::<netmap_slot>()) as u64;
        let bufs = at.checked_add_signed(buf_ofs).filter(|&b| b < len).ok_or("its buffers lie outside")?;
        if end > len {
            return Err("its slots lie outside the memory");
        }
        let mut num_bufs = u32::try_from((len - bufs) / u64::from(buf_size)).unwrap_or(u32::MAX);
        if let Some((start, total, size)) = self.pool
            && (start, size) == (bufs, buf_size)
        {
            num_bufs = num_bufs.min(total);
        }
        let offset_mask = self.read(at + abi::RING_OFFSET_MASK as u64).unwrap_or(0);
        let arena = ArenaId::kernel(self.mem_id, offset_mask);
        // SAFETY: ring, slots and num_bufs buffers were just checked to lie inside the mapping.
        Ok(unsafe { RingView::new(ring, num_bufs, arena, self.memory.clone()) })
    }
}
