//! A packet's place in a flow, for rules that ask for it.
//!
//! A packet belongs to the flow between its two ends, an ICMP error to that of the packet which it
//! quotes. One that belongs to no known flow is *new*; TCP that goes on without a SYN seen is, too,
//! so that connections outlive a restart of the router where new ones are allowed. A new packet
//! that the rules permit begins a flow, and what belongs to that is *established*.
//!
//! A flow is judged again when the rules have changed, by its first packet: as an established one,
//! and where no rule fits that, as the new one that it was. What the rules forbid ends there.

use std::net::IpAddr;

use crate::{
    forward::{
        burst::{BURST, Burst, Lane, Odd},
        filter::upper::{self, Upper},
        flows::{Direction, End4, Flow, FlowId, FlowTable, Full, Key4, Key6, tcp},
        translate::upper::{Identifies, identifies},
    },
    tables::{
        PortId, Tables, Timeouts,
        acl::{Acl, ESTABLISHED, Key, Kind},
    },
    wire::{
        icmp, icmp6,
        ipv4::{self, ICMP, TCP, UDP},
        ipv6::{self, ICMP6},
        tcp::{ACK, RST, SYN},
    },
};

const ETHERNET: usize = 14;

/// An address and a port, or what stands for one.
type End = (IpAddr, u16);

/// How a packet belongs to a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    protocol: u8,
    source: End,
    destination: End,
    tcp_flags: u8,
    /// It is an ICMP error, and this is the packet that it quotes.
    quoted: bool,
}

/// How a packet belongs to a flow; none when that cannot be told: later fragments, and packets that
/// are cut short.
pub fn member(source: IpAddr, destination: IpAddr, upper: &Upper<'_>) -> Option<Member> {
    if upper.kind != Kind::Whole {
        return None;
    }
    let (protocol, payload) = (upper.protocol, upper.payload);
    let of = |ports: (u16, u16), tcp_flags| {
        let (source, destination) = ((source, ports.0), (destination, ports.1));
        Some(Member { protocol, source, destination, tcp_flags, quoted: false })
    };
    let ports = ((upper.ports >> 16) as u16, upper.ports as u16);
    match protocol {
        // A quotation may end before the flags.
        TCP => of(ports, payload.get(13).copied().unwrap_or(0)),
        UDP => of(ports, 0),
        ICMP => {
            let (message, quotation) = icmp::parse(payload)?;
            if icmp::is_error(message.kind) {
                let packet = ipv4::parse_quoted(quotation).ok()?;
                let (from, to) = (packet.header.source().into(), packet.header.destination().into());
                return quoted(destination, from, to, &upper::of_ipv4(&packet));
            }
            match identifies(message.kind) {
                Identifies::Source => of((message.id.get(), 0), 0),
                Identifies::Destination => of((0, message.id.get()), 0),
                Identifies::Neither => of((0, 0), 0),
            }
        }
        ICMP6 => {
            let (message, quotation) = icmp6::parse(payload)?;
            if icmp6::is_error(message.kind) {
                let packet = ipv6::parse_quoted(quotation).ok()?;
                let (from, to) = (packet.header.source().into(), packet.header.destination().into());
                return quoted(destination, from, to, &upper::of_ipv6(&packet));
            }
            let id = (message.rest.get() >> 16) as u16;
            match message.kind {
                icmp6::ECHO_REQUEST | EXTENDED_ECHO => of((id, 0), 0),
                icmp6::ECHO_REPLY | EXTENDED_REPLY => of((0, id), 0),
                _ => of((0, 0), 0),
            }
        }
        _ => of((0, 0), 0),
    }
}

/// RFC 8335.
const EXTENDED_ECHO: u8 = 160;
const EXTENDED_REPLY: u8 = 161;

/// The packet that an error to `told` quotes: whoever is told has sent it, and it is no error.
fn quoted(told: IpAddr, source: IpAddr, destination: IpAddr, upper: &Upper<'_>) -> Option<Member> {
    let is_error = match upper.protocol {
        ICMP => upper.payload.first().is_some_and(|kind| icmp::is_error(*kind)),
        ICMP6 => upper.payload.first().is_some_and(|kind| icmp6::is_error(*kind)),
        _ => false,
    };
    if is_error || told != source {
        return None;
    }
    member(source, destination, upper).map(|member| Member { quoted: true, ..member })
}

/// The two hosts between which the flow of a packet goes, which begins here with its IP header: all
/// of a flow's packets, its fragments and the errors about it name the same two.
pub fn hosts(bytes: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let (source, destination, upper) = upper::of(bytes)?;
    match member(source, destination, &upper) {
        Some(member) if member.quoted => Some((member.source.0, member.destination.0)),
        _ => Some((source, destination)),
    }
}

