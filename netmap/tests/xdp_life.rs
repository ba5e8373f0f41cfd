//! How `xdp:` ports begin and end: opened, closed, killed, their interfaces removed, renamed or
//! down, and what cannot be opened. Need root.
#![cfg(target_os = "linux")]

mod common;

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{
    A0, B0, FLAG_RX_VLAN, GET_FLAGS, Lab, R0, R1, allowed, enter, ethtool, mac,
    rings::{collect, frame, open, open_error, request},
    sh,
};
use netmap::device::{self, DeviceSpec, xdp::open_all};

fn has_program(lab: &Lab, interface: &str) -> bool {
    sh(&format!("ip -n {} -d link show {interface}", lab.ns("r"))).contains("prog/xdp")
}

fn no_program_is_left(lab: &Lab) {
    assert!(!has_program(lab, "r0") && !has_program(lab, "r1"));
}

#[test]
fn a_closed_port_is_the_kernels_again() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    lab.run("r", "echo 1 >/proc/sys/net/ipv4/ip_forward");
    let ping = "ping -c 2 -i 0.1 -W 1 10.0.1.2";
    let flags = || lab.within("r", || ethtool("r0", GET_FLAGS, 0));
    let at_first = flags();
    for _ in 0..3 {
        let ports = open(&lab, &["r0", "r1"]);
        assert!(has_program(&lab, "r0") && has_program(&lab, "r1"));
        assert!(!lab.try_run("a", "ping -c 1 -W 1 10.0.1.2"), "nobody empties the rings");
        assert_eq!(flags() & FLAG_RX_VLAN, 0, "VLAN tags stay where they are");
        drop(ports);
        assert_eq!(flags(), at_first);
        no_program_is_left(&lab);
        lab.run("a", ping);
    }
}

#[test]
#[ignore = "the other half of a_killed_process_leaves_nothing_behind"]
fn holds_two_ports_until_killed() {
    let Ok(ns) = std::env::var("XDP_TEST_NAMESPACE") else { return };
    if !ns.is_empty() {
        enter(&format!("/run/netns/{ns}"));
    }
    let ports = open_all(&[request("r0"), request("r1")]).unwrap();
    println!("both are open");
    thread::sleep(Duration::from_secs(60));
    drop(ports);
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    lab.run("r", "echo 1 >/proc/sys/net/ipv4/ip_forward");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "holds_two_ports_until_killed"])
        .env("XDP_TEST_NAMESPACE", lab.ns("r"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|l| l.contains("both are open")));
    assert!(!lab.try_run("a", "ping -c 1 -W 1 10.0.1.2"));
    child.kill().unwrap();
    child.wait().unwrap();
    no_program_is_left(&lab);
    lab.run("a", "ping -c 2 -i 0.1 -W 1 10.0.1.2");
    // And the ports can be opened at once.
    drop(open(&lab, &["r0", "r1"]));
}

#[test]
fn a_removed_interface_is_noticed_within_a_second() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let mut ports = open(&lab, &["r0", "r1"]);
    sh(&format!("ip -n {} link del r0", lab.ns("r")));
    let start = Instant::now();
    let error = loop {
        if let Err(e) = ports[0].rx[0].sync() {
            break e;
        }
        assert!(start.elapsed() < Duration::from_secs(1), "the receive queue notices nothing");
        thread::sleep(Duration::from_millis(1));
    };
    assert!(error.is_gone(), "{error}");
    assert!(ports[0].tx[0].ring.send(&frame(A0, R0, 1, 60)));
    let error = loop {
        if let Err(e) = ports[0].tx[0].sync() {
            break e;
        }
        assert!(start.elapsed() < Duration::from_secs(1), "the transmit queue notices nothing");
    };
    assert!(error.is_gone(), "{error}");
    // The other port of the same arena does not care.
    let peer = lab.packets("b", "b0");
    peer.send(&frame(R1, B0, 5, 60));
    assert_eq!(collect(&mut ports[1].rx[0], 1), [frame(R1, B0, 5, 60)]);
}

