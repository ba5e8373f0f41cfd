//! From a change in the kernel to the first packet that goes the new way.

use std::{
    io::{self, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::sys::{
    socket::{
        ControlMessageOwned, MsgFlags, recvmsg, setsockopt,
        sockopt::{ReceiveTimeout, ReceiveTimestampns},
    },
    time::{TimeSpec, TimeVal},
};

use super::{
    rtnetlink::{Change, Routes, What},
    space::{Space, Ways},
};
use crate::plot::{self, Series};

/// Where the probes go: both receiving hosts have the address.
pub const DESTINATION: &str = "192.0.2.1";
const PORT: u16 = 7200;
/// Between two probes, at least.
const PAUSE: Duration = Duration::from_micros(50);
/// Between two changes: whatever the first has left is over by then.
const BETWEEN: Duration = Duration::from_millis(4);
/// How long a change may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What one series of changes took.
pub struct Latencies {
    /// What went on meanwhile.
    pub name: &'static str,
    /// Ascending.
    pub times: Vec<Duration>,
}

impl Latencies {
    /// The time that a share `q` (0 to 1) of the changes took at most; `None` of no changes.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let last = self.times.len().checked_sub(1)?;
        self.times.get((last as f64 * q) as usize).copied()
    }
}

/// A probing host, and two that the router may send to.
pub struct Probes<'a> {
    from: &'a Space,
    sockets: [UdpSocket; 2],
    routes: Routes,
    ways: &'a Ways,
}

impl<'a> Probes<'a> {
    /// Ready to be sent.
    ///
    /// # Errors
    /// The system's.
    pub fn new(router: &Space, from: &'a Space, to: [&Space; 2], ways: &'a Ways) -> io::Result<Self> {
        let listen = |space: &Space| {
            let socket = space.within(|| UdpSocket::bind(("0.0.0.0", PORT)))?;
            // When a packet comes, the kernel knows best.
            setsockopt(&socket, ReceiveTimestampns, &true)?;
            setsockopt(&socket, ReceiveTimeout, &TimeVal::new(PATIENCE.as_secs() as i64, 0))?;
            Ok::<_, io::Error>(socket)
        };
        let sockets = [listen(to[0])?, listen(to[1])?];
        Ok(Self { from, sockets, routes: router.within(|| Ok(Routes::open()))?, ways })
    }

    /// Changes the route to where the probes go, `rounds` times, and times each.
    ///
    /// # Errors
    /// The system's; when a change does not show.
    pub fn measure(&mut self, name: &'static str, rounds: usize) -> io::Result<Latencies> {
        let socket = self.from.within(|| UdpSocket::bind("0.0.0.0:0"))?;
        let to = SocketAddr::new(DESTINATION.parse().map_err(io::Error::other)?, PORT);
        let done = AtomicBool::new(false);
        let times = thread::scope(|scope| {
            scope.spawn(|| {
                short_naps();
                while !done.load(Ordering::Relaxed) {
                    // What an ICMP error says is no reason to stop.
                    let _ = socket.send_to(&[0; 8], to);
                    thread::sleep(PAUSE);
                }
            });
            let times = (0..rounds + 1).map(|round| self.change(round % 2)).collect::<io::Result<Vec<_>>>();
            done.store(true, Ordering::Relaxed);
            times
        })?;
        // The first may have met another route, or none.
        let mut times = times[1..].to_vec();
        times.sort_unstable();
        Ok(Latencies { name, times })
    }

    /// Moves the route to the host with this number; gives how long until a packet came there.
    fn change(&mut self, host: usize) -> io::Result<Duration> {
        thread::sleep(BETWEEN);
        let socket = &self.sockets[host];
        while receive(socket, MsgFlags::MSG_DONTWAIT).is_ok() {}
        let gateway = self.ways.gateway4(2 + host as u16);
        let to = format!("{DESTINATION}/32").parse().map_err(io::Error::other)?;
        let began = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
        self.routes.change(&[Change { to, metric: 1, what: What::Set(vec![gateway.into()]) }]);
        loop {
            let at = receive(socket, MsgFlags::empty())
                .map_err(|e| io::Error::other(format!("a change of a route does not show: {e}")))?;
            if at >= began {
                return Ok(at - began);
            }
        }
    }
}

/// When the next packet has come, by the time of day.
fn receive(socket: &UdpSocket, flags: MsgFlags) -> io::Result<Duration> {
    let mut bytes = [0; 64];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!(TimeSpec);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let stamp = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
        _ => None,
    });
    stamp.ok_or_else(|| io::Error::other("the kernel has not said when a packet came"))
}

/// Has the kernel wake the calling thread on time, not 50 µs later.
fn short_naps() {
    // SAFETY: sets a number of the calling thread's. A failure makes probes rarer, which shows.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Draws which share of the changes took how long.
///
/// # Errors
/// When the file cannot be written.
pub fn plot(all: &[Latencies], path: &Path) -> io::Result<()> {
    let series: Vec<Series> = all
        .iter()
        .map(|latencies| {
            let point = |percent: u32| {
                let time = latencies.quantile(f64::from(percent) / 100.0)?;
                Some((time.as_secs_f64() * 1e3, f64::from(percent)))
            };
            Series { name: latencies.name.into(), points: (1..=99).filter_map(point).collect() }
        })
        .collect();
    plot::lines(path, "from a change of a route to forwarding", "ms", "% of the changes within", &series)
}
