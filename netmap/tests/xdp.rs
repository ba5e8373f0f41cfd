//! Packets through `xdp:` ports on real interfaces: veth pairs between namespaces that each test
//! makes. Need root.
#![cfg(target_os = "linux")]

mod common;

use std::{
    collections::HashSet,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{
    A0, B0, GET_GRO, Lab, R0, R1, SET_TX_CHECKSUM, allowed, ethtool, mac,
    rings::{census, collect, drain, flush, frame, open, open_error, same},
    sh,
};
use netmap::{
    OpenOptions, Port,
    device::{ForwardedPort, Sharing, xdp::open_all},
};
use nix::sys::{
    socket::{setsockopt, sockopt::ReceiveTimeout},
    time::TimeVal,
};

/// One sweep from `from` to `to`, by exchanging buffers, with new MACs.
fn forward(from: &mut Port, to: &mut Port, macs: [[u8; 6]; 2]) {
    let (rx, tx) = (&mut from.rx[0], &mut to.tx[0]);
    rx.sync().unwrap();
    let mut done = 0;
    while done < rx.ring.available() {
        let index = rx.ring.index(done);
        // SAFETY: each slot between head and tail is looked at once.
        let mut frame = unsafe { rx.ring.frame(index) }.unwrap();
        frame.bytes_mut()[..12].copy_from_slice(macs.as_flattened());
        if !tx.ring.forward(&rx.ring, index, frame.len()) {
            break;
        }
        done += 1;
    }
    rx.ring.advance(done);
    tx.sync().unwrap();
}

#[test]
fn frames_arrive_byte_for_byte() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let mut ports = open(&lab, &["r0"]);
    let peer = lab.packets("a", "a0");
    assert_eq!(ports[0].info.mac, Some(R0));
    assert_eq!(ports[0].info.mode, "xdp, native, copy mode");
    assert_eq!((ports[0].rx.len(), ports[0].tx.len()), (1, 1));
    let sent: Vec<_> = (0..600).map(|i| frame(R0, A0, i, 60 + i as usize * 2)).collect();
    for part in sent.chunks(100) {
        part.iter().for_each(|f| peer.send(f));
        assert_eq!(collect(&mut ports[0].rx[0], part.len()), part);
    }
    let losses = ports[0].control.losses();
    assert_eq!((losses.rx_dropped, losses.rx_errors, losses.tx_errors), (0, 0, 0));
}

#[test]
fn fifty_thousand_frames_cross_by_exchanged_buffers() {
    if !allowed() {
        return;
    }
    const FRAMES: u32 = 50_000;
    let lab = Lab::new(1);
    let mut ports = open(&lab, &["r0", "r1"]);
    assert_eq!(ports[0].rx[0].ring.view().arena(), ports[1].tx[0].ring.view().arena());
    let before = census(&ports);
    let (source, sink) = (lab.packets("a", "a0"), lab.packets("b", "b0"));
    let (stop, arrived) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|s| {
        s.spawn(|| {
            let [a, b] = &mut ports[..] else { panic!("two ports") };
            while !stop.load(Ordering::Relaxed) {
                forward(a, b, [B0, R1]);
                forward(b, a, [A0, R0]);
            }
        });
        s.spawn(|| {
            for i in 0..FRAMES {
                // No more under way than fit the 256 places of a veth: then nothing may be lost.
                let start = Instant::now();
                while i - arrived.load(Ordering::Relaxed) > 200 {
                    if stop.load(Ordering::Relaxed) || start.elapsed().as_secs() >= 5 {
                        return;
                    }
                    thread::yield_now();
                }
                source.send(&frame(R0, A0, i, 60 + (i % 1400) as usize));
            }
        });
        let mut wrong = 0;
        for i in 0..FRAMES {
            let Some(got) = sink.receive() else { break };
            wrong += u32::from(got != frame(B0, R1, i, 60 + (i % 1400) as usize));
            arrived.store(i + 1, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!((arrived.load(Ordering::Relaxed), wrong), (FRAMES, 0), "arrived, and not the right ones");
        assert_eq!(sink.receive(), None, "and nothing twice");
    });
    assert_eq!(census(&ports), before);
    for port in &mut ports {
        let l = port.control.losses();
        assert_eq!((l.rx_dropped, l.rx_errors, l.tx_dropped, l.tx_errors), (0, 0, 0, 0));
    }
}

#[test]
fn a_ring_left_full_loses_packets_but_no_buffers() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let options = OpenOptions { slots: Some(64), ..OpenOptions::default() };
    let with_few = ("r0".to_owned(), options);
    let mut ports = lab.within("r", || open_all(&[with_few])).unwrap();
    let before = census(&ports);
    let peer = lab.packets("a", "a0");
    for i in 0..200 {
        peer.send(&frame(R0, A0, i, 60));
    }
    let mut got = collect(&mut ports[0].rx[0], 63);
    got.extend(drain(&mut ports[0].rx[0]));
    assert_eq!(got, (0..64).map(|i| frame(R0, A0, i, 60)).collect::<Vec<_>>());
    assert_eq!(ports[0].control.losses().rx_dropped, 200 - 64);
    assert_eq!(census(&ports), before);
    // And it goes on.
    peer.send(&frame(R0, A0, 1000, 60));
    assert_eq!(collect(&mut ports[0].rx[0], 1), [frame(R0, A0, 1000, 60)]);
    assert_eq!(census(&ports), before);
}

