//! What a sync does: netmap slots on one side, AF_XDP descriptors on the other.
//!
//! A buffer is at any time either named by a slot, or lent to the kernel, or in stock here; a
//! slot in the device's hands names buffer 0, which is none. Buffers do not come back to the slot
//! they left.
//!
//! In copy mode every kick of the transmit ring is a system call in which the kernel builds all
//! the socket buffers. So packets are collected until there are [`KICK_PACKETS`] of them or the
//! first has waited for [`KICK_AFTER`]; meanwhile the queue says that it is pending.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::socket::{Consumer, Descriptor, Producer};
use crate::{
    abi::{FIRST_BUFFER, NS_MOREFRAG, netmap_slot},
    arena::BUF_SIZE,
    queue::{RxDevice, TxDevice, Wait},
    ring::Kring,
};

/// So many packets are worth a system call.
const KICK_PACKETS: u32 = 64;
/// No packet waits longer for company.
const KICK_AFTER: Duration = Duration::from_micros(50);
/// How often an idle queue asks whether its interface is still there.
const LIVENESS: Duration = Duration::from_millis(200);
/// How long the transmit ring of an interface that is down is left alone.
const DOWN_PAUSE: Duration = Duration::from_millis(10);
/// Shortest frame that is sent: an Ethernet header.
const MIN_FRAME: u16 = 14;

/// Packets that the devices of one port refused. Each has one writer.
#[derive(Default)]
pub struct Refused {
    /// Receive descriptors, or buffers given back, that cannot be.
    pub rx: AtomicU64,
    /// Slots to send that cannot be.
    pub tx: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// A set of buffers: those lent to the kernel through one ring pair. What the kernel gives back
/// is checked against it.
struct BufferSet {
    words: Vec<u64>,
    end: u32,
}

impl BufferSet {
    fn new(num_bufs: u32) -> Self {
        Self { words: vec![0; num_bufs.div_ceil(64) as usize], end: num_bufs }
    }

