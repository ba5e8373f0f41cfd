//! A captured packet as one line: when, where in, where out, how it ended, how long, who to whom.

use std::{borrow::Cow, fmt::Write, net::IpAddr, time::Duration};

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use sweepd::wire::{
    arp, ethernet, icmp,
    ipv4::{self, ICMP, TCP, UDP},
    ipv6::{self, ICMP6},
    tcp, udp,
};

/// The line for a packet that came in by `port`, without its end.
pub fn line(packet: &EnhancedPacketBlock<'_>, port: &str) -> String {
    let comment = packet.options.iter().find_map(|option| match option {
        EnhancedPacketOption::Comment(comment) => Some(comment.as_ref()),
        _ => None,
    });
    let (verdict, out, held) = taken_apart(comment.unwrap_or_default());
    let mut line = time(packet.timestamp);
    let ways = format!("{port} > {out}");
    let _ = write!(line, "  {ways:<15} {verdict:<15} {:>5}  ", packet.original_len);
    let cut = packet.data.len() < packet.original_len as usize;
    line += &match ethernet::parse(&packet.data) {
        None if cut => "too little of it was copied".into(),
        _ => describe(&packet.data),
    };
    if let Some(held) = held {
        let _ = write!(line, " ({held})");
    }
    line
}

/// The verdict, the port that the packet left by, and how long it was held, from its comment.
fn taken_apart(comment: &str) -> (&str, &str, Option<&str>) {
    let (first, rest) = comment.split_once(", in ").unwrap_or((comment, ""));
    let out =
        rest.split_once(", out ").and_then(|(_, rest)| rest.split_once(": ")).map_or("-", |(out, _)| out);
    match first.split_once(" after ") {
        Some((verdict, held)) => (verdict, out, Some(held)),
        None => (first, out, None),
    }
}

/// The time of the day, in the machine's own time zone.
fn time(since: Duration) -> String {
    // A clock in the far future shows some time or other.
    let seconds = libc::time_t::try_from(since.as_secs()).unwrap_or(0);
    // SAFETY: plain data for which all zero is a value; the function fills it, and keeps nothing.
    let local = unsafe {
        let mut local: libc::tm = std::mem::zeroed();
        libc::localtime_r(&seconds, &mut local);
        local
    };
    let micros = since.subsec_micros();
    format!("{:02}:{:02}:{:02}.{micros:06}", local.tm_hour, local.tm_min, local.tm_sec)
}

/// Who to whom, and what, as far as the bytes go.
fn describe(frame: &[u8]) -> String {
    let (frame, tags) = untagged(frame);
    let Some((header, packet)) = ethernet::parse(&frame) else { return "too short for a header".into() };
    let text = match header.ethertype.get() {
        ethernet::IPV4 => ip4(packet),
        ethernet::IPV6 => ip6(packet),
        ethernet::ARP => arp(packet),
        _ => None,
    };
    let text = text.unwrap_or_else(|| {
        let [from, to] = [header.source, header.destination].map(mac);
        format!("{from} > {to} type {:04x}", header.ethertype.get())
    });
    tags + &text
}

/// The frame without its tags, and what they say.
fn untagged(frame: &[u8]) -> (Cow<'_, [u8]>, String) {
    let (mut rest, mut tags) = (frame.get(12..).unwrap_or_default(), String::new());
    while let [a, b, c, d, next @ ..] = rest
        && [ethernet::VLAN, ethernet::SERVICE_VLAN].contains(&u16::from_be_bytes([*a, *b]))
    {
        let _ = write!(tags, "vlan {} ", u16::from_be_bytes([*c, *d]) & 0x0fff);
        rest = next;
    }
    if tags.is_empty() {
        return (frame.into(), tags);
    }
    ([&frame[..12], rest].concat().into(), tags)
}

fn mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn arp(packet: &[u8]) -> Option<String> {
    let arp = arp::ArpPacket::parse(packet)?;
    let (from, to) = (arp.sender(), arp.target());
    Some(match arp.operation.get() {
        arp::REQUEST => format!("{from} > {to} arp, who has it"),
        _ => format!("{from} > {to} arp, is at {}", mac(arp.sender_mac)),
    })
}

/// IPv4 by its fixed header: the packet may be cut short, and wrong.
fn ip4(packet: &[u8]) -> Option<String> {
    let (header, _) = <ipv4::Ipv4Header as zerocopy::FromBytes>::ref_from_prefix(packet).ok()?;
    let [from, to] = [header.source(), header.destination()].map(IpAddr::from);
    let upper = packet.get(usize::from(packet[0] & 15) * 4..).unwrap_or_default();
    let offset = header.fragment_offset();
    if offset > 0 {
        return Some(format!("{from} > {to} {}, fragment at {offset}", protocol(header.protocol)));
    }
    let mut text = transport(from, to, header.protocol, upper);
    if header.is_fragment() {
        text += ", first fragment";
    }
    Some(text)
}

fn ip6(packet: &[u8]) -> Option<String> {
    let (header, upper) = <ipv6::Ipv6Header as zerocopy::FromBytes>::ref_from_prefix(packet).ok()?;
    let [from, to] = [header.source(), header.destination()].map(IpAddr::from);
    Some(transport(from, to, header.next_header, upper))
}

