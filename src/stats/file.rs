//! The counters file, from its writer's side: made at start, mapped, and gone at a clean end.
//!
//! The file appears under its name complete, or not at all: it is made under another name, its
//! disk space allocated (a full disk is an error here and never a signal later), its header
//! written, and then renamed. Its maker holds a lock on it as long as it lives, by which a reader
//! tells a running daemon from one that was killed, whatever became of its process id.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    ops::Deref,
    os::{fd::AsRawFd, unix::fs::MetadataExt, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use netmap::Mapping;
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use super::{
    counters::PortBlock,
    layout::{Layout, NAME_BYTES, Places},
    read::{PortTotals, StatsReader, totals},
};

/// Name of the counters file in the daemon's `runtime_dir`.
pub const STATS_FILE: &str = "stats";

/// Ports that can come while the daemon runs, besides those that it starts with.
const SPARE: usize = 16;

/// Why there are no counters: one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// The system refused.
    #[error("{path}: cannot {what}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's word.
        source: io::Error,
    },
    /// No room on the disk.
    #[error(
        "{path}: no room for {kib} KiB of counters: free some, or let [daemon] runtime_dir name a directory on another file system",
        path = path.display()
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// What it needs.
        kib: usize,
    },
    /// Another daemon uses the same `runtime_dir`.
    #[error("{path}: in use by another sweepd, process {pid}: stop it, or give this one another [daemon] runtime_dir", path = path.display())]
    Busy {
        /// The file.
        path: PathBuf,
        /// The other daemon.
        pid: u32,
    },
    /// A port's name does not fit.
    #[error("port name {0:?} is too long: 63 bytes at most")]
    Name(String),
    /// More ports have come than there are places for.
    #[error("no more than {0} ports have places in the counters file of this run: restart to have more")]
    NoPlace(usize),
    /// There is no counters file: no daemon runs, or not with this `runtime_dir`.
    #[error("{path}: no sweepd is running here: start one with `sweepd run`, or name its configuration with --config", path = path.display())]
    NotRunning {
        /// The file.
        path: PathBuf,
    },
    /// Not a counters file, or not one for this program.
    #[error("{path}: not a counters file that this program can read: {reason}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No memory for counters without a file.
    #[error("no memory for the counters: {0}")]
    Memory(io::Error),
}

/// The counters of a running daemon, one [`PortBlock`] per writer and port.
///
/// Writers 0 to `workers - 1` are the workers, the last one is the keeper. Each block has one
/// writer; anybody may read. Ports can get and lose their places while the daemon runs.
#[derive(Debug)]
pub struct StatsFile {
    memory: Arc<Mapping>,
    layout: Layout,
    blocks: NonNull<PortBlock>,
    /// Held while ports get and lose their places.
    changing: Mutex<()>,
    name: Option<Name>,
}

// SAFETY: `blocks` leads into `memory`, which the value keeps alive; blocks are atomics.
unsafe impl Send for StatsFile {}
// SAFETY: as above.
unsafe impl Sync for StatsFile {}

/// The file's name in the file system, taken away when the daemon ends.
#[derive(Debug)]
struct Name {
    path: PathBuf,
    file: Flock<File>,
    owner: u32,
}

impl StatsFile {
    /// Makes the counters file for these ports and this many workers. What a killed daemon has
    /// left at `path` is replaced; its readers notice.
    ///
    /// # Errors
    /// [`StatsError`]: no room, no permission, or a running daemon has it.
    pub fn create(path: &Path, ports: &[String], workers: usize) -> Result<Self, StatsError> {
        if let Some(long) = ports.iter().find(|p| p.len() >= NAME_BYTES) {
            return Err(StatsError::Name(long.clone()));
        }
        if let Ok(other) = StatsReader::open(path)
            && other.daemon_lives()
        {
            return Err(StatsError::Busy { path: path.to_owned(), pid: other.pid() });
        }
        let layout = layout_now(ports, workers);
        let new = path.with_extension("new");
        let made = Self::make(path, &new, layout);
        if made.is_err() {
            let _ = fs::remove_file(&new);
        }
        made
    }

