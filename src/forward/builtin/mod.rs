//! The built-in host: it answers ARP, neighbour solicitations and echo requests on ports of
//! devices that the kernel does not know (pipes, captures, VALE ports), and hears who their
//! neighbours are.
//!
//! It keeps nothing: a frame and the ports' tables go in, a reply and what was heard come out. It
//! answers for the router's own addresses only; there is no proxying. It does not reassemble, and
//! listens on no port.

mod arp;
mod echo;
mod ndp;
mod solicit;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::IntoBytes;

use super::verdict::Verdict;
use crate::tables::{PortId, PortTable};
use crate::wire::ethernet::{self, EthernetHeader, Mac};
use crate::wire::vlan::{self, VlanTag};
use crate::wire::{Malformed, icmp6, ipv4, ipv6};

pub use solicit::solicit;

/// Shortest frame, without its checksum, in bytes; shorter ones are padded with zeroes.
const SHORTEST_FRAME: usize = 60;

/// A neighbour's MAC address that was heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Learned {
    /// The neighbour.
    pub address: IpAddr,
    /// Its MAC address, of a single device.
    pub mac: Mac,
    /// Whether an entry is made when there is none. If not, only one that is known or asked for
    /// already is brought up to date (RFC 826, RFC 4861 section 7.2.5).
    pub create: bool,
    /// Whether an entry with another MAC address is changed (the override flag of RFC 4861).
    pub replace: bool,
}

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// How the frame ended: [`Verdict::Answered`] when it was understood, answer or not.
    pub verdict: Verdict,
    /// The length in bytes of the frame in `out` that is to be sent on the port it came from.
    pub reply: Option<usize>,
    /// The neighbour that was heard.
    pub learned: Option<Learned>,
    /// Another device that claims this address of ours, with its MAC address (RFC 5227).
    pub conflict: Option<(IpAddr, Mac)>,
}

impl Outcome {
    /// Ended so, and nothing more.
    const fn of(verdict: Verdict) -> Self {
        Self { verdict, reply: None, learned: None, conflict: None }
    }

    const ANSWERED: Self = Self::of(Verdict::Answered);
}

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Self {
        Self::of(verdict)
    }
}

impl From<Malformed> for Verdict {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Short => Self::Runt,
            Malformed::Field => Self::BadHeader,
        }
    }
}

/// Handles a frame for the router itself that came in on port `on`, as it came (with a VLAN tag or
/// without; a reply has the same tag), and writes what there is to reply into `out`. A reply is
/// never longer than the frame, or 90 bytes when that is more; where it does not fit, there is none.
///
/// A frame that nobody here speaks for, TCP and UDP among them, ends as
/// [`Verdict::UnknownProtocol`].
pub fn handle(ports: &[PortTable], on: PortId, frame: &[u8], out: &mut [u8]) -> Outcome {
    let Some(port) = ports.get(usize::from(on)) else { return Verdict::PortDown.into() };
    let Some(link) = Link::parse(frame) else { return Verdict::Runt.into() };
    if link.destination != port.mac && !ethernet::is_group(&link.destination) {
        return Verdict::NotForUs.into();
    }
    if !ethernet::is_unicast(&link.source) || link.source == port.mac {
        return Verdict::Martian.into();
    }
    let here = Here { ports, port, link };
    let outcome = match here.link.ethertype {
        ethernet::ARP => arp::handle(&here, out),
        ethernet::IPV4 => echo::handle4(&here, out),
        ethernet::IPV6 => handle6(&here, out),
        _ => Err(Verdict::UnknownProtocol),
    };
    outcome.unwrap_or_else(Outcome::of)
}

/// The checks that all of ICMPv6 shares; then neighbour discovery or echo.
fn handle6(here: &Here, out: &mut [u8]) -> Result<Outcome, Verdict> {
    let packet = ipv6::parse(here.link.payload)?;
    let (source, destination) = (packet.header.source(), packet.header.destination());
    if source.is_multicast() || source.is_loopback() {
        return Err(Verdict::Martian);
    }
    if !destination.is_multicast() {
        here.check_unicast()?;
        if !here.is_ours6(destination) {
            return Err(Verdict::NotForUs);
        }
    }
    let upper = ipv6::upper_layer(packet.header.next_header, packet.payload).ok_or(Verdict::BadHeader)?;
    if upper.protocol != ipv6::ICMP6 || upper.fragment || upper.segments_left {
        return Err(Verdict::UnknownProtocol);
    }
    let (header, _) = icmp6::parse(upper.bytes).ok_or(Verdict::Runt)?;
    if !icmp6::sum_ok(source, destination, upper.bytes) {
        return Err(Verdict::BadChecksum);
    }
    // All three have code 0 only.
    match header.kind {
        _ if header.code != 0 => Err(Verdict::BadHeader),
        icmp6::NEIGHBOR_SOLICITATION => ndp::solicitation(here, packet.header, upper.bytes, out),
        icmp6::NEIGHBOR_ADVERTISEMENT => ndp::advertisement(here, packet.header, upper.bytes),
        icmp6::ECHO_REQUEST => echo::handle6(here, packet.header, upper.bytes, out),
        _ => Err(Verdict::UnknownProtocol),
    }
}

