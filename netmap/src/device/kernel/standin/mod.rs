//! A stand-in for the kernel's netmap, for tests: the shared memory byte for byte as the real
//! module lays it out, and the module's behaviour as measured, its silences included.
//!
//! Interfaces are made by [`StandIn::add_nic`] and joined by [`StandIn::connect`]; VALE switches
//! and pipes come into being when they are opened. Packets really move. Descriptors are real ones,
//! so that a worker can poll them: readable when packets wait, always writable, in error before
//! they are registered. Other than the real kernel, polling does not sync by itself.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    ffi::{c_ulong, c_void},
    io,
    os::fd::RawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use self::{
    adapter::{Adapter, Kind, Selection, errno},
    kring::Packet,
    memory::{BUF_SIZE, Memory},
};
use super::system::{OFFLOADS, Offload, System};
use crate::{
    abi::{self, netmap_slot, nmreq_header, nmreq_register},
    arena::Mapping,
    queue::Losses,
};

mod adapter;
mod kring;
mod memory;
mod sync;
mod wakeup;

/// The memory that all interfaces share.
const NIC_MEMORY: u16 = 1;

/// An interface to be made.
#[derive(Clone, Debug)]
pub struct Nic {
    /// Receive rings.
    pub rx_rings: u16,
    /// Transmit rings.
    pub tx_rings: u16,
    /// Ring pairs to and from the host.
    pub host_rings: u16,
    /// Slots of every ring.
    pub slots: u32,
    /// MTU in bytes.
    pub mtu: u32,
    /// MAC address.
    pub mac: [u8; 6],
    /// Names of the offloads that are on.
    pub offloads: Vec<&'static str>,
    /// Names of those that cannot be changed.
    pub fixed: Vec<&'static str>,
    /// Whether promiscuous mode is on already.
    pub promiscuous: bool,
    /// Whether opening it for netmap takes the carrier away, until [`StandIn::set_carrier`].
    pub link_down_on_open: bool,
    /// Where packets begin in their buffers, in bytes.
    pub offset: u16,
}

impl Default for Nic {
    fn default() -> Self {
        Self {
            rx_rings: 1,
            tx_rings: 1,
            host_rings: 1,
            slots: 64,
            mtu: 1500,
            mac: [2, 0, 0, 0, 0, 1],
            offloads: Vec::new(),
            fixed: Vec::new(),
            promiscuous: false,
            link_down_on_open: false,
            offset: 0,
        }
    }
}

/// What the stand-in keeps of an interface beside its rings.
#[derive(Debug)]
struct NicState {
    nic: Nic,
    carrier: bool,
    stuck: bool,
    peer: Option<String>,
    sent: Vec<Vec<u8>>,
    sent_without_carrier: usize,
    to_host: Vec<Vec<u8>>,
    losses: Losses,
}

/// A VALE switch.
#[derive(Debug, Default)]
struct Switch {
    ports: Vec<String>,
    macs: HashMap<[u8; 6], String>,
}

/// What a descriptor is bound to.
#[derive(Debug)]
struct Binding {
    port: String,
    mem_id: u16,
    nifp: usize,
    selection: Selection,
}

#[derive(Debug, Default)]
struct State {
    refuse_open: Option<i32>,
    memories: BTreeMap<u16, Memory>,
    ports: BTreeMap<String, Adapter>,
    nics: BTreeMap<String, NicState>,
    switches: BTreeMap<String, Switch>,
    descriptors: HashMap<RawFd, Option<Binding>>,
    /// Port, transmit or not, ring, head: see [`StandIn::spoil_head`].
    spoiled: Option<(String, bool, usize, u32)>,
    log: Vec<String>,
    skipped: u64,
    dropped: u64,
}

/// The stand-in kernel.
#[derive(Debug, Default)]
pub struct StandIn {
    state: Mutex<State>,
}

impl StandIn {
    /// A kernel with netmap and without interfaces.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next opens of `/dev/netmap` fail with this errno; `None` lets them succeed.
    pub fn refuse_open(&self, errno: Option<i32>) {
        self.lock().refuse_open = errno;
    }

    /// Adds an interface, up and with a carrier.
    pub fn add_nic(&self, name: &str, nic: Nic) {
        let state = NicState {
            nic,
            carrier: true,
            stuck: false,
            peer: None,
            sent: Vec::new(),
            sent_without_carrier: 0,
            to_host: Vec::new(),
            losses: Losses::default(),
        };
        self.lock().nics.insert(name.into(), state);
    }

