//! Devices: what stands behind a ring.
//!
//! | device | what it is |
//! |---|---|
//! | `netmap:ix0`, `vale0:a`, `netmap:p{1` | the kernel's netmap |
//! | `xdp:eth0` | Linux AF_XDP ([`xdp`]) |
//! | `pcap:in.pcap[,out.pcap]` | capture files ([`pcap`]) |
//! | `pipe:name` | two ends in one process ([`pipe`]) |
//! | `gen:...` | a traffic generator and a counting sink ([`generate`]) |
//!
//! To add one: implement [`RxDevice`] and [`TxDevice`] over a [`Kring`](crate::Kring) each.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use self::pcap::PcapFiles;
#[cfg(doc)]
use crate::queue::{RxDevice, TxDevice};
use crate::{
    arena::Arena,
    queue::{Losses, RxQueue, TxQueue},
};

mod count;
pub mod generate;
pub mod kernel;
pub mod pcap;
pub mod pipe;
pub mod spec;
#[cfg(target_os = "linux")]
pub mod tun;
pub mod xdp;

pub use spec::{Device, DeviceSpec};

/// How packets reach the host's own stack from a port, and come back.
pub enum Host {
    /// Rings: a packet put into `to` is received by the host; what the host sends comes out of
    /// `from` and goes to the port's transmit rings as it is.
    Rings {
        /// To the host.
        to: Vec<TxQueue>,
        /// From the host.
        from: Vec<RxQueue>,
    },
    /// The port is a live interface of the kernel's: the kernel receives what the device passes
    /// up and sends by itself. The rare packet that a worker must hand up needs a TUN device.
    Kernel,
    /// The kernel knows nothing of the device: the program itself answers ARP, neighbour
    /// discovery and echo requests.
    Builtin,
}

/// What is known of an open port.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// The device as the configuration names it, `xdp:eth0`.
    pub device: String,
    /// The kernel's interface behind it, if there is one.
    pub interface: Option<String>,
    /// The device's own MAC address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Longest frame in bytes, without FCS, that fits a buffer.
    pub max_frame: u32,
    /// How the device is driven, for people: "native netmap", "xdp, copy mode".
    pub mode: String,
}

/// How the frames of a VLAN are shared between the rings and the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vlan {
    /// The VLAN id in the frames' outer tag.
    pub id: u16,
    /// The host has an interface for it: what is the host's goes up, as it does without a tag. Else
    /// all its frames are for the rings.
    pub host: bool,
    /// Frames with a second tag behind this one are meant, too.
    pub stacked: bool,
}

/// A port of an address that the host and the rings share, which is for the rings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ForwardedPort {
    /// The address.
    pub address: Ipv4Addr,
    /// TCP or UDP, by IANA's number.
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

/// Addresses that are not the host's alone.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Sharing {
    /// Addresses of the host's that others stand behind as well: packets that a socket of the
    /// host's takes are the host's, all others are for the rings.
    pub shared: Vec<Ipv4Addr>,
    /// Their ports that are for the rings, whoever listens there. Connections that the host's sockets
    /// have are the host's even so.
    pub forwarded: Vec<ForwardedPort>,
    /// Addresses that the host does not have: packets for them are for the rings, and so is ARP that
    /// asks for them.
    pub announced: Vec<Ipv4Addr>,
}

/// The parts of a port that do not move packets. Dropping it closes the device and restores what
/// opening it changed.
pub trait PortControl: Send {
    /// Names the addresses whose packets are the host's. Only devices that pass packets up by
    /// themselves need to know.
    ///
    /// # Errors
    /// The system's.
    fn set_local(&mut self, _addresses: &[IpAddr]) -> io::Result<()> {
        Ok(())
    }

    /// Names the addresses that are not the host's alone; [`set_local`](PortControl::set_local) may
    /// name them, too. Only devices that pass packets up by themselves need to know.
    ///
    /// # Errors
    /// The system's.
    fn set_sharing(&mut self, _sharing: &Sharing) -> io::Result<()> {
        Ok(())
    }

    /// Names the VLANs whose frames are for the rings. Only devices that pass packets up by
    /// themselves need to know.
    ///
    /// # Errors
    /// The system's.
    fn set_vlans(&mut self, _vlans: &[Vlan]) -> io::Result<()> {
        Ok(())
    }

