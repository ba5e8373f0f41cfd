//! The loop. One worker per core runs it to completion: packets in, tables read once a sweep,
//! packets out. A ring has one owner, and nothing else touches it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver as Commands, Sender as ToKeeperChannel};
use netmap::{RxQueue, RxRing, SyncError, Wait};

use super::{
    bell::Bell,
    burst::{BURST, Burst},
    filter::{filter, state::followed},
    hand_over::{hand_over, hand_over_tapped, hand_over_untagged},
    handover::{Exit, Origin, Receiver},
    idle::{Idle, Patience},
    messages::{ToKeeper, ToWorker},
    outputs::{NO_PORT, Outputs, Sent},
    parse::parse,
    plug::{Answer, Reply},
    pulse::Pulse,
    redirect::turn_back,
    reverse_path::reverse_path,
    rewrite::rewrite,
    route::route,
    slow::{Context, Ending, Slow},
    sums::Samples,
    tap::Seen,
    translate::stages::{inward, known, outward},
    untag::{next_group, untag},
    used::Used,
    verdict::Verdict,
};
use crate::{
    stats::file::BlockRef,
    tables::{PortId, ReversePath, Tables, Trunk, publish::Reader},
    wire::vlan::Priority,
};

/// Sweeps between two looks at the clock.
const CLOCK_SWEEPS: u32 = 1024;

/// A receive ring that this worker owns.
pub struct Input {
    /// The port it belongs to.
    pub port: PortId,
    /// Whether it comes from the wire; else it holds what the host's own stack sends.
    pub wire: bool,
    /// The ring and its device.
    pub queue: RxQueue,
    /// The worker's counters for the port.
    pub block: BlockRef,
    /// The device is gone.
    pub dead: bool,
    /// The last slot's packet goes on in the next one.
    pub chain: bool,
    /// Whether TCP comes with right checksums.
    pub sums: Samples,
}

/// All that one worker owns.
pub struct Worker {
    /// Its number, from 0.
    pub index: usize,
    /// Where packets come from.
    pub inputs: Vec<Input>,
    /// What the other workers hand to it.
    pub inbox: Vec<Receiver>,
    /// Where packets leave.
    pub out: Outputs,
    /// The tables.
    pub reader: Reader<Tables>,
    /// The careful path and its state.
    pub slow: Slow,
    /// Its counters, by port.
    pub blocks: Vec<BlockRef>,
    /// Which next hops were used lately.
    pub used: Used,
    /// Wakes it.
    pub bell: Arc<Bell>,
    /// The keeper's word.
    pub commands: Commands<ToWorker>,
    /// Its word to the keeper.
    pub keeper: ToKeeperChannel<ToKeeper>,
    /// What it does when there is nothing to do.
    pub patience: Patience,
    /// By which others see that it goes on.
    pub pulse: Arc<Pulse>,
    /// Where it says how many flows it keeps.
    pub home: BlockRef,
    /// Which of the inputs is being swept, if one is: should a fault end the sweep.
    pub at: Option<usize>,
}

/// What a sweep has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// Packets taken from rings.
    pub packets: u32,
    /// Packets wait in transmit rings for a further sync.
    pub pending: bool,
}

impl Worker {
    /// Runs until [`ToWorker::Stop`], whatever faults it meets meanwhile. Everything that is still in
    /// the receive rings stays there; what is in the transmit rings is sent.
    pub fn run(mut self) {
        let mut burst = Burst::default();
        while !self.live(&mut burst) {}
        self.flush();
    }

    /// Works until it is told to stop.
    pub(super) fn work(&mut self, burst: &mut Burst) {
        let mut idle = Idle::new(self.patience);
        let mut sweeps = 0u32;
        let mut told_finished = false;
        loop {
            let swept = self.sweep(burst);
            sweeps = sweeps.wrapping_add(1);
            self.pulse.beat();
            if self.bell.was_called() && !self.obey() {
                break;
            }
            if sweeps.is_multiple_of(CLOCK_SWEEPS) {
                self.tell();
            }
            if swept.packets > 0 {
                idle.busy();
                continue;
            }
            if !told_finished && self.finished(swept) {
                told_finished = self.keeper.try_send(ToKeeper::Finished { worker: self.index }).is_ok();
            }
            if idle.empty() {
                self.tell();
                self.sleep(swept.pending);
            }
        }
    }

    /// Says now and then what others want to know.
    fn tell(&mut self) {
        self.used.report(&self.keeper);
        self.home.flows.set(self.slow.flows.len() as u64);
    }

