//! Hosts behind one address, with the kernel's own TCP and ICMP at both ends, and the gateway's own
//! connections on that very address.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use crate::{
    needs_lab,
    net::{Lab, SWEEPD, sh, wait_for},
    sockets::{connect, exchange},
};

const MIB: usize = 1 << 20;

const RULES: &str = r#"
[[masquerade]]
out = "p2"
from = "10.0.1.0/24"

[[forward_port]]
in = "p2"
protocol = "tcp"
port = 8080
to = "10.0.1.2:80"
"#;

/// Host 1 is behind the gateway, host 2 is the world: it has no way to host 1's network.
pub fn lab(queues: &[u32]) -> Lab {
    let lab = Lab::with_queues(queues);
    lab.host(2, "ip route del default via 10.0.2.1").ok();
    lab
}

/// A connection from one namespace to a listener in another, and who its peer is to the listener.
fn connection(
    listener: TcpListener,
    call: impl FnOnce(SocketAddr) -> TcpStream + Send,
) -> (TcpStream, TcpStream) {
    let to = listener.local_addr().unwrap();
    connect(listener, || call(to))
}

#[test]
fn a_host_behind_the_gateway_reaches_the_world_and_the_gateway_does_too() {
    needs_lab!();
    for queues in [[1, 1], [2, 2]] {
        let lab = lab(&queues);
        let daemon = if queues == [2, 2] { "cpus = [0, 1]" } else { "" };
        let router = lab.start_with(daemon, RULES);
        lab.host(1, "ping -c 3 -i 0.2 -W 2 10.0.2.2").ok();
        // From inside, several at once, so that their ways back hash to all rings.
        for _ in 0..4 {
            let listener = lab.in_host(2, || TcpListener::bind("10.0.2.2:0").unwrap());
            let (server, caller) =
                connection(listener, |to| lab.in_host(1, || TcpStream::connect(to).unwrap()));
            assert_eq!(server.peer_addr().unwrap().ip().to_string(), "10.0.2.1");
            exchange(server, caller, MIB);
        }
        // From outside to the forwarded port.
        let listener = lab.in_host(1, || TcpListener::bind("10.0.1.2:80").unwrap());
        let (server, caller) =
            connect(listener, || lab.in_host(2, || TcpStream::connect("10.0.2.1:8080").unwrap()));
        exchange(server, caller, MIB);
        // The gateway's own, in both directions, on the same address.
        lab.router("ping -c 2 -i 0.2 -W 2 10.0.2.2").ok();
        lab.host(2, "ping -c 2 -i 0.2 -W 2 10.0.2.1").ok();
        let listener = lab.in_host(2, || TcpListener::bind("10.0.2.2:0").unwrap());
        let (server, caller) = connection(listener, |to| lab.in_router(|| TcpStream::connect(to).unwrap()));
        exchange(server, caller, MIB);
        let listener = lab.in_router(|| TcpListener::bind("10.0.2.1:700").unwrap());
        let (server, caller) = connection(listener, |to| lab.in_host(2, || TcpStream::connect(to).unwrap()));
        exchange(server, caller, MIB);
        lab.kernel_has_not_forwarded();
        router.stop();
    }
}

#[test]
fn errors_come_back_through_the_gateway() {
    needs_lab!();
    let lab = lab(&[1, 1]);
    let router = lab.start_with("", RULES);
    let text = lab.host(1, "traceroute -n -q 1 -N 1 -w 2 10.0.2.2").ok();
    let hops: Vec<_> = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(hops, ["10.0.1.1", "10.0.2.2"], "{text}");
    // A way that has become narrower: TCP hears of it and goes on.
    sh(&format!("ip -n {} link set p2 mtu 1300", lab.r())).ok();
    lab.host(2, "ip link set eth0 mtu 1300").ok();
    lab.host(2, "ip route change 10.0.2.0/24 dev eth0 src 10.0.2.2 advmss 1460").ok();
    let listener = lab.in_host(2, || TcpListener::bind("10.0.2.2:0").unwrap());
    let (server, caller) = connection(listener, |to| lab.in_host(1, || TcpStream::connect(to).unwrap()));
    wait_for("the new MTU is known", || router.log().contains("1300") || router.verdict("forwarded") > 0);
    exchange(server, caller, MIB);
    router.stop();
}

#[test]
fn flows_and_mappings_are_shown_while_packets_pass() {
    needs_lab!();
    let lab = lab(&[1, 1]);
    let router = lab.start_with("", RULES);
    let file = lab.dir.path().join("sweepd.toml");
    let listener = lab.in_host(2, || TcpListener::bind("10.0.2.2:7000").unwrap());
    let (mut server, mut caller) =
        connection(listener, |to| lab.in_host(1, || TcpStream::connect(to).unwrap()));
    caller.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    let port = caller.local_addr().unwrap().port();
    let show = |what: &str| sh(&format!("{SWEEPD} --config {} show {what}", file.display())).ok();
    let text = show("flows tcp 7000");
    assert!(text.contains(&format!("10.0.1.2:{port}")) && text.contains("established"), "{text}");
    let text = show("masquerade 10.0.1.2");
    assert!(text.contains("10.0.2.1:") && text.contains("ports taken"), "{text}");
    let data: serde_json::Value = serde_json::from_str(&show("flows tcp 7000 --json")).unwrap();
    assert_eq!((&data["matched"], &data["flows"][0]["out"]), (&1.into(), &"p2".into()), "{data}");
    assert!(show("flows tcp 7001 --json").contains("\"matched\":0"));
    let refused = sh(&format!("{SWEEPD} --config {} show flows everything", file.display()));
    assert_eq!((refused.code, refused.text.contains("is no filter")), (1, true), "{}", refused.text);
    router.stop();
}
