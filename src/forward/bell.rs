//! A bell: how a worker that sleeps is woken, at no cost to one that does not.

use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering, fence},
};

/// One worker's bell. Others ring it; the worker polls its descriptor while it sleeps.
pub struct Bell {
    asleep: AtomicBool,
    called: AtomicBool,
    reader: PipeReader,
    writer: PipeWriter,
}

impl Bell {
    /// A new bell.
    ///
    /// # Errors
    /// The system's, when there is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        for fd in [reader.as_raw_fd(), writer.as_raw_fd()] {
            // SAFETY: plain fcntl on descriptors that live here.
            if unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { asleep: AtomicBool::new(false), called: AtomicBool::new(false), reader, writer })
    }

    /// Wakes the worker if it sleeps. What the caller published before is seen by the worker.
    pub fn wake(&self) {
        // Either this load sees `asleep`, or the worker, whose own fence comes after it set
        // `asleep`, sees what was published before this fence.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.ring();
        }
    }

    /// Calls the worker: it looks at its commands at the end of this sweep, asleep or not.
    pub fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.wake();
    }

    fn ring(&self) {
        // A full pipe means that the bell rings already.
        let _ = (&self.writer).write(&[1]);
    }

    /// Whether the worker was called since the last time it asked.
    #[inline(always)]
    pub fn was_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    /// Takes the call. Commands sent before the call are seen after this.
    pub fn answer(&self) {
        self.called.swap(false, Ordering::Acquire);
    }

    /// The worker is about to sleep; after this it looks once more whether there is something to
    /// do.
    pub fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The worker is awake again.
    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        let mut buffer = [0; 64];
        while matches!((&self.reader).read(&mut buffer), Ok(n) if n == buffer.len()) {}
    }

    /// Whether the worker sleeps.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// The descriptor to poll for input while asleep.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, time::Duration};

    #[test]
    fn a_sleeper_is_woken_and_its_call_is_seen() {
        let bell = Arc::new(Bell::new().unwrap());
        bell.fall_asleep();
        assert!(!bell.was_called());
        let other = bell.clone();
        let caller = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            other.call();
        });
        let mut fds = [nix::poll::PollFd::new(bell.fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut fds, 5000u16), Ok(1));
        bell.wake_up();
        assert!(bell.was_called());
        bell.answer();
        assert!(!bell.was_called());
        caller.join().unwrap();
        let mut fds = [nix::poll::PollFd::new(bell.fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut fds, 0u16), Ok(0));
    }
}
