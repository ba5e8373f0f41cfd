//! Packets through the device's queues.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{
    abi::{NS_BUF_CHANGED, NS_MOREFRAG},
    device::Host,
    queue::{SyncError, Wait},
};

fn host(port: &mut Port) -> (&mut TxQueue, &mut RxQueue) {
    match &mut port.host {
        Host::Rings { to, from } => (&mut to[0], &mut from[0]),
        _ => panic!("no host rings"),
    }
}

#[test]
fn every_ring_of_an_interface_moves_packets_and_so_do_its_host_rings() {
    let kernel = kernel_with(&[("ix0", Nic { rx_rings: 2, tx_rings: 2, ..Nic::default() })]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    assert_eq!((port.rx.len(), port.tx.len()), (2, 2));
    for ring in 0..2 {
        assert!(kernel.receive("ix0", ring, &frame(1, 9, 60, ring as u8)));
    }
    for ring in 0..2 {
        assert_eq!(drain(&mut port.rx[ring]), [frame(1, 9, 60, ring as u8)]);
        send(&mut port.tx[ring], &frame(9, 1, 64, ring as u8));
    }
    assert_eq!(kernel.sent("ix0"), [frame(9, 1, 64, 0), frame(9, 1, 64, 1)]);
    assert!(kernel.host_sends("ix0", &frame(9, 1, 60, 7)));
    let (to, from) = host(&mut port);
    assert_eq!(drain(from), [frame(9, 1, 60, 7)]);
    send(to, &frame(1, 9, 60, 8));
    assert_eq!(kernel.host_received("ix0"), [frame(1, 9, 60, 8)]);
    assert!(kernel.sent("ix0").is_empty());
}

#[test]
fn uneven_numbers_of_rings_leave_half_pairs() {
    let nics = [
        ("a0", Nic { rx_rings: 3, tx_rings: 1, host_rings: 2, ..Nic::default() }),
        ("b0", Nic { rx_rings: 1, tx_rings: 3, host_rings: 0, ..Nic::default() }),
    ];
    let kernel = kernel_with(&nics);
    let [mut a, mut b] = open(&kernel, ["netmap:a0", "netmap:b0"]);
    assert_eq!((a.rx.len(), a.tx.len(), b.rx.len(), b.tx.len()), (3, 1, 1, 3));
    let Host::Rings { to, from } = &a.host else { panic!("a0 has host rings") };
    assert_eq!((to.len(), from.len()), (2, 2));
    assert!(matches!(b.host, Host::Builtin));
    kernel.receive("a0", 2, &frame(1, 9, 60, 2));
    assert_eq!(drain(&mut a.rx[2]), [frame(1, 9, 60, 2)]);
    send(&mut b.tx[2], &frame(9, 1, 60, 5));
    assert_eq!(kernel.sent("b0"), [frame(9, 1, 60, 5)]);
}

#[test]
fn a_name_can_choose_one_ring_or_the_host_rings() {
    let kernel = kernel_with(&[("ix0", Nic { rx_rings: 4, tx_rings: 4, ..Nic::default() })]);
    let [mut one] = open(&kernel, ["netmap:ix0-2"]);
    assert_eq!((one.rx.len(), one.tx.len()), (1, 1));
    assert!(matches!(one.host, Host::Rings { .. }));
    kernel.receive("ix0", 2, &frame(1, 9, 60, 2));
    assert!(!kernel.receive("ix0", 1, &frame(1, 9, 60, 1)), "ring 1 is not bound");
    assert_eq!(drain(&mut one.rx[0]), [frame(1, 9, 60, 2)]);
    drop(one);
    let [mut host] = open(&kernel, ["netmap:ix0^"]);
    kernel.host_sends("ix0", &frame(9, 1, 60, 3));
    assert_eq!(drain(&mut host.rx[0]), [frame(9, 1, 60, 3)]);
    send(&mut host.tx[0], &frame(1, 9, 60, 4));
    assert_eq!(kernel.host_received("ix0"), [frame(1, 9, 60, 4)]);
}

#[test]
fn interfaces_share_memory_and_exchange_buffers() {
    let kernel = kernel_with(&[("a0", Nic::default()), ("b0", Nic::default())]);
    let [mut a, mut b] = open(&kernel, ["netmap:a0", "netmap:b0"]);
    let before = buffers(&[&a, &b]);
    let inside = |port: &Port| buffers(&[port]);
    let of_a = inside(&a);
    let mut expected = Vec::new();
    for round in 0..40u8 {
        for i in 0..25u8 {
            let packet = frame(2, 1, 60 + usize::from(i), round ^ i);
            assert!(kernel.receive("a0", 0, &packet));
            expected.push(packet);
        }
        assert_eq!(forward(&mut a.rx[0], &mut b.tx[0]), 25);
        assert_eq!(kernel.slot("b0", true, 0, 0).unwrap().flags & NS_BUF_CHANGED, 0);
    }
    assert_eq!(kernel.sent("b0"), expected);
    assert_eq!(buffers(&[&a, &b]), before);
    assert_ne!(inside(&a), of_a, "the buffers have not moved");
    let free = kernel.free_bufs(1);
    drop((a, b));
    // Two ports of a ring pair and a host ring pair each, of 64 slots.
    assert_eq!(kernel.free_bufs(1), free + 2 * 4 * 64);
}

#[test]
fn ports_opened_together_share_memory_across_kinds() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut vale, mut nic, pipe] = open(&kernel, ["vale0:a", "netmap:ix0", "netmap:p{1"]);
    assert_eq!(vale.info.device, "netmap:vale0:a");
    let arena = nic.rx[0].ring.view().arena();
    assert!([&vale, &pipe].iter().all(|p| p.rx[0].ring.view().arena() == arena));
    let [mut other] = open(&kernel, ["vale0:b"]);
    assert_ne!(other.rx[0].ring.view().arena(), arena);
    // In by the interface, through the switch, to a port with memory of its own, by exchange.
    let before = buffers(&[&vale, &nic]);
    kernel.receive("ix0", 0, &frame(7, 1, 80, 3));
    assert_eq!(forward(&mut nic.rx[0], &mut vale.tx[0]), 1);
    assert_eq!(buffers(&[&vale, &nic]), before);
    // And back from the other memory, by copy.
    let theirs = buffers(&[&other]);
    other.rx[0].sync().unwrap();
    assert_eq!(other.rx[0].ring.available(), 1);
    assert_eq!(forward(&mut other.rx[0], &mut nic.tx[0]), 1);
    assert_eq!((buffers(&[&other]), buffers(&[&vale, &nic])), (theirs, before));
    assert_eq!(kernel.sent("ix0"), [frame(7, 1, 80, 3)]);
}

