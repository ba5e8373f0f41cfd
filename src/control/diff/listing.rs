//! What the kernel lists when it is asked for its routes, kept small: a million routes are a
//! million numbers, and only what is suspected of differing has a text.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    io,
};

use ipnet::IpNet;

use super::{Links, Subject, way};
use crate::control::{
    kernel::{self, Follow, KernelEvent, NextHopObject, Part, Parts, Report, Route},
    rib::{Source, key_of, paths::PathKey, source_of, special},
};

/// A number that tells the ways to a prefix from others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Digest(u64);

impl Digest {
    /// Of the ways to `net`, best first. Several of one rank count in their order for IPv4, where
    /// the kernel uses the first.
    pub(super) fn of<'a>(net: IpNet, ways: impl Iterator<Item = (Source, u32, &'a PathKey)>) -> Self {
        Self::over(net, ways.map(|(source, metric, key)| (source, metric, number(key))))
    }

    fn over(net: IpNet, ways: impl Iterator<Item = (Source, u32, u64)>) -> Self {
        let mut ways: Vec<_> = ways.collect();
        if matches!(net, IpNet::V6(_)) {
            ways.sort_unstable();
        }
        // The same way twice (for packets of another type of service) is one here.
        let mut seen = BTreeSet::new();
        ways.retain(|way| seen.insert(*way));
        Self(number(&ways))
    }
}

fn number(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What the kernel has listed.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// The prefixes, in order.
    pub(super) digests: Vec<(IpNet, Digest)>,
    /// The ways to those that are suspected.
    pub(super) texts: BTreeMap<IpNet, String>,
    /// The next hop objects.
    pub(super) objects: BTreeMap<u32, NextHopObject>,
}

/// A listing under way.
struct Collector<'a> {
    links: &'a Links,
    suspects: Option<&'a BTreeSet<Subject>>,
    routes: Vec<(IpNet, Source, u32, u64)>,
    texts: BTreeMap<IpNet, Vec<(Source, u32, String)>>,
    objects: BTreeMap<u32, NextHopObject>,
    missing: Parts,
}

impl Listing {
    /// Asks the kernel through a socket of its own, so that the keeper's news are not touched.
    ///
    /// # Errors
    /// The system's; or that the kernel's tables change too fast to be listed.
    pub(super) fn take(
        follow: Follow,
        links: &Links,
        suspects: Option<&BTreeSet<Subject>>,
    ) -> io::Result<Self> {
        let (mut source, commands) = kernel::open(follow)?;
        commands.list(Parts::ROUTES);
        let mut collector = Collector::new(links, suspects);
        let mut reports = Vec::new();
        while collector.missing != Parts::default() {
            if !source.wait(&mut reports)? {
                return Err(io::Error::other("the listing has ended early"));
            }
            for report in reports.drain(..).filter(|report| report.listed) {
                collector.take(report)?;
            }
        }
        Ok(collector.finish())
    }

    /// A listing that has these lines.
    #[cfg(test)]
    pub(super) fn of(
        reports: impl IntoIterator<Item = Report>,
        links: &Links,
        suspects: Option<&BTreeSet<Subject>>,
    ) -> io::Result<Self> {
        let mut collector = Collector::new(links, suspects);
        reports.into_iter().try_for_each(|report| collector.take(report))?;
        Ok(collector.finish())
    }
}

impl<'a> Collector<'a> {
    fn new(links: &'a Links, suspects: Option<&'a BTreeSet<Subject>>) -> Self {
        Self {
            links,
            suspects,
            routes: Vec::new(),
            texts: BTreeMap::new(),
            objects: BTreeMap::new(),
            missing: Parts::ROUTES,
        }
    }

