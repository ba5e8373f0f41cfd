//! The kernel's network interface behind a port: what AF_XDP needs to know of it, and the
//! offloads that must be off while the port is open.
//!
//! Everything is asked through one datagram socket, which stays in the network namespace that the
//! port was opened in, whichever thread asks later.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

const ETHTOOL_GET_CHANNELS: u32 = 0x3c;
const ETHTOOL_GET_FLAGS: u32 = 0x25;
const ETHTOOL_SET_FLAGS: u32 = 0x26;
const ETHTOOL_GET_GRO: u32 = 0x2b;
const ETHTOOL_SET_GRO: u32 = 0x2c;
/// The device cuts VLAN tags off, so that neither the program nor a worker sees them.
const FLAG_RX_VLAN: u32 = 1 << 8;
const FLAG_LRO: u32 = 1 << 15;

/// An interface, known by its index: its name may change, or become another's.
#[derive(Debug)]
pub struct Netif {
    index: u32,
    socket: OwnedFd,
}

/// Receive and transmit queues of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queues {
    /// Receive queues, at least one.
    pub rx: u32,
    /// Transmit queues, at least one.
    pub tx: u32,
}

/// Offloads that were switched off, to be switched on again.
#[derive(Debug, Default)]
pub struct Offloads {
    gro: bool,
    flags: u32,
}

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

fn empty_request() -> libc::ifreq {
    // SAFETY: zeroes are fine for integers and a null pointer.
    unsafe { std::mem::zeroed() }
}

impl Netif {
    /// Finds the interface in the calling thread's network namespace.
    ///
    /// # Errors
    /// `ENODEV` when there is none of this name.
    pub fn find(name: &str) -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut this = Self { index: 0, socket };
        let mut request = empty_request();
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.len() >= request.ifr_name.len() || bytes.contains(&0) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        this.call(libc::SIOCGIFINDEX as libc::c_ulong, &mut request)?;
        // SAFETY: the kernel filled this field of the union.
        this.index = unsafe { request.ifr_ifru.ifru_ifindex } as u32;
        Ok(this)
    }

    /// Its index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its name of the moment, or its index when it has none any more.
    pub fn name(&self) -> String {
        self.request().map_or_else(
            |_| format!("number {}", self.index),
            |request| request.ifr_name.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect(),
        )
    }

    /// A request with the interface's name of the moment.
    fn request(&self) -> io::Result<libc::ifreq> {
        let mut request = empty_request();
        request.ifr_ifru.ifru_ifindex = self.index as libc::c_int;
        self.call(libc::SIOCGIFNAME as libc::c_ulong, &mut request)?;
        request.ifr_ifru = empty_request().ifr_ifru;
        Ok(request)
    }

    fn call(&self, command: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: the request is alive; what it points to is, by each caller's construction.
        let r = unsafe { libc::ioctl(self.socket.as_raw_fd(), command as _, &raw mut *request) };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn ask(&self, command: libc::c_ulong) -> io::Result<libc::ifreq> {
        let mut request = self.request()?;
        self.call(command, &mut request)?;
        Ok(request)
    }

    fn ethtool<T>(&self, argument: &mut T) -> io::Result<()> {
        let mut request = self.request()?;
        request.ifr_ifru.ifru_data = std::ptr::from_mut(argument).cast();
        self.call(libc::SIOCETHTOOL as libc::c_ulong, &mut request)
    }

    fn flags(&self) -> io::Result<libc::c_int> {
        let request = self.ask(libc::SIOCGIFFLAGS as libc::c_ulong)?;
        // SAFETY: the kernel filled this field of the union.
        Ok(libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags }))
    }

    /// Whether it is up.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_up(&self) -> io::Result<bool> {
        Ok(self.flags()? & libc::IFF_UP != 0)
    }

    /// Whether it is up and has a carrier.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_running(&self) -> io::Result<bool> {
        Ok(self.flags()? & libc::IFF_RUNNING != 0)
    }

    /// Longest packet in bytes, without the Ethernet header.
    ///
    /// # Errors
    /// The kernel's.
    pub fn mtu(&self) -> io::Result<u32> {
        let request = self.ask(libc::SIOCGIFMTU as libc::c_ulong)?;
        // SAFETY: the kernel filled this field of the union.
        Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
    }

    /// Its MAC address; `None` when it is no Ethernet interface.
    ///
    /// # Errors
    /// The kernel's.
    pub fn mac(&self) -> io::Result<Option<[u8; 6]>> {
        let request = self.ask(libc::SIOCGIFHWADDR as libc::c_ulong)?;
        // SAFETY: the kernel filled this field of the union.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        if address.sa_family != libc::ARPHRD_ETHER {
            return Ok(None);
        }
        let bytes = address.sa_data.map(|b| b as u8);
        Ok(bytes.first_chunk().copied())
    }

    /// How many queues are in use. A driver that does not say has one.
    pub fn queues(&self) -> Queues {
        #[repr(C)]
        #[derive(Default)]
        struct Channels {
            command: u32,
            max: [u32; 4],
            rx: u32,
            tx: u32,
            other: u32,
            combined: u32,
        }
        let mut channels = Channels { command: ETHTOOL_GET_CHANNELS, ..Channels::default() };
        match self.ethtool(&mut channels) {
            Ok(()) => Queues {
                rx: channels.rx.saturating_add(channels.combined).max(1),
                tx: channels.tx.saturating_add(channels.combined).max(1),
            },
            Err(_) => Queues { rx: 1, tx: 1 },
        }
    }

    fn get_value(&self, command: u32) -> io::Result<u32> {
        let mut value = EthtoolValue { command, data: 0 };
        self.ethtool(&mut value)?;
        Ok(value.data)
    }

    fn set_value(&self, command: u32, data: u32) -> io::Result<()> {
        self.ethtool(&mut EthtoolValue { command, data })
    }

    /// Switches off what hides VLAN tags, and, when `merging` says so, what makes one long packet
    /// of several (GRO, LRO). Gives what was on, for [`Netif::restore`].
    ///
    /// # Errors
    /// When the device refuses one of them.
    pub fn offloads_off(&self, merging: bool) -> io::Result<Offloads> {
        let mut off = Offloads::default();
        let unwanted = if merging { FLAG_LRO | FLAG_RX_VLAN } else { FLAG_RX_VLAN };
        // A device that knows no such flags has none to switch off.
        let flags = self.get_value(ETHTOOL_GET_FLAGS).unwrap_or(0);
        if flags & unwanted != 0 {
            self.set_value(ETHTOOL_SET_FLAGS, flags & !unwanted)?;
            off.flags = flags & unwanted;
        }
        if merging && self.get_value(ETHTOOL_GET_GRO).unwrap_or(0) != 0 {
            match self.set_value(ETHTOOL_SET_GRO, 0) {
                Ok(()) => off.gro = true,
                Err(e) => {
                    self.restore(&off)?;
                    return Err(e);
                }
            }
        }
        Ok(off)
    }

    /// Switches on again what [`Netif::offloads_off`] switched off.
    ///
    /// # Errors
    /// The kernel's; `ENODEV` when the interface is gone.
    pub fn restore(&self, off: &Offloads) -> io::Result<()> {
        if off.flags != 0 {
            let now = self.get_value(ETHTOOL_GET_FLAGS)?;
            self.set_value(ETHTOOL_SET_FLAGS, now | off.flags)?;
        }
        if off.gro {
            self.set_value(ETHTOOL_SET_GRO, 1)?;
        }
        Ok(())
    }
}
