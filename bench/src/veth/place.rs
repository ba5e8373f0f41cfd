//! Where the routers are compared: a sender, a router and a sink, each in a network namespace of its
//! own, with veth pairs between them; and the tables.

use std::{fmt::Write as _, fs, io, net::Ipv4Addr, os::fd::OwnedFd, time::Duration};

use sweepd::tables::{
    prefixes::Prefixes4,
    recorded,
    synthetic::{self, Random, addresses},
};

use super::wire::{FLOWS, Flow, Generator, Mac, Sink, Wanted, hop_mac};
use crate::follow::space::Space;

/// The router's device on the sender's side.
pub const INSIDE: &str = "r0";
/// The router's device on the sink's side.
pub const OUTSIDE: &str = "r1";
/// The router's MAC address on the sender's side.
pub const ROUTER: Mac = [2, 0, 0, 8, 0, 1];
/// The router's address on the sink's side.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 100, 0, 1);
/// Next hops of the large table.
const NEXT_HOPS: u16 = 64;

/// Some routes, and where packets go by them.
pub struct Table {
    /// What it is called.
    pub name: String,
    /// The routes; next hop *n* has [`hop_mac`] *n*.
    pub routes: Prefixes4,
    /// Destinations that have routes.
    pub flows: Vec<Flow>,
}

impl Table {
    /// Two routes, for everything.
    pub fn small() -> Self {
        let mut routes = Prefixes4::new();
        routes.insert(0, 1, 1);
        routes.insert(1 << 31, 1, 2);
        Self::new("2 routes".into(), routes)
    }

    /// A full table: that of the file, as scripts/tables.sh fetches it, else a made-up one.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn full(file: &std::path::Path) -> io::Result<Self> {
        let all = match file.exists() {
            true => recorded::ipv4(file, NEXT_HOPS)?,
            false => {
                println!(
                    "SKIPPED: the real table {}: run scripts/tables.sh; a made-up one stands for it",
                    file.display()
                );
                synthetic::ipv4(886_117, NEXT_HOPS, 1)
            }
        };
        // What a kernel takes no route for, or does not forward to, is of no use here.
        let routes: Prefixes4 = all.iter().filter(|(address, ..)| is_ordinary(*address)).collect();
        Ok(Self::new(format!("{} routes", routes.len()), routes))
    }

    fn new(name: String, routes: Prefixes4) -> Self {
        let mut random = Random::new(17);
        let mut flows = Vec::with_capacity(FLOWS);
        while flows.len() < FLOWS {
            for destination in addresses(&routes, FLOWS, &mut random) {
                let found = routes.longest_match(destination).filter(|_| is_ordinary(destination));
                if let Some((_, hop)) = found.filter(|_| flows.len() < FLOWS) {
                    flows.push(Flow { destination, hop });
                }
            }
        }
        Self { name, routes, flows }
    }
}

/// Whether a router forwards to such an address: none of "this network", loopback, link-local,
/// multicast, or of this bench's own networks in 10/8.
fn is_ordinary(address: u32) -> bool {
    let a = Ipv4Addr::from(address);
    !matches!(a.octets()[0], 0 | 10 | 127 | 224..) && !a.is_link_local()
}

fn gateway(hop: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(ADDRESS) + u32::from(hop))
}

/// The namespaces.
pub struct Place {
    sender: Space,
    /// Where the routers run.
    pub router: Space,
    sink: Space,
    inside: u32,
    outside: u32,
    first: u32,
    spare: u32,
}

