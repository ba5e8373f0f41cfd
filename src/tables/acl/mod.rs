//! The access rules, compiled: which packets may pass.
//!
//! The first rule that fits a packet decides; one that none fits passes. Rules are taken apart
//! into *entries*, one for each combination of what their lists name (`entry`), and the entries
//! of one family into a decision tree (`build`) that a whole burst goes down together
//! (`search`): a few loads and one comparison of eight entries for most packets, however many
//! rules there are. Where there are few, a burst is compared with all of them, eight packets at
//! once.
//!
//! Two classifiers stand beside each other for each family. The first is for packets whose ports
//! can be read. The second is for those whose cannot, and there what cannot be known is decided
//! for the worse:
//! - a *later fragment* ([`Kind::Later`]) has no ports. A rule without ports fits it as it fits
//!   other packets. A rule that permits some ports fits it by the rest, and one that denies some
//!   ports does not fit it: its first fragment is judged by its ports, and without that one a
//!   datagram is never completed.
//! - in a *hidden* packet ([`Kind::Hidden`]) the protocol or the ports cannot be found: headers
//!   that are cut short or unknown. A rule that denies some protocol or ports fits it by the
//!   addresses, and one that permits some does not.

mod build;
mod entry;
mod keys;
mod lanes;
mod search;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ipnet::IpNet;

pub use self::keys::{Keys, TOGETHER};
use self::{
    entry::{Entries, PortClasses},
    search::Classifier,
};
use super::PortId;
use crate::stats::counters::Counter;

/// Words of an IPv4 packet's key: source, destination, ports, and the rest.
pub const V4: usize = 4;
/// Words of an IPv6 packet's key.
pub const V6: usize = 10;

/// An IPv4 packet, as the classifier takes it.
pub type Key4 = [u32; V4];
/// An IPv6 packet, as the classifier takes it.
pub type Key6 = [u32; V6];

/// A packet's place in a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It belongs to no flow that is known.
    New,
    /// It belongs to one.
    Established,
}

/// A rule. An empty list fits everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// What people call it.
    pub name: String,
    /// Whether it denies; else it permits.
    pub denies: bool,
    /// Whether fitting packets are logged.
    pub logs: bool,
    /// The ports that a packet came in by.
    pub in_ports: Vec<PortId>,
    /// The ports that it would leave by.
    pub out_ports: Vec<PortId>,
    /// Its source is in one of these.
    pub from: Vec<IpNet>,
    /// Its destination is in one of these.
    pub to: Vec<IpNet>,
    /// Its protocol, by IANA's number.
    pub protocol: Option<u8>,
    /// Its source port is in one of these (lowest and highest).
    pub from_ports: Vec<(u16, u16)>,
    /// Its destination port is in one of these.
    pub to_ports: Vec<(u16, u16)>,
    /// Its place in a flow, if that matters.
    pub state: Option<State>,
}

impl Rule {
    /// A rule that every packet fits, to begin others with.
    pub fn of_all(name: impl Into<String>, denies: bool) -> Self {
        Self {
            name: name.into(),
            denies,
            logs: false,
            in_ports: Vec::new(),
            out_ports: Vec::new(),
            from: Vec::new(),
            to: Vec::new(),
            protocol: None,
            from_ports: Vec::new(),
            to_ports: Vec::new(),
            state: None,
        }
    }
}

/// What is known of a packet besides its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Protocol and ports are known; ports are 0 where the protocol has none.
    Whole,
    /// A fragment other than the first: its protocol is known, its ports are not.
    Later,
    /// Neither protocol nor ports can be found.
    Hidden,
}

/// Rules that cannot be compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TooMany {
    /// The combinations of their lists.
    Combinations,
    /// The ports that rules name.
    Ports,
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Combinations => write!(
                f,
                "the lists of all rules make more than {} combinations; write shorter lists, or fewer in one rule",
                entry::MOST
            ),
            Self::Ports => {
                write!(
                    f,
                    "rules name more than {} ports; leave out in or out where it is not needed",
                    entry::PORTS
                )
            }
        }
    }
}

impl std::error::Error for TooMany {}

/// The classifiers of one family.
struct Family<const K: usize> {
    whole: Classifier<K>,
    odd: Classifier<K>,
}

/// Rules and what they were compiled to; without counters.
pub struct Compiled {
    rules: Vec<Rule>,
    flags: Vec<u8>,
    has_state: bool,
    incoming: PortClasses,
    outgoing: PortClasses,
    v4: Family<V4>,
    v6: Family<V6>,
}

/// In the last word of the key of a packet that belongs to a flow.
pub const ESTABLISHED: u32 = 1 << entry::STATE;

/// A packet that this rule fits is discarded.
const DENIES: u8 = 1;
/// A packet that this rule fits is logged.
const LOGS: u8 = 2;

