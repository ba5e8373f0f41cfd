//! Configuration: from TOML to values that have been checked.
//!
//! [`load`] reads a file and opens nothing else. Everything that is wrong is reported at once,
//! each error with its file, line and key, and with what to do about it. What the program cannot
//! do yet is read and checked like the rest, and refused by [`load_supported`].
//!
//! | file | what it holds |
//! |---|---|
//! | [`schema`] | every section and key |
//! | `reader` | one section, key by key |
//! | `value` | single values: prefixes, durations, ports |
//! | `daemon`, `port`, `route`, `acl`, `nat` | the sections, one file for each subject |
//! | `change` | what a new configuration changes, and what cannot change |
//! | [`support`] | what is not built in yet |

use std::{
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    io::Read,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use netmap::device::spec::Device;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

mod acl;
mod change;
mod daemon;
mod nat;
mod port;
mod problem;
mod reader;
mod route;
pub mod schema;
pub mod support;
#[cfg(test)]
mod tests;
mod value;

pub use acl::{Acl, Action, State};
pub use daemon::{Daemon, Idle, KERNEL_TABLE, Kernel, OnExit, RUNTIME_DIR};
pub use nat::{ForwardPort, Masquerade, OneToOne, Protocol};
pub use port::{NAME_MAX, Port, Sub};
pub use problem::{ConfigErrors, Problem};
pub use route::{NEXT_HOPS_MAX, Neighbor, NextHop, Route, Target};
pub use value::{MacAddr, PortRange};

use self::{
    port::Ports,
    problem::Problems,
    reader::Reader,
    route::{Neighbors, Routes},
    schema::{Section, nearest},
    support::{Feature, NOT_YET, Uses},
};
use crate::tables::ReversePath;

/// Where the configuration is, unless the command line says otherwise.
#[cfg(not(target_os = "freebsd"))]
pub const DEFAULT_FILE: &str = "/etc/sweepd.toml";
/// Where the configuration is, unless the command line says otherwise.
#[cfg(target_os = "freebsd")]
pub const DEFAULT_FILE: &str = "/usr/local/etc/sweepd.toml";

use crate::plain::plain;

/// Longest file in bytes that is read; a million routes need less.
const LONGEST: u64 = 256 << 20;

/// A configuration that has been checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file, as it was named.
    pub file: String,
    /// `[daemon]`
    pub daemon: Daemon,
    /// `[kernel]`
    pub kernel: Kernel,
    /// `[[port]]`, in the order of the file, and behind all of them their sub-ports; at least one, the
    /// names all different.
    pub ports: Vec<Port>,
    /// `[[route]]`, in the order of the file; the destinations all different.
    pub routes: Vec<Route>,
    /// `[[neighbor]]`, in the order of the file.
    pub neighbors: Vec<Neighbor>,
    /// `[[acl]]`, in the order of the file.
    pub acls: Vec<Acl>,
    /// `[[masquerade]]`, in the order of the file.
    pub masquerades: Vec<Masquerade>,
    /// `[[forward_port]]`, in the order of the file.
    pub forward_ports: Vec<ForwardPort>,
    /// `[[one_to_one]]`, in the order of the file.
    pub one_to_ones: Vec<OneToOne>,
    /// What is probably not meant, in the order of the file.
    pub warnings: Vec<Problem>,
    /// The [`digest`] of the text that it was read from.
    pub digest: u64,
    uses: Uses,
}

impl Config {
    /// The index in [`ports`](Self::ports) of the port called `name`.
    pub fn port(&self, name: &str) -> Option<usize> {
        self.ports.iter().position(|port| port.name == name)
    }

    /// Where the file uses what is not built in yet, in the order of the file.
    pub fn unsupported(&self) -> Vec<Problem> {
        self.uses.among(NOT_YET)
    }

