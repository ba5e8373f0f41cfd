//! The options of `gen:`, as they stand in a device's name.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use crate::arena::BUF_SIZE;

/// More flows than fit anybody's purpose; keeps the memory for them in bounds.
const FLOWS_MAX: u64 = 1 << 24;
/// Source ports of a flow: 1024 and up.
const PORTS: u64 = 65536 - 1024;

/// What to generate, and what to check in the sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GenSpec {
    /// Number of different flows; each has its own source address and port, and a destination.
    pub flows: u32,
    /// Bytes of a frame without FCS: 60 is the shortest on an Ethernet.
    pub size: u32,
    /// Packets per second offered; `None`: as many as the ring takes.
    pub rate: Option<u64>,
    /// Ends after so many packets.
    pub count: Option<u64>,
    /// Destinations are spread over this prefix.
    pub dst: Prefix,
    /// Sources count up through this prefix.
    pub src: Prefix,
    /// The frames' destination: the MAC address of the port that receives them.
    pub dmac: [u8; 6],
    /// The frames' source.
    pub smac: [u8; 6],
    /// UDP destination port.
    pub port: u16,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Another seed, other destinations.
    pub seed: u64,
    /// Whether each packet's flow is drawn at random; otherwise each flow has its turn.
    pub random: bool,
    /// Whether the sink checks what it is sent.
    pub verify: bool,
    /// Number of ring pairs, where the name says so.
    pub rings: Option<u32>,
    /// Slots per ring, where the name says so.
    pub slots: Option<u32>,
}

impl Default for GenSpec {
    fn default() -> Self {
        Self {
            flows: 1000,
            size: 60,
            rate: None,
            count: None,
            dst: Prefix { address: Ipv4Addr::new(10, 0, 0, 0).into(), len: 8 },
            src: Prefix { address: Ipv4Addr::new(198, 18, 0, 0).into(), len: 15 },
            dmac: [2, 0, 0, 0, 0, 2],
            smac: [2, 0, 0, 0, 0, 1],
            port: 9,
            ttl: 64,
            seed: 1,
            random: false,
            verify: false,
            rings: None,
            slots: None,
        }
    }
}

/// An address prefix without host bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// The first address.
    pub address: IpAddr,
    /// Length in bits.
    pub len: u8,
}

impl Prefix {
    /// Bits of the host part.
    pub fn host_bits(&self) -> u32 {
        let bits = if self.address.is_ipv4() { 32 } else { 128 };
        bits - u32::from(self.len)
    }

    /// Number of addresses that a host can have: all but the first and the last, except in the
    /// smallest prefixes.
    pub fn hosts(&self) -> u128 {
        match self.host_bits() {
            n @ 0..=1 => 1 << n,
            128 => u128::MAX - 1,
            n => (1u128 << n) - 2,
        }
    }

    /// Host number `n` modulo their number.
    pub fn host(&self, n: u128) -> IpAddr {
        let n = n % self.hosts() + u128::from(self.host_bits() > 1);
        match self.address {
            IpAddr::V4(a) => Ipv4Addr::from(u32::from(a) | n as u32).into(),
            IpAddr::V6(a) => Ipv6Addr::from(u128::from(a) | n).into(),
        }
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no prefix: write ADDRESS/LENGTH, as 10.0.0.0/8");
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let len = len.unwrap_or(bits);
        if len > bits {
            return Err(wrong());
        }
        let first: IpAddr = match address {
            IpAddr::V4(a) => {
                Ipv4Addr::from(u32::from(a) & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)).into()
            }
            IpAddr::V6(a) => {
                Ipv6Addr::from(u128::from(a) & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0))
                    .into()
            }
        };
        if first != address {
            return Err(format!("{text} has host bits set: write {first}/{len}"));
        }
        Ok(Self { address, len })
    }
}

/// The names of the options, for errors.
const OPTIONS: &str =
    "flows, size, rate, count, family, dst, src, dmac, smac, port, ttl, seed, order, verify";

impl FromStr for GenSpec {
    type Err = String;

