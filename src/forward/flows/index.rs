//! The index: from a hash to the numbers of the records that may be meant.
//!
//! It is an array of buckets, each one cache line: fifteen places of {9-bit tag, 23-bit number}
//! and one word that counts the entries which belong here and had to go on to a later bucket.
//! Finding is one load of a line and a comparison of all its tags at once; only where something
//! has gone on (one bucket in ten when the index is full) is the next line looked at. Taking an
//! entry out leaves no trace to be cleared away later: it lowers the counts that it raised.
//!
//! The structure knows hashes and numbers only; whether a record is the one that is meant is for
//! its owner to say.

use std::io;

use netmap::prefetch;
use zerocopy::FromBytes;

use crate::tables::memory::{Backing, PageArray};

/// Bits of a record's number.
const NUMBER_BITS: u32 = 23;
/// The bits of a record's number.
const NUMBER: u32 = (1 << NUMBER_BITS) - 1;
/// Entries of a bucket.
const PLACES: usize = 15;
/// Which word of a bucket counts the entries that have gone on.
const GONE_ON: usize = PLACES;

/// Most records that an index can tell apart, number 0 (which means none) included.
pub const MAX_RECORDS: usize = 1 << NUMBER_BITS;

/// A cache line of the index.
#[derive(Clone, Copy, FromBytes)]
#[repr(C, align(64))]
struct Bucket {
    words: [u32; PLACES + 1],
}

/// No place is left within reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexFull;

/// An index of fixed size.
#[derive(Debug)]
pub struct Index {
    buckets: PageArray<Bucket>,
    count: u64,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.words).finish()
    }
}

/// The tag of a hash, where it stands in an entry; never 0, so that no empty place has it.
#[inline(always)]
fn tag(hash: u32) -> u32 {
    // The bucket comes from the upper bits.
    let tag = hash & 0x1ff;
    (tag + u32::from(tag == 0)) << NUMBER_BITS
}

impl Bucket {
    /// The places with this tag, one bit each.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn matches(&self, tag: u32) -> u32 {
        use std::arch::x86_64::*;
        // SAFETY: SSE2 belongs to x86-64; the four loads are inside `words` and aligned, since the
        // bucket is.
        let mask = unsafe {
            let (wanted, bits) = (_mm_set1_epi32(tag as i32), _mm_set1_epi32(!NUMBER as i32));
            let equal = |k: usize| {
                let words = _mm_load_si128(self.words.as_ptr().add(4 * k).cast());
                _mm_cmpeq_epi32(_mm_and_si128(words, bits), wanted)
            };
            let (low, high) = (_mm_packs_epi32(equal(0), equal(1)), _mm_packs_epi32(equal(2), equal(3)));
            _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
        };
        mask & ((1 << PLACES) - 1)
    }

    /// The places with this tag, one bit each.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn matches(&self, tag: u32) -> u32 {
        let places = self.words[..PLACES].iter().enumerate();
        places.fold(0, |mask, (k, word)| mask | u32::from(word & !NUMBER == tag) << k)
    }

    /// The first empty place.
    fn free(&self) -> Option<usize> {
        self.words[..PLACES].iter().position(|word| *word == 0)
    }
}

impl Index {
    /// An index for `entries` entries. The memory is taken as it is touched.
    ///
    /// # Errors
    /// When the system refuses the mapping.
    pub fn new(entries: usize) -> io::Result<Self> {
        // Three places in four are used when all entries are there.
        let count = (entries * 4).div_ceil(PLACES * 3).max(1) + 1;
        Ok(Self { buckets: PageArray::new(count, &Backing::Anonymous)?, count: count as u64 })
    }

    /// Bytes that the index takes when all of it is used.
    pub fn bytes(&self) -> usize {
        self.count as usize * size_of::<Bucket>()
    }

