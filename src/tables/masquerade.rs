//! Masquerade rules, as workers read them: which packets are translated, to which addresses, and
//! what is open from outside.
//!
//! Two questions are asked of every packet, and answered by a load each: whether it leaves by a
//! port that masquerades, and whether its destination may be an address in front. All others are
//! asked once a flow.

use std::{net::Ipv4Addr, sync::Arc};

use ipnet::Ipv4Net;

use super::{PortId, Timeouts, held_ports::HeldPorts, local::LocalAddresses};

/// `[[masquerade]]`: many hosts behind some addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The port that leads outside.
    pub out: PortId,
    /// The hosts behind it; empty: all.
    pub from: Vec<Ipv4Net>,
    /// The addresses in front.
    pub to: Vec<Ipv4Addr>,
    /// The first port, or ICMP identifier, that may be given out.
    pub first: u16,
    /// The last one.
    pub last: u16,
    /// How long flows last.
    pub timeouts: Timeouts,
    /// Endpoint-independent filtering: a mapping is open to everybody outside.
    pub open: bool,
    /// Whether packets from outside keep a flow alive as well.
    pub inbound_refresh: bool,
    /// Most flows of one inside host, over all workers; 0 for no limit.
    pub quota: u32,
    /// What is logged.
    pub log: Log,
}

/// What of a masquerade's mappings is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Log {
    /// Nothing.
    #[default]
    Nothing,
    /// Each mapping, as it begins and as it ends.
    Mappings,
    /// The blocks of ports of each inside host, which then has them for itself.
    Blocks,
}

/// `[[forward_port]]`: a port of the addresses in front leads to a server inside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forward {
    /// The port that leads outside.
    pub out: PortId,
    /// TCP or UDP.
    pub protocol: u8,
    /// The port in front.
    pub port: u16,
    /// The server's address.
    pub to: Ipv4Addr,
    /// The server's port.
    pub to_port: u16,
}

/// `[[one_to_one]]`: an address in front for one host alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The port that leads outside.
    pub out: PortId,
    /// The host.
    pub inside: Ipv4Addr,
    /// Its address outside.
    pub outside: Ipv4Addr,
}

/// All rules of address translation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Masquerade {
    /// Another one whenever anything here is another.
    pub version: u32,
    /// `[[masquerade]]`, the first that fits counts.
    pub rules: Vec<Rule>,
    /// `[[forward_port]]`.
    pub forwards: Vec<Forward>,
    /// `[[one_to_one]]`.
    pub pairs: Vec<Pair>,
    /// Addresses in front that ARP is answered for, and the ports that they belong to, in order.
    pub announced: Vec<(PortId, Ipv4Addr)>,
    /// The ports that sockets of the host's hold. When they change, `version` may stay.
    pub held: Arc<HeldPorts>,
    in_front: LocalAddresses,
    /// The addresses in front and the ports they belong to, in order.
    owners: Vec<(u32, PortId)>,
    /// By port.
    outs: Vec<bool>,
}

/// A static translation: an inside end that always has the same outside end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Static {
    /// Address and port inside.
    pub inside: (u32, u16),
    /// Address and port outside.
    pub outside: (u32, u16),
    /// The port that leads outside.
    pub out: PortId,
}

impl Masquerade {
    /// The rules, ready to be asked.
    pub fn new(rules: Vec<Rule>, forwards: Vec<Forward>, pairs: Vec<Pair>) -> Self {
        let of_rules = rules.iter().flat_map(|rule| rule.to.iter().map(move |to| (u32::from(*to), rule.out)));
        let of_pairs = pairs.iter().map(|pair| (u32::from(pair.outside), pair.out));
        let mut owners: Vec<_> = of_rules.chain(of_pairs).collect();
        owners.sort_unstable();
        owners.dedup_by_key(|(address, _)| *address);
        let in_front = owners.iter().map(|(address, _)| Ipv4Addr::from(*address).into()).collect();
        let ports = rules.iter().map(|rule| rule.out).chain(pairs.iter().map(|pair| pair.out));
        let mut outs = Vec::new();
        for port in ports.map(usize::from) {
            outs.resize(outs.len().max(port + 1), false);
            outs[port] = true;
        }
        Self { rules, forwards, pairs, in_front, owners, outs, ..Self::default() }
    }

