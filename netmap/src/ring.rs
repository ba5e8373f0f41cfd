//! Rings, from both sides: the user's ([`RxRing`], [`TxRing`]) and, for devices that live in this
//! process, the kernel's ([`Kring`]).
//!
//! ```text
//!           head          tail                       head         tail
//!   receive: |  to be read |  empty       transmit:   |    free    |  on their way
//! ```
//!
//! The user owns the slots from `head` up to `tail`; everything else belongs to the device. Both
//! indices are private copies between two syncs; what the other side wrote is checked once, on
//! entry, and never trusted again.

use std::{ptr::NonNull, sync::Arc};

use crate::{
    abi::{self, NS_BUF_CHANGED, NS_MOREFRAG, netmap_ring, netmap_slot},
    arena::{ArenaId, Mapping},
};

/// The ring's `dir` field, as the kernel writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Direction {
    /// Packets come in.
    Rx = 0,
    /// Packets go out.
    Tx = 1,
}

/// Where a ring, its slots and its buffers are; what both sides of a ring share.
#[derive(Clone, Debug)]
pub struct RingView {
    ring: NonNull<netmap_ring>,
    slots: NonNull<netmap_slot>,
    bufs: NonNull<u8>,
    num_slots: u32,
    buf_size: u32,
    num_bufs: u32,
    offset_mask: u64,
    arena: ArenaId,
    _memory: Arc<Mapping>,
}

// SAFETY: the pointers lead into `_memory`, which the view keeps alive; a ring has one owner per
// side, and moving that owner to another thread moves its side of the protocol with it.
unsafe impl Send for RingView {}

impl RingView {
    /// A view of the ring at `ring`, whose slots may name buffers below `num_bufs`.
    ///
    /// # Safety
    /// `ring` leads to a netmap ring inside `memory`, complete with its slots, and its `buf_ofs`
    /// to `num_bufs` buffers inside `memory`; both stay as they are while the view lives.
    pub unsafe fn new(
        ring: NonNull<netmap_ring>,
        num_bufs: u32,
        arena: ArenaId,
        memory: Arc<Mapping>,
    ) -> Self {
        // SAFETY: by the caller's word a ring is there.
        unsafe {
            let r = ring.as_ref();
            Self {
                ring,
                slots: ring.add(1).cast(),
                bufs: NonNull::new_unchecked(ring.as_ptr().cast::<u8>().offset(r.buf_ofs as isize)),
                num_slots: r.num_slots,
                buf_size: r.nr_buf_size,
                num_bufs,
                offset_mask: ring.cast::<u8>().add(abi::RING_OFFSET_MASK).cast::<u64>().read(),
                arena,
                _memory: memory,
            }
        }
    }

    /// Number of slots; at most one less is ever in one side's hands.
    pub fn num_slots(&self) -> u32 {
        self.num_slots
    }

    /// Bytes of one buffer.
    pub fn buf_size(&self) -> u32 {
        self.buf_size
    }

    /// Slots name buffers below this.
    pub fn num_bufs(&self) -> u32 {
        self.num_bufs
    }

    /// The arena that the ring's buffers belong to.
    pub fn arena(&self) -> ArenaId {
        self.arena
    }

    /// The slot after `index`.
    #[inline(always)]
    pub fn next(&self, index: u32) -> u32 {
        if index + 1 == self.num_slots { 0 } else { index + 1 }
    }

    /// The slot `n` places after `index`; `n` is at most the number of slots.
    #[inline(always)]
    fn forward(&self, index: u32, n: u32) -> u32 {
        let i = index + n;
        if i >= self.num_slots { i - self.num_slots } else { i }
    }

    /// How many steps lead from `from` to `to`.
    #[inline(always)]
    fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { to + self.num_slots - from }
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> *mut netmap_slot {
        debug_assert!(index < self.num_slots);
        // SAFETY: every index in this file is below num_slots.
        unsafe { self.slots.as_ptr().add(index as usize) }
    }

    /// The buffers named by the ring's slots, in slot order: for counting that none is lost.
    pub fn buffer_indices(&self) -> Vec<u32> {
        // SAFETY: reading a slot's index is always possible; its meaning is the caller's affair.
        (0..self.num_slots).map(|i| unsafe { (&raw const (*self.slot(i)).buf_idx).read_volatile() }).collect()
    }

