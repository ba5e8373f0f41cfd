//! The two halves of a netmap descriptor as queues' devices.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::system::{Descriptor, System};
use crate::{
    queue::{RxDevice, TxDevice, Wait},
    ring::{Direction, RingView},
};

/// How often a closed gate looks for the carrier.
const CARRIER_INTERVAL: Duration = Duration::from_millis(20);
/// Further syncs that a transmit ring is given to finish what it was handed.
const KICKS: u8 = 8;
/// A full transmit ring that moves nothing for this long is worth a line in the log.
const STALL: Duration = Duration::from_secs(2);

/// Holds back the syncs of a port until its carrier is there.
///
/// Opening an interface for netmap takes its link down for some seconds, and a driver that is
/// synced meanwhile loses packets or hangs. Past the deadline the gate opens all the same: a port
/// whose cable is pulled must still work once it is plugged in.
#[derive(Debug)]
pub(super) struct Gate {
    open: AtomicBool,
    system: Arc<dyn System>,
    interface: String,
    /// When to look next, and when to stop waiting.
    times: Mutex<(Instant, Instant)>,
}

impl Gate {
    pub(super) fn new(system: &Arc<dyn System>, interface: &str, wait: Duration) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            open: AtomicBool::new(wait.is_zero()),
            system: system.clone(),
            interface: interface.to_owned(),
            times: Mutex::new((now, now + wait)),
        })
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) || self.look()
    }

    #[cold]
    fn look(&self) -> bool {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now < times.0 {
            return false;
        }
        times.0 = now + CARRIER_INTERVAL;
        let carrier = self.system.carrier(&self.interface);
        let late = now >= times.1;
        if late && !matches!(carrier, Ok(true)) {
            log::warn!("netmap:{}: still no carrier; check cable and `up`. Going on without", self.interface);
        }
        let open = late || matches!(carrier, Ok(true));
        self.open.store(open, Ordering::Relaxed);
        open
    }
}

/// A descriptor with one ring pair, and the gate before it, shared by the pair's two queues.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) descriptor: Arc<Descriptor>,
    pub(super) gate: Option<Arc<Gate>>,
    pub(super) system: Arc<dyn System>,
    /// The interface, of ports that have one.
    pub(super) interface: Option<Arc<str>>,
}

impl Lane {
    fn is_open(&self) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.is_open())
    }

    fn wait(&self) -> Wait {
        if self.is_open() { Wait::Fd(self.descriptor.fd()) } else { Wait::Nap }
    }

    fn sync(&self, direction: Direction) -> io::Result<()> {
        if !self.is_open() {
            return Ok(());
        }
        self.descriptor.sync(direction).map_err(|e| self.explain(e))
    }

    /// The kernel says EIO while a port is being reconfigured and for ever once its interface is
    /// gone; only the second is `ENXIO` to the queue's user.
    #[cold]
    fn explain(&self, error: io::Error) -> io::Error {
        match &self.interface {
            Some(name) if error.raw_os_error() == Some(libc::EIO) && self.system.mtu(name).is_err() => {
                io::Error::from_raw_os_error(libc::ENXIO)
            }
            _ => error,
        }
    }
}

pub(super) struct KernelRx(pub(super) Lane);

impl RxDevice for KernelRx {
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync(Direction::Rx)
    }

    fn wait(&self) -> Wait {
        self.0.wait()
    }
}

/// How a transmit ring moves. The kernel does not say which packets have left, only which slots
/// are free again, and some drivers free them lazily: so a ring that is not empty is worth a few
/// more syncs, not endless ones.
#[derive(Debug, Default)]
struct Progress {
    last: (u32, u32),
    kicks: u8,
    full_since: Option<Instant>,
    told: bool,
}

impl Progress {
    /// Takes note of head and tail after a sync of a ring of `slots` slots; gives whether it is
    /// time to say that the ring hangs. The clock is read only when the ring is full and stands.
    fn note(&mut self, (head, tail): (u32, u32), slots: u32, clock: impl FnOnce() -> Instant) -> bool {
        if tail >= slots {
            return false; // The ring's user will find out, and start it anew.
        }
        let moved = self.last != (head, tail);
        self.last = (head, tail);
        let all_free = (tail + 1) % slots == head;
        self.kicks = match (all_free, moved) {
            (true, _) => 0,
            (false, true) => KICKS,
            (false, false) => self.kicks.saturating_sub(1),
        };
        if moved || head != tail {
            (self.full_since, self.told) = (None, false);
            return false;
        }
        self.stands(clock())
    }

    #[cold]
    fn stands(&mut self, now: Instant) -> bool {
        let since = *self.full_since.get_or_insert(now);
        let tell = !self.told && now.saturating_duration_since(since) >= STALL;
        self.told |= tell;
        tell
    }
}

pub(super) struct KernelTx {
    lane: Lane,
    ring: RingView,
    name: String,
    progress: Progress,
    /// Whether packets wait for the gate.
    held: bool,
}

impl KernelTx {
    pub(super) fn new(lane: Lane, ring: RingView, name: String) -> Self {
        let progress = Progress { last: ring.read_head_tail(), ..Progress::default() };
        Self { lane, ring, name, progress, held: false }
    }
}

impl TxDevice for KernelTx {
    fn sync(&mut self) -> io::Result<()> {
        self.held = !self.lane.is_open() && self.ring.read_head_tail() != self.progress.last;
        if self.held {
            return Ok(());
        }
        self.lane.sync(Direction::Tx)?;
        if self.progress.note(self.ring.read_head_tail(), self.ring.num_slots(), Instant::now) {
            log::warn!(
                "{}: the full transmit ring has not moved for {} s; packets for it are dropped. Is the link up?",
                self.name,
                STALL.as_secs()
            );
        }
        Ok(())
    }

    fn wait(&self) -> Wait {
        self.lane.wait()
    }

    fn pending(&self) -> bool {
        self.progress.kicks > 0 || self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_hangs_is_told_once_until_it_moves() {
        let start = Instant::now();
        let mut progress = Progress { last: (0, 7), ..Progress::default() };
        let mut told = |head_tail, second| {
            let at = start + Duration::from_secs(second);
            progress.note(head_tail, 8, || at)
        };
        assert!(!told((7, 7), 0), "it has just moved");
        assert!(!told((7, 7), 1));
        assert!(!told((7, 7), 2), "it stands since second 1");
        assert!(told((7, 7), 3));
        assert!(!told((7, 7), 9));
        assert!(!told((7, 0), 10), "it moves");
        assert!(!told((0, 0), 11));
        assert!(!told((0, 0), 12));
        assert!(told((0, 0), 14));
        assert!(!told((0, 9), 99), "a tail that cannot be says nothing");
    }

    #[test]
    fn the_clock_is_not_read_while_packets_move() {
        let mut progress = Progress::default();
        for i in 0..100u32 {
            assert!(!progress.note((i % 8, (i + 6) % 8), 8, || panic!("read the clock")));
        }
    }
}
