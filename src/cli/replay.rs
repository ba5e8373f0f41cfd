//! `sweepd replay`: captures in, captures out, no network.

use sweepd::config::Config;

use super::{Failure, args::ReplayArgs};

/// Runs the captures through the configuration and writes what would have left each port.
///
/// # Errors
/// A port that the configuration does not have, or a capture that cannot be read or written.
pub fn replay(config: Config, args: &ReplayArgs) -> Result<(), Failure> {
    for (i, pair) in args.inputs.iter().chain(&args.outputs).enumerate() {
        if config.port(&pair.port).is_none() {
            let names: Vec<_> = config.ports.iter().map(|port| port.name.as_str()).collect();
            let (port, file) = (&pair.port, &config.file);
            return Err(Failure::usage(format!("{file} has no port {port:?}; it has {}", names.join(", "))));
        }
        let own = if i < args.inputs.len() { &args.inputs } else { &args.outputs };
        if own.iter().filter(|other| other.port == pair.port).count() > 1 {
            return Err(Failure::usage(format!("port {:?} has two captures one way; give one", pair.port)));
        }
    }
    Err(Failure::running("replay is not built in yet; check and stat are"))
}
