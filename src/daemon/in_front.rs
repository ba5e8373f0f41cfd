//! What is doubtful about the addresses and ports in front of a masquerade on this machine: addresses
//! that nobody answers for, and ports that the host may take for its own connections.

use std::net::{IpAddr, Ipv4Addr};

use nix::ifaddrs::getifaddrs;

use crate::{
    config::{Config, PortRange, Problem},
    control::translation::{DEFAULT_FIRST, host_ports},
};

/// What is doubtful, one problem each.
pub fn doubts(config: &Config) -> Vec<Problem> {
    let mut found = Vec::new();
    if let Some(local) = local_addresses(config) {
        found.extend(unanswered(config, &local));
    }
    found.extend(unreserved(config));
    let problem = |(key, message): (&str, String)| Problem {
        key: key.into(),
        ..Problem::of_file(&config.file, message)
    };
    found.into_iter().map(problem).collect()
}

/// The addresses that the host has, or the configuration gives; `None` when they cannot be known.
fn local_addresses(config: &Config) -> Option<Vec<IpAddr>> {
    let of_host = getifaddrs().ok()?.filter_map(|entry| Some(entry.address?.as_sockaddr_in()?.ip().into()));
    let of_ports = config.ports.iter().flat_map(|port| &port.addresses).map(|net| net.addr());
    Some(of_host.chain(of_ports).collect())
}

fn unanswered(config: &Config, local: &[IpAddr]) -> Vec<(&'static str, String)> {
    let missing = |address: &Ipv4Addr| !local.contains(&(*address).into());
    let quiet = config.masquerades.iter().filter(|masquerade| !masquerade.announce);
    let of_pools = quiet.filter_map(|masquerade| {
        let address = masquerade.to.iter().find(|address| missing(address))?;
        Some(("masquerade.to", address, &masquerade.out))
    });
    let quiet = config.one_to_ones.iter().filter(|pair| !pair.announce && missing(&pair.outside));
    let of_pairs = quiet.map(|pair| ("one_to_one.outside", &pair.outside, &pair.out));
    let message = |(key, address, out): (&'static str, &Ipv4Addr, &String)| {
        let port = config.port(out).map(|at| &config.ports[at]);
        let device = port.and_then(|port| port.device.interface()).unwrap_or(out);
        let add = match cfg!(target_os = "linux") {
            true => format!("ip addr add {address}/32 dev {device}"),
            false => format!("ifconfig {device} alias {address}/32"),
        };
        let message = format!(
            "{address} is no address of this host's, so nobody answers ARP for it: set announce = true \
             (which does no harm where it is routed here), or `{add}`"
        );
        (key, message)
    };
    of_pools.chain(of_pairs).map(message).collect()
}

fn unreserved(config: &Config) -> Vec<(&'static str, String)> {
    let Some(host) = host_ports() else { return Vec::new() };
    let range = |masquerade: &crate::config::Masquerade| {
        masquerade.ports.unwrap_or(PortRange { first: DEFAULT_FIRST, last: host.last_before() })
    };
    let overlap = |ports: PortRange| {
        let both = PortRange {
            first: ports.first.max(host.ephemeral.first),
            last: ports.last.min(host.ephemeral.last),
        };
        let taken = (both.first..=both.last).filter(|port| !host.is_reserved(*port));
        taken.min().zip((both.first..=both.last).filter(|port| !host.is_reserved(*port)).max())
    };
    let message = |(first, last): (u16, u16)| {
        let ports = PortRange { first, last };
        let message = format!(
            "the host takes ports {ports} for its own connections as well, which then fail: reserve them, \
             `sysctl net.ipv4.ip_local_reserved_ports={ports}` (and whatever is reserved already), or end \
             `ports` at {}",
            host.last_before()
        );
        ("masquerade.ports", message)
    };
    config.masquerades.iter().map(range).filter_map(overlap).map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn problems(text: &str) -> Vec<String> {
        let ports = "[[port]]\nname = \"wan\"\ndevice = \"pipe:a\"\naddresses = [\"203.0.113.2/24\"]\n";
        doubts(&parse(&format!("{ports}{text}"), "f").unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_address_in_front_that_nobody_answers_for_is_told() {
        let masquerade = |more: &str| format!("[[masquerade]]\nout = \"wan\"\n{more}");
        assert_eq!(problems(&masquerade("")), [""; 0], "the port's own");
        assert_eq!(problems(&masquerade("to = \"203.0.113.2\"")), [""; 0]);
        assert_eq!(problems(&masquerade("to = \"203.0.113.9\"\nannounce = true")), [""; 0]);
        let told = problems(&masquerade("to = [\"203.0.113.2\", \"203.0.113.9\"]"));
        assert!(
            told[0].starts_with("f: masquerade.to: 203.0.113.9 is no address of this host's"),
            "{told:?}"
        );
        assert!(told[0].contains("announce = true"), "{told:?}");
        let pair = "[[one_to_one]]\nout = \"wan\"\ninside = \"10.0.0.7\"\noutside = \"203.0.113.7\"";
        assert!(problems(pair)[0].starts_with("f: one_to_one.outside: 203.0.113.7 is no address"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn ports_that_the_host_takes_itself_are_to_be_reserved() {
        let host = host_ports().unwrap();
        let last = host.ephemeral.first;
        if host.is_reserved(last) {
            return;
        }
        let told = problems(&format!("[[masquerade]]\nout = \"wan\"\nports = \"{last}-{last}\""));
        assert!(told[0].starts_with("f: masquerade.ports: the host takes ports"), "{told:?}");
        assert!(told[0].contains(&format!("ip_local_reserved_ports={last}")), "{told:?}");
    }
}
