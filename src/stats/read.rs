//! The counters file, from a reader's side: checked once on opening, then only loads.

use std::{
    fs::{self, File},
    io::{self, Read},
    ops::AddAssign,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use netmap::Mapping;
use nix::fcntl::{Flock, FlockArg};

use super::{
    counters::{Counter, PortBlock},
    file::{StatsError, map},
    layout::{Layout, Places},
};
use crate::forward::verdict::Class;

/// A port's counters, summed over workers and keeper. Packets, except where said.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct PortTotals {
    /// The port's name; empty for a place that has no port, or what ports counted that have gone.
    pub name: String,
    /// Received: those that a worker took, and those that the device passed up by itself.
    pub rx_packets: u64,
    /// Bytes of those, without FCS.
    pub rx_bytes: u64,
    /// Arrived damaged: by the device's word, or ended by a verdict that means a malformed frame.
    pub rx_errors: u64,
    /// Lost before a worker saw them; not among `rx_packets`.
    pub rx_dropped: u64,
    /// Sent.
    pub tx_packets: u64,
    /// Bytes of those, without FCS.
    pub tx_bytes: u64,
    /// Refused by the device on the way out.
    pub tx_errors: u64,
    /// Meant for this port and lost: its transmit ring was full, or the device lost them.
    pub tx_dropped: u64,
    /// Made here and sent out of this port.
    pub made: u64,
    /// Received here and waiting for a neighbour now.
    pub held: u64,
    /// Received here and between two workers now.
    pub in_transit: u64,
    /// Forwarded by express from this port.
    pub express: u64,
    /// Flows that are kept now; of all ports together, in the last place.
    pub flows: u64,
    /// Received here, by verdict, in the order of [`StatsReader::verdicts`].
    pub verdicts: Vec<u64>,
}

impl AddAssign<&PortTotals> for PortTotals {
    fn add_assign(&mut self, other: &PortTotals) {
        for (sum, n) in [
            (&mut self.rx_packets, other.rx_packets),
            (&mut self.rx_bytes, other.rx_bytes),
            (&mut self.rx_errors, other.rx_errors),
            (&mut self.rx_dropped, other.rx_dropped),
            (&mut self.tx_packets, other.tx_packets),
            (&mut self.tx_bytes, other.tx_bytes),
            (&mut self.tx_errors, other.tx_errors),
            (&mut self.tx_dropped, other.tx_dropped),
            (&mut self.made, other.made),
            (&mut self.held, other.held),
            (&mut self.in_transit, other.in_transit),
            (&mut self.express, other.express),
            (&mut self.flows, other.flows),
        ] {
            *sum = sum.wrapping_add(n);
        }
        self.verdicts.resize(self.verdicts.len().max(other.verdicts.len()), 0);
        for (sum, n) in self.verdicts.iter_mut().zip(&other.verdicts) {
            *sum = sum.wrapping_add(*n);
        }
    }
}

/// Sums the blocks, which lie writer by writer, for every place.
pub(super) fn totals(blocks: &[PortBlock], layout: &Layout, places: &Places) -> Vec<PortTotals> {
    places.read(|places| sums(blocks, layout, places))
}

fn sums(blocks: &[PortBlock], layout: &Layout, places: &Places) -> Vec<PortTotals> {
    let ports = layout.ports.len();
    (0..ports)
        .map(|port| {
            let sum = |counter: &dyn Fn(&PortBlock) -> &Counter| {
                blocks.iter().skip(port).step_by(ports).fold(0u64, |n, b| n.wrapping_add(counter(b).get()))
            };
            // A packet is counted as taken over after it was counted as handed over: read in the
            // other order, so that the difference is never below zero.
            let taken_over = sum(&|b| &b.taken_over);
            let verdicts: Vec<u64> = (0..layout.verdicts.len()).map(|v| sum(&|b| &b.verdicts[v])).collect();
            let malformed =
                layout.verdicts.iter().zip(&verdicts).filter(|((_, class), _)| *class == Class::Error);
            PortTotals {
                name: places.name(port),
                rx_packets: sum(&|b| &b.rx_packets),
                rx_bytes: sum(&|b| &b.rx_bytes),
                rx_errors: malformed.fold(sum(&|b| &b.rx_errors), |n, (_, v)| n.wrapping_add(*v)),
                rx_dropped: sum(&|b| &b.rx_dropped),
                tx_packets: sum(&|b| &b.tx_packets),
                tx_bytes: sum(&|b| &b.tx_bytes),
                tx_errors: sum(&|b| &b.tx_errors),
                tx_dropped: sum(&|b| &b.tx_dropped).wrapping_add(sum(&|b| &b.tx_full)),
                made: sum(&|b| &b.made),
                held: sum(&|b| &b.held),
                in_transit: sum(&|b| &b.handed_over).saturating_sub(taken_over),
                express: sum(&|b| &b.express),
                flows: sum(&|b| &b.flows),
                verdicts,
            }
        })
        .collect()
}

