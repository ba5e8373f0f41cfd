//! What `show` answers, as `docs/control-protocol.md` has it. Everything here runs on the keeper's
//! thread and is short: a long list is made page by page.

use std::{net::IpAddr, ops::Bound, sync::Arc};

use ipnet::IpNet;
use serde_json::{Value, json};

use super::{
    keeper::View,
    kernel::Hop,
    next_hops::Adjacency,
    reload::Status,
    rib::{Candidate, Family, NeighborSource, Rib, Source, Table, paths::PathKey},
};
use crate::{
    config::{MacAddr, PortRange},
    forward::verdict::Verdict,
    stats::read::PortTotals,
    tables::{Action, NextHopId, fixed},
};

/// Prefixes looked at for one page.
const PAGE: usize = 2048;

/// Where the next page of routes begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cursor {
    /// At the first.
    #[default]
    Start,
    /// Behind this IPv4 prefix.
    Behind4(u32, u8),
    /// At the first IPv6 prefix.
    Start6,
    /// Behind this IPv6 prefix.
    Behind6(u128, u8),
    /// There are no more.
    End,
}

/// The ports, with their counts.
pub fn ports(view: &View<'_>, totals: &[PortTotals]) -> Value {
    let rows = view.ports.iter().enumerate().filter_map(|(number, port)| {
        let port = port.as_ref()?;
        let table = view.rib.port(number as u16);
        let counts = totals.get(number).cloned().unwrap_or_default();
        let addresses = table.map_or_else(Vec::new, |table| {
            let v4 = table.addresses4.iter().map(ToString::to_string);
            v4.chain(table.addresses6.iter().map(ToString::to_string)).collect()
        });
        let up = table.is_some_and(|table| table.up);
        let express = port.express.state(view.tables, number as u16, view.no_express);
        Some(json!({
            "name": table.map(|table| table.name.as_str()),
            "device": port.device,
            "up": up,
            "state": if port.gone.is_some() { "gone" } else if up { "up" } else { "down" },
            "reason": port.gone,
            "rx_packets": counts.rx_packets,
            "rx_bytes": counts.rx_bytes,
            "rx_errors": counts.rx_errors,
            "rx_dropped": counts.rx_dropped,
            "tx_packets": counts.tx_packets,
            "tx_bytes": counts.tx_bytes,
            "tx_errors": counts.tx_errors,
            "tx_dropped": counts.tx_dropped,
            "express_packets": counts.express,
            "express": express.as_ref().map(|state| if state.is_ok() { "on" } else { "off" }),
            "express_reason": express.and_then(Result::err),
            "takes_frames": port.express.takes_frames(),
            "mode": port.mode,
            "interface": view.rib.interface_of(number as u16).or(port.interface.as_deref()),
            "mac": table.map(|table| MacAddr(table.mac).to_string()),
            "mtu": table.map(|table| table.mtu),
            "rings": port.rings,
            "addresses": addresses,
        }))
    });
    Value::Array(rows.collect())
}

/// The count of each verdict over all ports.
pub fn verdicts(totals: &[PortTotals]) -> Value {
    let mut sum = PortTotals::default();
    totals.iter().for_each(|port| sum += port);
    let mut object = serde_json::Map::new();
    for (number, verdict) in Verdict::ALL.iter().enumerate() {
        object.insert(verdict.name().into(), json!(sum.verdicts.get(number).copied().unwrap_or(0)));
    }
    object.insert("held".into(), json!(sum.held));
    object.insert("in_transit".into(), json!(sum.in_transit));
    Value::Object(object)
}

/// The tables' sizes, and how reloads went.
pub fn tables(view: &View<'_>, reloads: &Status) -> Value {
    let mut data = json!({
        "generation": view.generation,
        "fib4_prefixes": view.rib.v4().installed.len(),
        "fib6_prefixes": view.rib.v6().installed.len(),
        "adjacencies": view.rib.next_hops().len(),
        "neighbors": view.rib.neighbors().count(),
        "fib4_bytes": view.tables.fib4.bytes(),
        "fib6_bytes": view.tables.fib6.bytes(),
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
    });
    for (key, value) in reloads.keys() {
        data[key] = value;
    }
    data
}

