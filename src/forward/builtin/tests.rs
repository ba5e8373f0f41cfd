use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;
use crate::wire::arp::{ArpPacket, REPLY, REQUEST};
use crate::wire::checksum::checksum;
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::Ipv6Header;
use crate::wire::ndp::{self, NeighborMessage};

const US: Mac = [2, 0, 0, 0, 0, 1];
const PEER: Mac = [2, 0, 0, 0, 0, 2];
const OTHER: Mac = [2, 0, 0, 0, 0, 3];

fn ports() -> Vec<PortTable> {
    let port = |name: &str, mac, four: &[&str], six: &[&str]| PortTable {
        name: name.into(),
        mac,
        mtu: 1500,
        up: true,
        addresses4: four.iter().map(|net| net.parse().unwrap()).collect(),
        addresses6: six.iter().map(|net| net.parse().unwrap()).collect(),
        builtin_host: true,
        ..PortTable::default()
    };
    vec![
        port("lan", US, &["192.0.2.1/24", "198.51.100.1/31"], &["2001:db8::1/64", "fe80::1/64"]),
        port("wan", OTHER, &["203.0.113.1/24"], &["2001:db8:1::1/64", "fe80::2/64"]),
    ]
}

/// What became of a frame on port 0, and the reply's bytes.
fn heard(frame: &[u8]) -> (Outcome, Vec<u8>) {
    let mut out = [0xee; 2048];
    let outcome = handle(&ports(), 0, frame, &mut out);
    (outcome, out[..outcome.reply.unwrap_or(0)].to_vec())
}

fn framed(destination: Mac, source: Mac, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let header = EthernetHeader { destination, source, ethertype: ethertype.into() };
    [header.as_bytes(), payload].concat()
}

