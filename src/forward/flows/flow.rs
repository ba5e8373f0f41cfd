//! A flow: the record of 64 bytes, and the keys under which it is found.
//!
//! A flow's own key is symmetric: both directions give the same one. A flow that is translated has
//! a second key, by which it is known outside; its own is then that of the inside.

use std::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::FromBytes;

use super::{hash::Secret, tcp};
use crate::{
    tables::Timeouts,
    wire::ipv4::{ICMP, TCP, UDP},
};

/// In the first word of a key: an IPv6 flow.
const IPV6: u32 = 1 << 8;
/// In the first word of a key: the flow as it is known outside.
const OUTSIDE: u32 = 1 << 9;

/// Which way a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// As the flow's first packet.
    Forth,
    /// Against it.
    Back,
}

/// What a flow is found by.
pub trait Key: Copy {
    /// Its hash.
    fn hash(&self, secret: &Secret) -> u32;
    /// Whether it is this flow's.
    fn is_of(&self, flow: &Flow) -> bool;
}

/// A key that a flow is made from: its own.
pub trait OwnKey: Key {
    /// Writes the key into a new flow.
    fn write(&self, flow: &mut Flow);
}

/// The own key of an IPv4 flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Key4([u32; 4]);

/// The own key of an IPv6 flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Key6([u32; 10]);

/// The key by which a translated flow is known outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OutsideKey([u32; 4]);

/// An end of an IPv4 flow: address and port in host order. For ICMP queries the identifier stands
/// for both ports, for protocols without ports 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct End4 {
    /// The address.
    pub address: u32,
    /// The port.
    pub port: u16,
}

impl End4 {
    /// An end.
    pub const fn new(address: u32, port: u16) -> Self {
        Self { address, port }
    }
}

impl std::fmt::Display for End4 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", Ipv4Addr::from(self.address), self.port)
    }
}

#[inline(always)]
fn pair(one: u16, other: u16) -> u32 {
    u32::from(one) << 16 | u32::from(other)
}

impl Key4 {
    /// The key of a packet's flow, and whether its source is the higher of the two ends, which
    /// tells the direction.
    #[inline(always)]
    pub fn new(protocol: u8, source: End4, destination: End4) -> (Self, bool) {
        let number = |end: End4| u64::from(end.address) << 16 | u64::from(end.port);
        let swapped = number(source) > number(destination);
        let (low, high) = if swapped { (destination, source) } else { (source, destination) };
        (Self([protocol.into(), pair(low.port, high.port), low.address, high.address]), swapped)
    }
}

impl Key for Key4 {
    #[inline(always)]
    fn hash(&self, secret: &Secret) -> u32 {
        secret.hash(&self.0)
    }

    #[inline(always)]
    fn is_of(&self, flow: &Flow) -> bool {
        self.0 == flow.key
    }
}

impl OwnKey for Key4 {
    fn write(&self, flow: &mut Flow) {
        flow.key = self.0;
    }
}

impl Key6 {
    /// The key of a packet's flow, and whether its source is the higher of the two ends. Addresses
    /// in host order.
    #[inline(always)]
    pub fn new(protocol: u8, source: (u128, u16), destination: (u128, u16)) -> (Self, bool) {
        let swapped = source > destination;
        let ((low, low_port), (high, high_port)) =
            if swapped { (destination, source) } else { (source, destination) };
        let word = |address: u128, k: u32| (address >> (32 * k)) as u32;
        let key = Self([
            u32::from(protocol) | IPV6,
            pair(low_port, high_port),
            word(low, 0),
            word(high, 0),
            word(low, 1),
            word(low, 2),
            word(low, 3),
            word(high, 1),
            word(high, 2),
            word(high, 3),
        ]);
        (key, swapped)
    }
}

impl Key for Key6 {
    #[inline(always)]
    fn hash(&self, secret: &Secret) -> u32 {
        secret.hash(&self.0)
    }

    #[inline(always)]
    fn is_of(&self, flow: &Flow) -> bool {
        self.0[..4] == flow.key && self.0[4..] == flow.rest
    }
}

impl OwnKey for Key6 {
    fn write(&self, flow: &mut Flow) {
        flow.key.copy_from_slice(&self.0[..4]);
        flow.rest.copy_from_slice(&self.0[4..]);
    }
}

impl OutsideKey {
    /// The key of a flow whose inside end is `external` to the world and which leads to `remote`.
    #[inline(always)]
    pub fn new(protocol: u8, external: End4, remote: End4) -> Self {
        let ports = pair(external.port, remote.port);
        Self([u32::from(protocol) | OUTSIDE, ports, external.address, remote.address])
    }
}

impl Key for OutsideKey {
    #[inline(always)]
    fn hash(&self, secret: &Secret) -> u32 {
        secret.hash(&self.0)
    }

    #[inline(always)]
    fn is_of(&self, flow: &Flow) -> bool {
        let [kind, ports, external, remote] = self.0;
        flow.is_translated() && kind == flow.key[0] | OUTSIDE && [external, ports, remote] == flow.rest[..3]
    }
}

