//! A router in a test tube: real workers between pipes whose far ends the test holds.
//!
//! The workers are swept by the test's own thread, so that every test is repeatable. Each check
//! of a result also checks the two laws that always hold: packets in = the sum of the verdicts +
//! held + in transit, and no buffer is lost or doubled.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use crossbeam_channel::Receiver;
use ipnet::IpNet;
use netmap::{Arena, Frame, Host, Port, device::pipe};
use sweepd::{
    control::buckets::distribute,
    forward::{
        assembly::{PortRest, WorkerLink, assemble, split},
        burst::Burst,
        idle::Patience,
        messages::{ToKeeper, ToWorker},
        plug::{Plug, Reply, Rings},
        slow::{Context, Ending},
        verdict::Verdict,
        worker::Worker,
    },
    stats::file::StatsFile,
    tables::{
        Action, Group, IcmpLimit, NextHop, NextHopId, NextHopInfo, PortTable, Tables,
        acl::{Acl, Compiled, Rule},
        fixed,
        masquerade::Masquerade,
        prefixes::{Prefixes4, Prefixes6},
        publish::Publisher,
    },
    wire::vlan::Tags,
};

mod base;

use base::{base_routes, port_table};

/// Slots of each ring: small, so that tests reach the wrap and the full ring.
pub const SLOTS: u32 = 64;

/// A port to be made.
#[derive(Clone, Debug)]
pub struct PortSpec {
    pub rings: u32,
    pub addresses: Vec<IpNet>,
    pub mtu: u16,
    /// The host side is a ring pair that the test holds; else the built-in host.
    pub host_rings: bool,
    /// A VLAN sub-port of an earlier port: its number and the tags. Sub-ports come last.
    pub sub: Option<(usize, Tags)>,
}

impl PortSpec {
    pub fn new(addresses: &[&str]) -> Self {
        let addresses = addresses.iter().map(|a| a.parse().expect("an address")).collect();
        Self { rings: 1, addresses, mtu: 1500, host_rings: false, sub: None }
    }

    pub fn rings(self, rings: u32) -> Self {
        Self { rings, ..self }
    }

    pub fn mtu(self, mtu: u16) -> Self {
        Self { mtu, ..self }
    }

    pub fn of(self, parent: usize, tags: &str) -> Self {
        Self { sub: Some((parent, tags.parse().expect("tags"))), ..self }
    }

    pub fn host_rings(self) -> Self {
        Self { host_rings: true, ..self }
    }
}

/// The router's MAC address on a port.
pub fn port_mac(port: usize) -> [u8; 6] {
    [2, 0, 0, 0, port as u8, 1]
}

/// The MAC address of the test's host number `host` behind a port.
pub fn host_mac(port: usize, host: u8) -> [u8; 6] {
    [2, 0, 0, 1, port as u8, host]
}

/// What the tables say, kept so that both instances can be patched alike.
#[derive(Clone, Default)]
pub struct Routes {
    prefixes4: Prefixes4,
    prefixes6: Prefixes6,
    hops: Vec<(NextHop, NextHopInfo)>,
    groups: Vec<Group>,
    known: BTreeMap<(usize, u8, bool), NextHopId>,
    /// Of the prefixes with several ways: the group's number, and its next hop.
    ways: BTreeMap<String, (usize, NextHopId)>,
    local: BTreeSet<IpAddr>,
    broadcast: Vec<IpAddr>,
    /// Which addresses are translated.
    pub masquerade: Masquerade,
}

impl Routes {
    /// The prefix leads to this next hop.
    pub fn add(&mut self, prefix: &str, id: NextHopId) {
        match prefix.parse().expect("a prefix") {
            IpNet::V4(net) => {
                self.prefixes4.insert(net.network().into(), net.prefix_len(), id);
            }
            IpNet::V6(net) => {
                self.prefixes6.insert(net.network().into(), net.prefix_len(), id);
            }
        }
    }

    /// The prefix has no route any more.
    pub fn remove(&mut self, prefix: &str) {
        match prefix.parse().expect("a prefix") {
            IpNet::V4(net) => {
                self.prefixes4.remove(net.network().into(), net.prefix_len());
            }
            IpNet::V6(net) => {
                self.prefixes6.remove(net.network().into(), net.prefix_len());
            }
        }
    }