/// The neighbours, by port and address.
pub fn neighbors(view: &View<'_>) -> Value {
    let mut list: Vec<_> = view.rib.neighbors().collect();
    list.sort_by_key(|(port, address, _)| (*port, *address));
    let rows = list.into_iter().map(|(port, address, neighbor)| {
        json!({
            "address": address,
            "port": view.rib.port(port).map(|port| port.name.as_str()),
            "mac": neighbor.mac.map(|mac| MacAddr(mac).to_string()),
            "state": neighbor.state.name(),
            "source": match neighbor.source {
                NeighborSource::Kernel => "kernel",
                NeighborSource::Static => "static",
                NeighborSource::Learned => "learned",
            },
        })
    });
    Value::Array(rows.collect())
}

/// The access rules with the packets that each fitted, in their order; the last row is of those
/// that none fitted. Empty when there are no rules.
pub fn acl(view: &View<'_>) -> Value {
    let names = |ports: &[u16]| {
        let name = |port: &u16| view.rib.port(*port).map(|port| port.name.clone());
        ports.iter().filter_map(name).collect::<Vec<_>>()
    };
    let ranges = |list: &[(u16, u16)]| {
        let range = |(first, last): &(u16, u16)| PortRange { first: *first, last: *last }.to_string();
        list.iter().map(range).collect::<Vec<_>>()
    };
    let rows = view.filters.rows().into_iter().map(|(rule, hits)| match rule {
        None => json!({ "rule": null, "action": "permit", "hits": hits }),
        Some(rule) => json!({
            "rule": rule.name,
            "action": if rule.denies { "deny" } else { "permit" },
            "hits": hits,
            "in": names(&rule.in_ports),
            "out": names(&rule.out_ports),
            "from": rule.from,
            "to": rule.to,
            "protocol": rule.protocol,
            "from_ports": ranges(&rule.from_ports),
            "to_ports": ranges(&rule.to_ports),
            "log": rule.logs,
        }),
    });
    Value::Array(rows.collect())
}

/// A page of the routes in force, and where the next begins.
pub fn routes(view: &View<'_>, cursor: Cursor) -> (Vec<Value>, Cursor) {
    match cursor {
        Cursor::Start => page(view.rib, view.rib.v4(), None, Cursor::Behind4, Cursor::Start6),
        Cursor::Behind4(address, length) => {
            page(view.rib, view.rib.v4(), Some((address, length)), Cursor::Behind4, Cursor::Start6)
        }
        Cursor::Start6 => page(view.rib, view.rib.v6(), None, Cursor::Behind6, Cursor::End),
        Cursor::Behind6(address, length) => {
            page(view.rib, view.rib.v6(), Some((address, length)), Cursor::Behind6, Cursor::End)
        }
        Cursor::End => (Vec::new(), Cursor::End),
    }
}

fn page<A: Family>(
    rib: &Rib,
    table: &Table<A>,
    behind: Option<(A, u8)>,
    more: fn(A, u8) -> Cursor,
    end: Cursor,
) -> (Vec<Value>, Cursor) {
    let start = behind.map_or(Bound::Unbounded, Bound::Excluded);
    let mut rows = Vec::new();
    let mut looked_at = 0;
    for (key, candidates) in table.candidates.range((start, Bound::Unbounded)) {
        rows.extend(best_route(rib, candidates.as_slice()).map(|best| route(rib, *key, best)));
        let configured = candidates.as_slice().iter().filter(|candidate| candidate.source == Source::Static);
        rows.extend(configured.filter_map(|candidate| inactive(rib, *key, candidate)));
        looked_at += 1;
        if looked_at == PAGE {
            return (rows, more(key.0, key.1));
        }
    }
    (rows, end)
}

