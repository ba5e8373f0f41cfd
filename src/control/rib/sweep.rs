//! Mark and sweep: what a complete listing doesn't name no longer exists. News may overtake a
//! listing that was begun before them, so what news have touched meanwhile is left as they say.

use std::{collections::HashSet, hash::Hash};

/// One part's listings.
#[derive(Debug)]
pub struct Sweep<K> {
    running: bool,
    /// News were lost while the listing ran: it may name what is gone.
    tainted: bool,
    epoch: u8,
    touched: HashSet<K>,
}

impl<K: Eq + Hash> Default for Sweep<K> {
    fn default() -> Self {
        Self { running: false, tainted: false, epoch: 1, touched: HashSet::new() }
    }
}

impl<K: Eq + Hash> Sweep<K> {
    /// The mark for what is known to exist now; never 0.
    pub fn epoch(&self) -> u8 {
        self.epoch
    }

    /// A listing begins.
    pub fn begin(&mut self) {
        self.running = true;
        self.tainted = false;
        self.epoch = self.epoch.checked_add(1).unwrap_or(1);
        self.touched = HashSet::new();
    }

    /// News were lost.
    pub fn taint(&mut self) {
        self.tainted = self.running;
    }

    /// Whether a report about `key` counts: all news do, a listing's lines unless news came.
    pub fn admits(&mut self, key: K, listed: bool) -> bool {
        if listed {
            return !self.touched.contains(&key);
        }
        if self.running {
            self.touched.insert(key);
        }
        true
    }

    /// The listing ends. Gives a test for what is to be removed, by mark and key, or `None` if
    /// nothing may be.
    pub fn end(&mut self, complete: bool) -> Option<impl Fn(u8, &K) -> bool + use<K>> {
        let certain = complete && self.running && !self.tainted;
        self.running = false;
        let touched = std::mem::take(&mut self.touched);
        let epoch = self.epoch;
        certain.then_some(move |mark: u8, key: &K| mark != 0 && mark != epoch && !touched.contains(key))
    }
}
