//! The IPv6 forwarding table: a directory over the first bits, then a static tree of bounds.
//!
//! Global unicast (2000::/3) has a directory word for each /20, the rest of the address space one
//! for each /12: 2¹⁷ and 2¹² words. A word holds a next hop when its whole chunk has one, and else
//! leads to a tree ([`super::tree6`]) of the bounds of the chunk's intervals, compared by their
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
mod tests {
    use super::*;
    use prefix_trie::PrefixMap;
    use proptest::prelude::*;
    use std::net::Ipv6Addr;

    type Oracle = PrefixMap<ipnet::Ipv6Net, NextHopId>;

    fn net(address: u128, length: u8) -> ipnet::Ipv6Net {
        ipnet::Ipv6Net::new(Ipv6Addr::from(address), length).unwrap().trunc()
    }

    /// Compares lookups with every kind of instruction with the oracle around every prefix's
    /// borders.
    fn compare(fib: &mut Fib6, oracle: &Oracle, extra: &[u128]) {
        let mut addresses = vec![0, 1, u128::MAX, 1 << 127, (1 << 127) - 1];
        addresses.extend(extra);
        for (prefix, _) in oracle.iter() {
            let (first, last) = (u128::from(prefix.network()), u128::from(prefix.broadcast()));
            addresses.extend([
                first,
                first.wrapping_sub(1),
                last,
                last.wrapping_add(1),
                first / 2 + last / 2,
            ]);
            addresses.extend([first | u128::from(u64::MAX), first.wrapping_add(1 << 64)]);
        }
        let mut kinds = 0;
        for name in ["avx512", "avx2", "plain"] {
            if !fib.set_instructions(name) {
                println!("no {name} here");
                continue;
            }
            kinds += 1;
            let mut batch = vec![0; addresses.len()];
            fib.lookup_batch(&addresses, &mut batch);
            for (&address, &batched) in addresses.iter().zip(&batch) {
                let expected = oracle.get_lpm(&net(address, 128)).map_or(0, |(_, next_hop)| *next_hop);
                assert_eq!(batched, expected, "{name}, batched {}", Ipv6Addr::from(address));
                assert_eq!(fib.lookup(address), expected, "{name} {}", Ipv6Addr::from(address));
            }
        }
        assert!(kinds >= 1);
    }

