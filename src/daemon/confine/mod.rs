//! What the daemon gives up once its ports are open: root, if it is to be another user's; writing
//! anywhere but where its files are; and, in the workers, who alone read what the network sends,
//! all rights and every system call that moves no packets.
//!
//! The keeper and the threads beside it keep the capabilities by which ports are opened again and
//! neighbours are asked for.

#[cfg(target_os = "freebsd")]
mod descriptors;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod user;
#[cfg(target_os = "linux")]
mod worker;

use std::{io, path::PathBuf};

use netmap::device::spec::Device;

use crate::{
    config::Config,
    control::{barrier::MARK, socket::CONTROL_SOCKET},
    stats::file::STATS_FILE,
};

#[cfg(target_os = "freebsd")]
pub use descriptors::restrict_descriptors;
#[cfg(target_os = "linux")]
pub use {
    process::restrict_files,
    user::{User, change_user},
    worker::restrict_worker,
};

/// Why the daemon cannot become another user's.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The system knows no such user.
    #[error("daemon.user: there is no user {0:?}; make one (useradd --system {0}), or remove the key")]
    Unknown(String),
    /// Only root can become another user.
    #[error("daemon.user: cannot become {0}: start as root or as {0}, or remove the key")]
    NotRoot(String),
    /// The directory of the daemon's files has other files as well.
    #[error(
        "daemon.user: {dir} holds more than the daemon's files and is not {user}'s; chown it, or set [daemon] runtime_dir to a directory of its own",
        dir = dir.display()
    )]
    SharedDir {
        /// The directory.
        dir: PathBuf,
        /// The user.
        user: String,
    },
    /// The system refuses.
    #[error("daemon.user: cannot become {user}: {what}: {source}")]
    System {
        /// The user.
        user: String,
        /// What was tried.
        what: &'static str,
        /// The system's word.
        source: io::Error,
    },
    /// FreeBSD has no capabilities that a user could keep.
    #[error(
        "daemon.user: is not supported on this system, where only root can open a port again and restore it; remove it"
    )]
    Unsupported,
}

impl UserError {
    /// Whether the configuration is wrong, and not the system.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Unsupported)
    }
}

/// How much the daemon gives up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confinement {
    /// Nothing: for a daemon inside a process that does other things as well.
    None,
    /// Everything that it does not need.
    Full,
}

impl Confinement {
    /// The user to become, who must be there before a port is opened.
    ///
    /// # Errors
    /// [`UserError`].
    pub fn user(self, config: &Config) -> Result<Option<User>, UserError> {
        config.daemon.user.as_deref().filter(|_| self == Self::Full).map(User::find).transpose()
    }

    /// Gives up what takes no open port: to be called when they are, and before the threads start
    /// that are to be confined as well.
    ///
    /// # Errors
    /// [`UserError`].
    pub fn enter(self, config: &Config, user: Option<&User>) -> Result<(), UserError> {
        if self == Self::None {
            return Ok(());
        }
        if let Some(user) = user {
            // A control socket that was given to somebody stays theirs.
            let given = usize::from(config.daemon.socket_owner.is_none());
            change_user(user, &config.daemon.runtime_dir, &[STATS_FILE, CONTROL_SOCKET, MARK], 1 + given)?;
        }
        restrict_files(&writable(config));
        Ok(())
    }
}

/// The directories that the daemon writes to.
fn writable(config: &Config) -> Vec<PathBuf> {
    let output = |device: &Device| match device {
        Device::Pcap { output: Some(path), .. } => path.parent().map(std::path::Path::to_owned),
        _ => None,
    };
    let outputs = config.ports.iter().filter_map(|port| output(&port.device.device));
    std::iter::once(config.daemon.runtime_dir.clone()).chain(outputs).collect()
}

/// Does nothing: only FreeBSD has rights of descriptors.
#[cfg(not(target_os = "freebsd"))]
pub fn restrict_descriptors() {}

/// What there is no such thing as here.
#[cfg(not(target_os = "linux"))]
mod none {
    use std::path::{Path, PathBuf};

    use super::UserError;

    /// A user of the system's.
    #[derive(Debug)]
    pub enum User {}

    impl User {
        /// Never finds one.
        ///
        /// # Errors
        /// [`UserError::Unsupported`].
        pub fn find(_name: &str) -> Result<Self, UserError> {
            Err(UserError::Unsupported)
        }
    }

    /// Never called: there is no [`User`].
    ///
    /// # Errors
    /// None.
    pub fn change_user(user: &User, _dir: &Path, _ours: &[&str], _given: usize) -> Result<(), UserError> {
        match *user {}
    }

    /// Does nothing.
    pub fn restrict_files(_writable: &[PathBuf]) {}

    /// Does nothing.
    pub fn restrict_worker() {}
}

#[cfg(not(target_os = "linux"))]
pub use none::{User, change_user, restrict_files, restrict_worker};
