//! The gateway as its users meet it: downloads through filter and masquerade, traceroute, a narrow
//! link far beyond it, ports forwarded to servers inside, those servers' names used from inside, and
//! addresses in front that only the gateway answers for.

use std::{
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    thread::{self, JoinHandle},
};

use nix::sys::signal::Signal;

use crate::{
    masquerade, needs_lab,
    net::{Lab, sh, wait_for},
    outside::{ARP, Capture},
    sockets::{connect, exchange},
};

const KIB: usize = 1 << 10;
/// Bytes of a download.
const BODY: usize = 3 << 20;

/// Hosts 1 and 3 are inside, host 2 is the world, where host 4 lies farther away. Whoever comes in
/// without having been asked is refused, but for the server of host 3.
const RULES: &str = r#"
[[acl]]
action = "permit"
state = "established"

[[acl]]
action = "permit"
in = ["p1", "p3"]

[[acl]]
action = "permit"
in = "p2"
to = "10.0.3.2/32"
protocol = "tcp"
to_ports = [80]

[[acl]]
name = "closed"
action = "deny"

[[masquerade]]
out = "p2"
from = ["10.0.1.0/24", "10.0.3.0/24"]

[[forward_port]]
in = "p2"
protocol = "tcp"
port = 8080
to = "10.0.3.2:80"
"#;

/// Answers each request for a page with [`BODY`] bytes; gives who asked. Ends after `requests`.
fn web_server(lab: &Lab, host: u32, address: &str, requests: usize) -> JoinHandle<Vec<IpAddr>> {
    let listener = lab.in_host(host, || TcpListener::bind((address, 80)).unwrap());
    thread::spawn(move || {
        let serve = |mut stream: TcpStream| {
            let (mut request, mut bytes) = (Vec::new(), [0; 1024]);
            while !request.ends_with(b"\r\n\r\n") {
                let n = stream.read(&mut bytes).unwrap();
                assert_ne!(n, 0, "the request ends early");
                request.extend_from_slice(&bytes[..n]);
            }
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\nConnection: close\r\n\r\n").unwrap();
            stream.write_all(&vec![b'x'; BODY]).unwrap();
            stream.peer_addr().unwrap().ip()
        };
        (0..requests).map(|_| serve(listener.accept().unwrap().0)).collect()
    })
}

/// Downloads from host `host`; all of it must come.
#[track_caller]
fn download(lab: &Lab, host: u32, from: &str) {
    let line =
        format!("curl -sS --max-time 20 -o /dev/null -w '%{{http_code}} %{{size_download}}' http://{from}/");
    assert_eq!(lab.host(host, &line).ok(), format!("200 {BODY}"));
}

/// Host 4 behind host 2, over a link of 1300 bytes.
fn far_away(lab: &Lab) {
    let (two, four) = (lab.h(2), lab.h(4));
    sh(&format!(
        "set -e
         ip -n {two} link add far type veth peer name near netns {four}
         ip netns exec {two} ethtool -K far tx off
         ip netns exec {four} ethtool -K near tx off
         ip -n {two} addr add 10.9.0.1/24 dev far
         ip -n {four} addr add 10.9.0.2/24 dev near
         ip -n {two} link set far mtu 1300 up
         ip -n {four} link set near mtu 1300 up
         ip -n {four} route replace 10.0.2.0/24 via 10.9.0.1 advmss 1460
         ip netns exec {two} sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
         ip -n {two} route del default
         ip -n {two} route add 10.0.3.0/24 via 10.0.2.1
         ip -n {} route add 10.9.0.0/24 via 10.0.2.2",
        lab.r()
    ))
    .ok();
}

