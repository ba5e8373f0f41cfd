//! Routes set by rtnetlink messages of our own, many at once and each acknowledged: as fast as a
//! kernel takes them, and with known times. And random histories of them. The benchmark uses it too.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{io, net::IpAddr};

use ipnet::IpNet;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use sweepd::tables::synthetic::Random;

/// Changes in one system call.
pub const AT_ONCE: usize = 64;

const RTA_DST: u16 = 1;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTPROT_STATIC: u8 = 4;
const RTN_BLACKHOLE: u8 = 6;
/// Any scope, for what is removed.
const RT_SCOPE_NOWHERE: u8 = 255;

/// What becomes of a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// It is there, through these gateways or, without any, into a black hole; whatever was there
    /// of the same metric goes.
    Set(Vec<IpAddr>),
    /// It goes.
    Remove,
}

/// A change of one route.
#[derive(Clone, Debug)]
pub struct Change {
    pub to: IpNet,
    pub metric: u32,
    pub what: What,
}

/// The way to the kernel of the namespace in which it was opened.
pub struct Routes {
    socket: Socket,
    sequence: u32,
}

impl Routes {
    pub fn open() -> Self {
        let mut socket = Socket::new(NETLINK_ROUTE).unwrap();
        socket.bind_auto().unwrap();
        socket.connect(&SocketAddr::new(0, 0)).unwrap();
        // An error without the message that caused it: short acknowledgements, whatever is sent.
        socket.set_cap_ack(true).unwrap();
        Self { socket, sequence: 0 }
    }

    /// Has the kernel make these changes, in order; gives how many it made.
    pub fn change(&mut self, changes: &[Change]) -> usize {
        changes.chunks(AT_ONCE).map(|some| self.change_some(some).unwrap()).sum()
    }

    fn change_some(&mut self, changes: &[Change]) -> io::Result<usize> {
        let mut bytes = Vec::with_capacity(changes.len() * 80);
        for change in changes {
            self.sequence += 1;
            message(change, self.sequence, &mut bytes);
        }
        self.socket.send(&bytes, 0)?;
        let (mut answers, mut done) = (0, 0);
        while answers < changes.len() {
            let mut answer = Vec::with_capacity(8192);
            self.socket.recv(&mut answer, 0)?;
            let mut rest = &answer[..];
            while rest.len() >= 20 {
                let len = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
                answers += 1;
                done += usize::from(rest[16..20] == [0; 4]);
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            }
        }
        Ok(done)
    }
}

fn message(change: &Change, sequence: u32, out: &mut Vec<u8>) {
    let start = out.len();
    let (kind, flags, scope) = match change.what {
        What::Set(_) => (libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, 0),
        What::Remove => (libc::RTM_DELROUTE, 0, RT_SCOPE_NOWHERE),
    };
    let flags = (flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    out.extend([0; 4]);
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend(sequence.to_ne_bytes());
    out.extend([0; 4]);
    let family = if change.to.addr().is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let (protocol, kind) = match &change.what {
        What::Set(gateways) if gateways.is_empty() => (RTPROT_STATIC, RTN_BLACKHOLE),
        What::Set(_) => (RTPROT_STATIC, libc::RTN_UNICAST),
        What::Remove => (0, 0),
    };
    out.extend([family, change.to.prefix_len(), 0, 0, libc::RT_TABLE_MAIN, protocol, scope, kind]);
    out.extend([0; 4]);
    attribute(RTA_DST, &octets(change.to.network()), out);
    attribute(RTA_PRIORITY, &change.metric.to_ne_bytes(), out);
    match &change.what {
        What::Set(gateways) if gateways.len() > 1 => {
            let mut hops = Vec::new();
            for gateway in gateways {
                let mut hop = vec![0; 8];
                attribute(RTA_GATEWAY, &octets(*gateway), &mut hop);
                let len = (hop.len() as u16).to_ne_bytes();
                hop[..2].copy_from_slice(&len);
                hops.extend(hop);
            }
            attribute(RTA_MULTIPATH, &hops, out);
        }
        What::Set(gateways) => {
            gateways.iter().for_each(|gateway| attribute(RTA_GATEWAY, &octets(*gateway), out));
        }
        What::Remove => {}
    }
    let len = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&len.to_ne_bytes());
}

fn attribute(kind: u16, value: &[u8], out: &mut Vec<u8>) {
    out.extend((4 + value.len() as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

/// A random history of the routes to some prefixes: which change comes next, so that the kernel
/// has something to change.
pub struct History {
    random: Random,
    prefixes: Vec<IpNet>,
    gateways: [Vec<IpAddr>; 2],
    /// What is there, by prefix and metric.
    there: Vec<[Option<Vec<IpAddr>>; 2]>,
}

impl History {
    /// Of these prefixes; their routes lead through these gateways, IPv4's and IPv6's.
    pub fn new(seed: u64, prefixes: Vec<IpNet>, gateways: [Vec<IpAddr>; 2]) -> Self {
        let there = prefixes.iter().map(|_| Default::default()).collect();
        Self { random: Random::new(seed), prefixes, gateways, there }
    }

    /// The next change.
    pub fn next(&mut self) -> Change {
        let at = self.random.below(self.prefixes.len());
        let (to, rank) = (self.prefixes[at], self.random.below(2));
        let metric = 10 * (1 + rank as u32);
        let there = self.there[at][rank].clone();
        if there.is_some() && self.random.below(3) == 0 {
            self.there[at][rank] = None;
            return Change { to, metric, what: What::Remove };
        }
        let gateways = &self.gateways[usize::from(to.addr().is_ipv6())];
        loop {
            let ways = match self.random.below(8) {
                0 => Vec::new(),
                1 => {
                    let first = self.random.below(gateways.len());
                    vec![gateways[first], gateways[(first + 1) % gateways.len()]]
                }
                _ => vec![gateways[self.random.below(gateways.len())]],
            };
            if there.as_ref() != Some(&ways) {
                self.there[at][rank] = Some(ways.clone());
                return Change { to, metric, what: What::Set(ways) };
            }
        }
    }

    /// The gateways of the best route to `address`, none for a black hole.
    pub fn way(&self, address: IpAddr) -> Option<Vec<IpAddr>> {
        let there = self.prefixes.iter().zip(&self.there).filter(|(net, _)| net.contains(&address));
        let routes =
            there.filter_map(|(net, ranks)| Some((net.prefix_len(), ranks.iter().flatten().next()?)));
        routes.max_by_key(|(length, _)| *length).map(|(_, ways)| ways.clone())
    }
}
