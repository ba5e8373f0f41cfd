//! The generator's frames: built once, checked when they come back.

use std::net::IpAddr;

use super::spec::GenSpec;
use crate::prefetch;

const ETHERNET: usize = 14;
const UDP: usize = 8;

/// Where the part begins that differs from flow to flow, and its length: in IPv4 from the header
/// checksum through both addresses to the UDP checksum, in IPv6 from the source address on.
const PATCH4: (usize, usize) = (ETHERNET + 10, 18);
const PATCH6: (usize, usize) = (ETHERNET + 8, 40);

/// All frames of some flows: what they have in common once, what differs per flow.
#[derive(Debug)]
pub(super) struct Frames {
    common: Vec<u8>,
    flows: Flows,
}

#[derive(Debug)]
enum Flows {
    V4(Vec<[u8; PATCH4.1]>),
    V6(Vec<[u8; PATCH6.1]>),
}

impl Frames {
    /// The frames of flows `first`, `first + step`, … of the specification.
    pub fn build(spec: &GenSpec, first: u32, step: u32) -> Self {
        let numbers = (first..spec.flows).step_by(step.max(1) as usize);
        let flows = if spec.is_ipv6() {
            Flows::V6(numbers.map(|n| patch(&frame(spec, n), PATCH6.0)).collect())
        } else {
            Flows::V4(numbers.map(|n| patch(&frame(spec, n), PATCH4.0)).collect())
        };
        Self { common: frame(spec, first), flows }
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        match &self.flows {
            Flows::V4(flows) => flows.len(),
            Flows::V6(flows) => flows.len(),
        }
    }

    /// Bytes of every frame.
    pub fn size(&self) -> usize {
        self.common.len()
    }

    /// Brings what differs in the flow at `index` closer.
    #[inline(always)]
    pub fn prefetch(&self, index: usize) {
        match &self.flows {
            Flows::V4(flows) => prefetch(flows.as_ptr().wrapping_add(index)),
            Flows::V6(flows) => prefetch(flows.as_ptr().wrapping_add(index)),
        }
    }

    /// Writes the frame of the flow at `index` into `to`, which is as long as a frame.
    #[inline(always)]
    pub fn write(&self, index: usize, to: &mut [u8]) {
        // A copy of known length is a few vector moves; of unknown length it is a call.
        match (to.first_chunk_mut::<60>(), self.common.first_chunk::<60>()) {
            (Some(to), Some(common)) if self.common.len() == 60 => *to = *common,
            _ => to.copy_from_slice(&self.common),
        }
        match &self.flows {
            Flows::V4(flows) => to[PATCH4.0..][..PATCH4.1].copy_from_slice(&flows[index]),
            Flows::V6(flows) => to[PATCH6.0..][..PATCH6.1].copy_from_slice(&flows[index]),
        }
    }
}

fn patch<const N: usize>(frame: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&frame[at..at + N]);
    bytes
}

