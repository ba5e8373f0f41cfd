//! The router that the rules are shown on, in three places: the worker between pipes, sweepd on
//! `xdp:` ports, and Linux's own forwarding, which shows that the tests ask for nothing but the
//! rules. And words for what comes out of it.

use std::{
    net::IpAddr,
    panic::{AssertUnwindSafe, catch_unwind},
};

use ipnet::IpNet;
use sweepd::forward::{messages::ToWorker, verdict::Verdict};
use sweepd::tables::{Action, NextHopId, ReversePath, fixed};

use crate::common::{PortSpec, Tube, host_mac, port_mac};
use crate::differences::Difference;
use crate::packets::{Ip4, checksum, ethernet, pseudo6};

/// A host behind port 0, and one behind port 1, beyond the links.
pub const NEAR: &str = "192.0.2.7";
pub const FAR: &str = "198.51.100.3";
/// Behind port 2, whose MTU is 600 bytes.
pub const NARROW: &str = "203.0.113.5";
pub const NEAR6: &str = "2001:db8:beef::7";
pub const FAR6: &str = "2001:db8:cafe::3";
/// Behind port 3, whose MTU is 1280 bytes.
pub const NARROW6: &str = "2001:db8:dead::5";

/// The MTU of each port.
pub const MTUS: [u16; 4] = [1500, 1500, 600, 1280];
/// The hosts on every link whose MAC addresses the router knows.
pub const HOSTS: [u8; 5] = [2, 3, 4, 5, 9];
/// What lies behind host 9 of a port.
pub const NETWORKS: &[(&str, usize)] = &[
    ("192.0.2.0/24", 0),
    ("2001:db8:beef::/48", 0),
    ("198.51.100.0/24", 1),
    ("2001:db8:cafe::/48", 1),
    ("203.0.113.0/24", 2),
    ("2001:db8:dead::/48", 3),
];

/// The router's addresses on port `k`: 10.0.k.1/24, 2001:db8:k::1/64 and fe80::k:1/64, of IPv6 only
/// where the MTU is enough for it.
pub fn addresses(k: usize) -> Vec<String> {
    let mut all = vec![format!("10.0.{k}.1/24")];
    if MTUS[k] >= 1280 {
        all.extend([format!("2001:db8:{k}::1/64"), format!("fe80::{k}:1/64")]);
    }
    all
}

/// Where the router runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A worker between pipes.
    Pipes,
    /// sweepd on `xdp:` ports.
    Xdp,
    /// Linux's own forwarding.
    Kernel,
}

/// Where a route leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum To {
    /// To this host behind this port.
    Host(usize, u8),
    /// To this host behind this port, by that address of its.
    Via(usize, u8, &'static str),
    /// To all of these hosts behind this port alike.
    Ways(usize, Vec<u8>),
    /// To these hosts behind these ports alike.
    Among(Vec<(usize, u8)>),
    /// Out of a device that is no port.
    Elsewhere,
    Unreachable,
    Prohibited,
    Blackhole,
}

/// What a router does or does not, by configuration; at port 0 where it is a port's, or at the first
/// sub-port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    Sources(ReversePath),
    Redirects(bool),
    /// Of the whole router, and of the kernel under it.
    SourceRoutes(bool),
}

/// A router under test.
pub trait Router {
    fn place(&self) -> Place;

    /// Sends frames in at `port` and gives all that comes out anywhere, by port and in order.
    fn send(&mut self, port: usize, frames: &[Vec<u8>]) -> Vec<(usize, Vec<u8>)>;

    /// The prefix leads there, once it is published, until the test ends.
    fn route(&mut self, prefix: &str, to: &To);

    /// The router has this address on that port too, once it is published, until the test ends.
    fn address(&mut self, port: usize, address: &str);

    /// The router knows that this address is that host behind that port, once it is published.
    fn neighbor(&mut self, port: usize, address: &str, host: u8);

    /// Puts the changes in force.
    fn publish(&mut self);

    /// How many frames have ended with this verdict, where it can be known at once.
    fn counted(&self, verdict: Verdict) -> Option<u64>;

    /// One frame more has ended with this verdict: to be looked at in the end, where it can be known
    /// only then.
    fn expect(&mut self, verdict: Verdict);

