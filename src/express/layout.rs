//! The maps that the express program reads: sizes and places, as `express.bpf.c` has them too.

use std::{io, os::fd::OwnedFd, sync::Arc};

use netmap::device::xdp::bpf::{MAPPABLE, Map, MapType};

use crate::tables::{
    MAX_NEXT_HOPS,
    memory::{Backing, PageArray, Part},
    shown::{Counts, GROUP_WORDS, House, PORTS, View},
};

/// Instances of everything that a publication changes.
const INSTANCES: usize = 2;
const PAGE: usize = 4096;
/// Bytes of one instance of each. Of blocks and trees there can be more than these: what lies behind
/// them the program leaves to workers. A million IPv4 prefixes take 6 MiB, 230 000 of IPv6 take 3.
const DIRECTORY4: usize = (1 << 18) * 4;
const BLOCKS4: usize = (1 << 20) * 16;
const DIRECTORY6: usize = ((1 << 17) + (1 << 12)) * 4;
const TREES6: usize = (1 << 17) * 64;
const NEXT_HOPS: usize = MAX_NEXT_HOPS * 16;
const GROUPS: usize = GROUP_WORDS * 2;
const VIEW: usize = size_of::<View>();

/// What is put in where the program has a mark.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// The first value of the map behind this descriptor.
    Value(i32),
    /// The map behind this descriptor.
    Handle(i32),
    /// A number.
    Number(u64),
}

/// An array of bytes that programs read and we write.
struct Array {
    map: Map<4>,
    memory: Arc<OwnedFd>,
    bytes: usize,
}

impl Array {
    /// One with so many bytes for each instance.
    fn new(name: &str, bytes: usize) -> io::Result<Self> {
        Self::make(name, bytes, INSTANCES)
    }

    fn make(name: &str, bytes: usize, instances: usize) -> io::Result<Self> {
        use std::os::fd::AsFd;
        debug_assert!(bytes.is_multiple_of(PAGE));
        // Not for programs to read only: the kernel would let nobody else write such a map.
        let map = Map::new(name, MapType::Array, bytes * instances, 1, MAPPABLE)?;
        let memory = Arc::new(map.as_fd().try_clone_to_owned()?);
        Ok(Self { map, memory, bytes })
    }

    fn backing(&self, instance: usize) -> Backing {
        Backing::Shared(Part {
            descriptor: self.memory.clone(),
            at: instance % INSTANCES * self.bytes,
            bytes: self.bytes,
        })
    }

    fn place(&self) -> Place {
        Place::Value(self.map.raw())
    }
}

/// All maps.
pub(super) struct Maps {
    control: Array,
    view: Array,
    directory4: Array,
    blocks4: Array,
    directory6: Array,
    trees6: Array,
    next_hops: Array,
    groups: Array,
    used: Array,
    counts: Array,
    /// The ports' interfaces, by port.
    pub devices: Map<4>,
    cpus: usize,
}

impl Maps {
    /// Makes them for a machine with at most so many processors.
    pub fn new(cpus: usize) -> io::Result<Self> {
        let cpus = cpus.next_power_of_two();
        let counts = (cpus * PORTS * size_of::<Counts>()).next_multiple_of(PAGE);
        Ok(Self {
            control: Array::make("sweep_control", PAGE, 1)?,
            view: Array::new("sweep_view", VIEW)?,
            directory4: Array::new("sweep_dir4", DIRECTORY4)?,
            blocks4: Array::new("sweep_blocks4", BLOCKS4)?,
            directory6: Array::new("sweep_dir6", DIRECTORY6)?,
            trees6: Array::new("sweep_trees6", TREES6)?,
            next_hops: Array::new("sweep_hops", NEXT_HOPS)?,
            groups: Array::new("sweep_groups", GROUPS)?,
            used: Array::make("sweep_used", MAX_NEXT_HOPS, 1)?,
            counts: Array::make("sweep_counts", counts, 1)?,
            devices: Map::new("sweep_devices", MapType::Devices, 4, PORTS as u32, 0)?,
            cpus,
        })
    }

    /// Where one instance of the tables is to lie.
    pub fn house(&self, instance: usize) -> House {
        House {
            directory4: self.directory4.backing(instance),
            blocks4: self.blocks4.backing(instance),
            directory6: self.directory6.backing(instance),
            trees6: self.trees6.backing(instance),
            next_hops: self.next_hops.backing(instance),
            groups: self.groups.backing(instance),
            view: self.view.backing(instance),
        }
    }

    /// What is put in for the marks, by their numbers, but for the port's own.
    pub fn places(&self, sockets: i32, port: u16) -> [Place; 14] {
        [
            self.control.place(),
            self.view.place(),
            self.directory4.place(),
            self.blocks4.place(),
            self.directory6.place(),
            self.trees6.place(),
            self.next_hops.place(),
            self.groups.place(),
            self.used.place(),
            self.counts.place(),
            Place::Handle(self.devices.raw()),
            Place::Handle(sockets),
            Place::Number(port.into()),
            Place::Number(self.cpus as u64 - 1),
        ]
    }

    /// Which instance the program reads: its first word.
    pub fn control(&self) -> io::Result<PageArray<u32>> {
        PageArray::new(PAGE / 4, &self.control.backing(0))
    }

    /// Which next hops were used: a byte each.
    pub fn used(&self) -> io::Result<PageArray<u8>> {
        PageArray::new(MAX_NEXT_HOPS, &self.used.backing(0))
    }

    /// The counts, by processor and port.
    pub fn counts(&self) -> io::Result<PageArray<Counts>> {
        PageArray::new(self.cpus * PORTS, &self.counts.backing(0))
    }
}
