//! What workers read: everything a packet needs, published together under one generation.
//!
//! A [`Tables`] is never changed while a worker can see it. There are two instances; the keeper
//! patches the idle one, publishes it, and repeats the patch on the other once no worker uses it
//! any more. A sweep therefore sees one generation in all its stages.

pub mod acl;
pub mod blocks;
mod cpu;
pub mod fib4;
pub mod fib6;
pub mod held_ports;
pub mod local;
pub mod masquerade;
pub mod memory;
pub mod prefixes;
pub mod publish;
pub mod recorded;
mod reverse_path;
pub mod shown;
mod sync;
pub mod synthetic;
mod tree6;
mod vlan;

use std::net::IpAddr;

use ipnet::{Ipv4Net, Ipv6Net};
pub use reverse_path::ReversePath;
pub use vlan::{SubPort, Trunk};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Index of a port in [`Tables::ports`], and of its counters.
pub type PortId = u16;

/// Index of a next hop in [`Tables::next_hops`]: 15 bits, 0 is no route.
pub type NextHopId = u16;

/// Number of next hops there can be.
pub const MAX_NEXT_HOPS: usize = 1 << 15;

/// Next hops with a fixed place in every table.
pub mod fixed {
    use super::{Action, NextHopId};

    /// Destinations without a route.
    pub const NO_ROUTE: NextHopId = 0;
    /// What is the host's.
    pub const HOST: NextHopId = 1;
    /// Discard in silence.
    pub const BLACKHOLE: NextHopId = 2;
    /// Answer unreachable.
    pub const UNREACHABLE: NextHopId = 3;
    /// Answer prohibited.
    pub const PROHIBIT: NextHopId = 4;
    /// Never forwarded to.
    pub const MARTIAN: NextHopId = 5;
    /// Multicast.
    pub const MULTICAST: NextHopId = 6;
    /// Broadcast.
    pub const BROADCAST: NextHopId = 7;
    /// Link-local scope.
    pub const LINK_LOCAL: NextHopId = 8;
    /// The first place that the keeper may give away.
    pub const FIRST_FREE: NextHopId = 16;

    /// The actions at places 0 to 8.
    pub const ACTIONS: [Action; 9] = [
        Action::NoRoute,
        Action::Host,
        Action::Blackhole,
        Action::Unreachable,
        Action::Prohibit,
        Action::Martian,
        Action::Multicast,
        Action::Broadcast,
        Action::LinkLocal,
    ];
}

/// What becomes of a packet once its next hop is found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Action {
    /// No route: answer 3/0, for IPv6 1/0.
    #[default]
    NoRoute,
    /// Rewrite the MAC addresses and send out of the port.
    Forward,
    /// The gateway's MAC address is not known: hold the packet and ask for it.
    Resolve,
    /// The destination itself is on the link and not known: hold the packet and ask for it.
    Glean,
    /// Belongs to the host: a local address, or a route out of a device that is no port.
    Host,
    /// Discard in silence.
    Blackhole,
    /// Answer host unreachable 3/1, for IPv6 1/0.
    Unreachable,
    /// Answer administratively prohibited 3/13, for IPv6 1/1.
    Prohibit,
    /// A destination that is never forwarded to: 0/8, 127/8, 240/4, `::`, `::1`.
    Martian,
    /// 224/4, ff00::/8.
    Multicast,
    /// 255.255.255.255 and directed broadcasts.
    Broadcast,
    /// 169.254/16, fe80::/10.
    LinkLocal,
    /// One of several next hops, by the flow's hash: [`Tables::groups`].
    Group,
}

/// The part of a next hop that every forwarded packet reads.
///
/// `max_len` is the outgoing port's MTU when the action is [`Action::Forward`], and 0 otherwise:
/// one comparison finds the packets that are too long and those that are not simply forwarded.
#[derive(FromBytes, Immutable, KnownLayout, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(16))]
pub struct NextHop {
    /// Destination and source MAC address, as they stand in the frame.
    pub macs: [u8; 12],
    /// The port to send out of.
    pub port: PortId,
    /// Longest IP packet, in bytes, that may be sent as it is; 0 unless forwarding.
    pub max_len: u16,
}

/// The part of a next hop that only unusual packets read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NextHopInfo {
    /// What becomes of the packet.
    pub action: Action,
    /// Who is to be resolved for [`Action::Resolve`]; for [`Action::Forward`], whose MAC this is.
    pub gateway: Option<IpAddr>,
    /// Index into [`Tables::groups`] for [`Action::Group`].
    pub group: u16,
}

/// Several next hops with weights, laid out as 256 buckets: bucket `hash >> 24` names the member.
/// A member that goes takes only its own buckets along (RFC 2992 compares the ways).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// The member of each bucket.
    pub buckets: [NextHopId; 256],
    /// The ports of all members, those set aside for now as well.
    pub ports: Vec<PortId>,
}

/// Whether the plain packets from a port are forwarded in the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Express {
    /// Never.
    Off,
    /// Where it can be; the daemon says nothing of it where it cannot.
    #[default]
    Auto,
    /// Where it can be, and the log says why it cannot.
    On,
}

