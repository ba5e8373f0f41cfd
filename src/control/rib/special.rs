//! Prefixes with a meaning of their own (RFC 6890): always present, so that looking up a
//! destination is all the checking that it needs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::control::kernel::RouteKind;
use crate::tables::{NextHopId, fixed};

const fn v4(a: u8, b: u8, c: u8, d: u8, len: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), len))
}

const fn v6(first: u16, last: u16, len: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, last), len))
}

/// The prefixes and what they lead to.
pub const SPECIAL: [(IpNet, NextHopId); 10] = [
    (v4(0, 0, 0, 0, 8), fixed::MARTIAN),
    (v4(127, 0, 0, 0, 8), fixed::MARTIAN),
    (v4(169, 254, 0, 0, 16), fixed::LINK_LOCAL),
    (v4(224, 0, 0, 0, 4), fixed::MULTICAST),
    (v4(240, 0, 0, 0, 4), fixed::MARTIAN),
    (v4(255, 255, 255, 255, 32), fixed::BROADCAST),
    (v6(0, 0, 128), fixed::MARTIAN),
    (v6(0, 1, 128), fixed::MARTIAN),
    (v6(0xff00, 0, 8), fixed::MULTICAST),
    (v6(0xfe80, 0, 10), fixed::LINK_LOCAL),
];

/// Whether a route to `to` may be installed: none may within a special prefix, but for the host's
/// own addresses of link-local scope.
pub fn allows(to: IpNet, kind: RouteKind) -> bool {
    match SPECIAL.iter().find(|(special, _)| special.contains(&to)) {
        None => true,
        Some((_, fixed::LINK_LOCAL)) => {
            matches!(kind, RouteKind::Local | RouteKind::Anycast | RouteKind::Broadcast)
        }
        Some(_) => false,
    }
}

/// Whether `address` may be reached by the way of a neighbour of its own.
pub fn is_ordinary(address: IpAddr) -> bool {
    allows(IpNet::from(address), RouteKind::Unicast)
}
