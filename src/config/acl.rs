//! `[[acl]]`: which packets may pass. The first rule that fits a packet decides.

use std::collections::HashMap;

use ipnet::IpNet;
use toml::de::DeValue;

use super::{
    port::Ports,
    problem::{Offset, Problems},
    reader::{Reader, values},
    value::{self, PortRange},
};

/// `[[acl]]`. An empty list fits everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    /// What the configuration calls it; `acl-N` for the Nth rule, if it has no name.
    pub name: String,
    /// What becomes of a packet that fits.
    pub action: Action,
    /// The ports that it came in by.
    pub in_ports: Vec<String>,
    /// The ports that it would leave by.
    pub out_ports: Vec<String>,
    /// Its source is in one of these.
    pub from: Vec<IpNet>,
    /// Its destination is in one of these.
    pub to: Vec<IpNet>,
    /// Its protocol, by IANA's number.
    pub protocol: Option<u8>,
    /// Its source port is in one of these.
    pub from_ports: Vec<PortRange>,
    /// Its destination port is in one of these.
    pub to_ports: Vec<PortRange>,
    /// Its place in a flow.
    pub state: Option<State>,
    /// Whether fitting packets are logged.
    pub log: bool,
}

/// What becomes of a packet that fits a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// It passes.
    Permit,
    /// It is discarded.
    Deny,
}

/// A packet's place in a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It begins one.
    New,
    /// It belongs to one.
    Established,
}

/// Protocols by name.
const PROTOCOLS: &[(&str, u8)] = &[("tcp", TCP), ("udp", UDP), ("icmp", ICMP), ("icmp6", ICMP6)];
/// IANA's numbers.
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;

/// The rules read so far.
#[derive(Default)]
pub(super) struct Acls {
    /// All, in the order of the file.
    pub(super) list: Vec<Acl>,
    names: HashMap<String, Offset>,
}

/// Reads one `[[acl]]` into `rules`.
pub(super) fn read(section: &Reader<'_>, ports: &Ports, problems: &mut Problems<'_>, rules: &mut Acls) {
    let words = [("permit", Action::Permit), ("deny", Action::Deny)];
    let action =
        section.require(problems, "action", "action = \"permit\" or \"deny\"", |v| value::choice(v, &words));
    let name = section.read(problems, "name", |v| value::name(v, 32));
    let name = name.map_or_else(|| format!("acl-{}", rules.list.len() + 1), |name| name.value);
    if let Some(first) = rules.names.insert(name.clone(), section.at) {
        let message = format!("{name:?} is a rule on line {} already; rename one", problems.line(first));
        problems.error(section.place("name"), section.path("name"), message);
    }
    let words = [("new", State::New), ("established", State::Established)];
    let rule = Acl {
        name,
        action: action.map_or(Action::Deny, |action| action.value),
        in_ports: values(section.one_or_list(problems, "in", |v| ports.reference(v))),
        out_ports: values(section.one_or_list(problems, "out", |v| ports.reference(v))),
        from: values(section.one_or_list(problems, "from", value::prefix)),
        to: values(section.one_or_list(problems, "to", value::prefix)),
        protocol: section.read(problems, "protocol", protocol).map(|protocol| protocol.value),
        from_ports: values(section.one_or_list(problems, "from_ports", value::ports)),
        to_ports: values(section.one_or_list(problems, "to_ports", value::ports)),
        state: section.read(problems, "state", |v| value::choice(v, &words)).map(|state| state.value),
        log: section.read(problems, "log", value::boolean).is_some_and(|log| log.value),
    };
    refuse_impossible(&rule, section, problems);
    rules.list.push(rule);
}

/// A protocol by its name or number.
fn protocol(value: &DeValue<'_>) -> Result<u8, String> {
    match value {
        DeValue::Integer(_) => {
            let number = value::integer(value, 0..=255)?;
            u8::try_from(number).map_err(|e| e.to_string())
        }
        _ => {
            value::choice(value, PROTOCOLS).map_err(|message| format!("{message}, or a number from 0 to 255"))
        }
    }
}

/// Reports rules that no packet can fit.
fn refuse_impossible(rule: &Acl, section: &Reader<'_>, problems: &mut Problems<'_>) {
    for key in ["from_ports", "to_ports"] {
        if !section.has(key) || matches!(rule.protocol, Some(TCP | UDP)) {
            continue;
        }
        if !section.has("protocol") || rule.protocol.is_some() {
            let message = "only TCP and UDP have ports; add protocol = \"tcp\" or \"udp\"";
            problems.error(section.place(key), section.path(key), message);
        }
    }
    // Whether a list has room for IPv4, and for IPv6; an empty one has for both.
    let families = |list: &[IpNet]| {
        (list.is_empty() || list.iter().any(is_v4), list.is_empty() || !list.iter().all(is_v4))
    };
    let (from4, from6) = families(&rule.from);
    let (to4, to6) = families(&rule.to);
    let fits4 = from4 && to4 && rule.protocol != Some(ICMP6);
    let fits6 = from6 && to6 && rule.protocol != Some(ICMP);
    if !fits4 && !fits6 {
        let (key, message) = if (from4 && to4) || (from6 && to6) {
            (
                "protocol",
                "is of the other family than from and to; use \"icmp\" with IPv4, \"icmp6\" with IPv6",
            )
        } else {
            ("to", "is of the other family than from, so nothing fits; give both in one family")
        };
        problems.error(section.place(key), section.path(key), message);
    }
}

fn is_v4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}
