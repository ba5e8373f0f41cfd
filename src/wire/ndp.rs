//! Neighbour solicitations and advertisements (RFC 4861), and their options.

use std::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ethernet::Mac;

/// Length of a message without options, in bytes.
pub const MESSAGE_LEN: usize = 24;

/// Length of a link-layer address option for Ethernet, in bytes.
pub const LINK_ADDRESS_LEN: usize = 8;

/// Option: the sender's link-layer address (in solicitations).
pub const SOURCE_LINK_ADDRESS: u8 = 1;
/// Option: the target's link-layer address (in advertisements).
pub const TARGET_LINK_ADDRESS: u8 = 2;

/// Option: the packet that a redirect is about.
pub const REDIRECTED_HEADER: u8 = 4;

/// In an advertisement: the sender is a router.
pub const ROUTER: u32 = 1 << 31;
/// In an advertisement: it answers a solicitation.
pub const SOLICITED: u32 = 1 << 30;
/// In an advertisement: it overrides what is known.
pub const OVERRIDE: u32 = 1 << 29;

/// A neighbour solicitation or advertisement, from its ICMPv6 header on, without options.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct NeighborMessage {
    /// 135 or 136.
    pub kind: u8,
    /// 0.
    pub code: u8,
    /// Over the pseudo header, message and options.
    pub checksum: U16,
    /// [`ROUTER`], [`SOLICITED`], [`OVERRIDE`] in an advertisement.
    pub flags: U32,
    target: [u8; 16],
}

const _: () = assert!(size_of::<NeighborMessage>() == MESSAGE_LEN);

impl NeighborMessage {
    /// A message without its checksum.
    pub fn new(kind: u8, flags: u32, target: Ipv6Addr) -> Self {
        Self { kind, code: 0, checksum: U16::new(0), flags: U32::new(flags), target: target.octets() }
    }

    /// The message and its options, or `None` when the bytes do not hold one. Neither type nor
    /// checksum is looked at.
    pub fn parse(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(bytes).ok()
    }

    /// The address asked for or answered for.
    pub fn target(&self) -> Ipv6Addr {
        self.target.into()
    }
}

/// Options that are cut short or have length 0, for which the whole message is to be discarded
/// (RFC 4861 section 4.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadOptions;

/// The link-layer address option of this type among the options of a message. An option for
/// another kind of link (whose length is not 8 bytes) counts as none.
///
/// # Errors
/// [`BadOptions`] when any option has length 0 or is not all there.
pub fn link_address(options: &[u8], kind: u8) -> Result<Option<Mac>, BadOptions> {
    let (mut rest, mut found) = (options, None);
    while !rest.is_empty() {
        let len = 8 * usize::from(*rest.get(1).ok_or(BadOptions)?);
        if len == 0 {
            return Err(BadOptions);
        }
        let (option, behind) = rest.split_at_checked(len).ok_or(BadOptions)?;
        if let [this, 1, a, b, c, d, e, f] = *option
            && this == kind
        {
            found = Some([a, b, c, d, e, f]);
        }
        rest = behind;
    }
    Ok(found)
}

/// A link-layer address option.
pub const fn link_address_option(kind: u8, mac: Mac) -> [u8; LINK_ADDRESS_LEN] {
    [kind, 1, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_address_is_found_behind_other_options() {
        let mut options = vec![14, 1, 9, 9, 9, 9, 9, 9];
        options.extend(link_address_option(TARGET_LINK_ADDRESS, [2, 0, 0, 0, 0, 7]));
        assert_eq!(link_address(&options, TARGET_LINK_ADDRESS), Ok(Some([2, 0, 0, 0, 0, 7])));
        assert_eq!(link_address(&options, SOURCE_LINK_ADDRESS), Ok(None));
        assert_eq!(link_address(&[], SOURCE_LINK_ADDRESS), Ok(None));
    }

    #[test]
    fn rule_37_an_option_of_length_zero_or_cut_short_spoils_the_message() {
        assert_eq!(link_address(&[1, 0, 0, 0, 0, 0, 0, 0], 1), Err(BadOptions));
        assert_eq!(link_address(&[1, 2, 0, 0, 0, 0, 0, 0], 1), Err(BadOptions));
        assert_eq!(link_address(&[1], 1), Err(BadOptions));
        let mut later = link_address_option(1, [2; 6]).to_vec();
        later.extend([9, 0]);
        assert_eq!(link_address(&later, 1), Err(BadOptions), "behind a good one too");
    }
}
