//! `[[port]]`: the devices that packets come from and go to.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

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
    value::{self, MacAddr},
};
use crate::{
    tables::{Express, ReversePath},
    wire::vlan::Tags,
};

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
    /// The tags of its sub-ports, in the order of the file.
    pub vlans: Vec<Tags>,
    /// How the sources of its packets are checked.
    pub urpf: ReversePath,
    /// Whether senders on its link are told of better first hops.
    pub redirects: bool,
    /// Whether its plain packets are forwarded in the driver.
    pub express: Express,
    /// A VLAN sub-port: of which port, whose device it has.
    pub sub: Option<Sub>,
}

/// What makes a port a sub-port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sub {
    /// The name of the port whose device it has.
    pub parent: String,
    /// The tags of its frames.
    pub tags: Tags,
}

/// What ports and sub-ports both have.
#[derive(Default)]
struct Given {
    addresses: Vec<IpNet>,
    mac: Option<MacAddr>,
    mtu: Option<u16>,
    urpf: ReversePath,
    redirects: bool,
}

impl Port {
    /// What the port's device takes for itself, so that no other port can have it meanwhile.
    pub fn claim(&self) -> Option<String> {
        let (claim, most) = claim(&self.device);
        (most == 1).then_some(claim)
    }
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
    /// The names of sub-ports and of the ports that they belong to, as the whole file has them.
    expected: HashMap<String, String>,
    /// What sections of their own give sub-ports, and where these stand.
    subs: HashMap<String, Placed<Given>>,
}

