//! The seam to the system: everything that the kernel's netmap device asks of it, and nothing
//! else. Behind it stands the real kernel ([`Kernel`]), or a stand-in for tests.

use std::{
    ffi::{c_ulong, c_void},
    fmt, io,
    os::fd::RawFd,
    sync::Arc,
};

use super::interface;
use crate::{abi, arena::Mapping, queue::Losses, ring::Direction};

pub use super::interface::{OFFLOADS, Offload};

/// The system calls on netmap descriptors, and what is asked of network interfaces.
pub trait System: Send + Sync + fmt::Debug {
    /// Opens `/dev/netmap`.
    ///
    /// # Errors
    /// `ENOENT` without netmap in the kernel, `EACCES` without permission.
    fn open(&self) -> io::Result<RawFd>;

    /// Closes a descriptor that [`System::open`] gave.
    fn close(&self, fd: RawFd);

    /// `ioctl(2)`.
    ///
    /// # Safety
    /// `argument` leads to what `request` takes: for `NIOCCTRL` a `nmreq_header` whose body is of
    /// the request's type and alive; for the syncs it is null.
    ///
    /// # Errors
    /// The kernel's.
    unsafe fn ioctl(&self, fd: RawFd, request: c_ulong, argument: *mut c_void) -> io::Result<()>;

    /// Maps the first `len` bytes of the memory of the registered port, to be read and written.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` before a register.
    fn mmap(&self, fd: RawFd, len: usize) -> io::Result<Mapping>;

    /// The interface's MTU in bytes, without the Ethernet header.
    ///
    /// # Errors
    /// `ENODEV` or `ENXIO` when there is no such interface.
    fn mtu(&self, interface: &str) -> io::Result<u32>;

    /// The interface's MAC address, if it has one.
    fn mac(&self, interface: &str) -> Option<[u8; 6]>;

    /// Whether the interface is up and has a carrier.
    ///
    /// # Errors
    /// As for [`System::mtu`].
    fn carrier(&self, interface: &str) -> io::Result<bool>;

    /// Whether somebody has asked for promiscuous mode by the interface's flag.
    ///
    /// # Errors
    /// As for [`System::mtu`].
    fn promiscuous(&self, interface: &str) -> io::Result<bool>;

    /// Sets or clears that flag.
    ///
    /// # Errors
    /// As for [`System::mtu`], and `EPERM`.
    fn set_promiscuous(&self, interface: &str, on: bool) -> io::Result<()>;

    /// Which of [`OFFLOADS`] are on.
    ///
    /// # Errors
    /// As for [`System::mtu`].
    fn offloads(&self, interface: &str) -> io::Result<Vec<&'static Offload>>;

    /// Turns one on or off.
    ///
    /// # Errors
    /// As for [`System::mtu`], and `EPERM`, and `EOPNOTSUPP` or `EINVAL` where the driver has it
    /// fixed.
    fn set_offload(&self, interface: &str, offload: &Offload, on: bool) -> io::Result<()>;

    /// What the interface itself counts as lost, since it exists.
    fn losses(&self, interface: &str) -> Losses;
}

/// The kernel that the program runs on.
#[derive(Debug)]
pub struct Kernel;

