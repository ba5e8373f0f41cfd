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
//! ```text
//! word = directory[address >> 14]
//! block at word:  bitmap (8 bytes) | leaves (2 bytes each) | blocks of divided /24s
//! leaf = leaves[ones(bitmap & bits 0..=n) - 1],  n = address >> 8 & 63
//! ```
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

    /// Moves the table to other memory, as it is.
    ///
    /// # Errors
    /// When the system gives no memory; then the table is where it was, or a part of it is.
    pub fn move_to(&mut self, directory: &Backing, blocks: &Backing) -> io::Result<()> {
        self.directory.move_to(directory, 1 << CHUNK)?;
        self.blocks.move_to(blocks)
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
            if !self.holds(index, &content) {
                let word = self.place(content)?;
                self.staged.push((index, word));
            }
            Ok(())
        })
    }

    /// Whether the /18 at `index` is exactly `content`.
    fn holds(&self, index: u32, content: &Content<'_>) -> bool {
        let word = self.directory[index as usize];
        match *content {
            Content::Uniform(next_hop) => word == u32::from(next_hop),
            Content::Block(words) => {
                word >= MAX_NEXT_HOPS as u32 && self.blocks.words(word, units(words)) == words
            }
        }
    }

    /// The /18s within `address/length` in which some address has another next hop than
    /// `prefixes` say, as (first address, length). Everything is compared, no samples.
    pub fn differing(&self, prefixes: &Prefixes4, address: u32, length: u8) -> Vec<(u32, u8)> {
        let mut found = Vec::new();
        let all = Scratch::default().generate(prefixes, address, length, |index, content| {
            if !self.holds(index, &content) {
                found.push((index << CHUNK_SHIFT, CHUNK));
            }
            Ok(())
        });
        debug_assert!(all.is_ok(), "nothing is allocated");
        found
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
mod tests;