/// A well mixed function of its input (the finaliser of splitmix64).
pub(super) fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// The whole frame of flow `n`: Ethernet, IP, UDP, and a payload that counts up.
fn frame(spec: &GenSpec, n: u32) -> Vec<u8> {
    // Sources differ in the address as long as there are any, then in the port.
    let hosts = spec.src.hosts();
    let source = spec.src.host(n.into());
    let port = 1024 + (u128::from(n) / hosts) as u16;
    let spread = mix(spec.seed ^ (u64::from(n) << 32));
    let destination = spec.dst.host((u128::from(mix(spread)) << 64) | u128::from(spread));

    let mut bytes = Vec::with_capacity(spec.size as usize);
    bytes.extend(spec.dmac);
    bytes.extend(spec.smac);
    let headers = spec.headers() as usize;
    let udp_len = spec.size as u16 - (headers - UDP) as u16;
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            bytes.extend([0x08, 0x00, 0x45, 0]);
            bytes.extend((udp_len + 20).to_be_bytes());
            bytes.extend([0, 0, 0, 0, spec.ttl, 17, 0, 0]);
            bytes.extend(source.octets());
            bytes.extend(destination.octets());
            let sum = !fold(sum(&bytes[ETHERNET..]));
            bytes[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
        }
        (source, destination) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend(udp_len.to_be_bytes());
            bytes.extend([17, spec.ttl]);
            for address in [source, destination] {
                match address {
                    IpAddr::V4(a) => bytes.extend(a.to_ipv6_mapped().octets()),
                    IpAddr::V6(a) => bytes.extend(a.octets()),
                }
            }
        }
    }
    bytes.extend(port.to_be_bytes());
    bytes.extend(spec.port.to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend((0..spec.size as usize - headers).map(|n| n as u8));
    let addresses = if spec.is_ipv6() { ETHERNET + 8 } else { ETHERNET + 12 };
    let all = sum(&bytes[addresses..]) + u64::from(udp_len) + 17;
    // RFC 768: a sum of 0 is sent as 0xffff.
    let udp_sum = match !fold(all) {
        0 => 0xffff,
        n => n,
    };
    bytes[headers - 2..headers].copy_from_slice(&udp_sum.to_be_bytes());
    bytes
}

/// Sum of the 16-bit words of `bytes`, an odd last byte as the high one.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |b| u64::from(*b) << 8);
    words.fold(odd, |sum, w| sum + u64::from(u16::from_be_bytes([w[0], w[1]])))
}

/// Folds the carries in (RFC 1071).
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// What the sink found in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// The generator's traffic, as a router should have sent it on.
    Good,
    /// Something else: ARP, an ICMP error.
    Foreign,
    /// Lengths that do not agree.
    Malformed,
    /// A wrong IPv4 header checksum or UDP checksum.
    Checksum,
    /// The generator's traffic, but its TTL or hop limit is not one less than sent.
    Ttl,
}

/// Looks at a frame as it leaves a router one hop after a generator with this specification.
pub(super) fn check(spec: &GenSpec, frame: &[u8]) -> Found {
    let Some((header, mut packet)) = frame.split_first_chunk::<ETHERNET>() else { return Found::Malformed };
    let mut kind = [header[12], header[13]];
    if kind == [0x81, 0x00] {
        let Some((tag, rest)) = packet.split_first_chunk::<4>() else { return Found::Malformed };
        (kind, packet) = ([tag[2], tag[3]], rest);
    }
    match kind {
        [0x08, 0x00] => check4(spec, packet),
        [0x86, 0xdd] => check6(spec, packet),
        _ => Found::Foreign,
    }
}