    /// Reads `flows=1000,size=60,…`; everything has a default.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut spec = Self::default();
        let (mut dst, mut src, mut size, mut family) = (None, None, None, None);
        for option in text.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let wrong = |what: &str| format!("{name}={value}: {what}");
            match name {
                "flows" => {
                    let n = number(value).filter(|n| (1..=FLOWS_MAX).contains(n));
                    spec.flows = n.ok_or_else(|| wrong("a number from 1 to 16777216"))? as u32;
                }
                "size" => size = Some(number(value).ok_or_else(|| wrong("a number of bytes"))?),
                "rate" => {
                    let n = number(value).filter(|n| *n > 0);
                    spec.rate = Some(n.ok_or_else(|| wrong("packets per second, as 14.88M"))?);
                }
                "count" => spec.count = Some(number(value).ok_or_else(|| wrong("a number of packets"))?),
                "family" => match value {
                    "4" => family = Some(4),
                    "6" => family = Some(6),
                    _ => return Err(wrong("4 or 6")),
                },
                "dst" => dst = Some(value.parse::<Prefix>()?),
                "src" => src = Some(value.parse::<Prefix>()?),
                "dmac" => {
                    spec.dmac = mac(value).ok_or_else(|| wrong("a MAC address, as 02:00:00:00:00:02"))?
                }
                "smac" => {
                    spec.smac = mac(value).ok_or_else(|| wrong("a MAC address, as 02:00:00:00:00:01"))?
                }
                "port" => spec.port = value.parse().map_err(|_| wrong("a UDP port"))?,
                "ttl" => {
                    let n = value.parse().ok().filter(|n| *n > 0);
                    spec.ttl = n.ok_or_else(|| wrong("a number from 1 to 255"))?;
                }
                "seed" => spec.seed = value.parse().map_err(|_| wrong("a number"))?,
                "order" => match value {
                    "turn" => spec.random = false,
                    "random" => spec.random = true,
                    _ => return Err(wrong("turn or random")),
                },
                "rings" => {
                    spec.rings = Some(count(value, 256).ok_or_else(|| wrong("a number from 1 to 256"))?)
                }
                "slots" => {
                    let n = count(value, 16384).filter(|n| *n > 1);
                    spec.slots = Some(n.ok_or_else(|| wrong("a number from 2 to 16384"))?);
                }
                "verify" if value.is_empty() => spec.verify = true,
                _ => return Err(format!("unknown option {option:?}; there are: {OPTIONS}")),
            }
        }
        spec.settle(dst, src, size, family)?;
        Ok(spec)
    }
}

impl GenSpec {
    /// Whether the packets are IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.dst.address.is_ipv6()
    }

    /// Bytes of the headers: Ethernet, IP, UDP.
    pub fn headers(&self) -> u32 {
        14 + if self.is_ipv6() { 40 } else { 20 } + 8
    }

    /// Settles what depends on each other.
    fn settle(
        &mut self,
        dst: Option<Prefix>,
        src: Option<Prefix>,
        size: Option<u64>,
        family: Option<u8>,
    ) -> Result<(), String> {
        let given = dst.or(src).map(|p| if p.address.is_ipv6() { 6 } else { 4 });
        if family.or(given) == Some(6) {
            // RFC 5180 gives 2001:2::/48 to benchmarks.
            self.src = Prefix { address: Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0).into(), len: 48 };
            self.dst = Prefix { address: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0).into(), len: 32 };
        }
        let six = self.is_ipv6();
        for (prefix, place) in [(dst, &mut self.dst), (src, &mut self.src)] {
            let Some(prefix) = prefix else { continue };
            if prefix.address.is_ipv6() != six {
                return Err(format!("{prefix} is not of the same family as the rest"));
            }
            *place = prefix;
        }
        let least = self.headers();
        self.size = match size {
            None => least.max(60),
            Some(n) if (u64::from(least)..=BUF_SIZE.into()).contains(&n) => n as u32,
            Some(n) => return Err(format!("size={n}: from {least} to {BUF_SIZE} bytes, without FCS")),
        };
        if u128::from(self.flows) > self.src.hosts().saturating_mul(PORTS.into()) {
            return Err(format!(
                "src={} has no room for {} flows: take a shorter prefix",
                self.src, self.flows
            ));
        }
        Ok(())
    }
}

fn count(text: &str, most: u32) -> Option<u32> {
    text.parse().ok().filter(|n| (1..=most).contains(n))
}

