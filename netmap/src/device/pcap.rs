//! `pcap:in.pcap[,out.pcap]`: a capture in, a capture out.
//!
//! Received on the port are the packets of the first file, in their order, as fast as the ring
//! has room; what is sent out of the port is written to the second file, or only counted when
//! there is none. `pcap:in.pcap?loop` reads the whole file first and gives its packets round
//! after round, each time as they were: for benchmarks.
//!
//! - Read are pcap (micro- and nanoseconds) and pcapng, of either byte order, Ethernet only. Times
//!   in the capture are not looked at.
//! - Written is pcap with microseconds, little endian. The n-th packet of the file, from 0, has
//!   the time of n microseconds after 1970: the same packets give the same file.
//! - A packet longer than a buffer is lost and counted, never cut.
//! - Damage at the file's start is an error on opening; later, it is logged and is the end of the
//!   input. A file that cannot be written to is logged once; its packets count as errors.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use self::{
    capture::{Capture, CaptureError},
    output::Output,
};
use super::{Host, OpenError, OpenOptions, Port, PortControl, PortInfo, count::Count};
use crate::{
    arena::{Arena, BUF_SIZE},
    queue::{Losses, RxDevice, RxQueue, TxDevice, TxQueue, Wait},
    ring::{Direction, Kring, RxRing, TxRing},
};

pub mod capture;
mod output;

/// Slots per ring when nobody says otherwise.
pub const DEFAULT_SLOTS: u32 = 1024;

/// The files of a port.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PcapFiles {
    /// What is received; `None`: nothing.
    pub input: Option<PathBuf>,
    /// Where to write what is sent; `None`: it is only counted.
    pub output: Option<PathBuf>,
    /// Whether the input begins anew when it has ended.
    pub looped: bool,
}

impl PcapFiles {
    /// These files; an input with `?loop` behind its name is repeated.
    pub fn new(input: &Path, output: Option<&Path>) -> Self {
        let name = input.as_os_str().as_bytes();
        let (name, looped) = match name.strip_suffix(b"?loop") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let file = |name: &[u8]| (!name.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(name)));
        let output = output.and_then(|output| file(output.as_os_str().as_bytes()));
        Self { input: file(name), output, looped }
    }

    /// The files of a device's name, with or without `pcap:`.
    pub fn parse(spec: &str) -> Self {
        let text = spec.strip_prefix("pcap:").unwrap_or(spec);
        match text.split_once(',') {
            Some((input, output)) => Self::new(Path::new(input), Some(Path::new(output))),
            None => Self::new(Path::new(text), None),
        }
    }
}

impl std::fmt::Display for PcapFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pcap:{}", self.input.as_deref().unwrap_or(Path::new("")).display())?;
        if self.looped {
            f.write_str("?loop")?;
        }
        self.output.as_ref().map_or(Ok(()), |output| write!(f, ",{}", output.display()))
    }
}

#[derive(Debug, Default)]
struct Counts {
    received: Count,
    too_long: Count,
    packets: Count,
    bytes: Count,
    failed: Count,
    damaged: Count,
}

/// A view of what has gone through a capture port; any thread may read it.
#[derive(Clone, Debug, Default)]
pub struct PcapCounters(Arc<Counts>);

/// What has gone through a capture port. Packets, except where said.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PcapTotals {
    /// Given to the receive ring.
    pub received: u64,
    /// In the input, but longer than a buffer.
    pub too_long: u64,
    /// Sent, the failed ones included.
    pub packets: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Sent, but not written: the output cannot be written to, or the slot was impossible.
    pub failed: u64,
    /// 1 when the input broke off or cannot be read on, else 0.
    pub damaged: u64,
}

impl PcapCounters {
    /// The counts now.
    pub fn totals(&self) -> PcapTotals {
        PcapTotals {
            received: self.0.received.get(),
            too_long: self.0.too_long.get(),
            packets: self.0.packets.get(),
            bytes: self.0.bytes.get(),
            failed: self.0.failed.get(),
            damaged: self.0.damaged.get(),
        }
    }
}

