//! Changing what the configuration gives while packets flow: all of it in one publication, or none
//! of it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use super::{ports::PortOrder, work::Work};
use crate::control::{
    follower::Follower,
    kernel::{Follow, KernelEvent, Part, Parts, Report},
    rib::{PortSettings, StaticNeighbor, StaticRoute},
    translation::Translation,
};
use crate::tables::{IcmpLimit, PortId, acl::Compiled};

/// What the configuration gives and may change while the daemon runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Which kernel tables to follow; none when the kernel is not followed at all.
    pub follow: Option<Follow>,
    /// The ports, by number; those that are not here go.
    pub ports: BTreeMap<PortId, PortSettings>,
    /// The routes.
    pub routes: Vec<StaticRoute>,
    /// The neighbours.
    pub neighbors: Vec<StaticNeighbor>,
    /// How many ICMP errors each worker may send.
    pub icmp: IcmpLimit,
    /// Whether IPv4 source routes are followed.
    pub source_routes: bool,
    /// The access rules; none when nothing is filtered.
    pub acl: Option<Arc<Compiled>>,
    /// Which addresses are translated.
    pub translation: Translation,
}

/// New settings, and who wants to know when they are in force.
pub(super) struct Change {
    settings: Settings,
    answer: Sender<Result<(), String>>,
}

/// What other threads want of the keeper.
pub(super) enum Order {
    /// New settings.
    Settings(Change),
    /// A step of a port's coming or going.
    Port(PortOrder),
}

/// A change that has been made and is not in force yet.
pub(super) struct Unanswered {
    answer: Sender<Result<(), String>>,
    /// What the kernel has to list first.
    pub(super) awaits: Parts,
}

/// The way to change settings; for any thread but the keeper's own.
#[derive(Clone)]
pub struct Changer(Sender<Order>);

/// Whether new settings are in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Changed {
    /// They are.
    Fully,
    /// They will be, when the kernel has listed its routes, or a worker goes on.
    Later,
}

/// Why nothing is changed any more.
const ENDING: &str = "the daemon is ending";

impl Changer {
    pub(super) fn new() -> (Self, Receiver<Order>) {
        let (sender, receiver) = unbounded();
        (Self(sender), receiver)
    }

    /// Puts `settings` in force, all in one publication, and waits until they are, or `patience`
    /// has run out. Only a change of the kernel's table takes longer than a moment.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub fn change(&self, settings: Settings, patience: Duration) -> Result<Changed, String> {
        let (answer, answered) = bounded(1);
        self.order(Order::Settings(Change { settings, answer }))?;
        match answered.recv_timeout(patience) {
            Ok(result) => result.map(|()| Changed::Fully),
            Err(RecvTimeoutError::Timeout) => Ok(Changed::Later),
            Err(RecvTimeoutError::Disconnected) => Err(ENDING.into()),
        }
    }

    pub(super) fn order(&self, order: Order) -> Result<(), String> {
        self.0.send(order).map_err(|_| ENDING.to_owned())
    }
}

impl Work {
    pub(super) fn obey(&mut self, order: Order) {
        match order {
            Order::Settings(change) => self.change(change),
            Order::Port(order) => self.take_step(order),
        }
    }

    /// Takes in new settings; [`Work::answer_changes`] answers when they are in force.
    fn change(&mut self, change: Change) {
        let Change { settings, answer } = change;
        let awaits = match self.refollow(settings.follow) {
            Ok(awaits) => awaits,
            Err(e) => {
                // Nobody waits any more: then nobody has to know.
                let _ = answer.try_send(Err(e));
                return;
            }
        };
        let old = (self.settings.icmp, self.settings.source_routes);
        (self.settings.icmp, self.settings.source_routes) = (settings.icmp, settings.source_routes);
        self.translation = settings.translation;
        self.switched |= old != (self.settings.icmp, self.settings.source_routes);
        self.rib.reconfigure(&settings.ports, &settings.routes, &settings.neighbors);
        self.filters.set(settings.acl);
        self.to_report = Some(settings.routes);
        self.unanswered.push(Unanswered { answer, awaits });
    }

