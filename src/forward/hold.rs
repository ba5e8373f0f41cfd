//! Packets that wait for a neighbour's MAC address: a few for each neighbour, in a pool of cells
//! that is made once.
//!
//! Where there is no room, the newest packet takes the place of the oldest, its neighbour's own
//! when that has its share already, else the oldest of all: RFC 4861 section 7.2.2 and RFC 1122
//! section 2.3.2.2 want the latest kept, and a scan of a prefix then shortens everyone's wait
//! instead of shutting everyone out until it is over.
//!
//! It also keeps when each neighbour was last asked for, so that it is asked for at most once a
//! second however many packets come (RFC 1122 section 2.3.2.1), and again while packets wait. It
//! has no clock: the caller passes the time that it has read for the sweep.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};

use crate::{tables::PortId, wire::vlan::Priority};

/// Least time between two questions for the same neighbour, in nanoseconds.
pub const ASK_EVERY: u64 = 1_000_000_000;

/// How much is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Packets in all, at most 65,535.
    pub cells: usize,
    /// Packets for one neighbour.
    pub per_neighbor: usize,
    /// Longest frame, in bytes.
    pub cell_len: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { cells: 512, per_neighbor: 8, cell_len: 2048 }
    }
}

/// What a held packet needs besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// The port that it came in on, whose counters are told how it ends.
    pub from: PortId,
    /// Where it was routed to: its destination, unless that is translated.
    pub to: IpAddr,
    /// Whether it was made here, an ICMP error: no counter of received packets knows it.
    pub made: bool,
    /// The priority of its tags, for those that it may leave with.
    pub priority: Priority,
    /// Its number in a capture; 0 for none.
    pub seen: u64,
}

/// A packet that has left the hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held<'a> {
    /// The frame, as it was pushed.
    pub frame: &'a [u8],
    /// What came with it.
    pub meta: Meta,
    /// The port that its neighbour is reached through.
    pub port: PortId,
    /// The neighbour it was held for.
    pub neighbor: IpAddr,
    /// When it was pushed, in nanoseconds.
    pub since: u64,
}

/// What became of a packet pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pushed {
    /// Whether the neighbour is to be asked for now.
    pub ask: bool,
    /// The older packet that had to go: it is lost, and counts as `hold_full` on its port.
    pub displaced: Option<Meta>,
}

/// The frame is longer than a cell, or there are no cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// No index.
const NONE: u16 = u16::MAX;

/// Packets that wait for their neighbours.
pub struct Hold {
    limits: Limits,
    bytes: Box<[u8]>,
    cells: Box<[Cell]>,
    /// Cells with a packet, oldest first; each is also in its neighbour's queue.
    oldest: Chain,
    free: Chain,
    cell_links: Links,
    /// The next packet for the same neighbour.
    queue_next: Box<[u16]>,
    neighbors: Box<[Neighbor]>,
    /// Neighbours with packets.
    waiting: Chain,
    /// Places without packets, those to be given away first at the front. They still know when
    /// their neighbour was last asked for.
    idle: Chain,
    neighbor_links: Links,
    /// By hash, the first neighbour of each bucket; `Neighbor::next` leads on.
    buckets: Box<[u16]>,
    hasher: RandomState,
    held: usize,
    /// No neighbour is to be asked for again before this.
    ask_at: u64,
}

#[derive(Clone, Copy)]
struct Cell {
    len: u16,
    neighbor: u16,
    meta: Meta,
    since: u64,
}

#[derive(Clone, Copy)]
struct Neighbor {
    key: Option<(PortId, IpAddr)>,
    first: u16,
    last: u16,
    count: u16,
    /// The next in the same bucket.
    next: u16,
    asked: Option<u64>,
}