    /// Address of the first byte of the packet in a slot: its buffer plus the slot's offset.
    #[inline(always)]
    fn data(&self, slot: netmap_slot) -> (*mut u8, u32) {
        let offset = (slot.ptr & self.offset_mask) as u32;
        let at = slot.buf_idx as usize * self.buf_size as usize + offset as usize;
        (self.bufs.as_ptr().wrapping_add(at), offset)
    }

    /// The head and tail that stand in the ring now.
    pub(crate) fn read_head_tail(&self) -> (u32, u32) {
        let r = self.ring.as_ptr();
        // SAFETY: the ring header is alive; the other side may write it at any time, hence volatile.
        unsafe { ((&raw const (*r).head).read_volatile(), (&raw const (*r).tail).read_volatile()) }
    }

    /// Takes over the indices that the device wrote, checked, into the user's own.
    fn refresh(&self, own_head: &mut u32, own_tail: &mut u32) -> Result<(), RingReset> {
        let (head, tail) = self.read_head_tail();
        if head != *own_head || tail >= self.num_slots {
            *own_head = if head < self.num_slots { head } else { 0 };
            *own_tail = if tail < self.num_slots { tail } else { *own_head };
            return Err(RingReset);
        }
        *own_tail = tail;
        Ok(())
    }

    fn write_head(&self, head: u32) {
        let r = self.ring.as_ptr();
        // SAFETY: head and cur are the user's to write.
        unsafe {
            (&raw mut (*r).cur).write_volatile(head);
            (&raw mut (*r).head).write_volatile(head);
        }
    }
}

/// The device wrote ring indices that cannot be, or took back what the user had written (the
/// kernel resets a ring whose contents it refuses, without an error).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingReset;

/// One packet in a buffer: where it is and how long. Its bytes may be read and changed in place.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    start: *mut u8,
    len: u32,
    flags: u16,
}

impl Frame {
    /// A frame without bytes; what fills a burst before packets do.
    pub const EMPTY: Frame = Frame { start: NonNull::dangling().as_ptr(), len: 0, flags: 0 };

    /// What stands for a packet that spans several buffers: no bytes, and it continues.
    pub const CHAINED: Frame = Frame { flags: NS_MOREFRAG, ..Frame::EMPTY };

    /// A frame over bytes outside any ring: held packets, tests.
    pub fn over(bytes: &mut [u8]) -> FrameMut<'_> {
        FrameMut {
            frame: Frame { start: bytes.as_mut_ptr(), len: bytes.len() as u32, flags: 0 },
            _bytes: bytes,
        }
    }

    /// Length in bytes.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "an empty frame is one of length 0, nothing else asks")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Address of the first byte, for prefetching.
    #[inline(always)]
    pub fn start(&self) -> *const u8 {
        self.start
    }

    /// Whether the packet goes on in the next slot.
    #[inline(always)]
    pub fn continues(&self) -> bool {
        self.flags & NS_MOREFRAG != 0
    }

    /// All bytes.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: start and len were checked against the buffer when the frame was made, and
        // whoever made it (`RxRing::frame`, `Frame::over`) owns those bytes alone.
        unsafe { std::slice::from_raw_parts(self.start, self.len as usize) }
    }

    /// All bytes, to be changed.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len as usize) }
    }

    /// Leaves out the first `n` bytes; all bytes, when there are no more.
    #[inline(always)]
    pub fn skip(&mut self, n: u32) {
        let n = n.min(self.len);
        // SAFETY: the bytes from `start` on are `len` or more; so it stays inside or at their end.
        self.start = unsafe { self.start.add(n as usize) };
        self.len -= n;
    }

    /// The first `N` bytes, or `None` when the frame is shorter.
    #[inline(always)]
    pub fn first<const N: usize>(&mut self) -> Option<&mut [u8; N]> {
        self.bytes_mut().first_chunk_mut()
    }
}

/// A [`Frame`] bound to the slice it was made from.
#[derive(Debug)]
pub struct FrameMut<'a> {
    frame: Frame,
    _bytes: &'a mut [u8],
}

