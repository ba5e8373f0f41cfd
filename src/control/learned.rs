//! When neighbours gave a sign of life: those that the built-in host has heard, and the kernel's
//! that were asked again because packets are sent to them.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::resolver::{REFRESH, Who};

/// Neighbours that the built-in host remembers at most.
const MOST: usize = 8192;
/// How long it remembers one that nobody sends to.
const MEMORY: Duration = Duration::from_secs(600);

/// When whom was heard and asked.
#[derive(Debug, Default)]
pub struct Learned {
    heard: HashMap<Who, Instant>,
    refreshed: HashMap<Who, Instant>,
}

impl Learned {
    /// Notes a sign of life; `false` if there is no room for yet another neighbour.
    pub fn hear(&mut self, who: Who, now: Instant) -> bool {
        if self.heard.len() >= MOST && !self.heard.contains_key(&who) {
            return false;
        }
        self.heard.insert(who, now);
        true
    }

    /// Forgets a neighbour; whether it was remembered.
    pub fn forget(&mut self, who: Who) -> bool {
        self.heard.remove(&who).is_some()
    }

    /// A port has gone, and all neighbours behind it.
    pub fn forget_port(&mut self, port: crate::tables::PortId) {
        self.heard.retain(|who, _| who.0 != port);
        self.refreshed.retain(|who, _| who.0 != port);
    }

    /// Whether the last sign of life is too long ago to be believed.
    pub fn is_old(&self, who: Who, now: Instant) -> bool {
        self.heard.get(&who).is_none_or(|heard| now.saturating_duration_since(*heard) >= REFRESH)
    }

    /// Whether the kernel may be asked again about a neighbour; notes that it is.
    pub fn may_refresh(&mut self, who: Who, now: Instant) -> bool {
        let due = self.refreshed.get(&who).is_none_or(|at| now.saturating_duration_since(*at) >= REFRESH);
        if due {
            self.refreshed.insert(who, now);
        }
        due
    }

    /// Takes out and gives those that have been silent for too long.
    pub fn expire(&mut self, now: Instant) -> Vec<Who> {
        self.refreshed.retain(|_, at| now.saturating_duration_since(*at) < REFRESH);
        let silent = |at: &Instant| now.saturating_duration_since(*at) >= MEMORY;
        let gone: Vec<Who> = self.heard.iter().filter(|(_, at)| silent(at)).map(|(who, _)| *who).collect();
        self.heard.retain(|_, at| !silent(at));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn the_silent_are_forgotten_and_the_rest_is_bounded() {
        let (mut learned, start) = (Learned::default(), Instant::now());
        for n in 0..MOST as u32 {
            assert!(learned.hear((0, IpAddr::from(n.to_be_bytes())), start));
        }
        let one_more = (1, IpAddr::from([9, 9, 9, 9]));
        assert!(!learned.hear(one_more, start));
        assert!(learned.hear((0, IpAddr::from([0, 0, 0, 0])), start + REFRESH));
        assert!(learned.is_old((0, IpAddr::from([0, 0, 0, 1])), start + REFRESH));
        assert!(!learned.is_old((0, IpAddr::from([0, 0, 0, 0])), start + REFRESH));
        assert_eq!(learned.expire(start + MEMORY).len(), MOST - 1);
        assert!(learned.hear(one_more, start + MEMORY) && learned.forget(one_more));
    }

    #[test]
    fn the_kernel_is_asked_about_a_neighbor_once_in_a_while() {
        let (mut learned, start) = (Learned::default(), Instant::now());
        let who = (0, IpAddr::from([10, 0, 0, 1]));
        assert!(learned.may_refresh(who, start));
        assert!(!learned.may_refresh(who, start + REFRESH / 2));
        assert!(learned.may_refresh(who, start + REFRESH));
    }
}
