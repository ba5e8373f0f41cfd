//! Opening and closing: settings, refusals, and what is said about them.

use super::*;
use crate::device::Host;

#[test]
fn offloads_are_off_while_the_port_is_open() {
    let on: Vec<&'static str> = super::super::system::OFFLOADS.iter().map(|o| o.name).collect();
    let kernel = kernel_with(&[("ix0", Nic { offloads: on.clone(), ..Nic::default() })]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    assert!(kernel.offloads("ix0").unwrap().is_empty());
    // Somebody turns one on again.
    kernel.set_offload("ix0", &super::super::system::OFFLOADS[0], true).unwrap();
    port.control.tend().unwrap();
    assert!(kernel.offloads("ix0").unwrap().is_empty());
    drop(port);
    assert_eq!(kernel.offloads("ix0").unwrap().len(), on.len());
    let log = kernel.log();
    let closed = log.iter().position(|event| event == "close ix0").unwrap();
    let restored: Vec<&str> = log[closed..].iter().filter_map(|e| e.strip_prefix("offload ix0 ")).collect();
    let reverse: Vec<String> = on.iter().rev().map(|name| format!("{name} on")).collect();
    assert_eq!(restored, reverse, "restored in reverse, after netmap mode");
}

#[test]
fn what_was_off_stays_off() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    drop(open(&kernel, ["netmap:ix0"]));
    assert!(kernel.offloads("ix0").unwrap().is_empty());
    assert!(!kernel.log().iter().any(|event| event.starts_with("offload")));
}

#[test]
fn hosts_tcp_survives_because_its_checksums_are_finished() {
    let tx = if cfg!(target_os = "freebsd") { "txcsum" } else { "tx" };
    let mut tcp = frame(9, 1, 60, 0);
    tcp[12..14].copy_from_slice(&[8, 0]);
    tcp[23] = 6;
    let kernel = kernel_with(&[("ix0", Nic { offloads: vec![tx], ..Nic::default() })]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    assert!(kernel.host_sends("ix0", &tcp));
    let Host::Rings { from, .. } = &mut port.host else { panic!("no host rings") };
    assert_eq!(drain(&mut from[0]), [tcp.clone()]);
    drop(port);
    // The stand-in does lose it when the offload is on.
    assert!(!kernel.host_sends("ix0", &tcp));
}

#[test]
fn an_offload_that_cannot_be_turned_off_is_named() {
    let tso = super::super::system::OFFLOADS.iter().find(|o| o.fatal).unwrap().name;
    let nic = Nic { offloads: vec!["lro", "gro", tso], fixed: vec![tso, "lro"], ..Nic::default() };
    let kernel = kernel_with(&[("ix0", nic)]);
    let mut before: Vec<_> = kernel.offloads("ix0").unwrap().iter().map(|o| o.name).collect();
    before.sort_unstable();
    let error = refused(&kernel, "netmap:ix0");
    assert!(error.contains(tso) && error.contains("ix0"), "{error}");
    assert_eq!(kernel.open_descriptors(), 0);
    assert!(kernel.log().iter().all(|e| e.starts_with("offload ix0")), "{:?}", kernel.log());
    let mut left: Vec<_> = kernel.offloads("ix0").unwrap().iter().map(|o| o.name).collect();
    left.sort_unstable();
    assert_eq!(left, before, "what was turned off is on again");
}

#[test]
fn promiscuous_mode_is_set_after_the_port_is_open_and_kept() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    let log = kernel.log();
    let at = |event: &str| log.iter().position(|e| e == event).unwrap_or_else(|| panic!("{event}: {log:?}"));
    assert!(at("register ix0 mode 3: ok") < at("promiscuous ix0 on"));
    kernel.set_promiscuous("ix0", false).unwrap();
    port.control.tend().unwrap();
    assert!(kernel.promiscuous("ix0").unwrap());
    drop(port);
    assert!(!kernel.promiscuous("ix0").unwrap());
}

#[test]
fn promiscuous_mode_of_others_is_renewed_and_left() {
    let kernel = kernel_with(&[("ix0", Nic { promiscuous: true, ..Nic::default() })]);
    let port = open(&kernel, ["netmap:ix0"]);
    let changes: Vec<_> = kernel.log().into_iter().filter(|e| e.starts_with("promiscuous")).collect();
    assert_eq!(changes, ["promiscuous ix0 off", "promiscuous ix0 on"]);
    drop(port);
    assert!(kernel.promiscuous("ix0").unwrap());
}

