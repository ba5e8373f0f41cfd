//! Random histories: the RIB, which follows step by step, against a model that works everything
//! out anew from what is known at the end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use proptest::prelude::*;

use super::tests::{LAN, WAN, feed, hop, link, route, spec};
use super::*;
use crate::control::kernel::{NeighborState, Placement, Route};
use crate::tables::{Action, Group, NextHop, NextHopInfo, fixed, prefixes::Prefixes4};

const GATEWAYS: [&str; 4] = ["10.0.0.2", "10.0.0.3", "10.1.0.2", "100.64.0.1"];
const PREFIXES: [&str; 9] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.0.0.0/24",
    "10.1.0.0/24",
    "10.0.0.0/30",
    "10.0.0.2/32",
    "198.51.100.0/24",
    "198.51.100.128/25",
    "198.51.100.129/32",
];
const ADDRESSES: [&str; 9] = [
    "8.8.8.8",
    "10.9.9.9",
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "10.0.0.77",
    "10.1.0.2",
    "198.51.100.1",
    "198.51.100.129",
];

#[derive(Clone, Debug)]
enum Op {
    Link(Index, bool),
    Route(usize, u32, Vec<(Option<usize>, Index)>),
    Unroute(usize, u32),
    Neighbor(Index, usize, Option<bool>),
}

type Hops = Vec<(Option<IpAddr>, Index)>;

/// Everything that is known, and nothing worked out.
#[derive(Default)]
struct Model {
    up: BTreeSet<Index>,
    routes: BTreeMap<(Ipv4Net, u32), Hops>,
    neighbors: BTreeMap<(IpAddr, Index), bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    NoRoute,
    Glean(PortId),
    /// Neighbours that it may be sent to; whether their MAC address is known.
    To(BTreeSet<(PortId, IpAddr)>, bool),
}

fn port(index: Index) -> PortId {
    (index - WAN) as PortId
}

impl Model {
    fn usable(&self, gateway: IpAddr, index: Index) -> bool {
        self.neighbors.get(&(gateway, index)) == Some(&true)
    }

    /// The hops of the best route of exactly this length that has any that live.
    fn at(&self, address: Ipv4Addr, length: u8) -> Option<Hops> {
        let routes =
            self.routes.iter().filter(|((net, _), _)| net.prefix_len() == length && net.contains(&address));
        routes
            .map(|(_, hops)| {
                hops.iter().filter(|(_, index)| self.up.contains(index)).copied().collect::<Hops>()
            })
            .find(|hops| !hops.is_empty())
    }

    fn fate(&self, address: Ipv4Addr) -> Fate {
        for length in (0..=32).rev() {
            let Some(hops) = self.at(address, length) else {
                if length == 32
                    && let Some(neighbor) = self.on_link(address)
                {
                    return neighbor;
                }
                continue;
            };
            let ways: BTreeSet<_> = hops.iter().copied().collect();
            let ready: BTreeSet<_> = ways
                .iter()
                .filter(|(gateway, index)| gateway.is_none_or(|gateway| self.usable(gateway, *index)))
                .copied()
                .collect();
            let any = !ready.is_empty();
            let ways = if any { ready } else { ways };
            if let Some((None, index)) = ways.first()
                && ways.len() == 1
            {
                return Fate::Glean(port(*index));
            }
            let to = ways
                .iter()
                .map(|(gateway, index)| (port(*index), gateway.unwrap_or(Ipv4Addr::UNSPECIFIED.into())));
            return Fate::To(to.collect(), any);
        }
        Fate::NoRoute
    }

    /// A neighbour whose network leads to its own link has a route of its own.
    fn on_link(&self, address: Ipv4Addr) -> Option<Fate> {
        let cover = (0..32).rev().find_map(|length| self.at(address, length))?;
        let ways: BTreeSet<_> = cover.into_iter().collect();
        let (None, index) = *ways.first().filter(|_| ways.len() == 1)? else { return None };
        self.usable(address.into(), index).then(|| Fate::To([(port(index), address.into())].into(), true))
    }

    fn apply(&mut self, op: &Op) -> KernelEvent {
        match op {
            Op::Link(index, up) => {
                if *up {
                    self.up.insert(*index);
                } else if self.up.remove(index) {
                    let up = &self.up;
                    let on_it = |hops: &Hops| hops.iter().any(|(_, i)| i == index);
                    self.routes.retain(|_, hops| !on_it(hops) || hops.iter().any(|(_, i)| up.contains(i)));
                }
                link(*index, if *index == WAN { "wan" } else { "lan" }, *up)
            }
            Op::Route(prefix, metric, hops) => {
                let named: Vec<_> = hops.iter().map(|(g, i)| hop(g.map(|g| GATEWAYS[g]), *i)).collect();
                self.routes.insert(
                    (PREFIXES[*prefix].parse().unwrap(), *metric),
                    named.iter().map(|hop| (hop.gateway, hop.index.unwrap())).collect(),
                );
                let route = Route { metric: *metric, ..route(PREFIXES[*prefix], named) };
                KernelEvent::RouteChanged(route, Placement::Replace)
            }
            Op::Unroute(prefix, metric) => {
                let key = (PREFIXES[*prefix].parse().unwrap(), *metric);
                let hops = self.routes.remove(&key).unwrap_or_default();
                let named = hops.iter().map(|(gateway, index)| crate::control::kernel::Hop {
                    gateway: *gateway,
                    ..hop(None, *index)
                });
                let route = Route { metric: *metric, ..route(PREFIXES[*prefix], named.collect()) };
                KernelEvent::RouteGone(route)
            }
            Op::Neighbor(index, gateway, known) => {
                let address: IpAddr = GATEWAYS[*gateway].parse().unwrap();
                match known {
                    Some(usable) => {
                        self.neighbors.insert((address, *index), *usable);
                        let state = if *usable { NeighborState::Stale } else { NeighborState::Failed };
                        super::tests::neighbor(*index, GATEWAYS[*gateway], state)
                    }
                    None => {
                        self.neighbors.remove(&(address, *index));
                        KernelEvent::NeighborGone { index: *index, address }
                    }
                }
            }
        }
    }
}

