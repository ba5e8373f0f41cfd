//! Whole files: what they mean, what is wrong with them, and that nothing makes the parser panic.

use std::{net::Ipv4Addr, time::Duration};

use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use crate::tables::{Express, IcmpLimit};
use bad::{BAD, TWO};

mod bad;

/// Every section and key of the schema.
const FULL: &str = r#"
[daemon]
cpus = [1, 2, 3]
runtime_dir = "/var/run/sweepd"
socket_owner = "root"
socket_group = "_sweepd"
user = "sweepd"
metrics = "127.0.0.1:9188"
on_exit = "drop"
idle = "adaptive"
icmp_rate = 500
icmp_burst = 50
source_routes = true
flows = 100000

[kernel]
routes = true
table = 100

[[port]]
name = "wan"
device = "netmap:ix0"
addresses = ["203.0.113.2/30"]
mac = "02:00:00:00:00:01"
mtu = 1500
vlans = [100, 200]
urpf = "strict"
redirects = true

[[port]]
name = "lan"
device = "xdp:eth1"
express = "off"

[[route]]
to = "0.0.0.0/0"
via = "203.0.113.1"

[[route]]
to = "10.9.0.0/16"
via = [{ gateway = "203.0.113.1", weight = 2 }, { gateway = "fe80::1", port = "wan" }]

[[route]]
to = "10.8.0.0/16"
port = "wan.100"

[[route]]
to = "10.7.0.0/16"
via = "10.8.0.1"
port = "lan"

[[route]]
to = "2001:db8::/32"
type = "blackhole"

[[neighbor]]
address = "203.0.113.1"
mac = "02:00:00:00:00:99"
port = "wan"

[[acl]]
name = "no-mail"
action = "deny"
in = "lan"
out = "wan"
from = ["10.0.0.0/8", "2001:db8::/32"]
to = ["198.51.100.0/24"]
protocol = "tcp"
from_ports = ["1024-65535"]
to_ports = [25, "8000-8099"]
state = "new"
log = true

[[masquerade]]
out = "wan"
from = ["10.0.0.0/8"]
to = ["203.0.113.2"]
ports = "1024-32767"
announce = true
filtering = "endpoint-independent"
inbound_refresh = true
quota = 1000
log = true
udp_timeout = "5m"
tcp_timeout = "2h4m"
tcp_transitory_timeout = "4m"
icmp_timeout = "60s"

[[forward_port]]
in = "wan"
protocol = "tcp"
port = 443
to = "10.0.0.5:8443"

[[one_to_one]]
out = "wan"
inside = "10.0.0.7"
outside = "203.0.113.7"
announce = true
"#;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn errors(text: &str) -> Vec<String> {
    match parse(text, "f") {
        Ok(_) => Vec::new(),
        Err(ConfigErrors(list)) => list.iter().map(ToString::to_string).collect(),
    }
}

