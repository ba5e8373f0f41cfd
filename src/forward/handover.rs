//! Hand-over rings: the way of a packet to the worker that owns the ring it must leave by.
//!
//! One ring for each ordered pair of workers, with a single producer and a single consumer. The
//! producer fills cells and shows them all at once, by one store, at the end of its sweep; the
//! consumer takes what it finds in its own. Neither ever waits for the other, and no locked
//! instruction is needed.

use std::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{tap::Seen, translate::pieces::Piece, verdict::Verdict};
use crate::tables::PortId;

/// Cells of a hand-over ring; a power of two.
pub const CELLS: u32 = 1024;

/// Bytes of a packet in a cell.
pub const CELL_BYTES: usize = netmap::arena::BUF_SIZE as usize;

/// Which of a port's outputs a packet is meant for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Out of the port.
    Wire(PortId),
    /// Out of the sub-port, whose tags the frame has already.
    Tagged(PortId),
    /// Up to the host's stack, as if received on the port.
    Host(PortId),
    /// Not out yet: the worker at the end is to deal with the packet, as received on the port.
    Worker {
        /// The port that it was received on.
        port: PortId,
        /// What is to be done.
        task: Task,
    },
}

/// What is to be done with a packet that another worker has received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// All of it, from the beginning.
    All,
    /// The same, for a fragment whose datagram's first one said this.
    Piece(Piece),
    /// The second half of a hairpin: the source has been translated.
    Hairpin(Option<Piece>),
}

/// What a packet counts as once it has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It was received on this port and has no verdict yet; it gets this one if it leaves.
    Received(PortId, Verdict),
    /// It was made here.
    Made,
}

struct Cell {
    exit: Exit,
    origin: Origin,
    seen: u64,
    len: u16,
    bytes: [u8; CELL_BYTES],
}

#[repr(align(128))]
struct Line(AtomicU32);

struct Shared {
    /// Cells filled, ever, modulo 2^32; written by the producer.
    filled: Line,
    /// Cells emptied, ever; written by the consumer.
    emptied: Line,
    cells: Box<[UnsafeCell<Cell>]>,
}

// SAFETY: a cell between `emptied` and `filled` is the consumer's, any other the producer's; the
// two counts are stored with Release after the cell was dealt with and loaded with Acquire before
// it is touched.
unsafe impl Sync for Shared {}
// SAFETY: cells are plain data.
unsafe impl Send for Shared {}

/// The producer's end.
pub struct Sender {
    shared: Arc<Shared>,
    filled: u32,
    emptied: u32,
    /// The number that the packets pushed have in a capture; 0 for none.
    pub seen: u64,
}

/// The consumer's end.
pub struct Receiver {
    shared: Arc<Shared>,
    emptied: u32,
}

/// A packet taken out of a hand-over ring.
pub struct Handed<'a> {
    /// Where it is to leave.
    pub exit: Exit,
    /// What it counts as.
    pub origin: Origin,
    /// What it is in a capture.
    pub seen: Seen,
    /// The frame.
    pub bytes: &'a mut [u8],
}

/// A hand-over ring.
pub fn ring() -> (Sender, Receiver) {
    let cell = || {
        let (exit, origin) = (Exit::Wire(0), Origin::Made);
        UnsafeCell::new(Cell { exit, origin, seen: 0, len: 0, bytes: [0; CELL_BYTES] })
    };
    let shared = Arc::new(Shared {
        filled: Line(AtomicU32::new(0)),
        emptied: Line(AtomicU32::new(0)),
        cells: (0..CELLS).map(|_| cell()).collect(),
    });
    (Sender { shared: shared.clone(), filled: 0, emptied: 0, seen: 0 }, Receiver { shared, emptied: 0 })
}

impl Sender {
    /// Copies a frame into the ring; seen by the receiver after [`Sender::publish`]. `false` when
    /// the ring is full or the frame too long.
    pub fn push(&mut self, exit: Exit, origin: Origin, frame: &[u8]) -> bool {
        self.push_with(exit, origin, frame.len(), |to| to.copy_from_slice(frame))
    }