fn transport(from: IpAddr, to: IpAddr, number: u8, upper: &[u8]) -> String {
    let ends = |from_port: u16, to_port: u16| {
        let end = |address: IpAddr, port: u16| match address {
            IpAddr::V4(address) => format!("{address}:{port}"),
            IpAddr::V6(address) => format!("[{address}]:{port}"),
        };
        format!("{} > {}", end(from, from_port), end(to, to_port))
    };
    match number {
        TCP => {
            if let Some((header, _, payload)) = tcp::parse(upper) {
                let ends = ends(header.source.get(), header.destination.get());
                return format!("{ends} tcp {}, length {}", flags(header.flags), payload.len());
            }
        }
        UDP => {
            if let Some((header, _)) = udp::parse(upper) {
                let ends = ends(header.source.get(), header.destination.get());
                return format!("{ends} udp, length {}", header.len.get().saturating_sub(8));
            }
        }
        ICMP | ICMP6 => {
            if let [kind, code, ..] = upper {
                return format!("{from} > {to} {}", message(number, *kind, *code));
            }
        }
        _ => {}
    }
    format!("{from} > {to} {}", protocol(number))
}

fn flags(flags: u8) -> String {
    let named = [(tcp::SYN, 'S'), (tcp::FIN, 'F'), (tcp::RST, 'R'), (0x08, 'P'), (tcp::ACK, '.')];
    let text: String = named.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name).collect();
    format!("[{text}]")
}

fn message(protocol: u8, kind: u8, code: u8) -> String {
    let name = match (protocol, kind) {
        (ICMP, icmp::ECHO_REQUEST) | (ICMP6, 128) => "echo request",
        (ICMP, icmp::ECHO_REPLY) | (ICMP6, 129) => "echo reply",
        (ICMP, icmp::UNREACHABLE) | (ICMP6, 1) => "unreachable",
        (ICMP, icmp::TIME_EXCEEDED) | (ICMP6, 3) => "time exceeded",
        (ICMP, icmp::REDIRECT) | (ICMP6, 137) => "redirect",
        (ICMP6, 2) => "packet too big",
        (ICMP6, 135) => "neighbour solicitation",
        (ICMP6, 136) => "neighbour advertisement",
        _ => "",
    };
    let family = if protocol == ICMP { "icmp" } else { "icmp6" };
    match name {
        "" => format!("{family} {kind}/{code}"),
        "unreachable" | "time exceeded" => format!("{family} {name} {kind}/{code}"),
        name => format!("{family} {name}"),
    }
}

fn protocol(number: u8) -> String {
    match number {
        ICMP => "icmp".into(),
        TCP => "tcp".into(),
        UDP => "udp".into(),
        ICMP6 => "icmp6".into(),
        other => format!("protocol {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(data: &[u8], comment: &str) -> String {
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::new(3600, 123_456_789),
            original_len: 98,
            data: data.into(),
            options: vec![EnhancedPacketOption::Comment(comment.into())],
        };
        line(&packet, "wan")
    }

    fn ip4(protocol: u8, upper: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 7, 192, 0, 2, 9]);
        frame.extend(upper);
        frame
    }

    #[test]
    fn a_line_says_where_in_where_out_how_and_what() {
        let text = packet(&ip4(ICMP, &[8, 0, 0, 0]), "no_route, in wan, out -: No route to it.");
        assert!(text.contains(":00:00.123456  wan > -         no_route           98  "), "{text}");
        assert!(text.ends_with("10.0.0.7 > 192.0.2.9 icmp echo request"), "{text}");
        let text = packet(&ip4(ICMP, &[3, 4]), "forwarded after 2.500 ms held, in wan, out a: Sent on.");
        assert!(text.contains("wan > a         forwarded "), "{text}");
        assert!(text.ends_with("icmp unreachable 3/4 (2.500 ms held)"), "{text}");
        assert!(packet(&[2; 13], "").ends_with("too little of it was copied"), "of 98 bytes");
    }

    #[test]
    fn ports_and_flags_are_shown_as_far_as_the_bytes_go() {
        let mut segment = vec![0x1f, 0x90, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12];
        segment.resize(30, 0);
        assert_eq!(describe(&ip4(TCP, &segment)), "10.0.0.7:8080 > 192.0.2.9:80 tcp [S.], length 10");
        assert_eq!(describe(&ip4(TCP, &segment[..10])), "10.0.0.7 > 192.0.2.9 tcp");
        assert_eq!(
            describe(&ip4(UDP, &[0, 53, 0, 9, 0, 20, 0, 0])),
            "10.0.0.7:53 > 192.0.2.9:9 udp, length 12"
        );
        assert_eq!(describe(&ip4(89, &[])), "10.0.0.7 > 192.0.2.9 protocol 89");
        let mut fragment = ip4(UDP, &[0; 20]);
        fragment[21] = 5;
        assert!(describe(&fragment).ends_with("udp, fragment at 40"), "{}", describe(&fragment));
    }

    #[test]
    fn no_frame_is_too_short_or_too_odd_for_a_line() {
        let whole = ip4(TCP, &[0x50; 40]);
        for len in 0..whole.len() {
            assert!(!describe(&whole[..len]).is_empty());
        }
        let mut tagged = whole[..12].to_vec();
        tagged.extend([0x88, 0xa8, 0, 200, 0x81, 0, 0xe0, 7]);
        tagged.extend(&whole[12..]);
        assert!(describe(&tagged).starts_with("vlan 200 vlan 7 10.0.0.7:"), "{}", describe(&tagged));
        assert_eq!(describe(&[2; 14]), "02:02:02:02:02:02 > 02:02:02:02:02:02 type 0202");
        for comment in ["", "x", ", in ", "a, in b, out c", "a after b"] {
            packet(&whole, comment);
        }
    }
}
