//! What the tests of `xdp:` ports do with rings and frames.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use netmap::{OpenError, OpenOptions, Port, RxQueue, TxQueue, device::xdp::open_all};

use super::Lab;

/// An interface with all defaults.
pub fn request(interface: &str) -> (String, OpenOptions) {
    (interface.to_owned(), OpenOptions::default())
}

pub fn open(lab: &Lab, interfaces: &[&str]) -> Vec<Port> {
    let requests: Vec<_> = interfaces.iter().map(|i| request(i)).collect();
    lab.within("r", || open_all(&requests)).unwrap()
}

pub fn open_error(lab: &Lab, request: (String, OpenOptions)) -> OpenError {
    match lab.within("r", || open_all(&[request])) {
        Ok(_) => panic!("must not open"),
        Err(e) => e,
    }
}

/// A frame to 198.51.100.1, `size` bytes long, that carries `number`.
pub fn frame(to: [u8; 6], from: [u8; 6], number: u32, size: usize) -> Vec<u8> {
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 253, 0, 0, 10, 0, 0, 2, 198, 51, 100, 1];
    ip[2..4].copy_from_slice(&(size as u16 - 14).to_be_bytes());
    let sum: u32 = ip.as_chunks::<2>().0.iter().map(|w| u32::from(u16::from_be_bytes(*w))).sum();
    ip[10..12].copy_from_slice(&(!((sum >> 16) + (sum & 0xffff)) as u16).to_be_bytes());
    let mut f = [&to[..], &from[..], &[8, 0], &ip[..]].concat();
    f.extend(number.to_be_bytes());
    f.extend((f.len()..size).map(|i| (i as u32 ^ number) as u8));
    f
}

/// Panics, with few words, unless these are the same frames in the same order.
pub fn same(got: &[Vec<u8>], expected: &[Vec<u8>]) {
    let first = got.iter().zip(expected).position(|(a, b)| a != b);
    let lengths = (got.len(), expected.len());
    assert!(got == expected, "of {lengths:?} frames the first wrong one is {first:?}");
}

/// The frames that wait in a queue after a sync, given back at once.
pub fn drain(queue: &mut RxQueue) -> Vec<Vec<u8>> {
    queue.sync().unwrap();
    let n = queue.ring.available();
    // SAFETY: each slot between head and tail is looked at once, and copied.
    let frame = |k| unsafe { queue.ring.frame(queue.ring.index(k)) }.unwrap().bytes().to_vec();
    let frames = (0..n).map(frame).collect();
    queue.ring.advance(n);
    frames
}

/// Frames of a queue until `n` have come; panics after two seconds.
pub fn collect(queue: &mut RxQueue, n: usize) -> Vec<Vec<u8>> {
    let start = Instant::now();
    let mut frames = Vec::new();
    while frames.len() < n {
        frames.extend(drain(queue));
        assert!(start.elapsed() < Duration::from_secs(2), "{} of {n} frames came", frames.len());
    }
    frames
}

/// Syncs until everything handed over is on its way.
pub fn flush(queue: &mut TxQueue) {
    let start = Instant::now();
    queue.sync().unwrap();
    while queue.pending() {
        queue.sync().unwrap();
        assert!(start.elapsed() < Duration::from_secs(1), "packets stay in the transmit ring");
    }
}

/// Every buffer of the ports, each exactly once.
pub fn census(ports: &[Port]) -> HashSet<u32> {
    let rx = ports.iter().flat_map(|p| p.rx.iter().flat_map(RxQueue::buffers));
    let all: Vec<u32> = rx.chain(ports.iter().flat_map(|p| p.tx.iter().flat_map(|q| q.buffers()))).collect();
    let set: HashSet<u32> = all.iter().copied().collect();
    assert_eq!(set.len(), all.len(), "a buffer is in two places");
    set
}
