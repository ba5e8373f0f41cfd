//! Assembly: shares out the rings of the open ports among the workers.
//!
//! Ring *k* of a port belongs to worker *k* mod N, its host rings too. A worker that owns no
//! transmit ring of a port reaches it through the worker that does, by a hand-over ring of their
//! own.

use std::{io, sync::Arc};

use crossbeam_channel::Sender;
use netmap::{Host, Port, PortInfo, TxQueue, device::PortControl};

use super::{
    bell::Bell,
    flows::{DEFAULT_FLOWS, FlowTable, Secret},
    handover,
    idle::Patience,
    messages::{ToKeeper, ToWorker},
    outputs::{Outputs, Peer, Way},
    plug::{Plug, Share, Up},
    pulse::Pulse,
    slow::Slow,
    translate::{Translator, quotas::Quotas},
    used::Used,
    worker::Worker,
};
use crate::{
    stats::file::StatsFile,
    tables::{PortId, Tables, publish::Reader},
};

/// Commands that may wait for a worker.
const COMMANDS: usize = 4096;

/// The way to one worker, for the keeper.
#[derive(Clone)]
pub struct WorkerLink {
    /// Commands.
    pub commands: Sender<ToWorker>,
    /// Wakes the worker to look at them.
    pub bell: Arc<Bell>,
    /// Shows that the worker goes on.
    pub pulse: Arc<Pulse>,
}

impl WorkerLink {
    /// Sends a command and wakes the worker. `false` when too many wait already.
    pub fn send(&self, command: ToWorker) -> bool {
        let sent = self.commands.try_send(command).is_ok();
        self.bell.call();
        sent
    }
}

/// What is left of a port when its rings are shared out.
pub struct PortRest {
    /// What is known of it.
    pub info: PortInfo,
    /// Holds the device open.
    pub control: Box<dyn PortControl>,
    /// Whether the program itself is the host behind the port.
    pub builtin_host: bool,
}

/// Workers and what the keeper needs to go with them.
pub struct Assembly {
    /// To be run, one per core.
    pub workers: Vec<Worker>,
    /// The ways to them.
    pub links: Vec<WorkerLink>,
    /// The ports without their rings, in order.
    pub ports: Vec<PortRest>,
}

impl Assembly {
    /// Gives every worker room for so many flows, and as many mappings.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn make_room(&mut self, flows: usize) -> io::Result<()> {
        let (count, quotas) = (self.workers.len(), Arc::<Quotas>::default());
        for worker in &mut self.workers {
            worker.slow.flows = FlowTable::new(flows, Secret::random()?)?;
            worker.slow.translator =
                Translator::new((worker.index, count), flows, quotas.clone(), worker.keeper.clone())?;
        }
        Ok(())
    }
}

/// Number of workers for these ports when the configuration names none: the largest ring count,
/// at most `cores - 1`, at least 1.
pub fn default_workers(ports: &[Port], cores: usize) -> usize {
    let rings = ports.iter().map(|p| p.rx.len().max(p.tx.len())).max().unwrap_or(1);
    rings.min(cores.saturating_sub(1)).max(1)
}

/// Shares out the rings of `ports` among as many workers as there are `readers`. `up` is the way
/// to the host's stack for ports whose device has no rings of its own for that; the first worker
/// owns it.
///
/// # Errors
/// When there are no descriptors left for the workers' bells, or no memory for their flows.
pub fn assemble(
    ports: Vec<Port>,
    up: Option<TxQueue>,
    stats: &StatsFile,
    readers: Vec<Reader<Tables>>,
    keeper: &Sender<ToKeeper>,
    patience: Patience,
) -> io::Result<Assembly> {
    let count = readers.len();
    let mut links = Vec::with_capacity(count);
    let mut commands = Vec::with_capacity(count);
    for _ in 0..count {
        let (to, from) = crossbeam_channel::bounded(COMMANDS);
        links.push(WorkerLink { commands: to, bell: Arc::new(Bell::new()?), pulse: Arc::default() });
        commands.push(from);
    }
    let (peers, inboxes) = connect(&links);
    let quotas = Arc::<Quotas>::default();
    let mut parts: Vec<Worker> = readers
        .into_iter()
        .zip(commands)
        .zip(peers.into_iter().zip(inboxes))
        .enumerate()
        .map(|(index, ((reader, commands), (peers, inbox)))| {
            let ways = vec![Way::None; stats.places()];
            let flows = FlowTable::new(DEFAULT_FLOWS, Secret::random()?)?;
            let translator = Translator::new((index, count), DEFAULT_FLOWS, quotas.clone(), keeper.clone())?;
            Ok(Worker {
                index,
                inputs: Vec::new(),
                inbox,
                out: Outputs::new(peers, ways.clone(), ways),
                reader,
                slow: Slow::new(index, keeper.clone(), flows, translator),
                blocks: (0..stats.places()).map(|place| stats.block(index, place)).collect(),
                used: Used::default(),
                bell: links[index].bell.clone(),
                commands,
                keeper: keeper.clone(),
                patience,
                pulse: links[index].pulse.clone(),
                home: stats.block(index, stats.places()),
                at: None,
            })
        })
        .collect::<io::Result<_>>()?;
    let has_way_up = up.is_some();
    if let (Some(up), Some(first)) = (up, parts.first_mut()) {
        first.plug(Plug::WayUp(Box::new(Up(up))));
    }
    let rests = (0..).zip(ports).map(|(id, port)| {
        let (shares, rest) = split(id, port, count, has_way_up);
        parts.iter_mut().zip(shares).for_each(|(worker, share)| worker.attach(share));
        rest
    });
    let ports = rests.collect();
    Ok(Assembly { workers: parts, links, ports })
}

