//! `sweepd stat`: the live counter.

use std::{path::Path, time::Duration};

use sweepd::stats::{
    file::STATS_FILE,
    netstat::NetstatOptions,
    rows::Format,
    view::{self, ViewOptions},
};

use super::{Failure, args::StatArgs};

/// Shows the counters of the daemon whose files are in `runtime_dir`.
///
/// # Errors
/// No daemon runs, or `-I` names none of its ports.
pub fn stat(args: &StatArgs, runtime_dir: &Path) -> Result<(), Failure> {
    let netstat = NetstatOptions { drops: args.drops, human: args.human };
    let options = ViewOptions {
        file: runtime_dir.join(STATS_FILE),
        interval: Duration::from_secs(args.wait.into()),
        rows: args.rows,
        format: if args.json { Format::Json } else { Format::Netstat(netstat) },
        port: args.port.clone(),
    };
    view::run(&options).map_err(|e| Failure { code: e.exit_code(), lines: vec![format!("sweepd: {e}")] })
}
