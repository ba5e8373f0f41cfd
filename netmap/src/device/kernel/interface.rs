//! What netmap needs to know of an interface and to change on it: MTU, MAC address, carrier,
//! promiscuous mode, offloads. Linux and FreeBSD have different calls for nearly all of it.

use std::{
    io, mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use nix::ifaddrs::getifaddrs;

use crate::queue::Losses;

/// Something that an interface does to packets between host and wire, and which must not happen
/// to packets in rings.
#[derive(PartialEq, Eq, Debug)]
pub struct Offload {
    /// As `ethtool -K` or `ifconfig` name it.
    pub name: &'static str,
    /// Whether packets are lost or damaged while it is on, so that a port cannot be used.
    pub fatal: bool,
    code: system::Code,
}

/// The offloads that netmap cannot live with, in the order in which they are turned off.
pub static OFFLOADS: &[Offload] = system::OFFLOADS;

pub(super) use system::{carrier, losses, offloads, promiscuous, set_offload, set_promiscuous};

/// An interface request by name: the common head of all these ioctls.
struct Request {
    socket: OwnedFd,
    ifreq: libc::ifreq,
}

impl Request {
    fn new(interface: &str) -> io::Result<Self> {
        // SAFETY: ifreq is plain data, all zeroes is one.
        let mut ifreq: libc::ifreq = unsafe { mem::zeroed() };
        if interface.len() >= ifreq.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in ifreq.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self { socket: unsafe { OwnedFd::from_raw_fd(fd) }, ifreq })
    }

    /// Does the ioctl `number`, which must be one that takes an `ifreq`.
    fn call(&mut self, number: libc::c_ulong) -> io::Result<()> {
        // SAFETY: every caller in this file passes a number that takes an ifreq, and what the
        // ifreq points to, if anything, outlives the call.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), number as _, &raw mut self.ifreq) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// MTU in bytes.
pub(super) fn mtu(interface: &str) -> io::Result<u32> {
    let mut request = Request::new(interface)?;
    request.call(system::SIOCGIFMTU)?;
    // SAFETY: the call has filled in the MTU.
    Ok(unsafe { request.ifreq.ifr_ifru.ifru_mtu }.max(0) as u32)
}

/// MAC address, if there is one.
pub(super) fn mac(interface: &str) -> Option<[u8; 6]> {
    let mut addresses = getifaddrs().ok()?.filter(|a| a.interface_name == interface);
    let mac = addresses.find_map(|a| a.address?.as_link_addr()?.addr())?;
    (mac != [0; 6]).then_some(mac)
}

#[cfg(target_os = "linux")]
mod system {
    //! Linux: interface flags, ethtool's one-feature requests, counters from sysfs.

    use super::*;

    pub(super) const SIOCGIFMTU: libc::c_ulong = libc::SIOCGIFMTU as libc::c_ulong;
    const SIOCGIFFLAGS: libc::c_ulong = libc::SIOCGIFFLAGS as libc::c_ulong;
    const SIOCSIFFLAGS: libc::c_ulong = libc::SIOCSIFFLAGS as libc::c_ulong;
    const SIOCETHTOOL: libc::c_ulong = 0x8946;

    const ETHTOOL_GFLAGS: u32 = 0x25;
    const ETHTOOL_SFLAGS: u32 = 0x26;

    /// How ethtool is asked.
    #[derive(PartialEq, Eq, Debug)]
    pub(super) enum Code {
        /// By two commands of its own: get, set.
        Commands(u32, u32),
        /// By this bit of the flags.
        Flag(u32),
    }

    pub(super) static OFFLOADS: &[Offload] = &[
        Offload { name: "tso", fatal: true, code: Code::Commands(0x1e, 0x1f) },
        Offload { name: "gso", fatal: false, code: Code::Commands(0x23, 0x24) },
        Offload { name: "gro", fatal: false, code: Code::Commands(0x2b, 0x2c) },
        Offload { name: "lro", fatal: false, code: Code::Flag(1 << 15) },
        Offload { name: "rxvlan", fatal: false, code: Code::Flag(1 << 8) },
        Offload { name: "txvlan", fatal: false, code: Code::Flag(1 << 7) },
        Offload { name: "tx", fatal: true, code: Code::Commands(0x16, 0x17) },
        Offload { name: "rx", fatal: false, code: Code::Commands(0x14, 0x15) },
    ];

    fn flags(interface: &str) -> io::Result<(Request, i32)> {
        let mut request = Request::new(interface)?;
        request.call(SIOCGIFFLAGS)?;
        // SAFETY: the call has filled in the flags.
        let flags = unsafe { request.ifreq.ifr_ifru.ifru_flags };
        Ok((request, i32::from(flags) & 0xffff))
    }

    pub(in super::super) fn carrier(interface: &str) -> io::Result<bool> {
        let both = libc::IFF_UP | libc::IFF_RUNNING;
        Ok(flags(interface)?.1 & both == both)
    }

    pub(in super::super) fn promiscuous(interface: &str) -> io::Result<bool> {
        Ok(flags(interface)?.1 & libc::IFF_PROMISC != 0)
    }

    pub(in super::super) fn set_promiscuous(interface: &str, on: bool) -> io::Result<()> {
        let (mut request, flags) = flags(interface)?;
        let flags = if on { flags | libc::IFF_PROMISC } else { flags & !libc::IFF_PROMISC };
        request.ifreq.ifr_ifru.ifru_flags = flags as libc::c_short;
        request.call(SIOCSIFFLAGS)
    }

    /// One ethtool request with a number in and a number out.
    fn ethtool(interface: &str, command: u32, value: u32) -> io::Result<u32> {
        let mut words = [command, value];
        let mut request = Request::new(interface)?;
        request.ifreq.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        request.call(SIOCETHTOOL)?;
        // The kernel has written through the pointer.
        // SAFETY: reading a live array.
        Ok(unsafe { (&raw const words[1]).read_volatile() })
    }

    fn is_on(interface: &str, offload: &Offload) -> io::Result<bool> {
        match offload.code {
            Code::Commands(get, _) => Ok(ethtool(interface, get, 0)? != 0),
            Code::Flag(bit) => Ok(ethtool(interface, ETHTOOL_GFLAGS, 0)? & bit != 0),
        }
    }

    pub(in super::super) fn offloads(interface: &str) -> io::Result<Vec<&'static Offload>> {
        flags(interface)?;
        // A driver that does not know of an offload has it off.
        Ok(OFFLOADS.iter().filter(|o| is_on(interface, o).unwrap_or(false)).collect())
    }

    pub(in super::super) fn set_offload(interface: &str, offload: &Offload, on: bool) -> io::Result<()> {
        match offload.code {
            Code::Commands(_, set) => ethtool(interface, set, on.into())?,
            Code::Flag(bit) => {
                let flags = ethtool(interface, ETHTOOL_GFLAGS, 0)?;
                let flags = if on { flags | bit } else { flags & !bit };
                ethtool(interface, ETHTOOL_SFLAGS, flags)?
            }
        };
        Ok(())
    }

    pub(in super::super) fn losses(interface: &str) -> Losses {
        let read = |counter: &str| {
            let path = format!("/sys/class/net/{interface}/statistics/{counter}");
            std::fs::read_to_string(path).ok().and_then(|s| s.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        Losses {
            rx_dropped: read("rx_dropped") + read("rx_missed_errors"),
            rx_errors: read("rx_errors"),
            tx_dropped: read("tx_dropped"),
            tx_errors: read("tx_errors"),
            ..Losses::default()
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    //! FreeBSD: interface flags in two halves, capabilities, media status.

    use super::*;

    pub(super) const SIOCGIFMTU: libc::c_ulong = 0xc020_6933;
    const SIOCGIFFLAGS: libc::c_ulong = 0xc020_6911;
    const SIOCSIFFLAGS: libc::c_ulong = 0x8020_6910;
    const SIOCGIFCAP: libc::c_ulong = 0xc020_691f;
    const SIOCSIFCAP: libc::c_ulong = 0x8020_691e;
    const SIOCGIFMEDIA: libc::c_ulong = 0xc030_6938;
    const IFM_AVALID: i32 = 1;
    const IFM_ACTIVE: i32 = 2;

    /// The capability's bit.
    pub(super) type Code = i32;

    pub(super) static OFFLOADS: &[Offload] = &[
        Offload { name: "tso4", fatal: true, code: libc::IFCAP_TSO4 },
        Offload { name: "tso6", fatal: true, code: libc::IFCAP_TSO6 },
        Offload { name: "lro", fatal: false, code: libc::IFCAP_LRO },
        Offload { name: "vlanhwtag", fatal: false, code: libc::IFCAP_VLAN_HWTAGGING },
        Offload { name: "txcsum", fatal: true, code: libc::IFCAP_TXCSUM },
        Offload { name: "txcsum6", fatal: true, code: libc::IFCAP_TXCSUM_IPV6 },
        Offload { name: "rxcsum", fatal: false, code: libc::IFCAP_RXCSUM },
        Offload { name: "rxcsum6", fatal: false, code: libc::IFCAP_RXCSUM_IPV6 },
    ];

    #[repr(C)]
    struct MediaRequest {
        name: [libc::c_char; libc::IFNAMSIZ],
        current: i32,
        mask: i32,
        status: i32,
        active: i32,
        count: i32,
        list: *mut i32,
    }

    const _: () = assert!(size_of::<MediaRequest>() == 48 && size_of::<libc::ifreq>() == 32);

    fn flags(interface: &str) -> io::Result<(Request, i32)> {
        let mut request = Request::new(interface)?;
        request.call(SIOCGIFFLAGS)?;
        // SAFETY: the call has filled in both halves of the flags.
        let [low, high] = unsafe { request.ifreq.ifr_ifru.ifru_flags };
        Ok((request, i32::from(low) & 0xffff | i32::from(high) << 16))
    }

    pub(in super::super) fn carrier(interface: &str) -> io::Result<bool> {
        let (request, flags) = flags(interface)?;
        if flags & libc::IFF_UP == 0 {
            return Ok(false);
        }
        // SAFETY: plain data, all zeroes is one; the name is copied from a request of this name.
        let mut media: MediaRequest = unsafe { mem::zeroed() };
        media.name = request.ifreq.ifr_name;
        // SAFETY: the call takes an ifmediareq; its list is null and its count zero.
        let result = unsafe { libc::ioctl(request.socket.as_raw_fd(), SIOCGIFMEDIA, &raw mut media) };
        // An interface without media (a tap, a VALE port) is always connected.
        Ok(result < 0 || media.status & IFM_AVALID == 0 || media.status & IFM_ACTIVE != 0)
    }

    pub(in super::super) fn promiscuous(interface: &str) -> io::Result<bool> {
        Ok(flags(interface)?.1 & libc::IFF_PPROMISC != 0)
    }

    pub(in super::super) fn set_promiscuous(interface: &str, on: bool) -> io::Result<()> {
        let (mut request, flags) = flags(interface)?;
        let flags = if on { flags | libc::IFF_PPROMISC } else { flags & !libc::IFF_PPROMISC };
        request.ifreq.ifr_ifru.ifru_flags = [flags as libc::c_short, (flags >> 16) as libc::c_short];
        request.call(SIOCSIFFLAGS)
    }

    fn capabilities(interface: &str) -> io::Result<(Request, i32)> {
        let mut request = Request::new(interface)?;
        request.call(SIOCGIFCAP)?;
        // SAFETY: the call has filled in the capabilities: what there is, and what is on.
        let [_, on] = unsafe { request.ifreq.ifr_ifru.ifru_cap };
        Ok((request, on))
    }

    pub(in super::super) fn offloads(interface: &str) -> io::Result<Vec<&'static Offload>> {
        let (_, on) = capabilities(interface)?;
        Ok(OFFLOADS.iter().filter(|o| on & o.code != 0).collect())
    }

    pub(in super::super) fn set_offload(interface: &str, offload: &Offload, on: bool) -> io::Result<()> {
        let (mut request, now) = capabilities(interface)?;
        let wanted = if on { now | offload.code } else { now & !offload.code };
        request.ifreq.ifr_ifru.ifru_cap = [wanted, 0];
        request.call(SIOCSIFCAP)
    }

    pub(in super::super) fn losses(interface: &str) -> Losses {
        let mut list = std::ptr::null_mut();
        // SAFETY: getifaddrs fills in the list, which is freed below.
        if unsafe { libc::getifaddrs(&mut list) } != 0 {
            return Losses::default();
        }
        let mut found = Losses::default();
        let mut next = list;
        // SAFETY: the list's entries, names and data live until freeifaddrs; an AF_LINK entry's
        // data is an if_data.
        unsafe {
            while let Some(entry) = next.as_ref() {
                let link = entry.ifa_addr.as_ref().is_some_and(|a| i32::from(a.sa_family) == libc::AF_LINK);
                let name = std::ffi::CStr::from_ptr(entry.ifa_name);
                if link && name.to_bytes() == interface.as_bytes() && !entry.ifa_data.is_null() {
                    let data = entry.ifa_data.cast::<libc::if_data>().read_unaligned();
                    found = Losses {
                        rx_dropped: data.ifi_iqdrops,
                        rx_errors: data.ifi_ierrors,
                        tx_dropped: data.ifi_oqdrops,
                        tx_errors: data.ifi_oerrors,
                        ..Losses::default()
                    };
                }
                next = entry.ifa_next;
            }
            libc::freeifaddrs(list);
        }
        found
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_can_be_asked() {
        assert!(mtu("lo").unwrap() >= 1500);
        assert!(mac("lo").is_none());
        assert!(!promiscuous("lo").unwrap());
        offloads("lo").unwrap();
        assert_eq!(losses("lo").rx_errors, 0);
    }

    #[test]
    fn an_unknown_interface_is_an_error() {
        for error in
            [mtu("nosuch0").map(|_| ()), carrier("nosuch0").map(|_| ()), offloads("nosuch0").map(|_| ())]
        {
            assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ENODEV));
        }
        assert_eq!(mtu("a-name-that-is-too-long").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
