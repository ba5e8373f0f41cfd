//! The RIB against the tables in force, which workers read. Everything here runs on the keeper's
//! thread, a region at a time, and sees both as of the same publication.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{Row, Rows, Subject};
use crate::{
    control::{
        keeper::View,
        next_hops::Adjacency,
        rib::{Family, Rib, Table},
    },
    tables::{Action, NextHop, NextHopId, NextHopInfo, PortId, fixed},
};

/// Bits of an address that a region is known by.
const REGION: u8 = 8;

/// Differences of the IPv4 FIB in the region whose addresses begin with the byte `region`.
pub(super) fn differences4(view: &View<'_>, region: u8) -> Rows {
    let table = view.rib.v4();
    let found = view.tables.fib4.differing(&table.installed, u32::from(region) << 24, REGION);
    rows(view.rib, table, &found, |address| view.tables.fib4.lookup(address))
}

/// The same of the IPv6 FIB.
pub(super) fn differences6(view: &View<'_>, region: u8) -> Rows {
    let table = view.rib.v6();
    let found = view.tables.fib6.differing(&table.installed, u128::from(region) << 120, REGION);
    rows(view.rib, table, &found, |address| view.tables.fib6.lookup(address))
}

fn rows<A: Family>(
    rib: &Rib,
    table: &Table<A>,
    regions: &[(A, u8)],
    lookup: impl Fn(A) -> NextHopId,
) -> Rows {
    let wanted = |address: A| table.installed.longest_match(address).map_or(fixed::NO_ROUTE, |(_, id)| id);
    let row = |&(first, length): &(A, u8)| {
        // An address where it shows: where some prefix begins or ends.
        let last = first.last(length);
        let inside = table.candidates.range((first, 0)..=(last, A::BITS));
        let points = inside.flat_map(|((address, length), _)| [*address, address.last(*length)]);
        let differs = |address: &A| *address <= last && lookup(*address) != wanted(*address);
        let row = match std::iter::once(first).chain(points).filter(differs).min() {
            Some(at) => {
                let text = |id| Some(format!("{}: {}", at.ip(), next_hop_text(rib, id)));
                Row { kernel: None, rib: text(wanted(at)), fib: text(lookup(at)) }
            }
            None => Row { fib: Some("holds prefixes that the rib does not".into()), ..Row::default() },
        };
        (Subject::Region(first.net(length)), row)
    };
    regions.iter().map(row).collect()
}

/// A next hop by its number, for people.
fn next_hop_text(rib: &Rib, id: NextHopId) -> String {
    let port = |port: PortId| rib.port(port).map_or("?", |port| port.name.as_str()).to_owned();
    match rib.next_hops().adjacency(id) {
        Some(Adjacency::Network(on)) => format!("on link on {}", port(on)),
        Some(Adjacency::Neighbor(on, address)) => format!("via {address} on {}", port(on)),
        Some(Adjacency::Group(place)) => format!("group {place}"),
        None => match fixed::ACTIONS.get(usize::from(id)) {
            Some(action) => format!("{action:?}").to_lowercase(),
            None => format!("next hop {id}"),
        },
    }
}

/// Differences in next hops, groups, ports and local addresses.
pub(super) fn other_differences(view: &View<'_>) -> Rows {
    let (rib, tables) = (view.rib, view.tables);
    let mut rows = Rows::new();
    let mut compare = |what: String, rib: Option<String>, fib: Option<String>| {
        if rib != fib {
            rows.insert(Subject::Other(what), Row { kernel: None, rib, fib });
        }
    };
    for (id, adjacency) in rib.next_hops().iter() {
        let (hop, info) = rib.next_hop(id);
        let (known, known_info) = (tables.next_hop(id), tables.next_hop_info(id));
        let what = format!("next hop {id}: {}", next_hop_text(rib, id));
        compare(what, Some(contents(&hop, &info)), Some(contents(known, known_info)));
        if let Adjacency::Group(place) = adjacency {
            let members = |buckets: Option<&[NextHopId; 256]>| {
                let mut counts = BTreeMap::new();
                buckets.into_iter().flatten().for_each(|id| *counts.entry(*id).or_insert(0u32) += 1);
                let order = buckets.map(|buckets| crate::config::digest(&format!("{buckets:?}")));
                buckets.map(|_| format!("{counts:?}, order {:x}", order.unwrap_or_default()))
            };
            let known = tables.groups.get(usize::from(place)).map(|group| &group.buckets);
            compare(format!("group {place}"), members(rib.group(place)), members(known));
        }
    }
    for number in 0..rib.ports() {
        let (port, known) = (rib.port(number as PortId), tables.ports.get(number));
        let text = |port: Option<&crate::tables::PortTable>| port.map(|port| format!("{port:?}"));
        compare(format!("port {number}"), text(port), text(known));
    }
    let own: BTreeSet<IpAddr> = rib.local().into_iter().collect();
    let known: BTreeSet<IpAddr> = tables.local.iter().copied().collect();
    for address in own.symmetric_difference(&known) {
        let text = |set: &BTreeSet<IpAddr>| set.contains(address).then(|| "local".to_owned());
        compare(address.to_string(), text(&own), text(&known));
    }
    rows
}

/// What workers read of a next hop, for people.
fn contents(hop: &NextHop, info: &NextHopInfo) -> String {
    let mac = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
    let gateway = info.gateway.map(|gateway| format!(" {gateway}")).unwrap_or_default();
    let group = if info.action == Action::Group { format!(" {}", info.group) } else { String::new() };
    format!(
        "{:?}{gateway}{group} to {} from {} port {} up to {} bytes",
        info.action,
        mac(&hop.macs[..6]),
        mac(&hop.macs[6..]),
        hop.port,
        hop.max_len
    )
    .to_lowercase()
}
