//! What a configuration names and this machine may not have: cores, interfaces, users and groups.
//! `check` warns of all that is missing, since a file may be written for another machine; the
//! daemon does not start without it.

use std::net::IpAddr;

use ipnet::IpNet;
use nix::{
    ifaddrs::getifaddrs,
    net::if_::if_nametoindex,
    unistd::{Gid, Group, Uid, User},
};

use super::in_front;
use crate::{
    config::{Config, NextHop, OnExit, Problem, Target},
    control::barrier,
};

/// What `config` names and this machine lacks, one problem each.
pub fn lacks(config: &Config) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut lacks = |key: &str, message: String| {
        let problem = Problem::of_file(&config.file, message);
        found.push(Problem { key: key.into(), ..problem });
    };
    let cores = core_count();
    for core in config.daemon.cpus.iter().flatten().filter(|core| **core >= cores) {
        lacks("daemon.cpus", no_core(*core, cores));
    }
    if let Some(Err(message)) = config.daemon.user.as_deref().map(user) {
        lacks("daemon.user", message);
    }
    if let Some(Err(message)) = config.daemon.socket_owner.as_deref().map(user) {
        lacks("daemon.socket_owner", message);
    }
    if let Some(Err(message)) = config.daemon.socket_group.as_deref().map(group) {
        lacks("daemon.socket_group", message);
    }
    for port in config.ports.iter().filter(|port| port.sub.is_none()) {
        if let Some(name) = port.device.interface()
            && if_nametoindex(name).is_err()
        {
            lacks("port.device", format!("there is no interface {name:?} on this machine"));
        }
    }
    if config.daemon.on_exit == OnExit::Drop
        && !config.interfaces().is_empty()
        && let Some(command) = barrier::missing_command()
    {
        lacks(
            "daemon.on_exit",
            format!("\"drop\" needs the command `{command}`, which is not installed here"),
        );
    }
    for (to, gateway) in off_link(config) {
        let message = format!("the gateway {gateway} of the route to {to} is on no network of any port");
        lacks("route.via", message + "; without a route to it this one stays inactive");
    }
    found.extend(in_front::doubts(config));
    found
}

/// That there is no such core.
pub fn no_core(core: usize, cores: usize) -> String {
    format!("there is no core {core}; this machine has cores 0 to {}", cores.saturating_sub(1))
}

/// Cores that the machine has, whether this process may use them or not.
pub fn core_count() -> usize {
    // SAFETY: takes a number, gives a number. (The crate nix has no name for it on FreeBSD.)
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(count).unwrap_or(1).max(1)
}

/// The number of the user called `name`; a number stands for itself.
///
/// # Errors
/// One line that says that there is none.
pub fn user(name: &str) -> Result<Uid, String> {
    if let Ok(number) = name.parse() {
        return Ok(Uid::from_raw(number));
    }
    match User::from_name(name) {
        Ok(Some(user)) => Ok(user.uid),
        Ok(None) => Err(format!("there is no user {name:?} on this machine; `id {name}` says the same")),
        Err(e) => Err(format!("cannot ask for the user {name:?}: {}", e.desc())),
    }
}

/// The number of the group called `name`; a number stands for itself.
///
/// # Errors
/// One line that says that there is none.
pub fn group(name: &str) -> Result<Gid, String> {
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid),
        Ok(None) => {
            Err(format!("there is no group {name:?} on this machine; `getent group {name}` says the same"))
        }
        Err(e) => Err(format!("cannot ask for the group {name:?}: {}", e.desc())),
    }
}

/// The gateways that are on no network of a port, and the destinations of their routes. What the
/// file alone shows has been said already: this is about ports whose addresses are the kernel's.
fn off_link(config: &Config) -> Vec<(IpNet, IpAddr)> {
    if config.ports.iter().all(|port| !port.addresses.is_empty()) {
        return Vec::new();
    }
    let Some(nets) = networks(config) else { return Vec::new() };
    let mut list = Vec::new();
    for route in &config.routes {
        let Target::Via(hops) = &route.target else { continue };
        let off = |hop: &&NextHop| {
            hop.port.is_none()
                && hop.gateway.is_some_and(|gateway| !nets.iter().any(|net| net.contains(&gateway)))
        };
        list.extend(hops.iter().filter(off).filter_map(|hop| Some((route.to, hop.gateway?))));
    }
    list
}

/// The networks of all ports; `None` when they cannot be known.
fn networks(config: &Config) -> Option<Vec<IpNet>> {
    let mut nets: Vec<IpNet> = config.ports.iter().flat_map(|port| port.addresses.clone()).collect();
    for port in config.ports.iter().filter(|port| port.addresses.is_empty()) {
        // Which interface a sub-port is, if any, only the running daemon finds out.
        let name = port.device.interface().filter(|_| port.sub.is_none())?;
        if_nametoindex(name).ok()?;
        let of_port = getifaddrs().ok()?.filter(|entry| entry.interface_name == name);
        nets.extend(of_port.filter_map(|entry| {
            let ip = |storage: nix::sys::socket::SockaddrStorage| {
                storage
                    .as_sockaddr_in()
                    .map(|a| IpAddr::from(a.ip()))
                    .or_else(|| storage.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))
            };
            IpNet::with_netmask(ip(entry.address?)?, ip(entry.netmask?)?).ok()
        }));
    }
    Some(nets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn lacking(text: &str) -> Vec<String> {
        lacks(&parse(text, "f").unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_every_machine_has_is_not_missed() {
        let text = "[daemon]\ncpus = [0]\nsocket_owner = \"root\"\nsocket_group = \"0\"\n\
                    [[port]]\ndevice = \"lo\"\nname = \"lo\"\n[[port]]\ndevice = \"pipe:a\"\n";
        assert_eq!(lacking(text), [""; 0]);
    }

    #[test]
    fn cores_users_groups_and_interfaces_that_are_not_there_are_named() {
        let text = "[daemon]\ncpus = [0, 4000]\nsocket_owner = \"no-such-user\"\nsocket_group = \"no-such-group\"\n\
                    [[port]]\nname = \"a\"\ndevice = \"xdp:nosuch0\"\n";
        let found = lacking(text);
        assert!(found[0].starts_with("f: daemon.cpus: there is no core 4000; this machine has cores 0 to "));
        assert!(
            found[1].starts_with("f: daemon.socket_owner: there is no user \"no-such-user\""),
            "{found:?}"
        );
        assert!(
            found[2].starts_with("f: daemon.socket_group: there is no group \"no-such-group\""),
            "{found:?}"
        );
        assert_eq!(found[3..], ["f: port.device: there is no interface \"nosuch0\" on this machine"]);
    }

    #[test]
    fn gateways_are_compared_with_the_addresses_that_the_kernel_has() {
        let lo = if cfg!(target_os = "linux") { "lo" } else { "lo0" };
        let text = |gateway: &str| {
            format!(
                "[[port]]\nname = \"a\"\ndevice = \"{lo}\"\n[[route]]\nto = \"192.0.2.0/24\"\nvia = \"{gateway}\"\n"
            )
        };
        assert_eq!(
            lacking(&text("198.51.100.9")),
            [
                "f: route.via: the gateway 198.51.100.9 of the route to 192.0.2.0/24 is on no network of any port; \
              without a route to it this one stays inactive"
            ]
        );
        let any = "[[port]]\nname = \"a\"\ndevice = \"pipe:a\"\n[[route]]\nto = \"192.0.2.0/24\"\nvia = \"198.51.100.9\"\n";
        assert_eq!(lacking(any), [""; 0], "nobody can know a pipe's addresses");
    }
}
