//! Notices that the configuration file has another content, however it got there: written in
//! place, or by renaming another file over it, as editors do. So it is the directory that is
//! watched, and not the file.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, bounded, never};
use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};

/// How long the directory must be quiet before the file is read: it may still be being written.
const QUIET: Duration = Duration::from_millis(300);
/// How long that is waited for at most.
const LONGEST: Duration = Duration::from_secs(2);

/// The watch on one file.
pub struct Watch {
    /// Something has happened to the file, perhaps.
    pub events: Receiver<()>,
    path: PathBuf,
    /// Ends the watch when dropped, and the directories that it is on.
    watcher: Option<(RecommendedWatcher, Vec<PathBuf>)>,
}

impl Watch {
    /// Watches the file at `path`, which need not be there. Without the system's help (no watches
    /// left, a file system that has none) nothing is ever noticed, and the log says so.
    pub fn on(path: &Path) -> Self {
        let (sender, events) = bounded(1);
        match watcher(path, sender) {
            Ok(watcher) => Self { events, path: path.to_owned(), watcher: Some(watcher) },
            Err(e) => {
                log::warn!(
                    "{}: changes are not noticed by themselves ({e}); use sweepd reload",
                    path.display()
                );
                Self { events: never(), path: path.to_owned(), watcher: None }
            }
        }
    }

    /// Goes to where the file is now, if its name is a symbolic link that leads elsewhere.
    pub fn follow(&mut self) {
        let Some((watcher, watched)) = &mut self.watcher else { return };
        let now = directories(&self.path);
        for directory in now.iter().filter(|directory| !watched.contains(directory)) {
            if let Err(e) = watcher.watch(directory, RecursiveMode::NonRecursive) {
                log::warn!("{}: changes are not noticed by themselves ({e})", directory.display());
            }
        }
        for directory in watched.iter().filter(|directory| !now.contains(directory)) {
            // It may be gone itself.
            let _ = watcher.unwatch(directory);
        }
        *watched = now;
    }
}

fn watcher(path: &Path, sender: Sender<()>) -> notify::Result<(RecommendedWatcher, Vec<PathBuf>)> {
    let path = path.to_owned();
    let directories = directories(&path);
    let listen = move |event: notify::Result<Event>| {
        // Events that were lost may have been about the file.
        if event.is_ok_and(|event| !concerns(&event, &path)) {
            return;
        }
        // One that waits already stands for all.
        let _ = sender.try_send(());
    };
    let mut watcher = notify::recommended_watcher(listen)?;
    for directory in &directories {
        watcher.watch(directory, RecursiveMode::NonRecursive)?;
    }
    Ok((watcher, directories))
}

/// The directory that names the file, and the one that holds it, if the name is a symbolic link.
fn directories(path: &Path) -> Vec<PathBuf> {
    let parent = |path: &Path| match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut list = vec![parent(path)];
    if let (Ok(target), Ok(named)) = (path.canonicalize(), list[0].canonicalize())
        && parent(&target) != named
    {
        list.push(parent(&target));
    }
    list
}

/// Whether an event may mean another content of the file at `path`.
fn concerns(event: &Event, path: &Path) -> bool {
    // Reading the file is an event, too.
    let changes = match event.kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        _ => true,
    };
    let named = || event.paths.iter().any(|at| at.file_name() == path.file_name());
    // What a link leads over may change anywhere.
    changes && (event.need_rescan() || named() || path.is_symlink())
}

/// When to look at the file, after something has happened to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settling(Option<(Instant, Instant)>);

impl Settling {
    /// Something has happened.
    pub fn disturb(&mut self, now: Instant) {
        let first = self.0.map_or(now, |(first, _)| first);
        self.0 = Some((first, now));
    }

    /// When it will have been quiet for long enough.
    pub fn due(self) -> Option<Instant> {
        self.0.map(|(first, last)| (last + QUIET).min(first + LONGEST))
    }

    /// Whether it is time to look; if so, not again until something happens.
    pub fn take_due(&mut self, now: Instant) -> bool {
        let due = self.due().is_some_and(|at| at <= now);
        if due {
            self.0 = None;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn is_noticed(watch: &Watch) -> bool {
        watch.events.recv_timeout(Duration::from_secs(10)).is_ok()
    }

    fn is_quiet(watch: &Watch) -> bool {
        watch.events.recv_timeout(Duration::from_millis(300)).is_err()
    }

    /// Lets events that belong together pass.
    fn pass(watch: &Watch) {
        while watch.events.recv_timeout(Duration::from_millis(100)).is_ok() {}
    }

    #[test]
    fn writing_renaming_and_linking_are_noticed_and_reading_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("f"), dir.path().join("g"));
        fs::write(&path, "a").unwrap();
        let watch = Watch::on(&path);
        fs::read(&path).unwrap();
        fs::write(&other, "b").unwrap();
        assert!(is_quiet(&watch));
        fs::rename(&other, &path).unwrap();
        assert!(is_noticed(&watch));
        pass(&watch);
        fs::write(&path, "c").unwrap();
        assert!(is_noticed(&watch));
        pass(&watch);
        fs::remove_file(&path).unwrap();
        assert!(is_noticed(&watch));
    }

    #[test]
    fn a_link_that_leads_elsewhere_is_noticed_through_its_whole_length() {
        let (dir, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, target) = (dir.path().join("f"), far.path().join("real"));
        fs::write(&target, "a").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let mut watch = Watch::on(&path);
        fs::write(&target, "b").unwrap();
        assert!(is_noticed(&watch));
        pass(&watch);
        let elsewhere = tempfile::tempdir().unwrap();
        let other = elsewhere.path().join("real");
        fs::write(&other, "c").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join("new")).unwrap();
        fs::rename(dir.path().join("new"), &path).unwrap();
        assert!(is_noticed(&watch));
        watch.follow();
        pass(&watch);
        fs::write(&other, "d").unwrap();
        assert!(is_noticed(&watch));
        pass(&watch);
        // What it has left is nobody's business any more.
        fs::remove_file(&target).unwrap();
        assert!(is_quiet(&watch));
    }

    #[test]
    fn a_directory_that_is_not_there_is_no_error() {
        let watch = Watch::on(Path::new("/nowhere/at/all"));
        assert!(is_quiet(&watch));
    }

    #[test]
    fn the_file_is_looked_at_when_it_has_been_quiet_and_not_put_off_for_ever() {
        let start = Instant::now();
        let mut settling = Settling::default();
        assert_eq!(settling.due(), None);
        settling.disturb(start);
        settling.disturb(start + QUIET / 2);
        assert!(!settling.take_due(start + QUIET));
        assert!(settling.take_due(start + QUIET / 2 + QUIET) && settling.due().is_none());
        for n in 0..100 {
            settling.disturb(start + n * QUIET / 2);
        }
        assert_eq!(settling.due(), Some(start + LONGEST));
    }
}
