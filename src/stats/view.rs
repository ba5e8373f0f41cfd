//! `sweepd stat`: the live counter, read from another process's counters file.
//!
//! Rows come on absolute deadlines and are flushed one by one. The view ends with success when
//! it is interrupted, when enough rows are printed, or when nobody reads them any more; it
//! outlives the daemon and follows the next one.

use std::{
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{
    file::StatsError,
    read::{PortTotals, StatsReader},
    rows::{Format, Rows},
};

/// What to show, and how long.
#[derive(Clone, Debug)]
pub struct ViewOptions {
    /// The counters file: [`STATS_FILE`](super::file::STATS_FILE) in the daemon's `runtime_dir`.
    pub file: PathBuf,
    /// Time between rows (`-w`).
    pub interval: Duration,
    /// Ends after so many rows (`-q`).
    pub rows: Option<u64>,
    /// How rows look.
    pub format: Format,
    /// The port shown (`-I`); default: all together.
    pub port: Option<String>,
}

/// Why the view could not go on: one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// No counters to read.
    #[error(transparent)]
    Stats(#[from] StatsError),
    /// `-I` names no port.
    #[error("no port is named {name:?}; there are: {ports}")]
    NoSuchPort {
        /// The name asked for.
        name: String,
        /// The ports there are.
        ports: String,
    },
    /// The rows could not be written.
    #[error("cannot write: {0}")]
    Output(io::Error),
    /// No signals can be caught.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
}

impl ViewError {
    /// The exit code that goes with it: 2 for bad usage, else 1.
    pub fn exit_code(&self) -> u8 {
        if matches!(self, Self::NoSuchPort { .. }) { 2 } else { 1 }
    }
}

/// Runs the view on standard output, with notices about the daemon on standard error, until
/// SIGINT or SIGTERM.
///
/// # Errors
/// [`ViewError`]. A closed pipe is no error.
pub fn run(options: &ViewOptions) -> Result<(), ViewError> {
    let (stop, ours) = UnixStream::pair().map_err(ViewError::Signals)?;
    for signal in [SIGINT, SIGTERM] {
        let ours = ours.try_clone().map_err(ViewError::Signals)?;
        signal_hook::low_level::pipe::register(signal, ours).map_err(ViewError::Signals)?;
    }
    let stdout = io::stdout();
    let stop = stop.as_fd();
    let mut out = Output { stop, out: stdout.lock() };
    let mut wait = |deadline| wait_until(deadline, stop, io::stdout().as_fd());
    view(options, &mut out, &mut wait, &mut |notice| eprintln!("sweepd stat: {notice}"))
}

/// What ended a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wake {
    Due,
    Stop,
}

/// The counters shown: a daemon's, as long as it lives.
struct Source {
    reader: StatsReader,
    port: Option<String>,
}

impl Source {
    /// Attaches to the running daemon; a killed daemon's file is as good as none.
    fn attach(path: &Path, port: Option<&str>) -> Result<Self, ViewError> {
        let reader = StatsReader::open(path)?;
        if !reader.daemon_lives() {
            return Err(StatsError::NotRunning { path: path.to_owned() }.into());
        }
        let ports = reader.ports();
        if let Some(name) = port.filter(|name| ports.iter().all(|port| port != name)) {
            return Err(ViewError::NoSuchPort { name: name.to_owned(), ports: ports.join(", ") });
        }
        Ok(Self { reader, port: port.map(str::to_owned) })
    }

    fn lives(&self) -> bool {
        self.reader.is_current() && self.reader.daemon_lives()
    }

    fn totals(&self) -> PortTotals {
        let ports = self.reader.snapshot();
        match &self.port {
            // A port that has gone may come again.
            Some(name) => ports.into_iter().find(|port| port.name == *name).unwrap_or_default(),
            None => ports.iter().fold(PortTotals::default(), |mut sum, port| {
                sum += port;
                sum
            }),
        }
    }
}

