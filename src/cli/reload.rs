//! `sweepd reload`: has the running daemon read its configuration again.

use std::path::Path;

use serde_json::json;

use super::{Failure, client, complain, print};

/// Asks the daemon whose files are in `runtime_dir`.
///
/// # Errors
/// No daemon runs, or it refuses the configuration and goes on with the old one.
pub fn reload(runtime_dir: &Path) -> Result<(), Failure> {
    let data = client::ask(runtime_dir, &json!({ "version": client::VERSION, "command": "reload" }))?;
    for warning in data["warnings"].as_array().into_iter().flatten().filter_map(|line| line.as_str()) {
        complain(&format!("warning: {warning}"));
    }
    print("reloaded\n")
}
