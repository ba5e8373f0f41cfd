//! Network namespaces and plain packet sockets for the tests on real interfaces.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod rings;

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

/// Whether the tests can make namespaces; says so when not.
pub fn allowed() -> bool {
    // SAFETY: no arguments, cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("skipped: needs root");
    }
    root
}

/// Runs a command line that must succeed; gives what it printed.
pub fn sh(line: &str) -> String {
    let out = Command::new("sh").arg("-c").arg(line).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{line}: {text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

/// Whether a command line succeeds.
pub fn succeeds(line: &str) -> bool {
    Command::new("sh").arg("-c").arg(line).output().unwrap().status.success()
}

pub const R0: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
pub const R1: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
pub const A0: [u8; 6] = [2, 0, 0, 0, 0, 0x20];
pub const B0: [u8; 6] = [2, 0, 0, 0, 0, 0x21];

/// A router between two hosts: `a0`–`r0` and `r1`–`b0`, 10.0.0.2–10.0.0.1 and 10.0.1.1–10.0.1.2.
/// Gone when dropped.
pub struct Lab {
    name: String,
}

impl Lab {
    /// Makes the namespaces; `queues` receive and transmit queues on each interface.
    pub fn new(queues: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let lab = Self { name: format!("xdp_{}_{n}", std::process::id()) };
        for part in ["a", "b", "r"] {
            sh(&format!("ip netns add {}", lab.ns(part)));
            lab.run(part, "for i in all default; do echo 1 >/proc/sys/net/ipv6/conf/$i/disable_ipv6; done");
        }
        let q = format!("numrxqueues {queues} numtxqueues {queues}");
        let (a, b, r) = (lab.ns("a"), lab.ns("b"), lab.ns("r"));
        sh(&format!(
            "ip -n {r} link add r0 address {} {q} type veth peer name a0 address {} {q} netns {a}",
            mac(R0),
            mac(A0)
        ));
        sh(&format!(
            "ip -n {r} link add r1 address {} {q} type veth peer name b0 address {} {q} netns {b}",
            mac(R1),
            mac(B0)
        ));
        for (ns, interface, address) in [
            (&r, "r0", "10.0.0.1/24"),
            (&r, "r1", "10.0.1.1/24"),
            (&a, "a0", "10.0.0.2/24"),
            (&b, "b0", "10.0.1.2/24"),
        ] {
            sh(&format!("ip -n {ns} addr add {address} dev {interface}"));
            sh(&format!("ip -n {ns} link set {interface} up"));
        }
        sh(&format!("ip -n {a} route add default via 10.0.0.1"));
        sh(&format!("ip -n {b} route add default via 10.0.1.1"));
        lab
    }

    /// The namespace `a`, `b` or `r`.
    pub fn ns(&self, part: &str) -> String {
        format!("{}_{part}", self.name)
    }

    /// Runs a command line in a namespace; it must succeed.
    pub fn run(&self, part: &str, line: &str) -> String {
        sh(&self.line(part, line))
    }

    /// Whether a command line succeeds in a namespace.
    pub fn try_run(&self, part: &str, line: &str) -> bool {
        succeeds(&self.line(part, line))
    }

    fn line(&self, part: &str, line: &str) -> String {
        format!("ip netns exec {} sh -c '{line}'", self.ns(part))
    }

    /// Calls `f` on a thread in a namespace.
    pub fn within<T: Send>(&self, part: &str, f: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}", self.ns(part));
        thread::scope(|s| {
            s.spawn(|| {
                enter(&path);
                f()
            })
            .join()
            .unwrap()
        })
    }

    /// A packet socket on an interface in a namespace.
    pub fn packets(&self, part: &str, interface: &str) -> Packets {
        self.within(part, || Packets::open(interface))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for part in ["a", "b", "r"] {
            let _ = Command::new("ip").args(["netns", "del", &self.ns(part)]).output();
        }
    }
}

/// Moves the calling thread to a namespace.
pub fn enter(path: &str) {
    let file = std::fs::File::open(path).unwrap();
    nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
}

/// A MAC address as people write it.
pub fn mac(m: [u8; 6]) -> String {
    m.map(|b| format!("{b:02x}")).join(":")
}

/// Asks (or tells) a driver in the calling thread's namespace, as ethtool does.
pub fn ethtool(interface: &str, command: u32, data: u32) -> u32 {
    let mut value = [command, data];
    // SAFETY: zeroes are fine for integers and a null pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: the request and the value are alive.
    let r = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    assert_eq!(r, 0, "{interface}: {}", io::Error::last_os_error());
    value[1]
}

/// Which of the older offloads are on?
pub const GET_FLAGS: u32 = 0x25;
/// That the device cuts VLAN tags off.
pub const FLAG_RX_VLAN: u32 = 1 << 8;
/// Is GRO on?
pub const GET_GRO: u32 = 0x2b;
/// Let the kernel finish checksums itself (0), or the device (1).
pub const SET_TX_CHECKSUM: u32 = 0x17;

/// A packet socket: whole frames in and out of one interface.
pub struct Packets(OwnedFd);

impl Packets {
    fn open(interface: &str) -> Self {
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, all.into()) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: zeroes are fine for integers.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        let name = std::ffi::CString::new(interface).unwrap();
        // SAFETY: the name is alive and ends with 0; the other calls name live memory and its size.
        unsafe {
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            let n = size_of_val(&address) as u32;
            assert_eq!(libc::bind(fd.as_raw_fd(), (&raw const address).cast(), n), 0);
            let wait = libc::timeval { tv_sec: 0, tv_usec: 300_000 };
            let n = size_of_val(&wait) as u32;
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const wait).cast(),
                n,
            );
            let buffer = 32 << 20;
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const buffer).cast(),
                4,
            );
        }
        Self(fd)
    }

    /// Sends a frame.
    pub fn send(&self, frame: &[u8]) {
        // SAFETY: the frame is alive.
        let n = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(n, frame.len() as isize, "{}", io::Error::last_os_error());
    }

    /// The next frame that arrives (not one that leaves); `None` after 300 ms without any.
    pub fn receive(&self) -> Option<Vec<u8>> {
        loop {
            let mut frame = vec![0u8; 4096];
            // SAFETY: zeroes are fine for integers.
            let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            let mut len = size_of_val(&from) as u32;
            // SAFETY: buffer and address are alive and of the lengths given.
            let n = unsafe {
                libc::recvfrom(
                    self.0.as_raw_fd(),
                    frame.as_mut_ptr().cast(),
                    frame.len(),
                    0,
                    (&raw mut from).cast(),
                    &raw mut len,
                )
            };
            if n < 0 {
                return None;
            }
            if from.sll_pkttype != libc::PACKET_OUTGOING {
                frame.truncate(n as usize);
                return Some(frame);
            }
        }
    }
}
