//! `[[route]]` and `[[neighbor]]`: ways and stations that the file knows better than the kernel.

use std::{collections::HashMap, net::IpAddr};

use ipnet::IpNet;
use toml::{Spanned, de::DeValue};

use super::{
    port::{Ports, link_local},
    problem::{Offset, Problems},
    reader::{Placed, Reader},
    schema,
    support::{Feature, Uses},
    value::{self, MacAddr},
};

/// Most next hops of one route.
pub const NEXT_HOPS_MAX: usize = 256;

/// `[[route]]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The destinations; no host bits are set.
    pub to: IpNet,
    /// What becomes of packets to them.
    pub target: Target,
}

/// What becomes of packets that take a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// They go to a next hop; never empty.
    Via(Vec<NextHop>),
    /// They are discarded in silence.
    Blackhole,
    /// They are answered with "unreachable".
    Unreachable,
    /// They are answered with "prohibited".
    Prohibit,
}

/// A way on. At least one of `gateway` and `port` is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NextHop {
    /// Who takes the packets on; `None`: the destinations themselves are on the link.
    pub gateway: Option<IpAddr>,
    /// Where it is; `None`: where the gateway's network is.
    pub port: Option<String>,
    /// Its share among the route's next hops, from 1 to 256.
    pub weight: u16,
}

/// `[[neighbor]]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Neighbor {
    /// Its address.
    pub address: IpAddr,
    /// Its MAC address.
    pub mac: MacAddr,
    /// The port that it is on.
    pub port: String,
}

/// The routes read so far.
#[derive(Default)]
pub(super) struct Routes {
    /// Those that are right.
    pub(super) list: Vec<Route>,
    seen: HashMap<IpNet, Offset>,
}

impl Routes {
    /// Reads one `[[route]]`.
    pub(super) fn read(
        &mut self,
        section: &Reader<'_>,
        ports: &Ports,
        problems: &mut Problems<'_>,
        uses: &mut Uses,
    ) {
        let to = section.require(problems, "to", "to = \"0.0.0.0/0\"", destination);
        if let Some(to) = to {
            self.refuse_second(to, section, problems);
        }
        let family = to.map(|to| to.value);
        if let Some(target) = read_target(section, family, ports, problems, uses)
            && let Some(to) = to
        {
            self.list.push(Route { to: to.value, target });
        }
    }

    fn refuse_second(&mut self, to: Placed<IpNet>, section: &Reader<'_>, problems: &mut Problems<'_>) {
        if let Some(first) = self.seen.insert(to.value, to.at) {
            let message = format!(
                "{} has a route on line {} already; for several gateways write one route with \
                 via = [{{ gateway = \"...\" }}, {{ gateway = \"...\" }}]",
                to.value,
                problems.line(first)
            );
            problems.error(to.at, section.path("to"), message);
        }
    }
}

/// A prefix that can be routed to.
fn destination(value: &DeValue<'_>) -> Result<IpNet, String> {
    let net = value::prefix(value)?;
    let address = net.addr();
    let never = net.prefix_len() > 0
        && (address.is_multicast()
            || address.is_loopback()
            || (link_local(address) && net.prefix_len() >= 10));
    if never {
        return Err(format!("{net} is never forwarded to; remove the route"));
    }
    Ok(net)
}

/// Where the route leads; `to` if it could be read.
fn read_target(
    section: &Reader<'_>,
    to: Option<IpNet>,
    ports: &Ports,
    problems: &mut Problems<'_>,
    uses: &mut Uses,
) -> Option<Target> {
    let words = [
        ("blackhole", Target::Blackhole),
        ("unreachable", Target::Unreachable),
        ("prohibit", Target::Prohibit),
    ];
    let kind = section.read(problems, "type", |v| value::choice(v, &words));
    if section.has("type") {
        for key in ["via", "port"] {
            if section.has(key) {
                let message = "a route with a type leads nowhere; remove this or the type";
                problems.error(section.place(key), section.path(key), message);
            }
        }
        return kind.map(|kind| kind.value);
    }
    let port = section.read(problems, "port", |v| ports.reference(v));
    let Some(via) = section.raw("via") else {
        if !section.has("port") {
            let message = "missing; say where the route leads with via, port or type";
            problems.error(section.at, section.path("via"), message);
        }
        return port
            .map(|port| Target::Via(vec![NextHop { gateway: None, port: Some(port.value), weight: 1 }]));
    };
    if let DeValue::Array(entries) = via.get_ref() {
        if section.has("port") {
            let message = "write the port into each entry of via: { gateway = \"...\", port = \"...\" }";
            problems.error(section.place("port"), section.path("port"), message);
        }
        return read_list(section, entries, to, ports, problems, uses);
    }
    let gateway = section.read(problems, "via", value::host)?;
    let port_wanted = section.has("port");
    let port = port.map(|port| port.value);
    let hop = Hop { gateway, port, port_wanted, weight: 1 };
    let key = section.path("via");
    hop.check(&key, to, ports, problems, uses).map(|hop| Target::Via(vec![hop]))
}

