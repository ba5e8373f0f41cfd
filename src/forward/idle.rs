//! What a worker does when its rings are empty: spin for a while, then sleep until there is
//! something to do.

use std::{
    os::fd::{BorrowedFd, RawFd},
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::{signal::SigSet, time::TimeSpec},
};

use super::bell::Bell;

/// While packets wait for a further sync of their transmit ring.
pub const SHORT: Duration = Duration::from_micros(50);
/// While a device that cannot be polled may have packets, or packets are held.
pub const NAP: Duration = Duration::from_micros(200);
/// While only descriptors can bring something.
pub const LONG: Duration = Duration::from_millis(500);

/// `[daemon] idle`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Patience {
    /// Never sleep: the lowest latency, and a core at full load.
    Spin,
    /// Sleep when idle.
    #[default]
    Adaptive,
}

/// Empty sweeps before a worker sleeps.
const SPINS: u32 = 64;

/// Counts empty sweeps.
#[derive(Debug)]
pub struct Idle {
    patience: Patience,
    empty: u32,
}

impl Idle {
    /// Starts awake.
    pub fn new(patience: Patience) -> Self {
        Self { patience, empty: 0 }
    }

    /// The sweep had packets.
    #[inline(always)]
    pub fn busy(&mut self) {
        self.empty = 0;
    }

    /// The sweep had none. Gives whether it is time to sleep.
    pub fn empty(&mut self) -> bool {
        self.empty = self.empty.saturating_add(1);
        let sleep = self.patience == Patience::Adaptive && self.empty > SPINS;
        if !sleep {
            std::hint::spin_loop();
        }
        sleep
    }
}

/// Most descriptors that one worker polls; more rings than this are looked at by the clock.
const MAX_FDS: usize = 64;

/// Waits until one of `fds` is readable, the bell rings, or `at_most` has passed.
pub fn wait(fds: impl Iterator<Item = RawFd>, bell: &Bell, at_most: Duration) {
    let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(MAX_FDS);
    polled.push(PollFd::new(bell.fd(), PollFlags::POLLIN));
    let mut all = true;
    for fd in fds {
        if polled.len() == MAX_FDS {
            all = false;
            break;
        }
        // SAFETY: the descriptor belongs to a queue that the calling worker holds open.
        polled.push(PollFd::new(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::POLLIN));
    }
    let at_most = if all { at_most } else { at_most.min(NAP) };
    // An interrupted wait is as good as one that is over.
    let _ = ppoll(&mut polled, Some(TimeSpec::from_duration(at_most)), None::<SigSet>);
}
