//! Following a real kernel: what `ip` does in a network namespace shows in the published tables.
//! Needs root and iproute2; says so and passes otherwise.

#![cfg(target_os = "linux")]

#[path = "common/following.rs"]
mod following;

use std::{
    net::IpAddr,
    process::Command,
    time::{Duration, Instant},
};

use following::{Namespace, in_lab};
use sweepd::{
    forward::messages::{ToKeeper, ToWorker},
    tables::{Action, Tables},
};

#[test]
fn what_the_kernel_has_at_start_is_there_when_the_keeper_has_started() {
    in_lab(
        |router, _| {
            router.ip("route add 198.51.100.0/24 via 203.0.113.2");
            router.ip("route add blackhole 192.0.2.0/24");
            router.ip("-6 addr add 2001:db8::1/64 dev wan nodad");
            router.ip("-6 route add 2001:db8:1::/48 via 2001:db8::2");
        },
        |lab| {
            assert_eq!(lab.fate("10.0.0.1").0, Action::Host);
            assert_eq!(lab.fate("10.0.0.255").0, Action::Broadcast);
            assert_eq!(lab.fate("192.0.2.1").0, Action::Blackhole);
            assert_eq!(lab.fate("10.0.0.77"), (Action::Glean, 1, None));
            assert_eq!(lab.fate("8.8.8.8").0, Action::NoRoute);
            assert_eq!(lab.fate("2001:db8::1").0, Action::Host);
            assert_eq!(lab.fate("198.51.100.1").2, Some("203.0.113.2".parse().unwrap()));
            assert_eq!(lab.fate("2001:db8:1::1").2, Some("2001:db8::2".parse().unwrap()));
            // The gateway is looked for without a packet.
            lab.wait_for("198.51.100.1", Action::Forward, 0, Some("203.0.113.2"));
            let local = lab.local.lock().unwrap().clone();
            assert!(local.contains(&"203.0.113.1".parse().unwrap()));
            assert!(local.contains(&"203.0.113.255".parse().unwrap()));
            let port = lab.look(|tables| tables.ports[0].clone());
            assert_eq!(port.addresses4[0].to_string(), "203.0.113.1/24");
            assert!(port.up && port.mac != [0; 6] && port.mtu == 1500, "{port:?}");
        },
    );
}

#[test]
fn routes_neighbors_and_links_are_followed() {
    in_lab(
        |_, _| {},
        |lab| {
            let peer_mac = "02:00:00:00:00:99";
            lab.router.ip("route add 198.51.100.0/24 via 203.0.113.2");
            lab.wait_for("198.51.100.1", Action::Forward, 0, Some("203.0.113.2"));
            lab.router.ip("route replace 198.51.100.0/24 via 10.0.0.2");
            lab.wait_for("198.51.100.1", Action::Forward, 1, Some("10.0.0.2"));
            lab.router.ip("route add unreachable 198.51.100.64/26");
            lab.wait_for("198.51.100.65", Action::Unreachable, 0, None);
            lab.router.ip("route del 198.51.100.0/24");
            lab.wait_for("198.51.100.1", Action::NoRoute, 0, None);
            lab.router.ip("neigh add 10.0.0.9 lladdr 02:00:00:00:00:99 dev lan");
            lab.wait_for("10.0.0.9", Action::Forward, 1, Some("10.0.0.9"));
            let mac = lab.look(|t| t.next_hop(t.fib4.lookup(0x0a00_0009)).macs[..6].to_vec());
            assert_eq!(mac.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":"), peer_mac);
            lab.router.ip("neigh del 10.0.0.9 dev lan");
            lab.wait_for("10.0.0.9", Action::Glean, 1, None);
            lab.router.ip("route add 172.16.0.0/12 nexthop via 203.0.113.2 nexthop via 10.0.0.2 weight 3");
            lab.wait_for("172.16.0.1", Action::Group, 0, None);
            lab.router.ip("-6 addr add 2001:db8::1/64 dev wan nodad");
            lab.wait_for("2001:db8::9", Action::Glean, 0, None);
            lab.router.ip("route add 192.0.2.0/24 via inet6 fe80::77 dev wan");
            lab.wait_for("192.0.2.1", Action::Resolve, 0, Some("fe80::77"));
            lab.router.ip("route add 192.0.2.128/25 via 100.64.0.1 dev wan onlink");
            lab.wait_for("192.0.2.129", Action::Resolve, 0, Some("100.64.0.1"));
            lab.router.ip("link set wan mtu 1400");
            lab.router.ip("link set wan down");
            lab.wait_for("203.0.113.2", Action::NoRoute, 0, None);
            lab.wait_for("172.16.0.1", Action::Forward, 1, Some("10.0.0.2"));
            lab.router.ip("link set wan up");
            lab.wait_for("203.0.113.99", Action::Glean, 0, None);
            assert_eq!(lab.look(|tables| tables.ports[0].mtu), 1400);
            lab.router.ip("addr del 10.0.0.1/24 dev lan");
            lab.wait_for("10.0.0.99", Action::NoRoute, 0, None);
            lab.wait_for("172.16.0.1", Action::Forward, 0, Some("203.0.113.2"));
            lab.assert_quick();
        },
    );
}