    /// Adds a buffer; `false` when it is there already, or can be none.
    fn insert(&mut self, buffer: u32) -> bool {
        if buffer < FIRST_BUFFER || buffer >= self.end {
            return false;
        }
        let (word, bit) = (&mut self.words[buffer as usize / 64], 1 << (buffer % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Takes a buffer out; `false` when it is not there.
    fn remove(&mut self, buffer: u64) -> bool {
        let Some(word) = self.words.get_mut((buffer / 64) as usize) else { return false };
        let bit = 1 << (buffer % 64);
        let there = *word & bit != 0;
        *word &= !bit;
        there
    }

    fn list(&self) -> Vec<u32> {
        (0..self.end).filter(|b| self.words[*b as usize / 64] & 1 << (b % 64) != 0).collect()
    }
}

/// Where a buffer starts, as an offset into the arena's buffers.
fn address(buffer: u32) -> u64 {
    u64::from(buffer) * u64::from(BUF_SIZE)
}

/// A system call's last error, told apart.
enum Trouble {
    /// Nothing is wrong, or it will be better next time.
    Later,
    /// The interface is down.
    Down,
    Fatal(io::Error),
}

fn trouble() -> Trouble {
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => Trouble::Later,
        Some(libc::ENETDOWN) => Trouble::Down,
        _ => Trouble::Fatal(error),
    }
}

/// The receive half of a queue.
pub struct XdpRx {
    ring: Kring,
    rx: Consumer<Descriptor>,
    fill: Producer<u64>,
    fd: Arc<OwnedFd>,
    lent: BufferSet,
    refused: Arc<Refused>,
    asked: Instant,
}

impl XdpRx {
    /// Takes the device's side of a fresh ring and lends all its buffers to the kernel.
    ///
    /// # Errors
    /// When the kernel's FILL ring cannot be as it is.
    pub fn new(
        mut ring: Kring,
        rx: Consumer<Descriptor>,
        fill: Producer<u64>,
        fd: Arc<OwnedFd>,
        refused: Arc<Refused>,
    ) -> io::Result<Self> {
        let buffers = ring.take_buffers();
        let lent = BufferSet::new(ring.view().num_bufs());
        let mut this = Self { ring, rx, fill, fd, lent, refused, asked: Instant::now() };
        let room = this.fill.room()?;
        for buffer in buffers.into_iter().take(room as usize) {
            this.lend(buffer);
        }
        this.fill.submit();
        Ok(this)
    }

    fn lend(&mut self, buffer: u32) {
        if self.lent.insert(buffer) {
            self.fill.push(address(buffer));
        } else {
            count(&self.refused.rx);
        }
    }

    /// Lends the buffers of the slots given back.
    fn refill(&mut self) -> io::Result<()> {
        let room = self.fill.room()?.min(self.ring.handed());
        for _ in 0..room {
            let Some(slot) = self.ring.take() else { break };
            let buffer = std::mem::take(&mut slot.buf_idx);
            self.lend(buffer);
        }
        if room > 0 {
            self.fill.submit();
        }
        Ok(())
    }

    /// Puts what has come into slots; gives the number of packets.
    fn take_in(&mut self) -> io::Result<u32> {
        let n = self.rx.available()?.min(self.ring.room());
        for _ in 0..n {
            let packet = self.rx.take();
            let (buffer, offset) = (packet.addr / u64::from(BUF_SIZE), packet.addr % u64::from(BUF_SIZE));
            if !self.lent.remove(buffer) {
                count(&self.refused.rx);
                continue;
            }
            let buffer = buffer as u32;
            if packet.options != 0 || packet.len == 0 || offset + u64::from(packet.len) > BUF_SIZE.into() {
                self.lend(buffer);
                self.fill.submit();
                count(&self.refused.rx);
                continue;
            }
            if let Some(slot) = self.ring.next_to_give() {
                *slot = netmap_slot { buf_idx: buffer, len: packet.len as u16, flags: 0, ptr: offset };
                self.ring.give();
            }
        }
        if n > 0 {
            self.rx.release();
        }
        Ok(n)
    }

    fn call(&self) -> io::Result<()> {
        // SAFETY: a call without memory.
        let r = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        match if r < 0 { trouble() } else { Trouble::Later } {
            Trouble::Later | Trouble::Down => Ok(()),
            Trouble::Fatal(e) => Err(e),
        }
    }
}

impl RxDevice for XdpRx {
    fn sync(&mut self) -> io::Result<()> {
        self.refill()?;
        let n = self.take_in()?;
        self.ring.publish();
        if self.fill.needs_wakeup() {
            return self.call();
        }
        if n == 0 {
            // A removed interface never says so by itself; ask now and then.
            let now = Instant::now();
            if now - self.asked > LIVENESS {
                self.call()?;
                self.asked = now;
            }
        }
        Ok(())
    }

    fn wait(&self) -> Wait {
        Wait::Fd(self.fd.as_raw_fd())
    }

    fn lent(&self) -> Vec<u32> {
        self.lent.list()
    }
}

/// The transmit half of a queue.
pub struct XdpTx {
    ring: Kring,
    tx: Producer<Descriptor>,
    completion: Consumer<u64>,
    fd: Arc<OwnedFd>,
    lent: BufferSet,
    /// Buffers that are neither lent nor in a slot: always at least one while nothing is lent.
    stock: Vec<u32>,
    /// Packets submitted that no kick has covered.
    unsent: u32,
    /// When the first of them was submitted.
    since: Instant,
    /// The interface was down when last asked.
    down: bool,
    refused: Arc<Refused>,
}

impl XdpTx {
    /// Takes the device's side of a fresh ring.
    pub fn new(
        mut ring: Kring,
        tx: Producer<Descriptor>,
        completion: Consumer<u64>,
        fd: Arc<OwnedFd>,
        refused: Arc<Refused>,
    ) -> Self {
        let view = ring.view();
        let (lent, mut stock) =
            (BufferSet::new(view.num_bufs()), Vec::with_capacity(view.num_slots() as usize));
        stock.extend(ring.take_buffers());
        let since = Instant::now();
        Self { ring, tx, completion, fd, lent, stock, unsent: 0, since, down: false, refused }
    }

    /// Submits the packets of the slots handed over.
    fn hand_over(&mut self) -> io::Result<()> {
        let n = self.tx.room()?.min(self.ring.handed());
        let mut submitted = 0;
        for _ in 0..n {
            let Some(slot) = self.ring.take() else { break };
            let netmap_slot { buf_idx: buffer, len, flags, ptr } = *slot;
            slot.buf_idx = 0;
            let offset = ptr % u64::from(BUF_SIZE);
            let fits = len >= MIN_FRAME
                && offset + u64::from(len) <= u64::from(BUF_SIZE)
                && flags & NS_MOREFRAG == 0;
            if !self.lent.insert(buffer) {
                count(&self.refused.tx);
            } else if !fits {
                self.lent.remove(buffer.into());
                self.stock.push(buffer);
                count(&self.refused.tx);
            } else {
                self.tx.push(Descriptor { addr: address(buffer) + offset, len: len.into(), options: 0 });
                submitted += 1;
            }
        }
        if submitted > 0 {
            self.tx.submit();
            if self.unsent == 0 {
                self.since = Instant::now();
            }
            self.unsent += submitted;
        }
        Ok(())
    }

    /// Wakes the kernel when enough packets wait, or one long enough.
    fn kick_when_due(&mut self) -> io::Result<()> {
        if self.unsent == 0 {
            return Ok(());
        }
        let patience = if self.down { DOWN_PAUSE } else { KICK_AFTER };
        if (self.unsent < KICK_PACKETS || self.down) && self.since.elapsed() < patience {
            return Ok(());
        }
        let mut tries = 0;
        while self.tx.waiting()? > 0 && self.tx.needs_wakeup() && tries < 4 {
            tries += 1;
            // SAFETY: a call without memory.
            let r = unsafe {
                libc::sendto(
                    self.fd.as_raw_fd(),
                    std::ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null(),
                    0,
                )
            };
            self.down = false;
            match if r < 0 { trouble() } else { break } {
                Trouble::Later => {}
                Trouble::Down => {
                    self.down = true;
                    break;
                }
                Trouble::Fatal(e) => return Err(e),
            }
        }
        // What is still there asks for another kick, after another pause.
        self.unsent = self.tx.waiting()?;
        self.since = Instant::now();
        Ok(())
    }

    /// Takes the buffers of packets that went into stock, and fills free slots from there.
    fn reclaim(&mut self) -> io::Result<()> {
        let n = self.completion.available()?;
        for _ in 0..n {
            let buffer = self.completion.take() / u64::from(BUF_SIZE);
            if self.lent.remove(buffer) {
                self.stock.push(buffer as u32);
            } else {
                count(&self.refused.tx);
            }
        }
        if n > 0 {
            self.completion.release();
        }
        while !self.stock.is_empty() {
            let Some(slot) = self.ring.next_to_give() else { break };
            let buffer = self.stock.pop().unwrap_or_default();
            *slot = netmap_slot { buf_idx: buffer, len: 0, flags: 0, ptr: 0 };
            self.ring.give();
        }
        Ok(())
    }
}

impl TxDevice for XdpTx {
    fn sync(&mut self) -> io::Result<()> {
        self.hand_over()?;
        self.kick_when_due()?;
        self.reclaim()?;
        self.ring.publish();
        Ok(())
    }

    fn wait(&self) -> Wait {
        Wait::Fd(self.fd.as_raw_fd())
    }

    fn pending(&self) -> bool {
        self.unsent > 0 && !self.down
    }

    fn lent(&self) -> Vec<u32> {
        let mut all = self.lent.list();
        all.extend(&self.stock);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_lent_once_and_comes_back_once() {
        let mut set = BufferSet::new(130);
        for (buffer, new) in [(2, true), (129, true), (2, false), (0, false), (1, false), (130, false)] {
            assert_eq!(set.insert(buffer), new, "{buffer}");
        }
        assert_eq!(set.list(), [2, 129]);
        assert!(set.remove(2) && !set.remove(2) && !set.remove(3));
        assert!(!set.remove(u64::MAX) && !set.remove(130));
        assert_eq!(set.list(), [129]);
    }
}
