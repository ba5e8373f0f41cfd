//! Express: plain packets are forwarded in the driver, by an XDP program that reads the workers' own
//! tables (`express.bpf.c`); whatever is not plain goes on to the workers, which are the reference.
//!
//! The arrays behind the FIBs, the next hops and what else the program needs lie in BPF maps that are
//! mapped into this process ([`Express::house`]). There are two instances of them;
//! [`Express::activate`] says by one store which one the program reads. The other may be changed when
//! [`Express::is_quiet`] says that no program reads it any more.
//!
//! Maps, programs and their places are descriptors: all of it goes with the process, however that
//! ends.

mod devices;
mod grace;
mod layout;
mod program;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
};

use crossbeam_channel::{Receiver, Sender, bounded};
use netmap::device::xdp::bpf::{Map, MapType};

use crate::tables::{
    MAX_NEXT_HOPS, NextHopId, PortId,
    memory::PageArray,
    shown::{Counts, House, PORTS},
};
use devices::Devices;
use grace::Grace;
use layout::Maps;
pub use program::Length;

/// Instead of an instance: no program forwards anything.
const CLOSED: u32 = 2;

/// The maps, and what the keeper does with them.
pub struct Express {
    maps: Maps,
    control: PageArray<u32>,
    used: PageArray<u8>,
    counts: PageArray<Counts>,
    grace: Grace,
    devices: Option<Devices>,
    bell: (Sender<()>, Receiver<()>),
}

