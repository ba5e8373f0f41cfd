//! The router that the rules are shown on, and words for what comes out of it.

use sweepd::forward::verdict::Verdict;

use crate::common::{PortSpec, Tube, host_mac, port_mac};
use crate::packets::{Ip4, checksum, ethernet, pseudo6};

/// A host behind port 0, and one behind port 1, beyond the links.
pub const NEAR: &str = "192.0.2.7";
pub const FAR: &str = "198.51.100.3";
/// Behind port 1 too, where the next hop takes 600 bytes.
pub const NARROW: &str = "203.0.113.5";
pub const NEAR6: &str = "2001:db8:beef::7";
pub const FAR6: &str = "2001:db8:cafe::3";
/// Behind port 1 too, where the next hop takes 1280 bytes.
pub const NARROW6: &str = "2001:db8:dead::5";

/// Two ports with 10.0.k.1/24, 2001:db8:k::1/64 and fe80::k:1/64; networks behind host 9 of each.
pub fn router() -> Tube {
    let spec = |k: usize| {
        let addresses = [format!("10.0.{k}.1/24"), format!("2001:db8:{k}::1/64"), format!("fe80::{k}:1/64")];
        PortSpec::new(&addresses.each_ref().map(String::as_str))
    };
    let mut tube = Tube::new(&[spec(0), spec(1)], 1);
    let routes = &mut tube.routes;
    let (left, right) = (routes.hop(0, 9, 1500), routes.hop(1, 9, 1500));
    let (narrow, narrow6) = (routes.hop(1, 9, 600), routes.hop(1, 9, 1280));
    for (prefix, hop) in [
        ("192.0.2.0/24", left),
        ("2001:db8:beef::/48", left),
        ("198.51.100.0/24", right),
        ("2001:db8:cafe::/48", right),
        ("203.0.113.0/24", narrow),
        ("2001:db8:dead::/48", narrow6),
        ("10.0.0.9/32", left),
        ("10.0.1.9/32", right),
    ] {
        routes.add(prefix, hop);
    }
    tube.publish();
    tube
}

/// An IP packet in a frame from host 9 of `port` to the router.
pub fn to_router(port: usize, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    ethernet(port_mac(port), host_mac(port, 9), ethertype, packet)
}

/// An IP packet in a frame from the router to host 9 of `port`.
pub fn from_router(port: usize, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    ethernet(host_mac(port, 9), port_mac(port), ethertype, packet)
}

/// Passes a packet to the router in at port 0.
pub fn pass(tube: &mut Tube, packet: &[u8]) -> Vec<(usize, Vec<u8>)> {
    tube.pass(0, &to_router(0, packet))
}

/// What the router says to this packet, in at port 0: the type, the code and all of its message,
/// whose checksums are right and which goes back to host 9 of port 0. `None` when it says nothing.
pub fn answer(tube: &mut Tube, packet: &[u8]) -> Option<Answer> {
    let mut out = pass(tube, packet);
    assert!(out.len() <= 1, "{out:?}");
    out.pop().map(|(port, frame)| {
        assert_eq!(port, 0);
        assert_eq!(frame[..12], from_router(0, &frame[14..])[..12]);
        Answer::of(&frame[14..])
    })
}

/// An ICMP error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Its IP header.
    pub header: Vec<u8>,
    pub kind: u8,
    pub code: u8,
    /// Bytes 4 to 7: an MTU or a pointer.
    pub rest: u32,
    pub quoted: Vec<u8>,
}

impl Answer {
    /// The ICMP message in this packet, whose checksums and lengths must be right.
    pub fn of(packet: &[u8]) -> Self {
        let (header, message) = packet.split_at(if packet[0] >> 4 == 4 { 20 } else { 40 });
        if header[0] == 0x45 {
            assert_eq!((checksum(header), checksum(message), header[9]), (0, 0, 1));
            assert_eq!(usize::from(u16::from_be_bytes([header[2], header[3]])), packet.len());
        } else {
            assert_eq!((header[0] >> 4, header[6]), (6, 58));
            assert_eq!(usize::from(u16::from_be_bytes([header[4], header[5]])), message.len());
            let address = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).unwrap().into();
            assert_eq!(pseudo6(address(8), address(24), 58, message), 0);
        }
        Self {
            header: header.to_vec(),
            kind: message[0],
            code: message[1],
            rest: u32::from_be_bytes(message[4..8].try_into().unwrap()),
            quoted: message[8..].to_vec(),
        }
    }

    pub fn says(&self) -> (u8, u8) {
        (self.kind, self.code)
    }

    /// The address that it comes from, in network order.
    pub fn source(&self) -> &[u8] {
        if self.header[0] >> 4 == 4 { &self.header[12..16] } else { &self.header[8..24] }
    }
}

/// The frame ends with this verdict and nothing leaves.
pub fn dies(tube: &mut Tube, port: usize, frame: &[u8], verdict: Verdict) {
    let before = tube.count(verdict);
    let out = tube.pass(port, frame);
    assert_eq!(out, [], "{verdict:?} of {frame:x?}");
    assert_eq!(tube.count(verdict), before + 1, "{verdict:?}, not {:?}, of {frame:x?}", tube.verdicts());
}

/// A packet that needs nothing but forwarding, from NEAR to FAR.
pub fn plain() -> Ip4 {
    Ip4::udp(NEAR, FAR, 10)
}