impl Hold {
    /// Room for as much as `limits` says; nothing is allocated later.
    pub fn new(limits: Limits) -> Self {
        let cells = limits.cells.min(usize::from(NONE));
        let limits = Limits {
            cells,
            per_neighbor: limits.per_neighbor.clamp(1, cells.max(1)),
            cell_len: limits.cell_len.min(usize::from(u16::MAX)),
        };
        let priority = Priority::default();
        let meta = Meta { from: 0, to: IpAddr::V4(Ipv4Addr::UNSPECIFIED), made: false, priority, seen: 0 };
        let (mut cell_links, mut neighbor_links) = (Links::new(cells), Links::new(cells));
        let (mut free, mut idle) = (Chain::EMPTY, Chain::EMPTY);
        for index in 0..cells as u16 {
            cell_links.push_back(&mut free, index);
            neighbor_links.push_back(&mut idle, index);
        }
        Self {
            limits,
            bytes: vec![0; cells * limits.cell_len].into(),
            cells: vec![Cell { len: 0, neighbor: NONE, meta, since: 0 }; cells].into(),
            oldest: Chain::EMPTY,
            free,
            cell_links,
            queue_next: vec![NONE; cells].into(),
            neighbors: vec![Neighbor::EMPTY; cells].into(),
            waiting: Chain::EMPTY,
            idle,
            neighbor_links,
            buckets: vec![NONE; cells.next_power_of_two()].into(),
            hasher: RandomState::new(),
            held: 0,
            ask_at: u64::MAX,
        }
    }

    /// How many packets are held.
    pub fn len(&self) -> usize {
        self.held
    }

    /// How many packets are held for a neighbour.
    pub fn count(&self, port: PortId, neighbor: IpAddr) -> usize {
        self.find(port, neighbor).map_or(0, |index| self.neighbors[index as usize].count.into())
    }

    /// How many neighbours packets wait for.
    pub fn neighbors(&self) -> usize {
        let next = |index: &u16| Some(self.neighbor_links.next[*index as usize]).filter(|n| *n != NONE);
        std::iter::successors(Some(self.waiting.first).filter(|n| *n != NONE), next).count()
    }

    /// Whether no packet is held.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Holds a copy of `frame` until the MAC address of `neighbor` on `port` is known.
    ///
    /// # Errors
    /// [`NoRoom`] when the frame is longer than a cell.
    pub fn push(
        &mut self,
        (port, neighbor): (PortId, IpAddr),
        frame: &[u8],
        meta: Meta,
        now: u64,
    ) -> Result<Pushed, NoRoom> {
        if frame.len() > self.limits.cell_len || self.limits.cells == 0 {
            return Err(NoRoom);
        }
        let mut known = self.find(port, neighbor);
        let full =
            known.filter(|n| usize::from(self.neighbors[*n as usize].count) >= self.limits.per_neighbor);
        let displaced = match full {
            Some(full) => Some(self.remove_first(full)),
            None if self.free.is_empty() => {
                Some(self.remove_first(self.cells[self.oldest.first as usize].neighbor))
            }
            None => None,
        };
        let displaced = displaced.map(|cell| self.cells[cell as usize].meta);
        // What went may have left this neighbour without packets, but not without its place.
        let index = *known.get_or_insert_with(|| self.claim(port, neighbor));

        let cell = self.free.first;
        self.cell_links.remove(&mut self.free, cell);
        self.cell_links.push_back(&mut self.oldest, cell);
        self.cells[cell as usize] = Cell { len: frame.len() as u16, neighbor: index, meta, since: now };
        let start = cell as usize * self.limits.cell_len;
        self.bytes[start..start + frame.len()].copy_from_slice(frame);
        self.append(index, cell);
        self.held += 1;
        Ok(Pushed { ask: self.ask(index, now), displaced })
    }