    /// The names of the kernel's interfaces that the ports take, those of their VLANs included.
    pub fn interfaces(&self) -> Vec<String> {
        let of_port = |port: &Port| {
            let name = port.device.interface()?.to_owned();
            let vlans: Vec<_> = port.vlans.iter().map(|vlan| format!("{name}.{vlan}")).collect();
            Some(std::iter::once(name).chain(vlans))
        };
        let mut names: Vec<_> = self.ports.iter().filter_map(of_port).flatten().collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Reads and checks the configuration file at `path`. Opens nothing that it names.
///
/// # Errors
/// Everything that is wrong with the file, or that it cannot be read.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    let name = path.display().to_string();
    parse(&read(path)?, &name)
}

/// As [`load`], and what is not built in yet is an error like all others.
///
/// # Errors
/// As for [`load`], and one for each use of what is not built in.
pub fn load_supported(path: &Path) -> Result<Config, ConfigErrors> {
    parse_supported(&read(path)?, &path.display().to_string())
}

/// A number that tells one text from another, within one run of the program.
pub fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// The text of the configuration file at `path`, not looked into.
///
/// # Errors
/// The file cannot be read, is too long or no text.
pub fn read(path: &Path) -> Result<String, ConfigErrors> {
    read_file(path, &path.display().to_string())
}

/// Reads and checks a configuration; `name` is what errors call it.
///
/// # Errors
/// Everything that is wrong; of a text that is not TOML, the first thing.
pub fn parse(text: &str, name: &str) -> Result<Config, ConfigErrors> {
    parse_without(text, name, &[])
}

/// As [`parse`], and what is not built in yet is an error like all others.
///
/// # Errors
/// As for [`parse`], and one for each use of what is not built in.
pub fn parse_supported(text: &str, name: &str) -> Result<Config, ConfigErrors> {
    parse_without(text, name, NOT_YET)
}

/// Reads and checks a configuration; of the features, those in `refused` are errors.
fn parse_without(text: &str, name: &str, refused: &[Feature]) -> Result<Config, ConfigErrors> {
    let root = syntax(text, name)?;
    let mut problems = Problems::new(name, text);
    let config = read_all(root.get_ref(), name, &mut problems);
    let unsupported = config.uses.among(refused);
    match problems.finish() {
        Ok(warnings) if unsupported.is_empty() => Ok(Config { warnings, digest: digest(text), ..config }),
        Ok(_) => Err(ConfigErrors(unsupported)),
        Err(ConfigErrors(mut errors)) => {
            errors.extend(unsupported);
            errors.sort_by_key(|error| (error.line, error.column));
            Err(ConfigErrors(errors))
        }
    }
}

/// The `runtime_dir` of the configuration file at `path`: where the daemon's files are. The rest
/// of the file may be wrong: it may be being edited while the daemon runs.
///
/// # Errors
/// The file cannot be read, is not TOML, or `runtime_dir` itself is wrong.
pub fn load_runtime_dir(path: &Path) -> Result<PathBuf, ConfigErrors> {
    let name = path.display().to_string();
    let text = read_file(path, &name)?;
    // The daemon goes on with what it has read; a slip made since shall not hide it.
    let (root, _) = DeTable::parse_recoverable(&text);
    let daemon = root.get_ref().iter().find(|(key, _)| key.get_ref() == schema::DAEMON.name);
    let Some((_, value)) = daemon else { return Ok(RUNTIME_DIR.into()) };
    // Unknown keys of the section are not of interest here.
    let section = Reader::open(&schema::DAEMON, value, &mut Problems::new(&name, &text));
    let mut problems = Problems::new(&name, &text);
    let dir = section.map_or_else(|| RUNTIME_DIR.into(), |s| daemon::read_runtime_dir(&s, &mut problems));
    problems.finish().map(|_| dir)
}

fn read_file(path: &Path, name: &str) -> Result<String, ConfigErrors> {
    let failed = |e: std::io::Error| {
        let hint = match e.kind() {
            std::io::ErrorKind::NotFound => "; write one, or name another with --config",
            std::io::ErrorKind::PermissionDenied => "; run as root, or change the file's mode",
            std::io::ErrorKind::IsADirectory => "; name a file with --config",
            _ => "",
        };
        Problem::of_file(name, plain(&format!("cannot read: {e}{hint}")))
    };
    // A FIFO without a writer would not even be opened otherwise.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let kind = file.metadata().map_err(failed)?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(
            Problem::of_file(name, "cannot read: it is no regular file; name one with --config").into()
        );
    }
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LONGEST {
        let message = format!("longer than {} MiB; that is no configuration", LONGEST >> 20);
        return Err(Problem::of_file(name, message).into());
    }
    String::from_utf8(bytes).map_err(|e| {
        let valid = e.utf8_error().valid_up_to();
        let before = String::from_utf8_lossy(&e.as_bytes()[..valid]).into_owned();
        let message = "a byte that is not UTF-8; save the file as UTF-8";
        Problems::new(name, &before).problem(valid, "", message).into()
    })
}

