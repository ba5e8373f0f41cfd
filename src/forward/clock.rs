//! The loop's clock: milliseconds for everything that lasts seconds, read once a sweep.
//!
//! The system's coarse clock is a load from a page that the kernel keeps up to date: no system
//! call, and no instruction that the processor waits for. It is some milliseconds behind at most.

use std::time::Duration;

#[cfg(target_os = "linux")]
const COARSE: libc::clockid_t = libc::CLOCK_MONOTONIC_COARSE;
#[cfg(target_os = "freebsd")]
const COARSE: libc::clockid_t = libc::CLOCK_MONOTONIC_FAST;
#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
const COARSE: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// A worker's clock.
#[derive(Debug, Default)]
pub struct Clock {
    now: u32,
    skipped: u32,
}

impl Clock {
    /// A clock that has been read.
    pub fn new() -> Self {
        let mut clock = Self::default();
        clock.read();
        clock
    }

    /// Looks at the time.
    #[inline]
    pub fn read(&mut self) {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the system writes into `time`, which lives here. The clock is one that it has; if
        // it had not, the time would stand still.
        unsafe { libc::clock_gettime(COARSE, &raw mut time) };
        let milliseconds = (time.tv_sec as u64).wrapping_mul(1000) + time.tv_nsec as u64 / 1_000_000;
        self.now = (milliseconds as u32).wrapping_add(self.skipped);
    }

    /// Milliseconds since some time in the past when it was last read, modulo 2^32.
    #[inline(always)]
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Puts the clock on: for tests of what lasts hours.
    pub fn skip(&mut self, time: Duration) {
        self.skipped = self.skipped.wrapping_add(time.as_millis() as u32);
        self.read();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_goes_on_and_can_be_put_on() {
        let mut clock = Clock::new();
        let start = clock.now();
        std::thread::sleep(Duration::from_millis(30));
        clock.read();
        let passed = clock.now().wrapping_sub(start);
        assert!((15..5000).contains(&passed), "{passed}");
        clock.skip(Duration::from_secs(3600));
        assert!(clock.now().wrapping_sub(start) >= 3_600_000);
    }
}