    /// Follows other tables of the kernel's from now on. The old ones' routes stay in force until
    /// the new ones' are there: what a complete listing does not name goes. Gives what is listed
    /// for that.
    fn refollow(&mut self, follow: Option<Follow>) -> Result<Parts, String> {
        if follow == self.follow {
            return Ok(Parts::default());
        }
        let Some(new) = follow else {
            self.follower = None;
            (self.follow, self.reopen_at) = (None, None);
            (self.listing, self.wanted) = Default::default();
            self.forget_the_kernel();
            return Ok(Parts::default());
        };
        let follower = Follower::start(self.open, new)
            .map_err(|e| format!("kernel.table: cannot follow the kernel's routes: {e}"))?;
        self.follower = Some(follower);
        (self.follow, self.reopen_at) = (Some(new), None);
        (self.listing, self.wanted) = (Parts::default(), Parts::ALL);
        self.listing_pause = Duration::ZERO;
        Ok(Parts::ALL)
    }

    /// Takes out all that the kernel has said, as if it listed nothing.
    fn forget_the_kernel(&mut self) {
        for part in Part::ALL {
            for event in [KernelEvent::DumpBegin(part), KernelEvent::DumpEnd { part, complete: true }] {
                self.rib.take(Report { listed: true, event });
            }
        }
    }

    /// Tells those who wait that their changes are in force. To be called after a publication.
    pub(super) fn answer_changes(&mut self) {
        for (answer, given) in self.steps.drain(..) {
            // Who has stopped waiting has the device closed here.
            let _ = answer.try_send(given);
        }
        self.unanswered.retain(|change| {
            let done = change.awaits == Parts::default();
            if done {
                let _ = change.answer.try_send(Ok(()));
            }
            !done
        });
    }

    /// Says which of the configuration's routes are not in force, and why, when all else of it is.
    pub(super) fn report_inactive(&mut self) {
        /// Lines for one configuration.
        const MOST: usize = 10;
        if !self.unanswered.is_empty() || self.listing != Parts::default() {
            return;
        }
        let Some(routes) = self.to_report.take() else { return };
        let mut inactive = routes.iter().filter_map(|route| Some((route.to, self.rib.why_inactive(route)?)));
        for (to, why) in inactive.by_ref().take(MOST) {
            log::warn!("the route to {to} is not in force: {why}");
        }
        let more = inactive.count();
        if more > 0 {
            log::warn!("{more} more routes are not in force; sweepd show routes has them all");
        }
    }

    /// Says when the kernel has said something that is not understood.
    pub(super) fn report_unparsed(&mut self) {
        let unparsed = self.follower.as_ref().map_or(0, Follower::unparsed);
        if unparsed > self.unparsed {
            let (messages, were) = match unparsed - self.unparsed {
                1 => ("a message".into(), "was"),
                n => (format!("{n} messages"), "were"),
            };
            log::warn!(
                "{messages} of the kernel's {were} not understood and skipped; RUST_LOG=debug tells more"
            );
        }
        self.unparsed = unparsed;
    }

    /// Says which ports can send and receive, whenever that is another answer than a second ago.
    pub(super) fn report_links(&mut self) {
        if self.awaited != Parts::default() {
            return;
        }
        for (id, state) in (0..).zip(&mut self.ports) {
            let (Some(state), Some(port)) = (state, self.rib.port(id)) else { continue };
            // One that is being taken away has no name any more; of one without device more is said.
            if port.name.is_empty() || state.gone.is_some() {
                continue;
            }
            // Whoever starts or adds a port knows that it is to be up.
            match (state.told_up.replace(port.up).unwrap_or(true), port.up) {
                (true, false) => {
                    log::warn!("port {} is down: its link has no carrier, or it is switched off", port.name)
                }
                (false, true) => log::info!("port {} is up", port.name),
                _ => {}
            }
        }
    }
}
