//! Network namespaces of the test's own, and the far ends of interfaces in them: whole frames in and
//! out.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    process::Command,
    sync::mpsc,
    thread,
};

use nix::{
    sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare},
    sys::socket::{
        AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, SockaddrLike, bind, setsockopt, socket,
        sockopt::RcvBufForce,
    },
    unistd::{Pid, gettid},
};

/// A network namespace: a thread in it that does what it is told, as long as the process lives.
pub struct Namespace {
    orders: mpsc::Sender<Box<dyn FnOnce() + Send>>,
    /// A thread in it.
    pub thread: Pid,
}

impl Namespace {
    pub fn new() -> Self {
        let (orders, jobs) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (ready, thread) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            ready.send(gettid()).unwrap();
            jobs.into_iter().for_each(|job| job());
        });
        Self { orders, thread: thread.recv().unwrap() }
    }

    /// Runs `f` there.
    pub fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let (give, take) = mpsc::channel();
        self.orders.send(Box::new(move || drop(give.send(f())))).unwrap();
        take.recv().expect("it does not panic")
    }

    /// Runs lines of the shell's there, which must succeed.
    #[track_caller]
    pub fn sh(&self, lines: &str) -> String {
        let lines = format!("set -e\n{lines}");
        let out = self.run(move || command("sh").args(["-c", &lines]).output());
        let out = out.unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
        text
    }
}

/// A command of the system's tools.
pub fn command(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let mut command = Command::new(name);
    command.env("PATH", path).env("LC_ALL", "C");
    command
}

/// The far end of a port: whole frames in and out.
pub struct FarEnd(File);

impl FarEnd {
    pub fn open(interface: &str) -> Self {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll).unwrap();
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: nix::net::if_::if_nametoindex(interface).unwrap() as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the address is alive and of the length given.
        let address = unsafe {
            LinkAddr::from_raw((&raw const address).cast(), Some(size_of_val(&address) as libc::socklen_t))
        };
        bind(fd.as_raw_fd(), &address.unwrap()).unwrap();
        setsockopt(&fd, RcvBufForce, &(8 << 20)).unwrap();
        Self(File::from(fd))
    }

    pub fn send(&mut self, frame: &[u8]) {
        let n = self.0.write(frame).unwrap_or_else(|e| panic!("{} bytes: {e}", frame.len()));
        assert_eq!(n, frame.len());
    }

    /// The next frame that has come.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let mut bytes = [0; 2048];
        match self.0.read(&mut bytes) {
            Ok(n) => Some(bytes[..n].to_vec()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
            Err(e) => panic!("a far end: {e}"),
        }
    }
}

impl AsFd for FarEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What the router's kernel says without having been asked: multicast listener reports, IGMP, router
/// solicitations; and its questions for neighbours.
pub fn is_chatter(frame: &[u8]) -> bool {
    let byte = |at: usize| frame.get(at).copied().unwrap_or(0);
    match (byte(0), byte(12), byte(13)) {
        (0x33, 0x86, 0xdd) if byte(20) == 0 => byte(54) == 58,
        (0x33, 0x86, 0xdd) => byte(20) == 58 && [133, 135, 143].contains(&byte(54)),
        (0x01, 0x08, 0x00) => byte(23) == 2,
        (0xff, 0x08, 0x06) => byte(21) == 1,
        _ => false,
    }
}

/// As the tools want it.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Keeps the thread on one core while it lives, so that the kernel takes its frames in order.
pub struct Pinned(CpuSet);

impl Pinned {
    pub fn new() -> Self {
        let this = Pid::from_raw(0);
        let before = sched_getaffinity(this).unwrap();
        let mut one = CpuSet::new();
        let first = (0..CpuSet::count()).find(|cpu| before.is_set(*cpu).unwrap()).unwrap();
        one.set(first).unwrap();
        sched_setaffinity(this, &one).unwrap();
        Self(before)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}
