//! The flow table against a map, and its promises one by one.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn end(n: u32) -> End4 {
    End4::new(0x0a00_0000 + (n >> 4), (n & 15) as u16 + 1000)
}

fn table(capacity: usize) -> FlowTable {
    FlowTable::new(capacity, Secret::from_seed(1)).unwrap()
}

fn insert(table: &mut FlowTable, from: u32, to: u32, now: u32) -> Result<FlowId, Full> {
    let (key, swapped) = Key4::new(17, end(from), end(to));
    table.insert(&key, swapped, now, &Timeouts::default())
}

fn find(table: &FlowTable, from: u32, to: u32) -> Option<FlowId> {
    table.find(&Key4::new(17, end(from), end(to)).0)
}

#[test]
fn a_full_table_refuses_new_flows_and_keeps_the_others() {
    let mut table = table(1000);
    for n in 0..1000 {
        insert(&mut table, n, 100_000, 5).unwrap();
    }
    assert_eq!(insert(&mut table, 5000, 100_000, 5), Err(Full));
    assert_eq!(table.len(), 1000);
    assert!((0..1000).all(|n| find(&table, n, 100_000).is_some()));
    assert!((0..1000).all(|n| find(&table, 100_000, n) == find(&table, n, 100_000)));
}

#[test]
fn a_flow_takes_at_most_80_bytes() {
    let table = table(DEFAULT_FLOWS);
    let bytes = table.bytes() as f64 / table.capacity() as f64;
    assert!(bytes <= 80.0, "{bytes}");
}

#[test]
fn a_flow_ends_within_two_seconds_of_its_time_and_not_before() {
    let timeout = Timeouts::default().udp;
    // Times go round in the midst of it.
    let begin = u32::MAX - timeout / 2;
    let mut table = table(10);
    let id = insert(&mut table, 1, 2, begin).unwrap();
    let mut now = begin;
    let mut ended = Vec::new();
    while ended.is_empty() {
        now = now.wrapping_add(100);
        if now.wrapping_sub(begin) == 60_000 {
            table.flow_mut(id).seen = now;
        }
        table.expire(now, 8, |f| f.timeout(&Timeouts::default()), |id, _| ended.push(id));
        assert_eq!(find(&table, 1, 2).is_none(), !ended.is_empty());
    }
    let lived = now.wrapping_sub(begin).wrapping_sub(60_000);
    assert!((timeout..timeout + 2200).contains(&lived), "{lived}");
    assert_eq!((ended, table.len()), (vec![id], 0));
}

#[test]
fn the_sweep_looks_at_no_more_flows_than_it_may() {
    let mut table = table(1000);
    for n in 0..1000 {
        insert(&mut table, n, 100_000, 0).unwrap();
    }
    let mut sweeps = 0;
    while !table.is_empty() {
        let mut ended = 0;
        table.expire(400_000, 8, |f| f.timeout(&Timeouts::default()), |_, _| ended += 1);
        assert!(ended <= 8);
        sweeps += 1;
    }
    assert_eq!(sweeps, 125);
}

#[test]
fn flows_are_found_together_as_one_by_one() {
    let mut table = table(4000);
    for n in 0..4000 {
        insert(&mut table, n, n + 7, 0).unwrap();
    }
    for first in (0..8000).step_by(BATCH) {
        let keys: Vec<Key4> =
            (0..BATCH as u32).map(|k| Key4::new(17, end(first + k + 7), end(first + k)).0).collect();
        let mut found = [0; BATCH];
        table.find_all(&keys, &mut found);
        for (key, id) in keys.iter().zip(found) {
            assert_eq!(table.find(key).unwrap_or(0), id);
        }
    }
}

#[test]
fn both_keys_of_a_translated_flow_lead_to_it_until_it_ends() {
    let mut table = table(10);
    let (inside, remote, external) = (end(1), end(2), End4::new(0xcb00_7101, 2000));
    let id = insert(&mut table, 1, 2, 0).unwrap();
    let translation = Translation { external, remote, mapping: 3, out: 1, rule: 0 };
    table.translate(id, &translation).unwrap();
    let outside = OutsideKey::new(17, external, remote);
    assert_eq!((table.find(&outside), find(&table, 2, 1)), (Some(id), Some(id)));
    assert_eq!(table.flow(id).inside(), inside);
    let other = insert(&mut table, 5, 2, 0).unwrap();
    assert_eq!(table.translate(other, &translation), Err(Full), "the outside key is taken");
    table.remove(id);
    table.remove(id);
    assert_eq!((table.find(&outside), find(&table, 2, 1)), (None, None));
    let mut gone = Vec::new();
    table.expire(
        400_000,
        100,
        |f| f.timeout(&Timeouts::default()),
        |id, flow| {
            gone.push((id, flow.is_translated()));
        },
    );
    gone.sort_unstable();
    assert_eq!(gone, [(id, true), (other, false)]);
}

