//! The IPv6 forwarding table: a directory over the first bits, then a static tree of bounds.
//!
//! Global unicast (2000::/3) has a directory word for each /20, the rest of the address space one
//! for each /12: 2¹⁷ and 2¹² words. A word holds a next hop when its whole chunk has one, and else
//! leads to a tree (`tree6`) of the bounds of the chunk's intervals, compared by their
//! upper 64 bits. A /64 that longer prefixes divide has a leaf that leads on to a tree over the
//! lower 64 bits. Everything of one chunk is one allocation, so one word replaces it.
//!
//! A burst is looked up together ([`Fib6::lookup_batch`]), all its packets taking each step before
//! the next, so that their cache misses overlap. The steps are compiled for AVX-512, AVX2 and
//! plain instructions, and the best that the processor has is chosen when the table is made.

use std::io;

use super::NextHopId;
use super::blocks::{BlockStats, Blocks, Demand, LINE};
use super::cpu::{self, prefetch};
use super::memory::{Backing, PageArray};
use super::prefixes::{Address, Flattener, Prefixes6, regions};
use super::tree6::{self, Encoder, Simd, Word};

pub use super::blocks::FibFull;

/// Length of the chunks inside 2000::/3.
const FINE: u8 = 20;
/// Length of the chunks elsewhere.
const COARSE: u8 = 12;
/// Place of the first coarse word.
const COARSE_BASE: u32 = 1 << (FINE - 3);
const WORDS: usize = (COARSE_BASE as usize) + (1 << COARSE);
/// Units that trees may take: 128 MiB. A table of 230 000 prefixes takes three.
const CAPACITY: u32 = 8 << 20;
/// Addresses that are looked up together.
const BURST: usize = 64;

/// The IPv6 forwarding table.
#[derive(Debug)]
pub struct Fib6 {
    directory: PageArray<u32>,
    blocks: Blocks,
    encoder: Encoder,
    /// Words of new trees, stored once all of them are made: (index, word).
    staged: Vec<(u32, Word)>,
    simd: Simd,
}

impl Fib6 {
    /// An empty table: every lookup gives next hop 0.
    ///
    /// # Errors
    /// When the system gives no memory, or the processor lacks an instruction that is needed.
    pub fn new() -> io::Result<Self> {
        Self::with_backing(&Backing::Anonymous, &Backing::Anonymous)
    }

    /// As [`Fib6::new`], with memory for the directory (0.6 MiB) and for the trees (128 MiB, taken
    /// as needed) from elsewhere.
    ///
    /// # Errors
    /// As [`Fib6::new`].
    pub fn with_backing(directory: &Backing, blocks: &Backing) -> io::Result<Self> {
        cpu::check()?;
        Ok(Self {
            directory: PageArray::new(WORDS, directory)?,
            blocks: Blocks::new(CAPACITY, 0, 0, blocks)?,
            encoder: Encoder::default(),
            staged: Vec::new(),
            simd: Simd::best(),
        })
    }

    /// Moves the table to other memory, as it is.
    ///
    /// # Errors
    /// When the system gives no memory; then the table is where it was, or a part of it is.
    pub fn move_to(&mut self, directory: &Backing, blocks: &Backing) -> io::Result<()> {
        self.directory.move_to(directory, WORDS)?;
        self.blocks.move_to(blocks)
    }

    /// Lets trees take at most `bytes` bytes, for tests of a full table.
    pub fn limit(&mut self, bytes: usize) {
        self.blocks.set_limit(u32::try_from(bytes / 16).unwrap_or(u32::MAX));
    }

