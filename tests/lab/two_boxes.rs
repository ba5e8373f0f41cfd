//! Two sweepd routers between the same two networks, as docs/two-routers.md has them: they share the
//! load by BGP with BFD, or one stands by for the other by VRRP, with the configurations of
//! `conf/examples`. What is lost when one of them dies is counted and printed.
//!
//! The networks are bridges, so that nobody sees a dead router by a link without carrier.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use crate::{
    daemons::{Bird, Daemon, needs_daemons},
    net::{Lab, Router, SWEEPD, is_there, sh, wait_for},
    sockets::{Receiver, Sender, missing_and_double},
};

/// Between two packets of a flow.
const PAUSE: Duration = Duration::from_millis(2);
/// The longest that a flow may be interrupted by a router's death, on a machine that does other
/// things as well. What it takes on an idle one stands in docs/two-routers.md.
const LONGEST: Duration = Duration::from_millis(2500);
/// Flows of each family in each direction.
const FLOWS: u16 = 4;

/// The text of a file in `conf/examples`.
fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/examples").join(name);
    fs::read_to_string(path).unwrap()
}

/// Replaces what must be there.
fn replace(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "no {from} in {text}");
    text.replace(from, to)
}

/// A namespace with what runs in it: a router, or one of its neighbours.
struct Node(Lab);

/// Two neighbours, 10.0.1.2 and 10.0.2.2, fd00:1::2 and fd00:2::2, and two routers between their
/// networks: 11 and 12 in each.
struct Site {
    switch: Node,
    neighbors: [Node; 2],
    routers: [Node; 2],
}

impl Site {
    fn new(kernel_forwards: bool) -> Self {
        let node = || Node(Lab::new(0));
        let site = Self { switch: node(), neighbors: [node(), node()], routers: [node(), node()] };
        let switch = site.switch.0.r();
        for net in 1..=2 {
            sh(&format!(
                "ip -n {switch} link add net{net} type bridge && ip -n {switch} link set net{net} up"
            ))
            .ok();
            site.plug(net, &site.neighbors[net - 1], "eth0", &format!("n{net}"), 2);
            for (k, router) in site.routers.iter().enumerate() {
                site.plug(net, router, &format!("eth{}", net - 1), &format!("r{k}{net}"), 11 + k);
            }
        }
        for node in &site.neighbors {
            let policy = "echo 1 | tee /proc/sys/net/ipv[46]/fib_multipath_hash_policy";
            node.0.router(&format!("sh -c '{policy}'")).ok();
        }
        for node in &site.routers {
            let forward = "echo 1 | tee /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding";
            if kernel_forwards {
                node.0.router(&format!("sh -c '{forward}'")).ok();
            }
            let dir = format!("[daemon]\nruntime_dir = {:?}\n", node.0.runtime_dir());
            node.0.configuration(&(dir + &example("two-routers.toml")));
        }
        site
    }

    /// Plugs a node's interface into a network.
    fn plug(&self, net: usize, node: &Node, interface: &str, plug: &str, host: usize) {
        let (switch, node) = (self.switch.0.r(), node.0.r());
        sh(&format!(
            "set -e
             ip -n {switch} link add {plug} type veth peer name {interface} netns {node}
             ip -n {switch} link set {plug} master net{net} up
             ip netns exec {node} ethtool -K {interface} tx off
             ip -n {node} addr add 10.0.{net}.{host}/24 dev {interface}
             ip -n {node} addr add fd00:{net}::{host}/64 dev {interface} nodad
             ip -n {node} link set {interface} up"
        ))
        .ok();
    }

    /// Takes a router's power, or gives it back: what it sends then reaches nobody.
    fn power(&self, router: usize, on: bool) {
        let (switch, state) = (self.switch.0.r(), if on { "up" } else { "down" });
        for net in 1..=2 {
            sh(&format!("ip -n {switch} link set r{router}{net} {state}")).ok();
        }
    }
}

/// Numbered datagrams between the neighbours, in both directions and families.
struct Flows(Vec<(Sender, Receiver)>);

