//! Which interfaces take frames that a program redirects to them: the kernel's `netdev` family of
//! generic netlink says so, and tells when that changes. Frames for any other would vanish.
//!
//! A veth takes some only while its peer has GRO switched on or an XDP program; the peer may be in
//! another namespace.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::Sender;
use netlink_packet_core::NlasIterator;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use nix::sys::{
    socket::{setsockopt, sockopt::ReceiveTimeout},
    time::TimeVal,
};

/// Message type of the family that knows all families, its command, and attributes of its answer.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GROUPS: u16 = 7;
const GROUP_NAME: u16 = 1;
const GROUP_ID: u16 = 2;
/// `netdev`: the command, and attributes of its answer.
const GET_DEVICE: u8 = 1;
const IFINDEX: u16 = 1;
const XDP_FEATURES: u16 = 3;
/// The feature: takes redirected frames.
const TRANSMITS: u64 = 4;
/// Headers of netlink and of generic netlink, in bytes.
const HEADER: usize = 16;
const GENERIC: usize = 4;
/// How long the thread goes on when nobody listens any more.
const LOOK: Duration = Duration::from_millis(500);

/// Asks the kernel, in the namespace of the thread that made it.
pub(super) struct Devices {
    socket: Socket,
    family: u16,
    over: Arc<AtomicBool>,
}

impl Devices {
    /// Opens the way to ask, and has `bell` rung when an interface may have changed.
    ///
    /// # Errors
    /// `NotFound` before Linux 6.3, which cannot say; otherwise the system's.
    pub fn open(bell: Sender<()>) -> io::Result<Self> {
        let socket = connect()?;
        let mut name = b"netdev\0".to_vec();
        name.resize(8, 0);
        let answer = ask(&socket, CONTROL, GET_FAMILY, FAMILY_NAME, 7, &name)?;
        let unknown = || io::Error::from(io::ErrorKind::NotFound);
        let family = attribute(&answer, FAMILY_ID).and_then(number).ok_or_else(unknown)? as u16;
        let over = Arc::new(AtomicBool::new(false));
        if let Some(group) = attribute(&answer, GROUPS).and_then(|groups| group(&groups, "mgmt")) {
            listen(group, bell, over.clone())?;
        }
        Ok(Self { socket, family, over })
    }

    /// Whether the interface takes redirected frames; one that is gone does not.
    pub fn take_frames(&self, interface: u32) -> bool {
        let answer = ask(&self.socket, self.family, GET_DEVICE, IFINDEX, 4, &interface.to_ne_bytes());
        let features = answer.ok().and_then(|answer| number(attribute(&answer, XDP_FEATURES)?));
        features.is_some_and(|features| features & TRANSMITS != 0)
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn connect() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::new(0, LOOK.as_micros() as i64))
        .map_err(io::Error::from)?;
    Ok(socket)
}

/// Rings the bell whenever something comes from a group.
fn listen(group: u32, bell: Sender<()>, over: Arc<AtomicBool>) -> io::Result<()> {
    let socket = connect()?;
    socket.add_membership(group)?;
    std::thread::Builder::new().name("express-devices".into()).spawn(move || {
        while !over.load(Ordering::Relaxed) {
            match socket.recv_from_full() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock || e.kind() == io::ErrorKind::Interrupted => {
                }
                // What was lost may have been about any of them.
                Ok(_) | Err(_) => {
                    let _ = bell.try_send(());
                }
            }
        }
    })?;
    Ok(())
}

/// Sends a command with one attribute of `len` bytes, padded to four, and gives the answer's
/// attributes.
fn ask(socket: &Socket, family: u16, command: u8, kind: u16, len: u16, value: &[u8]) -> io::Result<Vec<u8>> {
    const REQUEST: u16 = 1;
    const ERROR: u16 = 2;
    let total = (HEADER + GENERIC + 4 + value.len()) as u32;
    let mut message = total.to_ne_bytes().to_vec();
    message.extend(family.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend((4 + len).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    socket.send(&message, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let head = answer.first_chunk::<{ HEADER + GENERIC }>().ok_or(io::ErrorKind::InvalidData)?;
    if u16::from_ne_bytes([head[4], head[5]]) == ERROR {
        let code = i32::from_ne_bytes([head[16], head[17], head[18], head[19]]);
        return Err(io::Error::from_raw_os_error(-code));
    }
    Ok(answer[HEADER + GENERIC..].to_vec())
}

fn attribute(attributes: &[u8], kind: u16) -> Option<Vec<u8>> {
    let found = NlasIterator::new(attributes).flatten().find(|found| found.kind() == kind)?;
    Some(found.value().to_vec())
}

/// A number of 2, 4 or 8 bytes.
fn number(bytes: Vec<u8>) -> Option<u64> {
    Some(match bytes[..] {
        [a, b] => u16::from_ne_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => return None,
    })
}

/// The number of the multicast group called `name`.
fn group(groups: &[u8], name: &str) -> Option<u32> {
    NlasIterator::new(groups).flatten().find_map(|group| {
        let is_it = attribute(group.value(), GROUP_NAME)?.split(|byte| *byte == 0).next()? == name.as_bytes();
        number(attribute(group.value(), GROUP_ID)?).filter(|_| is_it).map(|id| id as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_takes_no_redirected_frames() {
        let (bell, _) = crossbeam_channel::bounded(1);
        match Devices::open(bell) {
            Ok(devices) => {
                assert!(!devices.take_frames(1));
                assert!(!devices.take_frames(0x7fff_fff0), "there is no such interface");
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => println!("skipped: needs Linux 6.3"),
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn what_is_no_answer_gives_nothing() {
        for bytes in [&[][..], &[3], &[4, 0, 1, 0], &[9, 0, 1, 0, 1], &[6, 0, 7, 0, 1, 2, 0, 0]] {
            assert_eq!(attribute(bytes, 1).and_then(number), None);
            assert_eq!(group(bytes, "mgmt"), None);
        }
    }
}
