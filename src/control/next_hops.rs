//! The numbers of next hops: one for each neighbour of each port, one for each port's own network,
//! one for each group. A number that nothing leads to any more is given away again only when no
//! worker can still hold tables in which something does (`Numbers::recycle`).

use std::{collections::HashMap, net::IpAddr};

use crate::tables::{MAX_NEXT_HOPS, NextHopId, PortId, fixed};

/// Numbers from a range, counted out and taken back.
#[derive(Debug)]
struct Numbers {
    next: u32,
    end: u32,
    free: Vec<u16>,
    /// Given back, but perhaps still in the tables that a worker holds.
    resting: Vec<u16>,
}

impl Numbers {
    fn new(range: std::ops::Range<usize>) -> Self {
        Self { next: range.start as u32, end: range.end as u32, free: Vec::new(), resting: Vec::new() }
    }

    fn take(&mut self) -> Option<u16> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        let number = u16::try_from(self.next).ok().filter(|n| u32::from(*n) < self.end)?;
        self.next += 1;
        Some(number)
    }

    fn give_back(&mut self, number: u16) {
        self.resting.push(number);
    }

    fn recycle(&mut self) {
        self.free.append(&mut self.resting);
    }
}

/// What stands behind a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Adjacency {
    /// The port's own network: the destination itself is to be found.
    Network(PortId),
    /// A neighbour of the port's.
    Neighbor(PortId, IpAddr),
    /// The group at this place in [`crate::tables::Tables::groups`].
    Group(u16),
}

impl Adjacency {
    /// The port behind it, unless it is a group.
    pub fn port(self) -> Option<PortId> {
        match self {
            Self::Network(port) | Self::Neighbor(port, _) => Some(port),
            Self::Group(_) => None,
        }
    }
}

/// All next hops that have a number, with how many routes' paths lead to each.
#[derive(Debug)]
pub struct NextHops {
    numbers: Numbers,
    groups: Numbers,
    by_adjacency: HashMap<Adjacency, NextHopId>,
    slots: Vec<Option<(Adjacency, u32)>>,
}

impl Default for NextHops {
    fn default() -> Self {
        Self {
            numbers: Numbers::new(usize::from(fixed::FIRST_FREE)..MAX_NEXT_HOPS),
            groups: Numbers::new(0..MAX_NEXT_HOPS),
            by_adjacency: HashMap::new(),
            slots: Vec::new(),
        }
    }
}

impl NextHops {
    /// The number of `adjacency`, which has one more user now, and whether it is a new one; `None`
    /// when all numbers are taken.
    pub fn acquire(&mut self, adjacency: Adjacency) -> Option<(NextHopId, bool)> {
        if let Some(&id) = self.by_adjacency.get(&adjacency) {
            if let Some(Some((_, users))) = self.slots.get_mut(usize::from(id)) {
                *users += 1;
            }
            return Some((id, false));
        }
        let id = self.numbers.take()?;
        self.by_adjacency.insert(adjacency, id);
        let place = usize::from(id);
        if self.slots.len() <= place {
            self.slots.resize(place + 1, None);
        }
        self.slots[place] = Some((adjacency, 1));
        Some((id, true))
    }

    /// One user less; numbers below [`fixed::FIRST_FREE`] are nobody's and stay.
    pub fn release(&mut self, id: NextHopId) {
        let Some(slot) = self.slots.get_mut(usize::from(id)) else { return };
        let Some((adjacency, users)) = slot else { return };
        *users -= 1;
        if *users == 0 {
            self.by_adjacency.remove(adjacency);
            *slot = None;
            self.numbers.give_back(id);
        }
    }

    /// A place for a new group, or `None` when all are taken.
    pub fn take_group(&mut self) -> Option<u16> {
        self.groups.take()
    }

    /// Gives a group's place back.
    pub fn return_group(&mut self, place: u16) {
        self.groups.give_back(place);
    }

    /// The number of `adjacency`, if it has one.
    pub fn id_of(&self, adjacency: Adjacency) -> Option<NextHopId> {
        self.by_adjacency.get(&adjacency).copied()
    }

    /// What stands behind `id`.
    pub fn adjacency(&self, id: NextHopId) -> Option<Adjacency> {
        self.slots.get(usize::from(id)).copied().flatten().map(|(adjacency, _)| adjacency)
    }

    /// All that have a number.
    pub fn iter(&self) -> impl Iterator<Item = (NextHopId, Adjacency)> + '_ {
        let ids = 0..self.slots.len() as u32;
        ids.filter_map(|id| self.adjacency(id as NextHopId).map(|a| (id as NextHopId, a)))
    }

    /// How many have a number.
    pub fn len(&self) -> usize {
        self.by_adjacency.len()
    }

    /// Whether none has a number.
    pub fn is_empty(&self) -> bool {
        self.by_adjacency.is_empty()
    }

    /// To be called when no worker holds older tables any more: what was given back before is free.
    pub fn recycle(&mut self) {
        self.numbers.recycle();
        self.groups.recycle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbor(last: u8) -> Adjacency {
        Adjacency::Neighbor(0, IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn a_number_is_given_again_only_after_the_tables_are_out_of_use() {
        let mut hops = NextHops::default();
        let (first, new) = hops.acquire(neighbor(1)).unwrap();
        assert!(new && first == fixed::FIRST_FREE);
        assert_eq!(hops.acquire(neighbor(1)), Some((first, false)));
        hops.release(first);
        assert_eq!(hops.adjacency(first), Some(neighbor(1)));
        hops.release(first);
        assert_eq!(hops.adjacency(first), None);
        assert_ne!(hops.acquire(neighbor(2)).unwrap().0, first);
        hops.recycle();
        assert_eq!(hops.acquire(neighbor(3)), Some((first, true)));
    }

    #[test]
    fn numbers_run_out_without_harm() {
        let mut hops = NextHops::default();
        let mut count = 0;
        while hops
            .acquire(Adjacency::Neighbor((count % 4) as u16, IpAddr::from((count as u128).to_be_bytes())))
            .is_some()
        {
            count += 1;
        }
        assert_eq!(count, MAX_NEXT_HOPS - usize::from(fixed::FIRST_FREE));
        hops.release(fixed::FIRST_FREE);
        hops.recycle();
        assert!(hops.acquire(neighbor(1)).is_some());
        hops.release(fixed::HOST);
    }
}