impl Flows {
    /// From the first neighbour to the addresses of the second, and back to those of the first.
    fn start(site: &Site, addresses: [[&str; 2]; 2]) -> Self {
        let mut flows = Vec::new();
        for (from, to) in [(0, 1), (1, 0)] {
            for (family, address) in addresses[to].iter().enumerate() {
                for n in 0..FLOWS {
                    let port = 7200 + 100 * family as u16 + n;
                    let receiver = Receiver::start(&site.neighbors[to].0, 0, port);
                    let sender = Sender::every(PAUSE, &site.neighbors[from].0, 0, address, port);
                    flows.push((sender, receiver));
                }
            }
        }
        thread::sleep(Duration::from_millis(500));
        Self(flows)
    }

    /// Ends them. Gives how many lost packets, and for how long a flow was interrupted at most.
    #[track_caller]
    fn finish(self, name: &str) -> (usize, Duration) {
        let (count, mut cut, mut longest, mut lost, mut all) = (self.0.len(), 0, Duration::ZERO, 0, 0);
        let ended: Vec<_> =
            self.0.into_iter().map(|(sender, receiver)| (sender.finish(), receiver)).collect();
        // Each of them waits for what is still on the way.
        let ended = ended.into_iter().map(|(sent, receiver)| (sent, thread::spawn(|| receiver.finish())));
        for (sent, receiver) in ended.collect::<Vec<_>>() {
            let got = receiver.join().unwrap();
            let (missing, double) = missing_and_double(&got, sent);
            assert_eq!(double, [] as [u32; 0], "{name}");
            let pauses = got.windows(2).map(|two| two[1].1 - two[0].1);
            if !missing.is_empty() {
                longest = longest.max(pauses.max().unwrap_or_default());
            }
            cut += usize::from(!missing.is_empty());
            (lost, all) = (lost + missing.len(), all + sent);
        }
        println!(
            "{name}: {lost} of {all} packets lost, by {cut} of {count} flows, interrupted for {longest:.0?} at most"
        );
        assert!(longest < LONGEST, "{name}");
        (cut, longest)
    }
}

/// What a router has forwarded.
fn forwarded(router: &Router) -> u64 {
    router.verdict("forwarded")
}

/// The destinations behind the neighbours: what they announce.
const BEHIND: [[&str; 2]; 2] = [["198.51.100.1", "2001:db8:1::1"], ["192.0.2.1", "2001:db8:2::1"]];

/// A neighbour's BIRD: the example, moved to the second network for the second.
fn neighbor_bird(site: &Site, k: usize) -> Bird {
    let mut text = example("two-routers-bird-neighbor.conf");
    if k == 1 {
        for (from, to) in [
            ("10.0.1.", "10.0.2."),
            ("fd00:1::", "fd00:2::"),
            ("as 65001", "as 65002"),
            ("198.51.100.0/24", "192.0.2.0/24"),
            ("2001:db8:1::/48", "2001:db8:2::/48"),
        ] {
            text = replace(&text, from, to);
        }
    }
    let lab = &site.neighbors[k].0;
    for (address, length) in BEHIND[k].iter().zip([32, 128]) {
        lab.router(&format!("ip addr add {address}/{length} dev lo nodad")).ok();
    }
    Bird::start_as_it_is(lab, &lab.r(), &text)
}

fn router_bird(site: &Site, k: usize) -> Bird {
    let text = replace(&example("two-routers-bird.conf"), "10.0.1.11", &format!("10.0.1.{}", 11 + k));
    Bird::start_as_it_is(&site.routers[k].0, &site.routers[k].0.r(), &text)
}

