//! Following Linux by rtnetlink. News come through one socket, listings through another, so that
//! a listing of a million routes cannot push news out of the queue; requests about neighbours go
//! through a third. News that get lost all the same (ENOBUFS) are reported as an overrun.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        socket::{MsgFlags, recv, setsockopt, sockopt},
    },
};

use super::{
    Care, Follow, Index, KernelCommands, KernelEvent, KernelSource, Opened, Part, Parts, Report,
    parse::{self, HEADER},
    request,
};

/// Room for news that wait in the kernel, in bytes.
const RECEIVE_BUFFER: usize = 64 << 20;
/// Room for one datagram of the kernel's, in bytes; its listings use 32 KiB.
const DATAGRAM: usize = 256 << 10;
/// News (one in each datagram) that are read before a listing gets its turn. A listing then gets
/// one datagram, of some 500 routes: news that have come meanwhile wait no longer than these take.
const TURN: usize = 64;
/// Interrupted listings in a row before an incomplete one is passed on.
const TRIES: u32 = 5;
/// Bytes of a message that is not understood that a log shows.
const MOST_TOLD: usize = 128;
/// Wait before a listing is tried again.
const RETRY: Duration = Duration::from_millis(200);

const NLM_F_DUMP_INTR: u16 = 0x10;
const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
const NLMSG_NOOP: u16 = libc::NLMSG_NOOP as u16;
const NLMSG_OVERRUN: u16 = libc::NLMSG_OVERRUN as u16;

const GROUPS: [u32; 7] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_NEXTHOP,
];

/// What both sides share.
struct Shared {
    /// Rung when there is something to do for the listening thread.
    bell: EventFd,
    wanted: AtomicU8,
    stop: AtomicBool,
    unparsed: AtomicU64,
}

/// A listing under way.
#[derive(Debug)]
struct Listing {
    part: Part,
    sequence: u32,
    interrupted: bool,
}

/// The listening side.
struct LinuxSource {
    news: Socket,
    listings: Socket,
    shared: Arc<Shared>,
    table: Option<u32>,
    pending: Parts,
    current: Option<Listing>,
    sequence: u32,
    failures: u32,
    retry_at: Option<Instant>,
    buffer: Vec<u8>,
}

/// The asking side.
struct LinuxCommands {
    socket: Socket,
    sequence: AtomicU32,
    shared: Arc<Shared>,
}

/// Opens the kernel's news. Ask for [`Parts::ALL`] to be listed to begin with.
///
/// # Errors
/// The system's.
pub fn open(follow: Follow) -> io::Result<Opened> {
    open_with_room(follow, RECEIVE_BUFFER)
}

/// As [`open`], with this much room for news that wait in the kernel, in bytes.
///
/// # Errors
/// The system's.
pub fn open_with_room(follow: Follow, room: usize) -> io::Result<Opened> {
    let news = socket()?;
    make_room(&news, room);
    // A group that an old kernel lacks (next hop objects) is no reason to stop.
    for group in GROUPS {
        if let Err(e) = news.add_membership(group)
            && group != libc::RTNLGRP_NEXTHOP
        {
            return Err(e);
        }
    }
    let shared = Arc::new(Shared {
        bell: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        wanted: AtomicU8::new(0),
        stop: AtomicBool::new(false),
        unparsed: AtomicU64::new(0),
    });
    let source = LinuxSource {
        news,
        listings: socket()?,
        shared: shared.clone(),
        table: follow.table,
        pending: Parts::default(),
        current: None,
        sequence: 0,
        failures: 0,
        retry_at: None,
        buffer: vec![0; DATAGRAM],
    };
    let commands = LinuxCommands { socket: socket()?, sequence: AtomicU32::new(1), shared };
    Ok((Box::new(source), Box::new(commands)))
}

fn socket() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

