//! Network namespaces of the test's own, and the far ends of interfaces in them: whole frames in and
//! out.

use std::{
    fs::File,
    io::{self, Write},
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
        let (on, len) = (1 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: the value is alive and of the length given.
        let set = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_AUXDATA,
                (&raw const on).cast(),
                len,
            )
        };
        assert_eq!(set, 0);
        Self(File::from(fd))
    }

    pub fn send(&mut self, frame: &[u8]) {
        let n = self.0.write(frame).unwrap_or_else(|e| panic!("{} bytes: {e}", frame.len()));
        assert_eq!(n, frame.len());
    }

    /// The next frame that has come, with all its tags: the kernel takes the first one out of it and
    /// hands it over beside the frame.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let (mut bytes, mut beside) = ([0u8; 2048], [0u64; 16]);
        let mut place = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all zeroes are a message without anything.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut place, 1);
        (message.msg_control, message.msg_controllen) =
            (beside.as_mut_ptr().cast(), size_of_val(&beside) as _);
        // SAFETY: the message leads to memory that is alive, of the lengths given.
        let n = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, 0) };
        let n = match usize::try_from(n) {
            Ok(n) => n,
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => panic!("a far end: {}", io::Error::last_os_error()),
        };
        let mut frame = bytes[..n].to_vec();
        // SAFETY: the kernel has filled the message in.
        let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() };
        if let Some(first) = first
            && (first.cmsg_level, first.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA)
        {
            // SAFETY: that is what such a header has behind it.
            let data = unsafe { libc::CMSG_DATA(first).cast::<libc::tpacket_auxdata>().read_unaligned() };
            if data.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                let tag = [data.tp_vlan_tpid.to_be_bytes(), data.tp_vlan_tci.to_be_bytes()];
                frame.splice(12..12, tag.concat());
            }
        }
        Some(frame)
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
    // Behind whatever tags there are.
    if frame.len() >= 18 && matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]) {
        return is_chatter(&[&frame[..12], &frame[16..]].concat());
    }
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
