//! VLAN tags (IEEE 802.1Q): what stands behind EtherType 0x8100.

use std::fmt;
use std::str::FromStr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ethernet;

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

/// Whether a frame's EtherType says that a tag follows.
#[inline(always)]
pub const fn is_tag(ethertype: u16) -> bool {
    ethertype == ethernet::VLAN || ethertype == ethernet::SERVICE_VLAN
}

/// Which VLAN, by which kind of tag.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag {
    /// Whether it is a service tag (IEEE 802.1ad), not a customer's (802.1Q).
    pub service: bool,
    /// The VLAN, 1 to 4094.
    pub vlan: u16,
}

impl Tag {
    /// The EtherType in front of it.
    pub const fn ethertype(self) -> u16 {
        if self.service { ethernet::SERVICE_VLAN } else { ethernet::VLAN }
    }
}

/// The tags of a sub-port's frames, one or two. In words: `100`, a service tag `s200`, and, the
/// outer one first, `s200.100`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tags {
    /// The first in the frame.
    pub outer: Tag,
    /// The one behind it.
    pub inner: Option<Tag>,
}

impl Tags {
    /// The tag of a plain 802.1Q VLAN.
    pub const fn vlan(vlan: u16) -> Self {
        Self { outer: Tag { service: false, vlan }, inner: None }
    }

    /// Their length in a frame, in bytes.
    #[inline(always)]
    pub const fn bytes(&self) -> usize {
        if self.inner.is_some() { 2 * TAG_LEN } else { TAG_LEN }
    }

    /// Writes the tags between the MAC addresses and the EtherType of a frame: `frame` has
    /// [`Tags::bytes`] bytes of room in front, and the frame without tags behind them. A frame that is
    /// shorter than its MAC addresses stays as it is.
    #[inline(always)]
    pub fn write(&self, frame: &mut [u8], priority: Priority) {
        let len = self.bytes();
        if frame.len() < len + ADDRESSES {
            return;
        }
        frame.copy_within(len..len + ADDRESSES, 0);
        self.write_over(frame, priority);
    }

    /// Writes the tags behind the MAC addresses of a frame, over what stands there.
    #[inline(always)]
    pub fn write_over(&self, frame: &mut [u8], priority: Priority) {
        let outer = |bits: u16| word(self.outer, bits);
        match self.inner {
            None => put(frame, 0, outer(priority.inner())),
            Some(inner) => {
                put(frame, 0, outer(priority.outer()));
                put(frame, 1, word(inner, priority.inner()));
            }
        }
    }
}

/// A tag with these upper four bits, as it stands in a frame, in host order.
#[inline(always)]
const fn word(tag: Tag, bits: u16) -> u32 {
    (tag.ethertype() as u32) << 16 | (bits & 0xf000 | tag.vlan & 0x0fff) as u32
}

#[inline(always)]
fn put(frame: &mut [u8], which: usize, word: u32) {
    let at = ADDRESSES + which * TAG_LEN;
    if let Some(place) = frame.get_mut(at..at + TAG_LEN) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

/// Length of a frame's two MAC addresses, in bytes.
pub const ADDRESSES: usize = 12;

/// Priority and drop eligibility of a frame's tags: four bits of the outer and of the inner one,
/// both the same where there is one tag; 0 without any.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Priority(u8);

impl Priority {
    /// That of the tags whose control fields these are.
    #[inline(always)]
    pub const fn of(outer: u16, inner: u16) -> Self {
        Self((outer >> 8) as u8 & 0xf0 | (inner >> 12) as u8)
    }

    /// The upper four bits of the outer tag's control field.
    #[inline(always)]
    pub const fn outer(self) -> u16 {
        (self.0 as u16 & 0xf0) << 8
    }

    /// The upper four bits of the inner tag's control field; of a single one.
    #[inline(always)]
    pub const fn inner(self) -> u16 {
        (self.0 as u16 & 0x0f) << 12
    }
}

impl fmt::Display for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (tag, dot) in [(Some(self.outer), ""), (self.inner, ".")] {
            if let Some(tag) = tag {
                write!(f, "{dot}{}{}", if tag.service { "s" } else { "" }, tag.vlan)?;
            }
        }
        Ok(())
    }
}

/// What is wrong with tags in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadTags;

impl FromStr for Tags {
    type Err = BadTags;

    fn from_str(text: &str) -> Result<Self, BadTags> {
        let tag = |text: &str| {
            let (service, digits) = text.strip_prefix('s').map_or((false, text), |digits| (true, digits));
            let plain =
                !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
            let vlan = digits.parse().ok().filter(|vlan| plain && (1..=4094).contains(vlan));
            vlan.map(|vlan| Tag { service, vlan }).ok_or(BadTags)
        };
        match text.split_once('.') {
            None => Ok(Self { outer: tag(text)?, inner: None }),
            // A service tag stands outside, or nowhere.
            Some((outer, inner)) => {
                let inner = tag(inner)?;
                (!inner.service).then_some(()).ok_or(BadTags)?;
                Ok(Self { outer: tag(outer)?, inner: Some(inner) })
            }
        }
    }
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

    #[test]
    fn tags_have_words_and_every_other_word_is_none() {
        for text in ["1", "100", "4094", "s200", "s200.100", "200.100"] {
            assert_eq!(text.parse::<Tags>().unwrap().to_string(), text);
        }
        for text in
            ["", "0", "4095", "x", "s", "100.", ".100", "1.2.3", "100.s200", "01", "+1", "s200.s100", "99999"]
        {
            assert!(text.parse::<Tags>().is_err(), "{text}");
        }
    }

    #[test]
    fn tags_are_written_with_their_priorities() {
        let tags: Tags = "s200.100".parse().unwrap();
        let mut frame = [vec![0xff; 8], (1..=12).collect(), vec![8, 0, 9]].concat();
        tags.write(&mut frame, Priority::of(0xe000, 0x3000));
        let expected =
            [(1..=12).collect(), vec![0x88, 0xa8, 0xe0, 200, 0x81, 0, 0x30, 100, 8, 0, 9]].concat();
        assert_eq!(frame, expected);
        let mut frame = [vec![0xff; 4], (1..=12).collect(), vec![8, 0]].concat();
        Tags::vlan(100).write(&mut frame, Priority::of(0xb000, 0xb000));
        assert_eq!(frame, [(1..=12).collect(), vec![0x81, 0, 0xb0, 100, 8, 0]].concat());
        let mut short = [7; 15];
        Tags::vlan(100).write(&mut short, Priority::default());
        assert_eq!(short, [7; 15]);
    }
}
