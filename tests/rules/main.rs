//! The rules that a router keeps, one after the other: what goes in at a port, and what comes out.
//!
//! A test drives the router in three places: the real worker between pipes, sweepd on `xdp:` ports,
//! and Linux's own forwarding, by which the tests themselves are tested (`router.rs`). It names the rules it shows in the first line
//! of its documentation: "Rule 1." or "Rules 1, 3." From that and from `list.rs` the document
//! docs/rules.md is made, and `document.rs` fails when it is out of date.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/packets.rs"]
mod packets;

mod differences;
mod document;
mod errors;
mod forwarding;
mod frames;
mod gateway;
mod list;
#[cfg(target_os = "linux")]
mod namespace;
mod neighbors;
mod options;
mod paths;
#[cfg(target_os = "linux")]
mod plan;
mod reverse_path;
mod router;
mod six;
mod switches;
mod translation;
mod translation_icmp;
mod trunk;
mod vlan;
#[cfg(target_os = "linux")]
mod wires;