impl Express {
    /// Makes the maps: about 54 MiB of memory, and 8 KiB for each processor.
    ///
    /// # Errors
    /// One line for people.
    pub fn new() -> Result<Self, String> {
        if cfg!(target_endian = "big") {
            return Err("express is made for little-endian processors".into());
        }
        Self::open().map_err(|e| match e.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => "express takes CAP_BPF and CAP_NET_ADMIN".into(),
            Some(libc::ENOMEM) => "no memory for express, which takes 54 MiB".into(),
            Some(libc::EINVAL) => {
                format!("this kernel has no mappable BPF maps ({e}); express takes Linux 5.15")
            }
            _ => format!("express cannot have its maps: {e}"),
        })
    }

    fn open() -> io::Result<Self> {
        let maps = Maps::new(possible_cpus())?;
        let (ring, bell) = bounded(1);
        let grace = Grace::start(ring.clone())?;
        let devices = match Devices::open(ring.clone()) {
            Ok(devices) => Some(devices),
            Err(e) => {
                log::debug!("express: the kernel does not say which interfaces take redirected frames: {e}");
                None
            }
        };
        let (control, used, counts) = (maps.control()?, maps.used()?, maps.counts()?);
        let mut this = Self { maps, control, used, counts, grace, devices, bell: (ring, bell) };
        this.close();
        Ok(this)
    }

    /// Rings when a grace period is over, or when an interface may have changed.
    pub fn bell(&self) -> &Receiver<()> {
        &self.bell.1
    }

    /// Where instance 0 or 1 of the tables is to lie.
    pub fn house(&self, instance: usize) -> House {
        self.maps.house(instance)
    }

    /// Has the programs read this instance from the next packet on.
    pub fn activate(&mut self, instance: usize) {
        self.say(instance as u32 & 1);
        self.grace.begin();
    }

    /// Has the programs leave every packet to workers, from the next one on until
    /// [`Express::activate`].
    pub fn close(&mut self) {
        self.say(CLOSED);
    }

    /// Writes the word that programs go by.
    fn say(&mut self, what: u32) {
        // SAFETY: the word is mapped and aligned; programs read it, so it is stored whole, and after
        // everything that was written before.
        let word = unsafe { AtomicU32::from_ptr(self.control.as_mut_ptr()) };
        word.store(what, Ordering::Release);
    }

    /// Whether all programs have ended that may have begun with another instance than the active one.
    pub fn is_quiet(&self) -> bool {
        self.grace.is_over()
    }

    /// Loads the program for packets that come in by `port` and otherwise go to `sockets`.
    ///
    /// # Errors
    /// The kernel's; when it refuses the program, with the reason.
    pub fn load(&self, port: PortId, sockets: BorrowedFd) -> io::Result<OwnedFd> {
        let asks = self.load_as(Length::Asked, port, sockets);
        asks.or_else(|refused| self.load_as(Length::Counted, port, sockets).map_err(|_| refused))
    }

    /// Loads the program that learns of frames' lengths in this way.
    ///
    /// # Errors
    /// As for [`Express::load`].
    pub fn load_as(&self, length: Length, port: PortId, sockets: BorrowedFd) -> io::Result<OwnedFd> {
        program::load(&self.maps, length, sockets, port)
    }

    /// Whether an interface takes redirected frames; none when the kernel cannot say.
    pub fn takes_frames(&self, interface: u32) -> Option<bool> {
        self.devices.as_ref().map(|devices| devices.take_frames(interface))
    }

    /// Has the program send what leaves by `port` to this interface, or leave it to workers.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_device(&self, port: PortId, interface: Option<u32>) -> io::Result<()> {
        let key = u32::from(port).to_ne_bytes();
        match interface {
            _ if usize::from(port) >= PORTS => Ok(()),
            Some(interface) => self.maps.devices.set(&key, &interface.to_ne_bytes()),
            None => self.maps.devices.remove(&key),
        }
    }

    /// What was forwarded by way of `port` since the maps were made: one load for each processor and
    /// count.
    pub fn counts(&self, port: PortId) -> Counts {
        let mut sum = Counts::default();
        for place in (0..self.counts.len()).skip(port.into()).step_by(PORTS) {
            if usize::from(port) >= PORTS {
                break;
            }
            let counts = self.counts.as_ptr().wrapping_add(place).cast_mut();
            // SAFETY: the counts are mapped and aligned; a program may write them at any time, and
            // nobody else does.
            let words = unsafe {
                [
                    AtomicU64::from_ptr(&raw mut (*counts).rx_packets),
                    AtomicU64::from_ptr(&raw mut (*counts).rx_bytes),
                    AtomicU64::from_ptr(&raw mut (*counts).tx_packets),
                    AtomicU64::from_ptr(&raw mut (*counts).tx_bytes),
                ]
            };
            let [rx_packets, rx_bytes, tx_packets, tx_bytes] = words.map(|word| word.load(Ordering::Relaxed));
            sum.rx_packets += rx_packets;
            sum.rx_bytes += rx_bytes;
            sum.tx_packets += tx_packets;
            sum.tx_bytes += tx_bytes;
        }
        sum
    }

    /// The next hops used since this was asked last.
    pub fn take_used(&mut self) -> Vec<NextHopId> {
        let mut found = Vec::new();
        for (id, byte) in self.used[..MAX_NEXT_HOPS].iter_mut().enumerate() {
            // SAFETY: the byte is mapped; programs write 1 there at any time.
            let byte = unsafe { AtomicU8::from_ptr(byte) };
            if byte.load(Ordering::Relaxed) != 0 {
                byte.store(0, Ordering::Relaxed);
                found.push(id as NextHopId);
            }
        }
        found
    }
}

/// What of express this machine's kernel offers, for people: makes everything that it takes, and lets go
/// of it again.
///
/// # Errors
/// What is missing, in one line.
pub fn offers() -> Result<&'static str, String> {
    let express = Express::new()?;
    let sockets = Map::<4>::new("sweep_no_socket", MapType::Sockets, 4, 1, 0).map_err(|e| e.to_string())?;
    express.load(0, sockets.as_fd()).map_err(|e| format!("the kernel refuses the program: {e}"))?;
    Ok(if express.devices.is_some() {
        "this kernel takes the program, and says which interfaces take redirected frames"
    } else {
        "this kernel takes the program; before Linux 6.3 it does not say which interfaces take redirected \
         frames: drivers of real devices are taken to"
    })
}

/// One more than the highest number that a processor may have.
fn possible_cpus() -> usize {
    let highest = std::fs::read_to_string("/sys/devices/system/cpu/possible")
        .ok()
        .and_then(|list| list.trim().rsplit(['-', ',']).next()?.parse::<usize>().ok());
    highest.map_or(256, |highest| highest + 1)
}
