//! From rtnetlink's bytes to [`KernelEvent`]s: pure functions. Only the attributes that matter
//! here are read, so that a kernel newer than this program says nothing that could confuse it; a
//! message that does not parse is an error for the caller to count, never a panic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::NlasIterator;

use super::{
    Address, Hop, KernelEvent, Link, NeighborState, NextHopObject, Placement, Route, RouteKind, VlanLink, Way,
};
use crate::wire::{
    ethernet,
    vlan::{Tag, is_tag},
};

/// Length of a message's own header, in bytes.
pub const HEADER: usize = 16;

/// What a message's own header says; see netlink(7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The message's length in bytes, header included.
    pub len: usize,
    /// What it is about.
    pub kind: u16,
    /// `NLM_F_...`.
    pub flags: u16,
    /// Number of the request that it answers.
    pub sequence: u32,
}

/// A message that cannot be understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

type Parsed<T> = Result<T, Malformed>;

/// The address family numbers of the messages.
const INET: u8 = libc::AF_INET as u8;
const INET6: u8 = libc::AF_INET6 as u8;

// linux/rtnetlink.h, linux/nexthop.h: what the crate libc lacks.
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_DELNEXTHOP: u16 = 105;
const RTA_ENCAP: u16 = 22;
const RTA_NH_ID: u16 = 30;
const RTNH_F_DEAD: u8 = 1;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_BLACKHOLE: u16 = 4;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const NHA_ENCAP: u16 = 8;
const NHA_FDB: u16 = 11;
const IFLA_CARRIER: u16 = 33;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;
const IFA_FLAGS: u16 = 8;
const IFA_F_SECONDARY: u32 = 0x01;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_OPTIMISTIC: u32 = 0x04;
const RT_TABLE_LOCAL: u32 = 255;

fn u16_at(bytes: &[u8], at: usize) -> Parsed<u16> {
    let end = at.checked_add(2).ok_or(Malformed)?;
    Ok(u16::from_ne_bytes(bytes.get(at..end).ok_or(Malformed)?.try_into().map_err(|_| Malformed)?))
}

fn u32_at(bytes: &[u8], at: usize) -> Parsed<u32> {
    let end = at.checked_add(4).ok_or(Malformed)?;
    Ok(u32::from_ne_bytes(bytes.get(at..end).ok_or(Malformed)?.try_into().map_err(|_| Malformed)?))
}

fn u8_at(bytes: &[u8], at: usize) -> Parsed<u8> {
    bytes.get(at).copied().ok_or(Malformed)
}

fn mac_of(bytes: &[u8]) -> Option<[u8; 6]> {
    bytes.try_into().ok()
}

/// An address in network order, by its length.
fn ip_of(bytes: &[u8]) -> Parsed<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Ok(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(bytes).map(|v6| Ipv6Addr::from(v6).into()).map_err(|_| Malformed)
}

/// Calls `each` with every attribute in `bytes`.
fn attributes(bytes: &[u8], mut each: impl FnMut(u16, &[u8]) -> Parsed<()>) -> Parsed<()> {
    for attribute in NlasIterator::new(bytes) {
        let attribute = attribute.map_err(|_| Malformed)?;
        each(attribute.kind(), attribute.value())?;
    }
    Ok(())
}

/// Reads the header of the first message in `bytes`.
///
/// # Errors
/// When it is cut short, or its length is impossible.
pub fn header(bytes: &[u8]) -> Parsed<Header> {
    let len = u32_at(bytes, 0)? as usize;
    if len < HEADER || len > bytes.len() {
        return Err(Malformed);
    }
    Ok(Header { len, kind: u16_at(bytes, 4)?, flags: u16_at(bytes, 6)?, sequence: u32_at(bytes, 8)? })
}

/// What one message says; `None` for what does not matter here: other tables than `table` and the
/// local one, other families, cached routes.
///
/// # Errors
/// When the message is malformed.
pub fn message(header: Header, payload: &[u8], table: Option<u32>) -> Parsed<Option<KernelEvent>> {
    match header.kind {
        libc::RTM_NEWLINK | libc::RTM_DELLINK => link(header.kind, payload),
        libc::RTM_NEWADDR | libc::RTM_DELADDR => address(header.kind, payload),
        libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => neighbor(header.kind, payload),
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => route(header, payload, table),
        RTM_NEWNEXTHOP | RTM_DELNEXTHOP => next_hop(header.kind, payload),
        _ => Ok(None),
    }
}