fn view(
    options: &ViewOptions,
    out: &mut dyn Write,
    wait: &mut dyn FnMut(Instant) -> Wake,
    notice: &mut dyn FnMut(&str),
) -> Result<(), ViewError> {
    let port = options.port.as_deref();
    let mut rows = Rows::new(&options.format, port);
    let mut source = Some(Source::attach(&options.file, port)?);
    let mut before = source.as_ref().map(Source::totals).unwrap_or_default();
    let mut looked = Instant::now();
    if !write(out, &rows.header())? {
        return Ok(());
    }
    let mut deadlines = Deadlines::new(options.interval);
    let mut left = options.rows.unwrap_or(u64::MAX);
    while left > 0 && wait(deadlines.next(Instant::now())) == Wake::Due {
        if let Some(living) = source.as_ref().filter(|s| s.lives()) {
            let after = living.totals();
            let now = Instant::now();
            if !write(out, &rows.row(&before, &after, now - looked))? {
                return Ok(());
            }
            (before, looked) = (after, now);
            left -= 1;
            continue;
        }
        let was = source.take().map(|s| s.reader.pid());
        match Source::attach(&options.file, port) {
            Ok(new) => {
                (before, looked) = (new.totals(), Instant::now());
                notice(&format!("following a new sweepd, process {}", new.reader.pid()));
                source = Some(new);
            }
            Err(ViewError::Stats(StatsError::NotRunning { .. })) => {
                if let Some(pid) = was {
                    notice(&format!("sweepd, process {pid}, has ended; waiting for the next (Ctrl-C ends)"));
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes and flushes; false when nobody reads any more.
fn write(out: &mut dyn Write, text: &str) -> Result<bool, ViewError> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(ViewError::Output(e)),
    }
}

/// Moments at whole intervals from the start: a late row makes the next one no later.
struct Deadlines {
    start: Instant,
    interval: Duration,
    passed: u32,
}

impl Deadlines {
    fn new(interval: Duration) -> Self {
        Self { start: Instant::now(), interval: interval.max(Duration::from_millis(1)), passed: 0 }
    }

    /// The next one that is not over yet.
    fn next(&mut self, now: Instant) -> Instant {
        let whole = now.saturating_duration_since(self.start).as_nanos() / self.interval.as_nanos();
        self.passed = (self.passed + 1).max(u32::try_from(whole).map_or(u32::MAX, |n| n.saturating_add(1)));
        self.start + self.interval * self.passed
    }
}

/// Sleeps; also ended by a signal, and by the other end of the output going away.
fn wait_until(deadline: Instant, stop: BorrowedFd<'_>, out: BorrowedFd<'_>) -> Wake {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Wake::Due;
        }
        let mut fds = [PollFd::new(stop, PollFlags::POLLIN), PollFd::new(out, PollFlags::empty())];
        // Rounded up: not to spin through the last millisecond.
        let timeout = PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Wake::Stop,
            // poll refuses only what cannot be here; sleeping is still possible.
            Err(_) => std::thread::sleep(left),
        }
    }
}

/// Standard output that can be given up: a write waits for room and for the signals at once, so
/// that a reader who has stopped reading cannot keep Ctrl-C from ending the view.
struct Output<'a, W> {
    stop: BorrowedFd<'a>,
    out: W,
}

impl<W: Write + AsFd> Output<'_, W> {
    fn wait(&self) -> io::Result<()> {
        loop {
            let out = PollFd::new(self.out.as_fd(), PollFlags::POLLOUT);
            let mut fds = [PollFd::new(self.stop, PollFlags::POLLIN), out];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
                Ok(_) if fds[0].any() == Some(true) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(_) => return Ok(()),
            }
        }
    }
}

