//! The watchdog: sees that the workers go on, and says when one does not.
//!
//! A worker that is awake ends a sweep within microseconds, or milliseconds on a machine that is
//! busy with something else. One that has ended none for seconds hangs, in a device's driver or by
//! a fault of its own; nothing can be done about that from outside but to say it, so that whoever
//! runs the machine can.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::forward::assembly::WorkerLink;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// A worker that has ended no sweep for so long hangs.
const HANGS: Duration = Duration::from_secs(3);

/// The thread that looks. Dropping it ends it.
pub struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    health: Health,
}

/// How the workers have been; cheap to clone.
#[derive(Clone)]
pub struct Health {
    links: Vec<WorkerLink>,
    stalls: Arc<AtomicU64>,
}

impl Health {
    /// How often a worker met a fault of its own and was restarted.
    pub fn faults(&self) -> u64 {
        self.links.iter().map(|link| link.pulse.faults()).sum()
    }

    /// The same of each worker.
    pub fn faults_of_each(&self) -> Vec<u64> {
        self.links.iter().map(|link| link.pulse.faults()).collect()
    }

    /// How often a worker was found to hang.
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }
}

/// What was last seen of a worker.
struct Seen {
    sweeps: u64,
    since: Instant,
    told: bool,
}

impl Watchdog {
    /// Starts to look after these workers.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(links: Vec<WorkerLink>) -> io::Result<Self> {
        let (stop, stopped) = bounded(0);
        let health = Health { links, stalls: Arc::default() };
        let looked_after = health.clone();
        let thread = std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || look_after(&looked_after, &stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread), health })
    }

    /// How the workers have been.
    pub fn health(&self) -> Health {
        self.health.clone()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn look_after(health: &Health, stopped: &Receiver<()>) {
    let start = Instant::now();
    let mut seen: Vec<Seen> =
        health.links.iter().map(|_| Seen { sweeps: 0, since: start, told: false }).collect();
    while stopped.recv_timeout(LOOK).is_err_and(|e| e.is_timeout()) {
        let now = Instant::now();
        for (number, (link, seen)) in health.links.iter().zip(&mut seen).enumerate() {
            let sweeps = link.pulse.sweeps();
            match seen.look(sweeps, link.bell.is_asleep(), now) {
                Some(Word::Hangs) => {
                    health.stalls.fetch_add(1, Ordering::Relaxed);
                    log::error!(
                        "worker {number} has ended no sweep for {} s: its rings stand still; restart sweepd if that does not pass, and please report it",
                        HANGS.as_secs()
                    );
                }
                Some(Word::GoesOn) => log::info!("worker {number} goes on"),
                None => {}
            }
        }
    }
}

/// What there is to say of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    Hangs,
    GoesOn,
}

impl Seen {
    /// Takes a look; gives what there is to say now.
    fn look(&mut self, sweeps: u64, asleep: bool, now: Instant) -> Option<Word> {
        if sweeps != self.sweeps || asleep {
            (self.sweeps, self.since) = (sweeps, now);
            return std::mem::take(&mut self.told).then_some(Word::GoesOn);
        }
        let hangs = !self.told && now.saturating_duration_since(self.since) >= HANGS;
        self.told |= hangs;
        hangs.then_some(Word::Hangs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_stands_still_awake_is_told_once_until_it_goes_on() {
        let start = Instant::now();
        let mut seen = Seen { sweeps: 0, since: start, told: false };
        let mut look =
            |sweeps, asleep, second| seen.look(sweeps, asleep, start + Duration::from_secs(second));
        assert_eq!(look(5, false, 1), None);
        assert_eq!(look(5, true, 9), None, "it sleeps");
        assert_eq!(look(5, false, 11), None);
        assert_eq!(look(5, false, 12), Some(Word::Hangs));
        assert_eq!(look(5, false, 100), None);
        assert_eq!(look(6, false, 101), Some(Word::GoesOn));
        assert_eq!(look(6, false, 103), None);
        assert_eq!(look(6, false, 104), Some(Word::Hangs));
    }
}
