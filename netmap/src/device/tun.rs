//! A TUN device: the way up to the host's stack for the rare packet of an `xdp:` port that a
//! worker has looked at first.
//!
//! It is a transmit queue like any other: what is put into its ring is written to the device as an
//! IP packet, without its Ethernet header and VLAN tags, and the host receives it there. Nothing
//! is expected back; what the host sends to the device is read and thrown away. The device is
//! gone when the queue is dropped, or the process ends.

use std::{
    fs, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::OpenError;
use crate::{
    arena::{Arena, BUF_SIZE},
    queue::{TxDevice, TxQueue},
    ring::{Direction, Kring, TxRing},
};

/// Slots of the ring, unless it is cut from a caller's arena.
const SLOTS: u32 = 256;
/// An Ethernet header with two tags must fit a buffer, too.
const MAX_MTU: u32 = BUF_SIZE - 22;
const MIN_MTU: u32 = 68;

/// An open TUN device.
pub struct Tun {
    /// Frames for the host: Ethernet, with IPv4 or IPv6 inside.
    pub queue: TxQueue,
    /// The interface's name as the kernel gave it.
    pub interface: String,
    /// Frames that were not IP, or that the kernel refused.
    pub refused: Arc<AtomicU64>,
}

/// Makes a TUN interface called `name` (a `%d` in it becomes a number), up, with the given MTU in
/// bytes, without reverse-path filter and without any IPv6 address of its own. Its ring lies in an
/// arena of its own: packets are copied into it.
///
/// # Errors
/// [`OpenError`]: without CAP_NET_ADMIN, when the name is taken, when `/dev/net/tun` is missing,
/// and when the host filters by reverse path on all interfaces, for then it would drop what comes
/// in here without a word.
pub fn open(name: &str, mtu: u32) -> Result<Tun, OpenError> {
    let mut arena = Arena::new(1, SLOTS, 0)
        .map_err(|e| OpenError::new(format!("the way up to the host (TUN {})", name.replace("%d", "")), e))?;
    open_in(&mut arena, SLOTS, name, mtu)
}

/// As [`open`], with a ring of `slots` slots from `arena`: packets of its other rings come by
/// exchanging buffers.
///
/// # Errors
/// As for [`open`].
///
/// # Panics
/// When the arena has no room for the ring.
pub fn open_in(arena: &mut Arena, slots: u32, name: &str, mtu: u32) -> Result<Tun, OpenError> {
    let fail = |reason: String| OpenError::new(format!("tun:{name}"), reason);
    let mtu = mtu.clamp(MIN_MTU, MAX_MTU);
    if sysctl("ipv4/conf/all/rp_filter").is_some_and(|v| v == "1") {
        return Err(fail(
            "net.ipv4.conf.all.rp_filter is 1, so the host would drop what is handed up here; \
             set it to 0, and net.ipv4.conf.default.rp_filter for the interfaces that need it"
                .into(),
        ));
    }
    let (fd, interface) = create(name).map_err(|e| fail(explain(&e)))?;
    set_up(&interface, mtu).map_err(|e| fail(format!("setting up {interface}: {e}")))?;
    let view = arena.ring(Direction::Tx, slots, 0);
    let refused = Arc::<AtomicU64>::default();
    let device = TunTx { ring: Kring::new(view.clone()), fd, refused: refused.clone() };
    Ok(Tun { queue: TxQueue::new(TxRing::new(view), Box::new(device)), interface, refused })
}

fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "not permitted to make a TUN device; run as root or give CAP_NET_ADMIN".into()
        }
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            format!("there is no /dev/net/tun ({error}); `modprobe tun`")
        }
        Some(libc::EBUSY) => "an interface of this name is in use; end its owner, or choose another".into(),
        Some(libc::EINVAL) => format!("no name for an interface: {error}"),
        _ => format!("making a TUN device: {error}"),
    }
}

/// Where the kernel's setting is; the calling thread's network namespace counts.
fn sysctl_path(name: &str) -> String {
    format!("/proc/sys/net/{name}")
}

fn sysctl(name: &str) -> Option<String> {
    fs::read_to_string(sysctl_path(name)).ok().map(|v| v.trim().to_owned())
}

/// Writes a setting; one that this kernel does not have needs no writing.
fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    match fs::write(sysctl_path(name), value) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn empty_request() -> libc::ifreq {
    // SAFETY: zeroes are fine for integers and a null pointer.
    unsafe { std::mem::zeroed() }
}

