//! Side by side with the host's own stack: devices that are no ports, and what is for everybody.

use std::net::{TcpListener, TcpStream};

use nix::sys::signal::Signal;

use crate::{
    needs_lab,
    net::{Lab, wait_for},
    sockets::{connect, exchange},
};

#[test]
fn a_route_through_a_device_that_is_no_port_goes_by_the_kernel() {
    needs_lab!();
    let lab = Lab::new(3);
    for path in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        lab.router(&format!("sh -c 'echo 1 >/proc/sys/net/{path}'")).ok();
    }
    // Host 3 is behind a device that sweepd does not have.
    let router = lab.start_ports(2);
    for (from, to, address) in
        [(1, 3, "10.0.3.2"), (3, 1, "10.0.1.2"), (1, 3, "fd00:3::2"), (3, 1, "fd00:1::2")]
    {
        wait_for(address, || lab.reaches(from, address));
        // By the kernel it is one hop, not two.
        let text = lab.host(from, &format!("ping -c 1 -W 2 {address}")).ok();
        assert!(text.contains("ttl=63"), "{text}");
        let listener = lab.in_host(to, || TcpListener::bind((address, 0)).unwrap());
        let there = listener.local_addr().unwrap();
        let (server, caller) = connect(listener, || lab.in_host(from, || TcpStream::connect(there).unwrap()));
        exchange(server, caller, 1 << 20);
    }
    router.stop();
}

#[test]
fn what_is_for_everybody_on_the_link_reaches_the_host() {
    needs_lab!();
    let lab = Lab::new(2);
    lab.router("sh -c 'echo 0 >/proc/sys/net/ipv4/icmp_echo_ignore_broadcasts'").ok();
    let router = lab.start();
    for (address, from) in
        [("224.0.0.1", "10.0.1.1"), ("-b 10.0.1.255", "10.0.1.1"), ("ff02::1%eth0", "fe80")]
    {
        let text = lab.host(1, &format!("ping -c 2 -i 0.3 -W 2 -I eth0 {address}")).text;
        assert!(text.contains(&format!("bytes from {from}")), "{text}");
    }
    router.stop();
}

#[test]
fn addresses_that_go_are_no_longer_the_hosts() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    lab.host(1, "ping -c 1 -W 2 10.0.2.1").ok();
    lab.router("ip addr del 10.0.2.1/24 dev p2").ok();
    wait_for("it is gone", || !lab.reaches(1, "10.0.2.1"));
    assert!(!lab.reaches(1, "10.0.2.2"), "the route went with the address");
    lab.router("ip addr add 10.0.2.1/24 dev p2").ok();
    wait_for("it is back", || lab.reaches(1, "10.0.2.1") && lab.reaches(1, "10.0.2.2"));
    router.stop();
}

#[test]
fn a_hangup_changes_nothing_and_user_signals_neither() {
    needs_lab!();
    let lab = Lab::new(2);
    let mut router = lab.start();
    for signal in [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2] {
        router.signal(signal);
    }
    lab.host(1, "ping -c 3 -i 0.2 -W 2 10.0.2.2").ok();
    assert!(router.is_running());
    router.stop();
}
