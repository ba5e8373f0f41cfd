//! `pipe:name`: two ends in one process, with the semantics of netmap's pipes.
//!
//! What one end's transmit ring is handed appears in the other end's receive ring without a
//! copy: the transmit sync exchanges the buffers of the two rings' slots. A full receive ring
//! leaves packets waiting in the transmit ring; nothing is dropped. The two ends may live in
//! different threads.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Host, OpenError, OpenOptions, Port, PortControl, PortInfo};
use crate::{
    arena::{Arena, BUF_SIZE},
    queue::{RxDevice, RxQueue, TxDevice, TxQueue},
    ring::{Direction, Kring, RxRing, TxRing},
};

/// Slots per ring when nobody says otherwise.
pub const DEFAULT_SLOTS: u32 = 1024;

/// The device's side of one receive ring. Its owner's sync moves what was given back, the other
/// end's transmit sync fills it; the lock is taken once a sync.
type Lane = Arc<Mutex<Kring>>;

fn lock(lane: &Lane) -> MutexGuard<'_, Kring> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

struct PipeRx {
    lane: Lane,
}

impl RxDevice for PipeRx {
    fn sync(&mut self) -> io::Result<()> {
        let mut ring = lock(&self.lane);
        while ring.take().is_some() {}
        ring.publish();
        Ok(())
    }
}

struct PipeTx {
    ring: Kring,
    lane: Lane,
}

impl TxDevice for PipeTx {
    fn sync(&mut self) -> io::Result<()> {
        let mut peer = lock(&self.lane);
        while let Some(to) = peer.next_to_give() {
            let Some(from) = self.ring.take() else { break };
            let empty = to.buf_idx;
            *to = crate::abi::netmap_slot { flags: 0, ..*from };
            *from = crate::abi::netmap_slot { buf_idx: empty, len: 0, flags: 0, ptr: 0 };
            peer.give();
        }
        while self.ring.room() > 0 {
            self.ring.give();
        }
        self.ring.publish();
        Ok(())
    }

    fn pending(&self) -> bool {
        self.ring.handed() > 0
    }
}

struct PipeControl;

impl PortControl for PipeControl {}

/// Number of rings and slots that [`pair`] takes from an arena, for [`Arena::new`].
pub const fn needs(rings: u32, slots: u32) -> (usize, u32) {
    (4 * rings as usize, 4 * rings * slots)
}

/// Both ends of a pipe with `rings` ring pairs of `slots` slots, in `arena`. Ports whose pipes
/// share an arena exchange buffers.
pub fn pair(arena: &mut Arena, name: &str, rings: u32, slots: u32) -> (Port, Port) {
    let mut ends: [(Vec<RxQueue>, Vec<TxQueue>); 2] = Default::default();
    for k in 0..rings {
        let mut lanes = Vec::new();
        for end in &mut ends {
            let view = arena.ring(Direction::Rx, slots, k as u16);
            let lane: Lane = Arc::new(Mutex::new(Kring::new(view.clone())));
            lanes.push(lane.clone());
            end.0.push(RxQueue::new(RxRing::new(view), Box::new(PipeRx { lane })));
        }
        for (end, lane) in ends.iter_mut().zip(lanes.into_iter().rev()) {
            let view = arena.ring(Direction::Tx, slots, k as u16);
            let device = PipeTx { ring: Kring::new(view.clone()), lane };
            end.1.push(TxQueue::new(TxRing::new(view), Box::new(device)));
        }
    }
    let [a, b] = ends.map(|(rx, tx)| Port {
        info: PortInfo {
            device: format!("pipe:{name}"),
            interface: None,
            mac: None,
            max_frame: BUF_SIZE,
            mode: "pipe".into(),
        },
        rx,
        tx,
        host: Host::Builtin,
        control: Box::new(PipeControl),
    });
    (a, b)
}

/// Rings and slots, within reason.
fn shape(options: &OpenOptions) -> (u32, u32) {
    (options.rings.unwrap_or(1).clamp(1, 256), options.slots.unwrap_or(DEFAULT_SLOTS).clamp(2, 1 << 16))
}

/// Number of rings and slots that [`open_in`] takes from an arena at most, for [`Arena::new`].
pub fn needs_open(options: &OpenOptions) -> (usize, u32) {
    let (rings, slots) = shape(options);
    needs(rings, slots)
}

/// Opens an end of the pipe `name`: the first to ask gets one end, the second the other, the
/// third begins a new pipe. The first one's options and memory count.
///
/// # Errors
/// When there is not enough memory.
pub fn open(name: &str, options: &OpenOptions) -> Result<Port, OpenError> {
    if let Some(end) = waiting(|waiting| waiting.remove(name)) {
        return Ok(end);
    }
    let (rings, slots) = needs_open(options);
    let mut arena = Arena::new(rings, slots, 0).map_err(|e| OpenError::new(format!("pipe:{name}"), e))?;
    Ok(open_in(&mut arena, name, options))
}