    /// Takes out the packet that has waited longest for the neighbour, or `None` when there is no
    /// more: to be called until then, once the neighbour is known or has failed.
    pub fn take(&mut self, port: PortId, neighbor: IpAddr) -> Option<Held<'_>> {
        let index = self.find(port, neighbor).filter(|n| self.neighbors[*n as usize].count != 0)?;
        let cell = self.remove_first(index);
        Some(self.view(cell, (port, neighbor)))
    }

    /// Takes out the oldest packet when it has waited for more than `longest` nanoseconds, or
    /// `None` when none has: to be called until then.
    pub fn expire(&mut self, now: u64, longest: u64) -> Option<Held<'_>> {
        let cell = self.oldest.first;
        let oldest = self.cells.get(cell as usize).filter(|_| cell != NONE)?;
        if now.saturating_sub(oldest.since) <= longest {
            return None;
        }
        let key = self.neighbors[oldest.neighbor as usize].key?;
        // The oldest of all is the oldest of its neighbour.
        self.remove_first(oldest.neighbor);
        Some(self.view(cell, key))
    }

    /// Takes out the oldest packet of those that `is` chooses, by the port that its neighbour is on
    /// and what came with it; `None` when there is none: to be called until then.
    pub fn take_where(&mut self, is: impl Fn(PortId, &Meta) -> bool) -> Option<Meta> {
        let mut cell = self.oldest.first;
        while cell != NONE {
            let Cell { neighbor, meta, .. } = self.cells[cell as usize];
            let port = self.neighbors[neighbor as usize].key.map(|(port, _)| port);
            if port.is_some_and(|port| is(port, &meta)) {
                self.remove_cell(neighbor, cell);
                return Some(meta);
            }
            cell = self.cell_links.next[cell as usize];
        }
        None
    }

    /// Takes a cell out of its neighbour's queue, wherever it stands there.
    fn remove_cell(&mut self, index: u16, cell: u16) {
        let first = self.neighbors[index as usize].first;
        if first == cell {
            self.remove_first(index);
            return;
        }
        let mut before = first;
        while self.queue_next[before as usize] != cell {
            before = self.queue_next[before as usize];
        }
        self.queue_next[before as usize] = self.queue_next[cell as usize];
        let neighbor = &mut self.neighbors[index as usize];
        if neighbor.last == cell {
            neighbor.last = before;
        }
        neighbor.count -= 1;
        self.cell_links.remove(&mut self.oldest, cell);
        self.cell_links.push_back(&mut self.free, cell);
        self.held -= 1;
    }

    /// A neighbour whose first packet satisfies `ready`.
    pub fn find_ready(&self, mut ready: impl FnMut(&Held<'_>) -> bool) -> Option<(PortId, IpAddr)> {
        let mut index = self.waiting.first;
        while index != NONE {
            let neighbor = &self.neighbors[index as usize];
            if let Some(key) = neighbor.key
                && ready(&self.view(neighbor.first, key))
            {
                return Some(key);
            }
            index = self.neighbor_links.next[index as usize];
        }
        None
    }

    /// Calls `ask` for each neighbour that packets wait for and that was last asked for a second
    /// or longer ago. Costs one comparison when there is none.
    pub fn ask_again(&mut self, now: u64, mut ask: impl FnMut(PortId, IpAddr)) {
        if now < self.ask_at || self.is_empty() {
            return;
        }
        self.ask_at = u64::MAX;
        let mut index = self.waiting.first;
        while index != NONE {
            if self.ask(index, now)
                && let Some((port, neighbor)) = self.neighbors[index as usize].key
            {
                ask(port, neighbor);
            }
            index = self.neighbor_links.next[index as usize];
        }
    }

    /// Whether a neighbour is to be asked for now; it then counts as asked for.
    fn ask(&mut self, index: u16, now: u64) -> bool {
        let asked = &mut self.neighbors[index as usize].asked;
        let yes = asked.is_none_or(|at| now.saturating_sub(at) >= ASK_EVERY);
        let at = if yes { now } else { asked.unwrap_or(now) };
        *asked = Some(at);
        self.ask_at = self.ask_at.min(at.saturating_add(ASK_EVERY));
        yes
    }

    fn view(&self, cell: u16, (port, neighbor): (PortId, IpAddr)) -> Held<'_> {
        let Cell { len, meta, since, .. } = self.cells[cell as usize];
        let start = cell as usize * self.limits.cell_len;
        Held { frame: &self.bytes[start..start + usize::from(len)], meta, port, neighbor, since }
    }

    /// Puts a cell at the end of its neighbour's queue.
    fn append(&mut self, index: u16, cell: u16) {
        self.queue_next[cell as usize] = NONE;
        let neighbor = &mut self.neighbors[index as usize];
        if neighbor.count == 0 {
            neighbor.first = cell;
            self.neighbor_links.remove(&mut self.idle, index);
            self.neighbor_links.push_back(&mut self.waiting, index);
        } else {
            self.queue_next[neighbor.last as usize] = cell;
        }
        neighbor.last = cell;
        neighbor.count += 1;
    }

    /// Takes the first cell out of a queue that has one. Its bytes stay until the next push.
    fn remove_first(&mut self, index: u16) -> u16 {
        let neighbor = &mut self.neighbors[index as usize];
        let cell = neighbor.first;
        neighbor.first = self.queue_next[cell as usize];
        neighbor.count -= 1;
        if neighbor.count == 0 {
            self.neighbor_links.remove(&mut self.waiting, index);
            self.neighbor_links.push_back(&mut self.idle, index);
        }
        self.cell_links.remove(&mut self.oldest, cell);
        self.cell_links.push_back(&mut self.free, cell);
        self.held -= 1;
        cell
    }

    fn bucket(&self, key: (PortId, IpAddr)) -> usize {
        self.hasher.hash_one(key) as usize & (self.buckets.len() - 1)
    }

    fn find(&self, port: PortId, neighbor: IpAddr) -> Option<u16> {
        let mut index = self.buckets[self.bucket((port, neighbor))];
        while index != NONE {
            let this = &self.neighbors[index as usize];
            if this.key == Some((port, neighbor)) {
                return Some(index);
            }
            index = this.next;
        }
        None
    }

    /// Gives a place without packets to a neighbour that has none. There is one: each neighbour
    /// that waits has a cell, and a cell is free.
    fn claim(&mut self, port: PortId, neighbor: IpAddr) -> u16 {
        let index = self.idle.first;
        if let Some(old) = self.neighbors[index as usize].key {
            self.unlink(self.bucket(old), index);
        }
        let bucket = self.bucket((port, neighbor));
        self.neighbors[index as usize] =
            Neighbor { key: Some((port, neighbor)), next: self.buckets[bucket], ..Neighbor::EMPTY };
        self.buckets[bucket] = index;
        index
    }

    /// Takes a neighbour out of its bucket.
    fn unlink(&mut self, bucket: usize, index: u16) {
        let behind = self.neighbors[index as usize].next;
        if self.buckets[bucket] == index {
            self.buckets[bucket] = behind;
            return;
        }
        let mut before = self.buckets[bucket];
        while self.neighbors[before as usize].next != index {
            before = self.neighbors[before as usize].next;
        }
        self.neighbors[before as usize].next = behind;
    }
}

