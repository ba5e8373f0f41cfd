//! Address translation, from the configuration to the rules that workers read: names become
//! numbers, and where no addresses are given, the out port's own is taken, live.

use super::setup::Numbers;
use crate::{
    config::{self, Config},
    tables::{
        PortId, PortTable, Timeouts,
        masquerade::{Forward, Masquerade, Pair, Rule},
    },
};

/// What the configuration gives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Translation {
    /// `[[masquerade]]`; without addresses in front: the out port's.
    rules: Vec<Rule>,
    forwards: Vec<Forward>,
    pairs: Vec<Pair>,
}

/// The first of the ports that the host takes for itself, when the system does not say.
const EPHEMERAL: u16 = 32768;

/// The first port that the host gives to its own connections.
fn first_ephemeral() -> u16 {
    #[cfg(target_os = "linux")]
    let said = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok());
    // FreeBSD's begin at 49152, or at 10000 for those that ask for high ones.
    #[cfg(not(target_os = "linux"))]
    let said = None;
    said.filter(|first| *first > 1024).unwrap_or(EPHEMERAL)
}

impl Translation {
    /// From the checked configuration, whose ports have these numbers.
    pub fn new(config: &Config, numbers: &Numbers) -> Self {
        let number = |name: &str| numbers.get(name).copied();
        let ephemeral = first_ephemeral();
        let rule = |masquerade: &config::Masquerade| {
            let milliseconds =
                |time: std::time::Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX / 2);
            let ports = masquerade.ports;
            Some(Rule {
                out: number(&masquerade.out)?,
                from: masquerade.from.clone(),
                to: masquerade.to.clone(),
                first: ports.map_or(1024, |ports| ports.first),
                last: ports.map_or(ephemeral - 1, |ports| ports.last),
                timeouts: Timeouts {
                    udp: milliseconds(masquerade.udp_timeout),
                    tcp: milliseconds(masquerade.tcp_timeout),
                    tcp_transitory: milliseconds(masquerade.tcp_transitory_timeout),
                    icmp: milliseconds(masquerade.icmp_timeout),
                    other: milliseconds(masquerade.udp_timeout),
                },
                open: masquerade.open,
                inbound_refresh: masquerade.inbound_refresh,
                quota: masquerade.quota.unwrap_or(0),
                log: masquerade.log,
            })
        };
        let forward = |forward: &config::ForwardPort| {
            Some(Forward {
                out: number(&forward.in_port)?,
                protocol: forward.protocol as u8,
                port: forward.port,
                to: *forward.to.ip(),
                to_port: forward.to.port(),
            })
        };
        let pair = |pair: &config::OneToOne| {
            Some(Pair { out: number(&pair.out)?, inside: pair.inside, outside: pair.outside })
        };
        Self {
            rules: config.masquerades.iter().filter_map(rule).collect(),
            forwards: config.forward_ports.iter().filter_map(forward).collect(),
            pairs: config.one_to_ones.iter().filter_map(pair).collect(),
        }
    }

    /// The rules for ports that are as `port` says. A rule whose port has no address yet
    /// translates nothing.
    pub fn rules<'p>(&self, port: impl Fn(PortId) -> Option<&'p PortTable>) -> Masquerade {
        let mut rules = self.rules.clone();
        for rule in rules.iter_mut().filter(|rule| rule.to.is_empty()) {
            rule.to.extend(port(rule.out).and_then(|table| table.addresses4.first()).map(|net| net.addr()));
        }
        Masquerade::new(rules, self.forwards.clone(), self.pairs.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_numbers_and_the_address_is_the_ports() {
        let text = r#"
            [[port]]
            name = "lan"
            device = "pipe:a"
            [[port]]
            name = "wan"
            device = "pipe:b"
            [[masquerade]]
            out = "wan"
            from = "10.0.0.0/8"
            udp_timeout = "10m"
            [[forward_port]]
            in = "wan"
            protocol = "udp"
            port = 53
            to = "10.0.0.5:5353"
            [[one_to_one]]
            out = "wan"
            inside = "10.0.0.7"
            outside = "203.0.113.7"
        "#;
        let config = config::parse(text, "test").unwrap();
        let translation = Translation::new(&config, &super::super::setup::numbers(&config));
        let table = PortTable {
            name: "wan".into(),
            addresses4: vec!["203.0.113.2/30".parse().unwrap()],
            ..PortTable::default()
        };
        let masquerade = translation.rules(|id| (id == 1).then_some(&table));
        assert_eq!(masquerade.rules[0].to, ["203.0.113.2".parse::<std::net::Ipv4Addr>().unwrap()]);
        assert_eq!((masquerade.rules[0].first, masquerade.rules[0].timeouts.udp), (1024, 600_000));
        assert!(masquerade.is_out(1) && !masquerade.is_out(0));
        assert_eq!(masquerade.forwards[0].to_port, 5353);
        assert_eq!(masquerade.static_in(6, 0xcb00_7107, 80).unwrap().inside, (0x0a00_0007, 80));
        assert_eq!(translation.rules(|_| None).rule_for(1, 0x0a00_0001), None, "without an address");
    }
}
