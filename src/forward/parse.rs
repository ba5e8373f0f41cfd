//! Stage 1, parse: is this a plain packet, to be forwarded and nothing else?
//!
//! Plain is what the fast path can forward without a further thought: for our MAC address, whole,
//! with a right header, time to live, and a source that may be forwarded. All else is *odd* and
//! takes the careful path, which knows every rule and gives the verdict.

use super::burst::{BURST, Burst};
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

/// First octets that no source address may have: 0, 127, 224 and above (RFC 1812 5.3.7). Bit
/// `octet` of 256.
const MARTIAN_SOURCES: [u64; 4] = [1, 1 << 63, 0, 0xffff_ffff_0000_0000];

#[inline(always)]
fn may_be_source4(first_octet: u8) -> bool {
    MARTIAN_SOURCES[usize::from(first_octet >> 6)] >> (first_octet & 63) & 1 == 0
}

/// Whether the upper 16 bits of an IPv6 source rule it out: unspecified, loopback and other ::/16
/// addresses are left to the careful path, as are fe80::/10 and ff00::/8.
#[inline(always)]
fn may_be_source6(upper: u16) -> bool {
    upper != 0 && upper & 0xffc0 != 0xfe80 && upper < 0xff00
}

/// Sorts the burst's packets into plain IPv4, plain IPv6 and odd, takes the plain ones'
/// destinations, and prefetches the first word that their lookups will read. Gives the bytes
/// received, without FCS.
#[inline(always)]
pub fn parse(burst: &mut Burst, port: &PortTable, tables: &Tables) -> u64 {
    let mut mac = [0; 8];
    mac[..6].copy_from_slice(&port.mac);
    let mac = u64::from_le_bytes(mac);
    let mut bytes = 0;
    for i in 0..burst.len.min(BURST) {
        let frame = &mut burst.frame[i];
        let len = frame.len() as usize;
        bytes += len as u64;
        let Some(head) = frame.first::<{ ETHERNET + IPV4 }>() else {
            burst.odd.push(i);
            continue;
        };
        let destination_mac = u64::from_le_bytes(chunk(head, 0)) & 0xffff_ffff_ffff;
        let kind = u32::from_le_bytes(chunk(head, 12));
        let ours = destination_mac == mac;
        if ours & (kind & 0xff_ff_ff == PLAIN_IPV4) {
            let total = u16::from_be_bytes(chunk(head, 16));
            let ip: &[u8; IPV4] = head[ETHERNET..].try_into().expect("34 - 14 = 20");
            let plain = (total as usize >= IPV4)
                & (total as usize + ETHERNET <= len)
                & (ip[8] > 1)
                & may_be_source4(ip[12])
                & !tables.local.may_contain4(u32::from_be_bytes(chunk(ip, 12)))
                & ipv4::header_sum_ok(ip);
            if plain {
                let destination = u32::from_be_bytes(chunk(ip, 16));
                burst.destination4[i] = destination;
                burst.ip_len[i] = total;
                burst.v4.push(i);
                tables.fib4.prefetch_dir(destination);
                continue;
            }
        } else if ours & (kind & 0xf0_ff_ff == PLAIN_IPV6)
            && let Some(head) = frame.first::<{ ETHERNET + IPV6 }>()
        {
            let total = u16::from_be_bytes(chunk(head, 18)) as usize + IPV6;
            let plain = (total + ETHERNET <= len)
                & (head[21] > 1)
                & may_be_source6(u16::from_be_bytes(chunk(head, 22)))
                & !tables.local.may_contain6(u128::from_be_bytes(chunk(head, 22)));
            if plain {
                let destination = u128::from_be_bytes(chunk(head, 38));
                burst.destination6[burst.v6.len() % BURST] = destination;
                burst.ip_len[i] = total as u16;
                burst.v6.push(i);
                tables.fib6.prefetch_dir(destination);
                continue;
            }
        }
        burst.odd.push(i);
    }
    bytes
}

/// The `N` bytes at `at`.
#[inline(always)]
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the length is N")
}
