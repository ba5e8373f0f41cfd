//! The XDP program of a port, loaded: its [instructions](super::steering) and the maps that they read,
//! and how those are kept.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::{
    asm::Map as MapRef,
    bpf::{self, AttachMode, Map, MapType},
    settings::Settings,
    steering::{Length, Places, assemble},
};
use crate::device::{ForwardedPort, Vlan};

/// Most addresses of the host's, per family.
const MAX_LOCAL: u32 = 1 << 16;
/// Most forwarded ports, each counted once for every address that has it.
const MAX_FORWARDED: u32 = 1 << 16;

/// Whose an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Owner {
    /// The host's.
    Host = 1,
    /// The host's sockets', and the rings' else.
    Shared = 2,
    /// The rings', ARP included.
    Announced = 3,
}

/// How the map of forwarded ports names one.
fn forwarded_key(ForwardedPort { address, protocol, port }: ForwardedPort) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&address.octets());
    key[4..6].copy_from_slice(&port.to_be_bytes());
    key[6] = protocol;
    key
}

/// The program of one port, loaded, with its maps.
#[derive(Debug)]
pub struct Program {
    program: OwnedFd,
    settings: Map<4>,
    local4: Map<4>,
    local6: Map<16>,
    forwarded: Map<8>,
    passed: Map<4>,
    before: Map<4>,
    sockets: Map<4>,
    mac: [u8; 6],
    vlans: Vec<Vlan>,
    /// Whose the addresses in the maps are.
    owners: HashMap<IpAddr, Owner>,
}

impl Program {
    /// Loads the program for a port with this MAC address and `queues` receive queues. Frames of
    /// `vlans` go to the worker. No socket is there yet, so everything goes up.
    ///
    /// # Errors
    /// The kernel's: `EPERM` without CAP_BPF and CAP_NET_ADMIN.
    pub fn load(mac: [u8; 6], vlans: &[Vlan], queues: u32) -> io::Result<Self> {
        let load = |length| Self::load_as(length, mac, vlans, queues);
        load(Length::Asked).or_else(|refused| load(Length::Counted).map_err(|_| refused))
    }

    fn load_as(length: Length, mac: [u8; 6], vlans: &[Vlan], queues: u32) -> io::Result<Self> {
        let settings = Settings::new(mac, vlans, []);
        let this = |name, kind, size, n, flags| Map::<4>::new(name, kind, size, n, flags);
        let maps = (
            this("sweep_settings", MapType::Array, settings.0.len(), 1, bpf::PROGRAM_READS)?,
            this("sweep_local4", MapType::Hash, 1, MAX_LOCAL, bpf::NO_PREALLOC)?,
            Map::<16>::new("sweep_local6", MapType::Hash, 1, MAX_LOCAL, bpf::NO_PREALLOC)?,
            Map::<8>::new("sweep_forwarded", MapType::Hash, 1, MAX_FORWARDED, bpf::NO_PREALLOC)?,
            this("sweep_passed", MapType::PerCpuArray, 16, 1, 0)?,
            this("sweep_before", MapType::Programs, 4, 1, 0)?,
            this("sweep_sockets", MapType::Sockets, 4, queues, 0)?,
        );
        let places = Places {
            settings: MapRef::Value(maps.0.raw()),
            local4: MapRef::Handle(maps.1.raw()),
            local6: MapRef::Handle(maps.2.raw()),
            forwarded: MapRef::Handle(maps.3.raw()),
            passed: MapRef::Handle(maps.4.raw()),
            before: MapRef::Handle(maps.5.raw()),
            sockets: MapRef::Handle(maps.6.raw()),
        };
        maps.0.set(&[0; 4], &settings.0)?;
        let program = bpf::load("sweep_port", &assemble(&places, length))?;
        let (settings, local4, local6, forwarded, passed, before, sockets) = maps;
        Ok(Self {
            program,
            settings,
            local4,
            local6,
            forwarded,
            passed,
            before,
            sockets,
            mac,
            vlans: vlans.to_vec(),
            owners: HashMap::new(),
        })
    }

