//! Rules that ask for a packet's place in a flow, in a gateway whose every packet comes in by
//! another ring, and so often at a worker that does not know the flow.

#[path = "common/mod.rs"]
mod common;
#[path = "rules/gateway.rs"]
#[allow(dead_code)]
mod gateway;
#[path = "common/packets.rs"]
mod packets;

use std::{collections::HashMap, net::IpAddr};

use proptest::prelude::*;
use sweepd::{
    forward::{
        flows::{FlowTable, Secret},
        verdict::Verdict,
    },
    tables::{
        Action,
        acl::{Rule, State},
    },
};

use common::{host_mac, port_mac};
use gateway::{A, ACK, B, FIN, FRONT, Gateway, RST, SYN, X, Y, echo, end, icmp, said, tcp, udp, udp_packet};
use packets::{Ip4, ethernet, ip6, pseudo6, udp6};

fn deny(name: &str) -> Rule {
    Rule::of_all(name, true)
}

fn established() -> Rule {
    Rule { denies: false, state: Some(State::Established), ..deny("established") }
}

/// New flows may begin inside.
fn from_inside() -> Rule {
    Rule { denies: false, in_ports: vec![0], state: Some(State::New), ..deny("from inside") }
}

/// What a firewall usually says.
fn usual() -> Vec<Rule> {
    vec![established(), from_inside(), deny("all else")]
}

/// A gateway that translates nothing.
fn plain(workers: usize) -> Gateway {
    let mut gateway = Gateway::new(workers);
    gateway.rules(vec![], vec![], vec![]);
    gateway
}

fn with_workers(test: impl Fn(&mut Gateway)) {
    for workers in [1, 2, 4] {
        println!("{workers} workers");
        let mut gateway = plain(workers);
        gateway.tube.filter(usual());
        test(&mut gateway);
        gateway.tube.check();
    }
}

#[test]
fn what_begins_inside_is_answered_and_what_nobody_asked_for_is_denied() {
    with_workers(|gateway| {
        for (there, back, other) in [
            (udp((A, 4000), (X, 53)), udp((X, 53), (A, 4000)), udp((X, 53), (A, 4001))),
            (tcp((A, 4000), (X, 80), SYN), tcp((X, 80), (A, 4000), SYN | ACK), tcp((Y, 80), (A, 4000), ACK)),
            (echo(A, X, true, 7), echo(X, A, false, 7), echo(X, A, false, 8)),
            (Ip4 { protocol: 47, ..Ip4::udp(A, X, 8) }.build(), gre(X, A), gre(Y, A)),
        ] {
            gateway.dies(1, &back, Verdict::Denied);
            // Several times: the first one begins the flow, and the others pass on the fast path.
            for _ in 0..3 {
                assert_eq!(said(&gateway.out(&there)), said(&there));
                assert_eq!(said(&gateway.back(&back)), said(&back));
                gateway.dies(1, &other, Verdict::Denied);
            }
        }
        gateway.dies(1, &tcp((X, 5), (A, 22), SYN), Verdict::Denied);
    });
}

fn gre(from: &str, to: &str) -> Vec<u8> {
    Ip4 { protocol: 47, ..Ip4::udp(from, to, 8) }.build()
}

#[test]
fn a_tcp_connection_is_followed_from_its_opening_to_its_end() {
    with_workers(|gateway| {
        let (a, x) = ((A, 4000), (X, 80));
        gateway.out(&tcp(a, x, SYN));
        gateway.back(&tcp(x, a, SYN | ACK));
        gateway.out(&tcp(a, x, ACK));
        // Open connections outlive four minutes of silence.
        gateway.pass(300);
        gateway.back(&tcp(x, a, ACK));
        gateway.out(&tcp(a, x, FIN | ACK));
        gateway.back(&tcp(x, a, FIN | ACK));
        gateway.out(&tcp(a, x, ACK));
        // Nor is a closed one opened from outside, though the inside may.
        gateway.dies(1, &tcp(x, a, SYN), Verdict::Denied);
        gateway.back(&tcp(x, a, ACK));
        // Closed ones do not.
        gateway.pass(300);
        gateway.dies(1, &tcp(x, a, ACK), Verdict::Denied);
    });
}

#[test]
fn a_connection_that_goes_on_is_taken_up_where_new_ones_are_allowed() {
    with_workers(|gateway| {
        let (a, x) = ((A, 4000), (X, 80));
        gateway.out(&tcp(a, x, RST));
        gateway.dies(1, &tcp(x, a, ACK), Verdict::Denied);
        gateway.out(&tcp(a, x, ACK));
        gateway.back(&tcp(x, a, ACK));
    });
}

