//! Plugging: rings come to a worker and go from it while it runs, between two sweeps. It costs a
//! packet nothing: a worker looks for commands only when its bell was rung.
//!
//! A port goes in two steps, each done by every worker before the next begins. First the receive
//! rings go, and what was received through them and still waits gets its verdict; then no packet
//! of the port's can be on its way from one worker to another any more. Then the transmit rings
//! go, once they are empty. Whoever asked gets the rings back and closes them, since closing a
//! device can take seconds.

use std::fmt;

use crossbeam_channel::Sender;
use netmap::{RxQueue, TxQueue};

use super::{
    outputs::{Output, Way},
    slow::Context,
    sums::Samples,
    verdict::Verdict,
    worker::{Input, Worker, device_failed, take_over},
};
use crate::tables::PortId;

/// What one worker gets of a port.
pub struct Share {
    /// The port.
    pub port: PortId,
    /// Receive rings.
    pub rx: Vec<RxQueue>,
    /// Transmit rings.
    pub tx: Vec<TxQueue>,
    /// Rings of what the host's own stack sends.
    pub from_host: Vec<RxQueue>,
    /// Rings up to the host's stack.
    pub to_host: Vec<TxQueue>,
    /// The way to the wire for a worker without a transmit ring.
    pub wire: Way,
    /// The way to the host for a worker without a ring for that.
    pub host: Way,
    /// The host is reached by the way up that the first worker owns.
    pub by_way_up: bool,
}

/// Rings that a worker has given back.
#[derive(Default)]
pub struct Rings {
    /// Receive rings, from the wire and from the host.
    pub rx: Vec<RxQueue>,
    /// Transmit rings, to the wire and to the host.
    pub tx: Vec<TxQueue>,
}

/// How a worker answers.
#[derive(Debug)]
pub enum Reply {
    /// It is done; here is what there is to give back.
    Done(Rings),
    /// The port's transmit rings still have packets to send: ask again soon.
    Sending,
}

/// What is to be done with a port's rings.
#[derive(Debug)]
pub enum Plug {
    /// Take these.
    In(Box<Share>),
    /// Take this way up to the host's stack.
    WayUp(Box<Up>),
    /// Give the port's receive rings back.
    Quiet(PortId),
    /// Give the port's transmit rings back; when `force` is set, whatever is in them.
    Out {
        /// The port.
        port: PortId,
        /// Whether packets in the rings are given up.
        force: bool,
    },
}

/// A way up to the host's stack.
pub struct Up(pub TxQueue);

/// A command, and who waits for its answer.
pub type Answer = Sender<Reply>;

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rings = [self.rx.len(), self.tx.len(), self.from_host.len(), self.to_host.len()];
        f.debug_struct("Share").field("port", &self.port).field("rings", &rings).finish_non_exhaustive()
    }
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rings").field(&self.rx.len()).field(&self.tx.len()).finish()
    }
}

impl fmt::Debug for Up {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Up")
    }
}

impl Worker {
    /// Does what `plug` asks for.
    #[cold]
    pub fn plug(&mut self, plug: Plug) -> Reply {
        match plug {
            Plug::In(share) => self.attach(*share),
            Plug::WayUp(up) => {
                let port = super::outputs::NO_PORT;
                let at = self.add_output(port, false, up.0);
                self.out.own[usize::from(at)].is_way_up = true;
                self.out.up = Some(at);
            }
            Plug::Quiet(port) => return Reply::Done(self.quiet(port)),
            Plug::Out { port, force } => {
                if !force && self.out.own.iter().any(|o| o.port == port && !o.dead && o.queue.pending()) {
                    return Reply::Sending;
                }
                return Reply::Done(self.detach(port));
            }
        }
        Reply::Done(Rings::default())
    }

    /// Takes rings of a port that has none here.
    pub fn attach(&mut self, share: Share) {
        let id = usize::from(share.port);
        (self.out.wire[id], self.out.host[id]) = (share.wire, share.host);
        if let Some(up) = self.out.up.filter(|_| share.by_way_up) {
            self.out.host[id] = Way::Own(up);
        }
        for (wire, queue) in
            share.rx.into_iter().map(|q| (true, q)).chain(share.from_host.into_iter().map(|q| (false, q)))
        {
            self.inputs.push(Input {
                port: share.port,
                wire,
                queue,
                block: self.blocks[id].clone(),
                dead: false,
                chain: false,
                sums: Samples::default(),
            });
        }
        // The first of its own rings is the one that a worker uses.
        for queue in share.tx.into_iter().rev() {
            self.out.wire[id] = Way::Own(self.add_output(share.port, true, queue));
        }
        for queue in share.to_host.into_iter().rev() {
            self.out.host[id] = Way::Own(self.add_output(share.port, false, queue));
        }
    }

    fn add_output(&mut self, port: PortId, wire: bool, queue: TxQueue) -> u16 {
        // The way up is no port's, and nothing is counted for it.
        let block = self.blocks[usize::from(port).min(self.blocks.len() - 1)].clone();
        self.out.own.push(Output {
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
        });
        (self.out.own.len() - 1) as u16
    }

    /// Gives the receive rings of a port back. Packets that were received there and wait, or wait
    /// for a neighbour there, end here.
    fn quiet(&mut self, port: PortId) -> Rings {
        let (gone, left) = std::mem::take(&mut self.inputs).into_iter().partition(|i: &Input| i.port == port);
        self.inputs = left;
        let Self { out, reader, slow, blocks, .. } = self;
        let generation = reader.generation();
        let tables = reader.sweep();
        slow.port_leaves(&mut Context { tables, generation, out, port, blocks }, port, Verdict::PortDown);
        Rings { rx: gone.into_iter().map(|input| input.queue).collect(), tx: Vec::new() }
    }

    /// Gives the transmit rings of a port back; nothing finds a way there any more.
    fn detach(&mut self, port: PortId) -> Rings {
        let Self { inbox, out, reader, slow, blocks, keeper, .. } = self;
        let generation = reader.generation();
        let tables = reader.sweep();
        // What the other workers handed over before they gave back their receive rings.
        for ring in inbox.iter_mut() {
            ring.drain(|packet| {
                take_over(packet, &mut Context { tables, generation, out, port, blocks }, slow);
            });
        }
        out.sync(|port, error| device_failed(keeper, port, error));
        let rings = self.quiet(port);
        Rings { tx: self.out.remove(port), ..rings }
    }
}
