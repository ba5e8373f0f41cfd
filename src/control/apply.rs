//! From the RIB's changes to the tables that workers read.

use crate::tables::{Group, PortTable, Tables, fib4::FibFull};

use super::rib::{Changes, Rib};

/// Prefixes in one batch from which on a FIB is built anew instead of patched, if they are also a
/// good part of the table.
const MANY: usize = 4096;

/// Whether to build anew: patching each of `changed` prefixes costs more than going through `all`.
fn is_many(changed: usize, all: usize) -> bool {
    changed > MANY && changed > all / 8
}

/// Brings `tables` up to what `rib` holds, in so far as `changes` says. To be called for both
/// instances with the same RIB. With `whole` the FIBs are built anew whatever has changed.
///
/// # Errors
/// When a FIB is full: it then still holds what it held before; everything else is done.
pub fn apply(tables: &mut Tables, rib: &Rib, changes: &Changes, whole: bool) -> Result<(), FibFull> {
    for &port in &changes.ports {
        let Some(table) = rib.port(port) else { continue };
        while tables.ports.len() <= usize::from(port) {
            tables.ports.push(PortTable::default());
        }
        tables.ports[usize::from(port)] = table.clone();
    }
    for &id in &changes.next_hops {
        let (hop, info) = rib.next_hop(id);
        tables.next_hops[usize::from(id)] = hop;
        tables.info[usize::from(id)] = info;
        tables.show_group_of(id);
    }
    for &place in &changes.groups {
        let Some(buckets) = rib.group(place) else { continue };
        while tables.groups.len() <= usize::from(place) {
            tables.groups.push(Group { buckets: [0; 256], ports: Vec::new() });
        }
        let group = &mut tables.groups[usize::from(place)];
        group.buckets = *buckets;
        group.ports = rib.group_ports(place).to_vec();
        tables.show_group(place);
    }
    if changes.local {
        tables.local = rib.local().into_iter().collect();
        rib.for_host().into_iter().for_each(|address| tables.local.watch(address));
    }
    let (v4, v6) = (&rib.v4().installed, &rib.v6().installed);
    let done4 = if whole || is_many(changes.prefixes4.len(), v4.len()) {
        tables.fib4.build(v4)
    } else {
        tables.fib4.update_all(v4, &changes.prefixes4)
    };
    let done6 = if whole || is_many(changes.prefixes6.len(), v6.len()) {
        tables.fib6.build(v6)
    } else {
        tables.fib6.update_all(v6, &changes.prefixes6)
    };
    done4.and(done6)
}