/// A whole number, with k, M or G for thousands, and then perhaps a fraction: `1.5M`.
fn number(text: &str) -> Option<u64> {
    let (digits, scale) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        b'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1u64),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty()
        || fraction.len() > 9
        || !(whole.bytes().chain(fraction.bytes())).all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let unit = 10u64.pow(fraction.len() as u32);
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    if (fraction * scale) % unit != 0 {
        return None;
    }
    whole.parse::<u64>().ok()?.checked_mul(scale)?.checked_add(fraction * scale / unit)
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|p| (1..=2).contains(&p.len()) && !p.starts_with('+'))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(text: &str) -> Result<GenSpec, String> {
        text.parse()
    }

    #[test]
    fn everything_has_a_default() {
        assert_eq!(spec("").unwrap(), GenSpec::default());
        assert_eq!(spec("family=4").unwrap(), GenSpec::default());
    }

    #[test]
    fn every_option_is_understood() {
        let s = spec(
            "flows=2M,size=1514,rate=14.88M,count=10,dst=192.0.2.0/24,src=198.18.0.0/16,dmac=02:00:00:00:00:0a,\
             smac=2:0:0:0:0:b,port=53,ttl=2,seed=7,order=random,rings=4,slots=512,verify",
        )
        .unwrap();
        assert_eq!((s.flows, s.size, s.rate, s.count), (2_000_000, 1514, Some(14_880_000), Some(10)));
        assert_eq!((s.dst.to_string(), s.src.to_string()), ("192.0.2.0/24".into(), "198.18.0.0/16".into()));
        assert_eq!((s.dmac[5], s.smac[5], s.port, s.ttl, s.seed), (10, 11, 53, 2, 7));
        assert_eq!((s.rings, s.slots), (Some(4), Some(512)));
        assert!(s.random && s.verify);
    }

    #[test]
    fn the_family_follows_the_addresses() {
        let s = spec("dst=2001:db8:1::/48").unwrap();
        assert!(s.is_ipv6() && s.src.to_string() == "2001:2::/48");
        assert_eq!(s.size, 62);
        assert!(spec("family=6").unwrap().is_ipv6());
        assert!(spec("family=4,dst=2001:db8::/32").is_err());
        assert!(spec("src=10.0.0.0/8,dst=2001:db8::/32").is_err());
    }

    #[test]
    fn wrong_options_say_what_is_right() {
        for (text, hint) in [
            ("flow=1", "there are: flows"),
            ("flows=0", "from 1"),
            ("flows=17M", "16777216"),
            ("size=41", "from 42 to 2048"),
            ("family=6,size=60", "from 62"),
            ("size=2049", "2048"),
            ("rate=0", "per second"),
            ("rate=1.0000000001k", "per second"),
            ("dst=10.0.0.1/8", "write 10.0.0.0/8"),
            ("dst=10.0.0.0/33", "ADDRESS/LENGTH"),
            ("dmac=1:2:3:4:5", "MAC"),
            ("ttl=0", "1 to 255"),
            ("order=up", "turn or random"),
            ("rings=0", "1 to 256"),
            ("slots=1", "2 to 16384"),
            ("verify=yes", "unknown option"),
            ("src=10.0.0.1/32,flows=70k", "shorter prefix"),
        ] {
            let e = spec(text).unwrap_err();
            assert!(e.contains(hint) && !e.contains('\n'), "{text}: {e}");
        }
    }

    #[test]
    fn numbers_take_thousands_and_fractions() {
        for (text, n) in
            [("0", 0), ("12", 12), ("1k", 1000), ("1.5M", 1_500_000), ("0.001k", 1), ("3G", 3_000_000_000)]
        {
            assert_eq!(number(text), Some(n), "{text}");
        }
        for text in
            ["", "k", "1.5", ".5k", "-1", "+1", "1 k", "99999999999999999999", "18446744073709551615G"]
        {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn hosts_are_neither_the_first_nor_the_last_address() {
        let p: Prefix = "192.0.2.0/30".parse().unwrap();
        assert_eq!(p.hosts(), 2);
        assert_eq!([0, 1, 2].map(|n| p.host(n).to_string()), ["192.0.2.1", "192.0.2.2", "192.0.2.1"]);
        let p: Prefix = "192.0.2.7".parse().unwrap();
        assert_eq!((p.hosts(), p.host(5).to_string().as_str()), (1, "192.0.2.7"));
        assert_eq!("::/0".parse::<Prefix>().unwrap().host(0).to_string(), "::1");
        assert_eq!("0.0.0.0/0".parse::<Prefix>().unwrap().host(u128::from(u32::MAX)).to_string(), "0.0.0.2");
    }

    proptest! {
        #[test]
        fn random_text_never_panics(text in "\\PC{0,60}") {
            let _ = spec(&text);
        }

        #[test]
        fn random_options_never_panic(
            options in prop::collection::vec(
                (
                    prop::sample::select(OPTIONS.split(", ").collect::<Vec<_>>()),
                    "[-+0-9a-zA-Z.:/]{0,20}|[0-9]{1,3}(\\.[0-9]{1,3}){3}/[0-9]{1,3}|[0-9a-f:]{2,20}/[0-9]{1,3}",
                ),
                0..6,
            ),
        ) {
            let text: Vec<_> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
            if let Ok(spec) = spec(&text.join(",")) {
                prop_assert!(spec.size >= spec.headers() && spec.size <= BUF_SIZE);
            }
        }
    }
}
