//! One message of the routing socket, understood by itself.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{
    Malformed, Parsed,
    sockaddr::{self, LinkLayer, SockAddrs, Which},
    u8_at, u16_at, u32_at, u64_at,
};
use crate::control::kernel::{Address, Hop, Index, NeighborState, RouteKind};

/// The layout that is understood.
const RTM_VERSION: u8 = 5;

const RTM_ADD: u8 = 1;
const RTM_DELETE: u8 = 2;
const RTM_CHANGE: u8 = 3;
const RTM_GET: u8 = 4;
const RTM_REDIRECT: u8 = 6;
const RTM_NEWADDR: u8 = 12;
const RTM_DELADDR: u8 = 13;
const RTM_IFINFO: u8 = 14;
const RTM_IFANNOUNCE: u8 = 17;

const RTF_GATEWAY: u32 = 0x2;
const RTF_HOST: u32 = 0x4;
const RTF_REJECT: u32 = 0x8;
const RTF_DYNAMIC: u32 = 0x10;
const RTF_DONE: u32 = 0x40;
const RTF_LLDATA: u32 = 0x400;
const RTF_STATIC: u32 = 0x800;
const RTF_BLACKHOLE: u32 = 0x1000;
const RTF_PINNED: u32 = 0x10_0000;
const RTF_LOCAL: u32 = 0x20_0000;
const RTF_MULTICAST: u32 = 0x80_0000;
const RTF_GWFLAG_COMPAT: u32 = 0x8000_0000;

const RTV_WEIGHT: u64 = 0x100;

const IFF_UP: u32 = 0x1;
const IFF_BROADCAST: u32 = 0x2;
const LINK_STATE_DOWN: u8 = 1;
const IFAN_ARRIVAL: u16 = 0;
const IFAN_DEPARTURE: u16 = 1;

// struct rt_msghdr.
const RT_HEADER: usize = 152;
const RT_INDEX: usize = 4;
const RT_FLAGS: usize = 8;
const RT_ADDRS: usize = 12;
const RT_PID: usize = 16;
const RT_ERRNO: usize = 24;
const RT_INITS: usize = 32;
const RT_EXPIRE: usize = 64;
/// The weight of a next hop, or the state of a neighbour.
const RT_WEIGHT: usize = 120;

// struct if_msghdr, if_msghdrl, ifa_msghdr and ifa_msghdrl begin alike.
const IF_ADDRS: usize = 4;
const IF_FLAGS: usize = 8;
const IF_INDEX: usize = 12;
const IF_HEADER: usize = 168;
const IF_DATA: usize = 16;
const IFA_HEADER: usize = 20;
// The forms of listings say themselves how long they are, and where the data begin.
const LONG_LEN: usize = 16;
const LONG_DATA_OFF: usize = 18;
const LONG_HEADER_LEAST: usize = 24;

// struct if_data.
const DATA_LINK_STATE: usize = 4;
const DATA_MTU: usize = 8;

// struct if_announcemsghdr.
const ANNOUNCE_INDEX: usize = 4;
const ANNOUNCE_NAME: std::ops::Range<usize> = 6..22;
const ANNOUNCE_WHAT: usize = 22;

// Who made a route, by the numbers that Linux has for it.
const BY_REDIRECT: u8 = 1;
const BY_KERNEL: u8 = 2;
const BY_HAND: u8 = 4;

/// Where a message comes from: the same types look different in news and in listings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Read from the socket.
    News,
    /// Listed by sysctl: `NET_RT_DUMP`, `NET_RT_FLAGS` and `NET_RT_IFLISTL`.
    Listed,
}

/// What happened to a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// It, or one more next hop of it, is new.
    Added,
    /// It is another.
    Changed,
    /// It, or one next hop of it, is gone.
    Deleted,
    /// It is there.
    Listed,
}

/// A route, or one next hop of it, and what happened to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteMessage {
    /// What happened.
    pub action: Action,
    /// The destinations.
    pub to: IpNet,
    /// What the route does.
    pub kind: RouteKind,
    /// Who made it.
    pub protocol: u8,
    /// The next hop that it is about; `None` if it does not say.
    pub hop: Option<Hop>,
    /// Whether the weight of the next hop is known to be what `hop` says.
    pub weighed: bool,
}

