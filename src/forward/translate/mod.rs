//! Address translation (NAT44): what one worker knows and does of it.
//!
//! Every mapping and every flow that is translated has one worker that knows it, and the others
//! can tell which: an end inside belongs to the worker that its hash names, a port outside to the
//! worker that has its block, and a mapping is always made of two ends of the same worker's. A
//! packet that another worker has received is handed to it. So nothing here is shared but the
//! counts that quotas ask for, once a flow.
//!
//! The rules of behaviour are those of RFC 4787 (UDP), 5382 (TCP), 5508 (ICMP), 6864 (identification)
//! and 7857: mappings that do not depend on whom an inside host talks to, filtering that does unless
//! a rule says otherwise.

pub mod edit;
pub mod ledger;
pub mod mappings;
pub mod pieces;
pub mod ports;
pub mod quotas;
pub mod slab;
pub mod stages;
pub mod syns;
pub mod upper;

use std::{io, net::IpAddr, sync::Arc};

use crossbeam_channel::Sender;

use self::{
    ledger::Ledger,
    mappings::{Ended, Mappings, Refused, Wanted},
    pieces::Pieces,
    ports::Share,
    quotas::Quotas,
    syns::Syns,
    upper::{Kind, Upper},
};
use super::{
    flows::{End4, Flow, FlowId, FlowTable, Key4, OutsideKey, Secret, Translation},
    messages::ToKeeper,
};
use crate::{
    tables::{
        PortId, Timeouts,
        masquerade::{Log, Masquerade},
    },
    wire::tcp::{ACK, SYN},
};

/// What becomes of a packet from outside for an address in front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inward {
    /// It goes to this end inside.
    To(FlowId, End4),
    /// It is nobody's inside: the host's, if the address is.
    Host,
    /// A connection that nobody has asked for, to a port that may become somebody's.
    UnexpectedSyn,
    /// It is for a mapping, or a port that could become one, and not allowed.
    Refused,
    /// There is no room for a new flow.
    Full,
}

/// What becomes of a packet that leaves by a port that masquerades.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outward {
    /// It comes from this end outside.
    From(FlowId, End4),
    /// No rule translates it.
    AsItIs,
    /// It would need a new flow or mapping, and there is none to be had.
    Refused(Refused),
}

/// What a worker needs to know for a decision.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    /// The rules.
    pub rules: &'a Masquerade,
    /// How long flows last that no rule says it of.
    pub timeouts: &'a Timeouts,
    /// The loop's time, in milliseconds.
    pub time: u32,
}

/// A worker's translator.
#[derive(Debug)]
pub struct Translator {
    worker: usize,
    workers: usize,
    /// Its mappings.
    pub mappings: Mappings,
    /// Fragments on their way through.
    pub pieces: Pieces,
    /// Connections from outside that wait for an answer from inside.
    pub syns: Syns,
    /// The flows of hosts that have quotas, over all workers.
    quotas: Arc<Quotas>,
    ledger: Ledger,
    random: Random,
    ids: u16,
}

impl Translator {
    /// The translator of worker number `worker` of `workers`, with room for so many mappings.
    /// `quotas` is the same for all workers; `keeper` hears what is to be logged.
    ///
    /// # Errors
    /// When the system refuses memory or random numbers.
    pub fn new(
        (worker, workers): (usize, usize),
        capacity: usize,
        quotas: Arc<Quotas>,
        keeper: Sender<ToKeeper>,
    ) -> io::Result<Self> {
        Ok(Self {
            worker,
            workers: workers.max(1),
            mappings: Mappings::new(capacity, Secret::random()?)?,
            pieces: Pieces::default(),
            syns: Syns::default(),
            quotas,
            ledger: Ledger::new(keeper),
            random: Random::new(Secret::random()?),
            ids: 0,
        })
    }

    /// Whether packets are held.
    #[inline(always)]
    pub fn waits(&self) -> bool {
        !self.syns.is_empty() || self.pieces.holds()
    }