#[test]
fn flags_of_received_slots_never_reach_a_switch() {
    let kernel = kernel_with(&[]);
    let [mut a, mut b, mut c, mut d] = open(&kernel, ["vale0:a", "vale0:b", "vale1:c", "vale1:d"]);
    send(&mut a.tx[0], &frame(9, 1, 60, 5));
    b.rx[0].sync().unwrap();
    assert_eq!(kernel.slot("vale0:b", false, 0, 0).unwrap().flags, 0x0100);
    // With the fragment count in its flags the packet would go to port 1 of the switch, or nowhere.
    assert_eq!(forward(&mut b.rx[0], &mut c.tx[0]), 1);
    assert_eq!(drain(&mut d.rx[0]), [frame(9, 1, 60, 5)]);
}

#[test]
fn a_switch_learns_and_drops_at_full_rings() {
    let kernel = kernel_with(&[]);
    let [mut a, mut b, mut c] = open(&kernel, ["vale0:a", "vale0:b", "vale0:c"]);
    send(&mut b.tx[0], &frame(9, 2, 60, 0));
    assert_eq!((drain(&mut a.rx[0]).len(), drain(&mut c.rx[0]).len()), (1, 1));
    for i in 0..=255 {
        assert!(a.tx[0].ring.send(&frame(2, 1, 60, i)));
    }
    a.tx[0].sync().unwrap();
    assert_eq!(a.tx[0].ring.space(), 1023);
    assert_eq!(drain(&mut c.rx[0]).len(), 0);
    for _ in 0..4 {
        (0..=255).for_each(|i| assert!(a.tx[0].ring.send(&frame(2, 1, 60, i))));
        a.tx[0].sync().unwrap();
    }
    assert_eq!(drain(&mut b.rx[0]).len(), 1023);
    assert_eq!(kernel.dropped(), 5 * 256 - 1023);
}

