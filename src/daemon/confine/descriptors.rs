//! What an open descriptor may still be used for, on FreeBSD: Capsicum's rights, by its kind. A port's
//! ring can be synced and mapped, a socket be answered on; none can be bound, given to somebody else
//! or run as a program any more.

use std::os::fd::{BorrowedFd, RawFd};

use nix::{
    errno::Errno,
    sys::stat::{SFlag, fstat},
};

/// Descriptors above this number are not looked for.
const MOST: i64 = 1 << 16;
/// What everything may: to be asked about, to be waited for, and not to block.
const ALWAYS: [u64; 3] = [libc::CAP_FSTAT, libc::CAP_FCNTL, libc::CAP_EVENT];
const READ_WRITE: [u64; 2] = [libc::CAP_READ, libc::CAP_WRITE];

/// Takes the rights that nobody needs from every descriptor that is open. Connections that a
/// listening socket accepts later have its rights; a port that is opened again has all of them. What
/// cannot be limited stays as it is, and the log says so.
pub fn restrict_descriptors() {
    // SAFETY: sysconf reads no memory of ours.
    let most = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.clamp(0, MOST);
    let (mut limited, mut failed) = (0, None);
    for fd in 0..most as RawFd {
        // SAFETY: whether it is open is what is asked; it is used for nothing else, and the worst
        // that a descriptor which is closed meanwhile gives is an error.
        let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
        let Ok(about) = fstat(descriptor) else { continue };
        let Some(rights) = rights_of(SFlag::from_bits_truncate(about.st_mode & SFlag::S_IFMT.bits())) else {
            continue;
        };
        match limit(fd, rights) {
            Ok(()) => limited += 1,
            Err(e) => failed = Some(e),
        }
    }
    if let Some(e) = failed {
        log::warn!("some descriptors keep all rights: {e}");
    }
    log::debug!("{limited} descriptors have no rights but those that are needed");
}

/// What a descriptor of this kind takes besides [`ALWAYS`]; none for a kind that is not known.
fn rights_of(kind: SFlag) -> Option<&'static [&'static [u64]]> {
    match kind {
        // The control socket, metrics, the routing socket, and those that ask about interfaces.
        SFlag::S_IFSOCK => Some(&[
            &READ_WRITE,
            &[libc::CAP_ACCEPT, libc::CAP_CONNECT, libc::CAP_SHUTDOWN, libc::CAP_IOCTL],
            &[libc::CAP_GETPEERNAME, libc::CAP_GETSOCKNAME, libc::CAP_GETSOCKOPT, libc::CAP_SETSOCKOPT],
        ]),
        // netmap, and a terminal to log to.
        SFlag::S_IFCHR => Some(&[&READ_WRITE, &[libc::CAP_IOCTL, libc::CAP_MMAP_RW]]),
        // Counters and captures.
        SFlag::S_IFREG => Some(&[
            &READ_WRITE,
            &[libc::CAP_SEEK, libc::CAP_MMAP_RW, libc::CAP_FLOCK, libc::CAP_FSYNC, libc::CAP_FTRUNCATE],
        ]),
        // Pipes; and event queues, which say that they are pipes.
        SFlag::S_IFIFO => Some(&[&READ_WRITE, &[libc::CAP_KQUEUE, libc::CAP_IOCTL]]),
        // Watched for changes of the configuration.
        SFlag::S_IFDIR => Some(&[&[libc::CAP_READ, libc::CAP_LOOKUP, libc::CAP_FSTATAT]]),
        _ => None,
    }
}

fn limit(fd: RawFd, rights: &[&[u64]]) -> Result<(), Errno> {
    // SAFETY: rights of all zeroes are overwritten by the next call, which with the closing 0 alone
    // makes rights to nothing; each further call adds one right to them.
    let wanted = unsafe {
        let mut wanted: libc::cap_rights_t = std::mem::zeroed();
        libc::__cap_rights_init(libc::CAP_RIGHTS_VERSION, &mut wanted, 0u64);
        for right in ALWAYS.iter().chain(rights.iter().copied().flatten()) {
            libc::__cap_rights_set(&mut wanted, *right, 0u64);
        }
        wanted
    };
    // SAFETY: it reads the rights, which live.
    Errno::result(unsafe { libc::cap_rights_limit(fd, &wanted) }).map(drop)
}
