//! The benchmark's packets: UDP of the least length, to destinations that the tables route.

use sweepd::{
    tables::{
        prefixes::{Prefixes, Prefixes4, Prefixes6},
        synthetic::{Random, Sample, addresses},
    },
    wire::ipv4,
};

use crate::rig::{FRAME, MAC};

/// A frame, in place: its bytes and how many of them count.
pub type Frame = ([u8; FRAME], u16);

/// A frame of each of `count` flows: random sources in 10/8, destinations inside random prefixes.
pub fn frames4(prefixes: &Prefixes4, count: usize, seed: u64) -> Vec<Frame> {
    let mut random = Random::new(seed);
    let destinations = destinations(prefixes, count, &mut random);
    frames_to(&destinations, &mut random)
}

/// A frame to each of these destinations (host order), from random sources in 10/8.
pub fn frames_to(destinations: &[u32], random: &mut Random) -> Vec<Frame> {
    let frame = |&to| frame4(0x0a00_0000 | random.below(1 << 24) as u32, to, random.bits() as u32);
    destinations.iter().map(frame).collect()
}

/// The same over IPv6, from sources in fd00::/8.
pub fn frames6(prefixes: &Prefixes6, count: usize, seed: u64) -> Vec<Frame> {
    let mut random = Random::new(seed);
    destinations(prefixes, count, &mut random)
        .into_iter()
        .map(|to| frame6(0xfd00_u128 << 112 | u128::from(random.bits()), to, random.bits() as u32))
        .collect()
}

fn destinations<A: Sample>(prefixes: &Prefixes<A>, count: usize, random: &mut Random) -> Vec<A> {
    addresses(prefixes, count, random)
}

/// A frame from and to these addresses, with these ports (source in the upper half).
pub fn frame4(source: u32, destination: u32, ports: u32) -> Frame {
    let mut f = [0; FRAME];
    f[..6].copy_from_slice(&MAC);
    f[6..12].copy_from_slice(&[2, 0, 0, 0, 9, 9]);
    f[12..24].copy_from_slice(&[0x08, 0x00, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    f[26..30].copy_from_slice(&source.to_be_bytes());
    f[30..34].copy_from_slice(&destination.to_be_bytes());
    f[34..38].copy_from_slice(&ports.to_be_bytes());
    f[39] = 26;
    ipv4::fill_checksum(&mut f[14..34]);
    (f, 60)
}

/// The same over IPv6.
pub fn frame6(source: u128, destination: u128, ports: u32) -> Frame {
    let mut f = [0; FRAME];
    f[..6].copy_from_slice(&MAC);
    f[6..12].copy_from_slice(&[2, 0, 0, 0, 9, 9]);
    f[12..22].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
    f[22..38].copy_from_slice(&source.to_be_bytes());
    f[38..54].copy_from_slice(&destination.to_be_bytes());
    f[54..58].copy_from_slice(&ports.to_be_bytes());
    f[59] = 8;
    (f, 62)
}

/// Gives an IPv4 frame its last hop, and another source.
pub fn expire(frame: &mut [u8; FRAME], source: [u8; 4]) {
    frame[22] = 1;
    frame[24..26].fill(0);
    frame[26..30].copy_from_slice(&source);
    ipv4::fill_checksum(&mut frame[14..34]);
}
