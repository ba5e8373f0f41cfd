//! Stage 1, parse: is this a plain packet, to be forwarded and nothing else?
//!
//! Plain is what the fast path can forward without a further thought: for our MAC address, whole,
//! with a right header, time to live, and a source that may be forwarded. All else is *odd* and
//! takes the careful path, which knows every rule and gives the verdict.

use netmap::Frame;

use super::burst::{Burst, Lane};
use crate::{
    tables::{PortTable, Tables},
    wire::ipv4,
};

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;

/// EtherType IPv4, version 4, header length 5, as a little-endian word over bytes 12 to 14.
const PLAIN_IPV4: u32 = 0x45_00_08;
/// EtherType IPv6 and version 6 (high four bits of byte 14), likewise.
const PLAIN_IPV6: u32 = 0x60_dd_86;

/// Whether the first octets of an IPv4 source do not rule it out: 0, 127, 224 and above (RFC 1812
/// 5.3.7), 169.254 (RFC 3927 2.7).
#[inline(always)]
fn may_be_source4(source: u32) -> bool {
    let first = source >> 24;
    (first.wrapping_sub(1) < 223) & (first != 127) & (source >> 16 != 0xa9fe)
}

/// Whether the upper 16 bits of an IPv6 source rule it out: unspecified, loopback and other ::/16
/// addresses are left to the careful path, as are fe80::/10 and ff00::/8.
#[inline(always)]
fn may_be_source6(upper: u16) -> bool {
    (upper != 0) & (upper & 0xffc0 != 0xfe80) & (upper < 0xff00)
}

/// Sorts the burst's packets, with `SOME` only those that [`Untagged`](super::burst::Untagged) says
/// are to be seen now, into plain IPv4, plain IPv6 and odd, takes the plain ones'
/// destinations, and prefetches the first word that their lookups will read. Gives the bytes
/// received, without FCS.
#[inline(always)]
pub fn parse<const SOME: bool>(burst: &mut Burst, port: &PortTable, tables: &Tables) -> u64 {
    let mut mac = [0; 8];
    mac[..6].copy_from_slice(&port.mac);
    let mac = u64::from_le_bytes(mac);
    let mut bytes = 0;
    let only = burst.untagged.only;
    let (frames, v4, v6, odd) = burst.parts();
    for (at, frame) in frames.iter_mut().enumerate() {
        if SOME && only >> (at % 64) & 1 == 0 {
            continue;
        }
        bytes += u64::from(frame.len());
        let Some(kind) = kind(frame, mac) else {
            odd.push(at);
            continue;
        };
        let plain = if kind & 0xff_ff_ff == PLAIN_IPV4 {
            plain4(at, *frame, v4, tables)
        } else if kind & 0xf0_ff_ff == PLAIN_IPV6 {
            plain6(at, *frame, v6, tables)
        } else {
            false
        };
        if !plain {
            odd.push(at);
        }
    }
    bytes
}

/// Bytes 12 to 15 of a frame for our MAC address that is long enough for IPv4, little-endian.
#[inline(always)]
fn kind(frame: &mut Frame, mac: u64) -> Option<u32> {
    let head = frame.first::<{ ETHERNET + IPV4 }>()?;
    let ours = u64::from_le_bytes(chunk(head, 0)) << 16 == mac << 16;
    ours.then(|| u32::from_le_bytes(chunk(head, 12)))
}

/// Takes an IPv4 packet into the lane, if it is plain.
#[inline(always)]
fn plain4(at: usize, mut frame: Frame, lane: &mut Lane<u32>, tables: &Tables) -> bool {
    let len = frame.len();
    let Some(head) = frame.first::<{ ETHERNET + IPV4 }>() else { return false };
    let ip: &[u8; IPV4] = head[ETHERNET..].try_into().expect("34 - 14 = 20");
    let total = u16::from_be_bytes(chunk(ip, 2));
    let source = u32::from_be_bytes(chunk(ip, 12));
    let plain = (total >= IPV4 as u16)
        & (u32::from(total) + ETHERNET as u32 <= len)
        & (ip[8] > 1)
        & may_be_source4(source)
        & !tables.local.may_contain4(source)
        & ipv4::header_sum_ok(ip);
    if plain {
        let destination = u32::from_be_bytes(chunk(ip, 16));
        tables.fib4.prefetch_dir(destination);
        lane.push(at, frame, destination, total);
    }
    plain
}

/// Takes an IPv6 packet into the lane, if it is plain.
#[inline(always)]
fn plain6(at: usize, mut frame: Frame, lane: &mut Lane<u128>, tables: &Tables) -> bool {
    let len = frame.len();
    let Some(head) = frame.first::<{ ETHERNET + IPV6 }>() else { return false };
    let total = u32::from(u16::from_be_bytes(chunk(head, 18))) + IPV6 as u32;
    let source = u128::from_be_bytes(chunk(head, 22));
    let plain = (total + ETHERNET as u32 <= len)
        & (head[21] > 1)
        & may_be_source6((source >> 112) as u16)
        & !tables.local.may_contain6(source);
    if plain {
        let destination = u128::from_be_bytes(chunk(head, 38));
        tables.fib6.prefetch_dir(destination);
        lane.push(at, frame, destination, total as u16);
    }
    plain
}

/// The `N` bytes at `at`.
#[inline(always)]
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the length is N")
}