/// As [`open`], in this arena if it is the first end.
///
/// # Panics
/// When the arena has less than [`needs_open`] says.
pub fn open_in(arena: &mut Arena, name: &str, options: &OpenOptions) -> Port {
    waiting(|waiting| {
        waiting.remove(name).unwrap_or_else(|| {
            let (rings, slots) = shape(options);
            let (a, b) = pair(arena, name, rings, slots);
            waiting.insert(name.to_owned(), b);
            a
        })
    })
}

/// The ends that nobody has asked for yet.
fn waiting<T>(act: impl FnOnce(&mut HashMap<String, Port>) -> T) -> T {
    static WAITING: Mutex<Option<HashMap<String, Port>>> = Mutex::new(None);
    act(WAITING.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn all_buffers(ports: &[&Port]) -> Vec<u32> {
        let rx = ports.iter().flat_map(|p| p.rx.iter().flat_map(|q| q.ring.view().buffer_indices()));
        let tx = ports.iter().flat_map(|p| p.tx.iter().flat_map(|q| q.ring.view().buffer_indices()));
        rx.chain(tx).collect()
    }

    #[test]
    fn packets_cross_in_order_and_buffers_are_conserved() {
        let (n, total) = needs(1, 8);
        let mut arena = Arena::new(n, total, 0).unwrap();
        let (mut a, mut b) = pair(&mut arena, "t", 1, 8);
        let before: HashSet<u32> = all_buffers(&[&a, &b]).into_iter().collect();
        assert_eq!(before.len(), 32);
        let (mut sent, mut got) = (0u32, 0u32);
        while got < 1000 {
            while sent < 1000 && a.tx[0].ring.send(&sent.to_be_bytes()) {
                sent += 1;
            }
            a.tx[0].sync().unwrap();
            b.rx[0].sync().unwrap();
            let n = b.rx[0].ring.available();
            for k in 0..n {
                // SAFETY: each slot is looked at once, between head and tail.
                let frame = unsafe { b.rx[0].ring.frame(b.rx[0].ring.index(k)) }.unwrap();
                assert_eq!(frame.bytes(), got.to_be_bytes());
                got += 1;
            }
            b.rx[0].ring.advance(n);
        }
        let after: HashSet<u32> = all_buffers(&[&a, &b]).into_iter().collect();
        assert_eq!(before, after);
    }

    #[test]
    fn a_full_receive_ring_holds_packets_back() {
        let (n, total) = needs(1, 8);
        let mut arena = Arena::new(n, total, 0).unwrap();
        let (mut a, mut b) = pair(&mut arena, "t", 1, 8);
        for round in 0..2 {
            for i in 0..7u8 {
                assert!(a.tx[0].ring.send(&[i]), "round {round}, packet {i}");
            }
            assert!(!a.tx[0].ring.send(&[7]));
            a.tx[0].sync().unwrap();
        }
        assert!(a.tx[0].pending());
        assert_eq!(a.tx[0].ring.space(), 0);
        b.rx[0].sync().unwrap();
        assert_eq!(b.rx[0].ring.available(), 7);
        b.rx[0].ring.advance(7);
        b.rx[0].sync().unwrap();
        a.tx[0].sync().unwrap();
        assert!(!a.tx[0].pending());
        assert_eq!(a.tx[0].ring.space(), 7);
        b.rx[0].sync().unwrap();
        assert_eq!(b.rx[0].ring.available(), 7);
    }

    #[test]
    fn an_impossible_slot_is_no_frame() {
        let (n, total) = needs(1, 8);
        let mut arena = Arena::new(n, total, 0).unwrap();
        let (mut a, b) = pair(&mut arena, "t", 1, 8);
        drop(b);
        let view = a.rx[0].ring.view().clone();
        let mut device = Kring::new(view);
        for bad in [(u32::MAX, 60, 0), (2, 4000, 0), (2, 2000, 100), (arena.num_bufs(), 60, 0)] {
            let slot = device.next_to_give().unwrap();
            (slot.buf_idx, slot.len, slot.ptr) = bad;
            device.give();
        }
        device.publish();
        a.rx[0].ring.refresh().unwrap();
        assert_eq!(a.rx[0].ring.available(), 4);
        for k in 0..4 {
            // SAFETY: each slot is looked at once, between head and tail.
            assert!(unsafe { a.rx[0].ring.frame(a.rx[0].ring.index(k)) }.is_none());
        }
    }
}
