//! The keeper's part in address translation: the rules as they stand with the ports' addresses, what
//! the devices have to know of them, and the ports that the host's own sockets hold.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use netmap::device::{ForwardedPort, Sharing};

use super::{owed::Settings, work::Work};
use crate::{
    forward::messages::ToWorker,
    tables::{
        PortId,
        held_ports::{HeldPort, HeldPorts},
        masquerade::Masquerade,
    },
};

/// Looks at the host's waiting sockets between two looks at its connections as well.
const LOOKS: u32 = 10;
/// Least time between two times that mappings have to give way to services of the host's: every flow
/// is then judged again.
const GIVE_WAY: Duration = Duration::from_secs(10);

/// An address is announced twice, with this time in between: RFC 5227 section 2.3.
const AGAIN: Duration = Duration::from_secs(2);

/// An announcement that is to be made.
#[derive(Clone, Copy)]
pub(super) struct Announcement {
    at: Instant,
    what: (PortId, Ipv4Addr),
    last: bool,
}

impl Announcement {
    fn first(what: (PortId, Ipv4Addr), at: Instant) -> Self {
        Self { at, what, last: false }
    }
}

/// What is known of the host's sockets.
#[derive(Default)]
pub(super) struct HostSockets {
    /// Ports of sockets that wait for somebody: TCP's that listen, and all of UDP's.
    waiting: Vec<HeldPort>,
    connected: Vec<HeldPort>,
    /// Looks until connections are due again.
    until_connected: u32,
    /// Those that have waited for longer than one look, and that mappings have given way to.
    steady: BTreeSet<HeldPort>,
    gave_way: Option<Instant>,
    /// The error that was told.
    told: Option<String>,
}

impl Work {
    /// Makes the rules of translation; gives whether they are others than before.
    pub(super) fn translate_anew(&mut self) -> bool {
        let local = |address: Ipv4Addr| self.rib.is_local(address.into());
        let mut fresh = self.translation.rules(|port| self.rib.port(port), local);
        fresh.version = self.settings.masquerade.version;
        fresh.held.clone_from(&self.settings.masquerade.held);
        let differ = fresh != self.settings.masquerade;
        if differ {
            fresh.version = fresh.version.wrapping_add(1);
            let now = Instant::now();
            let new = fresh
                .announced
                .iter()
                .filter(|one| self.settings.masquerade.announced.binary_search(one).is_err());
            self.announcements.extend(new.map(|one| Announcement::first(*one, now)));
            self.settings.masquerade = fresh;
            self.look_at_sockets(now);
        }
        differ
    }

    /// Has a port's addresses announced that the host lacks: the link may be another.
    pub(super) fn announce_all_of(&mut self, id: PortId) {
        let now = Instant::now();
        let of_port = self.settings.masquerade.announced.iter().filter(|(port, _)| *port == id);
        self.announcements.extend(of_port.map(|one| Announcement::first(*one, now)));
    }

    /// Has addresses announced whose time has come.
    pub(super) fn announce(&mut self, now: Instant) {
        let due: Vec<_> = self.announcements.extract_if(.., |one| one.at <= now).collect();
        // Ring 0 of every port, its transmit side too, belongs to the first worker.
        let Some(worker) = self.workers.first().filter(|_| !due.is_empty()) else { return };
        for one in &due {
            let (port, address) = one.what;
            let _ = worker.commands.try_send(ToWorker::Announce { port, address });
        }
        (worker.call)();
        let again = |one: &Announcement| Announcement { at: now + AGAIN, last: true, ..*one };
        self.announcements.extend(due.iter().filter(|one| !one.last).map(again));
    }

    /// Sees which ports the host's own sockets hold on the addresses in front.
    pub(super) fn look_at_sockets(&mut self, now: Instant) {
        if !self.settings.masquerade.is_on() || self.follow.is_none() {
            return;
        }
        let old = self.host_sockets.waiting.clone();
        if let Err(e) = self.host_sockets.list() {
            let e = e.to_string();
            if self.host_sockets.told.as_ref() != Some(&e) {
                log::warn!(
                    "cannot ask for the host's sockets ({e}): keep the ports of its services out of `ports` \
                     of [[masquerade]]"
                );
                self.host_sockets.told = Some(e);
            }
        }
        let Self { settings: Settings { masquerade, .. }, host_sockets, .. } = self;
        let in_a_range = |held: &HeldPort| {
            masquerade.rules.iter().any(|rule| (rule.first..=rule.last).contains(&held.port))
        };
        host_sockets.waiting.retain(in_a_range);
        host_sockets.connected.retain(in_a_range);
        let held = [&host_sockets.waiting[..], &host_sockets.connected].concat();
        let local: HashSet<IpAddr> = self.rib.for_host().into_iter().collect();
        let held = HeldPorts::new(
            self.settings.masquerade.in_front().filter(|a| local.contains(&(*a).into())),
            &held,
        );
        if *self.settings.masquerade.held != held {
            self.settings.masquerade.held = Arc::new(held);
            self.switched = true;
        }
        if self.host_sockets.has_new_service(&old, now) {
            self.settings.masquerade.version = self.settings.masquerade.version.wrapping_add(1);
            self.switched = true;
        }
    }

