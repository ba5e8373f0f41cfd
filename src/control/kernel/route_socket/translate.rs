//! From the routing socket's messages to reports. The messages leave out what the keeper needs:
//! news of a link do not name it, and a route with several next hops comes as several messages,
//! each about one. So what the kernel has is remembered here. Where a message can be read in two
//! ways, nothing is guessed: the part is asked for to be listed again.
//!
//! No news may be handed over between the first piece of a listing and its end; the kernel keeps
//! them meanwhile. Those that are older than the listing then repeat what it has said, and
//! change nothing that lasts: but for a change of a next hop, which does not say of which. After
//! one of these the part is listed once more, until [`Translator::caught_up`] is called.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;

use super::{Action, Form, Malformed, Message, Parsed, RouteMessage, header, message};
use crate::control::kernel::{
    Address, Hop, Index, KernelEvent, Link, NeighborState, Part, Parts, Placement, Report, Route, RouteKind,
    Way,
};

/// The kernel's own number for who made a route.
const BY_KERNEL: u8 = 2;

/// What a route does, and where it leads; most are shared by many prefixes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Body {
    kind: RouteKind,
    protocol: u8,
    hops: Vec<Hop>,
}

/// An interface, and whether its addresses come with a broadcast address.
#[derive(Clone, Debug)]
struct Known {
    link: Link,
    broadcast: bool,
}

/// Makes reports of messages.
#[derive(Debug, Default)]
pub struct Translator {
    /// Whether routes are followed, not only addresses.
    routes: bool,
    links: HashMap<Index, Known>,
    table: HashMap<IpNet, Arc<Body>>,
    bodies: HashSet<Arc<Body>>,
    /// A listed route of which more next hops may follow.
    unfinished: Option<(IpNet, Body)>,
    wanted: Parts,
    /// Parts whose next news may be older than their listing.
    behind: Parts,
    unparsed: u64,
}

fn same_way(a: &Hop, b: &Hop) -> bool {
    // A request need not name the interface.
    a.gateway == b.gateway && (a.index == b.index || a.index.is_none() || b.index.is_none())
}

fn routes_of(to: IpNet) -> Part {
    match to {
        IpNet::V4(_) => Part::Routes4,
        IpNet::V6(_) => Part::Routes6,
    }
}

fn part_of(address: IpAddr) -> Part {
    routes_of(IpNet::from(address))
}

fn route(to: IpNet, body: &Body) -> Route {
    Route {
        to,
        local_table: false,
        metric: 0,
        protocol: body.protocol,
        kind: body.kind,
        way: Way::Hops(body.hops.clone()),
    }
}

/// The host's own address, or the broadcast address that goes with it, as a route.
fn own_route(address: IpAddr, kind: RouteKind) -> Route {
    Route {
        to: address.into(),
        local_table: true,
        metric: 0,
        protocol: BY_KERNEL,
        kind,
        way: Way::Hops(Vec::new()),
    }
}

impl Body {
    fn of(message: &RouteMessage) -> Self {
        let hops = message.hop.iter().filter(|_| message.kind == RouteKind::Unicast).cloned().collect();
        Self { kind: message.kind, protocol: message.protocol, hops }
    }

    /// Takes another next hop in, or another weight, if it is known, for one that it has.
    fn add(&mut self, hop: Hop, weighed: bool) {
        match self.hops.iter_mut().find(|known| same_way(known, &hop)) {
            Some(known) if weighed => known.weight = hop.weight,
            Some(_) => {}
            None => self.hops.push(hop),
        }
    }
}

impl Translator {
    /// Remembers nothing yet. With `routes`, routes are reported; without, only links, addresses,
    /// neighbours and what is local.
    pub fn new(routes: bool) -> Self {
        Self { routes, ..Self::default() }
    }

    /// Messages that were not understood, ever.
    pub fn unparsed(&self) -> u64 {
        self.unparsed
    }

    /// Takes out the parts that have to be listed because of what the news left open.
    pub fn take_wanted(&mut self) -> Parts {
        std::mem::take(&mut self.wanted)
    }

    /// No news wait any more: what comes now is newer than every listing.
    pub fn caught_up(&mut self) {
        self.behind = Parts::default();
    }

    fn want(&mut self, part: Part) {
        self.wanted = self.wanted.with(part.into());
    }

    /// Takes one datagram of the socket's, and appends what it says to `out`.
    pub fn news(&mut self, datagram: &[u8], out: &mut Vec<Report>) {
        match message(datagram, Form::News) {
            Ok(Some(message)) => self.take_news(message, out),
            Ok(None) => {}
            Err(Malformed) => self.unparsed += 1,
        }
    }

