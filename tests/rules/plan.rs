//! What the routers on real interfaces look like: their ports, what is behind them, and sweepd's
//! configuration.

use std::path::Path;

use crate::common::{host_mac, port_mac};
use crate::namespace::mac_text;
use crate::router::{HOSTS, MTUS, addresses};
use crate::trunk;

/// What the router looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Four ports, those of `router`.
    Plain,
    /// Two ports with VLAN sub-ports, those of `trunk`.
    Trunk,
}

impl Plan {
    /// The MTU of each port.
    pub fn mtus(self) -> &'static [u16] {
        if self == Self::Plain { &MTUS } else { &[1500, 1500] }
    }

    /// A port's name, as it is configured.
    pub fn name(self, port: usize) -> String {
        match trunk::SUBS.iter().find(|(sub, ..)| self == Self::Trunk && *sub == port) {
            Some((_, parent, vlan)) => format!("p{parent}.{vlan}"),
            None => format!("p{port}"),
        }
    }

    /// Its first port with switches; all of them are that one's.
    pub fn switched(self) -> usize {
        if self == Self::Plain { 0 } else { trunk::V100 }
    }

    /// sweepd's configuration, with more keys of the daemon and of the port that has switches.
    pub fn configuration(self, dir: &Path, [daemon, port]: &[String; 2]) -> String {
        // A check of sources would change what happens at the end, for which sweepd had to be restarted.
        let dir = dir.join("run");
        let mut text = format!("[daemon]\nruntime_dir = {dir:?}\non_exit = \"forward\"\n{daemon}");
        let keys = |k| if k == self.switched() { port.as_str() } else { "" };
        for k in 0..self.mtus().len() {
            text += &format!("[[port]]\nname = \"p{k}\"\ndevice = \"xdp:p{k}\"\n{}\n", keys(k));
            let vlans = trunk::SUBS.iter().filter(|(_, parent, _)| *parent == k).map(|(.., vlan)| vlan);
            if self == Self::Trunk {
                text += &format!("vlans = {:?}\n", vlans.collect::<Vec<_>>());
            }
        }
        if self == Self::Plain {
            return text;
        }
        for (k, ..) in trunk::SUBS {
            let (name, mac, mtu) = (self.name(k), mac_text(port_mac(k)), trunk::mtu(k));
            let addresses = trunk::addresses(k);
            text += &format!("[[port]]\nname = {name:?}\nmac = \"{mac}\"\naddresses = {addresses:?}\n");
            text += &format!("mtu = {mtu}\n{}", keys(k));
            for (address, host) in self.hosts(k) {
                let mac = mac_text(host_mac(k, host));
                text += &format!("[[neighbor]]\naddress = \"{address}\"\nmac = \"{mac}\"\nport = {name:?}\n");
            }
            for (to, via) in trunk::networks(k) {
                text += &format!("[[route]]\nto = \"{to}\"\nvia = \"{via}\"\nport = {name:?}\n");
            }
        }
        text
    }

    /// The addresses of a port, its hosts, and the networks behind it.
    pub fn set_up_port(self, k: usize) -> String {
        let (addresses, networks) = match self {
            Self::Plain => (addresses(k), networks(k)),
            Self::Trunk => (trunk::addresses(k).to_vec(), trunk::networks(k).to_vec()),
        };
        let mut lines = String::new();
        for address in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            lines += &format!("ip addr add {address} dev p{k} {nodad}\n");
        }
        for (address, host) in self.hosts(k) {
            let mac = mac_text(host_mac(k, host));
            lines += &format!("ip neigh replace {address} lladdr {mac} dev p{k} nud permanent\n");
        }
        for (prefix, via) in networks {
            lines += &format!("ip route add {prefix} via {via} dev p{k}\n");
        }
        lines
    }

    /// The neighbours that are always known behind port `k`: address and host.
    pub fn hosts(self, k: usize) -> Vec<(String, u8)> {
        let hosts = if self == Self::Plain { &HOSTS[..] } else { &trunk::HOSTS };
        let mut all: Vec<_> = hosts.iter().map(|&host| (format!("10.0.{k}.{host}"), host)).collect();
        if self == Self::Trunk || MTUS[k] >= 1280 {
            all.extend(hosts.iter().map(|&host| (format!("2001:db8:{k}::{host}"), host)));
        }
        if self == Self::Plain && MTUS[k] >= 1280 {
            all.extend(hosts.iter().map(|&host| (format!("fe80::{host}"), host)));
            all.extend(["fe80::77", "fe80::1:9"].map(|other| (other.to_owned(), 9)));
        }
        all
    }
}

/// What lies behind host 9 of port `k`, and by which address of its.
fn networks(k: usize) -> Vec<(String, String)> {
    let of = crate::router::NETWORKS.iter().filter(|(_, port)| *port == k);
    of.map(|(prefix, _)| {
        let via = if prefix.contains(':') { format!("2001:db8:{k}::9") } else { format!("10.0.{k}.9") };
        ((*prefix).to_owned(), via)
    })
    .collect()
}