    /// Whether there is something that has to be forgotten in time.
    #[inline(always)]
    pub fn remembers(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// The worker that knows the flow of a packet from inside.
    pub fn owner_inside(&self, seed: u64, protocol: u8, kind: Kind, inside: End4, remote: End4) -> usize {
        match kind {
            _ if self.workers == 1 => 0,
            Kind::Ports | Kind::Query => spread(seed, protocol, inside, self.workers),
            Kind::Error | Kind::Other => spread(seed, protocol, End4::new(remote.address, 0), self.workers),
        }
    }

    /// The worker that knows the flow of a packet from outside.
    pub fn owner_outside(
        &self,
        now: &Now<'_>,
        seed: u64,
        protocol: u8,
        kind: Kind,
        external: End4,
        remote: End4,
    ) -> usize {
        if self.workers == 1 {
            return 0;
        }
        if matches!(kind, Kind::Error | Kind::Other) {
            return spread(seed, protocol, End4::new(remote.address, 0), self.workers);
        }
        match now.rules.static_in(protocol, external.address, external.port) {
            Some(fixed) => spread(seed, protocol, End4::new(fixed.inside.0, fixed.inside.1), self.workers),
            None => ports::owner(external.port, self.workers),
        }
    }

    /// The worker that puts the fragments of this datagram in order.
    pub fn owner_of_pieces(&self, seed: u64, (source, destination, protocol, id): pieces::Datagram) -> usize {
        match self.workers {
            1 => 0,
            workers => spread(seed ^ u64::from(source) << 16, protocol, End4::new(destination, id), workers),
        }
    }

    /// The worker that knows the flows between two hosts which are not translated, whichever way
    /// they go.
    pub fn owner_between(&self, seed: u64, one: IpAddr, other: IpAddr) -> usize {
        if self.workers == 1 {
            return 0;
        }
        let (low, high) = (one.min(other), one.max(other));
        let number = |address: IpAddr| match address {
            IpAddr::V4(address) => address.to_bits().into(),
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                mix(bits as u64) ^ (bits >> 64) as u64
            }
        };
        let hash = mix(mix(seed ^ number(low)) ^ number(high));
        ((u128::from(hash) * self.workers as u128) >> 64) as usize
    }

    /// Whether this worker is number `owner`.
    pub fn is(&self, owner: usize) -> bool {
        owner == self.worker
    }

    /// The number of this worker among the peers of another: peers leave out the worker itself.
    pub fn peer(&self, owner: usize) -> usize {
        if owner < self.worker { owner } else { owner - 1 }
    }

    /// A packet from outside, for an address in front.
    pub fn inward(&mut self, flows: &mut FlowTable, now: &Now<'_>, upper: &Upper) -> Inward {
        let (protocol, external, remote) = (upper.protocol, upper.destination, upper.source);
        if let Some(id) = flows.find(&OutsideKey::new(protocol, external, remote))
            && self.is_still_good(flows, now, id)
        {
            return Inward::To(id, flows.flow(id).inside());
        }
        if matches!(upper.kind, Kind::Error) {
            return Inward::Host;
        }
        if let Some(fixed) = now.rules.static_in(protocol, external.address, external.port) {
            let inside = End4::new(fixed.inside.0, fixed.inside.1);
            let rule = now.rules.rule_for(fixed.out, inside.address).unwrap_or(u16::MAX);
            let translation = Translation { external, remote, mapping: 0, out: fixed.out, rule };
            return self.begin_inward(flows, now, upper, inside, translation);
        }
        if matches!(upper.kind, Kind::Other) {
            return Inward::Host;
        }
        if let Some(number) = self.mappings.find_outside(protocol, external) {
            let mapping = *self.mappings.get(number);
            let rule = now.rules.rules.get(usize::from(mapping.rule));
            if mapping.version == now.rules.version && rule.is_some_and(|rule| rule.open) {
                let (out, rule) = (mapping.out, mapping.rule);
                let translation = Translation { external, remote, mapping: number, out, rule };
                return self.begin_inward(flows, now, upper, mapping.inside(), translation);
            }
        } else if !now.rules.is_given_out(protocol, external.address, external.port)
            || upper.kind == Kind::Query
        {
            return Inward::Host;
        }
        match upper.tcp_flags & (SYN | ACK) {
            SYN => Inward::UnexpectedSyn,
            _ => Inward::Refused,
        }
    }

