//! Frames that a host receives, seen by a packet socket behind a filter of its own, so that none is
//! lost among many others.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;

use crate::net::Lab;

/// A step of a filter: BPF as packet sockets take it.
pub type Step = libc::sock_filter;

/// An instruction; the jumps are distances from the next one.
const fn step(code: u32, jt: u8, jf: u8, k: u32) -> Step {
    Step { code: code as u16, jt, jf, k }
}

const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const GIVE: u32 = libc::BPF_RET | libc::BPF_K;
const ALL: u32 = 0xffff;

/// IPv4 from 10.0.1.0/24, and UDP to this port, in frames without options.
pub fn private_or_to(port: u16) -> [Step; 11] {
    [
        step(LOAD_HALF, 0, 0, 12),
        step(EQUAL, 0, 8, 0x0800),
        step(LOAD_WORD, 0, 0, 26),
        step(AND, 0, 0, 0xffff_ff00),
        step(EQUAL, 4, 0, 0x0a00_0100),
        step(LOAD_BYTE, 0, 0, 23),
        step(EQUAL, 0, 3, 17),
        step(LOAD_HALF, 0, 0, 36),
        step(EQUAL, 0, 1, port.into()),
        step(GIVE, 0, 0, ALL),
        step(GIVE, 0, 0, 0),
    ]
}

/// ARP packets.
pub const ARP: [Step; 4] =
    [step(LOAD_HALF, 0, 0, 12), step(EQUAL, 0, 1, 0x0806), step(GIVE, 0, 0, ALL), step(GIVE, 0, 0, 0)];

/// What has been seen so far.
pub struct Capture {
    frames: Arc<Mutex<Vec<Vec<u8>>>>,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    /// Sees what passes `filter` among all that the host's interfaces receive, and send.
    pub fn start(lab: &Lab, host: u32, filter: &[Step]) -> Self {
        let socket = lab.in_host(host, || open(filter).unwrap());
        let (frames, done) = (Arc::<Mutex<Vec<Vec<u8>>>>::default(), Arc::new(AtomicBool::new(false)));
        let (list, until) = (frames.clone(), done.clone());
        let thread = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                let mut frame = vec![0; 2048];
                if let Ok(n) = nix::sys::socket::recv(
                    socket.as_raw_fd(),
                    &mut frame,
                    nix::sys::socket::MsgFlags::empty(),
                ) {
                    frame.truncate(n);
                    list.lock().push(frame);
                }
            }
        });
        Self { frames, done, thread: Some(thread) }
    }

    /// Forgets what has been seen.
    pub fn forget(&self) {
        self.frames.lock().clear();
    }

    /// How many frames have been seen since.
    pub fn count(&self) -> usize {
        self.frames.lock().len()
    }

    /// The frames seen since.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        self.frames.lock().clone()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A packet socket for all frames of the calling thread's namespace that pass `filter`.
fn open(filter: &[Step]) -> io::Result<OwnedFd> {
    // It hears nothing until the filter is there.
    // SAFETY: a call without memory.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let wait = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
    // SAFETY: zeroes are fine for integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    let set = |option, value: *const libc::c_void, len: usize| {
        // SAFETY: each caller names live memory of the option's type, and its size.
        let r = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, value, len as u32) };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    set(libc::SO_ATTACH_FILTER, (&raw const program).cast(), size_of_val(&program))?;
    set(libc::SO_RCVTIMEO, (&raw const wait).cast(), size_of_val(&wait))?;
    // SAFETY: a live address and its size.
    let r = unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}