/// Waits until both neighbours have their ways to each other by the routers given, and no others.
#[track_caller]
fn wait_for_ways(site: &Site, by: &[usize]) {
    let start = Instant::now();
    for (k, node) in site.neighbors.iter().enumerate() {
        for (to, version) in BEHIND[1 - k].iter().zip(["", "-6"]) {
            wait_for(&format!("the ways to {to} are by {by:?}, {:?}", start.elapsed()), || {
                let routes = node.0.router(&format!("ip {version} route show to match {to}")).text;
                (0..2).all(|router| {
                    let gateway =
                        format!("{}{}", ["10.0.", "fd00:"][usize::from(!version.is_empty())], k + 1);
                    let gateway =
                        format!("{gateway}{}{} ", [".", "::"][usize::from(!version.is_empty())], 11 + router);
                    routes.contains(&gateway) == by.contains(&router)
                })
            });
        }
    }
}

#[test]
fn two_routers_share_the_load_by_bgp_and_each_takes_over_when_the_other_dies() {
    needs_daemons!();
    let site = Site::new(true);
    let mut routers = [0, 1].map(|k| Some(site.routers[k].0.start_configured()));
    let _neighbors = [0, 1].map(|k| neighbor_bird(&site, k));
    let mut birds = [0, 1].map(|k| Some(router_bird(&site, k)));
    wait_for_ways(&site, &[0, 1]);
    for dies in [0, 1] {
        let before = [0, 1].map(|k| forwarded(routers[k].as_ref().unwrap()));
        let flows = Flows::start(&site, BEHIND);
        let shares = [0, 1].map(|k| forwarded(routers[k].as_ref().unwrap()) - before[k]);
        assert!(shares.iter().all(|share| *share > 100), "both have their share: {shares:?}");
        // Everything at once, and nothing is said to anybody.
        site.power(dies, false);
        birds[dies] = None;
        drop(routers[dies].take());
        wait_for_ways(&site, &[1 - dies]);
        thread::sleep(Duration::from_millis(500));
        let (cut, _) = flows.finish(&format!("router {dies} of two by BGP dies"));
        assert!(cut > 0 && cut < usize::from(4 * FLOWS), "the other one's flows go on: {cut}");
        // It comes back while packets flow.
        let flows = Flows::start(&site, BEHIND);
        site.power(dies, true);
        // Either of the daemons may be the first to start.
        if dies == 1 {
            birds[dies] = Some(router_bird(&site, dies));
            wait_for_ways(&site, &[0, 1]);
        }
        routers[dies] = Some(site.routers[dies].0.start_configured());
        if dies == 0 {
            birds[dies] = Some(router_bird(&site, dies));
            wait_for_ways(&site, &[0, 1]);
        }
        thread::sleep(Duration::from_millis(500));
        flows.finish("it comes back");
    }
    // The daemon alone dies: its kernel goes on with what BIRD has told it.
    let flows = Flows::start(&site, BEHIND);
    let mut router = routers[0].take().unwrap();
    router.signal(Signal::SIGKILL);
    router.wait();
    thread::sleep(Duration::from_millis(500));
    flows.finish("sweepd of one dies, its kernel forwards");
    site.routers[0].0.start_configured().stop();
    routers[1].take().unwrap().stop();
}

/// The routers' addresses by which the neighbours go.
const VIRTUAL: [[&str; 2]; 2] = [["10.0.1.1", "fd00:1::1"], ["10.0.2.1", "fd00:2::1"]];
const NEIGHBORS: [[&str; 2]; 2] = [["10.0.1.2", "fd00:1::2"], ["10.0.2.2", "fd00:2::2"]];

fn keepalived(site: &Site, k: usize) -> Daemon {
    let lab = &site.routers[k].0;
    let file = |name: &str| lab.dir.path().join(name).to_str().unwrap().to_owned();
    let question = format!("{SWEEPD} show tables --config {}", file("sweepd.toml"));
    let mut text =
        replace(&example("two-routers-keepalived.conf"), "/usr/sbin/sweepd show tables", &question);
    if k == 1 {
        text = replace(&text, "priority 150", "priority 100");
    }
    fs::write(file("keepalived.conf"), text).unwrap();
    let (conf, pid, vrrp) = (file("keepalived.conf"), file("keepalived.pid"), file("vrrp.pid"));
    let command =
        ["keepalived", "--dont-fork", "--log-console", "--vrrp", "-f", &conf, "-p", &pid, "-r", &vrrp];
    Daemon::start(lab, &lab.r(), "keepalived", &command)
}

