//! From the checked configuration, and the ports opened for it, to what the keeper works with.

use std::{collections::BTreeMap, sync::Arc};

use netmap::{Host, PortInfo};

use super::{
    keeper::Settings,
    kernel::{Follow, RouteKind},
    rib::{PortSettings, PortSpec, StaticHop, StaticNeighbor, StaticRoute, given_addresses},
    translation::Translation,
};
use crate::{
    config::{self, Config, ConfigErrors, Problem, Target},
    tables::{
        PortId, SubPort,
        acl::{Compiled, Rule, State},
    },
};

/// The ports' numbers, by name.
pub type Numbers = BTreeMap<String, PortId>;

/// The numbers of a configuration's ports when the program starts: their order.
pub fn numbers(config: &Config) -> Numbers {
    config.ports.iter().map(|port| port.name.clone()).zip(0..).collect()
}

/// Bytes of an Ethernet header.
const ETHERNET: u32 = 14;

/// Which kernel tables to follow. On Linux links, addresses and neighbours are followed even when
/// routes are not.
pub fn follow(config: &Config) -> Option<Follow> {
    let table = config.kernel.routes.then_some(config.kernel.table);
    (cfg!(target_os = "linux") || config.kernel.routes).then_some(Follow { table })
}

/// A port, as configured and opened.
pub fn port_spec(port: &config::Port, info: &PortInfo, host: &Host) -> PortSpec {
    let builtin_host = matches!(host, Host::Builtin);
    PortSpec {
        name: port.name.clone(),
        interface: info.interface.clone().filter(|_| !builtin_host),
        mac: port.mac.map(|mac| mac.0),
        device_mac: info.mac.unwrap_or_else(|| made_up_mac(&port.name)),
        mtu: port.mtu,
        max_len: u16::try_from(info.max_frame.saturating_sub(ETHERNET)).unwrap_or(u16::MAX),
        addresses: given_addresses(builtin_host, &port.addresses),
        builtin_host,
        sub: None,
        reverse_path: port.urpf,
        redirects: port.redirects,
        express: port.express,
    }
}

/// The access rules, compiled; none when there are none.
///
/// # Errors
/// When they are too many to be compiled.
pub fn acl(config: &Config, numbers: &Numbers) -> Result<Option<Arc<Compiled>>, ConfigErrors> {
    if config.acls.is_empty() {
        return Ok(None);
    }
    let of = |names: &[String]| names.iter().filter_map(|name| numbers.get(name).copied()).collect();
    let ranges = |list: &[config::PortRange]| list.iter().map(|range| (range.first, range.last)).collect();
    let rule = |acl: &config::Acl| Rule {
        name: acl.name.clone(),
        denies: acl.action == config::Action::Deny,
        logs: acl.log,
        in_ports: of(&acl.in_ports),
        out_ports: of(&acl.out_ports),
        from: acl.from.clone(),
        to: acl.to.clone(),
        protocol: acl.protocol,
        from_ports: ranges(&acl.from_ports),
        to_ports: ranges(&acl.to_ports),
        state: acl.state.map(|state| match state {
            config::State::New => State::New,
            config::State::Established => State::Established,
        }),
    };
    match Compiled::new(config.acls.iter().map(rule).collect()) {
        Ok(compiled) => Ok(Some(Arc::new(compiled))),
        Err(e) => Err(Problem { key: "acl".into(), ..Problem::of_file(&config.file, e) }.into()),
    }
}

/// A sub-port, as configured, of a port whose device takes frames of so many bytes.
pub fn sub_port_spec(numbers: &Numbers, port: &config::Port, max_frame: u32) -> Option<PortSpec> {
    let config::Sub { parent, tags } = port.sub.as_ref()?;
    let header = ETHERNET + tags.bytes() as u32;
    Some(PortSpec {
        name: port.name.clone(),
        mac: port.mac.map(|mac| mac.0),
        mtu: port.mtu,
        max_len: u16::try_from(max_frame.saturating_sub(header)).unwrap_or(u16::MAX),
        addresses: given_addresses(false, &port.addresses),
        sub: Some(SubPort { parent: *numbers.get(parent)?, tags: *tags }),
        reverse_path: port.urpf,
        redirects: port.redirects,
        ..PortSpec::default()
    })
}

