//! Device names: from the configuration's string to what is to be opened.
//!
//! | string | meaning |
//! |---|---|
//! | `netmap:ix0`, `netmap:ix0*` | every ring of the interface, and its host rings |
//! | `netmap:ix0-2` | ring pair 2, and the host rings |
//! | `netmap:ix0^` | the host rings only |
//! | `vale0:a`, `netmap:vale0:a` | a port of a VALE switch |
//! | `netmap:p{1`, `netmap:p}1` | the two ends of a netmap pipe |
//! | `xdp:eth0` | AF_XDP |
//! | `pcap:in.pcap`, `pcap:in.pcap,out.pcap` | captures |
//! | `pipe:name` | an end of a pipe in this process |
//! | `gen:...` | the generator, which reads the rest by itself |
//! | `eth0` | netmap where the kernel has it, else AF_XDP |
//!
//! `@N` after a netmap name asks for the memory with that id. `/rings=2,slots=512` after any name
//! but those of `pcap:` and `gen:` chooses the number of ring pairs and of slots in a ring.

use std::{fmt, path::PathBuf, str::FromStr};

/// Longest interface name in bytes.
const MAX_INTERFACE: usize = 15;
/// Longest netmap port name in bytes.
const MAX_PORT_NAME: usize = crate::abi::NETMAP_REQ_IFNAMSIZ - 1;
/// Ring numbers end here.
const MAX_RING: u16 = 0xfff;

/// A device as the configuration names it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DeviceSpec {
    /// What is to be opened.
    pub device: Device,
    /// Number of ring pairs, where the string says so.
    pub rings: Option<u32>,
    /// Slots per ring, where the string says so.
    pub slots: Option<u32>,
}

/// The kinds of device.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Device {
    /// A port of the kernel's netmap.
    Netmap(NetmapSpec),
    /// The interface, by AF_XDP.
    Xdp(String),
    /// Captures.
    Pcap {
        /// What is received.
        input: PathBuf,
        /// Where to write what is sent.
        output: Option<PathBuf>,
    },
    /// An end of the pipe of this name.
    Pipe(String),
    /// The generator, with everything after `gen:`.
    Gen(String),
    /// The interface, by whatever the system has.
    Interface(String),
}

impl DeviceSpec {
    /// The name of the kernel's interface that it takes, if it takes one.
    pub fn interface(&self) -> Option<&str> {
        match &self.device {
            Device::Xdp(name) | Device::Interface(name) => Some(name),
            Device::Netmap(spec) if spec.kind == PortKind::Nic => Some(&spec.name),
            Device::Netmap(_) | Device::Pcap { .. } | Device::Pipe(_) | Device::Gen(_) => None,
        }
    }
}

/// A port of the kernel's netmap.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NetmapSpec {
    /// The name that the kernel is told: no prefix, no suffix.
    pub name: String,
    /// What the name names.
    pub kind: PortKind,
    /// Which rings.
    pub rings: RingSet,
    /// The memory to ask for, where the string says so.
    pub mem_id: Option<u16>,
}

/// What a netmap name names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PortKind {
    /// A network interface.
    Nic,
    /// A port of a VALE switch.
    Vale,
    /// An end of a netmap pipe.
    Pipe,
}

/// Which rings of a netmap port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RingSet {
    /// All, with the host rings if there are any.
    All,
    /// This ring pair, with the host rings if there are any.
    One(u16),
    /// The host rings alone.
    Host,
}

/// Why a string names no device: one line that says what to write.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(String);

impl SpecError {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

type Result<T> = std::result::Result<T, SpecError>;

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(SpecError::new(
                "no device is named: write netmap:IFACE, xdp:IFACE, pcap:FILE, pipe:NAME or gen:",
            ));
        }
        if let Some(c) = text.chars().find(|c| c.is_control()) {
            return Err(SpecError::new(format!("a device name cannot hold the control character {c:?}")));
        }
        match text.split_once(':') {
            Some(("netmap", rest)) => netmap(rest),
            Some(("xdp", rest)) => {
                let (name, sizes) = split_options(rest)?;
                sizes.of(Device::Xdp(interface(name, "xdp:eth0")?))
            }
            Some(("pcap", rest)) => Sizes::default().of(pcap(rest)?),
            Some(("pipe", rest)) => {
                let (name, sizes) = split_options(rest)?;
                if name.is_empty() {
                    return Err(SpecError::new("a pipe needs a name: write pipe:NAME, twice"));
                }
                sizes.of(Device::Pipe(name.into()))
            }
            Some(("gen", rest)) => Sizes::default().of(Device::Gen(rest.into())),
            Some((prefix, _)) if prefix.starts_with("vale") => netmap(text),
            Some((prefix, _)) => Err(SpecError::new(format!(
                "{prefix}: is no kind of device; there are netmap:, vale0:, xdp:, pcap:, pipe: and gen:"
            ))),
            None => plain(text),
        }
    }
}