#[test]
fn a_pipe_carries_both_ways_and_holds_back_when_full() {
    let kernel = kernel_with(&[]);
    let options = OpenOptions { slots: Some(16), rings: Some(2), ..OpenOptions::default() };
    let requests = [(spec("netmap:p{1"), options.clone()), (spec("netmap:p}1"), options)];
    let mut ends = open_all_with(&dynamic(&kernel), &requests).unwrap();
    let mut b = ends.pop().unwrap();
    let mut a = ends.pop().unwrap();
    assert_eq!((a.rx.len(), b.tx.len()), (2, 2));
    assert_eq!(a.rx[0].ring.view().arena(), b.rx[0].ring.view().arena());
    let mine: BTreeSet<u32> = a.tx[1].ring.view().buffer_indices().into_iter().collect();
    for round in 0..10 {
        for i in 0..15 {
            assert!(a.tx[1].ring.send(&frame(2, 1, 60, i)), "round {round}, packet {i}");
        }
        a.tx[1].sync().unwrap();
        assert_eq!(a.tx[1].ring.space(), 0);
        assert!(!a.tx[1].ring.send(&[0; 60]));
        a.tx[1].sync().unwrap();
        assert_eq!(drain(&mut b.rx[1]).len(), 15);
        a.tx[1].sync().unwrap();
        assert_eq!(a.tx[1].ring.space(), 15);
    }
    assert_eq!(a.tx[1].ring.view().buffer_indices().into_iter().collect::<BTreeSet<_>>(), mine);
    send(&mut b.tx[0], &frame(1, 2, 60, 9));
    assert_eq!(drain(&mut a.rx[0]), [frame(1, 2, 60, 9)]);
}

#[test]
fn buffers_go_through_a_pipe_and_come_back_as_others() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut nic, mut a, mut b] = open(&kernel, ["netmap:ix0", "netmap:p{1", "netmap:p}1"]);
    let all = |nic: &Port, a: &Port, b: &Port| {
        let mut set = buffers(&[nic]);
        set.extend(a.tx[0].ring.view().buffer_indices());
        set.extend(b.tx[0].ring.view().buffer_indices());
        set
    };
    let before = all(&nic, &a, &b);
    for i in 0..200 {
        kernel.receive("ix0", 0, &frame(2, 1, 60, i));
        assert_eq!(forward(&mut nic.rx[0], &mut a.tx[0]), 1);
        assert_eq!(forward(&mut b.rx[0], &mut nic.tx[0]), 1);
        a.tx[0].sync().unwrap();
        assert_eq!(kernel.sent("ix0"), [frame(2, 1, 60, i)]);
    }
    assert_eq!(all(&nic, &a, &b), before);
}

#[test]
fn packets_that_start_at_an_offset_are_whole() {
    let kernel = kernel_with(&[("a0", Nic { offset: 64, ..Nic::default() }), ("b0", Nic::default())]);
    let [mut a, mut b] = open(&kernel, ["netmap:a0", "netmap:b0"]);
    kernel.receive("a0", 0, &frame(1, 9, 70, 3));
    assert_eq!(drain(&mut a.rx[0]), [frame(1, 9, 70, 3)]);
    send(&mut a.tx[0], &frame(9, 1, 90, 4));
    assert_eq!(kernel.sent("a0"), [frame(9, 1, 90, 4)]);
    // A ring that knows no offsets must not get a packet that has one.
    kernel.receive("a0", 0, &frame(2, 9, 71, 5));
    assert_eq!(forward(&mut a.rx[0], &mut b.tx[0]), 1);
    assert_eq!(kernel.sent("b0"), [frame(2, 9, 71, 5)]);
}