#[test]
fn what_users_do_works_through_filter_and_masquerade() {
    needs_lab!();
    for queues in [[1, 1, 1, 1], [2, 2, 2, 1]] {
        let lab = Lab::with_queues(&queues);
        far_away(&lab);
        let two = queues[0] == 2;
        let router = lab.start_with(if two { "cpus = [0, 1]" } else { "" }, RULES);
        let gateway: IpAddr = "10.0.2.1".parse().unwrap();

        // Out, with iperf3 in both directions at its own speed, and with curl.
        let world = web_server(&lab, 2, "10.0.2.2", 2);
        download(&lab, 1, "10.0.2.2");
        download(&lab, 3, "10.0.2.2");
        assert_eq!(world.join().unwrap(), [gateway; 2]);
        for options in ["", "-R"] {
            let _server = lab.host_starts(2, "iperf3 -s -1");
            wait_for("iperf3 listens", || !lab.host(2, "ss -Hltn sport = :5201").ok().is_empty());
            lab.host(1, &format!("timeout 20 iperf3 -c 10.0.2.2 {options} -n 8M")).ok();
        }

        // In, by the forwarded port, from outside and from inside: there too the server sees the
        // gateway's address.
        let server = web_server(&lab, 3, "10.0.3.2", 3);
        download(&lab, 2, "10.0.2.1:8080");
        download(&lab, 1, "10.0.2.1:8080");
        download(&lab, 3, "10.0.2.1:8080");
        assert_eq!(server.join().unwrap(), ["10.0.2.2".parse().unwrap(), gateway, gateway]);
        let closed = router.verdict("denied");
        assert_ne!(lab.host(2, "curl -sS --max-time 1 http://10.0.3.2:81/").code, 0);
        assert!(router.verdict("denied") > closed, "only what is forwarded gets in");

        // Every router on the way answers, and quotes what the inside knows.
        let text = lab.host(1, "traceroute -n -q 1 -N 1 -w 2 10.9.0.2").ok();
        let hops: Vec<_> = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(hops, ["10.0.1.1", "10.0.2.2", "10.9.0.2"], "{text}");

        // The narrow link's router says so to the gateway's address, and the inside hears it.
        let listener = lab.in_host(4, || TcpListener::bind("10.9.0.2:0").unwrap());
        let to = listener.local_addr().unwrap();
        let (far, caller) = connect(listener, || lab.in_host(1, || TcpStream::connect(to).unwrap()));
        exchange(far, caller, 512 * KIB);
        let route = lab.host(1, "ip route get 10.9.0.2").ok();
        assert!(route.contains("mtu 1300"), "{route}");
        lab.kernel_has_not_forwarded();
        router.stop();
    }
}

/// The masquerade of [`masquerade::lab`], with addresses that nobody has but the gateway.
fn pool(announce: &str, addresses: &str) -> String {
    format!(
        "[[masquerade]]\nout = \"p2\"\nto = [{addresses}]\n{announce}\n\
         [[forward_port]]\nin = \"p2\"\nprotocol = \"tcp\"\nport = 8080\nto = \"10.0.1.2:80\"\n"
    )
}

/// Announcements of an address among these frames: requests from it for itself.
fn announcements(frames: &[Vec<u8>], last: u8) -> usize {
    let address = [10, 0, 2, last];
    let ours =
        |frame: &&Vec<u8>| frame[20..22] == [0, 1] && frame[28..32] == address && frame[38..42] == address;
    frames.iter().filter(ours).count()
}

#[test]
fn an_announced_address_is_answered_for_and_one_that_is_not_is_told() {
    needs_lab!();
    let lab = masquerade::lab(&[1, 1]);
    let arp = Capture::start(&lab, 2, &ARP);
    let router = lab.start_with("", &pool("announce = true", "\"10.0.2.100\""));
    wait_for("it is announced", || announcements(&arp.frames(), 100) > 0);
    assert!(!router.log().contains("nobody answers ARP"));
    // Out and back, and in by the forwarded port; the kernel answers for its own as ever.
    lab.host(2, "ip neigh flush dev eth0").ok();
    let listener = lab.in_host(2, || TcpListener::bind("10.0.2.2:0").unwrap());
    let to = listener.local_addr().unwrap();
    let (server, caller) = connect(listener, || lab.in_host(1, || TcpStream::connect(to).unwrap()));
    assert_eq!(server.peer_addr().unwrap().ip().to_string(), "10.0.2.100");
    exchange(server, caller, 64 * KIB);
    lab.host(2, "ip neigh flush dev eth0").ok();
    let listener = lab.in_host(1, || TcpListener::bind("10.0.1.2:80").unwrap());
    let (server, caller) =
        connect(listener, || lab.in_host(2, || TcpStream::connect("10.0.2.100:8080").unwrap()));
    exchange(server, caller, 64 * KIB);
    lab.host(2, "ping -c 1 -W 2 10.0.2.1").ok();
    wait_for("it is announced twice", || announcements(&arp.frames(), 100) >= 2);
    // One more comes.
    let two = pool("announce = true", "\"10.0.2.100\", \"10.0.2.101\"");
    lab.configure("", &two);
    router.signal(Signal::SIGHUP);
    wait_for("the other one is announced", || announcements(&arp.frames(), 101) > 0);
    assert!(!lab.reaches(2, "10.0.2.101"), "it is no host");
    let known = lab.host(2, "ip neigh show 10.0.2.101").ok();
    assert!(known.contains("lladdr"), "{known}");
    router.stop();
    // Without, it is the operator's to see that somebody answers.
    let router = lab.start_with("", &pool("", "\"10.0.2.100\""));
    let log = router.log();
    assert!(log.contains("10.0.2.100 is no address of this host's, so nobody answers ARP for it"), "{log}");
    router.stop();
}