    /// One pass over all rings.
    pub fn sweep(&mut self, burst: &mut Burst) -> Swept {
        let Self { inputs, inbox, out, reader, slow, blocks, used, keeper, at, .. } = self;
        let generation = reader.generation();
        let tables = reader.sweep();
        out.follow(tables, generation, blocks);
        let mut packets = 0;
        let tapped = slow.tap.is_some();
        for (number, input) in inputs.iter_mut().enumerate() {
            *at = Some(number);
            if !input.sync(keeper) {
                continue;
            }
            let taken = burst.take(&input.queue.ring, &mut input.chain);
            if input.sums.is_due(taken) && input.wire {
                look_at_sums(burst, input, tables, keeper);
            }
            while burst.advance() {
                if input.wire {
                    let mut context = Context { tables, generation, out, port: input.port, blocks };
                    if tapped {
                        from_wire_tapped(burst, input, &mut context, slow, used);
                    } else {
                        from_wire(burst, input, &mut context, slow, used);
                    }
                } else {
                    from_host(burst, input, out, slow);
                }
            }
            input.queue.ring.advance(taken);
            packets += taken;
        }
        *at = None;
        for ring in inbox.iter_mut() {
            packets += ring.drain(|packet| {
                let mut context = Context { tables, generation, out, port: 0, blocks };
                take_over(packet, &mut context, slow);
            });
        }
        if slow.waits() || slow.translator.remembers() {
            slow.look_after(&mut Context { tables, generation, out, port: 0, blocks });
        }
        slow.keep_flows(tables, packets);
        let pending = out.sync(|port, error| device_failed(keeper, port, error));
        reader.quiescent();
        Swept { packets, pending }
    }

    /// Deals with the keeper's commands; `false` when it is time to stop.
    #[cold]
    pub fn obey(&mut self) -> bool {
        self.bell.answer();
        let mut answers: Vec<(Answer, Reply)> = Vec::new();
        while let Ok(command) = self.commands.try_recv() {
            let Self { out, reader, slow, blocks, .. } = self;
            let generation = reader.generation();
            let tables = reader.sweep();
            out.follow(tables, generation, blocks);
            let mut context = Context { tables, generation, out, port: 0, blocks };
            match command {
                ToWorker::Stop => return false,
                ToWorker::Look(look) => look.take(slow),
                ToWorker::Failed { port, address } => slow.failed(&mut context, port, address),
                ToWorker::Tap(tap) => slow.tap = tap,
                ToWorker::Solicit { port, address } => slow.solicit(&mut context, port, address),
                ToWorker::Announce { port, address } => slow.announce(&mut context, port, address),
                ToWorker::Plug { plug, answer } => answers.push((answer, self.plug(plug))),
            }
        }
        let Self { out, reader, keeper, .. } = self;
        out.sync(|port, error| device_failed(keeper, port, error));
        reader.quiescent();
        // Only now can the others see what was handed to them.
        for (answer, reply) in answers {
            // Whoever asked may have stopped waiting; then the rings close here.
            let _ = answer.try_send(reply);
        }
        true
    }

    /// Whether nothing will ever come again and everything has left: captures at their end.
    fn finished(&self, swept: Swept) -> bool {
        !swept.pending
            && !self.slow.waits()
            && self
                .inputs
                .iter()
                .filter(|i| i.wire)
                .all(|i| i.queue.finished() && i.queue.ring.available() == 0)
            && self.inbox.iter().all(Receiver::is_empty)
    }

    /// Waits for a packet, a command or the time; the tables may change meanwhile.
    fn sleep(&mut self, pending: bool) {
        self.reader.offline();
        self.bell.fall_asleep();
        if self.inbox.iter().all(Receiver::is_empty) && !self.bell.was_called() {
            let live = self.inputs.iter().filter(|i| !i.dead);
            let nap = pending || self.slow.waits() || live.clone().any(|i| i.queue.wait() == Wait::Nap);
            let fds = live.filter_map(|i| match i.queue.wait() {
                Wait::Fd(fd) => Some(fd),
                Wait::Nap | Wait::Never => None,
            });
            super::idle::wait(
                fds,
                &self.bell,
                if pending {
                    super::idle::SHORT
                } else if nap {
                    super::idle::NAP
                } else {
                    super::idle::LONG
                },
            );
        }
        self.bell.wake_up();
        self.reader.online();
    }

    /// Sends what the transmit rings still hold, for at most a tenth of a second.
    fn flush(&mut self) {
        let until = Instant::now() + Duration::from_millis(100);
        let Self { out, keeper, .. } = self;
        while out.sync(|port, error| device_failed(keeper, port, error)) && Instant::now() < until {
            std::thread::sleep(super::idle::SHORT);
        }
    }
}

