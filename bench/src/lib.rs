//! Benchmarks of sweepd: each prints a table. What they share, and what tests use of them.

pub mod cycles;
pub mod disciplines;
pub mod heap;
pub mod lookup;
pub mod plot;
pub mod r530;
pub mod real;
pub mod rig;
pub mod rivals;
pub mod single;
pub mod stepper;
pub mod sweep;
pub mod traffic;
