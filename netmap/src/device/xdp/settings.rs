//! What the XDP program knows of its port without asking a map by key: one value, that it reads in
//! place.

use std::net::IpAddr;

use crate::device::Vlan;

/// What the program knows of the port: in memory, the device's MAC address, two bytes of nothing,
/// three bits for each VLAN (it goes to the worker; wholly; with a second tag, too), and a Bloom
/// filter of the addresses in the maps, so that few packets that are not for them wait for a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Settings(pub(super) [u8; 8 + 4 * Settings::BITS]);

impl Settings {
    /// Bytes of one bit for each VLAN, and of the filter.
    const BITS: usize = 4096 / 8;
    /// Where the bits stand that say: to the worker.
    pub(super) const VLANS: usize = 8;
    /// Where the bits stand that say: all of it.
    pub(super) const WHOLE: usize = Self::VLANS + Self::BITS;
    /// Where the bits stand that say: with a second tag, too.
    pub(super) const STACKED: usize = Self::WHOLE + Self::BITS;
    /// Where the filter stands.
    pub(super) const OWNED: usize = Self::STACKED + Self::BITS;

    pub(super) fn new<'a>(mac: [u8; 6], vlans: &[Vlan], owned: impl IntoIterator<Item = &'a IpAddr>) -> Self {
        let mut settings = Self([0; 8 + 4 * Self::BITS]);
        settings.0[..6].copy_from_slice(&mac);
        for vlan in vlans {
            let fields = [(Self::VLANS, true), (Self::WHOLE, !vlan.host), (Self::STACKED, vlan.stacked)];
            for (field, _) in fields.into_iter().filter(|(_, set)| *set) {
                settings.set_bit(field, (vlan.id & 0xfff).into());
            }
        }
        for address in owned {
            settings.own(*address);
        }
        settings
    }

    /// Puts an address into the filter.
    fn own(&mut self, address: IpAddr) {
        for bit in bits_of(folded(address)) {
            self.set_bit(Self::OWNED, bit);
        }
    }

    /// Sets one of 4096 bits: numbers are those of 64-bit words in the machine's order, as the
    /// program reads.
    fn set_bit(&mut self, field: usize, bit: u32) {
        let at = field + bit as usize / 64 * 8;
        let word: &mut [u8; 8] = self.0[at..].first_chunk_mut().expect("512 bytes of bits");
        *word = (u64::from_ne_bytes(*word) | 1 << (bit % 64)).to_ne_bytes();
    }
}

/// What the filter's bits are made of: an address as the program reads it from memory.
pub(super) fn folded(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(a) => u32::from_ne_bytes(a.octets()),
        IpAddr::V6(a) => {
            let words = u128::from_ne_bytes(a.octets());
            let sum = (words as u64).wrapping_add((words >> 64) as u64);
            (sum as u32).wrapping_add((sum >> 32) as u32)
        }
    }
}

/// What an address is multiplied by for its bits.
pub(super) const MIX: u32 = 0x9e37_79b9;
/// Where the two bits' numbers stand in the product: 12 bits each.
pub(super) const BIT_AT: [i32; 2] = [20, 8];

/// An address's two bits in the filter.
fn bits_of(folded: u32) -> [u32; 2] {
    BIT_AT.map(|at| folded.wrapping_mul(MIX) >> at & 0xfff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_has_what_is_owned_and_little_else() {
        let owned: Vec<IpAddr> = (0..16u32)
            .map(|i| IpAddr::from(0x0a00_0001u32.wrapping_add(i << 8).to_be_bytes()))
            .chain((0..16u128).map(|i| IpAddr::from(((0x2001_0db8u128 << 96) + (i << 64) + 1).to_be_bytes())))
            .collect();
        let settings = Settings::new([2; 6], &[], &owned);
        let has = |address: IpAddr| {
            bits_of(folded(address)).into_iter().all(|bit| {
                let at = Settings::OWNED + bit as usize / 64 * 8;
                u64::from_ne_bytes(*settings.0[at..].first_chunk().unwrap()) >> (bit % 64) & 1 != 0
            })
        };
        assert!(owned.iter().all(|address| has(*address)));
        let others = (0..100_000u32).map(|i| IpAddr::from(i.wrapping_mul(2_654_435_761).to_be_bytes()));
        let wrong = others.filter(|address| has(*address)).count();
        assert!(wrong < 100, "{wrong} of 100000 ask the map");
    }
}
