//! `sweepd replay`: captures in, captures out, no network.
//!
//! Every port's device becomes a pair of captures; everything else is as configured, and one
//! worker deals with all of it. Devices, addresses and routes of the kernel play no part: a port
//! whose `mac` the configuration does not give has a made-up one.

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Instant};

use netmap::Losses;

use sweepd::{
    config::Config,
    daemon::{Counters, Daemon, REPLAY_PATIENCE, capture_device},
    forward::verdict::Verdict,
    stats::read::PortTotals,
};

use super::{
    Failure,
    args::{PortFile, ReplayArgs},
    print,
    table::{Cell, Table},
};

/// Runs the captures through the configuration and writes what would have left each port.
///
/// # Errors
/// A port that the configuration does not have, or a capture that cannot be read or written.
pub fn replay(mut config: Config, args: &ReplayArgs) -> Result<(), Failure> {
    check_ports(&config, &args.inputs)?;
    check_ports(&config, &args.outputs)?;
    check_files(args)?;
    for port in &mut config.ports {
        let file = |pairs: &[PortFile]| pairs.iter().find(|p| p.port == port.name).map(|p| p.file.clone());
        port.device = capture_device(file(&args.inputs).as_deref(), file(&args.outputs).as_deref());
    }
    config.daemon.cpus = None;
    let daemon = Daemon::start(&config, Counters::Memory, false, None)?;
    let finished = daemon.wait_finished(Instant::now() + REPLAY_PATIENCE);
    let totals = daemon.stop();
    print(&summary(&config, &totals))?;
    let faults =
        totals.iter().fold((0, 0), |sum, (_, lost)| (sum.0 + lost.rx_errors, sum.1 + lost.tx_errors));
    match faults {
        _ if !finished => Err(Failure::running("the captures did not come to their end")),
        (1.., _) => Err(Failure::running("a capture broke off; what stood behind the break is missing")),
        (_, 1..) => {
            Err(Failure::running("not all that was sent could be written; make room and run it again"))
        }
        _ => Ok(()),
    }
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
fn summary(config: &Config, totals: &[(PortTotals, Losses)]) -> String {
    let mut ports = Table::new(&["port", "received", "too long", "sent", "made", "not written"]);
    let mut verdicts = Table::new(&["verdict", "packets", "meaning"]);
    for (port, (total, lost)) in config.ports.iter().zip(totals) {
        let numbers = [total.rx_packets, lost.rx_dropped, total.tx_packets, total.made, lost.tx_errors];
        let numbers = numbers.map(Cell::Number);
        ports.row([Cell::Text(port.name.clone())].into_iter().chain(numbers));
    }
    for &verdict in Verdict::ALL {
        let of = |total: &PortTotals| total.verdicts.get(verdict as usize).copied().unwrap_or(0);
        let count: u64 = totals.iter().map(|(total, _)| of(total)).sum();
        if count > 0 {
            let text = |text: &str| Cell::Text(text.to_owned());
            verdicts.row([text(verdict.name()), Cell::Number(count), text(verdict.about())]);
        }
    }
    format!("{}\n{}", ports.render(), verdicts.render())
}