/// What a message says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// About a route.
    Route(RouteMessage),
    /// About a neighbour; no state when it is gone.
    Neighbor {
        /// The interface that it is reached through.
        index: Index,
        /// Its address.
        address: IpAddr,
        /// Its MAC address, if known.
        mac: Option<[u8; 6]>,
        /// What is known of it.
        state: Option<NeighborState>,
    },
    /// An interface's state. News do not say the name and the MAC address.
    Link {
        /// The interface.
        index: Index,
        /// Its name; empty if the message does not say.
        name: String,
        /// Its MAC address.
        mac: Option<[u8; 6]>,
        /// Longest IP packet in bytes.
        mtu: u32,
        /// Whether it is switched on.
        up: bool,
        /// Whether the cable is in.
        carrier: bool,
        /// Whether it has broadcasts, so that its addresses come with one.
        broadcast: bool,
    },
    /// An interface has an address, or has no longer.
    Address {
        /// The address.
        address: Address,
        /// The broadcast address, or the other end of a point-to-point link.
        broadcast: Option<IpAddr>,
        /// Whether it is gone.
        gone: bool,
    },
    /// An interface is new, or has a new name.
    Arrived(Index),
    /// An interface is gone, or had another name.
    Departed(Index),
    /// The kernel was told of a better way, and has perhaps taken it.
    Redirected,
}

/// The length in bytes and the type of the first message in `bytes`.
///
/// # Errors
/// When it is cut short, its length is impossible, or its layout is another version's.
pub fn header(bytes: &[u8]) -> Parsed<(usize, u8)> {
    let len = usize::from(u16_at(bytes, 0)?);
    let (version, kind) = (u8_at(bytes, 2)?, u8_at(bytes, 3)?);
    if len < 4 || len > bytes.len() || version != RTM_VERSION {
        return Err(Malformed);
    }
    Ok((len, kind))
}

/// What the message says that `bytes` are, from its header to its end; `None` for what does not
/// matter here: other families, requests that failed, answers to others, multicast.
///
/// # Errors
/// When it is malformed.
pub fn message(bytes: &[u8], form: Form) -> Parsed<Option<Message>> {
    let (len, kind) = header(bytes)?;
    let bytes = &bytes[..len];
    match (kind, form) {
        (RTM_ADD, Form::News) => route(bytes, Action::Added),
        (RTM_CHANGE, Form::News) => route(bytes, Action::Changed),
        (RTM_DELETE, Form::News) => route(bytes, Action::Deleted),
        (RTM_GET, Form::Listed) => route(bytes, Action::Listed),
        (RTM_REDIRECT, Form::News) => Ok((u32_at(bytes, RT_ERRNO)? == 0).then_some(Message::Redirected)),
        (RTM_IFINFO, _) => link(bytes, form),
        (RTM_NEWADDR | RTM_DELADDR, _) => address(bytes, kind == RTM_DELADDR, form),
        (RTM_IFANNOUNCE, Form::News) => announcement(bytes),
        _ => Ok(None),
    }
}