/// As much room for waiting news as the kernel gives.
fn make_room(socket: &Socket, room: usize) {
    // Without the privilege, up to the system's limit.
    if setsockopt(socket, sockopt::RcvBufForce, &room).is_err()
        && let Err(e) = setsockopt(socket, sockopt::RcvBuf, &room)
    {
        log::warn!("rtnetlink: the receive buffer stays small ({e}); news may be lost and listed again");
    }
}

/// Empties a bell that has been rung.
fn silence(bell: &EventFd) {
    while bell.read().is_ok() {}
}

impl KernelSource for LinuxSource {
    fn wait(&mut self, out: &mut Vec<Report>) -> io::Result<bool> {
        while out.is_empty() {
            if self.shared.stop.load(Ordering::Acquire) {
                return Ok(false);
            }
            self.take_wishes();
            self.begin_listing(out);
            if !out.is_empty() {
                break;
            }
            let timeout = match self.retry_at {
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
                }
                None => PollTimeout::NONE,
            };
            let mut fds = [&self.news.as_fd(), &self.listings.as_fd(), &self.shared.bell.as_fd()]
                .map(|fd: &BorrowedFd| PollFd::new(*fd, PollFlags::POLLIN));
            match poll(&mut fds, timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
            let [news, listings, bell] = fds.map(|fd| fd.any().unwrap_or(false));
            if bell {
                silence(&self.shared.bell);
            }
            if news {
                self.read_news(out)?;
            }
            if listings {
                self.read_listing(out)?;
            }
        }
        Ok(true)
    }
}

impl LinuxSource {
    /// Takes over what the keeper asked for.
    fn take_wishes(&mut self) {
        let wanted = Parts(self.shared.wanted.swap(0, Ordering::AcqRel));
        self.pending = self.pending.with(wanted);
    }

    /// Sends the next request for a listing, when none is under way.
    fn begin_listing(&mut self, out: &mut Vec<Report>) {
        if self.current.is_some() || self.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        self.retry_at = None;
        let Some(part) = self.pending.take_first() else { return };
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request::list(part, self.sequence);
        match self.listings.send(&bytes, 0) {
            Ok(_) => {
                self.current = Some(Listing { part, sequence: self.sequence, interrupted: false });
                out.push(Report { listed: true, event: KernelEvent::DumpBegin(part) });
            }
            Err(e) => {
                log::debug!("rtnetlink: cannot ask for {part:?}: {e}; trying again");
                self.try_again(part);
            }
        }
    }

    fn try_again(&mut self, part: Part) {
        self.pending = self.pending.with(part.into());
        self.retry_at = Some(Instant::now() + RETRY);
    }

