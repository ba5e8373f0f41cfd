//! Address translation: RFC 4787, RFC 5382, RFC 7857, RFC 6864. What RFC 5508 asks for is in
//! `translation_icmp.rs`.
//!
//! Between pipes only: each needs an address in front, and workers that get each other's packets

use std::collections::{BTreeMap, BTreeSet};

use sweepd::forward::verdict::Verdict;

use crate::gateway::{
    A, ACK, B, FIN, FRONT, Gateway, RST, SYN, X, Y, check_sums, end, icmp, rule, said, summed, tcp, udp,
    udp_packet, with_workers,
};
use crate::packets::Ip4;

/// Rules 25, 26. Also when the sum comes to 0 by the translation itself.
#[test]
fn a_udp_checksum_of_0_stays_0_and_no_other_becomes_0() {
    with_workers(|g| {
        let mut bare = udp_packet((A, 4000), (X, 53), 4);
        bare.payload[6..8].fill(0);
        assert_eq!(g.out(&bare.build())[26..28], [0, 0]);
        let front = g.mapped((A, 4000), (X, 53));
        // One word of data makes the translated datagram sum up to 0.
        for word in 0..=u16::MAX {
            let mut packet = udp_packet((A, 4000), (X, 53), 4);
            packet.payload[8..10].copy_from_slice(&word.to_be_bytes());
            let mut translated = packet.clone();
            translated.source = front.0.parse().unwrap();
            translated.payload[..2].copy_from_slice(&front.1.to_be_bytes());
            if summed(translated).payload[6..8] == [0, 0] {
                assert_eq!(g.out(&summed(packet).build())[26..28], [0xff, 0xff]);
                return;
            }
        }
        panic!("no word makes it 0");
    });
}

/// Rules 23, 24. All checksums after translation are those of full recomputation.
#[test]
fn every_checksum_is_right_in_both_directions() {
    with_workers(|g| {
        for port in 0..200u16 {
            let out = g.out(&udp((A, 5000 + port), (X, 53)));
            let (_, source, ..) = said(&out);
            check_sums(&g.back(&udp((X, 53), end(&source))));
            let out = g.out(&tcp((A, 5000 + port), (X, 80), SYN));
            let (_, source, ..) = said(&out);
            check_sums(&g.back(&tcp((X, 80), end(&source), SYN | ACK)));
        }
    });
}

/// Rule 41. One outside end for an inside end, whoever it talks to.
#[test]
fn a_mapping_does_not_depend_on_whom_the_inside_talks_to() {
    with_workers(|g| {
        let front = g.mapped((A, 4000), (X, 53));
        assert_eq!(front.0, FRONT);
        for (host, port) in [(X, 54), (Y, 53), (Y, 1000), ("192.0.2.9", 5)] {
            assert_eq!(g.mapped((A, 4000), (host, port)), front);
            let back = g.back(&udp((host, port), end(&front)));
            assert_eq!(said(&back), (17, (host.into(), port), (A.into(), 4000), 0));
        }
        assert_ne!(g.mapped((A, 4001), (X, 53)), front);
        assert_ne!(g.mapped((B, 4000), (X, 53)), front);
    });
}

/// Rule 42. All of a host's mappings have one address, and all addresses of the pool are used.
#[test]
fn a_host_keeps_its_address_of_the_pool() {
    with_workers(|g| {
        g.change(|rule| rule.to = (1..=4).map(|n| [203, 0, 113, n].into()).collect());
        let mut used = BTreeMap::<String, usize>::new();
        for host in 10..60 {
            let host = format!("10.0.0.{host}");
            let fronts: BTreeSet<String> =
                (0..8).map(|port| g.mapped((&host, 4000 + port), (X, 53)).0).collect();
            assert_eq!(fronts.len(), 1, "{host}");
            *used.entry(fronts.into_iter().next().unwrap()).or_default() += 1;
        }
        assert_eq!(used.len(), 4, "{used:?}");
    });
}

