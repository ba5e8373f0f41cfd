//! `[daemon] user`: from root to a user who keeps three capabilities.

use std::{
    collections::HashSet,
    ffi::{CString, OsStr},
    fs, io,
    os::unix::fs::MetadataExt,
    path::Path,
};

use caps::{CapSet, Capability};
use nix::{
    sys::{
        prctl,
        resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit},
    },
    unistd::{self, Gid, Uid},
};

use super::UserError;

/// What opening a port, asking for neighbours and loading the XDP program take.
const KEPT: [Capability; 3] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW, Capability::CAP_BPF];

/// Bytes of locked memory that a port takes at most, by default.
const ENOUGH: u64 = 256 << 20;

/// A user of the system's.
#[derive(Debug)]
pub struct User {
    name: String,
    uid: Uid,
    gid: Gid,
}

impl User {
    /// The user called `name`, whom this process is or can become.
    ///
    /// # Errors
    /// [`UserError::Unknown`], [`UserError::NotRoot`], or the system's word.
    pub fn find(name: &str) -> Result<Self, UserError> {
        let found = unistd::User::from_name(name).map_err(|e| failed(name, "looking it up", e.into()))?;
        let found = found.ok_or_else(|| UserError::Unknown(name.to_owned()))?;
        let user = Self { name: name.to_owned(), uid: found.uid, gid: found.gid };
        if user.is_me() || unistd::geteuid().is_root() {
            Ok(user)
        } else {
            Err(UserError::NotRoot(user.name))
        }
    }

    fn is_me(&self) -> bool {
        unistd::geteuid() == self.uid
    }
}

fn failed(user: &str, what: &'static str, source: io::Error) -> UserError {
    UserError::System { user: user.to_owned(), what, source }
}

/// Gives `dir` and the first `given` of the files in it that are `ours` to the user, and becomes that user: this thread
/// and those that it starts afterwards keep what ports take; other threads keep nothing.
///
/// # Errors
/// [`UserError`]; then the process is no longer good for anything but its end.
pub fn change_user(user: &User, dir: &Path, ours: &[&str], given: usize) -> Result<(), UserError> {
    let failed = |what| move |source: io::Error| failed(&user.name, what, source);
    if !user.is_me() {
        give(user, dir, ours, given)?;
        lift_limit();
        switch(user).map_err(|e| failed("changing the user's id")(e))?;
    }
    keep().map_err(|e| failed("keeping its capabilities")(io::Error::other(e)))?;
    prctl::set_no_new_privs().map_err(|e| failed("refusing new privileges")(e.into()))?;
    log::info!("running as {}", user.name);
    Ok(())
}

/// Rings that are opened later are locked memory as well, and root's alone is without limit.
fn lift_limit() {
    if setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).is_ok() {
        return;
    }
    let Ok((_, most)) = getrlimit(Resource::RLIMIT_MEMLOCK) else { return };
    let lifted = setrlimit(Resource::RLIMIT_MEMLOCK, most, most);
    if lifted.is_err() || most < ENOUGH {
        log::warn!(
            "no more than {} KiB of memory can be locked: ports that come later may not open",
            most >> 10
        );
    }
}

/// Makes the directory the user's, if it is the daemon's alone.
fn give(user: &User, dir: &Path, ours: &[&str], given: usize) -> Result<(), UserError> {
    let failed = |source| failed(&user.name, "giving it the daemon's files", source);
    let mut others = false;
    for entry in fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        match ours.iter().position(|own| OsStr::new(own) == name) {
            // Not through a link, which somebody may have put there.
            Some(place) if place < given => {
                std::os::unix::fs::lchown(dir.join(name), Some(user.uid.as_raw()), None).map_err(failed)?;
            }
            Some(_) => {}
            None => others = true,
        }
    }
    if fs::metadata(dir).map_err(failed)?.uid() == user.uid.as_raw() {
        return Ok(());
    }
    if others {
        return Err(UserError::SharedDir { dir: dir.to_owned(), user: user.name.clone() });
    }
    unistd::chown(dir, Some(user.uid), Some(user.gid)).map_err(|e| failed(e.into()))
}

fn switch(user: &User) -> io::Result<()> {
    // Only root can, so it must be done before; what a kernel does not know it need not forget.
    for cap in caps::all().difference(&HashSet::from(KEPT)) {
        let _ = caps::drop(None, CapSet::Bounding, *cap);
    }
    let name = CString::new(user.name.as_str())?;
    prctl::set_keepcaps(true)?;
    unistd::initgroups(&name, user.gid)?;
    unistd::setresgid(user.gid, user.gid, user.gid)?;
    unistd::setresuid(user.uid, user.uid, user.uid)?;
    prctl::set_keepcaps(false)?;
    Ok(())
}

/// Gives up every capability but the kept ones. A program that this one starts has them too: the
/// one that writes the kernel's filter needs them.
fn keep() -> Result<(), caps::errors::CapsError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept: HashSet<Capability> = permitted.intersection(&HashSet::from(KEPT)).copied().collect();
    caps::clear(None, CapSet::Ambient)?;
    caps::set(None, CapSet::Effective, &HashSet::new())?;
    caps::set(None, CapSet::Permitted, &kept)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Inheritable, &kept)?;
    kept.iter().try_for_each(|cap| caps::raise(None, CapSet::Ambient, *cap))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_is_not_there_is_named_with_what_to_do() {
        let e = User::find("nobody-of-this-name").unwrap_err();
        assert!(e.is_usage() && e.to_string().contains("useradd --system nobody-of-this-name"), "{e}");
    }

    #[test]
    fn a_directory_that_others_use_is_not_given_away() {
        if !unistd::geteuid().is_root() {
            eprintln!("skipped: giving files away, for want of root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let user = User { name: "nobody".into(), uid: Uid::from_raw(65534), gid: Gid::from_raw(65534) };
        let owner = |name: &str| fs::symlink_metadata(dir.path().join(name)).unwrap().uid();
        fs::write(dir.path().join("stats"), "").unwrap();
        fs::write(dir.path().join("precious"), "").unwrap();
        let e = give(&user, dir.path(), &["stats"], 1).unwrap_err();
        assert!(matches!(e, UserError::SharedDir { .. }), "{e}");
        assert_eq!((owner("."), owner("precious")), (0, 0));
        fs::remove_file(dir.path().join("precious")).unwrap();
        give(&user, dir.path(), &["stats"], 1).unwrap();
        assert_eq!((owner("."), owner("stats")), (65534, 65534));
    }
}
