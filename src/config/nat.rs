//! `[[masquerade]]`, `[[forward_port]]` and `[[one_to_one]]`: many hosts behind one address, and the
//! ways back in.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net};
use toml::de::DeValue;

use super::{
    acl::{TCP, UDP},
    port::Ports,
    problem::Problems,
    reader::{Placed, Reader, values},
    support::{Feature, Uses},
    value::{self, PortRange},
};
use crate::tables::masquerade::Log;

/// `[[masquerade]]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Masquerade {
    /// The port that the packets leave by.
    pub out: String,
    /// The hosts behind it; empty: all.
    pub from: Vec<Ipv4Net>,
    /// The addresses in front; empty: the out port's.
    pub to: Vec<Ipv4Addr>,
    /// The ports that may be given out; `None`: 1024 up to the host's ephemeral range.
    pub ports: Option<PortRange>,
    /// Whether to answer ARP for the addresses in front.
    pub announce: bool,
    /// How long a UDP mapping outlives its last packet.
    pub udp_timeout: Duration,
    /// How long an established TCP connection outlives its last packet.
    pub tcp_timeout: Duration,
    /// How long a TCP connection that is beginning, ending or broken off outlives its last packet.
    pub tcp_transitory_timeout: Duration,
    /// How long an ICMP query's mapping outlives its last packet.
    pub icmp_timeout: Duration,
    /// Whether anybody outside may use a mapping, and not only those that the inside has talked to.
    pub open: bool,
    /// Whether packets from outside keep a flow alive as well.
    pub inbound_refresh: bool,
    /// Most flows of one host inside; none: no limit.
    pub quota: Option<u32>,
    /// What of its mappings is logged.
    pub log: Log,
}

/// `[[one_to_one]]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OneToOne {
    /// The port towards the world.
    pub out: String,
    /// The host.
    pub inside: Ipv4Addr,
    /// Its address outside.
    pub outside: Ipv4Addr,
    /// Whether to answer ARP for it.
    pub announce: bool,
}

/// `[[forward_port]]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForwardPort {
    /// The port that the packets come in by.
    pub in_port: String,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The destination port on the masquerade address.
    pub port: u16,
    /// The server behind it.
    pub to: SocketAddrV4,
}

/// A protocol with ports, by IANA's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Protocol {
    /// TCP
    Tcp = TCP,
    /// UDP
    Udp = UDP,
}

/// Reads one `[[masquerade]]` into `list`.
pub(super) fn read_masquerade(
    section: &Reader<'_>,
    ports: &Ports,
    problems: &mut Problems<'_>,
    uses: &mut Uses,
    list: &mut Vec<Masquerade>,
) {
    uses.note(problems, Feature::Masquerade, section.at, "masquerade".into());
    let out =
        section.require(problems, "out", "out = \"...\", the port towards the world", |v| ports.reference(v));
    let from = values(section.one_or_list(problems, "from", |v| match value::prefix(v)? {
        IpNet::V4(net) => Ok(net),
        IpNet::V6(net) => Err(format!("{net} is IPv6, which is not masqueraded; remove it")),
    }));
    let to = values(section.one_or_list(problems, "to", |v| match value::host(v)? {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(address) => Err(format!("{address} is IPv6, which is not masqueraded; remove it")),
    }));
    let pool = section.read(problems, "ports", value::ports);
    // RFC 4787 REQ-3 keeps the two halves of the port numbers apart.
    if let Some(pool) = &pool
        && pool.value.first < 1024
    {
        let message = "ports below 1024 are the host's services'; begin at 1024";
        problems.error(pool.at, section.path("ports"), message);
    }
    let announce = section.read(problems, "announce", value::boolean).is_some_and(|announce| announce.value);
    if announce && to.is_empty() {
        let message = "the out port's own address is the host's to answer for; name the addresses in `to`";
        problems.error(section.at, section.path("announce"), message);
    }
    let words = [("address-and-port", false), ("endpoint-independent", true)];
    let open =
        section.read(problems, "filtering", |v| value::choice(v, &words)).is_some_and(|open| open.value);
    let inbound_refresh =
        section.read(problems, "inbound_refresh", value::boolean).is_some_and(|on| on.value);
    let quota = section.read(problems, "quota", |v| value::integer(v, 1..=8_000_000));
    let log = section.read(problems, "log", logged).map_or(Log::Nothing, |log| log.value);
    let minute = |n: u64| Duration::from_secs(60 * n);
    let udp_timeout =
        timeout(section, problems, "udp_timeout", minute(5), (minute(2), "2m", "RFC 4787 REQ-5"));
    let tcp_timeout =
        timeout(section, problems, "tcp_timeout", minute(124), (minute(124), "2h4m", "RFC 5382 REQ-5"));
    let tcp_transitory_timeout =
        timeout(section, problems, "tcp_transitory_timeout", minute(4), (minute(4), "4m", "RFC 5382 REQ-5"));
    let icmp_timeout =
        timeout(section, problems, "icmp_timeout", minute(1), (minute(1), "60s", "RFC 5508 REQ-2"));
    let Some(out) = out else { return };
    list.push(Masquerade {
        out: out.value,
        from,
        to,
        ports: pool.map(|pool| pool.value),
        announce,
        udp_timeout,
        tcp_timeout,
        tcp_transitory_timeout,
        icmp_timeout,
        open,
        inbound_refresh,
        quota: quota.and_then(|quota| u32::try_from(quota.value).ok()),
        log,
    });
}

