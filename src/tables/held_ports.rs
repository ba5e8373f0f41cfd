//! The ports that sockets of the host's hold on the addresses in front: none of them is given to a
//! mapping, and what comes for them is the host's.

use std::{net::Ipv4Addr, sync::Arc};

use crate::wire::ipv4::{TCP, UDP};

/// A set of ports: a bit each, port 0 the lowest bit of the first word.
pub type PortSet = [u64; 1024];

/// A port that a socket of the host's holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HeldPort {
    /// TCP or UDP, by IANA's number.
    pub protocol: u8,
    /// On this address; none: on all that the host has.
    pub address: Option<Ipv4Addr>,
    /// The port.
    pub port: u16,
}

/// By address (host order) and protocol, in order: those that have any.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeldPorts(Vec<((u32, u8), Arc<PortSet>)>);

impl HeldPorts {
    /// The ports of `held` that are held on these addresses.
    pub fn new(addresses: impl IntoIterator<Item = Ipv4Addr>, held: &[HeldPort]) -> Self {
        let addresses: Vec<Ipv4Addr> = addresses.into_iter().collect();
        let mut sets = Vec::new();
        for protocol in [TCP, UDP] {
            let ports = |address: Option<Ipv4Addr>| {
                held.iter().filter(move |held| held.protocol == protocol && held.address == address)
            };
            let everywhere = Arc::new(set_of(ports(None)));
            for address in &addresses {
                let mut here = ports(Some(*address)).peekable();
                let set = match here.peek() {
                    None => everywhere.clone(),
                    Some(_) => Arc::new(set_of(ports(None).chain(here))),
                };
                if set.iter().any(|word| *word != 0) {
                    sets.push(((u32::from(*address), protocol), set));
                }
            }
        }
        sets.sort_unstable_by_key(|(key, _)| *key);
        sets.dedup_by_key(|(key, _)| *key);
        Self(sets)
    }

    /// Those of an address (host order) and a protocol.
    pub fn of(&self, address: u32, protocol: u8) -> Option<&PortSet> {
        let at = self.0.binary_search_by_key(&(address, protocol), |(key, _)| *key).ok()?;
        Some(&self.0[at].1)
    }

    /// Whether this port is among them.
    pub fn contains(&self, address: u32, protocol: u8, port: u16) -> bool {
        let bit = |set: &PortSet| set[usize::from(port) / 64] >> (port % 64) & 1 != 0;
        self.of(address, protocol).is_some_and(bit)
    }
}

fn set_of<'a>(held: impl Iterator<Item = &'a HeldPort>) -> PortSet {
    let mut set = [0; 1024];
    for held in held {
        set[usize::from(held.port) / 64] |= 1 << (held.port % 64);
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_held_on_its_address_or_on_all() {
        let [one, other] = ["203.0.113.1", "203.0.113.2"].map(|a| a.parse::<Ipv4Addr>().unwrap());
        let held = [
            HeldPort { protocol: TCP, address: None, port: 8080 },
            HeldPort { protocol: TCP, address: Some(one), port: 2222 },
            HeldPort { protocol: UDP, address: Some(other), port: 65535 },
            HeldPort { protocol: UDP, address: Some("127.0.0.1".parse().unwrap()), port: 53 },
        ];
        let ports = HeldPorts::new([other, one], &held);
        for (address, protocol, port, is_held) in [
            (one, TCP, 8080, true),
            (other, TCP, 8080, true),
            (one, UDP, 8080, false),
            (one, TCP, 2222, true),
            (other, TCP, 2222, false),
            (other, UDP, 65535, true),
            (one, UDP, 65535, false),
            (other, UDP, 53, false),
        ] {
            assert_eq!(
                ports.contains(address.into(), protocol, port),
                is_held,
                "{address} {protocol} {port}"
            );
        }
        assert!(ports.of(one.into(), UDP).is_none() && ports.of(1, TCP).is_none());
    }
}
