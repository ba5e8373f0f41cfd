//! `[[port]]`: the devices that packets come from and go to.

use std::{collections::HashSet, net::IpAddr};

use ipnet::IpNet;
use netmap::device::{
    generate::spec::GenSpec,
    spec::{Device, DeviceSpec, PortKind, RingSet, SpecError},
};
use toml::de::DeValue;

use super::{
    problem::Problems,
    reader::{Placed, Reader, refuse_twice, values},
    schema::nearest,
    support::{Feature, Uses},
    value::{self, MacAddr},
};
use crate::tables::ReversePath;

/// Longest name of a port, in bytes; interfaces of the kernel have the same limit.
pub const NAME_MAX: usize = 15;

/// `[[port]]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// What the configuration calls it; at most [`NAME_MAX`] bytes.
    pub name: String,
    /// The device behind it.
    pub device: DeviceSpec,
    /// Addresses with the length of their network's prefix; empty: the kernel's.
    pub addresses: Vec<IpNet>,
    /// The MAC address; `None`: the device's.
    pub mac: Option<MacAddr>,
    /// Longest IP packet in bytes; `None`: the kernel's, followed live.
    pub mtu: Option<u16>,
    /// Tagged sub-ports by VLAN id, in the order of the file.
    pub vlans: Vec<u16>,
    /// How the sources of its packets are checked.
    pub urpf: ReversePath,
    /// Whether senders on its link are told of better first hops.
    pub redirects: bool,
}

/// The ports read so far, with what the sections after them need to know.
#[derive(Default)]
pub(super) struct Ports {
    /// The ports that are right.
    pub(super) list: Vec<Port>,
    /// Every name that can be referred to, sub-ports as well, and where it comes from.
    names: Vec<Placed<String>>,
    /// What every device takes for itself ([`claim`]), and where it stands.
    devices: Vec<Placed<String>>,
    /// Whether a name could not be read: then a reference to an unknown one proves nothing.
    names_missing: bool,
}

impl Ports {
    /// Reads one `[[port]]`.
    pub(super) fn read(&mut self, section: &Reader<'_>, problems: &mut Problems<'_>, uses: &mut Uses) {
        let device = section.read(problems, "device", device_named);
        let name = self.read_name(section, problems, device.as_ref());
        let addresses = section.one_or_list(problems, "addresses", value::interface_address);
        let mac = section.read(problems, "mac", value::mac);
        let mtu = section.read(problems, "mtu", |v| value::integer(v, 68..=65535));
        if let Some(mtu) = mtu
            && mtu.value < 1280
        {
            problems.warn(mtu.at, section.path("mtu"), "IPv6 needs 1280 at least (RFC 8200)");
        }
        let vlans = section.list(problems, "vlans", |v| value::integer(v, 1..=4094));
        if let Some(vlans) = &vlans {
            refuse_twice(problems, &section.path("vlans"), vlans);
            uses.note(problems, Feature::Vlans, section.place("vlans"), section.path("vlans"));
        }
        let words =
            [("off", ReversePath::Off), ("loose", ReversePath::Loose), ("strict", ReversePath::Strict)];
        let urpf = section.read(problems, "urpf", |v| value::choice(v, &words));
        let redirects = section.read(problems, "redirects", value::boolean);
        let Some(name) = name else {
            self.names_missing = true;
            return;
        };
        let mut vlans: Vec<u16> = values(vlans).into_iter().filter_map(|id| u16::try_from(id).ok()).collect();
        // Those given twice have been reported.
        let mut seen = HashSet::new();
        vlans.retain(|id| seen.insert(*id));
        self.add_name(name.clone(), "name", section, problems);
        for id in &vlans {
            let name = Placed { at: section.place("vlans"), value: format!("{}.{id}", name.value) };
            self.add_name(name, "vlans", section, problems);
        }
        // A name alone is the interface's as well.
        let device = match device {
            Some(device) => Some(device),
            None if section.has("device") => None,
            None => section.read(problems, "name", device_named),
        };
        let Some(device) = device else { return };
        self.add_device(&device, section, problems);
        let addresses = self.new_addresses(section, problems, addresses.unwrap_or_default());
        self.list.push(Port {
            name: name.value,
            device: device.value,
            addresses,
            mac: mac.map(|mac| mac.value),
            mtu: mtu.and_then(|mtu| u16::try_from(mtu.value).ok()),
            vlans,
            urpf: urpf.map(|urpf| urpf.value).unwrap_or_default(),
            redirects: redirects.is_some_and(|redirects| redirects.value),
        });
    }

    /// A name, or the device's interface where that can be one.
    fn read_name(
        &self,
        section: &Reader<'_>,
        problems: &mut Problems<'_>,
        device: Option<&Placed<DeviceSpec>>,
    ) -> Option<Placed<String>> {
        if section.has("name") {
            return section.read(problems, "name", |v| value::name(v, NAME_MAX));
        }
        let Some(device) = device else {
            // A device that could not be read has been reported.
            if !section.has("device") {
                problems.error(section.at, section.path("device"), "missing; add device = \"xdp:eth0\"");
            }
            return None;
        };
        if let Some(name) = default_name(&device.value) {
            return Some(Placed { at: device.at, value: name });
        }
        let message = format!("{:?} gives the port no name; add name = \"lan\"", device.value.to_string());
        problems.error(section.at, section.path("name"), message);
        None
    }

