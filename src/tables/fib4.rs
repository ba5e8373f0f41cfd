//! The IPv4 forwarding table: from a destination to its next hop in two dependent loads.
//!
//! A directory of 2¹⁸ words, one for each /18, leads to blocks of 16-byte units. A block begins
//! with a bitmap of 64 bits, one for each /24: bit *n* is set where /24 number *n* begins a new
//! leaf, so the leaf is found by counting bits. Most blocks are a single cache line. A leaf with
//! the high bit set stands for a /24 that longer prefixes divide: its other 15 bits say how many
//! units behind the block's beginning the same structure is repeated, with a bitmap of 256 bits
//! for the addresses of that /24. Everything of one /18 is one allocation, so one word replaces it.
//!
//! An /18 with a single next hop *n* leads to block *n*, of one unit and shared by all of them:
//! every lookup takes the same path, without a branch to guess.
//!
//!     word = directory[address >> 14]
//!     block at word:  bitmap (8 bytes) | leaves (2 bytes each) | blocks of divided /24s
//!     leaf = leaves[ones(bitmap & bits 0..=n) - 1],  n = address >> 8 & 63
//!
//! A worker looks a burst up in three steps, so that the cache misses of its packets overlap:
//! [`Fib4::prefetch_dir`] for all; [`Fib4::dir`] and [`Fib4::prefetch_block`] for all;
//! [`Fib4::leaf`] for all.

use std::io;

use zerocopy::{FromBytes, IntoBytes};

use super::blocks::{BlockStats, Blocks, Demand};
use super::cpu::{self, count_ones, prefetch};
use super::memory::{Backing, PageArray};
use super::prefixes::{Address, Flattener, Interval, Prefixes4, regions};
use super::{MAX_NEXT_HOPS, NextHopId};

pub use super::blocks::FibFull;

/// Length of the prefixes that a directory word stands for.
const CHUNK: u8 = 18;
/// Bits of an address below those.
const CHUNK_SHIFT: u8 = 32 - CHUNK;
/// Marks a leaf whose /24 is divided; the other bits are a distance in units.
const DIVIDED: u16 = 0x8000;
/// Units that blocks may take: 64 MiB. A table of a million prefixes takes six.
const CAPACITY: u32 = 4 << 20;
/// Units behind the last block that the largest leaf distance still stays within, whichever table
/// a [`Dir4`] came from.
const SLACK: u32 = 2 * DIVIDED as u32;

/// A directory word: what [`Fib4::dir`] found, to be given to [`Fib4::leaf`] of the same table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dir4(u32);

/// The IPv4 forwarding table.
#[derive(Debug)]
pub struct Fib4 {
    directory: PageArray<u32>,
    blocks: Blocks,
    scratch: Scratch,
    /// Words of new blocks, stored once all of them are made: (index, word).
    staged: Vec<(u32, u32)>,
}

impl Fib4 {
    /// An empty table: every lookup gives next hop 0.
    ///
    /// # Errors
    /// When the system gives no memory, or the processor lacks an instruction that is needed.
    pub fn new() -> io::Result<Self> {
        Self::with_backing(&Backing::Anonymous, &Backing::Anonymous)
    }

    /// As [`Fib4::new`], with memory for the directory (1 MiB) and for the blocks (64 MiB and
    /// 1 MiB behind them, taken as needed) from elsewhere.
    ///
    /// # Errors
    /// As [`Fib4::new`].
    pub fn with_backing(directory: &Backing, blocks: &Backing) -> io::Result<Self> {
        cpu::check()?;
        let mut fib = Self {
            directory: PageArray::new(1 << CHUNK, directory)?,
            blocks: Blocks::new(CAPACITY, MAX_NEXT_HOPS as u32, SLACK, blocks)?,
            scratch: Scratch::default(),
            staged: Vec::new(),
        };
        fib.write_uniform(0);
        Ok(fib)
    }

    /// Lets blocks take at most `bytes` bytes, for tests of a full table.
    pub fn limit(&mut self, bytes: usize) {
        let units = u32::try_from(bytes / 16).unwrap_or(u32::MAX);
        self.blocks.set_limit(units.saturating_add(MAX_NEXT_HOPS as u32));
    }

