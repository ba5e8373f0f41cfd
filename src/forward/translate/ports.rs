//! The ports of the addresses in front: which are taken.
//!
//! They are given out to workers in blocks of 64, and a worker gives its own to its mappings, so
//! that any worker can tell from a port whose mapping it is, and none has to ask another for one:
//! block number *b* belongs to worker *b* mod N. Which port is taken is left to chance (RFC 6056).
//!
//! Where mappings are logged by the block, a block has one inside host at a time, which gets its
//! ports, of whatever protocol, from no other's (RFC 6888 section 4 asks that a log can be kept small).

use std::collections::HashMap;

use crate::{
    tables::held_ports::PortSet,
    wire::ipv4::{ICMP, TCP, UDP},
};

/// Ports of a block.
pub const BLOCK: u16 = 64;
/// Blocks of an address.
const BLOCKS: usize = 65536 / BLOCK as usize;

/// The worker that has this port.
#[inline(always)]
pub fn owner(port: u16, workers: usize) -> usize {
    usize::from(port / BLOCK) % workers
}

/// The ports of one address and protocol.
type Taken = Box<[u64; BLOCKS]>;

/// The inside host that has a block (0: none), and how many ports of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Holder {
    host: u32,
    ports: u32,
}

/// The ports that one worker has taken.
#[derive(Debug, Default)]
pub struct Ports {
    taken: HashMap<(u32, u8), Taken>,
    /// By address and block.
    holders: HashMap<u32, Box<[Holder; BLOCKS]>>,
}

/// Which ports may be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share<'a> {
    /// The first of the rule's.
    pub first: u16,
    /// The last of the rule's.
    pub last: u16,
    /// The worker.
    pub worker: usize,
    /// The number of workers.
    pub workers: usize,
    /// The inside host that is to have the port's block for itself, where that is wanted.
    pub host: Option<u32>,
    /// Ports that are somebody else's.
    pub held: Option<&'a PortSet>,
}

impl Share<'_> {
    /// The ports of this block that belong to the range, one bit each.
    fn mask(&self, block: u16) -> u64 {
        let start = u32::from(block) * u32::from(BLOCK);
        let from = u32::from(self.first).saturating_sub(start).min(64);
        let to = (u32::from(self.last) + 1).saturating_sub(start).min(64);
        let below = |n: u32| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
        let held = self.held.map_or(0, |held| held[usize::from(block)]);
        below(to) & !below(from) & !held
    }

    /// The worker's blocks, from where `random` says on.
    fn blocks(&self, random: u64) -> impl Iterator<Item = u16> + use<> {
        let (first, last) = (self.first / BLOCK, self.last / BLOCK);
        let (workers, worker) = (self.workers.max(1) as u16, self.worker as u16);
        // The first block of the worker's that is not before the range.
        let begin = first + (worker + workers - first % workers) % workers;
        let count = if begin > last { 0 } else { (last - begin) / workers + 1 };
        let start = (random >> 32) % u64::from(count.max(1));
        (0..count).map(move |n| begin + ((start + u64::from(n)) % u64::from(count)) as u16 * workers)
    }
}

/// A port that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    /// The port.
    pub port: u16,
    /// Whether its host has got the block that it is in with it.
    pub with_block: bool,
}

impl Ports {
    /// Takes a port that is free, from where `random` says on. `None` when the share is used up.
    pub fn take(&mut self, address: u32, protocol: u8, share: Share<'_>, random: u64) -> Option<Given> {
        let block = self.block(address, protocol, share, random)?;
        let taken = self.taken.entry((address, protocol)).or_insert_with(|| Box::new([0; BLOCKS]));
        let free = share.mask(block) & !taken[usize::from(block)];
        let turn = random as u32 % 64;
        let bit = (free.rotate_right(turn).trailing_zeros() + turn) % 64;
        taken[usize::from(block)] |= 1 << bit;
        let mut with_block = false;
        if let Some(host) = share.host {
            let holders =
                self.holders.entry(address).or_insert_with(|| Box::new([Holder::default(); BLOCKS]));
            let holder = &mut holders[usize::from(block)];
            with_block = holder.ports == 0;
            *holder = Holder { host, ports: holder.ports + 1 };
        }
        Some(Given { port: block * BLOCK + bit as u16, with_block })
    }

    /// A block with a port that may be taken.
    fn block(&self, address: u32, protocol: u8, share: Share<'_>, random: u64) -> Option<u16> {
        let holders = self.holders.get(&address);
        let host_of = |block: u16| holders.map_or(0, |holders| holders[usize::from(block)].host);
        let taken_of = |protocol, block: u16| {
            self.taken.get(&(address, protocol)).map_or(0, |taken| taken[usize::from(block)])
        };
        let has_free = |block: &u16| share.mask(*block) & !taken_of(protocol, *block) != 0;
        let Some(host) = share.host else {
            return share.blocks(random).find(|block| host_of(*block) == 0 && has_free(block));
        };
        let own = share.blocks(random).find(|block| host_of(*block) == host && has_free(block));
        let unused = |block: &u16| {
            let is_unused = |protocol| taken_of(protocol, *block) == 0;
            host_of(*block) == 0 && share.mask(*block) != 0 && [ICMP, TCP, UDP].into_iter().all(is_unused)
        };
        own.or_else(|| share.blocks(random).find(unused))
    }