    /// A flow that somebody outside begins.
    fn begin_inward(
        &mut self,
        flows: &mut FlowTable,
        now: &Now<'_>,
        upper: &Upper,
        inside: End4,
        translation: Translation,
    ) -> Inward {
        let (key, swapped) = Key4::new(upper.protocol, upper.source, inside);
        match self.enter(flows, now, (&key, swapped), &translation) {
            Ok(id) => Inward::To(id, inside),
            Err(_) => Inward::Full,
        }
    }

    /// A packet from `upper.source` inside that leaves by `out`.
    pub fn outward(&mut self, flows: &mut FlowTable, now: &Now<'_>, out: PortId, upper: &Upper) -> Outward {
        let (protocol, inside, remote) = (upper.protocol, upper.source, upper.destination);
        let (key, swapped) = Key4::new(protocol, inside, remote);
        if let Some(id) = flows.find(&key).filter(|id| flows.flow(*id).is_translated()) {
            let flow = flows.flow(id);
            if flow.translation().out != out {
                // The route leads elsewhere now, and with it to another address.
                flows.remove(id);
            } else if flow.inside() == inside && self.is_still_good(flows, now, id) {
                return Outward::From(id, flows.flow(id).translation().external);
            }
        }
        let choose = |addresses: &[std::net::Ipv4Addr]| pair_with(inside.address, addresses);
        if let Some(fixed) = now.rules.static_out(out, protocol, inside.address, inside.port, choose) {
            let external = End4::new(fixed.outside.0, fixed.outside.1);
            let rule = now.rules.rule_for(out, inside.address).unwrap_or(u16::MAX);
            let translation = Translation { external, remote, mapping: 0, out, rule };
            return self.begin_outward(flows, now, (&key, swapped), &translation);
        }
        let Some(rule_number) = now.rules.rule_for(out, inside.address) else { return Outward::AsItIs };
        let rule = &now.rules.rules[usize::from(rule_number)];
        let Some(address) = pair_with(inside.address, &rule.to) else { return Outward::AsItIs };
        let mut translation =
            Translation { external: End4::new(address, 0), remote, mapping: 0, out, rule: rule_number };
        if !matches!(upper.kind, Kind::Ports | Kind::Query) {
            return self.begin_outward(flows, now, (&key, swapped), &translation);
        }
        let wanted = Wanted {
            protocol,
            inside,
            address,
            out,
            rule: rule_number,
            version: now.rules.version,
            share: Share {
                first: rule.first,
                last: rule.last,
                worker: self.worker,
                workers: self.workers,
                host: (rule.log == Log::Blocks).then_some(inside.address),
                held: now.rules.held.of(address, protocol),
            },
        };
        if rule.quota > 0 {
            let besides = self.mappings.count_all(inside.address);
            if !self.quotas.take(inside.address, rule.quota, besides) {
                return Outward::Refused(Refused::Quota);
            }
        }
        let begun = match self.mapping(now, &wanted) {
            Ok(number) => {
                translation.mapping = number;
                translation.external = self.mappings.get(number).external();
                self.begin_outward(flows, now, (&key, swapped), &translation)
            }
            Err(refused) => Outward::Refused(refused),
        };
        match begun {
            Outward::Refused(_) => {
                if rule.quota > 0 {
                    self.quotas.give_back(inside.address, 1);
                }
                if translation.mapping != 0 {
                    let ended = self.mappings.end_idle(translation.mapping);
                    self.log_end(now.rules, ended);
                }
            }
            _ if rule.quota > 0 => self.mappings.count_newest(translation.mapping),
            _ => {}
        }
        begun
    }

