//! Mappings: an inside end and the outside end that it has, whoever it talks to (RFC 4787 REQ-1).
//!
//! A mapping lives as long as a flow of it does. It is found by its inside end, to give further
//! flows the same outside end, and by its outside end, for what comes from somebody new. Beside
//! them stand the hosts inside, each with the number of its flows.

use std::io;

use zerocopy::FromBytes;

use super::{
    ports::{Ports, Share},
    slab::Slab,
};
use crate::forward::flows::{End4, Secret, index::Index};

/// A mapping.
#[derive(Clone, Copy, FromBytes, Debug)]
#[repr(C)]
pub struct Mapping {
    inside: u32,
    external: u32,
    inside_port: u16,
    external_port: u16,
    /// The port that leads outside.
    pub out: u16,
    /// The rule that it was made by.
    pub rule: u16,
    /// How many flows it has; none: the record is free.
    pub flows: u32,
    host: u32,
    /// The version of the rules under which it was last found good.
    pub version: u32,
    /// The protocol's number.
    pub protocol: u8,
    /// Not given to further flows: the rules have changed.
    detached: u8,
    unused: u16,
}

const _: () = assert!(size_of::<Mapping>() == 32);

impl Mapping {
    /// The end inside.
    pub fn inside(&self) -> End4 {
        End4::new(self.inside, self.inside_port)
    }

    /// The end outside.
    pub fn external(&self) -> End4 {
        End4::new(self.external, self.external_port)
    }
}

/// A host inside.
#[derive(Clone, Copy, FromBytes, Debug)]
#[repr(C)]
struct Host {
    address: u32,
    flows: u32,
    /// How many of its flows [`Quotas`](super::quotas::Quotas) counts.
    counted: u32,
}

/// Why there is no mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The worker's share of the address's ports is used up.
    NoPort,
    /// The host has as many flows as it may.
    Quota,
    /// There is no room.
    Full,
}

/// A mapping that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    /// Its number.
    pub number: u32,
    /// Whether its host has got a block of ports with it.
    pub with_block: bool,
}

/// A mapping that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// What it was.
    pub mapping: Mapping,
    /// Whether its host has given a block of ports back with it.
    pub with_block: bool,
}

/// What a mapping is to be made from.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The protocol's number.
    pub protocol: u8,
    /// The end inside.
    pub inside: End4,
    /// The address outside.
    pub address: u32,
    /// The port that leads outside.
    pub out: u16,
    /// The rule.
    pub rule: u16,
    /// The rules' version.
    pub version: u32,
    /// The ports that may be taken.
    pub share: Share<'a>,
}

/// The mappings of one worker.
#[derive(Debug)]
pub struct Mappings {
    mappings: Slab<Mapping>,
    hosts: Slab<Host>,
    inside: Index,
    outside: Index,
    by_host: Index,
    /// The ports that are taken.
    pub ports: Ports,
    secret: Secret,
}