impl Input {
    /// Brings the ring up to date; `false` when there is nothing to expect from it.
    #[inline(always)]
    fn sync(&mut self, keeper: &ToKeeperChannel<ToKeeper>) -> bool {
        if self.dead {
            return false;
        }
        match self.queue.sync() {
            Ok(()) => true,
            Err(error) => {
                self.dead = error.is_gone();
                device_failed(keeper, self.port, error);
                false
            }
        }
    }
}

/// Takes a sample of the packets just taken.
#[cold]
fn look_at_sums(burst: &Burst, input: &mut Input, tables: &Tables, keeper: &ToKeeperChannel<ToKeeper>) {
    let Some(table) = tables.ports.get(usize::from(input.port)) else { return };
    if burst.first().is_some_and(|frame| input.sums.look(frame.bytes(), &table.mac)) {
        // A full channel means that the keeper is busy; then it is not said.
        let _ = keeper.try_send(ToKeeper::WrongSums { port: input.port });
    }
}

/// Packets that came in from the wire: all stages.
#[inline(always)]
fn from_wire(burst: &mut Burst, input: &Input, context: &mut Context<'_>, slow: &mut Slow, used: &mut Used) {
    let ring = &input.queue.ring;
    match &context.tables.ports[usize::from(input.port)].trunk {
        None => stages::<false, false>(burst, ring, context, &input.block, slow, used),
        Some(trunk) => from_trunk::<false>(burst, ring, context, trunk, slow, used),
    }
}

/// The same while somebody captures: each packet is copied as it came, and its ending told.
#[inline(never)]
fn from_wire_tapped(
    burst: &mut Burst,
    input: &Input,
    context: &mut Context<'_>,
    slow: &mut Slow,
    used: &mut Used,
) {
    if let Some(tap) = &mut slow.tap {
        tap.copy(burst);
    }
    let ring = &input.queue.ring;
    match &context.tables.ports[usize::from(input.port)].trunk {
        None => stages::<false, true>(burst, ring, context, &input.block, slow, used),
        Some(trunk) => from_trunk::<true>(burst, ring, context, trunk, slow, used),
    }
}

/// Packets that came in by a port with VLANs: all stages, for the packets of one sub-port after the
/// other, as if they had come in by a port of their own.
#[inline(never)]
fn from_trunk<const TAPPED: bool>(
    burst: &mut Burst,
    ring: &RxRing,
    context: &mut Context<'_>,
    trunk: &Trunk,
    slow: &mut Slow,
    used: &mut Used,
) {
    let blocks = context.blocks;
    let mut left = untag(burst, context.port, trunk);
    while let Some((port, packets)) = next_group(burst, &mut left) {
        burst.restrict(packets);
        context.port = port;
        stages::<true, TAPPED>(burst, ring, context, &blocks[usize::from(port)], slow, used);
    }
}

/// The stages, for the burst's packets of the context's port: with `SOME`, those that the burst is
/// restricted to, whose tags have been taken off; with `TAPPED`, telling how each packet ends.
#[inline(always)]
fn stages<const SOME: bool, const TAPPED: bool>(
    burst: &mut Burst,
    ring: &RxRing,
    context: &mut Context<'_>,
    block: &BlockRef,
    slow: &mut Slow,
    used: &mut Used,
) {
    let (tables, port) = (context.tables, context.port);
    let table = &tables.ports[usize::from(port)];
    let bytes = parse::<SOME>(burst, table, tables);
    if table.reverse_path != ReversePath::Off {
        reverse_path(burst, tables, port, table.reverse_path);
    }
    let translates = tables.masquerade.is_on();
    if translates {
        inward(burst, tables, &slow.flows);
    }
    route(burst, tables);
    if table.redirects {
        turn_back(burst, tables, port);
    }
    if let Some(acl) = tables.acl.as_ref().filter(|acl| acl.has_state()) {
        followed(burst, tables, acl, &mut slow.flows, slow.clock.now());
    }
    if translates {
        let Slow { flows, clock, .. } = &mut *slow;
        known(burst, tables, flows, clock);
    }
    if let Some(acl) = &tables.acl {
        if TAPPED && let Some(tap) = &mut slow.tap {
            tap.note_ways(burst, tables);
        }
        filter(burst, tables, acl, &mut slow.filter, port, block);
    }
    if translates {
        let Slow { flows, translator, clock, .. } = &mut *slow;
        outward(burst, flows, translator, clock);
    }
    rewrite(burst, tables);
    if TAPPED {
        hand_over_tapped::<SOME>(burst, ring, context.out, port, block, slow);
    } else if SOME {
        hand_over_untagged(burst, ring, context.out, port, block);
    } else {
        hand_over(burst, ring, context.out, port, block);
    }
    used.mark(burst);
    if !burst.odd.is_empty() {
        odd::<SOME, TAPPED>(burst, context, block, slow);
    }
    let packets = if SOME { burst.untagged.only.count_ones().into() } else { burst.len() as u64 };
    block.rx_packets.add(packets);
    block.rx_bytes.add(bytes);
}

