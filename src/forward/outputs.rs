//! Outputs: the transmit rings that a worker owns, and its ways to the others.
//!
//! Ring *k* of a port belongs to worker *k* mod N, its host rings too. A worker without a ring of
//! the outgoing port hands the packet to the worker that has one.

use netmap::{Frame, RxRing, TxQueue};

use super::{
    bell::Bell,
    handover::{Exit, Origin, Sender},
    slow::Ending,
    tap::Seen,
    verdict::Verdict,
};
use crate::{
    stats::file::BlockRef,
    tables::{PortId, SubPort, Tables},
    wire::vlan::{ADDRESSES, Priority},
};

use std::sync::Arc;

/// The port of a ring that belongs to none: the way up to the host's stack.
pub const NO_PORT: PortId = PortId::MAX;

/// How a worker reaches an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Through its own ring, number so-and-so in [`Outputs::own`].
    Own(u16),
    /// Through another worker, number so-and-so in [`Outputs::peers`].
    Peer(u16),
    /// With tags, by another port's rings: a sub-port, number so-and-so in [`Outputs::sub_ports`].
    SubPort(u16),
    /// Not at all.
    None,
}

/// A transmit ring that this worker owns, towards the wire or the host.
pub struct Output {
    /// The port it belongs to.
    pub port: PortId,
    /// Whether it leads to the wire; else up to the host.
    pub wire: bool,
    /// The ring and its device.
    pub queue: TxQueue,
    /// The worker's counters for the port.
    pub block: BlockRef,
    /// Packets, bytes and made packets put into the ring, and packets that found it full, in this
    /// sweep.
    pub packets: u64,
    /// Bytes of those packets.
    pub bytes: u64,
    /// Packets among them that were made here.
    pub made: u64,
    /// Packets that found the ring full in this sweep.
    pub full: u64,
    /// Whether it was used, or found full, by packets of sub-ports, which are counted there.
    pub tagged: bool,
    /// Whether it leads up to the host's stack by no port's rings, and takes no tags.
    pub is_way_up: bool,
    /// The device is gone; packets for it find no way.
    pub dead: bool,
}

/// A VLAN sub-port, as a way out.
pub struct SubOutput {
    /// Its port and tags.
    pub sub: SubPort,
    /// The worker's counters for the sub-port.
    pub block: BlockRef,
}

/// The way to another worker.
pub struct Peer {
    /// The hand-over ring towards it.
    pub ring: Sender,
    /// Wakes it.
    pub bell: Arc<Bell>,
}

/// What became of a packet that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It is in the exit's ring.
    Left,
    /// It is in a hand-over ring; the worker at its end will account for it.
    InTransit,
    /// It is not sent, and this is why.
    Not(Verdict),
}

impl Sent {
    /// How a received packet has ended that gets this verdict if it leaves.
    #[inline(always)]
    pub fn ending(self, verdict: Verdict) -> Ending {
        match self {
            Self::Left => Ending::Verdict(verdict),
            Self::InTransit => Ending::InTransit,
            Self::Not(why) => Ending::Verdict(why),
        }
    }
}

/// All ways out that a worker has.
pub struct Outputs {
    /// Its own rings.
    pub own: Vec<Output>,
    /// The other workers it hands packets to.
    pub peers: Vec<Peer>,
    /// The way to each port's wire.
    pub wire: Vec<Way>,
    /// The way to each port's host side.
    pub host: Vec<Way>,
    /// Which of its own rings leads up to the host's stack for ports that have none for that.
    pub up: Option<u16>,
    /// The sub-ports.
    pub sub_ports: Vec<SubOutput>,
    /// The priority of the packet that is being sent, for the tags that it gets.
    pub priority: Priority,
    /// What the packet that is being dealt with is in a capture.
    pub seen: Seen,
    /// The generation of the tables that the sub-ports are from.
    generation: u64,
}

impl Outputs {
    /// Takes the rings of a port out; there is no way to it any more.
    pub fn remove(&mut self, port: PortId) -> Vec<TxQueue> {
        let mut queues = Vec::new();
        for ways in [&mut self.wire, &mut self.host] {
            if let Some(way) = ways.get_mut(usize::from(port)) {
                *way = Way::None;
            }
        }
        while let Some(at) = self.own.iter().position(|output| output.port == port) {
            queues.push(self.own.swap_remove(at).queue);
            // The last one stands in its place now.
            let (from, to) = (self.own.len() as u16, at as u16);
            let ways = self.wire.iter_mut().chain(&mut self.host);
            ways.filter(|way| **way == Way::Own(from)).for_each(|way| *way = Way::Own(to));
            self.up = self.up.map(|up| if up == from { to } else { up });
        }
        queues
    }