/// Where received packets come from.
enum Source {
    Nothing,
    File(Capture),
    Loop { packets: Packets, next: usize },
}

/// Packets in memory, one after the other.
#[derive(Default)]
struct Packets {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Packets {
    fn get(&self, n: usize) -> &[u8] {
        let start = n.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[n]]
    }
}

struct PcapRx {
    ring: Kring,
    source: Source,
    device: String,
    counters: PcapCounters,
}

impl PcapRx {
    /// Gives packets as long as there are any and room for them.
    fn feed(&mut self) -> Result<(), CaptureError> {
        let counts = &self.counters.0;
        while self.ring.room() > 0 {
            match &mut self.source {
                Source::Nothing => return Ok(()),
                Source::File(capture) => {
                    let Some(packet) = capture.packet() else { return Ok(()) };
                    let count =
                        if self.ring.give_packet(packet) { &counts.received } else { &counts.too_long };
                    count.add(1);
                    capture.advance()?;
                }
                Source::Loop { packets, next } => {
                    if self.ring.give_packet(packets.get(*next)) {
                        counts.received.add(1);
                    }
                    *next = if *next + 1 == packets.ends.len() { 0 } else { *next + 1 };
                }
            }
        }
        Ok(())
    }
}

impl RxDevice for PcapRx {
    fn sync(&mut self) -> io::Result<()> {
        self.ring.take_all();
        if let Err(e) = self.feed() {
            log::error!("{}: {e}; nothing more is read", self.device);
            self.counters.0.damaged.add(1);
        }
        self.ring.publish();
        Ok(())
    }

    fn wait(&self) -> Wait {
        Wait::Never
    }

    fn finished(&self) -> bool {
        match &self.source {
            Source::Nothing => true,
            Source::File(capture) => capture.packet().is_none(),
            Source::Loop { .. } => false,
        }
    }
}

struct PcapTx {
    ring: Kring,
    output: Option<Output>,
    counters: PcapCounters,
}

impl TxDevice for PcapTx {
    fn sync(&mut self) -> io::Result<()> {
        let counts = &self.counters.0;
        let mut idle = true;
        while let Some(slot) = self.ring.take() {
            let slot = *slot;
            idle = false;
            counts.packets.add(1);
            let Some(bytes) = self.ring.bytes(&slot) else {
                counts.failed.add(1);
                continue;
            };
            counts.bytes.add(bytes.len() as u64);
            if self.output.as_mut().is_some_and(|output| !output.write(bytes)) {
                counts.failed.add(1);
            }
        }
        if idle
            && let Some(output) = &mut self.output
            && !output.flush()
        {
            counts.failed.add(1);
        }
        while self.ring.room() > 0 {
            self.ring.give();
        }
        self.ring.publish();
        Ok(())
    }

    fn wait(&self) -> Wait {
        Wait::Never
    }
}

struct PcapControl {
    counters: PcapCounters,
}

impl PortControl for PcapControl {
    fn losses(&mut self) -> Losses {
        let totals = self.counters.totals();
        Losses {
            rx_dropped: totals.too_long,
            rx_errors: totals.damaged,
            tx_errors: totals.failed,
            ..Losses::default()
        }
    }
}

fn slots(options: &OpenOptions) -> u32 {
    options.slots.unwrap_or(DEFAULT_SLOTS).clamp(2, 1 << 16)
}

/// Number of rings and slots that [`open`] takes from an arena, for [`Arena::new`]: one ring
/// pair, whatever the options say, so that the packets keep their order.
pub fn needs(options: &OpenOptions) -> (usize, u32) {
    (2, 2 * slots(options))
}

/// Opens captures in `arena`; `spec` is the device's name, with or without `pcap:`.
///
/// # Errors
/// When a file cannot be opened, or the input is not a capture of Ethernet.
///
/// # Panics
/// When the arena has less than [`needs`] says.
pub fn open(arena: &mut Arena, spec: &str, options: &OpenOptions) -> Result<Port, OpenError> {
    open_files(arena, &PcapFiles::parse(spec), options).map(|(port, _)| port)
}