    /// Prefixes crowded into a few places, so that they nest and touch, on both sides of /64 and
    /// inside and outside of 2000::/3.
    fn crowded() -> impl Strategy<Value = (u128, u8, NextHopId)> {
        let place = prop::sample::select(vec![
            0u128,
            0x2001_0db8 << 96,
            0x2001_0db8_0000_0001 << 64,
            0x2001_0fff_ffff_ffff << 64,
            0x3fff_ffff_ffff_ffff << 64,
            0xfd00 << 112,
            0xfd0f_ffff_ffff_ffff << 64,
            u128::MAX,
        ]);
        let length = prop_oneof![
            1 => Just(0u8), 2 => 1u8..20, 5 => 20u8..65, 2 => Just(64u8), 5 => 65u8..129, 2 => Just(128u8)
        ];
        let next_hop = prop_oneof![4 => 0u16..5, 1 => 32760u16..=32767];
        (place, 0u128..4096, 0u32..14, length, next_hop).prop_map(|(place, low, shift, length, next_hop)| {
            ((place ^ low << (shift * 8)).network(length), length, next_hop)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn lookups_agree_with_the_oracle_through_random_changes(
            start in prop::collection::vec(crowded(), 0..80),
            changes in prop::collection::vec((crowded(), any::<bool>()), 1..60),
            probes in prop::collection::vec(any::<u128>(), 64),
        ) {
            let mut prefixes: Prefixes6 = start.iter().copied().collect();
            let mut oracle: Oracle = prefixes.iter().map(|(a, l, n)| (net(a, l), n)).collect();
            let mut fib = Fib6::new().unwrap();
            fib.build(&prefixes).unwrap();
            compare(&mut fib, &oracle, &probes);
            for ((mut address, mut length, next_hop), insert) in changes {
                if insert {
                    prefixes.insert(address, length, next_hop);
                    oracle.insert(net(address, length), next_hop);
                } else {
                    let n = next_hop as usize % prefixes.len().max(1);
                    let Some(found) = prefixes.iter().nth(n) else { continue };
                    (address, length) = (found.0, found.1);
                    prefixes.remove(address, length);
                    oracle.remove(&net(address, length));
                }
                fib.update(&prefixes, address, length).unwrap();
            }
            compare(&mut fib, &oracle, &probes);
            let mut fresh = Fib6::new().unwrap();
            fresh.build(&prefixes).unwrap();
            prop_assert_eq!(fresh.stats().used, fib.stats().used, "trees were lost");
        }

        #[test]
        fn many_prefixes_in_one_chunk_make_a_deep_tree(seed in any::<u64>(), count in 500usize..2000) {
            let mut prefixes = Prefixes6::new();
            let mut state = seed;
            for n in 0..count {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                let address = (0x2001_0db8u128 << 96) | u128::from(state >> 20) << 48;
                let length = [48, 56, 64, 64, 96, 128][n % 6];
                prefixes.insert(address, length, (n % 32768) as u16);
            }
            let oracle: Oracle = prefixes.iter().map(|(a, l, n)| (net(a, l), n)).collect();
            let mut fib = Fib6::new().unwrap();
            fib.build(&prefixes).unwrap();
            compare(&mut fib, &oracle, &[]);
        }
    }

    #[test]
    fn every_next_hop_works_on_all_levels() {
        let mut prefixes = Prefixes6::new();
        let place = |next_hop: u16| (0x2000_0000u128 | u128::from(next_hop) << 12) << 96;
        for next_hop in 0..=32767 {
            prefixes.insert(place(next_hop), 20, next_hop);
            prefixes.insert((0xfd00u128 << 112) | u128::from(next_hop) << 64, 64, next_hop);
            prefixes.insert((0xfc00u128 << 112) | u128::from(next_hop), 128, next_hop);
        }
        let mut fib = Fib6::new().unwrap();
        fib.build(&prefixes).unwrap();
        for next_hop in 0..=32767 {
            assert_eq!(fib.lookup(place(next_hop) | 77), next_hop);
            assert_eq!(fib.lookup((0xfd00u128 << 112) | u128::from(next_hop) << 64 | 5), next_hop);
            assert_eq!(fib.lookup((0xfc00u128 << 112) | u128::from(next_hop)), next_hop);
        }
        assert_eq!(fib.lookup((0xfc00u128 << 112) | 32768), 0);
    }

    #[test]
    fn removing_everything_leaves_no_tree() {
        let mut prefixes: Prefixes6 = (0..3000u128)
            .map(|n| (n.wrapping_mul(0x9e37_79b1_85eb_ca87_c2b2_ae3d_27d4_eb4f), (n % 129) as u8, n as u16))
            .collect();
        let mut fib = Fib6::new().unwrap();
        fib.build(&prefixes).unwrap();
        assert!(fib.stats().used > 0);
        let all: Vec<_> = prefixes.iter().filter(|prefix| prefix.1 > 4).collect();
        let short: Vec<_> = prefixes.iter().filter(|prefix| prefix.1 <= 4).map(|p| (p.0, p.1)).collect();
        for (address, length, _) in all {
            prefixes.remove(address, length);
            fib.update(&prefixes, address, length).unwrap();
        }
        short.iter().for_each(|&(address, length)| {
            prefixes.remove(address, length);
        });
        fib.update_all(&prefixes, &short).unwrap();
        assert_eq!((prefixes.len(), fib.stats().used), (0, 0));
        assert!((0..100_000u128).all(|n| fib.lookup(n << 108 | n) == 0));
    }

    #[test]
    fn a_full_table_stays_as_it_was() {
        let mut fib = Fib6::new().unwrap();
        fib.limit(8192);
        let (mut prefixes, mut oracle) = (Prefixes6::new(), Oracle::new());
        let mut added = 0u128;
        loop {
            let (address, next_hop) = ((0x2000 << 112) | added << 108 | added << 70, added as u16 + 1);
            prefixes.insert(address, 64, next_hop);
            if let Err(full) = fib.update(&prefixes, address, 64) {
                assert_eq!(full.capacity, 8192);
                prefixes.remove(address, 64);
                break;
            }
            oracle.insert(net(address, 64), next_hop);
            added += 1;
        }
        assert_eq!(added, 128, "one line each");
        compare(&mut fib, &oracle, &[]);
        prefixes.insert(0, 0, 30_000);
        prefixes.insert(0xfd00 << 112, 65, 30_001);
        assert!(fib.update_all(&prefixes, &[(0, 0), (0xfd00 << 112, 65)]).is_err());
        assert!(fib.build(&prefixes).is_err());
        compare(&mut fib, &oracle, &[]);
        let first = 0x2000 << 112;
        prefixes.remove(0, 0);
        prefixes.remove(0xfd00 << 112, 65);
        prefixes.remove(first, 64);
        oracle.remove(&net(first, 64));
        fib.update(&prefixes, first, 64).unwrap();
        compare(&mut fib, &oracle, &[]);
    }
}