#[test]
fn an_icmp_error_belongs_to_the_flow_that_it_quotes() {
    with_workers(|gateway| {
        let packet = udp((A, 4000), (X, 53));
        // From a router on the way, which the host has never talked to.
        let error = icmp(Y, A, (3, 4), 1400, &packet[..28]);
        gateway.dies(1, &error, Verdict::Denied);
        gateway.out(&packet);
        gateway.back(&error);
        gateway.back(&error);
        let other = icmp(Y, A, (3, 4), 1400, &udp((A, 4001), (X, 53))[..28]);
        gateway.dies(1, &other, Verdict::Denied);
        // To one who has not sent what it quotes.
        gateway.dies(1, &icmp(Y, B, (3, 4), 1400, &packet[..28]), Verdict::Denied);
        gateway.back(&udp((X, 53), (A, 4000)));
    });
}

#[test]
fn fragments_go_the_way_of_their_first_one() {
    with_workers(|gateway| {
        let pieces = |id: u16| {
            let whole = udp_packet((X, 53), (A, 4000), 40);
            let mut first = Ip4 { id, flags_offset: 0x2000, ..whole.clone() };
            first.payload.truncate(24);
            let payload = whole.payload[24..].to_vec();
            (first.build(), Ip4 { id, flags_offset: 3, payload, ..whole }.build())
        };
        let (first, later) = pieces(1);
        gateway.dies(1, &first, Verdict::Denied);
        gateway.dies(1, &later, Verdict::Denied);
        gateway.out(&udp((A, 4000), (X, 53)));
        let (first, later) = pieces(2);
        assert_eq!(gateway.send(1, &first).len(), 1);
        assert_eq!(gateway.send(1, &later).len(), 1);
        gateway.dies(1, &pieces(3).1, Verdict::Denied);
    });
}

#[test]
fn changed_rules_end_the_flows_that_they_forbid_and_no_others() {
    with_workers(|gateway| {
        let flow = |port| (udp((A, 4000), (X, port)), udp((X, port), (A, 4000)));
        let (one, other) = (flow(53), flow(123));
        for flow in [&one, &other] {
            gateway.out(&flow.0);
            gateway.back(&flow.1);
        }
        // New ones are forbidden: those that there are go on.
        gateway.tube.filter(vec![established(), deny("all else")]);
        for flow in [&one, &other] {
            gateway.back(&flow.1);
            gateway.out(&flow.0);
        }
        gateway.dies(0, &flow(54).0, Verdict::Denied);
        // One is forbidden, whatever its state.
        let no_dns = Rule { protocol: Some(17), to_ports: vec![(53, 53)], ..deny("no dns") };
        gateway.tube.filter([vec![no_dns], usual()].concat());
        gateway.dies(1, &one.1, Verdict::Denied);
        gateway.dies(0, &one.0, Verdict::Denied);
        gateway.back(&other.1);
        gateway.out(&other.0);
        // It does not come back to life.
        gateway.tube.filter(usual());
        gateway.dies(1, &one.1, Verdict::Denied);
        gateway.out(&one.0);
        gateway.back(&one.1);
    });
}

#[test]
fn where_no_rule_fits_an_established_packet_its_flow_is_what_its_first_one_was() {
    with_workers(|gateway| {
        let to = |to: &str| Rule { to: vec![format!("{to}/32").parse().unwrap()], ..from_inside() };
        let no_new = || Rule { state: Some(State::New), ..deny("no new") };
        gateway.tube.filter(vec![to(X), to(Y), no_new()]);
        for there in [X, Y] {
            gateway.out(&udp((A, 4000), (there, 53)));
            gateway.back(&udp((there, 53), (A, 4000)));
        }
        gateway.dies(1, &udp((X, 53), (A, 4001)), Verdict::Denied);
        gateway.tube.filter(vec![to(X), no_new()]);
        gateway.back(&udp((X, 53), (A, 4000)));
        gateway.out(&udp((A, 4000), (X, 53)));
        gateway.dies(1, &udp((Y, 53), (A, 4000)), Verdict::Denied);
        gateway.dies(0, &udp((A, 4000), (Y, 53)), Verdict::Denied);
    });
}

