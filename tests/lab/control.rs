//! What sweepd does about the kernel's neighbours, interfaces that change their names, routes that
//! cannot be, and the control socket's owner.

use serde_json::Value;

use crate::{
    needs_lab,
    net::{Lab, SWEEPD, sh, wait_for},
    sockets::{Receiver, missing_and_double, send_numbers},
};

/// What `sweepd show` says, as JSON.
fn show(lab: &Lab, what: &str) -> Value {
    let config = lab.dir.path().join("sweepd.toml");
    let text = sh(&format!("{SWEEPD} show {what} --json --config {}", config.display())).ok();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_kernel_looks_after_gateways_in_use_and_no_others() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    let kept = |address: &str| {
        let text = lab.router(&format!("ip neigh show to {address}")).ok();
        text.contains("lladdr") && text.contains("managed")
    };
    // A neighbour that is known already, and one that is not.
    assert!(lab.reaches(1, "10.0.2.2"));
    lab.router("ip route add 192.0.2.0/24 via 10.0.2.2").ok();
    lab.router("ip route add 2001:db8::/32 via fd00:2::2").ok();
    if !lab.router("ip neigh help").text.contains("managed") {
        eprintln!("skipped: whether gateways are kept, for want of an ip that says so");
        router.stop();
        return;
    }
    for gateway in ["10.0.2.2", "fd00:2::2"] {
        wait_for("the kernel keeps the gateway", || kept(gateway));
    }
    assert!(!kept("10.0.1.2"), "no route leads through it");
    lab.router("ip route del 192.0.2.0/24").ok();
    wait_for("it is kept no longer", || !kept("10.0.2.2"));
    assert!(kept("fd00:2::2"));
    // It was forgotten: found again, without a packet.
    lab.router("ip neigh del fd00:2::2 dev p2").ok();
    wait_for("it is kept again", || kept("fd00:2::2"));
    router.stop();
    assert!(!kept("fd00:2::2"), "nobody needs it any more");
}

#[test]
fn a_renamed_interface_stays_a_port() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    assert!(lab.reaches(1, "10.0.2.2"));
    for command in ["set p2 down", "set p2 name inside", "set inside up"] {
        lab.router(&format!("ip link {command}")).ok();
    }
    wait_for("it forwards again", || lab.reaches(1, "10.0.2.2"));
    let receiver = Receiver::start(&lab, 2, 7201);
    let before = router.verdict("forwarded");
    send_numbers(&lab, 1, "10.0.2.2", 7201, 200, 100);
    assert_eq!(missing_and_double(&receiver.finish(), 200), (vec![], vec![]));
    assert!(router.verdict("forwarded") - before >= 200);
    let said = router.log().matches("port p2: its interface p2 is called inside now").count();
    assert_eq!(said, 1, "{}", router.log());
    let ports = show(&lab, "ports");
    assert_eq!((&ports[1]["name"], &ports[1]["interface"]), (&"p2".into(), &"inside".into()));
    router.stop();
}

#[test]
fn a_route_whose_gateway_is_nowhere_is_told_and_shown_with_the_reason() {
    needs_lab!();
    let lab = Lab::new(2);
    let routes = "[[route]]\nto = \"192.0.2.0/24\"\nvia = \"198.51.100.9\"\n\
                  [[route]]\nto = \"192.0.3.0/24\"\nvia = \"10.0.2.2\"\n";
    let router = lab.start_with("", routes);
    let why = "its gateway 198.51.100.9 is on no network of any port, and no route leads to it";
    let told = format!("the route to 192.0.2.0/24 is not in force: {why}");
    wait_for("it is told", || router.log().contains(&told));
    let rows = show(&lab, "routes");
    let row = |to: &str| rows.as_array().unwrap().iter().find(|row| row["to"] == to).cloned().unwrap();
    let dead = row("192.0.2.0/24");
    assert_eq!((&dead["active"], &dead["reason"]), (&false.into(), &why.into()), "{dead}");
    // The other one names its gateway's port, though the configuration does not.
    let live = row("192.0.3.0/24");
    assert_eq!((&live["active"], &live["via"][0]["port"]), (&true.into(), &"p2".into()), "{live}");
    // An address that makes it reachable brings it into force.
    lab.router("ip addr add 198.51.100.1/24 dev p2").ok();
    wait_for("it is in force", || show(&lab, "routes 192.0.2.1")["port"] == "p2");
    let check = format!("{SWEEPD} check --config {}", lab.dir.path().join("sweepd.toml").display());
    assert!(!lab.router(&check).ok().contains("198.51.100.9"));
    lab.router("ip addr del 198.51.100.1/24 dev p2").ok();
    let text = lab.router(&check).ok();
    assert!(text.contains("warning") && text.contains("the gateway 198.51.100.9 of the route to"), "{text}");
    let neighbors = show(&lab, "neighbors");
    let many =
        |row: &Value| row["address"].as_str().unwrap().starts_with("ff") || row["address"] == "224.0.0.22";
    assert!(!neighbors.as_array().unwrap().iter().any(many), "{neighbors}");
    router.stop();
}

#[test]
fn the_control_socket_is_for_those_whom_the_configuration_names() {
    needs_lab!();
    let lab = Lab::new(2);
    sh(&format!("chmod 711 {}", lab.dir.path().display())).ok();
    let router = lab.start_with("socket_owner = \"7\"\nsocket_group = \"4242\"\n", "");
    let socket = lab.runtime_dir().join("control.sock");
    let text = sh(&format!("stat -c '%u %g %a' {}", socket.display())).ok();
    assert_eq!(text.trim(), "7 4242 660");
    // A copy: the program itself may be where only root can read it.
    let dir = lab.dir.path().display();
    sh(&format!("cp {SWEEPD} {dir}/copy && chmod 755 {dir}/copy && chmod 644 {dir}/sweepd.toml")).ok();
    let as_group = |group: u32| {
        let ask = format!("{dir}/copy show tables --config {dir}/sweepd.toml");
        sh(&format!("setpriv --reuid 65534 --regid {group} --clear-groups {ask}"))
    };
    assert!(as_group(4242).ok().contains("generation"));
    let refused = as_group(4243);
    assert!(refused.code == 1 && refused.text.contains("permission denied"), "{refused:?}");
    router.stop();
}
