//! What a kernel says about its links, addresses, neighbours and routes, as plain data that looks
//! the same on every system, and the two sides of listening to it: a [`KernelSource`] that a
//! thread of its own reads, and [`KernelCommands`] that the keeper gives.

use std::{io, net::IpAddr};

use ipnet::IpNet;

use crate::wire::vlan::Tag;

#[cfg(target_os = "freebsd")]
pub mod freebsd;
#[cfg(target_os = "linux")]
pub mod linux;
#[cfg(target_os = "linux")]
pub mod parse;
#[cfg(target_os = "linux")]
pub mod request;
#[cfg(any(test, fuzzing, target_os = "freebsd"))]
pub mod route_socket;
#[cfg(target_os = "linux")]
pub mod sockets;

#[cfg(target_os = "freebsd")]
pub use freebsd::open;
#[cfg(target_os = "linux")]
pub use linux::open;

/// The kernel's number of an interface.
pub type Index = u32;

/// What a route does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RouteKind {
    /// Through next hops.
    Unicast,
    /// An address of the host's own.
    Local,
    /// A broadcast address.
    Broadcast,
    /// An anycast address of the host's own.
    Anycast,
    /// Discard in silence.
    Blackhole,
    /// Answer unreachable.
    Unreachable,
    /// Answer prohibited.
    Prohibit,
    /// As if there were no route.
    Throw,
}

/// One next hop of a route.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Hop {
    /// The gateway; none means that the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The interface; none (static routes only) means wherever the gateway is.
    pub index: Option<Index>,
    /// The share of the flows, 1 or more.
    pub weight: u16,
    /// Whether only the kernel can send this way, because the route adds a header (a tunnel, MPLS).
    pub kernel_only: bool,
    /// Whether the kernel has set it aside for now, and does not use it.
    pub dead: bool,
}

/// Where a route's next hops are.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    /// In the route itself.
    Hops(Vec<Hop>),
    /// In a next hop object of the kernel's.
    Object(u32),
}

/// A route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The destinations.
    pub to: IpNet,
    /// Whether it stands in the kernel's table of local addresses, which comes before all others.
    pub local_table: bool,
    /// The lower, the better.
    pub metric: u32,
    /// Who made it, by the kernel's numbers.
    pub protocol: u8,
    /// What it does.
    pub kind: RouteKind,
    /// Where it leads; no hops unless unicast.
    pub way: Way,
}

/// Where a new route goes among those of the same prefix and metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// In front of them.
    Before,
    /// Behind them.
    After,
    /// In place of the first of them.
    Replace,
}

/// A next hop object of the kernel's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NextHopObject {
    /// One next hop.
    Single(Hop),
    /// A group of others: ids and weights.
    Group(Vec<(u32, u16)>),
    /// Discards in silence.
    Blackhole,
}

/// What the kernel knows about a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NeighborState {
    /// Asked for, no answer yet.
    Incomplete,
    /// Answered lately.
    Reachable,
    /// Answered once.
    Stale,
    /// In use, about to be asked again.
    Delay,
    /// Being asked again.
    Probe,
    /// Does not answer.
    Failed,
    /// Needs no asking.
    NoArp,
    /// Set by hand.
    Permanent,
}

impl NeighborState {
    /// Whether packets may be sent to the neighbour's MAC address.
    pub fn is_usable(self) -> bool {
        !matches!(self, Self::Incomplete | Self::Failed)
    }

    /// Whether the kernel may ask for it again, or forget it, by itself.
    pub fn may_expire(self) -> bool {
        !matches!(self, Self::NoArp | Self::Permanent)
    }

    /// Its name, as `show neighbors` prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Incomplete => "incomplete",
            Self::Reachable => "reachable",
            Self::Stale => "stale",
            Self::Delay => "delay",
            Self::Probe => "probe",
            Self::Failed => "failed",
            Self::NoArp => "noarp",
            Self::Permanent => "permanent",
        }
    }
}

/// An interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Its number.
    pub index: Index,
    /// Its name.
    pub name: String,
    /// Its MAC address, if it is six bytes long.
    pub mac: Option<[u8; 6]>,
    /// Longest IP packet in bytes.
    pub mtu: u32,
    /// Whether it is switched on.
    pub up: bool,
    /// Whether the cable is in.
    pub carrier: bool,
    /// The VLAN of another interface that it is, if it is one.
    pub vlan: Option<VlanLink>,
}

/// What a VLAN interface stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VlanLink {
    /// The interface below it.
    pub parent: Index,
    /// The tag.
    pub tag: Tag,
}

/// An address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The interface.
    pub index: Index,
    /// The address and its prefix length.
    pub net: IpNet,
    /// Whether another address of the same network comes first.
    pub secondary: bool,
    /// Whether it may be used already (duplicate address detection is over).
    pub ready: bool,
}

