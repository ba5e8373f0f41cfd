//! Tests of the packets that wait for a neighbour.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

fn meta(from: PortId) -> Meta {
    Meta { from, to: [10, 0, 0, 1].into(), made: false, priority: Priority::default(), seen: 0 }
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn all(hold: &mut Hold, port: PortId, neighbor: IpAddr) -> Vec<u8> {
    std::iter::from_fn(|| hold.take(port, neighbor).map(|held| held.frame[0])).collect()
}

#[test]
fn rule_38_a_hundred_packets_ask_once_a_second_and_the_last_eight_leave_in_order() {
    let mut hold = Hold::new(Limits::default());
    let (mut asked, mut displaced) = (0, 0);
    for n in 0..100u8 {
        let now = u64::from(n) * 20 * MS;
        hold.ask_again(now, |_, _| asked += 1);
        let pushed = hold.push((3, ip(1)), &[n; 60], meta(1), now).unwrap();
        asked += u32::from(pushed.ask);
        displaced += u32::from(pushed.displaced == Some(meta(1)));
        assert!(hold.len() <= 8);
    }
    assert_eq!((asked, displaced), (2, 92), "two seconds, and all but eight gone");
    assert_eq!(all(&mut hold, 3, ip(1)), (92..100).collect::<Vec<u8>>());
    assert!(hold.is_empty());
}

#[test]
fn a_neighbour_is_one_address_on_one_port() {
    let mut hold = Hold::new(Limits::default());
    let local: IpAddr = "fe80::1".parse().unwrap();
    for (n, port) in [(1, 1), (2, 2), (3, 1)] {
        let pushed = hold.push((port, local), &[n], meta(7), 0).unwrap();
        assert_eq!(pushed.ask, n != 3);
    }
    assert_eq!(all(&mut hold, 1, local), [1, 3]);
    assert_eq!(hold.len(), 1);
    let held = hold.take(2, local).unwrap();
    assert_eq!((held.frame, held.meta, held.port, held.neighbor), (&[2u8][..], meta(7), 2, local));
    assert_eq!(hold.take(2, local), None);
}

#[test]
fn packets_of_one_port_are_taken_out_from_among_the_others() {
    let mut hold = Hold::new(Limits { cells: 16, per_neighbor: 8, cell_len: 64 });
    for n in 0..12u8 {
        // Neighbours 0 and 1 on port 5, neighbour 2 on port 6; received on ports 0 and 1.
        let port = if n % 3 == 2 { 6 } else { 5 };
        hold.push((port, ip(n % 3)), &[n], meta((n / 6).into()), n.into()).unwrap();
    }
    let count = |hold: &mut Hold, of: PortId| {
        std::iter::from_fn(|| hold.take_where(|port, meta| port == of || meta.from == of)).count()
    };
    assert_eq!((count(&mut hold, 1), hold.len()), (6, 6));
    assert_eq!(all(&mut hold, 5, ip(0)), [0, 3]);
    assert_eq!((count(&mut hold, 6), hold.len()), (2, 2));
    for n in 20..26 {
        hold.push((5, ip(1)), &[n], meta(9), n.into()).unwrap();
    }
    assert_eq!((count(&mut hold, 0), all(&mut hold, 5, ip(1))), (2, vec![20, 21, 22, 23, 24, 25]));
    assert!(hold.is_empty());
    // The last of a queue went: the queue goes on behind what is now last.
    for (n, from) in [(1, 3), (2, 4)] {
        hold.push((5, ip(1)), &[n], meta(from), 30).unwrap();
    }
    assert_eq!(count(&mut hold, 4), 1);
    hold.push((5, ip(1)), &[3], meta(3), 31).unwrap();
    assert_eq!(all(&mut hold, 5, ip(1)), [1, 3]);
}

#[test]
fn a_full_pool_gives_up_its_oldest_packet_for_the_newest() {
    let mut hold = Hold::new(Limits { cells: 4, per_neighbor: 3, cell_len: 64 });
    for n in 0..4u8 {
        assert_eq!(hold.push((0, ip(n)), &[n], meta(n.into()), n.into()).unwrap().displaced, None);
    }
    let pushed = hold.push((0, ip(9)), &[9], meta(9), 9).unwrap();
    assert_eq!((pushed.displaced, hold.len()), (Some(meta(0)), 4));
    assert!(all(&mut hold, 0, ip(0)).is_empty());
    assert_eq!(all(&mut hold, 0, ip(9)), [9]);
}

#[test]
fn a_scan_of_a_prefix_neither_grows_the_hold_nor_shuts_others_out() {
    let mut hold = Hold::new(Limits::default());
    for n in 0..100_000u32 {
        hold.push((0, IpAddr::from(n.to_be_bytes())), &[1; 60], meta(0), u64::from(n)).unwrap();
        assert!(hold.len() <= 512);
    }
    assert!(hold.push((1, ip(1)), &[42], meta(1), 100_000).unwrap().ask);
    assert_eq!(all(&mut hold, 1, ip(1)), [42]);
}

#[test]
fn the_next_packet_after_a_failure_asks_again_but_not_within_the_second() {
    let mut hold = Hold::new(Limits::default());
    assert!(hold.push((0, ip(1)), &[1], meta(0), 0).unwrap().ask);
    assert_eq!(all(&mut hold, 0, ip(1)), [1], "failed: answered and gone");
    assert!(!hold.push((0, ip(1)), &[2], meta(0), 999 * MS).unwrap().ask);
    let mut asked = Vec::new();
    hold.ask_again(999 * MS, |port, neighbor| asked.push((port, neighbor)));
    assert!(asked.is_empty());
    hold.ask_again(1000 * MS, |port, neighbor| asked.push((port, neighbor)));
    hold.ask_again(1001 * MS, |port, neighbor| asked.push((port, neighbor)));
    assert_eq!(asked, [(0, ip(1))]);
}

#[test]
fn packets_expire_oldest_first_and_only_when_they_are_too_old() {
    let mut hold = Hold::new(Limits::default());
    for n in 0..4u8 {
        hold.push((0, ip(n % 2)), &[n], meta(0), u64::from(n) * MS).unwrap();
    }
    assert!(hold.expire(4 * MS, 4 * MS).is_none());
    let mut gone = Vec::new();
    while let Some(held) = hold.expire(6 * MS, 4 * MS) {
        gone.push((held.frame[0], held.neighbor, held.since));
    }
    assert_eq!(gone, [(0, ip(0), 0), (1, ip(1), MS)]);
    assert_eq!(all(&mut hold, 0, ip(0)), [2]);
    assert_eq!(all(&mut hold, 0, ip(1)), [3]);
}

#[test]
fn a_frame_longer_than_a_cell_is_refused() {
    let mut hold = Hold::new(Limits::default());
    assert_eq!(hold.push((0, ip(1)), &[0; 2049], meta(0), 0), Err(NoRoom));
    assert!(hold.push((0, ip(1)), &[0; 2048], meta(0), 0).is_ok());
    let mut none = Hold::new(Limits { cells: 0, ..Limits::default() });
    assert_eq!(none.push((0, ip(1)), &[0], meta(0), 0), Err(NoRoom));
    assert!(none.take(0, ip(1)).is_none() && none.expire(9, 0).is_none());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(u8),
    Take(u8),
    TakeAll(u8),
    Expire,
    AskAgain,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..12u8).prop_map(Step::Push),
        1 => (0..12u8).prop_map(Step::Take),
        1 => (0..12u8).prop_map(Step::TakeAll),
        1 => Just(Step::Expire),
        1 => Just(Step::AskAgain),
    ]
}

