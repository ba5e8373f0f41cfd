//! Benchmarks of sweepd: each prints a table. What they share, and what tests use of them.

pub mod acl;
pub mod cycles;
pub mod disciplines;
pub mod flood;
#[cfg(target_os = "linux")]
pub mod follow;
pub mod gateway;
pub mod heap;
pub mod locked;
pub mod lookup;
pub mod paths;
pub mod peers;
pub mod plot;
pub mod r530;
pub mod report;
pub mod rfc2544;
pub mod rig;
pub mod rivals;
pub mod single;
pub mod stepper;
pub mod sweep;
pub mod traffic;
#[cfg(target_os = "linux")]
pub mod veth;
