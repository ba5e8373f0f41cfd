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

pub(super) struct KernelTx {
    lane: Lane,
    ring: RingView,
    name: String,
    last: (u32, u32),
    kicks: u8,
    /// Whether packets wait for the gate.
    held: bool,
    full_since: Option<Instant>,
    told: bool,
}

impl KernelTx {
    pub(super) fn new(lane: Lane, ring: RingView, name: String) -> Self {
        let last = ring.read_head_tail();
        Self { lane, ring, name, last, kicks: 0, held: false, full_since: None, told: false }
    }

    /// Watches the ring move. The kernel does not say which packets have left, only which slots
    /// are free again, and some drivers free them lazily: so a ring that is not empty is worth a
    /// few more syncs, not endless ones.
    fn watch(&mut self) {
        let now @ (head, tail) = self.ring.read_head_tail();
        if tail >= self.ring.num_slots() {
            return; // The ring's user will find out, and start it anew.
        }
        let moved = now != self.last;
        self.last = now;
        self.kicks = if self.ring.next(tail) == head {
            0
        } else if moved {
            KICKS
        } else {
            self.kicks.saturating_sub(1)
        };
        if moved || head != tail {
            (self.full_since, self.told) = (None, false);
        } else {
            self.stalled();
        }
    }

    #[cold]
    fn stalled(&mut self) {
        let since = *self.full_since.get_or_insert_with(Instant::now);
        if !self.told && since.elapsed() >= STALL {
            self.told = true;
            log::warn!(
                "{}: the full transmit ring has not moved for {} s; packets for it are dropped. Is the link up?",
                self.name,
                STALL.as_secs()
            );
        }
    }
}

impl TxDevice for KernelTx {
    fn sync(&mut self) -> io::Result<()> {
        self.held = !self.lane.is_open() && self.ring.read_head_tail() != self.last;
        if !self.held {
            self.lane.sync(Direction::Tx)?;
            self.watch();
        }
        Ok(())
    }

    fn wait(&self) -> Wait {
        self.lane.wait()
    }

    fn pending(&self) -> bool {
        self.kicks > 0 || self.held
    }
}
