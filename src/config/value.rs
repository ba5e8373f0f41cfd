//! Single values: addresses, prefixes, durations, port numbers. Each function takes a TOML value
//! and gives what it means, or a line that says what is wrong and what to write instead.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    str::FromStr,
    time::Duration,
};

use ipnet::IpNet;
use toml::de::DeValue;

/// An Ethernet address, in the order of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddr {
    type Err = ();

    /// Reads six pairs of hexadecimal digits, with colons or dashes between them.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut mac = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut mac {
            let part = parts.next().ok_or(())?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| ())?;
        }
        if parts.next().is_some() { Err(()) } else { Ok(Self(mac)) }
    }
}

/// TCP or UDP ports, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortRange {
    /// The lowest.
    pub first: u16,
    /// The highest; not below `first`.
    pub last: u16,
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// Any string.
pub(super) fn text<'v>(value: &'v DeValue<'_>) -> Result<&'v str, String> {
    match value {
        DeValue::String(text) => Ok(text),
        other => Err(format!("found {}; write a string, \"...\"", other.type_str())),
    }
}

/// `true` or `false`.
pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("found {}; write true or false", value.type_str()))
}

/// A whole number in `range`.
pub(super) fn integer(value: &DeValue<'_>, range: RangeInclusive<i64>) -> Result<i64, String> {
    let hint = format!("write a whole number from {} to {}", range.start(), range.end());
    let DeValue::Integer(number) = value else {
        return Err(format!("found {}; {hint}", value.type_str()));
    };
    match i64::from_str_radix(number.as_str(), number.radix()) {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(format!("{number} is out of range; {hint}")),
    }
}

/// One of a few words.
pub(super) fn choice<T: Clone>(value: &DeValue<'_>, words: &[(&str, T)]) -> Result<T, String> {
    let word = text(value)?;
    if let Some((_, meaning)) = words.iter().find(|(name, _)| *name == word) {
        return Ok(meaning.clone());
    }
    let list: Vec<_> = words.iter().map(|(name, _)| format!("{name:?}")).collect();
    let (last, first) = list.split_last().ok_or("nothing can be chosen here")?;
    Err(match first {
        [] => format!("{word:?} is not known; write {last}"),
        _ => format!("{word:?} is not known; write {} or {last}", first.join(", ")),
    })
}

/// A word that names something: a port or a rule.
pub(super) fn name(value: &DeValue<'_>, longest: usize) -> Result<String, String> {
    let name = text(value)?;
    if is_name(name, longest) {
        return Ok(name.into());
    }
    Err(format!(
        "{name:?} cannot be a name; use 1 to {longest} letters, digits, \".\", \"_\" or \"-\", \
         a letter or digit first"
    ))
}

/// Whether `text` can name something.
pub(super) fn is_name(text: &str, longest: usize) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= longest
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// An IP address that a single host can have.
pub(super) fn host(value: &DeValue<'_>) -> Result<IpAddr, String> {
    let text = text(value)?;
    let address = parse_ip(text)?;
    one_host(address)?;
    Ok(address)
}

/// A prefix: an address and a length, with no bit set behind the length.
pub(super) fn prefix(value: &DeValue<'_>) -> Result<IpNet, String> {
    let net = parse_net(text(value)?)?;
    if net.addr() != net.network() {
        return Err(format!("{net} has host bits set; write {}", net.trunc()));
    }
    Ok(net)
}

/// A host's address together with the length of its network's prefix.
pub(super) fn interface_address(value: &DeValue<'_>) -> Result<IpNet, String> {
    let net = parse_net(text(value)?)?;
    one_host(net.addr())?;
    // RFC 3021 and 6164: in the shortest networks both addresses are hosts'.
    if let IpNet::V4(v4) = net
        && v4.prefix_len() < 31
        && (v4.addr() == v4.network() || v4.addr() == v4.broadcast())
    {
        let first = v4.hosts().next().map_or_else(String::new, |host| format!("{host}/{}", v4.prefix_len()));
        return Err(format!(
            "{net} is the network's own or its broadcast address; write a host's, as {first}"
        ));
    }
    Ok(net)
}

/// A MAC address that a single station can have.
pub(super) fn mac(value: &DeValue<'_>) -> Result<MacAddr, String> {
    let text = text(value)?;
    let mac: MacAddr = text
        .parse()
        .map_err(|()| format!("{text:?} is not a MAC address; write it as \"02:00:00:00:00:01\""))?;
    if mac.0[0] & 1 != 0 {
        return Err(format!("{mac} is a group's address; the first byte of a station's is even"));
    }
    if mac.0 == [0; 6] {
        return Err("all zero is no station's address; write the station's".into());
    }
    Ok(mac)
}