    /// Takes an interface away under its users.
    pub fn remove_nic(&self, name: &str) {
        self.lock().nics.remove(name);
    }

    /// Joins two interfaces by a cable.
    pub fn connect(&self, a: &str, b: &str) {
        let mut state = self.lock();
        for (from, to) in [(a, b), (b, a)] {
            if let Some(nic) = state.nics.get_mut(from) {
                nic.peer = Some(to.into());
            }
        }
    }

    /// A frame comes in from the wire, to one receive ring. Gives `false` when it is lost.
    pub fn receive(&self, nic: &str, ring: usize, frame: &[u8]) -> bool {
        self.receive_flagged(nic, ring, frame, 0)
    }

    /// [`StandIn::receive`] with slot flags (`NS_MOREFRAG`).
    pub fn receive_flagged(&self, nic: &str, ring: usize, frame: &[u8], flags: u16) -> bool {
        self.lock().arrive(nic, ring, (frame.to_vec(), flags), usize::MAX)
    }

    /// The frames that have left by the wire, taken away; without a cable only.
    pub fn sent(&self, nic: &str) -> Vec<Vec<u8>> {
        self.lock().nics.get_mut(nic).map(|n| std::mem::take(&mut n.sent)).unwrap_or_default()
    }

    /// How many frames were sent while there was no carrier: all lost.
    pub fn sent_without_carrier(&self, nic: &str) -> usize {
        self.lock().nics.get(nic).map_or(0, |n| n.sent_without_carrier)
    }

    /// The host's stack sends a frame by the interface. Gives `false` when it is lost: nobody is
    /// bound to the host rings, or the frame needs a checksum that the hardware was to write.
    pub fn host_sends(&self, nic: &str, frame: &[u8]) -> bool {
        self.lock().host_sends(nic, frame)
    }

    /// The frames that the host's stack has received, taken away.
    pub fn host_received(&self, nic: &str) -> Vec<Vec<u8>> {
        self.lock().nics.get_mut(nic).map(|n| std::mem::take(&mut n.to_host)).unwrap_or_default()
    }

    /// Gives or takes the carrier.
    pub fn set_carrier(&self, nic: &str, on: bool) {
        if let Some(nic) = self.lock().nics.get_mut(nic) {
            nic.carrier = on;
        }
    }

    /// Makes the transmit rings take packets and never free their slots, or ends that.
    pub fn set_stuck(&self, nic: &str, stuck: bool) {
        if let Some(nic) = self.lock().nics.get_mut(nic) {
            nic.stuck = stuck;
        }
    }

    /// Writes `head` (and cur) into a ring at its next sync, as a user gone wrong would.
    pub fn spoil_head(&self, port: &str, tx: bool, ring: usize, head: u32) {
        self.lock().spoiled = Some((port.into(), tx, ring, head));
    }

    /// Writes buffer index and length into a slot now, as a user gone wrong would.
    pub fn spoil_slot(&self, port: &str, tx: bool, ring: usize, slot: u32, buf_idx: u32, len: u16) {
        let mut state = self.lock();
        let State { ports, memories, .. } = &mut *state;
        let Some(port) = ports.get(port) else { return };
        let krings = if tx { &port.tx } else { &port.rx };
        if let (Some(at), Some(memory)) = (krings[ring].ring, memories.get_mut(&port.mem_id)) {
            let old = memory.slot(at, slot);
            memory.set_slot(at, slot, netmap_slot { buf_idx, len, ..old });
        }
    }

    /// A slot as it stands in a port's ring.
    pub fn slot(&self, port: &str, tx: bool, ring: usize, slot: u32) -> Option<netmap_slot> {
        let state = self.lock();
        let port = state.ports.get(port)?;
        let at = (if tx { &port.tx } else { &port.rx })[ring].ring?;
        Some(state.memories.get(&port.mem_id)?.slot(at, slot))
    }

    /// What happened to the interfaces so far, in order.
    pub fn log(&self) -> Vec<String> {
        self.lock().log.clone()
    }

    /// Number of open descriptors.
    pub fn open_descriptors(&self) -> usize {
        self.lock().descriptors.len()
    }

    /// Slots skipped because their buffer or length could not be.
    pub fn skipped(&self) -> u64 {
        self.lock().skipped
    }

    /// Packets that VALE switches have dropped at full rings.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Buffers of a memory that no ring has.
    pub fn free_bufs(&self, mem_id: u16) -> usize {
        self.lock().memories.get(&mem_id).map_or(0, Memory::free_bufs)
    }
}