proptest! {
    #[test]
    fn it_does_what_a_plain_list_does(steps in prop::collection::vec((step(), 0..400u64), 1..300)) {
        let mut hold = Hold::new(Limits { cells: 9, per_neighbor: 3, cell_len: 4 });
        let mut model: VecDeque<(u8, u8, u64)> = VecDeque::new();
        let mut asked: HashMap<IpAddr, u64> = HashMap::new();
        let (mut now, mut serial) = (0, 0u8);
        for (step, pause) in steps {
            now += pause * MS;
            match step {
                Step::Push(n) => {
                    serial = serial.wrapping_add(1);
                    let pushed = hold.push((0, ip(n)), &[serial], meta(serial.into()), now).unwrap();
                    let own = model.iter().filter(|m| m.0 == n).count();
                    let goes = if own == 3 { model.iter().position(|m| m.0 == n) } else { (model.len() == 9).then_some(0) };
                    let gone = goes.and_then(|at| model.remove(at));
                    prop_assert_eq!(pushed.displaced, gone.map(|m| meta(m.1.into())));
                    model.push_back((n, serial, now));
                    if pushed.ask { prop_assert!(asked.insert(ip(n), now).is_none_or(|at| now - at >= ASK_EVERY) || asked.len() > 9); }
                }
                Step::Take(n) => {
                    let at = model.iter().position(|m| m.0 == n);
                    let gone = at.and_then(|at| model.remove(at)).map(|m| m.1);
                    prop_assert_eq!(hold.take(0, ip(n)).map(|h| h.frame[0]), gone);
                }
                Step::TakeAll(n) => {
                    let gone: Vec<u8> = model.iter().filter(|m| m.0 == n).map(|m| m.1).collect();
                    model.retain(|m| m.0 != n);
                    prop_assert_eq!(all(&mut hold, 0, ip(n)), gone);
                }
                Step::Expire => {
                    while let Some(held) = hold.expire(now, 900 * MS) {
                        let (n, serial, since) = model.pop_front().unwrap();
                        prop_assert_eq!((held.neighbor, held.frame[0], held.since), (ip(n), serial, since));
                    }
                    prop_assert!(model.front().is_none_or(|m| now - m.2 <= 900 * MS));
                }
                Step::AskAgain => {
                    let mut again = Vec::new();
                    hold.ask_again(now, |_, neighbor| again.push(neighbor));
                    for neighbor in again { prop_assert!(now - asked.insert(neighbor, now).unwrap() >= ASK_EVERY); }
                    for waiting in &model { prop_assert!(now - asked[&ip(waiting.0)] < ASK_EVERY); }
                }
            }
            prop_assert_eq!(hold.len(), model.len());
        }
    }
}