/// What is logged: a word, or `true` for each mapping.
fn logged(value: &DeValue<'_>) -> Result<Log, String> {
    match value {
        DeValue::Boolean(on) => Ok(if *on { Log::Mappings } else { Log::Nothing }),
        DeValue::String(_) => value::choice(value, &[("mappings", Log::Mappings), ("blocks", Log::Blocks)]),
        other => Err(format!("found {}; write \"mappings\", \"blocks\" or false", other.type_str())),
    }
}

/// Reads a timeout, and warns when it is shorter than the RFC wants.
fn timeout(
    section: &Reader<'_>,
    problems: &mut Problems<'_>,
    key: &str,
    default: Duration,
    (least, text, source): (Duration, &str, &str),
) -> Duration {
    let Some(Placed { at, value }) = section.read(problems, key, value::duration) else { return default };
    // Half of what the loop's clock can tell apart.
    let longest = Duration::from_secs(20 * 24 * 3600);
    if value > longest {
        problems.error(at, section.path(key), "longer than 20d; write less");
        return default;
    }
    if value < least {
        let message = format!("shorter than {text}, which {source} asks for; connections may break");
        problems.warn(at, section.path(key), message);
    }
    value
}

/// Reads one `[[forward_port]]` into `list`.
pub(super) fn read_forward_port(
    section: &Reader<'_>,
    ports: &Ports,
    problems: &mut Problems<'_>,
    list: &mut Vec<Placed<ForwardPort>>,
) {
    let in_port =
        section.require(problems, "in", "in = \"...\", the port towards the world", |v| ports.reference(v));
    let words = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];
    let protocol =
        section.require(problems, "protocol", "protocol = \"tcp\" or \"udp\"", |v| value::choice(v, &words));
    let port = section.require(problems, "port", "port = 443", value::port);
    let to = section.require(problems, "to", "to = \"10.0.0.5:8443\"", server);
    let (Some(in_port), Some(protocol), Some(port), Some(to)) = (in_port, protocol, port, to) else { return };
    let forward =
        ForwardPort { in_port: in_port.value, protocol: protocol.value, port: port.value, to: to.value };
    let same = |other: &&Placed<ForwardPort>| {
        let other = &other.value;
        (&other.in_port, other.protocol, other.port) == (&forward.in_port, forward.protocol, forward.port)
    };
    if let Some(first) = list.iter().find(same) {
        let line = problems.line(first.at);
        let message = format!("{} is forwarded on line {line} already; remove one", forward.port);
        problems.error(port.at, section.path("port"), message);
    }
    list.push(Placed { at: in_port.at, value: forward });
}

/// Reads one `[[one_to_one]]` into `list`.
pub(super) fn read_one_to_one(
    section: &Reader<'_>,
    ports: &Ports,
    problems: &mut Problems<'_>,
    list: &mut Vec<OneToOne>,
) {
    let out =
        section.require(problems, "out", "out = \"...\", the port towards the world", |v| ports.reference(v));
    let inside = section.require(problems, "inside", "inside = \"10.0.0.7\"", host4);
    let outside = section.require(problems, "outside", "outside = \"203.0.113.7\"", host4);
    let announce = section.read(problems, "announce", value::boolean).is_some_and(|announce| announce.value);
    let (Some(out), Some(inside), Some(outside)) = (out, inside, outside) else { return };
    for (key, placed, taken) in [
        ("inside", &inside, list.iter().any(|other| other.inside == inside.value && other.out == out.value)),
        ("outside", &outside, list.iter().any(|other| other.outside == outside.value)),
    ] {
        if taken {
            let message = format!("{} has a [[one_to_one]] already; remove one", placed.value);
            problems.error(placed.at, section.path(key), message);
        }
    }
    list.push(OneToOne { out: out.value, inside: inside.value, outside: outside.value, announce });
}

/// An IPv4 address.
fn host4(value: &DeValue<'_>) -> Result<Ipv4Addr, String> {
    match value::host(value)? {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(address) => Err(format!("{address} is IPv6, which is not translated; write an IPv4 one")),
    }
}

/// The address and the port of a server.
fn server(value: &DeValue<'_>) -> Result<SocketAddrV4, String> {
    match value::socket_address(value) {
        Ok(SocketAddr::V4(address)) => Ok(address),
        Ok(SocketAddr::V6(address)) => {
            Err(format!("{address} is IPv6, which is not masqueraded; write an IPv4 one"))
        }
        Err(message) => Err(message.replace("127.0.0.1:9188\" or \"[::1]:9188", "10.0.0.5:8443")),
    }
}

/// Reports forwarded ports without an address in front of them.
pub(super) fn refuse_bare_forwards(
    forwards: &[Placed<ForwardPort>],
    masquerades: &[Masquerade],
    problems: &mut Problems<'_>,
) {
    for forward in forwards {
        let port = &forward.value.in_port;
        if !masquerades.iter().any(|masquerade| masquerade.out == *port) {
            let message =
                format!("nothing is masqueraded on {port:?}; add a [[masquerade]] with out = {port:?}");
            problems.error(forward.at, "forward_port.in", message);
        }
    }
}
