//! What was decided about datagrams whose first fragment has passed by: for the fragments behind
//! it, which have no ports. Bounded; when it is full the oldest is forgotten, and the rules decide
//! without it.

use std::{
    hash::{BuildHasher, Hash, RandomState},
    time::Duration,
};

/// Sets of [`WAYS`] datagrams.
const SETS: usize = 1024;
const WAYS: usize = 4;
/// How long a datagram's fragments may be on their way: what RFC 1122 section 3.3.2 gives those who
/// put them together, and some more.
const LIFE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Default)]
struct Datagram {
    /// Of what tells it from others; keyed by a secret, so that nobody can choose two that are
    /// alike. 0: none.
    hash: u64,
    /// The rules that decided.
    serial: u64,
    /// When, in milliseconds.
    at: u64,
    rule: u32,
}

/// A worker's memory of datagrams.
pub struct Datagrams {
    secret: RandomState,
    sets: Vec<[Datagram; WAYS]>,
}

impl Default for Datagrams {
    fn default() -> Self {
        Self { secret: RandomState::new(), sets: Vec::new() }
    }
}

impl Datagrams {
    /// The rule that decided about the datagram, if it was one of the rules with this serial number.
    pub fn find(&self, datagram: &impl Hash, serial: u64, now: Duration) -> Option<u32> {
        let hash = self.hash(datagram);
        let set = self.sets.get(hash as usize % SETS)?;
        set.iter().find(|d| d.hash == hash && d.serial == serial && !is_old(d, now)).map(|d| d.rule)
    }

    /// Remembers it. `now` is the time on a clock that does not go back.
    pub fn remember(&mut self, datagram: &impl Hash, serial: u64, rule: u32, now: Duration) {
        let hash = self.hash(datagram);
        if self.sets.is_empty() {
            self.sets = vec![[Datagram::default(); WAYS]; SETS];
        }
        let set = &mut self.sets[hash as usize % SETS];
        let oldest = (0..WAYS).min_by_key(|&way| (set[way].hash != 0, set[way].at)).unwrap_or(0);
        let way = (0..WAYS).find(|&way| set[way].hash == hash).unwrap_or(oldest);
        set[way] = Datagram { hash, serial, at: now.as_millis() as u64, rule };
    }

    fn hash(&self, datagram: &impl Hash) -> u64 {
        self.secret.hash_one(datagram).max(1)
    }
}

fn is_old(datagram: &Datagram, now: Duration) -> bool {
    u128::from(datagram.at) + LIFE.as_millis() < now.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_remembered_for_a_minute_and_for_its_rules() {
        let mut datagrams = Datagrams::default();
        let at = Duration::from_secs;
        assert_eq!(datagrams.find(&7, 1, at(0)), None);
        datagrams.remember(&7, 1, 42, at(5));
        assert_eq!(datagrams.find(&7, 1, at(65)), Some(42));
        assert_eq!(datagrams.find(&7, 2, at(6)), None, "other rules");
        assert_eq!(datagrams.find(&8, 1, at(6)), None, "another datagram");
        assert_eq!(datagrams.find(&7, 1, at(66)), None, "too old");
        datagrams.remember(&7, 1, 43, at(70));
        assert_eq!(datagrams.find(&7, 1, at(70)), Some(43));
    }

    #[test]
    fn a_flood_takes_no_more_memory_and_the_newest_are_known() {
        let mut datagrams = Datagrams::default();
        for n in 0..100_000u32 {
            datagrams.remember(&n, 1, n, Duration::from_millis(n.into()));
        }
        assert_eq!(datagrams.sets.len() * WAYS, 4096);
        let known =
            (99_000..100_000u32).filter(|n| datagrams.find(n, 1, Duration::from_secs(100)) == Some(*n));
        assert!(known.count() > 900);
    }
}
