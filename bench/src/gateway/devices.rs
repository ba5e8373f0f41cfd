//! The gateway between `pcap:` devices, in packets per second: what the devices do is measured with
//! it. The capture holds a packet of each flow, is read into memory, and is given round after round.

use std::{
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use netmap::{
    Arena, Port,
    device::{OpenOptions, pcap, pcap::PcapFiles},
};
use sweepd::{
    forward::{assembly::assemble, burst::Burst, idle::Patience, verdict::Verdict, worker::Worker},
    stats::file::StatsFile,
    tables::{Tables, prefixes::Prefixes4, prefixes::Prefixes6, publish::Publisher},
};

use super::{
    Mode,
    by_packet::{Shared, Taker},
    setup::{self, Series},
};
use crate::{
    cycles::Spread,
    rig::{self, MAC, OUT_PORTS, SLOTS},
    traffic::Frame,
};

/// How long each mode runs before the other has its turn.
const TURN: Duration = Duration::from_millis(100);

/// Packets per second of one worker, by mode, over `turns` turns of each.
///
/// # Errors
/// When there is not enough memory or room for the capture, or not all flows are made.
pub fn measure(routes: &Prefixes4, series: Series, flows: usize, turns: usize) -> io::Result<[Spread; 2]> {
    let frames = setup::frames(routes, series, flows, 0, 1);
    let file = Capture::write(&frames)?;
    drop(frames);
    let (mut worker, _publisher, _stats) = open(routes, series, &file.0)?;
    drop(file);
    let mut burst = Burst::default();
    let mut before = 0;
    // The first round makes the flows, by the careful path.
    while worker.slow.flows.len() < flows {
        for _ in 0..flows.div_ceil(256) {
            worker.sweep(&mut burst);
        }
        let made = worker.slow.flows.len();
        if made == before {
            return Err(io::Error::other(format!("{flows} flows were sent, and {made} are known")));
        }
        before = made;
    }
    let (shared, _keeper) = Shared::new(setup::tables(routes, 1)?);
    shared.copy_flows(&worker.slow.flows);
    let mut taker = Taker::new(&shared, 0);
    let mut rates = [Vec::new(), Vec::new()];
    for turn in 0..=turns {
        for mode in Mode::ALL {
            let rate = turn_of(mode, &mut worker, &mut burst, &mut taker);
            // The first of each warms up.
            if turn > 0 {
                rates[mode as usize].push(rate);
            }
        }
    }
    Ok(rates.map(Spread::of))
}

/// Packets per second of one turn.
fn turn_of(mode: Mode, worker: &mut Worker, burst: &mut Burst, taker: &mut Taker<'_>) -> f64 {
    let forwarded = |worker: &Worker| worker.inputs[0].block.verdicts[Verdict::Forwarded as usize].get();
    let (before, start) = (forwarded(worker), Instant::now());
    while start.elapsed() < TURN {
        for _ in 0..64 {
            match mode {
                Mode::Packet => taker.sweep(worker),
                Mode::Sweep => _ = worker.sweep(burst),
            }
        }
    }
    (forwarded(worker) - before) as f64 / start.elapsed().as_secs_f64()
}

/// The worker between a port that gives the capture, and those that lead outside.
fn open(
    routes: &Prefixes4,
    series: Series,
    capture: &Path,
) -> io::Result<(Worker, Publisher<Tables>, StatsFile)> {
    let options = OpenOptions { slots: Some(SLOTS), ..OpenOptions::default() };
    let (rings, slots) = pcap::needs(&options);
    let count = usize::from(OUT_PORTS) + 1;
    let mut arena = Arena::new(count * rings, count as u32 * slots, 0)?;
    let mut ports: Vec<Port> = Vec::new();
    for id in 0..count {
        let input = (id == 0).then(|| capture.to_owned());
        let files = PcapFiles { looped: input.is_some(), input, output: None };
        let (mut port, _) = pcap::open_files(&mut arena, &files, &options).map_err(io::Error::other)?;
        port.info.mac = Some(MAC);
        ports.push(port);
    }
    let acl = setup::acl(1)?;
    let make = || -> io::Result<Tables> {
        let mut tables = rig::tables(routes, &Prefixes6::new())?;
        setup::translate(&mut tables, &acl, series);
        Ok(tables)
    };
    let (publisher, readers) = Publisher::try_new(make, 1)?;
    let stats = StatsFile::anonymous(&rig::names(), 1).map_err(io::Error::other)?;
    let (keeper, _) = crossbeam_channel::bounded(64);
    let mut assembly = assemble(ports, None, &stats, readers, &keeper, Patience::Spin)?;
    Ok((assembly.workers.remove(0), publisher, stats))
}

/// A capture that is removed when it has been read.
struct Capture(PathBuf);

impl Capture {
    fn write(frames: &[Frame]) -> io::Result<Self> {
        let name = format!("sweepd-bench-gateway-{}.pcap", std::process::id());
        let capture = Self(std::env::temp_dir().join(name));
        let mut file = BufWriter::new(fs::File::create(&capture.0)?);
        // Little endian, microseconds, version 2.4, Ethernet.
        let head: [u32; 6] = [0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65535, 1];
        head.iter().try_for_each(|word| file.write_all(&word.to_le_bytes()))?;
        for (bytes, len) in frames {
            let head = [0, 0, u32::from(*len), u32::from(*len)];
            head.iter().try_for_each(|word| file.write_all(&word.to_le_bytes()))?;
            file.write_all(&bytes[..usize::from(*len)])?;
        }
        file.flush()?;
        Ok(capture)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // What is left in the directory for temporary files does no harm.
        let _ = fs::remove_file(&self.0);
    }
}
