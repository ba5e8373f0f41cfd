//! The stand-in's ports: interfaces, VALE ports and pipe ends, each with its rings.

use std::{io, ops::Range};

use super::{
    Nic,
    kring::Kring,
    memory::{MAX_SLOTS, Memory},
};
use crate::abi::{self, nmreq_register};

/// What a port is.
#[derive(Debug)]
pub(super) enum Kind {
    Nic,
    Vale,
    /// With the name of the other end.
    Pipe(String),
}

/// A port.
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) kind: Kind,
    pub(super) mem_id: u16,
    /// The port's transmit rings, then the host's: one that nobody can bind where there is none.
    pub(super) tx: Vec<Kring>,
    pub(super) rx: Vec<Kring>,
    pub(super) num_tx: u16,
    pub(super) num_rx: u16,
    pub(super) host: u16,
    /// Descriptors registered.
    pub(super) active: usize,
    offset: u16,
}

/// The rings that a register asks for: transmit, receive.
pub(super) type Selection = (Range<usize>, Range<usize>);

pub(super) fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl Adapter {
    pub(super) fn nic(nic: &Nic, mem_id: u16) -> Self {
        Self::new(Kind::Nic, mem_id, (nic.tx_rings, nic.rx_rings, nic.host_rings), nic.slots, nic.offset)
    }

    pub(super) fn vale(mem_id: u16, request: &nmreq_register) -> Self {
        Self::requested(Kind::Vale, mem_id, request)
    }

    pub(super) fn pipe(peer: &str, mem_id: u16, request: &nmreq_register) -> Self {
        Self::requested(Kind::Pipe(peer.into()), mem_id, request)
    }

    fn requested(kind: Kind, mem_id: u16, request: &nmreq_register) -> Self {
        let rings = (request.nr_tx_rings.clamp(1, 16), request.nr_rx_rings.clamp(1, 16), 0);
        let slots = if request.nr_tx_slots == 0 { 1024 } else { request.nr_tx_slots.clamp(2, MAX_SLOTS) };
        Self::new(kind, mem_id, rings, slots, 0)
    }

    fn new(kind: Kind, mem_id: u16, rings: (u16, u16, u16), slots: u32, offset: u16) -> Self {
        let (num_tx, num_rx, host) = rings;
        let pipe = matches!(kind, Kind::Pipe(_));
        // Where VALE keeps the number of fragments.
        let rx_flags = if matches!(kind, Kind::Vale) { 0x0100 } else { 0 };
        let make = |tx: bool, n: u16| {
            let all = 0..n + host.max(1);
            all.map(|i| Kring::new(tx, pipe && !tx, i, slots, if tx { 0 } else { rx_flags })).collect()
        };
        Self {
            tx: make(true, num_tx),
            rx: make(false, num_rx),
            kind,
            mem_id,
            num_tx,
            num_rx,
            host,
            active: 0,
            offset,
        }
    }

    /// Which rings a register asks for.
    pub(super) fn select(&self, request: &nmreq_register) -> io::Result<Selection> {
        let one = |ring: u16, n: u16| {
            let first = usize::from(if ring < n { ring } else { 0 });
            first..first + 1
        };
        let (tx, rx) = (usize::from(self.num_tx), usize::from(self.num_rx));
        let host = usize::from(self.host);
        let (mut t, mut r) = match request.nr_mode {
            abi::NR_REG_ALL_NIC => (0..tx, 0..rx),
            abi::NR_REG_SW if host > 0 => (tx..tx + host, rx..rx + host),
            abi::NR_REG_NIC_SW if host > 0 => (0..tx + host, 0..rx + host),
            abi::NR_REG_ONE_NIC if request.nr_ringid < self.num_tx.max(self.num_rx) => {
                (one(request.nr_ringid, self.num_tx), one(request.nr_ringid, self.num_rx))
            }
            super::super::NR_REG_ONE_SW if request.nr_ringid < self.host => {
                let k = usize::from(request.nr_ringid);
                (tx + k..tx + k + 1, rx + k..rx + k + 1)
            }
            _ => return Err(errno(libc::EINVAL)),
        };
        if request.nr_flags & abi::NR_RX_RINGS_ONLY != 0 {
            t = 0..0;
        }
        if request.nr_flags & abi::NR_TX_RINGS_ONLY != 0 {
            r = 0..0;
        }
        Ok((t, r))
    }

    fn selected(&mut self, (tx, rx): &Selection) -> impl Iterator<Item = &mut Kring> {
        self.tx[tx.clone()].iter_mut().chain(&mut self.rx[rx.clone()])
    }

    /// Binds the rings, makes those that are not there, and gives the place of the `netmap_if`.
    pub(super) fn bind(
        &mut self,
        name: &str,
        memory: &mut Memory,
        selection: &Selection,
        exclusive: bool,
    ) -> io::Result<usize> {
        if self.selected(selection).any(|k| k.exclusive || exclusive && k.users > 0) {
            return Err(errno(libc::EBUSY));
        }
        let offset = self.offset;
        let mut short = false;
        for kring in self.selected(selection) {
            kring.users += 1;
            kring.exclusive = exclusive;
            if kring.ring.is_none() {
                kring.reset();
                kring.ring = memory.new_ring(kring.tx, kring.slots, kring.ringid, kring.fake, offset);
                short |= kring.ring.is_none();
            }
        }
        let shown = |krings: &[Kring], bound: &Range<usize>| -> Vec<usize> {
            let place = |(i, k): (usize, &Kring)| if bound.contains(&i) { k.ring.unwrap_or(0) } else { 0 };
            krings.iter().enumerate().map(place).collect()
        };
        let (tx, rx) = (shown(&self.tx, &selection.0), shown(&self.rx, &selection.1));
        let rings = [self.num_tx.into(), self.num_rx.into()];
        let nifp = if short { None } else { memory.new_if(name, rings, [self.host.into(); 2], &tx, &rx) };
        let Some(nifp) = nifp else {
            self.unbind(memory, selection);
            return Err(errno(libc::ENOMEM));
        };
        self.active += 1;
        Ok(nifp)
    }

    /// Gives the rings up; those that nobody is bound to go. The rings of a pipe stay as long as
    /// either end is open.
    pub(super) fn unbind(&mut self, memory: &mut Memory, selection: &Selection) {
        let pipe = matches!(self.kind, Kind::Pipe(_));
        for kring in self.selected(selection) {
            kring.users -= 1;
            kring.exclusive = false;
            if kring.users == 0 && !pipe {
                kring.queue.clear();
                if let Some(ring) = kring.ring.take() {
                    memory.free_ring(ring, kring.slots, kring.fake);
                }
            }
        }
    }

    /// Makes the rings of a pipe's end.
    pub(super) fn make_rings(&mut self, memory: &mut Memory) -> io::Result<()> {
        let (tx, rx) = (0..usize::from(self.num_tx), 0..usize::from(self.num_rx));
        for kring in self.selected(&(tx, rx)) {
            kring.ring = memory.new_ring(kring.tx, kring.slots, kring.ringid, kring.fake, 0);
            if kring.ring.is_none() {
                return Err(errno(libc::ENOMEM));
            }
        }
        Ok(())
    }

    /// Takes the rings apart, whoever is bound to them.
    pub(super) fn free_rings(&mut self, memory: &mut Memory) {
        for kring in self.tx.iter_mut().chain(&mut self.rx) {
            if let Some(ring) = kring.ring.take() {
                memory.free_ring(ring, kring.slots, kring.fake);
            }
        }
    }

    /// Fills in the reply to a register.
    pub(super) fn reply(&self, reply: &mut nmreq_register) {
        let slots = |krings: &[Kring]| krings.first().map_or(0, |k| k.slots);
        reply.nr_memsize = super::memory::MEMSIZE as u64;
        (reply.nr_tx_rings, reply.nr_rx_rings) = (self.num_tx, self.num_rx);
        (reply.nr_host_tx_rings, reply.nr_host_rx_rings) = (self.host, self.host);
        (reply.nr_tx_slots, reply.nr_rx_slots) = (slots(&self.tx), slots(&self.rx));
        reply.nr_mem_id = self.mem_id;
    }
}