    /// The frames of this test have ended so, all of them, as far as anybody counts.
    fn ended(&mut self, verdicts: &[(&'static str, u64)]);

    /// Sets a switch, until the test ends.
    fn switch(&mut self, switch: Switch);

    /// Limits ICMP errors to so many a second and so many at once, or as near as it can; gives the
    /// limit that is in force.
    fn limit_errors(&mut self, rate: u32, burst: u32) -> (u64, u64);

    /// Sends a frame in at port 0, for a neighbour behind `port` that does not answer; gives what
    /// comes out when that is certain.
    fn fails(&mut self, port: usize, neighbor: IpAddr, frame: &[u8]) -> Vec<(usize, Vec<u8>)>;

    /// Host `host` behind `port` is known from now on, 10.0.`port`.`host` and its IPv6 address; gives
    /// the `frames` frames that have waited for that.
    fn resolves(&mut self, port: usize, host: u8, frames: usize) -> Vec<(usize, Vec<u8>)>;

    /// What a port has counted, ever: packets and bytes received, packets and bytes sent.
    fn totals(&self, port: usize) -> [u64; 4];

    /// What sweepd has said.
    fn log(&self) -> String {
        String::new()
    }

    /// The worker itself, for what can be seen nowhere else; `why` says why that is.
    fn tube(&mut self, why: &'static str) -> Option<&mut Tube> {
        let _ = why;
        None
    }
}

impl Router for Tube {
    fn place(&self) -> Place {
        Place::Pipes
    }

    fn send(&mut self, port: usize, frames: &[Vec<u8>]) -> Vec<(usize, Vec<u8>)> {
        let mut came = Vec::new();
        for some in frames.chunks(32) {
            some.iter().for_each(|frame| self.inject(port, frame));
            self.settle();
            self.check();
            came.extend(self.arrivals());
        }
        came.sort_by_key(|(port, _)| *port);
        came
    }

    fn route(&mut self, prefix: &str, to: &To) {
        let id = match to {
            To::Host(port, host) => hop(self, *port, *host, prefix),
            To::Via(port, host, address) => self.routes.neighbor(*port, *host, MTUS[*port], address),
            To::Ways(port, hosts) => {
                let hops: Vec<_> = hosts.iter().map(|host| hop(self, *port, *host, prefix)).collect();
                return self.routes.ways(prefix, &hops);
            }
            To::Among(hosts) => {
                let hops: Vec<_> = hosts.iter().map(|(port, host)| hop(self, *port, *host, prefix)).collect();
                return self.routes.ways(prefix, &hops);
            }
            To::Elsewhere => fixed::HOST,
            To::Unreachable => fixed::UNREACHABLE,
            To::Prohibited => fixed::PROHIBIT,
            To::Blackhole => fixed::BLACKHOLE,
        };
        self.routes.add(prefix, id);
    }

    fn address(&mut self, port: usize, address: &str) {
        let address = address.parse().expect("an address");
        self.routes.own(port, address);
        self.change_ports(|id, table| match address {
            IpNet::V4(net) if id == port => table.addresses4.push(net),
            IpNet::V6(net) if id == port => table.addresses6.push(net),
            _ => {}
        });
    }

    fn neighbor(&mut self, port: usize, address: &str, host: u8) {
        let hop = self.routes.known(port, host, MTUS[port], address.contains(':'));
        self.routes.add(&IpNet::from(address.parse::<IpAddr>().expect("an address")).to_string(), hop);
    }

    fn publish(&mut self) {
        Tube::publish(self);
    }

    fn counted(&self, verdict: Verdict) -> Option<u64> {
        Some(self.count(verdict))
    }

    fn expect(&mut self, _: Verdict) {}

    fn ended(&mut self, verdicts: &[(&'static str, u64)]) {
        assert_eq!(self.verdicts(), verdicts);
    }

    fn switch(&mut self, switch: Switch) {
        if let Switch::SourceRoutes(on) = switch {
            return self.follow_source_routes(on);
        }
        // Of a router with sub-ports, which come last, the first of them.
        let first_sub = self.peers.len();
        self.change_ports(|port, table| {
            let switched = (port == 0 && table.trunk.is_none()) || (port == first_sub && table.sub.is_some());
            match switch {
                Switch::Sources(how) if switched => table.reverse_path = how,
                Switch::Redirects(on) if switched => table.redirects = on,
                _ => {}
            }
        });
    }

    fn limit_errors(&mut self, rate: u32, burst: u32) -> (u64, u64) {
        Tube::limit_errors(self, rate, burst);
        (rate.into(), burst.into())
    }

    fn fails(&mut self, port: usize, address: IpAddr, frame: &[u8]) -> Vec<(usize, Vec<u8>)> {
        assert_eq!(self.pass(0, frame), []);
        self.links[0].send(ToWorker::Failed { port: port as u16, address });
        self.settle();
        self.check();
        self.arrivals()
    }

    fn resolves(&mut self, port: usize, host: u8, frames: usize) -> Vec<(usize, Vec<u8>)> {
        for net in [format!("10.0.{port}.{host}"), format!("2001:db8:{port}::{host}")] {
            self.neighbor(port, &net, host);
        }
        Tube::publish(self);
        self.settle();
        self.settle();
        self.check();
        let out = self.arrivals();
        assert_eq!(out.len(), frames);
        out
    }

    fn totals(&self, port: usize) -> [u64; 4] {
        let of = &self.stats.snapshot()[port];
        [of.rx_packets, of.rx_bytes, of.tx_packets, of.tx_bytes]
    }

    fn tube(&mut self, _: &'static str) -> Option<&mut Tube> {
        Some(self)
    }
}

/// The next hop to that host: known, or to be resolved.
fn hop(tube: &mut Tube, port: usize, host: u8, prefix: &str) -> NextHopId {
    if HOSTS.contains(&host) {
        return tube.routes.known(port, host, MTUS[port], prefix.contains(':'));
    }
    let net = if prefix.contains(':') { format!("2001:db8:{port}::") } else { format!("10.0.{port}.") };
    let gateway = format!("{net}{host}").parse().expect("an address");
    tube.routes.action(Action::Resolve, port, Some(gateway))
}

/// How many errors are sent at least where `burst` may be sent at once. Linux reckons in ticks of its
/// clock, and for each receiver from when it was last sent one.
pub fn least(router: &dyn Router, burst: u64) -> u64 {
    if router.place() == Place::Kernel { 1 } else { burst }
}

/// Says that a test is for the worker between pipes alone, and why.
pub fn alone(why: &'static str) {
    let _ = why;
}

/// The router between pipes.
pub fn router() -> Tube {
    let spec = |k: usize| {
        let addresses = addresses(k);
        let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
        PortSpec::new(&addresses).mtu(MTUS[k])
    };
    let mut tube = Tube::new(&[0, 1, 2, 3].map(spec), 1);
    for (prefix, port) in NETWORKS {
        let hop = tube.routes.known(*port, 9, MTUS[*port], prefix.contains(':'));
        tube.routes.add(prefix, hop);
    }
    for (port, mtu) in MTUS.into_iter().enumerate() {
        for host in HOSTS {
            let hop = tube.routes.known(port, host, mtu, false);
            tube.routes.add(&format!("10.0.{port}.{host}/32"), hop);
        }
    }
    tube.publish();
    tube
}

/// Runs a test on the router in every place, or says where it could not.
#[track_caller]
pub fn everywhere(test: impl Fn(&mut dyn Router)) {
    test(&mut router());
    #[cfg(target_os = "linux")]
    on_real_interfaces(&[Place::Xdp, Place::Kernel].map(|place| (crate::plan::Plan::Plain, place)), test);
}

/// Runs a test on these routers, or says what is missing for that.
#[cfg(target_os = "linux")]
pub fn on_real_interfaces(routers: &[(crate::plan::Plan, Place)], test: impl Fn(&mut dyn Router)) {
    if let Some(missing) = crate::wires::missing() {
        let required = std::env::var_os("SWEEPD_REQUIRE_LAB").is_some_and(|value| value == "1");
        assert!(!required, "SWEEPD_REQUIRE_LAB=1, but real interfaces need {missing}");
        eprintln!("skipped: the rules over xdp and on Linux's own forwarding need {missing}");
        return;
    }
    let _pinned = crate::namespace::Pinned::new();
    for &(plan, place) in routers {
        let mut wires = crate::wires::of(plan, place);
        let result = catch_unwind(AssertUnwindSafe(|| {
            test(&mut *wires);
            wires.finish();
        }));
        if let Err(panic) = result {
            eprintln!("the router was {place:?}; {}", wires.log());
            wires.undo();
            std::panic::resume_unwind(panic);
        }
    }
}

/// Holds everywhere but where the difference is known; there it must not hold.
#[track_caller]
pub fn but(router: &mut dyn Router, difference: &Difference, test: impl FnOnce(&mut dyn Router)) {
    if router.place() != difference.place {
        return test(router);
    }
    let result = catch_unwind(AssertUnwindSafe(|| test(router)));
    assert!(result.is_err(), "no difference any more, take it off the list: {}", difference.what);
}

/// An IP packet in a frame from host 9 of `port` to the router.
pub fn to_router(port: usize, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    ethernet(port_mac(port), host_mac(port, 9), ethertype, packet)
}

/// An IP packet in a frame from the router to host 9 of `port`.
pub fn from_router(port: usize, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    ethernet(host_mac(port, 9), port_mac(port), ethertype, packet)
}

/// Passes a packet to the router in at port 0.
pub fn pass(router: &mut dyn Router, packet: &[u8]) -> Vec<(usize, Vec<u8>)> {
    router.send(0, &[to_router(0, packet)])
}

/// What the router says to this packet, in at port 0: the type, the code and all of its message,
/// whose checksums are right and which goes back to host 9 of port 0. `None` when it says nothing.
pub fn answer(router: &mut dyn Router, packet: &[u8]) -> Option<Answer> {
    let mut out = pass(router, packet);
    assert!(out.len() <= 1, "{out:?}");
    out.pop().map(|(port, frame)| {
        assert_eq!(port, 0);
        assert_eq!(frame[..12], from_router(0, &frame[14..])[..12]);
        Answer::of(&frame[14..])
    })
}

/// An ICMP error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Its IP header.
    pub header: Vec<u8>,
    pub kind: u8,
    pub code: u8,
    /// Bytes 4 to 7: an MTU or a pointer.
    pub rest: u32,
    pub quoted: Vec<u8>,
}

impl Answer {
    /// The ICMP message in this packet, whose checksums and lengths must be right.
    pub fn of(packet: &[u8]) -> Self {
        let (header, message) = packet.split_at(if packet[0] >> 4 == 4 { 20 } else { 40 });
        if header[0] == 0x45 {
            assert_eq!((checksum(header), checksum(message), header[9]), (0, 0, 1));
            assert_eq!(usize::from(u16::from_be_bytes([header[2], header[3]])), packet.len());
        } else {
            assert_eq!((header[0] >> 4, header[6]), (6, 58));
            assert_eq!(usize::from(u16::from_be_bytes([header[4], header[5]])), message.len());
            let address = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).unwrap().into();
            assert_eq!(pseudo6(address(8), address(24), 58, message), 0);
        }
        Self {
            header: header.to_vec(),
            kind: message[0],
            code: message[1],
            rest: u32::from_be_bytes(message[4..8].try_into().unwrap()),
            quoted: message[8..].to_vec(),
        }
    }

    pub fn says(&self) -> (u8, u8) {
        (self.kind, self.code)
    }

    /// The address that it comes from, in network order.
    pub fn source(&self) -> &[u8] {
        if self.header[0] >> 4 == 4 { &self.header[12..16] } else { &self.header[8..24] }
    }
}

/// The frame ends with this verdict and nothing leaves.
pub fn dies(router: &mut dyn Router, port: usize, frame: &[u8], verdict: Verdict) {
    let before = router.counted(verdict);
    let out = router.send(port, &[frame.to_vec()]);
    assert_eq!(out, [], "{verdict:?} of {frame:x?}");
    assert_eq!(router.counted(verdict), before.map(|n| n + 1), "{verdict:?} of {frame:x?}");
    router.expect(verdict);
}

/// A packet that needs nothing but forwarding, from NEAR to FAR.
pub fn plain() -> Ip4 {
    Ip4::udp(NEAR, FAR, 10)
}
