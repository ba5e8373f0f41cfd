//! Outputs: the transmit rings that a worker owns, and its ways to the others.
//!
//! Ring *k* of a port belongs to worker *k* mod N, its host rings too. A worker without a ring of
//! the outgoing port hands the packet to the worker that has one.

use netmap::{RxRing, TxQueue};

use super::{
    bell::Bell,
    handover::{Exit, Origin, Sender},
    verdict::Verdict,
};
use crate::{stats::file::BlockRef, tables::PortId};

use std::sync::Arc;

/// How a worker reaches an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Through its own ring, number so-and-so in [`Outputs::own`].
    Own(u16),
    /// Through another worker, number so-and-so in [`Outputs::peers`].
    Peer(u16),
    /// Not at all.
    None,
}

/// A transmit ring that this worker owns, towards the wire or the host.
pub struct Output {
    /// The port it belongs to.
    pub port: PortId,
    /// Whether it leads to the wire; else up to the host.
    pub wire: bool,
    /// The ring and its device.
    pub queue: TxQueue,
    /// The worker's counters for the port.
    pub block: BlockRef,
    /// Packets, bytes and made packets put into the ring, and packets that found it full, in this
    /// sweep.
    pub packets: u64,
    /// Bytes of those packets.
    pub bytes: u64,
    /// Packets among them that were made here.
    pub made: u64,
    /// Packets that found the ring full in this sweep.
    pub full: u64,
    /// The device is gone; packets for it find no way.
    pub dead: bool,
}

/// The way to another worker.
pub struct Peer {
    /// The hand-over ring towards it.
    pub ring: Sender,
    /// Wakes it.
    pub bell: Arc<Bell>,
}

/// What became of a packet that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It is in the exit's ring.
    Left,
    /// It is in a hand-over ring; the worker at its end will account for it.
    InTransit,
    /// It is not sent, and this is why.
    Not(Verdict),
}

/// All ways out that a worker has.
pub struct Outputs {
    /// Its own rings.
    pub own: Vec<Output>,
    /// The other workers it hands packets to.
    pub peers: Vec<Peer>,
    /// The way to each port's wire.
    pub wire: Vec<Way>,
    /// The way to each port's host side.
    pub host: Vec<Way>,
}

impl Outputs {
    /// Moves the packet in `slot` of `rx`, `len` bytes, into the worker's own ring towards the wire
    /// of `port`. `len` counts the Ethernet header. `false`, and nothing done, when the worker has
    /// no such ring or it is full: [`Outputs::forward_elsewhere`] knows what to do then.
    #[inline(always)]
    pub fn forward(&mut self, port: PortId, rx: &RxRing, slot: u32, len: u32) -> bool {
        if let Some(&Way::Own(n)) = self.wire.get(usize::from(port))
            && let Some(output) = self.own.get_mut(usize::from(n))
            && output.queue.ring.forward(rx, slot, len)
        {
            output.packets += 1;
            output.bytes += u64::from(len);
            return true;
        }
        false
    }

    /// Sends the packet in `slot` of `rx` when [`Outputs::forward`] could not: the ring is full, or
    /// another worker's.
    #[cold]
    pub fn forward_elsewhere(
        &mut self,
        port: PortId,
        origin: Origin,
        rx: &RxRing,
        slot: u32,
        len: u32,
    ) -> Sent {
        // SAFETY: the slot is the worker's, and whoever took a frame of it is not using it now.
        match unsafe { rx.frame(slot) } {
            Some(frame) => {
                self.send(Exit::Wire(port), origin, &frame.bytes()[..len.min(frame.len()) as usize])
            }
            None => Sent::Not(Verdict::BadSlot),
        }
    }

    /// How many more packets the ring towards the wire of `port` takes in this sweep. One that has
    /// no room for `wanted` counts as found full.
    pub fn room(&mut self, port: PortId, wanted: usize) -> usize {
        match self.wire.get(usize::from(port)) {
            Some(&Way::Own(n)) => {
                let output = &mut self.own[usize::from(n)];
                let room = output.queue.ring.space() as usize;
                output.full += u64::from(room < wanted && !output.dead);
                room
            }
            Some(&Way::Peer(n)) => self.peers[usize::from(n)].ring.room(),
            Some(Way::None) | None => 0,
        }
    }

    /// Why a packet for the wire of `port` that found no room is lost.
    pub fn no_room(&self, port: PortId) -> Verdict {
        match self.wire.get(usize::from(port)) {
            Some(&Way::Own(n)) if self.own[usize::from(n)].dead => Verdict::PortDown,
            Some(Way::Own(_)) => Verdict::TxFull,
            Some(Way::Peer(_)) => Verdict::HandoverFull,
            Some(Way::None) | None => Verdict::PortDown,
        }
    }

    /// Sends a copy of `frame` to `exit`.
    pub fn send(&mut self, exit: Exit, origin: Origin, frame: &[u8]) -> Sent {
        self.send_with(exit, origin, frame.len(), |to| to.copy_from_slice(frame))
    }

    /// Sends a frame of `len` bytes that `fill` writes; not called when there is no room.
    pub fn send_with(
        &mut self,
        exit: Exit,
        origin: Origin,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Sent {
        let (way, full) = match exit {
            Exit::Wire(port) => (self.wire.get(usize::from(port)), Verdict::TxFull),
            Exit::Host(port) => (self.host.get(usize::from(port)), Verdict::HostFull),
        };
        match way {
            Some(&Way::Own(n)) => {
                let output = &mut self.own[usize::from(n)];
                if !output.queue.ring.send_with(len as u32, fill) {
                    output.full += 1;
                    return Sent::Not(full);
                }
                output.packets += 1;
                output.bytes += len as u64;
                output.made += u64::from(origin == Origin::Made);
                Sent::Left
            }
            Some(&Way::Peer(n)) => match self.peers[usize::from(n)].ring.push_with(exit, origin, len, fill) {
                true => Sent::InTransit,
                false => Sent::Not(Verdict::HandoverFull),
            },
            Some(Way::None) | None => Sent::Not(match exit {
                Exit::Wire(_) => Verdict::PortDown,
                Exit::Host(_) => Verdict::HostFull,
            }),
        }
    }

    /// Ends the sweep: shows the other workers what was handed to them, syncs the rings that were
    /// used or still have packets pending, and counts. Gives whether packets are still pending;
    /// `failed` hears of devices that refuse.
    pub fn sync(&mut self, mut failed: impl FnMut(PortId, netmap::SyncError)) -> bool {
        for peer in &mut self.peers {
            if peer.ring.publish() {
                peer.bell.wake();
            }
        }
        let mut pending = false;
        for (at, output) in self.own.iter_mut().enumerate() {
            if output.packets + output.full == 0 && !output.queue.pending() || output.dead {
                continue;
            }
            if let Err(error) = output.queue.sync() {
                output.dead = error.is_gone();
                failed(output.port, error);
            }
            if output.dead {
                // Nothing more is put into a ring that nobody empties.
                let ways = if output.wire { &mut self.wire } else { &mut self.host };
                ways.iter_mut().filter(|way| **way == Way::Own(at as u16)).for_each(|way| *way = Way::None);
            }
            if output.wire {
                output.block.tx_packets.add(output.packets);
                output.block.tx_bytes.add(output.bytes);
                output.block.tx_full.add(output.full);
                output.block.made.add(output.made);
            }
            (output.packets, output.bytes, output.made, output.full) = (0, 0, 0, 0);
            pending |= output.queue.pending() && !output.dead;
        }
        pending
    }
}