/// As [`open`], and a view of the counters.
///
/// # Errors
/// As [`open`].
///
/// # Panics
/// As [`open`].
pub fn open_files(
    arena: &mut Arena,
    files: &PcapFiles,
    options: &OpenOptions,
) -> Result<(Port, PcapCounters), OpenError> {
    let device = files.to_string();
    let counters = PcapCounters::default();
    let source = source(files, &counters).map_err(|e| OpenError::new(&device, e))?;
    let output = match &files.output {
        None => None,
        Some(path) => Some(output(path, files, &device).map_err(|e| OpenError::new(&device, e))?),
    };
    let view = arena.ring(Direction::Rx, slots(options), 0);
    let ring = Kring::new(view.clone());
    let from = PcapRx { ring, source, device: device.clone(), counters: counters.clone() };
    let rx = vec![RxQueue::new(RxRing::new(view), Box::new(from))];
    let view = arena.ring(Direction::Tx, slots(options), 0);
    let to = PcapTx { ring: Kring::new(view.clone()), output, counters: counters.clone() };
    let tx = vec![TxQueue::new(TxRing::new(view), Box::new(to))];
    let info = PortInfo { device, interface: None, mac: None, max_frame: BUF_SIZE, mode: "capture".into() };
    let control = Box::new(PcapControl { counters: counters.clone() });
    Ok((Port { info, rx, tx, host: Host::Builtin, control }, counters))
}

fn source(files: &PcapFiles, counters: &PcapCounters) -> Result<Source, String> {
    let Some(path) = &files.input else { return Ok(Source::Nothing) };
    let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let file = File::open(path).map_err(|e| wrong(&e))?;
    let mut capture = Capture::new(file).map_err(|e| wrong(&e))?;
    if !files.looped {
        return Ok(Source::File(capture));
    }
    let mut packets = Packets::default();
    while let Some(packet) = capture.packet() {
        if packet.len() > BUF_SIZE as usize {
            counters.0.too_long.add(1);
        } else {
            packets.bytes.extend(packet);
            packets.ends.push(packets.bytes.len());
        }
        capture.advance().map_err(|e| wrong(&e))?;
    }
    if packets.ends.is_empty() {
        return Err(wrong(&"no packet in it that fits a buffer, nothing to repeat"));
    }
    Ok(Source::Loop { packets, next: 0 })
}

