//! `sweepd check`: reads the configuration, opens nothing, and looks whether this machine has what it
//! names.

use std::path::Path;

use sweepd::{config, control::setup, daemon::machine};

use super::{Failure, complain, print};

/// Says what is in the file, what is doubtful about it, and what of it this machine lacks.
///
/// # Errors
/// Everything that is wrong with it.
pub fn check(path: &Path) -> Result<(), Failure> {
    let config = config::load_supported(path)?;
    // What only shows when all rules are put together.
    setup::acl(&config, &setup::numbers(&config))?;
    for warning in config.warnings.iter().chain(&machine::lacks(&config)) {
        complain(&format!("warning: {warning}"));
    }
    let parts = [
        (config.ports.iter().filter(|port| port.sub.is_none()).count(), "port"),
        (config.ports.iter().filter(|port| port.sub.is_some()).count(), "sub-port"),
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
