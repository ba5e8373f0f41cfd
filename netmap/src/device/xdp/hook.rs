//! A place for a program that sees a port's packets before its sockets do.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use super::bpf::Map;

/// Where a port's own program goes on to another one, with every frame that is not the host's, before it
/// would give it to a socket. The other program may forward it, or redirect it to [`Hook::sockets`]
/// by itself. Without one, and while one is put there or taken away, nothing is lost.
#[derive(Debug)]
pub struct Hook {
    pub(super) program: Map<4>,
    pub(super) sockets: Map<4>,
    pub(super) interface: u32,
}

impl Hook {
    /// The port's sockets, by receive queue: a map to redirect to.
    pub fn sockets(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }

    /// The number of the port's interface.
    pub fn interface(&self) -> u32 {
        self.interface
    }

    /// Has the port go on to this XDP program from the next packet on. It stays there when its
    /// descriptor is closed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set(&self, program: BorrowedFd) -> io::Result<()> {
        self.program.set(&[0; 4], &program.as_raw_fd().to_ne_bytes())
    }

    /// Takes the program away; fine where there is none.
    ///
    /// # Errors
    /// The kernel's.
    pub fn clear(&self) -> io::Result<()> {
        self.program.remove(&[0; 4])
    }
}