/// The ways to a prefix that come from the kernel, best first: whose word, metric, where to.
pub type KernelWays = Vec<(Source, u32, Arc<PathKey>)>;

/// A page of the prefixes with routes of the kernel's, in force or not, and where the next begins.
pub fn kernel_routes(view: &View<'_>, cursor: Cursor) -> (Vec<(IpNet, KernelWays)>, Cursor) {
    let (v4, v6) = (view.rib.v4(), view.rib.v6());
    match cursor {
        Cursor::Start => kernel_page(view.rib, v4, None, Cursor::Behind4, Cursor::Start6),
        Cursor::Behind4(address, length) => {
            kernel_page(view.rib, v4, Some((address, length)), Cursor::Behind4, Cursor::Start6)
        }
        Cursor::Start6 => kernel_page(view.rib, v6, None, Cursor::Behind6, Cursor::End),
        Cursor::Behind6(address, length) => {
            kernel_page(view.rib, v6, Some((address, length)), Cursor::Behind6, Cursor::End)
        }
        Cursor::End => (Vec::new(), Cursor::End),
    }
}

fn kernel_page<A: Family>(
    rib: &Rib,
    table: &Table<A>,
    behind: Option<(A, u8)>,
    more: fn(A, u8) -> Cursor,
    end: Cursor,
) -> (Vec<(IpNet, KernelWays)>, Cursor) {
    let start = behind.map_or(Bound::Unbounded, Bound::Excluded);
    let mut rows = Vec::new();
    for (looked_at, (key, list)) in table.candidates.range((start, Bound::Unbounded)).enumerate() {
        let of_kernel = list.as_slice().iter().filter(|candidate| candidate.mark != 0);
        let ways: KernelWays =
            of_kernel.filter_map(|c| Some((c.source, c.metric, rib.path(c.path)?.key.clone()))).collect();
        if !ways.is_empty() {
            rows.push((key.0.net(key.1), ways));
        }
        if looked_at + 1 == PAGE {
            return (rows, more(key.0, key.1));
        }
    }
    (rows, end)
}

/// The candidate in force, unless it is none that someone has given.
fn best_route<'a>(rib: &Rib, candidates: &'a [Candidate]) -> Option<&'a Candidate> {
    rib.best(candidates).filter(|best| !matches!(best.source, Source::Special | Source::Neighbor))
}

/// A configured route that is not in force.
fn inactive<A: Family>(rib: &Rib, key: (A, u8), candidate: &Candidate) -> Option<Value> {
    let reason = rib.why_unresolved(rib.path(candidate.path)?)?;
    let mut row = route(rib, key, candidate);
    row["active"] = false.into();
    row["reason"] = reason.into();
    Some(row)
}

fn route<A: Family>(rib: &Rib, (address, length): (A, u8), best: &Candidate) -> Value {
    let key = rib.path(best.path).map(|path| path.key.clone());
    let (kind, hops) = match key.as_deref() {
        Some(PathKey::Fixed(id)) => (fixed_name(*id), Vec::new()),
        Some(PathKey::Hops(hops)) => ("unicast", hops.clone()),
        Some(PathKey::Object(id)) => ("unicast", rib.object_hops(*id)),
        None => ("unicast", Vec::new()),
    };
    let via: Vec<Value> = hops.iter().filter(|hop| !hop.dead).map(|hop| next_hop(rib, hop)).collect();
    json!({
        "to": address.net(length),
        "type": kind,
        "source": match (best.source, best.mark) {
            (Source::Static, _) => "static",
            (_, 0) => "connected",
            _ => "kernel",
        },
        "protocol": (best.mark != 0).then(|| protocol_name(best.protocol)).flatten(),
        "metric": (best.mark != 0).then_some(best.metric),
        "via": via,
        "active": true,
        "reason": null,
    })
}

