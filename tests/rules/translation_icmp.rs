//! Address translation of ICMP: RFC 5508.
//!
//! Between pipes only: each needs an address in front, and workers that get each other's packets

use sweepd::forward::verdict::Verdict;
use sweepd::tables::masquerade::Pair;

use crate::gateway::{
    A, B, FRONT, Gateway, SYN, X, Y, check_sums, echo, end, icmp, rule, said, tcp, udp, with_workers,
};

fn id(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[24], packet[25]])
}

/// Rule 55. A query's mapping lives sixty seconds from the last one.
#[test]
fn an_echo_request_is_answered_for_sixty_seconds() {
    with_workers(|g| {
        let out = g.out(&echo(A, X, true, 77));
        let mapped = id(&out);
        assert_eq!(said(&out).1.0, FRONT);
        g.pass(50);
        let back = g.back(&echo(X, FRONT, false, mapped));
        assert_eq!((said(&back).2.0.as_str(), id(&back)), (A, 77));
        assert_eq!(id(&g.out(&echo(A, Y, true, 77))), mapped);
        assert_ne!(id(&g.out(&echo(B, Y, true, 77))), mapped);
        g.pass(65);
        // Nobody's now: the host's own, which did not ask either.
        assert_eq!(g.send(1, &echo(X, FRONT, false, mapped)), []);
    });
}

/// Rule 56. A wrong ICMP checksum or a wrong header inside: silence. The transport's may be wrong.
#[test]
fn a_damaged_error_is_dropped_in_silence() {
    with_workers(|g| {
        let out = g.out(&udp((A, 4000), (X, 53)));
        let mut damaged = icmp(Y, FRONT, (3, 1), 0, &out[..28]);
        damaged[22] ^= 1;
        g.dies(1, &damaged, Verdict::BadChecksum);
        let mut quoted = out[..28].to_vec();
        quoted[10] ^= 1;
        g.dies(1, &icmp(Y, FRONT, (3, 1), 0, &quoted), Verdict::BadChecksum);
        let mut quoted = out[..28].to_vec();
        quoted[26] ^= 1;
        g.back(&icmp(Y, FRONT, (3, 1), 0, &quoted));
    });
}

/// Rule 57. The host inside gets the error about the packet that it sent.
#[test]
fn an_error_from_outside_quotes_what_the_inside_sent() {
    with_workers(|g| {
        for sent in [udp((A, 4000), (X, 53)), tcp((A, 4000), (X, 80), SYN), echo(A, X, true, 77)] {
            let out = g.out(&sent);
            for kind in [(3, 1), (3, 3), (3, 4), (11, 0), (11, 1), (12, 0)] {
                for len in [28, out.len()] {
                    let error = icmp(Y, FRONT, kind, 1400, &out[..len]);
                    let came = g.back(&error);
                    assert_eq!(said(&came).1.0, Y);
                    assert_eq!(said(&came).2.0, A);
                    assert_eq!((came[20], came[21], &came[24..28]), (kind.0, kind.1, &error[24..28]));
                    let quoted = &came[28..];
                    assert_eq!(crate::packets::checksum(&quoted[..20]), 0);
                    assert_eq!(quoted[12..20], sent[12..20], "addresses");
                    if sent[9] == 1 {
                        assert_eq!(id(quoted), 77);
                    } else {
                        assert_eq!(quoted[20..24], sent[20..24], "ports");
                    }
                    if len > 28 {
                        let mut whole = quoted.to_vec();
                        // The TTL was that of the way out.
                        whole[8] = 64;
                        check_sums_of_transport(&whole);
                    }
                }
            }
        }
    });
}

/// The transport's checksum of a quoted packet that is whole.
fn check_sums_of_transport(packet: &[u8]) {
    let mut packet = packet.to_vec();
    packet[10..12].fill(0);
    let sum = crate::packets::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    check_sums(&packet);
}

