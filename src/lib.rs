//! sweepd: a router daemon on netmap rings.
//!
//! The way of a packet: a worker ([`forward`]) finds it in a ring, looks it up in the tables
//! ([`tables`]) that it took once for the whole sweep, and moves its buffer to another ring. The
//! keeper ([`control`]) makes the tables from the configuration ([`config`]) and the kernel's own
//! addresses, neighbours and routes. Arrows go one way: `forward` reads `tables` and `wire`,
//! `control` writes `tables`, and nothing imports `control` but the commands.

pub mod config;
pub mod control;
pub mod daemon;
#[cfg(target_os = "linux")]
pub mod express;
pub mod forward;
pub mod plain;
pub mod stats;
pub mod tables;
pub mod wire;
