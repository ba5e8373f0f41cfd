//! Network namespaces, and routes by the hundred thousand in them.

use std::{
    fmt::Write as _,
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, setns};
use sweepd::tables::NextHopId;

use super::NEXT_HOPS;

/// A network namespace, deleted when dropped.
pub struct Space(String);

impl Space {
    /// A new one of the benchmark `of`; `what` tells it from this process's others.
    ///
    /// # Errors
    /// When `ip` cannot make it.
    pub fn new(of: &str, what: &str) -> io::Result<Self> {
        let space = Self(format!("{of}_{}_{what}", std::process::id()));
        run(&format!("ip netns add {}", space.0))?;
        space.ip("link set lo up")?;
        Ok(space)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Runs `ip` in it.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn ip(&self, arguments: &str) -> io::Result<()> {
        run(&format!("ip -n {} {arguments}", self.0))
    }

    /// Runs a command in it.
    ///
    /// # Errors
    /// What the command says.
    pub fn exec(&self, line: &str) -> io::Result<()> {
        run(&format!("ip netns exec {} {line}", self.0))
    }

    /// Has `ip` carry out every one of `lines` that it can; gives how long that took.
    ///
    /// # Errors
    /// When there is no `ip`, or no room for its file.
    pub fn batch(&self, lines: &str) -> io::Result<Duration> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), lines)?;
        let start = Instant::now();
        let mut command = Command::new("ip");
        command.args(["-n", &self.0, "-force", "-batch"]).arg(file.path());
        // Some prefixes are none for a kernel, such as those in 240/4.
        command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        Ok(start.elapsed())
    }

    /// Moves the calling thread into it.
    ///
    /// # Errors
    /// The system's.
    pub fn enter(&self) -> io::Result<()> {
        let file = File::open(format!("/run/netns/{}", self.0))?;
        Ok(setns(file, CloneFlags::CLONE_NEWNET)?)
    }

    /// Calls `f` on a thread in it. Sockets opened there stay there.
    ///
    /// # Errors
    /// Those of `f`, and the system's.
    pub fn within<T: Send>(&self, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| self.enter().and_then(|()| f()));
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = run(&format!("ip netns del {}", self.0));
    }
}

/// Runs a command.
///
/// # Errors
/// What the command says.
pub fn run(line: &str) -> io::Result<()> {
    let mut words = line.split_whitespace();
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new(words.next().unwrap_or_default()).args(words).env("PATH", path).output();
    let output = output.map_err(|e| io::Error::other(format!("{line}: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// The ways out of a router: ports, and next hops that are shared out among them.
pub struct Ways {
    /// Each port, and the MAC address of every neighbour there.
    ports: Vec<(String, String)>,
}

impl Ways {
    /// Through these ports.
    pub fn new(ports: Vec<(String, String)>) -> Self {
        Self { ports }
    }

    fn port(&self, hop: NextHopId) -> usize {
        usize::from(hop) % self.ports.len()
    }

    /// The next hop's IPv4 address.
    pub fn gateway4(&self, hop: NextHopId) -> Ipv4Addr {
        Ipv4Addr::new(10, 100 + self.port(hop) as u8, 0, 1 + hop as u8)
    }

    /// The next hops' addresses, IPv4's and IPv6's.
    pub fn gateways(&self) -> [Vec<IpAddr>; 2] {
        [(1..=NEXT_HOPS).map(|hop| self.gateway4(hop).into()).collect(), Vec::new()]
    }

    /// Gives the router's ports their addresses, and makes all next hops known.
    ///
    /// # Errors
    /// When `ip` does not do it.
    pub fn prepare(&self, router: &Space) -> io::Result<()> {
        let mut lines = String::new();
        for (n, (port, _)) in self.ports.iter().enumerate() {
            router.ip(&format!("addr add 10.{}.0.1/24 dev {port}", 100 + n))?;
        }
        for hop in 1..=NEXT_HOPS {
            let (port, mac) = &self.ports[self.port(hop)];
            for address in [IpAddr::from(self.gateway4(hop)), IpAddr::from(link_local(hop))] {
                let _ = writeln!(lines, "neigh replace {address} lladdr {mac} nud permanent dev {port}");
            }
        }
        router.batch(&lines).map(|_| ())
    }

    /// The line that has `ip` set an IPv4 route.
    pub fn line4(&self, (address, length, hop): (u32, u8, NextHopId), out: &mut String) {
        let _ = writeln!(out, "route add {}/{length} via {}", Ipv4Addr::from(address), self.gateway4(hop));
    }

    /// The line that has `ip` set an IPv6 route.
    pub fn line6(&self, (address, length, hop): (u128, u8, NextHopId), out: &mut String) {
        let port = &self.ports[self.port(hop)].0;
        let (to, via) = (Ipv6Addr::from(address), link_local(hop));
        let _ = writeln!(out, "route add {to}/{length} via {via} dev {port}");
    }
}

fn link_local(hop: NextHopId) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, hop)
}
