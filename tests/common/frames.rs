//! Random frames that are nearly right, of the kinds that rules speak of.

#![allow(dead_code)]

use crate::{
    common::{host_mac, port_mac},
    packets::{checksum, ethernet},
};

/// Numbers that look random (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

const ADDRESSES4: &[[u8; 4]] = &[
    [192, 0, 2, 7],
    [198, 51, 100, 3],
    [198, 51, 100, 128],
    [203, 0, 113, 5],
    [203, 0, 113, 200],
    [10, 0, 0, 9],
    [10, 0, 0, 1],
    [10, 0, 1, 1],
    [10, 0, 1, 77],
    [10, 0, 0, 255],
    [10, 0, 1, 255],
    [10, 0, 1, 0],
    [10, 9, 0, 0],
    [10, 9, 0, 1],
    [10, 9, 1, 1],
    [0, 0, 0, 0],
    [0, 1, 2, 3],
    [127, 0, 0, 1],
    [169, 254, 1, 1],
    [224, 0, 0, 5],
    [239, 1, 1, 1],
    [240, 0, 0, 1],
    [255, 255, 255, 255],
    [8, 1, 1, 1],
    [8, 2, 2, 2],
    [8, 3, 3, 3],
    [8, 4, 4, 4],
    [8, 8, 8, 8],
];

const ADDRESSES6: &[&str] = &[
    "2001:db8:beef::7",
    "2001:db8:cafe::3",
    "2001:db8:cafe::128",
    "2001:db8:dead::5",
    "2001:db8:dead:1::5",
    "2001:db8:0::9",
    "2001:db8:0::1",
    "2001:db8:1::1",
    "2001:db8:1::77",
    "2001:db8:0::",
    "::",
    "::1",
    "::5",
    "::ffff:192.0.2.7",
    "fe80::9",
    "fe80::0:1",
    "fe80::1:1",
    "febf::1",
    "fec0::1",
    "fd00::1",
    "ff00::1",
    "ff01::1",
    "ff02::1",
    "ff05::2",
    "ff0e::9",
    "3fff:1::1",
    "3fff:2::1",
    "3fff:3::1",
    "3fff:4::1",
    "3fff:8::1",
];