fn create(name: &str) -> io::Result<(OwnedFd, String)> {
    let fd: OwnedFd = {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
        options.open("/dev/net/tun")?.into()
    };
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_TUN_EXCL) as libc::c_short;
    ioctl(&fd, libc::TUNSETIFF as libc::c_ulong, &mut request)?;
    let name = request.ifr_name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    let name = String::from_utf8(name).map_err(io::Error::other)?;
    Ok((fd, name))
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    let mut request = empty_request();
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn ioctl(fd: &OwnedFd, command: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the request is alive; none of the commands in use follows a pointer in it.
    let r = unsafe { libc::ioctl(fd.as_raw_fd(), command as _, &raw mut *request) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Settings first, then up: the kernel would give it a link-local address at once.
fn set_up(interface: &str, mtu: u32) -> io::Result<()> {
    set_sysctl(&format!("ipv4/conf/{interface}/rp_filter"), "0")?;
    for (setting, value) in [("addr_gen_mode", "1"), ("autoconf", "0"), ("accept_ra", "0")] {
        set_sysctl(&format!("ipv6/conf/{interface}/{setting}"), value)?;
    }
    // SAFETY: no memory is involved.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let mut r = request(interface)?;
    r.ifr_ifru.ifru_mtu = mtu as libc::c_int;
    ioctl(&socket, libc::SIOCSIFMTU as libc::c_ulong, &mut r)?;
    let mut r = request(interface)?;
    ioctl(&socket, libc::SIOCGIFFLAGS as libc::c_ulong, &mut r)?;
    // SAFETY: the kernel filled this field of the union.
    let flags = unsafe { r.ifr_ifru.ifru_flags };
    r.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    ioctl(&socket, libc::SIOCSIFFLAGS as libc::c_ulong, &mut r)
}

/// The IP packet in an Ethernet frame, past its VLAN tags; `None` for anything else.
fn ip_packet(frame: &[u8]) -> Option<&[u8]> {
    let mut at = 12;
    loop {
        let packet = frame.get(at + 2..)?;
        match frame[at..at + 2] {
            [0x81, 0] | [0x88, 0xa8] => at += 4,
            [0x08, 0] if packet.first()? >> 4 == 4 => return Some(packet),
            [0x86, 0xdd] if packet.first()? >> 4 == 6 => return Some(packet),
            _ => return None,
        }
    }
}

struct TunTx {
    ring: Kring,
    fd: OwnedFd,
    refused: Arc<AtomicU64>,
}

impl TunTx {
    fn write(&self, packet: &[u8]) -> io::Result<()> {
        loop {
            // SAFETY: the packet is alive.
            let n = unsafe { libc::write(self.fd.as_raw_fd(), packet.as_ptr().cast(), packet.len()) };
            if n >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Throws away what the host has sent, at most a few packets at a time.
    fn drain(&self) {
        let mut byte = [0u8; 1];
        for _ in 0..16 {
            // SAFETY: the buffer is alive; the rest of the packet is cut off.
            let n = unsafe { libc::read(self.fd.as_raw_fd(), byte.as_mut_ptr().cast(), byte.len()) };
            if n < 0 {
                return;
            }
        }
    }
}

impl TxDevice for TunTx {
    fn sync(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        let mut any = false;
        while let Some(slot) = self.ring.take() {
            any = true;
            let slot = *slot;
            let sent = match self.ring.bytes(&slot).and_then(ip_packet) {
                Some(packet) => self.write(packet),
                None => Err(io::ErrorKind::InvalidData.into()),
            };
            if let Err(e) = sent {
                self.refused.store(self.refused.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                // The interface was deleted: EBADFD, and it will not come back.
                if matches!(e.raw_os_error(), Some(libc::EBADFD | libc::ENODEV | libc::ENXIO)) {
                    result = Err(io::Error::from_raw_os_error(libc::ENXIO));
                }
            }
        }
        if any {
            self.drain();
        }
        while self.ring.room() > 0 {
            self.ring.give();
        }
        self.ring.publish();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_stripped_and_other_frames_refused() {
        let frame = |rest: &[u8]| [&[0; 12], rest].concat();
        assert_eq!(ip_packet(&frame(&[8, 0, 0x45, 7])), Some(&[0x45, 7][..]));
        assert_eq!(ip_packet(&frame(&[0x86, 0xdd, 0x60])), Some(&[0x60][..]));
        assert_eq!(ip_packet(&frame(&[0x81, 0, 0, 5, 8, 0, 0x45])), Some(&[0x45][..]));
        assert_eq!(ip_packet(&frame(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0, 0x45])), Some(&[0x45][..]));
        for bad in [&[8, 0][..], &[8, 0, 0x60], &[8, 6, 0x45], &[0x81, 0, 0], &[0x81, 0, 0, 5], &[8], &[]] {
            assert_eq!(ip_packet(&frame(bad)), None, "{bad:?}");
        }
        assert_eq!(ip_packet(&[1, 2, 3]), None);
    }

    #[test]
    fn a_name_that_cannot_be_is_refused() {
        for bad in ["", "a-name-longer-than-fifteen", "a\0b"] {
            assert_eq!(request(bad).err().and_then(|e| e.raw_os_error()), Some(libc::EINVAL));
        }
    }
}