impl State {
    fn nic(&mut self, name: &str) -> io::Result<&mut NicState> {
        self.nics.get_mut(name).ok_or_else(|| errno(libc::ENODEV))
    }

    fn ensure_memory(&mut self, id: u16) -> io::Result<&mut Memory> {
        Ok(match self.memories.entry(id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Memory::new()?),
        })
    }

    /// The id of a memory to use: the one asked for, or a new one.
    fn memory(&mut self, asked: u16) -> io::Result<u16> {
        if asked != 0 {
            return if self.memories.contains_key(&asked) { Ok(asked) } else { Err(errno(libc::EINVAL)) };
        }
        let id = self.memories.keys().next_back().map_or(NIC_MEMORY, |&last| last.max(NIC_MEMORY)) + 1;
        self.memories.insert(id, Memory::new()?);
        Ok(id)
    }

    /// Finds the port of a register, or makes it.
    fn find(&mut self, name: &str, request: &nmreq_register) -> io::Result<()> {
        self.ensure_memory(NIC_MEMORY)?;
        if request.nr_mem_id != 0 && !self.memories.contains_key(&request.nr_mem_id) {
            return Err(errno(libc::EINVAL));
        }
        if self.ports.contains_key(name) {
            return Ok(());
        }
        if name.contains(['{', '}']) {
            return self.make_pipe(name, request);
        }
        if name.starts_with("vale") {
            let Some((switch, _)) = name.split_once(':') else { return Err(errno(libc::ENOMEM)) };
            let mem_id = self.memory(request.nr_mem_id)?;
            self.ports.insert(name.into(), Adapter::vale(mem_id, request));
            self.switches.entry(switch.into()).or_default().ports.push(name.into());
            return Ok(());
        }
        if name == "lo" {
            return Err(errno(libc::EINVAL));
        }
        let nic = &self.nics.get(name).ok_or_else(|| errno(libc::ENXIO))?.nic;
        if nic.mtu > BUF_SIZE {
            return Err(errno(libc::EINVAL));
        }
        self.ports.insert(name.into(), Adapter::nic(nic, NIC_MEMORY));
        Ok(())
    }

    /// Both ends of a pipe come into being together, in one memory.
    fn make_pipe(&mut self, name: &str, request: &nmreq_register) -> io::Result<()> {
        let at = name.rfind(['{', '}']).unwrap_or(0);
        let (parent, id) = (&name[..at], &name[at + 1..]);
        let whole_port = [abi::NR_REG_ALL_NIC, abi::NR_REG_ONE_NIC].contains(&request.nr_mode);
        if parent.is_empty() || id.is_empty() || !whole_port {
            return Err(errno(libc::EINVAL));
        }
        let mem_id = match self.ports.get(parent) {
            Some(parent) => parent.mem_id,
            None => self.memory(request.nr_mem_id)?,
        };
        let ends = [format!("{parent}{{{id}"), format!("{parent}}}{id}")];
        for (end, peer) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            let mut adapter = Adapter::pipe(peer, mem_id, request);
            let memory = self.memories.get_mut(&mem_id).ok_or_else(|| errno(libc::EINVAL))?;
            adapter.make_rings(memory)?;
            self.ports.insert(end.clone(), adapter);
        }
        Ok(())
    }

    fn register(&mut self, fd: RawFd, name: &str, request: &mut nmreq_register) -> io::Result<()> {
        match self.descriptors.get(&fd) {
            None => return Err(errno(libc::EBADF)),
            Some(Some(_)) => return Err(errno(libc::EBUSY)),
            Some(None) => {}
        }
        self.find(name, request)?;
        let result = self.bind(fd, name, request);
        if result.is_err() {
            self.tidy(name);
        }
        self.log.push(format!(
            "register {name} mode {}: {}",
            request.nr_mode,
            if result.is_ok() { "ok" } else { "refused" }
        ));
        result
    }

    fn bind(&mut self, fd: RawFd, name: &str, request: &mut nmreq_register) -> io::Result<()> {
        let port = self.ports.get_mut(name).ok_or_else(|| errno(libc::ENXIO))?;
        let memory = self.memories.get_mut(&port.mem_id).ok_or_else(|| errno(libc::EINVAL))?;
        let selection = port.select(request)?;
        let exclusive = request.nr_flags & abi::NR_EXCLUSIVE != 0;
        let nifp = port.bind(name, memory, &selection, exclusive)?;
        port.reply(request);
        request.nr_offset = nifp as u64;
        wakeup::arm(fd)?;
        if port.active == 1
            && let Some(nic) = self.nics.get_mut(name)
            && nic.nic.link_down_on_open
        {
            nic.carrier = false;
        }
        let binding = Binding { port: name.into(), mem_id: port.mem_id, nifp, selection };
        self.descriptors.insert(fd, Some(binding));
        Ok(())
    }

    fn close(&mut self, fd: RawFd) {
        let Some(Some(binding)) = self.descriptors.remove(&fd) else { return };
        if let (Some(port), Some(memory)) =
            (self.ports.get_mut(&binding.port), self.memories.get_mut(&binding.mem_id))
        {
            port.unbind(memory, &binding.selection);
            memory.free_if(binding.nifp);
            port.active -= 1;
        }
        self.tidy(&binding.port);
    }

    /// Forgets a port that nobody has open any more, and a private memory without ports.
    fn tidy(&mut self, name: &str) {
        let idle = |port: Option<&Adapter>| port.is_none_or(|p| p.active == 0);
        let Some(port) = self.ports.get(name) else { return };
        let peer = if let Kind::Pipe(peer) = &port.kind { Some(peer.clone()) } else { None };
        if !idle(Some(port)) || peer.as_ref().is_some_and(|peer| !idle(self.ports.get(peer))) {
            return;
        }
        let mem_id = port.mem_id;
        for end in [Some(name.to_owned()), peer].into_iter().flatten() {
            if let (Some(mut port), Some(memory)) = (self.ports.remove(&end), self.memories.get_mut(&mem_id))
            {
                port.free_rings(memory);
                self.log.push(format!("close {end}"));
            }
        }
        for switch in self.switches.values_mut() {
            switch.ports.retain(|port| port != name);
            switch.macs.retain(|_, port| port != name);
        }
        if mem_id != NIC_MEMORY && self.ports.values().all(|p| p.mem_id != mem_id) {
            self.memories.remove(&mem_id);
        }
    }

    /// NIOCCTRL.
    ///
    /// # Safety
    /// The header's body is what its type says, and alive.
    unsafe fn control(&mut self, fd: RawFd, header: &mut nmreq_header) -> io::Result<()> {
        if !(abi::NETMAP_API..=abi::NETMAP_MAX_API).contains(&header.nr_version)
            || header.nr_reserved != 0
            || header.nr_options != 0
        {
            return Err(errno(libc::EINVAL));
        }
        let name = header.nr_name.iter().take_while(|&&b| b != 0).map(|&b| char::from(b)).collect::<String>();
        let body = header.nr_body as *mut c_void;
        match header.nr_reqtype {
            abi::NETMAP_REQ_REGISTER => {
                // SAFETY: by the caller's word.
                self.register(fd, &name, unsafe { &mut *body.cast() })
            }
            abi::NETMAP_REQ_PORT_INFO_GET => {
                // SAFETY: by the caller's word.
                let info = unsafe { &mut *body.cast::<abi::nmreq_port_info_get>() };
                let mut reply = nmreq_register { nr_mode: abi::NR_REG_ALL_NIC, ..Default::default() };
                self.find(&name, &reply)?;
                self.ports[&name].reply(&mut reply);
                self.tidy(&name);
                (info.nr_tx_rings, info.nr_rx_rings) = (reply.nr_tx_rings, reply.nr_rx_rings);
                (info.nr_tx_slots, info.nr_rx_slots) = (reply.nr_tx_slots, reply.nr_rx_slots);
                info.nr_host_tx_rings = reply.nr_host_tx_rings;
                info.nr_host_rx_rings = reply.nr_host_rx_rings;
                (info.nr_mem_id, info.nr_memsize) = (reply.nr_mem_id, reply.nr_memsize);
                Ok(())
            }
            abi::NETMAP_REQ_POOLS_INFO_GET => {
                // The memory of interfaces can be asked for before any port is open.
                let mem_id = self.ports.get(&name).map_or(NIC_MEMORY, |port| port.mem_id);
                let pools = self.ensure_memory(mem_id)?.pools(mem_id);
                // SAFETY: by the caller's word.
                unsafe { body.cast::<abi::nmreq_pools_info>().write(pools) };
                Ok(())
            }
            _ => Err(errno(libc::EINVAL)),
        }
    }

    /// A packet comes to a receive ring of a port. `most` packets may wait for it.
    fn arrive(&mut self, port: &str, ring: usize, packet: Packet, most: usize) -> bool {
        let Some(adapter) = self.ports.get_mut(port) else { return false };
        let Some(kring) = adapter.rx.get_mut(ring) else { return false };
        let taken = kring.offer(packet, most);
        if taken {
            self.wake(port, ring);
        }
        taken
    }

    /// Wakes the descriptors bound to a receive ring.
    fn wake(&self, port: &str, ring: usize) {
        for (&fd, binding) in &self.descriptors {
            if let Some(b) = binding
                && b.port == port
                && b.selection.1.contains(&ring)
            {
                wakeup::wake(fd);
            }
        }
    }

    fn host_sends(&mut self, name: &str, frame: &[u8]) -> bool {
        let Ok(nic) = self.nic(name) else { return false };
        let unfinished = nic.nic.offloads.iter().any(|o| ["tx", "txcsum", "tso", "tso4"].contains(o));
        let tcp_or_udp = frame.get(12..14) == Some(&[8, 0]) && matches!(frame.get(23), Some(6 | 17));
        let Some(ring) = self.ports.get(name).map(|port| usize::from(port.num_rx)) else { return false };
        !(unfinished && tcp_or_udp) && self.arrive(name, ring, (frame.to_vec(), 0), usize::MAX)
    }
}