/// Rule 43. Two inside ends never share an outside end, and ports from 1024 up stay there.
#[test]
fn no_port_is_given_out_twice_and_none_below_1024() {
    with_workers(|g| {
        let mut used = BTreeSet::new();
        for n in 0..1000u16 {
            let host = format!("10.0.{}.7", n % 50);
            let (_, port) = g.mapped((&host, 1024 + n), (X, 53));
            assert!((1024..32768).contains(&port));
            assert!(used.insert(port), "{port} twice");
        }
    });
}

/// Rules 44, 45. A mapping lives five minutes from the last packet that leaves by it.
#[test]
fn a_udp_mapping_lives_five_minutes_and_packets_from_inside_refresh_it() {
    with_workers(|g| {
        let front = g.mapped((A, 4000), (X, 53));
        for _ in 0..4 {
            g.pass(280);
            assert_eq!(g.mapped((A, 4000), (X, 53)), front);
        }
        g.pass(280);
        g.back(&udp((X, 53), end(&front)));
        g.pass(30);
        g.dies(1, &udp((X, 53), end(&front)), Verdict::Unsolicited);
    });
}

/// Rule 61. Packets from outside refresh a mapping only where the rule says so.
#[test]
fn packets_from_outside_refresh_nothing_unless_that_is_configured() {
    with_workers(|g| {
        g.change(|rule| rule.inbound_refresh = true);
        let front = g.mapped((A, 4000), (X, 53));
        for _ in 0..4 {
            g.pass(280);
            g.back(&udp((X, 53), end(&front)));
        }
        g.change(|rule| rule.inbound_refresh = false);
        g.pass(280);
        g.back(&udp((X, 53), end(&front)));
        g.pass(30);
        g.dies(1, &udp((X, 53), end(&front)), Verdict::Unsolicited);
    });
}

/// Rule 46. By address and port of whom the inside has talked to; anybody where the rule says so.
#[test]
fn only_those_the_inside_talks_to_get_in_unless_a_rule_opens_the_mapping() {
    with_workers(|g| {
        let front = g.mapped((A, 4000), (X, 53));
        g.back(&udp((X, 53), end(&front)));
        for other in [(X, 54), (Y, 53)] {
            g.dies(1, &udp(other, end(&front)), Verdict::Unsolicited);
        }
        g.change(|rule| rule.open = true);
        let front = g.mapped((A, 4000), (X, 53));
        for other in [(X, 54), (Y, 53)] {
            let back = g.back(&udp(other, end(&front)));
            assert_eq!(said(&back).2, (A.to_string(), 4000));
            assert_eq!(said(&g.out(&udp((A, 4000), other))).1, front);
        }
    });
}

/// Rule 47. Inside to inside by the outside ends: the source is the outside one, too.
#[test]
fn hairpinned_packets_come_from_the_outside_end() {
    with_workers(|g| {
        let (a, b) = (g.mapped((A, 4000), (X, 53)), g.mapped((B, 5000), (X, 53)));
        // Both have to speak, as with anybody outside.
        g.dies(0, &udp((A, 4000), end(&b)), Verdict::Unsolicited);
        let at_a = g.send(0, &udp((B, 5000), end(&a)));
        assert_eq!(at_a.len(), 1, "{:?}", g.tube.verdicts());
        assert_eq!((at_a[0].0, said(&at_a[0].1)), (0, (17, b.clone(), (A.to_string(), 4000), 0)));
        let at_b = g.send(0, &udp((A, 4000), end(&b)));
        assert_eq!((at_b[0].0, said(&at_b[0].1)), (0, (17, a.clone(), (B.to_string(), 5000), 0)));
        check_sums(&at_b[0].1);
        // To a forwarded port as well.
        g.forward(6, 443, B, 8443);
        let at_b = g.send(0, &tcp((A, 4000), (FRONT, 443), SYN));
        let (_, source, to, _) = said(&at_b[0].1);
        assert_eq!((at_b[0].0, source.0.as_str(), to), (0, FRONT, (B.to_string(), 8443)));
        let at_a = g.send(0, &tcp((B, 8443), end(&source), SYN | ACK));
        assert_eq!(said(&at_a[0].1), (6, (FRONT.into(), 443), (A.to_string(), 4000), SYN | ACK));
    });
}