fn route(bytes: &[u8], action: Action) -> Parsed<Option<Message>> {
    let flags = u32_at(bytes, RT_FLAGS)?;
    let addrs = SockAddrs::parse(u32_at(bytes, RT_ADDRS)?, bytes.get(RT_HEADER..).ok_or(Malformed)?)?;
    let failed = u32_at(bytes, RT_ERRNO)? != 0 || flags & RTF_DONE == 0;
    if (action != Action::Listed && failed) || flags & RTF_MULTICAST != 0 {
        return Ok(None);
    }
    let destination = addrs.get(Which::Destination).ok_or(Malformed)?;
    let Some((to, scope)) = addrs.ip(Which::Destination) else {
        // An empty one is nobody's; another family's is none of ours.
        return if sockaddr::family(destination).is_some() { Ok(None) } else { Err(Malformed) };
    };
    let gateway = addrs.get(Which::Gateway).map(sockaddr::link_layer).transpose()?.flatten();
    let index = Some(Index::from(u16_at(bytes, RT_INDEX)?)).filter(|index| *index != 0);
    if flags & RTF_LLDATA != 0 {
        let index = gateway.and_then(|link| link.index).or(index).or(scope);
        return neighbor(bytes, action, flags, to, index, gateway);
    }
    let own = flags & RTF_HOST != 0
        && gateway.and_then(|link| link.index).zip(index).is_some_and(|(link, index)| link != index);
    // The way of the host's own address to itself, by the loopback interface; the address says as
    // much. And what is only told apart by interface is no route for others' packets.
    if flags & RTF_LOCAL != 0 || own || is_scoped(to) {
        return Ok(None);
    }
    let len = match flags & RTF_HOST {
        0 => addrs.prefix_len(to)?,
        _ => None,
    };
    let longest = if to.is_ipv4() { 32 } else { 128 };
    let to = IpNet::new(to, len.unwrap_or(longest)).map_err(|_| Malformed)?.trunc();
    let (hop, weighed) = hop(bytes, action, flags, index, &addrs, gateway)?;
    Ok(Some(Message::Route(RouteMessage {
        action,
        to,
        kind: kind_of(flags),
        protocol: maker_of(flags),
        hop,
        weighed,
    })))
}

/// Whether an address means something on its link only.
fn is_scoped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(a) if a.is_unicast_link_local() || a.is_multicast())
}

fn kind_of(flags: u32) -> RouteKind {
    match flags & (RTF_REJECT | RTF_BLACKHOLE) {
        0 => RouteKind::Unicast,
        RTF_REJECT => RouteKind::Unreachable,
        _ => RouteKind::Blackhole,
    }
}

fn maker_of(flags: u32) -> u8 {
    match flags {
        f if f & RTF_DYNAMIC != 0 => BY_REDIRECT,
        f if f & RTF_PINNED != 0 => BY_KERNEL,
        f if f & RTF_STATIC != 0 => BY_HAND,
        _ => 0,
    }
}

/// The next hop of a route, and whether its weight is known.
fn hop(
    bytes: &[u8],
    action: Action,
    flags: u32,
    index: Option<Index>,
    addrs: &SockAddrs<'_>,
    link: Option<LinkLayer<'_>>,
) -> Parsed<(Option<Hop>, bool)> {
    let ip = addrs.ip(Which::Gateway);
    if ip.is_none() && link.is_none() {
        return match action {
            // Where to, it must say.
            Action::Added | Action::Listed => Err(Malformed),
            Action::Changed | Action::Deleted => Ok((None, false)),
        };
    }
    let through = flags & (RTF_GATEWAY | RTF_GWFLAG_COMPAT) != 0;
    let gateway = ip.map(|(ip, _)| ip).filter(|_| through);
    let index = index.or(link.and_then(|link| link.index)).or(ip.and_then(|(_, scope)| scope));
    // The kernel's own news say nothing of weights; who asked for the route said it, or meant 1.
    let stated = action == Action::Listed || u64_at(bytes, RT_INITS)? & RTV_WEIGHT != 0;
    let weighed = stated || u32_at(bytes, RT_PID)? != 0;
    let weight = if stated { u64_at(bytes, RT_WEIGHT)? } else { 1 };
    let weight = u16::try_from(weight.max(1)).unwrap_or(u16::MAX);
    Ok((Some(Hop { gateway, index, weight, kernel_only: false, dead: false }), weighed))
}

