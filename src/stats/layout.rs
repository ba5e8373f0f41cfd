//! The counters file's layout: what its writer lays down and its readers check.
//!
//! ```text
//! header | places for ports, 64 bytes of name each | verdicts: 31 bytes of name, 1 of class |
//! to the next 4096: writer 0: block of place 0, block of place 1, … | writer 1: … | … | the keeper: …
//! ```
//!
//! There are more places than ports: a port that comes while the daemon runs is written into one
//! without a name. What ports counted that have gone, and whose places others have, is in the last
//! place, which never gets a name; so sums over all places never go back. While names change or
//! counts move, the header's `changes` is odd, and it is another number afterwards: a reader that
//! sees that reads again.
//!
//! Numbers are in the machine's byte order: the file never leaves the machine. The verdicts'
//! names and classes stand in the file, so that a reader of another version, which may know fewer
//! or other verdicts, shows each count under its right name.

use std::{
    mem::offset_of,
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::counters::PortBlock;
use crate::forward::verdict::{Class, VERDICTS_MAX, Verdict};

/// Begins every counters file.
const MAGIC: [u8; 8] = *b"sweepd:S";
/// Changes whenever a counter's place or meaning does.
const VERSION: u32 = 2;
/// Bytes of a port's name in the file, padded with zeroes; a name is shorter.
pub(super) const NAME_BYTES: usize = 64;
/// The blocks begin at a multiple of this.
const PAGE: usize = 4096;
/// More ports or writers than anybody has; keeps the sizes' arithmetic small.
const PLENTY: usize = 1 << 16;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: u32,
    /// Where the blocks begin, in bytes from the start.
    blocks_at: u32,
    pid: u32,
    /// Places for ports.
    ports: u32,
    writers: u32,
    verdicts: u32,
    block_bytes: u32,
    /// Odd while names change or counts move, and never the same again.
    changes: u32,
    /// Nanoseconds since 1970.
    started: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct VerdictEntry {
    name: [u8; 31],
    class: u8,
}

/// What a counters file says about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    /// The daemon's process id.
    pub pid: u32,
    /// When the counters began, in nanoseconds since 1970.
    pub started: u64,
    /// The places' names; empty where no port is.
    pub ports: Vec<String>,
    /// The workers and the keeper.
    pub writers: usize,
    /// The verdicts' names and classes, in the order of their counters.
    pub verdicts: Vec<(String, Class)>,
}

impl Layout {
    /// The layout of this version for these places and writers.
    pub fn new(ports: &[String], writers: usize, pid: u32, started: u64) -> Self {
        let verdicts = Verdict::ALL.iter().map(|v| (v.name().to_owned(), v.class())).collect();
        Self { pid, started, ports: ports.to_vec(), writers, verdicts }
    }

    /// Where the blocks begin.
    pub fn blocks_at(&self) -> usize {
        let names = self.ports.len() * NAME_BYTES + self.verdicts.len() * size_of::<VerdictEntry>();
        (size_of::<Header>() + names).next_multiple_of(PAGE)
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.ports.len() * self.writers
    }

    /// Length of the whole file in bytes.
    pub fn file_bytes(&self) -> usize {
        self.blocks_at() + self.blocks() * size_of::<PortBlock>()
    }

