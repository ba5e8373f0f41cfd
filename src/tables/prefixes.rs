//! The ordered prefixes that the FIBs are made from.
//!
//! A [`Prefixes`] holds what the routing table came to: one next hop for each prefix. It is the
//! keeper's; workers never see it. The FIBs regenerate what a change touches from it, so it can be
//! walked in address order from any point (`Flattener`), giving the disjoint intervals that
//! longest-prefix matching amounts to.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::fmt::Debug;
use std::iter::Peekable;

use super::{MAX_NEXT_HOPS, NextHopId};

/// An address as a number in host order: `u32` for IPv4, `u128` for IPv6.
pub trait Address: Copy + Ord + Debug {
    /// Number of bits.
    const BITS: u8;
    /// The lowest address.
    const ZERO: Self;
    /// The highest address.
    const MAX: Self;

    /// The address with all but its first `length` bits cleared (`length` at most [`Self::BITS`]).
    fn network(self, length: u8) -> Self;
    /// The address with all but its first `length` bits set.
    fn last(self, length: u8) -> Self;
    /// How many leading bits `self` and `other` have in common.
    fn common_bits(self, other: Self) -> u8;
    /// The next address; the highest is followed by the lowest.
    fn next(self) -> Self;
}

macro_rules! address {
    ($number:ty) => {
        impl Address for $number {
            const BITS: u8 = <$number>::BITS as u8;
            const ZERO: Self = 0;
            const MAX: Self = <$number>::MAX;

            fn network(self, length: u8) -> Self {
                self & !Self::MAX.checked_shr(length.into()).unwrap_or(0)
            }

            fn last(self, length: u8) -> Self {
                self | Self::MAX.checked_shr(length.into()).unwrap_or(0)
            }

            fn common_bits(self, other: Self) -> u8 {
                (self ^ other).leading_zeros() as u8
            }

            fn next(self) -> Self {
                self.wrapping_add(1)
            }
        }
    };
}
address!(u32);
address!(u128);

/// Prefixes with their next hops, ordered by address, shorter ones first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prefixes<A: Address>(BTreeMap<(A, u8), NextHopId>);

/// IPv4 prefixes: addresses are `u32` in host order, lengths 0 to 32.
pub type Prefixes4 = Prefixes<u32>;

/// IPv6 prefixes: addresses are `u128` in host order, lengths 0 to 128.
pub type Prefixes6 = Prefixes<u128>;

impl<A: Address> Default for Prefixes<A> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<A: Address> Prefixes<A> {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the next hop of `address/length` and returns the one that it had. Host bits are
    /// ignored, a length beyond [`Address::BITS`] counts as that.
    ///
    /// # Panics
    /// When `next_hop` is not below [`MAX_NEXT_HOPS`]: the FIBs rely on that.
    pub fn insert(&mut self, address: A, length: u8, next_hop: NextHopId) -> Option<NextHopId> {
        check(next_hop);
        self.0.insert(Self::key(address, length), next_hop)
    }

    /// Takes `address/length` out and returns the next hop that it had.
    pub fn remove(&mut self, address: A, length: u8) -> Option<NextHopId> {
        self.0.remove(&Self::key(address, length))
    }

    /// The next hop of exactly `address/length`.
    pub fn get(&self, address: A, length: u8) -> Option<NextHopId> {
        self.0.get(&Self::key(address, length)).copied()
    }