    fn make(path: &Path, new: &Path, layout: Layout) -> Result<Self, StatsError> {
        let io = |what| move |source| StatsError::Io { path: path.to_owned(), what, source };
        let bytes = layout.file_bytes();
        match fs::remove_file(new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(io("replace the old file")(e)),
            _ => {}
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(new)
            .map_err(io("create the counters file"))?;
        fill(&file, &layout.header(), bytes).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => {
                StatsError::Full { path: path.to_owned(), kib: bytes.div_ceil(1024) }
            }
            _ => io("write the counters file")(e),
        })?;
        // The umask may have taken away what `mode` gave.
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .map_err(io("make the counters file readable"))?;
        let memory = map(&file, bytes, libc::PROT_READ | libc::PROT_WRITE).map_err(io("map"))?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, e)| io("lock the counters file")(e.into()))?;
        fs::rename(new, path).map_err(io("put the counters file in place"))?;
        let name = Name { path: path.to_owned(), file, owner: std::process::id() };
        Ok(Self::over(memory, layout, Some(name)))
    }

    /// Counters in memory, without a file: for tests and the demonstration.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn anonymous(ports: &[String], workers: usize) -> Result<Self, StatsError> {
        let layout = layout_now(ports, workers);
        let memory = Mapping::anonymous(layout.file_bytes()).map_err(StatsError::Memory)?;
        let header = layout.header();
        // SAFETY: fresh memory, longer than the header.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), memory.start().as_ptr(), header.len()) };
        Ok(Self::over(memory, layout, None))
    }

    fn over(memory: Mapping, layout: Layout, name: Option<Name>) -> Self {
        // SAFETY: the layout's blocks begin inside the mapping, page-aligned.
        let blocks = unsafe { memory.start().add(layout.blocks_at()) }.cast();
        Self { memory: Arc::new(memory), layout, blocks, changing: Mutex::new(()), name }
    }

    /// The counters of writer `writer` for port number `port`: the place.
    ///
    /// # Panics
    /// When there is no such writer or place.
    pub fn block(&self, writer: usize, port: usize) -> BlockRef {
        assert!(writer < self.layout.writers && port < self.layout.ports.len(), "no such block");
        // SAFETY: checked to be one of the mapping's blocks.
        let block = unsafe { self.blocks.add(writer * self.layout.ports.len() + port) };
        BlockRef { block, _memory: self.memory.clone() }
    }

    /// The keeper's number among the writers: the last.
    pub fn keeper(&self) -> usize {
        self.layout.writers - 1
    }

    /// Number of places for ports.
    pub fn places(&self) -> usize {
        // The last is for what ports counted that have gone.
        self.layout.ports.len() - 1
    }

    /// The name of the port at `place`; empty where none is.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn port(&self, place: usize) -> String {
        self.names().read(|names| names.name(place))
    }

    /// The names of all places, by number; empty where no port is.
    pub fn ports(&self) -> Vec<String> {
        self.names().read(|names| (0..self.places()).map(|place| names.name(place)).collect())
    }

    fn names(&self) -> Places {
        // SAFETY: the mapping, which the value keeps, begins with a header with so many places.
        unsafe { Places::new(self.memory.start(), self.layout.ports.len()) }
    }

    /// Gives a port without a place that one, which must have no writer. With `afresh` the port's
    /// counters begin at zero, and what the place's last port has counted moves to the ports that
    /// have gone; otherwise they go on.
    ///
    /// # Errors
    /// The name is too long.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn take_place(&self, place: usize, name: &str, afresh: bool) -> Result<(), StatsError> {
        assert!(place < self.places(), "no such place");
        if name.len() >= NAME_BYTES {
            return Err(StatsError::Name(name.to_owned()));
        }
        let _guard = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.names().change(|names| {
            if afresh {
                for writer in 0..self.layout.writers {
                    self.at(writer, self.places()).absorb(self.at(writer, place));
                }
            }
            names.set_name(place, name);
        });
        Ok(())
    }

    /// The port at `place` has gone; its counters stay, without a name.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn leave_place(&self, place: usize) {
        assert!(place < self.places(), "no such place");
        let _guard = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.names().change(|names| names.set_name(place, ""));
    }

    fn at(&self, writer: usize, place: usize) -> &PortBlock {
        debug_assert!(writer < self.layout.writers && place < self.layout.ports.len());
        // SAFETY: one of the mapping's blocks, by the callers' checks; all bits are valid atomics.
        unsafe { self.blocks.add(writer * self.layout.ports.len() + place).as_ref() }
    }

    /// The counters of every place, summed over the writers: the ports' by their numbers, and last
    /// what ports have counted that have gone.
    pub fn snapshot(&self) -> Vec<PortTotals> {
        // SAFETY: the mapping holds so many blocks from here on; all bits are valid atomics.
        totals(
            unsafe { std::slice::from_raw_parts(self.blocks.as_ptr(), self.layout.blocks()) },
            &self.layout,
            &self.names(),
        )
    }

    /// The counters of every port, by one writer alone.
    ///
    /// # Panics
    /// When there is no such writer.
    pub fn writer_snapshot(&self, writer: usize) -> Vec<PortTotals> {
        assert!(writer < self.layout.writers, "no such writer");
        let ports = self.layout.ports.len();
        // SAFETY: one writer's blocks, which lie one after the other; all bits are valid atomics.
        totals(
            unsafe { std::slice::from_raw_parts(self.blocks.add(writer * ports).as_ptr(), ports) },
            &self.layout,
            &self.names(),
        )
    }

    /// When the counters began, in nanoseconds since 1970.
    pub fn started(&self) -> u64 {
        self.layout.started
    }

    /// Takes the file's name away. Blocks handed out stay usable.
    pub fn remove(mut self) {
        drop(self.name.take());
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        // A forked child is not the owner; a newer daemon's file is not ours.
        let ours = || {
            let (there, mine) = (fs::symlink_metadata(&self.path).ok()?, self.file.metadata().ok()?);
            Some(there.dev() == mine.dev() && there.ino() == mine.ino())
        };
        if self.owner == std::process::id() && ours() == Some(true) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// One writer's counters for one port. Keeps the memory alive; cheap to clone.
#[derive(Clone, Debug)]
pub struct BlockRef {
    block: NonNull<PortBlock>,
    _memory: Arc<Mapping>,
}

// SAFETY: the block lies in `_memory`, which the reference keeps alive; it is all atomics.
unsafe impl Send for BlockRef {}
// SAFETY: as above.
unsafe impl Sync for BlockRef {}

impl Deref for BlockRef {
    type Target = PortBlock;
    #[inline(always)]
    fn deref(&self) -> &PortBlock {
        // SAFETY: alive as long as the mapping, which `self` holds; never written but as atomics.
        unsafe { self.block.as_ref() }
    }
}

fn layout_now(ports: &[String], workers: usize) -> Layout {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut places = ports.to_vec();
    places.resize(ports.len() + SPARE + 1, String::new());
    Layout::new(&places, workers + 1, std::process::id(), started)
}

/// Gives `file` its header and `bytes` bytes of real disk space, zeroed.
fn fill(mut file: &File, header: &[u8], bytes: usize) -> io::Result<()> {
    match nix::fcntl::posix_fallocate(file, 0, bytes as libc::off_t) {
        // ZFS cannot allocate ahead: there, written zeroes must do.
        Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENODEV) => {
            file.write_all(header)?;
            file.write_all(&vec![0; bytes - header.len()])
        }
        Err(e) => Err(e.into()),
        Ok(()) => file.write_all(header),
    }
}

