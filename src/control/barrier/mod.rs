//! The barrier: what keeps the kernel from forwarding between the ports while no daemon does
//! (`[daemon] on_exit = "drop"`).
//!
//! Without it, whoever filters would be open whenever the daemon is not there: before its first
//! port is open, when it was killed, and while it is started again. So before the first port opens,
//! a filter of the kernel's own (`nft`, `pf`) drops what the kernel itself would forward into and out
//! of the ports. It is the kernel's, so it outlives every end of the daemon but the one that the
//! operator asks for, and the next start takes over what a killed daemon has left. It does not touch
//! packets for the host itself and from it.
//!
//! A file in the runtime directory remembers that the barrier is up, so that a daemon without one
//! need not ask the kernel.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

#[cfg_attr(target_os = "freebsd", path = "pf.rs")]
#[cfg_attr(not(target_os = "freebsd"), path = "nft.rs")]
mod system;

/// The file's name in the daemon's directory.
pub const MARK: &str = "barrier";

/// Why the kernel cannot be kept from forwarding.
#[derive(Debug, thiserror::Error)]
pub enum BarrierError {
    /// The command that it takes is not there.
    #[error(
        "on_exit = \"drop\" needs the command `{0}`; install it, or set [daemon] on_exit = \"forward\" \
         (then the kernel forwards unfiltered when sweepd is not running)"
    )]
    Missing(&'static str),
    /// The command refuses.
    #[error("on_exit = \"drop\": `{command}` says: {said}; mend that, or set [daemon] on_exit = \"forward\"")]
    Refused {
        /// The command.
        command: &'static str,
        /// The first line of what it says.
        said: String,
    },
    /// An interface's name.
    #[error("on_exit = \"drop\": the interface name {0:?} cannot be written into a rule; rename it")]
    Name(String),
    /// The file cannot be written, or the command not started.
    #[error("on_exit = \"drop\": {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's word.
        source: io::Error,
    },
}

/// A daemon's barrier. It stays when this is dropped.
#[derive(Clone, Debug)]
pub struct Barrier {
    /// What the kernel's filter calls it.
    name: String,
    mark: PathBuf,
}

impl Barrier {
    /// Of the daemon whose files are in `runtime_dir`: there is one for each such directory.
    pub fn new(runtime_dir: &Path) -> Self {
        Self { name: name_of(runtime_dir), mark: runtime_dir.join(MARK) }
    }

    /// Whether it is up, or was when a daemon with the same directory ended.
    pub fn is_up(&self) -> bool {
        self.mark.exists()
    }

    /// Drops what the kernel would forward into and out of these interfaces, and nothing else: one
    /// step, whatever was there before.
    ///
    /// # Errors
    /// [`BarrierError`]; what was there before stays.
    pub fn raise(&self, interfaces: &[String]) -> Result<(), BarrierError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-:@".contains(c);
        if let Some(odd) = interfaces.iter().find(|name| name.is_empty() || !name.chars().all(fits)) {
            return Err(BarrierError::Name(odd.clone()));
        }
        let was_up = self.is_up();
        // One that is there may be another user's.
        let write = if was_up { Ok(()) } else { fs::write(&self.mark, self.name.as_bytes()) };
        write.map_err(|source| BarrierError::Io {
            what: format!("cannot write {}", self.mark.display()),
            source,
        })?;
        system::raise(&self.name, interfaces).inspect_err(|_| {
            if !was_up {
                // Should it stay, the next one takes away what is not there.
                let _ = fs::remove_file(&self.mark);
            }
        })
    }

    /// Takes it away, if it is up.
    ///
    /// # Errors
    /// [`BarrierError`]; it is still there.
    pub fn lower(&self) -> Result<(), BarrierError> {
        if !self.is_up() {
            return Ok(());
        }
        system::lower(&self.name)?;
        // Should it stay, the next one takes away what is not there.
        let _ = fs::remove_file(&self.mark);
        Ok(())
    }

    /// How an operator takes it away by hand.
    pub fn by_hand(&self) -> String {
        system::by_hand(&self.name)
    }
}

/// `sweepd`, and something of the directory when it is not the usual one.
fn name_of(runtime_dir: &Path) -> String {
    if runtime_dir == Path::new(crate::config::RUNTIME_DIR) {
        return "sweepd".into();
    }
    // FNV-1a: the same in every version and every process.
    let bytes = runtime_dir.as_os_str().as_encoded_bytes().iter();
    let hash = bytes.fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    format!("sweepd_{hash:08x}")
}

/// The command that a barrier takes, if this machine does not have it.
pub fn missing_command() -> Option<&'static str> {
    let there = search_path().split(':').any(|dir| Path::new(dir).join(system::COMMAND).is_file());
    (!there).then_some(system::COMMAND)
}

/// Where commands are; a service may have been given less.
fn search_path() -> String {
    std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin:/usr/local/sbin"
}

/// Runs a command of the system's with `input`.
fn run(command: &'static str, arguments: &[&str], input: &str) -> Result<(), BarrierError> {
    let failed = |source| BarrierError::Io { what: format!("cannot run {command}"), source };
    let child = Command::new(command)
        .args(arguments)
        .env("PATH", search_path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(BarrierError::Missing(command)),
        other => other.map_err(failed)?,
    };
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read says why at its end.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim().to_owned();
    Err(BarrierError::Refused { command, said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directory_has_a_name_of_its_own_and_the_usual_one_the_plain_name() {
        assert_eq!(name_of(Path::new(crate::config::RUNTIME_DIR)), "sweepd");
        let (a, b) = (name_of(Path::new("/run/a")), name_of(Path::new("/run/b")));
        assert!(a.starts_with("sweepd_") && a.len() == 15 && a != b, "{a} {b}");
    }

    #[test]
    fn a_name_that_would_end_a_rule_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let barrier = Barrier::new(dir.path());
        for name in ["", "eth0\" } drop", "a b", "x\ny"] {
            assert!(matches!(barrier.raise(&[name.into()]), Err(BarrierError::Name(_))), "{name:?}");
        }
        assert!(!barrier.is_up());
        barrier.lower().unwrap();
    }

    #[test]
    fn a_missing_command_is_named_and_a_refusal_told() {
        let missing = run("sweepd-no-such-command", &[], "").unwrap_err().to_string();
        assert!(missing.contains("`sweepd-no-such-command`") && missing.contains("on_exit = \"forward\""));
        let refused = run("sh", &["-c", "echo no room >&2; exit 3"], "").unwrap_err().to_string();
        assert!(refused.contains("`sh` says: no room") && !refused.contains('\n'), "{refused}");
        run("sh", &["-c", "cat >/dev/null"], "anything").unwrap();
    }
}