#[test]
fn next_hop_objects_are_followed() {
    in_lab(
        |_, _| {},
        |lab| {
            lab.router.ip("nexthop add id 1 via 203.0.113.2 dev wan");
            lab.router.ip("nexthop add id 2 via 10.0.0.2 dev lan");
            lab.router.ip("nexthop add id 9 group 1/2");
            lab.router.ip("route add 198.51.100.0/24 nhid 9");
            lab.router.ip("route add 192.0.2.0/24 nhid 1");
            lab.wait_for("198.51.100.1", Action::Group, 0, None);
            lab.wait_for("192.0.2.1", Action::Forward, 0, Some("203.0.113.2"));
            lab.router.ip("nexthop replace id 1 via 10.0.0.3 dev lan");
            lab.wait_for("192.0.2.1", Action::Resolve, 1, Some("10.0.0.3"));
            lab.router.ip("nexthop del id 1");
            lab.wait_for("192.0.2.1", Action::NoRoute, 0, None);
            lab.wait_for("198.51.100.1", Action::Forward, 1, Some("10.0.0.2"));
            lab.router.ip("nexthop del id 9");
            lab.wait_for("198.51.100.1", Action::NoRoute, 0, None);
            lab.assert_quick();
        },
    );
}

#[test]
fn a_neighbor_is_asked_for_and_given_up() {
    in_lab(
        |_, _| {},
        |lab| {
            let address: IpAddr = "10.0.0.77".parse().unwrap();
            lab.from_workers.send(ToKeeper::Resolve { port: 1, address }).unwrap();
            let answer = lab.to_worker.recv_timeout(Duration::from_secs(10));
            let failed = matches!(answer, Ok(ToWorker::Failed { port: 1, address: of }) if of == address);
            assert!(failed, "{answer:?}");
            lab.peer.ip("addr add 10.0.0.77/24 dev lan");
            lab.from_workers.send(ToKeeper::Resolve { port: 1, address }).unwrap();
            lab.wait_for("10.0.0.77", Action::Forward, 1, Some("10.0.0.77"));
        },
    );
}

/// The kernel's own answer for a packet to `address`: gateway and device, or its refusal.
fn kernel_says(namespace: &Namespace, address: &str) -> Result<(Option<IpAddr>, String), String> {
    let output = Command::new("ip").args(["-n", &namespace.0, "route", "get", address]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_string());
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let after = |key: &str| words.iter().position(|w| *w == key).and_then(|at| words.get(at + 1));
    Ok((after("via").and_then(|via| via.parse().ok()), after("dev").unwrap().to_string()))
}

