//! The service manager, if it is systemd: it is told when packets are being forwarded and when that
//! ends, and gets a sign of life as often as it wants one.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never, tick};

/// The way to the service manager. Without one, nothing is said and nothing is due.
pub struct Manager {
    /// When the next sign of life is due.
    pub due: Receiver<Instant>,
}

#[cfg(target_os = "linux")]
mod systemd {
    use sd_notify::NotifyState;

    pub use sd_notify::watchdog_enabled as watchdog;

    pub fn say(states: &[NotifyState<'_>]) {
        // One that does not listen any more can be told nothing.
        if let Err(e) = sd_notify::notify(states) {
            log::debug!("the service manager cannot be told: {e}");
        }
    }

    pub fn ready(status: &str) {
        say(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    pub fn alive() {
        say(&[NotifyState::Watchdog]);
    }

    pub fn stopping() {
        say(&[NotifyState::Stopping]);
    }
}

#[cfg(not(target_os = "linux"))]
mod systemd {
    pub fn watchdog() -> Option<std::time::Duration> {
        None
    }

    pub fn ready(_status: &str) {}

    pub fn alive() {}

    pub fn stopping() {}
}

impl Manager {
    /// By the environment that the service manager has given to this process.
    pub fn find() -> Self {
        // Four signs for each that must come: one may be late, or not be given.
        let due =
            systemd::watchdog().map_or_else(never, |period| tick(period.max(Duration::from_millis(40)) / 4));
        Self { due }
    }

    /// Packets are being forwarded between so many ports.
    pub fn ready(&self, ports: usize) {
        systemd::ready(&format!("Forwarding between {ports} {}", if ports == 1 { "port" } else { "ports" }));
    }

    /// The workers sweep.
    pub fn alive(&self) {
        systemd::alive();
    }

    /// The end has begun.
    pub fn stopping(&self) {
        systemd::stopping();
    }
}