    /// Where a program can be put that sees the port's packets before its rings do; none where a
    /// device has no such place.
    ///
    /// # Errors
    /// When there are too many descriptors.
    #[cfg(target_os = "linux")]
    fn hook(&self) -> io::Result<Option<xdp::Hook>> {
        Ok(None)
    }

    /// What the device counted outside the rings, since it was opened.
    fn losses(&mut self) -> Losses {
        Losses::default()
    }

    /// Whether the device has a carrier; `None` when it cannot be told.
    fn link_up(&mut self) -> Option<bool> {
        None
    }

    /// Looks after the settings that other programs may undo (promiscuous mode, offloads). To be
    /// called about once a second.
    ///
    /// # Errors
    /// When the interface is gone.
    fn tend(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An open port: its rings, to be shared out among workers, and the rest.
pub struct Port {
    /// What is known of it.
    pub info: PortInfo,
    /// Receive queues.
    pub rx: Vec<RxQueue>,
    /// Transmit queues.
    pub tx: Vec<TxQueue>,
    /// The way to the host's stack.
    pub host: Host,
    /// Holds the device open.
    pub control: Box<dyn PortControl>,
}

/// How to open a port.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Number of ring pairs; default: as many as the device has, or one.
    pub rings: Option<u32>,
    /// Slots per ring; default: the device's.
    pub slots: Option<u32>,
    /// How long to wait for a carrier before the first packets are moved; default: 6 seconds.
    /// Opening an interface for netmap takes its link down for some seconds.
    pub carrier_wait: Option<Duration>,
    /// VLAN ids, of outer tags, whose frames are for the rings. Only devices that pass packets up to
    /// the host by themselves need to know: they pass up those of all other VLANs, and of these what
    /// is the host's, until [`PortControl::set_vlans`] says more.
    pub vlans: Vec<u16>,
}

/// Why a port could not be opened: one line that says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{device}: {reason}")]
pub struct OpenError {
    /// The device as the configuration names it.
    pub device: String,
    /// What is wrong and what to do.
    pub reason: String,
}

impl OpenError {
    /// An error about `device`.
    pub fn new(device: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self { device: device.into(), reason: reason.to_string() }
    }
}

/// Opens the devices of all ports; those of one kind together, so that they can share memory. The
/// ports come in the order of the requests. What a spec says of rings and slots goes before the
/// options.
///
/// # Errors
/// The first device that could not be opened; the ports opened before it are closed again.
pub fn open_all(requests: &[(DeviceSpec, OpenOptions)]) -> Result<Vec<Port>, OpenError> {
    let mut ports: Vec<Option<Port>> = requests.iter().map(|_| None).collect();
    let (mut netmap, mut xdp, mut in_process) = (Group::default(), Group::default(), Group::default());
    for (place, (spec, options)) in requests.iter().enumerate() {
        let options = OpenOptions {
            rings: spec.rings.or(options.rings),
            slots: spec.slots.or(options.slots),
            ..options.clone()
        };
        match resolve(&spec.device) {
            Device::Netmap(spec) => netmap.add(place, spec, options),
            Device::Xdp(interface) => xdp.add(place, interface, options),
            device @ (Device::Pipe(_) | Device::Gen(_) | Device::Pcap { .. }) => {
                in_process.add(place, device, options);
            }
            Device::Interface(_) => {
                return Err(OpenError::new(
                    spec.to_string(),
                    "an interface needs netmap or Linux; this is neither",
                ));
            }
        }
    }
    netmap.open(&mut ports, kernel::open_all)?;
    xdp.open(&mut ports, xdp::open_all)?;
    in_process.open(&mut ports, open_in_process)?;
    Ok(ports.into_iter().flatten().collect())
}

/// Buffers of one arena at most: 8 GiB.
const IN_PROCESS_MAX: u32 = 1 << 22;

/// Opens devices of this process in one arena, so that packets move between them by exchange.
fn open_in_process(requests: &[(Device, OpenOptions)]) -> Result<Vec<Port>, OpenError> {
    let needs = requests.iter().map(|(device, options)| match device {
        // Both ends: whether the other one is asked for as well does not matter much, as memory
        // that nobody touches costs nothing.
        Device::Pipe(_) => pipe::needs_open(options),
        Device::Pcap { .. } => pcap::needs(options),
        Device::Gen(spec) => generate::needs(&generate::sized(spec, options)),
        _ => (0, 0),
    });
    let (rings, slots) = needs.fold((0, 0u32), |sum, n| (sum.0 + n.0, sum.1.saturating_add(n.1)));
    let fail = |reason: &dyn std::fmt::Display| {
        OpenError::new("packet buffers", format_args!("{reason}: ask for fewer rings or slots"))
    };
    if slots > IN_PROCESS_MAX {
        return Err(fail(&format_args!("{slots} of 2 KiB are too many")));
    }
    let mut arena = Arena::new(rings, slots, 0).map_err(|e| fail(&e))?;
    let open = |(device, options): &(Device, OpenOptions)| match device {
        Device::Pipe(name) => Ok(pipe::open_in(&mut arena, name, options)),
        Device::Pcap { input, output } => {
            pcap::open_files(&mut arena, &PcapFiles::new(input, output.as_deref()), options)
                .map(|(port, _)| port)
        }
        Device::Gen(spec) => generate::open(&mut arena, spec, options),
        other => Err(OpenError::new(format!("{other:?}"), "not a device of this process")),
    };
    requests.iter().map(open).collect()
}

/// What a plain interface name means here.
fn resolve(device: &Device) -> Device {
    match device {
        Device::Interface(name) if kernel::is_there() => Device::Netmap(spec::NetmapSpec {
            name: name.clone(),
            kind: spec::PortKind::Nic,
            rings: spec::RingSet::All,
            mem_id: None,
        }),
        Device::Interface(name) if cfg!(target_os = "linux") => Device::Xdp(name.clone()),
        other => other.clone(),
    }
}

/// Devices of one kind, to be opened together, with their ports' places in the configuration.
struct Group<S> {
    places: Vec<usize>,
    requests: Vec<(S, OpenOptions)>,
}

impl<S> Default for Group<S> {
    fn default() -> Self {
        Self { places: Vec::new(), requests: Vec::new() }
    }
}

impl<S> Group<S> {
    fn add(&mut self, place: usize, spec: S, options: OpenOptions) {
        self.places.push(place);
        self.requests.push((spec, options));
    }