impl Compiled {
    /// Compiles `rules`, in their order.
    ///
    /// # Errors
    /// When they are too many to be compiled.
    pub fn new(rules: Vec<Rule>) -> Result<Self, TooMany> {
        let incoming = PortClasses::new(rules.iter().flat_map(|rule| &rule.in_ports))?;
        let outgoing = PortClasses::new(rules.iter().flat_map(|rule| &rule.out_ports))?;
        let entries = Entries::new(&rules, &incoming, &outgoing)?;
        let none = rules.len() as u32;
        let flag = |rule: &Rule| if rule.denies { DENIES } else { 0 } | if rule.logs { LOGS } else { 0 };
        let flags = rules.iter().map(flag).chain([0]).collect();
        let Entries { whole4, odd4, whole6, odd6 } = entries;
        Ok(Self {
            flags,
            has_state: rules.iter().any(|rule| rule.state.is_some()),
            incoming,
            outgoing,
            v4: Family { whole: build::build(&whole4, none)?, odd: build::build(&odd4, none)? },
            v6: Family { whole: build::build(&whole6, none)?, odd: build::build(&odd6, none)? },
            rules,
        })
    }

    /// The rules, in their order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether a rule asks for a packet's place in a flow.
    #[inline(always)]
    pub fn has_state(&self) -> bool {
        self.has_state
    }

    /// The number that stands for no rule.
    #[inline(always)]
    pub fn none(&self) -> u32 {
        self.rules.len() as u32
    }

    /// Bytes of memory that the classifiers take.
    pub fn bytes(&self) -> usize {
        [&self.v4.whole, &self.v4.odd].map(Classifier::bytes).iter().sum::<usize>()
            + [&self.v6.whole, &self.v6.odd].map(Classifier::bytes).iter().sum::<usize>()
    }

    /// The part of a key that says by which port a packet came in. All parts are joined by `|`.
    #[inline(always)]
    pub fn came_in(&self, port: PortId) -> u32 {
        self.incoming.of(port) << entry::IN
    }

    /// The part of a key that says by which port a packet would leave; none when it leaves by a
    /// device that is no port.
    #[inline(always)]
    pub fn leaves_by(&self, port: Option<PortId>) -> u32 {
        port.map_or(0, |port| self.outgoing.of(port)) << entry::OUT
    }

    /// For each of the first `n` keys the number of the first rule that fits it, or the number of
    /// rules if none does; what stands in `found` behind these means nothing. Only for packets of
    /// [`Kind::Whole`].
    #[inline]
    pub fn search4(&self, keys: &Keys<V4>, n: usize, found: &mut [u32; TOGETHER]) {
        self.v4.whole.search(keys, n, found);
    }

    /// The same for IPv6.
    #[inline]
    pub fn search6(&self, keys: &Keys<V6>, n: usize, found: &mut [u32; TOGETHER]) {
        self.v6.whole.search(keys, n, found);
    }

    /// The first rule that fits one packet of any kind, or the number of rules.
    pub fn find(&self, key: &Key, kind: Kind) -> u32 {
        match (key, kind) {
            (Key::V4(key), Kind::Whole) => self.v4.whole.find(key),
            (Key::V6(key), Kind::Whole) => self.v6.whole.find(key),
            (Key::V4(key), kind) => self.v4.odd.find(&with_kind(*key, kind)),
            (Key::V6(key), kind) => self.v6.odd.find(&with_kind(*key, kind)),
        }
    }

    /// Whether a packet that rule `number` fits is discarded.
    #[inline(always)]
    pub fn denies(&self, number: u32) -> bool {
        self.flags.get(number as usize).is_some_and(|flags| flags & DENIES != 0)
    }

    /// Whether a packet that rule `number` fits is logged.
    #[inline(always)]
    pub fn logs(&self, number: u32) -> bool {
        self.flags.get(number as usize).is_some_and(|flags| flags & LOGS != 0)
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl PartialEq for Compiled {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules
    }
}

impl Eq for Compiled {}

/// A packet of either family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// IPv4.
    V4(Key4),
    /// IPv6.
    V6(Key6),
}

impl Key {
    /// The key of a packet between two addresses of one family, IPv4 where they differ in that;
    /// `ports` is the source port in the upper half and the destination port in the lower, `place`
    /// comes from [`Compiled::came_in`] and [`Compiled::leaves_by`].
    pub fn new(source: IpAddr, destination: IpAddr, protocol: u8, ports: u32, place: u32) -> Self {
        match (source, destination) {
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                Self::V6(key6(s.to_bits(), d.to_bits(), protocol, ports, place))
            }
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                Self::V4(key4(s.to_bits(), d.to_bits(), protocol, ports, place))
            }
            _ => Self::V4(key4(0, 0, protocol, ports, place)),
        }
    }
}