#[test]
fn short_frames_are_padded_for_the_wire_only() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut nic, mut a, mut b] = open(&kernel, ["netmap:ix0", "netmap:p{1", "netmap:p}1"]);
    send(&mut nic.tx[0], &[7; 42]);
    assert_eq!(kernel.sent("ix0"), [[vec![7; 42], vec![0; 18]].concat()]);
    send(host(&mut nic).0, &[7; 42]);
    assert_eq!(kernel.host_received("ix0"), [vec![7; 42]]);
    send(&mut a.tx[0], &[7; 42]);
    assert_eq!(forward(&mut b.rx[0], &mut nic.tx[0]), 1);
    assert_eq!(kernel.sent("ix0"), [[vec![7; 42], vec![0; 18]].concat()]);
}

#[test]
fn a_chain_of_slots_is_marked() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    for flags in [NS_MOREFRAG, NS_MOREFRAG, 0, 0] {
        kernel.receive_flagged("ix0", 0, &frame(1, 9, 60, 0), flags);
    }
    let queue = &mut port.rx[0];
    queue.sync().unwrap();
    let continues: Vec<bool> = (0..queue.ring.available())
        // SAFETY: each slot is looked at once, between head and tail.
        .map(|k| unsafe { queue.ring.frame(queue.ring.index(k)) }.unwrap().continues())
        .collect();
    assert_eq!(continues, [true, true, false, false]);
}

#[test]
fn a_transmit_ring_that_never_drains_stops_nothing() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    kernel.set_stuck("ix0", true);
    let sent = (0..1000).filter(|_| {
        let sent = port.tx[0].ring.send(&frame(9, 1, 60, 0));
        port.tx[0].sync().unwrap();
        sent
    });
    assert_eq!(sent.count(), 63);
    assert!(!port.tx[0].pending(), "a ring that does not move must not keep its worker awake");
    kernel.receive("ix0", 0, &frame(1, 9, 60, 1));
    assert_eq!(drain(&mut port.rx[0]).len(), 1);
    send(host(&mut port).0, &frame(1, 9, 60, 2));
    kernel.set_stuck("ix0", false);
    port.tx[0].sync().unwrap();
    assert_eq!(port.tx[0].ring.space(), 63);
}

#[test]
fn a_lone_packet_leaves_at_once() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    send(&mut port.tx[0], &frame(9, 1, 60, 0));
    assert_eq!(kernel.sent("ix0").len(), 1);
    assert!(!port.tx[0].pending());
}

#[test]
fn slots_that_are_not_free_yet_are_asked_for_a_few_times() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    kernel.set_stuck("ix0", true);
    send(&mut port.tx[0], &frame(9, 1, 60, 0));
    let further = (0..100).take_while(|_| {
        let pending = port.tx[0].pending();
        port.tx[0].sync().unwrap();
        pending
    });
    assert!((2..20).contains(&further.count()));
}

#[test]
fn a_full_ring_from_the_host_stops_nothing() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    let sent = (0..10_000).filter(|_| kernel.host_sends("ix0", &frame(9, 1, 60, 0))).count();
    assert!(sent < 10_000);
    host(&mut port).1.sync().unwrap();
    assert_eq!(host(&mut port).1.ring.available(), 63);
    kernel.receive("ix0", 0, &frame(1, 9, 60, 1));
    assert_eq!(drain(&mut port.rx[0]).len(), 1);
    send(&mut port.tx[0], &frame(9, 1, 60, 2));
    assert_eq!(kernel.sent("ix0").len(), 1);
}