    fn add_name(
        &mut self,
        name: Placed<String>,
        key: &str,
        section: &Reader<'_>,
        problems: &mut Problems<'_>,
    ) {
        if let Some(first) = self.names.iter().find(|other| other.value == name.value) {
            let message =
                format!("{:?} is a port on line {} already; rename one", name.value, problems.line(first.at));
            problems.error(name.at, section.path(key), message);
        }
        self.names.push(name);
    }

    fn add_device(&mut self, device: &Placed<DeviceSpec>, section: &Reader<'_>, problems: &mut Problems<'_>) {
        let (claim, most) = claim(&device.value);
        let mut same = self.devices.iter().filter(|other| other.value == claim);
        if let Some(first) = same.next()
            && 2 + same.count() > most
        {
            let line = problems.line(first.at);
            let message = format!("{claim:?} is used on line {line} already; each port needs its own");
            problems.error(device.at, section.path("device"), message);
        }
        self.devices.push(Placed { at: device.at, value: claim });
    }

    /// The addresses, without those that another port has.
    fn new_addresses(
        &self,
        section: &Reader<'_>,
        problems: &mut Problems<'_>,
        addresses: Vec<Placed<IpNet>>,
    ) -> Vec<IpNet> {
        let mut new: Vec<IpNet> = Vec::new();
        for address in addresses {
            let net = address.value;
            let own = new.iter().any(|other| other.addr() == net.addr());
            let of_port = self.owner(net.addr());
            if own || of_port.is_some_and(|_| !link_local(net.addr())) {
                let whose = of_port.unwrap_or("this port");
                let message = format!("{} is an address of {whose} already; remove one", net.addr());
                problems.error(address.at, section.path("addresses"), message);
                continue;
            }
            if let Some((port, other)) = self.overlapping(&net) {
                let message = format!("{net} overlaps {other} of port {port:?}; the longer prefix wins");
                problems.warn(address.at, section.path("addresses"), message);
            }
            new.push(net);
        }
        new
    }

    fn overlapping(&self, net: &IpNet) -> Option<(&str, IpNet)> {
        if link_local(net.addr()) {
            return None;
        }
        let mut all = self.list.iter().flat_map(|p| p.addresses.iter().map(|a| (p.name.as_str(), *a)));
        all.find(|(_, other)| net.contains(&other.network()) || other.contains(&net.network()))
    }

    /// The port that has `address`, by what the file says.
    pub(super) fn owner(&self, address: IpAddr) -> Option<&str> {
        let port = self.list.iter().find(|port| port.addresses.iter().any(|net| net.addr() == address))?;
        Some(&port.name)
    }

    /// Whether `address` is on a network of `port`, or of any port; `None` if the file does not
    /// say all the addresses.
    pub(super) fn on_link(&self, address: IpAddr, port: Option<&str>) -> Option<bool> {
        let ports = || self.list.iter().filter(|p| port.is_none_or(|name| p.name == name));
        if ports().next().is_none() || ports().any(|p| p.addresses.is_empty()) {
            return None;
        }
        Some(ports().any(|p| p.addresses.iter().any(|net| net.contains(&address))))
    }

    /// A string that is the name of a port.
    pub(super) fn reference(&self, value: &DeValue<'_>) -> Result<String, String> {
        let name = value::text(value)?;
        if self.names_missing || self.names.iter().any(|known| known.value == name) {
            return Ok(name.into());
        }
        let names: Vec<&str> = self.names.iter().map(|name| name.value.as_str()).collect();
        Err(match nearest(name, names.iter().copied()) {
            Some(near) => format!("there is no port {name:?}; did you mean {near:?}?"),
            None if names.is_empty() => format!("there is no port {name:?}; add a [[port]]"),
            None => format!("there is no port {name:?}; the ports are {}", names.join(", ")),
        })
    }
}

/// A string that names a device.
fn device_named(value: &DeValue<'_>) -> Result<DeviceSpec, String> {
    let spec: DeviceSpec = value::text(value)?.parse().map_err(|e: SpecError| e.to_string())?;
    if let Device::Gen(options) = &spec.device {
        options.parse::<GenSpec>()?;
    }
    Ok(spec)
}

/// The name of a port on this device whose section has none.
fn default_name(spec: &DeviceSpec) -> Option<String> {
    let name = match &spec.device {
        Device::Interface(name) | Device::Xdp(name) | Device::Pipe(name) => name,
        Device::Netmap(netmap) => netmap.name.rsplit(':').next()?,
        Device::Pcap { .. } | Device::Gen(_) => return None,
    };
    value::is_name(name, NAME_MAX).then(|| name.to_owned())
}

/// What the device takes for itself, and how many ports can share it.
fn claim(spec: &DeviceSpec) -> (String, usize) {
    match &spec.device {
        Device::Interface(name) | Device::Xdp(name) => (name.clone(), 1),
        Device::Netmap(netmap) if netmap.kind == PortKind::Nic && netmap.rings == RingSet::All => {
            (netmap.name.clone(), 1)
        }
        Device::Netmap(netmap) => (netmap.to_string(), 1),
        Device::Pcap { .. } => (spec.to_string(), 1),
        Device::Pipe(name) => (format!("pipe:{name}"), 2),
        Device::Gen(_) => (spec.to_string(), usize::MAX),
    }
}

/// Whether the address means nothing without its port.
pub(super) fn link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