impl std::ops::Deref for FrameMut<'_> {
    type Target = Frame;
    fn deref(&self) -> &Frame {
        &self.frame
    }
}

impl std::ops::DerefMut for FrameMut<'_> {
    fn deref_mut(&mut self) -> &mut Frame {
        &mut self.frame
    }
}

/// The user's side of a receive ring.
#[derive(Debug)]
pub struct RxRing {
    view: RingView,
    head: u32,
    tail: u32,
}

impl RxRing {
    /// Takes the user's side of the ring.
    pub fn new(view: RingView) -> Self {
        let (head, tail) = view.read_head_tail();
        let n = view.num_slots;
        Self { view, head: head % n, tail: tail % n }
    }

    /// The ring's place and shape.
    pub fn view(&self) -> &RingView {
        &self.view
    }

    /// Packets (slots) to be read.
    #[inline(always)]
    pub fn available(&self) -> u32 {
        self.view.distance(self.head, self.tail)
    }

    /// Index of the slot `n` places after the head.
    #[inline(always)]
    pub fn index(&self, n: u32) -> u32 {
        self.view.forward(self.head, n)
    }

    /// The packet in slot `index`; `None` when the device named a buffer or a length that cannot
    /// be.
    ///
    /// # Safety
    /// The slot lies between head and tail, and no other frame of the same slot is in use.
    #[inline(always)]
    pub unsafe fn frame(&self, index: u32) -> Option<Frame> {
        // SAFETY: index is below num_slots; one volatile read, then only the copy counts.
        let slot = unsafe { self.view.slot(index).read_volatile() };
        let (start, offset) = self.view.data(slot);
        let good = slot.buf_idx < self.view.num_bufs && offset + u32::from(slot.len) <= self.view.buf_size;
        good.then_some(Frame { start, len: slot.len.into(), flags: slot.flags })
    }

    /// Gives the first `n` slots back to the device; takes effect at the next sync.
    #[inline(always)]
    pub fn advance(&mut self, n: u32) {
        debug_assert!(n <= self.available());
        self.head = self.view.forward(self.head, n);
    }

    /// Shows the device the slots given back.
    pub fn publish(&mut self) {
        self.view.write_head(self.head);
    }

    /// Takes over what the device wrote, checked.
    ///
    /// # Errors
    /// [`RingReset`] when the device changed the head or wrote a tail that cannot be; the ring
    /// then starts anew, empty, at the device's head.
    pub fn refresh(&mut self) -> Result<(), RingReset> {
        self.view.refresh(&mut self.head, &mut self.tail)
    }
}

/// The user's side of a transmit ring.
#[derive(Debug)]
pub struct TxRing {
    view: RingView,
    head: u32,
    tail: u32,
    min_len: u32,
}

impl TxRing {
    /// Takes the user's side of the ring.
    pub fn new(view: RingView) -> Self {
        let (head, tail) = view.read_head_tail();
        let n = view.num_slots;
        Self { view, head: head % n, tail: tail % n, min_len: 0 }
    }

    /// Pads frames to at least `bytes` with zeroes, as Ethernet hardware wants (60).
    pub fn pad_to(&mut self, bytes: u32) {
        self.min_len = bytes;
    }

    /// The ring's place and shape.
    pub fn view(&self) -> &RingView {
        &self.view
    }

    /// Free slots.
    #[inline(always)]
    pub fn space(&self) -> u32 {
        self.view.distance(self.head, self.tail)
    }

    /// Sends the packet in slot `index` of `rx`, `len` bytes from the slot's start: by exchanging
    /// the two slots' buffers when both rings share an arena, else by copying. `false` when the
    /// ring is full, or the packet does not fit its buffers; nothing has happened then.
    #[inline(always)]
    pub fn forward(&mut self, rx: &RxRing, index: u32, len: u32) -> bool {
        if rx.view.arena != self.view.arena {
            return self.forward_by_copy(rx, index, len);
        }
        if self.head == self.tail {
            return false;
        }
        let len = if len < self.min_len { self.pad(rx, index, len) } else { len };
        let (to, from) = (self.view.slot(self.head), rx.view.slot(index));
        // SAFETY: both slots are the user's: `from` lies between its ring's head and tail by the
        // caller's bookkeeping, `to` is free. They are in different rings, so never the same.
        unsafe {
            let (t, f) = (to.read(), from.read());
            to.write(netmap_slot { buf_idx: f.buf_idx, len: len as u16, flags: NS_BUF_CHANGED, ptr: f.ptr });
            from.write(netmap_slot { buf_idx: t.buf_idx, len: 0, flags: NS_BUF_CHANGED, ptr: 0 });
        }
        self.head = self.view.next(self.head);
        true
    }

