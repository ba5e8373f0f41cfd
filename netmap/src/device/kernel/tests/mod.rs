//! The device against the stand-in kernel.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    open_all_with,
    standin::{Nic, StandIn},
    system::System,
};
use crate::{
    device::{Device, DeviceSpec, OpenError, OpenOptions, Port, spec::NetmapSpec},
    queue::{RxQueue, TxQueue},
};

mod abi;
mod packets;
mod setup;

fn dynamic(kernel: &Arc<StandIn>) -> Arc<dyn System> {
    kernel.clone()
}

fn spec(text: &str) -> NetmapSpec {
    match text.parse::<DeviceSpec>().unwrap().device {
        Device::Netmap(spec) => spec,
        other => panic!("{text} is {other:?}"),
    }
}

/// Opens ports without waiting for carriers.
fn try_open(kernel: &Arc<StandIn>, texts: &[&str]) -> Result<Vec<Port>, OpenError> {
    let options = OpenOptions { carrier_wait: Some(std::time::Duration::ZERO), ..OpenOptions::default() };
    let requests: Vec<_> = texts.iter().map(|text| (spec(text), options.clone())).collect();
    open_all_with(&dynamic(kernel), &requests)
}

fn open<const N: usize>(kernel: &Arc<StandIn>, texts: [&str; N]) -> [Port; N] {
    let ports = try_open(kernel, &texts).unwrap_or_else(|e| panic!("{e}"));
    ports.try_into().ok().unwrap()
}

/// The error of an open that must fail.
fn refused(kernel: &Arc<StandIn>, text: &str) -> String {
    try_open(kernel, &[text]).err().unwrap_or_else(|| panic!("{text} was opened")).to_string()
}

fn kernel_with(nics: &[(&str, Nic)]) -> Arc<StandIn> {
    let kernel = StandIn::new();
    for (name, nic) in nics {
        kernel.add_nic(name, nic.clone());
    }
    kernel
}

/// A frame of `len` bytes from `source` to `target`, its last byte `mark`.
fn frame(target: u8, source: u8, len: usize, mark: u8) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, target, 2, 0, 0, 0, 0, source, 0x88, 0xb5]);
    frame[len - 1] = mark;
    frame
}

/// Syncs and takes all packets that are there.
fn drain(queue: &mut RxQueue) -> Vec<Vec<u8>> {
    queue.sync().unwrap();
    let n = queue.ring.available();
    let packets = (0..n).map(|k| {
        // SAFETY: each slot is looked at once, between head and tail.
        unsafe { queue.ring.frame(queue.ring.index(k)) }.unwrap().bytes().to_vec()
    });
    let packets = packets.collect();
    queue.ring.advance(n);
    queue.sync().unwrap();
    packets
}

/// Sends a packet and syncs.
fn send(queue: &mut TxQueue, packet: &[u8]) {
    assert!(queue.ring.send(packet));
    queue.sync().unwrap();
}

/// Moves all packets that wait in `rx` to `tx`; gives how many.
fn forward(rx: &mut RxQueue, tx: &mut TxQueue) -> u32 {
    rx.sync().unwrap();
    let mut moved = 0;
    while moved < rx.ring.available() {
        let index = rx.ring.index(moved);
        // SAFETY: the slot lies between head and tail and is looked at once.
        let len = unsafe { rx.ring.frame(index) }.unwrap().len();
        if !tx.ring.forward(&rx.ring, index, len) {
            break;
        }
        moved += 1;
    }
    rx.ring.advance(moved);
    tx.sync().unwrap();
    rx.sync().unwrap();
    moved
}

/// The buffers of the ports' rings, which must all be different ones.
fn buffers(ports: &[&Port]) -> BTreeSet<u32> {
    let rx = ports.iter().flat_map(|p| p.rx.iter().flat_map(|q| q.ring.view().buffer_indices()));
    let tx = ports.iter().flat_map(|p| p.tx.iter().flat_map(|q| q.ring.view().buffer_indices()));
    let all: Vec<u32> = rx.chain(tx).collect();
    let set: BTreeSet<u32> = all.iter().copied().collect();
    assert_eq!(set.len(), all.len(), "a buffer is in two places");
    set
}
