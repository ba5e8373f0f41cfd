//! The trees of the IPv6 forwarding table: nodes of one cache line, one comparison a level.
//!
//! Keys are the upper 64 bits of the addresses where a new next hop begins (in a second tree, for
//! a divided /64, the lower 64 bits). A tree is static: made in one piece, replaced as a whole. In
//! it are two kinds of lines:
//!
//! ```text
//! inner   7 bounds (8 bytes each) | distance of the children (4) | in the root: lines of it all (4)
//! leaf    6 bounds (8 bytes each) | 7 leaves (2 bytes each) | base of its references (2)
//! ```
//!
//! The child, or leaf, to take is the number of bounds below the address. So a bound is the last
//! key *before* its part; it is stored with the sign bit turned, since AVX2 compares only signed
//! numbers; and unused bounds are the highest number, which nothing is above. Distances are in
//! lines from the line where they stand: a tree can be copied anywhere.
//!
//! A leaf with the high bit set is a /64 that longer prefixes divide: with the base it gives the
//! distance, in 4-byte steps from its line, of a reference: the [`Word`] of a second tree, whose
//! line is again a distance.

use super::NextHopId;
use super::cpu::prefetch;
use super::prefixes::Interval;

/// 64-bit words in a line.
const LINE_WORDS: usize = 8;
/// Intervals of a leaf line.
const LEAVES: usize = 7;
/// Children of an inner line.
const CHILDREN: usize = 8;
/// A bound that no address is above.
const UNUSED: u64 = i64::MAX as u64;
/// Marks a leaf whose /64 is divided.
const DIVIDED: u16 = 0x8000;
const LINE_BITS: u32 = 29;
const MAX_DEPTH: u32 = 7;

/// What a directory holds: a next hop, or the depth (in lines, 1 to 7) and first line of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Word(u32);

impl From<u32> for Word {
    #[inline(always)]
    fn from(word: u32) -> Self {
        Self(word)
    }
}

impl From<Word> for u32 {
    fn from(word: Word) -> Self {
        word.0
    }
}

impl Word {
    #[inline(always)]
    pub fn depth(self) -> u32 {
        self.0 >> LINE_BITS
    }

    #[inline(always)]
    pub fn line(self) -> u32 {
        self.0 & ((1 << LINE_BITS) - 1)
    }

    #[inline(always)]
    pub fn is_tree(self) -> bool {
        self.depth() != 0
    }

    pub fn at_line(self, line: u32) -> Self {
        Self(self.0 & !((1 << LINE_BITS) - 1) | line)
    }

    /// The word of the child at `line`, one level down.
    #[inline(always)]
    fn child(self, line: u32) -> Self {
        Self(((self.depth() - 1) << LINE_BITS) | line)
    }
}

/// Instructions to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Simd {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Plain,
}

impl Simd {
    /// Those that this processor has, the best first.
    pub fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let vector = [
            std::is_x86_feature_detected!("avx512f").then_some(Self::Avx512),
            std::is_x86_feature_detected!("avx2").then_some(Self::Avx2),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let vector = [None::<Self>; 0];
        vector.into_iter().flatten().chain([Self::Plain])
    }

    pub fn best() -> Self {
        Self::available().next().unwrap_or(Self::Plain)
    }

    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            Self::Plain => "plain",
        }
    }
}

/// A way to compare a whole line at once.
trait Compare {
    /// A mask of the words of the line that are below `key`, as signed numbers.
    ///
    /// # Safety
    /// `line` is a readable, aligned line, and the processor has the instructions.
    unsafe fn below(line: *const u64, key: u64) -> u32;
}

struct Plain;

