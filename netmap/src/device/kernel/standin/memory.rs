//! The stand-in's shared regions, byte for byte as the kernel lays them out: a pool of
//! `netmap_if`s, a pool of rings, a pool of buffers.

use std::{
    io,
    mem::offset_of,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use super::super::system::map_shared;
use crate::{
    abi::{self, netmap_if, netmap_ring, netmap_slot},
    arena::Mapping,
};

const IF_SIZE: usize = 1024;
const IFS: usize = 256;
const RING_SIZE: usize = 20480;
const RINGS: usize = 160;
/// Bytes of a buffer.
pub(super) const BUF_SIZE: u32 = 2048;
const BUFS: u32 = 32768;

const RINGS_AT: usize = IFS * IF_SIZE;
const BUFS_AT: usize = RINGS_AT + RINGS * RING_SIZE;
/// Bytes of a region.
pub(super) const MEMSIZE: usize = BUFS_AT + BUFS as usize * BUF_SIZE as usize;
/// Most slots of a ring.
pub(super) const MAX_SLOTS: u32 = ((RING_SIZE - size_of::<netmap_ring>()) / size_of::<netmap_slot>()) as u32;

/// One region, with what of it is free.
#[derive(Debug)]
pub(super) struct Memory {
    file: OwnedFd,
    map: Mapping,
    free_ifs: Vec<usize>,
    free_rings: Vec<usize>,
    free_bufs: Vec<u32>,
}

impl Memory {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: a constant, terminated name.
        let fd = unsafe { libc::memfd_create(c"netmap".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: no memory is involved.
        if unsafe { libc::ftruncate(fd, MEMSIZE as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let map = map_shared(file.as_raw_fd(), MEMSIZE)?;
        Ok(Self {
            file,
            map,
            free_ifs: (0..IFS).rev().map(|i| i * IF_SIZE).collect(),
            free_rings: (0..RINGS).rev().map(|i| RINGS_AT + i * RING_SIZE).collect(),
            free_bufs: (abi::FIRST_BUFFER..BUFS).rev().collect(),
        })
    }

    /// The user's mapping of the region.
    pub(super) fn map(&self, len: usize) -> io::Result<Mapping> {
        map_shared(self.file.as_raw_fd(), len)
    }

    pub(super) fn pools(&self, mem_id: u16) -> abi::nmreq_pools_info {
        abi::nmreq_pools_info {
            nr_memsize: MEMSIZE as u64,
            nr_mem_id: mem_id,
            nr_if_pool_objtotal: IFS as u32,
            nr_if_pool_objsize: IF_SIZE as u32,
            nr_ring_pool_offset: RINGS_AT as u64,
            nr_ring_pool_objtotal: RINGS as u32,
            nr_ring_pool_objsize: RING_SIZE as u32,
            nr_buf_pool_offset: BUFS_AT as u64,
            nr_buf_pool_objtotal: BUFS,
            nr_buf_pool_objsize: BUF_SIZE,
            ..Default::default()
        }
    }

    /// Buffers that no ring has.
    pub(super) fn free_bufs(&self) -> usize {
        self.free_bufs.len()
    }

    fn read<T: Copy>(&self, at: usize) -> T {
        assert!(at + size_of::<T>() <= MEMSIZE && at.is_multiple_of(align_of::<T>()));
        // SAFETY: inside the mapping and aligned; T is plain data in all uses.
        unsafe { self.map.start().add(at).cast::<T>().as_ptr().read_volatile() }
    }

    fn write<T>(&mut self, at: usize, value: T) {
        assert!(at + size_of::<T>() <= MEMSIZE && at.is_multiple_of(align_of::<T>()));
        // SAFETY: as for `read`.
        unsafe { self.map.start().add(at).cast::<T>().as_ptr().write_volatile(value) };
    }

    /// Makes a `netmap_if`; `None` when the pool is empty. The offsets, from the region's start,
    /// are those of transmit and receive rings, the host's included; 0 for rings not bound.
    pub(super) fn new_if(
        &mut self,
        name: &str,
        rings: [u32; 2],
        host: [u32; 2],
        tx: &[usize],
        rx: &[usize],
    ) -> Option<usize> {
        let at = self.free_ifs.pop()?;
        for i in 0..IF_SIZE {
            self.write(at + i, 0u8);
        }
        for (i, byte) in name.bytes().take(15).enumerate() {
            self.write(at + i, byte);
        }
        self.write(at + offset_of!(netmap_if, ni_tx_rings), rings[0]);
        self.write(at + offset_of!(netmap_if, ni_rx_rings), rings[1]);
        // The kernel counts a host ring here even where there is none.
        self.write(at + abi::IF_HOST_TX_RINGS, host[0].max(1));
        self.write(at + abi::IF_HOST_RX_RINGS, host[1].max(1));
        for (i, &ring) in tx.iter().chain(rx).enumerate() {
            let offset = if ring == 0 { 0 } else { ring as i64 - at as i64 };
            self.write(at + size_of::<netmap_if>() + 8 * i, offset);
        }
        Some(at)
    }

    pub(super) fn free_if(&mut self, at: usize) {
        self.free_ifs.push(at);
    }

    /// Makes a ring; `None` when rings or buffers are short. A fake ring has no buffers.
    pub(super) fn new_ring(
        &mut self,
        tx: bool,
        slots: u32,
        ringid: u16,
        fake: bool,
        offset: u16,
    ) -> Option<usize> {
        if !fake && self.free_bufs.len() < slots as usize {
            return None;
        }
        let at = self.free_rings.pop()?;
        for i in 0..size_of::<netmap_ring>() {
            self.write(at + i, 0u8);
        }
        self.write(at + offset_of!(netmap_ring, buf_ofs), BUFS_AT as i64 - at as i64);
        self.write(at + offset_of!(netmap_ring, num_slots), slots);
        self.write(at + offset_of!(netmap_ring, nr_buf_size), BUF_SIZE);
        self.write(at + offset_of!(netmap_ring, ringid), ringid);
        self.write(at + offset_of!(netmap_ring, dir), u16::from(tx));
        self.set_tail(at, if tx { slots - 1 } else { 0 });
        self.write(at + abi::RING_OFFSET_MASK, if offset > 0 { 0xfff_u64 } else { 0 });
        for i in 0..slots {
            let buf_idx = if fake { 0 } else { self.free_bufs.pop().unwrap_or(0) };
            self.set_slot(at, i, netmap_slot { buf_idx, len: 0, flags: 0, ptr: offset.into() });
        }
        Some(at)
    }

    /// Takes a ring apart; its slots' buffers are free again.
    pub(super) fn free_ring(&mut self, at: usize, slots: u32, fake: bool) {
        for i in 0..slots {
            let buf_idx = self.slot(at, i).buf_idx;
            if !fake && self.is_good(buf_idx) {
                self.free_bufs.push(buf_idx);
            }
        }
        self.free_rings.push(at);
    }

    pub(super) fn is_good(&self, buf_idx: u32) -> bool {
        (abi::FIRST_BUFFER..BUFS).contains(&buf_idx)
    }

    pub(super) fn slot(&self, ring: usize, index: u32) -> netmap_slot {
        self.read(ring + size_of::<netmap_ring>() + index as usize * size_of::<netmap_slot>())
    }

    pub(super) fn set_slot(&mut self, ring: usize, index: u32, slot: netmap_slot) {
        self.write(ring + size_of::<netmap_ring>() + index as usize * size_of::<netmap_slot>(), slot);
    }

    /// Head, cur and tail as they stand in the ring.
    pub(super) fn indices(&self, ring: usize) -> [u32; 3] {
        [offset_of!(netmap_ring, head), offset_of!(netmap_ring, cur), offset_of!(netmap_ring, tail)]
            .map(|field| self.read(ring + field))
    }

    pub(super) fn set_head(&mut self, ring: usize, head: u32) {
        self.write(ring + offset_of!(netmap_ring, head), head);
        self.write(ring + offset_of!(netmap_ring, cur), head);
    }

    pub(super) fn set_tail(&mut self, ring: usize, tail: u32) {
        self.write(ring + offset_of!(netmap_ring, tail), tail);
    }

    fn offset(&self, ring: usize, slot: netmap_slot) -> usize {
        (slot.ptr & self.read::<u64>(ring + abi::RING_OFFSET_MASK)) as usize
    }

    /// The packet in a slot; `None` when buffer or length cannot be.
    pub(super) fn packet(&self, ring: usize, slot: netmap_slot) -> Option<Vec<u8>> {
        let (offset, len) = (self.offset(ring, slot), slot.len as usize);
        if !self.is_good(slot.buf_idx) || offset + len > BUF_SIZE as usize {
            return None;
        }
        let at = BUFS_AT + slot.buf_idx as usize * BUF_SIZE as usize + offset;
        Some((at..at + len).map(|i| self.read(i)).collect())
    }

    /// Writes a packet into a slot's buffer; `false` when it has none, or the packet is too long.
    pub(super) fn set_packet(&mut self, ring: usize, slot: netmap_slot, packet: &[u8]) -> bool {
        let offset = self.offset(ring, slot);
        if !self.is_good(slot.buf_idx) || offset + packet.len() > BUF_SIZE as usize {
            return false;
        }
        let at = BUFS_AT + slot.buf_idx as usize * BUF_SIZE as usize + offset;
        for (i, &byte) in packet.iter().enumerate() {
            self.write(at + i, byte);
        }
        true
    }
}