/// A name without a prefix.
fn plain(text: &str) -> Result<DeviceSpec> {
    let (name, sizes) = split_options(text)?;
    refuse_bare_switch(name)?;
    if name.contains(['{', '}', '^', '*']) {
        return Err(SpecError::new(format!("{name}: this is a netmap name; write netmap:{name}")));
    }
    sizes.of(Device::Interface(interface(name, "eth0")?))
}

fn pcap(rest: &str) -> Result<Device> {
    let (input, output) = match rest.split_once(',') {
        Some((input, output)) => (input, Some(output)),
        None => (rest, None),
    };
    if input.is_empty() || output == Some("") {
        return Err(SpecError::new("a capture needs a file: write pcap:IN.pcap or pcap:IN.pcap,OUT.pcap"));
    }
    Ok(Device::Pcap { input: input.into(), output: output.map(PathBuf::from) })
}

/// A netmap name without the prefix: `NAME[-RING|^|*][@MEMORY][/OPTIONS]`.
fn netmap(text: &str) -> Result<DeviceSpec> {
    let (text, sizes) = split_options(text)?;
    let (text, mem_id) = split_memory(text)?;
    let kind = if text.contains(['{', '}']) {
        PortKind::Pipe
    } else if text.contains(':') {
        PortKind::Vale
    } else {
        PortKind::Nic
    };
    let (name, rings) = if kind == PortKind::Pipe { (text, RingSet::All) } else { split_rings(text)? };
    match kind {
        PortKind::Pipe => check_pipe(name)?,
        PortKind::Vale => check_vale(name, rings)?,
        PortKind::Nic => {
            refuse_bare_switch(name)?;
            interface(name, "netmap:ix0")?;
        }
    }
    sizes.of(Device::Netmap(NetmapSpec { name: name.into(), kind, rings, mem_id }))
}

fn split_rings(text: &str) -> Result<(&str, RingSet)> {
    if let Some(name) = text.strip_suffix('^') {
        return Ok((name, RingSet::Host));
    }
    if let Some(name) = text.strip_suffix('*') {
        return Ok((name, RingSet::All));
    }
    match text.rsplit_once('-') {
        Some((name, ring)) if !ring.is_empty() && ring.bytes().all(|b| b.is_ascii_digit()) => {
            match ring.parse() {
                Ok(ring) if ring <= MAX_RING => Ok((name, RingSet::One(ring))),
                _ => Err(SpecError::new(format!("ring {ring}: ring numbers go from 0 to {MAX_RING}"))),
            }
        }
        _ => Ok((text, RingSet::All)),
    }
}

fn split_memory(text: &str) -> Result<(&str, Option<u16>)> {
    let Some((name, id)) = text.split_once('@') else { return Ok((text, None)) };
    match id.parse() {
        Ok(id) if id > 0 => Ok((name, Some(id))),
        _ => Err(SpecError::new(format!("@{id}: a memory id is a number from 1 to 65535"))),
    }
}

fn refuse_bare_switch(name: &str) -> Result<()> {
    if name.starts_with("vale") {
        return Err(SpecError::new(format!(
            "{name} is a switch, or an interface that netmap takes for one: write {name}:PORT to open one of \
             its ports"
        )));
    }
    Ok(())
}

fn check_vale(name: &str, rings: RingSet) -> Result<()> {
    let (switch, port) = name.split_once(':').unwrap_or((name, ""));
    if !switch.starts_with("vale") {
        return Err(SpecError::new(format!(
            "{switch}: a switch's name begins with vale; write netmap:vale0:{port}"
        )));
    }
    if !is_word(&switch[4..]) && switch != "vale" || !is_word(port) {
        return Err(SpecError::new(format!(
            "{name}: write vale0:PORT, both of letters, digits, '_', '-' and '.'"
        )));
    }
    if name.len() > MAX_PORT_NAME {
        return Err(SpecError::new(format!(
            "{name}: longer than {MAX_PORT_NAME} bytes, choose a shorter name"
        )));
    }
    if rings == RingSet::Host {
        return Err(SpecError::new(format!(
            "{name}^: a port of a switch has no host rings, leave out the ^"
        )));
    }
    Ok(())
}