const OPTIONS: &[&[u8]] = &[
    &[1, 1, 1, 1],
    &[0, 0, 0, 0],
    &[148, 4, 0, 0],
    &[131, 7, 4, 10, 0, 0, 1, 0],
    &[137, 3, 4, 0],
    &[7, 7, 4, 0, 0, 0, 0, 0],
    &[7, 11, 8, 1, 2, 3, 4, 0, 0, 0, 0, 148, 4, 0, 0, 1],
    &[7, 3, 4, 0],
    &[7, 7, 3, 0],
    &[68, 8, 5, 0, 0, 0, 0, 0],
    &[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    &[68, 12, 5, 3, 10, 0, 1, 1, 0, 0, 0, 0],
    &[68, 8, 9, 0x70, 0, 0, 0, 0],
    &[68, 4, 5, 0xf0],
    &[130, 5, 1, 2, 3, 7, 7, 4, 0, 0, 0, 0],
    &[148, 1, 0, 0],
];

/// A frame that is nearly right, of one of the kinds that rules speak of.
pub fn frame(random: &mut Random, port: usize) -> Vec<u8> {
    let six = random.one_in(3);
    let mut packet = if six { packet6(random) } else { packet4(random) };
    if random.one_in(4) {
        spoil(random, &mut packet);
    }
    let to = match random.below(24) {
        0 => [0xff; 6],
        1 => [1, 0, 0x5e, 0, 0, 5],
        2 => [0x33, 0x33, 0, 0, 0, 1],
        3 => port_mac(1 - port),
        _ => port_mac(port),
    };
    let from = if random.one_in(20) { [0xff; 6] } else { host_mac(port, random.below(4) as u8) };
    let ethertype = match random.below(40) {
        0 => *random.of(&[0x0806, 0x8100, 0x88a8, 0x88cc, 0x0800, 0x86dd, 0, 46]),
        _ if six => 0x86dd,
        _ => 0x0800,
    };
    let mut frame = ethernet(to, from, ethertype, &packet);
    match random.below(16) {
        0 => frame.truncate(1 + random.below(frame.len())),
        1 | 2 => frame.resize((frame.len() + random.below(40)).min(1514), 0x5a),
        _ => {}
    }
    frame
}

fn length(random: &mut Random) -> usize {
    match random.below(8) {
        0 => random.below(8),
        1 => 520 + random.below(80),
        2 => 1180 + random.below(80),
        3 => 1400 + random.below(15),
        _ => random.below(200),
    }
}

fn packet4(random: &mut Random) -> Vec<u8> {
    let options = match random.below(6) {
        0 => random.of(OPTIONS).to_vec(),
        1 if random.one_in(2) => {
            let words = random.below(11);
            random.bytes(4 * words)
        }
        _ => Vec::new(),
    };
    let header = 20 + options.len();
    let len = length(random);
    let mut payload = random.bytes(len);
    let protocol = *random.of(&[1, 6, 17, 17, 17, 41, 255]);
    if let (1, Some(kind)) = (protocol, payload.first_mut()) {
        *kind = *random.of(&[0, 3, 4, 5, 8, 8, 11, 12, 13, 40, 42]);
    }
    let flags: u16 = match random.below(6) {
        0 => 0x4000,
        1 => 0x2000 | random.below(0x2000) as u16,
        2 => random.below(0x10000) as u16,
        _ => 0,
    };
    let total = (header + payload.len()) as u16;
    let mut packet = vec![0x40 | (header / 4) as u8, random.next() as u8];
    packet.extend(total.to_be_bytes());
    packet.extend(random.bytes(2));
    packet.extend(flags.to_be_bytes());
    packet.extend([*random.of(&[0, 1, 2, 64, 64, 64, 255]), protocol, 0, 0]);
    packet.extend(if random.one_in(3) { *random.of(ADDRESSES4) } else { [192, 0, 2, random.next() as u8] });
    packet.extend(random.of(ADDRESSES4));
    packet.extend(options);
    repair(&mut packet);
    packet.extend(payload);
    packet
}

/// Makes the header's checksum right, as far as there is a header.
pub fn repair(packet: &mut [u8]) {
    let header = (usize::from(packet[0] & 15) * 4).min(packet.len());
    if header >= 20 {
        packet[10..12].fill(0);
        let sum = checksum(&packet[..header]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

fn packet6(random: &mut Random) -> Vec<u8> {
    let next = *random.of(&[0, 6, 17, 17, 43, 44, 51, 58, 58, 59, 60, 135, 200]);
    let len = length(random);
    let mut payload = random.bytes(len);
    for (at, byte) in payload.iter_mut().enumerate().take(24).filter(|(at, _)| at % 8 < 2) {
        *byte = match (next, at % 8) {
            (58, 0) => *random.of(&[1, 2, 3, 4, 128, 129, 135, 137, 200]),
            (_, 0) => *random.of(&[17, 43, 44, 51, 58, 60]),
            _ => random.below(3) as u8,
        };
    }
    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut packet = random.bytes(4);
    packet[0] = 0x60 | packet[0] & 15;
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, *random.of(&[0, 1, 2, 64, 64, 64, 255])]);
    packet.extend(address(if random.one_in(2) { random.of::<&str>(ADDRESSES6) } else { "2001:db8:beef::7" }));
    packet.extend(address(random.of::<&str>(ADDRESSES6)));
    packet.extend(payload);
    packet
}

/// Changes some bytes, mostly of the header; then mostly repairs the checksum.
fn spoil(random: &mut Random, packet: &mut [u8]) {
    for _ in 0..1 + random.below(3) {
        let at =
            if random.one_in(4) { random.below(packet.len()) } else { random.below(packet.len().min(24)) };
        packet[at] = if random.one_in(2) { packet[at] ^ 1 << random.below(8) } else { random.next() as u8 };
    }
    if packet.len() >= 20 && packet[0] >> 4 == 4 && !random.one_in(4) {
        repair(packet);
    }
}

/// A number from the environment.
pub fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}