/// Everything that the configuration of a running daemon may change.
///
/// # Errors
/// As for [`acl`].
pub fn settings(config: &Config, follow_kernel: bool, numbers: &Numbers) -> Result<Settings, ConfigErrors> {
    let port = |port: &config::Port| PortSettings {
        mac: port.mac.map(|mac| mac.0),
        mtu: port.mtu,
        addresses: port.addresses.clone(),
        reverse_path: port.urpf,
        redirects: port.redirects,
        express: port.express,
    };
    Ok(Settings {
        follow: if follow_kernel { follow(config) } else { None },
        ports: config.ports.iter().filter_map(|p| Some((*numbers.get(&p.name)?, port(p)))).collect(),
        routes: static_routes(config, numbers),
        neighbors: static_neighbors(config, numbers),
        icmp: config.daemon.icmp,
        source_routes: config.daemon.source_routes,
        translation: Translation::new(config, numbers),
        acl: acl(config, numbers)?,
    })
}

/// A MAC address for a device that has none: locally administered, the same for the same name.
fn made_up_mac(name: &str) -> [u8; 6] {
    // FNV-1a: any spread will do.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    [2, a, b, c, d, e]
}

/// The configured routes.
pub fn static_routes(config: &Config, numbers: &Numbers) -> Vec<StaticRoute> {
    let route = |route: &config::Route| {
        let (kind, hops) = match &route.target {
            Target::Blackhole => (RouteKind::Blackhole, Vec::new()),
            Target::Unreachable => (RouteKind::Unreachable, Vec::new()),
            Target::Prohibit => (RouteKind::Prohibit, Vec::new()),
            Target::Via(hops) => {
                let hop = |hop: &config::NextHop| StaticHop {
                    gateway: hop.gateway,
                    port: hop.port.as_ref().and_then(|name| numbers.get(name).copied()),
                    weight: hop.weight,
                };
                (RouteKind::Unicast, hops.iter().map(hop).collect())
            }
        };
        StaticRoute { to: route.to, kind, hops }
    };
    config.routes.iter().map(route).collect()
}

/// The configured neighbours.
pub fn static_neighbors(config: &Config, numbers: &Numbers) -> Vec<StaticNeighbor> {
    let neighbor = |neighbor: &config::Neighbor| {
        let port = *numbers.get(&neighbor.port)?;
        Some(StaticNeighbor { port, address: neighbor.address, mac: neighbor.mac.0 })
    };
    config.neighbors.iter().filter_map(neighbor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_becomes_plain_data() {
        let text = r#"
            [[port]]
            name = "a"
            device = "pipe:a"
            addresses = ["10.0.0.1/24"]
            [[port]]
            name = "b"
            device = "pipe:b"
            [[route]]
            to = "0.0.0.0/0"
            via = [{ gateway = "10.0.0.2", weight = 2 }, { gateway = "fe80::1", port = "b" }]
            [[route]]
            to = "192.0.2.0/24"
            type = "prohibit"
            [[neighbor]]
            address = "10.0.0.2"
            mac = "02:00:00:00:00:99"
            port = "a"
        "#;
        let config = config::parse(text, "test").unwrap();
        let numbers = numbers(&config);
        let routes = static_routes(&config, &numbers);
        assert_eq!(
            routes[0].hops[0],
            StaticHop { gateway: Some([10, 0, 0, 2].into()), port: None, weight: 2 }
        );
        assert_eq!(routes[0].hops[1].port, Some(1));
        assert_eq!(routes[1].kind, RouteKind::Prohibit);
        assert_eq!(static_neighbors(&config, &numbers)[0].mac, [2, 0, 0, 0, 0, 0x99]);
        let info = PortInfo {
            device: "pipe:a".into(),
            interface: None,
            mac: None,
            max_frame: 2048,
            mode: String::new(),
        };
        let spec = port_spec(&config.ports[0], &info, &Host::Builtin);
        assert_eq!((spec.max_len, spec.builtin_host, spec.device_mac[0]), (2034, true, 2));
        assert_eq!(spec.addresses.unwrap().len(), 1);
    }
}
