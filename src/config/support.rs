//! What the schema has and the program does not do yet. Such parts are read and checked as
//! everything else, and then refused: nothing in a file is ever ignored in silence.

use super::problem::{Offset, Problem, Problems};

/// A part of the schema that may not be built in yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// `[[masquerade]]`
    Masquerade,
    /// `daemon.metrics`
    Metrics,
    /// `daemon.user`
    User,
    /// Several next hops in one route.
    Multipath,
    /// An IPv4 route with an IPv6 gateway (RFC 8950).
    Ipv6Gateway,
}

/// The features that are refused. To build one in, remove it here.
pub const NOT_YET: &[Feature] = &[];

/// Where a file uses which feature.
#[derive(Clone, Default, Debug)]
pub(super) struct Uses(Vec<(Feature, Problem)>);

impl Uses {
    /// Notes that `feature` is used by `key`, which stands at `at`.
    pub(super) fn note(&mut self, problems: &Problems<'_>, feature: Feature, at: Offset, key: String) {
        let message = "is not supported yet; remove it";
        self.0.push((feature, problems.problem(at, key, message)));
    }

    /// The places of the features that are in `refused`, in the order of the file.
    pub(super) fn among(&self, refused: &[Feature]) -> Vec<Problem> {
        let mut list: Vec<_> =
            self.0.iter().filter(|(f, _)| refused.contains(f)).map(|(_, problem)| problem.clone()).collect();
        list.sort_by_key(|problem| (problem.line, problem.column));
        list
    }

    /// Whether `feature` is used.
    pub(super) fn has(&self, feature: Feature) -> bool {
        self.0.iter().any(|(f, _)| *f == feature)
    }
}