impl Place {
    /// Makes them.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn new() -> io::Result<Self> {
        let (sender, router, sink) =
            (Space::new("peers", "from")?, Space::new("peers", "router")?, Space::new("peers", "to")?);
        let mac = text(ROUTER);
        router.ip(&format!("link add r0 address {mac} type veth peer name s0 netns {}", sender.name()))?;
        router.ip(&format!("link add r1 type veth peer name t0 netns {}", sink.name()))?;
        sender.ip("link add spare0 type veth peer name spare1")?;
        for (space, devices) in
            [(&sender, &["s0", "spare0", "spare1"][..]), (&router, &["r0", "r1"]), (&sink, &["t0"])]
        {
            for device in devices {
                space.ip(&format!("link set {device} up"))?;
            }
        }
        router.ip("addr add 10.2.0.1/24 dev r0")?;
        router.ip(&format!("addr add {ADDRESS}/24 dev r1"))?;
        router.ip("route add 10.1.0.0/16 via 10.2.0.2")?;
        for setting in ["all.rp_filter", "default.rp_filter", "r0.rp_filter", "r1.rp_filter"] {
            router.exec(&format!("sysctl -qw net.ipv4.conf.{setting}=0"))?;
        }
        let index = |space: &Space, device| {
            space.within(|| nix::net::if_::if_nametoindex(device).map_err(io::Error::from))
        };
        Ok(Self {
            inside: index(&router, "r0")?,
            outside: index(&sink, "t0")?,
            first: index(&sender, "s0")?,
            spare: index(&sender, "spare0")?,
            sender,
            router,
            sink,
        })
    }

    /// Tells the router's kernel who its neighbours are. It forgets them when a device's MAC address
    /// is set, as DPDK's net_af_packet does.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn set_neighbors(&self) -> io::Result<()> {
        let mut lines =
            format!("neigh replace 10.2.0.2 lladdr 02:00:00:07:00:01 nud permanent dev {INSIDE}\n");
        for hop in 1..=NEXT_HOPS {
            let (address, mac) = (gateway(hop), text(hop_mac(hop)));
            let _ = writeln!(lines, "neigh replace {address} lladdr {mac} nud permanent dev {OUTSIDE}");
        }
        self.router.batch(&lines).map(drop)
    }

    /// Gives the router's kernel these routes and no others; gives how long that took.
    ///
    /// # Errors
    /// What `ip` says; when the kernel does not have them all then.
    pub fn set_routes(&self, table: &Table) -> io::Result<Duration> {
        // Those of an earlier table are among the new ones, or cover them.
        self.router.ip("route flush proto boot scope global")?;
        let mut lines = String::from("route add 10.1.0.0/16 via 10.2.0.2\n");
        for (address, length, hop) in table.routes.iter() {
            let _ = writeln!(lines, "route add {}/{length} via {}", Ipv4Addr::from(address), gateway(hop));
        }
        let took = self.router.batch(&lines)?;
        let lines = self.router.within(|| fs::read("/proc/thread-self/net/fib_triestat"))?;
        let text = String::from_utf8_lossy(&lines);
        let prefixes: Option<usize> =
            text.lines().find_map(|line| line.trim().strip_prefix("Prefixes:")?.trim().parse().ok());
        match prefixes {
            Some(n) if n >= table.routes.len() => Ok(took),
            _ => Err(io::Error::other(format!(
                "of {} routes the kernel has taken {prefixes:?}",
                table.routes.len()
            ))),
        }
    }

    /// Has the router's devices take frames that XDP sends: veth does only while the receiving side
    /// polls, by an XDP program or for GRO. What an XDP program leaves behind is undone first.
    ///
    /// # Errors
    /// What `ethtool` says.
    pub fn take_frames(&self) -> io::Result<()> {
        for (device, state) in [(INSIDE, "off"), (INSIDE, "on"), (OUTSIDE, "off"), (OUTSIDE, "on")] {
            self.router.exec(&format!("ethtool -K {device} gro {state}"))?;
        }
        Ok(())
    }

    /// Whether the router's kernel forwards.
    ///
    /// # Errors
    /// What `sysctl` says.
    pub fn kernel_forwards(&self, yes: bool) -> io::Result<()> {
        self.router.exec(&format!("sysctl -qw net.ipv4.ip_forward={}", u8::from(yes)))
    }

    /// A generator of the first `count` flows, and what keeps it known to the kernel.
    ///
    /// # Errors
    /// The kernel's.
    pub fn generator(&self, table: &Table, count: usize) -> io::Result<(Generator, OwnedFd)> {
        let generator = Generator::new(&table.flows, count, ROUTER, self.first)?;
        let held = self.sender.within(|| generator.hold(self.spare))?;
        Ok((generator, held))
    }

    /// Moves the calling thread to where the generator has to run.
    ///
    /// # Errors
    /// The system's.
    pub fn enter_sender(&self) -> io::Result<()> {
        self.sender.enter()
    }

    /// A sink behind the router.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sink(&self, wanted: Wanted) -> io::Result<Sink> {
        self.sink.within(|| Sink::new(self.outside, wanted))
    }

    /// A sink in the router's place, to measure the generator and one wire alone.
    ///
    /// # Errors
    /// The kernel's.
    pub fn early_sink(&self, wanted: Wanted) -> io::Result<Sink> {
        self.router.within(|| Sink::new(self.inside, wanted))
    }
}

/// A MAC address, written.
pub fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