#[test]
fn flows_are_established_for_rules_that_come_later_if_they_are_translated() {
    for workers in [1, 2, 4] {
        let mut gateway = Gateway::new(workers);
        let front = gateway.mapped((A, 4000), (X, 53));
        gateway.back(&udp((X, 53), end(&front)));
        gateway.tube.filter(usual());
        gateway.back(&udp((X, 53), end(&front)));
        assert_eq!(gateway.mapped((A, 4000), (X, 53)), front);
    }
}

#[test]
fn translated_flows_and_errors_about_them_are_followed_too() {
    for workers in [1, 2, 4] {
        let mut gateway = Gateway::new(workers);
        gateway.forward(6, 443, A, 8443);
        gateway.tube.filter(usual());
        for (out, asks) in [(udp((A, 4000), (X, 53)), false), (tcp((A, 4000), (X, 80), SYN), true)] {
            let left = gateway.out(&out);
            let (protocol, front, remote, _) = said(&left);
            let answer = match protocol {
                6 => tcp(end(&remote), end(&front), SYN | ACK),
                _ => udp(end(&remote), end(&front)),
            };
            for _ in 0..3 {
                assert_eq!(said(&gateway.back(&answer)).2, (A.to_string(), 4000), "{asks}");
                assert_eq!(said(&gateway.out(&out)).1, front);
            }
            gateway.back(&icmp(Y, FRONT, (3, 4), 1400, &left[..28]));
        }
        let left = said(&gateway.out(&echo(A, X, true, 9)));
        gateway.back(&echo(X, FRONT, false, left.1.1));
        // What begins outside is new, also where a port is forwarded.
        let syn = tcp((X, 5000), (FRONT, 443), SYN);
        gateway.dies(1, &syn, Verdict::Denied);
        let to_server = Rule {
            denies: false,
            to: vec![format!("{A}/32").parse().unwrap()],
            protocol: Some(6),
            to_ports: vec![(8443, 8443)],
            state: Some(State::New),
            ..deny("server")
        };
        gateway.tube.filter([vec![to_server], usual()].concat());
        gateway.back(&syn);
        gateway.out(&tcp((A, 8443), (X, 5000), SYN | ACK));
        gateway.back(&tcp((X, 5000), (FRONT, 443), ACK));
    }
}

#[test]
fn an_answer_that_waits_for_the_inside_host_is_judged_by_where_it_goes() {
    for workers in [1, 2, 4] {
        let mut gateway = Gateway::new(workers);
        gateway.tube.filter(usual());
        let (_, front, _, _) = said(&gateway.out(&udp((A, 4000), (X, 53))));
        let lost = gateway.tube.routes.action(Action::Glean, 0, None);
        gateway.tube.routes.add("10.0.0.7/32", lost);
        gateway.tube.publish();
        assert_eq!(gateway.send(1, &udp((X, 53), (FRONT, front.1))), []);
        assert_eq!(gateway.tube.count(Verdict::Denied), 0);
        let found = gateway.tube.routes.hop(0, 9, 1500);
        gateway.tube.routes.add("10.0.0.7/32", found);
        gateway.tube.publish();
        // One sweep sees the new tables, the next one what they mean for those who wait.
        gateway.tube.settle();
        gateway.tube.settle();
        let came = gateway.tube.arrivals();
        assert_eq!(came.len(), 1, "{:?}", gateway.tube.verdicts());
        assert_eq!(said(&came[0].1[14..]), said(&udp((X, 53), (A, 4000))));
        gateway.tube.check();
    }
}

#[test]
fn a_packet_that_goes_to_another_worker_counts_once() {
    for workers in [1, 2, 4] {
        let mut gateway = Gateway::new(workers);
        let acl = gateway.tube.filter(vec![Rule { denies: false, ..deny("all") }]);
        for n in 1..=8 {
            let (_, front, _, _) = said(&gateway.out(&udp((A, 4000), (X, 53))));
            gateway.back(&udp((X, 53), (FRONT, front.1)));
            assert_eq!(acl.hits()[0], 2 * n, "{workers} workers");
        }
    }
}

#[test]
fn a_full_table_denies_new_flows_and_leaves_the_others_alone() {
    let mut gateway = plain(1);
    gateway.tube.filter(usual());
    gateway.tube.workers[0].slow.flows = FlowTable::new(10, Secret::from_seed(1)).unwrap();
    for port in 0..20u16 {
        gateway.send(0, &udp((A, 4000 + port), (X, 53)));
    }
    assert_eq!(gateway.tube.count(Verdict::FlowsFull), 10);
    assert_eq!(gateway.tube.count(Verdict::Forwarded), 10);
    for port in 0..10u16 {
        gateway.back(&udp((X, 53), (A, 4000 + port)));
        gateway.out(&udp((A, 4000 + port), (X, 53)));
    }
    gateway.dies(1, &udp((X, 53), (A, 4010)), Verdict::Denied);
}