    /// Which instructions lookups use: `"avx512"`, `"avx2"` or `"plain"`.
    pub fn instructions(&self) -> &'static str {
        self.simd.name()
    }

    /// Uses only the instructions named, for tests and comparison. False when the processor lacks
    /// them or there is no such name; then nothing changes.
    pub fn set_instructions(&mut self, name: &str) -> bool {
        let found = Simd::available().find(|simd| simd.name() == name);
        self.simd = found.unwrap_or(self.simd);
        found.is_some()
    }

    /// The next hop of `address` (host order): 0 when there is no route.
    #[inline]
    pub fn lookup(&self, address: u128) -> NextHopId {
        let mut out = [0];
        self.lookup_batch(&[address], &mut out);
        out[0]
    }

    /// Asks for the cache line that a lookup of `address` will read first.
    #[inline(always)]
    pub fn prefetch_dir(&self, address: u128) {
        prefetch(self.directory.as_ptr().wrapping_add(place(address)));
    }

    /// The next hops of `addresses`, up to 64 of which go through the steps together, into `out`.
    ///
    /// # Panics
    /// When `out` is shorter than `addresses`.
    #[inline]
    pub fn lookup_batch(&self, addresses: &[u128], out: &mut [NextHopId]) {
        let out = &mut out[..addresses.len()];
        for (addresses, out) in addresses.chunks(BURST).zip(out.chunks_mut(BURST)) {
            let mut words = [Word::default(); BURST];
            for &address in addresses {
                self.prefetch_dir(address);
            }
            for (&address, word) in addresses.iter().zip(&mut words) {
                // SAFETY: `place` is below WORDS for every address.
                *word = Word::from(unsafe { *self.directory.as_ptr().add(place(address)) });
            }
            // SAFETY: the words are this table's, so each leads to a whole tree in its blocks.
            unsafe { tree6::descend(self.simd, self.blocks.as_ptr(), addresses, &mut words, out) };
        }
    }

    /// Makes the table anew from `prefixes`, in compact memory.
    ///
    /// # Errors
    /// [`FibFull`], and the table is as it was.
    pub fn build(&mut self, prefixes: &Prefixes6) -> Result<(), FibFull> {
        let mut encoder = std::mem::take(&mut self.encoder);
        let mut demand = Demand::default();
        let full = self.blocks.full();
        let counted = for_each_chunk(prefixes, 0, 0, &mut encoder, |_, encoder| {
            let word = encoder.encode().ok_or(full)?;
            if word.is_tree() {
                demand.add(encoder.units());
            }
            Ok(())
        });
        let result = counted.and_then(|()| self.blocks.fits(&demand)).and_then(|()| {
            self.blocks.reset();
            for_each_chunk(prefixes, 0, 0, &mut encoder, |index, encoder| {
                let word = encoder.encode().ok_or(full)?;
                self.directory[index as usize] = self.place(word, encoder)?.into();
                Ok(())
            })
        });
        self.encoder = encoder;
        result
    }

    /// Brings the table up to date with `prefixes` after `address/length` was inserted, removed or
    /// given another next hop. The cost is that of the chunks touched.
    ///
    /// # Errors
    /// [`FibFull`], and the table is as it was.
    pub fn update(&mut self, prefixes: &Prefixes6, address: u128, length: u8) -> Result<(), FibFull> {
        self.update_all(prefixes, &[(address, length)])
    }

    /// As [`Fib6::update`] after several changes, given as (address, length): a chunk that several
    /// of them touch is made once. All or nothing.
    ///
    /// # Errors
    /// [`FibFull`], and the table is as it was.
    pub fn update_all(&mut self, prefixes: &Prefixes6, changes: &[(u128, u8)]) -> Result<(), FibFull> {
        let mut encoder = std::mem::take(&mut self.encoder);
        let result = self.stage(&mut encoder, prefixes, changes);
        self.encoder = encoder;
        if result.is_ok() {
            for (index, word) in std::mem::take(&mut self.staged) {
                let old = std::mem::replace(&mut self.directory[index as usize], word.into());
                self.free(old.into());
            }
            return Ok(());
        }
        for (_, word) in std::mem::take(&mut self.staged) {
            self.free(word);
        }
        // There may be room enough, only in pieces too small.
        self.build(prefixes)
    }

    /// Bytes that lookups may read: the directory and the trees in use.
    pub fn bytes(&self) -> usize {
        self.directory.len() * 4 + self.blocks.stats().used
    }

    /// The state of the trees' memory.
    pub fn stats(&self) -> BlockStats {
        self.blocks.stats()
    }

    fn stage(
        &mut self,
        encoder: &mut Encoder,
        prefixes: &Prefixes6,
        changes: &[(u128, u8)],
    ) -> Result<(), FibFull> {
        let full = self.blocks.full();
        for (address, length) in regions(changes, chunk_length) {
            for_each_chunk(prefixes, address, length, encoder, |index, encoder| {
                let word = encoder.encode().ok_or(full)?;
                let old = Word::from(self.directory[index as usize]);
                if !self.is_same(old, word, encoder) {
                    let word = self.place(word, encoder)?;
                    self.staged.push((index, word));
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The chunks within `address/length` (a /20 or /12 each) in which some address has another
    /// next hop than `prefixes` say, as (first address, length). Everything is compared, no
    /// samples.
    pub fn differing(&self, prefixes: &Prefixes6, address: u128, length: u8) -> Vec<(u128, u8)> {
        let mut found = Vec::new();
        let (mut encoder, mut first) = (Encoder::default(), address.network(length));
        let all = for_each_chunk(prefixes, address, length, &mut encoder, |index, encoder| {
            let old = Word::from(self.directory[index as usize]);
            if !encoder.encode().is_some_and(|word| self.is_same(old, word, encoder)) {
                found.push((first, chunk_length(first)));
            }
            first = first.last(chunk_length(first)).next();
            Ok(())
        });
        debug_assert!(all.is_ok(), "nothing is allocated");
        found
    }

    /// Whether what was just encoded already stands in the table at `old`.
    fn is_same(&self, old: Word, word: Word, encoder: &Encoder) -> bool {
        if !old.is_tree() || !word.is_tree() {
            return old == word;
        }
        let units = self.extent(old);
        old.depth() == word.depth()
            && units == encoder.units()
            && self.blocks.words(old.line() * LINE, units) == encoder.words()
    }

    /// Puts a tree into memory and returns the word that leads to it.
    fn place(&mut self, word: Word, encoder: &Encoder) -> Result<Word, FibFull> {
        if !word.is_tree() {
            return Ok(word);
        }
        let units = encoder.units();
        let position = self.blocks.allocate(units).ok_or(self.blocks.full())?;
        self.blocks.words_mut(position, units).copy_from_slice(encoder.words());
        Ok(word.at_line(position / LINE))
    }

    fn free(&mut self, word: Word) {
        if word.is_tree() {
            self.blocks.free(word.line() * LINE, self.extent(word));
        }
    }

    /// Units of the tree at `word`, all that it leads to included.
    fn extent(&self, word: Word) -> u32 {
        tree6::extent_lines(word, self.blocks.words(word.line() * LINE, LINE)) * LINE
    }
}

/// Length of the chunks where `address` lies.
fn chunk_length(address: u128) -> u8 {
    if address >> 125 == 1 { FINE } else { COARSE }
}

/// Place of the word of `address` in the directory.
#[inline(always)]
fn place(address: u128) -> usize {
    let high = (address >> 96) as u32;
    let fine = (high >> (32 - u32::from(FINE))) & (COARSE_BASE - 1);
    let coarse = COARSE_BASE + (high >> (32 - u32::from(COARSE)));
    (if high >> 29 == 1 { fine } else { coarse }) as usize
}

/// Puts the intervals of every chunk of the region `address/length` into `encoder`, and calls
/// `visit` with the chunk's place in the directory.
fn for_each_chunk(
    prefixes: &Prefixes6,
    address: u128,
    length: u8,
    encoder: &mut Encoder,
    mut visit: impl FnMut(u32, &mut Encoder) -> Result<(), FibFull>,
) -> Result<(), FibFull> {
    let mut flattener = Flattener::new(prefixes, address, length);
    let mut first = address.network(length);
    let end = address.last(length);
    loop {
        let last = first.last(chunk_length(first));
        match flattener.uniform(first, last) {
            Some(next_hop) => encoder.set_uniform(next_hop),
            None => flattener.chunk(first, last, &mut encoder.intervals),
        }
        visit(place(first) as u32, encoder)?;
        if last >= end {
            return Ok(());
        }
        first = last.next();
    }
}

#[cfg(test)]
mod tests;
