//! VLAN sub-ports: ports that have no device of their own. They stand behind all ports with devices,
//! in the order of the configuration.

use netmap::{
    OpenOptions, Port,
    device::{PortControl, spec::DeviceSpec},
};

use crate::{
    config::{self, Config},
    control::{
        KeeperPort,
        setup::{self, Numbers},
    },
    stats::file::StatsFile,
};

/// How a port's device is to be opened.
pub(super) fn open_request(port: &config::Port) -> (DeviceSpec, OpenOptions) {
    let mut vlans: Vec<u16> = port.vlans.iter().map(|tags| tags.outer.vlan).collect();
    vlans.sort_unstable();
    vlans.dedup();
    (port.device.clone(), OpenOptions { vlans, ..OpenOptions::default() })
}

/// What the keeper needs to know of the sub-ports of these open ports.
pub(super) fn keeper_ports(
    config: &Config,
    numbers: &Numbers,
    ports: &[Port],
    stats: &StatsFile,
) -> Vec<KeeperPort> {
    let one = |(id, port): (usize, &config::Port)| {
        let sub = port.sub.as_ref()?;
        let parent = ports.get(config.port(&sub.parent)?)?;
        Some(KeeperPort {
            spec: setup::sub_port_spec(numbers, port, parent.info.max_frame)?,
            device: parent.info.device.clone(),
            mode: format!("VLAN {} of port {}", sub.tags, sub.parent),
            rings: parent.rx.len(),
            control: Box::new(NoDevice),
            block: stats.block(stats.keeper(), id),
        })
    };
    config.ports.iter().enumerate().filter_map(one).collect()
}

/// What holds a sub-port open: nothing.
struct NoDevice;

impl PortControl for NoDevice {}
