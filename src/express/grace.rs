//! Waiting until every XDP program that was running has ended: an RCU grace period.
//!
//! From user space the kernel waits for one when a map in an array of maps is replaced. That takes
//! some milliseconds, so a thread of its own does it, and rings a bell.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{Sender, bounded};
use netmap::device::xdp::bpf::{Map, MapType};

/// Between two tries.
const AGAIN: Duration = Duration::from_secs(1);

/// The other way: membarrier(2), the kind that waits for all processors.
fn barrier() -> io::Result<()> {
    const GLOBAL: libc::c_int = 1;
    // SAFETY: takes two numbers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The way to the thread that waits. It ends with this.
#[derive(Debug)]
pub(super) struct Grace {
    ask: Sender<u64>,
    asked: u64,
    done: Arc<AtomicU64>,
}

impl Grace {
    /// Starts the thread, which rings `bell` after each wait.
    ///
    /// # Errors
    /// Where the kernel has no such maps, or there can be no more threads.
    pub fn start(bell: Sender<()>) -> io::Result<Self> {
        let inner = Map::<4>::new("sweep_inner", MapType::Array, 4, 1, 0)?;
        let outer = Map::<4>::of_maps("sweep_grace", 1, &inner)?;
        let replace = move || outer.set(&[0; 4], &inner.raw().to_ne_bytes());
        replace()?;
        let (ask, questions) = bounded::<u64>(64);
        let done = Arc::new(AtomicU64::new(0));
        let tell = done.clone();
        std::thread::Builder::new().name("express".into()).spawn(move || {
            while let Ok(mut number) = questions.recv() {
                // One wait answers all that have been asked before it began.
                while let Ok(later) = questions.try_recv() {
                    number = later;
                }
                // It has worked once; should it not again, there is another way, and then another try.
                while let Err(e) = replace().or_else(|_| barrier()) {
                    log::error!("express: cannot wait for the kernel, changes are held up: {e}");
                    std::thread::sleep(AGAIN);
                }
                tell.store(number, Ordering::Release);
                // A bell that is ringing rings for this as well.
                let _ = bell.try_send(());
            }
        })?;
        Ok(Self { ask, asked: 0, done })
    }

    /// Asks for a grace period that begins now.
    pub fn begin(&mut self) {
        self.asked += 1;
        // A full channel: the thread is going to see the next number, or is behind by 64.
        while self.ask.try_send(self.asked).is_err_and(|e| e.is_full()) {
            std::thread::yield_now();
        }
    }

    /// Whether the one asked for last has passed.
    pub fn is_over(&self) -> bool {
        self.done.load(Ordering::Acquire) >= self.asked
    }
}
