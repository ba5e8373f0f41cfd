//! The TUN device that hands packets up to the host, in namespaces of the test's own. Needs root.
#![cfg(target_os = "linux")]

mod common;

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::Ordering,
    time::Duration,
};

use common::{A0, Lab, R0, allowed, sh};
use netmap::device::tun;

/// An Ethernet frame with `tags` before a UDP datagram from 198.51.100.9 to `to`, port 4000.
fn datagram(to: [u8; 4], tags: &[u8], payload: &[u8]) -> Vec<u8> {
    let total = (28 + payload.len()) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(total.to_be_bytes());
    ip.extend([0, 1, 0, 0, 64, 17, 0, 0, 198, 51, 100, 9]);
    ip.extend(to);
    let sum: u32 = ip.as_chunks::<2>().0.iter().map(|w| u32::from(u16::from_be_bytes(*w))).sum();
    let sum = !((sum >> 16) + (sum & 0xffff)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut f = [R0, A0].concat();
    f.extend(tags);
    f.extend([8, 0]);
    f.extend(ip);
    f.extend([0x30, 0x39, 0x0f, 0xa0]);
    f.extend((total - 20).to_be_bytes());
    f.extend([0, 0]);
    f.extend(payload);
    f
}

#[test]
fn packets_reach_the_hosts_sockets() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    lab.run("r", "for i in all default; do echo 0 >/proc/sys/net/ipv6/conf/$i/disable_ipv6; done");
    let mut tun = lab.within("r", || tun::open("up%d", 1400)).unwrap();
    assert_eq!(tun.interface, "up0");
    let link = sh(&format!("ip -n {} -d addr show up0", lab.ns("r")));
    assert!(link.contains("mtu 1400") && link.contains(",UP") && !link.contains("inet6"), "{link}");
    for (setting, value) in [("ipv4/conf/up0/rp_filter", "0"), ("ipv6/conf/up0/addr_gen_mode", "1")] {
        assert_eq!(lab.run("r", &format!("cat /proc/sys/net/{setting}")).trim(), value, "{setting}");
    }
    let socket = lab.within("r", || UdpSocket::bind("0.0.0.0:4000").unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    // Many times around the ring, with tags and without, and now and then something else.
    for i in 0..1000u32 {
        let tags: &[u8] = if i % 2 == 0 { &[] } else { &[0x81, 0, 0, 100] };
        let payload = i.to_be_bytes().repeat(1 + i as usize % 300);
        assert!(tun.queue.ring.send(&datagram([10, 0, 0, 1], tags, &payload)));
        if i % 100 == 0 {
            assert!(tun.queue.ring.send(&[0; 60]), "no IP");
        }
        tun.queue.sync().unwrap();
        let mut got = [0; 2048];
        let (n, from) = socket.recv_from(&mut got).unwrap();
        assert_eq!(got[..n], payload, "datagram {i}");
        assert_eq!(from, SocketAddr::new(IpAddr::from([198, 51, 100, 9]), 12345));
    }
    assert_eq!(tun.refused.load(Ordering::Relaxed), 10);
    assert_eq!(tun.queue.ring.space(), tun.queue.ring.view().num_slots() - 1);
    drop(tun);
    assert!(!lab.try_run("r", "ip link show up0"), "the interface goes with the queue");
}

#[test]
fn what_the_host_sends_there_is_thrown_away() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let mut tun = lab.within("r", || tun::open("up0", 1500)).unwrap();
    lab.run("r", "ip route add 203.0.113.0/24 dev up0");
    let out = lab.within("r", || UdpSocket::bind("0.0.0.0:0").unwrap());
    let socket = lab.within("r", || UdpSocket::bind("0.0.0.0:4000").unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    for i in 0..2000u32 {
        out.send_to(&[1], "203.0.113.7:9").unwrap();
        assert!(tun.queue.ring.send(&datagram([10, 0, 0, 1], &[], &i.to_be_bytes())));
        tun.queue.sync().unwrap();
        let mut got = [0; 8];
        assert_eq!(socket.recv(&mut got).unwrap(), 4);
        assert_eq!(got[..4], i.to_be_bytes());
    }
    // Four times what its queue holds was sent there; nothing had to be dropped.
    let dropped = lab.run("r", "cat /sys/class/net/up0/statistics/tx_dropped");
    assert_eq!(dropped.trim(), "0");
}

#[test]
fn a_deleted_interface_is_gone() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let mut tun = lab.within("r", || tun::open("up0", 1500)).unwrap();
    lab.run("r", "ip link set up0 down");
    assert!(tun.queue.ring.send(&datagram([10, 0, 0, 1], &[], &[1])));
    tun.queue.sync().unwrap();
    assert_eq!(tun.refused.load(Ordering::Relaxed), 1, "down is no error, but nothing gets through");
    lab.run("r", "ip link del up0");
    assert!(tun.queue.ring.send(&datagram([10, 0, 0, 1], &[], &[1])));
    let error = tun.queue.sync().unwrap_err();
    assert!(error.is_gone(), "{error}");
}

#[test]
fn what_cannot_be_made_says_what_to_do() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let open = |name: &str| lab.within("r", || tun::open(name, 1500)).err().map(|e| e.to_string());
    let e = open("r0").unwrap();
    assert!(e.starts_with("tun:r0: "), "{e}");
    let _held = lab.within("r", || tun::open("up0", 1500)).unwrap();
    assert!(open("up0").unwrap().contains("in use"));
    assert!(open("").unwrap().contains("no name for an interface"));
    lab.run("r", "echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter");
    let e = open("up1").unwrap();
    assert!(e.contains("net.ipv4.conf.all.rp_filter is 1") && e.contains("set it to 0"), "{e}");
    lab.run("r", "echo 2 >/proc/sys/net/ipv4/conf/all/rp_filter");
    assert_eq!(open("up1"), None, "the loose filter lets these packets through");
    let e = lab.within("r", || {
        // SAFETY: no memory is involved; the raw call changes this thread alone.
        unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        tun::open("up2", 1500).err().unwrap()
    });
    assert!(e.reason.contains("run as root or give CAP_NET_ADMIN"), "{e}");
}
