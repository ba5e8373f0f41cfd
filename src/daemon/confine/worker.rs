//! A worker's thread: no capability, and only the system calls that it takes to move packets, to
//! sleep, to write a line of the log and to end.

use std::collections::{BTreeMap, HashSet};

use caps::CapSet;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// `ioctl` of the netmap device, NIOCTXSYNC and NIOCRXSYNC: the only ones that move packets.
const SYNCS: [u64; 2] = [0x6994, 0x6995];

/// Calls that are allowed whatever their arguments are.
const ALLOWED: &[libc::c_long] = &[
    // Syncs: AF_XDP rings, TUN devices, captures; bells; the log.
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    // Sleeps and the clock, which also comes by a system call on some machines.
    libc::SYS_ppoll,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    // Memory that the careful path takes and gives back.
    libc::SYS_brk,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_getrandom,
    // Rings that are given up; signals; the end of the thread, also by a panic.
    libc::SYS_close,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Confines the calling thread, a worker's. What is refused is answered by EPERM: should a library
/// ever need a further call, packets go on. Failures are in the log.
pub fn restrict_worker() {
    if let Err(e) = drop_capabilities() {
        log::warn!("a worker keeps its capabilities: {e}");
    }
    let filter = match filter() {
        Ok(filter) => filter,
        Err(e) => {
            log::warn!("a worker's system calls are not filtered: {e}");
            return;
        }
    };
    if let Err(e) = seccompiler::apply_filter(&filter) {
        log::warn!("a worker's system calls are not filtered: {e}");
    }
}

fn drop_capabilities() -> Result<(), caps::errors::CapsError> {
    caps::clear(None, CapSet::Ambient)?;
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        caps::set(None, set, &HashSet::new())?;
    }
    Ok(())
}

fn filter() -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_poll, Vec::new());
    let syncs = SYNCS.map(|number| rule(1, SeccompCmpOp::Eq, number));
    rules.insert(libc::SYS_ioctl, syncs.into_iter().collect::<Result<_, _>>()?);
    // Memory, but none that code could be put into.
    let no_code = || rule(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    rules.insert(libc::SYS_mmap, vec![no_code()?]);
    rules.insert(libc::SYS_mprotect, vec![no_code()?]);
    let (refused, allowed) = (SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow);
    SeccompFilter::new(rules, refused, allowed, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// That argument number `argument`, 32 bits of it, is so.
fn rule(argument: u8, how: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, how, value)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::UdpSocket, os::fd::AsRawFd, time::Duration};

    #[test]
    fn a_worker_moves_packets_and_sleeps_and_does_nothing_else() {
        let file = tempfile::tempfile().unwrap();
        let mut pipe = std::io::pipe().unwrap();
        let thread = std::thread::spawn(move || {
            restrict_worker();
            use std::io::{Read, Write};
            pipe.1.write_all(b"x").unwrap();
            pipe.0.read_exact(&mut [0]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            assert_eq!(vec![1u8; 64 << 20].iter().map(|n| usize::from(*n)).sum::<usize>(), 64 << 20);
            let refused = |e: std::io::Error| e.raw_os_error() == Some(libc::EPERM);
            assert!(refused(std::fs::read("/etc/passwd").unwrap_err()));
            assert!(refused(UdpSocket::bind("127.0.0.1:0").unwrap_err()));
            assert!(std::process::Command::new("/bin/true").status().is_err());
            // SAFETY: an ioctl that the filter stops, on a descriptor that is open.
            let terminal = unsafe { libc::ioctl(file.as_raw_fd(), libc::TIOCSTI, c"x") };
            assert!(terminal < 0 && refused(std::io::Error::last_os_error()));
            // A panic is the thread's alone, as ever.
            std::panic::panic_any("the end");
        });
        let end = thread.join().unwrap_err();
        assert_eq!(end.downcast_ref::<&str>(), Some(&"the end"), "{:?}", end.downcast_ref::<String>());
    }

    #[test]
    fn a_worker_has_no_capability() {
        let left = std::thread::spawn(|| {
            drop_capabilities().unwrap();
            let sets = [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable];
            sets.map(|set| caps::read(None, set).unwrap().len())
        });
        assert_eq!(left.join().unwrap(), [0; 3]);
    }

    #[test]
    fn the_netmap_calls_are_those_of_its_header() {
        let low = |n: libc::c_ulong| n & 0xffff_ffff;
        assert_eq!(SYNCS, [low(netmap::abi::NIOCTXSYNC), low(netmap::abi::NIOCRXSYNC)]);
    }
}
