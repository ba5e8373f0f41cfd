//! The control socket: a thread of its own that waits for all clients at once and never for one of
//! them. A client that sends too much, too slowly or nothing, or that does not take its answer,
//! is cut off; nobody else notices.

use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::{Duration, Instant},
};

#[cfg(target_os = "linux")]
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::{Gid, Uid, chown},
};

use super::{
    capture::Plan,
    requests::{self, Answer, Answerer, Later},
    show::Cursor,
};

/// The socket's name in the daemon's directory.
pub const CONTROL_SOCKET: &str = "control.sock";
/// Longest request in bytes, without its end.
pub const LINE_MAX: usize = 65536;
/// Clients at the same time.
const CLIENTS_MAX: usize = 64;
/// Bytes of answers that wait for a client before its next request is read.
const BACKLOG: usize = 256 << 10;
/// Time between two looks at what is being done for a client.
const LOOK: Duration = Duration::from_millis(10);
/// How long a daemon that was killed may take to be gone.
const ENDING: Duration = Duration::from_secs(1);
/// How long a client may take for a request, or for a part of its answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A daemon uses it.
    #[error("{0}: sweepd is already running{of}; stop it, or give this one another [daemon] runtime_dir", of = process(*.1))]
    Running(PathBuf, Option<i32>),
    /// Something else has its name.
    #[error("{0}: is in the way and no socket; remove it")]
    InTheWay(PathBuf),
    /// It cannot be given to whom the configuration names.
    #[error(
        "{path}: cannot give the control socket to its owner or group ({source}); run as root, or leave out \
         [daemon] socket_owner and socket_group"
    )]
    Owner {
        /// The socket's path.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The system refuses.
    #[error("{path}: cannot make the control socket ({source}); run as root, or set [daemon] runtime_dir")]
    Io {
        /// The socket's path.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
}

/// The control socket and its thread; dropping it ends the thread and takes the name away.
pub struct ControlSocket {
    bound: Bound,
    /// Closed to end the thread.
    stop: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// Who may use the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Its owner; none: who the daemon runs as.
    pub owner: Option<Uid>,
    /// The group that may use it too.
    pub group: Option<Gid>,
}

impl Access {
    /// The socket's mode: for the owner, and for the group if there is one.
    fn mode(self) -> u32 {
        if self.group.is_some() { 0o660 } else { 0o600 }
    }
}

/// Who is at the other end; `None` where the system does not say.
#[cfg(target_os = "linux")]
fn pid_of(other: &UnixStream) -> Option<i32> {
    getsockopt(other, PeerCredentials).ok().map(|credentials| credentials.pid())
}

/// Who is at the other end, which is not asked for here.
#[cfg(not(target_os = "linux"))]
fn pid_of(_: &UnixStream) -> Option<i32> {
    None
}

/// A process in a sentence.
fn process(pid: Option<i32>) -> String {
    pid.map_or_else(String::new, |pid| format!(", process {pid}"))
}

/// A listening socket under its name, not served yet.
pub struct Bound {
    path: PathBuf,
    listener: Option<UnixListener>,
    identity: (u64, u64),
}

impl Bound {
    /// Makes the socket at `path`, for those whom `access` names. What a killed daemon left is
    /// replaced.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn new(path: &Path, access: Access) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(SocketError::InTheWay(path.to_owned()));
            }
            Ok(_) => wait_until_unused(path)?,
            Err(_) => {}
        }
        remove_leftovers(path);
        // Under another name until it is theirs and nobody else's.
        let new = path.with_extension(format!("{}.new", std::process::id()));
        let _ = fs::remove_file(&new);
        let listener = UnixListener::bind(&new).map_err(failed)?;
        // The mode first: of what is another's, only a privilege more could change it.
        let given = listener
            .set_nonblocking(true)
            .and_then(|()| fs::set_permissions(&new, fs::Permissions::from_mode(access.mode())))
            .map_err(failed)
            .and_then(|()| {
                chown(&new, access.owner, access.group)
                    .map_err(|e| SocketError::Owner { path: path.to_owned(), source: e.into() })
            });
        if let Err(e) = given {
            let _ = fs::remove_file(&new);
            return Err(e);
        }
        let made = fs::rename(&new, path).and_then(|()| fs::symlink_metadata(path));
        match made {
            Ok(metadata) => Ok(Self {
                path: path.to_owned(),
                listener: Some(listener),
                identity: (metadata.dev(), metadata.ino()),
            }),
            Err(e) => {
                let _ = fs::remove_file(&new);
                Err(failed(e))
            }
        }
    }

    /// Begins to answer.
    ///
    /// # Errors
    /// When there can be no more threads or descriptors.
    pub fn serve(mut self, answerer: Answerer) -> io::Result<ControlSocket> {
        let listener = self.listener.take().ok_or(ErrorKind::NotConnected)?;
        let (stopped, stop) = io::pipe()?;
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            Server { listener, stopped: stopped.into(), answerer, clients: Vec::new() }.run();
        })?;
        Ok(ControlSocket { bound: self, stop: Some(stop), thread: Some(thread) })
    }
}

