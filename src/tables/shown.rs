//! What the express program reads of the tables besides the FIBs and the next hops: the ports' MAC
//! addresses, the groups, which sources to look at with care. Tables that the program is to read lie in
//! memory that it reads as well ([`House`]); this is written beside them.
//!
//! Layout and sizes are also those of `src/express/express.bpf.c`.

use std::io;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::{
    Action, Express, MAX_NEXT_HOPS, PortId, ReversePath, Tables,
    local::WORDS,
    memory::{Backing, PageArray},
};

/// Ports that the program knows; those of higher numbers it leaves to workers.
pub const PORTS: usize = 256;
/// Groups of next hops that the program knows.
pub const GROUPS: usize = 1024;
/// Words of 16 bits that the groups take: each next hop's group and 1, or 0; then the groups' buckets.
pub const GROUP_WORDS: usize = MAX_NEXT_HOPS + GROUPS * 256;
/// Above a port's MAC address: its packets may be forwarded by the program.
const ON: u64 = 1 << 48;

/// Where the arrays of one instance of the tables lie, so that others can read them.
#[derive(Clone, Debug)]
pub struct House {
    /// The IPv4 table's directory.
    pub directory4: Backing,
    /// Its blocks.
    pub blocks4: Backing,
    /// The IPv6 table's directory.
    pub directory6: Backing,
    /// Its trees.
    pub trees6: Backing,
    /// The next hops.
    pub next_hops: Backing,
    /// [`GROUP_WORDS`] words.
    pub groups: Backing,
    /// One [`View`].
    pub view: Backing,
}

/// What there is one of for all packets.
#[derive(FromBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct View {
    watched: [u64; WORDS],
    seed: u64,
    reserved: [u64; 7],
    /// MAC addresses as a little-endian load gives them, with [`ON`].
    ports: [u64; PORTS],
    filler: [u64; 184],
}

const _: () = assert!(size_of::<View>() == 4096);

/// What the program has counted of a port, on one processor or on all.
#[derive(FromBytes, Immutable, KnownLayout, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Counts {
    /// Packets that came in here and were forwarded.
    pub rx_packets: u64,
    /// Their bytes, as they came.
    pub rx_bytes: u64,
    /// Packets that were sent here.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
}

/// The part of the tables that only the program reads.
#[derive(Debug)]
pub struct Shown {
    groups: PageArray<u16>,
    view: PageArray<View>,
}

/// Why a port's packets are left to workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// The configuration says so.
    Off,
    /// Access rules have to see every packet.
    Acl,
    /// Addresses are translated.
    Masquerade,
    /// The port's sources are checked.
    ReversePath,
    /// Senders are told of better first hops.
    Redirects,
    /// The port has no device of its own.
    SubPort,
    /// The port's number is too high.
    Number,
}

impl Obstacle {
    /// In a few words, for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Acl => "acl",
            Self::Masquerade => "masquerade",
            Self::ReversePath => "urpf",
            Self::Redirects => "redirects",
            Self::SubPort => "sub-port",
            Self::Number => "too many ports",
        }
    }
}

impl Tables {
    /// What keeps the packets that come in by `port` from being forwarded by the program: a stage that
    /// has to see every packet.
    pub fn obstacle(&self, port: PortId) -> Option<Obstacle> {
        let table = self.ports.get(usize::from(port))?;
        let found = [
            (table.express == Express::Off, Obstacle::Off),
            (table.sub.is_some(), Obstacle::SubPort),
            (usize::from(port) >= PORTS, Obstacle::Number),
            (self.acl.is_some(), Obstacle::Acl),
            (self.masquerade.is_on(), Obstacle::Masquerade),
            (table.reverse_path != ReversePath::Off, Obstacle::ReversePath),
            (table.redirects, Obstacle::Redirects),
        ];
        found.into_iter().find(|(there, _)| *there).map(|(_, obstacle)| obstacle)
    }

    /// Moves to where the program can read; [`Tables::show`] has to follow before it does.
    ///
    /// # Errors
    /// When the system gives no memory. The tables are whole, wherever they lie.
    pub fn move_to(&mut self, house: &House) -> io::Result<()> {
        let groups = PageArray::new(GROUP_WORDS, &house.groups)?;
        let view = PageArray::new(1, &house.view)?;
        self.fib4.move_to(&house.directory4, &house.blocks4)?;
        self.fib6.move_to(&house.directory6, &house.trees6)?;
        self.next_hops.move_to(&house.next_hops, MAX_NEXT_HOPS)?;
        self.shown = Some(Shown { groups, view });
        for place in 0..self.groups.len() {
            self.show_group(place as u16);
        }
        for id in 0..MAX_NEXT_HOPS {
            self.show_group_of(id as u16);
        }
        Ok(())
    }

    /// Shows a group that has changed.
    pub fn show_group(&mut self, place: u16) {
        let (Some(shown), place) = (&mut self.shown, usize::from(place)) else { return };
        if let Some(group) = self.groups.get(place).filter(|_| place < GROUPS) {
            shown.groups[MAX_NEXT_HOPS + place * 256..][..256].copy_from_slice(&group.buckets);
        }
    }

    /// Shows whether a next hop that has changed is a group.
    pub fn show_group_of(&mut self, id: u16) {
        let (Some(shown), id) = (&mut self.shown, usize::from(id) % MAX_NEXT_HOPS) else { return };
        let info = &self.info[id];
        let is_group = info.action == Action::Group && usize::from(info.group) < GROUPS;
        shown.groups[id] = if is_group { info.group + 1 } else { 0 };
    }

    /// Shows everything else as it is now; to be called when these tables are complete.
    pub fn show(&mut self) {
        if self.shown.is_none() {
            return;
        }
        let mut ports = [0; PORTS];
        for (id, (to, table)) in (0..).zip(ports.iter_mut().zip(&self.ports)) {
            let [a, b, c, d, e, f] = table.mac;
            let on = if self.obstacle(id).is_none() { ON } else { 0 };
            *to = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) | on;
        }
        let Some(shown) = &mut self.shown else { return };
        let view = &mut shown.view[0];
        view.watched = *self.local.watched();
        view.seed = self.hash_seed;
        view.ports = ports;
    }
}