#[test]
fn what_is_lost_outside_the_rings_is_counted() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let mut ports = open(&lab, &["r0"]);
    let before = census(&ports);
    // Longer than a buffer, by an MTU raised later.
    sh(&format!("ip -n {} link set a0 mtu 3000", lab.ns("a")));
    sh(&format!("ip -n {} link set r0 mtu 3000", lab.ns("r")));
    ports[0].control.tend().unwrap();
    let peer = lab.packets("a", "a0");
    peer.send(&frame(R0, A0, 1, 1793));
    peer.send(&frame(R0, A0, 2, 1792));
    same(&collect(&mut ports[0].rx[0], 1), &[frame(R0, A0, 2, 1792)]);
    assert_eq!(ports[0].control.losses().rx_dropped, 1);
    // Sent to a host that has gone to sleep.
    sh(&format!("ip -n {} link set a0 down", lab.ns("a")));
    for i in 0..5 {
        assert!(ports[0].tx[0].ring.send(&frame(A0, R0, i, 60)));
    }
    flush(&mut ports[0].tx[0]);
    let losses = ports[0].control.losses();
    assert_eq!((losses.tx_dropped, losses.tx_errors, losses.rx_errors), (5, 0, 0));
    assert_eq!(census(&ports), before);
}

#[test]
fn a_lone_packet_is_pending_until_it_leaves() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let mut ports = open(&lab, &["r0"]);
    let peer = lab.packets("a", "a0");
    let tx = &mut ports[0].tx[0];
    let packet = frame(A0, R0, 1, 60);
    assert!(tx.ring.send(&packet));
    tx.sync().unwrap();
    assert!(tx.pending(), "one packet waits for company");
    flush(tx);
    assert_eq!(peer.receive(), Some(packet));
}

#[test]
fn impossible_slots_are_refused_and_their_buffers_kept() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let mut ports = open(&lab, &["r0"]);
    let before = census(&ports);
    let peer = lab.packets("a", "a0");
    let tx = &mut ports[0].tx[0];
    assert!(tx.ring.send(&[1, 2, 3]), "shorter than an Ethernet header");
    assert!(tx.ring.send(&frame(A0, R0, 7, 60)));
    flush(tx);
    assert_eq!(peer.receive(), Some(frame(A0, R0, 7, 60)));
    assert_eq!(ports[0].control.losses().tx_errors, 1);
    assert_eq!(census(&ports), before);
}

#[test]
fn the_kernel_answers_for_its_own_addresses() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let mut ports = open(&lab, &["r0"]);
    let ping = "ping -c 2 -i 0.1 -W 1 10.0.0.1";
    lab.run("a", ping);
    let up = ports[0].control.losses();
    assert!(up.passed_up >= 3 && up.passed_up_bytes >= 2 * 98 + 42, "{up:?}");
    assert!(drain(&mut ports[0].rx[0]).is_empty());
    // An address that is no longer the host's comes to the worker, and back again.
    let other: IpAddr = "203.0.113.1".parse().unwrap();
    ports[0].control.set_local(&[other]).unwrap();
    assert!(!lab.try_run("a", "ping -c 1 -W 1 10.0.0.1"));
    assert_eq!(drain(&mut ports[0].rx[0]).len(), 1);
    ports[0].control.set_local(&[other, "10.0.0.1".parse().unwrap()]).unwrap();
    lab.run("a", ping);
    assert!(drain(&mut ports[0].rx[0]).is_empty());
}