const IN6: &str = "2001:db8:beef::7";
const OUT6: &str = "2001:db8:cafe::3";

#[test]
fn ipv6_flows_are_followed_as_well() {
    for workers in [1, 2, 4] {
        let mut gateway = plain(workers);
        for (prefix, port) in [("2001:db8:beef::/48", 0), ("2001:db8:cafe::/48", 1)] {
            let hop = gateway.tube.routes.known(port, 9, 1500, true);
            gateway.tube.routes.add(prefix, hop);
        }
        gateway.tube.publish();
        gateway.tube.filter(usual());
        let mut turn = 0;
        let mut send = |port: usize, packet: &[u8]| {
            turn += 1;
            let frame = ethernet(port_mac(port), host_mac(port, 9), 0x86dd, packet);
            gateway.tube.inject_on(port, turn % workers, &frame);
            gateway.tube.settle();
            gateway.tube.check();
            gateway.tube.arrivals().len()
        };
        let icmp6 = |from: &str, to: &str, kind: u8, rest: u32, data: &[u8]| {
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            let mut message = vec![kind, 0, 0, 0];
            message.extend(rest.to_be_bytes());
            message.extend(data);
            let sum = pseudo6(from, to, 58, &message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            ip6(from, to, 64, 58, &message)
        };
        let out = udp6(IN6, OUT6, 64, 24);
        let mut back = udp6(OUT6, IN6, 64, 24);
        back[40..44].copy_from_slice(&[0x20, 0, 0x10, 0]);
        let error = icmp6("2001:db8:cafe::99", IN6, 2, 1300, &out[..48]);
        assert_eq!((send(1, &back), send(1, &error)), (0, 0));
        for _ in 0..3 {
            assert_eq!((send(0, &out), send(1, &back), send(1, &error)), (1, 1, 1));
        }
        let (ask, answer) = (icmp6(IN6, OUT6, 128, 7 << 16, b""), icmp6(OUT6, IN6, 129, 7 << 16, b""));
        assert_eq!(send(1, &answer), 0);
        assert_eq!((send(0, &ask), send(1, &answer)), (1, 1));
        assert_eq!(send(1, &icmp6(OUT6, IN6, 129, 8 << 16, b"")), 0);
    }
}

/// What happens to a router that filters.
#[derive(Clone, Debug)]
enum Step {
    /// A UDP packet between a host inside and one outside.
    Packet(Udp),
    /// Seconds pass.
    Pass(u64),
    /// These of the [`templates`] are the rules from now on.
    Rules(Vec<usize>),
}

/// A UDP packet: whether it goes out, host and port inside, host and port outside.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Udp {
    out: bool,
    inside: (u8, u16),
    outside: (u8, u16),
}

