//! Any bytes as a frame: to the built-in host, its IP packet to ICMP errors and fragmentation, and
//! all of it through a real worker between pipes, with routes of every kind.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::common::{self, PortSpec, Tube};
use sweepd::forward::builtin;
use sweepd::forward::fragment::Fragments;
use sweepd::forward::icmp_error::{Icmp4Error, Icmp6Error, LONGEST4, LONGEST6, Link, ipv4_error, ipv6_error};
use sweepd::forward::messages::{ToKeeper, ToWorker};
use sweepd::forward::verdict::Verdict;
use sweepd::tables::{Action, PortTable, fixed};
use sweepd::wire::{checksum, ethernet, icmp6, ipv4, ipv6};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const US4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const US6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// What an input begins with.
#[derive(Clone, Copy)]
pub struct How {
    /// What is repaired in the frame, since no chance finds a right checksum: bit 0 the MAC address,
    /// bit 1 the IPv4 header's checksum and total length, bit 2 the checksum behind it; bit 3 is the
    /// port it comes in on, and bit 4 says whether neighbours that are asked for fail at once.
    pub bits: u8,
    /// To fragment by.
    pub mtu: u16,
}

impl How {
    /// The first three bytes of an input, and the rest.
    pub fn split(input: &[u8]) -> Option<(Self, &[u8])> {
        let [bits, high, low, rest @ ..] = input else { return None };
        Some((Self { bits: *bits, mtu: u16::from_be_bytes([*high, *low]) }, rest))
    }
}

/// Any bytes.
pub fn any(input: &[u8]) {
    if let Some((how, frame)) = How::split(input) {
        all(how, frame.to_vec());
    }
}

/// One frame to everything that takes frames.
pub fn all(how: How, mut frame: Vec<u8>) {
    repair(how.bits, &mut frame);
    worker(how.bits, &frame);
    built_in_host(&frame);
    let Some(packet) = frame.get(ethernet::HEADER_LEN..) else { return };
    errors(packet);
    fragments(packet, how.mtu);
}

