//! `capture` requests: a thread for as long as somebody captures, which has the workers tap packets,
//! takes what they tell, and sends it to the client as pcapng. The workers never wait for it, nor it
//! for the client: what finds no room is lost and counted. It ends when the client goes away, however
//! that happens; then the workers have no tap any more.

use std::{
    collections::HashMap,
    io::{self, ErrorKind, Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crossbeam_channel::{Sender, bounded};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use pcap_file::PcapError;
use serde_json::{Map, Value};

use self::pcapng::{Packet, Writer};
use super::keeper::Query;
use crate::{
    config::schema,
    forward::{
        assembly::WorkerLink,
        messages::ToWorker,
        tap::{
            self, End, SNAP_MAX, Tap, Told, Wanted,
            ring::{self, Consumer},
        },
    },
    stats::file::StatsFile,
    tables::PortId,
};

mod pcapng;

/// Bytes of the ring between a worker and the capture.
const RING: usize = 4 << 20;
/// Bytes that may wait for the client before no more is taken from the rings.
const BACKLOG: usize = 1 << 20;
/// Time between two looks at the rings, in milliseconds.
const LOOK: u8 = 10;
/// How long it is waited for how a packet ends: longer than any is held.
const GIVE_UP: Duration = Duration::from_secs(8);
/// Packets whose end is waited for.
const PENDING_MAX: usize = 16_384;
/// How long workers may take to let go of their taps, and the client to take the rest.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why there is no capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The request names something that is not there.
    Usage(String),
    /// It cannot be now.
    Busy(String),
}

/// The capture that runs, if one does. Dropping it ends that.
#[derive(Default)]
pub struct Captures {
    shared: Arc<Shared>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

#[derive(Default)]
struct Shared {
    /// What is being captured.
    running: Mutex<Option<String>>,
    ending: AtomicBool,
    serial: Mutex<u16>,
}

impl Drop for Captures {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

/// The place of the one capture that there can be; free again when dropped.
struct Turn(Arc<Shared>);

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.running.lock() = None;
    }
}

/// A port: its name, empty where there is none, and whose sub-port it is.
pub type Named = (String, Option<PortId>);

/// A capture that can begin.
pub struct Plan {
    wanted: Arc<Wanted>,
    /// Ends of packets that are told although they are none yet, since they were asked for by name.
    at_once: u64,
    snap: usize,
    count: Option<u64>,
    workers: Vec<WorkerLink>,
    stats: Arc<StatsFile>,
    turn: Turn,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    /// The keeper, who is to have every packet come to a worker meanwhile.
    keeper: Option<Sender<Query>>,
}

/// Has every packet come to a worker, as long as this is there.
struct EveryPacket(Sender<Query>);

impl EveryPacket {
    fn begin(keeper: Sender<Query>) -> Self {
        let (answer, answered) = bounded::<()>(1);
        // A keeper that has ended has no programs any more either.
        let _ = keeper.send(Box::new(|view| {
            view.captures.fetch_add(1, Ordering::Relaxed);
        }));
        let _ = keeper.send(Box::new(move |_| drop(answer)));
        // Answered when it is dropped: between the two the keeper has done what it does in each round.
        let _ = answered.recv_timeout(PATIENCE);
        Self(keeper)
    }
}

impl Drop for EveryPacket {
    fn drop(&mut self) {
        let _ = self.0.send(Box::new(|view| {
            view.captures.fetch_sub(1, Ordering::Relaxed);
        }));
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

impl Captures {
    /// What `request` asks for, of these ports, by number.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn plan(
        &self,
        request: &Map<String, Value>,
        ports: &[Named],
        workers: Vec<WorkerLink>,
        stats: Arc<StatsFile>,
    ) -> Result<Plan, Refused> {
        let name = match request.get("port") {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => Some(name.as_str()),
            Some(_) => return Err(Refused::Usage("\"port\" is the name of a port".into())),
        };
        let (ends, at_once) = ends(request.get("verdicts"))?;
        let number = |key: &str| match request.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64().filter(|number| *number > 0) {
                Some(number) => Ok(Some(number)),
                None => Err(Refused::Usage(format!("{key:?} is a number above 0"))),
            },
        };
        let snap = number("snap")?.map_or(SNAP_MAX, |snap| snap.min(SNAP_MAX as u64) as usize);
        let count = number("count")?;
        let wanted = Wanted { ports: name.map(|name| chosen(name, ports)).transpose()?, ends };
        let mut running = self.shared.running.lock();
        if let Some(what) = &*running {
            return Err(Refused::Busy(format!("{what} is being captured already; end that first")));
        }
        *running = Some(name.map_or("every port".into(), |name| format!("port {name}")));
        let turn = Turn(self.shared.clone());
        let thread = self.thread.clone();
        Ok(Plan {
            wanted: Arc::new(wanted),
            at_once,
            snap,
            count,
            workers,
            stats,
            turn,
            thread,
            keeper: None,
        })
    }
}

/// The set of ends that a request names, and of those that are no ends yet and named all the same.
fn ends(names: Option<&Value>) -> Result<(u64, u64), Refused> {
    let names = match names {
        None | Some(Value::Null) => return Ok((u64::MAX, 0)),
        Some(Value::Array(names)) => names,
        Some(_) => return Err(Refused::Usage("\"verdicts\" is a list of names".into())),
    };
    let (mut ends, mut at_once) = (0, 0);
    for name in names {
        let name = name.as_str().unwrap_or_default();
        let Some(end) = End::all().find(|end| end.name() == name) else {
            return Err(Refused::Usage(no_verdict(name)));
        };
        ends |= end.bit();
        if !end.is_final() {
            at_once |= end.bit();
        }
    }
    Ok((ends, at_once))
}

/// That there is no such verdict, and what is meant, perhaps.
pub fn no_verdict(name: &str) -> String {
    match schema::nearest(name, End::all().map(End::name)) {
        Some(near) => format!("there is no verdict called {name:?}; did you mean {near:?}?"),
        None => {
            let all: Vec<_> = End::all().map(End::name).collect();
            format!("there is no verdict called {name:?}; there are {}", all.join(", "))
        }
    }
}

/// The places of the port called `name`, and of its sub-ports.
fn chosen(name: &str, ports: &[Named]) -> Result<Box<[bool]>, Refused> {
    let Some(port) = ports.iter().position(|(known, _)| known == name && !name.is_empty()) else {
        let names: Vec<&str> =
            ports.iter().map(|(name, _)| name.as_str()).filter(|n| !n.is_empty()).collect();
        let near = schema::nearest(name, names.iter().copied());
        let meant = near.map_or(String::new(), |near| format!("did you mean {near:?}? "));
        let all = names.join(", ");
        return Err(Refused::Usage(format!("there is no port called {name:?}; {meant}there are {all}")));
    };
    let of = |(at, (_, parent)): (usize, &Named)| at == port || parent.map(usize::from) == Some(port);
    Ok(ports.iter().enumerate().map(of).collect())
}

impl Plan {
    /// Has every packet come to a worker while the capture runs, none be forwarded in the driver.
    pub fn of_every_packet(self, keeper: Sender<Query>) -> Self {
        Self { keeper: Some(keeper), ..self }
    }

    /// Begins: sends `before`, then the capture, until the client goes. `accepted` is the answer's line.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(self, stream: UnixStream, before: Vec<u8>, accepted: &str) -> io::Result<()> {
        let mut out = before;
        out.extend_from_slice(accepted.as_bytes());
        out.push(b'\n');
        let place = self.thread.clone();
        let mut thread = place.lock();
        if let Some(last) = thread.take() {
            // It has given its place up, and ends.
            let _ = last.join();
        }
        let run = move || {
            let Self { wanted, at_once, snap, count, workers, stats, turn, keeper, .. } = self;
            let _all = keeper.map(EveryPacket::begin);
            let mut serial = turn.0.serial.lock();
            *serial = serial.wrapping_add(1);
            let rings = tap_all(&workers, &wanted, snap, *serial, stats.places());
            drop(serial);
            let session = Writer::new(snap as u32).map(|writer| Session {
                stream,
                out,
                sent: 0,
                writer,
                rings,
                wanted,
                at_once,
                left: count,
                stats,
                pending: HashMap::new(),
                early: Default::default(),
                emptied: true,
            });
            match session {
                Ok(mut session) => session.run(&workers, turn),
                Err(e) => log::error!("nothing can be captured: {e}"),
            }
        };
        *thread = Some(std::thread::Builder::new().name("capture".into()).spawn(run)?);
        Ok(())
    }
}