/// Returns when no daemon answers at `path`. One that was killed a moment ago may still do so, for
/// as long as it takes the system to end it.
fn wait_until_unused(path: &Path) -> Result<(), SocketError> {
    let until = Instant::now() + ENDING;
    while let Ok(other) = UnixStream::connect(path) {
        if Instant::now() > until {
            return Err(SocketError::Running(path.to_owned(), pid_of(&other)));
        }
        std::thread::sleep(ENDING / 20);
    }
    Ok(())
}

impl Drop for Bound {
    fn drop(&mut self) {
        // A newer daemon's socket is not ours.
        let there = fs::symlink_metadata(&self.path);
        if there.is_ok_and(|there| (there.dev(), there.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes sockets of daemons that were killed before they gave them their name.
fn remove_leftovers(path: &Path) {
    let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else { return };
    for entry in path.parent().into_iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten() {
        let name = entry.file_name();
        let pid =
            name.to_str().and_then(|name| name.strip_prefix(stem)?.strip_prefix('.')?.strip_suffix(".new"));
        let pid = pid.and_then(|pid| pid.parse().ok()).map(nix::unistd::Pid::from_raw);
        if pid.is_some_and(|pid| nix::sys::signal::kill(pid, None) == Err(nix::errno::Errno::ESRCH)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl ControlSocket {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.bound.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    listener: UnixListener,
    stopped: OwnedFd,
    answerer: Answerer,
    clients: Vec<Client>,
}

impl Server {
    fn run(mut self) {
        loop {
            let mut fds = vec![
                PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            ];
            fds.extend(
                self.clients.iter().map(|client| PollFd::new(client.stream.as_fd(), client.interest())),
            );
            match poll(&mut fds, self.timeout()) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(e) => {
                    log::error!("the control socket has stopped: {e}");
                    return;
                }
            }
            let ready: Vec<PollFlags> =
                fds.iter().map(|fd| fd.revents().unwrap_or(PollFlags::empty())).collect();
            drop(fds);
            if !ready[0].is_empty() {
                return;
            }
            let now = Instant::now();
            for (client, ready) in self.clients.iter_mut().zip(&ready[2..]) {
                // It waits for an answer and has gone: poll would not wait for anything else.
                client.gone |=
                    client.later.is_some() && ready.intersects(PollFlags::POLLHUP | PollFlags::POLLERR);
                if !ready.is_empty() || client.later.is_some() {
                    client.go_on(&self.answerer, now);
                }
            }
            self.clients.retain(|client| !client.gone && client.deadline > now);
            if !ready[1].is_empty() {
                self.let_in(now);
            }
        }
    }

    fn timeout(&self) -> PollTimeout {
        let now = Instant::now();
        let left = |client: &Client| match client.later {
            Some(_) => LOOK,
            None => client.deadline.saturating_duration_since(now),
        };
        match self.clients.iter().map(left).min() {
            Some(left) => PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        }
    }

    /// Makes room: whoever has asked nothing for longest goes. False if everybody is being served.
    fn send_off_an_idle_one(&mut self) -> bool {
        let idle = self.clients.iter().enumerate().filter(|(_, client)| client.is_idle());
        let longest = idle.min_by_key(|(_, client)| client.deadline).map(|(place, _)| place);
        longest.map(|place| self.clients.swap_remove(place)).is_some()
    }

    fn let_in(&mut self, now: Instant) {
        for _ in 0..CLIENTS_MAX {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    // No descriptor left: the client waits until there is one.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() >= CLIENTS_MAX && !self.send_off_an_idle_one() {
                // It fits the socket's buffer, or the client does without.
                let _ = stream.write(format!("{}\n", requests::too_many()).as_bytes());
                continue;
            }
            self.clients.push(Client::new(stream, now));
        }
    }
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of `output` that have been sent.
    sent: usize,
    /// The rest of a list that is being sent.
    list: Option<(Cursor, bool)>,
    /// What is being done for it; nothing more is read until then.
    later: Option<Later>,
    deadline: Instant,
    /// Nothing more is read, and the connection ends when everything has been sent.
    closing: bool,
    gone: bool,
}

impl Client {
    /// Whether nothing is under way for it.
    fn is_idle(&self) -> bool {
        self.sent == self.output.len() && self.list.is_none() && self.later.is_none()
    }

    fn new(stream: UnixStream, now: Instant) -> Self {
        Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            list: None,
            later: None,
            deadline: now + PATIENCE,
            closing: false,
            gone: false,
        }
    }

    fn interest(&self) -> PollFlags {
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::POLLOUT, self.waits_to_send());
        let reads = !self.closing && !self.waits_to_send() && self.later.is_none();
        interest.set(PollFlags::POLLIN, reads);
        interest
    }

    fn waits_to_send(&self) -> bool {
        self.sent < self.output.len() || self.list.is_some()
    }

    fn go_on(&mut self, answerer: &Answerer, now: Instant) {
        if let Some(later) = &self.later {
            self.deadline = now + PATIENCE;
            let Some(text) = later.poll() else { return };
            self.later = None;
            self.say(&text);
        } else if !self.waits_to_send() && !self.closing {
            self.receive();
        }
        loop {
            self.answer(answerer);
            self.send(now);
            let blocked = self.sent < self.output.len();
            if self.gone || blocked || self.later.is_some() || (self.list.is_none() && !self.has_line()) {
                break;
            }
        }
        if self.closing && !self.waits_to_send() && self.later.is_none() {
            self.gone = true;
        }
    }

    fn has_line(&self) -> bool {
        self.input.contains(&b'\n')
    }

    fn receive(&mut self) {
        let mut buffer = [0; 16384];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.closing = true,
            Ok(n) => self.input.extend_from_slice(&buffer[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.gone = true,
        }
    }

    /// Answers requests that have come in whole, while there is room for the answers.
    fn answer(&mut self, answerer: &Answerer) {
        while self.output.len() - self.sent < BACKLOG && !self.gone && self.later.is_none() {
            if let Some((cursor, first)) = self.list.take() {
                match answerer.more(cursor, first) {
                    Some((text, next)) => {
                        self.output.extend_from_slice(text.as_bytes());
                        if next == Cursor::End {
                            self.output.push(b'\n');
                        } else {
                            self.list = Some((next, first && text.is_empty()));
                        }
                    }
                    // Half a line is no answer: the client sees the connection end.
                    None => self.gone = true,
                }
                continue;
            }
            let end = self.input.iter().position(|byte| *byte == b'\n');
            match end {
                Some(end) if end <= LINE_MAX => {
                    let line: Vec<u8> = self.input.drain(..=end).collect();
                    match answerer.answer(&line[..end]) {
                        Answer::Line(text) => self.say(&text),
                        Answer::Last(text) => self.say_last(&text),
                        Answer::Later(later) => self.later = Some(later),
                        Answer::Capture(plan) => self.give_away(*plan),
                        Answer::List(beginning) => {
                            self.output.extend_from_slice(beginning.as_bytes());
                            self.list = Some((Cursor::Start, true));
                        }
                    }
                }
                None if self.input.len() <= LINE_MAX => return,
                _ => self.say_last(&requests::too_long(LINE_MAX)),
            }
        }
    }

    /// Leaves the client to a capture, which sends what is still to be sent first.
    fn give_away(&mut self, plan: Plan) {
        let before = self.output.split_off(self.sent);
        let started =
            self.stream.try_clone().and_then(|stream| plan.start(stream, before, &requests::captured()));
        self.output.truncate(self.sent);
        match started {
            Ok(()) => self.gone = true,
            Err(e) => self.say_last(&requests::no_capture(&e)),
        }
    }

    fn say(&mut self, text: &str) {
        self.output.extend_from_slice(text.as_bytes());
        self.output.push(b'\n');
    }

    fn say_last(&mut self, text: &str) {
        self.say(text);
        self.input.clear();
        self.closing = true;
    }

    fn send(&mut self, now: Instant) {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => {
                    self.gone = true;
                    return;
                }
                Ok(n) => {
                    self.sent += n;
                    self.deadline = now + PATIENCE;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.gone |= e.kind() != ErrorKind::WouldBlock;
                    break;
                }
            }
        }
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        } else if self.sent >= BACKLOG {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests;
