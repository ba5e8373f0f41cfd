//! What a new configuration changes against the one in force, and what of that cannot change while
//! the daemon runs.

use std::{collections::HashMap, fmt::Display, hash::Hash};

use super::{Config, ConfigErrors, Daemon, OnExit, Port, Problem};
use crate::tables::IcmpLimit;

impl Config {
    /// This configuration, if it can take the place of `running` while the daemon runs.
    ///
    /// # Errors
    /// One for each key that cannot change while the daemon runs, and has changed.
    pub fn replacing(self, running: &Config) -> Result<Config, ConfigErrors> {
        let refused = refused(running, &self);
        if !refused.is_empty() {
            return Err(ConfigErrors(refused));
        }
        Ok(self)
    }

    /// What differs from `old` and can change while the daemon runs, in words: `2 routes added`.
    pub fn news_against(&self, old: &Config) -> Vec<String> {
        let mut news = Vec::new();
        for port in &self.ports {
            let Some(before) = old.ports.iter().find(|before| before.name == port.name) else {
                news.push(format!("port {} added", port.name));
                continue;
            };
            let keys = [
                ("device", before.device != port.device),
                ("addresses", before.addresses != port.addresses),
                ("mac", before.mac != port.mac),
                ("mtu", before.mtu != port.mtu),
                ("urpf", before.urpf != port.urpf),
                ("redirects", before.redirects != port.redirects),
                ("express", before.express != port.express),
            ];
            let keys: Vec<_> = keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect();
            if !keys.is_empty() {
                news.push(format!("port {}: another {}", port.name, keys.join(", ")));
            }
        }
        let gone = old.ports.iter().filter(|before| self.port(&before.name).is_none());
        news.extend(gone.map(|port| format!("port {} removed", port.name)));
        if old.daemon.icmp != self.daemon.icmp {
            let IcmpLimit { rate, burst } = self.daemon.icmp;
            news.push(format!("{rate} ICMP errors a second, {burst} at once"));
        }
        if old.daemon.source_routes != self.daemon.source_routes {
            let how = if self.daemon.source_routes { "followed" } else { "refused" };
            news.push(format!("source routes are {how}"));
        }
        let differing = [
            ("masquerade", old.masquerades != self.masquerades),
            ("forward_port", old.forward_ports != self.forward_ports),
            ("one_to_one", old.one_to_ones != self.one_to_ones),
        ];
        news.extend(
            differing.iter().filter(|(_, differ)| *differ).map(|(key, _)| format!("another [[{key}]]")),
        );
        if old.kernel != self.kernel {
            news.push(if self.kernel.routes {
                format!("the kernel's table {} is followed", self.kernel.table)
            } else {
                "the kernel's routes are not followed".into()
            });
        }
        if old.daemon.on_exit != self.daemon.on_exit {
            let then = if self.daemon.on_exit == OnExit::Drop { "drops" } else { "forwards" };
            news.push(format!("once sweepd has ended, the kernel {then} what it did"));
        }
        let routes = |config: &Config| config.routes.iter().map(|r| (r.to, r.target.clone())).collect();
        news.extend(count("route", &routes(old), &routes(self)));
        let neighbors =
            |config: &Config| config.neighbors.iter().map(|n| ((n.port.clone(), n.address), n.mac)).collect();
        news.extend(count("neighbor", &neighbors(old), &neighbors(self)));
        let rules =
            |config: &Config| config.acls.iter().map(|rule| (rule.name.clone(), rule.clone())).collect();
        let changes = count("acl rule", &rules(old), &rules(self));
        let order = |config: &Config| config.acls.iter().map(|rule| rule.name.clone()).collect::<Vec<_>>();
        if changes.is_empty() && order(old) != order(self) {
            news.push("acl rules in another order".into());
        }
        news.extend(changes);
        news
    }
}

/// How many entries were added, changed and removed.
fn count<K: Eq + Hash, V: PartialEq>(what: &str, old: &HashMap<K, V>, new: &HashMap<K, V>) -> Vec<String> {
    let added = new.keys().filter(|key| !old.contains_key(key)).count();
    let removed = old.keys().filter(|key| !new.contains_key(key)).count();
    let changed = new.iter().filter(|(key, value)| old.get(key).is_some_and(|old| old != *value)).count();
    [(added, "added"), (changed, "changed"), (removed, "removed")]
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, done)| format!("{n} {what}{} {done}", if n == 1 { "" } else { "s" }))
        .collect()
}

/// What has changed and cannot, one problem for each key.
fn refused(old: &Config, new: &Config) -> Vec<Problem> {
    // Taken apart in full, so that a new section cannot be forgotten here.
    let Config {
        file,
        daemon,
        kernel: _,
        ports,
        routes: _,
        neighbors: _,
        acls: _,
        masquerades: _,
        forward_ports: _,
        one_to_ones: _,
        warnings: _,
        digest: _,
        uses: _,
    } = new;
    let mut refusals = Refusals { file, list: Vec::new() };
    refused_of_daemon(&old.daemon, daemon, &mut refusals);
    refused_of_ports(&old.ports, ports, &mut refusals);
    refusals.list
}