/// Reads a daemon's counters from any process.
#[derive(Debug)]
pub struct StatsReader {
    path: PathBuf,
    file: File,
    memory: Mapping,
    layout: Layout,
}

impl StatsReader {
    /// Opens the counters file at `path`. It may be a killed daemon's: see
    /// [`StatsReader::daemon_lives`].
    ///
    /// # Errors
    /// [`StatsError::NotRunning`] when there is none, [`StatsError::Unreadable`] when it is
    /// something else, damaged, or another version's; otherwise the system's word.
    pub fn open(path: &Path) -> Result<Self, StatsError> {
        let unreadable = |reason: String| StatsError::Unreadable { path: path.to_owned(), reason };
        let io = |what| move |source| StatsError::Io { path: path.to_owned(), what, source };
        // Anything but a plain file could block, or have no size.
        match fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(StatsError::NotRunning { path: path.to_owned() });
            }
            Err(e) => return Err(io("look at")(e)),
            Ok(meta) if !meta.is_file() => return Err(unreadable("it is not a plain file".into())),
            Ok(_) => {}
        }
        let file = File::open(path).map_err(io("open"))?;
        let bytes = file.metadata().map_err(io("look at"))?.len();
        let mut start = Vec::new();
        (&file).take(4096).read_to_end(&mut start).map_err(io("read"))?;
        let mut header = vec![0; Layout::header_bytes(&start, bytes).map_err(unreadable)?];
        file.read_exact_at(&mut header, 0).map_err(io("read"))?;
        let layout = Layout::parse(&header, bytes).map_err(unreadable)?;
        let memory = map(&file, layout.file_bytes(), libc::PROT_READ).map_err(io("map"))?;
        Ok(Self { path: path.to_owned(), file, memory, layout })
    }

    /// The ports' names now.
    pub fn ports(&self) -> Vec<String> {
        if !self.is_whole() {
            return Vec::new();
        }
        let named = |places: &Places| (0..self.layout.ports.len()).map(|place| places.name(place)).collect();
        let names: Vec<String> = self.places().read(named);
        names.into_iter().filter(|name| !name.is_empty()).collect()
    }

    fn places(&self) -> Places {
        // SAFETY: the mapping begins with a header that has been checked, with so many places.
        unsafe { Places::new(self.memory.start(), self.layout.ports.len()) }
    }

    /// Whether the file is as long as it was: somebody may have cut it short.
    fn is_whole(&self) -> bool {
        self.file.metadata().map_or(0, |m| m.len()) >= self.layout.file_bytes() as u64
    }

    /// The verdicts' names and classes, as the daemon that writes them knows them.
    pub fn verdicts(&self) -> &[(String, Class)] {
        &self.layout.verdicts
    }

    /// The daemon's process id.
    pub fn pid(&self) -> u32 {
        self.layout.pid
    }

    /// When the counters began, in nanoseconds since 1970.
    pub fn started(&self) -> u64 {
        self.layout.started
    }

    /// The counters of every place. Each counter is exact; together they are as of almost the same
    /// moment.
    ///
    /// A file that somebody has cut short meanwhile gives nothing.
    pub fn snapshot(&self) -> Vec<PortTotals> {
        if !self.is_whole() {
            return vec![PortTotals::default(); self.layout.ports.len()];
        }
        // SAFETY: the mapping reaches from the file's start to the last block's end, by the
        // checked layout; blocks begin at a multiple of a page; all bits are valid atomics.
        let blocks = unsafe {
            let first = self.memory.start().add(self.layout.blocks_at()).cast::<PortBlock>();
            std::slice::from_raw_parts(first.as_ptr(), self.layout.blocks())
        };
        totals(blocks, &self.layout, &self.places())
    }

    /// Whether the daemon that made the file still runs: it holds a lock on it.
    pub fn daemon_lives(&self) -> bool {
        let Ok(file) = self.file.try_clone() else { return true };
        // Got it: nobody else has it. Dropping the guard gives it back.
        Flock::lock(file, FlockArg::LockSharedNonblock).is_err()
    }

    /// Whether the file is still the one under its name: a new daemon makes a new file.
    pub fn is_current(&self) -> bool {
        match (fs::metadata(&self.path), self.file.metadata()) {
            (Ok(there), Ok(mine)) => there.dev() == mine.dev() && there.ino() == mine.ino(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{forward::verdict::Verdict, stats::file::StatsFile};
    use proptest::prelude::*;

    #[test]
    fn totals_are_what_their_names_say() {
        let file = StatsFile::anonymous(&["a".into(), "b".into()], 1).unwrap();
        let (worker, keeper) = (file.block(0, 1), file.block(1, 1));
        worker.rx_packets.add(100);
        worker.rx_bytes.add(6000);
        keeper.rx_errors.add(1);
        worker.count(Verdict::Runt, 2);
        worker.count(Verdict::BadChecksum, 3);
        worker.count(Verdict::NoRoute, 4);
        keeper.rx_dropped.add(5);
        keeper.tx_dropped.add(6);
        worker.tx_full.add(7);
        worker.tx_errors.add(8);
        worker.handed_over.add(20);
        keeper.taken_over.add(11);
        worker.held.set(12);
        worker.made.add(13);
        worker.express.add(14);
        let now = file.snapshot();
        let none =
            PortTotals { name: "a".into(), verdicts: vec![0; Verdict::ALL.len()], ..Default::default() };
        assert_eq!(now[0], none);
        let b = &now[1];
        assert_eq!((b.rx_packets, b.rx_bytes, b.rx_errors, b.rx_dropped), (100, 6000, 6, 5));
        assert_eq!((b.tx_errors, b.tx_dropped, b.in_transit, b.held), (8, 13, 9, 12));
        assert_eq!((b.made, b.express, b.verdicts[Verdict::NoRoute as usize]), (13, 14, 4));
    }

    #[test]
    fn totals_add_up() {
        let a = PortTotals { rx_packets: 1, tx_bytes: 2, verdicts: vec![1, 2], ..Default::default() };
        let mut sum = PortTotals::default();
        sum += &a;
        sum += &a;
        assert_eq!((sum.rx_packets, sum.tx_bytes, sum.verdicts), (2, 4, vec![2, 4]));
    }

    #[test]
    fn what_is_no_counters_file_is_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats");
        assert!(matches!(StatsReader::open(&path), Err(StatsError::NotRunning { .. })));
        let whole = StatsFile::create(&path, &["wan".into()], 2).unwrap();
        let good = fs::read(&path).unwrap();
        drop(whole);
        for n in [0, 1, 47, 48, 500, 4095, 4096, good.len() - 1] {
            fs::write(&path, &good[..n]).unwrap();
            let e = StatsReader::open(&path).unwrap_err();
            assert!(matches!(e, StatsError::Unreadable { .. }), "{n}: {e}");
            assert!(!e.to_string().contains('\n'));
        }
        assert!(matches!(StatsReader::open(dir.path()), Err(StatsError::Unreadable { .. })));
    }

    #[test]
    fn a_file_cut_short_later_is_no_signal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats");
        let file = StatsFile::create(&path, &["wan".into()], 2).unwrap();
        file.block(0, 0).rx_packets.add(1);
        let reader = StatsReader::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert!(reader.snapshot().iter().all(|place| *place == PortTotals::default()));
        assert!(reader.ports().is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_hostile_file_never_leads_outside_itself(
            damage in prop::collection::vec((0..300usize, any::<u8>()), 0..8),
            cut in prop_oneof![Just(0usize), 0..6000usize],
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("stats");
            let whole = StatsFile::create(&path, &["wan".into()], 2).unwrap();
            let mut bytes = fs::read(&path).unwrap();
            drop(whole);
            for (at, byte) in damage {
                bytes[at] = byte;
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            fs::write(&path, &bytes).unwrap();
            if let Ok(reader) = StatsReader::open(&path) {
                prop_assert!(reader.snapshot().len() >= reader.ports().len());
            }
        }
    }
}