    /// As [`Sender::push`], with `len` bytes that `fill` writes; not called when there is no room.
    pub fn push_with(
        &mut self,
        exit: Exit,
        origin: Origin,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if self.filled.wrapping_sub(self.emptied) == CELLS {
            self.emptied = self.shared.emptied.0.load(Ordering::Acquire);
            if self.filled.wrapping_sub(self.emptied) == CELLS {
                return false;
            }
        }
        if len > CELL_BYTES {
            return false;
        }
        // SAFETY: this cell lies outside emptied..filled, so it is the producer's.
        let cell = unsafe { &mut *self.shared.cells[(self.filled % CELLS) as usize].get() };
        cell.exit = exit;
        cell.origin = origin;
        cell.seen = self.seen;
        cell.len = len as u16;
        fill(&mut cell.bytes[..len]);
        self.filled = self.filled.wrapping_add(1);
        true
    }

    /// How many frames can still be pushed.
    pub fn room(&mut self) -> usize {
        self.emptied = self.shared.emptied.0.load(Ordering::Acquire);
        (CELLS - self.filled.wrapping_sub(self.emptied)) as usize
    }

    /// Shows the receiver what was pushed. Gives whether that was anything.
    pub fn publish(&mut self) -> bool {
        // Only the producer writes `filled`, so its own load needs no order.
        let fresh = self.shared.filled.0.load(Ordering::Relaxed) != self.filled;
        if fresh {
            self.shared.filled.0.store(self.filled, Ordering::Release);
        }
        fresh
    }
}

impl Receiver {
    /// Whether packets wait.
    pub fn is_empty(&self) -> bool {
        self.shared.filled.0.load(Ordering::Acquire) == self.emptied
    }

    /// Deals with every packet that waits. Gives their number.
    pub fn drain(&mut self, mut each: impl FnMut(Handed<'_>)) -> u32 {
        let filled = self.shared.filled.0.load(Ordering::Acquire);
        let n = filled.wrapping_sub(self.emptied);
        while self.emptied != filled {
            // SAFETY: this cell lies between emptied and filled, so it is the consumer's.
            let cell = unsafe { &mut *self.shared.cells[(self.emptied % CELLS) as usize].get() };
            // Before it is dealt with: should that fail, it does not come again. The cell is given
            // back below.
            self.emptied = self.emptied.wrapping_add(1);
            let (exit, origin, seen) = (cell.exit, cell.origin, Seen::new(cell.seen));
            each(Handed { exit, origin, seen, bytes: &mut cell.bytes[..cell.len.into()] });
        }
        if n > 0 {
            self.shared.emptied.0.store(self.emptied, Ordering::Release);
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_cross_threads_in_order_and_none_is_lost() {
        const N: u32 = 200_000;
        let (mut to, mut from) = ring();
        let sender = std::thread::spawn(move || {
            for i in 0..N {
                while !to.push(Exit::Wire(3), Origin::Made, &i.to_be_bytes()) {
                    to.publish();
                    std::thread::yield_now();
                }
                if i % 32 == 31 {
                    to.publish();
                }
            }
            to.publish();
        });
        let mut next = 0u32;
        while next < N {
            let n = from.drain(|p| {
                assert_eq!(p.bytes, next.to_be_bytes());
                assert_eq!(p.exit, Exit::Wire(3));
                next += 1;
            });
            if n == 0 {
                std::thread::yield_now();
            }
        }
        sender.join().unwrap();
        assert!(from.is_empty());
    }

    #[test]
    fn a_full_ring_refuses_and_what_is_not_published_is_not_seen() {
        let (mut to, mut from) = ring();
        for n in 0..CELLS {
            assert_eq!(to.room(), (CELLS - n) as usize);
            assert!(to.push(Exit::Host(1), Origin::Made, &[1, 2]));
        }
        assert_eq!(to.room(), 0);
        assert!(!to.push(Exit::Host(1), Origin::Made, &[1, 2]));
        assert!(from.is_empty());
        assert!(to.publish());
        assert_eq!(from.drain(|p| assert_eq!(p.bytes, [1, 2])), CELLS);
        assert!(to.push(Exit::Host(1), Origin::Made, &[3]));
        assert!(!to.push(Exit::Host(1), Origin::Made, &[0; CELL_BYTES + 1]));
    }
}
