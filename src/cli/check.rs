//! `sweepd check`: reads the configuration, opens nothing, and looks whether this machine has what it
//! names.

use std::path::Path;

use sweepd::{
    config::{self, Config},
    control::setup,
    daemon::machine,
};

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
    print(&(text + "\n" + &express(&config)))
}

/// What the kernel offers of express, where a port may have it.
#[cfg(target_os = "linux")]
fn express(config: &Config) -> String {
    use netmap::device::spec::Device;
    use sweepd::tables::Express;

    let may_have = |port: &config::Port| {
        let is_one = matches!(port.device.device, Device::Xdp(_)) && port.sub.is_none();
        is_one && port.express != Express::Off
    };
    if !config.ports.iter().any(may_have) {
        return String::new();
    }
    match sweepd::express::offers() {
        Ok(said) => format!("express: {said}\n"),
        Err(why) => format!("express: not to be had, workers forward everything: {why}\n"),
    }
}

#[cfg(not(target_os = "linux"))]
fn express(_config: &Config) -> String {
    String::new()
}
