//! How many flows each inside host has, over all workers: the one thing in address translation that
//! workers share. It is asked only where a rule has a quota, in one short step as a flow begins and
//! another as it ends; packets of known flows never come here.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Parts, so that workers seldom meet.
const PARTS: usize = 64;

/// Hosts, by address, and their flows.
type Part = HashMap<u32, u32>;

/// On a line of its own, so that workers in different parts do not disturb each other.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Locked(Mutex<Part>);

/// The flows of inside hosts that have quotas.
#[derive(Debug)]
pub struct Quotas {
    parts: Vec<Locked>,
    hash: RandomState,
}

impl Default for Quotas {
    fn default() -> Self {
        let parts = std::iter::repeat_with(Locked::default).take(PARTS).collect();
        Self { parts, hash: RandomState::new() }
    }
}

impl Quotas {
    fn part(&self, host: u32) -> MutexGuard<'_, Part> {
        let part = &self.parts[self.hash.hash_one(host) as usize % PARTS].0;
        // Nothing in here panics half way.
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more flow of `host`, unless it has `most` already. `besides` flows of it are new
    /// to this count, whatever comes of the one that is asked for: a rule may get its quota when a
    /// host has flows. Gives whether the flow may begin.
    pub fn take(&self, host: u32, most: u32, besides: u32) -> bool {
        let mut part = self.part(host);
        let flows = part.entry(host).or_default();
        *flows = flows.saturating_add(besides);
        let may = *flows < most;
        *flows = flows.saturating_add(may.into());
        if *flows == 0 {
            part.remove(&host);
        }
        may
    }

    /// Counts so many flows of `host` less.
    pub fn give_back(&self, host: u32, flows: u32) {
        let mut part = self.part(host);
        if let Some(left) = part.get_mut(&host) {
            *left = left.saturating_sub(flows);
            if *left == 0 {
                part.remove(&host);
            }
        }
    }

    /// How many flows `host` has.
    pub fn of(&self, host: u32) -> u32 {
        self.part(host).get(&host).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_gets_no_more_than_its_quota_and_leaves_nothing_behind() {
        let quotas = Quotas::default();
        assert!((0..3).all(|_| quotas.take(1, 3, 0)));
        assert!(!quotas.take(1, 3, 0));
        assert!(quotas.take(2, 3, 0), "another host");
        quotas.give_back(1, 1);
        assert!(quotas.take(1, 3, 0));
        quotas.give_back(1, 3);
        quotas.give_back(2, 1);
        quotas.give_back(7, 1);
        assert!(quotas.parts.iter().all(|part| part.0.lock().unwrap().is_empty()));
    }

    #[test]
    fn flows_that_were_there_before_the_quota_count() {
        let quotas = Quotas::default();
        assert!(!quotas.take(1, 3, 5));
        assert_eq!(quotas.of(1), 5);
        quotas.give_back(1, 3);
        assert!(quotas.take(1, 3, 0));
    }

    #[test]
    fn workers_that_ask_at_once_get_the_quota_together() {
        let quotas = Quotas::default();
        let granted: usize = std::thread::scope(|scope| {
            let ask = || (0..1000).filter(|_| quotas.take(9, 1500, 0)).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(granted, 1500);
    }
}