    fn take(&mut self, report: Report) -> io::Result<()> {
        match report.event {
            // What an interrupted listing said is listed again.
            KernelEvent::DumpBegin(part) => self.clear(part),
            KernelEvent::DumpEnd { part, complete: true } => self.missing = self.missing.without(part),
            KernelEvent::DumpEnd { complete: false, .. } => {
                return Err(io::Error::other("they change faster than they can be listed; try again"));
            }
            KernelEvent::NextHopChanged(id, object) => {
                self.objects.insert(id, object);
            }
            KernelEvent::RouteChanged(route, _) if special::allows(route.to, route.kind) => self.add(&route),
            _ => {}
        }
        Ok(())
    }

    fn clear(&mut self, part: Part) {
        let stays = |net: &IpNet| match part {
            Part::Routes4 => net.addr().is_ipv6(),
            Part::Routes6 => net.addr().is_ipv4(),
            _ => true,
        };
        self.routes.retain(|(net, ..)| stays(net));
        self.texts.retain(|net, _| stays(net));
        if part == Part::NextHops {
            self.objects.clear();
        }
    }

    fn add(&mut self, route: &Route) {
        let key = key_of(route, |index| self.links.up.contains(&index));
        let (source, metric) = (source_of(route), route.metric);
        self.routes.push((route.to, source, metric, number(&key)));
        if self.suspects.is_some_and(|all| all.contains(&Subject::Prefix(route.to))) {
            let text = way(self.links, source, metric, &key);
            self.texts.entry(route.to).or_default().push((source, metric, text));
        }
    }

    fn finish(mut self) -> Listing {
        // Stable, so that routes of one rank stay in the kernel's order.
        self.routes.sort_by_key(|(net, source, metric, _)| (*net, *source, *metric));
        let digests = self
            .routes
            .chunk_by(|a, b| a.0 == b.0)
            .map(|ways| {
                let net = ways[0].0;
                (net, Digest::over(net, ways.iter().map(|(_, source, metric, way)| (*source, *metric, *way))))
            })
            .collect();
        let texts = self.texts.into_iter().map(|(net, mut ways)| {
            ways.sort_by_key(|(source, metric, _)| (*source, *metric));
            (net, ways.into_iter().map(|(_, _, text)| text).collect::<Vec<_>>().join(", "))
        });
        Listing { digests, texts: texts.collect(), objects: self.objects }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::kernel::Hop;

    fn via(gateway: &str, weight: u16) -> PathKey {
        let hop =
            Hop { gateway: gateway.parse().ok(), index: Some(2), weight, kernel_only: false, dead: false };
        PathKey::Hops(vec![hop])
    }

    fn digest(net: &str, ways: &[(Source, u32, &PathKey)]) -> Digest {
        Digest::of(net.parse().unwrap(), ways.iter().copied())
    }

    #[test]
    fn other_ways_have_other_numbers_and_the_same_way_twice_is_one() {
        let (a, b) = (via("10.0.0.1", 1), via("10.0.0.2", 1));
        let one = digest("192.0.2.0/24", &[(Source::Kernel, 0, &a)]);
        assert_eq!(digest("192.0.2.0/24", &[(Source::Kernel, 0, &a), (Source::Kernel, 0, &a)]), one);
        for other in [
            &[(Source::Kernel, 0, &b)][..],
            &[(Source::Kernel, 1, &a)],
            &[(Source::Local, 0, &a)],
            &[(Source::Kernel, 0, &via("10.0.0.1", 2))],
            &[(Source::Kernel, 0, &a), (Source::Kernel, 0, &b)],
            &[],
        ] {
            assert_ne!(digest("192.0.2.0/24", other), one, "{other:?}");
        }
    }

    #[test]
    fn the_order_within_one_rank_counts_where_the_kernel_has_one() {
        let (a, b) = (via("10.0.0.1", 1), via("10.0.0.2", 1));
        let (ab, ba) = (
            [(Source::Kernel, 0, &a), (Source::Kernel, 0, &b)],
            [(Source::Kernel, 0, &b), (Source::Kernel, 0, &a)],
        );
        assert_ne!(digest("192.0.2.0/24", &ab), digest("192.0.2.0/24", &ba));
        assert_eq!(digest("2001:db8::/32", &ab), digest("2001:db8::/32", &ba));
    }
}