    fn open(
        self,
        ports: &mut [Option<Port>],
        open: impl FnOnce(&[(S, OpenOptions)]) -> Result<Vec<Port>, OpenError>,
    ) -> Result<(), OpenError> {
        if self.requests.is_empty() {
            return Ok(());
        }
        for (place, port) in self.places.into_iter().zip(open(&self.requests)?) {
            ports[place] = Some(port);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(names: &[&str]) -> Result<Vec<Port>, OpenError> {
        let requests: Vec<_> =
            names.iter().map(|n| (n.parse::<DeviceSpec>().unwrap(), OpenOptions::default())).collect();
        open_all(&requests)
    }

    #[test]
    fn devices_of_this_process_share_one_arena() {
        let dir = tempfile::tempdir().unwrap();
        let capture = format!("pcap:/dev/null,{}/out.pcap", dir.path().display());
        let e = all(&["gen:", &capture]).err().unwrap();
        assert!(e.to_string().contains("/dev/null: not a pcap"), "{e}");

        let ports = all(&["gen:", "pipe:shared/rings=2", "gen:family=6,rings=3", "pipe:shared"]).unwrap();
        let arenas: Vec<_> = ports.iter().map(|p| p.rx[0].ring.view().arena()).collect();
        assert!(arenas.iter().all(|a| *a == arenas[0]));
        let names: Vec<_> = ports.iter().map(|p| p.info.device.as_str()).collect();
        assert_eq!(names, ["gen:", "pipe:shared", "gen:family=6,rings=3", "pipe:shared"]);
        assert_eq!(ports.iter().map(|p| p.rx.len()).collect::<Vec<_>>(), [1, 2, 3, 2]);
        let mut buffers: Vec<_> = ports
            .iter()
            .flat_map(|p| p.rx.iter().map(|q| q.ring.view()).chain(p.tx.iter().map(|q| q.ring.view())))
            .flat_map(|view| view.buffer_indices())
            .collect();
        let all = buffers.len();
        buffers.sort_unstable();
        buffers.dedup();
        assert_eq!(buffers.len(), all, "no buffer is in two places");
    }

    #[test]
    fn more_buffers_than_can_be_are_one_clear_line() {
        let many = ["pipe:a/rings=256,slots=16384"; 2];
        let e = all(&many).err().unwrap();
        assert!(e.to_string().contains("fewer rings or slots"), "{e}");
    }
}