#[test]
fn a_shared_address_is_the_sockets_and_the_rings_else() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let mut ports = open(&lab, &["r0"]);
    let address = Ipv4Addr::new(10, 0, 0, 1);
    let server = lab.within("r", || TcpListener::bind("[::]:2222").unwrap());
    let _elsewhere = lab.within("r", || TcpListener::bind("10.0.1.1:2223").unwrap());
    let _forwarded = lab.within("r", || TcpListener::bind("0.0.0.0:443").unwrap());
    let names = lab.within("r", || UdpSocket::bind("0.0.0.0:5353").unwrap());
    names.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let sharing = Sharing {
        shared: vec![address],
        forwarded: vec![ForwardedPort { address, protocol: 6, port: 443 }],
        announced: vec![Ipv4Addr::new(10, 0, 0, 9)],
    };
    ports[0].control.set_sharing(&sharing).unwrap();
    // Sockets, whatever they are bound to.
    let caller = lab.within("a", || TcpStream::connect("10.0.0.1:2222").unwrap());
    let (_accepted, peer) = server.accept().unwrap();
    assert_eq!(peer.port(), caller.local_addr().unwrap().port());
    let asker = lab.within("a", || UdpSocket::bind("0.0.0.0:0").unwrap());
    asker.send_to(b"who?", "10.0.0.1:5353").unwrap();
    assert_eq!(names.recv(&mut [0; 16]).unwrap(), 4);
    assert!(drain(&mut ports[0].rx[0]).is_empty());
    // The rest: nobody's ports, those of a socket elsewhere, a forwarded one, pieces.
    let soon = Duration::from_millis(50);
    for port in [2224, 2223, 443] {
        let to = SocketAddr::from((address, port));
        assert!(lab.within("a", || TcpStream::connect_timeout(&to, soon)).is_err());
        assert_eq!(drain(&mut ports[0].rx[0]).len(), 1, "{port}");
    }
    asker.send_to(&[7; 2000], "10.0.0.1:5353").unwrap();
    assert_eq!(collect(&mut ports[0].rx[0], 2).len(), 2);
    // Who asks for an address that the rings answer for asks them.
    asker.send_to(b"?", "10.0.0.9:53").unwrap();
    let asked = collect(&mut ports[0].rx[0], 1);
    assert_eq!((&asked[0][12..14], &asked[0][38..42]), (&[8, 6][..], &[10, 0, 0, 9][..]));
    // All is the host's again.
    ports[0].control.set_sharing(&Sharing::default()).unwrap();
    asker.send_to(&[7; 2000], "10.0.0.1:5353").unwrap();
    assert_eq!(names.recv(&mut [0; 4000]).unwrap(), 2000);
}

#[test]
fn each_queue_has_its_rings() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(2);
    let mut ports = open(&lab, &["r0", "r1"]);
    assert_eq!((ports[0].rx.len(), ports[0].tx.len()), (2, 2));
    let before = census(&ports);
    let peer = lab.packets("a", "a0");
    for i in 0..100 {
        peer.send(&frame(R0, A0, i, 60));
    }
    let mut numbers = HashSet::new();
    let start = Instant::now();
    while numbers.len() < 100 && start.elapsed() < Duration::from_secs(2) {
        for queue in &mut ports[0].rx {
            numbers.extend(drain(queue).iter().map(|f| f[34..38].to_vec()));
        }
    }
    assert_eq!(numbers.len(), 100);
    for k in 0..2 {
        assert!(ports[0].tx[k].ring.send(&frame(A0, R0, k as u32, 60)));
        flush(&mut ports[0].tx[k]);
        assert_eq!(peer.receive(), Some(frame(A0, R0, k as u32, 60)));
    }
    assert_eq!(census(&ports), before);
    let options = OpenOptions { rings: Some(1), ..OpenOptions::default() };
    drop(ports);
    let e = open_error(&lab, ("r0".to_owned(), options));
    assert!(e.reason.contains("2 queues") && e.reason.contains("ethtool -L r0 combined 1"), "{e}");
}

