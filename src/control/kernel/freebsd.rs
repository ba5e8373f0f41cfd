//! Following FreeBSD by its routing socket, route(4), and by sysctl(3) for listings. One thread
//! reads both, so that no news come in the middle of a listing; what comes meanwhile waits in the
//! socket. News that get lost (`SO_RERROR`, ENOBUFS) are reported as an overrun.

use std::{
    ffi::c_int,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, setsockopt, socket, sockopt},
};

use super::{
    Care, Follow, Index, KernelCommands, KernelEvent, KernelSource, Opened, Part, Parts, Report,
    route_socket::Translator,
};

/// Room for news that wait in the kernel, in bytes; half of it, and again, if that is too much.
const RECEIVE_BUFFER: usize = 16 << 20;
/// Room that must be had.
const RECEIVE_BUFFER_LEAST: usize = 64 << 10;
/// Longest message, in bytes: its length is a 16-bit number.
const MESSAGE: usize = 1 << 16;
/// Messages that are handled in one go.
const TURN: usize = 4096;
/// Attempts at a listing that outgrows its room while it is made.
const TRIES: u32 = 5;
/// Shortest wait before a listing that failed, or that news called for, is made.
const WAIT: Duration = Duration::from_millis(200);
/// Such listings take at most one part of this many of the thread's time.
const SHARE: u32 = 10;
/// The port that discards what comes (RFC 863).
const DISCARD: u16 = 9;

// sys/socket.h: what the crate libc lacks.
const SO_RERROR: c_int = 0x0002_0000;

/// What both sides share.
struct Shared {
    /// Written to when there is something to do for the listening thread.
    bell: UnixStream,
    wanted: AtomicU8,
    stop: AtomicBool,
    unparsed: AtomicU64,
}

/// A listing of which some is left to be handled.
struct Listing {
    part: Part,
    bytes: Vec<u8>,
    taken: usize,
    /// A second one, for after the first: the routes behind the addresses.
    next: Option<Vec<u8>>,
}

/// The listening side.
struct FreeBsdSource {
    news: OwnedFd,
    bell: UnixStream,
    shared: Arc<Shared>,
    fib: c_int,
    translator: Translator,
    pending: Parts,
    /// Parts to be listed later, and when.
    later: Parts,
    later_at: Option<Instant>,
    current: Option<Listing>,
    /// How long the last listing took.
    took: Duration,
    began: Instant,
    buffer: Vec<u8>,
}

/// The asking side.
struct FreeBsdCommands {
    v4: UdpSocket,
    v6: Option<UdpSocket>,
    shared: Arc<Shared>,
}

/// Opens the kernel's news. Ask for [`Parts::ALL`] to be listed to begin with.
///
/// # Errors
/// The system's; `Unsupported` on a machine that is not of 64 bits.
pub fn open(follow: Follow) -> io::Result<Opened> {
    if size_of::<libc::c_long>() != 8 {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the routing table can be followed on 64-bit machines only: set [kernel] routes = false and give \
             addresses, routes and neighbours in the configuration",
        ));
    }
    let fib = c_int::try_from(follow.table.unwrap_or(0))
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let (ringing, bell) = UnixStream::pair()?;
    ringing.set_nonblocking(true)?;
    bell.set_nonblocking(true)?;
    let shared = Arc::new(Shared {
        bell: ringing,
        wanted: AtomicU8::new(0),
        stop: AtomicBool::new(false),
        unparsed: AtomicU64::new(0),
    });
    let source = FreeBsdSource {
        news: routing_socket(fib)?,
        bell,
        shared: shared.clone(),
        fib,
        translator: Translator::new(follow.table.is_some()),
        pending: Parts::default(),
        later: Parts::default(),
        later_at: None,
        current: None,
        took: Duration::ZERO,
        began: Instant::now(),
        buffer: vec![0; MESSAGE],
    };
    // A kernel may be built without IPv6.
    let v6 = datagram_socket((Ipv6Addr::UNSPECIFIED, 0).into(), fib).ok();
    let commands =
        FreeBsdCommands { v4: datagram_socket((Ipv4Addr::UNSPECIFIED, 0).into(), fib)?, v6, shared };
    Ok((Box::new(source), Box::new(commands)))
}

fn set_option(fd: &impl AsRawFd, option: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the value is a c_int that lives during the call, and its size is given.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), len) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

fn set_fib(fd: &impl AsRawFd, fib: c_int) -> io::Result<()> {
    set_option(fd, libc::SO_SETFIB, fib).map_err(|e| match e.raw_os_error() {
        Some(libc::EINVAL) => io::Error::new(
            e.kind(),
            format!(
                "there is no fib {fib}: set [kernel] table to one below the sysctl net.fibs, or raise that"
            ),
        ),
        _ => e,
    })
}