/// Gives every worker a tap; the other ends of their rings.
fn tap_all(
    workers: &[WorkerLink],
    wanted: &Arc<Wanted>,
    snap: usize,
    serial: u16,
    places: usize,
) -> Vec<Consumer> {
    let tap = |(number, worker): (usize, &WorkerLink)| {
        let (producer, consumer) = ring::ring(RING, places);
        let tap = Tap::new(producer, wanted.clone(), snap, serial, number);
        if !worker.send(ToWorker::Tap(Some(Box::new(tap)))) {
            log::warn!("worker {number} is too busy: its packets are not captured");
        }
        consumer
    };
    workers.iter().enumerate().map(tap).collect()
}

/// A packet whose end is not known yet.
struct Pending {
    told: Told,
    bytes: Vec<u8>,
    since: Instant,
    /// It was told about already.
    written: bool,
}

/// A capture under way.
struct Session {
    stream: UnixStream,
    out: Vec<u8>,
    /// Bytes of `out` that have been sent.
    sent: usize,
    writer: Writer,
    rings: Vec<Consumer>,
    wanted: Arc<Wanted>,
    at_once: u64,
    /// Packets that are still to be told, if there is an end to it.
    left: Option<u64>,
    stats: Arc<StatsFile>,
    pending: HashMap<u64, Pending>,
    /// Ends of packets that have not been read yet: of this round, and of the one before.
    early: [HashMap<u64, Told>; 2],
    /// Whether the last round has left nothing in the rings.
    emptied: bool,
}

