//! The stand-in's rings from the kernel's side: what a sync checks, takes and gives.

use std::collections::VecDeque;

use super::memory::{BUF_SIZE, Memory};
use crate::abi::{NS_BUF_CHANGED, NS_MOREFRAG, netmap_slot};

/// Packets that wait for a receive ring, at most; what comes then is lost.
const QUEUE: usize = 4096;

/// A packet on its way, with the flags of its slot.
pub(super) type Packet = (Vec<u8>, u16);

/// What the kernel keeps of one ring.
#[derive(Debug)]
pub(super) struct Kring {
    /// Where the ring is, while somebody is bound to it.
    pub(super) ring: Option<usize>,
    pub(super) slots: u32,
    pub(super) tx: bool,
    /// Its slots are shown buffers of another ring (the receive side of a pipe).
    pub(super) fake: bool,
    pub(super) ringid: u16,
    pub(super) users: usize,
    pub(super) exclusive: bool,
    pub(super) hwcur: u32,
    pub(super) hwtail: u32,
    pub(super) rhead: u32,
    rtail: u32,
    /// Pipes: up to where the other end has come.
    pub(super) pipe_tail: u32,
    /// Received, and not in the ring yet.
    pub(super) queue: VecDeque<Packet>,
    /// Flags that the kernel writes into the slots of received packets.
    pub(super) rx_flags: u16,
}

impl Kring {
    pub(super) fn new(tx: bool, fake: bool, ringid: u16, slots: u32, rx_flags: u16) -> Self {
        let mut kring = Self {
            ring: None,
            slots,
            tx,
            fake,
            ringid,
            users: 0,
            exclusive: false,
            hwcur: 0,
            hwtail: 0,
            rhead: 0,
            rtail: 0,
            pipe_tail: 0,
            queue: VecDeque::new(),
            rx_flags,
        };
        kring.reset();
        kring
    }

    /// As when the port is opened.
    pub(super) fn reset(&mut self) {
        let tail = if self.tx { self.slots - 1 } else { 0 };
        (self.hwcur, self.rhead) = (0, 0);
        (self.hwtail, self.rtail, self.pipe_tail) = (tail, tail, tail);
        self.queue.clear();
    }

    pub(super) fn next(&self, index: u32) -> u32 {
        (index + 1) % self.slots
    }

    pub(super) fn prev(&self, index: u32) -> u32 {
        (index + self.slots - 1) % self.slots
    }

    /// Whether going forward from `from`, `index` comes not after `to`.
    fn between(&self, from: u32, index: u32, to: u32) -> bool {
        index < self.slots
            && (index + self.slots - from) % self.slots <= (to + self.slots - from) % self.slots
    }

    /// Takes over head and cur from the ring, if they can be; else starts the ring anew, and says
    /// so by `false`. Nobody else is told.
    pub(super) fn prologue(&mut self, memory: &mut Memory, ring: usize) -> bool {
        let [head, cur, tail] = memory.indices(ring);
        let (from, to) = if self.tx { (self.rhead, self.rtail) } else { (self.hwcur, self.hwtail) };
        if !self.between(from, head, to) || !self.between(head, cur, to) {
            self.reinit(memory, ring);
            return false;
        }
        if tail != self.rtail {
            memory.set_tail(ring, self.rtail);
        }
        self.rhead = head;
        true
    }

    /// What the kernel does with a ring that makes no sense.
    fn reinit(&mut self, memory: &mut Memory, ring: usize) {
        for i in 0..self.slots {
            let slot = memory.slot(ring, i);
            if !memory.is_good(slot.buf_idx) {
                memory.set_slot(ring, i, netmap_slot { buf_idx: 0, len: 0, ..slot });
            } else if u32::from(slot.len) > BUF_SIZE {
                memory.set_slot(ring, i, netmap_slot { len: 0, ..slot });
            }
        }
        if memory.indices(ring).into_iter().any(|index| index >= self.slots) {
            memory.set_head(ring, self.hwcur);
            memory.set_tail(ring, self.hwtail);
            (self.rhead, self.rtail) = (self.hwcur, self.hwtail);
        }
    }

    /// Shows the ring's user the new tail.
    pub(super) fn finish(&mut self, memory: &mut Memory, ring: usize) {
        self.rtail = self.hwtail;
        memory.set_tail(ring, self.hwtail);
    }

    /// Takes the packets handed over; bad slots are skipped and counted.
    pub(super) fn take(&mut self, memory: &mut Memory, ring: usize, skipped: &mut u64) -> Vec<Packet> {
        let mut packets = Vec::new();
        while self.hwcur != self.rhead {
            let slot = memory.slot(ring, self.hwcur);
            match memory.packet(ring, slot) {
                Some(bytes) => packets.push((bytes, slot.flags)),
                None => *skipped += 1,
            }
            memory.set_slot(ring, self.hwcur, netmap_slot { flags: slot.flags & !NS_BUF_CHANGED, ..slot });
            self.hwcur = self.next(self.hwcur);
        }
        packets
    }

    /// Moves waiting packets into free slots, then takes back the slots given back: in this
    /// order, as the kernel does.
    pub(super) fn fill(&mut self, memory: &mut Memory, ring: usize, skipped: &mut u64) {
        while self.next(self.hwtail) != self.hwcur
            && let Some((bytes, flags)) = self.queue.pop_front()
        {
            let slot = memory.slot(ring, self.hwtail);
            let flags = self.rx_flags | flags & NS_MOREFRAG;
            if memory.set_packet(ring, slot, &bytes) {
                memory.set_slot(ring, self.hwtail, netmap_slot { len: bytes.len() as u16, flags, ..slot });
                self.hwtail = self.next(self.hwtail);
            } else {
                *skipped += 1;
            }
        }
        while self.hwcur != self.rhead {
            let slot = memory.slot(ring, self.hwcur);
            memory.set_slot(ring, self.hwcur, netmap_slot { flags: slot.flags & !NS_BUF_CHANGED, ..slot });
            self.hwcur = self.next(self.hwcur);
        }
    }

    /// Lets a packet wait for the ring; `false` when it is lost.
    pub(super) fn offer(&mut self, packet: Packet, most: usize) -> bool {
        let good = self.users > 0 && self.queue.len() < most.min(QUEUE);
        if good {
            self.queue.push_back(packet);
        }
        good
    }

    /// Slots that a packet could go to, less those already spoken for.
    pub(super) fn room(&self) -> usize {
        let held = (self.hwtail + self.slots - self.hwcur) % self.slots;
        (self.slots - 1 - held) as usize
    }
}