fn check_pipe(name: &str) -> Result<()> {
    let at = name.rfind(['{', '}']).unwrap_or(0);
    let (parent, id) = (&name[..at], name.get(at + 1..).unwrap_or(""));
    if !is_word(&parent.replace(':', "_")) || !is_word(id) {
        return Err(SpecError::new(format!(
            "{name}: a pipe is netmap:NAME{{ID at one end and netmap:NAME}}ID at the other, without ring suffixes"
        )));
    }
    if name.len() > MAX_PORT_NAME {
        return Err(SpecError::new(format!(
            "{name}: longer than {MAX_PORT_NAME} bytes, choose a shorter name"
        )));
    }
    Ok(())
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

fn interface(name: &str, example: &str) -> Result<String> {
    let good = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':' | ',' | '@' | '^' | '*');
    if name.is_empty() {
        return Err(SpecError::new(format!("no interface is named: write for example {example}")));
    }
    if name.len() > MAX_INTERFACE || !name.chars().all(good) {
        return Err(SpecError::new(format!(
            "{name}: no interface can have this name (at most {MAX_INTERFACE} letters, digits or marks, as \
             `ip link` or `ifconfig -l` shows them)"
        )));
    }
    Ok(name.into())
}

#[derive(Default)]
struct Sizes {
    rings: Option<u32>,
    slots: Option<u32>,
}

impl Sizes {
    fn of(self, device: Device) -> Result<DeviceSpec> {
        Ok(DeviceSpec { device, rings: self.rings, slots: self.slots })
    }
}

/// Cuts `/rings=N,slots=N` off.
fn split_options(text: &str) -> Result<(&str, Sizes)> {
    let mut sizes = Sizes::default();
    let Some((name, options)) = text.split_once('/') else { return Ok((text, sizes)) };
    for option in options.split(',') {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let (place, most) = match key {
            "rings" => (&mut sizes.rings, 256),
            "slots" => (&mut sizes.slots, 16384),
            _ => {
                return Err(SpecError::new(format!(
                    "/{option}: no such option; there are /rings=N and /slots=N, joined by a comma"
                )));
            }
        };
        match value.parse() {
            Ok(n) if (1..=most).contains(&n) => *place = Some(n),
            _ => return Err(SpecError::new(format!("/{option}: {key} is a number from 1 to {most}"))),
        }
    }
    Ok((name, sizes))
}