fn link(kind: u16, payload: &[u8]) -> Parsed<Option<KernelEvent>> {
    // struct ifinfomsg: family, pad, type:16, index:32, flags:32, change:32.
    let index = u32_at(payload, 4)?;
    let flags = u32_at(payload, 8)?;
    // A bridge or an address family reports a part of a link only.
    if u8_at(payload, 0)? != libc::AF_UNSPEC as u8 {
        return Ok(None);
    }
    if kind == libc::RTM_DELLINK {
        return Ok(Some(KernelEvent::LinkGone(index)));
    }
    let mut link = Link {
        index,
        name: String::new(),
        mac: None,
        mtu: 0,
        up: flags & libc::IFF_UP as u32 != 0,
        carrier: flags & libc::IFF_LOWER_UP as u32 != 0,
        vlan: None,
    };
    let (mut below, mut tag, mut elsewhere) = (None, None, false);
    attributes(payload.get(16..).ok_or(Malformed)?, |kind, value| {
        match kind {
            libc::IFLA_IFNAME => {
                let name = value.split(|b| *b == 0).next().unwrap_or_default();
                link.name = String::from_utf8_lossy(name).into_owned();
            }
            libc::IFLA_ADDRESS => link.mac = mac_of(value),
            libc::IFLA_MTU => link.mtu = u32_at(value, 0)?,
            IFLA_CARRIER => link.carrier = u8_at(value, 0)? != 0,
            libc::IFLA_LINK => below = Some(u32_at(value, 0)?),
            IFLA_LINKINFO => tag = vlan_tag(value)?,
            IFLA_LINK_NETNSID => elsewhere = true,
            _ => {}
        }
        Ok(())
    })?;
    // An interface below that is in another namespace has a number that means nothing here.
    if let (Some(parent), Some(tag), false) = (below, tag, elsewhere) {
        link.vlan = Some(VlanLink { parent, tag });
    }
    if link.name.is_empty() || index == 0 {
        return Err(Malformed);
    }
    Ok(Some(KernelEvent::LinkChanged(link)))
}

/// The tag of a VLAN interface, from its IFLA_LINKINFO; `None` for one of another kind.
fn vlan_tag(info: &[u8]) -> Parsed<Option<Tag>> {
    let (mut is_vlan, mut data) = (false, Vec::new());
    attributes(info, |kind, value| {
        match kind {
            IFLA_INFO_KIND => is_vlan = value.split(|b| *b == 0).next() == Some(b"vlan"),
            IFLA_INFO_DATA => data = value.to_vec(),
            _ => {}
        }
        Ok(())
    })?;
    // Other kinds use the same numbers for something else.
    if !is_vlan {
        return Ok(None);
    }
    let (mut vlan, mut protocol) = (None, ethernet::VLAN);
    attributes(&data, |kind, value| {
        match kind {
            IFLA_VLAN_ID => vlan = Some(u16_at(value, 0)?),
            IFLA_VLAN_PROTOCOL => protocol = u16::from_be(u16_at(value, 0)?),
            _ => {}
        }
        Ok(())
    })?;
    let vlan = vlan.filter(|_| is_tag(protocol));
    Ok(vlan.map(|vlan| Tag { service: protocol == ethernet::SERVICE_VLAN, vlan }))
}

