//! The lab: hosts and a router in network namespaces, the router being the sweepd that was built,
//! on `xdp:` ports. What users do is done here: ping, traceroute, TCP and UDP through it, routes
//! set with `ip` or learnt by BIRD and FRR, interfaces that come and go, signals, and what can be
//! wrong at the start.
//!
//! Needs root and the tools that `scripts/deps.sh` installs. Without, every test says `skipped`
//! and passes, unless `SWEEPD_REQUIRE_LAB=1` asks for a failure. At the end of every test the
//! packets in must be the sum of the verdicts, those held and those in transit.
#![cfg(target_os = "linux")]

mod capture;
mod changes;
mod confined;
mod control;
mod daemons;
mod documents;
mod errors;
mod express;
mod fail_open;
mod faulty;
mod filter;
mod flap;
mod gateway;
mod kernel;
mod kills;
mod life;
mod masquerade;
#[path = "../common/mischief.rs"]
mod mischief;
mod net;
mod outside;
mod own_sockets;
mod ports;
mod routing;
#[path = "../common/rtnetlink.rs"]
mod rtnetlink;
mod soak;
mod sockets;
mod through;
mod trouble;
mod two_boxes;

/// Returns from a test where the lab cannot be made.
macro_rules! needs_lab {
    () => {
        if !crate::net::is_possible() {
            return;
        }
    };
}
pub(crate) use needs_lab;