/// Reads TOML.
fn syntax<'t>(text: &'t str, name: &str) -> Result<Spanned<DeTable<'t>>, ConfigErrors> {
    DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        let mut problem = Problems::new(name, text).problem(at, "", "");
        let what = e.message().split('\n').collect::<Vec<_>>().join(" ");
        let fix = if what.contains("duplicate key") { "; remove one" } else { "" };
        problem.message = format!("not TOML at column {}: {what}{fix}", problem.column);
        problem.into()
    })
}

/// Reads all sections; what is wrong is in `problems` afterwards.
fn read_all(root: &DeTable<'_>, name: &str, problems: &mut Problems<'_>) -> Config {
    refuse_unknown(root, problems);
    let mut uses = Uses::default();
    let mut ports = Ports::default();
    let sections_of_ports = sections(root, &schema::PORT, problems);
    ports.expect(&sections_of_ports);
    for section in sections_of_ports {
        ports.read(&section, problems);
    }
    ports.finish();
    if !root.keys().any(|key| key.get_ref() == schema::PORT.name) {
        problems.error(0, schema::PORT.name, "missing; add at least one [[port]] with device = \"xdp:eth0\"");
    }
    let mut daemon = Daemon::default();
    let mut on_exit = None;
    for section in sections(root, &schema::DAEMON, problems) {
        (daemon, on_exit) = daemon::read_daemon(&section, problems, &mut uses);
    }
    let mut kernel = Kernel::default();
    for section in sections(root, &schema::KERNEL, problems) {
        kernel = daemon::read_kernel(&section, problems);
    }
    let mut routes = Routes::default();
    for section in sections(root, &schema::ROUTE, problems) {
        routes.read(&section, &ports, problems, &mut uses);
    }
    let mut neighbors = Neighbors::default();
    for section in sections(root, &schema::NEIGHBOR, problems) {
        neighbors.read(&section, &ports, problems);
    }
    let mut acls = acl::Acls::default();
    for section in sections(root, &schema::ACL, problems) {
        acl::read(&section, &ports, problems, &mut acls);
    }
    let mut masquerades = Vec::new();
    for section in sections(root, &schema::MASQUERADE, problems) {
        nat::read_masquerade(&section, &ports, problems, &mut uses, &mut masquerades);
    }
    let mut one_to_ones = Vec::new();
    for section in sections(root, &schema::ONE_TO_ONE, problems) {
        nat::read_one_to_one(&section, &ports, problems, &mut one_to_ones);
    }
    let mut forward_ports = Vec::new();
    for section in sections(root, &schema::FORWARD_PORT, problems) {
        nat::read_forward_port(&section, &ports, problems, &mut forward_ports);
    }
    if problems.errors() == 0 {
        nat::refuse_bare_forwards(&forward_ports, &masquerades, problems);
    }
    let checks_sources = ports.list.iter().any(|port| port.urpf != ReversePath::Off);
    let translates = uses.has(Feature::Masquerade) || !one_to_ones.is_empty();
    let filters = !acls.list.is_empty() || translates || checks_sources;
    // Not fail-open: who filters does not want the kernel to forward unfiltered afterwards.
    daemon.on_exit = on_exit.unwrap_or(if filters { OnExit::Drop } else { OnExit::Forward });
    let config = Config {
        file: name.into(),
        daemon,
        kernel,
        ports: ports.list,
        routes: routes.list,
        neighbors: neighbors.list,
        acls: acls.list,
        masquerades,
        one_to_ones,
        forward_ports: forward_ports.into_iter().map(|placed| placed.value).collect(),
        warnings: Vec::new(),
        digest: 0,
        uses,
    };
    warn_of_the_whole(&config, root, filters, problems);
    config
}