/// Parts of what the kernel knows, listed one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Part {
    /// Interfaces.
    Links,
    /// Next hop objects.
    NextHops,
    /// Addresses.
    Addresses,
    /// Neighbours.
    Neighbors,
    /// IPv4 routes.
    Routes4,
    /// IPv6 routes.
    Routes6,
}

impl Part {
    /// All parts, in the order in which they are listed.
    pub const ALL: [Part; 6] =
        [Part::Links, Part::NextHops, Part::Addresses, Part::Neighbors, Part::Routes4, Part::Routes6];
}

/// A set of parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Parts(pub u8);

impl Parts {
    /// Every part.
    pub const ALL: Parts = Parts((1 << Part::ALL.len()) - 1);
    /// The routes of both families, and the objects that they may lead to.
    pub const ROUTES: Parts =
        Parts(1 << Part::Routes4 as u8 | 1 << Part::Routes6 as u8 | 1 << Part::NextHops as u8);

    /// Whether `part` is in the set.
    pub fn has(self, part: Part) -> bool {
        self.0 & (1 << part as u8) != 0
    }

    /// The set with everything that `other` has, too.
    pub fn with(self, other: Parts) -> Parts {
        Parts(self.0 | other.0)
    }

    /// The set without `part`.
    pub fn without(self, part: Part) -> Parts {
        Parts(self.0 & !(1 << part as u8))
    }

    /// Takes the first part out.
    pub fn take_first(&mut self) -> Option<Part> {
        let part = Part::ALL.into_iter().find(|p| self.has(*p))?;
        self.0 &= !(1 << part as u8);
        Some(part)
    }
}

impl From<Part> for Parts {
    fn from(part: Part) -> Parts {
        Parts(1 << part as u8)
    }
}

/// One piece of news from the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelEvent {
    /// An interface is there, or has changed.
    LinkChanged(Link),
    /// An interface is gone.
    LinkGone(Index),
    /// An interface has an address.
    AddressAdded(Address),
    /// An interface has lost an address.
    AddressRemoved(Address),
    /// A neighbour is there, or has changed.
    NeighborChanged {
        /// The interface that it is reached through.
        index: Index,
        /// Its address.
        address: IpAddr,
        /// Its MAC address, if known.
        mac: Option<[u8; 6]>,
        /// What is known of it.
        state: NeighborState,
    },
    /// A neighbour is forgotten.
    NeighborGone {
        /// The interface that it was reached through.
        index: Index,
        /// Its address.
        address: IpAddr,
    },
    /// A route is there.
    RouteChanged(Route, Placement),
    /// A route is gone.
    RouteGone(Route),
    /// A next hop object is there, or has changed.
    NextHopChanged(u32, NextHopObject),
    /// A next hop object is gone.
    NextHopGone(u32),
    /// Everything of this part will be listed: what isn't named until the end no longer exists.
    DumpBegin(Part),
    /// The listing of this part has ended.
    DumpEnd {
        /// Which.
        part: Part,
        /// Whether everything was listed, so that what wasn't named no longer exists. If not,
        /// another listing follows.
        complete: bool,
    },
    /// News were lost: list everything again.
    Overrun,
}

/// A piece of news and how it came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Whether it answers a request to list everything (then fresher news may have come before
    /// it).
    pub listed: bool,
    /// The news.
    pub event: KernelEvent,
}

/// The listening side; a thread of its own reads it, so that the kernel's queue never waits for
/// the keeper's work.
pub trait KernelSource: Send {
    /// Waits for news and appends them to `out`; returns when there are some, or when
    /// [`KernelCommands::stop`] was called (then `false`).
    ///
    /// # Errors
    /// The system's, when listening is no longer possible.
    fn wait(&mut self, out: &mut Vec<Report>) -> io::Result<bool>;
}

/// What the kernel is to do about a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Care {
    /// Find it, or make sure of it, this once.
    Once,
    /// The same, and from then on look after it by itself, where it can (Linux 5.16 or later).
    Keep,
    /// Look after it by itself no longer, if it is there.
    Release,
}

/// The asking side.
pub trait KernelCommands: Send {
    /// Asks for everything of `parts` to be listed; the answer comes through the source.
    fn list(&self, parts: Parts);

    /// Asks the kernel to find the MAC address of a neighbour, or to make sure of it.
    ///
    /// # Errors
    /// The system's; the caller asks again later.
    fn resolve(&self, index: Index, address: IpAddr, care: Care) -> io::Result<()>;

    /// Messages of the kernel's that were not understood, ever.
    fn unparsed(&self) -> u64;

    /// Ends the source's wait, for good.
    fn stop(&self);
}

/// Which tables to follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Follow {
    /// The table whose routes are followed (Linux: the id; FreeBSD: the fib); none: only links,
    /// addresses, neighbours and what is local.
    pub table: Option<u32>,
}

/// Both sides of listening.
pub type Opened = (Box<dyn KernelSource>, Box<dyn KernelCommands>);

/// How the kernel's news are opened: by [`open`], or in tests by what makes them worse.
pub type Open = fn(Follow) -> io::Result<Opened>;
