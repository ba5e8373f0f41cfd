//! Devices: what stands behind a ring.
//!
//! | device | what it is |
//! |---|---|
//! | `netmap:ix0`, `vale0:a`, `netmap:p{1` | the kernel's netmap |
//! | `xdp:eth0` | Linux AF_XDP |
//! | `pcap:in.pcap[,out.pcap]` | capture files |
//! | `pipe:name` | two ends in one process ([`pipe`]) |
//! | `gen:...` | a traffic generator and a counting sink ([`generate`]) |
//!
//! To add one: implement [`RxDevice`] and [`TxDevice`] over a [`Kring`](crate::Kring) each.

use std::{io, net::IpAddr, time::Duration};

use crate::queue::{Losses, RxQueue, TxQueue};
#[cfg(doc)]
use crate::queue::{RxDevice, TxDevice};

pub mod generate;
pub mod pipe;
pub mod spec;

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
    let requests = requests.iter().map(|(spec, options)| {
        let options = OpenOptions {
            rings: spec.rings.or(options.rings),
            slots: spec.slots.or(options.slots),
            ..options.clone()
        };
        (spec, options)
    });
    requests.map(|(spec, options)| open(spec, &options)).collect()
}

fn open(spec: &DeviceSpec, options: &OpenOptions) -> Result<Port, OpenError> {
    match &spec.device {
        Device::Pipe(name) => pipe::open(name, options),
        Device::Netmap(_) | Device::Xdp(_) | Device::Pcap { .. } | Device::Gen(_) | Device::Interface(_) => {
            Err(OpenError::new(spec.to_string(), "this kind of device is not supported yet"))
        }
    }
}