    /// A new next hop: host number `host` behind `port`.
    pub fn hop(&mut self, port: usize, host: u8, mtu: u16) -> NextHopId {
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&host_mac(port, host));
        macs[6..].copy_from_slice(&port_mac(port));
        let info = NextHopInfo { action: Action::Forward, ..NextHopInfo::default() };
        self.push(NextHop { macs, port: port as u16, max_len: mtu }, info)
    }

    /// The same, with the neighbour's address, as the keeper makes them.
    pub fn neighbor(&mut self, port: usize, host: u8, mtu: u16, address: &str) -> NextHopId {
        let id = self.hop(port, host, mtu);
        let info = &mut self.hops[usize::from(id - fixed::FIRST_FREE)].1;
        info.gateway = Some(address.parse().expect("an address"));
        id
    }

    /// The next hop of this host behind `port`, with its IPv4 or IPv6 address, made when it is first
    /// asked for.
    pub fn known(&mut self, port: usize, host: u8, mtu: u16, six: bool) -> NextHopId {
        if let Some(id) = self.known.get(&(port, host, six)) {
            return *id;
        }
        let address = if six { format!("2001:db8:{port}::{host}") } else { format!("10.0.{port}.{host}") };
        let id = self.neighbor(port, host, mtu, &address);
        self.known.insert((port, host, six), id);
        id
    }

    /// A new next hop of another kind, behind `port`.
    pub fn action(&mut self, action: Action, port: usize, gateway: Option<IpAddr>) -> NextHopId {
        let hop = NextHop { port: port as u16, ..NextHop::default() };
        self.push(hop, NextHopInfo { action, gateway, group: 0 })
    }

    /// A new next hop that is one of several, by these buckets.
    pub fn group(&mut self, buckets: [NextHopId; 256]) -> NextHopId {
        let info =
            NextHopInfo { action: Action::Group, group: self.groups.len() as u16, ..NextHopInfo::default() };
        let ports = self.ports_of(&buckets);
        self.groups.push(Group { buckets, ports });
        self.push(NextHop::default(), info)
    }

    /// The prefix leads to these next hops alike; those that it leads to already keep their flows.
    pub fn ways(&mut self, prefix: &str, hops: &[NextHopId]) {
        let members: Vec<_> = hops.iter().map(|hop| (*hop, 1)).collect();
        if let Some((n, id)) = self.ways.get(prefix).copied() {
            let mut buckets = self.groups[n].buckets;
            distribute(&mut buckets, &members, true);
            self.change_group(n, buckets);
            return self.add(prefix, id);
        }
        let mut buckets = [0; 256];
        distribute(&mut buckets, &members, false);
        let made = (self.groups.len(), self.group(buckets));
        self.ways.insert(prefix.to_owned(), made);
        self.add(prefix, made.1);
    }

    /// An address of the router's, and its link.
    pub fn own(&mut self, port: usize, address: IpNet) {
        let glean = self.action(Action::Glean, port, None);
        self.link(address, glean);
        self.host(address);
    }

    fn link(&mut self, address: IpNet, glean: NextHopId) {
        if !matches!(address, IpNet::V6(net) if net.addr().is_unicast_link_local()) {
            self.add(&address.trunc().to_string(), glean);
        }
        if let IpNet::V4(net) = address
            && net.prefix_len() < 31
        {
            self.add(&format!("{}/32", net.broadcast()), fixed::BROADCAST);
            self.broadcast.push(net.broadcast().into());
        }
    }

    fn host(&mut self, address: IpNet) {
        self.add(&IpNet::from(address.addr()).to_string(), fixed::HOST);
        self.local.insert(address.addr());
    }

    /// Fills the buckets of the `n`-th group anew.
    pub fn change_group(&mut self, n: usize, buckets: [NextHopId; 256]) {
        self.groups[n] = Group { buckets, ports: self.ports_of(&buckets) };
    }

    fn ports_of(&self, buckets: &[NextHopId; 256]) -> Vec<u16> {
        let ports = buckets.iter().filter_map(|id| self.hops.get(usize::from(id - fixed::FIRST_FREE)));
        ports.map(|(hop, _)| hop.port).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Makes an earlier next hop into another one.
    pub fn change(&mut self, id: NextHopId, other: NextHopId) {
        let at = |id| usize::from(id - fixed::FIRST_FREE);
        self.hops[at(id)] = self.hops[at(other)];
    }

    fn push(&mut self, hop: NextHop, info: NextHopInfo) -> NextHopId {
        self.hops.push((hop, info));
        fixed::FIRST_FREE + (self.hops.len() - 1) as NextHopId
    }

    fn write(&self, tables: &mut Tables) {
        tables.fib4.build(&self.prefixes4).expect("room");
        tables.fib6.build(&self.prefixes6).expect("room");
        for (i, (hop, info)) in self.hops.iter().enumerate() {
            let at = usize::from(fixed::FIRST_FREE) + i;
            tables.next_hops[at] = *hop;
            tables.info[at] = *info;
        }
        tables.groups.clone_from(&self.groups);
        tables.local = self.local.iter().copied().collect();
        self.broadcast.iter().for_each(|address| tables.local.watch(*address));
        tables.masquerade.clone_from(&self.masquerade);
        let by_state = tables.acl.as_ref().is_some_and(|acl| acl.has_state());
        tables.keeps_flows = by_state || self.masquerade.is_on();
    }
}