    /// Zeroes the bytes behind a short frame in its own buffer; gives the length to send.
    fn pad(&self, rx: &RxRing, index: u32, len: u32) -> u32 {
        // SAFETY: the slot is the user's, by the same word as in `forward`.
        let slot = unsafe { rx.view.slot(index).read() };
        let (start, offset) = rx.view.data(slot);
        if slot.buf_idx < rx.view.num_bufs && offset + self.min_len <= rx.view.buf_size {
            // SAFETY: checked to lie inside the buffer, which is the slot's.
            unsafe { start.add(len as usize).write_bytes(0, (self.min_len - len) as usize) };
            self.min_len
        } else {
            len
        }
    }

    #[cold]
    fn forward_by_copy(&mut self, rx: &RxRing, index: u32, len: u32) -> bool {
        // SAFETY: the caller owns the slot; the frame lives only for this copy.
        match unsafe { rx.frame(index) } {
            Some(frame) => self.send(&frame.bytes()[..(len.min(frame.len)) as usize]),
            None => false,
        }
    }

    /// Sends a copy of `packet`; `false` when the ring is full or the packet longer than a buffer.
    pub fn send(&mut self, packet: &[u8]) -> bool {
        self.send_with(packet.len() as u32, |buf| buf.copy_from_slice(packet))
    }

    /// Sends `len` bytes that `fill` writes straight into the buffer (which holds old bytes
    /// before); `false`, without calling it, when the ring is full or `len` too long.
    pub fn send_with(&mut self, len: u32, fill: impl FnOnce(&mut [u8])) -> bool {
        let padded = len.max(self.min_len);
        if self.head == self.tail || padded > self.view.buf_size {
            return false;
        }
        let to = self.view.slot(self.head);
        // SAFETY: the slot is free and the user's, its buffer too; index and length are checked.
        unsafe {
            let mut slot = to.read();
            if slot.buf_idx >= self.view.num_bufs {
                return false;
            }
            slot.ptr &= !self.view.offset_mask;
            let (start, _) = self.view.data(slot);
            let buf = std::slice::from_raw_parts_mut(start, padded as usize);
            fill(&mut buf[..len as usize]);
            buf[len as usize..].fill(0);
            to.write(netmap_slot { len: padded as u16, flags: 0, ..slot });
        }
        self.head = self.view.next(self.head);
        true
    }

    /// Shows the device the slots filled.
    pub fn publish(&mut self) {
        self.view.write_head(self.head);
    }

    /// Takes over what the device wrote, checked.
    ///
    /// # Errors
    /// [`RingReset`], as for [`RxRing::refresh`].
    pub fn refresh(&mut self) -> Result<(), RingReset> {
        self.view.refresh(&mut self.head, &mut self.tail)
    }
}

/// The device's side of a ring, for devices of this process.
///
/// It keeps the kernel's two indices: `cur`, up to where it has taken what the user handed over,
/// and `tail`, up to where slots are the user's.
#[derive(Debug)]
pub struct Kring {
    view: RingView,
    cur: u32,
    tail: u32,
}

impl Kring {
    /// Takes the device's side of the ring.
    pub fn new(view: RingView) -> Self {
        let (cur, tail) = view.read_head_tail();
        Self { view, cur, tail }
    }

    /// The ring's place and shape.
    pub fn view(&self) -> &RingView {
        &self.view
    }

    /// Slots that the user has handed over since the last time: packets to send, or buffers given
    /// back.
    pub fn handed(&self) -> u32 {
        let (head, _) = self.view.read_head_tail();
        if head >= self.view.num_slots {
            return 0;
        }
        self.view.distance(self.cur, head)
    }