    /// Whether anything is translated at all.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        !self.outs.is_empty()
    }

    /// Whether packets that leave by this port may be translated.
    #[inline(always)]
    pub fn is_out(&self, port: PortId) -> bool {
        self.outs.get(usize::from(port)).is_some_and(|out| *out)
    }

    /// The addresses in front.
    pub fn in_front(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.owners.iter().map(|(address, _)| Ipv4Addr::from(*address))
    }

    /// `false` when the address (host order) is none of those in front.
    #[inline(always)]
    pub fn may_be_in_front(&self, address: u32) -> bool {
        self.in_front.may_contain4(address)
    }

    /// The port that this address in front (host order) belongs to.
    pub fn out_of(&self, address: u32) -> Option<PortId> {
        let at = self.owners.binary_search_by_key(&address, |(address, _)| *address).ok()?;
        Some(self.owners[at].1)
    }

    /// Whether ARP for this address is answered on this port.
    pub fn announces(&self, port: PortId, address: Ipv4Addr) -> bool {
        self.announced.binary_search(&(port, address)).is_ok()
    }

    /// Which rule translates what `source` (host order) sends out of `out`.
    pub fn rule_for(&self, out: PortId, source: u32) -> Option<u16> {
        let source = Ipv4Addr::from(source);
        let fits = |rule: &Rule| {
            rule.out == out
                && !rule.to.is_empty()
                && (rule.from.is_empty() || rule.from.iter().any(|net| net.contains(&source)))
        };
        self.rules.iter().position(fits).map(|at| at as u16)
    }

    /// Whether what this address (host order) sends out of `out` is translated, by whatever rule.
    pub fn is_inside(&self, out: PortId, address: u32) -> bool {
        let host = Ipv4Addr::from(address);
        self.rule_for(out, address).is_some()
            || self.pairs.iter().any(|pair| (pair.out, pair.inside) == (out, host))
            || self.forwards.iter().any(|forward| (forward.out, forward.to) == (out, host))
    }

    /// Whether ports like this one are given out on this address in front (host order).
    pub fn is_given_out(&self, protocol: u8, address: u32, port: u16) -> bool {
        let to = Ipv4Addr::from(address);
        self.rules.iter().any(|rule| (rule.first..=rule.last).contains(&port) && rule.to.contains(&to))
            && !self.held.contains(address, protocol, port)
    }

    /// The static translation of what comes for this end in front.
    pub fn static_in(&self, protocol: u8, address: u32, port: u16) -> Option<Static> {
        let out = self.out_of(address)?;
        let outside = (address, port);
        let paired = self.pairs.iter().find(|pair| u32::from(pair.outside) == address);
        if let Some(pair) = paired {
            return Some(Static { inside: (pair.inside.into(), port), outside, out });
        }
        let fits = |f: &&Forward| (f.out, f.protocol, f.port) == (out, protocol, port);
        let forward = self.forwards.iter().find(fits)?;
        Some(Static { inside: (forward.to.into(), forward.to_port), outside, out })
    }

    /// The static translation of what this end inside sends out of `out`. `choose` picks one of
    /// the rule's addresses for the host.
    pub fn static_out(
        &self,
        out: PortId,
        protocol: u8,
        address: u32,
        port: u16,
        choose: impl FnOnce(&[Ipv4Addr]) -> Option<u32>,
    ) -> Option<Static> {
        let inside = (address, port);
        let host = Ipv4Addr::from(address);
        if let Some(pair) = self.pairs.iter().find(|pair| (pair.out, pair.inside) == (out, host)) {
            return Some(Static { inside, outside: (pair.outside.into(), port), out });
        }
        let fits = |f: &&Forward| (f.out, f.protocol, f.to, f.to_port) == (out, protocol, host, port);
        let forward = self.forwards.iter().find(fits)?;
        let rule = self.rules.iter().find(|rule| rule.out == out)?;
        Some(Static { inside, outside: (choose(&rule.to)?, forward.port), out })
    }

    /// How long a flow that is translated by the rule number `rule` lasts; `otherwise` when there
    /// is none.
    pub fn timeouts<'a>(&'a self, rule: u16, otherwise: &'a Timeouts) -> &'a Timeouts {
        self.rules.get(usize::from(rule)).map_or(otherwise, |rule| &rule.timeouts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::held_ports::HeldPort;

    fn rule(out: PortId, from: &[&str], to: &[&str]) -> Rule {
        Rule {
            out,
            from: from.iter().map(|net| net.parse().unwrap()).collect(),
            to: to.iter().map(|address| address.parse().unwrap()).collect(),
            first: 1024,
            last: 32767,
            timeouts: Timeouts::default(),
            open: false,
            inbound_refresh: false,
            quota: 0,
            log: Log::Nothing,
        }
    }

    fn number(address: &str) -> u32 {
        address.parse::<Ipv4Addr>().unwrap().into()
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        let rules = vec![
            rule(1, &["10.1.0.0/16"], &["203.0.113.1"]),
            rule(1, &[], &["203.0.113.2", "203.0.113.3"]),
            rule(2, &["10.0.0.0/8"], &["192.0.2.1"]),
        ];
        let masquerade = Masquerade::new(rules, Vec::new(), Vec::new());
        assert_eq!(masquerade.rule_for(1, number("10.1.2.3")), Some(0));
        assert_eq!(masquerade.rule_for(1, number("10.2.2.3")), Some(1));
        assert_eq!(masquerade.rule_for(2, number("11.2.2.3")), None);
        assert_eq!(masquerade.out_of(number("203.0.113.3")), Some(1));
        assert_eq!(masquerade.out_of(number("203.0.113.4")), None);
        assert!(masquerade.may_be_in_front(number("192.0.2.1")));
        assert!(masquerade.is_on() && masquerade.is_out(2) && !masquerade.is_out(0) && !masquerade.is_out(7));
        assert!(masquerade.is_given_out(6, number("192.0.2.1"), 1024));
        assert!(!masquerade.is_given_out(6, number("192.0.2.1"), 32768));
        let held = HeldPort { protocol: 6, address: None, port: 1024 };
        let masquerade =
            Masquerade { held: Arc::new(HeldPorts::new(masquerade.in_front(), &[held])), ..masquerade };
        assert!(!masquerade.is_given_out(6, number("192.0.2.1"), 1024));
        assert!(masquerade.is_given_out(17, number("192.0.2.1"), 1024));
        assert!(!Masquerade::default().is_on());
    }

    #[test]
    fn static_translations_are_the_same_both_ways() {
        let forward =
            Forward { out: 1, protocol: 6, port: 443, to: "10.0.0.5".parse().unwrap(), to_port: 8443 };
        let pair =
            Pair { out: 1, inside: "10.0.0.7".parse().unwrap(), outside: "203.0.113.7".parse().unwrap() };
        let masquerade = Masquerade::new(vec![rule(1, &[], &["203.0.113.1"])], vec![forward], vec![pair]);
        let first = |addresses: &[Ipv4Addr]| addresses.first().map(|address| u32::from(*address));
        for (protocol, outside, inside) in
            [(6, ("203.0.113.1", 443), ("10.0.0.5", 8443)), (17, ("203.0.113.7", 53), ("10.0.0.7", 53))]
        {
            let coming = masquerade.static_in(protocol, number(outside.0), outside.1).unwrap();
            assert_eq!(coming.inside, (number(inside.0), inside.1));
            let going = masquerade.static_out(1, protocol, number(inside.0), inside.1, first).unwrap();
            assert_eq!(going, coming);
        }
        assert_eq!(masquerade.static_in(17, number("203.0.113.1"), 443), None);
        assert_eq!(masquerade.static_out(1, 6, number("10.0.0.5"), 8444, first), None);
        assert_eq!(masquerade.static_out(2, 17, number("10.0.0.7"), 8444, first), None);
    }
}
