//! Searching: a burst goes down the trees together, level by level, so that its loads overlap, and
//! each packet is compared with the eight entries of its leaf at once.

use crate::tables::cpu::prefetch;

/// Packets that go down the trees together.
const TOGETHER: usize = 32;

/// Entries in a block.
pub(super) const LANES: usize = 8;

/// Eight entries, word by word. For each word but that of ports a packet's must agree with `value`
/// where `mask` has ones. In the word of ports, the last but one, `value` is a range of source
/// ports and `mask` one of destination ports: the lowest, and in the upper half how many follow.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Block<const K: usize> {
    pub(super) value: [[u32; LANES]; K],
    pub(super) mask: [[u32; LANES]; K],
}

impl<const K: usize> Block<K> {
    /// Eight entries that fit nothing.
    pub(super) fn empty() -> Self {
        let mut block = Self { value: [[0; LANES]; K], mask: [[0; LANES]; K] };
        // No packet has this bit, the last one.
        block.value[K - 1] = [NEVER; LANES];
        block.mask[K - 1] = [NEVER; LANES];
        block
    }
}

/// A bit that is 0 in the last word of every key.
const NEVER: u32 = 1 << 31;

/// The rules of a block's entries.
#[derive(Clone)]
pub(super) struct Tail {
    pub(super) rules: [u32; LANES],
    /// Whether the leaf goes on with the next block.
    pub(super) more: bool,
}

/// A place in the table: which bits of a key choose the next place; for a leaf, which are its
/// blocks. A leaf's `base` is its own place and its width 0, so that it can be passed again and
/// again. From the lowest bit: base 26, width 4, shift 5, word 4, first block 21, blocks 4.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u64);

/// Most places in a table.
pub(super) const PLACES: usize = 1 << 26;
/// Most blocks.
pub(super) const BLOCKS: usize = 1 << 21;
/// As a leaf's number of blocks: so many, or more; then [`Tail::more`] says where it ends.
const MANY: u64 = 15;

impl Place {
    /// A node whose children begin at `base`.
    pub(super) fn cut(base: usize, word: usize, shift: u32, width: u32) -> Self {
        Self(base as u64 | u64::from(width) << 26 | u64::from(shift) << 30 | (word as u64) << 35)
    }

    /// A leaf of so many blocks, none included, at place `at` of the table.
    pub(super) fn leaf(at: usize, first: usize, blocks: usize) -> Self {
        Self(at as u64 | (first as u64) << 39 | (blocks as u64).min(MANY) << 60)
    }

    /// Whether it is a leaf.
    pub(super) fn is_leaf(self) -> bool {
        self.0 >> 26 & 15 == 0
    }

    /// The same leaf at another place.
    pub(super) fn moved(self, at: usize) -> Self {
        Self(self.0 & !((1 << 26) - 1) | at as u64)
    }

    #[inline(always)]
    fn next<const K: usize>(self, key: &[u32; K]) -> usize {
        let word = (self.0 >> 35 & 15) as usize;
        let bits = key[word.min(K - 1)] >> (self.0 >> 30 & 31);
        (self.0 as usize & (PLACES - 1)) + (bits & !(u32::MAX << (self.0 >> 26 & 15))) as usize
    }

    #[inline(always)]
    fn first_block(self) -> usize {
        (self.0 >> 39) as usize & (BLOCKS - 1)
    }

    #[inline(always)]
    fn blocks(self) -> u64 {
        self.0 >> 60
    }
}

/// Decision trees over entries of one family.
pub(super) struct Classifier<const K: usize> {
    /// The roots' places are the first ones.
    pub(super) table: Vec<Place>,
    /// The levels below each root.
    pub(super) depths: Vec<u32>,
    pub(super) blocks: Vec<Block<K>>,
    pub(super) tails: Vec<Tail>,
    /// The rule for packets that no entry fits.
    pub(super) otherwise: u32,
    pub(super) wide: bool,
}