impl System for StandIn {
    fn open(&self) -> io::Result<RawFd> {
        let mut state = self.lock();
        if let Some(code) = state.refuse_open {
            return Err(errno(code));
        }
        let fd = wakeup::new()?;
        state.descriptors.insert(fd, None);
        Ok(fd)
    }

    fn close(&self, fd: RawFd) {
        self.lock().close(fd);
        wakeup::close(fd);
    }

    unsafe fn ioctl(&self, fd: RawFd, request: c_ulong, argument: *mut c_void) -> io::Result<()> {
        let mut state = self.lock();
        match request {
            // SAFETY: by the caller's word.
            abi::NIOCCTRL => unsafe { state.control(fd, &mut *argument.cast()) },
            abi::NIOCRXSYNC => state.sync(fd, false),
            abi::NIOCTXSYNC => state.sync(fd, true),
            _ => Err(errno(libc::ENOTTY)),
        }
    }

    fn mmap(&self, fd: RawFd, len: usize) -> io::Result<Mapping> {
        let state = self.lock();
        let binding = state.descriptors.get(&fd).ok_or_else(|| errno(libc::EBADF))?;
        let binding = binding.as_ref().ok_or_else(|| errno(libc::EINVAL))?;
        let memory = state.memories.get(&binding.mem_id).filter(|_| len <= memory::MEMSIZE);
        memory.ok_or_else(|| errno(libc::EINVAL))?.map(len)
    }

