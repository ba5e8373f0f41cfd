//! Made-up routing tables of the size and shape of the Internet's, for benchmarks and tests.
//!
//! They are the same for the same seed. What matters to a lookup structure is kept: prefixes crowd
//! into the blocks that registries have allocated, some blocks hold hundreds and many a few; most
//! of a block goes the same way; lengths are distributed about as in a table of 2025.

use std::ops::RangeInclusive;

use super::NextHopId;
use super::prefixes::{Address, Prefixes, Prefixes4, Prefixes6};

/// A small generator of random numbers (SplitMix64): fast, repeatable, not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// A number from 0 to below 1.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws from 0..count, where number n (from 0) is drawn in proportion to 1 / (n + 1)^exponent.
#[derive(Clone, Debug)]
pub struct Zipf(Vec<f64>);

impl Zipf {
    /// The distribution over 0..`count`.
    pub fn new(count: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weight = |n| 1.0 / f64::powf(n as f64, exponent);
        Self(
            (1..=count)
                .map(|n| {
                    sum += weight(n);
                    sum
                })
                .collect(),
        )
    }

    /// Draws one.
    pub fn draw(&self, random: &mut Random) -> usize {
        let total = self.0.last().copied().unwrap_or(0.0);
        let drawn = random.fraction() * total;
        self.0.partition_point(|&sum| sum <= drawn).min(self.0.len().saturating_sub(1))
    }
}

/// Lengths with how many of a thousand prefixes have one of them.
type Lengths = [(u32, RangeInclusive<u8>)];

const LENGTHS4: &Lengths = &[
    (600, 24..=24),
    (120, 22..=22),
    (100, 23..=23),
    (90, 20..=21),
    (70, 16..=19),
    (15, 8..=15),
    (5, 25..=32),
];

const LENGTHS6: &Lengths = &[
    (470, 48..=48),
    (150, 32..=32),
    (100, 44..=44),
    (80, 40..=40),
    (50, 36..=36),
    (40, 29..=29),
    (40, 45..=47),
    (40, 33..=43),
    (20, 20..=28),
    (8, 49..=64),
    (2, 65..=128),
];

/// First 16 bits of the blocks that the registries allocate from.
const REGISTRIES6: [u16; 24] = [
    0x2001, 0x2400, 0x2401, 0x2402, 0x2403, 0x2404, 0x2405, 0x2406, 0x2407, 0x2600, 0x2602, 0x2604, 0x2605,
    0x2606, 0x2607, 0x2800, 0x2804, 0x2a00, 0x2a02, 0x2a03, 0x2a05, 0x2a0a, 0x2a10, 0x2c0f,
];

/// A block that prefixes lie in, with the next hop that most of them have.
type Block<A> = (A, NextHopId);

/// Blocks in use.
const BLOCKS: usize = 40_000;

/// A table of `count` IPv4 prefixes in unicast space with next hops 1 to `next_hops`. The
/// Internet's had about a million in 2025.
///
/// # Panics
/// When `next_hops` is 0.
pub fn ipv4(count: usize, next_hops: NextHopId, seed: u64) -> Prefixes4 {
    let mut random = Random::new(seed);
    let block = |random: &mut Random| (1 + random.below(222) as u32) << 24 | (random.below(256) as u32) << 16;
    let blocks = blocks(&mut random, next_hops, block);
    let inside = |random: &mut Random| random.below(1 << 16) as u32;
    fill(count, next_hops, &mut random, LENGTHS4, &blocks, 0.45, inside)
}

/// A table of `count` IPv6 prefixes in 2000::/3 with next hops 1 to `next_hops`. The Internet's
/// had about 230 000 in 2025.
///
/// # Panics
/// When `next_hops` is 0.
pub fn ipv6(count: usize, next_hops: NextHopId, seed: u64) -> Prefixes6 {
    let mut random = Random::new(seed);
    let block = |random: &mut Random| {
        let registry = REGISTRIES6[random.below(REGISTRIES6.len())];
        u128::from(registry) << 112 | (random.below(1 << 16) as u128) << 96
    };
    let blocks = blocks(&mut random, next_hops, block);
    let inside = |random: &mut Random| {
        // The lower half is mostly zeros, as in real plans.
        u128::from(random.bits() >> 32) << 64 | u128::from(random.bits() & 0xff)
    };
    fill(count, next_hops, &mut random, LENGTHS6, &blocks, 0.7, inside)
}

