//! The socket addresses that follow a routing message's header: which are there, how long each
//! is, and what it says. Lengths are the sender's word: nothing is read beyond the message.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Malformed, Parsed, u8_at, u16_at, u32_at};
use crate::control::kernel::Index;

// sys/socket.h: FreeBSD's numbers, not the compiling system's.
pub const INET: u8 = 2;
pub const LINK: u8 = 18;
pub const INET6: u8 = 28;

/// Addresses that a message can have (`RTAX_MAX`).
const MOST: usize = 8;
/// Each takes a multiple of this many bytes (`sizeof(long)`).
const STEP: usize = 8;
/// Where the address begins in a `sockaddr_in` and a `sockaddr_in6`.
const IN_ADDRESS: usize = 4;
const IN6_ADDRESS: usize = 8;
/// Where a `sockaddr_in6` keeps the interface of a link-local address.
const IN6_SCOPE: usize = 24;
/// Where the name begins in a `sockaddr_dl`; the link-layer address is behind it.
const DL_DATA: usize = 8;

/// Which address is which (`RTAX_...`).
#[derive(Clone, Copy, Debug)]
pub enum Which {
    Destination = 0,
    Gateway = 1,
    Netmask = 2,
    Interface = 4,
    Address = 5,
    Broadcast = 7,
}

/// The addresses of one message, each cut to its length.
#[derive(Default, Debug)]
pub struct SockAddrs<'a>([Option<&'a [u8]>; MOST]);

impl<'a> SockAddrs<'a> {
    /// Takes apart what follows the header; `present` has one bit for each address that is there.
    ///
    /// # Errors
    /// When an address is longer than what is left.
    pub fn parse(present: u32, mut bytes: &'a [u8]) -> Parsed<Self> {
        let mut found = Self::default();
        for (n, place) in found.0.iter_mut().enumerate() {
            // A message that ends early lacks the rest: route(8) sends such ones, too.
            if present & 1 << n == 0 || bytes.is_empty() {
                continue;
            }
            let len = usize::from(bytes[0]);
            *place = Some(bytes.get(..len).ok_or(Malformed)?);
            let size = len.max(1).next_multiple_of(STEP);
            bytes = bytes.get(size..).unwrap_or_default();
        }
        Ok(found)
    }

    /// The bytes of one of them.
    pub fn get(&self, which: Which) -> Option<&'a [u8]> {
        self.0[which as usize]
    }

    /// One of them as an IP address, with the interface of a link-local one; `None` if it is not
    /// there, or of another family.
    pub fn ip(&self, which: Which) -> Option<(IpAddr, Option<Index>)> {
        let bytes = self.get(which)?;
        match family(bytes)? {
            INET => Some((Ipv4Addr::from(padded(bytes, IN_ADDRESS)).into(), None)),
            INET6 => {
                let mut address: [u8; 16] = padded(bytes, IN6_ADDRESS);
                let scope = take_scope(&mut address);
                let scope = u32_at(bytes, IN6_SCOPE).ok().filter(|index| *index != 0).or(scope);
                Some((Ipv6Addr::from(address).into(), scope))
            }
            _ => None,
        }
    }

    /// The netmask's length in bits, for an address of the family of `address`; `None` if there
    /// is none.
    ///
    /// # Errors
    /// When the ones and zeros are mixed.
    pub fn prefix_len(&self, address: IpAddr) -> Parsed<Option<u8>> {
        // Its family may be missing, and its trailing zeros, too.
        let Some(bytes) = self.get(Which::Netmask) else { return Ok(None) };
        let (ones, contiguous) = if address.is_ipv4() {
            let mask = u32::from_be_bytes(padded(bytes, IN_ADDRESS));
            (mask.leading_ones(), mask.count_ones() == mask.leading_ones())
        } else {
            let mask = u128::from_be_bytes(padded(bytes, IN6_ADDRESS));
            (mask.leading_ones(), mask.count_ones() == mask.leading_ones())
        };
        if contiguous { Ok(Some(ones as u8)) } else { Err(Malformed) }
    }
}

/// The family of a socket address; `None` if it is empty.
pub fn family(bytes: &[u8]) -> Option<u8> {
    bytes.get(1).copied()
}

/// `N` bytes from `at` on; what lies beyond the end is zero.
fn padded<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    let there = bytes.get(at..).unwrap_or_default();
    let len = there.len().min(N);
    out[..len].copy_from_slice(&there[..len]);
    out
}

/// Takes the interface out of a link-local address that carries it in its second 16 bits, as the
/// kernel has it within.
fn take_scope(address: &mut [u8; 16]) -> Option<Index> {
    if address[0] != 0xfe || address[1] & 0xc0 != 0x80 {
        return None;
    }
    let scope = u16::from_be_bytes([address[2], address[3]]);
    address[2..4].fill(0);
    (scope != 0).then_some(Index::from(scope))
}

/// What a `sockaddr_dl` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkLayer<'a> {
    /// The interface; none if it does not say.
    pub index: Option<Index>,
    /// The interface's name; may be empty.
    pub name: &'a [u8],
    /// The link-layer address; may be empty.
    pub address: &'a [u8],
}

impl LinkLayer<'_> {
    /// The address, if it is an Ethernet's.
    pub fn mac(&self) -> Option<[u8; 6]> {
        self.address.try_into().ok()
    }
}

/// Reads a `sockaddr_dl`; `None` if it is an address of another family.
///
/// # Errors
/// When it is shorter than it says.
pub fn link_layer(bytes: &[u8]) -> Parsed<Option<LinkLayer<'_>>> {
    if family(bytes) != Some(LINK) {
        return Ok(None);
    }
    let index = Some(Index::from(u16_at(bytes, 2)?)).filter(|index| *index != 0);
    let (name_len, address_len) = (usize::from(u8_at(bytes, 5)?), usize::from(u8_at(bytes, 6)?));
    let (middle, end) = (DL_DATA + name_len, DL_DATA + name_len + address_len);
    let name = bytes.get(DL_DATA..middle).ok_or(Malformed)?;
    let address = bytes.get(middle..end).ok_or(Malformed)?;
    Ok(Some(LinkLayer { index, name, address }))
}