/// A duration: a number and a unit, once or several times: `90s`, `2h4m`.
pub(super) fn duration(value: &DeValue<'_>) -> Result<Duration, String> {
    let wrong = |text: &dyn fmt::Display| {
        format!("{text} is not a duration; write numbers with units (d, h, m, s), as \"2h4m\"")
    };
    if let DeValue::Integer(number) = value {
        return Err(format!("{number} has no unit; write \"{number}s\" for seconds"));
    }
    let text = text(value)?;
    let wrong = || wrong(&format_args!("{text:?}"));
    let mut rest = text;
    let mut seconds = 0_u64;
    let mut smallest = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        let unit = match rest.as_bytes()[digits] {
            b'd' => 86400,
            b'h' => 3600,
            b'm' => 60,
            b's' => 1,
            _ => return Err(wrong()),
        };
        if unit >= smallest {
            return Err(wrong());
        }
        smallest = unit;
        seconds = number.checked_mul(unit).and_then(|n| seconds.checked_add(n)).ok_or_else(wrong)?;
        rest = &rest[digits + 1..];
    }
    if text.is_empty() {
        return Err(wrong());
    }
    if !(1..=86400 * 365).contains(&seconds) {
        return Err(format!("{text:?} is out of range; write a duration from \"1s\" to \"365d\""));
    }
    Ok(Duration::from_secs(seconds))
}

/// One TCP or UDP port.
pub(super) fn port(value: &DeValue<'_>) -> Result<u16, String> {
    let number = integer(value, 1..=65535)?;
    u16::try_from(number).map_err(|e| e.to_string())
}

/// One TCP or UDP port as a number, or several as `"8000-8099"`.
pub(super) fn ports(value: &DeValue<'_>) -> Result<PortRange, String> {
    if let DeValue::Integer(_) = value {
        let one = port(value)?;
        return Ok(PortRange { first: one, last: one });
    }
    let text = text(value)?;
    let parse = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse().ok().filter(|&port: &u16| port > 0)).flatten()
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (parse(first.trim()), parse(last.trim())) {
        (Some(first), Some(last)) if first > last => {
            Err(format!("{text:?} runs backwards; write \"{last}-{first}\""))
        }
        (Some(first), Some(last)) => Ok(PortRange { first, last }),
        _ => Err(format!(
            "{text:?} is not a port or a range of ports; write a number from 1 to 65535, or \"1024-65535\""
        )),
    }
}

/// An IP address and a port, as `127.0.0.1:9188` or `[::1]:9188`.
pub(super) fn socket_address(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    let text = text(value)?;
    let hint = "write an address and a port, as \"127.0.0.1:9188\" or \"[::1]:9188\"";
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() == 0 => Err(format!("{text:?} has port 0; {hint}")),
        Ok(address) => Ok(address),
        Err(_) => Err(format!("{text:?} is not an address with a port; {hint}")),
    }
}

/// Reads an IP address; knows the usual slips.
fn parse_ip(text: &str) -> Result<IpAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    Err(match (text.split_once('%'), text.split_once('/')) {
        (Some((address, zone)), _) if address.parse::<IpAddr>().is_ok() => {
            format!("{text:?} has a zone; write {address:?} and port = {zone:?}")
        }
        (_, Some((address, _))) if address.parse::<IpAddr>().is_ok() => {
            format!("{text:?} is a prefix; write {address:?}, without the length")
        }
        _ => format!("{text:?} is not an IP address; write one as \"203.0.113.1\" or \"2001:db8::1\""),
    })
}

/// Reads an address with a prefix length.
fn parse_net(text: &str) -> Result<IpNet, String> {
    if let Ok(net) = text.parse() {
        return Ok(net);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        let all = if address.is_ipv4() { 32 } else { 128 };
        return Err(format!("{text:?} has no prefix length; write \"{text}/{all}\" for one address"));
    }
    if let Some((address, length)) = text.split_once('/')
        && let Ok(address) = address.parse::<IpAddr>()
    {
        let most = if address.is_ipv4() { 32 } else { 128 };
        return Err(format!("{length:?} is not a prefix length of {address}; write 0 to {most}"));
    }
    if text == "default" {
        return Err("\"default\" is of no family; write \"0.0.0.0/0\" or \"::/0\"".into());
    }
    Err(format!("{text:?} is not a prefix; write one as \"10.0.0.0/8\" or \"2001:db8::/32\""))
}

/// Refuses addresses that no single host can have.
fn one_host(address: IpAddr) -> Result<(), String> {
    let why = match address {
        a if a.is_unspecified() => "the unspecified address",
        a if a.is_multicast() => "a multicast address",
        a if a.is_loopback() => "a loopback address",
        IpAddr::V4(a) if a.is_broadcast() => "the broadcast address",
        IpAddr::V4(a) if a.octets()[0] >= 240 || a.octets()[0] == 0 => "a reserved address",
        IpAddr::V6(a) if a.to_ipv4_mapped().is_some() => "an IPv4 address in IPv6 clothes",
        _ => return Ok(()),
    };
    Err(format!("{address} is {why}; write a single host's"))
}