    /// All prefixes as (address, length, next hop), ordered by address, shorter ones first.
    pub fn iter(&self) -> impl Iterator<Item = (A, u8, NextHopId)> + '_ {
        self.0.iter().map(|(&(address, length), &next_hop)| (address, length, next_hop))
    }

    /// Number of prefixes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The longest prefix that covers `address`, as (length, next hop).
    pub fn longest_match(&self, address: A) -> Option<(u8, NextHopId)> {
        let exact = self.get(address, A::BITS).map(|next_hop| (A::BITS, next_hop));
        exact.or_else(|| self.cover(address, A::BITS))
    }

    /// The longest prefix shorter than `length` that covers `address`.
    ///
    /// The entry just before a place in the order either covers it, and then is the longest that
    /// does, or tells by the bits it has in common how long a cover can still be.
    pub(crate) fn cover(&self, address: A, length: u8) -> Option<(u8, NextHopId)> {
        let mut shorter_than = length;
        while let Some(longest) = shorter_than.checked_sub(1) {
            let bound = (address.network(longest), longest);
            let (&(before, before_length), &next_hop) = self.0.range(..=bound).next_back()?;
            let common = before.common_bits(address);
            if before_length <= common {
                return Some((before_length, next_hop));
            }
            // `before` is longer than what it shares with `address`, so nothing longer than
            // `common` covers; and it is behind (network(common), common), so this makes progress.
            shorter_than = common + 1;
        }
        None
    }

    fn key(address: A, length: u8) -> (A, u8) {
        let length = length.min(A::BITS);
        (address.network(length), length)
    }
}

/// The 16th bit of a next hop is the FIBs' own.
fn check(next_hop: NextHopId) {
    assert!(usize::from(next_hop) < MAX_NEXT_HOPS, "{next_hop} is not a next hop");
}

/// Panics as [`Prefixes::insert`] does.
impl<A: Address> FromIterator<(A, u8, NextHopId)> for Prefixes<A> {
    fn from_iter<I: IntoIterator<Item = (A, u8, NextHopId)>>(prefixes: I) -> Self {
        Self(
            prefixes
                .into_iter()
                .inspect(|&(_, _, next_hop)| check(next_hop))
                .map(|(address, length, next_hop)| (Self::key(address, length), next_hop))
                .collect(),
        )
    }
}

/// The regions that `changes` (address, length) touch, in address order, none inside another. Each
/// is at least as large as the chunk that its address lies in, of `chunk_length` bits.
pub(crate) fn regions<A: Address>(changes: &[(A, u8)], chunk_length: impl Fn(A) -> u8) -> Vec<(A, u8)> {
    let region = |&(address, length): &(A, u8)| {
        let length = length.min(chunk_length(address));
        (address.network(length), length)
    };
    let mut regions: Vec<_> = changes.iter().map(region).collect();
    regions.sort_unstable();
    let mut done_to = None;
    regions.retain(|&(address, length)| {
        let new = done_to.is_none_or(|last| address > last);
        if new {
            done_to = Some(address.last(length));
        }
        new
    });
    regions
}

/// Where a next hop begins to be the one: it lasts until the next interval's start.
pub(crate) type Interval<A> = (A, NextHopId);

/// A prefix that the walk is inside of.
struct Open<A> {
    last: A,
    next_hop: NextHopId,
}

/// Walks the prefixes of a region in address order, one chunk after another, and gives the
/// intervals of each. Neighbours have different next hops.
pub(crate) struct Flattener<'a, A: Address> {
    prefixes: Peekable<Range<'a, (A, u8), NextHopId>>,
    open: Vec<Open<A>>,
}

impl<'a, A: Address> Flattener<'a, A> {
    /// Starts at the first address of `address/length`; chunks are to lie within that.
    pub fn new(prefixes: &'a Prefixes<A>, address: A, length: u8) -> Self {
        let (first, last) = (address.network(length), address.last(length));
        let next_hop = prefixes.cover(address, length).map_or(0, |(_, next_hop)| next_hop);
        let mut open = Vec::with_capacity(usize::from(A::BITS) + 2);
        open.push(Open { last: A::MAX, next_hop });
        Self { prefixes: prefixes.0.range((first, length)..=(last, A::BITS)).peekable(), open }
    }

    /// The next hop that the whole chunk from `first` to `last` has, when no prefix begins or ends
    /// inside it.
    pub fn uniform(&mut self, first: A, last: A) -> Option<NextHopId> {
        if self.prefixes.peek().is_some_and(|&(&(address, _), _)| address <= last) {
            return None;
        }
        self.close_before(first);
        let top = self.top();
        (top.last >= last).then_some(top.next_hop)
    }