impl Session {
    fn run(&mut self, workers: &[WorkerLink], turn: Turn) {
        let result = self.capture(&turn.0.ending);
        for worker in workers {
            // One that takes no commands any more is about to end.
            let _ = worker.send(ToWorker::Tap(None));
        }
        if let Ok(()) = result {
            // Whoever has gone altogether is told nothing more.
            let _ = self.finish();
        }
        // Before the client sees the end: it may ask again at once.
        drop(turn);
    }

    /// Captures until the client wants no more.
    fn capture(&mut self, ending: &AtomicBool) -> Result<(), Ended> {
        for port in 0..self.stats.places() as PortId {
            let name = self.stats.port(port.into());
            if !name.is_empty() {
                self.writer.interface(port, &name)?;
            }
        }
        self.stream.set_nonblocking(true)?;
        loop {
            self.take_in(BACKLOG)?;
            if self.send()? || self.left == Some(0) || ending.load(Ordering::Acquire) {
                return Ok(());
            }
        }
    }

    /// Takes what the workers tell, as long as less than `backlog` bytes wait for the client.
    fn take_in(&mut self, backlog: usize) -> Result<(), Ended> {
        let [now, before] = &mut self.early;
        if std::mem::replace(&mut self.emptied, true) || now.len() > PENDING_MAX {
            *before = std::mem::take(now);
        }
        let mut bytes = Vec::new();
        for number in 0..self.rings.len() {
            loop {
                if self.writer.bytes().len() + self.out.len() - self.sent >= backlog || self.left == Some(0) {
                    self.emptied = false;
                    break;
                }
                let Some(told) = tap::read(&mut self.rings[number], &mut bytes) else { break };
                self.take(told, &bytes)?;
            }
        }
        self.give_up(GIVE_UP)
    }

    fn take(&mut self, told: Told, bytes: &[u8]) -> Result<(), Ended> {
        if told.later {
            return match self.pending.remove(&told.id) {
                Some(pending) => self.end(pending, told),
                None => {
                    self.early[0].insert(told.id, told);
                    Ok(())
                }
            };
        }
        if told.end.is_final() {
            return self.write(&told, bytes, None);
        }
        let written = self.at_once & told.end.bit() != 0;
        if written {
            self.write(&told, bytes, None)?;
        }
        let pending = Pending { told, bytes: bytes.to_vec(), since: Instant::now(), written };
        let early = self.early.iter_mut().find_map(|early| early.remove(&told.id));
        match early {
            Some(end) => self.end(pending, end),
            None => {
                self.pending.insert(told.id, pending);
                Ok(())
            }
        }
    }