/// The careful path for the burst's odd packets.
#[cold]
fn odd<const SOME: bool, const TAPPED: bool>(
    burst: &mut Burst,
    context: &mut Context<'_>,
    block: &BlockRef,
    slow: &mut Slow,
) {
    for at in burst.odd {
        context.out.priority = if SOME { burst.untagged.priority[at % BURST] } else { Priority::default() };
        if let Some(frame) = burst.frames().get_mut(at) {
            if TAPPED && let Some(tap) = &slow.tap {
                context.out.seen = Seen::new(tap.id(at));
            }
            let ending = slow.packet(context, frame);
            ending.count(block);
            if TAPPED && let Some(tap) = &mut slow.tap {
                tap.tell(at, context.port, ending, context.out.seen.leaves_by);
            }
        }
    }
    if TAPPED {
        context.out.seen = Seen::NOT;
    }
    context.out.priority = Priority::default();
}

/// Packets that the host's own stack sends out of the port: they pass as they are.
#[cold]
fn from_host(burst: &mut Burst, input: &Input, out: &mut Outputs, slow: &mut Slow) {
    let (port, block) = (input.port, &input.block);
    if let Some(tap) = &mut slow.tap {
        tap.copy(burst);
    }
    for at in 0..burst.len() {
        let slot = input.queue.ring.index(burst.place(at as u8));
        let len = burst.frames()[at].len();
        if let Some(tap) = &slow.tap {
            out.seen = Seen::new(tap.id(at));
        }
        let origin = Origin::Received(port, Verdict::FromHost);
        let sent = match out.forward(port, &input.queue.ring, slot, len) {
            true => Sent::Left,
            false => out.forward_elsewhere(port, origin, &input.queue.ring, slot, len),
        };
        let ending = sent.ending(Verdict::FromHost);
        ending.count(block);
        if let Some(tap) = &mut slow.tap {
            tap.tell(at, port, ending, port);
        }
    }
    out.seen = Seen::NOT;
    block.from_host.add(burst.len() as u64);
}

/// A packet that another worker has handed over: it gets its verdict here.
#[cold]
pub(super) fn take_over(packet: super::handover::Handed<'_>, context: &mut Context<'_>, slow: &mut Slow) {
    if let Exit::Worker { port, task } = packet.exit {
        (context.port, context.out.seen) = (port, packet.seen);
        let block = &context.blocks[usize::from(port)];
        block.taken_over.add(1);
        let ending = slow.take_over(context, task, packet.bytes);
        ending.count(block);
        let seen = std::mem::replace(&mut context.out.seen, Seen::NOT);
        slow.tell_end(seen, port, ending);
        return;
    }
    let Origin::Received(port, verdict) = packet.origin else {
        context.out.send(packet.exit, packet.origin, packet.bytes);
        return;
    };
    let block = &context.blocks[usize::from(port)];
    block.taken_over.add(1);
    let ending = context.out.send(packet.exit, packet.origin, packet.bytes).ending(verdict);
    let mut seen = packet.seen;
    if let Exit::Wire(to) | Exit::Tagged(to) = packet.exit {
        seen.leaves_by = to;
    }
    match ending {
        // A ring has one owner, and packets are handed to that one.
        Ending::InTransit => debug_assert!(!matches!(packet.exit, Exit::Wire(_)), "handed over twice"),
        ending => ending.count(block),
    }
    slow.tell_end(seen, port, ending);
}

/// Tells of a device that refused a sync.
#[cold]
pub(super) fn device_failed(keeper: &ToKeeperChannel<ToKeeper>, port: PortId, error: SyncError) {
    if port == NO_PORT {
        log::error!("the way up to the host's stack: {error}");
    } else if error.is_gone() {
        let _ = keeper.try_send(ToKeeper::PortGone { port, reason: error.to_string() });
    } else {
        log::warn!("port {port}: {error}");
    }
}