    /// Moves the packet in `slot` of `rx`, `len` bytes, into the worker's own ring towards the wire
    /// of `port`. `len` counts the Ethernet header. `false`, and nothing done, when the worker has
    /// no such ring or it is full: [`Outputs::forward_elsewhere`] knows what to do then.
    #[inline(always)]
    pub fn forward(&mut self, port: PortId, rx: &RxRing, slot: u32, len: u32) -> bool {
        if let Some(&Way::Own(n)) = self.wire.get(usize::from(port))
            && let Some(output) = self.own.get_mut(usize::from(n))
            && output.queue.ring.forward(rx, slot, len)
        {
            output.packets += 1;
            output.bytes += u64::from(len);
            return true;
        }
        false
    }

    /// Sends the packet in `slot` of `rx` when [`Outputs::forward`] could not: the ring is full, or
    /// another worker's.
    #[cold]
    pub fn forward_elsewhere(
        &mut self,
        port: PortId,
        origin: Origin,
        rx: &RxRing,
        slot: u32,
        len: u32,
    ) -> Sent {
        // SAFETY: the slot is the worker's, and whoever took a frame of it is not using it now.
        match unsafe { rx.frame(slot) } {
            Some(frame) => {
                self.send(Exit::Wire(port), origin, &frame.bytes()[..len.min(frame.len()) as usize])
            }
            None => Sent::Not(Verdict::BadSlot),
        }
    }

    /// How many more packets the ring towards the wire of `port` takes in this sweep. One that has
    /// no room for `wanted` counts as found full.
    pub fn room(&mut self, port: PortId, wanted: usize) -> usize {
        if let Some(sub) = self.sub_port(port) {
            let parent = sub.sub.parent;
            return self.room(parent, wanted);
        }
        match self.wire.get(usize::from(port)) {
            Some(&Way::Own(n)) => {
                let output = &mut self.own[usize::from(n)];
                let room = output.queue.ring.space() as usize;
                output.full += u64::from(room < wanted && !output.dead);
                room
            }
            Some(&Way::Peer(n)) => self.peers[usize::from(n)].ring.room(),
            Some(Way::SubPort(_) | Way::None) | None => 0,
        }
    }

    /// Why a packet for the wire of `port` that found no room is lost.
    pub fn no_room(&self, port: PortId) -> Verdict {
        let port = self.sub_port(port).map_or(port, |sub| sub.sub.parent);
        match self.wire.get(usize::from(port)) {
            Some(&Way::Own(n)) if self.own[usize::from(n)].dead => Verdict::PortDown,
            Some(Way::Own(_)) => Verdict::TxFull,
            Some(Way::Peer(_)) => Verdict::HandoverFull,
            Some(Way::SubPort(_) | Way::None) | None => Verdict::PortDown,
        }
    }

    /// Hands a copy of `frame` to peer number `peer`.
    pub fn hand_to(&mut self, peer: usize, exit: Exit, origin: Origin, frame: &[u8]) -> Sent {
        let id = self.seen.id;
        let pushed = self.peers.get_mut(peer).is_some_and(|peer| {
            peer.ring.seen = id;
            peer.ring.push(exit, origin, frame)
        });
        if pushed { Sent::InTransit } else { Sent::Not(Verdict::HandoverFull) }
    }

    /// Sends a copy of `frame` to `exit`.
    pub fn send(&mut self, exit: Exit, origin: Origin, frame: &[u8]) -> Sent {
        self.send_with(exit, origin, frame.len(), |to| to.copy_from_slice(frame))
    }

