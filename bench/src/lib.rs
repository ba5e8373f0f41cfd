//! Benchmarks of sweepd: each prints a table. What they share, and what tests use of them.

pub mod cycles;
pub mod lookup;
pub mod rig;
pub mod stepper;
pub mod sweep;
pub mod traffic;
