//! Packets for tests, built byte by byte, independent of the code under test.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::{Ipv4Addr, Ipv6Addr};

/// The ones' complement sum of `bytes`, inverted: RFC 1071, the slow way.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An Ethernet frame.
pub fn ethernet(to: [u8; 6], from: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(14 + payload.len());
    frame.extend(to);
    frame.extend(from);
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An IPv4 packet to be built.
#[derive(Clone, Debug)]
pub struct Ip4 {
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    pub ttl: u8,
    pub tos: u8,
    pub id: u16,
    pub flags_offset: u16,
    pub protocol: u8,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Ip4 {
    /// A UDP datagram with `len` bytes of data.
    pub fn udp(source: &str, destination: &str, len: usize) -> Self {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        let mut payload = vec![0x10, 0x00, 0x20, 0x00];
        payload.extend(((8 + len) as u16).to_be_bytes());
        payload.extend([0, 0]);
        payload.extend((0..len).map(|i| i as u8));
        let sum = pseudo4(source, destination, 17, &payload);
        payload[6..8].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
        Self {
            source,
            destination,
            ttl: 64,
            tos: 0,
            id: 0x1234,
            flags_offset: 0,
            protocol: 17,
            options: vec![],
            payload,
        }
    }

    pub fn ttl(self, ttl: u8) -> Self {
        Self { ttl, ..self }
    }

    pub fn dont_fragment(self) -> Self {
        Self { flags_offset: 0x4000, ..self }
    }

    /// The packet's bytes.
    pub fn build(&self) -> Vec<u8> {
        assert!(self.options.len().is_multiple_of(4));
        let header = 20 + self.options.len();
        let mut p = vec![0x40 | (header / 4) as u8, self.tos];
        p.extend(((header + self.payload.len()) as u16).to_be_bytes());
        p.extend(self.id.to_be_bytes());
        p.extend(self.flags_offset.to_be_bytes());
        p.extend([self.ttl, self.protocol, 0, 0]);
        p.extend(self.source.octets());
        p.extend(self.destination.octets());
        p.extend(&self.options);
        let sum = checksum(&p);
        p[10..12].copy_from_slice(&sum.to_be_bytes());
        p.extend(&self.payload);
        p
    }
}

fn pseudo4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, payload: &[u8]) -> u16 {
    let mut all = Vec::new();
    all.extend(source.octets());
    all.extend(destination.octets());
    all.extend([0, protocol]);
    all.extend((payload.len() as u16).to_be_bytes());
    all.extend(payload);
    checksum(&all)
}

/// The checksum of an upper layer over IPv6.
pub fn pseudo6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, payload: &[u8]) -> u16 {
    let mut all = Vec::new();
    all.extend(source.octets());
    all.extend(destination.octets());
    all.extend((payload.len() as u32).to_be_bytes());
    all.extend([0, 0, 0, protocol]);
    all.extend(payload);
    checksum(&all)
}

/// An IPv6 packet with a UDP datagram of `len` bytes of data.
pub fn udp6(source: &str, destination: &str, hop_limit: u8, len: usize) -> Vec<u8> {
    let (source, destination): (Ipv6Addr, Ipv6Addr) = (source.parse().unwrap(), destination.parse().unwrap());
    let mut payload = vec![0x10, 0x00, 0x20, 0x00];
    payload.extend(((8 + len) as u16).to_be_bytes());
    payload.extend([0, 0]);
    payload.extend((0..len).map(|i| i as u8));
    let sum = pseudo6(source, destination, 17, &payload);
    payload[6..8].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
    ip6(source, destination, hop_limit, 17, &payload)
}

/// An IPv6 packet.
pub fn ip6(source: Ipv6Addr, destination: Ipv6Addr, hop_limit: u8, next: u8, payload: &[u8]) -> Vec<u8> {
    let mut p = vec![0x60, 0, 0, 0];
    p.extend((payload.len() as u16).to_be_bytes());
    p.extend([next, hop_limit]);
    p.extend(source.octets());
    p.extend(destination.octets());
    p.extend(payload);
    p
}
