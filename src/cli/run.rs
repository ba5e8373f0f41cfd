//! `sweepd run`: the daemon, in the foreground.

use std::path::Path;

use sweepd::config::Config;

use super::Failure;

/// Routes packets until SIGTERM or SIGINT. `path` is the configuration's file, for reloading.
///
/// # Errors
/// The daemon cannot start, or cannot go on.
pub fn run(_config: Config, _path: &Path) -> Result<(), Failure> {
    Err(Failure::running("run is not built in yet; check and stat are"))
}
