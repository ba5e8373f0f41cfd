//! Routing daemons beside sweepd: OSPF, BGP and BFD go through its ports, the routes that are
//! learnt go into the kernel and from there into forwarding, and when the way to a neighbour is
//! cut, packets take the other one.
//!
//! Host 1 sends. Hosts 2 and 3 are routers that both have the destination; the way through host 2
//! is the better one unless a test says otherwise.

use std::{
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::{
    daemons::{Bird, Frr, needs_daemons, wait_for_route},
    net::{Lab, Router, SWEEPD, sh, wait_for},
    sockets::{Receiver, Sender, connect, exchange, missing_and_double, send_numbers},
};

const V4: &str = "192.0.2.1";
const V6: &str = "2001:db8::1";
/// Both, and a UDP port for each.
const DESTINATIONS: [(&str, u16); 2] = [(V4, 7101), (V6, 7102)];

/// A lab with a sender and two routers, and sweepd between them.
fn lab() -> (Lab, Router) {
    let lab = Lab::new(3);
    for n in [2, 3] {
        lab.host(n, &format!("ip addr add {V4}/32 dev lo")).ok();
        lab.host(n, &format!("ip addr add {V6}/128 dev lo nodad")).ok();
    }
    let router = lab.start();
    (lab, router)
}

/// Numbered datagrams from host 1 to a destination.
struct Flow {
    sender: Sender,
    second: Receiver,
    third: Receiver,
}

impl Flow {
    fn start(lab: &Lab, destination: &str, port: u16) -> Self {
        let [second, third] = [2, 3].map(|host| Receiver::start(lab, host, port));
        Self { sender: Sender::start(lab, 1, destination, port), second, third }
    }

    /// That everything came to host 2 at first and to host 3 at last; what was lost is between
    /// the two. Gives how many that were, and for how long nothing came.
    #[track_caller]
    fn has_moved(self) -> (u32, Duration) {
        let sent = self.sender.finish();
        let (second, third) = (self.second.finish(), self.third.finish());
        let (last, at) = *second.last().expect("nothing came to host 2");
        let then = third.first().expect("nothing came to host 3").1;
        // Those that were held for the new neighbour may come behind others.
        let first = third.iter().map(|(n, _)| *n).min().unwrap();
        assert!(first > last, "{first} came to host 3 before {last} came to host 2");
        assert_eq!(missing_and_double(&second, last + 1), (vec![], vec![]), "at host 2");
        let third: Vec<_> = third.iter().map(|(n, at)| (n - first, *at)).collect();
        assert_eq!(missing_and_double(&third, sent - first), (vec![], vec![]), "at host 3");
        assert!(last > 50 && sent - first > 50, "too few of {sent} before ({last}) and after ({first})");
        (first - last - 1, then.saturating_duration_since(at))
    }
}

/// Has datagrams flow while `cut` is done, until the routes lead through host 3. Gives how many
/// were lost.
#[track_caller]
fn moves_when(lab: &Lab, router: &Router, name: &str, cut: impl FnOnce()) -> u32 {
    let before = router.verdict("forwarded");
    let flows = DESTINATIONS.map(|(destination, port)| Flow::start(lab, destination, port));
    thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    cut();
    for (destination, _) in DESTINATIONS {
        wait_for_route(lab, destination, "dev p3", true);
        wait_for_route(lab, destination, "dev p2", false);
    }
    println!("{name}: the kernel's routes moved {:.1?} after the cut", start.elapsed());
    thread::sleep(Duration::from_millis(300));
    let all: u32 = flows.iter().map(|flow| flow.sender.sent()).sum();
    let mut lost = 0;
    for ((destination, _), flow) in DESTINATIONS.iter().zip(flows) {
        let (missing, silence) = flow.has_moved();
        println!("{name}: {destination}: {missing} lost; nothing came for {silence:.1?}");
        lost += missing;
    }
    let forwarded = router.verdict("forwarded") - before;
    assert!(forwarded >= u64::from(all - lost), "sweepd forwarded {forwarded} of {all}");
    lost
}

/// TCP from host 1 to a destination, which host `to` answers.
fn talks_with(lab: &Lab, to: u32, destination: &str) {
    let listener = lab.in_host(to, || TcpListener::bind((destination, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let (server, caller) = connect(listener, || lab.in_host(1, || TcpStream::connect(address).unwrap()));
    exchange(server, caller, 1 << 19);
}

/// That kernel, RIB and FIB agree, and that nothing but sweepd forwarded.
#[track_caller]
fn ends_well(lab: &Lab, router: Router) {
    let config = lab.dir.path().join("sweepd.toml");
    let diff = sh(&format!("{SWEEPD} show routes --diff --json --config {}", config.display())).ok();
    assert_eq!(diff.trim(), "[]");
    lab.kernel_has_not_forwarded();
    router.stop();
}

/// Host `n` as an OSPF router, by BIRD.
fn ospf_neighbor(lab: &Lab, n: u32) -> Bird {
    let config = format!(
        "protocol static s4 {{ ipv4; route {V4}/32 via \"lo\"; }}
         protocol static s6 {{ ipv6; route {V6}/128 via \"lo\"; }}
         protocol ospf v2 o4 {{
             ipv4 {{ import all; export where source = RTS_STATIC; }};
             area 0 {{ interface \"eth0\" {{ type ptp; hello 1; dead 4; retransmit 2; check link yes; }}; }};
         }}
         protocol ospf v3 o6 {{
             ipv6 {{ import all; export where source = RTS_STATIC; }};
             area 0 {{ interface \"eth0\" {{ type ptp; hello 1; dead 4; retransmit 2; check link yes; }}; }};
         }}"
    );
    Bird::start(lab, &lab.h(n), &format!("10.9.0.{n}"), &config)
}

#[test]
fn routes_that_bird_learns_by_ospf_move_when_a_link_is_cut() {
    needs_daemons!();
    let (lab, router) = lab();
    let _neighbors = [2, 3].map(|n| ospf_neighbor(&lab, n));
    let area = "area 0 {
        interface \"p2\" { type ptp; hello 1; dead 4; retransmit 2; check link yes; cost 10; };
        interface \"p3\" { type ptp; hello 1; dead 4; retransmit 2; check link yes; cost 20; };
    };";
    let config = format!(
        "protocol kernel k4 {{ ipv4 {{ export all; import none; }}; }}
         protocol kernel k6 {{ ipv6 {{ export all; import none; }}; }}
         protocol ospf v2 o4 {{ ipv4 {{ import all; export none; }}; {area} }}
         protocol ospf v3 o6 {{ ipv6 {{ import all; export none; }}; {area} }}"
    );
    let _bird = Bird::start(&lab, &lab.r(), "10.9.0.1", &config);
    for (destination, _) in DESTINATIONS {
        wait_for_route(&lab, destination, "dev p2", true);
        wait_for("it is forwarded", || lab.reaches(1, destination));
        talks_with(&lab, 2, destination);
    }
    // A router tells of its links at most every 5 s (MinLSInterval, RFC 2328 appendix B), and has
    // just done so.
    thread::sleep(Duration::from_secs(5));
    moves_when(&lab, &router, "BIRD, OSPF, link down", || {
        lab.host(2, "ip link set eth0 down").ok();
    });
    for (destination, _) in DESTINATIONS {
        talks_with(&lab, 3, destination);
    }
    ends_well(&lab, router);
}

#[test]
fn routes_that_frr_learns_by_bgp_move_when_bfd_misses_a_neighbor() {
    needs_daemons!();
    let (lab, router) = lab();
    let neighbors = [2, 3].map(|n| {
        // The way through host 3 is one autonomous system longer.
        let longer = if n == 3 { "bgp_path.prepend(65003);" } else { "" };
        let channel = format!("{{ import none; export filter {{ {longer} accept; }}; }}");
        let config = format!(
            "protocol static s4 {{ ipv4; route {V4}/32 via \"lo\"; }}
             protocol static s6 {{ ipv6; route {V6}/128 via \"lo\"; }}
             protocol bfd {{ interface \"eth0\" {{ interval 100 ms; multiplier 5; }}; }}
             protocol bgp b4 {{
                 local 10.0.{n}.2 as 6500{n}; neighbor 10.0.{n}.1 as 65000;
                 bfd on; connect delay time 1; connect retry time 1; error wait time 1, 1;
                 ipv4 {channel};
             }}
             protocol bgp b6 {{
                 local fd00:{n}::2 as 6500{n}; neighbor fd00:{n}::1 as 65000;
                 bfd on; connect delay time 1; connect retry time 1; error wait time 1, 1;
                 ipv6 {channel};
             }}"
        );
        Bird::start(&lab, &lab.h(n), &format!("10.9.0.{n}"), &config)
    });
    let sessions: String = [(2, "10.0.2.2"), (2, "fd00:2::2"), (3, "10.0.3.2"), (3, "fd00:3::2")]
        .iter()
        .map(|(n, address)| {
            format!(
                " neighbor {address} remote-as 6500{n}\n neighbor {address} bfd profile fast\n \
                  neighbor {address} timers connect 1\n"
            )
        })
        .collect();
    let bgpd = format!(
        "router bgp 65000
 bgp router-id 10.9.0.1
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
{sessions} address-family ipv4 unicast
  neighbor 10.0.2.2 activate
  neighbor 10.0.3.2 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor fd00:2::2 activate
  neighbor fd00:3::2 activate
 exit-address-family
"
    );
    let bfdd = "bfd
 profile fast
  transmit-interval 100
  receive-interval 100
  detect-multiplier 5
";
    let _frr = Frr::start(&lab, &lab.r(), &[("bfdd", bfdd), ("bgpd", &bgpd)]);
    for (destination, _) in DESTINATIONS {
        wait_for_route(&lab, destination, "dev p2", true);
        wait_for("it is forwarded", || lab.reaches(1, destination));
        talks_with(&lab, 2, destination);
    }
    let [second, _third] = &neighbors;
    wait_for("BFD is up", || second.says("show bfd sessions").matches(" Up ").count() == 2);
    // The link stays, and what is still sent to host 2 arrives there. BGP itself would wait for
    // three minutes.
    let lost = moves_when(&lab, &router, "FRR, BGP, BFD", || second.freeze());
    assert_eq!(lost, 0);
    for (destination, _) in DESTINATIONS {
        talks_with(&lab, 3, destination);
    }
    ends_well(&lab, router);
}

/// How many of 64 flows of 4 datagrams each came to hosts 2 and 3.
fn shares(lab: &Lab, destination: &str, port: u16) -> [usize; 2] {
    let receivers = [2, 3].map(|host| Receiver::start(lab, host, port));
    for _ in 0..64 {
        // A socket, and so a port of its own, for each.
        send_numbers(lab, 1, destination, port, 4, 100);
    }
    let [second, third] = receivers.map(|receiver| receiver.finish().len());
    assert!(second % 4 == 0 && third % 4 == 0, "a flow stays together: {second}, {third}");
    [second / 4, third / 4]
}

#[test]
fn flows_are_shared_among_equal_ways_that_frr_learns_by_ospf() {
    needs_daemons!();
    let (lab, router) = lab();
    let _neighbors = [2, 3].map(|n| ospf_neighbor(&lab, n));
    let interfaces = |version: &str, ip: &str, area: &str| -> String {
        ["p2", "p3"]
            .map(|port| {
                format!(
                    "interface {port}\n {ip} {version} network point-to-point\n {area}\n \
                     {ip} {version} hello-interval 1\n {ip} {version} dead-interval 4\n!\n"
                )
            })
            .concat()
    };
    let ospfd = interfaces("ospf", "ip", "ip ospf area 0") + "router ospf\n ospf router-id 10.9.0.1\n";
    let ospf6d =
        interfaces("ospf6", "ipv6", "ipv6 ospf6 area 0") + "router ospf6\n ospf6 router-id 10.9.0.1\n";
    let _frr = Frr::start(&lab, &lab.r(), &[("ospfd", &ospfd), ("ospf6d", &ospf6d)]);
    for (destination, port) in DESTINATIONS {
        for by in ["dev p2", "dev p3"] {
            wait_for_route(&lab, destination, by, true);
        }
        // Each by its neighbour's link-local address in IPv6.
        wait_for("it is forwarded", || lab.reaches(1, destination));
        let mut both = [0, 0];
        wait_for("both ways are used", || {
            both = shares(&lab, destination, port);
            both[0] > 0 && both[1] > 0
        });
        assert!(both[0] + both[1] == 64 && both.iter().all(|n| *n >= 16), "{destination}: {both:?}");
    }
    lab.host(2, "ip link set eth0 down").ok();
    for (destination, port) in DESTINATIONS {
        wait_for_route(&lab, destination, "dev p2", false);
        thread::sleep(Duration::from_millis(100));
        assert_eq!(shares(&lab, destination, port), [0, 64], "{destination}");
    }
    ends_well(&lab, router);
}

#[test]
fn ten_thousand_routes_of_a_bgp_neighbor_come_and_go_with_it() {
    needs_daemons!();
    let (lab, router) = lab();
    // IPv4 by an IPv6 gateway (RFC 8950), and both families in one session.
    let session = |local: &str, local_as: &str, neighbor: &str, neighbor_as: &str, rule: &str| {
        format!(
            "protocol bgp b {{
                 local {local} as {local_as}; neighbor {neighbor} as {neighbor_as};
                 connect delay time 1; connect retry time 1; error wait time 1, 1;
                 ipv4 {{ extended next hop on; {rule} }};
                 ipv6 {{ {rule} }};
             }}"
        )
    };
    let many: String = (0..10_000).fold(String::new(), |text, n| {
        text + &format!("route 172.{}.{}.{}/32 via \"lo\";\n", 16 + n / 65536, n / 256 % 256, n % 256)
    });
    let announced = format!(
        "protocol static s4 {{ ipv4; route {V4}/32 via \"lo\";\n{many} }}
         protocol static s6 {{ ipv6; route {V6}/128 via \"lo\"; }}\n"
    );
    let rule = "import none; export all;";
    let neighbor = Bird::start(
        &lab,
        &lab.h(2),
        "10.9.0.2",
        &(announced + &session("fd00:2::2", "65002", "fd00:2::1", "65000", rule)),
    );
    let kernel = "protocol kernel k4 { ipv4 { export all; import none; }; }
                  protocol kernel k6 { ipv6 { export all; import none; }; }\n";
    let rule = "import all; export none;";
    let _bird = Bird::start(
        &lab,
        &lab.r(),
        "10.9.0.1",
        &(kernel.to_owned() + &session("fd00:2::1", "65000", "fd00:2::2", "65002", rule)),
    );
    for (destination, _) in DESTINATIONS {
        wait_for_route(&lab, destination, "dev p2", true);
        wait_for("it is forwarded", || lab.reaches(1, destination));
        talks_with(&lab, 2, destination);
    }
    wait_for_route(&lab, V4, "via inet6 ", true);
    lab.host(2, "ip addr add 172.16.39.15/32 dev lo").ok();
    wait_for("the last one is forwarded", || lab.reaches(1, "172.16.39.15"));
    let config = lab.dir.path().join("sweepd.toml");
    let count = || {
        let text = sh(&format!("{SWEEPD} show tables --json --config {}", config.display())).ok();
        let tables: serde_json::Value = serde_json::from_str(&text).unwrap();
        tables["fib4_prefixes"].as_u64().unwrap()
    };
    assert!(count() >= 10_000);
    drop(neighbor);
    // Its socket is closed with it, so BGP knows at once.
    wait_for("they are gone", || count() < 1000);
    assert!(!lab.reaches(1, V4));
    ends_well(&lab, router);
}