impl<const K: usize> Classifier<K> {
    /// For each key the smallest rule of the entries that fit it.
    #[inline]
    pub(super) fn search(&self, keys: &[[u32; K]], found: &mut [u32]) {
        for (keys, found) in keys.chunks(TOGETHER).zip(found.chunks_mut(TOGETHER)) {
            #[cfg(target_arch = "x86_64")]
            if self.wide {
                // SAFETY: `wide` says that the processor has these instructions.
                unsafe { self.search_avx2(keys, found) };
                continue;
            }
            self.search_burst::<false>(keys, found);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
    unsafe fn search_avx2(&self, keys: &[[u32; K]], found: &mut [u32]) {
        self.search_burst::<true>(keys, found);
    }

    #[inline(always)]
    fn search_burst<const WIDE: bool>(&self, keys: &[[u32; K]], found: &mut [u32]) {
        let n = keys.len().min(TOGETHER);
        found[..n].fill(self.otherwise);
        for (root, &depth) in self.depths.iter().enumerate() {
            let mut places = [self.table[root]; TOGETHER];
            for _ in 0..depth {
                for (place, key) in places.iter_mut().zip(&keys[..n]) {
                    *place = self.table[place.next(key)];
                }
            }
            if depth > 0 {
                for place in &places[..n] {
                    let block: *const u8 = self.blocks.as_ptr().wrapping_add(place.first_block()).cast();
                    (0..size_of::<Block<K>>()).step_by(64).for_each(|at| prefetch(block.wrapping_add(at)));
                }
            }
            for ((place, key), found) in places.iter().zip(&keys[..n]).zip(found.iter_mut()) {
                let rule = self.in_leaf::<WIDE>(*place, key);
                *found = rule.min(*found);
            }
        }
    }

    /// The rule of the first entry of a leaf that fits, or the greatest number.
    #[inline(always)]
    fn in_leaf<const WIDE: bool>(&self, place: Place, key: &[u32; K]) -> u32 {
        let (first, blocks) = (place.first_block(), place.blocks());
        for n in 0..blocks as usize {
            let fits = fits::<K, WIDE>(&self.blocks[first + n], key);
            if fits != 0 {
                return self.tails[first + n].rules[fits.trailing_zeros() as usize % LANES];
            }
        }
        if blocks == MANY { self.in_long_leaf(first + MANY as usize - 1, key) } else { u32::MAX }
    }

    /// Goes on behind block `at`, if the leaf does.
    #[cold]
    fn in_long_leaf(&self, mut at: usize, key: &[u32; K]) -> u32 {
        while self.tails[at].more {
            at += 1;
            let fits = fits::<K, false>(&self.blocks[at], key);
            if fits != 0 {
                return self.tails[at].rules[fits.trailing_zeros() as usize % LANES];
            }
        }
        u32::MAX
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.table[..]) + size_of_val(&self.blocks[..]) + size_of_val(&self.tails[..])
    }
}

/// One bit for each of the eight entries that fits. Written so that the compiler makes vector
/// instructions of it; how to gather the bits it has to be told.
#[inline(always)]
fn fits<const K: usize, const WIDE: bool>(block: &Block<K>, key: &[u32; K]) -> u32 {
    let ports = K - 2;
    let (from, to) = (key[ports] >> 16, key[ports] & 0xffff);
    let mut differs = [0u32; LANES];
    let ranges = block.value[ports].iter().zip(&block.mask[ports]);
    for (differs, (sources, destinations)) in differs.iter_mut().zip(ranges) {
        *differs = beyond(from, *sources) | beyond(to, *destinations);
    }
    for word in (0..ports).chain([K - 1]) {
        let entries = block.value[word].iter().zip(&block.mask[word]);
        for (differs, (value, mask)) in differs.iter_mut().zip(entries) {
            *differs |= (key[word] ^ value) & mask;
        }
    }
    #[cfg(target_arch = "x86_64")]
    if WIDE {
        // SAFETY: only `search_avx2` asks for it, and has the instructions.
        return unsafe { zeroes_avx2(&differs) };
    }
    let mut fits = 0;
    for (lane, differs) in differs.iter().enumerate() {
        fits |= u32::from(*differs == 0) << lane;
    }
    fits
}

/// Not 0 when the port is not in the range (lowest, and in the upper half how many follow).
#[inline(always)]
fn beyond(port: u32, range: u32) -> u32 {
    // Both sides have 16 bits: a signed comparison is right, and the one that AVX2 has.
    let (above, span) = (port.wrapping_sub(range) & 0xffff, range >> 16);
    u32::from(above as i32 > span as i32)
}

/// One bit for each of the eight that is 0.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn zeroes_avx2(words: &[u32; LANES]) -> u32 {
    use std::arch::x86_64::{
        _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_loadu_si256, _mm256_movemask_ps, _mm256_setzero_si256,
    };
    // SAFETY: eight words are 32 bytes; the load asks for no alignment.
    let words = unsafe { _mm256_loadu_si256(words.as_ptr().cast()) };
    _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(words, _mm256_setzero_si256()))) as u32
}