    /// The next hop of `address` (host order): 0 when there is no route.
    #[inline(always)]
    pub fn lookup(&self, address: u32) -> NextHopId {
        self.leaf(address, self.dir(address))
    }

    /// Looks up `addresses` in the three steps, up to 64 at a time, into `out`.
    ///
    /// # Panics
    /// When `out` is shorter than `addresses`.
    #[inline]
    pub fn lookup_batch(&self, addresses: &[u32], out: &mut [NextHopId]) {
        let out = &mut out[..addresses.len()];
        for (addresses, out) in addresses.chunks(64).zip(out.chunks_mut(64)) {
            let mut words = [Dir4(0); 64];
            for &address in addresses {
                self.prefetch_dir(address);
            }
            for (&address, word) in addresses.iter().zip(&mut words) {
                *word = self.dir(address);
                self.prefetch_block(*word);
            }
            for ((&address, &word), out) in addresses.iter().zip(&words).zip(out) {
                *out = self.leaf(address, word);
            }
        }
    }

    /// Asks for the cache line that [`Fib4::dir`] will read.
    #[inline(always)]
    pub fn prefetch_dir(&self, address: u32) {
        prefetch(self.directory.as_ptr().wrapping_add((address >> CHUNK_SHIFT) as usize));
    }

    /// Reads the directory word of `address`.
    #[inline(always)]
    pub fn dir(&self, address: u32) -> Dir4 {
        // SAFETY: the directory has a word for each value of an address's first 18 bits.
        Dir4(unsafe { *self.directory.as_ptr().add((address >> CHUNK_SHIFT) as usize) })
    }

    /// Asks for the cache line that [`Fib4::leaf`] will read.
    #[inline(always)]
    pub fn prefetch_block(&self, word: Dir4) {
        prefetch(self.block(word));
    }

    /// The next hop of `address`, whose directory word is `word`: 0 when there is no route.
    #[inline(always)]
    pub fn leaf(&self, address: u32, word: Dir4) -> NextHopId {
        let block = self.block(word);
        // SAFETY: a Dir4 is below CAPACITY in every table, and all tables map that many units and
        // SLACK: the bitmap and at most 64 leaves behind it are mapped, whatever they contain.
        let leaf = unsafe {
            // The shift leaves the bits 0..=n, at the top.
            let bits = (*block).wrapping_shl(!(address >> 8));
            *block.cast::<u16>().add(3 + count_ones(bits))
        };
        if leaf & DIVIDED == 0 { leaf } else { self.divided(address, word, leaf) }
    }

    #[inline(always)]
    fn block(&self, word: Dir4) -> *const u64 {
        self.blocks.as_ptr().wrapping_add(word.0 as usize * 2)
    }

    /// The next hop inside a /24 that longer prefixes divide.
    #[cold]
    #[inline(never)]
    fn divided(&self, address: u32, word: Dir4, leaf: NextHopId) -> NextHopId {
        let block = self.block(word).wrapping_add(usize::from(leaf & !DIVIDED) * 2);
        let host = address & 255;
        // SAFETY: the distance is below 2^15 units, the bitmap and its leaves take 34 more, and
        // SLACK is 2^16: mapped, whatever they contain.
        unsafe {
            let last = (host >> 6) as usize;
            let before: usize = (0..last).map(|i| count_ones(*block.add(i))).sum();
            let within = count_ones((*block.add(last)).wrapping_shl(!host));
            *block.cast::<u16>().add(15 + before + within)
        }
    }