impl Udp {
    /// Source and destination.
    fn ends(&self) -> [(String, u16); 2] {
        let inside = (format!("10.0.0.{}", self.inside.0), self.inside.1);
        let outside = (format!("198.51.100.{}", self.outside.0), self.outside.1);
        if self.out { [inside, outside] } else { [outside, inside] }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let packet = (any::<bool>(), (7..9u8, 4000..4002u16), (3..5u8, 53..55u16));
    let packet = packet.prop_map(|(out, inside, outside)| Step::Packet(Udp { out, inside, outside }));
    prop_oneof![
        12 => packet,
        1 => prop::sample::select(vec![1u64, 70, 170, 250]).prop_map(Step::Pass),
        1 => prop::collection::vec(0..templates().len(), 0..5).prop_map(Step::Rules),
    ]
}

/// Rules to choose from.
fn templates() -> Vec<Rule> {
    let permit = |name: &str| Rule { denies: false, ..deny(name) };
    let state = |state, rule| Rule { state: Some(state), ..rule };
    vec![
        established(),
        from_inside(),
        deny("all"),
        state(State::New, deny("new")),
        state(State::Established, Rule { to_ports: vec![(53, 53)], ..deny("established to 53") }),
        state(State::New, Rule { to_ports: vec![(54, 54)], ..permit("new to 54") }),
        Rule { from: vec!["10.0.0.7/32".parse().unwrap()], ..deny("from 7") },
        Rule { in_ports: vec![1], from_ports: vec![(53, 53)], ..permit("from 53") },
        state(State::New, Rule { in_ports: vec![1], to_ports: vec![(4000, 4000)], ..permit("new to 4000") }),
    ]
}

/// A flow of the model: its first packet, when one was last permitted, when one last came, and under
/// which rules it was found good.
struct Flow {
    first: Udp,
    seen: u64,
    came: u64,
    judged: u32,
}

/// The model: rules gone through from the top, and flows by their ends.
#[derive(Default)]
struct Model {
    rules: Vec<Rule>,
    serial: u32,
    now: u64,
    flows: HashMap<[(String, u16); 2], Flow>,
}

impl Model {
    /// The first rule that fits, if one does.
    fn rule(&self, packet: &Udp, is_established: bool) -> Option<&Rule> {
        let [from, to] = packet.ends();
        let came_in = u16::from(!packet.out);
        let among = |ranges: &[(u16, u16)], port: u16| {
            ranges.is_empty() || ranges.iter().any(|range| (range.0..=range.1).contains(&port))
        };
        self.rules.iter().find(|rule| {
            rule.state.is_none_or(|state| (state == State::Established) == is_established)
                && (rule.in_ports.is_empty() || rule.in_ports.contains(&came_in))
                && (rule.from.is_empty()
                    || rule.from.iter().any(|net| net.contains(&from.0.parse::<IpAddr>().unwrap())))
                && among(&rule.from_ports, from.1)
                && among(&rule.to_ports, to.1)
        })
    }

    /// Whether the packet passes; none within the seconds that the wheel may take, and where all
    /// depends on whether a packet that was denied has kept its flow alive: it may.
    fn passes(&mut self, packet: &Udp) -> Option<bool> {
        let denies = |rule: Option<&Rule>| rule.is_some_and(|rule| rule.denies);
        if self.rules.iter().all(|rule| rule.state.is_none()) {
            return Some(!denies(self.rule(packet, false)));
        }
        let mut key = packet.ends();
        key.sort_unstable();
        match self.flows.get(&key).map(|flow| (self.now - flow.seen, self.now - flow.came)) {
            Some((304.., 304..)) => _ = self.flows.remove(&key),
            Some((300.., _)) => return None,
            _ => {}
        }
        let known = self.flows.get(&key).map(|flow| (flow.first, flow.judged));
        if let Some((first, _)) = known.filter(|(_, judged)| *judged != self.serial) {
            let rule = self.rule(&first, true).or_else(|| self.rule(&first, false));
            if denies(rule) {
                self.flows.remove(&key);
                return Some(false);
            }
            self.flows.get_mut(&key).unwrap().judged = self.serial;
        }
        let (now, judged) = (self.now, self.serial);
        if denies(self.rule(packet, known.is_some())) {
            if let Some(flow) = self.flows.get_mut(&key) {
                flow.came = now;
            }
            return Some(false);
        }
        let flow = self.flows.entry(key).or_insert(Flow { first: *packet, seen: now, came: now, judged });
        (flow.seen, flow.came) = (now, now);
        Some(true)
    }
}

fn run(gateway: &mut Gateway, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Pass(seconds) => {
                gateway.pass(*seconds);
                model.now += seconds;
            }
            Step::Rules(chosen) => {
                let all = templates();
                model.rules = chosen.iter().map(|at| all[*at].clone()).collect();
                model.serial += 1;
                gateway.tube.filter(model.rules.clone());
            }
            Step::Packet(packet) => {
                let [from, to] = packet.ends();
                let came = gateway.send(usize::from(!packet.out), &udp(end(&from), end(&to)));
                // Nobody can know what the wheel has not come by.
                let Some(passes) = model.passes(packet) else { return Ok(()) };
                prop_assert_eq!(came.len(), usize::from(passes), "{:?} under {:?}", packet, model.rules);
            }
        }
    }
    gateway.tube.check();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn packets_pass_and_end_as_a_plain_model_says(
        chosen in prop::collection::vec(0..templates().len(), 1..5),
        steps in prop::collection::vec(step(), 1..80),
        workers in prop::sample::select(vec![1usize, 2, 4]),
    ) {
        let steps: Vec<Step> = [Step::Rules(chosen)].into_iter().chain(steps).collect();
        run(&mut plain(workers), &steps)?;
    }
}