/// How a translated flow is known outside, and what belongs to that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Translation {
    /// The inside end, as the world sees it.
    pub external: End4,
    /// The other end.
    pub remote: End4,
    /// The mapping that it belongs to, by its owner's count; 0 for none.
    pub mapping: u32,
    /// The port that leads outside.
    pub out: u16,
    /// The rule that it is translated by.
    pub rule: u16,
}

/// A flow's record: one cache line.
#[derive(Clone, Copy, FromBytes, Debug)]
#[repr(C, align(64))]
pub struct Flow {
    /// Protocol and family; ports of the lower and the higher end; the lowest words of both
    /// addresses.
    key: [u32; 4],
    /// IPv6: the upper words of both addresses. IPv4: [`Translation`].
    rest: [u32; 6],
    /// When it was last refreshed, by the loop's clock, in milliseconds.
    pub seen: u32,
    /// The next in the same list (of the wheel, or of free records).
    pub(super) next: u32,
    /// The generation of the rules by which it was judged, for the filter.
    pub judged: u32,
    /// The generation of the rules by which it is translated.
    pub translated_by: u32,
    /// What has been seen of it: for TCP, see [`tcp`]; else [`ANSWERED`] once both sides have sent.
    pub state: u8,
    flags: u8,
    /// The filter's own.
    pub mark: u16,
    /// The filter's own.
    pub note: u32,
}

const _: () = assert!(size_of::<Flow>() == 64);

/// In [`Flow::state`] of a flow that is not TCP: both sides have sent.
pub const ANSWERED: u8 = 1;

/// In `flags`: the end that began is the higher one.
const BEGUN_BY_HIGHER: u8 = 1;
/// In `flags`: has an [`OutsideKey`] as well.
const TRANSLATED: u8 = 2;
/// In `flags`: found through the index.
const LIVE: u8 = 4;

impl Flow {
    /// A record that was used before and is free now.
    pub(super) const fn free(next: u32) -> Self {
        Self { next, ..Self::EMPTY }
    }

    /// A live record without a key.
    pub(super) const fn begun(now: u32) -> Self {
        Self { seen: now, flags: LIVE, ..Self::EMPTY }
    }

    /// A record that is nobody's.
    pub(super) const EMPTY: Self = Self {
        key: [0; 4],
        rest: [0; 6],
        seen: 0,
        next: 0,
        judged: 0,
        translated_by: 0,
        state: 0,
        flags: 0,
        mark: 0,
        note: 0,
    };