    /// Gives a port back. Gives whether its host has given back the whole block with it.
    pub fn give_back(&mut self, address: u32, protocol: u8, port: u16) -> bool {
        let block = usize::from(port / BLOCK);
        if let Some(taken) = self.taken.get_mut(&(address, protocol)) {
            taken[block] &= !(1 << (port % BLOCK));
        }
        let Some(holder) = self.holders.get_mut(&address).map(|holders| &mut holders[block]) else {
            return false;
        };
        if holder.ports > 1 {
            holder.ports -= 1;
            return false;
        }
        std::mem::take(holder).ports == 1
    }

    /// How many ports are taken, by address and protocol.
    pub fn used(&self) -> impl Iterator<Item = (u32, u8, u32)> {
        self.taken.iter().map(|((address, protocol), taken)| {
            (*address, *protocol, taken.iter().map(|word| word.count_ones()).sum())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rule_43_every_port_of_the_share_is_given_out_once_and_no_other() {
        for (first, last, workers) in [(1024, 32767, 1), (1030, 1500, 3), (1024, 65535, 4), (2000, 2001, 2)] {
            let mut all = BTreeSet::new();
            for worker in 0..workers {
                let mut ports = Ports::default();
                let share = Share { first, last, worker, workers, host: None, held: None };
                let mut random = 7u64;
                while let Some(Given { port, .. }) = ports.take(1, 6, share, random) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    assert_eq!(owner(port, workers), worker);
                    assert!(all.insert(port), "{port} twice");
                }
                if let Some(&port) = all.iter().find(|port| owner(**port, workers) == worker) {
                    ports.give_back(1, 6, port);
                    let again = Given { port, with_block: false };
                    assert_eq!(ports.take(1, 6, share, random), Some(again));
                }
            }
            assert_eq!(all, (first..=last).collect());
        }
    }

    #[test]
    fn a_port_of_the_hosts_is_never_given_out() {
        let mut held = [0; 1024];
        held[31] = 1 << (2000 % 64);
        let mut ports = Ports::default();
        let share = Share { first: 1999, last: 2002, worker: 0, workers: 1, host: None, held: Some(&held) };
        let all: BTreeSet<u16> =
            std::iter::from_fn(|| ports.take(1, 6, share, 5)).map(|given| given.port).collect();
        assert_eq!(all, [1999, 2001, 2002].into());
    }

    #[test]
    fn rule_61_ports_come_in_no_order() {
        let share = Share { first: 1024, last: 32767, worker: 0, workers: 1, host: None, held: None };
        let mut random = 1u64;
        let mut ports = Ports::default();
        let taken: Vec<u16> = (0..1000)
            .map(|_| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ports.take(1, 6, share, random ^ random >> 29).unwrap().port
            })
            .collect();
        let near = taken.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 64).count();
        assert!(near < 30, "{near} of 1000 near the one before");
    }

    #[test]
    fn a_host_has_its_blocks_for_itself_and_gives_them_back_with_the_last_port() {
        let share =
            |host| Share { first: 1100, last: 1100 + 64 * 7, worker: 0, workers: 2, host, held: None };
        let mut ports = Ports::default();
        // Without a host of its own a port may stand anywhere, and its block is nobody's.
        let shared = ports.take(1, 17, share(None), 3).unwrap();
        assert!(!shared.with_block);
        let mut of_host: [Vec<(u8, Given)>; 2] = Default::default();
        for n in 0..40 {
            for (host, list) in (8..).zip(&mut of_host) {
                let protocol = [TCP, UDP, ICMP][n % 3];
                if let Some(given) =
                    ports.take(1, protocol, share(Some(host)), (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
                {
                    list.push((protocol, given));
                }
            }
        }
        let blocks = of_host
            .each_ref()
            .map(|list| list.iter().map(|(_, given)| given.port / BLOCK).collect::<BTreeSet<_>>());
        assert!(blocks[0].is_disjoint(&blocks[1]) && !blocks[0].contains(&(shared.port / BLOCK)));
        for (list, blocks) in of_host.iter().zip(&blocks) {
            assert!(list.len() == 40 && blocks.len() < 3, "{} ports in {blocks:?}", list.len());
            assert_eq!(list.iter().filter(|(_, given)| given.with_block).count(), blocks.len());
        }
        let back = of_host.each_ref().map(|list| {
            list.iter().filter(|(protocol, given)| ports.give_back(1, *protocol, given.port)).count()
        });
        assert_eq!(back, blocks.each_ref().map(BTreeSet::len));
        assert!(!ports.give_back(1, 17, shared.port));
        assert!(ports.used().all(|(.., used)| used == 0));
        assert!(ports.holders[&1].iter().all(|holder| *holder == Holder::default()));
    }

    #[test]
    fn a_host_without_a_block_left_gets_no_port() {
        let share = |host| Share {
            first: 2048,
            last: 2048 + 127,
            worker: 0,
            workers: 1,
            host: Some(host),
            held: None,
        };
        let mut ports = Ports::default();
        assert!(ports.take(1, 17, share(7), 1).unwrap().with_block);
        assert!(ports.take(1, 17, share(8), 1).unwrap().with_block);
        assert_eq!(ports.take(1, 17, share(9), 1), None);
        assert!((0..63).all(|n| ports.take(1, 17, share(7), n).is_some_and(|given| !given.with_block)));
        assert_eq!(ports.take(1, 17, share(7), 1), None);
        assert!(ports.take(1, 6, share(7), 1).is_some(), "of the other protocol's ports none is taken");
    }
}
