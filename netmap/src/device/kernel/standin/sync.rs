//! What the stand-in does when rings are synced: packets go to the wire, to the host, through
//! switches and pipes.

use std::{io, os::fd::RawFd};

use super::{
    State,
    adapter::{Kind, errno},
    kring::Packet,
    wakeup,
};
use crate::abi::{NS_BUF_CHANGED, NS_MOREFRAG, netmap_slot};

impl State {
    /// NIOCTXSYNC and NIOCRXSYNC: all rings of one direction that the descriptor is bound to.
    pub(super) fn sync(&mut self, fd: RawFd, tx: bool) -> io::Result<()> {
        let binding = self.descriptors.get(&fd).ok_or_else(|| errno(libc::EBADF))?;
        let binding = binding.as_ref().ok_or_else(|| errno(libc::ENXIO))?;
        let name = binding.port.clone();
        let (t, r) = binding.selection.clone();
        let port = self.ports.get(&name).ok_or_else(|| errno(libc::EIO))?;
        if matches!(port.kind, Kind::Nic) && !self.nics.contains_key(&name) {
            return Err(errno(libc::EIO));
        }
        if !tx {
            wakeup::drain(fd);
        }
        for ring in if tx { t } else { r } {
            self.spoil(&name, tx, ring);
            if tx {
                self.sync_tx(&name, ring);
            } else if self.sync_rx(&name, ring) {
                wakeup::wake(fd);
            }
        }
        Ok(())
    }

    /// Does what [`super::StandIn::spoil_head`] has asked for.
    fn spoil(&mut self, name: &str, tx: bool, index: usize) {
        let Some((port, _, _, head)) = self.spoiled.take_if(|s| (&*s.0, s.1, s.2) == (name, tx, index))
        else {
            return;
        };
        if let Some(port) = self.ports.get(&port)
            && let Some(memory) = self.memories.get_mut(&port.mem_id)
            && let Some(ring) = (if tx { &port.tx } else { &port.rx })[index].ring
        {
            memory.set_head(ring, head);
        }
    }

    /// Syncs one receive ring; gives whether packets wait in it or for it.
    fn sync_rx(&mut self, name: &str, index: usize) -> bool {
        let Some(port) = self.ports.get_mut(name) else { return false };
        let Some(memory) = self.memories.get_mut(&port.mem_id) else { return false };
        let kring = &mut port.rx[index];
        let Some(ring) = kring.ring else { return false };
        kring.prologue(memory, ring);
        if let Kind::Pipe(peer) = &port.kind {
            let peer = peer.clone();
            self.sync_pipe_rx(name, &peer, index);
        } else {
            kring.fill(memory, ring, &mut self.skipped);
        }
        let Some(port) = self.ports.get_mut(name) else { return false };
        let Some(memory) = self.memories.get_mut(&port.mem_id) else { return false };
        let kring = &mut port.rx[index];
        kring.finish(memory, ring);
        !kring.queue.is_empty() || kring.hwcur != kring.hwtail
    }

    fn sync_tx(&mut self, name: &str, index: usize) {
        let Some(port) = self.ports.get_mut(name) else { return };
        let Some(memory) = self.memories.get_mut(&port.mem_id) else { return };
        let (host, num_rx) = (index >= usize::from(port.num_tx), usize::from(port.num_rx));
        let kring = &mut port.tx[index];
        let Some(ring) = kring.ring else { return };
        if !kring.prologue(memory, ring) {
            return;
        }
        if let Kind::Pipe(peer) = &port.kind {
            let peer = peer.clone();
            self.sync_pipe_tx(name, &peer, index);
        } else {
            let packets = kring.take(memory, ring, &mut self.skipped);
            if !self.nics.get(name).is_some_and(|nic| nic.stuck && !host) {
                kring.hwtail = kring.prev(kring.hwcur);
            }
            match port.kind {
                Kind::Vale => self.switch(name, index % num_rx, packets),
                _ if host => {
                    if let Some(nic) = self.nics.get_mut(name) {
                        nic.to_host.extend(packets.into_iter().map(|p| p.0));
                    }
                }
                _ => self.transmit(name, index, packets),
            }
        }
        if let Some(port) = self.ports.get_mut(name)
            && let Some(memory) = self.memories.get_mut(&port.mem_id)
        {
            port.tx[index].finish(memory, ring);
        }
    }

