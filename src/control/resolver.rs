//! Who is being looked for. It decides when a neighbour is asked for, asked for again, and given
//! up, from what it is told and the time; it neither sends nor waits.
//!
//! A gateway in use is looked for until it is found, ever more seldom. Anyone else is looked for
//! when a packet waits for it. A neighbour without an answer within [`PATIENCE`] has failed: the
//! packets held at that moment are answered, and the next packet asks again.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::tables::PortId;

/// How long an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(4);
/// Shortest time between two questions about one neighbour.
pub const AGAIN: Duration = Duration::from_secs(1);
/// Longest time between two questions about a gateway.
const SELDOM: Duration = Duration::from_secs(30);
/// How long a neighbour that packets are sent to is believed without a sign of life.
pub const REFRESH: Duration = Duration::from_secs(30);
/// Questions of the built-in host about one neighbour until it has failed.
const TRIES: u32 = 3;
/// Neighbours, other than gateways, that are looked for at the same time.
const MOST: usize = 16384;

/// Someone on a port's link.
pub type Who = (PortId, IpAddr);

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Ask for the neighbour.
    Ask(Who),
    /// Tell the workers that it does not answer.
    GiveUp(Who),
}

/// How a port's neighbours are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Means {
    /// The kernel asks, and asks again by itself.
    Kernel,
    /// The built-in host sends one request at a time.
    Builtin,
}

#[derive(Debug)]
struct Search {
    means: Means,
    gateway: bool,
    /// Whether a packet waits.
    waiting: bool,
    asked: Option<Instant>,
    /// When to ask next.
    next: Option<Instant>,
    /// When it has failed.
    deadline: Option<Instant>,
    tries: u32,
    pause: Duration,
}

impl Search {
    fn new(means: Means, now: Instant) -> Self {
        Self {
            means,
            gateway: false,
            waiting: false,
            asked: None,
            next: Some(now),
            deadline: None,
            tries: 0,
            pause: AGAIN,
        }
    }
}

/// All searches.
#[derive(Debug, Default)]
pub struct Resolver {
    searches: HashMap<Who, Search>,
}

impl Resolver {
    /// A packet waits for `who`.
    pub fn wanted(&mut self, who: Who, means: Means, now: Instant) {
        if self.searches.len() >= MOST && !self.searches.contains_key(&who) {
            return;
        }
        let search = self.searches.entry(who).or_insert_with(|| Search::new(means, now));
        search.waiting = true;
        if search.deadline.is_none() {
            let earliest = search.asked.map_or(now, |asked| (asked + AGAIN).max(now));
            search.next = Some(search.next.map_or(earliest, |next| next.min(earliest)));
        }
    }

    /// These gateways, and no others, are in use and not found.
    pub fn gateways(&mut self, missing: impl IntoIterator<Item = (Who, Means)>, now: Instant) {
        for search in self.searches.values_mut() {
            search.gateway = false;
        }
        for (who, means) in missing {
            let search = self.searches.entry(who).or_insert_with(|| Search::new(means, now));
            search.gateway = true;
            if search.next.is_none() && search.deadline.is_none() {
                search.next = Some(search.asked.map_or(now, |asked| (asked + search.pause).max(now)));
            }
        }
        for search in self.searches.values_mut().filter(|search| !search.gateway && !search.waiting) {
            search.next = None;
        }
    }

    /// A port has gone: nobody behind it is looked for.
    pub fn forget_port(&mut self, port: PortId) {
        self.searches.retain(|who, _| who.0 != port);
    }

    /// Whether `who` is being looked for.
    pub fn is_searching(&self, who: Who) -> bool {
        self.searches.contains_key(&who)
    }

    /// Whether `who` is looked for as a gateway in use.
    pub fn is_gateway(&self, who: Who) -> bool {
        self.searches.get(&who).is_some_and(|search| search.gateway)
    }

    /// `who` has been found.
    pub fn found(&mut self, who: Who) {
        self.searches.remove(&who);
    }

    /// The kernel has given up on `who`.
    pub fn failed(&mut self, who: Who, steps: &mut Vec<Step>) {
        if let Some(search) = self.searches.get_mut(&who)
            && search.asked.is_some()
        {
            give_up(who, search, steps);
        }
    }

    /// What is due at `now`.
    pub fn due(&mut self, now: Instant, steps: &mut Vec<Step>) {
        self.searches.retain(|&who, search| {
            if search.deadline.is_some_and(|deadline| deadline <= now) {
                give_up(who, search, steps);
            }
            if search.next.is_some_and(|next| next <= now) {
                steps.push(Step::Ask(who));
                search.asked = Some(now);
                search.tries += 1;
                match search.means {
                    Means::Kernel => {
                        search.next = None;
                        search.deadline = Some(now + PATIENCE);
                    }
                    Means::Builtin if search.tries < TRIES => search.next = Some(now + AGAIN),
                    Means::Builtin => {
                        search.next = None;
                        search.deadline = Some(now + AGAIN);
                    }
                }
            }
            search.gateway
                || search.next.is_some()
                || search.deadline.is_some()
                || search.asked.is_some_and(|asked| asked + AGAIN > now)
        });
    }

