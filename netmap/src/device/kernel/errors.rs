//! What the kernel's refusals mean, in one line each, with what to do.

use std::{io, sync::Arc};

use super::{
    FRAME_OVER_MTU,
    system::{Descriptor, System},
};
use crate::device::spec::{NetmapSpec, PortKind, RingSet};

const FREEBSD: bool = cfg!(target_os = "freebsd");

fn parameter(name: &str) -> String {
    if FREEBSD {
        format!("sysctl dev.netmap.{name}")
    } else {
        format!("/sys/module/netmap/parameters/{name}")
    }
}

/// `/dev/netmap` could not be opened.
pub(super) fn device(error: &io::Error, spec: &NetmapSpec) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) if FREEBSD => {
            "no /dev/netmap: `kldload netmap`, or build a kernel with `device netmap`".into()
        }
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) if spec.kind == PortKind::Nic => {
            format!("no /dev/netmap: `modprobe netmap`, or use xdp:{}, which needs no module", spec.name)
        }
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
            "no /dev/netmap: `modprobe netmap`, or use pipe:NAME, which needs no module".into()
        }
        Some(libc::EACCES | libc::EPERM) => "no permission to open /dev/netmap: start as root".into(),
        Some(libc::EMFILE | libc::ENFILE) => "too many open files: raise the limit (ulimit -n)".into(),
        _ => format!("/dev/netmap: {}", plain(error)),
    }
}

/// The kernel refused to register the port.
pub(super) fn register(
    error: &io::Error,
    system: &Arc<dyn System>,
    descriptor: &Descriptor,
    spec: &NetmapSpec,
) -> String {
    match error.raw_os_error() {
        Some(libc::ENXIO) if spec.kind == PortKind::Nic => no_interface(&spec.name),
        Some(libc::EINVAL) => invalid(system, descriptor, spec),
        Some(libc::EBUSY) => {
            "in use: another program has it for itself, or it is attached to a VALE switch; end that first"
                .into()
        }
        Some(libc::ENOMEM) => format!(
            "netmap has no memory left for its rings and buffers: close other ports, or raise {} and {}",
            parameter("ring_num"),
            parameter("buf_num")
        ),
        Some(libc::EPERM | libc::EACCES) => "the kernel does not permit it: start as root".into(),
        Some(libc::EOPNOTSUPP) => {
            format!("its driver knows no netmap, and emulation is off: set {} to 0", parameter("admode"))
        }
        _ => plain(error),
    }
}

/// EINVAL says little: look for what it can have been.
fn invalid(system: &Arc<dyn System>, descriptor: &Descriptor, spec: &NetmapSpec) -> String {
    if let Some(id) = spec.mem_id {
        return format!("there is no netmap memory {id}; leave out @{id}, or use the id of an open port");
    }
    if let (RingSet::One(ring), Ok(info)) = (spec.rings, descriptor.port_info(&spec.name)) {
        let rings = info.nr_rx_rings.max(info.nr_tx_rings);
        if ring >= rings {
            return format!("no ring {ring}: {} has {rings}, numbered from 0", spec.name);
        }
    }
    if spec.kind != PortKind::Nic {
        return "the kernel refused the name; is its netmap built with VALE and pipes?".into();
    }
    if let (Ok(mtu), Ok(pools)) = (system.mtu(&spec.name), descriptor.pools_info(&spec.name))
        && let Err(reason) = check_mtu(mtu, pools.nr_buf_pool_objsize)
    {
        return reason;
    }
    if spec.rings == RingSet::Host {
        return "the interface has no host rings, leave out the ^".into();
    }
    "the kernel refused it: netmap does not work on this interface (lo never does), or the module is older \
     than API 14"
        .into()
}

/// A frame of a full MTU must fit one buffer.
pub(super) fn check_mtu(mtu: u32, buf_size: u32) -> Result<(), String> {
    let frame = mtu.saturating_add(FRAME_OVER_MTU);
    if frame <= buf_size {
        return Ok(());
    }
    Err(format!(
        "its MTU of {mtu} needs buffers of {frame} bytes, netmap's have {buf_size}: lower the MTU to {}, or set \
         {} to {}",
        buf_size - FRAME_OVER_MTU.min(buf_size),
        parameter("buf_size"),
        frame.next_multiple_of(1024)
    ))
}

/// The number of ring pairs of an interface is the driver's to choose.
pub(super) fn ring_count(interface: &str, pairs: u16, wanted: u32) -> String {
    let how = if FREEBSD {
        "the driver's tunables (for example dev.ix.0.num_queues)".to_owned()
    } else {
        format!("`ethtool -L {interface} combined {wanted}`")
    };
    format!("it has {pairs} ring pairs, not {wanted}: change that by {how}, or leave out the number of rings")
}

/// An interface request failed.
pub(super) fn interface(error: &io::Error, interface: &str) -> String {
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO) => no_interface(interface),
        Some(libc::EPERM | libc::EACCES) => {
            format!("no permission to change the settings of {interface}: start as root")
        }
        _ => format!("{interface}: {}", plain(error)),
    }
}

fn no_interface(interface: &str) -> String {
    let list = if FREEBSD { "ifconfig -l" } else { "ip link" };
    format!("no interface {interface}: `{list}` shows which there are")
}

/// An offload that must be off is on, and cannot be turned off.
pub(super) fn offload(interface: &str, name: &str) -> String {
    let how = if FREEBSD {
        format!("ifconfig {interface} -{name}")
    } else {
        format!("ethtool -K {interface} {name} off")
    };
    format!("the offload {name} is on and the driver keeps it so: the host's TCP would be lost; try `{how}`")
}

/// The system's own words.
pub(super) fn plain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => nix::errno::Errno::from_raw(code).desc().to_owned(),
        None => error.to_string(),
    }
}