impl<W: Write + AsFd> Write for Output<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait()?;
        let n = self.out.write(bytes)?;
        // Standard output keeps an unfinished line to itself; nothing of ours may stay there.
        self.out.flush()?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{file::StatsFile, netstat::NetstatOptions};

    fn options(dir: &Path) -> ViewOptions {
        ViewOptions {
            file: dir.join("stats"),
            interval: Duration::from_secs(1),
            rows: Some(3),
            format: Format::Netstat(NetstatOptions { drops: true, human: true }),
            port: None,
        }
    }

    fn create(dir: &Path) -> StatsFile {
        StatsFile::create(&dir.join("stats"), &["wan".into(), "lan".into()], 1).unwrap()
    }

    /// Runs the view; `tick` is called instead of each wait, with its number.
    fn seen(options: &ViewOptions, mut tick: impl FnMut(u32) -> Wake) -> (String, Vec<String>) {
        let (mut out, mut notices, mut n) = (Vec::new(), Vec::new(), 0);
        let mut wait = |_| {
            n += 1;
            tick(n)
        };
        view(options, &mut out, &mut wait, &mut |notice| notices.push(notice.to_owned())).unwrap();
        (String::from_utf8(out).unwrap(), notices)
    }

    #[test]
    fn the_first_row_comes_after_one_interval_and_is_a_difference() {
        let dir = tempfile::tempdir().unwrap();
        let file = create(dir.path());
        file.block(0, 0).rx_packets.add(1_000_000);
        let (out, _) = seen(&options(dir.path()), |n| {
            file.block(0, 0).rx_packets.add(u64::from(n));
            file.block(1, 1).rx_packets.add(10);
            Wake::Due
        });
        let packets: Vec<_> = out.lines().skip(2).map(|l| l.split_whitespace().next().unwrap()).collect();
        assert_eq!(packets, ["11", "12", "13"]);
        assert!(out.starts_with("            input        (Total)           output\n"));
    }

    #[test]
    fn one_port_can_be_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = create(dir.path());
        let mut options = options(dir.path());
        options.port = Some("lan".into());
        options.rows = Some(1);
        let (out, _) = seen(&options, |_| {
            file.block(0, 0).tx_packets.add(5);
            file.block(0, 1).tx_packets.add(7);
            Wake::Due
        });
        assert_eq!(out.lines().next().unwrap(), "            input            lan           output");
        assert_eq!(
            out.lines().last().unwrap(),
            "         0     0     0          0          7     0          0     0     0 "
        );
    }

    #[test]
    fn a_port_that_is_not_there_is_bad_usage() {
        let dir = tempfile::tempdir().unwrap();
        let _file = create(dir.path());
        let mut options = options(dir.path());
        options.port = Some("eth0".into());
        let e = view(&options, &mut Vec::new(), &mut |_| Wake::Stop, &mut |_| {}).unwrap_err();
        assert_eq!(
            (e.exit_code(), e.to_string().as_str()),
            (2, "no port is named \"eth0\"; there are: wan, lan")
        );
    }

    #[test]
    fn without_a_daemon_it_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let run =
            || view(&options(dir.path()), &mut Vec::new(), &mut |_| Wake::Stop, &mut |_| {}).unwrap_err();
        let e = run();
        assert!(e.to_string().contains("sweepd run"), "{e}");
        assert_eq!(e.exit_code(), 1);
        // A killed daemon's file is no daemon.
        let path = dir.path().join("stats");
        let file = create(dir.path());
        let left = std::fs::read(&path).unwrap();
        drop(file);
        std::fs::write(&path, left).unwrap();
        assert!(run().to_string().contains("no sweepd is running"));
    }

    #[test]
    fn it_outlives_the_daemon_and_follows_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = Some(create(dir.path()));
        let (out, notices) = seen(&options(dir.path()), |n| {
            match n {
                2 => drop(file.take()),
                5 => {
                    let new = create(dir.path());
                    new.block(0, 0).rx_packets.add(100);
                    file = Some(new);
                }
                _ => {
                    if let Some(file) = &file {
                        file.block(0, 0).rx_packets.add(u64::from(n));
                    }
                }
            }
            Wake::Due
        });
        let packets: Vec<_> = out.lines().skip(2).map(|l| l.split_whitespace().next().unwrap()).collect();
        assert_eq!(packets, ["1", "6", "7"]);
        assert_eq!(notices.len(), 2, "{notices:?}");
        assert!(notices[0].contains("has ended") && notices[1].contains("new sweepd"));
    }

    #[test]
    fn an_interrupt_or_a_closed_pipe_is_a_clean_end() {
        let dir = tempfile::tempdir().unwrap();
        let _file = create(dir.path());
        let (out, _) = seen(&options(dir.path()), |_| Wake::Stop);
        assert_eq!(out.lines().count(), 2);

        let (out, reader) = UnixStream::pair().unwrap();
        let (stop, _signal) = UnixStream::pair().unwrap();
        drop(reader);
        let mut out = Output { stop: stop.as_fd(), out };
        view(&options(dir.path()), &mut out, &mut |_| Wake::Due, &mut |_| {}).unwrap();
    }

    #[test]
    fn a_reader_that_stopped_reading_does_not_keep_an_interrupt_away() {
        let (mut out, _reader) = UnixStream::pair().unwrap();
        out.set_nonblocking(true).unwrap();
        while out.write(&[0; 4096]).is_ok() {}
        out.set_nonblocking(false).unwrap();
        let (stop, mut signal) = UnixStream::pair().unwrap();
        let test = std::thread::spawn(move || {
            let mut out = Output { stop: stop.as_fd(), out };
            write(&mut out, "row\n").unwrap()
        });
        signal.write_all(&[1]).unwrap();
        assert!(!test.join().unwrap());
    }

    #[test]
    fn waits_end_by_time_by_signal_and_by_a_closed_output() {
        let (stop, mut signal) = UnixStream::pair().unwrap();
        let (out, reader) = UnixStream::pair().unwrap();
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(wait_until(soon, stop.as_fd(), out.as_fd()), Wake::Due);
        assert!(Instant::now() >= soon);
        let late = Instant::now() + Duration::from_secs(60);
        drop(reader);
        assert_eq!(wait_until(late, stop.as_fd(), out.as_fd()), Wake::Stop);
        let (out, _reader) = UnixStream::pair().unwrap();
        signal.write_all(&[1]).unwrap();
        assert_eq!(wait_until(late, stop.as_fd(), out.as_fd()), Wake::Stop);
    }

    /// Not a test by itself: the process that the next test interrupts.
    #[test]
    fn the_view_as_a_process() {
        if let Some(dir) = std::env::var_os("SWEEPD_TEST_VIEW") {
            let interval = Duration::from_millis(20);
            run(&ViewOptions { interval, rows: None, ..options(Path::new(&dir)) }).unwrap();
        }
    }

    #[test]
    fn sigint_and_sigterm_end_the_process_with_success() {
        use std::{
            io::{BufRead, BufReader},
            process::{Command, Stdio},
        };
        let dir = tempfile::tempdir().unwrap();
        let _file = create(dir.path());
        for signal in [SIGINT, SIGTERM] {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "stats::view::tests::the_view_as_a_process", "--nocapture"])
                .env("SWEEPD_TEST_VIEW", dir.path())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|l| l.unwrap().ends_with(" 0     0     0 ")), "a row comes through the pipe");
            // SAFETY: a signal to the child just made, which has not been waited for.
            assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
            assert!(lines.all(|l| l.is_ok()));
            assert!(child.wait().unwrap().success());
        }
    }

    #[test]
    fn a_late_row_makes_the_next_one_no_later_and_missed_ones_are_not_made_up_for() {
        let mut deadlines = Deadlines::new(Duration::from_secs(1));
        let start = deadlines.start;
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(deadlines.next(at(0)), at(1000));
        assert_eq!(deadlines.next(at(1300)), at(2000));
        assert_eq!(deadlines.next(at(1999)), at(3000));
        assert_eq!(deadlines.next(at(10_500)), at(11_000));
    }
}