/// Rule 57. The outside gets the error about the packet that it sent, from an address that it knows.
#[test]
fn an_error_from_inside_quotes_what_the_outside_sent() {
    with_workers(|g| {
        let front = g.mapped((A, 4000), (X, 53));
        let came = g.back(&udp((X, 53), end(&front)));
        for reporter in [A, "10.0.0.99"] {
            let out = g.out(&icmp(reporter, X, (3, 3), 0, &came));
            let (_, from, to, _) = said(&out);
            assert_eq!((from.0.as_str(), to.0.as_str(), out[20], out[21]), (FRONT, X, 3, 3));
            let quoted = said(&out[28..]);
            assert_eq!((quoted.1, quoted.2), ((X.into(), 53), front.clone()));
            check_sums_of_transport(&out[28..]);
        }
        let stranger = icmp(A, X, (3, 3), 0, &udp((Y, 9), (A, 4000)));
        g.dies(0, &stranger, Verdict::NoMapping);
    });
}

/// Rule 57. An error about nothing that we sent goes to nobody inside.
#[test]
fn an_error_without_a_mapping_is_dropped() {
    with_workers(|g| {
        g.out(&udp((A, 4000), (X, 53)));
        for quoted in [udp((FRONT, 2222), (X, 53)), udp(("192.0.2.1", 4000), (X, 53))] {
            assert_eq!(g.send(1, &icmp(Y, FRONT, (3, 3), 0, &quoted)), []);
        }
    });
}

/// Rule 58. An error neither refreshes a flow nor ends it.
#[test]
fn an_error_changes_no_timer() {
    with_workers(|g| {
        let out = g.out(&echo(A, X, true, 77));
        g.pass(45);
        g.back(&icmp(Y, FRONT, (3, 1), 0, &out[..28]));
        let mapped = id(&out);
        assert_eq!(said(&g.back(&echo(X, FRONT, false, mapped))).2.0, A);
        g.pass(20);
        assert_eq!(g.send(1, &echo(X, FRONT, false, mapped)), [], "not refreshed");
    });
}

fn paired(g: &mut Gateway) {
    let pair = |inside: &str, outside: &str| Pair {
        out: 1,
        inside: inside.parse().unwrap(),
        outside: outside.parse().unwrap(),
    };
    g.rules(vec![rule()], Vec::new(), vec![pair(B, "203.0.113.77")]);
}

/// Rule 59. An inside host pings another by its address outside; errors come back the same way.
#[test]
fn queries_and_errors_are_hairpinned() {
    with_workers(|g| {
        paired(g);
        let at_b = g.send(0, &echo(A, "203.0.113.77", true, 77));
        assert_eq!(at_b.len(), 1, "{:?}", g.tube.verdicts());
        let (port, packet) = &at_b[0];
        check_sums(packet);
        let (_, from, to, _) = said(packet);
        assert_eq!((*port, from.0.as_str(), to.0.as_str()), (0, FRONT, B));
        let at_a = g.send(0, &echo(B, FRONT, false, id(packet)));
        check_sums(&at_a[0].1);
        let (_, from, to, _) = said(&at_a[0].1);
        assert_eq!((from.0.as_str(), to.0.as_str(), id(&at_a[0].1)), ("203.0.113.77", A, 77));
        let at_a = g.send(0, &icmp(B, FRONT, (3, 13), 0, packet));
        assert_eq!(at_a.len(), 1, "{:?}", g.tube.verdicts());
        let (_, from, to, _) = said(&at_a[0].1);
        check_sums(&at_a[0].1);
        assert_eq!((from.0.as_str(), to.0.as_str()), ("203.0.113.77", A));
        let (_, from, to, _) = said(&at_a[0].1[28..]);
        assert_eq!((from.0.as_str(), to.0.as_str()), (A, "203.0.113.77"));
    });
}

/// Rule 60. Without a free identifier a query is refused with 3/13.
#[test]
fn a_query_without_an_identifier_left_is_refused() {
    with_workers(|g| {
        g.change(|rule| (rule.first, rule.last) = (2048, 2048 + 255));
        let mut refused = 0;
        for id in 0..400 {
            let came = g.send(0, &echo(A, X, true, id));
            if came[0].0 == 0 {
                let error = &came[0].1;
                assert_eq!((error[20], error[21]), (3, 13));
                refused += 1;
            }
        }
        assert!((144..200).contains(&refused), "{refused}");
        assert_eq!(g.tube.count(Verdict::OutOfPorts), refused);
    });
}