/// Reports sections that the schema does not have, and keys outside any section.
fn refuse_unknown(root: &DeTable<'_>, problems: &mut Problems<'_>) {
    let brackets = |s: &Section| if s.list { format!("[[{}]]", s.name) } else { format!("[{}]", s.name) };
    for (key, value) in root {
        let name = key.get_ref().as_ref();
        if schema::top().any(|section| section.name == name) {
            continue;
        }
        let is_key = !matches!(value.get_ref(), DeValue::Table(_))
            && !value.as_ref().as_array().is_some_and(|a| a.iter().any(|entry| entry.as_ref().is_table()));
        let owner = schema::top().find(|section| section.keys.contains(&name)).filter(|_| is_key);
        let near = nearest(name, schema::top().map(|section| section.name));
        let message = match (owner, near.and_then(|near| schema::top().find(|s| s.name == near))) {
            (Some(owner), _) => format!("a key outside its section; put it under {}", brackets(owner)),
            (None, Some(near)) => format!("unknown section; did you mean {}?", brackets(near)),
            (None, None) => {
                let all: Vec<_> = schema::top().map(brackets).collect();
                format!("unknown; the sections are {}", all.join(", "))
            }
        };
        problems.error(key.span().start, name, message);
    }
}

/// The sections called as `schema` says: at most one, or any number if it is a list.
fn sections<'t>(
    root: &'t DeTable<'t>,
    schema: &'static Section,
    problems: &mut Problems<'_>,
) -> Vec<Reader<'t>> {
    let Some((_, value)) = root.iter().find(|(key, _)| key.get_ref() == schema.name) else {
        return Vec::new();
    };
    let name = schema.name;
    let wrong = |problems: &mut Problems<'_>, message: String| {
        problems.error(value.span().start, name, message);
        Vec::new()
    };
    match value.get_ref() {
        DeValue::Array(entries) if schema.list => {
            if entries.is_empty() {
                return wrong(problems, format!("an empty list; write [[{name}]] sections"));
            }
            entries.iter().filter_map(|entry| Reader::open(schema, entry, problems)).collect()
        }
        DeValue::Table(_) if !schema.list => Reader::open(schema, value, problems).into_iter().collect(),
        DeValue::Table(_) => wrong(
            problems,
            format!("there can be several, so it takes two pairs of brackets; write [[{name}]]"),
        ),
        DeValue::Array(_) => {
            wrong(problems, format!("there is only one, so it takes one pair of brackets; write [{name}]"))
        }
        other => {
            let brackets = if schema.list { format!("[[{name}]]") } else { format!("[{name}]") };
            wrong(problems, format!("found {}; write a section, {brackets}", other.type_str()))
        }
    }
}

/// Warns of what only the whole file shows.
fn warn_of_the_whole(config: &Config, root: &DeTable<'_>, filters: bool, problems: &mut Problems<'_>) {
    let place = |name: &str| {
        root.iter().find(|(key, _)| key.get_ref() == name).map_or(0, |(key, _)| key.span().start)
    };
    if !config.kernel.routes && config.routes.is_empty() {
        let message = "the kernel's routes are not followed and there is no [[route]]; \
                       only the ports' own networks will be reached";
        problems.warn(place("kernel"), "kernel.routes", message);
    }
    let xdp = |port: &&Port| matches!(port.device.device, Device::Xdp(_));
    if filters && config.ports.iter().any(|port| xdp(&port)) {
        let then = match config.daemon.on_exit {
            OnExit::Drop => "dropped, since on_exit is \"drop\"",
            OnExit::Forward => "neither filtered nor translated",
        };
        let message = format!(
            "what the kernel itself forwards to xdp: ports, from devices that are no ports, is {then}; \
             make such devices ports, if there are any"
        );
        problems.warn(place("port"), "port.device", message);
    }
}