    /// The mapping of an end inside, made if there is none.
    fn mapping(&mut self, now: &Now<'_>, wanted: &Wanted) -> Result<u32, Refused> {
        if let Some(number) = self.mappings.find_inside(wanted.protocol, wanted.inside, wanted.out) {
            let mapping = *self.mappings.get(number);
            if mapping.version == now.rules.version {
                return Ok(number);
            }
            let (inside, external) = (mapping.inside(), mapping.external());
            if let Some(rule) = allowed(now.rules, mapping.out, wanted.protocol, inside, external) {
                let mapping = self.mappings.get_mut(number);
                (mapping.version, mapping.rule) = (now.rules.version, rule);
                return Ok(number);
            }
            self.mappings.detach(number);
        }
        let random = self.random.next();
        let made = self.mappings.make(wanted, random)?;
        let mapping = self.mappings.get(made.number);
        if made.with_block {
            self.ledger.block(mapping, true);
        }
        if now.rules.rules[usize::from(wanted.rule)].log == Log::Mappings {
            self.ledger.mapping(mapping, true);
        }
        Ok(made.number)
    }

    fn begin_outward(
        &mut self,
        flows: &mut FlowTable,
        now: &Now<'_>,
        key: (&Key4, bool),
        translation: &Translation,
    ) -> Outward {
        match self.enter(flows, now, key, translation) {
            Ok(id) => Outward::From(id, translation.external),
            Err(refused) => Outward::Refused(refused),
        }
    }

    /// Enters a translated flow, or makes one that is there already translated.
    fn enter(
        &mut self,
        flows: &mut FlowTable,
        now: &Now<'_>,
        (key, swapped): (&Key4, bool),
        translation: &Translation,
    ) -> Result<FlowId, Refused> {
        let timeouts = now.rules.timeouts(translation.rule, now.timeouts);
        let known = flows.find(key).filter(|id| {
            let flow = flows.flow(*id);
            !flow.is_translated()
        });
        let id = match known {
            Some(id) => id,
            None => {
                if let Some(other) = flows.find(key) {
                    // Between the same ends and translated otherwise: that one is over.
                    flows.remove(other);
                }
                flows.insert(key, swapped, now.time, timeouts).map_err(|_| Refused::Full)?
            }
        };
        if flows.translate(id, translation).is_err() {
            if known.is_none() {
                flows.remove(id);
            }
            // Protocols without ports: another host has this outside key.
            return Err(Refused::NoPort);
        }
        flows.flow_mut(id).translated_by = now.rules.version;
        if translation.mapping != 0 {
            self.mappings.add_flow(translation.mapping);
        }
        Ok(id)
    }

    /// Whether the rules still give this flow the translation that it has; else it ends here.
    fn is_still_good(&mut self, flows: &mut FlowTable, now: &Now<'_>, id: FlowId) -> bool {
        let flow = flows.flow(id);
        if flow.translated_by == now.rules.version {
            return true;
        }
        match judge(now.rules, flow) {
            Some(rule) => {
                let mapping = flow.translation().mapping;
                let flow = flows.flow_mut(id);
                flow.set_rule(rule);
                flow.translated_by = now.rules.version;
                if mapping != 0 {
                    let mapping = self.mappings.get_mut(mapping);
                    (mapping.version, mapping.rule) = (now.rules.version, rule);
                }
                true
            }
            None => {
                flows.remove(id);
                false
            }
        }
    }

    /// Notes that a flow has ended.
    pub fn flow_ended(&mut self, rules: &Masquerade, flow: &Flow) {
        if !flow.is_translated() {
            return;
        }
        let number = flow.translation().mapping;
        if number == 0 {
            return;
        }
        if let Some(host) = self.mappings.count_less(number) {
            self.quotas.give_back(host, 1);
        }
        let ended = self.mappings.end_flow(number);
        self.log_end(rules, ended);
    }

    /// Logs that a mapping has ended, if it has and that is wanted.
    fn log_end(&mut self, rules: &Masquerade, ended: Option<Ended>) {
        let Some(Ended { mapping, with_block }) = ended else { return };
        if rules.rules.get(usize::from(mapping.rule)).is_some_and(|rule| rule.log == Log::Mappings) {
            self.ledger.mapping(&mapping, false);
        }
        if with_block {
            self.ledger.block(&mapping, false);
        }
    }

