//! The gateway that the rules of translation are shown on: hosts inside behind port 0, the world
//! behind port 1, and workers that get the packets as it happens: every packet comes in by another
//! ring than the one before it, so that its flow is most often another worker's.

use std::net::Ipv4Addr;

use sweepd::{
    forward::verdict::Verdict,
    tables::{
        Timeouts,
        masquerade::{Forward, Log, Masquerade, Pair, Rule},
    },
};

use crate::common::{PortSpec, Tube, host_mac, port_mac};
use crate::packets::{Ip4, checksum, ethernet};

/// The gateway's address outside, which all share.
pub const FRONT: &str = "203.0.113.1";
/// Hosts inside.
pub const A: &str = "10.0.0.7";
pub const B: &str = "10.0.0.8";
/// Hosts outside.
pub const X: &str = "198.51.100.3";
pub const Y: &str = "198.51.100.4";

/// TCP flags.
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// What a packet says: protocol, source, destination, TCP flags.
pub type Said = (u8, (String, u16), (String, u16), u8);

/// A gateway with some workers.
pub struct Gateway {
    pub tube: Tube,
    pub workers: usize,
    turn: usize,
    version: u32,
}

/// The rule that everything begins with.
pub fn rule() -> Rule {
    Rule {
        out: 1,
        from: vec!["10.0.0.0/8".parse().unwrap()],
        to: vec![FRONT.parse().unwrap()],
        first: 1024,
        last: 32767,
        timeouts: Timeouts::default(),
        open: false,
        inbound_refresh: false,
        quota: 0,
        log: Log::Nothing,
    }
}

/// Runs a test with 1, 2 and 4 workers.
pub fn with_workers(test: impl Fn(&mut Gateway)) {
    for workers in [1, 2, 4] {
        println!("{workers} workers");
        let mut gateway = Gateway::new(workers);
        test(&mut gateway);
        gateway.tube.check();
    }
}

impl Gateway {
    pub fn new(workers: usize) -> Self {
        let rings = workers as u32;
        let lan = PortSpec::new(&["10.0.0.1/24"]).rings(rings);
        let wan = PortSpec::new(&["203.0.113.1/24"]).rings(rings);
        let mut tube = Tube::new(&[lan, wan], workers);
        let (inside, outside) = (tube.routes.hop(0, 9, 1500), tube.routes.hop(1, 9, 1500));
        tube.routes.add("10.0.0.0/8", inside);
        tube.routes.add("10.0.0.0/24", inside);
        tube.routes.add("0.0.0.0/0", outside);
        tube.routes.add("203.0.113.0/24", outside);
        let mut gateway = Self { tube, workers, turn: 0, version: 0 };
        gateway.rules(vec![rule()], Vec::new(), Vec::new());
        gateway
    }

    /// Puts other rules in force.
    pub fn rules(&mut self, rules: Vec<Rule>, forwards: Vec<Forward>, pairs: Vec<Pair>) {
        self.version += 1;
        let mut masquerade = Masquerade::new(rules, forwards, pairs);
        masquerade.version = self.version;
        self.tube.routes.masquerade = masquerade;
        self.tube.publish();
    }

    /// Changes the one rule.
    pub fn change(&mut self, change: impl FnOnce(&mut Rule)) {
        let mut rule = rule();
        change(&mut rule);
        self.rules(vec![rule], Vec::new(), Vec::new());
    }

    /// Forwards a port in front to a host inside.
    pub fn forward(&mut self, protocol: u8, port: u16, to: &str, to_port: u16) {
        let forward = Forward { out: 1, protocol, port, to: to.parse().unwrap(), to_port };
        self.rules(vec![rule()], vec![forward], Vec::new());
    }

    /// Sends an IP packet in at `port`, by the next ring; gives what comes out.
    pub fn send(&mut self, port: usize, packet: &[u8]) -> Vec<(usize, Vec<u8>)> {
        self.turn += 1;
        let ring = self.turn % self.workers;
        let frame = ethernet(port_mac(port), host_mac(port, 9), 0x0800, packet);
        self.tube.inject_on(port, ring, &frame);
        self.tube.settle();
        self.tube.check();
        self.tube.arrivals().into_iter().map(|(port, frame)| (port, frame[14..].to_vec())).collect()
    }

    /// Sends a packet out from inside; gives the one packet that comes out in the world.
    pub fn out(&mut self, packet: &[u8]) -> Vec<u8> {
        let came = self.send(0, packet);
        assert_eq!(came.len(), 1, "{came:x?}; {:?}", self.tube.verdicts());
        let (port, packet) = came.into_iter().next().unwrap();
        assert_eq!(port, 1, "{:?}", self.tube.verdicts());
        check_sums(&packet);
        packet
    }