fn neighbor(
    bytes: &[u8],
    action: Action,
    flags: u32,
    address: IpAddr,
    index: Option<Index>,
    link: Option<LinkLayer<'_>>,
) -> Parsed<Option<Message>> {
    let index = index.ok_or(Malformed)?;
    // The host's own address stands in the table, too.
    if flags & RTF_PINNED != 0 {
        return Ok(None);
    }
    let mac = link.and_then(|link| link.mac());
    let permanent = match action {
        Action::Listed => flags & RTF_STATIC != 0 || (mac.is_some() && u64_at(bytes, RT_EXPIRE)? == 0),
        _ => flags & RTF_STATIC != 0,
    };
    let state = match (action, mac) {
        (Action::Deleted, _) => None,
        (_, None) => Some(NeighborState::Incomplete),
        _ if permanent => Some(NeighborState::Permanent),
        // Only IPv6 neighbours have a state here (ND6_LLINFO_...).
        (Action::Listed, _) if address.is_ipv6() => Some(match u64_at(bytes, RT_WEIGHT)? {
            2 => NeighborState::Stale,
            3 => NeighborState::Delay,
            4 => NeighborState::Probe,
            1 => NeighborState::Reachable,
            _ => NeighborState::Incomplete,
        }),
        _ => Some(NeighborState::Reachable),
    };
    Ok(Some(Message::Neighbor { index, address, mac, state }))
}

/// Where a listing's long header ends.
fn long_header(bytes: &[u8]) -> Parsed<usize> {
    let len = usize::from(u16_at(bytes, LONG_LEN)?);
    if len < LONG_HEADER_LEAST { Err(Malformed) } else { Ok(len) }
}

fn link(bytes: &[u8], form: Form) -> Parsed<Option<Message>> {
    let (end, data) = match form {
        Form::News => (IF_HEADER, IF_DATA),
        Form::Listed => (long_header(bytes)?, usize::from(u16_at(bytes, LONG_DATA_OFF)?)),
    };
    let flags = u32_at(bytes, IF_FLAGS)?;
    let data = bytes.get(data..end).ok_or(Malformed)?;
    let (state, mtu) = (u8_at(data, DATA_LINK_STATE)?, u32_at(data, DATA_MTU)?);
    let addrs = SockAddrs::parse(u32_at(bytes, IF_ADDRS)?, bytes.get(end..).ok_or(Malformed)?)?;
    let link = addrs.get(Which::Interface).map(sockaddr::link_layer).transpose()?.flatten();
    Ok(Some(Message::Link {
        index: Index::from(u16_at(bytes, IF_INDEX)?),
        name: link.map(|l| String::from_utf8_lossy(l.name).into_owned()).unwrap_or_default(),
        mac: link.and_then(|l| l.mac()),
        mtu,
        up: flags & IFF_UP != 0,
        // A device that cannot tell counts as connected.
        carrier: state != LINK_STATE_DOWN,
        broadcast: flags & IFF_BROADCAST != 0,
    }))
}

fn address(bytes: &[u8], gone: bool, form: Form) -> Parsed<Option<Message>> {
    let end = match form {
        Form::News => IFA_HEADER,
        Form::Listed => long_header(bytes)?,
    };
    let index = Index::from(u16_at(bytes, IF_INDEX)?);
    let addrs = SockAddrs::parse(u32_at(bytes, IF_ADDRS)?, bytes.get(end..).ok_or(Malformed)?)?;
    let Some((ip, _)) = addrs.ip(Which::Address) else { return Ok(None) };
    // dhclient(8) gives an interface the unspecified address for a while.
    if ip.is_unspecified() {
        return Ok(None);
    }
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    let len = addrs.prefix_len(ip)?.unwrap_or(longest);
    let net = IpNet::new(ip, len).map_err(|_| Malformed)?;
    let broadcast = addrs.ip(Which::Broadcast).map(|(ip, _)| ip);
    // Whether duplicate address detection is over, the message does not say.
    let address = Address { index, net, secondary: false, ready: true };
    Ok(Some(Message::Address { address, broadcast, gone }))
}

fn announcement(bytes: &[u8]) -> Parsed<Option<Message>> {
    let index = Index::from(u16_at(bytes, ANNOUNCE_INDEX)?);
    bytes.get(ANNOUNCE_NAME).ok_or(Malformed)?;
    match u16_at(bytes, ANNOUNCE_WHAT)? {
        IFAN_ARRIVAL => Ok(Some(Message::Arrived(index))),
        IFAN_DEPARTURE => Ok(Some(Message::Departed(index))),
        _ => Ok(None),
    }
}