    /// An identification for a packet that shares its source with other hosts' (RFC 6864): no two
    /// of this router's in 65536 / workers are the same.
    pub fn next_id(&mut self) -> u16 {
        self.ids = self.ids.wrapping_add(self.workers as u16);
        self.ids.wrapping_add(self.worker as u16)
    }
}

/// How long this flow lasts.
pub fn timeouts<'a>(rules: &'a Masquerade, otherwise: &'a Timeouts, flow: &Flow) -> &'a Timeouts {
    if !flow.is_translated() {
        return otherwise;
    }
    let translation = flow.translation();
    let rule = match flow.translated_by == rules.version {
        true => translation.rule,
        false => rules.rule_for(translation.out, flow.inside().address).unwrap_or(u16::MAX),
    };
    rules.timeouts(rule, otherwise)
}

/// The name of a protocol, for people.
pub fn protocol_name(protocol: u8) -> String {
    match protocol {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmp6".into(),
        other => other.to_string(),
    }
}

/// The rule by which this end inside may have this end outside; `u16::MAX` when it is a static
/// translation for which there is none.
fn allowed(rules: &Masquerade, out: PortId, protocol: u8, inside: End4, external: End4) -> Option<u16> {
    let number = rules.rule_for(out, inside.address)?;
    let rule = &rules.rules[usize::from(number)];
    let has = rule.to.contains(&external.address.into())
        && (rule.first..=rule.last).contains(&external.port)
        && !rules.held.contains(external.address, protocol, external.port);
    has.then_some(number)
}

/// The rule by which the rules as they are give the flow the translation that it has.
fn judge(rules: &Masquerade, flow: &Flow) -> Option<u16> {
    let (inside, t) = (flow.inside(), flow.translation());
    if t.mapping != 0 {
        return allowed(rules, t.out, flow.protocol(), inside, t.external);
    }
    let fixed = rules.static_in(flow.protocol(), t.external.address, t.external.port);
    if let Some(fixed) = fixed {
        let same = fixed.out == t.out && fixed.inside == (inside.address, inside.port);
        return same.then(|| rules.rule_for(t.out, inside.address).unwrap_or(u16::MAX));
    }
    // Protocols without ports.
    let number = rules.rule_for(t.out, inside.address)?;
    let to = &rules.rules[usize::from(number)].to;
    (t.external.port == 0 && to.contains(&t.external.address.into())).then_some(number)
}

/// The address in front that belongs to a host inside: always the same one of these (RFC 4787
/// REQ-2), on every worker. Each address has a weight for each host, and the heaviest is the host's:
/// so an address more or less moves no host but those that it takes or leaves.
fn pair_with(host: u32, addresses: &[std::net::Ipv4Addr]) -> Option<u32> {
    let weight = |address: u32| mix((u64::from(host) << 32 | u64::from(address)) ^ 0x9e37_79b9_7f4a_7c15);
    addresses.iter().map(|address| u32::from(*address)).max_by_key(|address| weight(*address))
}

/// The worker of an end.
fn spread(seed: u64, protocol: u8, end: End4, workers: usize) -> usize {
    let hash = mix(seed ^ (u64::from(end.address) << 32 | u64::from(end.port) << 8 | u64::from(protocol)));
    ((u128::from(hash) * workers as u128) >> 64) as usize
}

fn mix(z: u64) -> u64 {
    // splitmix64's last steps.
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Numbers that nobody outside can foresee: SipHash of a count under a secret key.
#[derive(Debug)]
struct Random {
    key: std::hash::RandomState,
    secret: Secret,
    count: u64,
}

impl Random {
    fn new(secret: Secret) -> Self {
        Self { key: std::hash::RandomState::new(), secret, count: 0 }
    }

    fn next(&mut self) -> u64 {
        use std::hash::BuildHasher;
        self.count += 1;
        let salt = self.secret.hash(&[self.count as u32, 0]);
        self.key.hash_one((self.count, salt))
    }
}