    /// When something is due next.
    pub fn next(&self) -> Option<Instant> {
        self.searches.values().flat_map(|search| [search.next, search.deadline]).flatten().min()
    }
}

fn give_up(who: Who, search: &mut Search, steps: &mut Vec<Step>) {
    if std::mem::take(&mut search.waiting) {
        steps.push(Step::GiveUp(who));
    }
    search.deadline = None;
    search.tries = 0;
    search.next = None;
    if search.gateway {
        search.next = search.asked.map(|asked| asked + search.pause.max(AGAIN));
        search.pause = (search.pause * 2).min(SELDOM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(last: u8) -> Who {
        (0, IpAddr::from([10, 0, 0, last]))
    }

    fn due(resolver: &mut Resolver, now: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        resolver.due(now, &mut steps);
        steps
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_packet_asks_at_once_and_is_answered_after_four_seconds() {
        let (mut resolver, start) = (Resolver::default(), Instant::now());
        resolver.wanted(who(1), Means::Kernel, start);
        assert_eq!(due(&mut resolver, start), [Step::Ask(who(1))]);
        resolver.wanted(who(1), Means::Kernel, start + AGAIN);
        assert_eq!(due(&mut resolver, start + AGAIN), []);
        assert_eq!(due(&mut resolver, start + PATIENCE - MS), []);
        assert_eq!(due(&mut resolver, start + PATIENCE), [Step::GiveUp(who(1))]);
        resolver.wanted(who(1), Means::Kernel, start + PATIENCE);
        assert_eq!(due(&mut resolver, start + PATIENCE), [Step::Ask(who(1))]);
    }

    #[test]
    fn the_next_packet_after_a_failure_asks_at_most_once_a_second() {
        let (mut resolver, start) = (Resolver::default(), Instant::now());
        resolver.wanted(who(1), Means::Kernel, start);
        due(&mut resolver, start);
        let mut steps = Vec::new();
        resolver.failed(who(1), &mut steps);
        assert_eq!(steps, [Step::GiveUp(who(1))]);
        resolver.wanted(who(1), Means::Kernel, start + MS);
        assert_eq!(due(&mut resolver, start + MS), []);
        assert_eq!(due(&mut resolver, start + AGAIN), [Step::Ask(who(1))]);
    }

    #[test]
    fn a_gateway_is_looked_for_without_a_packet_and_ever_more_seldom() {
        let (mut resolver, start) = (Resolver::default(), Instant::now());
        let mut asked = Vec::new();
        for second in 0..300u64 {
            let now = start + Duration::from_secs(second);
            resolver.gateways([(who(1), Means::Kernel)], now);
            for step in due(&mut resolver, now) {
                assert_eq!(step, Step::Ask(who(1)), "nothing waits, so nothing is answered");
                asked.push(second);
            }
        }
        let gaps: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps[..6], [4, 4, 4, 8, 16, 30]);
        resolver.gateways([], start);
        assert_eq!(due(&mut resolver, start + Duration::from_secs(1000)), []);
        assert_eq!(resolver.next(), None);
    }

    #[test]
    fn the_built_in_host_asks_three_times() {
        let (mut resolver, start) = (Resolver::default(), Instant::now());
        resolver.wanted(who(1), Means::Builtin, start);
        let mut history = Vec::new();
        for tenth in 0..60u32 {
            let steps = due(&mut resolver, start + 100 * MS * tenth);
            history.extend(steps.into_iter().map(|step| (tenth, step)));
        }
        let ask = Step::Ask(who(1));
        assert_eq!(history, [(0, ask), (10, ask), (20, ask), (30, Step::GiveUp(who(1)))]);
    }

    #[test]
    fn whoever_is_found_is_looked_for_no_longer() {
        let (mut resolver, start) = (Resolver::default(), Instant::now());
        resolver.wanted(who(1), Means::Kernel, start);
        due(&mut resolver, start);
        resolver.found(who(1));
        assert_eq!(due(&mut resolver, start + PATIENCE), []);
        let mut steps = Vec::new();
        resolver.failed(who(1), &mut steps);
        assert_eq!(steps, []);
    }

    #[test]
    fn the_number_of_searches_is_bounded() {
        let (mut resolver, start) = (Resolver::default(), Instant::now());
        for n in 0..MOST as u32 + 1000 {
            resolver.wanted((0, IpAddr::from(n.to_be_bytes())), Means::Kernel, start);
        }
        assert_eq!(due(&mut resolver, start).len(), MOST);
    }
}
