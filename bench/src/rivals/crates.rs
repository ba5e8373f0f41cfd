//! The lookup structures of two crates.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr},
    time::Instant,
};

use ip_network::{Ipv4Network, Ipv6Network};
use ip_network_table::IpNetworkTable;
use prefix_trie::{Prefix, PrefixMap};
use sweepd::tables::{
    NextHopId,
    prefixes::{Address, Prefixes},
};

use super::{Cost, Measured, Rival, slices, updates};
use crate::heap;

/// The crate `prefix-trie`.
pub struct PrefixTrie<A>
where
    (A, u8): Prefix,
{
    map: PrefixMap<(A, u8), NextHopId>,
    cost: Cost,
}

impl<A: Address> PrefixTrie<A>
where
    (A, u8): Prefix,
{
    /// Holds `prefixes`.
    pub fn new(prefixes: &Prefixes<A>) -> Self {
        let (before, start) = (heap::in_use(), Instant::now());
        let mut map: PrefixMap<(A, u8), NextHopId> =
            prefixes.iter().map(|(address, length, next_hop)| ((address, length), next_hop)).collect();
        let build = start.elapsed().as_secs_f64() * 1e3;
        let bytes = heap::in_use() - before;
        let update = updates(prefixes, |address, length, next_hop| {
            match next_hop {
                Some(next_hop) => map.insert((address, length), next_hop),
                None => map.remove(&(address, length)),
            };
        });
        Self { map, cost: Cost { bytes, build, update: Some(update) } }
    }
}

impl<A: Address> Rival<A> for PrefixTrie<A>
where
    (A, u8): Prefix,
{
    fn name(&self) -> String {
        "prefix-trie".into()
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn measure(&mut self, _at: usize, trace: &[A]) -> io::Result<Measured> {
        let find = |&a: &A| self.map.get_lpm(&(a, A::BITS)).map_or(0, |(_, &n)| u64::from(n));
        Ok(slices(trace, |slice| slice.iter().map(find).sum()))
    }
}

/// The crate `ip_network_table`.
pub struct NetworkTable {
    table: IpNetworkTable<NextHopId>,
    cost: Cost,
}

impl NetworkTable {
    /// Holds IPv4 prefixes.
    pub fn new4(prefixes: &Prefixes<u32>) -> Self {
        Self::new(prefixes, |a, l| Ipv4Network::new(Ipv4Addr::from(a), l).expect("a prefix").into())
    }

    /// Holds IPv6 prefixes.
    pub fn new6(prefixes: &Prefixes<u128>) -> Self {
        Self::new(prefixes, |a, l| Ipv6Network::new(Ipv6Addr::from(a), l).expect("a prefix").into())
    }

    fn new<A: Address>(prefixes: &Prefixes<A>, network: impl Fn(A, u8) -> ip_network::IpNetwork) -> Self {
        let (before, start) = (heap::in_use(), Instant::now());
        let mut table = IpNetworkTable::new();
        for (address, length, next_hop) in prefixes.iter() {
            table.insert(network(address, length), next_hop);
        }
        let build = start.elapsed().as_secs_f64() * 1e3;
        let bytes = heap::in_use() - before;
        let update = updates(prefixes, |address, length, next_hop| {
            let network = network(address, length);
            match next_hop {
                Some(next_hop) => table.insert(network, next_hop),
                None => table.remove(network),
            };
        });
        Self { table, cost: Cost { bytes, build, update: Some(update) } }
    }
}

macro_rules! network_table {
    ($address:ty, $ip:ty, $find:ident) => {
        impl Rival<$address> for NetworkTable {
            fn name(&self) -> String {
                "ip_network_table".into()
            }

            fn cost(&self) -> Cost {
                self.cost
            }

            fn measure(&mut self, _at: usize, trace: &[$address]) -> io::Result<Measured> {
                let find = |&a: &$address| {
                    self.table.$find(<$ip>::from(a)).map_or(0, |(_, &next_hop)| u64::from(next_hop))
                };
                Ok(slices(trace, |slice| slice.iter().map(find).sum()))
            }
        }
    };
}
network_table!(u32, Ipv4Addr, longest_match_ipv4);
network_table!(u128, Ipv6Addr, longest_match_ipv6);
