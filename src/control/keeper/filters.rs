//! The access rules in the keeper's hands: which are in force, how often each fitted, and the log
//! lines that workers ask for.

use std::{fmt::Write, sync::Arc};

use crate::{
    forward::messages::Judged,
    tables::{
        PortId,
        acl::{Acl, Compiled, Rule},
    },
};

/// The rules in force and their counts.
pub struct Filters {
    workers: usize,
    live: Option<Arc<Acl>>,
    /// What each rule had counted when its counters began; at the end, that of no rule.
    before: Vec<u64>,
    /// What is to be published.
    next: Option<Option<Arc<Acl>>>,
}

/// A rule and the packets that it fitted; without a rule, those that none fitted.
pub type Row<'a> = (Option<&'a Rule>, u64);

impl Filters {
    /// For so many workers; `rules` are to be published first.
    pub fn new(rules: Option<Arc<Compiled>>, workers: usize) -> Self {
        let mut filters = Self { workers, live: None, before: Vec::new(), next: None };
        filters.set(rules);
        filters
    }

    /// These rules from the next publication on. The same ones stay with their counters.
    pub fn set(&mut self, rules: Option<Arc<Compiled>>) {
        let live = self.live.as_ref().map(|acl| acl.compiled());
        self.next =
            (live != rules.as_ref()).then(|| rules.map(|rules| Arc::new(Acl::new(rules, self.workers))));
    }

    /// What is to be published, if anything has changed.
    pub fn next(&self) -> Option<Option<Arc<Acl>>> {
        self.next.clone()
    }

    /// To be called when what [`Filters::next`] gave is published and no worker counts for the
    /// rules before it any more. A rule goes on with the count of the one that had its name.
    pub fn published(&mut self) {
        let Some(next) = self.next.take() else { return };
        let counted: Vec<(Option<String>, u64)> =
            self.rows().into_iter().map(|(rule, hits)| (rule.map(|rule| rule.name.clone()), hits)).collect();
        let of = |name: Option<&str>| {
            counted.iter().find(|(other, _)| other.as_deref() == name).map_or(0, |(_, hits)| *hits)
        };
        self.before = match &next {
            Some(acl) => {
                let names = acl.rules().iter().map(|rule| Some(rule.name.as_str()));
                names.chain([None]).map(of).collect()
            }
            None => Vec::new(),
        };
        self.live = next;
    }

    /// The rules in force, in their order, and at the end the packets that none fitted. Empty
    /// without rules.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let Some(acl) = &self.live else { return Vec::new() };
        let rules = acl.rules().iter().map(Some).chain([None]);
        let hits = acl.hits().into_iter().zip(&self.before).map(|(now, before)| now + before);
        rules.zip(hits).collect()
    }
}

/// One line about a packet that a worker wants logged.
pub fn line(judged: &Judged, name: impl Fn(PortId) -> Option<String>) -> String {
    let rule = judged.rules.rules().get(judged.rule as usize);
    let action = if rule.is_some_and(|rule| rule.denies) { "denied" } else { "permitted" };
    let mut text = format!("acl {}: {action} ", rule.map_or("-", |rule| &rule.name));
    let (from, to) = judged.ports;
    let endpoint = |address: std::net::IpAddr, port: u16| match address {
        std::net::IpAddr::V4(address) => format!("{address}:{port}"),
        std::net::IpAddr::V6(address) => format!("[{address}]:{port}"),
    };
    let (source, destination) = (judged.source, judged.destination);
    // A `String` takes everything.
    let _ = match judged.protocol {
        6 | 17 => {
            let protocol = if judged.protocol == 6 { "tcp" } else { "udp" };
            write!(text, "{protocol} {} > {}", endpoint(source, from), endpoint(destination, to))
        }
        1 => write!(text, "icmp {source} > {destination}"),
        58 => write!(text, "icmp6 {source} > {destination}"),
        other => write!(text, "protocol {other} {source} > {destination}"),
    };
    let port = |port| name(port).unwrap_or_else(|| format!("port {port}"));
    let _ = write!(text, ", in {}", port(judged.came_in));
    if let Some(out) = judged.leaves_by {
        let _ = write!(text, ", out {}", port(out));
    }
    if judged.unlogged > 0 {
        let _ = write!(text, " ({} more not logged)", judged.unlogged);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(names: &[&str]) -> Arc<Compiled> {
        let rule = |name: &&str| Rule { logs: true, ..Rule::of_all(*name, true) };
        Arc::new(Compiled::new(names.iter().map(rule).collect()).unwrap())
    }

    fn publish(filters: &mut Filters) {
        assert!(filters.next().is_some());
        filters.published();
        assert!(filters.next().is_none());
    }

    #[test]
    fn a_rule_keeps_its_count_when_others_come_and_go() {
        let mut filters = Filters::new(Some(rules(&["a", "b"])), 2);
        assert!(filters.rows().is_empty(), "not published yet");
        publish(&mut filters);
        let live = filters.live.clone().unwrap();
        live.count(0, 1, 7);
        live.count(1, 2, 3);
        filters.set(Some(rules(&["a", "b"])));
        assert!(filters.next().is_none(), "nothing has changed");
        filters.set(Some(rules(&["c", "b"])));
        // A worker goes on counting until the new ones are published.
        live.count(1, 1, 1);
        publish(&mut filters);
        let rows = filters.rows();
        let counts: Vec<_> = rows.iter().map(|(rule, hits)| (rule.map(|r| r.name.as_str()), *hits)).collect();
        assert_eq!(counts, [(Some("c"), 0), (Some("b"), 8), (None, 3)]);
        filters.set(None);
        publish(&mut filters);
        assert!(filters.rows().is_empty());
    }

    #[test]
    fn a_log_line_says_which_rule_and_which_packet() {
        let mut judged = Judged {
            rules: rules(&["no-mail"]),
            rule: 0,
            came_in: 0,
            leaves_by: Some(1),
            source: [10, 0, 0, 1].into(),
            destination: [192, 0, 2, 9].into(),
            protocol: 6,
            ports: (40000, 25),
            unlogged: 4,
        };
        let name = |port: PortId| ["lan", "wan"].get(usize::from(port)).map(|name| (*name).to_owned());
        assert_eq!(
            line(&judged, name),
            "acl no-mail: denied tcp 10.0.0.1:40000 > 192.0.2.9:25, in lan, out wan (4 more not logged)"
        );
        (judged.protocol, judged.leaves_by, judged.unlogged) = (47, None, 0);
        assert_eq!(line(&judged, name), "acl no-mail: denied protocol 47 10.0.0.1 > 192.0.2.9, in lan");
    }
}
