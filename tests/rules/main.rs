//! The rules that a router keeps, one after the other: what goes in at a port, and what comes out.
//!
//! Every test drives the real worker between pipes and names the rules it shows in the first line
//! of its documentation: "Rule 1." or "Rules 1, 3." From that and from `list.rs` the document
//! docs/rules.md is made, and `document.rs` fails when it is out of date.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/packets.rs"]
mod packets;

mod document;
mod errors;
mod forwarding;
mod list;
mod neighbors;
mod options;
mod paths;
mod router;
mod six;