    /// The protocol's number.
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        self.key[0] as u8
    }

    /// Whether it is IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.key[0] & IPV6 != 0
    }

    /// Whether it is translated.
    #[inline(always)]
    pub fn is_translated(&self) -> bool {
        self.flags & TRANSLATED != 0
    }

    /// Whether the record is that of a flow which has not ended.
    #[inline(always)]
    pub(super) fn is_live(&self) -> bool {
        self.flags & LIVE != 0
    }

    pub(super) fn set_live(&mut self, live: bool) {
        self.flags = self.flags & !LIVE | (u8::from(live) * LIVE);
    }

    pub(super) fn set_begun_by_higher(&mut self, higher: bool) {
        self.flags = self.flags & !BEGUN_BY_HIGHER | (u8::from(higher) * BEGUN_BY_HIGHER);
    }

    /// The direction of a packet whose key came with this `swapped`.
    #[inline(always)]
    pub fn direction(&self, swapped: bool) -> Direction {
        if (self.flags & BEGUN_BY_HIGHER != 0) == swapped { Direction::Forth } else { Direction::Back }
    }

    /// The IPv4 ends, the one that began first.
    #[inline(always)]
    pub fn ends4(&self) -> (End4, End4) {
        let low = End4::new(self.key[2], (self.key[1] >> 16) as u16);
        let high = End4::new(self.key[3], self.key[1] as u16);
        if self.flags & BEGUN_BY_HIGHER != 0 { (high, low) } else { (low, high) }
    }

    /// The IPv6 ends, the one that began first.
    pub fn ends6(&self) -> ((Ipv6Addr, u16), (Ipv6Addr, u16)) {
        let address = |low: u32, rest: &[u32]| {
            let upper = rest.iter().rev().fold(0u128, |n, word| n << 32 | u128::from(*word));
            Ipv6Addr::from(upper << 32 | u128::from(low))
        };
        let low = (address(self.key[2], &self.rest[..3]), (self.key[1] >> 16) as u16);
        let high = (address(self.key[3], &self.rest[3..]), self.key[1] as u16);
        if self.flags & BEGUN_BY_HIGHER != 0 { (high, low) } else { (low, high) }
    }

    /// The end inside of a translated flow: the one that is not remote.
    #[inline(always)]
    pub fn inside(&self) -> End4 {
        let (low, high) = (self.key[2], self.key[3]);
        let (low_port, high_port) = ((self.key[1] >> 16) as u16, self.key[1] as u16);
        // The remote end is one of the two, and the other is what is asked for.
        let remote = (self.rest[2], self.rest[1] as u16);
        if (low, low_port) == remote { End4::new(high, high_port) } else { End4::new(low, low_port) }
    }

    /// How a translated flow is known outside.
    #[inline(always)]
    pub fn translation(&self) -> Translation {
        let [address, ports, remote, mapping, rest, _] = self.rest;
        Translation {
            external: End4::new(address, (ports >> 16) as u16),
            remote: End4::new(remote, ports as u16),
            mapping,
            out: (rest >> 16) as u16,
            rule: rest as u16,
        }
    }

    pub(super) fn set_translation(&mut self, translation: &Translation) {
        let Translation { external, remote, mapping, out, rule } = *translation;
        self.rest =
            [external.address, pair(external.port, remote.port), remote.address, mapping, pair(out, rule), 0];
        self.flags |= TRANSLATED;
    }

    /// Changes the rule that a translated flow is translated by.
    pub fn set_rule(&mut self, rule: u16) {
        self.rest[4] = self.rest[4] & 0xffff_0000 | u32::from(rule);
    }

    /// Notes a packet; `tcp_flags` are those of the TCP header, 0 for other protocols.
    #[inline(always)]
    pub fn note_packet(&mut self, direction: Direction, tcp_flags: u8) {
        let is_tcp = self.key[0] as u8 == TCP;
        self.state = if is_tcp {
            tcp::after(self.state, direction, tcp_flags)
        } else {
            self.state | (u8::from(direction == Direction::Back) * ANSWERED)
        };
    }

    /// Whether both sides have sent: what a filter calls established.
    pub fn is_answered(&self) -> bool {
        if self.protocol() == TCP { tcp::is_answered(self.state) } else { self.state & ANSWERED != 0 }
    }

    /// How long it outlives its last packet, in milliseconds.
    #[inline]
    pub fn timeout(&self, timeouts: &Timeouts) -> u32 {
        match self.protocol() {
            UDP => timeouts.udp,
            TCP if tcp::is_established(self.state) => timeouts.tcp,
            TCP => timeouts.tcp_transitory,
            ICMP | 58 => timeouts.icmp,
            _ => timeouts.other,
        }
    }

    /// The hash of its own key, and of the outside one if it has that.
    pub(super) fn hashes(&self, secret: &Secret) -> (u32, Option<u32>) {
        if self.is_ipv6() {
            let mut words = [0; 10];
            words[..4].copy_from_slice(&self.key);
            words[4..].copy_from_slice(&self.rest);
            return (secret.hash(&words), None);
        }
        let outside = self.is_translated().then(|| {
            let t = self.translation();
            OutsideKey::new(self.protocol(), t.external, t.remote).hash(secret)
        });
        (secret.hash(&self.key), outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: End4 = End4::new(0x0a00_0001, 4000);
    const OTHER: End4 = End4::new(0xc633_6401, 80);

    #[test]
    fn both_directions_have_one_key_and_are_told_apart() {
        for (a, b) in [(ONE, OTHER), (OTHER, ONE), (ONE, End4::new(ONE.address, 4001))] {
            let ((forth, swapped), (back, swapped_back)) = (Key4::new(6, a, b), Key4::new(6, b, a));
            assert_eq!(forth, back);
            let mut flow = Flow::EMPTY;
            forth.write(&mut flow);
            flow.set_begun_by_higher(swapped);
            assert_eq!(flow.ends4(), (a, b));
            assert_eq!(flow.direction(swapped), Direction::Forth);
            assert_eq!(flow.direction(swapped_back), Direction::Back);
        }
        let six = |last: u128, port| ((0x2001_0db8u128 << 96) + last, port);
        let ((forth, swapped), (back, _)) =
            (Key6::new(6, six(7, 1), six(9, 2)), Key6::new(6, six(9, 2), six(7, 1)));
        assert_eq!(forth, back);
        let mut flow = Flow::EMPTY;
        forth.write(&mut flow);
        flow.set_begun_by_higher(swapped);
        assert!(forth.is_of(&flow));
        assert_eq!(flow.ends6(), (("2001:db8::7".parse().unwrap(), 1), ("2001:db8::9".parse().unwrap(), 2)));
    }

    #[test]
    fn a_translated_flow_is_known_by_its_outside_key_too() {
        let external = End4::new(0xcb00_7101, 30000);
        for (inside, remote) in [(ONE, OTHER), (OTHER, ONE)] {
            let (key, swapped) = Key4::new(17, inside, remote);
            let mut flow = Flow::EMPTY;
            key.write(&mut flow);
            flow.set_begun_by_higher(swapped);
            let outside = OutsideKey::new(17, external, remote);
            assert!(!outside.is_of(&flow));
            let translation = Translation { external, remote, mapping: 5, out: 1, rule: 2 };
            flow.set_translation(&translation);
            assert!(outside.is_of(&flow) && key.is_of(&flow));
            assert_eq!((flow.translation(), flow.inside()), (translation, inside));
            assert!(!OutsideKey::new(6, external, remote).is_of(&flow));
            let secret = Secret::from_seed(1);
            assert_eq!(flow.hashes(&secret), (key.hash(&secret), Some(outside.hash(&secret))));
        }
    }
}
