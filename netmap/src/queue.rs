//! Queues: a ring together with the device behind it.

use std::{io, os::fd::RawFd};

use crate::ring::{RingReset, RingView, RxRing, TxRing};

/// How a worker with nothing to do can wait for a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// `poll(2)` this descriptor, for input on a receive queue, for output on a transmit queue.
    Fd(RawFd),
    /// Nothing to poll; ask again after a short nap.
    Nap,
    /// The device always has more (a generator), or never will (a capture that has ended).
    Never,
}

/// The receive half of a device.
pub trait RxDevice: Send {
    /// Takes the slots that the ring's user has given back, and shows the packets that have come.
    ///
    /// # Errors
    /// `ENXIO` or `ENODEV` when the device is gone; anything else is the system's word.
    fn sync(&mut self) -> io::Result<()>;

    /// How to wait for packets.
    fn wait(&self) -> Wait {
        Wait::Nap
    }

    /// Whether no packet will ever come again (a capture read to its end).
    fn finished(&self) -> bool {
        false
    }

    /// Buffers that no slot names, because they are lent to the kernel or wait in the device's
    /// stock: for counting that none is lost. Slots in such a device's hands name buffer 0.
    fn lent(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// The transmit half of a device.
pub trait TxDevice: Send {
    /// Sends what the ring's user has handed over, and frees the slots of what has gone.
    ///
    /// # Errors
    /// As for [`RxDevice::sync`].
    fn sync(&mut self) -> io::Result<()>;

    /// How to wait for free slots.
    fn wait(&self) -> Wait {
        Wait::Nap
    }

    /// Whether packets handed over earlier still wait for a further sync.
    fn pending(&self) -> bool {
        false
    }

    /// Buffers that no slot names, because they are lent to the kernel or wait in the device's
    /// stock: for counting that none is lost. Slots in such a device's hands name buffer 0.
    fn lent(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// What kept a sync from doing its work.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The system refused the sync.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The device refused the ring's contents and started it anew.
    #[error("the device reset the ring")]
    Reset,
}

impl SyncError {
    /// Whether the device is gone, so that only opening it again can help.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Io(e) if matches!(e.raw_os_error(), Some(libc::ENXIO | libc::ENODEV | libc::EBADF)))
    }
}

impl From<RingReset> for SyncError {
    fn from(_: RingReset) -> Self {
        Self::Reset
    }
}

/// A receive ring and its device.
pub struct RxQueue {
    /// The user's side of the ring.
    pub ring: RxRing,
    device: Box<dyn RxDevice>,
}

impl RxQueue {
    /// Joins a ring with the device that fills it.
    pub fn new(ring: RxRing, device: Box<dyn RxDevice>) -> Self {
        Self { ring, device }
    }

    /// Gives back what was read and takes in what has come; then [`RxRing::available`] packets
    /// wait.
    ///
    /// # Errors
    /// [`SyncError`]; after `Reset` the ring is usable again.
    #[inline]
    pub fn sync(&mut self) -> Result<(), SyncError> {
        self.ring.publish();
        self.device.sync()?;
        Ok(self.ring.refresh()?)
    }

    /// How to wait for packets.
    pub fn wait(&self) -> Wait {
        self.device.wait()
    }

    /// Whether no packet will ever come again.
    pub fn finished(&self) -> bool {
        self.device.finished()
    }

    /// All buffers of the queue, in slots and with the device: for counting that none is lost.
    pub fn buffers(&self) -> Vec<u32> {
        census(self.ring.view(), self.device.lent())
    }
}

/// A transmit ring and its device.
pub struct TxQueue {
    /// The user's side of the ring.
    pub ring: TxRing,
    device: Box<dyn TxDevice>,
}

impl TxQueue {
    /// Joins a ring with the device that empties it.
    pub fn new(ring: TxRing, device: Box<dyn TxDevice>) -> Self {
        Self { ring, device }
    }

    /// Sends what was handed over and frees what has gone.
    ///
    /// # Errors
    /// [`SyncError`]; after `Reset` the ring is usable again.
    #[inline]
    pub fn sync(&mut self) -> Result<(), SyncError> {
        self.ring.publish();
        self.device.sync()?;
        Ok(self.ring.refresh()?)
    }

    /// How to wait for free slots.
    pub fn wait(&self) -> Wait {
        self.device.wait()
    }

    /// Whether packets handed over earlier still wait for a further sync.
    pub fn pending(&self) -> bool {
        self.device.pending()
    }

    /// All buffers of the queue, in slots and with the device: for counting that none is lost.
    pub fn buffers(&self) -> Vec<u32> {
        census(self.ring.view(), self.device.lent())
    }
}

fn census(view: &RingView, lent: Vec<u32>) -> Vec<u32> {
    view.buffer_indices().into_iter().filter(|b| *b != 0).chain(lent).collect()
}

/// What a device counts outside the rings, since it was opened. Packets, except where said.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Losses {
    /// Received and passed straight to the host's stack, never seen in a ring.
    pub passed_up: u64,
    /// Bytes of those.
    pub passed_up_bytes: u64,
    /// Lost before the ring: it was full, or the device had no buffer.
    pub rx_dropped: u64,
    /// Arrived damaged.
    pub rx_errors: u64,
    /// Lost after the ring.
    pub tx_dropped: u64,
    /// Refused by the device on the way out.
    pub tx_errors: u64,
}