    /// Makes the table anew from `prefixes`, in compact memory.
    ///
    /// # Errors
    /// [`FibFull`], and the table is as it was.
    pub fn build(&mut self, prefixes: &Prefixes4) -> Result<(), FibFull> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut demand = Demand::default();
        let counted = scratch.generate(prefixes, 0, 0, |_, content| {
            if let Content::Block(words) = content {
                demand.add(units(words));
            }
            Ok(())
        });
        let result = counted.and_then(|()| self.blocks.fits(&demand)).and_then(|()| {
            self.blocks.reset();
            scratch.generate(prefixes, 0, 0, |index, content| {
                let word = self.place(content)?;
                self.directory[index as usize] = word;
                Ok(())
            })
        });
        self.scratch = scratch;
        result
    }

    /// Brings the table up to date with `prefixes` after `address/length` was inserted, removed or
    /// given another next hop. The cost is that of the /18s touched.
    ///
    /// # Errors
    /// [`FibFull`], and the table is as it was.
    pub fn update(&mut self, prefixes: &Prefixes4, address: u32, length: u8) -> Result<(), FibFull> {
        self.update_all(prefixes, &[(address, length)])
    }

    /// As [`Fib4::update`] after several changes, given as (address, length): an /18 that several
    /// of them touch is made once. All or nothing.
    ///
    /// # Errors
    /// [`FibFull`], and the table is as it was.
    pub fn update_all(&mut self, prefixes: &Prefixes4, changes: &[(u32, u8)]) -> Result<(), FibFull> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut regions = regions(changes, |_| CHUNK).into_iter();
        let result =
            regions.try_for_each(|(address, length)| self.stage(&mut scratch, prefixes, address, length));
        self.scratch = scratch;
        if result.is_ok() {
            self.commit();
            return Ok(());
        }
        self.roll_back();
        // There may be room enough, only in pieces too small.
        self.build(prefixes)
    }

    /// Bytes that lookups may read: the directory, the blocks in use, and the shared blocks.
    pub fn bytes(&self) -> usize {
        self.directory.len() * 4 + MAX_NEXT_HOPS * 16 + self.blocks.stats().used
    }

    /// The state of the blocks' memory.
    pub fn stats(&self) -> BlockStats {
        self.blocks.stats()
    }

    fn stage(
        &mut self,
        scratch: &mut Scratch,
        prefixes: &Prefixes4,
        address: u32,
        length: u8,
    ) -> Result<(), FibFull> {
        scratch.generate(prefixes, address, length, |index, content| {
            let old = self.directory[index as usize];
            let same = match content {
                Content::Uniform(next_hop) => old == u32::from(next_hop),
                Content::Block(words) => {
                    old >= MAX_NEXT_HOPS as u32 && self.blocks.words(old, units(words)) == words
                }
            };
            if !same {
                let word = self.place(content)?;
                self.staged.push((index, word));
            }
            Ok(())
        })
    }

    /// Stores the staged words and frees what they replace.
    fn commit(&mut self) {
        for (index, word) in std::mem::take(&mut self.staged) {
            let old = std::mem::replace(&mut self.directory[index as usize], word);
            self.free(old);
        }
    }

    fn roll_back(&mut self) {
        for (_, word) in std::mem::take(&mut self.staged) {
            self.free(word);
        }
    }

    /// Puts `content` into memory and returns the word that leads to it.
    fn place(&mut self, content: Content<'_>) -> Result<u32, FibFull> {
        match content {
            Content::Uniform(next_hop) => Ok(self.write_uniform(next_hop)),
            Content::Block(words) => {
                let units = units(words);
                let position = self.blocks.allocate(units).ok_or(self.blocks.full())?;
                self.blocks.words_mut(position, units).copy_from_slice(words);
                Ok(position)
            }
        }
    }

    /// Writes the shared block of `next_hop`: a bitmap of one bit and one leaf.
    fn write_uniform(&mut self, next_hop: NextHopId) -> u32 {
        let position = u32::from(next_hop);
        let words = self.blocks.words_mut(position, 1);
        words[0] = 1;
        leaves_mut(&mut words[1..])[0] = next_hop;
        position
    }

    fn free(&mut self, word: u32) {
        if word >= MAX_NEXT_HOPS as u32 {
            self.blocks.free(word, self.extent(word));
        }
    }

    /// Units of the block at `word`, the divided /24s included.
    fn extent(&self, word: u32) -> u32 {
        let count = self.blocks.words(word, 1)[0].count_ones();
        let plain = (8 + 2 * count).div_ceil(16);
        let words = self.blocks.words(word, plain);
        let leaves = &leaves(&words[1..])[..count as usize];
        // The last divided /24 is the farthest.
        let Some(last) = leaves.iter().rfind(|&&leaf| leaf & DIVIDED != 0) else { return plain };
        let distance = u32::from(last & !DIVIDED);
        let bitmap = self.blocks.words(word + distance, 2);
        distance + divided_units(bitmap.iter().map(|bits| bits.count_ones()).sum())
    }
}

