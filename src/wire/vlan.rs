//! VLAN tags (IEEE 802.1Q): what stands behind EtherType 0x8100.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a tag, in bytes.
pub const TAG_LEN: usize = 4;

/// A tag, from behind its EtherType.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct VlanTag {
    /// Priority (3 bits), drop eligible (1 bit), VLAN (12 bits).
    pub control: U16,
    /// What follows.
    pub ethertype: U16,
}

const _: () = assert!(size_of::<VlanTag>() == TAG_LEN);

impl VlanTag {
    /// The VLAN; 0 means that the tag carries a priority only, and the frame counts as untagged.
    pub const fn vlan(&self) -> u16 {
        self.control.get() & 0x0fff
    }

    /// The priority, 0 to 7.
    pub const fn priority(&self) -> u8 {
        (self.control.get() >> 13) as u8
    }
}

/// The tag and what follows it, or `None` when the bytes do not hold one.
pub fn parse(bytes: &[u8]) -> Option<(&VlanTag, &[u8])> {
    VlanTag::ref_from_prefix(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_gives_its_vlan_without_the_priority() {
        let (tag, rest) = parse(&[0xe0, 0x64, 0x08, 0x00, 1]).unwrap();
        assert_eq!((tag.vlan(), tag.priority(), tag.ethertype.get()), (100, 7, 0x0800));
        assert_eq!(rest, [1]);
        assert!(parse(&[0, 1, 8]).is_none());
    }
}