impl Compare for Plain {
    #[inline(always)]
    unsafe fn below(line: *const u64, key: u64) -> u32 {
        (0..LINE_WORDS).fold(0, |mask, i| {
            // SAFETY: the caller's.
            let bound = unsafe { *line.add(i) };
            mask | u32::from((key as i64) > bound as i64) << i
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod vector {
    //! The comparisons of one line with vector instructions.

    use std::arch::x86_64::*;

    pub struct Avx512;

    impl super::Compare for Avx512 {
        #[inline(always)]
        unsafe fn below(line: *const u64, key: u64) -> u32 {
            // SAFETY: the caller's.
            unsafe {
                let bounds = _mm512_load_si512(line.cast());
                _mm512_cmpgt_epi64_mask(_mm512_set1_epi64(key as i64), bounds).into()
            }
        }
    }

    pub struct Avx2;

    impl super::Compare for Avx2 {
        #[inline(always)]
        unsafe fn below(line: *const u64, key: u64) -> u32 {
            // SAFETY: the caller's.
            unsafe {
                let key = _mm256_set1_epi64x(key as i64);
                let half = |i| {
                    let bounds = _mm256_load_si256(line.add(i).cast());
                    _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(key, bounds))) as u32
                };
                half(0) | half(4) << 4
            }
        }
    }
}

/// Follows `words` to the next hops of `addresses`, at most 64.
///
/// # Safety
/// Every word is a next hop or leads to a whole tree in the memory at `base`.
#[inline]
pub(crate) unsafe fn descend(
    simd: Simd,
    base: *const u64,
    addresses: &[u128],
    words: &mut [Word; 64],
    out: &mut [NextHopId],
) {
    // SAFETY: the caller's; the instructions were detected when `simd` was made.
    unsafe {
        match simd {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => descend_avx512(base, addresses, words, out),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => descend_avx2(base, addresses, words, out),
            Simd::Plain => descend_with::<Plain>(base, addresses, words, out),
        }
    }
}

/// # Safety
/// As [`descend`], on a processor with AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,popcnt,bmi1,bmi2")]
unsafe fn descend_avx512(base: *const u64, addresses: &[u128], words: &mut [Word; 64], out: &mut [u16]) {
    // SAFETY: the caller's.
    unsafe { descend_with::<vector::Avx512>(base, addresses, words, out) }
}

/// # Safety
/// As [`descend`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
unsafe fn descend_avx2(base: *const u64, addresses: &[u128], words: &mut [Word; 64], out: &mut [u16]) {
    // SAFETY: the caller's.
    unsafe { descend_with::<vector::Avx2>(base, addresses, words, out) }
}

/// All addresses take a level before the next one, sorted without branches into those at an inner
/// line and those at a leaf line.
///
/// # Safety
/// As [`descend`], on a processor that has what `C` needs.
#[inline(always)]
unsafe fn descend_with<C: Compare>(
    base: *const u64,
    addresses: &[u128],
    words: &mut [Word; 64],
    out: &mut [NextHopId],
) {
    let (mut inner, mut leaf) = ([0u8; 64], [0u8; 64]);
    let (mut inners, mut leaves) = (0, 0);
    let mut results = [0; 64];
    for k in 0..addresses.len().min(64) {
        let word = words[k];
        results[k] = word.0 as NextHopId;
        prefetch(at(base, word.line()));
        inner[inners & 63] = k as u8;
        inners += usize::from(word.depth() > 1);
        leaf[leaves & 63] = k as u8;
        leaves += usize::from(word.depth() == 1);
    }
    while inners > 0 {
        for i in 0..std::mem::take(&mut inners) {
            let k = usize::from(inner[i & 63]) & 63;
            // SAFETY: `k` is below the number of addresses; the word leads to an inner line.
            let word = unsafe { child::<C>(base, words[k], key(*addresses.get_unchecked(k) >> 64)) };
            prefetch(at(base, word.line()));
            words[k] = word;
            inner[inners & 63] = k as u8;
            inners += usize::from(word.depth() > 1);
            leaf[leaves & 63] = k as u8;
            leaves += usize::from(word.depth() == 1);
        }
    }
    for i in 0..leaves {
        let k = usize::from(leaf[i & 63]) & 63;
        // SAFETY: `k` is below the number of addresses; the word leads to a leaf line.
        unsafe {
            let address = *addresses.get_unchecked(k);
            let line = words[k].line();
            let mut found = leaf_of::<C>(base, line, key(address >> 64));
            if found & DIVIDED != 0 {
                found = beyond::<C>(base, line, found, key(address));
            }
            results[k] = found;
        }
    }
    let count = out.len().min(64);
    out[..count].copy_from_slice(&results[..count]);
}

/// The low 64 bits of `bits`, as they are compared.
#[inline(always)]
fn key(bits: u128) -> u64 {
    bits as u64 ^ 1 << 63
}

#[inline(always)]
fn at(base: *const u64, line: u32) -> *const u64 {
    base.wrapping_add(line as usize * LINE_WORDS)
}

/// # Safety
/// `word` leads to an inner line.
#[inline(always)]
unsafe fn child<C: Compare>(base: *const u64, word: Word, key: u64) -> Word {
    let line = at(base, word.line());
    // SAFETY: the caller's; the last word of an inner line is the children's distance.
    unsafe {
        let number = (C::below(line, key) & 0x7f).count_ones();
        let distance = *line.add(LINE_WORDS - 1) as u32;
        word.child(word.line() + distance + number)
    }
}

/// # Safety
/// `line` is a leaf line.
#[inline(always)]
unsafe fn leaf_of<C: Compare>(base: *const u64, line: u32, key: u64) -> u16 {
    let line = at(base, line);
    // SAFETY: the caller's; the leaves stand behind six bounds.
    unsafe {
        let number = (C::below(line, key) & 0x3f).count_ones() as usize;
        *line.add(LEAVES - 1).cast::<u16>().add(number)
    }
}

/// The next hop in a divided /64, from the leaf `found` in `line`.
///
/// # Safety
/// `line` is a leaf line and `found` one of its leaves with the high bit set.
#[inline(always)]
unsafe fn beyond<C: Compare>(base: *const u64, line: u32, found: u16, key: u64) -> u16 {
    // SAFETY: the encoder has put a reference there, which leads to a whole tree.
    unsafe {
        let start = at(base, line);
        let high = *start.cast::<u16>().add(31);
        let distance = usize::from(high) << 15 | usize::from(found & !DIVIDED);
        let reference = Word(*start.cast::<u32>().add(distance));
        let mut word = reference.at_line(line + reference.line());
        while word.depth() > 1 {
            word = child::<C>(base, word, key);
        }
        leaf_of::<C>(base, word.line(), key)
    }
}

/// Lines of the tree whose first line is `root`, all that it leads to included.
pub(crate) fn extent_lines(word: Word, root: &[u64]) -> u32 {
    if word.depth() > 1 { (root[LINE_WORDS - 1] >> 32) as u32 } else { 1 }
}

/// Makes trees; its room is kept from one to the next.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    /// The intervals of the chunk to be made.
    pub intervals: Vec<Interval<u128>>,
    words: Vec<u64>,
    /// The tree's parts: where they begin, and their leaf.
    parts: Vec<(u64, u16)>,
    /// Intervals of each divided /64: the next hop that it begins with, and a range.
    divided: Vec<(NextHopId, std::ops::Range<usize>)>,
}

impl Encoder {
    /// Makes the chunk one of a single next hop.
    pub fn set_uniform(&mut self, next_hop: NextHopId) {
        self.intervals.clear();
        self.intervals.push((0, next_hop));
    }

