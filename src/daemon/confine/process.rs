//! The files that the daemon may still write to, by Landlock.

use std::path::PathBuf;

use landlock::{
    ABI, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    path_beneath_rules,
};

/// Devices and settings that a port needs when it is opened again.
const ALWAYS: [&str; 4] = ["/dev/net/tun", "/dev/netmap", "/dev/null", "/proc/sys/net"];
/// The newest rules known; an older kernel keeps those that it knows.
const RULES: ABI = ABI::V5;

/// From now on this thread, and those that it starts, can write nowhere but in `writable` and to
/// the devices of ports, and cannot connect to anybody by TCP. What is open stays open. A kernel
/// that cannot do this is no obstacle; the log says so.
pub fn restrict_files(writable: &[PathBuf]) {
    match restrict(writable) {
        Ok(RulesetStatus::NotEnforced) => log::info!("this kernel has no Landlock: files are not restricted"),
        Ok(_) => log::debug!("files can be written in {writable:?} alone"),
        Err(e) => log::warn!("files are not restricted: {e}"),
    }
}

fn restrict(writable: &[PathBuf]) -> Result<RulesetStatus, RulesetError> {
    let writing = AccessFs::from_write(RULES);
    let always = ALWAYS.iter().map(PathBuf::from);
    let status = Ruleset::default()
        .handle_access(writing)?
        .handle_access(AccessNet::ConnectTcp)?
        .create()?
        .add_rules(path_beneath_rules(always.chain(writable.iter().cloned()), writing))?
        .restrict_self()?;
    Ok(status.ruleset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restricted_thread_writes_where_it_may_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let (mine, other) = (dir.path().join("mine"), dir.path().join("other"));
        std::fs::create_dir(&mine).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("old"), "x").unwrap();
        // The thread alone is restricted.
        let thread = std::thread::spawn(move || {
            let status = restrict(std::slice::from_ref(&mine)).unwrap();
            if status == RulesetStatus::NotEnforced {
                eprintln!("skipped: Landlock, which this kernel does not have");
                return;
            }
            std::fs::write(mine.join("new"), "x").unwrap();
            std::fs::remove_file(mine.join("new")).unwrap();
            assert!(std::fs::write(other.join("new"), "x").is_err());
            assert!(std::fs::remove_file(other.join("old")).is_err());
            assert_eq!(std::fs::read(other.join("old")).unwrap(), b"x");
        });
        thread.join().unwrap();
    }
}
