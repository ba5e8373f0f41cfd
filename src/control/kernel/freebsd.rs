//! Following a kernel that is not Linux: not there yet, and said so.

use std::io;

use super::{Follow, Opened};

/// Opens the kernel's news.
///
/// # Errors
/// Always, so far: this system's routing socket is not followed yet.
pub fn open(_follow: Follow) -> io::Result<Opened> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "following this system's routing table is not supported yet: set [kernel] routes = false and \
         give addresses, routes and neighbours in the configuration",
    ))
}
