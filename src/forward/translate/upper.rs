//! What stands behind an IPv4 header, as far as translation asks: which ends the packet has.

use crate::{
    forward::flows::End4,
    wire::{
        icmp,
        ipv4::{ICMP, Ipv4, TCP, UDP},
        tcp, udp,
    },
};

/// What kind of packet it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// TCP or UDP, with both ports.
    Ports,
    /// An ICMP query or the answer to one, with an identifier.
    Query,
    /// An ICMP error.
    Error,
    /// Another protocol: addresses alone.
    Other,
}

/// The ends of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upper {
    /// The protocol's number.
    pub protocol: u8,
    /// What kind it is.
    pub kind: Kind,
    /// Where it comes from. The identifier of an ICMP query is its source's port.
    pub source: End4,
    /// Where it goes. The identifier of an answer to an ICMP query is its destination's port.
    pub destination: End4,
    /// Flags of the TCP header, else 0.
    pub tcp_flags: u8,
}

/// Which of an ICMP message's ends its identifier belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identifies {
    /// The source.
    Source,
    /// The destination.
    Destination,
    /// None.
    Neither,
}

/// Which end the identifier of an ICMP message of this type belongs to.
pub fn identifies(kind: u8) -> Identifies {
    match kind {
        // Echo, timestamp, information, address mask, extended echo.
        icmp::ECHO_REQUEST | 13 | 15 | 17 | 42 => Identifies::Source,
        icmp::ECHO_REPLY | 14 | 16 | 18 | 43 => Identifies::Destination,
        _ => Identifies::Neither,
    }
}

/// The ends of a packet that is whole or a first fragment; `None` when what stands behind the IP
/// header is cut short. `quoted` asks for no more than an ICMP error has to quote, 8 bytes.
pub fn upper(packet: &Ipv4<'_>, quoted: bool) -> Option<Upper> {
    let header = packet.header;
    let (source, destination) = (u32::from(header.source()), u32::from(header.destination()));
    let of = |kind, ports: (u16, u16), tcp_flags| Upper {
        protocol: header.protocol,
        kind,
        source: End4::new(source, ports.0),
        destination: End4::new(destination, ports.1),
        tcp_flags,
    };
    let payload = packet.payload;
    Some(match header.protocol {
        TCP if quoted => of(Kind::Ports, ports(payload)?, 0),
        TCP => {
            let (header, ..) = tcp::parse(payload)?;
            of(Kind::Ports, ports(payload)?, header.flags)
        }
        UDP => {
            udp::parse(payload)?;
            of(Kind::Ports, ports(payload)?, 0)
        }
        ICMP => {
            let (message, _) = icmp::parse(payload)?;
            match identifies(message.kind) {
                Identifies::Source => of(Kind::Query, (message.id.get(), 0), 0),
                Identifies::Destination => of(Kind::Query, (0, message.id.get()), 0),
                Identifies::Neither if icmp::is_error(message.kind) => of(Kind::Error, (0, 0), 0),
                Identifies::Neither => of(Kind::Other, (0, 0), 0),
            }
        }
        _ => of(Kind::Other, (0, 0), 0),
    })
}

fn ports(payload: &[u8]) -> Option<(u16, u16)> {
    match *payload {
        // RFC 792: an error quotes 8 bytes.
        [a, b, c, d, _, _, _, _, ..] => Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))),
        _ => None,
    }
}