    /// Sends a frame of `len` bytes that `fill` writes; not called when there is no room.
    pub fn send_with(
        &mut self,
        exit: Exit,
        origin: Origin,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Sent {
        let (way, full) = match exit {
            Exit::Wire(port) | Exit::Tagged(port) => (self.wire.get(usize::from(port)), Verdict::TxFull),
            Exit::Host(port) => (self.host.get(usize::from(port)), Verdict::HostFull),
            // Which worker is for the translator to say: `hand_to`.
            Exit::Worker { .. } => (None, Verdict::HandoverFull),
        };
        match way {
            Some(&Way::SubPort(n)) => self.send_by_sub_port(n, exit, origin, len, fill),
            Some(&Way::Own(n)) => {
                let output = &mut self.own[usize::from(n)];
                if !output.queue.ring.send_with(len as u32, fill) {
                    output.full += 1;
                    return Sent::Not(full);
                }
                output.packets += 1;
                output.bytes += len as u64;
                output.made += u64::from(origin == Origin::Made);
                Sent::Left
            }
            Some(&Way::Peer(n)) => {
                let ring = &mut self.peers[usize::from(n)].ring;
                ring.seen = self.seen.id;
                let pushed = ring.push_with(exit, origin, len, fill);
                if pushed { Sent::InTransit } else { Sent::Not(Verdict::HandoverFull) }
            }
            Some(Way::None) | None => no_way(exit),
        }
    }

    /// Ends the sweep: shows the other workers what was handed to them, syncs the rings that were
    /// used or still have packets pending, and counts. Gives whether packets are still pending;
    /// `failed` hears of devices that refuse.
    pub fn sync(&mut self, mut failed: impl FnMut(PortId, netmap::SyncError)) -> bool {
        for peer in &mut self.peers {
            if peer.ring.publish() {
                peer.bell.wake();
            }
        }
        let mut pending = false;
        for (at, output) in self.own.iter_mut().enumerate() {
            let used = output.packets + output.full > 0 || output.tagged;
            if !used && !output.queue.pending() || output.dead {
                continue;
            }
            if let Err(error) = output.queue.sync() {
                output.dead = error.is_gone();
                failed(output.port, error);
            }
            if output.dead {
                // Nothing more is put into a ring that nobody empties.
                let ways = if output.wire { &mut self.wire } else { &mut self.host };
                ways.iter_mut().filter(|way| **way == Way::Own(at as u16)).for_each(|way| *way = Way::None);
            }
            if output.wire {
                output.block.tx_packets.add(output.packets);
                output.block.tx_bytes.add(output.bytes);
                output.block.tx_full.add(output.full);
                output.block.made.add(output.made);
            }
            (output.packets, output.bytes, output.made, output.full) = (0, 0, 0, 0);
            output.tagged = false;
            pending |= output.queue.pending() && !output.dead;
        }
        pending
    }
}

impl Outputs {
    /// No ways yet, but to these other workers, for `ports` ports.
    pub fn new(peers: Vec<Peer>, wire: Vec<Way>, host: Vec<Way>) -> Self {
        Self {
            own: Vec::new(),
            peers,
            wire,
            host,
            up: None,
            sub_ports: Vec::new(),
            priority: Priority::default(),
            seen: Seen::NOT,
            // None that there is: the first tables are looked at.
            generation: u64::MAX,
        }
    }

    /// Brings the sub-ports up to `tables`, whose generation this is; `blocks` are the worker's
    /// counters.
    #[inline(always)]
    pub fn follow(&mut self, tables: &Tables, generation: u64, blocks: &[BlockRef]) {
        if self.generation != generation {
            self.generation = generation;
            self.follow_sub_ports(tables, blocks);
        }
    }

    #[cold]
    fn follow_sub_ports(&mut self, tables: &Tables, blocks: &[BlockRef]) {
        self.sub_ports.clear();
        for ways in [&mut self.wire, &mut self.host] {
            ways.iter_mut().filter(|way| matches!(way, Way::SubPort(_))).for_each(|way| *way = Way::None);
        }
        for ((id, table), block) in tables.ports.iter().enumerate().zip(blocks) {
            let Some(sub) = table.sub else { continue };
            let way = Way::SubPort(self.sub_ports.len() as u16);
            self.sub_ports.push(SubOutput { sub, block: block.clone() });
            for ways in [&mut self.wire, &mut self.host] {
                ways.resize(ways.len().max(id + 1), Way::None);
                ways[id] = way;
            }
        }
    }

    fn sub_port(&self, port: PortId) -> Option<&SubOutput> {
        match self.wire.get(usize::from(port)) {
            Some(&Way::SubPort(n)) => self.sub_ports.get(usize::from(n)),
            _ => None,
        }
    }

