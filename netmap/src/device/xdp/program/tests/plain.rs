//! Which frames go where, written down a second time, and the addresses, sockets and VLANs that it is
//! asked for.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::device::Vlan;

pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const LOCAL4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const LOCAL6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// An address that the host's sockets and the rings share, and one that the rings answer ARP for.
pub const SHARED4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
pub const ANNOUNCED4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
/// Where every packet here comes from.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// A port of the shared address that is forwarded, for TCP and UDP.
pub const FORWARDED: u16 = 443;
/// What the host's sockets have on the shared address: protocol, port there, the peer's port if they
/// are connected, and their state.
pub const SOCKETS: [(u8, u16, Option<u16>, u32); 6] = [
    (6, 22, None, 10),
    (6, 2000, Some(80), 1),
    (6, FORWARDED, None, 10),
    (6, FORWARDED, Some(81), 6),
    (17, 53, None, 7),
    (17, FORWARDED, Some(5353), 1),
];
pub const VLANS: [u16; 3] = [100, 63, 4095];
/// A VLAN that the host has no interface for, and one with frames of two tags.
pub const WHOLE: u16 = 7;
pub const STACKED: u16 = 8;

pub fn vlans() -> Vec<Vlan> {
    let plain = VLANS.map(|id| Vlan { id, host: true, stacked: false });
    let more =
        [Vlan { id: WHOLE, host: false, stacked: false }, Vlan { id: STACKED, host: true, stacked: true }];
    [&plain[..], &more].concat()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Up,
    Worker,
}
pub use Way::{Up, Worker};

/// The rules, written down a second time.
pub fn expected(frame: &[u8]) -> Way {
    fn rules(frame: &[u8]) -> Option<Way> {
        let is_tag = |kind: [u8; 2]| kind == [0x81, 0] || kind == [0x88, 0xa8];
        for at in [12, 16] {
            if !is_tag(frame.get(at..at + 2)?.try_into().ok()?) {
                break;
            }
            match net16_at(frame.get(at + 2..at + 6)?, 0) & 0xfff {
                WHOLE => return Some(Worker),
                0 => {}
                _ => break,
            }
        }
        let mut at = 14;
        let mut kind: [u8; 2] = frame.get(12..14)?.try_into().ok()?;
        for _ in 0..2 {
            if kind != [0x81, 0] && kind != [0x88, 0xa8] {
                break;
            }
            let tag = frame.get(at..at + 4)?;
            let vid = u16::from_be_bytes([tag[0], tag[1]]) & 0xfff;
            kind = [tag[2], tag[3]];
            at += 4;
            if vid != 0 {
                vlans().iter().any(|vlan| vlan.id == vid).then_some(())?;
                if is_tag(kind) && vid == STACKED {
                    let inner = frame.get(at..at + 4)?;
                    kind = [inner[2], inner[3]];
                    at += 4;
                }
                break;
            }
        }
        let packet = &frame[at..];
        if kind == [0x08, 0x06] {
            return (packet.get(24..28)? == ANNOUNCED4.octets()).then_some(Worker);
        }
        if frame.get(..6)? != MAC {
            return None;
        }
        match kind {
            [0x08, 0] => Some(ipv4(packet).unwrap_or(Worker)),
            [0x86, 0xdd] => Some(ipv6(packet).unwrap_or(Worker)),
            _ => None,
        }
    }
    fn ipv4(p: &[u8]) -> Option<Way> {
        let header: &[u8; 20] = p.first_chunk()?;
        if header[16..18] == [169, 254] || header[16..20] == LOCAL4.octets() && !odd_udp(header) {
            return Some(Up);
        }
        let fragment = u16::from_be_bytes([header[6], header[7]]);
        let ihl = usize::from(header[0] & 15) * 4;
        let whole = header[9] == 17 && fragment & 0x1fff == 0;
        if whole && ihl >= 20 && p.get(ihl + 2..ihl + 4)? == [0, 68] {
            return Some(Up);
        }
        let whole = fragment & 0x3fff == 0 && ihl >= 20;
        (header[16..20] == SHARED4.octets() && whole && has_socket(header, p.get(ihl..ihl + 4)?))
            .then_some(Up)
    }
    // Whether a socket of the host's takes it, and may.
    fn has_socket(header: &[u8; 20], ports: &[u8]) -> bool {
        let (from, to) = (net16_at(ports, 0), net16_at(ports, 2));
        let from_peer = header[12..16] == PEER.octets();
        let fits = |(protocol, port, peer, _): &&(u8, u16, Option<u16>, u32)| {
            (*protocol, *port) == (header[9], to) && peer.is_none_or(|peer| from_peer && peer == from)
        };
        let connected = SOCKETS.iter().filter(fits).any(|(_, _, peer, _)| peer.is_some());
        connected || to != FORWARDED && SOCKETS.iter().any(|socket| fits(&socket))
    }
    fn net16_at(bytes: &[u8], at: usize) -> u16 {
        u16::from_be_bytes([bytes[at], bytes[at + 1]])
    }
    // A UDP packet whose header length cannot be is the worker's to count, whatever its address.
    fn odd_udp(h: &[u8; 20]) -> bool {
        h[9] == 17 && u16::from_be_bytes([h[6], h[7]]) & 0x1fff == 0 && h[0] & 15 < 5
    }
    fn ipv6(p: &[u8]) -> Option<Way> {
        let header: &[u8; 40] = p.first_chunk()?;
        let link_local = header[24] == 0xfe && header[25] & 0xc0 == 0x80;
        let nd = header[6] == 58 && p.get(40).is_some_and(|t| (133..=137).contains(t));
        (link_local || nd || header[24..40] == LOCAL6.octets()).then_some(Up)
    }
    rules(frame).unwrap_or(Up)
}