    /// Out by the wire.
    fn transmit(&mut self, name: &str, ring: usize, packets: Vec<Packet>) {
        let Some(nic) = self.nics.get_mut(name) else { return };
        if nic.stuck {
            return;
        }
        if !nic.carrier {
            nic.sent_without_carrier += packets.len();
            return;
        }
        let Some(peer) = nic.peer.clone() else {
            nic.sent.extend(packets.into_iter().map(|p| p.0));
            return;
        };
        let rings = self.ports.get(&peer).map_or(1, |p| usize::from(p.num_rx));
        for (bytes, flags) in packets {
            self.arrive(&peer, ring % rings, (bytes, flags & NS_MOREFRAG), usize::MAX);
        }
    }

    /// Through a VALE switch: by the port number in the flags if there is one, else by MAC address,
    /// else to all other ports. A full ring loses packets.
    fn switch(&mut self, from: &str, ring: usize, packets: Vec<Packet>) {
        let Some(switch) = from.split_once(':').and_then(|(s, _)| self.switches.get_mut(s)) else { return };
        let mut deliveries = Vec::new();
        for (bytes, flags) in packets {
            let mac = |at: usize| bytes.get(at..at + 6).and_then(|m| <[u8; 6]>::try_from(m).ok());
            if let Some(source) = mac(6) {
                switch.macs.insert(source, from.into());
            }
            let forced = (flags >> 8 != 0).then(|| switch.ports.get(usize::from(flags >> 8)).cloned());
            let known = mac(0).and_then(|m| switch.macs.get(&m)).cloned();
            let targets = match (forced, known) {
                (Some(port), _) => port.into_iter().collect(),
                (None, Some(port)) => vec![port],
                (None, None) => switch.ports.clone(),
            };
            let targets = targets.into_iter().filter(|port| port != from);
            deliveries.extend(targets.map(|port| (port, (bytes.clone(), flags & NS_MOREFRAG))));
        }
        for (port, packet) in deliveries {
            let Some(to) = self.ports.get(&port) else { continue };
            let ring = ring % usize::from(to.num_rx);
            let room = to.rx[ring].room();
            if !self.arrive(&port, ring, packet, room) {
                self.dropped += 1;
            }
        }
    }

    /// Hands slots over to the other end of a pipe: the very slots, by index. Only whole packets
    /// are shown there.
    fn sync_pipe_tx(&mut self, name: &str, peer: &str, index: usize) {
        let Some(their_ring) = self.ports.get(peer).and_then(|p| p.rx[index].ring) else { return };
        let Some(port) = self.ports.get_mut(name) else { return };
        let Some(memory) = self.memories.get_mut(&port.mem_id) else { return };
        let tx = &mut port.tx[index];
        let Some(ring) = tx.ring else { return };
        tx.hwtail = tx.pipe_tail;
        let mut whole = None;
        while tx.hwcur != tx.rhead {
            let slot = memory.slot(ring, tx.hwcur);
            memory.set_slot(their_ring, tx.hwcur, slot);
            memory.set_slot(ring, tx.hwcur, netmap_slot { flags: slot.flags & !NS_BUF_CHANGED, ..slot });
            tx.hwcur = tx.next(tx.hwcur);
            if slot.flags & NS_MOREFRAG == 0 {
                whole = Some(tx.hwcur);
            }
        }
        if let (Some(whole), Some(peer_port)) = (whole, self.ports.get_mut(peer)) {
            peer_port.rx[index].pipe_tail = whole;
            self.wake(peer, index);
        }
    }

    /// Takes in what the other end has handed over, and gives it back the slots given back here.
    fn sync_pipe_rx(&mut self, name: &str, peer: &str, index: usize) {
        let Some(their_ring) = self.ports.get(peer).and_then(|p| p.tx[index].ring) else { return };
        let Some(port) = self.ports.get_mut(name) else { return };
        let Some(memory) = self.memories.get_mut(&port.mem_id) else { return };
        let rx = &mut port.rx[index];
        let Some(ring) = rx.ring else { return };
        rx.hwtail = rx.pipe_tail;
        if rx.hwcur == rx.rhead {
            return;
        }
        while rx.hwcur != rx.rhead {
            let slot = memory.slot(ring, rx.hwcur);
            memory.set_slot(their_ring, rx.hwcur, slot);
            memory.set_slot(ring, rx.hwcur, netmap_slot { flags: slot.flags & !NS_BUF_CHANGED, ..slot });
            rx.hwcur = rx.next(rx.hwcur);
        }
        let freed = rx.prev(rx.hwcur);
        if let Some(peer_port) = self.ports.get_mut(peer) {
            peer_port.tx[index].pipe_tail = freed;
        }
    }
}