/// A worker's flows, as the filter uses them.
pub struct Flows<'a> {
    /// The flows.
    pub table: &'a mut FlowTable,
    /// How long they last.
    pub timeouts: &'a Timeouts,
    /// The loop's time, in milliseconds.
    pub now: u32,
}

/// By which ports a packet came in and would leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// The port that it came in by.
    pub came_in: PortId,
    /// The port that it would leave by, if that is one.
    pub leaves_by: Option<PortId>,
}

/// In [`Flow::note`]: the way of the first packet is known. Below it stands the port that it left
/// by, and whether that was one; the port that it came in by is in [`Flow::mark`].
const HAS_WAY: u32 = 1 << 31;
const LEFT_BY_PORT: u32 = 1 << 30;

impl Flows<'_> {
    /// The packet's flow, if there is one, and the direction of the packet in it.
    fn find(&self, member: &Member) -> Option<(FlowId, Direction)> {
        find(self.table, member)
    }

    /// The flow that makes a packet an established one.
    pub fn known(&self, member: &Member) -> Option<(FlowId, Direction)> {
        // A translated flow is there before the filter sees its first packet.
        self.find(member).filter(|(id, _)| {
            let flow = self.table.flow(*id);
            (flow.judged != 0 || flow.is_answered()) && !opens_another(flow, member)
        })
    }

    /// Judges a flow by its first packet, if the rules have changed since. An error is the rule that
    /// ends it: the flow is no more.
    pub fn judge(&mut self, acl: &Acl, (id, direction): (FlowId, Direction), way: Way) -> Result<(), u32> {
        let serial = serial(acl);
        let flow = self.table.flow_mut(id);
        if flow.judged == serial {
            return Ok(());
        }
        let first = way_of(flow).or(match (direction, way.leaves_by) {
            (Direction::Forth, _) => Some(way),
            (Direction::Back, Some(port)) => Some(Way { came_in: port, leaves_by: Some(way.came_in) }),
            (Direction::Back, None) => None,
        });
        if let Some(first) = first {
            set_way(flow, first);
            let key = first_key(acl, flow, first);
            let rule = match acl.find(&key.established(), Kind::Whole) {
                none if none == acl.none() => acl.find(&key, Kind::Whole),
                rule => rule,
            };
            if acl.denies(rule) {
                self.table.remove(id);
                return Err(rule);
            }
        }
        self.table.flow_mut(id).judged = serial;
        Ok(())
    }

    /// Notes a packet of a flow, or begins a flow with it.
    ///
    /// # Errors
    /// There is no room for another flow.
    pub fn note(&mut self, acl: &Acl, member: &Member, way: Way) -> Result<(), Full> {
        if member.quoted {
            return Ok(());
        }
        let (id, direction) = match self.find(member) {
            Some((id, _)) if opens_another(self.table.flow(id), member) => {
                self.table.remove(id);
                (self.begin(member)?, Direction::Forth)
            }
            Some(known) => known,
            // What breaks a connection off begins none.
            None if member.protocol == TCP && member.tcp_flags & RST != 0 => return Ok(()),
            None => (self.begin(member)?, Direction::Forth),
        };
        let now = self.now;
        let flow = self.table.flow_mut(id);
        if flow.judged == 0 {
            flow.judged = serial(acl);
            set_way(flow, way);
        }
        note(flow, direction, member.tcp_flags, now);
        Ok(())
    }

    fn begin(&mut self, member: &Member) -> Result<FlowId, Full> {
        match keys(member) {
            Keys::V4((key, swapped)) => self.table.insert(&key, swapped, self.now, self.timeouts),
            Keys::V6((key, swapped)) => self.table.insert(&key, swapped, self.now, self.timeouts),
        }
    }
}

/// Whether the packet opens another connection where one is over: either side may do that, and a
/// rule is asked as for any new flow. Of translated flows translation decides.
#[inline(always)]
fn opens_another(flow: &Flow, member: &Member) -> bool {
    member.protocol == TCP
        && member.tcp_flags & (SYN | ACK) == SYN
        && tcp::is_over(flow.state)
        && !flow.is_translated()
}

/// What a flow that is not translated goes by; translation notes its own.
#[inline(always)]
fn note(flow: &mut Flow, direction: Direction, tcp_flags: u8, now: u32) {
    if !flow.is_translated() {
        flow.note_packet(direction, tcp_flags);
        flow.seen = now;
    }
}