/// A random address that a prefix of the table covers, if it has any: each prefix equally likely.
pub fn addresses<A: Sample>(prefixes: &Prefixes<A>, count: usize, random: &mut Random) -> Vec<A> {
    let all: Vec<_> = prefixes.iter().collect();
    if all.is_empty() {
        return Vec::new();
    }
    (0..count)
        .map(|_| {
            let (address, length, _) = all[random.below(all.len())];
            address.with_host_bits(length, random)
        })
        .collect()
}

/// Addresses with random host bits.
pub trait Sample: Address {
    /// The prefix's address with random bits behind `length`.
    fn with_host_bits(self, length: u8, random: &mut Random) -> Self;
    /// Any address.
    fn any(random: &mut Random) -> Self;
}

impl Sample for u32 {
    fn with_host_bits(self, length: u8, random: &mut Random) -> Self {
        self | random.bits() as u32 & 0u32.last(length)
    }

    fn any(random: &mut Random) -> Self {
        random.bits() as u32
    }
}

impl Sample for u128 {
    fn with_host_bits(self, length: u8, random: &mut Random) -> Self {
        self | Self::any(random) & 0u128.last(length)
    }

    fn any(random: &mut Random) -> Self {
        u128::from(random.bits()) << 64 | u128::from(random.bits())
    }
}

fn blocks<A>(random: &mut Random, next_hops: NextHopId, block: impl Fn(&mut Random) -> A) -> Vec<Block<A>> {
    (0..BLOCKS).map(|_| (block(random), next_hop(random, next_hops))).collect()
}

fn next_hop(random: &mut Random, next_hops: NextHopId) -> NextHopId {
    1 + random.below(next_hops.into()) as NextHopId
}

fn fill<A: Sample + std::ops::BitOr<Output = A>>(
    count: usize,
    next_hops: NextHopId,
    random: &mut Random,
    lengths: &Lengths,
    blocks: &[Block<A>],
    skew: f64,
    inside: impl Fn(&mut Random) -> A,
) -> Prefixes<A> {
    let choice = Zipf::new(blocks.len(), skew);
    let mut prefixes = Prefixes::new();
    // The table stays smaller when the blocks are so full that new prefixes are hardly found.
    for _ in 0..count.saturating_mul(8) {
        if prefixes.len() >= count {
            break;
        }
        let (block, usual) = blocks[choice.draw(random)];
        let usual = if random.fraction() < 0.7 { usual } else { next_hop(random, next_hops) };
        let length = length(random, lengths);
        prefixes.insert(block | inside(random), length, usual);
    }
    prefixes
}

fn length(random: &mut Random, lengths: &Lengths) -> u8 {
    let mut drawn = random.below(1000) as u32;
    for (share, range) in lengths {
        if drawn < *share {
            return range.start() + random.below(range.len()) as u8;
        }
        drawn -= share;
    }
    *lengths[0].1.start()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_a_thousand() {
        for lengths in [LENGTHS4, LENGTHS6] {
            assert_eq!(lengths.iter().map(|(share, _)| share).sum::<u32>(), 1000);
        }
    }

    #[test]
    fn tables_have_the_size_asked_for_and_repeat() {
        let (v4, v6) = (ipv4(50_000, 100, 1), ipv6(20_000, 100, 1));
        assert_eq!((v4.len(), v6.len()), (50_000, 20_000));
        assert_eq!(v4, ipv4(50_000, 100, 1));
        assert_ne!(v4, ipv4(50_000, 100, 2));
        assert!(v4.iter().all(|(_, _, next_hop)| (1..=100).contains(&next_hop)));
        assert!(v6.iter().all(|(address, length, _)| address >> 125 == 1 && length >= 20));
        let mut random = Random::new(3);
        let covered = addresses(&v4, 1000, &mut random);
        assert!(covered.iter().all(|&address| v4.longest_match(address).is_some()));
    }

    #[test]
    fn low_numbers_are_drawn_more_often() {
        let (zipf, mut random) = (Zipf::new(1000, 1.0), Random::new(1));
        let mut counts = [0; 1000];
        (0..100_000).for_each(|_| counts[zipf.draw(&mut random)] += 1);
        assert!(counts[0] > 10_000 && counts[0] < 17_000 && counts[0] > 5 * counts[10], "{counts:?}");
    }
}
