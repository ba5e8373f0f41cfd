//! `xdp:eth0`: Linux AF_XDP, no kernel module needed.
//!
//! The buffers of the ports opened together are one UMEM: buffer `n` is the 2048 bytes at `n *
//! 2048`, and packets lie 256 bytes into theirs, where the kernel puts them. Each queue of each
//! interface has one socket, whose four rings stand behind a netmap ring pair (`queue`). An XDP
//! program decides what goes to the sockets and what to the host's own stack (`program`); program,
//! maps and attachment are descriptors and go when the process goes, however it ends.
//!
//! An interface that is removed, or moved to another namespace, is found gone by the next receive
//! sync (an idle queue asks every 200 ms) or transmit kick: `ENXIO`. `poll(2)` does not report it,
//! so whoever sleeps on the socket must do so with a timeout, half a second say.
//!
//! Frames from a veth's peer and from virtual machines carry unfinished TCP and UDP checksums, and
//! may keep their VLAN tag where no program sees it: `ethtool -K DEV tx off txvlan off` there.

use super::{OpenError, OpenOptions, Port};

#[cfg(target_os = "linux")]
pub mod asm;
#[cfg(target_os = "linux")]
pub mod bpf;
#[cfg(target_os = "linux")]
mod counters;
#[cfg(target_os = "linux")]
mod hook;
#[cfg(target_os = "linux")]
mod netif;
#[cfg(target_os = "linux")]
mod port;
#[cfg(target_os = "linux")]
mod program;
#[cfg(target_os = "linux")]
mod queue;
#[cfg(target_os = "linux")]
mod settings;
#[cfg(target_os = "linux")]
mod socket;
#[cfg(target_os = "linux")]
mod steering;

#[cfg(target_os = "linux")]
pub use hook::Hook;

/// Opens ports on interfaces (by the kernel's names) of the calling thread's network namespace;
/// gives them in the order of the requests. Ports that are driven alike (all zero-copy, or all
/// not) share an arena.
///
/// `rings` must be the interface's number of receive queues, if given: what arrives on a queue
/// without a socket would bypass the workers. `slots` is rounded up to a power of two, at least 64;
/// default 2048. Frames of `vlans` are for the rings, those of other VLANs the host's.
///
/// Packets to the host's addresses at that moment already go up; [`PortControl::set_local`]
/// says which they are from then on.
///
/// [`PortControl::set_local`]: super::PortControl::set_local
///
/// # Errors
/// [`OpenError`] about the first port that cannot be opened; none stays open then.
#[cfg(target_os = "linux")]
pub fn open_all(requests: &[(String, OpenOptions)]) -> Result<Vec<Port>, OpenError> {
    port::open_all(requests)
}

/// AF_XDP is Linux's.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn open_all(requests: &[(String, OpenOptions)]) -> Result<Vec<Port>, OpenError> {
    match requests.first() {
        None => Ok(Vec::new()),
        Some((interface, _)) => Err(OpenError::new(
            format!("xdp:{interface}"),
            "AF_XDP exists only on Linux; use netmap:INTERFACE here",
        )),
    }
}