/// The rules' serial number, as a flow keeps it.
fn serial(acl: &Acl) -> u32 {
    (acl.serial() as u32).max(1)
}

enum Keys {
    V4((Key4, bool)),
    V6((Key6, bool)),
}

fn keys(member: &Member) -> Keys {
    let Member { protocol, source, destination, .. } = *member;
    match (source.0, destination.0) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let end = |address: std::net::Ipv4Addr, port| End4::new(address.to_bits(), port);
            Keys::V4(Key4::new(protocol, end(a, source.1), end(b, destination.1)))
        }
        (a, b) => {
            let bits = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
                IpAddr::V6(address) => address.to_bits(),
            };
            Keys::V6(Key6::new(protocol, (bits(a), source.1), (bits(b), destination.1)))
        }
    }
}

fn find(table: &FlowTable, member: &Member) -> Option<(FlowId, Direction)> {
    let (id, swapped) = match keys(member) {
        Keys::V4((key, swapped)) => (table.find(&key)?, swapped),
        Keys::V6((key, swapped)) => (table.find(&key)?, swapped),
    };
    Some((id, table.flow(id).direction(swapped)))
}

fn way_of(flow: &Flow) -> Option<Way> {
    (flow.note & HAS_WAY != 0).then(|| Way {
        came_in: flow.mark,
        leaves_by: (flow.note & LEFT_BY_PORT != 0).then_some(flow.note as PortId),
    })
}

fn set_way(flow: &mut Flow, way: Way) {
    flow.mark = way.came_in;
    flow.note = HAS_WAY | way.leaves_by.map_or(0, |port| LEFT_BY_PORT | u32::from(port));
}

/// The key of a flow's first packet.
fn first_key(acl: &Acl, flow: &Flow, way: Way) -> Key {
    let place = acl.came_in(way.came_in) | acl.leaves_by(way.leaves_by);
    let (source, destination): (End, End) = if flow.is_ipv6() {
        let (source, destination) = flow.ends6();
        ((source.0.into(), source.1), (destination.0.into(), destination.1))
    } else {
        let (source, destination) = flow.ends4();
        let end = |end: End4| (std::net::Ipv4Addr::from(end.address).into(), end.port);
        (end(source), end(destination))
    };
    let ports = match flow.protocol() {
        TCP | UDP => u32::from(source.1) << 16 | u32::from(destination.1),
        _ => 0,
    };
    Key::new(source.0, destination.0, flow.protocol(), ports, place)
}

/// In the key of all packets that are filtered in bursts: [`followed`] leaves none but those of
/// flows.
pub fn bits(acl: &Acl) -> u32 {
    if acl.has_state() { ESTABLISHED } else { 0 }
}

/// Makes those of the burst's routed packets odd that belong to no flow which these rules have
/// judged already; notes the others in their flows.
#[inline(never)]
pub fn followed(burst: &mut Burst, tables: &Tables, acl: &Acl, flows: &mut FlowTable, now: u32) {
    let Burst { v4, v6, odd, translations, .. } = burst;
    let serial = serial(acl);
    let translates = tables.masquerade.is_on();
    follow_lane(v4, odd, serial, flows, now, |at| if translates { translations.inward_of(at) } else { 0 });
    follow_lane(v6, odd, serial, flows, now, |_| 0);
}

/// The same for one lane; `inward` tells the flow of a packet that translation knows already.
#[inline(always)]
fn follow_lane<Address: Copy>(
    lane: &mut Lane<Address>,
    odd: &mut Odd,
    serial: u32,
    flows: &mut FlowTable,
    now: u32,
    inward: impl Fn(u8) -> FlowId,
) {
    let mut stay = 0u32;
    for k in 0..lane.len.min(BURST) {
        let id = inward(lane.at[k]);
        if id != 0 {
            stay |= u32::from(flows.flow(id).judged == serial) << k;
            continue;
        }
        let packet = lane.frame[k].bytes().get(ETHERNET..).unwrap_or_default();
        let Some((source, destination, upper)) = upper::of(packet) else { continue };
        let Some(member) = member(source, destination, &upper) else { continue };
        let Some((id, direction)) = find(flows, &member) else { continue };
        let flow = flows.flow_mut(id);
        if flow.judged != serial || upper.fragment.is_some() || opens_another(flow, &member) {
            continue;
        }
        if !member.quoted {
            note(flow, direction, member.tcp_flags, now);
        }
        stay |= 1 << k;
    }
    lane.retain(|k, at| {
        let stays = stay >> k & 1 != 0;
        if !stays {
            odd.push(at.into());
        }
        stays
    });
}