#[test]
fn a_ring_that_the_kernel_resets_is_usable_again() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    send(&mut port.tx[0], &frame(9, 1, 60, 0));
    assert!(port.tx[0].ring.send(&frame(9, 1, 60, 1)));
    kernel.spoil_head("ix0", true, 0, 1_000_000);
    assert!(matches!(port.tx[0].sync(), Err(SyncError::Reset)));
    send(&mut port.tx[0], &frame(9, 1, 60, 2));
    let marks: Vec<u8> = kernel.sent("ix0").iter().map(|f| f[59]).collect();
    assert_eq!(marks, [0, 2]);
    for mark in [3, 4] {
        kernel.receive("ix0", 0, &frame(1, 9, 60, mark));
    }
    port.rx[0].sync().unwrap();
    port.rx[0].ring.advance(1);
    kernel.spoil_head("ix0", false, 0, u32::MAX);
    assert!(matches!(port.rx[0].sync(), Err(SyncError::Reset)));
    let marks: Vec<u8> = drain(&mut port.rx[0]).iter().map(|f| f[59]).collect();
    assert_eq!(marks, [3, 4], "what the kernel had not taken back is there again");
}

#[test]
fn a_head_among_the_kernels_slots_is_not_taken() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    kernel.receive("ix0", 0, &frame(1, 9, 60, 3));
    port.rx[0].sync().unwrap();
    kernel.spoil_head("ix0", false, 0, 40);
    assert!(matches!(port.rx[0].sync(), Err(SyncError::Reset)));
}

#[test]
fn bad_slots_are_skipped_and_the_others_go() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    for i in 0..4 {
        assert!(port.tx[0].ring.send(&frame(9, 1, 60, i)));
    }
    kernel.spoil_slot("ix0", true, 0, 1, u32::MAX, 60);
    let good = kernel.slot("ix0", true, 0, 2).unwrap().buf_idx;
    kernel.spoil_slot("ix0", true, 0, 2, good, 5000);
    port.tx[0].sync().unwrap();
    let marks: Vec<u8> = kernel.sent("ix0").iter().map(|f| f[59]).collect();
    assert_eq!((marks, kernel.skipped()), (vec![0, 3], 2));
}

