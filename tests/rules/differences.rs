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

/// All of them.
pub const DIFFERENCES: &[&Difference] = &[
    &NETWORK_ZERO,
    &CLASS_E,
    &BROADCAST_SOURCE,
    &LINK_LOCAL_4,
    &END_OF_OPTIONS,
    &HOP_BY_HOP,
    &ABOUT_A_REDIRECT,
    &TIME_BEFORE_SCOPE,
    &LINK_LOCAL_DESTINATION,
    &HASH_THRESHOLD,
    &OPTION_LENGTH,
    &OPTION_LENGTH_XDP,
    &TIME_AT_ADDRESS,
    &OPTIONS_BLANKED,
    &OTHER_LINK_LOCAL,
    &OTHER_LINK_LOCAL_XDP,
    &TO_NOWHERE,
    &IPV6_SOURCES,
    &SOURCES_OF_THE_HOSTS,
    &UNROUTED_FIRST,
    &QUOTED_AS_IT_LEAVES,
    &TOLD_AT_ONCE,
    &STRICT_ELSEWHERE,
    &TAGS_OF_NO_VLAN,
];

const fn linux(rules: &'static [u32], what: &'static str) -> Difference {
    Difference { place: Place::Kernel, rules, what }
}

const fn xdp(rules: &'static [u32], what: &'static str) -> Difference {
    Difference { place: Place::Xdp, rules, what }
}

pub const NETWORK_ZERO: Difference =
    linux(&[8], "Takes 0/8 but for 0.0.0.0 for addresses like others, since Linux 5.3.");
pub const CLASS_E: Difference =
    linux(&[8], "Takes 240/4 for addresses like others, since 2.6.25; only 255.255.255.255 is none.");
pub const BROADCAST_SOURCE: Difference = linux(
    &[8, 12],
    "Forwards what comes from the broadcast address of a link, and sends errors there: without \
     rp_filter it asks only whether the source is an address of its own.",
);
pub const LINK_LOCAL_4: Difference =
    linux(&[8], "Forwards IPv4 link-local addresses; RFC 3927 forbids it, RFC 1812 does not know them.");
pub const END_OF_OPTIONS: Difference =
    linux(&[19], "Zeroes what stands behind an end of options, which nobody may read.");
pub const HOP_BY_HOP: Difference = linux(
    &[33],
    "Examines hop-by-hop options, as RFC 8200 leaves to configuration, and discards or answers what is \
     wrong with them.",
);
pub const ABOUT_A_REDIRECT: Difference = linux(
    &[27],
    "Sends an error about a redirect: it looks at whether the message's type is below 128 alone.",
);
pub const TIME_BEFORE_SCOPE: Difference = linux(
    &[31, 34],
    "With one hop left, says so (3/0) before it looks at the scope of the source; nothing asks for an \
     order.",
);
pub const LINK_LOCAL_DESTINATION: Difference =
    linux(&[34], "Sends a packet for a link-local address back to the link that it came from.");
pub const HASH_THRESHOLD: Difference = linux(
    &[63],
    "Without its resilient next hop groups, moves flows of the members that stay, up to half of all, as \
     RFC 2992 reckons for hash-threshold.",
);
pub const OPTION_LENGTH: Difference = linux(
    &[19],
    "Points at the type of an option whose length cannot be, not at the length; the RFC leaves it open \
     which of them is wrong.",
);
pub const OPTION_LENGTH_XDP: Difference = xdp(
    &[19],
    "What is for an address of the router's own goes up to the kernel, which points at the type of such \
     an option, too.",
);
pub const TIME_AT_ADDRESS: Difference = linux(
    &[19],
    "Puts the address of the way in before the time, that of the way out into record route; either is an \
     address of its own.",
);
pub const OPTIONS_BLANKED: Difference = linux(
    &[20],
    "Puts no-operations in place of the options that later fragments do not have, which keeps the header \
     as long as it was.",
);
pub const OTHER_LINK_LOCAL: Difference =
    linux(&[34], "Says that there is no route to fe80::/10 outside of fe80::/64, where it could be silent.");
pub const OTHER_LINK_LOCAL_XDP: Difference = xdp(
    &[34],
    "What is for a link-local address goes up to the kernel untouched, which says that there is no route \
     to fe80::/10 outside of fe80::/64. It is not forwarded.",
);
pub const TO_NOWHERE: Difference =
    linux(&[34], "Says that there is no route to ::, where it could be silent.");
pub const IPV6_SOURCES: Difference = linux(
    &[18],
    "Has rp_filter for IPv4 only; IPv6 sources are checked by a rule of netfilter's, if there is one.",
);
pub const SOURCES_OF_THE_HOSTS: Difference =
    linux(&[18], "Checks what is for the router itself too, and so does not answer there.");
pub const UNROUTED_FIRST: Difference =
    linux(&[12, 18], "Looks for a route first, and tells a source that fails the check that there is none.");
pub const QUOTED_AS_IT_LEAVES: Difference =
    linux(&[17], "Quotes the packet in a redirect with the TTL that it leaves with.");
pub const TOLD_AT_ONCE: Difference =
    linux(&[17], "Sends a redirect before it asks for the neighbour that the packet then waits for.");
pub const STRICT_ELSEWHERE: Difference = linux(
    &[19],
    "Says of a strict source route whose packet is for somebody else that the destination is the \
     problem (12/0).",
);
pub const TAGS_OF_NO_VLAN: Difference = linux(&[102], "Takes any number of tags with VID 0 off a frame.");
