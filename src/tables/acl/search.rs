//! Searching. With entries that are few, eight packets of a burst are compared at once, one entry
//! after the other. Where there are many the burst goes down the trees together, level by level, so
//! that its loads overlap, and each packet is compared with the eight entries of its leaf at once.

#[cfg(target_arch = "x86_64")]
use super::lanes::avx2::Avx2;
use super::{
    keys::{Keys, TOGETHER},
    lanes::{LANES, Lanes, Plain},
};
use crate::tables::cpu::prefetch;

/// Eight entries, word by word. For each word but that of ports a packet's must agree with `value`
/// where `mask` has ones. In the word of ports, the last but one, each half is for itself: `value` is
/// the lowest port, and `mask` how many follow.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Block<const K: usize> {
    pub(super) value: [[u32; LANES]; K],
    pub(super) mask: [[u32; LANES]; K],
    /// The entries' rules.
    pub(super) rules: [u32; LANES],
    /// Whether the leaf goes on with the next block.
    pub(super) more: bool,
}

impl<const K: usize> Block<K> {
    /// Eight entries that fit nothing.
    pub(super) fn empty() -> Self {
        let mut block =
            Self { value: [[0; LANES]; K], mask: [[0; LANES]; K], rules: [u32::MAX; LANES], more: false };
        // No packet has this bit, the last one.
        block.value[K - 1] = [NEVER; LANES];
        block.mask[K - 1] = [NEVER; LANES];
        block
    }
}

/// A bit that is 0 in the last word of every key.
const NEVER: u32 = 1 << 31;

/// A place in the table: which bits of a key choose the next place; for a leaf, which are its
/// blocks. A leaf's `base` is its own place and its width 0, so that it can be passed again and
/// again. From the lowest bit: base 26, width 4, shift 5, word 4, first block 21, blocks 4.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u64);

/// Most places in a table.
pub(super) const PLACES: usize = 1 << 26;
/// Most blocks.
pub(super) const BLOCKS: usize = 1 << 21;
/// As a leaf's number of blocks: so many, or more; then [`Block::more`] says where it ends.
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

    /// The next place, for a packet with these words.
    #[inline(always)]
    fn next(self, word: impl Fn(usize) -> u32) -> usize {
        let bits = word((self.0 >> 35 & 15) as usize) >> (self.0 >> 30 & 31);
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
    pub(super) roots: usize,
    pub(super) blocks: Vec<Block<K>>,
    /// Entries that bursts are compared with, each in all lanes of a block, from the last to the
    /// first: all of them when they are few, else those of the roots that need no tree.
    pub(super) few: Vec<Block<K>>,
    /// The levels below the roots that bursts go down from; 0 for one whose entries are in `few`.
    pub(super) depths: Vec<u32>,
    /// Whether the blocks are so many that they may not be in the cache.
    pub(super) far: bool,
    /// The rule for packets that no entry fits.
    pub(super) otherwise: u32,
    pub(super) wide: bool,
}

impl<const K: usize> Classifier<K> {
    /// For each of the first `n` keys the smallest rule of the entries that fit it; what stands in
    /// `found` behind these means nothing.
    #[inline]
    pub(super) fn search(&self, keys: &Keys<K>, n: usize, found: &mut [u32; TOGETHER]) {
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: `wide` says that the processor has these instructions.
            return unsafe { self.search_avx2(keys, n, found) };
        }
        // SAFETY: every processor has these.
        unsafe { self.search_with::<Plain>(keys, n, found) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
    unsafe fn search_avx2(&self, keys: &Keys<K>, n: usize, found: &mut [u32; TOGETHER]) {
        // SAFETY: the caller's.
        unsafe { self.search_with::<Avx2>(keys, n, found) }
    }

    /// # Safety
    /// The processor has what `L` needs; so for all that follow.
    #[inline(always)]
    unsafe fn search_with<L: Lanes>(&self, keys: &Keys<K>, n: usize, found: &mut [u32; TOGETHER]) {
        // SAFETY: the caller's.
        unsafe {
            self.search_few::<L>(keys, n, found);
            self.search_trees::<L>(keys, n, found);
        }
    }

    /// Compares eight packets at a time with every one of few entries.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn search_few<L: Lanes>(&self, keys: &Keys<K>, n: usize, found: &mut [u32; TOGETHER]) {
        let groups = found.as_chunks_mut().0.iter_mut();
        for (group, found) in groups.enumerate().take(n.div_ceil(LANES)) {
            // SAFETY: the caller's.
            unsafe {
                let packets = keys.words.each_ref().map(|word| L::load(&word.as_chunks().0[group]));
                let mut rules = L::all(self.otherwise);
                // An earlier entry's rule takes the place of a later one's.
                for entry in &self.few {
                    rules = differs(entry, &packets).choose(&entry.rules, rules);
                }
                rules.store(found);
            }
        }
    }

