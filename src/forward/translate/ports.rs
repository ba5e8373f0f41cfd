//! The ports of the addresses in front: which are taken.
//!
//! They are given out to workers in blocks of 64, and a worker gives its own to its mappings, so
//! that any worker can tell from a port whose mapping it is, and none has to ask another for one:
//! block number *b* belongs to worker *b* mod N. Which port is taken is left to chance (RFC 6056).

use std::collections::HashMap;

/// Ports of a block.
pub const BLOCK: u16 = 64;

/// The worker that has this port.
#[inline(always)]
pub fn owner(port: u16, workers: usize) -> usize {
    usize::from(port / BLOCK) % workers
}

/// The ports of one address and protocol.
type Taken = Box<[u64; 1024]>;

/// The ports that one worker has taken.
#[derive(Debug, Default)]
pub struct Ports {
    taken: HashMap<(u32, u8), Taken>,
}

/// Which ports may be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The first of the rule's.
    pub first: u16,
    /// The last of the rule's.
    pub last: u16,
    /// The worker.
    pub worker: usize,
    /// The number of workers.
    pub workers: usize,
}

impl Share {
    /// The ports of this block that belong to the range, one bit each.
    fn mask(&self, block: u16) -> u64 {
        let start = u32::from(block) * u32::from(BLOCK);
        let from = u32::from(self.first).saturating_sub(start).min(64);
        let to = (u32::from(self.last) + 1).saturating_sub(start).min(64);
        let below = |n: u32| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
        below(to) & !below(from)
    }
}

impl Ports {
    /// Takes a port that is free, from where `random` says on. `None` when the share is used up.
    pub fn take(&mut self, address: u32, protocol: u8, share: Share, random: u64) -> Option<u16> {
        let taken = self.taken.entry((address, protocol)).or_insert_with(|| Box::new([0; 1024]));
        let (first, last) = (share.first / BLOCK, share.last / BLOCK);
        let (workers, worker) = (share.workers.max(1) as u16, share.worker as u16);
        // The first block of the worker's that is not before the range.
        let begin = first + (worker + workers - first % workers) % workers;
        if begin > last {
            return None;
        }
        let blocks = (last - begin) / workers + 1;
        let start = (random >> 32) % u64::from(blocks);
        for n in 0..blocks {
            let block = begin + ((start + u64::from(n)) % u64::from(blocks)) as u16 * workers;
            let free = share.mask(block) & !taken[usize::from(block)];
            if free != 0 {
                let turn = random as u32 % 64;
                let bit = (free.rotate_right(turn).trailing_zeros() + turn) % 64;
                taken[usize::from(block)] |= 1 << bit;
                return Some(block * BLOCK + bit as u16);
            }
        }
        None
    }

    /// Gives a port back.
    pub fn give_back(&mut self, address: u32, protocol: u8, port: u16) {
        if let Some(taken) = self.taken.get_mut(&(address, protocol)) {
            taken[usize::from(port / BLOCK)] &= !(1 << (port % BLOCK));
        }
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
                let share = Share { first, last, worker, workers };
                let mut random = 7u64;
                while let Some(port) = ports.take(1, 6, share, random) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    assert_eq!(owner(port, workers), worker);
                    assert!(all.insert(port), "{port} twice");
                }
                if let Some(&port) = all.iter().find(|port| owner(**port, workers) == worker) {
                    ports.give_back(1, 6, port);
                    assert_eq!(ports.take(1, 6, share, random), Some(port));
                }
            }
            assert_eq!(all, (first..=last).collect());
        }
    }

    #[test]
    fn rule_61_ports_come_in_no_order() {
        let share = Share { first: 1024, last: 32767, worker: 0, workers: 1 };
        let mut random = 1u64;
        let mut ports = Ports::default();
        let taken: Vec<u16> = (0..1000)
            .map(|_| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ports.take(1, 6, share, random ^ random >> 29).unwrap()
            })
            .collect();
        let near = taken.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 64).count();
        assert!(near < 30, "{near} of 1000 near the one before");
    }
}
