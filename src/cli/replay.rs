//! `sweepd replay`: captures in, captures out, no network.
//!
//! Every port's device becomes a pair of captures; everything else is as configured, and one
//! worker deals with all of it. Devices, addresses and routes of the kernel play no part: a port
//! whose `mac` the configuration does not give has a made-up one.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Instant,
};

use sweepd::{
    config::Config,
    daemon::{Counters, Daemon, REPLAY_PATIENCE, capture_device},
    forward::verdict::Verdict,
    stats::read::PortTotals,
};

use super::{
    Failure,
    args::{PortFile, ReplayArgs},
    print, reason,
    table::{Cell, Table},
};

/// A capture without packets: its header alone (microseconds, little-endian, Ethernet).
const EMPTY: [u8; 24] =
    [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];

/// Runs the captures through the configuration and writes what would have left each port.
///
/// # Errors
/// A port that the configuration does not have, or a capture that cannot be read or written.
pub fn replay(mut config: Config, args: &ReplayArgs) -> Result<(), Failure> {
    check_ports(&config, &args.inputs)?;
    check_ports(&config, &args.outputs)?;
    check_files(args)?;
    let empty = EmptyCapture::new()?;
    for port in &mut config.ports {
        let file = |pairs: &[PortFile]| pairs.iter().find(|p| p.port == port.name).map(|p| p.file.clone());
        let input = file(&args.inputs).unwrap_or_else(|| empty.0.clone());
        port.device = capture_device(&input, file(&args.outputs).as_deref());
    }
    config.daemon.cpus = None;
    let daemon = Daemon::start(&config, Counters::Memory, false, None)?;
    let finished = daemon.wait_finished(Instant::now() + REPLAY_PATIENCE);
    let totals = daemon.stop();
    print(&summary(&config, &totals))?;
    if finished { Ok(()) } else { Err(Failure::running("the captures did not come to their end")) }
}

/// Every port of `pairs` is one of the configuration's, and only once.
fn check_ports(config: &Config, pairs: &[PortFile]) -> Result<(), Failure> {
    for (i, pair) in pairs.iter().enumerate() {
        if config.port(&pair.port).is_none() {
            let names: Vec<_> = config.ports.iter().map(|port| port.name.as_str()).collect();
            let (port, file) = (&pair.port, &config.file);
            return Err(Failure::usage(format!("{file} has no port {port:?}; it has {}", names.join(", "))));
        }
        if pairs[..i].iter().any(|other| other.port == pair.port) {
            return Err(Failure::usage(format!("port {:?} has two captures one way; give one", pair.port)));
        }
    }
    Ok(())
}

/// No file is written that is read, or written twice.
fn check_files(args: &ReplayArgs) -> Result<(), Failure> {
    let same = |a: &Path, b: &Path| {
        let identity = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
        a == b || identity(a).is_some_and(|a| Some(a) == identity(b))
    };
    for (i, output) in args.outputs.iter().enumerate() {
        let mut others = args.inputs.iter().chain(&args.outputs[..i]);
        if let Some(other) = others.find(|other| same(&other.file, &output.file)) {
            let (port, file) = (&output.port, output.file.display());
            return Err(Failure::usage(format!(
                "--out {port}={file}: the capture of port {:?} is the same file; name another one",
                other.port
            )));
        }
    }
    Ok(())
}

/// What became of the packets, port by port and verdict by verdict.
fn summary(config: &Config, totals: &[PortTotals]) -> String {
    let mut ports = Table::new(&["port", "received", "sent", "made"]);
    let mut verdicts = Table::new(&["verdict", "packets", "meaning"]);
    for (port, total) in config.ports.iter().zip(totals) {
        let numbers = [total.rx_packets, total.tx_packets, total.made].map(Cell::Number);
        ports.row([Cell::Text(port.name.clone())].into_iter().chain(numbers));
    }
    for &verdict in Verdict::ALL {
        let of = |total: &PortTotals| total.verdicts.get(verdict as usize).copied().unwrap_or(0);
        let count: u64 = totals.iter().map(of).sum();
        if count > 0 {
            let text = |text: &str| Cell::Text(text.to_owned());
            verdicts.row([text(verdict.name()), Cell::Number(count), text(verdict.about())]);
        }
    }
    format!("{}\n{}", ports.render(), verdicts.render())
}

/// What a port without a capture receives.
struct EmptyCapture(PathBuf);

impl EmptyCapture {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("sweepd-replay-{}.pcap", std::process::id()));
        let file = |path: &Path| -> io::Result<()> {
            use std::io::Write;
            let mut file = fs::OpenOptions::new().write(true).create_new(true).open(path)?;
            file.write_all(&EMPTY)
        };
        match file(&path) {
            Ok(()) => Ok(Self(path)),
            Err(e) => Err(Failure::running(format!("cannot write {}: {}", path.display(), reason(&e)))),
        }
    }
}

impl Drop for EmptyCapture {
    fn drop(&mut self) {
        // Nobody needs it any more, whether it can be removed or not.
        let _ = fs::remove_file(&self.0);
    }
}