/// Who made a route of the kernel's, as iproute2 and FreeBSD's numbers have it; `None` where it is
/// not known.
fn protocol_name(protocol: u8) -> Option<&'static str> {
    if cfg!(not(target_os = "linux")) {
        return None;
    }
    Some(match protocol {
        1 => "redirect",
        2 => "kernel",
        3 => "boot",
        4 => "static",
        9 => "ra",
        11 => "zebra",
        12 => "bird",
        16 => "dhcp",
        18 => "keepalived",
        42 => "babel",
        186 => "bgp",
        187 => "isis",
        188 => "ospf",
        189 => "rip",
        192 => "eigrp",
        _ => return None,
    })
}

/// The type of a route that leads to a next hop with a fixed place.
pub fn fixed_name(id: NextHopId) -> &'static str {
    match id {
        fixed::HOST => "local",
        fixed::BROADCAST => "broadcast",
        fixed::BLACKHOLE => "blackhole",
        fixed::UNREACHABLE => "unreachable",
        fixed::PROHIBIT => "prohibit",
        _ => "throw",
    }
}

fn next_hop(rib: &Rib, hop: &Hop) -> Value {
    let port = match hop.index {
        Some(index) => rib.port_of(index),
        None => rib.port_of_hop(hop),
    };
    let port = port.and_then(|port| rib.port(port));
    let device = hop.index.filter(|_| port.is_none()).and_then(|index| rib.link_name(index));
    json!({
        "gateway": hop.gateway,
        "port": port.map(|port| port.name.as_str()),
        "device": device,
        "weight": hop.weight,
    })
}

/// The route to `address`, and what would become of a packet.
pub fn route_to(view: &View<'_>, address: IpAddr) -> Value {
    match address {
        IpAddr::V4(a) => fate(view.rib, view.rib.v4(), u32::from(a), address),
        IpAddr::V6(a) => fate(view.rib, view.rib.v6(), u128::from(a), address),
    }
}

fn fate<A: Family>(rib: &Rib, table: &Table<A>, number: A, address: IpAddr) -> Value {
    let found = table.installed.longest_match(number);
    let id = found.map_or(fixed::NO_ROUTE, |(_, id)| id);
    // The neighbour's own entry is no route; the one to its network is.
    let lengths = (0..=A::BITS).rev().map(|length| (number.network(length), length));
    let matching = lengths.filter_map(|key| best_route(rib, table.of(key)).map(|best| route(rib, key, best)));
    let route = matching.into_iter().next();
    let id = match rib.next_hops().adjacency(id) {
        Some(Adjacency::Group(place)) => rib.group(place).map_or(id, |buckets| buckets[0]),
        _ => id,
    };
    let (hop, info) = rib.next_hop(id);
    let adjacency = rib.next_hops().adjacency(id);
    let next_hop = match adjacency {
        Some(Adjacency::Neighbor(_, gateway)) => Some(gateway),
        Some(Adjacency::Network(_)) => Some(address),
        _ => None,
    };
    let port = adjacency.and_then(Adjacency::port).and_then(|port| rib.port(port));
    let mac = (info.action == Action::Forward).then(|| {
        let [a, b, c, d, e, f, ..] = hop.macs;
        MacAddr([a, b, c, d, e, f]).to_string()
    });
    json!({
        "address": address,
        "route": route,
        "next_hop": next_hop,
        "port": port.map(|port| port.name.as_str()),
        "port_up": port.map(|port| port.up),
        "mac": mac,
        "verdict": verdict(info.action).name(),
    })
}

fn verdict(action: Action) -> Verdict {
    match action {
        Action::NoRoute => Verdict::NoRoute,
        Action::Forward | Action::Resolve | Action::Glean | Action::Group => Verdict::Forwarded,
        Action::Host => Verdict::Host,
        Action::Blackhole => Verdict::Blackhole,
        Action::Unreachable => Verdict::Unreachable,
        Action::Prohibit => Verdict::Prohibited,
        Action::Martian => Verdict::Martian,
        Action::Multicast => Verdict::Multicast,
        Action::Broadcast => Verdict::Broadcast,
        Action::LinkLocal => Verdict::LinkLocal,
    }
}
