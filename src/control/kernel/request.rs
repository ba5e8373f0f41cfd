//! The few messages that are sent to the kernel by netlink: "list everything of this part" and
//! "find this neighbour".

use std::net::IpAddr;

use super::{Care, Index, Part};

const RTM_GETNEXTHOP: u16 = 106;
const RT_TABLE_UNSPEC: u8 = 0;
const NDA_FLAGS_EXT: u16 = 15;
const NTF_EXT_MANAGED: u32 = 1;

/// Appends a message's header, to be completed by [`finish`].
pub(super) fn begin(out: &mut Vec<u8>, kind: u16, flags: i32, sequence: u32) {
    out.extend_from_slice(&0u32.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
    out.extend_from_slice(&sequence.to_ne_bytes());
    out.extend_from_slice(&0u32.to_ne_bytes());
}

pub(super) fn finish(out: &mut [u8]) {
    let len = out.len() as u32;
    out[..4].copy_from_slice(&len.to_ne_bytes());
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// The request to list everything of `part`.
pub fn list(part: Part, sequence: u32) -> Vec<u8> {
    let (kind, family, size) = match part {
        Part::Links => (libc::RTM_GETLINK, libc::AF_UNSPEC, 16),
        Part::NextHops => (RTM_GETNEXTHOP, libc::AF_UNSPEC, 8),
        Part::Addresses => (libc::RTM_GETADDR, libc::AF_UNSPEC, 8),
        Part::Neighbors => (libc::RTM_GETNEIGH, libc::AF_UNSPEC, 12),
        Part::Routes4 => (libc::RTM_GETROUTE, libc::AF_INET, 12),
        Part::Routes6 => (libc::RTM_GETROUTE, libc::AF_INET6, 12),
    };
    let mut out = Vec::with_capacity(32);
    begin(&mut out, kind, libc::NLM_F_DUMP, sequence);
    let start = out.len();
    out.push(family as u8);
    out.resize(start + size, 0);
    debug_assert_eq!(out[start + 4], RT_TABLE_UNSPEC);
    finish(&mut out);
    out
}

/// The request to find the MAC address of `address`, as if a packet had to be sent to it. A kernel
/// that cannot look after neighbours by itself passes over that part of it; and without that part
/// the kernel no longer does.
pub fn resolve(index: Index, address: IpAddr, care: Care, sequence: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(56);
    let create = if care == Care::Release { 0 } else { libc::NLM_F_CREATE };
    begin(&mut out, libc::RTM_NEWNEIGH, create | libc::NLM_F_REPLACE, sequence);
    // struct ndmsg: family, pad:24, index:32, state:16, flags, type.
    out.extend_from_slice(&[
        if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 },
        0,
        0,
        0,
    ]);
    out.extend_from_slice(&index.to_ne_bytes());
    out.extend_from_slice(&libc::NUD_NONE.to_ne_bytes());
    out.extend_from_slice(&[libc::NTF_USE, 0]);
    match address {
        IpAddr::V4(a) => attribute(&mut out, libc::NDA_DST, &a.octets()),
        IpAddr::V6(a) => attribute(&mut out, libc::NDA_DST, &a.octets()),
    }
    if care == Care::Keep {
        attribute(&mut out, NDA_FLAGS_EXT, &NTF_EXT_MANAGED.to_ne_bytes());
    }
    finish(&mut out);
    out
}
