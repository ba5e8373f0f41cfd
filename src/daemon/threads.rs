//! Threads: one per worker, each on a core of its own.

use std::{
    io,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::confine::{self, Confinement};
use crate::forward::{assembly::WorkerLink, messages::ToWorker, worker::Worker};

/// How long workers may take to end, all together.
const PATIENCE: Duration = Duration::from_secs(5);

/// The running workers.
pub struct Workers {
    threads: Vec<JoinHandle<()>>,
    links: Vec<WorkerLink>,
}

/// The cores for `count` workers: those of the configuration, else the last ones, so that the
/// first is left to everything else. `None` for a worker when there are more workers than cores:
/// it runs wherever there is room.
pub fn cores(configured: Option<&[usize]>, count: usize, available: usize) -> Vec<Option<usize>> {
    match configured {
        Some(cpus) => cpus.iter().copied().map(Some).collect(),
        None if count <= available => (available - count..available).map(Some).collect(),
        None => vec![None; count],
    }
}

/// Starts the workers, worker *i* on core `cores[i]`.
///
/// # Errors
/// The system's, when there can be no more threads. Workers that run already are stopped.
pub fn start(
    workers: Vec<Worker>,
    links: Vec<WorkerLink>,
    cores: &[Option<usize>],
    confinement: Confinement,
) -> io::Result<Workers> {
    let mut running = Workers { threads: Vec::new(), links };
    for (worker, core) in workers.into_iter().zip(cores.iter().copied()) {
        let name = format!("worker {}", worker.index);
        let thread = thread::Builder::new().name(name.clone()).spawn(move || {
            if let Some(core) = core
                && let Err(e) = pin(core)
            {
                log::warn!("{name} cannot be bound to core {core} ({e}); it runs where it can");
            }
            if confinement == Confinement::Full {
                confine::restrict_worker();
            }
            worker.run();
        })?;
        running.threads.push(thread);
    }
    Ok(running)
}

impl Workers {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.links.len()
    }

    /// Whether all of them still run.
    pub fn all_alive(&self) -> bool {
        self.threads.iter().all(|t| !t.is_finished())
    }

    /// Whether each of them has taken the call that it got when this was asked last: it sweeps. One
    /// that was called by somebody else just now counts as if it did not.
    pub fn all_sweep(&self) -> bool {
        let sweep = self.all_alive() && self.links.iter().all(|link| !link.bell.was_called());
        self.links.iter().for_each(|link| link.bell.call());
        sweep
    }

    /// Stops them and waits for their end. One that does not end within `PATIENCE` is left
    /// behind: what it works with is its own, and the process's end ends it.
    pub fn stop(&mut self) {
        self.stop_within(PATIENCE);
    }

    fn stop_within(&mut self, patience: Duration) {
        for link in &self.links {
            link.send(ToWorker::Stop);
        }
        let deadline = Instant::now() + patience;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            if !thread.is_finished() {
                let name = thread.thread().name().unwrap_or("a worker").to_owned();
                log::error!("{name} does not end; it is left behind and ends with the program");
                continue;
            }
            if thread.join().is_err() {
                log::error!("a worker ended by a fault of its own; please report it with the lines above");
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Binds the calling thread to `core`.
///
/// # Errors
/// The system's: there is no such core, or this process may not use it.
#[cfg(target_os = "linux")]
pub fn pin(core: usize) -> io::Result<()> {
    let mut set = nix::sched::CpuSet::new();
    set.set(core)?;
    Ok(nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)?)
}

/// Binds the calling thread to `core`.
///
/// # Errors
/// The system's: there is no such core, or this process may not use it.
#[cfg(target_os = "freebsd")]
pub fn pin(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: an all-zero set is an empty one; the core's number was checked; -1 is the calling
    // thread.
    let result = unsafe {
        let mut set: libc::cpuset_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::cpuset_setaffinity(libc::CPU_LEVEL_WHICH, libc::CPU_WHICH_TID, -1, size_of_val(&set), &set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Binds the calling thread to `core`.
///
/// # Errors
/// The system's: there is no such core, or this process may not use it.
#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
pub fn pin(_core: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_no_longer_takes_calls_does_not_sweep() {
        let (commands, _worker) = crossbeam_channel::bounded(1);
        let bell = std::sync::Arc::new(crate::forward::bell::Bell::new().unwrap());
        let workers = Workers {
            threads: Vec::new(),
            links: vec![WorkerLink { commands, bell: bell.clone(), pulse: std::sync::Arc::default() }],
        };
        assert!(workers.all_sweep());
        assert!(!workers.all_sweep());
        bell.answer();
        assert!(workers.all_sweep());
    }

    #[test]
    fn a_worker_that_does_not_end_is_left_behind() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let stuck = thread::spawn(move || {
            let _ = held.recv();
        });
        let mut workers = Workers { threads: vec![thread::spawn(|| {}), stuck], links: Vec::new() };
        let start = Instant::now();
        workers.stop_within(Duration::from_millis(50));
        assert!(start.elapsed() >= Duration::from_millis(50) && workers.threads.is_empty());
        drop(release);
    }

    #[test]
    fn workers_get_the_last_cores_unless_told_otherwise() {
        assert_eq!(cores(None, 2, 8), [Some(6), Some(7)]);
        assert_eq!(cores(None, 1, 1), [Some(0)]);
        assert_eq!(cores(None, 3, 2), [None, None, None]);
        assert_eq!(cores(Some(&[1, 5]), 2, 8), [Some(1), Some(5)]);
    }
}