/// The router and what surrounds it.
pub struct Tube {
    /// The far ends of the ports' pipes.
    pub peers: Vec<Port>,
    /// The far ends of the host rings, by port.
    pub hosts: Vec<Option<Port>>,
    pub workers: Vec<Worker>,
    pub links: Vec<WorkerLink>,
    pub publisher: Publisher<Tables>,
    pub stats: StatsFile,
    pub to_keeper: Receiver<ToKeeper>,
    pub routes: Routes,
    /// Hold the devices open.
    pub controls: Vec<PortRest>,
    /// What the workers have given back.
    pub given_back: Vec<Rings>,
    burst: Burst,
    buffers: Vec<u32>,
}

impl Tube {
    /// A router with these ports and this many workers. Its addresses are local; nothing else is
    /// routed yet.
    pub fn new(specs: &[PortSpec], workers: usize) -> Self {
        let real = || specs.iter().filter(|spec| spec.sub.is_none());
        let needs = real().map(|s| {
            let (rings, slots) = pipe::needs(s.rings, SLOTS);
            if s.host_rings { (2 * rings, 2 * slots) } else { (rings, slots) }
        });
        let (rings, slots) = needs.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let mut arena = Arena::new(rings, slots, 0).expect("memory");
        let (mut ports, mut peers, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
        for (id, spec) in real().enumerate() {
            let (mut ours, theirs) = pipe::pair(&mut arena, &id.to_string(), spec.rings, SLOTS);
            hosts.push(spec.host_rings.then(|| {
                let (near, far) = pipe::pair(&mut arena, "host", spec.rings, SLOTS);
                ours.host = Host::Rings { to: near.tx, from: near.rx };
                far
            }));
            ports.push(ours);
            peers.push(theirs);
        }
        Self { peers, hosts, ..Self::over(ports, specs, workers) }.settled_in()
    }

    /// A router with these ports, whose other sides are not pipes of the test's.
    pub fn over(ports: Vec<Port>, specs: &[PortSpec], workers: usize) -> Self {
        let names: Vec<String> = (0..specs.len()).map(|i| format!("p{i}")).collect();
        let stats = StatsFile::anonymous(&names, workers).expect("memory");
        let routes = base_routes(specs);
        let make = || {
            let mut tables = Tables::new()?;
            tables.ports = specs.iter().enumerate().map(|(id, s)| port_table(id, s, specs)).collect();
            routes.write(&mut tables);
            Ok::<_, std::io::Error>(tables)
        };
        let (publisher, readers) = Publisher::try_new(make, workers).expect("memory");
        let (keeper, to_keeper) = crossbeam_channel::bounded(4096);
        let made = assemble(ports, None, &stats, readers, &keeper, Patience::Spin).expect("descriptors");
        let tube = Self {
            peers: Vec::new(),
            hosts: Vec::new(),
            workers: made.workers,
            links: made.links,
            publisher,
            stats,
            to_keeper,
            routes,
            controls: made.ports,
            given_back: Vec::new(),
            burst: Burst::default(),
            buffers: Vec::new(),
        };
        tube.settled_in()
    }

    /// Remembers the buffers that there are.
    fn settled_in(mut self) -> Self {
        self.buffers = self.all_buffers();
        self
    }

    /// Opens one more port while the router runs, as the next number.
    pub fn add_port(&mut self, spec: &PortSpec) {
        let id = self.peers.len();
        let (rings, slots) = pipe::needs(spec.rings, SLOTS);
        let mut arena = Arena::new(rings, slots, 0).expect("memory");
        let (ours, theirs) = pipe::pair(&mut arena, &id.to_string(), spec.rings, SLOTS);
        for worker in &mut self.workers {
            worker.reader.offline();
        }
        self.publisher.publish(|tables| tables.ports.push(port_table(id, spec, &[])));
        self.stats.take_place(id, &format!("p{id}"), true).expect("a place");
        let (shares, rest) = split(id as u16, ours, self.workers.len(), false);
        for (worker, share) in shares.into_iter().enumerate() {
            self.tell(worker, Plug::In(Box::new(share)));
        }
        self.controls.push(rest);
        self.peers.push(theirs);
        self.hosts.push(None);
        self.buffers = self.all_buffers();
    }

    /// Gives the rings of a port back that no table mentions any more.
    pub fn remove_port(&mut self, port: usize) {
        for worker in 0..self.workers.len() {
            self.tell(worker, Plug::Quiet(port as u16));
        }
        for worker in 0..self.workers.len() {
            self.tell(worker, Plug::Out { port: port as u16, force: true });
        }
    }

    /// Has a worker do something with its rings.
    pub fn tell(&mut self, worker: usize, plug: Plug) {
        let (answer, answered) = crossbeam_channel::bounded(1);
        assert!(self.links[worker].send(ToWorker::Plug { plug, answer }));
        assert!(self.workers[worker].obey());
        match answered.try_recv() {
            Ok(Reply::Done(rings)) => self.given_back.push(rings),
            other => panic!("{other:?}"),
        }
    }

    /// One sweep of one worker, in the middle of which it may panic; gives whether it did.
    pub fn sweep_may_panic(&mut self, worker: usize) -> bool {
        let (worker, burst) = (&mut self.workers[worker], &mut self.burst);
        let sweep = std::panic::AssertUnwindSafe(|| worker.sweep(burst));
        let failed = std::panic::catch_unwind(sweep).is_err();
        if failed {
            worker.recover(burst);
        }
        failed
    }

    /// Publishes the routes as they stand now.
    pub fn publish(&mut self) {
        for worker in &mut self.workers {
            worker.reader.offline();
        }
        let routes = &self.routes;
        self.publisher.publish(|tables| routes.write(tables));
    }

    /// Changes every port's table.
    pub fn change_ports(&mut self, mut change: impl FnMut(usize, &mut PortTable)) {
        for worker in &mut self.workers {
            worker.reader.offline();
        }
        self.publisher.publish(|tables| {
            for (id, port) in tables.ports.iter_mut().enumerate() {
                change(id, port);
            }
        });
    }

    /// Follows IPv4 source routes, or refuses them.
    pub fn follow_source_routes(&mut self, follow: bool) {
        for worker in &mut self.workers {
            worker.reader.offline();
        }
        self.publisher.publish(|tables| tables.source_routes = follow);
    }

    /// Filters by these rules from now on.
    pub fn filter(&mut self, rules: Vec<Rule>) -> Arc<Acl> {
        for worker in &mut self.workers {
            worker.reader.offline();
        }
        let compiled = Arc::new(Compiled::new(rules).expect("not too many"));
        let acl = Arc::new(Acl::new(compiled, self.workers.len()));
        self.publisher.publish(|tables| {
            tables.keeps_flows |= acl.has_state();
            tables.acl = Some(acl.clone());
        });
        acl
    }

    /// Lets every worker send so many ICMP errors.
    pub fn limit_errors(&mut self, rate: u32, burst: u32) {
        for worker in &mut self.workers {
            worker.reader.offline();
        }
        self.publisher.publish(|tables| tables.icmp = IcmpLimit { rate, burst });
    }

    /// Puts every worker's clock on, and lets it look after what has become due.
    pub fn pass_time(&mut self, time: std::time::Duration) {
        for worker in &mut self.workers {
            worker.slow.clock.skip(time);
        }
        // A wheel looks at so many flows in a sweep.
        for _ in 0..16 {
            self.settle();
        }
    }

    /// Sends a frame from `port` by the careful path of the first worker, whatever the frame; gives
    /// how it ended and what arrived anywhere. Nothing counts it as received.
    pub fn pass_carefully(&mut self, port: usize, frame: &[u8]) -> (Ending, Vec<(usize, Vec<u8>)>) {
        let mut bytes = frame.to_vec();
        let Worker { reader, slow, out, blocks, .. } = &mut self.workers[0];
        let generation = reader.generation();
        let tables = reader.sweep();
        out.follow(tables, generation, blocks);
        let mut context = Context { tables, generation, out, port: port as u16, blocks };
        let ending = slow.packet(&mut context, &mut Frame::over(&mut bytes));
        reader.quiescent();
        self.settle();
        (ending, self.arrivals())
    }

    /// What has arrived anywhere: (port, frame).
    pub fn arrivals(&mut self) -> Vec<(usize, Vec<u8>)> {
        (0..self.peers.len()).flat_map(|p| self.arrived(p).into_iter().map(move |f| (p, f))).collect()
    }

    /// Puts a frame on the wire of `port`, towards its receive ring number `ring`.
    pub fn inject_on(&mut self, port: usize, ring: usize, frame: &[u8]) {
        let queue = &mut self.peers[port].tx[ring];
        assert!(queue.ring.send(frame), "the wire is full");
        queue.sync().expect("pipes do not fail");
    }

    /// Puts a frame on the wire of `port`.
    pub fn inject(&mut self, port: usize, frame: &[u8]) {
        self.inject_on(port, 0, frame);
    }

    /// Sweeps all workers until nothing moves any more.
    pub fn settle(&mut self) {
        for _ in 0..64 {
            let mut moved = 0;
            for worker in &mut self.workers {
                if worker.bell.was_called() {
                    assert!(worker.obey(), "told to stop");
                }
                moved += worker.sweep(&mut self.burst).packets;
            }
            if moved == 0 {
                return;
            }
        }
        panic!("packets still move after 64 rounds");
    }

    /// What has arrived at the far end of `port`, over all its rings.
    pub fn arrived(&mut self, port: usize) -> Vec<Vec<u8>> {
        take_all(&mut self.peers[port])
    }

    /// What has arrived at the host side of `port`.
    pub fn arrived_at_host(&mut self, port: usize) -> Vec<Vec<u8>> {
        take_all(self.hosts[port].as_mut().expect("a port with host rings"))
    }

    /// Sends a frame from the host side of `port`.
    pub fn inject_from_host(&mut self, port: usize, ring: usize, frame: &[u8]) {
        let queue = &mut self.hosts[port].as_mut().expect("a port with host rings").tx[ring];
        assert!(queue.ring.send(frame), "the host's ring is full");
        queue.sync().expect("pipes do not fail");
    }

    /// Injects one frame, settles, checks the laws, and gives what arrived anywhere: (port, frame).
    pub fn pass(&mut self, port: usize, frame: &[u8]) -> Vec<(usize, Vec<u8>)> {
        self.inject(port, frame);
        self.settle();
        self.check();
        self.arrivals()
    }

    /// How many packets received on any port ended with this verdict.
    pub fn count(&self, verdict: Verdict) -> u64 {
        self.stats.snapshot().iter().map(|p| p.verdicts[verdict as usize]).sum()
    }

    /// All verdicts that are not zero.
    pub fn verdicts(&self) -> Vec<(&'static str, u64)> {
        Verdict::ALL.iter().map(|&v| (v.name(), self.count(v))).filter(|(_, n)| *n > 0).collect()
    }

    /// The two laws.
    pub fn check(&self) {
        let (mut rx, mut from_host, mut verdicts, mut held, mut transit) = (0, 0, 0, 0, 0);
        for (id, port) in self.stats.snapshot().iter().enumerate() {
            rx += port.rx_packets;
            verdicts += port.verdicts.iter().sum::<u64>();
            held += port.held;
            transit += port.in_transit;
            let blocks = self.workers.iter().filter_map(|w| w.blocks.get(id));
            from_host += blocks.map(|block| block.from_host.get()).sum::<u64>();
        }
        assert_eq!(
            rx + from_host,
            verdicts + held + transit,
            "packets in = verdicts + held + in transit: {:?}",
            self.verdicts()
        );
        assert_eq!(self.all_buffers(), self.buffers, "buffers are conserved");
    }

    fn all_buffers(&self) -> Vec<u32> {
        let ours = self.workers.iter().flat_map(|w| {
            let inputs = w.inputs.iter().map(|i| i.queue.ring.view());
            inputs.chain(w.out.own.iter().map(|o| o.queue.ring.view()))
        });
        let ends = self.peers.iter().chain(self.hosts.iter().flatten());
        let back = self.given_back.iter();
        let back =
            back.flat_map(|r| r.rx.iter().map(|q| q.ring.view()).chain(r.tx.iter().map(|q| q.ring.view())));
        let theirs =
            ends.flat_map(|p| p.rx.iter().map(|q| q.ring.view()).chain(p.tx.iter().map(|q| q.ring.view())));
        let mut all: Vec<u32> =
            ours.chain(theirs).chain(back).flat_map(|view| view.buffer_indices()).collect();
        all.sort_unstable();
        all
    }
}

fn take_all(port: &mut Port) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for queue in &mut port.rx {
        queue.sync().expect("pipes do not fail");
        let n = queue.ring.available();
        for k in 0..n {
            // SAFETY: each slot is looked at once, between head and tail.
            let frame = unsafe { queue.ring.frame(queue.ring.index(k)) }.expect("a good slot");
            frames.push(frame.bytes().to_vec());
        }
        queue.ring.advance(n);
        queue.sync().expect("pipes do not fail");
    }
    frames
}