/// A hand-over ring for every ordered pair of workers.
fn connect(links: &[WorkerLink]) -> (Vec<Vec<Peer>>, Vec<Vec<handover::Receiver>>) {
    let mut peers: Vec<Vec<Peer>> = links.iter().map(|_| Vec::new()).collect();
    let mut inboxes: Vec<Vec<handover::Receiver>> = links.iter().map(|_| Vec::new()).collect();
    for (from, peers) in peers.iter_mut().enumerate() {
        for (to, inbox) in inboxes.iter_mut().enumerate() {
            if from != to {
                let (sender, receiver) = handover::ring();
                peers.push(Peer { ring: sender, bell: links[to].bell.clone() });
                inbox.push(receiver);
            }
        }
    }
    (peers, inboxes)
}

/// Worker `index`'s way to a port with `rings` rings, before it is known where its own rings
/// stand: [`Way::None`] also for those.
fn way_to(index: usize, workers: usize, rings: usize) -> Way {
    if rings == 0 || index < rings.min(workers) {
        return Way::None;
    }
    let owner = index % rings;
    // Peers leave out the worker itself, and the owner's number is smaller than ours.
    Way::Peer(owner as u16)
}

/// Takes a port apart: what each of `workers` workers gets of it, and the rest. `has_way_up` says
/// whether the first worker has a way up to the host's stack for ports that have none themselves.
pub fn split(id: PortId, port: Port, workers: usize, has_way_up: bool) -> (Vec<Share>, PortRest) {
    let Port { info, rx, tx, host, control } = port;
    let rings = match &host {
        Host::Rings { to, .. } => to.len(),
        Host::Kernel => usize::from(has_way_up),
        Host::Builtin => 0,
    };
    let mut shares: Vec<Share> = (0..workers)
        .map(|index| Share {
            port: id,
            rx: Vec::new(),
            tx: Vec::new(),
            from_host: Vec::new(),
            to_host: Vec::new(),
            wire: way_to(index, workers, tx.len()),
            host: way_to(index, workers, rings),
            by_way_up: index == 0 && matches!(host, Host::Kernel),
        })
        .collect();
    deal(&mut shares, rx, |share| &mut share.rx);
    deal(&mut shares, tx, |share| &mut share.tx);
    let builtin_host = matches!(host, Host::Builtin);
    if let Host::Rings { to, from } = host {
        deal(&mut shares, to, |share| &mut share.to_host);
        deal(&mut shares, from, |share| &mut share.from_host);
    }
    (shares, PortRest { info, control, builtin_host })
}

/// Ring *k* goes to worker *k* mod N.
fn deal<Q>(shares: &mut [Share], queues: Vec<Q>, of: impl Fn(&mut Share) -> &mut Vec<Q>) {
    let count = shares.len();
    for (k, queue) in queues.into_iter().enumerate() {
        of(&mut shares[k % count]).push(queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_without_a_ring_goes_through_one_that_has_one() {
        assert_eq!(way_to(0, 4, 2), Way::None);
        assert_eq!(way_to(1, 4, 2), Way::None);
        assert_eq!(way_to(2, 4, 2), Way::Peer(0));
        assert_eq!(way_to(3, 4, 2), Way::Peer(1));
        assert_eq!(way_to(1, 2, 1), Way::Peer(0));
        assert_eq!(way_to(0, 2, 0), Way::None);
        assert_eq!(way_to(1, 2, 8), Way::None);
    }
}