    /// Sends a packet in from the world; gives the one packet that comes out inside.
    pub fn back(&mut self, packet: &[u8]) -> Vec<u8> {
        let came = self.send(1, packet);
        assert_eq!(came.len(), 1, "{came:x?}; {:?}", self.tube.verdicts());
        let (port, packet) = came.into_iter().next().unwrap();
        assert_eq!(port, 0, "{packet:x?}");
        check_sums(&packet);
        packet
    }

    /// A packet that nobody gets, and how it ends.
    pub fn dies(&mut self, port: usize, packet: &[u8], verdict: Verdict) {
        let before = self.tube.count(verdict);
        assert_eq!(self.send(port, packet), [], "{verdict:?}");
        assert_eq!(self.tube.count(verdict), before + 1, "{verdict:?}, not {:?}", self.tube.verdicts());
    }

    /// The outside end that this UDP end inside has towards the world.
    pub fn mapped(&mut self, from: (&str, u16), to: (&str, u16)) -> (String, u16) {
        said(&self.out(&udp(from, to))).1
    }

    pub fn pass(&mut self, seconds: u64) {
        self.tube.pass_time(std::time::Duration::from_secs(seconds));
    }
}

/// All checksums of a packet that is whole are right.
pub fn check_sums(packet: &[u8]) {
    assert_eq!(checksum(&packet[..20]), 0, "IP header of {packet:x?}");
    let fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0;
    let (protocol, payload) = (packet[9], &packet[20..]);
    if fragment || protocol == 17 && payload[6..8] == [0, 0] {
        return;
    }
    let sum = match protocol {
        1 => checksum(payload),
        6 | 17 => {
            let mut all = packet[12..20].to_vec();
            all.extend([0, protocol]);
            all.extend((payload.len() as u16).to_be_bytes());
            all.extend(payload);
            checksum(&all)
        }
        _ => 0,
    };
    assert_eq!(sum, 0, "protocol {protocol}: {packet:x?}");
}

/// What a packet says.
pub fn said(packet: &[u8]) -> Said {
    let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap()).to_string();
    let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let (source, destination, flags) = match packet[9] {
        1 => (word(24), word(24), packet[20]),
        6 => (word(20), word(22), packet[33]),
        _ => (word(20), word(22), 0),
    };
    (packet[9], (address(12), source), (address(16), destination), flags)
}

fn ip(protocol: u8, from: &str, to: &str, payload: Vec<u8>) -> Ip4 {
    Ip4 { protocol, payload, ..Ip4::udp(from, to, 0) }
}

/// The packet with its transport's checksum made right.
pub fn summed(mut packet: Ip4) -> Ip4 {
    let at = match packet.protocol {
        1 => 2,
        6 => 16,
        _ => 6,
    };
    packet.payload[at..at + 2].fill(0);
    let mut all = Vec::new();
    if packet.protocol != 1 {
        all.extend(packet.source.octets());
        all.extend(packet.destination.octets());
        all.extend([0, packet.protocol]);
        all.extend((packet.payload.len() as u16).to_be_bytes());
    }
    all.extend(&packet.payload);
    let sum = checksum(&all);
    packet.payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// A UDP datagram.
pub fn udp(from: (&str, u16), to: (&str, u16)) -> Vec<u8> {
    udp_packet(from, to, 12).build()
}

/// A UDP datagram with `len` bytes of data.
pub fn udp_packet(from: (&str, u16), to: (&str, u16), len: usize) -> Ip4 {
    let mut packet = Ip4::udp(from.0, to.0, len);
    packet.payload[..2].copy_from_slice(&from.1.to_be_bytes());
    packet.payload[2..4].copy_from_slice(&to.1.to_be_bytes());
    summed(packet)
}

/// A TCP segment.
pub fn tcp(from: (&str, u16), to: (&str, u16), flags: u8) -> Vec<u8> {
    let mut payload = Vec::new();
    payload.extend(from.1.to_be_bytes());
    payload.extend(to.1.to_be_bytes());
    payload.extend([0, 0, 0, 7, 0, 0, 0, 9, 0x50, flags, 0x10, 0, 0, 0, 0, 0]);
    payload.extend(b"hello");
    summed(ip(6, from.0, to.0, payload)).dont_fragment().build()
}

/// An ICMP message of this type and code, with four bytes and data.
pub fn icmp(from: &str, to: &str, kind: (u8, u8), rest: u32, data: &[u8]) -> Vec<u8> {
    let mut payload = vec![kind.0, kind.1, 0, 0];
    payload.extend(rest.to_be_bytes());
    payload.extend(data);
    summed(ip(1, from, to, payload)).build()
}

/// An echo request or the answer to one.
pub fn echo(from: &str, to: &str, request: bool, id: u16) -> Vec<u8> {
    icmp(from, to, (if request { 8 } else { 0 }, 0), u32::from(id) << 16 | 1, b"abcdefgh")
}

/// Borrows an end.
pub fn end(end: &(String, u16)) -> (&str, u16) {
    (&end.0, end.1)
}