    #[inline(always)]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.count) >> 32) as usize
    }

    #[inline(always)]
    fn behind(&self, bucket: usize) -> usize {
        let next = bucket + 1;
        if next as u64 == self.count { 0 } else { next }
    }

    /// Asks for the line that finding this hash reads first.
    #[inline(always)]
    pub fn prefetch(&self, hash: u32) {
        prefetch(self.buckets.as_ptr().wrapping_add(self.home(hash)));
    }

    /// The number of the first record whose tag is this hash's, to be prefetched; 0 for none.
    #[inline(always)]
    pub fn candidate(&self, hash: u32) -> u32 {
        let bucket = &self.buckets[self.home(hash)];
        let mask = bucket.matches(tag(hash));
        if mask == 0 { 0 } else { bucket.words[mask.trailing_zeros() as usize & 15] & NUMBER }
    }

    /// The record with this hash that `is_it` says yes to.
    #[inline]
    pub fn find(&self, hash: u32, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.place(hash, is_it).map(|(bucket, k)| self.buckets[bucket].words[k] & NUMBER)
    }

    /// Where the record stands that `is_it` says yes to.
    #[inline]
    fn place(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        let (tag, mut at) = (tag(hash), self.home(hash));
        for _ in 0..self.count {
            let bucket = &self.buckets[at];
            let mut mask = bucket.matches(tag);
            while mask != 0 {
                let k = mask.trailing_zeros() as usize & 15;
                if is_it(bucket.words[k] & NUMBER) {
                    return Some((at, k));
                }
                mask &= mask - 1;
            }
            if bucket.words[GONE_ON] == 0 {
                return None;
            }
            at = self.behind(at);
        }
        None
    }

    /// Enters record `number`, which is not 0 and not entered under this hash yet.
    ///
    /// # Errors
    /// [`IndexFull`]: nothing is changed.
    pub fn insert(&mut self, hash: u32, number: u32) -> Result<(), IndexFull> {
        debug_assert!(number != 0 && number <= NUMBER);
        let home = self.home(hash);
        let mut at = home;
        for passed in 0..self.count {
            if let Some(k) = self.buckets[at].free() {
                self.buckets[at].words[k] = tag(hash) | number;
                let mut before = home;
                for _ in 0..passed {
                    self.buckets[before].words[GONE_ON] += 1;
                    before = self.behind(before);
                }
                return Ok(());
            }
            at = self.behind(at);
        }
        Err(IndexFull)
    }

    /// Takes record `number` out. Gives whether it was there.
    pub fn remove(&mut self, hash: u32, number: u32) -> bool {
        let Some((bucket, k)) = self.place(hash, |other| other == number) else { return false };
        self.buckets[bucket].words[k] = 0;
        let mut before = self.home(hash);
        while before != bucket {
            self.buckets[before].words[GONE_ON] -= 1;
            before = self.behind(before);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn all_places_can_be_filled_and_found_and_no_more() {
        let mut index = Index::new(100).unwrap();
        let places = (index.count as usize * PLACES) as u32;
        // All for the same bucket: the worst that there can be.
        for number in 1..=places {
            assert_eq!(index.insert(0x8000_0000, number), Ok(()));
        }
        assert_eq!(index.insert(0, places + 1), Err(IndexFull));
        assert!((1..=places).all(|n| index.find(0x8000_0000, |m| m == n) == Some(n)));
        for number in 1..=places {
            assert!(index.remove(0x8000_0000, number));
        }
        assert!(index.buckets.iter().all(|bucket| bucket.words == [0; 16]), "as it was");
    }

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(steps in prop::collection::vec((0..40u32, 0..8u32, any::<bool>()), 0..2000)) {
            // Few hashes and few buckets: long ways, many equal tags.
            let mut index = Index::new(60).unwrap();
            let mut model = HashMap::<u32, u32>::new();
            for (number, hash, add) in steps {
                let (number, hash) = (number + 1, hash.wrapping_mul(0x2000_0000) | hash & 1);
                if add && !model.contains_key(&number) {
                    prop_assert_eq!(index.insert(hash, number), Ok(()));
                    model.insert(number, hash);
                } else if let Some(hash) = model.remove(&number) {
                    prop_assert!(index.remove(hash, number));
                    prop_assert!(!index.remove(hash, number));
                }
                for (number, hash) in &model {
                    prop_assert_eq!(index.find(*hash, |n| n == *number), Some(*number));
                }
            }
            for (number, hash) in model {
                prop_assert!(index.remove(hash, number));
            }
            prop_assert!(index.buckets.iter().all(|bucket| bucket.words == [0; 16]));
        }
    }
}