fn warnings(text: &str) -> Vec<String> {
    parse(text, "f").unwrap().warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn every_key_of_the_schema_has_the_value_that_the_file_gives() {
    let config = parse(FULL, "f").unwrap();
    assert_eq!(
        config.daemon,
        Daemon {
            cpus: Some(vec![1, 2, 3]),
            runtime_dir: "/var/run/sweepd".into(),
            socket_owner: Some("root".into()),
            socket_group: Some("_sweepd".into()),
            user: Some("sweepd".into()),
            metrics: Some("127.0.0.1:9188".parse().unwrap()),
            on_exit: OnExit::Drop,
            idle: Idle::Adaptive,
            icmp: IcmpLimit { rate: 500, burst: 50 },
            source_routes: true,
            flows: 100_000,
        }
    );
    assert_eq!(config.kernel, Kernel { routes: true, table: 100 });
    let plain = Port {
        name: "lan".into(),
        device: "xdp:eth1".parse().unwrap(),
        addresses: vec![],
        mac: None,
        mtu: None,
        vlans: vec![],
        urpf: ReversePath::Off,
        redirects: false,
        express: Express::Off,
        sub: None,
    };
    let wan = Port {
        name: "wan".into(),
        device: "netmap:ix0".parse().unwrap(),
        addresses: vec![net("203.0.113.2/30")],
        mac: Some(MacAddr([2, 0, 0, 0, 0, 1])),
        mtu: Some(1500),
        vlans: ["100", "200"].map(|tags| tags.parse().unwrap()).into(),
        urpf: ReversePath::Strict,
        redirects: true,
        express: Express::Auto,
        sub: None,
    };
    let sub = |tags: &str| Port {
        name: format!("wan.{tags}"),
        device: wan.device.clone(),
        sub: Some(Sub { parent: "wan".into(), tags: tags.parse().unwrap() }),
        express: Express::Auto,
        ..plain.clone()
    };
    let subs = [sub("100"), sub("200")];
    assert_eq!(config.ports, [&[wan, plain][..], &subs].concat());
    let hop = |gateway: Option<&str>, port: Option<&str>, weight| NextHop {
        gateway: gateway.map(|g| g.parse().unwrap()),
        port: port.map(Into::into),
        weight,
    };
    let via = |to, hops| Route { to: net(to), target: Target::Via(hops) };
    assert_eq!(
        config.routes,
        [
            via("0.0.0.0/0", vec![hop(Some("203.0.113.1"), None, 1)]),
            via("10.9.0.0/16", vec![hop(Some("203.0.113.1"), None, 2), hop(Some("fe80::1"), Some("wan"), 1)]),
            via("10.8.0.0/16", vec![hop(None, Some("wan.100"), 1)]),
            via("10.7.0.0/16", vec![hop(Some("10.8.0.1"), Some("lan"), 1)]),
            Route { to: net("2001:db8::/32"), target: Target::Blackhole },
        ]
    );
    let mac = MacAddr([2, 0, 0, 0, 0, 0x99]);
    let address = "203.0.113.1".parse().unwrap();
    assert_eq!(config.neighbors, [Neighbor { address, mac, port: "wan".into() }]);
    assert_eq!(
        config.acls,
        [Acl {
            name: "no-mail".into(),
            action: Action::Deny,
            in_ports: vec!["lan".into()],
            out_ports: vec!["wan".into()],
            from: vec![net("10.0.0.0/8"), net("2001:db8::/32")],
            to: vec![net("198.51.100.0/24")],
            protocol: Some(6),
            from_ports: vec![PortRange { first: 1024, last: 65535 }],
            to_ports: vec![PortRange { first: 25, last: 25 }, PortRange { first: 8000, last: 8099 }],
            state: Some(State::New),
            log: true,
        }]
    );
    assert_eq!(
        config.masquerades,
        [Masquerade {
            out: "wan".into(),
            from: vec!["10.0.0.0/8".parse().unwrap()],
            to: vec![Ipv4Addr::new(203, 0, 113, 2)],
            ports: Some(PortRange { first: 1024, last: 32767 }),
            announce: true,
            udp_timeout: Duration::from_secs(300),
            tcp_timeout: Duration::from_secs(7440),
            tcp_transitory_timeout: Duration::from_secs(240),
            icmp_timeout: Duration::from_secs(60),
            open: true,
            inbound_refresh: true,
            quota: Some(1000),
            log: crate::tables::masquerade::Log::Mappings,
        }]
    );
    let to = "10.0.0.5:8443".parse().unwrap();
    let forward = ForwardPort { in_port: "wan".into(), protocol: Protocol::Tcp, port: 443, to };
    assert_eq!(config.forward_ports, [forward]);
    let (inside, outside) = (Ipv4Addr::new(10, 0, 0, 7), Ipv4Addr::new(203, 0, 113, 7));
    assert_eq!(config.one_to_ones, [OneToOne { out: "wan".into(), inside, outside, announce: true }]);
}

#[test]
fn the_full_example_uses_every_key_of_the_schema() {
    let root = DeTable::parse(FULL).unwrap();
    for section in schema::top() {
        let (_, value) = root.get_ref().iter().find(|(k, _)| k.get_ref() == section.name).unwrap();
        let tables: Vec<&DeTable> = match value.get_ref() {
            DeValue::Array(list) => list.iter().filter_map(|entry| entry.get_ref().as_table()).collect(),
            other => other.as_table().into_iter().collect(),
        };
        for key in section.keys {
            let used = tables.iter().any(|table| table.keys().any(|k| k.get_ref() == key));
            assert!(used, "{}.{key}", section.name);
        }
    }
}

#[test]
fn a_single_port_is_enough_and_the_rest_has_defaults() {
    let config = parse("[[port]]\ndevice = \"xdp:eth0\"\n", "f").unwrap();
    assert_eq!(config.daemon, Daemon::default());
    assert_eq!(config.kernel, Kernel { routes: true, table: KERNEL_TABLE });
    assert_eq!(
        (config.ports[0].name.as_str(), config.ports[0].device.to_string()),
        ("eth0", "xdp:eth0".into())
    );
    assert_eq!((config.ports[0].mtu, config.port("eth0"), config.port("eth1")), (None, Some(0), None));
    assert!(config.warnings.is_empty() && config.unsupported().is_empty());
    let config = parse("[[port]]\nname = \"eth3\"\n", "f").unwrap();
    assert_eq!(config.ports[0].device.to_string(), "eth3");
}

#[test]
fn whoever_filters_does_not_fail_open() {
    let port = "[[port]]\ndevice = \"xdp:eth0\"\n";
    let on_exit = |more: &str| parse(&format!("{port}{more}"), "f").unwrap().daemon.on_exit;
    assert_eq!(on_exit(""), OnExit::Forward);
    assert_eq!(on_exit("urpf = \"off\""), OnExit::Forward);
    assert_eq!(on_exit("urpf = \"loose\""), OnExit::Drop);
    assert_eq!(on_exit("[[acl]]\naction = \"deny\""), OnExit::Drop);
    assert_eq!(on_exit("[[masquerade]]\nout = \"eth0\""), OnExit::Drop);
    assert_eq!(on_exit("[daemon]\non_exit = \"forward\"\n[[acl]]\naction = \"deny\""), OnExit::Forward);
}

#[test]
fn all_of_the_schema_is_built_in() {
    assert_eq!(parse(FULL, "f").unwrap().unsupported(), []);
    assert!(parse_supported(FULL, "f").is_ok());
}

#[test]
fn what_is_not_built_in_is_reported_together_with_what_is_wrong() {
    let text = "[daemon]\nuser = \"a\"\n[[port]]\nname = \"a\"\nmtu = 1\n";
    let refused = parse_without(text, "f", &[Feature::User]).unwrap_err();
    let lines: Vec<_> = refused.0.iter().map(|problem| (problem.line, problem.key.as_str())).collect();
    assert_eq!(lines, [(2, "daemon.user"), (5, "port.mtu")]);
}

#[test]
fn all_errors_of_a_file_are_reported_in_the_order_of_its_lines() {
    let text = "[daemon]\nidel = \"spin\"\nidle = \"fast\"\n[[port]]\nname = \"a\"\nmtu = 1\n\
                [[route]]\nto = \"10.0.0.1/8\"\nvia = \"1.2.3\"\n[kernal]\n";
    assert_eq!(
        errors(text),
        [
            "f:2: daemon.idel: unknown key; did you mean \"idle\"?",
            "f:3: daemon.idle: \"fast\" is not known; write \"adaptive\" or \"spin\"",
            "f:6: port.mtu: 1 is out of range; write a whole number from 68 to 65535",
            "f:8: route.to: 10.0.0.1/8 has host bits set; write 10.0.0.0/8",
            "f:9: route.via: \"1.2.3\" is not an IP address; write one as \"203.0.113.1\" or \"2001:db8::1\"",
            "f:10: kernal: unknown section; did you mean [kernel]?",
        ]
    );
}

#[test]
fn each_bad_file_gets_its_one_error_with_line_and_key() {
    let mut wrong = Vec::new();
    for (text, expected) in BAD {
        let text = text.strip_prefix('+').map_or((*text).to_owned(), |more| format!("{TWO}{more}"));
        let found = errors(&text);
        if found != [*expected] {
            wrong.push(format!("{text}\nshould give {expected}\nbut gives {found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_text_that_is_not_toml_gets_one_error_with_its_column() {
    let found = errors("[[port]]\nname = \"a\nmtu = 3\n");
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("f:2: not TOML at column "), "{found:?}");
}

#[test]
fn doubtful_files_are_read_with_a_warning() {
    let with = |more: &str| format!("{TWO}{more}");
    assert_eq!(
        warnings(&with("[[route]]\nto = \"10.9.0.0/16\"\nvia = \"10.1.0.9\"")),
        ["f:9: route.via: 10.1.0.9 is on no network of any port; is it a slip of the pen?"]
    );
    assert_eq!(
        warnings(&with("[[route]]\nto = \"10.9.0.0/16\"\nvia = \"203.0.113.1\"\nport = \"lan\"")),
        ["f:9: route.via: 203.0.113.1 is on no network of port \"lan\"; is it a slip of the pen?"]
    );
    assert_eq!(warnings(&with("[[route]]\nto = \"10.9.0.0/16\"\nvia = \"203.0.113.1\"")).len(), 0);
    assert_eq!(warnings(&with("mtu = 600")), ["f:7: port.mtu: IPv6 needs 1280 at least (RFC 8200)"]);
    assert_eq!(
        warnings(&with("[[port]]\nname = \"dmz\"\naddresses = [\"10.0.0.9/8\"]")),
        ["f:9: port.addresses: 10.0.0.9/8 overlaps 10.0.0.1/24 of port \"lan\"; the longer prefix wins"]
    );
    assert_eq!(
        warnings(&with("[[masquerade]]\nout = \"wan\"\nudp_timeout = \"30s\"")),
        [
            "f:9: masquerade.udp_timeout: shorter than 2m, which RFC 4787 REQ-5 asks for; connections may break"
        ]
    );
    assert!(
        warnings(&with("[kernel]\nroutes = false"))[0].starts_with("f:7: kernel.routes: the kernel's routes")
    );
    let xdp = "[[port]]\ndevice = \"xdp:eth0\"\n[[acl]]\naction = \"permit\"";
    assert!(warnings(xdp)[0].starts_with("f:1: port.device: what the kernel itself forwards"));
}

#[test]
fn durations_have_units_from_the_largest_to_the_smallest() {
    let timeout = |text: &str| {
        let text = format!("[[port]]\nname = \"a\"\n[[masquerade]]\nout = \"a\"\ntcp_timeout = \"{text}\"");
        parse(&text, "f").ok().map(|config| config.masquerades[0].tcp_timeout.as_secs())
    };
    assert_eq!(timeout("2h4m"), Some(7440));
    assert_eq!(timeout("1d1s"), Some(86401));
    for bad in ["", "s", "4", "4m2h", "1h1h", "1.5h", "-1s", "0s", "366d", "99999999999999999999s", "1µs"] {
        assert_eq!(timeout(bad), None, "{bad}");
    }
}

#[test]
fn the_runtime_dir_is_found_in_a_file_that_is_otherwise_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.toml");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        load_runtime_dir(&path)
    };
    assert_eq!(read("[daemon]\nruntime_dir = \"/run/x\"\nidel = 1\n[[prot]]").unwrap(), Path::new("/run/x"));
    assert_eq!(read("[[prot]]").unwrap(), Path::new(RUNTIME_DIR));
    assert!(read("[daemon]\nruntime_dir = 5").is_err());
    let slip = "[daemon]\nruntime_dir = \"/run/x\"\n[[route\nto = 1";
    assert_eq!(read(slip).unwrap(), Path::new("/run/x"));
    assert_eq!(read("[daemon").unwrap(), Path::new(RUNTIME_DIR));
}

/// A piece of TOML that the mutations put in anywhere.
fn piece() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "[",
        "]",
        "{",
        "}",
        "=",
        ",",
        "\"",
        "\n",
        ".",
        "[[port]]",
        "[daemon]",
        "[[route]]",
        "via = ",
        "'",
        "-1",
        "1e999",
        "nan",
        "true",
        "1979-05-27",
        "\\u0000",
        "::/0",
        "0.0.0.0/0",
        "%",
        "\u{feff}",
        "é",
        "\r",
    ]);
    prop_oneof![known.prop_map(str::to_owned), ".{0,8}"]
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC*|(.|\n){0,200}") {
        let _ = parse(&text, "f").map(|config| config.unsupported());
    }

    #[test]
    fn no_bytes_in_a_file_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let _ = load(file.path());
        let _ = load_runtime_dir(file.path());
    }

    #[test]
    fn no_change_to_a_good_file_makes_the_parser_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..20, piece()), 1..4)
    ) {
        let mut text = FULL.to_owned();
        for (place, length, piece) in changes {
            let chars: Vec<char> = text.chars().collect();
            let start = place.index(chars.len() + 1);
            let end = (start + length).min(chars.len());
            text = chars[..start].iter().copied().chain(piece.chars()).chain(chars[end..].iter().copied()).collect();
        }
        if let Err(ConfigErrors(list)) = parse(&text, "f") {
            prop_assert!(!list.is_empty());
            for problem in list {
                prop_assert!(problem.line >= 1);
                prop_assert!(!problem.to_string().contains('\n'));
            }
        }
    }

    #[test]
    fn every_prefix_is_read_as_it_is_written_and_host_bits_are_refused(bits: u128, length in 0_u8..=128, v4: bool) {
        let net: IpNet = if v4 {
            ipnet::Ipv4Net::new((bits as u32).into(), length.min(32)).unwrap().into()
        } else {
            ipnet::Ipv6Net::new(bits.into(), length).unwrap().into()
        };
        let read = |net: IpNet| {
            let text = format!("[[port]]\nname = \"a\"\n[[acl]]\naction = \"deny\"\nfrom = \"{net}\"");
            parse(&text, "f").map(|config| config.acls[0].from[0])
        };
        prop_assert_eq!(read(net.trunc()).unwrap(), net.trunc());
        prop_assert_eq!(read(net).is_ok(), net == net.trunc());
    }
}

#[test]
fn a_sub_port_may_have_a_section_wherever_it_stands() {
    let text = r#"
        [[port]]
        name = "wan.s200.7"
        addresses = ["10.7.0.1/24"]
        urpf = "loose"
        [[port]]
        name = "wan"
        device = "xdp:eth0"
        vlans = [100, "s200.7", "s300"]
        [[port]]
        device = "pipe:lan"
        name = "lan"
        [[route]]
        to = "192.0.2.0/24"
        via = "10.7.0.9"
        port = "wan.s200.7"
    "#;
    let config = parse(text, "f").unwrap();
    let names: Vec<_> = config.ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["wan", "lan", "wan.100", "wan.s200.7", "wan.s300"]);
    let sub = &config.ports[3];
    assert_eq!((sub.addresses.as_slice(), sub.urpf), (&[net("10.7.0.1/24")][..], ReversePath::Loose));
    assert_eq!(sub.sub, Some(Sub { parent: "wan".into(), tags: "s200.7".parse().unwrap() }));
    // An interface that is called like one is a port of its own where no port has that VLAN.
    assert_eq!(parse("[[port]]\nname = \"eth0.100\"", "f").unwrap().ports[0].sub, None);
}