    /// Looks for smaller rules in the trees.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn search_trees<L: Lanes>(&self, keys: &Keys<K>, n: usize, found: &mut [u32; TOGETHER]) {
        let n = n.min(TOGETHER);
        for (root, &depth) in self.depths.iter().enumerate().filter(|(_, depth)| **depth > 0) {
            let mut places = [self.table[root]; TOGETHER];
            for _ in 0..depth {
                for (k, place) in places[..n].iter_mut().enumerate() {
                    *place = self.table[place.next(|word| keys.words[word_of::<K>(word)][k])];
                }
            }
            if self.far {
                for place in &places[..n] {
                    let block: *const u8 = self.blocks.as_ptr().wrapping_add(place.first_block()).cast();
                    (0..size_of::<Block<K>>()).step_by(64).for_each(|at| prefetch(block.wrapping_add(at)));
                }
            }
            for ((k, found), place) in found[..n].iter_mut().enumerate().zip(&places) {
                // SAFETY: the caller's.
                *found = unsafe { self.in_leaf::<L>(*place, |word| keys.words[word][k]) }.min(*found);
            }
        }
    }

    /// The smallest rule of the entries that fit one key.
    pub(super) fn find(&self, key: &[u32; K]) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: `wide` says that the processor has these instructions.
            return unsafe { self.find_avx2(key) };
        }
        // SAFETY: every processor has these.
        unsafe { self.find_with::<Plain>(key) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
    unsafe fn find_avx2(&self, key: &[u32; K]) -> u32 {
        // SAFETY: the caller's.
        unsafe { self.find_with::<Avx2>(key) }
    }

    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn find_with<L: Lanes>(&self, key: &[u32; K]) -> u32 {
        let mut found = self.otherwise;
        for root in 0..self.roots {
            let mut place = self.table[root];
            while !place.is_leaf() {
                place = self.table[place.next(|word| key[word_of::<K>(word)])];
            }
            // SAFETY: the caller's.
            found = found.min(unsafe { self.in_leaf::<L>(place, |word| key[word]) });
        }
        found
    }

    /// The rule of the first entry of a leaf that fits a packet with these words, or the greatest
    /// number.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn in_leaf<L: Lanes>(&self, place: Place, word: impl Fn(usize) -> u32) -> u32 {
        let (first, blocks) = (place.first_block(), place.blocks());
        for block in self.blocks.iter().skip(first).take(blocks as usize) {
            // SAFETY: the caller's.
            let fits = unsafe {
                let packet: [L; K] = std::array::from_fn(|k| L::all(word(k)));
                differs(block, &packet).zeroes()
            };
            if fits != 0 {
                return block.rules[fits.trailing_zeros() as usize % LANES];
            }
        }
        if blocks == MANY {
            self.in_long_leaf(first + MANY as usize - 1, std::array::from_fn(word))
        } else {
            u32::MAX
        }
    }

    /// Goes on behind block `at`, if the leaf does.
    #[cold]
    #[inline(never)]
    fn in_long_leaf(&self, mut at: usize, key: [u32; K]) -> u32 {
        while self.blocks[at].more {
            at += 1;
            let block = &self.blocks[at];
            // SAFETY: every processor has these.
            let fits = unsafe { differs(block, &key.map(|word| Plain::all(word))).zeroes() };
            if fits != 0 {
                return block.rules[fits.trailing_zeros() as usize % LANES];
            }
        }
        u32::MAX
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.table[..]) + size_of_val(&self.blocks[..]) + size_of_val(&self.few[..])
    }
}

/// A place's word, as one of the `K` that there are.
#[inline(always)]
fn word_of<const K: usize>(word: usize) -> usize {
    if K.is_power_of_two() { word % K } else { word.min(K - 1) }
}

/// Lane by lane, 0 when the packet fits the entry: of one packet and eight entries, or of eight
/// packets and one entry.
///
/// # Safety
/// The processor has what `L` needs.
#[expect(clippy::needless_range_loop, reason = "the word is a place in the block as well")]
#[inline(always)]
unsafe fn differs<L: Lanes, const K: usize>(block: &Block<K>, packets: &[L; K]) -> L {
    let ports = K - 2;
    // SAFETY: the caller's.
    unsafe {
        let mut all = packets[ports].beyond(&block.value[ports], &block.mask[ports]);
        for word in 0..K {
            if word != ports {
                all = all.or(packets[word].differs(&block.value[word], &block.mask[word]));
            }
        }
        all
    }
}
