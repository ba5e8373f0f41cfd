//! A port whose device panics or hangs when it is told to.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use netmap::{
    Arena, Host, Port, PortInfo, RxQueue, RxRing, TxQueue, TxRing,
    device::PortControl,
    queue::{RxDevice, TxDevice},
    ring::Direction,
};

/// What the device does at its next sync.
#[derive(Default)]
pub struct Mischief {
    /// Panics, once.
    pub panic: AtomicBool,
    /// Hangs, while this is set.
    pub hang: AtomicBool,
}

struct Bad(Arc<Mischief>);

impl RxDevice for Bad {
    fn sync(&mut self) -> io::Result<()> {
        assert!(!self.0.panic.swap(false, Ordering::Relaxed), "a fault on purpose");
        while self.0.hang.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

struct Sink;

impl TxDevice for Sink {
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Nothing;

impl PortControl for Nothing {}

/// A port whose device does mischief.
pub fn bad_port(mischief: &Arc<Mischief>) -> Port {
    let mut arena = Arena::new(2, 16, 0).unwrap();
    let rx = RxRing::new(arena.ring(Direction::Rx, 8, 0));
    let tx = TxRing::new(arena.ring(Direction::Tx, 8, 0));
    let (device, mode) = ("bad".to_owned(), "bad".into());
    Port {
        info: PortInfo { device, interface: None, mac: None, max_frame: 2048, mode },
        rx: vec![RxQueue::new(rx, Box::new(Bad(mischief.clone())))],
        tx: vec![TxQueue::new(tx, Box::new(Sink))],
        host: Host::Builtin,
        control: Box::new(Nothing),
    }
}
