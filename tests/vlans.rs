//! VLAN sub-ports of a whole daemon: from the configuration to the frames, between two pipes in this
//! process whose other ends the test holds.

use std::time::{Duration, Instant};

use netmap::{OpenOptions, Port, device::pipe};
use sweepd::{
    config,
    daemon::{Counters, Daemon},
};

const TEXT: &str = r#"
    [daemon]
    runtime_dir = "/nowhere"
    [[port]]
    name = "trunk"
    device = "pipe:vlans-trunk"
    mac = "02:00:00:00:00:01"
    vlans = [100, "s200.7"]
    [[port]]
    name = "lan"
    device = "pipe:vlans-lan"
    mac = "02:00:00:00:00:02"
    addresses = ["10.0.2.1/24"]
    [[port]]
    name = "trunk.100"
    addresses = ["10.0.100.1/24"]
    [[port]]
    name = "trunk.s200.7"
    mac = "02:00:00:00:00:07"
    addresses = ["10.0.7.1/24"]
    [[neighbor]]
    address = "10.0.7.9"
    mac = "02:00:00:00:07:09"
    port = "trunk.s200.7"
    [[neighbor]]
    address = "10.0.2.9"
    mac = "02:00:00:00:02:09"
    port = "lan"
    [[route]]
    to = "192.0.2.0/24"
    via = "10.0.7.9"
    port = "trunk.s200.7"
"#;

/// What arrives at the other end of a port, first.
fn arrives(end: &mut Port) -> Vec<u8> {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        let queue = &mut end.rx[0];
        queue.sync().unwrap();
        if queue.ring.available() > 0 {
            // SAFETY: the first slot, between head and tail, looked at once.
            let frame = unsafe { queue.ring.frame(queue.ring.index(0)) }.unwrap().bytes().to_vec();
            queue.ring.advance(1);
            queue.sync().unwrap();
            return frame;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("nothing arrives");
}

fn send(end: &mut Port, frame: &[u8]) {
    assert!(end.tx[0].ring.send(frame));
    end.tx[0].sync().unwrap();
}

/// An IPv4 packet without payload.
fn packet(source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
    let mut packet = [&[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0, 0][..], &source, &destination].concat();
    sweepd::wire::ipv4::fill_checksum(&mut packet);
    packet
}

#[test]
fn a_configured_sub_port_routes_answers_and_counts() {
    let config = config::parse(TEXT, "test").unwrap_or_else(|e| panic!("{e}"));
    let mut ends = ["vlans-trunk", "vlans-lan"]
        .map(|name| pipe::open(name, &OpenOptions::default()).unwrap_or_else(|e| panic!("{e}")));
    let daemon = Daemon::start(&config, Counters::Memory, false, None).unwrap_or_else(|e| panic!("{e}"));
    let [trunk, lan] = &mut ends;
    let (router, lan_mac, sub_mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 7]);
    let from = [2, 0, 0, 0, 0, 9];

    // In by VLAN 100, with priority 3, out untagged.
    let tag = [0x81, 0x00, 0x60, 100];
    send(trunk, &[&router[..], &from, &tag, &[8, 0], &packet([10, 0, 100, 9], [10, 0, 2, 9])].concat());
    let frame = arrives(lan);
    assert_eq!(frame[..14], [&[2, 0, 0, 0, 2, 9][..], &lan_mac, &[8, 0]].concat());
    // In by VLAN 100, out by a service VLAN's VLAN 7.
    send(trunk, &[&router[..], &from, &tag, &[8, 0], &packet([10, 0, 100, 9], [192, 0, 2, 9])].concat());
    let frame = arrives(trunk);
    let tags = [0x88, 0xa8, 0x60, 200, 0x81, 0, 0x60, 7, 8, 0];
    assert_eq!(frame[..22], [&[2, 0, 0, 0, 7, 9][..], &sub_mac, &tags].concat());
    // The built-in host answers ARP there, with the tags.
    let tags = [0x88, 0xa8, 0, 200, 0x81, 0, 0, 7, 8, 6];
    let arp = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &from, &[10, 0, 7, 9], &[0; 6], &[10, 0, 7, 1]].concat();
    send(trunk, &[&[0xff; 6][..], &from, &tags, &arp].concat());
    let frame = arrives(trunk);
    assert_eq!(frame[..30], [&from[..], &sub_mac, &tags, &arp[..6], &[0, 2]].concat());

    let totals = daemon.stop();
    let counts: Vec<_> = totals.iter().map(|(port, _)| (port.rx_packets, port.tx_packets)).collect();
    assert_eq!(counts, [(0, 0), (0, 1), (2, 0), (1, 2)]);
}