impl Mappings {
    /// Room for `capacity` mappings and as many hosts.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn new(capacity: usize, secret: Secret) -> io::Result<Self> {
        Ok(Self {
            mappings: Slab::new(capacity)?,
            hosts: Slab::new(capacity)?,
            inside: Index::new(capacity)?,
            outside: Index::new(capacity)?,
            by_host: Index::new(capacity)?,
            ports: Ports::default(),
            secret,
        })
    }

    fn hash_inside(&self, protocol: u8, end: End4, out: u16) -> u32 {
        let ports = u32::from(end.port) << 16 | u32::from(out);
        self.secret.hash(&[protocol.into(), end.address, ports, 1])
    }

    fn hash_outside(&self, protocol: u8, end: End4) -> u32 {
        self.secret.hash(&[protocol.into(), end.address, end.port.into(), 2])
    }

    fn hash_host(&self, address: u32) -> u32 {
        self.secret.hash(&[address, 3])
    }

    /// The mapping with this number.
    pub fn get(&self, number: u32) -> &Mapping {
        self.mappings.get(number)
    }

    /// The mapping with this number.
    pub fn get_mut(&mut self, number: u32) -> &mut Mapping {
        self.mappings.get_mut(number)
    }

    /// The mapping of this end inside towards `out`.
    pub fn find_inside(&self, protocol: u8, end: End4, out: u16) -> Option<u32> {
        self.inside.find(self.hash_inside(protocol, end, out), |number| {
            let mapping = self.mappings.get(number);
            (mapping.protocol, mapping.inside(), mapping.out) == (protocol, end, out)
        })
    }

    /// The mapping with this end outside.
    pub fn find_outside(&self, protocol: u8, end: End4) -> Option<u32> {
        self.outside.find(self.hash_outside(protocol, end), |number| {
            let mapping = self.mappings.get(number);
            (mapping.protocol, mapping.external()) == (protocol, end)
        })
    }

    /// Makes a mapping, without flows yet: the caller [adds](Mappings::add_flow) one at once.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn make(&mut self, wanted: &Wanted<'_>, random: u64) -> Result<Made, Refused> {
        let &Wanted { protocol, inside, address, out, rule, version, share } = wanted;
        let given = self.ports.take(address, protocol, share, random).ok_or(Refused::NoPort)?;
        let external = End4::new(address, given.port);
        let number = self.enter(Mapping {
            inside: inside.address,
            external: address,
            inside_port: inside.port,
            external_port: given.port,
            out,
            rule,
            flows: 0,
            host: 0,
            version,
            protocol,
            detached: 0,
            unused: 0,
        });
        if number.is_none() {
            self.ports.give_back(external.address, protocol, external.port);
        }
        number.map(|number| Made { number, with_block: given.with_block }).ok_or(Refused::Full)
    }

    fn enter(&mut self, mapping: Mapping) -> Option<u32> {
        let host = self.host(mapping.inside)?;
        let number = self.mappings.insert(Mapping { host, ..mapping });
        let inside = self.hash_inside(mapping.protocol, mapping.inside(), mapping.out);
        let outside = self.hash_outside(mapping.protocol, mapping.external());
        if let Some(number) = number {
            if self.inside.insert(inside, number).is_ok() {
                if self.outside.insert(outside, number).is_ok() {
                    return Some(number);
                }
                self.inside.remove(inside, number);
            }
            self.mappings.remove(number);
        }
        self.forget_idle_host(host);
        None
    }

    fn find_host(&self, address: u32) -> Option<u32> {
        self.by_host.find(self.hash_host(address), |number| self.hosts.get(number).address == address)
    }

    fn host(&mut self, address: u32) -> Option<u32> {
        if let Some(number) = self.find_host(address) {
            return Some(number);
        }
        let number = self.hosts.insert(Host { address, flows: 0, counted: 0 })?;
        if self.by_host.insert(self.hash_host(address), number).is_err() {
            self.hosts.remove(number);
            return None;
        }
        Some(number)
    }

    fn forget_idle_host(&mut self, number: u32) {
        let host = *self.hosts.get(number);
        if host.flows == 0 {
            self.by_host.remove(self.hash_host(host.address), number);
            self.hosts.remove(number);
        }
    }

    /// How many flows the host with this address has.
    pub fn flows_of(&self, address: u32) -> u32 {
        self.find_host(address).map_or(0, |number| self.hosts.get(number).flows)
    }

    /// From now on all flows that the host with this address has are counted besides; gives how many
    /// are new to that.
    pub fn count_all(&mut self, address: u32) -> u32 {
        let Some(number) = self.find_host(address) else { return 0 };
        let host = self.hosts.get_mut(number);
        let new = host.flows.saturating_sub(host.counted);
        host.counted = host.flows;
        new
    }

    /// The newest flow of the host of this mapping is counted besides.
    pub fn count_newest(&mut self, number: u32) {
        let host = self.mappings.get(number).host;
        self.hosts.get_mut(host).counted += 1;
    }

    /// One flow less of the host of this mapping is counted besides. Gives its address; none when no
    /// flow of it was.
    pub fn count_less(&mut self, number: u32) -> Option<u32> {
        let host = self.hosts.get_mut(self.mappings.get(number).host);
        let counted = host.counted > 0;
        host.counted -= u32::from(counted);
        counted.then_some(host.address)
    }

    /// Counts one more flow.
    pub fn add_flow(&mut self, number: u32) {
        let mapping = self.mappings.get_mut(number);
        mapping.flows += 1;
        let host = mapping.host;
        self.hosts.get_mut(host).flows += 1;
    }

    /// Counts one flow less; a mapping without flows ends, and this gives what it was.
    pub fn end_flow(&mut self, number: u32) -> Option<Ended> {
        let mapping = self.mappings.get_mut(number);
        let host = self.hosts.get_mut(mapping.host);
        mapping.flows = mapping.flows.saturating_sub(1);
        host.flows = host.flows.saturating_sub(1);
        self.end_idle(number)
    }

    /// Ends a mapping that has no flows.
    pub fn end_idle(&mut self, number: u32) -> Option<Ended> {
        let mapping = *self.mappings.get(number);
        if mapping.flows > 0 {
            return None;
        }
        self.detach(number);
        self.outside.remove(self.hash_outside(mapping.protocol, mapping.external()), number);
        let with_block = self.ports.give_back(mapping.external, mapping.protocol, mapping.external_port);
        self.mappings.remove(number);
        self.forget_idle_host(mapping.host);
        Some(Ended { mapping, with_block })
    }

    /// No further flow gets this mapping; its end inside may get another one.
    pub fn detach(&mut self, number: u32) {
        let mapping = *self.mappings.get(number);
        if mapping.detached == 0 {
            self.mappings.get_mut(number).detached = 1;
            self.inside.remove(self.hash_inside(mapping.protocol, mapping.inside(), mapping.out), number);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The mappings from number `from` on, at most `looks` records looked at; and where to go on,
    /// 0 at the end.
    pub fn page(&self, from: u32, looks: u32) -> (impl Iterator<Item = &Mapping>, u32) {
        let from = from.max(1);
        let end = from.saturating_add(looks).min(self.mappings.end());
        let all = (from..end).map(|number| self.mappings.get(number)).filter(|mapping| mapping.flows > 0);
        (all, if end < self.mappings.end() { end } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(n: u32, workers: usize) -> Wanted<'static> {
        Wanted {
            protocol: 17,
            inside: End4::new(0x0a00_0000 + n / 4, 1000 + (n % 4) as u16),
            address: 0xcb00_7101,
            out: 1,
            rule: 0,
            version: 0,
            share: Share { first: 2000, last: 2127, worker: 0, workers, host: None, held: None },
        }
    }

    #[test]
    fn a_mapping_lives_as_long_as_its_flows_and_leaves_nothing_behind() {
        let mut mappings = Mappings::new(100, Secret::from_seed(1)).unwrap();
        for round in 0..300 {
            let want = wanted(round % 7, 1);
            let number = mappings.make(&want, u64::from(round) << 32).unwrap().number;
            mappings.add_flow(number);
            mappings.add_flow(number);
            let external = mappings.get(number).external();
            assert_eq!(mappings.find_inside(17, want.inside, 1), Some(number));
            assert_eq!(
                mappings.find_inside(6, want.inside, 1),
                None,
                "mappings are independent per protocol"
            );
            assert_eq!(mappings.find_inside(17, want.inside, 2), None);
            assert_eq!(mappings.find_outside(17, external), Some(number));
            assert_eq!(mappings.flows_of(want.inside.address), 2);
            assert!(mappings.end_flow(number).is_none());
            assert_eq!(mappings.end_flow(number).unwrap().mapping.external(), external);
            assert_eq!(mappings.find_inside(17, want.inside, 1), None);
            assert_eq!(mappings.find_outside(17, external), None);
            assert_eq!((mappings.flows_of(want.inside.address), mappings.len()), (0, 0));
        }
    }

    #[test]
    fn without_ports_none_is_made_and_one_that_ends_makes_room() {
        let mut mappings = Mappings::new(1000, Secret::from_seed(1)).unwrap();
        let made: Vec<u32> = (0..128).map(|n| mappings.make(&wanted(n, 1), 9).unwrap().number).collect();
        made.iter().for_each(|number| mappings.add_flow(*number));
        assert_eq!(mappings.make(&wanted(500, 1), 9), Err(Refused::NoPort));
        assert_eq!(mappings.flows_of(0x0a00_0000 + 125), 0);
        mappings.end_flow(made[5]);
        assert!(mappings.make(&wanted(500, 1), 9).is_ok());
    }

    #[test]
    fn a_detached_mapping_is_known_outside_only() {
        let mut mappings = Mappings::new(10, Secret::from_seed(1)).unwrap();
        let old = mappings.make(&wanted(1, 1), 9).unwrap().number;
        mappings.add_flow(old);
        mappings.detach(old);
        let new = mappings.make(&wanted(1, 1), 9).unwrap().number;
        mappings.add_flow(new);
        assert_eq!(mappings.find_inside(17, wanted(1, 1).inside, 1), Some(new));
        assert_eq!(mappings.find_outside(17, mappings.get(old).external()), Some(old));
        mappings.end_flow(old);
        assert_eq!(mappings.find_inside(17, wanted(1, 1).inside, 1), Some(new));
    }
}