    fn take_news(&mut self, message: Message, out: &mut Vec<Report>) {
        let mut report = |event| out.push(Report { listed: false, event });
        match message {
            Message::Route(route) if self.routes => {
                if let Some(event) = self.route_news(&route) {
                    report(event);
                }
            }
            Message::Route(_) => {}
            Message::Neighbor { index, address, mac, state } => {
                report(neighbor_event(index, address, mac, state));
            }
            Message::Link { .. } => {
                // The name, and a MAC address that is another now, only a listing tells.
                self.want(Part::Links);
                if let Some(link) = self.link(message) {
                    report(KernelEvent::LinkChanged(link));
                }
            }
            Message::Address { address, broadcast, gone } => {
                report(match gone {
                    false => KernelEvent::AddressAdded(address),
                    true => KernelEvent::AddressRemoved(address),
                });
                for own in self.own_routes(address, broadcast) {
                    report(match gone {
                        false => KernelEvent::RouteChanged(own, Placement::Replace),
                        true => KernelEvent::RouteGone(own),
                    });
                }
            }
            Message::Arrived(_) => {
                [Part::Links, Part::Addresses, Part::Neighbors].into_iter().for_each(|part| self.want(part));
            }
            Message::Departed(index) => {
                self.links.remove(&index);
                self.forget_over(index);
                report(KernelEvent::LinkGone(index));
            }
            Message::Redirected if self.routes => {
                [Part::Routes4, Part::Routes6].into_iter().for_each(|part| self.want(part));
            }
            Message::Redirected => {}
        }
    }

    /// Notes an interface's state; `None` while its name is not known.
    fn link(&mut self, message: Message) -> Option<Link> {
        let Message::Link { index, name, mac, mtu, up, carrier, broadcast } = message else { return None };
        let link = if name.is_empty() {
            let known = self.links.get(&index)?;
            Link { mtu, up, carrier, ..known.link.clone() }
        } else {
            Link { index, name, mac, mtu, up, carrier, vlan: None }
        };
        if !up {
            self.forget_over(index);
        }
        self.links.insert(index, Known { link: link.clone(), broadcast });
        Some(link)
    }

    /// Forgets the next hops over an interface: the kernel drops them without a word when it goes
    /// down.
    fn forget_over(&mut self, index: Index) {
        let over = |hop: &Hop| hop.index == Some(index);
        let touched: Vec<IpNet> =
            self.table.iter().filter(|(_, body)| body.hops.iter().any(over)).map(|(to, _)| *to).collect();
        for to in touched {
            let Some(mut body) = self.table.remove(&to).map(Arc::unwrap_or_clone) else { continue };
            body.hops.retain(|hop| !over(hop));
            if !body.hops.is_empty() {
                self.remember(to, body);
            }
        }
    }

    fn own_routes(&self, address: Address, broadcast: Option<IpAddr>) -> impl Iterator<Item = Route> + use<> {
        // On a point-to-point link it is the other end's address; on a /31 there is none (RFC 3021).
        let has_broadcast =
            address.net.prefix_len() <= 30 && self.links.get(&address.index).is_some_and(|l| l.broadcast);
        let broadcast = broadcast.filter(|ip| has_broadcast && ip.is_ipv4() && !ip.is_unspecified());
        let broadcast = broadcast.map(|ip| own_route(ip, RouteKind::Broadcast));
        std::iter::once(own_route(address.net.addr(), RouteKind::Local)).chain(broadcast)
    }

    fn remember(&mut self, to: IpNet, body: Body) -> Arc<Body> {
        let body = match self.bodies.get(&body) {
            Some(known) => known.clone(),
            None => {
                let new = Arc::new(body);
                self.bodies.insert(new.clone());
                new
            }
        };
        self.table.insert(to, body.clone());
        body
    }

    /// What has become of a route.
    fn route_news(&mut self, message: &RouteMessage) -> Option<KernelEvent> {
        let to = message.to;
        let known = self.table.get(&to).cloned();
        // Which way the kernel took, it must say.
        let whole = message.hop.as_ref().is_some_and(|hop| hop.index.is_some());
        if message.action == Action::Changed && self.behind.has(routes_of(to)) {
            self.want(routes_of(to));
        }
        let body = match (message.action, known) {
            (Action::Listed, _) => return None,
            (Action::Deleted, None) => return None,
            (Action::Deleted, Some(known)) => return self.route_deleted(message, &known),
            (Action::Added, Some(known))
                if whole && known.kind == RouteKind::Unicast && message.kind == RouteKind::Unicast =>
            {
                // One more next hop.
                let mut body = Body { protocol: message.protocol, ..Body::clone(&known) };
                message.hop.iter().for_each(|hop| body.add(hop.clone(), message.weighed));
                if body.hops.len() > 1 && !message.weighed {
                    self.want(routes_of(to));
                }
                body
            }
            // Which of several next hops has changed, it does not say.
            (Action::Changed, Some(known)) if known.hops.len() > 1 => {
                self.want(routes_of(to));
                return None;
            }
            // Only what the route does.
            (Action::Changed, Some(known)) if message.hop.is_none() && known.kind == message.kind => {
                Body { protocol: message.protocol, ..Body::clone(&known) }
            }
            _ if whole || message.kind != RouteKind::Unicast => Body::of(message),
            _ => {
                self.want(routes_of(to));
                return None;
            }
        };
        let body = self.remember(to, body);
        Some(KernelEvent::RouteChanged(route(to, &body), Placement::Replace))
    }