/// The socket that news come from.
fn routing_socket(fib: c_int) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Route, SockType::Raw, flags, None)?;
    set_fib(&fd, fib)?;
    if let Err(e) = set_option(&fd, SO_RERROR, 1) {
        log::warn!(
            "the routing socket does not tell when news are lost ({e}; FreeBSD 13 and later can): they are \
             missed until the tables are compared"
        );
    }
    let mut room = RECEIVE_BUFFER;
    while setsockopt(&fd, sockopt::RcvBuf, &room).is_err() && room > RECEIVE_BUFFER_LEAST {
        room /= 2;
    }
    log::debug!("the routing socket has room for {room} bytes (kern.ipc.maxsockbuf)");
    Ok(fd)
}

fn datagram_socket(local: SocketAddr, fib: c_int) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(local)?;
    set_fib(&socket, fib)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// What sysctl lists of the routing socket's tables; `name` is what follows there. It comes in one
/// piece: a route takes some 250 bytes while its table is listed.
fn table(name: &[c_int]) -> io::Result<Vec<u8>> {
    let mut full = vec![libc::CTL_NET, libc::PF_ROUTE, 0];
    full.extend_from_slice(name);
    for _ in 0..TRIES {
        let mut len = 0;
        sysctl(&full, None, &mut len)?;
        // It may grow until it is read.
        len += len / 8 + MESSAGE;
        let mut bytes = vec![0; len];
        match sysctl(&full, Some(&mut bytes), &mut len) {
            Ok(()) => {
                bytes.truncate(len);
                return Ok(bytes);
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ENOMEM))
}

fn sysctl(name: &[c_int], room: Option<&mut [u8]>, len: &mut usize) -> io::Result<()> {
    let to = room.map_or(std::ptr::null_mut(), |room| {
        *len = room.len();
        room.as_mut_ptr()
    });
    // SAFETY: the name's length is given; `to` is null, or has room for `len` bytes; nothing is set.
    let result = unsafe {
        libc::sysctl(name.as_ptr(), name.len() as libc::c_uint, to.cast(), len, std::ptr::null(), 0)
    };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

/// The same, where a family that the kernel lacks has nothing to list.
fn table_of_family(name: &[c_int]) -> io::Result<Vec<u8>> {
    match table(name) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EINVAL)) => Ok(Vec::new()),
        result => result,
    }
}

impl KernelSource for FreeBsdSource {
    fn wait(&mut self, out: &mut Vec<Report>) -> io::Result<bool> {
        while out.is_empty() {
            if self.shared.stop.load(Ordering::Acquire) {
                return Ok(false);
            }
            if self.current.is_some() {
                self.go_on(out);
                continue;
            }
            self.take_wishes();
            self.begin_listing(out);
            if !out.is_empty() {
                break;
            }
            let timeout = self.later_at.map_or(PollTimeout::NONE, |at| {
                let left = at.saturating_duration_since(Instant::now());
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            });
            let mut fds = [self.news.as_fd(), self.bell.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
            let [news, bell] = fds.map(|fd| fd.any().unwrap_or(false));
            if bell {
                silence(&self.bell);
            }
            if news {
                self.read_news(out)?;
            }
        }
        self.shared.unparsed.store(self.translator.unparsed(), Ordering::Relaxed);
        Ok(true)
    }
}

/// Empties a bell that has been rung.
fn silence(mut bell: &UnixStream) {
    let mut sink = [0; 64];
    while io::Read::read(&mut bell, &mut sink).is_ok_and(|n| n > 0) {}
}

impl FreeBsdSource {
    /// Takes over what the keeper asked for, and what was put off until now.
    fn take_wishes(&mut self) {
        let wanted = Parts(self.shared.wanted.swap(0, Ordering::AcqRel));
        self.pending = self.pending.with(wanted);
        if self.later_at.is_some_and(|at| Instant::now() >= at) {
            self.later_at = None;
            self.pending = self.pending.with(std::mem::take(&mut self.later));
        }
    }

    /// Has parts listed in a while.
    fn put_off(&mut self, parts: Parts) {
        if parts == Parts::default() {
            return;
        }
        self.later = self.later.with(parts);
        let wait = WAIT.max(self.took.saturating_mul(SHARE));
        self.later_at.get_or_insert_with(|| Instant::now() + wait);
    }

