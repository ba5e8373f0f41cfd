//! `sweepd demo`: made-up traffic through the real loop, inside one process.

use super::Failure;

/// Routes the benchmark's traffic and shows the live counter until interrupted.
///
/// # Errors
/// The demonstration cannot start.
pub fn demo() -> Result<(), Failure> {
    Err(Failure::running("demo is not built in yet; check and stat are"))
}
