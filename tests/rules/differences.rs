//! Where a router of another place differs, with the reason. A test that names a difference fails
//! when there is none any more, so that this list stays true.

use crate::router::Place;

/// Something that a place does otherwise.
pub struct Difference {
    pub place: Place,
    /// The rules that it concerns.
    pub rules: &'static [u32],
    /// What it does, and why.
    pub what: &'static str,
}

const fn linux(rules: &'static [u32], what: &'static str) -> Difference {
    Difference { place: Place::Kernel, rules, what }
}

pub const NETWORK_ZERO: Difference =
    linux(&[8], "Takes 0/8 but for 0.0.0.0 for addresses like others, since Linux 5.3.");
pub const CLASS_E: Difference =
    linux(&[8], "Takes 240/4 for addresses like others, since 2.6.25; only 255.255.255.255 is none.");
pub const BROADCAST_SOURCE: Difference = linux(
    &[8],
    "Forwards what comes from the broadcast address of a link: without rp_filter it asks only \
     whether the source is an address of its own.",
);
pub const LINK_LOCAL_4: Difference =
    linux(&[8], "Forwards IPv4 link-local addresses; RFC 3927 forbids it, RFC 1812 does not know them.");