/// A port, as a packet sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortTable {
    /// The configured name.
    pub name: String,
    /// The port's own MAC address.
    pub mac: [u8; 6],
    /// Longest IP packet in bytes that may leave.
    pub mtu: u16,
    /// Whether packets may enter and leave.
    pub up: bool,
    /// IPv4 addresses with their prefixes, the primary one first.
    pub addresses4: Vec<Ipv4Net>,
    /// IPv6 addresses with their prefixes, global ones first.
    pub addresses6: Vec<Ipv6Net>,
    /// Whether the built-in host answers for these addresses, not the kernel.
    pub builtin_host: bool,
    /// How the sources of packets that came in here are checked.
    pub reverse_path: ReversePath,
    /// Whether senders on the link are told of a better first hop on it.
    pub redirects: bool,
    /// Whether its plain packets may be forwarded in the driver, where nothing is against it.
    pub express: Express,
    /// A sub-port: the port whose rings its frames go by, with tags.
    pub sub: Option<SubPort>,
    /// The port's own sub-ports, if it has any.
    pub trunk: Option<Box<Trunk>>,
}

/// How many ICMP errors a worker may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpLimit {
    /// Errors a second.
    pub rate: u32,
    /// Errors at once.
    pub burst: u32,
}

impl Default for IcmpLimit {
    fn default() -> Self {
        Self { rate: 1000, burst: 200 }
    }
}

/// How long flows outlive their last packet, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// UDP (RFC 4787 REQ-5).
    pub udp: u32,
    /// TCP, established (RFC 5382 REQ-5).
    pub tcp: u32,
    /// TCP that is beginning, ending or broken off (RFC 5382 REQ-5).
    pub tcp_transitory: u32,
    /// ICMP queries (RFC 5508 REQ-2).
    pub icmp: u32,
    /// All else.
    pub other: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        const MINUTE: u32 = 60_000;
        Self {
            udp: 5 * MINUTE,
            tcp: 124 * MINUTE,
            tcp_transitory: 4 * MINUTE,
            icmp: MINUTE,
            other: 5 * MINUTE,
        }
    }
}

/// Everything a packet needs, of one generation.
pub struct Tables {
    /// The ports, by [`PortId`].
    pub ports: Vec<PortTable>,
    /// IPv4 prefixes to next hops.
    pub fib4: fib4::Fib4,
    /// IPv6 prefixes to next hops.
    pub fib6: fib6::Fib6,
    /// What every forwarded packet reads of its next hop: [`MAX_NEXT_HOPS`].
    pub next_hops: memory::PageArray<NextHop>,
    /// What only unusual packets read of it.
    pub info: Box<[NextHopInfo]>,
    /// Groups of next hops.
    pub groups: Vec<Group>,
    /// The host's own addresses, of all interfaces.
    pub local: local::LocalAddresses,
    /// How many ICMP errors each worker may send.
    pub icmp: IcmpLimit,
    /// Whether IPv4 source routes are followed; else packets that have one are discarded.
    pub source_routes: bool,
    /// Makes this router choose differently from others among several next hops.
    pub hash_seed: u64,
    /// The access rules; none when nothing is filtered.
    pub acl: Option<std::sync::Arc<acl::Acl>>,
    /// Which addresses are translated.
    pub masquerade: masquerade::Masquerade,
    /// Whether workers keep flows for these tables: set when a rule asks for it.
    pub keeps_flows: bool,
    /// How long flows last that no rule of its own says it of.
    pub timeouts: Timeouts,
    /// What the express program reads besides, while these tables are shown to it.
    pub shown: Option<shown::Shown>,
}

impl Tables {
    /// Tables without ports and routes.
    ///
    /// # Errors
    /// When there is not enough memory, or the processor lacks an instruction that lookups need.
    pub fn new() -> std::io::Result<Self> {
        let mut info = vec![NextHopInfo::default(); MAX_NEXT_HOPS].into_boxed_slice();
        for (entry, action) in info.iter_mut().zip(fixed::ACTIONS) {
            entry.action = action;
        }
        Ok(Self {
            ports: Vec::new(),
            fib4: fib4::Fib4::new()?,
            fib6: fib6::Fib6::new()?,
            next_hops: memory::PageArray::new(MAX_NEXT_HOPS, &memory::Backing::Anonymous)?,
            info,
            groups: Vec::new(),
            local: local::LocalAddresses::default(),
            icmp: IcmpLimit::default(),
            source_routes: false,
            hash_seed: 0,
            acl: None,
            masquerade: masquerade::Masquerade::default(),
            keeps_flows: false,
            timeouts: Timeouts::default(),
            shown: None,
        })
    }

    /// The next hop with this id; ids have 15 bits.
    #[inline(always)]
    pub fn next_hop(&self, id: NextHopId) -> &NextHop {
        // SAFETY: the array has that many next hops, and what a row of them is made of is only
        // changed by `&mut self`.
        unsafe { &*self.next_hops.as_ptr().add(usize::from(id) % MAX_NEXT_HOPS) }
    }

    /// The member of the group `id` that the flow's hash chooses; `id` itself when it is no group.
    pub fn member(&self, id: NextHopId, hash: impl FnOnce() -> u32) -> NextHopId {
        let info = self.next_hop_info(id);
        match self.groups.get(usize::from(info.group)) {
            Some(group) if info.action == Action::Group => group.buckets[(hash() >> 24) as usize],
            _ => id,
        }
    }

    /// What only unusual packets read of it.
    pub fn next_hop_info(&self, id: NextHopId) -> &NextHopInfo {
        &self.info[usize::from(id) % MAX_NEXT_HOPS]
    }
}