fn output(path: &Path, files: &PcapFiles, device: &str) -> Result<Output, String> {
    let same = |input: &PathBuf| {
        let (a, b) = (fs::metadata(input).ok()?, fs::metadata(path).ok()?);
        Some(a.is_file() && a.dev() == b.dev() && a.ino() == b.ino())
    };
    if files.input.as_ref().and_then(same) == Some(true) {
        return Err("input and output are the same file: write to another one".into());
    }
    Output::create(path, device).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{capture::tests::pcap, *};
    use pcap_file::{Endianness, TsResolution, pcap::PcapReader};
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn some(n: usize) -> Vec<Vec<u8>> {
        (0..n).map(|n| (0..n * 37 % 300 + 14).map(|b| (b + n) as u8).collect()).collect()
    }

    fn little(packets: &[Vec<u8>]) -> Vec<u8> {
        pcap(packets, Endianness::Little, TsResolution::MicroSecond, 1)
    }

    fn opened(spec: &str, slots: u32) -> Result<Port, OpenError> {
        let options = OpenOptions { slots: Some(slots), ..Default::default() };
        let (rings, slots) = needs(&options);
        open(&mut Arena::new(rings, slots, 0).unwrap(), spec, &options)
    }

    fn buffers(port: &Port) -> Vec<u32> {
        let rx = port.rx[0].ring.view().buffer_indices();
        let mut all = [rx, port.tx[0].ring.view().buffer_indices()].concat();
        all.sort_unstable();
        all
    }

    /// Sends everything that comes back out, after `change`; returns what came.
    fn bounce(port: &mut Port, change: impl Fn(&mut [u8])) -> Vec<Vec<u8>> {
        let (rx, tx) = (&mut port.rx[0], &mut port.tx[0]);
        rx.sync().unwrap();
        let n = rx.ring.available();
        let mut seen = Vec::new();
        for i in 0..n {
            let index = rx.ring.index(i);
            // SAFETY: each slot is looked at once, between head and tail.
            let mut frame = unsafe { rx.ring.frame(index) }.unwrap();
            seen.push(frame.bytes().to_vec());
            change(frame.bytes_mut());
            assert!(tx.ring.forward(&rx.ring, index, frame.len()));
        }
        rx.ring.advance(n);
        tx.sync().unwrap();
        seen
    }

    /// Packets and their times in microseconds.
    fn read(path: &Path) -> Vec<(u64, Vec<u8>)> {
        let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
        let mut packets = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            packets.push((packet.timestamp.as_micros() as u64, packet.data.into_owned()));
        }
        packets
    }

    #[test]
    fn a_capture_goes_in_and_comes_out_in_order_with_buffers_conserved() {
        let dir = tempfile::tempdir().unwrap();
        let (input, out) = (dir.path().join("in.pcap"), dir.path().join("out.pcap"));
        fs::write(&input, little(&some(100))).unwrap();
        let mut port = opened(&format!("pcap:{},{}", input.display(), out.display()), 16).unwrap();
        let before = buffers(&port);
        assert_eq!(before.iter().collect::<HashSet<_>>().len(), 32);
        let mut seen = Vec::new();
        while !port.rx[0].finished() || port.rx[0].ring.available() > 0 {
            seen.extend(bounce(&mut port, |_| {}));
            assert!(seen.len() <= 100);
        }
        assert_eq!(seen, some(100));
        assert_eq!(buffers(&port), before);
        assert_eq!(port.control.losses(), Losses::default());
        drop(port);
        let want: Vec<_> = (0..).zip(some(100)).collect();
        assert_eq!(read(&out), want);
    }

    #[test]
    fn the_output_is_complete_whenever_nothing_more_is_sent() {
        let dir = tempfile::tempdir().unwrap();
        let (input, out) = (dir.path().join("in.pcap"), dir.path().join("out.pcap"));
        fs::write(&input, little(&some(5))).unwrap();
        let mut port = opened(&format!("{},{}", input.display(), out.display()), 16).unwrap();
        assert_eq!(read(&out), []);
        bounce(&mut port, |_| {});
        port.tx[0].sync().unwrap();
        assert_eq!(read(&out).len(), 5);
    }

    #[test]
    fn the_same_packets_give_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in.pcap");
        fs::write(&input, little(&some(50))).unwrap();
        let files: Vec<_> = (0..2)
            .map(|n| {
                let out = dir.path().join(format!("{n}.pcap"));
                let mut port = opened(&format!("{},{}", input.display(), out.display()), 8).unwrap();
                while !port.rx[0].finished() {
                    bounce(&mut port, |_| {});
                }
                drop(port);
                fs::read(out).unwrap()
            })
            .collect();
        assert_eq!(files[0], files[1]);
        assert_eq!(files[0], little(&some(50)));
    }

    #[test]
    fn a_packet_longer_than_a_buffer_is_counted_and_not_cut() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in.pcap");
        fs::write(&input, little(&[vec![1; 2048], vec![2; 2049], vec![3; 9000], vec![4; 60]])).unwrap();
        let mut port = opened(&input.display().to_string(), 16).unwrap();
        assert_eq!(bounce(&mut port, |_| {}), [vec![1; 2048], vec![4; 60]]);
        assert_eq!(port.control.losses(), Losses { rx_dropped: 2, ..Default::default() });
        assert!(port.rx[0].finished());
    }

    #[test]
    fn a_loop_gives_the_packets_as_they_were_every_round() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in.pcap");
        fs::write(&input, little(&[some(10), vec![vec![0; 3000]]].concat())).unwrap();
        let mut port = opened(&format!("pcap:{}?loop", input.display()), 8).unwrap();
        let before = buffers(&port);
        let mut seen = Vec::new();
        for _ in 0..20 {
            seen.extend(bounce(&mut port, |bytes| bytes.fill(0xee)));
        }
        assert_eq!(seen.len(), 140);
        assert!(seen.iter().zip(some(10).iter().cycle()).all(|(a, b)| a == b));
        assert_eq!(buffers(&port), before);
        assert!(!port.rx[0].finished());
        assert_eq!(port.control.losses().rx_dropped, 1);
    }

    #[test]
    fn damage_at_the_start_is_an_error_and_later_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in.pcap");
        let name = input.display().to_string();
        for (bytes, hint) in [
            (b"no capture".to_vec(), "not a pcap"),
            (little(&some(1))[..30].to_vec(), "cut short"),
            (pcap(&some(1), Endianness::Big, TsResolution::NanoSecond, 113), "link type 113"),
        ] {
            fs::write(&input, bytes).unwrap();
            let e = opened(&name, 8).err().unwrap().to_string();
            assert!(e.contains(hint) && e.contains(&name) && !e.contains('\n'), "{e}");
        }
        let bytes = little(&some(3));
        fs::write(&input, &bytes[..bytes.len() - 1]).unwrap();
        let mut port = opened(&name, 8).unwrap();
        assert_eq!(bounce(&mut port, |_| {}), some(2));
        assert!(port.rx[0].finished());
        assert!(opened(&format!("{name}?loop"), 8).err().unwrap().to_string().contains("cut short"));
    }

    #[test]
    fn files_that_cannot_be_used_are_one_clear_line() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in.pcap");
        let name = input.display().to_string();
        assert!(opened(&name, 8).err().unwrap().to_string().contains("No such file"));
        fs::write(&input, little(&some(1))).unwrap();
        let e = opened(&format!("{name},{name}"), 8).err().unwrap();
        assert!(e.to_string().contains("same file"), "{e}");
        assert_eq!(fs::read(&input).unwrap(), little(&some(1)), "the input is still there");
        assert!(opened(&format!("{name},{name}/out"), 8).err().unwrap().to_string().contains("/out"));
        fs::write(&input, little(&[])).unwrap();
        assert!(opened(&format!("{name}?loop"), 8).err().unwrap().to_string().contains("nothing to repeat"));
        assert!(opened(&name, 8).unwrap().rx[0].finished());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_at_the_start_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in.pcap");
        fs::write(&input, little(&some(4))).unwrap();
        let e = opened(&format!("{},/dev/full", input.display()), 64).err().unwrap();
        assert!(e.to_string().contains("/dev/full: No space left"), "{e}");
    }

    #[test]
    fn without_files_nothing_comes_and_everything_is_counted() {
        let mut arena = Arena::new(2, 16, 0).unwrap();
        let options = OpenOptions { slots: Some(8), ..Default::default() };
        let (mut port, counters) = open_files(&mut arena, &PcapFiles::default(), &options).unwrap();
        assert!(port.rx[0].finished());
        assert!(port.tx[0].ring.send(&[1; 60]));
        port.tx[0].sync().unwrap();
        assert_eq!(counters.totals(), PcapTotals { packets: 1, bytes: 60, ..Default::default() });
    }

    #[test]
    fn names_are_read_and_shown() {
        for (text, input, output, looped) in [
            ("pcap:a", Some("a"), None, false),
            ("pcap:a,b", Some("a"), Some("b"), false),
            ("pcap:a?loop,b", Some("a"), Some("b"), true),
            ("pcap:,b", None, Some("b"), false),
        ] {
            let files = PcapFiles::parse(text);
            let path = |name: Option<&str>| name.map(PathBuf::from);
            assert_eq!(files, PcapFiles { input: path(input), output: path(output), looped });
            assert_eq!(files.to_string(), text);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_damaged_capture_file_neither_panics_nor_loses_buffers(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            looped in any::<bool>(),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let input = dir.path().join("in.pcap");
            let mut bytes = little(&some(30));
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            fs::write(&input, bytes).unwrap();
            let name = format!("{}{}", input.display(), if looped { "?loop" } else { "" });
            if let Ok(mut port) = opened(&name, 8) {
                let before = buffers(&port);
                for _ in 0..10 {
                    bounce(&mut port, |_| {});
                }
                prop_assert_eq!(buffers(&port), before);
            }
        }
    }
}
