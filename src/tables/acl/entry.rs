//! Entries: rules taken apart, one for each combination of what their lists name, so that each
//! asks one thing of each part of a packet.

use std::ops::RangeInclusive;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Kind, PortId, Rule, State, TooMany, V4, V6, key4, key6};

/// Most entries that all rules together may make.
pub(super) const MOST: usize = 1 << 18;
/// Most ports that rules may name as `in`, and as `out`.
pub(super) const PORTS: usize = (1 << 10) - 1;

/// Where the last word of a key holds the port that a packet came in by, above its protocol.
pub(super) const IN: u32 = 8;
/// Where it holds the port that a packet would leave by.
pub(super) const OUT: u32 = 18;
/// Where it holds a packet's kind.
const KIND: u32 = 28;
/// Where it holds whether the packet belongs to a flow.
pub(super) const STATE: u32 = 30;

/// The kind's part of a key.
pub(super) const fn kind_bits(kind: Kind) -> u32 {
    (match kind {
        Kind::Whole => 0,
        Kind::Later => 1,
        Kind::Hidden => 2,
    }) << KIND
}

/// Ports that rules name, numbered from 1; all others are 0.
#[derive(Default)]
pub(super) struct PortClasses(Vec<u32>);

impl PortClasses {
    pub(super) fn new<'a>(named: impl Iterator<Item = &'a PortId>) -> Result<Self, TooMany> {
        let mut classes = Vec::new();
        let mut last = 0;
        for &port in named {
            let at = usize::from(port);
            if classes.len() <= at {
                classes.resize(at + 1, 0);
            }
            if classes[at] == 0 {
                last += 1;
                classes[at] = last;
            }
        }
        if last as usize > PORTS { Err(TooMany::Ports) } else { Ok(Self(classes)) }
    }

    #[inline(always)]
    pub(super) fn of(&self, port: PortId) -> u32 {
        self.0.get(usize::from(port)).copied().unwrap_or(0)
    }
}

/// One combination. A packet fits when each word of its key has the entry's value where the mask
/// has ones, and the ports are in their ranges. Of the word of ports, the last but one, value and
/// mask are 0.
#[derive(Clone, Debug)]
pub(super) struct Entry<const K: usize> {
    pub(super) value: [u32; K],
    pub(super) mask: [u32; K],
    /// Source ports and destination ports, lowest and highest.
    pub(super) ports: [(u16, u16); 2],
    /// The rule's number.
    pub(super) rule: u32,
}

/// All ports.
pub(super) const ANY: (u16, u16) = (0, u16::MAX);

/// All entries, by classifier, in the order of their rules.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) whole4: Vec<Entry<V4>>,
    pub(super) odd4: Vec<Entry<V4>>,
    pub(super) whole6: Vec<Entry<V6>>,
    pub(super) odd6: Vec<Entry<V6>>,
}

impl Entries {
    pub(super) fn new(
        rules: &[Rule],
        incoming: &PortClasses,
        outgoing: &PortClasses,
    ) -> Result<Self, TooMany> {
        let mut entries = Self::default();
        for (number, rule) in (0..).zip(rules) {
            let places = places(rule, incoming, outgoing);
            let pairs4 = pairs(rule, |net| if let IpNet::V4(net) = net { Some(net) } else { None });
            let pairs6 = pairs(rule, |net| if let IpNet::V6(net) = net { Some(net) } else { None });
            let ports = port_pairs(rule);
            let product =
                places.len().saturating_mul(pairs4.len() + pairs6.len()).saturating_mul(ports.len());
            if product.saturating_add(entries.len()) > MOST {
                return Err(TooMany::Combinations);
            }
            for &(value, mask) in &places {
                for pair in &pairs4 {
                    let frame = frame4(pair, value, mask, number);
                    push(rule, &frame, &ports, &mut entries.whole4, &mut entries.odd4);
                }
                for pair in &pairs6 {
                    let frame = frame6(pair, value, mask, number);
                    push(rule, &frame, &ports, &mut entries.whole6, &mut entries.odd6);
                }
            }
        }
        Ok(entries)
    }

    fn len(&self) -> usize {
        self.whole4.len() + self.whole6.len()
    }
}

/// Adds the entries of a rule for one pair of prefixes and one pair of ports.
fn push<const K: usize>(
    rule: &Rule,
    frame: &Entry<K>,
    ports: &[[(u16, u16); 2]],
    whole: &mut Vec<Entry<K>>,
    odd: &mut Vec<Entry<K>>,
) {
    let last = K - 1;
    let protocol = u32::from(rule.protocol.unwrap_or(0));
    let mut plain = frame.clone();
    if rule.protocol.is_some() {
        plain.value[last] |= protocol;
        plain.mask[last] |= 0xff;
    }
    whole.extend(ports.iter().map(|&ports| Entry { ports, ..plain.clone() }));
    let of_kind = |mut entry: Entry<K>, kind| {
        entry.value[last] |= kind_bits(kind);
        entry.mask[last] |= 3 << KIND;
        entry
    };
    let has_ports = ports != [[ANY; 2]];
    match (rule.protocol.is_some(), has_ports) {
        // Fits whatever the packet is.
        (false, false) => odd.push(plain),
        (_, has_ports) => {
            if !(rule.denies && has_ports) {
                odd.push(of_kind(plain, Kind::Later));
            }
            if rule.denies {
                odd.push(of_kind(frame.clone(), Kind::Hidden));
            }
        }
    }
}