#[test]
fn a_worker_can_sleep_until_a_packet_comes() {
    let kernel = kernel_with(&[("ix0", Nic { rx_rings: 2, tx_rings: 2, ..Nic::default() })]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    let ready = |port: &Port, ring: usize| {
        let Wait::Fd(fd) = port.rx[ring].wait() else { panic!("nothing to poll") };
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    };
    assert!(!ready(&port, 0));
    kernel.receive("ix0", 1, &frame(1, 9, 60, 0));
    assert!(!ready(&port, 0), "ring 0 is woken by a packet for ring 1");
    assert!(ready(&port, 1));
    assert_eq!(drain(&mut port.rx[1]).len(), 1);
    assert!(!ready(&port, 1));
}

#[test]
fn nothing_is_sent_before_the_carrier_is_there() {
    let kernel = kernel_with(&[("ix0", Nic { link_down_on_open: true, ..Nic::default() })]);
    let mut ports =
        open_all_with(&dynamic(&kernel), &[(spec("netmap:ix0"), OpenOptions::default())]).unwrap();
    let port = &mut ports[0];
    assert_eq!(port.control.link_up(), Some(false));
    assert!(port.tx[0].ring.send(&frame(9, 1, 60, 0)));
    for _ in 0..5 {
        port.tx[0].sync().unwrap();
        port.rx[0].sync().unwrap();
        assert_eq!(port.rx[0].wait(), Wait::Nap, "polling would sync");
        std::thread::sleep(Duration::from_millis(5));
    }
    send(host(port).0, &frame(1, 9, 60, 2));
    assert!(port.tx[0].pending(), "the packet must not be forgotten");
    kernel.set_carrier("ix0", true);
    std::thread::sleep(Duration::from_millis(25));
    port.tx[0].sync().unwrap();
    assert_eq!((kernel.sent("ix0").len(), kernel.sent_without_carrier("ix0")), (1, 0));
    assert!(matches!(port.rx[0].wait(), Wait::Fd(_)));
    assert_eq!(port.control.link_up(), Some(true));
}

#[test]
fn the_wait_for_a_carrier_has_an_end() {
    let kernel = kernel_with(&[("ix0", Nic { link_down_on_open: true, ..Nic::default() })]);
    let options = OpenOptions { carrier_wait: Some(Duration::from_millis(30)), ..OpenOptions::default() };
    let mut ports = open_all_with(&dynamic(&kernel), &[(spec("netmap:ix0"), options)]).unwrap();
    assert_eq!(ports[0].rx[0].wait(), Wait::Nap);
    std::thread::sleep(Duration::from_millis(60));
    assert!(matches!(ports[0].rx[0].wait(), Wait::Fd(_)));
    ports[0].tx[0].sync().unwrap();
}

#[test]
fn a_worker_that_ends_leaves_the_port_open() {
    let kernel = kernel_with(&[("ix0", Nic { rx_rings: 2, tx_rings: 2, ..Nic::default() })]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    // The parent, two ring pairs, the host's.
    assert_eq!(kernel.open_descriptors(), 4);
    port.rx.remove(0);
    port.tx.remove(0);
    assert_eq!(kernel.open_descriptors(), 3);
    assert!(!kernel.log().iter().any(|event| event.starts_with("close")));
    for i in 0..100 {
        assert!(kernel.receive("ix0", 1, &frame(1, 9, 60, i)));
        assert_eq!(drain(&mut port.rx[0]), [frame(1, 9, 60, i)]);
    }
}

#[test]
fn a_device_that_vanishes_is_gone() {
    let kernel = kernel_with(&[("ix0", Nic::default())]);
    let [mut port] = open(&kernel, ["netmap:ix0"]);
    kernel.remove_nic("ix0");
    assert!(port.rx[0].sync().unwrap_err().is_gone());
    assert!(port.tx[0].sync().unwrap_err().is_gone());
    assert!(port.control.tend().is_err());
    assert_eq!(port.control.link_up(), None);
}

/// What may happen to a router between two interfaces.
#[derive(Clone, Debug)]
enum Event {
    Arrive { back: bool, n: u8 },
    Forward { back: bool },
    Stick { back: bool, on: bool },
    Reset { back: bool, tx: bool },
}

fn event() -> impl Strategy<Value = Event> {
    let back = any::<bool>();
    prop_oneof![
        (back, 1..80u8).prop_map(|(back, n)| Event::Arrive { back, n }),
        back.prop_map(|back| Event::Forward { back }),
        (back, any::<bool>()).prop_map(|(back, on)| Event::Stick { back, on }),
        (back, any::<bool>()).prop_map(|(back, tx)| Event::Reset { back, tx }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_buffer_is_ever_lost_or_doubled(events in prop::collection::vec(event(), 1..60)) {
        let names = ["a0", "b0"];
        let kernel = kernel_with(&[("a0", Nic::default()), ("b0", Nic::default())]);
        let mut ports = open(&kernel, ["netmap:a0", "netmap:b0"]);
        let before = buffers(&[&ports[0], &ports[1]]);
        for event in events {
            let [a, b] = &mut ports;
            match event {
                Event::Arrive { back, n } => (0..n).for_each(|i| {
                    kernel.receive(names[usize::from(back)], 0, &frame(1, 9, 60, i));
                }),
                Event::Forward { back } => {
                    let (from, to) = if back { (b, a) } else { (a, b) };
                    forward(&mut from.rx[0], &mut to.tx[0]);
                }
                Event::Stick { back, on } => kernel.set_stuck(names[usize::from(back)], on),
                Event::Reset { back, tx } => {
                    kernel.spoil_head(names[usize::from(back)], tx, 0, 9999);
                    let port = if back { b } else { a };
                    let result = if tx { port.tx[0].sync() } else { port.rx[0].sync() };
                    prop_assert!(matches!(result, Ok(()) | Err(SyncError::Reset)));
                }
            }
            let after = buffers(&[&ports[0], &ports[1]]);
            prop_assert_eq!(&after, &before);
        }
    }
}