fn address(kind: u16, payload: &[u8]) -> Parsed<Option<KernelEvent>> {
    // struct ifaddrmsg: family, prefix length, flags, scope, index:32.
    let family = u8_at(payload, 0)?;
    if family != INET && family != INET6 {
        return Ok(None);
    }
    let (len, index) = (u8_at(payload, 1)?, u32_at(payload, 4)?);
    let mut flags = u32::from(u8_at(payload, 2)?);
    let (mut local, mut peer) = (None, None);
    attributes(payload.get(8..).ok_or(Malformed)?, |kind, value| {
        match kind {
            libc::IFA_LOCAL => local = Some(ip_of(value)?),
            libc::IFA_ADDRESS => peer = Some(ip_of(value)?),
            IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
        Ok(())
    })?;
    // On a point-to-point link IFA_ADDRESS is the other end's, and the prefix belongs to it.
    let own = local.or(peer).ok_or(Malformed)?;
    let len = match (local, peer) {
        (Some(l), Some(p)) if l != p => {
            if family == INET {
                32
            } else {
                128
            }
        }
        _ => len,
    };
    let net = IpNet::new(own, len).map_err(|_| Malformed)?;
    let address = Address {
        index,
        net,
        secondary: family == INET && flags & IFA_F_SECONDARY != 0,
        ready: flags & IFA_F_DADFAILED == 0
            && (flags & IFA_F_TENTATIVE == 0 || flags & IFA_F_OPTIMISTIC != 0),
    };
    Ok(Some(if kind == libc::RTM_NEWADDR {
        KernelEvent::AddressAdded(address)
    } else {
        KernelEvent::AddressRemoved(address)
    }))
}

/// The state of a neighbour; `None` if nothing is known of it.
fn neighbor_state(bits: u16) -> Option<NeighborState> {
    Some(match bits {
        libc::NUD_INCOMPLETE => NeighborState::Incomplete,
        libc::NUD_REACHABLE => NeighborState::Reachable,
        libc::NUD_STALE => NeighborState::Stale,
        libc::NUD_DELAY => NeighborState::Delay,
        libc::NUD_PROBE => NeighborState::Probe,
        libc::NUD_FAILED => NeighborState::Failed,
        libc::NUD_NOARP => NeighborState::NoArp,
        libc::NUD_PERMANENT => NeighborState::Permanent,
        _ => return None,
    })
}

fn neighbor(kind: u16, payload: &[u8]) -> Parsed<Option<KernelEvent>> {
    // struct ndmsg: family, pad:24, index:32, state:16, flags, type.
    let family = u8_at(payload, 0)?;
    if family != INET && family != INET6 {
        return Ok(None);
    }
    let (index, state, flags) = (u32_at(payload, 4)?, u16_at(payload, 8)?, u8_at(payload, 10)?);
    if flags & libc::NTF_PROXY != 0 {
        return Ok(None);
    }
    let (mut address, mut mac) = (None, None);
    attributes(payload.get(12..).ok_or(Malformed)?, |kind, value| {
        match kind {
            libc::NDA_DST => address = Some(ip_of(value)?),
            libc::NDA_LLADDR => mac = mac_of(value),
            _ => {}
        }
        Ok(())
    })?;
    let address = address.ok_or(Malformed)?;
    if kind == libc::RTM_DELNEIGH {
        return Ok(Some(KernelEvent::NeighborGone { index, address }));
    }
    Ok(Some(match neighbor_state(state) {
        Some(state) => KernelEvent::NeighborChanged { index, address, mac, state },
        None => KernelEvent::NeighborGone { index, address },
    }))
}

fn route_kind(kind: u8) -> Option<RouteKind> {
    Some(match kind {
        libc::RTN_UNICAST => RouteKind::Unicast,
        libc::RTN_LOCAL => RouteKind::Local,
        libc::RTN_BROADCAST => RouteKind::Broadcast,
        libc::RTN_ANYCAST => RouteKind::Anycast,
        libc::RTN_BLACKHOLE => RouteKind::Blackhole,
        libc::RTN_UNREACHABLE => RouteKind::Unreachable,
        libc::RTN_PROHIBIT => RouteKind::Prohibit,
        libc::RTN_THROW => RouteKind::Throw,
        _ => return None,
    })
}

/// RTA_VIA: a gateway of another family than the route's: family:16, then the address.
fn via(value: &[u8]) -> Parsed<IpAddr> {
    ip_of(value.get(2..).ok_or(Malformed)?)
}

/// RTA_MULTIPATH: a list of struct rtnexthop: length:16, flags, weight - 1, index:32, attributes.
fn multipath(mut bytes: &[u8]) -> Parsed<Vec<Hop>> {
    let mut hops = Vec::new();
    while !bytes.is_empty() {
        let len = usize::from(u16_at(bytes, 0)?);
        if len < 8 || len > bytes.len() {
            return Err(Malformed);
        }
        let mut hop = Hop {
            gateway: None,
            index: Some(u32_at(bytes, 4)?),
            weight: u16::from(u8_at(bytes, 3)?) + 1,
            kernel_only: false,
            dead: u8_at(bytes, 2)? & RTNH_F_DEAD != 0,
        };
        attributes(&bytes[8..len], |kind, value| {
            match kind {
                libc::RTA_GATEWAY => hop.gateway = Some(ip_of(value)?),
                libc::RTA_VIA => hop.gateway = Some(via(value)?),
                RTA_ENCAP => hop.kernel_only = true,
                _ => {}
            }
            Ok(())
        })?;
        hops.push(hop);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(hops)
}

fn route(header: Header, payload: &[u8], table: Option<u32>) -> Parsed<Option<KernelEvent>> {
    // struct rtmsg: family, destination length, source length, tos, table, protocol, scope, type,
    // flags:32.
    let family = u8_at(payload, 0)?;
    let (len, source_len, tos) = (u8_at(payload, 1)?, u8_at(payload, 2)?, u8_at(payload, 3)?);
    let (protocol, kind) = (u8_at(payload, 5)?, u8_at(payload, 7)?);
    let mut of_table = u32::from(u8_at(payload, 4)?);
    let flags = u32_at(payload, 8)?;
    let cached = flags & libc::RTM_F_CLONED != 0;
    let dead = flags & u32::from(RTNH_F_DEAD) != 0;
    // Routes by source or type of service are not for every packet; the kernel's alone.
    if (family != INET && family != INET6) || cached || source_len != 0 || tos != 0 {
        return Ok(None);
    }
    let Some(kind) = route_kind(kind) else { return Ok(None) };
    let (mut to, mut gateway, mut index, mut metric) = (None, None, None, 0);
    let (mut hops, mut object, mut kernel_only) = (Vec::new(), None, false);
    attributes(payload.get(12..).ok_or(Malformed)?, |kind, value| {
        match kind {
            libc::RTA_DST => to = Some(ip_of(value)?),
            libc::RTA_GATEWAY => gateway = Some(ip_of(value)?),
            libc::RTA_VIA => gateway = Some(via(value)?),
            libc::RTA_OIF => index = Some(u32_at(value, 0)?),
            libc::RTA_PRIORITY => metric = u32_at(value, 0)?,
            libc::RTA_TABLE => of_table = u32_at(value, 0)?,
            libc::RTA_MULTIPATH => hops = multipath(value)?,
            RTA_NH_ID => object = Some(u32_at(value, 0)?),
            RTA_ENCAP => kernel_only = true,
            _ => {}
        }
        Ok(())
    })?;
    let local_table = of_table == RT_TABLE_LOCAL;
    if !local_table && table != Some(of_table) {
        return Ok(None);
    }
    let any: IpAddr =
        if family == INET { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let to = to.unwrap_or(any);
    if to.is_ipv4() != any.is_ipv4() {
        return Err(Malformed);
    }
    let to = IpNet::new(to, len).map_err(|_| Malformed)?.trunc();
    if hops.is_empty() && (index.is_some() || gateway.is_some()) {
        hops.push(Hop { gateway, index, weight: 1, kernel_only, dead });
    }
    if kind != RouteKind::Unicast && kind != RouteKind::Broadcast {
        hops.clear();
    }
    let way = match object {
        Some(id) if kind == RouteKind::Unicast => Way::Object(id),
        _ => Way::Hops(hops),
    };
    let route = Route { to, local_table, metric, protocol, kind, way };
    Ok(Some(if header.kind == libc::RTM_NEWROUTE {
        let placement = if header.flags & libc::NLM_F_REPLACE as u16 != 0 {
            Placement::Replace
        } else if header.flags & libc::NLM_F_APPEND as u16 != 0 {
            Placement::After
        } else {
            Placement::Before
        };
        KernelEvent::RouteChanged(route, placement)
    } else {
        KernelEvent::RouteGone(route)
    }))
}

fn next_hop(kind: u16, payload: &[u8]) -> Parsed<Option<KernelEvent>> {
    // struct nhmsg: family, scope, protocol, reserved, flags:32.
    let (mut id, mut blackhole, mut bridge) = (None, false, false);
    let mut hop = Hop { gateway: None, index: None, weight: 1, kernel_only: false, dead: false };
    let mut group: Option<Vec<(u32, u16)>> = None;
    attributes(payload.get(8..).ok_or(Malformed)?, |kind, value| {
        match kind {
            NHA_ID => id = Some(u32_at(value, 0)?),
            NHA_BLACKHOLE => blackhole = true,
            NHA_FDB => bridge = true,
            NHA_OIF => hop.index = Some(u32_at(value, 0)?),
            NHA_GATEWAY => hop.gateway = Some(ip_of(value)?),
            NHA_ENCAP => hop.kernel_only = true,
            // struct nexthop_grp: id:32, weight - 1, its upper byte, reserved:16.
            NHA_GROUP => {
                let entries = value.chunks_exact(8);
                if !entries.remainder().is_empty() {
                    return Err(Malformed);
                }
                group = Some(
                    entries
                        .map(|e| {
                            let weight = u16::from_le_bytes([u8_at(e, 4)?, u8_at(e, 5)?]);
                            Ok((u32_at(e, 0)?, weight.saturating_add(1)))
                        })
                        .collect::<Parsed<_>>()?,
                );
            }
            _ => {}
        }
        Ok(())
    })?;
    let id = id.ok_or(Malformed)?;
    if bridge {
        return Ok(None);
    }
    if kind == RTM_DELNEXTHOP {
        return Ok(Some(KernelEvent::NextHopGone(id)));
    }
    let object = match group {
        Some(members) => NextHopObject::Group(members),
        None if blackhole => NextHopObject::Blackhole,
        None if hop.index.is_some() => NextHopObject::Single(hop),
        None => return Err(Malformed),
    };
    Ok(Some(KernelEvent::NextHopChanged(id, object)))
}

#[cfg(test)]
mod tests;