/// Reads `via = [{ ... }, ...]`.
fn read_list(
    section: &Reader<'_>,
    entries: &[Spanned<DeValue<'_>>],
    to: Option<IpNet>,
    ports: &Ports,
    problems: &mut Problems<'_>,
    uses: &mut Uses,
) -> Option<Target> {
    let place = section.place("via");
    if entries.is_empty() {
        problems.error(place, section.path("via"), "an empty list; add { gateway = \"...\" }");
    }
    if entries.len() > NEXT_HOPS_MAX {
        let message = format!("{} next hops are too many; use {NEXT_HOPS_MAX} at most", entries.len());
        problems.error(place, section.path("via"), message);
        return None;
    }
    if entries.len() > 1 {
        uses.note(problems, Feature::Multipath, place, section.path("via"));
    }
    let mut hops: Vec<NextHop> = Vec::new();
    for entry in entries {
        let at = entry.span().start;
        if let DeValue::String(text) = entry.get_ref() {
            let message = format!("found a string; write {{ gateway = {text:?} }}");
            problems.error(at, section.path("via"), message);
            continue;
        }
        let Some(table) = Reader::open(&schema::VIA, entry, problems) else { continue };
        let gateway = table.require(problems, "gateway", "gateway = \"203.0.113.1\"", value::host);
        let port = table.read(problems, "port", |v| ports.reference(v)).map(|port| port.value);
        let weight = table.read(problems, "weight", |v| value::integer(v, 1..=256));
        let weight = weight.and_then(|weight| u16::try_from(weight.value).ok()).unwrap_or(1);
        let Some(gateway) = gateway else { continue };
        let hop = Hop { gateway, port, port_wanted: table.has("port"), weight };
        let Some(hop) = hop.check(&table.path("gateway"), to, ports, problems, uses) else { continue };
        if hops.iter().any(|other| other.gateway == hop.gateway && other.port == hop.port) {
            let message = format!("{} is given twice; give it a weight instead", gateway.value);
            problems.error(gateway.at, table.path("gateway"), message);
        }
        hops.push(hop);
    }
    (!hops.is_empty()).then_some(Target::Via(hops))
}

/// A gateway that has been read but not looked at.
struct Hop {
    gateway: Placed<IpAddr>,
    port: Option<String>,
    /// Whether the file names a port, right or wrong.
    port_wanted: bool,
    weight: u16,
}

impl Hop {
    /// The next hop, if the gateway can be one of a route to `to`.
    fn check(
        self,
        key: &str,
        to: Option<IpNet>,
        ports: &Ports,
        problems: &mut Problems<'_>,
        uses: &mut Uses,
    ) -> Option<NextHop> {
        let Placed { at, value: gateway } = self.gateway;
        let hop = NextHop { gateway: Some(gateway), port: self.port, weight: self.weight };
        if let Some(to) = to {
            match (to, gateway) {
                (IpNet::V6(_), IpAddr::V4(_)) => {
                    let message = format!("an IPv6 route needs an IPv6 gateway; {gateway} is IPv4");
                    problems.error(at, key, message);
                    return None;
                }
                (IpNet::V4(_), IpAddr::V6(_)) => uses.note(problems, Feature::Ipv6Gateway, at, key.into()),
                _ => {}
            }
        }
        if let Some(owner) = ports.owner(gateway) {
            let message = format!("{gateway} is an address of port {owner:?} itself; write the gateway's");
            problems.error(at, key, message);
            return None;
        }
        if link_local(gateway) && !self.port_wanted {
            let message = format!("{gateway} is link-local and may be on any link; add port = \"...\"");
            problems.error(at, key, message);
            return None;
        }
        if !link_local(gateway) && ports.on_link(gateway, hop.port.as_deref()) == Some(false) {
            let whose = hop.port.as_ref().map_or("any port".to_owned(), |port| format!("port {port:?}"));
            let message = format!("{gateway} is on no network of {whose}; is it a slip of the pen?");
            problems.warn(at, key, message);
        }
        Some(hop)
    }
}

/// The neighbours read so far.
#[derive(Default)]
pub(super) struct Neighbors {
    /// Those that are right.
    pub(super) list: Vec<Neighbor>,
    seen: HashMap<(IpAddr, String), Offset>,
}

impl Neighbors {
    /// Reads one `[[neighbor]]`.
    pub(super) fn read(&mut self, section: &Reader<'_>, ports: &Ports, problems: &mut Problems<'_>) {
        let address = section.require(problems, "address", "address = \"203.0.113.1\"", value::host);
        let mac = section.require(problems, "mac", "mac = \"02:00:00:00:00:99\"", value::mac);
        let port = section.require(problems, "port", "port = \"...\"", |v| ports.reference(v));
        let Some(Placed { at, value: address }) = address else { return };
        if let Some(owner) = ports.owner(address) {
            let message = format!("{address} is an address of port {owner:?} itself; write the neighbour's");
            problems.error(at, section.path("address"), message);
        }
        let (Some(mac), Some(port)) = (mac, port) else { return };
        if let Some(first) = self.seen.insert((address, port.value.clone()), at) {
            let line = problems.line(first);
            let message = format!("{address} is a neighbour on line {line} already; remove one");
            problems.error(at, section.path("address"), message);
        }
        self.list.push(Neighbor { address, mac: mac.value, port: port.value });
    }
}