struct Refusals<'a> {
    file: &'a str,
    list: Vec<Problem>,
}

impl Refusals<'_> {
    fn add(&mut self, key: &str, message: impl Display) {
        let problem = Problem::of_file(self.file, message);
        self.list.push(Problem { key: key.into(), ..problem });
    }

    fn unless(&mut self, key: &str, same: bool, message: &str) {
        if !same {
            self.add(key, message);
        }
    }
}

fn refused_of_daemon(old: &Daemon, new: &Daemon, refusals: &mut Refusals<'_>) {
    let Daemon {
        cpus,
        runtime_dir,
        socket_owner,
        socket_group,
        user,
        metrics,
        on_exit: _,
        idle,
        icmp: _,
        source_routes: _,
        flows,
    } = new;
    refusals.unless("daemon.flows", old.flows == *flows, "restart to change the room for flows");
    refusals.unless("daemon.cpus", old.cpus == *cpus, "restart to change the workers' cores");
    refusals.unless("daemon.runtime_dir", old.runtime_dir == *runtime_dir, "restart to change the directory");
    let message = "restart to change whose the control socket is";
    refusals.unless("daemon.socket_owner", old.socket_owner == *socket_owner, message);
    refusals.unless("daemon.socket_group", old.socket_group == *socket_group, message);
    refusals.unless("daemon.user", old.user == *user, "restart to change the user");
    refusals.unless("daemon.metrics", old.metrics == *metrics, "restart to change where metrics are served");
    refusals.unless("daemon.idle", old.idle == *idle, "restart to change how workers wait");
}

fn refused_of_ports(old: &[Port], new: &[Port], refusals: &mut Refusals<'_>) {
    for port in new.iter().filter(|port| port.sub.is_none()) {
        let name = &port.name;
        match old.iter().find(|before| before.name == *name) {
            Some(before) if before.vlans != port.vlans => {
                refusals.add("port.vlans", format!("restart to change the VLANs of port {name:?}"));
            }
            None if !port.vlans.is_empty() => {
                refusals.add("port", format!("restart to add port {name:?}, which has VLANs"));
            }
            _ => {}
        }
    }
    for before in old.iter().filter(|port| !port.vlans.is_empty()) {
        if new.iter().all(|port| port.name != before.name) {
            refusals.add("port", format!("restart to remove port {:?}, which has VLANs", before.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const BASE: &str = r#"
        [[port]]
        name = "a"
        device = "pipe:a"
        addresses = ["10.0.0.1/24"]
        [[port]]
        name = "b"
        device = "pipe:b"
        mtu = 1500
        [[route]]
        to = "192.0.2.0/24"
        via = "10.0.0.2"
        [[route]]
        to = "198.51.100.0/24"
        type = "blackhole"
    "#;

    fn config(text: &str) -> Config {
        parse(text, "f").unwrap()
    }

    #[test]
    fn a_configuration_differs_in_nothing_from_itself() {
        let new = config(BASE).replacing(&config(BASE)).unwrap();
        assert!(new.news_against(&config(BASE)).is_empty());
    }

    #[test]
    fn what_cannot_change_is_refused_key_by_key() {
        let text = BASE.replace("\"pipe:a\"", "\"pipe:c\"").replace("name = \"b\"", "name = \"c\"")
            + "[daemon]\ncpus = [0]\nidle = \"spin\"\nruntime_dir = \"/x\"\n";
        let refused = config(&text).replacing(&config(BASE)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "f: daemon.cpus: restart to change the workers' cores\n\
             f: daemon.runtime_dir: restart to change the directory\n\
             f: daemon.idle: restart to change how workers wait"
        );
    }

    #[test]
    fn ports_that_come_go_and_change_are_told() {
        let text = BASE.replace("\"pipe:a\"", "\"pipe:c\"").replace("name = \"b\"", "name = \"c\"");
        let news = config(&text).replacing(&config(BASE)).unwrap().news_against(&config(BASE));
        assert_eq!(news, ["port a: another device", "port c added", "port b removed"]);
    }

    #[test]
    fn what_changes_is_told_in_words() {
        let text = BASE
            .replace("mtu = 1500", "mtu = 1400\nredirects = true\nmac = \"02:00:00:00:00:07\"")
            .replace("type = \"blackhole\"", "type = \"prohibit\"")
            .replace("192.0.2.0/24", "192.0.2.0/25")
            + "[kernel]\nroutes = false\n[daemon]\nicmp_rate = 10\nsource_routes = true\n";
        let news = config(&text).replacing(&config(BASE)).unwrap().news_against(&config(BASE));
        assert_eq!(
            news,
            [
                "port b: another mac, mtu, redirects",
                "10 ICMP errors a second, 200 at once",
                "source routes are followed",
                "the kernel's routes are not followed",
                "1 route added",
                "1 route changed",
                "1 route removed"
            ]
        );
    }
}