fn four(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

fn six(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn arp(operation: u16, sender: &str, target: &str, destination: Mac) -> Vec<u8> {
    let packet = ArpPacket::new(operation, (PEER, four(sender)), ([0; 6], four(target)));
    framed(destination, PEER, ethernet::ARP, packet.as_bytes())
}

#[test]
fn an_arp_request_for_our_address_is_answered_and_its_sender_learned() {
    let (outcome, reply) = heard(&arp(REQUEST, "192.0.2.7", "192.0.2.1", ethernet::BROADCAST));
    assert_eq!(outcome.verdict, Verdict::Answered);
    assert_eq!(reply.len(), 60);
    let (ethernet, payload) = ethernet::parse(&reply).unwrap();
    assert_eq!((ethernet.destination, ethernet.source), (PEER, US));
    let packet = ArpPacket::parse(payload).unwrap();
    assert_eq!(packet.operation.get(), REPLY);
    assert_eq!((packet.sender_mac, packet.sender()), (US, four("192.0.2.1")));
    assert_eq!((packet.target_mac, packet.target()), (PEER, four("192.0.2.7")));
    assert!(payload[28..].iter().all(|byte| *byte == 0), "no old bytes leak in the padding");
    let learned = outcome.learned.unwrap();
    assert_eq!((learned.address, learned.mac, learned.create), (four("192.0.2.7").into(), PEER, true));
}

#[test]
fn rule_36_a_request_for_another_updates_a_known_sender_and_is_not_answered() {
    let (outcome, _) = heard(&arp(REQUEST, "192.0.2.7", "192.0.2.8", ethernet::BROADCAST));
    assert_eq!(outcome.reply, None, "no proxying");
    assert!(outcome.learned.is_some_and(|learned| !learned.create && learned.replace));
}

#[test]
fn rule_36_nothing_is_learned_from_a_packet_for_another_subnet() {
    let (outcome, _) = heard(&arp(REQUEST, "10.0.0.7", "192.0.2.1", ethernet::BROADCAST));
    assert_eq!(outcome.learned, None);
    assert!(outcome.reply.is_some(), "our address is ours whoever asks");
    for sender in ["192.0.2.0", "192.0.2.255", "203.0.113.7", "224.0.0.1"] {
        let (outcome, _) = heard(&arp(REQUEST, sender, "192.0.2.1", ethernet::BROADCAST));
        assert_eq!(outcome.learned, None, "{sender}");
    }
}

#[test]
fn rule_36_a_reply_to_us_from_outside_the_prefix_fills_in_only_what_was_asked_for() {
    let (outcome, _) = heard(&arp(REPLY, "10.0.0.7", "192.0.2.1", US));
    assert!(outcome.learned.is_some_and(|learned| !learned.create));
    let (outcome, _) = heard(&arp(REPLY, "10.0.0.7", "192.0.2.1", ethernet::BROADCAST));
    assert_eq!(outcome.learned, None);
}

#[test]
fn rule_39_both_ends_of_a_31_are_hosts() {
    let (outcome, _) = heard(&arp(REPLY, "198.51.100.0", "198.51.100.1", US));
    assert!(outcome.learned.is_some_and(|learned| learned.create));
}

#[test]
fn an_address_probe_is_answered_and_teaches_nothing() {
    let (outcome, reply) = heard(&arp(REQUEST, "0.0.0.0", "192.0.2.1", ethernet::BROADCAST));
    assert_eq!((outcome.learned, outcome.conflict), (None, None));
    let packet = ArpPacket::parse(&reply[14..]).unwrap();
    assert_eq!((packet.sender(), packet.target_mac), (four("192.0.2.1"), PEER), "RFC 5227 section 2.1.1");
}

#[test]
fn a_device_that_claims_our_address_is_noticed_and_never_learned() {
    for target in ["192.0.2.1", "192.0.2.9"] {
        let (outcome, _) = heard(&arp(REQUEST, "192.0.2.1", target, ethernet::BROADCAST));
        assert_eq!(outcome.conflict, Some((four("192.0.2.1").into(), PEER)), "RFC 5227 section 2.4");
        assert_eq!((outcome.learned, outcome.reply), (None, None));
    }
}

#[test]
fn arp_with_a_group_address_as_the_senders_teaches_nothing() {
    let packet = ArpPacket::new(REQUEST, ([0xff; 6], four("192.0.2.7")), ([0; 6], four("192.0.2.1")));
    let (outcome, _) = heard(&framed(ethernet::BROADCAST, PEER, ethernet::ARP, packet.as_bytes()));
    assert_eq!(outcome, Verdict::BadHeader.into());
}

#[test]
fn a_reply_carries_the_requests_vlan_tag() {
    let plain = arp(REQUEST, "192.0.2.7", "192.0.2.1", ethernet::BROADCAST);
    let tagged = [&plain[..12], &[0x81, 0x00, 0x20, 0x64], &plain[12..]].concat();
    let (_, reply) = heard(&tagged);
    assert_eq!(reply[12..18], [0x81, 0x00, 0x20, 0x64, 0x08, 0x06]);
    assert!(ArpPacket::parse(&reply[18..]).is_some());
}

#[test]
fn frames_that_are_not_for_us_are_left_alone() {
    let frame = arp(REQUEST, "192.0.2.7", "192.0.2.1", OTHER);
    assert_eq!(heard(&frame).0, Verdict::NotForUs.into());
    let own = framed(ethernet::BROADCAST, US, ethernet::ARP, &frame[14..]);
    assert_eq!(heard(&own).0, Verdict::Martian.into(), "our own, come back");
    assert_eq!(heard(&framed(US, PEER, 0x88cc, &[0; 46])).0, Verdict::UnknownProtocol.into());
    assert_eq!(heard(&[0; 13]).0, Verdict::Runt.into());
    assert_eq!(handle(&ports(), 9, &frame, &mut []), Verdict::PortDown.into());
}

fn neighbor(
    (source, destination): (&str, &str),
    kind: u8,
    flags: u32,
    target: &str,
    options: &[u8],
) -> Vec<u8> {
    let (source, destination) = (six(source), six(destination));
    let mut body = [NeighborMessage::new(kind, flags, six(target)).as_bytes(), options].concat();
    icmp6::fill_checksum(source, destination, &mut body);
    let ip = Ipv6Header::new(source, destination, ipv6::ICMP6, 255, body.len() as u16);
    let mac = if destination.is_multicast() { ethernet::ipv6_multicast(&destination.octets()) } else { US };
    framed(mac, PEER, ethernet::IPV6, &[ip.as_bytes(), &body].concat())
}

fn solicitation(source: &str, target: &str, options: &[u8]) -> Vec<u8> {
    let group = ipv6::solicited_node(six(target)).to_string();
    neighbor((source, &group), icmp6::NEIGHBOR_SOLICITATION, 0, target, options)
}

/// The addresses, message and options of a reply, which must be a valid advertisement.
fn advertised(reply: &[u8]) -> (Ipv6Addr, Ipv6Addr, &NeighborMessage, Option<Mac>) {
    let packet = ipv6::parse(&reply[14..]).unwrap();
    let (source, destination) = (packet.header.source(), packet.header.destination());
    assert!(icmp6::sum_ok(source, destination, packet.payload));
    assert_eq!((packet.header.hop_limit, packet.payload[0]), (255, 136));
    let (message, options) = NeighborMessage::parse(packet.payload).unwrap();
    (source, destination, message, ndp::link_address(options, ndp::TARGET_LINK_ADDRESS).unwrap())
}

#[test]
fn a_solicitation_for_our_address_is_answered_and_its_sender_learned() {
    let option = ndp::link_address_option(ndp::SOURCE_LINK_ADDRESS, PEER);
    for (source, target) in [("2001:db8::7", "2001:db8::1"), ("fe80::7", "fe80::1")] {
        let (outcome, reply) = heard(&solicitation(source, target, &option));
        let (from, to, message, mac) = advertised(&reply);
        assert_eq!((from, to, message.target(), mac), (six(target), six(source), six(target), Some(US)));
        assert_eq!(message.flags.get() >> 29, 0b111, "router, solicited, override");
        assert_eq!(reply[..6], PEER);
        let learned = outcome.learned.unwrap();
        assert_eq!((learned.address, learned.mac, learned.create), (six(source).into(), PEER, true));
    }
}

#[test]
fn a_solicitation_for_another_is_not_answered() {
    let option = ndp::link_address_option(ndp::SOURCE_LINK_ADDRESS, PEER);
    for target in ["2001:db8::9", "2001:db8:1::1", "fe80::2"] {
        let (outcome, _) = heard(&solicitation("2001:db8::7", target, &option));
        assert_eq!((outcome.reply, outcome.learned), (None, None), "{target}");
    }
}

#[test]
fn an_address_probe_over_ipv6_is_answered_to_all_nodes() {
    let (outcome, reply) = heard(&solicitation("::", "2001:db8::1", &[]));
    let (_, to, message, _) = advertised(&reply);
    assert_eq!((to, message.flags.get() >> 29), (six("ff02::1"), 0b101), "not solicited (RFC 4861 7.2.4)");
    assert_eq!(reply[..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(outcome.learned, None);
    let option = ndp::link_address_option(ndp::SOURCE_LINK_ADDRESS, PEER);
    let (outcome, _) = heard(&solicitation("::", "2001:db8::1", &option));
    assert_eq!(outcome, Verdict::BadHeader.into(), "RFC 4861 section 7.1.1");
}

#[test]
fn rule_37_a_solicitation_fails_by_hop_limit_checksum_code_target_or_options() {
    let option = ndp::link_address_option(ndp::SOURCE_LINK_ADDRESS, PEER);
    let good = solicitation("2001:db8::7", "2001:db8::1", &option);
    let fails = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        let (outcome, _) = heard(&frame);
        assert_eq!((outcome.reply, outcome.learned), (None, None));
        outcome.verdict
    };
    let refill = |frame: &mut Vec<u8>| {
        let (header, _) = Ipv6Header::read_from_prefix(&frame[14..]).unwrap();
        icmp6::fill_checksum(header.source(), header.destination(), &mut frame[54..]);
    };
    assert_eq!(fails(&|frame| frame[21] = 254), Verdict::BadHeader, "hop limit");
    assert_eq!(fails(&|frame| frame[57] ^= 1), Verdict::BadChecksum, "checksum");
    let code = |frame: &mut Vec<u8>| (frame[55] = 1, refill(frame)).1;
    assert_eq!(fails(&code), Verdict::BadHeader, "code");
    let target = |frame: &mut Vec<u8>| (frame[62] = 0xff, refill(frame)).1;
    assert_eq!(fails(&target), Verdict::BadHeader, "multicast target");
    let option = |frame: &mut Vec<u8>| (frame[79] = 0, refill(frame)).1;
    assert_eq!(fails(&option), Verdict::BadHeader, "option of length 0");
}

#[test]
fn rule_37_an_advertisement_fills_in_what_was_asked_for() {
    let option = ndp::link_address_option(ndp::TARGET_LINK_ADDRESS, PEER);
    let addresses = ("2001:db8::7", "2001:db8::1");
    let kind = icmp6::NEIGHBOR_ADVERTISEMENT;
    for (flags, replace) in [(ndp::SOLICITED | ndp::OVERRIDE, true), (ndp::SOLICITED, false)] {
        let (outcome, _) = heard(&neighbor(addresses, kind, flags, "2001:db8::7", &option));
        let learned = Learned { address: six("2001:db8::7").into(), mac: PEER, create: false, replace };
        assert_eq!((outcome.learned, outcome.reply), (Some(learned), None));
    }
    let (outcome, _) = heard(&neighbor(addresses, kind, ndp::SOLICITED, "2001:db8::7", &[]));
    assert_eq!(outcome, Outcome::ANSWERED, "no link-layer address");
    let to_all = ("2001:db8::7", "ff02::1");
    let (outcome, _) = heard(&neighbor(to_all, kind, ndp::SOLICITED, "2001:db8::7", &option));
    assert_eq!(outcome, Verdict::BadHeader.into(), "solicited, to a multicast address");
    let (outcome, _) = heard(&neighbor(to_all, kind, 0, "2001:db8::1", &option));
    assert_eq!(outcome.conflict, Some((six("2001:db8::1").into(), PEER)));
    assert_eq!(outcome.learned, None);
}

fn ping4(source: &str, destination: &str, data: &[u8]) -> Vec<u8> {
    let mut message = [&[8, 0, 0, 0, 0x12, 0x34, 0, 1][..], data].concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut ip = Ipv4Header::new(four(source), four(destination), ipv4::ICMP, message.len() as u16);
    ip.tos = 0xb9;
    let mut packet = [ip.as_bytes(), &message].concat();
    ipv4::fill_checksum(&mut packet[..20]);
    framed(US, PEER, ethernet::IPV4, &packet)
}

#[test]
fn an_echo_request_to_any_of_our_addresses_is_answered_to_the_device_that_sent_it() {
    for destination in ["192.0.2.1", "203.0.113.1"] {
        let data: Vec<u8> = (0..101).collect();
        let (outcome, reply) = heard(&ping4("10.0.0.7", destination, &data));
        assert_eq!(outcome.verdict, Verdict::Answered);
        assert_eq!((&reply[..6], &reply[6..12]), (&PEER[..], &US[..]));
        let packet = ipv4::parse(&reply[14..]).unwrap();
        assert!(packet.sum_ok() && checksum(packet.payload) == 0);
        assert_eq!(
            (packet.header.source(), packet.header.destination()),
            (four(destination), four("10.0.0.7"))
        );
        assert_eq!((packet.header.ttl, packet.header.tos), (64, 0xb8), "RFC 1812 section 4.3.2.5");
        assert_eq!((packet.payload[0], &packet.payload[4..8]), (0, &[0x12u8, 0x34, 0, 1][..]));
        assert_eq!(packet.payload[8..], data);
    }
}

#[test]
fn an_echo_request_is_refused_for_what_is_wrong_with_it() {
    let verdict = |frame: &[u8]| {
        let (outcome, _) = heard(frame);
        assert_eq!(outcome.reply, None);
        outcome.verdict
    };
    assert_eq!(verdict(&ping4("10.0.0.7", "192.0.2.9", &[])), Verdict::NotForUs);
    assert_eq!(verdict(&ping4("10.0.0.7", "192.0.2.255", &[])), Verdict::Broadcast);
    assert_eq!(verdict(&ping4("10.0.0.7", "255.255.255.255", &[])), Verdict::Broadcast);
    assert_eq!(verdict(&ping4("10.0.0.7", "224.0.0.1", &[])), Verdict::Multicast);
    for source in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "192.0.2.1", "203.0.113.1"] {
        assert_eq!(verdict(&ping4(source, "192.0.2.1", &[])), Verdict::Martian, "{source}");
    }
    let good = ping4("10.0.0.7", "192.0.2.1", &[]);
    let with = |place: usize| {
        let mut frame = good.clone();
        frame[place] ^= 1;
        frame
    };
    assert_eq!(verdict(&with(24)), Verdict::BadChecksum, "header");
    assert_eq!(verdict(&with(36)), Verdict::BadChecksum, "message");
    assert_eq!(verdict(&good[..41]), Verdict::Runt);
    let broadcast = framed(ethernet::BROADCAST, PEER, ethernet::IPV4, &good[14..]);
    assert_eq!(verdict(&broadcast), Verdict::LinkBroadcast, "rule 9");
    let mut routed = good[14..].to_vec();
    routed.splice(20..20, [131, 7, 4, 10, 0, 0, 1, 0]);
    (routed[0], routed[3]) = (0x47, routed.len() as u8);
    ipv4::fill_checksum(&mut routed[..28]);
    assert_eq!(verdict(&framed(US, PEER, ethernet::IPV4, &routed)), Verdict::SourceRoute, "rule 19");
    let mut udp = good;
    udp[23] = ipv4::UDP;
    ipv4::fill_checksum(&mut udp[14..34]);
    assert_eq!(verdict(&udp), Verdict::UnknownProtocol);
}

fn ping6(source: &str, destination: &str) -> Vec<u8> {
    let (source, destination) = (six(source), six(destination));
    let mut message = [128, 0, 0, 0, 0x12, 0x34, 0, 1, 9, 9, 9];
    icmp6::fill_checksum(source, destination, &mut message);
    let ip = Ipv6Header::new(source, destination, ipv6::ICMP6, 9, message.len() as u16);
    framed(US, PEER, ethernet::IPV6, &[ip.as_bytes(), &message].concat())
}

#[test]
fn an_echo_request_over_ipv6_is_answered() {
    for destination in ["2001:db8::1", "2001:db8:1::1", "fe80::1"] {
        let (_, reply) = heard(&ping6("2001:db8:9::7", destination));
        let packet = ipv6::parse(&reply[14..]).unwrap();
        let (source, to) = (packet.header.source(), packet.header.destination());
        assert_eq!((source, to, packet.header.hop_limit), (six(destination), six("2001:db8:9::7"), 64));
        assert!(icmp6::sum_ok(source, to, packet.payload));
        assert_eq!((packet.payload[0], &packet.payload[4..]), (129, &[0x12u8, 0x34, 0, 1, 9, 9, 9][..]));
    }
    for (source, destination, verdict) in [
        ("2001:db8::7", "2001:db8::9", Verdict::NotForUs),
        ("2001:db8::7", "fe80::2", Verdict::NotForUs),
        ("2001:db8::7", "ff02::1", Verdict::Multicast),
        ("::", "2001:db8::1", Verdict::Martian),
        ("::1", "2001:db8::1", Verdict::Martian),
        ("ff02::1", "2001:db8::1", Verdict::Martian),
        ("2001:db8:1::1", "2001:db8::1", Verdict::Martian),
    ] {
        assert_eq!(heard(&ping6(source, destination)).0, verdict.into(), "{source} to {destination}");
    }
}

#[test]
fn a_reply_that_does_not_fit_is_not_sent() {
    let frame = ping4("10.0.0.7", "192.0.2.1", &[0; 100]);
    let mut out = [0; 141];
    assert_eq!(handle(&ports(), 0, &frame, &mut out), Outcome::ANSWERED);
    assert!(handle(&ports(), 0, &frame, &mut [0; 142]).reply.is_some());
}

#[test]
fn an_arp_question_comes_from_our_address_in_the_targets_prefix() {
    let mut out = [0xee; 90];
    for (target, source) in
        [("192.0.2.7", "192.0.2.1"), ("198.51.100.0", "198.51.100.1"), ("10.0.0.1", "192.0.2.1")]
    {
        let len = solicit(&ports()[0], None, four(target).into(), &mut out).unwrap();
        assert_eq!((len, &out[..6]), (60, &ethernet::BROADCAST[..]));
        let packet = ArpPacket::parse(&out[14..len]).unwrap();
        assert_eq!((packet.operation.get(), packet.sender_mac), (REQUEST, US));
        assert_eq!((packet.sender(), packet.target()), (four(source), four(target)));
    }
    for nobody in ["255.255.255.255", "0.0.0.0", "224.0.0.1", "ff02::1", "::"] {
        assert_eq!(solicit(&ports()[0], None, nobody.parse().unwrap(), &mut out), None, "{nobody}");
    }
    let bare = PortTable { addresses4: vec![], addresses6: vec![], ..ports().remove(0) };
    assert_eq!(solicit(&bare, None, four("192.0.2.7").into(), &mut out), None);
}

#[test]
fn what_one_port_asks_another_answers() {
    let mut peers = ports();
    peers[1].addresses4 = vec!["192.0.2.7/24".parse().unwrap()];
    peers[1].addresses6 = vec!["2001:db8::7/64".parse().unwrap(), "fe80::7/64".parse().unwrap()];
    for (target, asker) in
        [("192.0.2.7", "192.0.2.1"), ("2001:db8::7", "2001:db8::1"), ("fe80::7", "fe80::1")]
    {
        let target: IpAddr = target.parse().unwrap();
        let (mut question, mut answer) = ([0; 90], [0; 90]);
        let len = solicit(&peers[0], Some(100), target, &mut question).unwrap();
        let there = handle(&peers, 1, &question[..len], &mut answer);
        let asker: IpAddr = asker.parse().unwrap();
        assert!(there.learned.is_some_and(|l| l.address == asker && l.mac == US && l.create), "{target}");
        let here = handle(&peers, 0, &answer[..there.reply.unwrap()], &mut question);
        assert!(here.learned.is_some_and(|l| l.address == target && l.mac == OTHER), "{target}");
    }
}

proptest! {
    #[test]
    fn no_frame_makes_the_built_in_host_panic_or_answer_at_length(
        bytes in prop::collection::vec(any::<u8>(), 0..200), start in 0..6usize, cut in 0..200usize, at in 0..200usize, flip: u8,
    ) {
        let option = ndp::link_address_option(ndp::SOURCE_LINK_ADDRESS, PEER);
        let mut frame = match start {
            0 => arp(REQUEST, "192.0.2.7", "192.0.2.1", ethernet::BROADCAST),
            1 => solicitation("2001:db8::7", "2001:db8::1", &option),
            2 => ping4("10.0.0.7", "192.0.2.1", &bytes),
            3 => ping6("2001:db8::7", "2001:db8::1"),
            4 => framed(US, PEER, ethernet::IPV6, &bytes),
            _ => framed(US, PEER, ethernet::IPV4, &bytes),
        };
        frame.truncate(cut.max(14));
        if let Some(byte) = frame.get_mut(at) { *byte ^= flip; }
        let (outcome, reply) = heard(&frame);
        prop_assert!(outcome.reply.is_none() || outcome.verdict == Verdict::Answered);
        prop_assert!(reply.len() <= frame.len().max(90));
        if let Some(learned) = outcome.learned {
            prop_assert!(ethernet::is_unicast(&learned.mac));
            prop_assert!(!ports()[0].addresses4.iter().any(|net| net.addr() == learned.address));
        }
    }
}