impl Neighbor {
    const EMPTY: Self = Self { key: None, first: NONE, last: NONE, count: 0, next: NONE, asked: None };
}

/// A list through [`Links`].
#[derive(Clone, Copy)]
struct Chain {
    first: u16,
    last: u16,
}

impl Chain {
    const EMPTY: Self = Self { first: NONE, last: NONE };

    const fn is_empty(self) -> bool {
        self.first == NONE
    }
}

/// Who stands before and behind each index in the one list that it is in.
struct Links {
    previous: Box<[u16]>,
    next: Box<[u16]>,
}

impl Links {
    fn new(len: usize) -> Self {
        Self { previous: vec![NONE; len].into(), next: vec![NONE; len].into() }
    }

    fn push_back(&mut self, chain: &mut Chain, index: u16) {
        self.previous[index as usize] = chain.last;
        self.next[index as usize] = NONE;
        match chain.last {
            NONE => chain.first = index,
            last => self.next[last as usize] = index,
        }
        chain.last = index;
    }

    fn remove(&mut self, chain: &mut Chain, index: u16) {
        let (before, behind) = (self.previous[index as usize], self.next[index as usize]);
        match before {
            NONE => chain.first = behind,
            before => self.next[before as usize] = behind,
        }
        match behind {
            NONE => chain.last = before,
            behind => self.previous[behind as usize] = before,
        }
    }
}

#[cfg(test)]
mod tests;
