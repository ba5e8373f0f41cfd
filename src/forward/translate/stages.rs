//! The stages of translation: for plain packets whose flow this worker knows.
//!
//! Coming in, before the route: where a packet for an address in front really goes. Its bytes stay
//! as they are; only the destination that is routed is another. Going out, when its next hop is
//! known and takes it: the flow of a packet that leaves by a port that masquerades. Only then are
//! bytes changed, the destination before the filter and the source behind it, so that the filter
//! sees both as the inside does, and whatever a stage finds odd is still as it came. A flow that is
//! not known, a fragment, an ICMP error: odd.

use netmap::Frame;

use super::{
    Translator,
    edit::{self, Side},
};
use crate::{
    forward::{
        burst::{BURST, Burst, Lane, Odd},
        clock::Clock,
        flows::{Direction, End4, FlowId, FlowTable, Key4, OutsideKey},
    },
    tables::Tables,
    wire::{
        icmp,
        ipv4::{ICMP, MORE_FRAGMENTS, OFFSET_MASK, TCP, UDP},
    },
};

const ETHERNET: usize = 14;
/// Where the transport's header begins in a frame whose IPv4 header has no options.
const UPPER: usize = ETHERNET + 20;

/// The ends of a plain packet.
#[derive(Clone, Copy)]
struct Ends {
    protocol: u8,
    source: End4,
    destination: End4,
    tcp_flags: u8,
    may_be_cut: bool,
}

/// The ends of a packet, of `ip_len` bytes and without options, that a stage can translate.
#[inline(always)]
fn ends(frame: &Frame, ip_len: u16) -> Option<Ends> {
    let bytes = frame.bytes();
    let head: &[u8; UPPER + 8] = bytes.first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let address = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let fragment = word(ETHERNET + 6);
    if fragment & (MORE_FRAGMENTS | OFFSET_MASK) != 0 {
        return None;
    }
    let protocol = head[ETHERNET + 9];
    let (from, to, least, tcp_flags) = match protocol {
        TCP => (word(UPPER), word(UPPER + 2), 40, *bytes.get(UPPER + 13)?),
        UDP => (word(UPPER), word(UPPER + 2), 28, 0),
        ICMP if head[UPPER] == icmp::ECHO_REQUEST => (word(UPPER + 4), 0, 28, 0),
        ICMP if head[UPPER] == icmp::ECHO_REPLY => (0, word(UPPER + 4), 28, 0),
        _ => return None,
    };
    (ip_len >= least).then_some(Ends {
        protocol,
        source: End4::new(address(ETHERNET + 12), from),
        destination: End4::new(address(ETHERNET + 16), to),
        tcp_flags,
        may_be_cut: fragment == 0,
    })
}

/// What the stages of one burst remember, by the packet's number in the burst.
#[derive(Debug)]
pub struct Translations {
    /// The flow of a packet that goes inside; 0 for all others.
    inward: [FlowId; BURST],
    /// What is known of a packet that leaves by a port that masquerades.
    outward: [Leaving; BURST],
}

/// A packet that leaves by a port that masquerades, as it was before the filter.
#[derive(Clone, Copy, Default, Debug)]
struct Leaving {
    /// Its flow; 0 for all other packets.
    flow: FlowId,
    /// Whether its ends stand the other way round in the flow's key.
    swapped: bool,
    tcp_flags: u8,
    may_be_cut: bool,
}

impl Default for Translations {
    fn default() -> Self {
        Self { inward: [0; BURST], outward: [Leaving::default(); BURST] }
    }
}

impl Translations {
    /// The flow of the burst's packet number `at`, if it goes inside, else 0.
    #[inline(always)]
    pub fn inward_of(&self, at: u8) -> FlowId {
        self.inward[usize::from(at) % BURST]
    }
}

/// Finds where the packets for addresses in front really go.
#[inline]
pub fn inward(burst: &mut Burst, tables: &Tables, flows: &FlowTable) {
    let rules = &tables.masquerade;
    let Burst { v4, odd, translations, .. } = burst;
    translations.inward = [0; BURST];
    let (mut keys, mut places, mut count) = ([OutsideKey::default(); BURST], [0u8; BURST], 0);
    let mut strange = 0u32;
    for k in 0..v4.len.min(BURST) {
        if !rules.may_be_in_front(v4.destination[k]) {
            continue;
        }
        match ends(&v4.frame[k], v4.ip_len[k]) {
            Some(ends) if !rules.may_be_in_front(ends.source.address) => {
                keys[count] = OutsideKey::new(ends.protocol, ends.destination, ends.source);
                places[count] = k as u8;
                count += 1;
            }
            _ => strange |= 1 << k,
        }
    }
    if count > 0 {
        let mut found = [0; BURST];
        flows.find_all(&keys[..count], &mut found[..count]);
        for (&id, &k) in found[..count].iter().zip(&places) {
            let k = usize::from(k) % BURST;
            let flow = flows.flow(id);
            if id == 0 || flow.translated_by != rules.version {
                strange |= 1 << k;
                continue;
            }
            let inside = flow.inside().address;
            tables.fib4.prefetch_dir(inside);
            v4.destination[k] = inside;
            translations.inward[usize::from(v4.at[k]) % BURST] = id;
        }
    }
    if strange != 0 {
        drop_out(strange, v4, odd);
    }
}