    /// The lines of the tree made last.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Units of 16 bytes that those take.
    pub fn units(&self) -> u32 {
        (self.words.len() / 2) as u32
    }

    /// Makes the tree of the intervals and returns the word for it, its line still 0; or the word
    /// of the next hop, when there is only one. `None` when the tree would be too deep: there can
    /// be 1.8 million intervals in a chunk.
    pub fn encode(&mut self) -> Option<Word> {
        self.words.clear();
        if let [(_, next_hop)] = self.intervals[..] {
            return Some(Word(next_hop.into()));
        }
        self.split();
        // A tree of one line can't say that more lines belong to it.
        let at_least = if self.divided.is_empty() { 1 } else { 2 };
        let depth = append_tree(&mut self.words, &self.parts, at_least)?;
        if !self.divided.is_empty() {
            self.append_divided(depth)?;
        }
        if depth > 1 {
            self.words[LINE_WORDS - 1] |= ((self.words.len() / LINE_WORDS) as u64) << 32;
        }
        Some(Word(depth << LINE_BITS))
    }

    /// Splits the intervals into parts by the upper 64 bits.
    fn split(&mut self) {
        self.parts.clear();
        self.divided.clear();
        let mut i = 0;
        let mut before = 0;
        while let Some(&(start, next_hop)) = self.intervals.get(i) {
            let high = (start >> 64) as u64;
            let rest = &self.intervals[i..];
            let end = i + rest.iter().take_while(|interval| (interval.0 >> 64) as u64 == high).count();
            if start as u64 == 0 && end == i + 1 {
                self.parts.push((high, next_hop));
                before = next_hop;
            } else {
                self.parts.push((high, DIVIDED));
                self.divided.push((before, i..end));
                before = self.intervals[end - 1].1;
                // The next /64 goes on with the last next hop, unless it begins with its own. (It
                // may lie behind the chunk, and then is never come to.)
                let next = high.checked_add(1);
                let own = self.intervals.get(end).map(|next| (next.0 >> 64) as u64);
                if let Some(next) = next.filter(|_| next != own) {
                    self.parts.push((next, before));
                }
            }
            i = end;
        }
    }