impl System for Kernel {
    fn open(&self) -> io::Result<RawFd> {
        // SAFETY: a constant, terminated path.
        let fd = unsafe { libc::open(c"/dev/netmap".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
    }

    fn close(&self, fd: RawFd) {
        // SAFETY: the descriptor came from `open` and its owner gives it up.
        unsafe { libc::close(fd) };
    }

    unsafe fn ioctl(&self, fd: RawFd, request: c_ulong, argument: *mut c_void) -> io::Result<()> {
        // SAFETY: by the caller's word the argument fits the request.
        let result = unsafe { libc::ioctl(fd, request as _, argument) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn mmap(&self, fd: RawFd, len: usize) -> io::Result<Mapping> {
        map_shared(fd, len)
    }

    fn mtu(&self, interface: &str) -> io::Result<u32> {
        interface::mtu(interface)
    }

    fn mac(&self, interface: &str) -> Option<[u8; 6]> {
        interface::mac(interface)
    }

    fn carrier(&self, interface: &str) -> io::Result<bool> {
        interface::carrier(interface)
    }

    fn promiscuous(&self, interface: &str) -> io::Result<bool> {
        interface::promiscuous(interface)
    }

    fn set_promiscuous(&self, interface: &str, on: bool) -> io::Result<()> {
        interface::set_promiscuous(interface, on)
    }

    fn offloads(&self, interface: &str) -> io::Result<Vec<&'static Offload>> {
        interface::offloads(interface)
    }

    fn set_offload(&self, interface: &str, offload: &Offload, on: bool) -> io::Result<()> {
        interface::set_offload(interface, offload, on)
    }

    fn losses(&self, interface: &str) -> Losses {
        interface::losses(interface)
    }
}

/// Maps the first `len` bytes of what `fd` is, shared, to be read and written.
pub(super) fn map_shared(fd: RawFd, len: usize) -> io::Result<Mapping> {
    // SAFETY: a fresh mapping; no existing memory is touched.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0)
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = std::ptr::NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::Other))?;
    // SAFETY: mmap just gave this range, and only the new value will unmap it.
    Ok(unsafe { Mapping::from_raw(start, len) })
}

/// A netmap descriptor, closed when dropped.
#[derive(Debug)]
pub(super) struct Descriptor {
    system: Arc<dyn System>,
    fd: RawFd,
}

impl Descriptor {
    pub(super) fn open(system: &Arc<dyn System>) -> io::Result<Self> {
        Ok(Self { system: system.clone(), fd: system.open()? })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd
    }

    pub(super) fn map(&self, len: usize) -> io::Result<Mapping> {
        self.system.mmap(self.fd, len)
    }

    /// Syncs the rings of one direction that are bound to the descriptor.
    pub(super) fn sync(&self, direction: Direction) -> io::Result<()> {
        let request = match direction {
            Direction::Rx => abi::NIOCRXSYNC,
            Direction::Tx => abi::NIOCTXSYNC,
        };
        // SAFETY: the syncs take no argument.
        unsafe { self.system.ioctl(self.fd, request, std::ptr::null_mut()) }
    }

    /// Binds rings of `port` to the descriptor; `body` says which, and becomes the kernel's reply.
    pub(super) fn register(&self, port: &str, body: &mut abi::nmreq_register) -> io::Result<()> {
        // SAFETY: the body is that of a register.
        unsafe { self.request(abi::NETMAP_REQ_REGISTER, port, body) }
    }

    /// Rings and slots of `port`.
    pub(super) fn port_info(&self, port: &str) -> io::Result<abi::nmreq_port_info_get> {
        let mut body = abi::nmreq_port_info_get::default();
        // SAFETY: the body is that of the request.
        unsafe { self.request(abi::NETMAP_REQ_PORT_INFO_GET, port, &mut body) }?;
        Ok(body)
    }

    /// What the memory of `port` is made of.
    pub(super) fn pools_info(&self, port: &str) -> io::Result<abi::nmreq_pools_info> {
        let mut body = abi::nmreq_pools_info::default();
        // SAFETY: the body is that of the request.
        unsafe { self.request(abi::NETMAP_REQ_POOLS_INFO_GET, port, &mut body) }?;
        Ok(body)
    }

    /// # Safety
    /// `T` is the body that requests of this type have.
    unsafe fn request<T>(&self, kind: u16, port: &str, body: &mut T) -> io::Result<()> {
        let mut name = [0; abi::NETMAP_REQ_IFNAMSIZ];
        if port.len() >= name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        name[..port.len()].copy_from_slice(port.as_bytes());
        let mut header = abi::nmreq_header {
            nr_version: abi::NETMAP_API,
            nr_reqtype: kind,
            nr_reserved: 0,
            nr_name: name,
            nr_options: 0,
            nr_body: std::ptr::from_mut(body) as u64,
        };
        // SAFETY: header and body live until the call returns, and fit by the caller's word.
        unsafe { self.system.ioctl(self.fd, abi::NIOCCTRL, (&raw mut header).cast()) }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.system.close(self.fd);
    }
}