impl Ports {
    /// Looks which sub-ports the sections name, so that a sub-port's own section is known wherever it
    /// stands. Reports nothing.
    pub(super) fn expect(&mut self, sections: &[Reader<'_>]) {
        let mut quiet = Problems::new("", "");
        for section in sections {
            let device = section.read(&mut quiet, "device", device_named);
            let Some(name) = self.read_name(section, &mut quiet, device.as_ref()) else { continue };
            for tags in values(section.list(&mut quiet, "vlans", vlan)) {
                self.expected.insert(sub_name(&name.value, tags), name.value.clone());
            }
        }
    }

    /// Reads one `[[port]]`.
    pub(super) fn read(&mut self, section: &Reader<'_>, problems: &mut Problems<'_>) {
        let of = section.raw("name").and_then(|name| self.expected.get(name.get_ref().as_str()?));
        if let Some(parent) = of.cloned() {
            self.read_sub_port(section, problems, &parent);
            return;
        }
        let device = section.read(problems, "device", device_named);
        let name = self.read_name(section, problems, device.as_ref());
        let given = self.read_given(section, problems);
        let vlans = section.list(problems, "vlans", vlan);
        if let Some(vlans) = &vlans {
            refuse_twice(problems, &section.path("vlans"), vlans);
        }
        let Some(name) = name else {
            self.names_missing = true;
            return;
        };
        let mut vlans = values(vlans);
        // Those given twice have been reported.
        let mut seen = HashSet::new();
        vlans.retain(|tags| seen.insert(*tags));
        self.add_name(name.clone(), "name", section, problems);
        for tags in &vlans {
            let name = Placed { at: section.place("vlans"), value: sub_name(&name.value, *tags) };
            if name.value.len() > NAME_MAX {
                let message =
                    format!("{:?} is longer than {NAME_MAX} bytes; give the port a shorter name", name.value);
                problems.error(name.at, section.path("vlans"), message);
            }
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
        let express = read_express(section, problems, &device.value);
        self.list.push(Port { express, ..given.port(name.value, device.value, vlans, None) });
    }

    /// Reads the section of a sub-port of `parent`.
    fn read_sub_port(&mut self, section: &Reader<'_>, problems: &mut Problems<'_>, parent: &str) {
        for key in ["device", "vlans", "express"] {
            if section.has(key) {
                let message = format!("a sub-port has the device of port {parent:?}; remove this");
                problems.error(section.place(key), section.path(key), message);
            }
        }
        let given = self.read_given(section, problems);
        let Some(name) = section.read(problems, "name", |v| value::name(v, NAME_MAX)) else { return };
        if let Some(first) = self.subs.insert(name.value, Placed { at: name.at, value: given }) {
            let line = problems.line(first.at);
            problems.error(
                name.at,
                section.path("name"),
                format!("has a section on line {line} already; remove one"),
            );
        }
    }

    /// Adds the sub-ports to the list, behind all ports with devices. To be called when every section
    /// has been read.
    pub(super) fn finish(&mut self) {
        let mut all = Vec::new();
        for port in &self.list {
            for tags in &port.vlans {
                let name = sub_name(&port.name, *tags);
                let given = self.subs.remove(&name).map(|placed| placed.value).unwrap_or_default();
                let sub = Sub { parent: port.name.clone(), tags: *tags };
                all.push(given.port(name, port.device.clone(), Vec::new(), Some(sub)));
            }
        }
        self.list.append(&mut all);
    }

    /// Reads what ports and sub-ports both have.
    fn read_given(&self, section: &Reader<'_>, problems: &mut Problems<'_>) -> Given {
        let addresses = section.one_or_list(problems, "addresses", value::interface_address);
        let mac = section.read(problems, "mac", value::mac);
        let mtu = section.read(problems, "mtu", |v| value::integer(v, 68..=65535));
        if let Some(mtu) = mtu
            && mtu.value < 1280
        {
            problems.warn(mtu.at, section.path("mtu"), "IPv6 needs 1280 at least (RFC 8200)");
        }
        let words =
            [("off", ReversePath::Off), ("loose", ReversePath::Loose), ("strict", ReversePath::Strict)];
        let urpf = section.read(problems, "urpf", |v| value::choice(v, &words));
        let redirects = section.read(problems, "redirects", value::boolean);
        Given {
            addresses: self.new_addresses(section, problems, addresses.unwrap_or_default()),
            mac: mac.map(|mac| mac.value),
            mtu: mtu.and_then(|mtu| u16::try_from(mtu.value).ok()),
            urpf: urpf.map(|urpf| urpf.value).unwrap_or_default(),
            redirects: redirects.is_some_and(|redirects| redirects.value),
        }
    }

    /// The addresses of all ports and sub-ports so far.
    fn addresses(&self) -> impl Iterator<Item = (&str, IpNet)> {
        let ports = self.list.iter().map(|port| (&port.name, &port.addresses));
        let subs = self.subs.iter().map(|(name, given)| (name, &given.value.addresses));
        ports.chain(subs).flat_map(|(name, nets)| nets.iter().map(|net| (name.as_str(), *net)))
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
        self.addresses().find(|(_, other)| net.contains(&other.network()) || other.contains(&net.network()))
    }

    /// The port that has `address`, by what the file says.
    pub(super) fn owner(&self, address: IpAddr) -> Option<&str> {
        self.addresses().find(|(_, net)| net.addr() == address).map(|(name, _)| name)
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

impl Given {
    fn port(self, name: String, device: DeviceSpec, vlans: Vec<Tags>, sub: Option<Sub>) -> Port {
        let Self { addresses, mac, mtu, urpf, redirects } = self;
        let express = Express::default();
        Port { name, device, addresses, mac, mtu, vlans, urpf, redirects, express, sub }
    }
}

/// Reads `express`, which only ports on interfaces of Linux's can have on.
fn read_express(section: &Reader<'_>, problems: &mut Problems<'_>, device: &DeviceSpec) -> Express {
    let words = [("auto", Express::Auto), ("on", Express::On), ("off", Express::Off)];
    let Some(express) = section.read(problems, "express", |v| value::choice(v, &words)) else {
        return Express::default();
    };
    let can_be = matches!(device.device, Device::Xdp(_) | Device::Interface(_));
    if express.value == Express::On && !can_be {
        let message = format!("{device} is no xdp: device; only these have it. Remove this");
        problems.error(express.at, section.path("express"), message);
    }
    express.value
}

/// What a sub-port is called.
fn sub_name(parent: &str, tags: Tags) -> String {
    format!("{parent}.{tags}")
}

/// One of `vlans`: a number, or tags in words.
fn vlan(value: &DeValue<'_>) -> Result<Tags, String> {
    if let DeValue::Integer(_) = value {
        let id = value::integer(value, 1..=4094)?;
        return Ok(Tags::vlan(u16::try_from(id).unwrap_or_default()));
    }
    let text = value::text(value).map_err(|_| format!("found {}; write a VLAN, 100", value.type_str()))?;
    text.parse().map_err(|_| {
        format!("{text:?} is no VLAN; write 100, \"s200\" for a service tag (802.1ad), or \"s200.100\" for a tag in it")
    })
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