#[test]
fn an_interface_down_is_quiet_and_comes_back() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let mut ports = open(&lab, &["r0"]);
    let r = lab.ns("r");
    sh(&format!("ip -n {r} link set r0 down"));
    assert!(ports[0].tx[0].ring.send(&frame(A0, R0, 1, 60)));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        ports[0].rx[0].sync().unwrap();
        ports[0].tx[0].sync().unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!ports[0].tx[0].pending(), "nobody needs to hurry");
    sh(&format!("ip -n {r} link set r0 up"));
    let peer = lab.packets("a", "a0");
    peer.send(&frame(R0, A0, 2, 60));
    assert_eq!(collect(&mut ports[0].rx[0], 1), [frame(R0, A0, 2, 60)]);
}

#[test]
fn a_new_mac_address_or_name_is_followed() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let mut ports = open(&lab, &["r0"]);
    let (r, new) = (lab.ns("r"), [2, 0, 0, 0, 0, 0x77]);
    for line in ["down", &format!("address {}", mac(new)), "name r7", "up"] {
        let name = if line == "up" { "r7" } else { "r0" };
        sh(&format!("ip -n {r} link set {name} {line}"));
    }
    ports[0].control.tend().unwrap();
    let peer = lab.packets("a", "a0");
    peer.send(&frame(new, A0, 1, 60));
    assert_eq!(collect(&mut ports[0].rx[0], 1), [frame(new, A0, 1, 60)]);
    sh(&format!("ip -n {r} link del r7"));
    assert!(ports[0].control.tend().is_err());
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let r = lab.ns("r");
    for name in ["r9", "", "a-name-longer-than-fifteen", "lo\0"] {
        let e = open_error(&lab, request(name));
        assert!(e.to_string().contains("no such interface; `ip link` lists them"), "{e}");
    }
    let e = open_error(&lab, request("lo"));
    assert!(e.to_string().starts_with("xdp:lo: not an Ethernet interface"), "{e}");
    sh(&format!("ip -n {r} link set r1 mtu 1800"));
    let e = open_error(&lab, request("r1"));
    assert!(e.reason.contains("MTU 1800") && e.reason.contains("`ip link set r1 mtu 1774`"), "{e}");
    sh(&format!("ip -n {r} link set r1 mtu 1500 down"));
    let e = open_error(&lab, request("r1"));
    assert_eq!(e.to_string(), "xdp:r1: the interface is down; `ip link set r1 up`");
    let ports = open(&lab, &["r0"]);
    let e = open_error(&lab, request("r0"));
    assert!(e.reason.starts_with("another XDP program is attached"), "{e}");
    drop(ports);
    let e = lab.within("r", || {
        // SAFETY: no memory is involved; the raw call changes this thread alone.
        unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        open_all(&[request("r0")]).err().unwrap()
    });
    assert!(e.reason.starts_with("not permitted") && e.reason.contains("CAP_NET_RAW"), "{e}");
    // Nothing of all that is left behind.
    drop(open(&lab, &["r0"]));
}

#[test]
fn the_configurations_names_open_ports() {
    if !allowed() {
        return;
    }
    let lab = Lab::new(1);
    let requests: Vec<(DeviceSpec, _)> =
        ["xdp:r0/slots=256", "pipe:p", "xdp:r1"].map(|d| (d.parse().unwrap(), Default::default())).to_vec();
    let ports = lab.within("r", || device::open_all(&requests)).unwrap();
    let names: Vec<_> = ports.iter().map(|p| p.info.device.as_str()).collect();
    assert_eq!(names, ["xdp:r0", "pipe:p", "xdp:r1"]);
    assert_eq!(ports[0].info.interface.as_deref(), Some("r0"));
    assert_eq!(ports[0].rx[0].ring.view().num_slots(), 256);
    assert_eq!(ports[2].rx[0].ring.view().num_slots(), 2048);
    assert_eq!(ports[0].rx[0].ring.view().arena(), ports[2].tx[0].ring.view().arena());
}
