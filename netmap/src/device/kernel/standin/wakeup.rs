//! The stand-in's descriptors: real ones, so that `poll(2)` works on them.

use std::{io, os::fd::RawFd};

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A descriptor not registered yet: the writing end of a broken pipe, which polls as an error.
pub(super) fn new() -> io::Result<RawFd> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both ends; the reading end is ours and closed once.
    unsafe {
        check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK))?;
        libc::close(ends[0]);
    }
    Ok(ends[1])
}

/// Turns it into one that can be woken.
pub(super) fn arm(fd: RawFd) -> io::Result<()> {
    // SAFETY: the event descriptor is ours and closed once; `fd` is the caller's to replace.
    unsafe {
        let event = check(libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC))?;
        let result = check(libc::dup2(event, fd));
        libc::close(event);
        result.map(|_| ())
    }
}

/// Makes it readable.
pub(super) fn wake(fd: RawFd) {
    // SAFETY: eight live bytes; the counter does not fill up in the life of a test.
    unsafe { libc::write(fd, std::ptr::from_ref(&1u64).cast(), 8) };
}

/// Makes it not readable.
pub(super) fn drain(fd: RawFd) {
    let mut count = 0u64;
    // SAFETY: eight live bytes; the descriptor does not block.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}

/// Closes it.
pub(super) fn close(fd: RawFd) {
    // SAFETY: the caller owns the descriptor and gives it up.
    unsafe { libc::close(fd) };
}