    /// Everything before the blocks. Names must be shorter than their places.
    pub fn header(&self) -> Vec<u8> {
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            blocks_at: self.blocks_at() as u32,
            pid: self.pid,
            ports: self.ports.len() as u32,
            writers: self.writers as u32,
            verdicts: self.verdicts.len() as u32,
            block_bytes: size_of::<PortBlock>() as u32,
            changes: 0,
            started: self.started,
        };
        let mut bytes = header.as_bytes().to_vec();
        for port in &self.ports {
            bytes.extend(padded::<NAME_BYTES>(port));
        }
        for (name, class) in &self.verdicts {
            bytes.extend(VerdictEntry { name: padded(name), class: *class as u8 }.as_bytes());
        }
        bytes.resize(self.blocks_at(), 0);
        bytes
    }

    /// Number of bytes to read from a file's start to be able to [`Layout::parse`] it, by the
    /// word of its first bytes.
    ///
    /// # Errors
    /// What is wrong with the file, for people.
    pub fn header_bytes(start: &[u8], file_bytes: u64) -> Result<usize, String> {
        let (header, _) = Header::read_from_prefix(start).map_err(|_| "it is too short".to_owned())?;
        if header.magic != MAGIC {
            return Err("it does not begin like one".into());
        }
        if header.version != VERSION {
            return Err(format!(
                "its layout is version {}, this program reads version {VERSION}: use the sweepd that is running",
                header.version
            ));
        }
        let at = header.blocks_at as usize;
        if at as u64 > file_bytes || at > PLENTY * PAGE {
            return Err("it is cut short".into());
        }
        Ok(at)
    }

    /// Reads back what [`Layout::header`] wrote, trusting nothing: every number is checked against
    /// the others and against the length of the file.
    ///
    /// # Errors
    /// What is wrong with the file, for people.
    pub fn parse(bytes: &[u8], file_bytes: u64) -> Result<Self, String> {
        let at = Self::header_bytes(bytes, file_bytes)?;
        let wrong = |what: &str| Err(format!("its {what} cannot be"));
        let Ok((header, rest)) = Header::read_from_prefix(bytes) else { return wrong("length") };
        let (ports, writers) = (header.ports as usize, header.writers as usize);
        if ports > PLENTY || writers > PLENTY || writers == 0 {
            return wrong("number of ports or writers");
        }
        if header.verdicts as usize > VERDICTS_MAX {
            return wrong("number of verdicts");
        }
        if header.block_bytes as usize != size_of::<PortBlock>() {
            return wrong("block size");
        }
        let names = ports * NAME_BYTES;
        let entries = header.verdicts as usize * size_of::<VerdictEntry>();
        if at != (size_of::<Header>() + names + entries).next_multiple_of(PAGE) || bytes.len() < at {
            return wrong("header size");
        }
        // At most 2^32 blocks of some hundred bytes: no overflow in 64 bits.
        let blocks = ports as u64 * writers as u64 * size_of::<PortBlock>() as u64;
        if at as u64 + blocks > file_bytes {
            return Err("it is cut short".into());
        }
        let mut verdicts = Vec::new();
        for entry in rest[names..names + entries].chunks_exact(size_of::<VerdictEntry>()) {
            let Ok(entry) = VerdictEntry::read_from_bytes(entry) else { return wrong("verdicts") };
            let Some(class) = class_of(entry.class) else { return wrong("verdict classes") };
            verdicts.push((unpadded(&entry.name), class));
        }
        let ports = rest[..names].chunks_exact(NAME_BYTES).map(unpadded).collect();
        Ok(Self { pid: header.pid, started: header.started, ports, writers, verdicts })
    }
}

/// Tries to read what does not change meanwhile; a writer that was killed in the middle leaves an
/// odd number for ever.
const TRIES: u32 = 1000;

/// The part of a mapped counters file that changes besides the counters: which port has which place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    start: NonNull<u8>,
    count: usize,
}

impl Places {
    /// Those of a file mapped at `start`.
    ///
    /// # Safety
    /// A whole header with `count` places is mapped there, as long as the value is used, at the
    /// start of a page.
    pub unsafe fn new(start: NonNull<u8>, count: usize) -> Self {
        Self { start, count }
    }

    fn changes(&self) -> &AtomicU32 {
        // SAFETY: by the promise of `new` a header is there, and its field is aligned.
        unsafe { self.start.add(offset_of!(Header, changes)).cast().as_ref() }
    }

    fn words(&self, place: usize) -> &[AtomicU64] {
        assert!(place < self.count, "no such place");
        let at = size_of::<Header>() + place * NAME_BYTES;
        // SAFETY: by the promise of `new` the place's name is there; header and names are multiples
        // of eight bytes long.
        unsafe { std::slice::from_raw_parts(self.start.add(at).cast().as_ptr(), NAME_BYTES / 8) }
    }

    /// The name at `place`.
    pub fn name(&self, place: usize) -> String {
        let bytes: Vec<u8> =
            self.words(place).iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        unpadded(&bytes)
    }

