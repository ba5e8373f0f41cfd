//! One instruction at a time, by ptrace(2).

use std::{collections::HashMap, io};

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
use nix::{
    sys::{
        ptrace,
        signal::Signal,
        uio::{RemoteIoVec, process_vm_readv},
        wait::{WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid, fork},
};

use super::{Counts, Kind, Trace};

/// What an instruction counts as; none for the marker of the traced code's two ends.
fn kind_of(instruction: &Instruction) -> Option<Kind> {
    let memory = (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::Memory);
    Some(match instruction.mnemonic() {
        Mnemonic::Int3 => return None,
        Mnemonic::Mfence | Mnemonic::Lfence | Mnemonic::Sfence => Kind::Fence,
        Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Int => Kind::Syscall,
        Mnemonic::Xchg if memory => Kind::Locked,
        _ if instruction.has_lock_prefix() => Kind::Locked,
        _ => Kind::Plain,
    })
}

/// Runs `code` in a forked child, one instruction at a time, and counts. The child has nothing but
/// the calling thread; what `code` changes, the caller does not see. `limit` bounds the number of
/// instructions.
///
/// # Errors
/// The system's, when tracing is not allowed; `InvalidData` when the child ended early or ran past
/// the limit.
pub fn trace(limit: u64, mut code: impl FnMut()) -> io::Result<Trace> {
    // SAFETY: the child only runs `code` and exits; it takes no lock that another thread of this
    // process may hold, as long as `code` does not allocate: the fast path does not.
    match unsafe { fork() }? {
        ForkResult::Child => {
            if ptrace::traceme().is_err() {
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(3) };
            }
            // SAFETY: breakpoints mark the beginning and the end for the tracing parent.
            unsafe { std::arch::asm!("int3") };
            code();
            // SAFETY: as above.
            unsafe {
                std::arch::asm!("int3");
                libc::_exit(0)
            }
        }
        ForkResult::Parent { child } => {
            let counted = step_through(child, limit);
            let _ = ptrace::kill(child);
            let _ = waitpid(child, None);
            counted
        }
    }
}

fn step_through(child: Pid, limit: u64) -> io::Result<Trace> {
    let early = || io::Error::new(io::ErrorKind::InvalidData, "the traced code ended early");
    if !matches!(waitpid(child, None)?, WaitStatus::Stopped(_, Signal::SIGTRAP)) {
        return Err(early());
    }
    let mut kinds: HashMap<u64, (u64, Option<Kind>)> = HashMap::new();
    let mut counts = Counts::default();
    loop {
        let at = ptrace::getregs(child)?.rip;
        let (executed, kind) = kinds.entry(at).or_insert_with(|| (0, decode(child, at)));
        *executed += 1;
        let Some(kind) = *kind else { break };
        counts.instructions += 1;
        match kind {
            Kind::Locked => counts.locked += 1,
            Kind::Fence => counts.fences += 1,
            Kind::Syscall => counts.syscalls += 1,
            Kind::Plain => {}
        }
        if counts.instructions > limit {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more instructions than expected"));
        }
        ptrace::step(child, None)?;
        if !matches!(waitpid(child, None)?, WaitStatus::Stopped(_, Signal::SIGTRAP)) {
            return Err(early());
        }
    }
    let places = kinds.into_iter().filter_map(|(at, (executed, kind))| Some((at, (executed, kind?))));
    Ok(Trace { counts, places: places.collect() })
}

fn decode(child: Pid, at: u64) -> Option<Kind> {
    let mut bytes = [0; 16];
    // An instruction at the end of a page: fewer bytes may be readable.
    for len in [16, 4096 - (at as usize & 4095)] {
        let mut local = [io::IoSliceMut::new(&mut bytes)];
        if process_vm_readv(child, &mut local, &[RemoteIoVec { base: at as usize, len: len.min(16) }]).is_ok()
        {
            return kind_of(&Decoder::with_ip(64, &bytes, at, DecoderOptions::NONE).decode());
        }
    }
    Some(Kind::Plain)
}

#[cfg(test)]
mod tests {
    use super::super::count;
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering, fence};

    #[test]
    fn locked_instructions_and_fences_are_found() {
        let shared = AtomicU64::new(0);
        let counts = count(1_000_000, || {
            for _ in 0..10 {
                shared.fetch_add(1, Ordering::Relaxed);
                shared.swap(2, Ordering::Relaxed);
            }
            for _ in 0..5 {
                fence(Ordering::SeqCst);
                std::hint::black_box(&shared);
            }
        })
        .unwrap();
        assert_eq!(counts.locked + counts.fences, 25, "{counts:?}");
        assert_eq!(counts.syscalls, 0);
        assert!(counts.instructions > 25 && counts.instructions < 2000, "{counts:?}");
    }

    #[test]
    fn plain_loads_and_stores_are_not_locked() {
        let shared = AtomicU64::new(0);
        let counts = count(1_000_000, || {
            for _ in 0..100 {
                shared.store(shared.load(Ordering::Acquire) + 1, Ordering::Release);
            }
        })
        .unwrap();
        assert_eq!((counts.locked, counts.fences, counts.syscalls), (0, 0, 0));
    }

    #[test]
    fn code_that_runs_too_long_is_an_error() {
        let counted = count(1000, || {
            for i in 0..1_000_000u64 {
                std::hint::black_box(i);
            }
        });
        assert_eq!(counted.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