#[test]
fn a_page_lists_what_is_there() {
    let mut table = table(100);
    let ids: Vec<FlowId> = (0..50).map(|n| insert(&mut table, n, 100, 0).unwrap()).collect();
    table.remove(ids[7]);
    let (mut at, mut seen) = (0, Vec::new());
    loop {
        let (flows, next) = table.page(at, 8);
        seen.extend(flows.map(|(id, _)| id));
        at = next;
        if next == 0 {
            break;
        }
    }
    assert_eq!(seen, ids.iter().copied().filter(|id| *id != ids[7]).collect::<Vec<_>>());
}

/// What happens to a table.
#[derive(Clone, Debug)]
enum Step {
    Insert(u32, u32),
    Translate(u32, u32, u16),
    Remove(u32, u32),
    Packet(u32, u32),
    Pass(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let ends = || (0..12u32, 20..24u32);
    prop_oneof![
        4 => ends().prop_map(|(a, b)| Step::Insert(a, b)),
        2 => (ends(), 0..6u16).prop_map(|((a, b), port)| Step::Translate(a, b, port)),
        1 => ends().prop_map(|(a, b)| Step::Remove(a, b)),
        3 => ends().prop_map(|(a, b)| Step::Packet(a, b)),
        2 => prop_oneof![0..3000u32, 50_000..400_000u32].prop_map(Step::Pass),
    ]
}

/// A flow, as the model has it.
struct Model {
    id: FlowId,
    seen: u64,
    outside: Option<OutsideKey>,
}

proptest! {
    #[test]
    fn it_holds_what_a_map_holds(steps in prop::collection::vec(step(), 1..300), start in any::<u32>()) {
        let mut table = table(24);
        let mut model = HashMap::<(u32, u32), Model>::new();
        let (mut now, timeouts) = (0u64, Timeouts::default());
        let clock = |now: u64| start.wrapping_add(now as u32);
        for step in steps {
            match step {
                Step::Insert(a, b) if !model.contains_key(&(a, b)) => {
                    if let Ok(id) = insert(&mut table, a, b, clock(now)) {
                        model.insert((a, b), Model { id, seen: now, outside: None });
                    } else {
                        prop_assert_eq!(table.len(), 24);
                    }
                }
                Step::Translate(a, b, port) => {
                    let external = End4::new(0xcb00_7101, port);
                    let key = OutsideKey::new(17, external, end(b));
                    let taken = model.values().any(|m| m.outside == Some(key));
                    if let Some(m) = model.get_mut(&(a, b)) {
                        let translation = Translation { external, remote: end(b), mapping: 1, out: 0, rule: 0 };
                        let may = m.outside.is_none() && !taken;
                        prop_assert_eq!(table.translate(m.id, &translation).is_ok(), may);
                        if may {
                            m.outside = Some(key);
                        }
                    }
                }
                Step::Remove(a, b) => {
                    if let Some(m) = model.remove(&(a, b)) {
                        table.remove(m.id);
                    }
                }
                Step::Packet(a, b) => {
                    if let Some(m) = model.get_mut(&(a, b)) {
                        m.seen = now;
                        table.flow_mut(m.id).seen = clock(now);
                    }
                }
                Step::Pass(time) => {
                    now += u64::from(time);
                    table.expire(clock(now), 1000, |f| f.timeout(&timeouts), |_, _| {});
                    // What is over by two lists of the wheel is gone; the rest may still be there.
                    model.retain(|_, m| now - m.seen < u64::from(timeouts.udp) + 2048);
                }
                Step::Insert(..) => {}
            }
            for ((a, b), m) in &model {
                let over = now - m.seen >= u64::from(timeouts.udp);
                prop_assert!(find(&table, *a, *b) == Some(m.id) || over);
                prop_assert!(find(&table, *b, *a) == Some(m.id) || over);
                if let Some(key) = &m.outside {
                    prop_assert!(table.find(key) == Some(m.id) || over);
                }
            }
            // What has ended is forgotten by the model too, before it is entered again.
            model.retain(|(a, b), m| find(&table, *a, *b) == Some(m.id));
            for a in 0..12 {
                for b in 20..24 {
                    prop_assert_eq!(find(&table, a, b).is_some(), model.contains_key(&(a, b)));
                }
            }
        }
    }
}