/// What an /18 consists of.
enum Content<'a> {
    /// One next hop.
    Uniform(NextHopId),
    /// A block, as it is to stand in memory.
    Block(&'a [u64]),
}

/// Room for making blocks, kept from one to the next.
#[derive(Debug, Default)]
struct Scratch {
    intervals: Vec<Interval<u32>>,
    block: Vec<u64>,
    divided: Vec<u64>,
}

impl Scratch {
    /// Makes every /18 of the region `address/length` from `prefixes` and gives it to `visit` with
    /// its place in the directory.
    fn generate(
        &mut self,
        prefixes: &Prefixes4,
        address: u32,
        length: u8,
        mut visit: impl FnMut(u32, Content<'_>) -> Result<(), FibFull>,
    ) -> Result<(), FibFull> {
        let mut flattener = Flattener::new(prefixes, address, length);
        let indices = address.network(length) >> CHUNK_SHIFT..=address.last(length) >> CHUNK_SHIFT;
        for index in indices {
            let first = index << CHUNK_SHIFT;
            let last = first.last(CHUNK);
            if let Some(next_hop) = flattener.uniform(first, last) {
                visit(index, Content::Uniform(next_hop))?;
                continue;
            }
            flattener.chunk(first, last, &mut self.intervals);
            match self.intervals[..] {
                [(_, next_hop)] => visit(index, Content::Uniform(next_hop))?,
                _ => visit(index, Content::Block(self.encode()))?,
            }
        }
        Ok(())
    }

    /// Makes the block of the /18 whose intervals are in `self.intervals`.
    fn encode(&mut self) -> &[u64] {
        let mut bitmap = 0u64;
        let mut leaves = [0; 64];
        let mut count = 0;
        let mut add = |slot: u32, leaf| {
            bitmap |= 1 << slot;
            leaves[count] = leaf;
            count += 1;
        };
        self.divided.clear();
        let mut rest = &self.intervals[..];
        let mut before = 0;
        while let Some(&(start, next_hop)) = rest.first() {
            let slot = start >> 8;
            let inside = rest.iter().take_while(|interval| interval.0 >> 8 == slot).count();
            let (within, behind) = rest.split_at(inside);
            if start & 255 == 0 && inside == 1 {
                add(slot & 63, next_hop);
                before = next_hop;
            } else {
                add(slot & 63, DIVIDED | (self.divided.len() / 2) as u16);
                encode_divided(before, within, &mut self.divided);
                before = within[inside - 1].1;
                // The next /24 goes on with the last next hop, unless it begins with its own.
                let own = behind.first().is_some_and(|interval| interval.0 >> 8 == slot + 1);
                if slot & 63 != 63 && !own {
                    add((slot + 1) & 63, before);
                }
            }
            rest = behind;
        }
        self.assemble(bitmap, &mut leaves[..count])
    }

    /// Puts the bitmap, the leaves and the divided /24s together.
    fn assemble(&mut self, bitmap: u64, leaves: &mut [u16]) -> &[u64] {
        let plain = (8 + 2 * leaves.len()).div_ceil(16);
        for leaf in leaves.iter_mut().filter(|leaf| **leaf & DIVIDED != 0) {
            *leaf += plain as u16;
        }
        self.block.clear();
        self.block.resize(plain * 2, 0);
        self.block[0] = bitmap;
        leaves_mut(&mut self.block[1..])[..leaves.len()].copy_from_slice(leaves);
        self.block.extend_from_slice(&self.divided);
        &self.block
    }
}

/// Appends the block of one divided /24: `before` is the next hop that it begins with, unless an
/// interval begins at its first address.
fn encode_divided(before: NextHopId, intervals: &[Interval<u32>], out: &mut Vec<u64>) {
    let begins = intervals[0].0 & 255 == 0;
    let count = intervals.len() + usize::from(!begins);
    let position = out.len();
    out.resize(position + divided_units(count as u32) as usize * 2, 0);
    let (bitmap, rest) = out[position..].split_at_mut(4);
    let leaves = leaves_mut(rest);
    bitmap[0] = 1;
    leaves[0] = before;
    for (leaf, &(start, next_hop)) in leaves[usize::from(!begins)..].iter_mut().zip(intervals) {
        let host = start & 255;
        bitmap[(host >> 6) as usize] |= 1 << (host & 63);
        *leaf = next_hop;
    }
}

/// Units of a divided /24 with `count` leaves.
fn divided_units(count: u32) -> u32 {
    2 + (2 * count).div_ceil(16)
}

fn units(words: &[u64]) -> u32 {
    (words.len() / 2) as u32
}

fn leaves(words: &[u64]) -> &[u16] {
    // A whole number of aligned u16 is always there.
    <[u16]>::ref_from_bytes(words.as_bytes()).unwrap_or_default()
}

fn leaves_mut(words: &mut [u64]) -> &mut [u16] {
    <[u16]>::mut_from_bytes(words.as_mut_bytes()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use prefix_trie::PrefixMap;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    type Oracle = PrefixMap<ipnet::Ipv4Net, NextHopId>;

    fn net(address: u32, length: u8) -> ipnet::Ipv4Net {
        ipnet::Ipv4Net::new(Ipv4Addr::from(address), length).unwrap().trunc()
    }

    fn expected(oracle: &Oracle, address: u32) -> NextHopId {
        oracle.get_lpm(&net(address, 32)).map_or(0, |(_, next_hop)| *next_hop)
    }

    /// Compares single and batched lookups with the oracle around every prefix's borders.
    fn compare(fib: &Fib4, oracle: &Oracle, extra: &[u32]) {
        let mut addresses = vec![0, 1, u32::MAX, 0x7fff_ffff, 0x8000_0000];
        addresses.extend(extra);
        for (prefix, _) in oracle.iter() {
            let (first, last) = (u32::from(prefix.network()), u32::from(prefix.broadcast()));
            addresses.extend([
                first,
                first.wrapping_sub(1),
                last,
                last.wrapping_add(1),
                first / 2 + last / 2,
            ]);
        }
        let mut batch = vec![0; addresses.len()];
        fib.lookup_batch(&addresses, &mut batch);
        for (&address, &batched) in addresses.iter().zip(&batch) {
            let expected = expected(oracle, address);
            assert_eq!(fib.lookup(address), expected, "{}", Ipv4Addr::from(address));
            assert_eq!(batched, expected, "batched {}", Ipv4Addr::from(address));
        }
    }

    /// Prefixes crowded into a few places, so that they nest and touch.
    fn crowded() -> impl Strategy<Value = (u32, u8, NextHopId)> {
        let place = prop::sample::select(vec![0u32, 0x0a00_0000, 0x0a00_3f00, 0xc0a8_0100, 0xffff_ff00]);
        let length = prop_oneof![1 => Just(0u8), 2 => 1u8..16, 5 => 16u8..25, 5 => 25u8..33, 2 => Just(32u8)];
        let next_hop = prop_oneof![4 => 0u16..5, 1 => 32760u16..=32767];
        (place, any::<u16>(), length, next_hop).prop_map(|(place, low, length, next_hop)| {
            let spread = u32::from(low).rotate_left(u32::from(low) % 3 * 4) & 0x000f_ffff;
            ((place ^ spread).network(length), length, next_hop)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn lookups_agree_with_the_oracle_through_random_changes(
            start in prop::collection::vec(crowded(), 0..60),
            changes in prop::collection::vec((crowded(), any::<bool>()), 1..60),
            probes in prop::collection::vec(any::<u32>(), 64),
        ) {
            let mut prefixes: Prefixes4 = start.iter().copied().collect();
            let mut oracle: Oracle = prefixes.iter().map(|(a, l, n)| (net(a, l), n)).collect();
            let mut fib = Fib4::new().unwrap();
            fib.build(&prefixes).unwrap();
            compare(&fib, &oracle, &probes);
            for ((address, length, next_hop), insert) in changes {
                if insert {
                    prefixes.insert(address, length, next_hop);
                    oracle.insert(net(address, length), next_hop);
                } else {
                    let n = next_hop as usize % prefixes.len().max(1);
                    let Some((address, length, _)) = prefixes.iter().nth(n) else { continue };
                    prefixes.remove(address, length);
                    oracle.remove(&net(address, length));
                    fib.update(&prefixes, address, length).unwrap();
                    continue;
                }
                fib.update(&prefixes, address, length).unwrap();
            }
            compare(&fib, &oracle, &probes);
            let mut fresh = Fib4::new().unwrap();
            fresh.build(&prefixes).unwrap();
            prop_assert_eq!(fresh.stats().used, fib.stats().used, "blocks were lost");
        }
    }

    #[test]
    fn every_next_hop_works_shared_and_in_blocks() {
        let mut prefixes = Prefixes4::new();
        for next_hop in 0..=32767u16 {
            prefixes.insert(u32::from(next_hop) << 8, 24, next_hop);
            prefixes.insert(0x8000_0000 | u32::from(next_hop) << 14, 18, next_hop);
            prefixes.insert(0x4000_0000 | u32::from(next_hop) << 8 | 77, 32, next_hop);
        }
        let mut fib = Fib4::new().unwrap();
        fib.build(&prefixes).unwrap();
        for next_hop in 0..=32767u16 {
            assert_eq!(fib.lookup(u32::from(next_hop) << 8 | 200), next_hop);
            assert_eq!(fib.lookup(0x8000_0000 | u32::from(next_hop) << 14 | 5000), next_hop);
            assert_eq!(fib.lookup(0x4000_0000 | u32::from(next_hop) << 8 | 77), next_hop);
            assert_eq!(fib.lookup(0x4000_0000 | u32::from(next_hop) << 8 | 78), 0);
        }
    }

    #[test]
    fn hundreds_of_thousands_of_host_routes_fit() {
        let hosts = (0..60_000u32).flat_map(|n| (0..4).map(move |i| ((n << 8) | (i * 61 + n % 50), n)));
        let prefixes: Prefixes4 =
            hosts.map(|(address, n)| (0x0a00_0000 + address, 32, (n % 999) as u16 + 1)).collect();
        let mut fib = Fib4::new().unwrap();
        fib.build(&prefixes).unwrap();
        assert!(prefixes.len() > 200_000 && fib.bytes() < 8 << 20, "{} bytes", fib.bytes());
        for (address, _, next_hop) in prefixes.iter() {
            assert_eq!(fib.lookup(address), next_hop);
        }
    }

    #[test]
    fn removing_everything_leaves_no_block() {
        let mut prefixes: Prefixes4 =
            (0..5000u32).map(|n| (n.wrapping_mul(0x9e37_79b1), (n % 33) as u8, n as u16)).collect();
        let mut fib = Fib4::new().unwrap();
        fib.build(&prefixes).unwrap();
        let all: Vec<_> = prefixes.iter().collect();
        for (address, length, _) in all {
            prefixes.remove(address, length);
            fib.update(&prefixes, address, length).unwrap();
        }
        assert_eq!(fib.stats().used, 0);
        assert!((0..100_000u32).all(|n| fib.lookup(n.wrapping_mul(0x9e37_79b1)) == 0));
    }

    #[test]
    fn a_full_table_stays_as_it_was() {
        let mut fib = Fib4::new().unwrap();
        fib.limit(4096);
        let mut prefixes = Prefixes4::new();
        let mut oracle = Oracle::new();
        let mut added = 0;
        loop {
            let (address, next_hop) = ((added << 14) | ((added % 64) << 8), added as u16 + 1);
            prefixes.insert(address, 24, next_hop);
            if let Err(full) = fib.update(&prefixes, address, 24) {
                assert_eq!(full.capacity, 4096);
                prefixes.remove(address, 24);
                break;
            }
            oracle.insert(net(address, 24), next_hop);
            added += 1;
        }
        assert!(added >= 100, "{added}");
        compare(&fib, &oracle, &[]);
        // All or nothing also where many blocks are needed at once, and for a whole build.
        prefixes.insert(0, 0, 30_000);
        prefixes.insert(0xf000_0000, 24, 30_001);
        assert!(fib.update_all(&prefixes, &[(0, 0), (0xf000_0000, 24)]).is_err());
        assert!(fib.build(&prefixes).is_err());
        compare(&fib, &oracle, &[]);
        // And it can still shrink.
        let first = net(0, 24);
        prefixes.remove(0, 0);
        prefixes.remove(0xf000_0000, 24);
        prefixes.remove(u32::from(first.network()), 24);
        oracle.remove(&first);
        fib.update(&prefixes, u32::from(first.network()), 24).unwrap();
        compare(&fib, &oracle, &[]);
    }
}