    /// Puts the intervals of the chunk from `first` to `last` into `out`; the first begins at
    /// `first`. Chunks are asked for in ascending order.
    pub fn chunk(&mut self, first: A, last: A, out: &mut Vec<Interval<A>>) {
        out.clear();
        self.close_before(first);
        out.push((first, self.top().next_hop));
        while let Some((&(address, length), &next_hop)) =
            self.prefixes.next_if(|&(&(address, _), _)| address <= last)
        {
            while self.top().last < address {
                self.close(out);
            }
            self.open.push(Open { last: address.last(length), next_hop });
            begin(out, address, next_hop);
        }
        while self.top().last < last {
            self.close(out);
        }
    }

    fn top(&self) -> &Open<A> {
        // The bottom lasts to the highest address and so is never closed.
        &self.open[self.open.len() - 1]
    }

    fn close(&mut self, out: &mut Vec<Interval<A>>) {
        if let Some(closed) = self.open.pop() {
            begin(out, closed.last.next(), self.top().next_hop);
        }
    }

    fn close_before(&mut self, first: A) {
        while self.top().last < first {
            self.open.pop();
        }
    }
}

/// Lets `next_hop` begin at `start`, which is at or behind the last interval's start.
fn begin<A: Address>(out: &mut Vec<Interval<A>>, start: A, next_hop: NextHopId) {
    if out.last().is_some_and(|last| last.0 == start) {
        out.pop();
    }
    if out.last().is_none_or(|last| last.1 != next_hop) {
        out.push((start, next_hop));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_every_length_are_right() {
        assert_eq!(0xffff_ffffu32.network(0), 0);
        assert_eq!(0u32.last(0), u32::MAX);
        assert_eq!(0xc0a8_01ffu32.network(24), 0xc0a8_0100);
        assert_eq!(0xc0a8_01ffu32.network(32), 0xc0a8_01ff);
        assert_eq!(0xc0a8_01ffu32.last(32), 0xc0a8_01ff);
        assert_eq!(u128::MAX.network(1), 1 << 127);
    }

    #[test]
    #[should_panic(expected = "not a next hop")]
    fn next_hops_of_16_bits_are_refused() {
        Prefixes4::new().insert(0, 0, 0x8000);
    }

    #[test]
    fn the_cover_is_the_longest_shorter_prefix() {
        let prefixes: Prefixes4 =
            [(0, 0, 1), (0x0a00_0000, 8, 2), (0x0a01_0000, 16, 3), (0x0a01_0200, 24, 4)]
                .into_iter()
                .collect();
        assert_eq!(prefixes.cover(0x0a01_0203, 32), Some((24, 4)));
        assert_eq!(prefixes.cover(0x0a01_0203, 24), Some((16, 3)));
        assert_eq!(prefixes.cover(0x0a01_ff03, 32), Some((16, 3)));
        assert_eq!(prefixes.cover(0x0a02_0000, 32), Some((8, 2)));
        assert_eq!(prefixes.cover(0x0b00_0000, 32), Some((0, 1)));
        assert_eq!(prefixes.cover(0x0b00_0000, 0), None);
        assert_eq!(prefixes.longest_match(0x0a01_0200), Some((24, 4)));
    }

    #[test]
    fn intervals_follow_nesting_and_adjacency() {
        let prefixes: Prefixes4 =
            [(0, 0, 1), (0, 1, 2), (0x8000_0000, 1, 2), (0x4000_0000, 2, 1), (u32::MAX, 32, 7)]
                .into_iter()
                .collect();
        let mut out = Vec::new();
        Flattener::new(&prefixes, 0, 0).chunk(0, u32::MAX, &mut out);
        assert_eq!(out, [(0, 2), (0x4000_0000, 1), (0x8000_0000, 2), (u32::MAX, 7)]);
    }
}
