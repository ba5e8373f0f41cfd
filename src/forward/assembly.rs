//! Assembly: shares out the rings of the open ports among the workers.
//!
//! Ring *k* of a port belongs to worker *k* mod N, its host rings too. A worker that owns no
//! transmit ring of a port reaches it through the worker that does, by a hand-over ring of their
//! own.

use std::{io, sync::Arc};

use crossbeam_channel::{Receiver, Sender};
use netmap::{Host, Port, PortInfo, TxQueue, device::PortControl};

use super::{
    bell::Bell,
    flows::{DEFAULT_FLOWS, FlowTable, Secret},
    handover,
    idle::Patience,
    messages::{ToKeeper, ToWorker},
    outputs::{Output, Outputs, Peer, Way},
    slow::Slow,
    sums::Samples,
    translate::Translator,
    used::Used,
    worker::{Input, Worker},
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
        let count = self.workers.len();
        for worker in &mut self.workers {
            worker.slow.flows = FlowTable::new(flows, Secret::random()?)?;
            worker.slow.translator = Translator::new(worker.index, count, flows)?;
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
        links.push(WorkerLink { commands: to, bell: Arc::new(Bell::new()?) });
        commands.push(from);
    }
    let (peers, inboxes) = connect(&links);
    let mut parts: Vec<Worker> = readers
        .into_iter()
        .zip(commands)
        .zip(peers.into_iter().zip(inboxes))
        .enumerate()
        .map(|(index, ((reader, commands), (peers, inbox)))| {
            worker(index, reader, commands, peers, inbox, &ports, stats, keeper, &links, patience)
        })
        .collect::<io::Result<_>>()?;
    let rests = share_out(ports, up, &mut parts);
    Ok(Assembly { workers: parts, links, ports: rests })
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

#[expect(clippy::too_many_arguments, reason = "called once, right above")]
fn worker(
    index: usize,
    reader: Reader<Tables>,
    commands: Receiver<ToWorker>,
    peers: Vec<Peer>,
    inbox: Vec<handover::Receiver>,
    ports: &[Port],
    stats: &StatsFile,
    keeper: &Sender<ToKeeper>,
    links: &[WorkerLink],
    patience: Patience,
) -> io::Result<Worker> {
    let ways = |rings: fn(&Port) -> usize| {
        ports.iter().map(|p| way_to(index, links.len(), rings(p))).collect::<Vec<_>>()
    };
    let wire = ways(|p| p.tx.len());
    let host = ways(|p| match &p.host {
        Host::Rings { to, .. } => to.len(),
        Host::Kernel => 1,
        Host::Builtin => 0,
    });
    Ok(Worker {
        index,
        inputs: Vec::new(),
        inbox,
        out: Outputs::new(peers, wire, host),
        reader,
        slow: Slow::new(
            index,
            keeper.clone(),
            FlowTable::new(DEFAULT_FLOWS, Secret::random()?)?,
            Translator::new(index, links.len(), DEFAULT_FLOWS)?,
        ),
        blocks: (0..stats.ports().len()).map(|p| stats.block(index, p)).collect(),
        used: Used::default(),
        bell: links[index].bell.clone(),
        commands,
        keeper: keeper.clone(),
        patience,
    })
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

fn share_out(ports: Vec<Port>, mut up: Option<TxQueue>, workers: &mut [Worker]) -> Vec<PortRest> {
    let count = workers.len();
    let mut up_at = None;
    let mut rests = Vec::with_capacity(ports.len());
    for (id, port) in ports.into_iter().enumerate() {
        let id = id as PortId;
        for (k, queue) in port.rx.into_iter().enumerate() {
            workers[k % count].add_input(id, true, queue);
        }
        for (k, queue) in port.tx.into_iter().enumerate() {
            let at = workers[k % count].add_output(id, true, queue);
            own(&mut workers[k % count].out.wire[usize::from(id)], at);
        }
        let builtin_host = matches!(port.host, Host::Builtin);
        match port.host {
            Host::Rings { to, from } => {
                for (k, queue) in to.into_iter().enumerate() {
                    let at = workers[k % count].add_output(id, false, queue);
                    own(&mut workers[k % count].out.host[usize::from(id)], at);
                }
                for (k, queue) in from.into_iter().enumerate() {
                    workers[k % count].add_input(id, false, queue);
                }
            }
            Host::Kernel => {
                if let Some(queue) = up.take() {
                    let at = workers[0].add_output(id, false, queue);
                    workers[0].out.own[usize::from(at)].is_way_up = true;
                    up_at = Some(at);
                }
                match up_at {
                    Some(at) => own(&mut workers[0].out.host[usize::from(id)], at),
                    None => workers.iter_mut().for_each(|w| w.out.host[usize::from(id)] = Way::None),
                }
            }
            Host::Builtin => {}
        }
        rests.push(PortRest { info: port.info, control: port.control, builtin_host });
    }
    rests
}

/// The first of a worker's own rings is the one it uses.
fn own(way: &mut Way, at: u16) {
    if *way == Way::None {
        *way = Way::Own(at);
    }
}

impl Worker {
    fn add_input(&mut self, port: PortId, wire: bool, queue: netmap::RxQueue) {
        let block = self.blocks[usize::from(port)].clone();
        self.inputs.push(Input {
            port,
            wire,
            queue,
            block,
            dead: false,
            chain: false,
            sums: Samples::default(),
        });
    }

    fn add_output(&mut self, port: PortId, wire: bool, queue: TxQueue) -> u16 {
        let block = self.blocks[usize::from(port)].clone();
        let output = Output {
            port,
            wire,
            queue,
            block,
            packets: 0,
            bytes: 0,
            made: 0,
            full: 0,
            tagged: false,
            is_way_up: false,
            dead: false,
        };
        self.out.own.push(output);
        (self.out.own.len() - 1) as u16
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
