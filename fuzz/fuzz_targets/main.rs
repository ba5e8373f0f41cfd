//! All fuzz targets in one program, which builds once: SWEEPD_FUZZ names the one to run.
#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;
mod config;
mod control;
mod frame;
mod kernel;
mod packets;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

/// Name and function of each target.
const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("frame", frame::any),
    ("ipv4", packets::ipv4),
    ("ipv6", packets::ipv6),
    ("icmp", packets::icmp),
    ("neighbors", packets::neighbors),
    ("vlan", packets::vlan),
    ("config", config::any),
    ("control", control::any),
    ("netlink", kernel::netlink),
    ("route_socket", kernel::route_socket),
];

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("SWEEPD_FUZZ").unwrap_or_default();
    let known: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    target.unwrap_or_else(|| panic!("SWEEPD_FUZZ is one of {}", known.join(", "))).1
});

fuzz_target!(|input: &[u8]| TARGET(input));