fn repair(how: u8, frame: &mut [u8]) {
    if how & 1 != 0 && frame.len() >= 12 {
        frame[..6].copy_from_slice(&MAC);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    }
    let Some(packet) = frame.get_mut(ethernet::HEADER_LEN..) else { return };
    if how & 2 != 0 && packet.len() >= 20 && packet[0] >> 4 == 4 {
        let len = (packet.len() as u16).to_be_bytes();
        packet[2..4].copy_from_slice(&len);
        let header_len = usize::from(packet[0] & 0x0f) * 4;
        if let Some(header) = packet.get_mut(..header_len) {
            ipv4::fill_checksum(header);
        }
    }
    if how & 4 == 0 {
        return;
    }
    if let Ok(parsed) = ipv4::parse(packet) {
        let (from, len) = (parsed.header_len(), parsed.payload.len());
        let message = &mut packet[from..from + len];
        if message.len() >= 4 {
            message[2..4].fill(0);
            let sum = checksum::checksum(message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
    } else if let Ok(parsed) = ipv6::parse(packet)
        && let Some(upper) = ipv6::upper_layer(parsed.header.next_header, parsed.payload)
    {
        let (source, destination) = (parsed.header.source(), parsed.header.destination());
        let (from, len) = (ipv6::HEADER_LEN + upper.offset, upper.bytes.len());
        icmp6::fill_checksum(source, destination, &mut packet[from..from + len]);
    }
}

fn built_in_host(frame: &[u8]) {
    let port = PortTable {
        name: "fuzz".into(),
        mac: MAC,
        mtu: 1500,
        up: true,
        addresses4: vec!["192.0.2.1/24".parse().unwrap()],
        addresses6: vec!["2001:db8::1/64".parse().unwrap(), "fe80::1/64".parse().unwrap()],
        builtin_host: true,
        ..PortTable::default()
    };
    let mut out = [0; 4096];
    let outcome = builtin::handle(std::slice::from_ref(&port), 0, frame, &mut out);
    if let Some(len) = outcome.reply {
        assert_eq!(outcome.verdict, Verdict::Answered);
        assert!(len <= frame.len().max(90));
        assert_eq!(out[6..12], MAC);
    }
    if let Some(learned) = outcome.learned {
        assert!(ethernet::is_unicast(&learned.mac));
        assert!(learned.address != IpAddr::V4(US4) && learned.address != IpAddr::V6(US6));
    }
}

fn errors(packet: &[u8]) {
    let mut out = [0; LONGEST6];
    let mut again = [0; LONGEST6];
    if let Some(len) = ipv4_error(packet, Icmp4Error::TimeExceeded, US4, Link::Unicast, &mut out) {
        assert!(len <= LONGEST4);
        let error = ipv4::parse(&out[..len]).unwrap();
        assert!(error.sum_ok() && checksum::checksum(error.payload) == 0);
        let about = ipv4_error(&out[..len], Icmp4Error::TimeExceeded, US4, Link::Unicast, &mut again);
        assert_eq!(about, None, "an error about an error");
    }
    if let Some(len) = ipv6_error(packet, Icmp6Error::NoRoute, US6, Link::Unicast, &mut out) {
        let error = ipv6::parse(&out[..len]).unwrap();
        assert!(icmp6::sum_ok(error.header.source(), error.header.destination(), error.payload));
        let about = ipv6_error(&out[..len], Icmp6Error::NoRoute, US6, Link::Unicast, &mut again);
        assert_eq!(about, None, "an error about an error");
    }
}

fn fragments(packet: &[u8], mtu: u16) {
    let Ok(mut fragments) = Fragments::new(packet, mtu) else { return };
    let original = ipv4::parse(packet).unwrap();
    let (mut place, mut data) = (vec![0; usize::from(mtu)], Vec::new());
    while let Some(len) = fragments.write_next(&mut place) {
        let piece = ipv4::parse(&place[..len]).unwrap();
        assert!(piece.sum_ok());
        assert_eq!(piece.header.fragment_offset(), original.header.fragment_offset() + data.len());
        data.extend_from_slice(piece.payload);
    }
    assert_eq!(fragments.remaining(), 0);
    assert_eq!(data, original.payload);
}

thread_local! {
    static TUBE: RefCell<Tube> = RefCell::new(tube());
}

/// A router with a route for every action, a built-in host on one port and host rings on the other.
fn tube() -> Tube {
    let specs = [
        PortSpec::new(&["192.0.2.1/24", "2001:db8::1/64", "fe80::1/64"]),
        PortSpec::new(&["198.51.100.1/24", "2001:db8:1::1/64"]).host_rings(),
    ];
    let mut tube = Tube::new(&specs, 1);
    let routes = &mut tube.routes;
    let (near, far, narrow) = (routes.hop(0, 9, 1500), routes.hop(1, 9, 1500), routes.hop(1, 8, 296));
    let resolve = routes.action(Action::Resolve, 1, Some(IpAddr::from([198, 51, 100, 77])));
    let members = [near, far, narrow, resolve];
    let group = routes.group(std::array::from_fn(|bucket| members[bucket % members.len()]));
    for (n, id) in [
        near,
        far,
        narrow,
        resolve,
        group,
        fixed::HOST,
        fixed::BLACKHOLE,
        fixed::UNREACHABLE,
        fixed::PROHIBIT,
        fixed::MARTIAN,
        fixed::MULTICAST,
        fixed::BROADCAST,
        fixed::LINK_LOCAL,
    ]
    .into_iter()
    .enumerate()
    {
        // Of each first octet there is one kind of route or another, and some have none.
        for octet in (1..200).filter(|octet| octet % 16 == n && *octet != 127) {
            tube.routes.add(&format!("{octet}.0.0.0/8"), id);
            tube.routes.add(&format!("20{octet:02x}::/16"), id);
        }
    }
    tube.publish();
    tube.limit_errors(u32::MAX, u32::MAX);
    tube
}

/// The frame goes through the worker: it gets one verdict, no buffer is lost, and what leaves is
/// well-formed.
fn worker(how: u8, frame: &[u8]) {
    if frame.is_empty() || frame.len() > 2048 {
        return;
    }
    TUBE.with_borrow_mut(|tube| {
        let mut frame = frame.to_vec();
        let port = usize::from(how >> 3 & 1);
        if how & 1 != 0 && frame.len() >= 6 {
            frame[..6].copy_from_slice(&common::port_mac(port));
        }
        let before = ended_or_held(tube);
        let mut out = tube.pass(port, &frame);
        assert_eq!(ended_or_held(tube), before + 1, "one packet, one verdict");
        let asked: Vec<_> = tube.to_keeper.try_iter().collect();
        for word in asked {
            if let (ToKeeper::Resolve { port, address }, true) = (word, how & 16 != 0) {
                tube.links[0].send(ToWorker::Failed { port, address });
            }
        }
        tube.settle();
        tube.check();
        out.extend(tube.arrived(0).into_iter().map(|frame| (0, frame)));
        out.extend(tube.arrived(1).into_iter().map(|frame| (1, frame)));
        let up = tube.arrived_at_host(1);
        assert!(up.iter().all(|up| is_as_it_came(up, &frame)), "the host gets it as it came");
        out.iter().for_each(|(port, frame)| left(*port, frame));
    });
}

/// It is the frame, or the frame without tags in front that carry a priority and no VLAN.
fn is_as_it_came(up: &[u8], frame: &[u8]) -> bool {
    let mut frame = frame.to_vec();
    while up != frame {
        match frame.get(12..16) {
            Some([0x81, 0, high, 0] | [0x88, 0xa8, high, 0]) if high & 15 == 0 => drop(frame.drain(12..16)),
            _ => return false,
        }
    }
    true
}

/// How many packets have a verdict or wait for a neighbour.
fn ended_or_held(tube: &Tube) -> u64 {
    tube.stats.snapshot().iter().map(|port| port.verdicts.iter().sum::<u64>() + port.held).sum()
}

/// A frame that leaves `port` is from our address, and its IP header is in order.
fn left(port: usize, frame: &[u8]) {
    assert_eq!(frame[6..12], common::port_mac(port));
    let packet = &frame[ethernet::HEADER_LEN..];
    match u16::from_be_bytes([frame[12], frame[13]]) {
        ethernet::IPV4 => {
            let parsed = ipv4::parse(packet).unwrap();
            assert!(parsed.sum_ok() && parsed.header.ttl > 0);
        }
        ethernet::IPV6 => assert!(ipv6::parse(packet).unwrap().header.hop_limit > 0),
        _ => {}
    }
}