/// Rules 48, 54. Errors about a flow end nothing.
#[test]
fn an_icmp_error_ends_no_mapping() {
    with_workers(|g| {
        let udp_out = g.out(&udp((A, 4000), (X, 53)));
        let tcp_out = g.out(&tcp((A, 4000), (X, 80), SYN));
        for quoted in [&udp_out, &tcp_out] {
            for kind in [(3, 0), (3, 1), (3, 3), (3, 13), (11, 0), (12, 0)] {
                g.back(&icmp(Y, FRONT, kind, 0, &quoted[..28]));
            }
            let (protocol, front, to, _) = said(quoted);
            let answer = if protocol == 6 {
                tcp(end(&to), end(&front), SYN | ACK)
            } else {
                udp(end(&to), end(&front))
            };
            assert_eq!(said(&g.back(&answer)).2, (A.to_string(), 4000));
        }
    });
}

/// Rule 49. In both directions, quoting the packet as its sender knows it.
#[test]
fn a_packet_with_df_that_is_too_long_is_answered() {
    with_workers(|g| {
        let narrow = (g.tube.routes.hop(1, 9, 600), g.tube.routes.hop(0, 9, 600));
        g.tube.routes.add("198.51.100.0/24", narrow.0);
        g.tube.routes.add("10.0.0.0/24", narrow.1);
        g.tube.publish();
        let front = g.mapped((A, 4000), (X, 53));
        for (port, packet, from) in [
            (0, udp_packet((A, 4000), (X, 53), 900).dont_fragment(), A),
            (1, udp_packet((X, 53), end(&front), 900).dont_fragment(), X),
        ] {
            let came = g.send(port, &packet.build());
            let (out, error) = &came[0];
            check_sums(error);
            assert_eq!((*out, error[20], error[21], &error[26..28]), (port, 3, 4, &600u16.to_be_bytes()[..]));
            assert_eq!(said(error).2.0, from);
            assert_eq!(error[28..56], packet.build()[..28], "as it came");
        }
    });
}

fn fragments(whole: &Ip4) -> Vec<Vec<u8>> {
    let pieces: Vec<_> = whole.payload.chunks(400).collect();
    let last = pieces.len() - 1;
    let piece = |(n, data): (usize, &&[u8])| {
        let more = if n < last { 0x2000 } else { 0 };
        Ip4 { payload: data.to_vec(), flags_offset: more | (n * 50) as u16, ..whole.clone() }.build()
    };
    pieces.iter().enumerate().map(piece).collect()
}

/// Rule 50. In order, reversed, the first in the midst; the first lost.
#[test]
fn fragments_are_translated_in_whatever_order_they_come() {
    with_workers(|g| {
        let front = g.mapped((A, 4000), (X, 53));
        let mut id = 1;
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]] {
            for inward in [false, true] {
                id += 1;
                let (from, to) = if inward { ((X, 53), end(&front)) } else { ((A, 4000), (X, 53)) };
                let packet = Ip4 { id, ..udp_packet(from, to, 1000) };
                let pieces = fragments(&packet);
                let mut came = Vec::new();
                for n in order {
                    came.extend(g.send(usize::from(inward), &pieces[n]));
                }
                assert_eq!(came.len(), 3, "{order:?} {:?}", g.tube.verdicts());
                let place = |p: &[u8]| u16::from_be_bytes([p[6], p[7]]) & 0x1fff;
                came.sort_by_key(|(_, p)| place(p));
                let data: Vec<u8> = came.iter().flat_map(|(_, p)| p[20..].to_vec()).collect();
                let mut whole = came[0].1[..20].to_vec();
                whole[2..4].copy_from_slice(&1028u16.to_be_bytes());
                whole[6..8].fill(0);
                whole[10..12].fill(0);
                let sum = crate::packets::checksum(&whole);
                whole[10..12].copy_from_slice(&sum.to_be_bytes());
                whole.extend(data);
                check_sums(&whole);
                for (port, piece) in &came {
                    check_sums(piece);
                    assert_eq!(*port, usize::from(!inward));
                    assert_eq!(piece[4..6], came[0].1[4..6], "one identification");
                }
                let (_, source, destination, _) = said(&whole);
                let expected =
                    if inward { ((X.into(), 53), (A.into(), 4000)) } else { (front.clone(), (X.into(), 53)) };
                assert_eq!((source, destination), expected);
            }
        }
        let packet = Ip4 { id: 999, ..udp_packet((X, 53), end(&front), 1000) };
        for piece in &fragments(&packet)[1..] {
            assert_eq!(g.send(1, piece), []);
        }
        g.pass(3);
        assert_eq!(g.tube.count(Verdict::OrphanFragment), 2, "{:?}", g.tube.verdicts());
    });
}