impl fmt::Display for NetmapSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "netmap:{}", self.name)?;
        match self.rings {
            RingSet::All => {}
            RingSet::One(ring) => write!(f, "-{ring}")?,
            RingSet::Host => f.write_str("^")?,
        }
        self.mem_id.map_or(Ok(()), |id| write!(f, "@{id}"))
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.device {
            Device::Netmap(spec) => spec.fmt(f)?,
            Device::Xdp(name) => write!(f, "xdp:{name}")?,
            Device::Pcap { input, output: None } => write!(f, "pcap:{}", input.display())?,
            Device::Pcap { input, output: Some(output) } => {
                write!(f, "pcap:{},{}", input.display(), output.display())?;
            }
            Device::Pipe(name) => write!(f, "pipe:{name}")?,
            Device::Gen(rest) => write!(f, "gen:{rest}")?,
            Device::Interface(name) => f.write_str(name)?,
        }
        match (self.rings, self.slots) {
            (None, None) => Ok(()),
            (Some(r), None) => write!(f, "/rings={r}"),
            (None, Some(s)) => write!(f, "/slots={s}"),
            (Some(r), Some(s)) => write!(f, "/rings={r},slots={s}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nm(name: &str, kind: PortKind, rings: RingSet, mem_id: Option<u16>) -> Device {
        Device::Netmap(NetmapSpec { name: name.into(), kind, rings, mem_id })
    }

    fn read(text: &str) -> Device {
        text.parse::<DeviceSpec>().unwrap_or_else(|e| panic!("{text}: {e}")).device
    }

    #[test]
    fn every_form_of_the_table_is_read() {
        use PortKind::*;
        assert_eq!(read("netmap:ix0"), nm("ix0", Nic, RingSet::All, None));
        assert_eq!(read("netmap:ix0*"), nm("ix0", Nic, RingSet::All, None));
        assert_eq!(read("netmap:ix0-2"), nm("ix0", Nic, RingSet::One(2), None));
        assert_eq!(read("netmap:br-lan"), nm("br-lan", Nic, RingSet::All, None));
        assert_eq!(read("netmap:br-lan-0"), nm("br-lan", Nic, RingSet::One(0), None));
        assert_eq!(read("netmap:ix0^"), nm("ix0", Nic, RingSet::Host, None));
        assert_eq!(read("vale0:a"), nm("vale0:a", Vale, RingSet::All, None));
        assert_eq!(read("netmap:vale0:a@3"), nm("vale0:a", Vale, RingSet::All, Some(3)));
        assert_eq!(read("vale0:a-1"), nm("vale0:a", Vale, RingSet::One(1), None));
        assert_eq!(read("netmap:p{1"), nm("p{1", Pipe, RingSet::All, None));
        assert_eq!(read("netmap:p}1"), nm("p}1", Pipe, RingSet::All, None));
        assert_eq!(read("netmap:vale0:a{x"), nm("vale0:a{x", Pipe, RingSet::All, None));
        assert_eq!(read("xdp:eth0"), Device::Xdp("eth0".into()));
        assert_eq!(read("pcap:/tmp/in.pcap"), Device::Pcap { input: "/tmp/in.pcap".into(), output: None });
        let both = Device::Pcap { input: "in.pcap".into(), output: Some("out.pcap".into()) };
        assert_eq!(read("pcap:in.pcap,out.pcap"), both);
        assert_eq!(read("pipe:x"), Device::Pipe("x".into()));
        assert_eq!(read("gen:flows=10,/:x"), Device::Gen("flows=10,/:x".into()));
        assert_eq!(read("gen:"), Device::Gen(String::new()));
        assert_eq!(read("eth0"), Device::Interface("eth0".into()));
    }

    #[test]
    fn options_choose_rings_and_slots() {
        let spec: DeviceSpec = "vale0:a@2/rings=2,slots=512".parse().unwrap();
        assert_eq!(spec.device, nm("vale0:a", PortKind::Vale, RingSet::All, Some(2)));
        assert_eq!((spec.rings, spec.slots), (Some(2), Some(512)));
        assert_eq!("xdp:eth0/rings=4".parse::<DeviceSpec>().unwrap().rings, Some(4));
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, hint) in [
            ("", "netmap:IFACE"),
            ("vale0", "vale0:PORT"),
            ("netmap:vale0", "vale0:PORT"),
            ("netmap:vale0:", "vale0:PORT"),
            ("vale0:a^", "leave out the ^"),
            ("netmap:", "netmap:ix0"),
            ("netmap:p{", "NAME{ID"),
            ("netmap:{1", "NAME{ID"),
            ("netmap:foo:a", "netmap:vale0:a"),
            ("p{1", "netmap:p{1"),
            ("xdp:", "xdp:eth0"),
            ("pcap:", "pcap:IN.pcap"),
            ("pcap:a,", "pcap:IN.pcap"),
            ("pipe:", "pipe:NAME"),
            ("dpdk:0", "netmap:, vale0:"),
            ("netmap:ix0/x", "/rings=N"),
            ("netmap:ix0/rings=0", "from 1 to 256"),
            ("netmap:ix0@0", "from 1 to 65535"),
            ("netmap:ix0-99999", "from 0 to 4095"),
            ("an-interface-of-20-b", "ip link"),
            ("eth0\n", "control character"),
        ] {
            let error = text.parse::<DeviceSpec>().expect_err(text).to_string();
            assert!(error.contains(hint), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn random_strings_never_panic(text in "\\PC*", prefix in "(netmap:|vale0:|xdp:|pcap:|pipe:)?",
            suffix in "[-^*@/{}0-9a-z=,:]{0,24}") {
            for text in [text.clone(), format!("{prefix}{text}{suffix}"), format!("{prefix}{suffix}")] {
                if let Ok(spec) = text.parse::<DeviceSpec>() {
                    prop_assert_eq!(spec.to_string().parse::<DeviceSpec>(), Ok(spec));
                }
            }
        }
    }
}