/// The key of an IPv4 packet; addresses in host order, the rest as for [`Key::new`].
#[inline(always)]
pub fn key4(source: u32, destination: u32, protocol: u8, ports: u32, place: u32) -> Key4 {
    [source, destination, ports, place | u32::from(protocol)]
}

/// The key of an IPv6 packet.
#[inline(always)]
pub fn key6(source: u128, destination: u128, protocol: u8, ports: u32, place: u32) -> Key6 {
    let (s, d) = (source, destination);
    let word = |a: u128, n: u32| (a >> (96 - 32 * n)) as u32;
    [
        word(s, 0),
        word(s, 1),
        word(s, 2),
        word(s, 3),
        word(d, 0),
        word(d, 1),
        word(d, 2),
        word(d, 3),
        ports,
        place | u32::from(protocol),
    ]
}

impl Key {
    /// The key of the same packet when it belongs to a flow; else packets are new.
    #[must_use]
    pub fn established(mut self) -> Self {
        let (Self::V4([.., last]) | Self::V6([.., last])) = &mut self;
        *last |= ESTABLISHED;
        self
    }

    /// Source and destination.
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        match self {
            Self::V4([source, destination, ..]) => {
                (Ipv4Addr::from_bits(*source).into(), Ipv4Addr::from_bits(*destination).into())
            }
            Self::V6(key) => {
                let address = |at: usize| {
                    let bits = key[at..at + 4].iter().fold(0, |bits, word| bits << 32 | u128::from(*word));
                    Ipv6Addr::from_bits(bits).into()
                };
                (address(0), address(4))
            }
        }
    }

    /// The protocol.
    pub fn protocol(&self) -> u8 {
        let (Self::V4([.., last]) | Self::V6([.., last])) = self;
        *last as u8
    }

    /// Source port and destination port.
    pub fn ports(&self) -> (u16, u16) {
        let (Self::V4([.., ports, _]) | Self::V6([.., ports, _])) = self;
        ((*ports >> 16) as u16, *ports as u16)
    }
}

fn with_kind<const K: usize>(mut key: [u32; K], kind: Kind) -> [u32; K] {
    key[K - 1] |= entry::kind_bits(kind);
    key
}

/// Compiled rules with their counters, as they are published.
pub struct Acl {
    compiled: Arc<Compiled>,
    serial: u64,
    hits: Vec<Box<[Counter]>>,
}

impl Acl {
    /// With counters of 0 for each rule and each of so many workers.
    pub fn new(compiled: Arc<Compiled>, workers: usize) -> Self {
        let counters = || std::iter::repeat_with(Counter::default).take(compiled.rules.len() + 1).collect();
        let hits = std::iter::repeat_with(counters).take(workers.max(1)).collect();
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        Self { compiled, serial: SERIAL.fetch_add(1, Ordering::Relaxed), hits }
    }

    /// A number that no other rules have had in this process.
    #[inline(always)]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// The rules.
    pub fn compiled(&self) -> &Arc<Compiled> {
        &self.compiled
    }

    /// Counts `n` packets that rule `number` fitted, or none if it is the number of rules. Only
    /// worker number `worker` may call this with its number.
    #[inline(always)]
    pub fn count(&self, worker: usize, number: u32, n: u64) {
        let counter = self.hits.get(worker).and_then(|hits| hits.get(number as usize));
        if let Some(counter) = counter {
            counter.add(n);
        }
    }

    /// Counts a burst, by the rules that its packets fitted, as [`Acl::count`] does. Gives whether one
    /// of them denies or is logged.
    #[inline(always)]
    pub fn count_all(&self, worker: usize, found: &[u32]) -> bool {
        let Some(&first) = found.first() else { return false };
        // Most bursts fit the same rule, or none.
        if found.iter().fold(0, |differs, rule| differs | (rule ^ first)) == 0 {
            self.count(worker, first, found.len() as u64);
            return self.flags.get(first as usize).is_some_and(|flags| *flags != 0);
        }
        let hits = self.hits.get(worker).map_or(&[][..], |hits| hits);
        let mut all = 0;
        for &rule in found {
            if let Some(counter) = hits.get(rule as usize) {
                counter.add(1);
            }
            all |= self.flags.get(rule as usize).copied().unwrap_or(0);
        }
        all != 0
    }

    /// The packets that each rule fitted, over all workers; at the end, those that none fitted.
    pub fn hits(&self) -> Vec<u64> {
        (0..=self.compiled.rules.len())
            .map(|rule| self.hits.iter().map(|of_worker| of_worker[rule].get()).sum())
            .collect()
    }
}

impl std::ops::Deref for Acl {
    type Target = Compiled;

    #[inline(always)]
    fn deref(&self) -> &Compiled {
        &self.compiled
    }
}