#[test]
fn a_driver_without_xdp_is_driven_in_generic_mode() {
    if !allowed() {
        return;
    }
    // A bridge has no XDP of its own.
    let lab = Lab::new(1);
    let (r, m0) = (lab.ns("r"), [2, 0, 0, 0, 0, 0x30]);
    sh(&format!("ip -n {r} link add m0 address {} type bridge forward_delay 0", mac(m0)));
    sh(&format!("ip -n {r} link set r0 master m0"));
    sh(&format!("ip -n {r} link set m0 up"));
    let start = Instant::now();
    while lab.run("r", "cat /sys/class/net/m0/operstate").trim() != "up" {
        assert!(start.elapsed() < Duration::from_secs(5), "the bridge gets no carrier");
        thread::sleep(Duration::from_millis(20));
    }
    let gro = || lab.within("r", || ethtool("m0", GET_GRO, 0));
    assert_eq!(gro(), 1);
    let mut ports = open(&lab, &["m0", "r1"]);
    assert_eq!(ports[0].info.mode, "xdp, generic, copy mode");
    assert_eq!(ports[1].info.mode, "xdp, native, copy mode");
    assert_eq!(ports[0].rx[0].ring.view().arena(), ports[1].rx[0].ring.view().arena());
    let before = census(&ports);
    let peer = lab.packets("a", "a0");
    for i in 0..500 {
        peer.send(&frame(m0, A0, i, 60 + i as usize));
        assert_eq!(collect(&mut ports[0].rx[0], 1), [frame(m0, A0, i, 60 + i as usize)]);
        assert!(ports[0].tx[0].ring.send(&frame(A0, m0, i, 60)));
        flush(&mut ports[0].tx[0]);
    }
    // The bridge itself also says something now and then.
    let ours = |f: &Vec<u8>| f[6..12] == m0 && f[12..14] == [8, 0] && f[23] == 253;
    let own: Vec<_> = std::iter::from_fn(|| peer.receive()).filter(ours).collect();
    same(&own, &(0..500).map(|i| frame(A0, m0, i, 60)).collect::<Vec<_>>());
    assert_eq!(census(&ports), before);
    assert_eq!(gro(), 0);
    drop(ports);
    assert_eq!(gro(), 1, "as it was");
}

#[test]
fn tcp_and_udp_cross_both_ways() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    for (ns, interface) in [("a", "a0"), ("b", "b0")] {
        lab.within(ns, || ethtool(interface, SET_TX_CHECKSUM, 0));
    }
    let mut ports = open(&lab, &["r0", "r1"]);
    let before = census(&ports);
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            let [a, b] = &mut ports[..] else { panic!("two ports") };
            while !stop.load(Ordering::Relaxed) {
                forward(a, b, [B0, R1]);
                forward(b, a, [A0, R0]);
            }
        });
        let echo = lab.within("b", || TcpListener::bind("10.0.1.2:7").unwrap());
        // Nobody may come.
        setsockopt(&echo, ReceiveTimeout, &TimeVal::new(5, 0)).unwrap();
        s.spawn(move || {
            let Ok((mut stream, _)) = echo.accept() else { return };
            let mut back = stream.try_clone().unwrap();
            let _ = std::io::copy(&mut stream, &mut back);
        });
        let bytes: Vec<u8> = (0..8_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let result = lab.within("a", || {
            let timeout = Duration::from_secs(5);
            let stream = TcpStream::connect_timeout(&"10.0.1.2:7".parse().unwrap(), timeout)?;
            stream.set_read_timeout(Some(timeout))?;
            let (mut out, mut back, mut got) = (stream.try_clone()?, stream, vec![0; bytes.len()]);
            thread::scope(|s| {
                s.spawn(|| out.write_all(&bytes).and_then(|()| out.shutdown(Shutdown::Write)));
                back.read_exact(&mut got).map(|()| got == bytes)
            })
        });
        let [here, there] = ["a", "b"].map(|ns| {
            let socket = lab.within(ns, || UdpSocket::bind("0.0.0.0:4000").unwrap());
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            socket
        });
        let mut datagram = [0; 2000];
        // The second one leaves in two fragments.
        let udp: Vec<_> = [&[1; 100][..], &[2; 1900]]
            .map(|payload| {
                here.send_to(payload, "10.0.1.2:4000").unwrap();
                let n = there.recv(&mut datagram).unwrap_or(0);
                datagram[..n] == *payload
            })
            .to_vec();
        stop.store(true, Ordering::Relaxed);
        assert!(result.expect("8 MB go and come back by TCP"), "the same bytes");
        assert_eq!(udp, [true, true]);
    });
    assert_eq!(census(&ports), before);
}

#[test]
fn vlans_that_are_named_come_to_the_rings() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let options = OpenOptions { vlans: vec![100], ..OpenOptions::default() };
    let mut ports = lab.within("r", || open_all(&[("r0".to_owned(), options)])).unwrap();
    let peer = lab.packets("a", "a0");
    let tagged = |vid: u16, number| {
        let mut f = frame(R0, A0, number, 60);
        f.splice(12..12, [0x81, 0, (vid >> 8) as u8, vid as u8]);
        f
    };
    let up = ports[0].control.losses().passed_up;
    for (vid, number) in [(100, 1), (101, 2), (0, 3), (100, 4)] {
        peer.send(&tagged(vid, number));
    }
    assert_eq!(collect(&mut ports[0].rx[0], 3), [tagged(100, 1), tagged(0, 3), tagged(100, 4)]);
    assert_eq!(ports[0].control.losses().passed_up, up + 1);
}