/// The values and masks of the last word of a key for the ports that a rule names, and its state.
fn places(rule: &Rule, incoming: &PortClasses, outgoing: &PortClasses) -> Vec<(u32, u32)> {
    let part = |ports: &[PortId], classes: &PortClasses, shift: u32| -> Vec<(u32, u32)> {
        if ports.is_empty() {
            return vec![(0, 0)];
        }
        let mut parts: Vec<_> =
            ports.iter().map(|&port| (classes.of(port) << shift, (PORTS as u32) << shift)).collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    };
    let (state, asked) = match rule.state {
        None => (0, 0),
        Some(state) => (u32::from(state == State::Established) << STATE, 1 << STATE),
    };
    let (ins, outs) = (part(&rule.in_ports, incoming, IN), part(&rule.out_ports, outgoing, OUT));
    ins.iter().flat_map(|a| outs.iter().map(move |b| (a.0 | b.0 | state, a.1 | b.1 | asked))).collect()
}

/// The pairs of prefixes that a rule names in one family; none where it names others only.
fn pairs<N: Aggregate>(rule: &Rule, family: impl Fn(IpNet) -> Option<N>) -> Vec<(N, N)> {
    let nets = |list: &[IpNet]| {
        if list.is_empty() {
            vec![N::any()]
        } else {
            N::joined(list.iter().filter_map(|net| family(*net)).collect())
        }
    };
    let (from, to) = (nets(&rule.from), nets(&rule.to));
    from.iter().flat_map(|a| to.iter().map(move |b| (*a, *b))).collect()
}

trait Aggregate: Copy {
    /// Everything.
    fn any() -> Self;
    /// Without prefixes inside others, neighbours joined.
    fn joined(list: Vec<Self>) -> Vec<Self>;
}

impl Aggregate for Ipv4Net {
    fn any() -> Self {
        Self::default()
    }

    fn joined(list: Vec<Self>) -> Vec<Self> {
        Self::aggregate(&list)
    }
}

impl Aggregate for Ipv6Net {
    fn any() -> Self {
        Self::default()
    }

    fn joined(list: Vec<Self>) -> Vec<Self> {
        Self::aggregate(&list)
    }
}

/// The pairs of port ranges that a rule names.
fn port_pairs(rule: &Rule) -> Vec<[(u16, u16); 2]> {
    let (from, to) = (joined(&rule.from_ports), joined(&rule.to_ports));
    from.iter().flat_map(|a| to.iter().map(move |b| [*a, *b])).collect()
}

/// Ranges in order, those that touch joined.
fn joined(ranges: &[(u16, u16)]) -> Vec<(u16, u16)> {
    if ranges.is_empty() {
        return vec![ANY];
    }
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut list: Vec<(u16, u16)> = Vec::with_capacity(sorted.len());
    for (first, last) in sorted {
        match list.last_mut() {
            Some(before) if u32::from(first) <= u32::from(before.1) + 1 => before.1 = before.1.max(last),
            _ => list.push((first, last)),
        }
    }
    list
}

fn frame4((from, to): &(Ipv4Net, Ipv4Net), value: u32, mask: u32, rule: u32) -> Entry<V4> {
    Entry {
        value: key4(from.network().to_bits(), to.network().to_bits(), 0, 0, value),
        mask: key4(from.netmask().to_bits(), to.netmask().to_bits(), 0, 0, mask),
        ports: [ANY; 2],
        rule,
    }
}

fn frame6((from, to): &(Ipv6Net, Ipv6Net), value: u32, mask: u32, rule: u32) -> Entry<V6> {
    Entry {
        value: key6(from.network().to_bits(), to.network().to_bits(), 0, 0, value),
        mask: key6(from.netmask().to_bits(), to.netmask().to_bits(), 0, 0, mask),
        ports: [ANY; 2],
        rule,
    }
}

/// Which children of a cut an entry goes into.
pub(super) enum Spread {
    /// All.
    All,
    /// These numbers, and, with the free bits set in every way, their like.
    Masked(u32, u32),
    /// A range of numbers, to be taken modulo the number of children.
    Range(RangeInclusive<u32>),
}

impl<const K: usize> Entry<K> {
    /// Which children it goes into when bits `shift` to `shift + width - 1` of word `word` choose.
    pub(super) fn spread(&self, word: usize, shift: u32, width: u32) -> Spread {
        let ones = (1 << width) - 1;
        if word == K - 2 {
            let (first, last) = self.ports[usize::from(shift < 16)];
            let shift = shift % 16;
            let (first, last) = (u32::from(first) >> shift, u32::from(last) >> shift);
            return if last - first >= ones { Spread::All } else { Spread::Range(first..=last) };
        }
        let (value, mask) = (self.value[word] >> shift & ones, self.mask[word] >> shift & ones);
        if mask == 0 { Spread::All } else { Spread::Masked(value, ones & !mask) }
    }
}

impl Spread {
    /// Calls `visit` for each of the `1 << width` children.
    pub(super) fn each(self, width: u32, mut visit: impl FnMut(usize)) {
        let ones = (1u32 << width) - 1;
        match self {
            Self::All => (0..=ones).for_each(|child| visit(child as usize)),
            Self::Range(numbers) => numbers.for_each(|number| visit((number & ones) as usize)),
            Self::Masked(value, free) => {
                let mut bits = 0u32;
                loop {
                    visit((value | bits) as usize);
                    bits = bits.wrapping_sub(free) & free;
                    if bits == 0 {
                        break;
                    }
                }
            }
        }
    }

    /// Number of children.
    pub(super) fn count(&self, width: u32) -> u32 {
        match self {
            Self::All => 1 << width,
            Self::Range(numbers) => numbers.end() - numbers.start() + 1,
            Self::Masked(_, free) => 1 << free.count_ones(),
        }
    }
}