    /// Takes the next slot that the user has handed over; `None` when there is none.
    pub fn take(&mut self) -> Option<&mut netmap_slot> {
        if self.handed() == 0 {
            return None;
        }
        let index = self.cur;
        self.cur = self.view.next(index);
        // SAFETY: slots between cur and head are the device's.
        Some(unsafe { &mut *self.view.slot(index) })
    }

    /// Takes the buffers out of all slots that are the device's, for devices whose buffers leave
    /// their slots; such a slot names buffer 0, which is none, until it is filled again.
    pub fn take_buffers(&mut self) -> Vec<u32> {
        let mut buffers = Vec::new();
        let mut index = self.tail;
        loop {
            // SAFETY: slots from tail up to cur are the device's; all of them when both are equal.
            let slot = unsafe { &mut *self.view.slot(index) };
            buffers.push(std::mem::take(&mut slot.buf_idx));
            index = self.view.next(index);
            if index == self.cur {
                return buffers;
            }
        }
    }

    /// Slots that can be given to the user: those taken and not given yet, less the one that
    /// always stays.
    pub fn room(&self) -> u32 {
        self.view.distance(self.tail, self.cur).wrapping_sub(1).min(self.view.num_slots - 1)
    }

    /// The next slot to be given to the user, to be filled before [`Kring::give`]; `None` when
    /// there is no room.
    pub fn next_to_give(&mut self) -> Option<&mut netmap_slot> {
        if self.view.next(self.tail) == self.cur {
            return None;
        }
        // SAFETY: slots between tail and cur are the device's.
        Some(unsafe { &mut *self.view.slot(self.tail) })
    }

    /// Gives the slot last shown by [`Kring::next_to_give`]; seen by the user after
    /// [`Kring::publish`].
    pub fn give(&mut self) {
        self.tail = self.view.next(self.tail);
    }

    /// Writes the tail for the user to see.
    pub fn publish(&mut self) {
        let r = self.view.ring.as_ptr();
        // SAFETY: the tail is the device's to write.
        unsafe { (&raw mut (*r).tail).write_volatile(self.tail) };
    }

    /// Bytes of the packet in `slot`, which must be one of this ring's; `None` when its buffer or
    /// length cannot be.
    pub fn bytes(&self, slot: &netmap_slot) -> Option<&[u8]> {
        let (start, offset) = self.view.data(*slot);
        let good = slot.buf_idx < self.view.num_bufs && offset + u32::from(slot.len) <= self.view.buf_size;
        // SAFETY: checked to lie inside one buffer, which is the device's while the slot is.
        good.then(|| unsafe { std::slice::from_raw_parts(start, slot.len.into()) })
    }

    /// Takes all slots that the user has handed over, unseen; returns their number.
    pub fn take_all(&mut self) -> u32 {
        let n = self.handed();
        self.cur = self.view.forward(self.cur, n);
        n
    }

    /// Fills the next slot to give with a copy of `packet` and gives it; `false` when there is no
    /// room or the packet is longer than a buffer.
    pub fn give_packet(&mut self, packet: &[u8]) -> bool {
        u32::try_from(packet.len()).is_ok_and(|len| self.give_with(len, |buf| buf.copy_from_slice(packet)))
    }

    /// Gives the next slot with a packet of `len` bytes that `fill` writes straight into the
    /// buffer (which holds old bytes before); `false`, without calling it, when there is no room
    /// or `len` is more than a buffer's size.
    #[inline(always)]
    pub fn give_with(&mut self, len: u32, fill: impl FnOnce(&mut [u8])) -> bool {
        if len > self.view.buf_size {
            return false;
        }
        let num_bufs = self.view.num_bufs;
        let Some(slot) = self.next_to_give() else { return false };
        if slot.buf_idx >= num_bufs {
            return false;
        }
        *slot = netmap_slot { buf_idx: slot.buf_idx, len: len as u16, flags: 0, ptr: 0 };
        let copy = *slot;
        let (start, _) = self.view.data(copy);
        // SAFETY: the buffer is the device's and long enough.
        fill(unsafe { std::slice::from_raw_parts_mut(start, len as usize) });
        self.give();
        true
    }
}