    /// Appends the second trees, and the references to them for each leaf line that needs some.
    fn append_divided(&mut self, depth: u32) -> Option<()> {
        let lines = self.parts.len().div_ceil(LEAVES);
        let first_leaf_line = self.words.len() / LINE_WORDS - lines;
        debug_assert!(depth > 1);
        let mut divided = std::mem::take(&mut self.divided).into_iter();
        let mut tree = Vec::new();
        for number in 0..lines {
            let here = &self.parts[number * LEAVES..self.parts.len().min((number + 1) * LEAVES)];
            if here.iter().all(|part| part.1 & DIVIDED == 0) {
                continue;
            }
            let line = first_leaf_line + number;
            let references = self.words.len();
            self.words.resize(references + LINE_WORDS, 0);
            let distance = (references - line * LINE_WORDS) * 2;
            for place in 0..here.len() {
                if self.parts[number * LEAVES + place].1 & DIVIDED == 0 {
                    continue;
                }
                let (before, range) = divided.next()?;
                split_low(before, &self.intervals[range], &mut tree);
                let start = self.words.len() / LINE_WORDS;
                let depth = append_tree(&mut self.words, &tree, 1)?;
                let reference = depth << LINE_BITS | u32::try_from(start - line).ok()?;
                set_half(&mut self.words, references * 2 + place, reference);
                set_leaf(&mut self.words, line, place, DIVIDED | ((distance + place) & 0x7fff) as u16);
            }
            set_leaf(&mut self.words, line, LEAVES, u16::try_from(distance >> 15).ok()?);
        }
        Some(())
    }
}

/// Puts the parts of a divided /64 into `parts`, by the lower 64 bits.
fn split_low(before: NextHopId, intervals: &[Interval<u128>], parts: &mut Vec<(u64, u16)>) {
    parts.clear();
    if intervals.first().is_some_and(|interval| interval.0 as u64 != 0) {
        parts.push((0, before));
    }
    parts.extend(intervals.iter().map(|&(start, next_hop)| (start as u64, next_hop)));
}

/// Appends the tree over `parts` to `words`, root first, and returns its depth.
fn append_tree(words: &mut Vec<u64>, parts: &[(u64, u16)], at_least: u32) -> Option<u32> {
    let mut sizes = vec![parts.len().div_ceil(LEAVES)];
    while sizes[sizes.len() - 1] > 1 || (sizes.len() as u32) < at_least {
        sizes.push(sizes[sizes.len() - 1].div_ceil(CHILDREN));
    }
    let depth = sizes.len() as u32;
    if depth > MAX_DEPTH {
        return None;
    }
    for level in (1..sizes.len()).rev() {
        // Parts below one child of this level.
        let span = LEAVES * CHILDREN.pow(level as u32 - 1);
        for number in 0..sizes[level] {
            let bounds = (1..CHILDREN).map(|i| bound(parts, (number * CHILDREN + i) * span));
            words.extend(bounds);
            // From this line to the first child: the rest of this level, then the children of the
            // lines before this one.
            words.push((sizes[level] - number + number * CHILDREN) as u64);
        }
    }
    for leaves in parts.chunks(LEAVES) {
        words.extend((1..LEAVES).map(|i| bound(leaves, i)));
        words.extend([0, 0]);
        let line = words.len() / LINE_WORDS - 1;
        for (place, part) in leaves.iter().enumerate() {
            set_leaf(words, line, place, part.1);
        }
    }
    Some(depth)
}

/// What an address must be above to belong to part `i` or behind.
fn bound(parts: &[(u64, u16)], i: usize) -> u64 {
    parts.get(i).map_or(UNUSED, |part| (part.0 - 1) ^ 1 << 63)
}

fn set_leaf(words: &mut [u64], line: usize, place: usize, leaf: u16) {
    let leaves: &mut [u16] = halves(&mut words[line * LINE_WORDS + LEAVES - 1..][..2]);
    leaves[place] = leaf;
}

fn set_half(words: &mut [u64], place: usize, value: u32) {
    halves(words)[place] = value;
}

fn halves<T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::KnownLayout>(
    words: &mut [u64],
) -> &mut [T] {
    use zerocopy::{FromBytes, IntoBytes};
    // A whole number of aligned smaller numbers is always there.
    <[T]>::mut_from_bytes(words.as_mut_bytes()).unwrap_or_default()
}
