//! Counts instructions exactly, by running a piece of code one instruction at a time.
//!
//! A forked child runs the code under `PTRACE_SINGLESTEP`; each instruction is decoded once per
//! address. What is counted is what the processor executes, so the numbers repeat. Only Linux on
//! x86-64 can do it; elsewhere there are no counts, and that is said.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod trace;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use trace::trace;

use std::{collections::HashMap, io};

/// What was executed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Instructions.
    pub instructions: u64,
    /// Instructions with a lock prefix, and exchanges with memory, which lock by themselves.
    pub locked: u64,
    /// Full memory fences (`mfence`); `lfence` and `sfence` order less and cost less, and count
    /// as well.
    pub fences: u64,
    /// System calls.
    pub syscalls: u64,
}

/// What was executed, and where.
#[derive(Clone, Default, Debug)]
pub struct Trace {
    /// The sums.
    pub counts: Counts,
    /// By address: how often the instruction there was executed, and what it counts as.
    pub places: HashMap<u64, (u64, Kind)>,
}

/// What an instruction counts as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Just an instruction.
    Plain,
    /// Locked.
    Locked,
    /// A fence.
    Fence,
    /// A system call.
    Syscall,
}

/// Counts what `code` executes, at most `limit` instructions.
///
/// # Errors
/// Those of [`trace`].
pub fn count(limit: u64, code: impl FnMut()) -> io::Result<Counts> {
    trace(limit, code).map(|trace| trace.counts)
}

/// Counts what `code` executes, by place.
///
/// # Errors
/// Always: this system has no way to do it.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub fn trace(_limit: u64, _code: impl FnMut()) -> io::Result<Trace> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "instructions are counted on Linux on x86-64 only"))
}
