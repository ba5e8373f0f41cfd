//! Ports that come and go while the keeper runs: what the daemon tells it, step by step.

use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use netmap::device::PortControl;

use super::{
    KeeperPort, PortState,
    change::{Changer, Order},
    express::OfPort,
    work::Work,
};
use crate::{
    forward::verdict::Verdict,
    stats::file::BlockRef,
    tables::{PortId, shown::Counts},
};

/// Longest wait for the keeper, which waits for workers.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is to be done with a port.
pub(super) enum PortStep {
    /// It comes, or another device comes to it. Nothing leaves by it yet.
    Enter(Box<KeeperPort>),
    /// Workers have its rings.
    Raise,
    /// Nothing is to leave by it any more; why, for `show ports`.
    Lower(String),
    /// Workers have given its rings back: the device's control is given out. The port itself stays,
    /// unless it is to be forgotten.
    Leave {
        /// Whether the configuration has it no more.
        forget: bool,
    },
}

/// One step for one port.
pub(super) struct PortOrder {
    pub(super) id: PortId,
    pub(super) step: PortStep,
    pub(super) answer: Sender<Option<Box<dyn PortControl>>>,
}

impl Changer {
    /// A port comes to this number, or another device to the port. Returns when workers can meet
    /// the number in the tables; nothing leaves by it until [`Changer::raise`].
    ///
    /// # Errors
    /// The keeper has ended, or does not answer.
    pub fn enter(&self, id: PortId, port: KeeperPort) -> Result<(), String> {
        self.step(id, PortStep::Enter(Box::new(port))).map(drop)
    }

    /// Workers have the port's rings: packets may leave by it.
    ///
    /// # Errors
    /// As for [`Changer::enter`].
    pub fn raise(&self, id: PortId) -> Result<(), String> {
        self.step(id, PortStep::Raise).map(drop)
    }

    /// Returns when no packet is sent to the port any more. `reason` is shown to operators.
    ///
    /// # Errors
    /// As for [`Changer::enter`].
    pub fn lower(&self, id: PortId, reason: &str) -> Result<(), String> {
        self.step(id, PortStep::Lower(reason.to_owned())).map(drop)
    }

    /// Gives what holds the port's device open, once no worker has its rings. With `forget`
    /// there is no port of this number any more.
    ///
    /// # Errors
    /// As for [`Changer::enter`].
    pub fn leave(&self, id: PortId, forget: bool) -> Result<Option<Box<dyn PortControl>>, String> {
        self.step(id, PortStep::Leave { forget })
    }

    fn step(&self, id: PortId, step: PortStep) -> Result<Option<Box<dyn PortControl>>, String> {
        let (answer, answered) = bounded(1);
        self.order(Order::Port(PortOrder { id, step, answer }))?;
        answered.recv_timeout(PATIENCE).map_err(|e| {
            if e.is_timeout() { "the keeper waits for a worker that hangs" } else { "the daemon is ending" }
                .into()
        })
    }
}

impl Work {
    /// Takes one step; it is answered when what it changes has been published.
    pub(super) fn take_step(&mut self, order: PortOrder) {
        let PortOrder { id, step, answer } = order;
        let place = usize::from(id);
        let mut given = None;
        match step {
            PortStep::Enter(port) => {
                self.rib.enter_port(id, port.spec.clone());
                while self.ports.len() <= place {
                    self.ports.push(None);
                }
                self.ports[place] = Some(PortState::new(*port, self.express.counts(id)));
                // The device has to be told which packets are the host's.
                self.rib.tell_local_again();
            }
            PortStep::Raise => {
                if let Some(port) = self.ports.get_mut(place).and_then(Option::as_mut) {
                    port.gone = None;
                }
                self.rib.port_back(id);
                self.announce_all_of(id);
            }
            PortStep::Lower(reason) => {
                if let Some(port) = self.ports.get_mut(place).and_then(Option::as_mut) {
                    port.gone = Some(reason);
                    self.express.leave_device(id, &mut port.express);
                }
                self.rib.port_gone(id);
            }
            PortStep::Leave { forget } => {
                let counts = self.express.counts(id);
                if let Some(port) = self.ports.get_mut(place) {
                    given = port.as_mut().and_then(|port| port.close(counts));
                    if forget {
                        *port = None;
                    }
                }
                if forget {
                    self.resolver.forget_port(id);
                    self.learned.forget_port(id);
                    self.told_sums.remove(&id);
                    self.rib.forget_port(id);
                }
            }
        }
        self.express.look_again();
        self.steps.push((answer, given));
    }
}

/// What a port's block in the counters has of what workers did not see.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counted {
    rx_packets: u64,
    rx_bytes: u64,
    host: u64,
    express: u64,
    tx_packets: u64,
    tx_bytes: u64,
    rx_dropped: u64,
    rx_errors: u64,
    tx_dropped: u64,
    tx_errors: u64,
    /// Where the express program's counts began, which go on over a change of the device.
    from: Counts,
}

impl PortState {
    /// A port whose device has just been opened, and what express had counted of its number by then.
    pub(super) fn new(port: KeeperPort, express: Counts) -> Self {
        // What the block's last device has counted goes on being counted.
        let base = Counted { from: express, ..counted(&port.block) };
        Self {
            device: port.device,
            mode: port.mode,
            rings: port.rings,
            interface: port.spec.interface,
            gone: None,
            express: OfPort::new(&*port.control),
            told_up: None,
            control: Some(port.control),
            block: port.block,
            base,
        }
    }

    /// Takes the device's last counts and gives what holds it open.
    fn close(&mut self, express: Counts) -> Option<Box<dyn PortControl>> {
        self.count(express);
        self.express = OfPort::default();
        self.control.take()
    }

    /// Counts what the device did outside the rings, and express for the port.
    pub(super) fn count(&mut self, express: Counts) {
        let Some(control) = &mut self.control else { return };
        let (now, base, block) = (control.losses(), &self.base, &self.block);
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let forwarded = since(express.rx_packets, base.from.rx_packets);
        let forwarded_bytes = since(express.rx_bytes, base.from.rx_bytes);
        block.rx_packets.set(base.rx_packets + now.passed_up + forwarded);
        block.rx_bytes.set(base.rx_bytes + now.passed_up_bytes + forwarded_bytes);
        block.verdicts[Verdict::Host as usize].set(base.host + now.passed_up);
        block.verdicts[Verdict::Forwarded as usize].set(base.express + forwarded);
        block.express.set(base.express + forwarded);
        block.tx_packets.set(base.tx_packets + since(express.tx_packets, base.from.tx_packets));
        block.tx_bytes.set(base.tx_bytes + since(express.tx_bytes, base.from.tx_bytes));
        block.rx_dropped.set(base.rx_dropped + now.rx_dropped);
        block.rx_errors.set(base.rx_errors + now.rx_errors);
        block.tx_dropped.set(base.tx_dropped + now.tx_dropped);
        block.tx_errors.set(base.tx_errors + now.tx_errors);
    }
}

/// What a block has of devices that were there before.
fn counted(block: &BlockRef) -> Counted {
    Counted {
        rx_packets: block.rx_packets.get(),
        rx_bytes: block.rx_bytes.get(),
        host: block.verdicts[Verdict::Host as usize].get(),
        express: block.express.get(),
        tx_packets: block.tx_packets.get(),
        tx_bytes: block.tx_bytes.get(),
        rx_dropped: block.rx_dropped.get(),
        rx_errors: block.rx_errors.get(),
        tx_dropped: block.tx_dropped.get(),
        tx_errors: block.tx_errors.get(),
        from: Counts::default(),
    }
}