#[test]
fn refusals_say_what_to_do() {
    let nics = [
        ("ix0", Nic { rx_rings: 2, tx_rings: 2, ..Nic::default() }),
        ("jumbo0", Nic { mtu: 9000, ..Nic::default() }),
        ("tight0", Nic { mtu: 2040, ..Nic::default() }),
        ("nohost0", Nic { host_rings: 0, ..Nic::default() }),
        ("odd0", Nic { rx_rings: 2, tx_rings: 1, ..Nic::default() }),
    ];
    let kernel = kernel_with(&nics);
    for (text, hints) in [
        ("netmap:nosuch0", ["nosuch0", if cfg!(target_os = "freebsd") { "ifconfig -l" } else { "ip link" }]),
        ("netmap:lo", ["lo never does", "API 14"]),
        ("netmap:ix0-7", ["no ring 7", "has 2"]),
        ("netmap:jumbo0", ["MTU of 9000", "buf_size to 9216"]),
        ("netmap:tight0", ["MTU of 2040", "lower the MTU to 2030"]),
        ("netmap:nohost0^", ["no host rings", "leave out the ^"]),
        ("netmap:odd0-1", ["one direction", "below the smaller"]),
        ("netmap:ix0@9", ["no netmap memory 9", "leave out @9"]),
        ("vale0:a@9", ["no netmap memory 9", "leave out @9"]),
    ] {
        let error = refused(&kernel, text);
        assert!(hints.iter().all(|hint| error.contains(hint)), "{text}: {error}");
        assert!(error.starts_with(&format!("{}: ", spec(text))) && !error.contains('\n'), "{error}");
        assert_eq!(kernel.open_descriptors(), 0, "{text}");
    }
}

#[test]
fn a_system_without_netmap_or_permission_says_so() {
    let kernel = kernel_with(&[("ix0", Nic { offloads: vec!["lro"], ..Nic::default() })]);
    let module = if cfg!(target_os = "freebsd") { "kldload netmap" } else { "modprobe netmap" };
    for (code, hint) in [
        (libc::ENOENT, module),
        (libc::ENXIO, module),
        (libc::EACCES, "start as root"),
        (libc::EPERM, "start as root"),
        (libc::EMFILE, "ulimit -n"),
    ] {
        kernel.refuse_open(Some(code));
        for text in ["netmap:ix0", "vale0:a"] {
            let error = refused(&kernel, text);
            assert!(error.contains(hint), "{error}");
        }
    }
    assert!(kernel.log().is_empty(), "the interface was touched for nothing");
    kernel.refuse_open(None);
    open(&kernel, ["netmap:ix0"]);
}

#[test]
fn a_number_of_rings_that_the_interface_does_not_have_is_refused() {
    let kernel = kernel_with(&[("ix0", Nic { rx_rings: 4, tx_rings: 4, ..Nic::default() })]);
    let with = |rings| {
        let options = OpenOptions { rings: Some(rings), ..OpenOptions::default() };
        open_all_with(&dynamic(&kernel), &[(spec("netmap:ix0"), options)])
    };
    let error = with(2).err().unwrap().to_string();
    assert!(error.contains("4 ring pairs, not 2"), "{error}");
    assert_eq!(with(4).unwrap()[0].rx.len(), 4);
}

#[test]
fn a_port_that_cannot_be_opened_closes_those_before_it() {
    let kernel = kernel_with(&[("a0", Nic { offloads: vec!["lro"], ..Nic::default() })]);
    assert!(try_open(&kernel, &["netmap:a0", "netmap:nosuch0"]).is_err());
    assert_eq!(kernel.open_descriptors(), 0);
    assert!(!kernel.promiscuous("a0").unwrap());
    assert_eq!(kernel.offloads("a0").unwrap().len(), 1);
    open(&kernel, ["netmap:a0"]);
}

#[test]
fn a_port_tells_what_it_is() {
    let kernel = kernel_with(&[("ix0", Nic { rx_rings: 2, tx_rings: 2, ..Nic::default() })]);
    let [nic, vale] = open(&kernel, ["netmap:ix0", "vale0:a"]);
    assert_eq!(nic.info.interface.as_deref(), Some("ix0"));
    assert_eq!(nic.info.mac, Some([2, 0, 0, 0, 0, 1]));
    assert_eq!(nic.info.max_frame, 2048);
    assert_eq!(nic.info.mode, "netmap, 2 receive and 2 transmit rings, memory 1");
    assert_eq!((vale.info.interface, vale.info.mac), (None, None));
    assert!(matches!(vale.host, Host::Builtin));
}

#[test]
fn an_end_of_a_pipe_that_exists_keeps_its_memory() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [_first] = open(&kernel, ["netmap:p{1"]);
    let [nic, second] = open(&kernel, ["netmap:ix0", "netmap:p}1"]);
    assert_ne!(nic.rx[0].ring.view().arena(), second.rx[0].ring.view().arena());
    assert_eq!(second.rx[0].ring.view().arena(), _first.rx[0].ring.view().arena());
}

#[test]
fn a_port_that_finds_the_shared_memory_full_brings_its_own() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let names: Vec<String> = (0..20).map(|i| format!("vale0:p{i}")).collect();
    let texts: Vec<&str> = ["netmap:ix0"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let ports = try_open(&kernel, &texts).unwrap_or_else(|e| panic!("{e}"));
    let arenas: Vec<_> = ports.iter().map(|p| p.rx[0].ring.view().arena()).collect();
    assert!(arenas[..10].iter().all(|a| *a == arenas[0]));
    assert!(arenas[20] != arenas[0]);
}
