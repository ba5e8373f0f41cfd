//! The processor's clock, and how results spread.

use std::{
    fmt, thread,
    time::{Duration, Instant},
};

/// The time-stamp counter, after everything before has been done.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: reads a counter; the fences order it against the code around.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        let t = std::arch::x86_64::_rdtsc();
        std::arch::x86_64::_mm_lfence();
        t
    }
}

/// Ticks of the time-stamp counter in a second; takes a tenth of one to find out.
pub fn hertz() -> f64 {
    let (start, ticks) = (Instant::now(), now());
    thread::sleep(Duration::from_millis(100));
    (now() - ticks) as f64 / start.elapsed().as_secs_f64()
}

/// Median, 10th and 90th percentile.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Half of the values are below.
    pub median: f64,
    /// A tenth of the values is below.
    pub low: f64,
    /// A tenth of the values is above.
    pub high: f64,
}

impl Spread {
    /// Of these values.
    ///
    /// # Panics
    /// When there are none.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |q: usize| values[(values.len() - 1) * q / 100];
        Self { median: at(50), low: at(10), high: at(90) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.0} ({:.0} to {:.0})", self.median, self.low, self.high))
    }
}