    /// Reads the news that wait.
    fn read_news(&mut self, out: &mut Vec<Report>) -> io::Result<()> {
        for _ in 0..TURN {
            match receive(&self.news, &mut self.buffer) {
                Ok(Some(len)) => {
                    if for_each_message(&self.buffer[..len], |header, payload| {
                        self.shared.report(header, payload, self.table, false, out);
                    })
                    .is_err()
                    {
                        self.shared.count_unparsed();
                    }
                }
                Ok(None) => return Ok(()),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    out.push(Report { listed: false, event: KernelEvent::Overrun });
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads one of the answers to the request under way.
    fn read_listing(&mut self, out: &mut Vec<Report>) -> io::Result<()> {
        let len = match receive(&self.listings, &mut self.buffer) {
            Ok(Some(len)) => len,
            Ok(None) => return Ok(()),
            // Answers were lost: the listing is not complete.
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                if let Some(current) = &mut self.current {
                    current.interrupted = true;
                }
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let Some(mut current) = self.current.take() else { return Ok(()) };
        let mut end = None;
        let whole = for_each_message(&self.buffer[..len], |header, payload| {
            if header.sequence != current.sequence {
                return;
            }
            current.interrupted |= header.flags & NLM_F_DUMP_INTR != 0;
            match header.kind {
                NLMSG_DONE => end = Some(0),
                NLMSG_ERROR => end = Some(error_of(payload)),
                NLMSG_NOOP | NLMSG_OVERRUN => {}
                _ => self.shared.report(header, payload, self.table, true, out),
            }
        });
        if whole.is_err() {
            self.shared.count_unparsed();
            current.interrupted = true;
        }
        match end {
            Some(error) => self.end_listing(&current, error, out),
            None => self.current = Some(current),
        }
        Ok(())
    }

    fn end_listing(&mut self, listing: &Listing, error: i32, out: &mut Vec<Report>) {
        let part = listing.part;
        // A kernel without next hop objects has none to list.
        let lacking = part == Part::NextHops && matches!(error, libc::EOPNOTSUPP | libc::EINVAL);
        if !listing.interrupted && (error == 0 || lacking) {
            self.failures = 0;
            log::debug!("rtnetlink: {part:?} listed");
            out.push(Report { listed: true, event: KernelEvent::DumpEnd { part, complete: true } });
            return;
        }
        self.failures += 1;
        log::debug!("rtnetlink: listing {part:?} was interrupted (error {error}); listing it again");
        if self.failures.is_multiple_of(TRIES) {
            out.push(Report { listed: true, event: KernelEvent::DumpEnd { part, complete: false } });
        }
        self.pending = self.pending.with(part.into());
        if self.failures > 1 {
            self.retry_at = Some(Instant::now() + RETRY);
        }
    }
}

/// The error in an `NLMSG_ERROR`; 0 for an acknowledgement.
pub(super) fn error_of(payload: &[u8]) -> i32 {
    let code = payload.get(..4).and_then(|b| b.try_into().ok()).map_or(-libc::EIO, i32::from_ne_bytes);
    code.saturating_neg()
}

/// Receives one datagram; `None` if none waits. A datagram larger than the buffer counts as lost.
pub(super) fn receive(socket: &Socket, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC) {
        Ok(len) if len > buffer.len() => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
        Ok(len) => Ok(Some(len)),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Calls `each` with every message of a datagram.
pub(super) fn for_each_message(
    mut bytes: &[u8],
    mut each: impl FnMut(parse::Header, &[u8]),
) -> Result<(), parse::Malformed> {
    while !bytes.is_empty() {
        let header = parse::header(bytes)?;
        each(header, &bytes[HEADER..header.len]);
        bytes = bytes.get(header.len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(())
}

impl Shared {
    fn report(
        &self,
        header: parse::Header,
        payload: &[u8],
        table: Option<u32>,
        listed: bool,
        out: &mut Vec<Report>,
    ) {
        match parse::message(header, payload, table) {
            Ok(Some(event)) => out.push(Report { listed, event }),
            Ok(None) => {}
            Err(parse::Malformed) => {
                let some = &payload[..payload.len().min(MOST_TOLD)];
                log::debug!(
                    "rtnetlink: not understood: type {}, {} bytes: {some:02x?}",
                    header.kind,
                    payload.len()
                );
                self.count_unparsed();
            }
        }
    }

    fn count_unparsed(&self) {
        self.unparsed.fetch_add(1, Ordering::Relaxed);
    }

    fn ring(&self) {
        // A bell that is full rings anyway.
        let _ = self.bell.write(1);
    }
}

impl KernelCommands for LinuxCommands {
    fn list(&self, parts: Parts) {
        self.shared.wanted.fetch_or(parts.0, Ordering::AcqRel);
        self.shared.ring();
    }

    fn resolve(&self, index: Index, address: IpAddr, care: Care) -> io::Result<()> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        self.socket.send(&request::resolve(index, address, care, sequence), 0)?;
        // The kernel has answered before send() returns, if there is anything to complain about.
        let mut buffer = [0; 4096];
        let mut result = Ok(());
        while let Some(len) = receive(&self.socket, &mut buffer)? {
            let _ = for_each_message(&buffer[..len], |header, payload| {
                if header.kind == NLMSG_ERROR && header.sequence == sequence && error_of(payload) != 0 {
                    result = Err(io::Error::from_raw_os_error(error_of(payload)));
                }
            });
        }
        result
    }

    fn unparsed(&self) -> u64 {
        self.shared.unparsed.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.ring();
    }
}
