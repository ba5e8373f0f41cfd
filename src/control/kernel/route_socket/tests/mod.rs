//! Messages built byte by byte, as the kernel writes them, from offsets that are written out here
//! a second time.

mod events;
mod hostile;
mod messages;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Form, Message, message};

pub const ADD: u8 = 1;
pub const DELETE: u8 = 2;
pub const CHANGE: u8 = 3;
pub const GET: u8 = 4;
pub const REDIRECT: u8 = 6;
pub const NEWADDR: u8 = 0xc;
pub const DELADDR: u8 = 0xd;
pub const IFINFO: u8 = 0xe;
pub const IFANNOUNCE: u8 = 0x11;

pub const UP: u32 = 0x1;
pub const GATEWAY: u32 = 0x2;
pub const HOST: u32 = 0x4;
pub const REJECT: u32 = 0x8;
pub const DONE: u32 = 0x40;
pub const LLDATA: u32 = 0x400;
pub const STATIC: u32 = 0x800;
pub const BLACKHOLE: u32 = 0x1000;
pub const PROTO1: u32 = 0x8000;
pub const PINNED: u32 = 0x10_0000;

pub const DST: usize = 0;
pub const GW: usize = 1;
pub const MASK: usize = 2;
pub const IFP: usize = 4;
pub const IFA: usize = 5;
pub const BRD: usize = 7;

/// A message under construction.
#[derive(Clone)]
pub struct Build {
    pub bytes: Vec<u8>,
    addrs_at: usize,
    addrs: u32,
}

impl Build {
    /// A message of `kind` with a header of `len` zero bytes that has its address mask at
    /// `addrs_at`.
    fn new(kind: u8, len: usize, addrs_at: usize) -> Self {
        let mut bytes = vec![0; len];
        (bytes[2], bytes[3]) = (5, kind);
        Self { bytes, addrs_at, addrs: 0 }
    }

    /// struct rt_msghdr.
    pub fn route(kind: u8, index: u16, flags: u32) -> Self {
        Self::new(kind, 152, 12).put(4, &index.to_ne_bytes()).put(8, &flags.to_ne_bytes())
    }

    /// struct if_msghdr, with its if_data at 16.
    pub fn link_news(index: u16, flags: u32, state: u8, mtu: u32) -> Self {
        Self::new(IFINFO, 168, 4)
            .put(8, &flags.to_ne_bytes())
            .put(12, &index.to_ne_bytes())
            .put(16 + 4, &[state])
            .put(16 + 8, &mtu.to_ne_bytes())
    }

    /// struct if_msghdrl, with its if_data at 24.
    pub fn link_listed(index: u16, flags: u32, state: u8, mtu: u32) -> Self {
        Self::new(IFINFO, 176, 4)
            .put(8, &flags.to_ne_bytes())
            .put(12, &index.to_ne_bytes())
            .put(16, &176u16.to_ne_bytes())
            .put(18, &24u16.to_ne_bytes())
            .put(24 + 4, &[state])
            .put(24 + 8, &mtu.to_ne_bytes())
    }

    /// struct ifa_msghdr.
    pub fn address_news(kind: u8, index: u16) -> Self {
        Self::new(kind, 20, 4).put(12, &index.to_ne_bytes())
    }

    /// struct ifa_msghdrl.
    pub fn address_listed(index: u16) -> Self {
        Self::new(NEWADDR, 176, 4)
            .put(12, &index.to_ne_bytes())
            .put(16, &176u16.to_ne_bytes())
            .put(18, &24u16.to_ne_bytes())
    }

    /// struct if_announcemsghdr.
    pub fn announcement(index: u16, name: &str, what: u16) -> Vec<u8> {
        let built = Self::new(IFANNOUNCE, 24, 4).put(4, &index.to_ne_bytes());
        let mut bytes = built.put(6, name.as_bytes()).put(22, &what.to_ne_bytes()).bytes;
        bytes[..2].copy_from_slice(&24u16.to_ne_bytes());
        bytes
    }

    pub fn put(mut self, at: usize, value: &[u8]) -> Self {
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self
    }

    /// What a request's sender, and nobody else, fills in.
    pub fn asked_by(self, pid: u32) -> Self {
        self.put(16, &pid.to_ne_bytes())
    }

    /// rmx_weight, and its bit in rtm_inits.
    pub fn weight(self, weight: u64) -> Self {
        self.put(32, &0x100u64.to_ne_bytes()).put(120, &weight.to_ne_bytes())
    }

    /// Appends a socket address, filled up to 8 bytes.
    pub fn with(mut self, which: usize, address: &[u8]) -> Self {
        assert!(self.addrs >> which == 0, "in order");
        self.addrs |= 1 << which;
        self.bytes.extend_from_slice(address);
        let fill = if address[0] == 0 { 8 } else { usize::from(address[0]).next_multiple_of(8) };
        self.bytes.resize(self.bytes.len() + fill - address.len(), 0);
        self
    }

    pub fn done(mut self) -> Vec<u8> {
        let len = self.bytes.len() as u16;
        self.bytes[..2].copy_from_slice(&len.to_ne_bytes());
        let at = self.addrs_at;
        self.bytes[at..at + 4].copy_from_slice(&self.addrs.to_ne_bytes());
        self.bytes
    }
}

/// sockaddr_in, sockaddr_in6.
pub fn ip(address: &str) -> Vec<u8> {
    match address.parse::<IpAddr>().unwrap() {
        IpAddr::V4(a) => [&[16, 2, 0, 0][..], &a.octets(), &[0; 8]].concat(),
        IpAddr::V6(a) => scoped(a, 0),
    }
}

pub fn scoped(address: Ipv6Addr, scope: u32) -> Vec<u8> {
    [&[28, 28, 0, 0, 0, 0, 0, 0][..], &address.octets(), &scope.to_ne_bytes()].concat()
}

/// A whole netmask.
pub fn mask4(len: u32) -> Vec<u8> {
    ip(&Ipv4Addr::from(u32::MAX.checked_shl(32 - len).unwrap_or(0)).to_string())
}

pub fn mask6(len: u32) -> Vec<u8> {
    ip(&Ipv6Addr::from(u128::MAX.checked_shl(128 - len).unwrap_or(0)).to_string())
}

/// sockaddr_dl: index, name, link-layer address; 54 bytes, as in <net/if_dl.h>.
pub fn link(index: u16, name: &str, mac: &[u8]) -> Vec<u8> {
    let mut out = vec![54, 18];
    out.extend_from_slice(&index.to_ne_bytes());
    out.extend_from_slice(&[6, name.len() as u8, mac.len() as u8, 0]);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(mac);
    out.resize(54, 0);
    out
}

pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

pub fn news(bytes: &[u8]) -> Option<Message> {
    message(bytes, Form::News).unwrap()
}

pub fn listed(bytes: &[u8]) -> Option<Message> {
    message(bytes, Form::Listed).unwrap()
}
