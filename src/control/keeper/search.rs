//! The keeper's dealings with neighbours: whom to look for, and what the workers say about them.

use std::{net::IpAddr, time::Instant};

use super::{Notice, filters, ledger, work::Work};
use crate::{
    control::{
        kernel::{Care, NeighborState},
        next_hops::Adjacency,
        resolver::{Means, Step, Who},
        rib::{Neighbor, NeighborSource, own_index},
    },
    forward::messages::{ToKeeper, ToWorker},
    tables::PortId,
};

/// Gateways that the kernel is asked to look after at one look.
const KEEP_AT_ONCE: usize = 256;

impl Work {
    fn means(&self, port: PortId) -> Means {
        let builtin = self.rib.port(port).is_some_and(|port| port.builtin_host);
        if builtin { Means::Builtin } else { Means::Kernel }
    }

    pub(super) fn look_for_gateways(&mut self, now: Instant) {
        let missing = self.rib.unresolved();
        let missing: Vec<(Who, Means)> = missing.into_iter().map(|who| (who, self.means(who.0))).collect();
        self.resolver.gateways(missing, now);
    }

    /// Has the kernel look after every gateway in use by itself, and after no others any more.
    pub(super) fn keep_gateways(&mut self) {
        let Some(follower) = &self.follower else { return };
        let gateways = self.rib.gateways();
        // What the kernel has forgotten, it keeps no longer.
        self.kept.retain(|who| self.rib.neighbor(who.0, who.1).is_some());
        let left: Vec<Who> = self.kept.difference(&gateways).copied().collect();
        for (port, address) in left {
            self.kept.remove(&(port, address));
            if let Some(index) = self.rib.index_of(port) {
                follower.release(index, address);
            }
        }
        let known = |who: &&Who| {
            let neighbor = self.rib.neighbor(who.0, who.1);
            neighbor.is_some_and(|n| n.source == NeighborSource::Kernel && n.state.may_expire())
        };
        let new: Vec<Who> =
            gateways.difference(&self.kept).filter(known).take(KEEP_AT_ONCE).copied().collect();
        for who in new {
            if let Some(index) = self.rib.index_of(who.0) {
                follower.resolve(index, who.1, Care::Keep);
                self.kept.insert(who);
            }
        }
    }

    /// Leaves the kernel as it would be without this program.
    pub(super) fn release_gateways(&mut self) {
        let Some(follower) = &self.follower else { return };
        for (port, address) in std::mem::take(&mut self.kept) {
            if let Some(index) = self.rib.index_of(port) {
                follower.release(index, address);
            }
        }
    }

    /// Asks for neighbours, and gives up on those that do not answer.
    pub(super) fn search(&mut self, now: Instant) {
        let mut steps = Vec::new();
        self.resolver.due(now, &mut steps);
        for step in steps {
            self.carry_out(step);
        }
    }

    pub(super) fn carry_out(&mut self, step: Step) {
        match step {
            Step::Ask((port, address)) if self.means(port) == Means::Builtin => {
                // Ring 0 of every port, its transmit side too, belongs to the first worker.
                if let Some(worker) = self.workers.first() {
                    let _ = worker.commands.try_send(ToWorker::Solicit { port, address });
                    (worker.call)();
                }
            }
            Step::Ask((port, address)) => {
                let index = self.rib.index_of(port);
                let gateway = self.resolver.is_gateway((port, address));
                if let (Some(follower), Some(index)) = (&self.follower, index) {
                    follower.resolve(index, address, if gateway { Care::Keep } else { Care::Once });
                    if gateway {
                        self.kept.insert((port, address));
                    }
                }
            }
            Step::GiveUp((port, address)) => {
                if self.learned.forget((port, address)) {
                    self.rib.forget_neighbor(own_index(port), address);
                }
                for worker in &self.workers {
                    let _ = worker.commands.try_send(ToWorker::Failed { port, address });
                    (worker.call)();
                }
            }
        }
    }