/// Rule 51. Both open at once; each closes in its own time.
#[test]
fn tcp_works_in_every_valid_order() {
    with_workers(|g| {
        let out = g.out(&tcp((A, 4000), (X, 80), SYN));
        let front = said(&out).1;
        let steps = [
            (true, SYN),
            (false, SYN | ACK),
            (true, SYN | ACK),
            (false, FIN | ACK),
            (true, ACK),
            (true, ACK),
            (true, FIN | ACK),
            (false, ACK),
            (false, SYN),
            (true, SYN | ACK),
        ];
        for (back, flags) in steps {
            if back {
                let came = g.back(&tcp((X, 80), end(&front), flags));
                assert_eq!(said(&came), (6, (X.into(), 80), (A.into(), 4000), flags));
            } else {
                assert_eq!(
                    said(&g.out(&tcp((A, 4000), (X, 80), flags))),
                    (6, front.clone(), (X.into(), 80), flags)
                );
            }
        }
    });
}

/// Rule 52. Six seconds of silence, then port unreachable; nothing when the inside opens meanwhile.
#[test]
fn an_unsolicited_syn_is_held_in_silence_for_six_seconds() {
    with_workers(|g| {
        let front = said(&g.out(&tcp((A, 4000), (X, 80), SYN))).1;
        let stranger = tcp((Y, 80), end(&front), SYN);
        assert_eq!(g.send(1, &stranger), []);
        g.pass(3);
        assert_eq!(g.tube.arrivals(), []);
        g.pass(4);
        let came = g.tube.arrivals();
        assert_eq!(came.len(), 1);
        let error = &came[0].1[14..];
        check_sums(error);
        assert_eq!((came[0].0, error[20], error[21]), (1, 3, 3));
        assert_eq!(error[28..68], stranger[..40]);
        // Both at once.
        assert_eq!(g.send(1, &stranger), []);
        assert_eq!(said(&g.out(&tcp((A, 4000), (Y, 80), SYN))).1, front);
        g.pass(10);
        assert_eq!(g.tube.arrivals(), []);
        assert_eq!(g.tube.count(Verdict::Unsolicited), 2);
        assert_eq!(said(&g.back(&tcp((Y, 80), end(&front), SYN | ACK))).2, (A.to_string(), 4000));
    });
}

/// Rule 53. Two hours and four minutes established; four minutes before and after.
#[test]
fn a_tcp_connection_lives_as_long_as_its_state_says() {
    with_workers(|g| {
        let out = |g: &mut Gateway, flags| said(&g.out(&tcp((A, 4000), (X, 80), flags))).1;
        let front = out(g, SYN);
        g.pass(230);
        g.back(&tcp((X, 80), end(&front), SYN | ACK));
        assert_eq!(out(g, ACK), front);
        for _ in 0..2 {
            g.pass(7430);
            assert_eq!(out(g, ACK), front);
        }
        out(g, FIN | ACK);
        g.back(&tcp((X, 80), end(&front), FIN | ACK));
        out(g, ACK);
        g.pass(230);
        g.back(&tcp((X, 80), end(&front), ACK));
        g.pass(80);
        g.dies(1, &tcp((X, 80), end(&front), ACK), Verdict::Unsolicited);
    });
}

/// Rule 61. A mapping of UDP says nothing about TCP.
#[test]
fn mappings_are_independent_per_protocol() {
    with_workers(|g| {
        let front = g.mapped((A, 4000), (X, 80));
        assert_eq!(g.send(1, &tcp((X, 80), end(&front), SYN)), []);
        g.dies(1, &tcp((X, 80), end(&front), ACK), Verdict::Unsolicited);
        g.back(&udp((X, 80), end(&front)));
    });
}