    fn route_deleted(&mut self, message: &RouteMessage, known: &Body) -> Option<KernelEvent> {
        let to = message.to;
        let mut rest = known.clone();
        if let Some(gone) = message.hop.as_ref().filter(|_| !known.hops.is_empty()) {
            rest.hops.retain(|hop| !same_way(hop, gone));
        } else {
            rest.hops.truncate(known.hops.len().saturating_sub(1));
        }
        let fewer = known.hops.len() - rest.hops.len();
        match (rest.hops.is_empty(), fewer) {
            (true, 0 | 1) => {
                self.table.remove(&to);
                Some(KernelEvent::RouteGone(route(to, known)))
            }
            (false, 1) if message.hop.is_some() => {
                let body = self.remember(to, rest);
                Some(KernelEvent::RouteChanged(route(to, &body), Placement::Replace))
            }
            // Not one of those that were thought to be there.
            _ => {
                self.want(routes_of(to));
                None
            }
        }
    }

    /// A listing of `part` begins.
    pub fn begin(&mut self, part: Part, out: &mut Vec<Report>) {
        match part {
            Part::Links => self.links.clear(),
            Part::Routes4 | Part::Routes6 => {
                self.table.retain(|to, _| routes_of(*to) != part);
                self.bodies.retain(|body| Arc::strong_count(body) > 1);
            }
            Part::Addresses | Part::Neighbors | Part::NextHops => {}
        }
        self.unfinished = None;
        out.push(Report { listed: true, event: KernelEvent::DumpBegin(part) });
    }

    /// Takes up to `most` messages of a listing of `part`, and appends what they say to `out`.
    /// Gives how many bytes were taken; what is left is for the next call.
    ///
    /// # Errors
    /// When it cannot be told where the next message begins.
    pub fn listed(&mut self, part: Part, bytes: &[u8], most: usize, out: &mut Vec<Report>) -> Parsed<usize> {
        let mut taken = 0;
        for _ in 0..most {
            let rest = bytes.get(taken..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            let Ok((len, _)) = header(rest) else {
                self.unparsed += 1;
                return Err(Malformed);
            };
            match message(rest, Form::Listed) {
                Ok(Some(message)) => self.take_listed(part, message, out),
                Ok(None) => {}
                Err(Malformed) => self.unparsed += 1,
            }
            taken += len;
        }
        Ok(taken)
    }

    fn take_listed(&mut self, part: Part, message: Message, out: &mut Vec<Report>) {
        let mut report = |event| out.push(Report { listed: true, event });
        match (part, message) {
            (Part::Links, link @ Message::Link { .. }) => {
                if let Some(link) = self.link(link) {
                    report(KernelEvent::LinkChanged(link));
                }
            }
            (Part::Addresses, Message::Address { address, gone: false, .. }) => {
                report(KernelEvent::AddressAdded(address));
            }
            (Part::Routes4 | Part::Routes6, Message::Address { address, broadcast, gone: false })
                if part_of(address.net.addr()) == part =>
            {
                for own in self.own_routes(address, broadcast) {
                    report(KernelEvent::RouteChanged(own, Placement::After));
                }
            }
            (Part::Routes4 | Part::Routes6, Message::Route(route))
                if self.routes && routes_of(route.to) == part =>
            {
                self.route_listed(&route, out);
            }
            (Part::Neighbors, Message::Neighbor { index, address, mac, state }) => {
                report(neighbor_event(index, address, mac, state));
            }
            _ => {}
        }
    }

    /// Notes a listed route; the next hops of one follow each other.
    fn route_listed(&mut self, message: &RouteMessage, out: &mut Vec<Report>) {
        let new = Body::of(message);
        match &mut self.unfinished {
            Some((to, body)) if *to == message.to && body.kind == new.kind => {
                new.hops.into_iter().for_each(|hop| body.add(hop, true));
            }
            _ => {
                self.finish_route(out);
                self.unfinished = Some((message.to, new));
            }
        }
    }

    fn finish_route(&mut self, out: &mut Vec<Report>) {
        let Some((to, body)) = self.unfinished.take() else { return };
        let body = self.remember(to, body);
        let event = KernelEvent::RouteChanged(route(to, &body), Placement::After);
        out.push(Report { listed: true, event });
    }

    /// The listing of `part` ends; `complete` if all of it was there.
    pub fn end(&mut self, part: Part, complete: bool, out: &mut Vec<Report>) {
        self.finish_route(out);
        self.behind = self.behind.with(part.into());
        out.push(Report { listed: true, event: KernelEvent::DumpEnd { part, complete } });
    }
}

fn neighbor_event(
    index: Index,
    address: IpAddr,
    mac: Option<[u8; 6]>,
    state: Option<NeighborState>,
) -> KernelEvent {
    match state {
        Some(state) => KernelEvent::NeighborChanged { index, address, mac, state },
        None => KernelEvent::NeighborGone { index, address },
    }
}