    /// A packet that was told about has ended.
    fn end(&mut self, pending: Pending, end: Told) -> Result<(), Ended> {
        let Pending { told, bytes, .. } = pending;
        let held = (told.end == End::HELD).then(|| end.time.saturating_sub(told.time));
        // One that waited and did not leave was to leave by the port that it waited for.
        let leaves_by = end.leaves_by.or(told.leaves_by);
        self.write(&Told { end: end.end, leaves_by, ..told }, &bytes, held)
    }

    /// Writes packets that have been pending for so long as what they are.
    fn give_up(&mut self, age: Duration) -> Result<(), Ended> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let full = self.pending.len() > PENDING_MAX;
        let old = self.pending.extract_if(|_, pending| full || pending.since.elapsed() >= age);
        let mut old: Vec<Pending> = old.map(|(_, pending)| pending).filter(|p| !p.written).collect();
        old.sort_by_key(|pending| pending.told.time);
        old.iter().try_for_each(|pending| self.write(&pending.told, &pending.bytes, None))
    }

    /// Writes a packet, if it is wanted; `held` says how many nanoseconds it was held.
    fn write(&mut self, told: &Told, bytes: &[u8], held: Option<u64>) -> Result<(), Ended> {
        if self.left == Some(0) || !self.wanted.takes(told.came_in, told.leaves_by, told.end) {
            return Ok(());
        }
        let name = |port: PortId| match usize::from(port) < self.stats.places() {
            true => self.stats.port(port.into()),
            false => String::new(),
        };
        let came_in = name(told.came_in);
        let out = told.leaves_by.map_or("-".to_owned(), name);
        let held = held.map_or(String::new(), |held| format!(" after {:.3} ms held", held as f64 / 1e6));
        let (end, about) = (told.end.name(), told.end.about());
        let comment = format!("{end}{held}, in {came_in}, out {out}: {about}");
        if !self.writer.has(told.came_in) {
            self.writer.interface(told.came_in, &came_in)?;
        }
        let lost = self.lost(told.came_in);
        let Told { came_in: port, time, len, .. } = *told;
        self.writer.packet(&Packet { port, time, len, bytes, comment: &comment, lost })?;
        self.left = self.left.map(|left| left - 1);
        Ok(())
    }

    /// How many packets of a port's have been lost.
    fn lost(&self, port: PortId) -> u64 {
        self.rings.iter().map(|ring| ring.lost(port)).sum()
    }

    /// Sends what the client takes, and waits a little for it. Gives whether it wants no more.
    fn send(&mut self) -> Result<bool, Ended> {
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        self.out.append(self.writer.bytes());
        let mut interest = PollFlags::POLLIN;
        interest.set(PollFlags::POLLOUT, self.sent < self.out.len());
        let mut fds = [PollFd::new(self.stream.as_fd(), interest)];
        match poll(&mut fds, PollTimeout::from(LOOK)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(io::Error::from(e).into()),
        }
        let ready = fds[0].revents().unwrap_or(PollFlags::empty());
        if ready.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
            // Whatever it says now, only that it stops talking counts.
            match self.stream.read(&mut [0; 4096]) {
                Ok(0) => return Ok(true),
                Ok(_) => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => return Err(e.into()),
            }
        }
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(Ended),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(false)
    }

    /// Sends what was told until now, and the figures at the end.
    fn finish(&mut self) -> Result<(), Ended> {
        let deadline = Instant::now() + PATIENCE;
        while !self.rings.iter().all(Consumer::is_alone) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.take_in(usize::MAX)?;
        self.give_up(Duration::ZERO)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let lost: Vec<u64> = (0..self.stats.places() as PortId).map(|port| self.lost(port)).collect();
        let lost = |port: PortId| lost.get(usize::from(port)).copied().unwrap_or(0);
        self.writer.end(now.as_nanos() as u64, lost)?;
        self.out.append(self.writer.bytes());
        self.stream.set_nonblocking(false)?;
        self.stream.set_write_timeout(Some(PATIENCE))?;
        self.stream.write_all(&self.out[self.sent..])?;
        Ok(())
    }
}

/// The client has gone, and nothing can be sent to it.
struct Ended;

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl From<PcapError> for Ended {
    fn from(e: PcapError) -> Self {
        log::error!("the capture ends: {e}");
        Self
    }
}

#[cfg(test)]
mod tests;