    pub(super) fn worker_says(&mut self, message: ToKeeper) {
        let now = Instant::now();
        match message {
            ToKeeper::Resolve { port, address } => {
                if self.rib.mac_of(port, address).is_none() {
                    self.resolver.wanted((port, address), self.means(port), now);
                }
            }
            ToKeeper::Learned { port, address, mac, create, replace } => {
                self.learn((port, address), mac, create, replace, now);
            }
            ToKeeper::Conflict { port, address, mac } => self.warn_of_conflict(port, address, mac, now),
            ToKeeper::Used { next_hops } => {
                for id in next_hops {
                    if let Some(Adjacency::Neighbor(port, address)) = self.rib.next_hops().adjacency(id) {
                        self.refresh(port, address, now);
                    }
                }
            }
            ToKeeper::Judged(judged) => {
                let name = |port| self.rib.port(port).map(|port| port.name.clone());
                log::info!("{}", filters::line(&judged, name));
            }
            ToKeeper::Mapped(mapped) => log::info!("{}", ledger::line(&mapped)),
            ToKeeper::WrongSums { port } => self.warn_of_sums(port),
            ToKeeper::PortGone { port, reason } => {
                let known = self.ports.get(usize::from(port)).and_then(Option::as_ref);
                log::debug!("{}: the device is gone: {reason}", known.map_or("?", |port| &port.device));
                self.rib.port_gone(port);
                let _ = self.notices.send(Notice::PortGone { port, reason });
            }
            ToKeeper::Finished { worker } => {
                let _ = self.notices.send(Notice::Finished { worker });
            }
        }
    }

    /// The built-in host has heard a neighbour. What nobody asked for makes no new entry unless
    /// `create` says so, and changes an address that is known only if `replace` does.
    fn learn(&mut self, who: Who, mac: [u8; 6], create: bool, replace: bool, now: Instant) {
        let (port, address) = who;
        if self.means(port) != Means::Builtin || mac[0] & 1 != 0 {
            return;
        }
        let known = self.rib.neighbor(port, address).copied();
        let other = known.and_then(|known| known.mac).is_some_and(|known| known != mac);
        let asked = self.resolver.is_searching(who);
        if (known.is_none() && !create && !asked) || (other && !replace) || !self.learned.hear(who, now) {
            return;
        }
        self.resolver.found(who);
        let neighbor = Neighbor {
            mac: Some(mac),
            state: NeighborState::Reachable,
            source: NeighborSource::Learned,
            mark: 0,
        };
        self.rib.set_neighbor(own_index(port), address, neighbor);
    }

    /// The peer leaves its checksums to a device that is not there.
    fn warn_of_sums(&mut self, port: PortId) {
        // Each of the port's rings finds out by itself.
        if !self.told_sums.insert(port) {
            return;
        }
        let name = self.rib.port(port).map_or("?", |port| &port.name);
        log::warn!(
            "port {name}: TCP arrives with wrong checksums, and its receivers will discard it; a veth's \
             peer or a virtual machine leaves them unfinished: run `ethtool -K DEVICE tx off` there"
        );
    }

    /// Someone else on the link uses an address of ours.
    fn warn_of_conflict(&mut self, port: PortId, address: IpAddr, mac: [u8; 6], now: Instant) {
        if !self.learned.may_refresh((port, address), now) {
            return;
        }
        let name = self.rib.port(port).map_or("?", |port| &port.name);
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        log::error!("port {name}: {mac} uses {address}, which is ours: give one of the two another address");
    }

    /// Packets are being sent to a neighbour: makes sure that it still is where it was.
    fn refresh(&mut self, port: PortId, address: IpAddr, now: Instant) {
        let Some(neighbor) = self.rib.neighbor(port, address) else { return };
        match neighbor.source {
            NeighborSource::Static => {}
            NeighborSource::Learned => {
                if self.learned.is_old((port, address), now) {
                    self.resolver.wanted((port, address), Means::Builtin, now);
                }
            }
            NeighborSource::Kernel => {
                if neighbor.state == NeighborState::Stale
                    && self.learned.may_refresh((port, address), now)
                    && let (Some(follower), Some(index)) = (&self.follower, self.rib.index_of(port))
                {
                    let kept = self.kept.contains(&(port, address));
                    follower.resolve(index, address, if kept { Care::Keep } else { Care::Once });
                }
            }
        }
    }

    pub(super) fn forget_the_silent(&mut self, now: Instant) {
        for (port, address) in self.learned.expire(now) {
            self.rib.forget_neighbor(own_index(port), address);
        }
    }
}