    fn mtu(&self, interface: &str) -> io::Result<u32> {
        // The real kernel knows lo as well.
        if interface == "lo" { Ok(1500) } else { Ok(self.lock().nic(interface)?.nic.mtu) }
    }

    fn mac(&self, interface: &str) -> Option<[u8; 6]> {
        self.lock().nic(interface).ok().map(|n| n.nic.mac)
    }

    fn carrier(&self, interface: &str) -> io::Result<bool> {
        Ok(self.lock().nic(interface)?.carrier)
    }

    fn promiscuous(&self, interface: &str) -> io::Result<bool> {
        Ok(self.lock().nic(interface)?.nic.promiscuous)
    }

    fn set_promiscuous(&self, interface: &str, on: bool) -> io::Result<()> {
        let mut state = self.lock();
        state.nic(interface)?.nic.promiscuous = on;
        state.log.push(format!("promiscuous {interface} {}", if on { "on" } else { "off" }));
        Ok(())
    }

    fn offloads(&self, interface: &str) -> io::Result<Vec<&'static Offload>> {
        if interface == "lo" {
            return Ok(Vec::new());
        }
        let mut state = self.lock();
        let on = &state.nic(interface)?.nic.offloads;
        Ok(OFFLOADS.iter().filter(|o| on.contains(&o.name)).collect())
    }

    fn set_offload(&self, interface: &str, offload: &Offload, on: bool) -> io::Result<()> {
        let mut state = self.lock();
        let nic = &mut state.nic(interface)?.nic;
        if nic.fixed.contains(&offload.name) {
            return Err(errno(libc::EOPNOTSUPP));
        }
        nic.offloads.retain(|&name| name != offload.name);
        if on {
            nic.offloads.push(offload.name);
        }
        state.log.push(format!("offload {interface} {} {}", offload.name, if on { "on" } else { "off" }));
        Ok(())
    }

    fn losses(&self, interface: &str) -> Losses {
        self.lock().nic(interface).map(|n| n.losses).unwrap_or_default()
    }
}
