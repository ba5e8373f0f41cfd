//! `sweepd check`: reads the configuration and opens nothing.

use std::path::Path;

use sweepd::config;

use super::{Failure, complain, print};

/// Says what is in the file, and what is doubtful about it.
///
/// # Errors
/// Everything that is wrong with it.
pub fn check(path: &Path) -> Result<(), Failure> {
    let config = config::load(path)?.refuse_unsupported()?;
    for warning in &config.warnings {
        complain(&format!("warning: {warning}"));
    }
    let parts = [
        (config.ports.len(), "port"),
        (config.routes.len(), "route"),
        (config.neighbors.len(), "neighbor"),
        (config.acls.len(), "acl rule"),
        (config.masquerades.len(), "masquerade"),
        (config.forward_ports.len(), "forwarded port"),
    ];
    let mut text = format!("{}: ok", config.file);
    for (n, what) in parts {
        if n > 0 {
            text += &format!(", {n} {what}{}", if n == 1 { "" } else { "s" });
        }
    }
    print(&(text + "\n"))
}
