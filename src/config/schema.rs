//! Every section and key that a configuration file may have: the one list that the parser, its
//! suggestions and the test of the manual page share.

/// A section: `[daemon]`, or `[[port]]`, which may come several times.
#[derive(Debug)]
pub struct Section {
    /// The name between the brackets.
    pub name: &'static str,
    /// Whether it is a list, `[[name]]`.
    pub list: bool,
    /// The keys that it may have.
    pub keys: &'static [&'static str],
}

/// `[daemon]`
pub const DAEMON: Section = Section {
    name: "daemon",
    list: false,
    keys: &[
        "cpus",
        "runtime_dir",
        "socket_owner",
        "socket_group",
        "user",
        "metrics",
        "on_exit",
        "idle",
        "icmp_rate",
        "icmp_burst",
        "source_routes",
        "flows",
    ],
};
/// `[kernel]`
pub const KERNEL: Section = Section { name: "kernel", list: false, keys: &["routes", "table"] };
/// `[[port]]`
pub const PORT: Section = Section {
    name: "port",
    list: true,
    keys: &["name", "device", "addresses", "mac", "mtu", "vlans", "urpf", "redirects", "express"],
};
/// `[[route]]`
pub const ROUTE: Section = Section { name: "route", list: true, keys: &["to", "via", "port", "type"] };
/// One entry of a route's `via` list.
pub const VIA: Section = Section { name: "route.via", list: true, keys: &["gateway", "port", "weight"] };
/// `[[neighbor]]`
pub const NEIGHBOR: Section = Section { name: "neighbor", list: true, keys: &["address", "mac", "port"] };
/// `[[acl]]`
pub const ACL: Section = Section {
    name: "acl",
    list: true,
    keys: &[
        "name",
        "action",
        "in",
        "out",
        "from",
        "to",
        "protocol",
        "from_ports",
        "to_ports",
        "state",
        "log",
    ],
};
/// `[[masquerade]]`
pub const MASQUERADE: Section = Section {
    name: "masquerade",
    list: true,
    keys: &[
        "out",
        "from",
        "to",
        "ports",
        "announce",
        "filtering",
        "inbound_refresh",
        "quota",
        "log",
        "udp_timeout",
        "tcp_timeout",
        "tcp_transitory_timeout",
        "icmp_timeout",
    ],
};
/// `[[forward_port]]`
pub const FORWARD_PORT: Section =
    Section { name: "forward_port", list: true, keys: &["in", "protocol", "port", "to"] };

/// `[[one_to_one]]`
pub const ONE_TO_ONE: Section =
    Section { name: "one_to_one", list: true, keys: &["out", "inside", "outside", "announce"] };

/// All sections of a file, and [`VIA`], in the order of the manual page.
pub const ALL: &[&Section] =
    &[&DAEMON, &KERNEL, &PORT, &ROUTE, &VIA, &NEIGHBOR, &ACL, &MASQUERADE, &FORWARD_PORT, &ONE_TO_ONE];

/// The sections at the top of a file.
pub fn top() -> impl Iterator<Item = &'static Section> {
    ALL.iter().copied().filter(|section| !section.name.contains('.'))
}

/// The name among `known` that `word` was probably meant to be.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let plain = |s: &str| s.to_ascii_lowercase().replace('-', "_");
    // One letter wrong, missing, or in the other's place is always near; else the beginning counts.
    let likeness = |a: &str, b: &str| match strsim::damerau_levenshtein(a, b) {
        0 | 1 => 1.0,
        _ => strsim::jaro_winkler(a, b),
    };
    let word = Some(plain(word)).filter(|word| (2..=64).contains(&word.len()))?;
    known
        .into_iter()
        .map(|name| (likeness(&word, &plain(name)), name))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_finds_its_key_and_nonsense_finds_none() {
        let keys = PORT.keys.iter().copied();
        assert_eq!(nearest("adresses", keys.clone()), Some("addresses"));
        assert_eq!(nearest("mut", keys.clone()), Some("mtu"));
        assert_eq!(nearest("MTU", keys.clone()), Some("mtu"));
        assert_eq!(nearest("vlan", keys.clone()), Some("vlans"));
        assert_eq!(nearest("zzz", keys.clone()), None);
        assert_eq!(nearest("", keys), None);
        assert_eq!(nearest("on-exit", DAEMON.keys.iter().copied()), Some("on_exit"));
    }
}