    /// Gives `place` another name. To be called within [`Places::change`].
    pub fn set_name(&self, place: usize, name: &str) {
        let bytes = padded::<NAME_BYTES>(name);
        for (word, bytes) in self.words(place).iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Makes a change that readers see as a whole. One at a time.
    pub fn change(&self, make: impl FnOnce(&Self)) {
        let before = self.changes().load(Ordering::Relaxed);
        self.changes().store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        make(self);
        self.changes().store(before.wrapping_add(2), Ordering::Release);
    }

    /// What `look` gives while nothing changes.
    pub fn read<T>(&self, look: impl Fn(&Self) -> T) -> T {
        for _ in 0..TRIES {
            let before = self.changes().load(Ordering::Acquire);
            let seen = look(self);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.changes().load(Ordering::Relaxed) == before {
                return seen;
            }
            std::thread::yield_now();
        }
        look(self)
    }
}

fn class_of(byte: u8) -> Option<Class> {
    [Class::Fine, Class::Discard, Class::Error, Class::Drop].into_iter().find(|c| *c as u8 == byte)
}

fn padded<const N: usize>(name: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let n = name.len().min(N - 1);
    bytes[..n].copy_from_slice(&name.as_bytes()[..n]);
    bytes
}

/// The name in `bytes`, fit to be shown on a terminal whatever the file holds.
fn unpadded(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some() -> Layout {
        Layout::new(&["wan".into(), "lan.100".into()], 3, 4711, 12)
    }

    #[test]
    fn what_was_written_is_read_back() {
        let layout = some();
        assert_eq!(Layout::parse(&layout.header(), layout.file_bytes() as u64), Ok(layout));
    }

    #[test]
    fn a_verdict_that_this_version_does_not_know_keeps_its_name() {
        let mut layout = some();
        layout.verdicts.push(("from_the_future".into(), Class::Drop));
        let read = Layout::parse(&layout.header(), layout.file_bytes() as u64).unwrap();
        assert_eq!(read.verdicts.last().unwrap(), &("from_the_future".to_owned(), Class::Drop));
    }

    #[test]
    fn every_shorter_file_is_refused() {
        let layout = some();
        let header = layout.header();
        for n in 0..header.len() {
            assert!(Layout::parse(&header[..n], n as u64).is_err(), "{n}");
        }
        assert!(Layout::parse(&header, layout.file_bytes() as u64 - 1).is_err());
    }

    #[test]
    fn another_version_is_named() {
        let mut header = some().header();
        header[8] = 9;
        let e = Layout::parse(&header, 1 << 20).unwrap_err();
        assert!(e.contains("version 9") && e.contains("version 2"), "{e}");
    }

    #[test]
    fn a_reader_never_sees_half_a_change() {
        let layout = some();
        let header = layout.header();
        let memory = netmap::Mapping::anonymous(header.len()).unwrap();
        // SAFETY: as many bytes as the header has.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), memory.start().as_ptr(), header.len()) };
        let names = |places: &Places| [places.name(0), places.name(1)];
        // SAFETY: two places are there.
        let places = unsafe { Places::new(memory.start(), 2) };
        places.change(|places| places.set_name(1, "wan"));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                // SAFETY: two places are there.
                let places = unsafe { Places::new(memory.start(), 2) };
                let mut last = names(&places);
                while last[0] != "port-2000-of-many" {
                    last = places.read(names);
                    assert_eq!(last[0], last[1]);
                }
            });
            for n in 0..=2000 {
                places.change(|places| {
                    places.set_name(0, &format!("port-{n}-of-many"));
                    places.set_name(1, &format!("port-{n}-of-many"));
                });
            }
            reader.join().unwrap();
        });
    }

    proptest! {
        #[test]
        fn a_damaged_header_is_refused_or_stays_within_the_file(
            damage in prop::collection::vec((0..48usize, any::<u8>()), 1..6),
            cut in 0..10_000u64,
        ) {
            let layout = some();
            let mut header = layout.header();
            for (at, byte) in damage {
                header[at] = byte;
            }
            let len = layout.file_bytes() as u64 - cut.min(layout.file_bytes() as u64);
            let have = header.len().min(len as usize);
            if let Ok(read) = Layout::parse(&header[..have], len) {
                prop_assert!(read.file_bytes() as u64 <= len);
            }
        }

        #[test]
        fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            prop_assert!(Layout::parse(&bytes, bytes.len() as u64).is_err());
        }
    }
}