    /// The place for a program before the sockets, and the sockets, for that program to go on to.
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub fn before(&self) -> io::Result<(Map<4>, Map<4>)> {
        Ok((self.before.share()?, self.sockets.share()?))
    }

    /// Attaches it to an interface; closing the descriptor detaches it.
    ///
    /// # Errors
    /// As for [`bpf::attach`].
    pub fn attach(&self, ifindex: u32, mode: AttachMode) -> io::Result<OwnedFd> {
        bpf::attach(self.program.as_fd(), ifindex, mode)
    }

    /// The device's MAC address has changed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> io::Result<()> {
        self.settings.set(&[0; 4], &Settings::new(mac, &self.vlans, self.owners.keys()).0)?;
        self.mac = mac;
        Ok(())
    }

    /// Frames of these VLANs, and of no others, are for the worker.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_vlans(&mut self, vlans: &[Vlan]) -> io::Result<()> {
        if self.vlans != vlans {
            self.settings.set(&[0; 4], &Settings::new(self.mac, vlans, self.owners.keys()).0)?;
            self.vlans = vlans.to_vec();
        }
        Ok(())
    }

    /// Gives the frames of a receive queue to a bound AF_XDP socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_socket(&self, queue: u32, socket: BorrowedFd) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        self.sockets.set(&queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())
    }

    /// Says whose the addresses are: those of `wanted` as it says, one of IPv6 the host's alone, and
    /// all others the network's. Goes on after an error, and gives the first.
    ///
    /// # Errors
    /// The kernel's: `E2BIG` for the 65537th of a family.
    pub fn set_owners(&mut self, wanted: &HashMap<IpAddr, Owner>) -> io::Result<()> {
        let gone: Vec<IpAddr> = self.owners.keys().filter(|a| !wanted.contains_key(a)).copied().collect();
        let changed: Vec<(IpAddr, Owner)> = wanted
            .iter()
            .map(|(address, owner)| (*address, *owner))
            .filter(|(address, owner)| self.owners.get(address) != Some(owner))
            .collect();
        if gone.is_empty() && changed.is_empty() {
            return Ok(());
        }
        // Before the maps and after them: an address that the filter lacks is not looked for.
        self.filter(self.owners.keys().chain(wanted.keys()))?;
        let mut result = Ok(());
        for address in gone {
            let removed = match address {
                IpAddr::V4(a) => self.local4.remove(&a.octets()),
                IpAddr::V6(a) => self.local6.remove(&a.octets()),
            };
            match removed {
                Ok(()) => drop(self.owners.remove(&address)),
                Err(e) => result = result.and(Err(e)),
            }
        }
        for (address, owner) in changed {
            let set = match address {
                IpAddr::V4(a) => self.local4.set(&a.octets(), &[owner as u8]),
                IpAddr::V6(a) => self.local6.set(&a.octets(), &[owner as u8]),
            };
            match set {
                Ok(()) => drop(self.owners.insert(address, owner)),
                Err(e) => result = result.and(Err(e)),
            }
        }
        result.and(self.filter(self.owners.keys()))
    }

    /// Puts these addresses into the filter, and no others.
    fn filter<'a>(&self, addresses: impl IntoIterator<Item = &'a IpAddr>) -> io::Result<()> {
        self.settings.set(&[0; 4], &Settings::new(self.mac, &self.vlans, addresses).0)
    }

    /// Forwards a port of a shared address, or does no longer.
    ///
    /// # Errors
    /// The kernel's: `E2BIG` for the 65537th.
    pub fn set_forwarded(&self, port: ForwardedPort, forwarded: bool) -> io::Result<()> {
        let key = forwarded_key(port);
        if forwarded { self.forwarded.set(&key, &[1]) } else { self.forwarded.remove(&key) }
    }

    /// Packets and bytes passed up so far.
    ///
    /// # Errors
    /// The kernel's.
    pub fn passed(&self) -> io::Result<(u64, u64)> {
        let values = self.passed.get(&[0; 4])?;
        let words: Vec<u64> =
            values.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
        let sum = |k: usize| words.iter().skip(k).step_by(2).fold(0, |n: u64, w| n.wrapping_add(*w));
        Ok((sum(0), sum(1)))
    }
}

#[cfg(test)]
mod tests;
