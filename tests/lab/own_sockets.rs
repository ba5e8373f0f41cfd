//! The gateway's own sockets on the address that it masquerades with: services inside the range of
//! ports that it gives out, its own connections, and questions over UDP, all beside those of the
//! hosts behind it.

use std::{
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect as connect_fd, setsockopt, socket, sockopt,
};

use crate::{
    masquerade::lab,
    needs_lab,
    net::{Lab, wait_for},
    sockets::{connect, exchange},
};

const KIB: usize = 1 << 10;

/// Three ports to give out, of which the gateway's own sockets hold two.
const FEW_PORTS: &str = r#"
[[masquerade]]
out = "p2"
ports = "2222-2224"

[[forward_port]]
in = "p2"
protocol = "tcp"
port = 443
to = "10.0.1.2:80"
"#;

/// A connection of the router's own from this port of its address outside.
fn dial_from(lab: &Lab, port: u16, to: SocketAddr) -> TcpStream {
    let SocketAddr::V4(to) = to else { panic!("{to} is no IPv4 address") };
    lab.in_router(|| {
        let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        setsockopt(&fd, sockopt::ReuseAddr, &true).unwrap();
        let from = SockaddrIn::new(10, 0, 2, 1, port);
        bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &from).unwrap();
        connect_fd(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrIn::from(to)).unwrap();
        TcpStream::from(fd)
    })
}

/// Packets that workers have handed up.
fn detours(lab: &Lab) -> u64 {
    lab.router("cat /sys/class/net/sweepd0/statistics/rx_packets").ok().trim().parse().unwrap()
}

#[test]
fn services_connections_and_questions_of_the_gateways_own_are_undisturbed() {
    needs_lab!();
    for queues in [[1, 1], [2, 2]] {
        let lab = lab(&queues);
        let ssh = lab.in_router(|| TcpListener::bind("[::]:2222").unwrap());
        // A connection that is older than the daemon, from a port of the range as well.
        let world = lab.in_host(2, || TcpListener::bind("10.0.2.2:80").unwrap());
        let to = world.local_addr().unwrap();
        let (old, own) = connect(world.try_clone().unwrap(), || dial_from(&lab, 2224, to));
        assert_eq!(old.peer_addr().unwrap(), "10.0.2.1:2224".parse().unwrap());
        // Two workers divide the ports by blocks of 64: three would all be one's.
        let two = queues == [2, 2];
        let rules = if two { FEW_PORTS.replace("2222-2224", "1024-32767") } else { FEW_PORTS.into() };
        let router = lab.start_with(if two { "cpus = [0, 1]" } else { "" }, &rules);
        // What comes for sockets takes no detour.
        let before = detours(&lab);
        let straight = |what: &str| assert_eq!(detours(&lab), before, "{what}");
        // From outside, and from inside, to a port that could be given out.
        for host in [2, 1] {
            let listener = ssh.try_clone().unwrap();
            let (server, caller) =
                connect(listener, || lab.in_host(host, || TcpStream::connect("10.0.2.1:2222").unwrap()));
            exchange(server, caller, 256 * KIB);
            straight(&format!("the service, from host {host}"));
        }
        exchange(old, own, 256 * KIB);
        straight("an old connection");
        // Only the port that is left is: whoever is behind the gateway has it.
        let (inside_end, caller) =
            connect(world.try_clone().unwrap(), || lab.in_host(1, || TcpStream::connect(to).unwrap()));
        assert!(two || inside_end.peer_addr().unwrap() == "10.0.2.1:2223".parse().unwrap());
        // A new one of the gateway's own, while the other goes on.
        let (server, own) =
            connect(world.try_clone().unwrap(), || lab.in_router(|| TcpStream::connect(to).unwrap()));
        exchange(server, own, 256 * KIB);
        straight("a new connection");
        exchange(inside_end, caller, 256 * KIB);
        straight("all");
        lab.kernel_has_not_forwarded();
        router.stop();
    }
}

#[test]
fn questions_over_udp_reach_the_gateway_whole_and_in_pieces() {
    needs_lab!();
    let lab = lab(&[1, 1]);
    let router = lab.start_with("", &FEW_PORTS.replace("2222-2224", "1024-32767"));
    // It begins while the daemon runs: nothing has to be learned first.
    let names = lab.in_router(|| UdpSocket::bind("0.0.0.0:5353").unwrap());
    let asker = lab.in_host(2, || UdpSocket::bind("10.0.2.2:0").unwrap());
    for socket in [&names, &asker] {
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    let ask = |len: usize| {
        asker.send_to(&vec![7; len], "10.0.2.1:5353").unwrap();
        let mut bytes = [0; 8192];
        let (n, from) = names.recv_from(&mut bytes).unwrap();
        assert_eq!((n, from), (len, asker.local_addr().unwrap()));
        names.send_to(&bytes[..n], from).unwrap();
        let (n, from) = asker.recv_from(&mut bytes).unwrap();
        assert_eq!((n, from), (len, "10.0.2.1:5353".parse().unwrap()));
    };
    ask(30);
    let before = detours(&lab);
    // Pieces take the way through the worker, as soon as it knows of the socket.
    thread::sleep(Duration::from_millis(1500));
    ask(4000);
    assert!(detours(&lab) >= before + 3, "{before}");
    // A question of the gateway's own, with a socket that takes answers from anybody.
    let server = lab.in_host(2, || UdpSocket::bind("10.0.2.2:53").unwrap());
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    names.send_to(b"who?", "10.0.2.2:53").unwrap();
    let mut bytes = [0; 16];
    let (n, from) = server.recv_from(&mut bytes).unwrap();
    server.send_to(&bytes[..n], from).unwrap();
    assert_eq!(names.recv_from(&mut bytes).unwrap(), (4, "10.0.2.2:53".parse().unwrap()));
    router.stop();
}

#[test]
fn a_forwarded_port_is_the_server_insides_though_the_gateway_listens_there() {
    needs_lab!();
    let lab = lab(&[1, 1]);
    let here = lab.in_router(|| TcpListener::bind("0.0.0.0:443").unwrap());
    let server = lab.in_host(1, || TcpListener::bind("10.0.1.2:80").unwrap());
    let router = lab.start_with("", FEW_PORTS);
    let dial = || lab.in_host(2, || TcpStream::connect("10.0.2.1:443").unwrap());
    let (server, caller) = connect(server, dial);
    exchange(server, caller, 64 * KIB);
    // Nothing is forwarded any more, and the port is the gateway's.
    lab.configure("", FEW_PORTS.split("[[forward_port]]").next().unwrap());
    router.signal(nix::sys::signal::Signal::SIGHUP);
    wait_for("the rules are read", || router.log().contains("configuration read again"));
    let (own, caller) = connect(here, dial);
    exchange(own, caller, 64 * KIB);
    router.stop();
}