/// Whether the tables agree with the kernel about `address`.
fn agrees(tables: &Tables, address: &str, kernel: &Result<(Option<IpAddr>, String), String>) -> bool {
    let own: IpAddr = address.parse().unwrap();
    let IpAddr::V4(v4) = own else { return false };
    let id = tables.fib4.lookup(u32::from(v4));
    let way = |id| {
        let info = tables.next_hop_info(id);
        let device = tables.ports[usize::from(tables.next_hop(id).port)].name.clone();
        (info.gateway.filter(|gateway| *gateway != own), device)
    };
    let info = tables.next_hop_info(id);
    match kernel {
        Ok(kernel) if info.action == Action::Group => {
            tables.groups[usize::from(info.group)].buckets.iter().any(|member| way(*member) == *kernel)
        }
        Ok(kernel) => {
            matches!(info.action, Action::Forward | Action::Resolve | Action::Glean) && way(id) == *kernel
        }
        Err(refusal) => match info.action {
            Action::NoRoute => refusal.contains("Network is unreachable"),
            Action::Unreachable => refusal.contains("No route to host"),
            Action::Prohibit => refusal.contains("Permission denied"),
            Action::Blackhole => refusal.contains("Invalid argument"),
            _ => false,
        },
    }
}

#[test]
fn after_a_storm_of_changes_the_tables_agree_with_the_kernel() {
    in_lab(
        |_, _| {},
        |lab| {
            let seed = u64::from(std::process::id());
            let mut state = seed | 1;
            let mut random = move |below: u64| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) % below
            };
            let prefix = |random: &mut dyn FnMut(u64) -> u64| match random(3) {
                0 => format!("20.0.{}.0/24", random(12)),
                1 => format!("20.0.{}.64/26", random(12)),
                _ => format!("20.{}.0.0/16", random(3)),
            };
            let mut routed = 0;
            for round in 0..6 {
                let mut batch = String::new();
                for _ in 0..1500 {
                    let verb = ["add", "append", "replace", "del", "del", "prepend"][random(6) as usize];
                    let to = prefix(&mut random);
                    let way = match random(8) {
                        0 => "nexthop via 203.0.113.2 nexthop via 10.0.0.2 weight 2".to_string(),
                        1 => "dev lan".to_string(),
                        2 if verb != "del" => {
                            let kind = ["blackhole", "unreachable", "prohibit"][random(3) as usize];
                            batch.push_str(&format!("route {verb} {kind} {to} metric {}\n", random(3)));
                            continue;
                        }
                        n if n % 2 == 0 => format!("via 203.0.113.{}", 2 + random(4)),
                        _ => format!("via 10.0.0.{}", 2 + random(4)),
                    };
                    batch.push_str(&format!("route {verb} {to} metric {} {way}\n", random(3)));
                }
                if round % 2 == 1 {
                    batch.push_str("link set wan down\nlink set wan up\naddr add 203.0.113.7/24 dev wan\n");
                    batch.push_str("addr del 203.0.113.7/24 dev wan\n");
                }
                let path = std::env::temp_dir().join(format!("{}.batch", lab.router.0));
                std::fs::write(&path, batch).unwrap();
                let arguments = ["-n", &lab.router.0, "-force", "-batch", path.to_str().unwrap()];
                Command::new("ip").args(arguments).output().unwrap();
                std::fs::remove_file(&path).unwrap();
                for third in 0..12 {
                    for last in [1, 65] {
                        let address = format!("20.0.{third}.{last}");
                        let start = Instant::now();
                        loop {
                            let kernel = kernel_says(&lab.router, &address);
                            if lab.look(|tables| agrees(tables, &address, &kernel)) {
                                routed += usize::from(kernel.is_ok());
                                break;
                            }
                            let fate = lab.fate(&address);
                            assert!(
                                start.elapsed() < Duration::from_secs(3),
                                "round {round}, seed {seed}: {address}: {fate:?}, the kernel says {kernel:?}"
                            );
                        }
                    }
                }
            }
            assert!(routed > 6 * 24 / 4, "only {routed} lookups found a route");
        },
    );
}
