//! A token bucket: how often a worker may do what an attacker would like it to do often (RFC 1812
//! section 4.3.2.8, RFC 4443 section 2.4 (f)).
//!
//! It has no clock: the caller passes the time it has read for the sweep. It is asked before the
//! answer is built, so that a flood costs one comparison a packet.

use crate::tables::IcmpLimit;

/// One token, in the units that the bucket counts in: a rate of one a second fills one unit a
/// nanosecond.
const TOKEN: u64 = 1_000_000_000;

/// A bucket that fills at a rate, up to its burst.
#[derive(Clone, Debug)]
pub struct Bucket {
    limit: IcmpLimit,
    /// Tokens times [`TOKEN`].
    level: u64,
    /// When the level was last brought up to date, in nanoseconds.
    filled_at: u64,
}

impl Bucket {
    /// A full bucket at time `now` (nanoseconds of any clock that does not go back).
    pub fn new(limit: IcmpLimit, now: u64) -> Self {
        Self { limit, level: u64::from(limit.burst) * TOKEN, filled_at: now }
    }

    /// Other limits from now on; what is in the bucket stays, up to the new burst.
    pub fn set_limit(&mut self, limit: IcmpLimit, now: u64) {
        self.fill(now);
        self.limit = limit;
        self.level = self.level.min(u64::from(limit.burst) * TOKEN);
    }

    /// Takes a token, or says no. Between any two moments it says yes at most rate × time + burst
    /// times.
    pub fn take(&mut self, now: u64) -> bool {
        self.fill(now);
        let yes = self.level >= TOKEN;
        if yes {
            self.level -= TOKEN;
        }
        yes
    }

    fn fill(&mut self, now: u64) {
        // A clock that stands still or goes back adds nothing.
        let passed = now.saturating_sub(self.filled_at);
        let new = passed.saturating_mul(self.limit.rate.into());
        self.level = self.level.saturating_add(new).min(u64::from(self.limit.burst) * TOKEN);
        self.filled_at = self.filled_at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_million_asked_within_a_second_get_no_more_than_rate_and_burst() {
        let mut bucket = Bucket::new(IcmpLimit::default(), 5 * SECOND);
        let granted = (0..1_000_000u64).filter(|n| bucket.take(5 * SECOND + n * 1000)).count();
        // 1000 a second and 200 at once; the last millisecond's token is not full yet.
        assert_eq!(granted, 1199);
    }

    #[test]
    fn an_idle_bucket_fills_up_to_its_burst_and_no_further() {
        let mut bucket = Bucket::new(IcmpLimit { rate: 10, burst: 3 }, 0);
        assert_eq!((0..9).filter(|_| bucket.take(0)).count(), 3);
        assert_eq!((0..9).filter(|_| bucket.take(SECOND / 10)).count(), 1);
        assert_eq!((0..9).filter(|_| bucket.take(u64::MAX)).count(), 3);
    }

    #[test]
    fn a_rate_or_burst_of_zero_grants_as_little_as_it_says() {
        let mut none = Bucket::new(IcmpLimit { rate: 1000, burst: 0 }, 0);
        assert!(!none.take(0) && !none.take(u64::MAX));
        let mut once = Bucket::new(IcmpLimit { rate: 0, burst: 1 }, 0);
        assert!(once.take(0) && !once.take(u64::MAX));
    }

    #[test]
    fn a_clock_that_goes_back_grants_nothing_twice() {
        let mut bucket = Bucket::new(IcmpLimit { rate: 1, burst: 1 }, 10 * SECOND);
        assert!(bucket.take(10 * SECOND));
        assert!(!bucket.take(9 * SECOND));
        assert!(!bucket.take(10 * SECOND));
        assert!(bucket.take(11 * SECOND));
    }

    #[test]
    fn a_lower_limit_holds_at_once() {
        let mut bucket = Bucket::new(IcmpLimit { rate: 1000, burst: 200 }, 0);
        bucket.set_limit(IcmpLimit { rate: 1, burst: 2 }, 0);
        assert_eq!((0..9).filter(|_| bucket.take(0)).count(), 2);
    }

    proptest! {
        #[test]
        fn rule_13_29_never_more_than_rate_times_time_plus_burst(
            rate in 0..5000u32, burst in 0..50u32, steps in prop::collection::vec(0..5_000_000u64, 1..300),
        ) {
            let mut bucket = Bucket::new(IcmpLimit { rate, burst }, 0);
            let (mut now, mut granted) = (0u64, 0u64);
            for step in steps {
                now += step;
                granted += u64::from(bucket.take(now));
            }
            let most = u128::from(rate) * u128::from(now) / u128::from(SECOND) + u128::from(burst);
            prop_assert!(u128::from(granted) <= most);
        }
    }
}