    /// Sends a frame of `len` bytes, without tags unless `exit` says that it has them, by the rings of
    /// the port that sub-port number `n` belongs to.
    #[cold]
    fn send_by_sub_port(
        &mut self,
        n: u16,
        exit: Exit,
        origin: Origin,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Sent {
        let Self { own, peers, wire, host, sub_ports, priority, seen, .. } = self;
        let Some(SubOutput { sub, block }) = sub_ports.get(usize::from(n)) else { return no_way(exit) };
        let (tags, parent) = (sub.tags, usize::from(sub.parent));
        let (way, full) = match exit {
            Exit::Wire(_) | Exit::Tagged(_) => (wire.get(parent), Verdict::TxFull),
            Exit::Host(_) => (host.get(parent), Verdict::HostFull),
            Exit::Worker { .. } => return no_way(exit),
        };
        match way {
            Some(&Way::Own(at)) => {
                let output = &mut own[usize::from(at)];
                let bare = matches!(exit, Exit::Tagged(_)) || output.is_way_up;
                let room = if bare { 0 } else { tags.bytes() };
                output.tagged = true;
                let sent = output.queue.ring.send_with((len + room) as u32, |buf| {
                    fill(&mut buf[room..]);
                    if !bare {
                        tags.write(buf, *priority);
                    }
                });
                match (sent, exit) {
                    (false, Exit::Host(_)) => Sent::Not(full),
                    (false, _) => {
                        block.tx_full.add(1);
                        Sent::Not(full)
                    }
                    (true, Exit::Host(_)) => Sent::Left,
                    (true, _) => {
                        // As on the way in, without the tags.
                        let bytes = if bare { len.saturating_sub(tags.bytes()) } else { len };
                        block.tx_packets.add(1);
                        block.tx_bytes.add(bytes as u64);
                        block.made.add(u64::from(origin == Origin::Made));
                        Sent::Left
                    }
                }
            }
            Some(&Way::Peer(at)) => {
                let ring = &mut peers[usize::from(at)].ring;
                ring.seen = seen.id;
                let pushed = match exit {
                    // With the tags, since nobody there knows the priority.
                    Exit::Wire(port) => {
                        ring.push_with(Exit::Tagged(port), origin, len + tags.bytes(), |buf| {
                            fill(&mut buf[tags.bytes()..]);
                            tags.write(buf, *priority);
                        })
                    }
                    exit => ring.push_with(exit, origin, len, fill),
                };
                if pushed { Sent::InTransit } else { Sent::Not(Verdict::HandoverFull) }
            }
            Some(Way::SubPort(_) | Way::None) | None => no_way(exit),
        }
    }

    /// Sends the packet in `slot` of `rx` out of `port`: `frame` is the packet without its tags, of
    /// which `skipped` bytes stand in front of it, and `len` what is to be sent of it. Where it leaves
    /// with as many tags its buffer is exchanged, else it is copied.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "called once, by the stage that has them all")]
    pub fn forward_untagged(
        &mut self,
        port: PortId,
        origin: Origin,
        rx: &RxRing,
        slot: u32,
        frame: &Frame,
        len: u32,
        skipped: u32,
    ) -> Sent {
        let same =
            self.sub_port(port).filter(|sub| sub.sub.tags.bytes() as u32 == skipped).map(|sub| sub.sub);
        if let Some(sub) = same
            && let Some(&Way::Own(at)) = self.wire.get(usize::from(sub.parent))
            && let Some(output) = self.own.get_mut(usize::from(at))
            && output.queue.ring.space() > 0
            // SAFETY: the slot is the worker's, and `frame`, the one frame of it, is not used again.
            && let Some(mut whole) = unsafe { rx.frame(slot) }
        {
            let bytes = whole.bytes_mut();
            let tags = skipped as usize;
            if bytes.len() >= tags + ADDRESSES {
                bytes.copy_within(tags..tags + ADDRESSES, 0);
                sub.tags.write_over(bytes, self.priority);
                if output.queue.ring.forward(rx, slot, len + skipped) {
                    output.tagged = true;
                    if let Some(SubOutput { block, .. }) = self.sub_port(port) {
                        block.tx_packets.add(1);
                        block.tx_bytes.add(len.into());
                    }
                    return Sent::Left;
                }
            }
            return Sent::Not(Verdict::BadSlot);
        }
        if skipped == 0 {
            return match self.forward(port, rx, slot, len) {
                true => Sent::Left,
                false => self.forward_elsewhere(port, origin, rx, slot, len),
            };
        }
        self.send(Exit::Wire(port), origin, &frame.bytes()[..len.min(frame.len()) as usize])
    }
}

/// What becomes of a packet for an exit that there is no way to.
fn no_way(exit: Exit) -> Sent {
    Sent::Not(match exit {
        Exit::Wire(_) | Exit::Tagged(_) => Verdict::PortDown,
        Exit::Host(_) => Verdict::HostFull,
        Exit::Worker { .. } => Verdict::HandoverFull,
    })
}