/// Makes the lane's packets with these bits odd.
#[cold]
fn drop_out(strange: u32, lane: &mut Lane<u32>, odd: &mut Odd) {
    lane.retain(|k, at| {
        let stays = strange >> k & 1 == 0;
        if !stays {
            odd.push(at.into());
        }
        stays
    });
}

/// Before the filter, for packets whose next hop takes them: translates those that go inside, so
/// that the filter sees where they go, and finds the flows of those that leave by a port that
/// masquerades. Nothing makes these odd any more: they leave, or a rule ends them.
#[inline]
pub fn known(burst: &mut Burst, tables: &Tables, flows: &mut FlowTable, clock: &Clock) {
    let rules = &tables.masquerade;
    let Burst { v4, odd, translations, .. } = burst;
    translations.outward = [Leaving::default(); BURST];
    let (mut keys, mut remotes, mut places, mut count) =
        ([Key4::default(); BURST], [End4::default(); BURST], [0u8; BURST], 0);
    let mut strange = 0u32;
    for k in 0..v4.len.min(BURST) {
        let at = usize::from(v4.at[k]) % BURST;
        let Some(hop) = v4.way_out(k, tables) else { continue };
        let id = translations.inward[at];
        if id == 0 && !rules.is_out(hop.port) {
            continue;
        }
        let Some(ends) = ends(&v4.frame[k], v4.ip_len[k]) else {
            strange |= 1 << k;
            continue;
        };
        if id == 0 {
            let (key, swapped) = Key4::new(ends.protocol, ends.source, ends.destination);
            (keys[count], remotes[count], places[count]) = (key, ends.destination, k as u8);
            // Whose flow it is comes later, for all packets at once.
            let Ends { tcp_flags, may_be_cut, .. } = ends;
            translations.outward[at] = Leaving { flow: 0, swapped, tcp_flags, may_be_cut };
            count += 1;
            continue;
        }
        let rule = flows.flow(id).translation().rule;
        let refreshes = rules.rules.get(usize::from(rule)).is_none_or(|rule| rule.inbound_refresh);
        let flow = flows.flow_mut(id);
        let inside = flow.inside();
        let (_, swapped) = Key4::new(ends.protocol, ends.source, inside);
        let direction = flow.direction(swapped);
        flow.note_packet(direction, ends.tcp_flags);
        if refreshes || direction == Direction::Forth {
            flow.seen = clock.now();
        }
        edit::set_end(&mut v4.frame[k].bytes_mut()[ETHERNET..], Side::Destination, inside);
    }
    let mut found = [0; BURST];
    flows.find_all(&keys[..count], &mut found[..count]);
    for ((&id, &k), remote) in found[..count].iter().zip(&places).zip(&remotes) {
        let k = usize::from(k) % BURST;
        let (flow, out) = (flows.flow(id), tables.next_hop(v4.next_hop[k]).port);
        let translation = flow.translation();
        let known = id != 0
            && flow.is_translated()
            && flow.translated_by == rules.version
            && translation.out == out
            && translation.remote == *remote;
        if known {
            translations.outward[usize::from(v4.at[k]) % BURST].flow = id;
        } else {
            strange |= 1 << k;
        }
    }
    if strange != 0 {
        drop_out(strange, v4, odd);
    }
}

/// Behind the filter: translates the packets that leave by a port that masquerades.
#[inline]
pub fn outward(burst: &mut Burst, flows: &mut FlowTable, translator: &mut Translator, clock: &Clock) {
    let Burst { v4, translations, .. } = burst;
    for k in 0..v4.len.min(BURST) {
        let leaving = translations.outward[usize::from(v4.at[k]) % BURST];
        if leaving.flow == 0 {
            continue;
        }
        let flow = flows.flow_mut(leaving.flow);
        flow.note_packet(flow.direction(leaving.swapped), leaving.tcp_flags);
        flow.seen = clock.now();
        let packet = &mut v4.frame[k].bytes_mut()[ETHERNET..];
        if leaving.may_be_cut {
            edit::set_id(packet, translator.next_id());
        }
        edit::set_end(packet, Side::Source, flow.translation().external);
    }
}