/// What the changes alone have told, as the tables would hold it.
#[derive(Default)]
struct Mirror {
    prefixes: Prefixes4,
    hops: HashMap<NextHopId, (NextHop, NextHopInfo)>,
    groups: HashMap<u16, Group>,
}

impl Mirror {
    fn follow(&mut self, rib: &mut Rib) {
        let changes = rib.take_changes();
        for (address, length) in changes.prefixes4 {
            match rib.v4().installed.get(address, length) {
                Some(id) => self.prefixes.insert(address, length, id),
                None => self.prefixes.remove(address, length),
            };
        }
        for id in changes.next_hops {
            self.hops.insert(id, rib.next_hop(id));
        }
        for place in changes.groups {
            if let Some(buckets) = rib.group(place) {
                self.groups.insert(place, Group { buckets: *buckets, ports: Vec::new() });
            }
        }
        rib.recycle();
    }

    fn fate(&self, address: Ipv4Addr) -> Fate {
        let id = self.prefixes.longest_match(u32::from(address)).map_or(fixed::NO_ROUTE, |(_, id)| id);
        if id == fixed::NO_ROUTE {
            return Fate::NoRoute;
        }
        let of = |id: NextHopId| {
            let (hop, info) = self.hops[&id];
            (info.action, hop.port, info.gateway)
        };
        match of(id) {
            (Action::Glean, port, _) => Fate::Glean(port),
            (Action::Group, ..) => {
                let members: BTreeSet<_> =
                    self.groups[&self.hops[&id].1.group].buckets.iter().copied().collect();
                let ready = members.iter().any(|m| of(*m).0 != Action::Resolve);
                if let [one] = members.iter().copied().collect::<Vec<_>>()[..]
                    && of(one).0 == Action::Glean
                {
                    return Fate::Glean(of(one).1);
                }
                let to =
                    members.into_iter().map(|m| (of(m).1, of(m).2.unwrap_or(Ipv4Addr::UNSPECIFIED.into())));
                Fate::To(to.collect(), ready)
            }
            (action, port, gateway) => Fate::To([(port, gateway.unwrap())].into(), action == Action::Forward),
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let index = prop_oneof![Just(WAN), Just(LAN)];
    let way = (prop::option::weighted(0.7, 0..GATEWAYS.len()), index.clone());
    prop_oneof![
        1 => (index.clone(), any::<bool>()).prop_map(|(index, up)| Op::Link(index, up)),
        4 => (0..PREFIXES.len(), 0..3u32, prop::collection::vec(way, 1..4))
            .prop_map(|(prefix, metric, hops)| Op::Route(prefix, metric, hops)),
        2 => (0..PREFIXES.len(), 0..3u32).prop_map(|(prefix, metric)| Op::Unroute(prefix, metric)),
        3 => (index, 0..GATEWAYS.len(), prop::option::of(any::<bool>()))
            .prop_map(|(index, gateway, known)| Op::Neighbor(index, gateway, known)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_changes_add_up_to_what_is_known(
        batches in prop::collection::vec(prop::collection::vec(op(), 1..6), 1..40),
    ) {
        let mut rib = Rib::new(vec![spec("wan"), spec("lan")], &[], &[]);
        let (mut model, mut mirror) = (Model::default(), Mirror::default());
        feed(&mut rib, [link(WAN, "wan", true), link(LAN, "lan", true)]);
        model.up = [WAN, LAN].into();
        for batch in batches {
            let events: Vec<KernelEvent> = batch.iter().map(|op| model.apply(op)).collect();
            feed(&mut rib, events);
            mirror.follow(&mut rib);
            prop_assert_eq!(&mirror.prefixes, &rib.v4().installed);
            for (key, list) in &rib.v4().candidates {
                for candidate in list.as_slice() {
                    prop_assert!(rib.v4().over(&[candidate.path].into()).contains(key));
                }
            }
            for address in ADDRESSES {
                let address: Ipv4Addr = address.parse().unwrap();
                prop_assert_eq!(mirror.fate(address), model.fate(address), "{}: {:?}", address, batch);
            }
        }
        // Nothing is left over when everything has gone.
        for prefix in 0..PREFIXES.len() {
            for metric in 0..3 {
                let event = model.apply(&Op::Unroute(prefix, metric));
                feed(&mut rib, [event]);
            }
        }
        prop_assert!(rib.next_hops().is_empty());
        prop_assert_eq!(rib.v4().candidates.len(), 6);
    }
}
