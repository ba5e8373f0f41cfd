//! A router with VLAN sub-ports, in two places: between pipes, and as sweepd on `xdp:` ports whose far
//! ends send and take tagged frames. No kernel at hand has VLAN interfaces, so the sub-ports are the
//! configuration's, and Linux's own forwarding cannot show the rules.

use crate::common::{PortSpec, Tube, host_mac, port_mac};
use crate::packets::{Ip4, ethernet};
use crate::router::Router;

/// The ports' numbers: two with rings, and their sub-ports.
pub const TRUNK: usize = 0;
pub const PLAIN: usize = 1;
pub const V100: usize = 2;
pub const V200: usize = 3;
pub const S300: usize = 4;
pub const STACKED: usize = 5;
pub const OTHER: usize = 6;
/// Of the first port, too, with an MTU of 600 bytes.
pub const NARROW: usize = 7;

/// The tags of each port's frames.
pub const TAGS: [&[u16]; 8] = [
    &[],
    &[],
    &[0x8100, 100],
    &[0x8100, 200],
    &[0x88a8, 300],
    &[0x88a8, 300, 0x8100, 7],
    &[0x8100, 100],
    &[0x8100, 400],
];

/// The sub-ports: number, port and VLAN as they are configured.
pub const SUBS: [(usize, usize, &str); 6] = [
    (V100, TRUNK, "100"),
    (V200, TRUNK, "200"),
    (S300, TRUNK, "s300"),
    (STACKED, TRUNK, "s300.7"),
    (OTHER, PLAIN, "100"),
    (NARROW, TRUNK, "400"),
];

/// The hosts behind every port whose MAC addresses the router knows; networks are behind the last.
pub const HOSTS: [u8; 2] = [3, 9];

pub fn mtu(port: usize) -> u16 {
    if port == NARROW { 600 } else { 1500 }
}

/// The router's addresses on a port or sub-port.
pub fn addresses(port: usize) -> [String; 2] {
    [format!("10.0.{port}.1/24"), format!("2001:db8:{port}::1/64")]
}

/// What lies behind host 9 of a port or sub-port, and by which address of its.
pub fn networks(port: usize) -> [(String, String); 2] {
    [
        (format!("172.16.{port}.0/24"), format!("10.0.{port}.9")),
        (format!("2001:db8:a{port}::/48"), format!("2001:db8:{port}::9")),
    ]
}

/// Behind host 9 of a port.
pub fn behind(port: usize) -> String {
    format!("172.16.{port}.9")
}

/// The router between pipes, its ports changed.
pub fn with(change: impl Fn(usize, PortSpec) -> PortSpec, workers: usize) -> Tube {
    let spec = |k: usize| {
        let [four, six] = addresses(k);
        let spec = PortSpec::new(&[&four, &six]).mtu(mtu(k));
        let sub = SUBS.iter().find(|(port, ..)| *port == k);
        change(k, sub.map_or(spec.clone(), |(_, parent, tags)| spec.of(*parent, tags)))
    };
    let mut tube = Tube::new(&(0..TAGS.len()).map(spec).collect::<Vec<_>>(), workers);
    for port in 0..TAGS.len() {
        for host in HOSTS {
            let hop = tube.routes.known(port, host, mtu(port), false);
            tube.routes.add(&format!("10.0.{port}.{host}/32"), hop);
        }
        for (prefix, _) in networks(port) {
            let hop = tube.routes.known(port, 9, mtu(port), prefix.contains(':'));
            tube.routes.add(&prefix, hop);
        }
    }
    tube.publish();
    tube
}

/// The router between pipes.
pub fn router() -> Tube {
    with(|_, spec| spec, 1)
}

/// Runs a test between pipes and on `xdp:` ports.
#[track_caller]
pub fn on_trunks(test: impl Fn(&mut dyn Router)) {
    test(&mut router());
    #[cfg(target_os = "linux")]
    crate::router::on_real_interfaces(&[(crate::plan::Plan::Trunk, crate::router::Place::Xdp)], test);
}

/// The frame with these tags behind its MAC addresses.
pub fn tagged(tags: &[u16], frame: &[u8]) -> Vec<u8> {
    let tags: Vec<u8> = tags.iter().flat_map(|word| word.to_be_bytes()).collect();
    [&frame[..12], &tags, &frame[12..]].concat()
}

/// Which port with rings a port's frames go by.
pub fn rings_of(port: usize) -> usize {
    if port == PLAIN || port == OTHER { PLAIN } else { TRUNK }
}

/// From host 9 of a port or sub-port to the router, with its tags.
pub fn to_router(port: usize, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    tagged(TAGS[port], &ethernet(port_mac(port), host_mac(port, 9), ethertype, packet))
}

/// From the router to host 9 of a port or sub-port, with its tags.
pub fn from_router(port: usize, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    tagged(TAGS[port], &ethernet(host_mac(port, 9), port_mac(port), ethertype, packet))
}

/// An ARP packet from a host of a port or sub-port, with its tags: a request to all, or a reply.
pub fn arp(port: usize, operation: u8, host: u8, target: [u8; 4]) -> Vec<u8> {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, operation];
    arp.extend(host_mac(port, host));
    arp.extend([10, 0, port as u8, host]);
    arp.extend(if operation == 1 { [0; 6] } else { port_mac(port) });
    arp.extend(target);
    let to = if operation == 1 { [0xff; 6] } else { port_mac(port) };
    tagged(TAGS[port], &ethernet(to, host_mac(port, host), 0x0806, &arp))
}

/// A datagram from what is behind one port to what is behind another.
pub fn udp(from: usize, to: usize, len: usize) -> Ip4 {
    Ip4::udp(&behind(from), &behind(to), len)
}