/// A frame's Ethernet header, with its VLAN tag if it has one.
#[derive(Clone, Copy)]
struct Link<'a> {
    destination: Mac,
    source: Mac,
    tag: Option<u16>,
    ethertype: u16,
    payload: &'a [u8],
}

impl<'a> Link<'a> {
    fn parse(frame: &'a [u8]) -> Option<Self> {
        let (header, payload) = ethernet::parse(frame)?;
        let untagged = Self {
            destination: header.destination,
            source: header.source,
            tag: None,
            ethertype: header.ethertype.get(),
            payload,
        };
        if untagged.ethertype != ethernet::VLAN {
            return Some(untagged);
        }
        let (tag, payload) = vlan::parse(payload)?;
        let (control, ethertype) = (tag.control.get(), tag.ethertype.get());
        Some(Self { tag: Some(control), ethertype, payload, ..untagged })
    }
}

/// A frame and where it was heard.
struct Here<'a> {
    ports: &'a [PortTable],
    port: &'a PortTable,
    link: Link<'a>,
}

impl Here<'_> {
    /// Unicast IP is not taken from a link broadcast or multicast (RFC 1122 section 3.3.6).
    fn check_unicast(&self) -> Result<(), Verdict> {
        if ethernet::is_group(&self.link.destination) { Err(Verdict::LinkBroadcast) } else { Ok(()) }
    }

    /// Whether the address is the router's, on any port.
    fn is_ours4(&self, address: Ipv4Addr) -> bool {
        self.ports.iter().flat_map(|port| &port.addresses4).any(|net| net.addr() == address)
    }

    /// Whether the address is the router's: on any port, or on this one when it is link-local.
    fn is_ours6(&self, address: Ipv6Addr) -> bool {
        let has = |port: &PortTable| port.addresses6.iter().any(|net| net.addr() == address);
        if address.is_unicast_link_local() { has(self.port) } else { self.ports.iter().any(has) }
    }

    /// Begins a reply to whoever sent the frame; see [`begin`].
    fn begin_reply<'o>(&self, out: &'o mut [u8], to: Mac, len: usize) -> Option<(usize, &'o mut [u8])> {
        begin(out, (to, self.port.mac), self.link.tag, self.link.ethertype, len)
    }
}

/// Whether the address is of another host on the port's link, by one of the port's prefixes: no
/// network or broadcast address (of which /31 and /32 have none, RFC 3021).
fn is_on_link4(port: &PortTable, address: Ipv4Addr) -> bool {
    ipv4::is_single_host(address)
        && port.addresses4.iter().any(|net| {
            let has_ends = net.prefix_len() < 31;
            net.contains(&address)
                && net.addr() != address
                && !(has_ends && (address == net.network() || address == net.broadcast()))
        })
}

/// Whether the address is of another host on the port's link: link-local, or in one of the port's
/// prefixes.
fn is_on_link6(port: &PortTable, address: Ipv6Addr) -> bool {
    let ours = port.addresses6.iter().any(|net| net.addr() == address);
    let on_link = port.addresses6.iter().any(|net| net.contains(&address));
    !ours
        && !address.is_multicast()
        && !address.is_unspecified()
        && !address.is_loopback()
        && (on_link || address.is_unicast_link_local())
}

/// Writes an Ethernet header, tagged if there is a tag, and makes room for `len` bytes behind it:
/// the whole frame's length, padded to the shortest that Ethernet has, and the place for the
/// bytes. `None` when `out` is too short.
pub(super) fn begin(
    out: &mut [u8],
    (destination, source): (Mac, Mac),
    tag: Option<u16>,
    ethertype: u16,
    len: usize,
) -> Option<(usize, &mut [u8])> {
    let header_len = ethernet::HEADER_LEN + tag.map_or(0, |_| vlan::TAG_LEN);
    let frame_len = (header_len + len).max(SHORTEST_FRAME);
    let frame = out.get_mut(..frame_len)?;
    frame[(header_len + len)..].fill(0);
    let (header, payload) = frame.split_at_mut(header_len);
    let first = if tag.is_some() { ethernet::VLAN } else { ethertype };
    let ethernet = EthernetHeader { destination, source, ethertype: first.into() };
    header[..ethernet::HEADER_LEN].copy_from_slice(ethernet.as_bytes());
    if let Some(control) = tag {
        let tag = VlanTag { control: control.into(), ethertype: ethertype.into() };
        header[ethernet::HEADER_LEN..].copy_from_slice(tag.as_bytes());
    }
    Some((frame_len, &mut payload[..len]))
}

#[cfg(test)]
mod tests;
