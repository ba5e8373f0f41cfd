//! The host's own addresses: no packet that comes in may have one of them as its source (RFC 1812
//! section 5.3.7).
//!
//! Every forwarded packet asks, and hardly ever is the answer yes. So a small Bloom filter says "no"
//! for sure at the cost of one load that stays in the cache; behind its "maybe" stands the list. An
//! address has two bits: with a few addresses, one in a thousand others would have a single bit's
//! place, and packets from there would take the careful path, by way of a worker that was asleep.

use std::net::IpAddr;

/// Words of the filter: 4096 bits, 512 bytes.
pub const WORDS: usize = 64;

/// A set of addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalAddresses {
    sorted: Vec<IpAddr>,
    maybe: [u64; WORDS],
}

impl Default for LocalAddresses {
    fn default() -> Self {
        Self { sorted: Vec::new(), maybe: [0; WORDS] }
    }
}

impl FromIterator<IpAddr> for LocalAddresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let mut set = Self { sorted: addresses.into_iter().collect(), ..Self::default() };
        set.sorted.sort_unstable();
        set.sorted.dedup();
        for i in 0..set.sorted.len() {
            set.watch(set.sorted[i]);
        }
        set
    }
}

#[inline(always)]
fn mixed4(address: u32) -> u32 {
    address.wrapping_mul(0x9e37_79b9)
}

#[inline(always)]
fn mixed6(address: u128) -> u32 {
    let folded = (address >> 64) as u64 ^ (address as u64).rotate_left(23);
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// Where an address's bits have their numbers, 12 bits each, in what it was mixed to.
const BITS_AT: [u32; 2] = [20, 8];

impl LocalAddresses {
    /// Has packets from `address` looked at with care, though it is not in the set: `may_contain`
    /// answers yes for it, `contains` no. For the links' broadcast addresses, which are no source
    /// either (RFC 1122 section 3.2.1.3).
    pub fn watch(&mut self, address: IpAddr) {
        let mixed = match address {
            IpAddr::V4(a) => mixed4(a.into()),
            IpAddr::V6(a) => mixed6(a.into()),
        };
        for bit in BITS_AT.map(|at| mixed >> at) {
            self.maybe[bit as usize / 64 % WORDS] |= 1 << (bit % 64);
        }
    }

    /// `false` when the IPv4 address (host order) is not in the set; `true` when it may be.
    #[inline(always)]
    pub fn may_contain4(&self, address: u32) -> bool {
        self.has(mixed4(address))
    }

    /// `false` when the IPv6 address (host order) is not in the set; `true` when it may be.
    #[inline(always)]
    pub fn may_contain6(&self, address: u128) -> bool {
        self.has(mixed6(address))
    }

    #[inline(always)]
    fn has(&self, mixed: u32) -> bool {
        // The first says no to nearly all.
        self.is_set(mixed >> BITS_AT[0]) && self.is_set(mixed >> BITS_AT[1])
    }

    #[inline(always)]
    fn is_set(&self, bit: u32) -> bool {
        self.maybe[bit as usize / 64 % WORDS] >> (bit % 64) & 1 != 0
    }

    /// The filter that `may_contain` asks.
    pub fn watched(&self) -> &[u64; WORDS] {
        &self.maybe
    }

    /// Whether the address is in the set.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.sorted.binary_search(&address).is_ok()
    }

    /// The addresses, in order.
    pub fn iter(&self) -> impl Iterator<Item = &IpAddr> {
        self.sorted.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_set_is_never_denied_and_most_else_is() {
        let addresses = (0..64u32).map(|i| IpAddr::V4((0x0a00_0001 + (i << 8)).into()));
        let addresses6 = (0..64u128).map(|i| IpAddr::V6(((0x2001_0db8u128 << 96) + (i << 64) + 1).into()));
        let set: LocalAddresses = addresses.chain(addresses6).collect();
        assert_eq!(set.iter().count(), 128);
        for address in set.iter() {
            assert!(set.contains(*address));
            assert!(match address {
                IpAddr::V4(a) => set.may_contain4((*a).into()),
                IpAddr::V6(a) => set.may_contain6((*a).into()),
            });
        }
        let mut set = set;
        let broadcast = IpAddr::from([192, 0, 2, 255]);
        set.watch(broadcast);
        assert!(set.may_contain4(0xc000_02ff) && !set.contains(broadcast));
        let wrong = (0..100_000u32).filter(|i| set.may_contain4(i.wrapping_mul(2_654_435_761))).count();
        assert!(wrong < 800, "{wrong} of 100000 need a second look");
        let wrong =
            (0..100_000u128).filter(|i| set.may_contain6(i.wrapping_mul(0x1234_5678_9abc_def1_2345))).count();
        assert!(wrong < 800, "{wrong} of 100000 need a second look");
    }
}