fn check4(spec: &GenSpec, packet: &[u8]) -> Found {
    let Some(header) = packet.first_chunk::<20>() else { return Found::Malformed };
    let header_len = usize::from(header[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] >> 4 != 4 || header_len < 20 || total < header_len || packet.len() < total {
        return Found::Malformed;
    }
    if fold(sum(&packet[..header_len])) != 0xffff {
        return Found::Checksum;
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    if header[9] != 17 || fragment {
        return Found::Foreign;
    }
    check_udp(spec, header[8], &header[12..20], &packet[header_len..total], true)
}

fn check6(spec: &GenSpec, packet: &[u8]) -> Found {
    let Some((header, payload)) = packet.split_first_chunk::<40>() else { return Found::Malformed };
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[0] >> 4 != 6 || payload.len() < len {
        return Found::Malformed;
    }
    if header[6] != 17 {
        return Found::Foreign;
    }
    check_udp(spec, header[7], &header[8..40], &payload[..len], false)
}

fn check_udp(spec: &GenSpec, ttl: u8, addresses: &[u8], udp: &[u8], zero_is_none: bool) -> Found {
    let Some(header) = udp.first_chunk::<UDP>() else { return Found::Malformed };
    if usize::from(u16::from_be_bytes([header[4], header[5]])) != udp.len() {
        return Found::Malformed;
    }
    // RFC 768: in IPv4 a checksum of 0 is none.
    let none = zero_is_none && header[6..8] == [0, 0];
    if !none && fold(sum(addresses) + sum(udp) + udp.len() as u64 + 17) != 0xffff {
        return Found::Checksum;
    }
    if header[2..4] != spec.port.to_be_bytes() {
        return Found::Foreign;
    }
    if ttl != spec.ttl - 1 { Found::Ttl } else { Found::Good }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn all(text: &str) -> (GenSpec, Vec<Vec<u8>>) {
        let spec: GenSpec = text.parse().unwrap();
        let frames = Frames::build(&spec, 0, 1);
        let written = (0..frames.len())
            .map(|n| {
                let mut bytes = vec![0xaa; frames.size()];
                frames.write(n, &mut bytes);
                bytes
            })
            .collect();
        (spec, written)
    }

    #[test]
    fn every_frame_is_whole_and_every_flow_its_own() {
        for text in [
            "flows=3000",
            "flows=3000,size=42,src=198.18.0.0/30",
            "flows=3000,size=61,dst=192.0.2.1",
            "flows=3000,family=6",
            "flows=500,family=6,size=1514,src=2001:2::/127",
            "flows=500,size=2048",
        ] {
            let (spec, frames) = all(text);
            // Not yet routed: as if the next hop's sink had sent them with one more.
            let sent = GenSpec { ttl: spec.ttl + 1, ..spec.clone() };
            let mut flows = HashSet::new();
            for (n, bytes) in frames.iter().enumerate() {
                assert_eq!(bytes, &frame(&spec, n as u32), "{text}: the patch covers what differs");
                assert_eq!(bytes.len(), spec.size as usize);
                assert_eq!(check(&sent, bytes), Found::Good, "{text}: flow {n}");
                assert_eq!(check(&spec, bytes), Found::Ttl);
                let ip = if spec.is_ipv6() { 22..58 } else { 26..38 };
                assert!(flows.insert(bytes[ip].to_vec()), "{text}: flow {n} is not new");
            }
        }
    }

    #[test]
    fn destinations_are_spread_and_depend_on_the_seed() {
        let destinations = |text| all(text).1.iter().map(|f| f[30..34].to_vec()).collect::<HashSet<_>>();
        let one = destinations("flows=1000,seed=1");
        assert!(one.len() > 990);
        assert!(one.intersection(&destinations("flows=1000,seed=2")).count() < 10);
        assert_eq!(one, destinations("flows=1000,seed=1"));
    }

    #[test]
    fn flows_shared_out_among_rings_are_all_there_once() {
        let spec: GenSpec = "flows=10".parse().unwrap();
        let parts: Vec<_> = (0..3).map(|k| Frames::build(&spec, k, 3)).collect();
        assert_eq!(parts.iter().map(Frames::len).collect::<Vec<_>>(), [4, 3, 3]);
        let mut bytes = vec![0; 60];
        parts[1].write(2, &mut bytes);
        assert_eq!(bytes, frame(&spec, 7));
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        for text in ["flows=1,size=70", "flows=1,size=90,family=6"] {
            let (spec, frames) = all(text);
            let sent = GenSpec { ttl: spec.ttl + 1, ..spec.clone() };
            for at in ETHERNET..frames[0].len() {
                let mut bytes = frames[0].clone();
                bytes[at] ^= 0x10;
                // IPv6 has no checksum over traffic class and flow label.
                let unprotected = spec.is_ipv6() && (ETHERNET + 1..ETHERNET + 4).contains(&at);
                let good = check(&sent, &bytes) == Found::Good;
                assert_eq!(good, unprotected, "{text}: byte {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn checking_random_bytes_never_panics(
            mut bytes in prop::collection::vec(any::<u8>(), 0..120),
            kind in prop::sample::select(vec![[8u8, 0], [0x86, 0xdd], [0x81, 0], [0, 0]]),
        ) {
            if bytes.len() >= 14 {
                bytes[12..14].copy_from_slice(&kind);
            }
            check(&GenSpec::default(), &bytes);
        }
    }
}