/// Maps the first `bytes` bytes of `file`, shared with everybody who maps it.
pub(super) fn map(file: &File, bytes: usize, protection: libc::c_int) -> io::Result<Mapping> {
    // SAFETY: a fresh mapping at a place of the kernel's choice; no existing memory is touched.
    let raw =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    match NonNull::new(raw.cast::<u8>()) {
        // SAFETY: the mapping just made, handed over.
        Some(start) if raw != libc::MAP_FAILED => Ok(unsafe { Mapping::from_raw(start, bytes) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::verdict::Verdict;
    use std::os::unix::fs::PermissionsExt;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn a_reader_sees_what_every_writer_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(STATS_FILE);
        let file = StatsFile::create(&path, &names(&["wan", "lan"]), 2).unwrap();
        assert_eq!(file.keeper(), 2);
        for writer in 0..3 {
            file.block(writer, 1).rx_packets.add(10);
            file.block(writer, 1).count(Verdict::NoRoute, 1);
        }
        let reader = StatsReader::open(&path).unwrap();
        assert_eq!(reader.ports(), ["wan", "lan"]);
        assert_eq!(reader.pid(), std::process::id());
        let now = reader.snapshot();
        assert_eq!((now[0].rx_packets, now[1].rx_packets), (0, 30));
        assert_eq!(now[1].verdicts[Verdict::NoRoute as usize], 3);
        assert_eq!(now, file.snapshot());
    }

    #[test]
    fn a_port_that_comes_gets_a_name_and_what_one_that_went_counted_stays_in_the_sum() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(STATS_FILE);
        let file = StatsFile::create(&path, &names(&["wan", "lan"]), 1).unwrap();
        let reader = StatsReader::open(&path).unwrap();
        let sum = || reader.snapshot().iter().map(|port| port.rx_packets).sum::<u64>();
        let of = |name: &str| reader.snapshot().iter().find(|p| p.name == name).map(|p| p.rx_packets);
        file.block(0, 1).rx_packets.add(5);
        file.take_place(2, "dmz", true).unwrap();
        file.block(0, 2).rx_packets.add(3);
        assert_eq!((reader.ports(), of("dmz"), sum()), (names(&["wan", "lan", "dmz"]), Some(3), 8));
        file.leave_place(1);
        assert_eq!((reader.ports(), of("lan"), sum()), (names(&["wan", "dmz"]), None, 8));
        // The same port again goes on, another one begins anew.
        file.take_place(1, "lan", false).unwrap();
        assert_eq!((of("lan"), sum()), (Some(5), 8));
        file.leave_place(1);
        file.take_place(1, "guest", true).unwrap();
        file.block(0, 1).rx_packets.add(1);
        assert_eq!((of("guest"), sum()), (Some(1), 9));
        assert_eq!((file.port(1), file.places()), ("guest".into(), 18));
        assert!(file.take_place(3, &"x".repeat(64), true).is_err());
    }

    #[test]
    fn the_file_goes_with_its_owner_and_blocks_stay_usable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(STATS_FILE);
        let file = StatsFile::create(&path, &names(&["wan"]), 1).unwrap();
        let block = file.block(0, 0);
        let reader = StatsReader::open(&path).unwrap();
        assert!(reader.daemon_lives());
        file.remove();
        assert!(!path.exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(!reader.daemon_lives());
        std::thread::spawn(move || block.rx_packets.add(1)).join().unwrap();
        assert_eq!(reader.snapshot()[0].rx_packets, 1);
    }

    #[test]
    fn a_file_left_by_a_killed_daemon_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(STATS_FILE);
        let dead = StatsFile::create(&path, &names(&["old"]), 1).unwrap();
        let bytes = fs::read(&path).unwrap();
        drop(dead);
        for left in [&bytes[..], b"", b"no counters at all", &bytes[..100]] {
            fs::write(&path, left).unwrap();
            fs::write(path.with_extension("new"), b"half made").unwrap();
            drop(StatsFile::create(&path, &names(&["new"]), 1).unwrap());
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_running_daemons_file_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(STATS_FILE);
        let first = StatsFile::create(&path, &names(&["wan"]), 1).unwrap();
        let e = StatsFile::create(&path, &names(&["wan"]), 1).unwrap_err();
        assert!(matches!(e, StatsError::Busy { pid, .. } if pid == std::process::id()), "{e}");
        assert!(StatsReader::open(&path).unwrap().daemon_lives());
        drop(first);
        StatsFile::create(&path, &names(&["wan"]), 1).unwrap();
    }

    #[test]
    fn an_owner_leaves_a_newer_daemons_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(STATS_FILE);
        let old = StatsFile::create(&path, &names(&["wan"]), 1).unwrap();
        fs::remove_file(&path).unwrap();
        let new = StatsFile::create(&path, &names(&["wan"]), 1).unwrap();
        drop(old);
        assert!(path.exists());
        drop(new);
        assert!(!path.exists());
    }

    #[test]
    fn everybody_may_read_the_file_and_its_space_is_allocated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(STATS_FILE);
        let _file = StatsFile::create(&path, &names(&["a", "b", "c"]), 7).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o644);
        assert!(meta.blocks() * 512 >= meta.len(), "{} of {} bytes", meta.blocks() * 512, meta.len());
    }

    #[test]
    fn what_cannot_be_made_is_one_line_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let e = StatsFile::create(&dir.path().join("none/stats"), &names(&["wan"]), 1).unwrap_err();
        assert!(!e.to_string().contains('\n') && e.to_string().contains("none/stats"), "{e}");
        let e = StatsFile::create(&dir.path().join("stats"), &["x".repeat(64)], 1).unwrap_err();
        assert!(matches!(e, StatsError::Name(_)));
        // A directory in the way cannot be replaced by a rename.
        let path = dir.path().join(STATS_FILE);
        fs::create_dir(&path).unwrap();
        assert!(matches!(StatsFile::create(&path, &names(&["wan"]), 1), Err(StatsError::Io { .. })));
        assert!(!path.with_extension("new").exists());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_one_clear_error_and_leaves_nothing() {
        use nix::{
            mount::{MsFlags, mount},
            sched::{CloneFlags, unshare},
        };
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: mounting a small file system needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(STATS_FILE);
        // A thread with mounts of its own: they go when it does.
        let test = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            let small = path.parent().unwrap();
            mount(Some("tmpfs"), small, Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
            let e = StatsFile::create(&path, &names(&["wan", "lan"]), 64).unwrap_err();
            assert!(matches!(e, StatsError::Full { .. }), "{e}");
            assert!(e.to_string().contains("runtime_dir") && !e.to_string().contains('\n'));
            assert_eq!(fs::read_dir(small).unwrap().count(), 0);
            StatsFile::create(&path, &names(&["wan"]), 1).unwrap();
        });
        test.join().unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn where_space_cannot_be_allocated_ahead_a_full_disk_shows_as_well() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let e = fill(&full, &[1; 64], 4096).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{e}");
    }

    #[test]
    fn counters_without_a_file_count_too() {
        let file = StatsFile::anonymous(&names(&["wan"]), 1).unwrap();
        file.block(1, 0).tx_full.add(2);
        assert_eq!(file.snapshot()[0].tx_dropped, 2);
    }
}