    /// Tells the devices which packets are the host's.
    pub(super) fn tell_local(&mut self) {
        let mut addresses = self.rib.for_host();
        let local: HashSet<IpAddr> = addresses.iter().copied().collect();
        // What comes for an address in front is a worker's, unless a socket of the host's takes it.
        addresses.retain(|address| match address {
            IpAddr::V4(address) => self.settings.masquerade.out_of((*address).into()).is_none(),
            IpAddr::V6(_) => true,
        });
        for (id, port) in (0..).zip(&mut self.ports) {
            let Some(port) = port else { continue };
            let Some(control) = &mut port.control else { continue };
            let with_sub_ports = [&[id][..], &self.rib.sub_ports(id)].concat();
            let sharing = sharing(&self.settings.masquerade, &local, &with_sub_ports);
            if let Err(e) = control.set_sharing(&sharing).and(control.set_local(&addresses)) {
                log::error!("{}: cannot set the host's addresses: {e}", port.device);
            }
        }
    }
}

impl HostSockets {
    /// Asks the kernel.
    #[cfg(target_os = "linux")]
    fn list(&mut self) -> std::io::Result<()> {
        use crate::control::kernel::sockets::{Which, held_ports};
        self.waiting = held_ports(Which::Waiting)?;
        self.until_connected = self.until_connected.saturating_sub(1);
        if self.until_connected == 0 {
            self.connected = held_ports(Which::Connected)?;
            self.until_connected = LOOKS;
        }
        Ok(())
    }

    /// Nobody can be asked.
    #[cfg(not(target_os = "linux"))]
    fn list(&mut self) -> std::io::Result<()> {
        let _ = (&mut self.connected, &mut self.until_connected, LOOKS);
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// Whether a socket waits that has waited at the last look as well, and that mappings have not
    /// given way to; not too often. A resolver's questions come and go faster, and are none.
    fn has_new_service(&mut self, last: &[HeldPort], now: Instant) -> bool {
        let steady: BTreeSet<HeldPort> =
            self.waiting.iter().filter(|held| last.contains(held)).copied().collect();
        let too_soon = self.gave_way.is_some_and(|then| now.saturating_duration_since(then) < GIVE_WAY);
        if too_soon {
            return false;
        }
        let new = !steady.is_subset(&self.steady);
        self.steady = steady;
        if new {
            self.gave_way = Some(now);
        }
        new
    }
}

/// What the device of these ports (one, and its sub-ports) has to know.
fn sharing(masquerade: &Masquerade, local: &HashSet<IpAddr>, ports: &[PortId]) -> Sharing {
    let is_paired = |address: &Ipv4Addr| masquerade.pairs.iter().any(|pair| pair.outside == *address);
    let is_local = |address: &Ipv4Addr| local.contains(&(*address).into());
    let shared: Vec<Ipv4Addr> =
        masquerade.in_front().filter(|address| is_local(address) && !is_paired(address)).collect();
    let of_forward = |forward: &crate::tables::masquerade::Forward| {
        let (out, protocol, port) = (forward.out, forward.protocol, forward.port);
        let has = move |address: &&Ipv4Addr| masquerade.out_of((**address).into()) == Some(out);
        let one = move |address: &Ipv4Addr| ForwardedPort { address: *address, protocol, port };
        shared.iter().filter(has).map(one).collect::<Vec<_>>()
    };
    let announced = masquerade.announced.iter().filter(|(out, _)| ports.contains(out));
    Sharing {
        forwarded: masquerade.forwards.iter().flat_map(of_forward).collect(),
        announced: announced.map(|(_, address)| *address).collect(),
        shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::masquerade::{Forward, Pair, Rule};

    fn address(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(203, 0, 113, last)
    }

    #[test]
    fn what_the_host_has_in_front_is_shared_and_what_it_lacks_is_announced() {
        let rule = |out, to: &[u8]| Rule {
            out,
            from: Vec::new(),
            to: to.iter().map(|last| address(*last)).collect(),
            first: 1024,
            last: 32767,
            timeouts: Default::default(),
            open: false,
            inbound_refresh: false,
            quota: 0,
            log: Default::default(),
        };
        let forward = |out| Forward { out, protocol: 6, port: 443, to: address(99), to_port: 80 };
        let pair = Pair { out: 1, inside: address(98), outside: address(3) };
        let rules = vec![rule(1, &[1, 2]), rule(2, &[4, 1])];
        let mut masquerade = Masquerade::new(rules, vec![forward(1), forward(2)], vec![pair]);
        masquerade.announced = vec![(1, address(2)), (2, address(4))];
        let local = [1, 3, 4, 7].map(|last| IpAddr::from(address(last))).into();
        let of_1 = sharing(&masquerade, &local, &[1, 5]);
        assert_eq!(of_1.shared, [address(1), address(4)]);
        let forwarded = |last| ForwardedPort { address: address(last), protocol: 6, port: 443 };
        assert_eq!(of_1.forwarded, [forwarded(1), forwarded(4)]);
        assert_eq!(of_1.announced, [address(2)]);
        assert_eq!(sharing(&masquerade, &local, &[2]).announced, [address(4)]);
    }

    #[test]
    fn mappings_give_way_to_what_goes_on_waiting_and_not_too_often() {
        let held = |port| HeldPort { protocol: 17, address: None, port };
        let mut sockets = HostSockets::default();
        let start = Instant::now();
        let mut at = |seconds, ports: &[u16]| {
            let last = std::mem::take(&mut sockets.waiting);
            sockets.waiting = ports.iter().map(|port| held(*port)).collect();
            sockets.has_new_service(&last, start + Duration::from_secs(seconds))
        };
        assert!(!at(0, &[5000]), "it may be gone in a moment");
        assert!(!at(1, &[5001]));
        assert!(at(2, &[5001, 5002]));
        assert!(!at(3, &[5001, 5002]), "another one, too soon");
        assert!(at(12, &[5001, 5002]));
        assert!(!at(30, &[5001]) && !at(31, &[5001]));
        assert!(!at(32, &[5001, 5002]));
        assert!(at(33, &[5001, 5002]), "it has come again");
    }
}