    fn begin_listing(&mut self, out: &mut Vec<Report>) {
        let Some(part) = self.pending.take_first() else { return };
        self.later = self.later.without(part);
        self.began = Instant::now();
        match self.list(part) {
            Ok((bytes, next)) => {
                self.translator.begin(part, out);
                self.current = Some(Listing { part, bytes, taken: 0, next });
            }
            Err(e) => {
                log::warn!("the kernel does not list its {part:?}: {e}; asking again");
                self.put_off(part.into());
            }
        }
    }

    /// What the kernel lists of `part`, in one or two pieces.
    fn list(&self, part: Part) -> io::Result<(Vec<u8>, Option<Vec<u8>>)> {
        let interfaces = |family| table(&[family, libc::NET_RT_IFLISTL, 0]);
        let routes = |family| -> io::Result<_> {
            Ok((interfaces(family)?, Some(table_of_family(&[family, libc::NET_RT_DUMP, 0, self.fib])?)))
        };
        let neighbors = |family| table_of_family(&[family, libc::NET_RT_FLAGS, libc::RTF_LLINFO]);
        match part {
            Part::Links => Ok((interfaces(libc::AF_LINK)?, None)),
            // Next hops have no objects of their own here.
            Part::NextHops => Ok((Vec::new(), None)),
            Part::Addresses => Ok((interfaces(libc::AF_UNSPEC)?, None)),
            Part::Neighbors => Ok((neighbors(libc::AF_INET)?, Some(neighbors(libc::AF_INET6)?))),
            Part::Routes4 => routes(libc::AF_INET),
            Part::Routes6 => routes(libc::AF_INET6),
        }
    }

    /// Handles the next piece of the listing.
    fn go_on(&mut self, out: &mut Vec<Report>) {
        let Some(mut listing) = self.current.take() else { return };
        let part = listing.part;
        match self.translator.listed(part, &listing.bytes[listing.taken..], TURN, out) {
            Ok(0) => match listing.next.take() {
                Some(next) => self.current = Some(Listing { part, bytes: next, taken: 0, next: None }),
                None => self.end_listing(part, true, out),
            },
            Ok(taken) => {
                listing.taken += taken;
                self.current = Some(listing);
            }
            Err(_) => self.end_listing(part, false, out),
        }
    }

    fn end_listing(&mut self, part: Part, complete: bool, out: &mut Vec<Report>) {
        self.translator.end(part, complete, out);
        self.took = self.began.elapsed();
        if !complete {
            self.put_off(part.into());
        }
    }

    /// Reads the news that wait.
    fn read_news(&mut self, out: &mut Vec<Report>) -> io::Result<()> {
        for _ in 0..TURN {
            match recv(self.news.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => self.translator.news(&self.buffer[..len], out),
                Err(Errno::EAGAIN) => {
                    self.translator.caught_up();
                    break;
                }
                Err(Errno::EINTR) => break,
                Err(Errno::ENOBUFS) => out.push(Report { listed: false, event: KernelEvent::Overrun }),
                Err(e) => return Err(e.into()),
            }
        }
        let wanted = self.translator.take_wanted();
        self.put_off(wanted);
        Ok(())
    }
}

impl Shared {
    fn ring(&self) {
        // A bell that is full rings anyway.
        let _ = io::Write::write(&mut &self.bell, &[1]);
    }
}

impl KernelCommands for FreeBsdCommands {
    fn list(&self, parts: Parts) {
        self.shared.wanted.fetch_or(parts.0, Ordering::AcqRel);
        self.shared.ring();
    }

    fn resolve(&self, index: Index, address: IpAddr, care: Care) -> io::Result<()> {
        if care == Care::Release {
            return Ok(());
        }
        // Sending to it is how the kernel is made to look; what is sent does not matter.
        let result = match (address, &self.v6) {
            (IpAddr::V4(_), _) => self.v4.send_to(&[], (address, DISCARD)),
            (IpAddr::V6(ip), Some(v6)) => {
                let scope = if ip.is_unicast_link_local() { index } else { 0 };
                v6.send_to(&[], SocketAddrV6::new(ip, DISCARD, 0, scope))
            }
            (IpAddr::V6(_), None) => return Err(io::ErrorKind::Unsupported.into()),
        };
        match result {
            Ok(_) => Ok(()),
            // The kernel has given up on it for now, or an earlier datagram was refused.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EHOSTDOWN | libc::EHOSTUNREACH | libc::ECONNREFUSED | libc::EAGAIN)
                ) =>
            {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn unparsed(&self) -> u64 {
        self.shared.unparsed.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.ring();
    }
}