/// Ends keepalived at once, with its children.
fn kill_keepalived(site: &Site, k: usize, daemon: Daemon) {
    let pid = fs::read_to_string(site.routers[k].0.dir.path().join("vrrp.pid")).unwrap();
    sh(&format!("kill -KILL {}", pid.trim())).ok();
    drop(daemon);
    // The dead one's addresses are gone with its memory.
    for (net, addresses) in VIRTUAL.iter().enumerate() {
        for (address, length) in addresses.iter().zip([24, 64]) {
            sh(&format!("ip -n {} addr del {address}/{length} dev eth{net}", site.routers[k].0.r()));
        }
        sh(&format!("ip -n {} addr del fe80::1/64 dev eth{net}", site.routers[k].0.r()));
    }
}

/// Waits until all virtual addresses are this router's.
#[track_caller]
fn wait_for_master(site: &Site, k: usize) {
    for (net, addresses) in VIRTUAL.iter().enumerate() {
        for address in addresses {
            wait_for(&format!("router {k} has {address}"), || {
                let shown = site.routers[k].0.router(&format!("ip addr show dev eth{net}")).ok();
                shown.contains(&format!(" {address}/"))
            });
        }
    }
}

#[test]
fn a_router_stands_by_for_another_by_vrrp() {
    crate::needs_lab!();
    if !is_there("keepalived") {
        eprintln!("skipped: two routers by VRRP, for want of Debian's package keepalived");
        return;
    }
    // Its kernel forwards nothing: what gets through went through sweepd.
    let site = Site::new(false);
    for (node, addresses) in site.neighbors.iter().zip(VIRTUAL) {
        node.0.router(&format!("ip route add default via {}", addresses[0])).ok();
        node.0.router(&format!("ip -6 route add default via {}", addresses[1])).ok();
    }
    let mut routers = [0, 1].map(|k| Some(site.routers[k].0.start_configured()));
    let mut daemons = [Some(keepalived(&site, 0)), None];
    wait_for_master(&site, 0);
    daemons[1] = Some(keepalived(&site, 1));
    let works = || NEIGHBORS[1].iter().all(|to| site.neighbors[0].0.reaches(0, to));
    wait_for("it forwards", works);
    for dies in [0, 1] {
        let before = forwarded(routers[1 - dies].as_ref().unwrap());
        let flows = Flows::start(&site, NEIGHBORS);
        site.power(dies, false);
        kill_keepalived(&site, dies, daemons[dies].take().unwrap());
        drop(routers[dies].take());
        wait_for_master(&site, 1 - dies);
        thread::sleep(Duration::from_millis(1000));
        let (cut, _) = flows.finish(&format!("router {dies} of two by VRRP dies"));
        assert_eq!(cut, usize::from(4 * FLOWS), "all went through it");
        assert!(forwarded(routers[1 - dies].as_ref().unwrap()) > before + 1000);
        // Who comes back stands by, and nobody notices.
        let flows = Flows::start(&site, NEIGHBORS);
        site.power(dies, true);
        routers[dies] = Some(site.routers[dies].0.start_configured());
        daemons[dies] = Some(keepalived(&site, dies));
        thread::sleep(Duration::from_millis(2500));
        let (cut, _) = flows.finish("it comes back");
        assert_eq!(cut, 0);
    }
    wait_for_master(&site, 0);
    // sweepd alone dies, and its kernel does not forward.
    let flows = Flows::start(&site, NEIGHBORS);
    let mut router = routers[0].take().unwrap();
    router.signal(Signal::SIGKILL);
    router.wait();
    wait_for_master(&site, 1);
    thread::sleep(Duration::from_millis(1000));
    flows.finish("sweepd of the master dies");
    assert!(works());
    site.routers[0].0.start_configured().stop();
    routers[1].take().unwrap().stop();
}
