//! Address translation, from the configuration to the rules that workers read: names become
//! numbers, and where no addresses are given, the out port's own is taken, live.

use std::net::Ipv4Addr;

use super::setup::Numbers;
use crate::{
    config::{self, Config, PortRange},
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
    /// Addresses that ARP is answered for unless they are the host's.
    announced: Vec<(PortId, Ipv4Addr)>,
    forwards: Vec<Forward>,
    pairs: Vec<Pair>,
}

/// The first port that is given out, unless the configuration says otherwise.
pub const DEFAULT_FIRST: u16 = 1024;

/// The ports that the host gives to its own connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostPorts {
    /// Where it takes them from.
    pub ephemeral: PortRange,
    /// Those among them that it leaves alone.
    reserved: Vec<PortRange>,
}

impl HostPorts {
    /// Linux's, as it comes.
    const USUAL: Self = Self { ephemeral: PortRange { first: 32768, last: 60999 }, reserved: Vec::new() };

    /// From the texts of `ip_local_port_range` and `ip_local_reserved_ports`.
    fn parse(range: &str, reserved: &str) -> Option<Self> {
        let mut ends = range.split_whitespace().map(|end| end.parse().ok());
        let ephemeral = PortRange { first: ends.next()??, last: ends.next()?? };
        let one = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some(PortRange { first: first.parse().ok()?, last: last.parse().ok()? })
        };
        Some(Self { ephemeral, reserved: reserved.trim().split(',').filter_map(one).collect() })
    }

    /// Whether the host leaves this port alone.
    pub fn is_reserved(&self, port: u16) -> bool {
        self.reserved.iter().any(|range| (range.first..=range.last).contains(&port))
    }

    /// The last port that is given out, unless the configuration says otherwise: the one before the
    /// host's own, or the usual one where these leave hardly any.
    pub fn last_before(&self) -> u16 {
        let first = self.ephemeral.first;
        let usual = Self::USUAL.ephemeral.first;
        if first > DEFAULT_FIRST { first - 1 } else { usual - 1 }
    }
}

/// The ports that this host gives to its own connections, if it says so.
pub fn host_ports() -> Option<HostPorts> {
    // FreeBSD's begin at 49152, or at 10000 for those that ask for high ones.
    if !cfg!(target_os = "linux") {
        return None;
    }
    let read = |name| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
    let range = read("ip_local_port_range").ok()?;
    HostPorts::parse(&range, &read("ip_local_reserved_ports").unwrap_or_default())
}

impl Translation {
    /// From the checked configuration, whose ports have these numbers.
    pub fn new(config: &Config, numbers: &Numbers) -> Self {
        let number = |name: &str| numbers.get(name).copied();
        let last = host_ports().unwrap_or(HostPorts::USUAL).last_before();
        let rule = |masquerade: &config::Masquerade| {
            let milliseconds =
                |time: std::time::Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX / 2);
            let ports = masquerade.ports;
            Some(Rule {
                out: number(&masquerade.out)?,
                from: masquerade.from.clone(),
                to: masquerade.to.clone(),
                first: ports.map_or(DEFAULT_FIRST, |ports| ports.first),
                last: ports.map_or(last, |ports| ports.last),
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
        let announces = config.masquerades.iter().filter(|masquerade| masquerade.announce);
        let mut announced: Vec<(PortId, Ipv4Addr)> = announces
            .filter_map(|masquerade| Some((number(&masquerade.out)?, &masquerade.to)))
            .flat_map(|(out, to)| to.iter().map(move |address| (out, *address)))
            .collect();
        let pairs = config.one_to_ones.iter().filter(|pair| pair.announce);
        announced.extend(pairs.filter_map(|pair| Some((number(&pair.out)?, pair.outside))));
        announced.sort_unstable();
        announced.dedup();
        Self {
            announced,
            rules: config.masquerades.iter().filter_map(rule).collect(),
            forwards: config.forward_ports.iter().filter_map(forward).collect(),
            pairs: config.one_to_ones.iter().filter_map(pair).collect(),
        }
    }

    /// The rules for ports that are as `port` says, on a host that has the addresses which `is_local`
    /// says. A rule whose port has no address yet translates nothing.
    pub fn rules<'p>(
        &self,
        port: impl Fn(PortId) -> Option<&'p PortTable>,
        is_local: impl Fn(Ipv4Addr) -> bool,
    ) -> Masquerade {
        let mut rules = self.rules.clone();
        for rule in rules.iter_mut().filter(|rule| rule.to.is_empty()) {
            rule.to.extend(port(rule.out).and_then(|table| table.addresses4.first()).map(|net| net.addr()));
        }
        let announced = self.announced.iter().filter(|(_, address)| !is_local(*address)).copied();
        let mut masquerade = Masquerade::new(rules, self.forwards.clone(), self.pairs.clone());
        masquerade.announced = announced.collect();
        masquerade
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_own_ports_are_read_as_the_kernel_writes_them() {
        let ports = HostPorts::parse("32768\t60999\n", "8080,40000-40010\n").unwrap();
        assert_eq!((ports.ephemeral.first, ports.ephemeral.last, ports.last_before()), (32768, 60999, 32767));
        let reserved = [8080, 8081, 39999, 40000, 40010, 40011].map(|port| ports.is_reserved(port));
        assert_eq!(reserved, [true, false, false, true, true, false]);
        let wide = HostPorts::parse("1024 65000", "\n").unwrap();
        assert_eq!((wide.last_before(), wide.is_reserved(1024)), (32767, false));
        assert_eq!(HostPorts::parse("", ""), None);
    }

    #[test]
    fn what_is_announced_is_what_the_host_lacks() {
        let text = r#"
            [[port]]
            name = "wan"
            device = "pipe:b"
            [[masquerade]]
            out = "wan"
            to = ["203.0.113.9", "203.0.113.7", "203.0.113.8"]
            announce = true
            [[masquerade]]
            out = "wan"
            to = "203.0.113.6"
            [[one_to_one]]
            out = "wan"
            inside = "10.0.0.7"
            outside = "203.0.113.10"
            announce = true
        "#;
        let config = config::parse(text, "test").unwrap();
        let translation = Translation::new(&config, &super::super::setup::numbers(&config));
        let masquerade = translation.rules(|_| None, |address| address.octets()[3] == 8);
        let [seven, nine, ten] = [7, 9, 10].map(|last| Ipv4Addr::new(203, 0, 113, last));
        assert_eq!(masquerade.announced, [(0, seven), (0, nine), (0, ten)]);
        assert!(masquerade.announces(0, nine) && !masquerade.announces(1, nine));
    }

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
        let masquerade = translation.rules(|id| (id == 1).then_some(&table), |_| true);
        assert_eq!(masquerade.rules[0].to, ["203.0.113.2".parse::<std::net::Ipv4Addr>().unwrap()]);
        assert_eq!((masquerade.rules[0].first, masquerade.rules[0].timeouts.udp), (1024, 600_000));
        assert!(masquerade.is_out(1) && !masquerade.is_out(0));
        assert_eq!(masquerade.forwards[0].to_port, 5353);
        assert_eq!(masquerade.static_in(6, 0xcb00_7107, 80).unwrap().inside, (0x0a00_0007, 80));
        assert_eq!(
            translation.rules(|_| None, |_| true).rule_for(1, 0x0a00_0001),
            None,
            "without an address"
        );
    }
}