/// Rule 61. A reset begins the end; a packet after it shows that it was none.
#[test]
fn a_reset_ends_a_connection_after_four_minutes_only() {
    with_workers(|g| {
        let front = said(&g.out(&tcp((A, 4000), (X, 80), SYN))).1;
        g.back(&tcp((X, 80), end(&front), SYN | ACK));
        g.out(&tcp((A, 4000), (X, 80), ACK));
        g.back(&tcp((X, 80), end(&front), RST));
        g.pass(200);
        g.back(&tcp((X, 80), end(&front), ACK));
        assert_eq!(said(&g.out(&tcp((A, 4000), (X, 80), ACK))).1, front);
        g.pass(7000);
        g.back(&tcp((X, 80), end(&front), RST));
        g.pass(320);
        g.dies(1, &tcp((X, 80), end(&front), ACK), Verdict::Unsolicited);
    });
}

/// Rule 61. Ports come by chance, not in a row.
#[test]
fn ports_are_given_out_by_chance() {
    let mut g = Gateway::new(1);
    let ports: Vec<u16> = (0..200).map(|n| g.mapped((A, 4000 + n), (X, 53)).1).collect();
    assert!(ports.windows(2).filter(|two| two[0].abs_diff(two[1]) < 64).count() < 20, "{ports:?}");
}

/// Rule 61. Hosts that share an address send no two packets with one identification; a packet that
/// is never cut keeps its own.
#[test]
fn the_identification_is_rewritten_where_it_counts() {
    with_workers(|g| {
        let mut seen = BTreeSet::new();
        for n in 0..300u16 {
            let host = format!("10.0.0.{}", 10 + n % 20);
            let out = g.out(&udp((&host, 4000 + n), (X, 53)));
            assert!(seen.insert([out[4], out[5]]), "twice");
        }
        let out = g.out(&udp_packet((A, 4000), (X, 53), 4).dont_fragment().build());
        assert_eq!(out[4..6], [0x12, 0x34]);
    });
}

/// Rule 60. Without a free port a new flow is refused, and told so; the others go on.
#[test]
fn without_ports_new_flows_are_refused_and_old_ones_go_on() {
    with_workers(|g| {
        g.change(|rule| (rule.first, rule.last) = (2048, 2048 + 255));
        let mut fronts = Vec::new();
        let mut refused = 0;
        for port in 0..400u16 {
            let came = g.send(0, &udp((A, 4000 + port), (X, 53)));
            match &came[..] {
                [(1, packet)] => fronts.push((4000 + port, said(packet).1)),
                [(0, error)] => {
                    assert_eq!((error[20], error[21]), (3, 13));
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        // Each worker has its share, so that one may run out before the others.
        assert!((200..=256).contains(&fronts.len()), "{}", fronts.len());
        assert_eq!(g.tube.count(Verdict::OutOfPorts), refused);
        for (port, front) in fronts {
            assert_eq!(said(&g.back(&udp((X, 53), end(&front)))).2, (A.to_string(), port));
        }
    });
}

/// Rule 41. New rules that give a flow what it has leave it alone; others end it.
#[test]
fn flows_live_on_under_new_rules_that_permit_them() {
    with_workers(|g| {
        let front = g.mapped((A, 4000), (X, 53));
        g.change(|rule| rule.timeouts.udp = 200_000);
        assert_eq!(said(&g.back(&udp((X, 53), end(&front)))).2, (A.to_string(), 4000));
        assert_eq!(g.mapped((A, 4000), (Y, 53)), front);
        g.rules(
            vec![sweepd::tables::masquerade::Rule { from: vec!["10.9.0.0/16".parse().unwrap()], ..rule() }],
            vec![],
            vec![],
        );
        let came = g.out(&udp((A, 4000), (X, 53)));
        assert_eq!(said(&came).1, (A.to_string(), 4000), "no longer translated");
        g.dies(1, &udp((X, 53), end(&front)), Verdict::Unsolicited);
    });
}
