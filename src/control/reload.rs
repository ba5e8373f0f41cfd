//! Reading the configuration again while the daemon runs: when a signal or a client asks for it,
//! or the file has another content. A file that is not right in every line changes nothing.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Instant,
};

use crossbeam_channel::{Receiver, Sender, at, never, select, unbounded};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    barrier::{Barrier, BarrierError},
    keeper::Changed,
    watch::{Settling, Watch},
};
use crate::config::{self, Config, OnExit};

/// What can put a configuration in force.
pub trait PutInForce: Send {
    /// Puts a configuration in force that has been checked, wholly or not at all.
    ///
    /// # Errors
    /// Why nothing was changed.
    fn put(&mut self, new: &Config) -> Result<Changed, Refusal>;
}

/// Why a configuration that was checked is not in force all the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// For people.
    pub error: String,
    /// Whether the configuration is to blame, and not the system.
    pub configuration: bool,
}

/// Who has the configuration read again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trigger {
    /// SIGHUP.
    Signal,
    /// `sweepd reload`, or another client of the control socket.
    Client,
    /// The file itself, by having another content.
    File,
}

impl Trigger {
    /// For people.
    fn about(self) -> &'static str {
        match self {
            Self::Signal => "asked for by a signal",
            Self::Client => "asked for by sweepd reload",
            Self::File => "the file has changed",
        }
    }
}

/// How a reload went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The new configuration is in force; what is doubtful about it, a line each.
    Done {
        /// The warnings.
        warnings: Vec<String>,
    },
    /// Nothing was changed.
    Refused {
        /// Why, a line each.
        errors: Vec<String>,
        /// Whether the configuration is to blame, and not the system.
        configuration: bool,
    },
}

/// What there is to say about reloads.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Reloads that were carried out.
    done: u64,
    /// Reloads that were refused.
    refused: u64,
    /// The last one, and when it was.
    last: Option<(jiff::Timestamp, Outcome)>,
}

impl Status {
    fn note(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Done { .. } => self.done += 1,
            Outcome::Refused { .. } => self.refused += 1,
        }
        self.last = Some((jiff::Timestamp::now(), outcome.clone()));
    }

    /// Reloads carried out, and refused.
    pub fn counts(&self) -> [u64; 2] {
        [self.done, self.refused]
    }

    /// When the last one was, in seconds since 1970, and whether it was carried out.
    pub fn last(&self) -> Option<(f64, bool)> {
        let (when, outcome) = self.last.as_ref()?;
        Some((when.as_millisecond() as f64 / 1e3, matches!(outcome, Outcome::Done { .. })))
    }

    /// As keys of `show tables`.
    pub fn keys(&self) -> [(&'static str, Value); 5] {
        let outcome = self.last.as_ref().map(|(_, outcome)| outcome);
        let errors = match outcome {
            Some(Outcome::Refused { errors, .. }) => errors.clone(),
            _ => Vec::new(),
        };
        [
            ("reloads", json!(self.done)),
            ("reloads_refused", json!(self.refused)),
            ("last_reload", json!(self.last.as_ref().map(|(when, _)| format!("{when:.0}")))),
            ("last_reload_ok", json!(outcome.map(|outcome| matches!(outcome, Outcome::Done { .. })))),
            ("last_reload_errors", json!(errors)),
        ]
    }
}

/// One wish for a reload, and who wants to know how it went.
struct Wish {
    trigger: Trigger,
    answer: Option<Sender<Outcome>>,
}

/// The way to ask for reloads.
#[derive(Clone)]
pub struct Reloads {
    wishes: Sender<Wish>,
    status: Arc<Mutex<Status>>,
}

impl Reloads {
    /// Asks for a reload. The outcome comes through what this gives, which is disconnected should
    /// the daemon end first.
    pub fn ask(&self, trigger: Trigger) -> Receiver<Outcome> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        // When nobody listens any more, the daemon is ending.
        let _ = self.wishes.send(Wish { trigger, answer: Some(answer) });
        answered
    }

    /// What there is to say about reloads so far.
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }
}

/// The thread that reloads. Dropping it waits for the reload under way; drop every [`Reloads`]
/// first.
pub struct Reloader {
    reloads: Option<Reloads>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread works with.
struct Work {
    path: PathBuf,
    running: Config,
    force: Box<dyn PutInForce>,
    barrier: Option<Barrier>,
    status: Arc<Mutex<Status>>,
    /// What the file held when it was last read.
    content: Option<u64>,
}

impl Reloader {
    /// Starts to watch the file at `path`, from which `running` was read, and to take wishes, which
    /// `force` fulfils. `barrier` is the daemon's, if it has one.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(
        path: &Path,
        running: Config,
        force: Box<dyn PutInForce>,
        barrier: Option<Barrier>,
    ) -> std::io::Result<Self> {
        let (sender, wishes) = unbounded();
        let status = Arc::new(Mutex::new(Status::default()));
        let reloads = Reloads { wishes: sender, status: status.clone() };
        let path = path.to_owned();
        // What has changed since the file was read at start shows as another content.
        let mut watch = Watch::on(&path);
        let content = Some(running.digest);
        let mut work = Work { path, running, force, barrier, status, content };
        let thread =
            std::thread::Builder::new().name("reload".into()).spawn(move || work.run(&wishes, &mut watch))?;
        Ok(Self { reloads: Some(reloads), thread: Some(thread) })
    }

    /// The way to ask for reloads.
    pub fn reloads(&self) -> Reloads {
        // Taken only when `self` is dropped.
        self.reloads.clone().expect("there until dropped")
    }
}

impl Drop for Reloader {
    fn drop(&mut self) {
        self.reloads = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Work {
    fn run(&mut self, wishes: &Receiver<Wish>, watch: &mut Watch) {
        let mut settling = Settling::default();
        // The file may have changed between its being read and its being watched.
        settling.disturb(Instant::now());
        loop {
            let due = settling.due().map_or_else(never, at);
            select! {
                recv(wishes) -> wish => match wish {
                    Ok(wish) => self.fulfil(wish, wishes),
                    Err(_) => return,
                },
                recv(watch.events) -> _ => settling.disturb(Instant::now()),
                recv(due) -> _ => {}
            }
            if settling.take_due(Instant::now()) {
                watch.follow();
                self.look();
            }
        }
    }

    /// Reloads once for this wish and all others that wait.
    fn fulfil(&mut self, first: Wish, wishes: &Receiver<Wish>) {
        let trigger = first.trigger;
        let mut answers: Vec<_> = first.answer.into_iter().collect();
        answers.extend(wishes.try_iter().filter_map(|wish| wish.answer));
        let outcome = self.reload(trigger, config::read(&self.path));
        for answer in answers {
            // Whoever asked may have stopped waiting.
            let _ = answer.try_send(outcome.clone());
        }
    }

    /// Reloads if the file holds something else than when it was last read.
    fn look(&mut self) {
        let text = config::read(&self.path);
        if text.as_ref().ok().map(|text| config::digest(text)) != self.content {
            self.reload(Trigger::File, text);
        }
    }

    fn reload(&mut self, trigger: Trigger, text: Result<String, config::ConfigErrors>) -> Outcome {
        let outcome = self.put_in_force(trigger, text);
        if let Outcome::Refused { errors, .. } = &outcome {
            for error in errors {
                log::error!("{error}");
            }
            log::error!("the configuration is refused ({}); everything stays as it was", trigger.about());
        }
        self.status.lock().note(&outcome);
        outcome
    }

    /// The interfaces that the barrier is to close with this configuration; none without it.
    fn closed_by(config: &Config) -> Vec<String> {
        if config.daemon.on_exit == OnExit::Drop { config.interfaces() } else { Vec::new() }
    }

    /// Has the barrier, if there is one, close these interfaces and no others. `closed` is what it
    /// closes now, and afterwards.
    fn close(&self, closed: &mut Vec<String>, mut interfaces: Vec<String>) -> Result<(), BarrierError> {
        interfaces.sort_unstable();
        interfaces.dedup();
        let Some(barrier) = self.barrier.as_ref().filter(|_| *closed != interfaces) else { return Ok(()) };
        if interfaces.is_empty() {
            barrier.lower()?
        } else {
            barrier.raise(&interfaces)?
        }
        *closed = interfaces;
        Ok(())
    }

    fn put_in_force(&mut self, trigger: Trigger, text: Result<String, config::ConfigErrors>) -> Outcome {
        self.content = text.as_ref().ok().map(|text| config::digest(text));
        let name = self.path.display().to_string();
        let new = text
            .and_then(|text| config::parse_supported(&text, &name))
            .and_then(|new| new.replacing(&self.running));
        let new = match new {
            Ok(new) => new,
            Err(errors) => {
                let errors = errors.0.iter().map(ToString::to_string).collect();
                return Outcome::Refused { errors, configuration: true };
            }
        };
        // What comes is closed before it opens, and what goes stays closed until it is gone.
        let (before, after) = (Self::closed_by(&self.running), Self::closed_by(&new));
        let mut closed = before.clone();
        if let Err(e) = self.close(&mut closed, [&before[..], &after].concat()) {
            return Outcome::Refused { errors: vec![e.to_string()], configuration: false };
        }
        let mut warnings: Vec<String> = new.warnings.iter().map(ToString::to_string).collect();
        match self.force.put(&new) {
            Ok(Changed::Fully) => {}
            Ok(Changed::Later) => warnings.push(
                "it takes longer than usual: the kernel still lists its routes, or a worker does not go on"
                    .into(),
            ),
            Err(Refusal { error, configuration }) => {
                let failed = self.close(&mut closed, before).err().map(|e| e.to_string());
                return Outcome::Refused {
                    errors: [error].into_iter().chain(failed).collect(),
                    configuration,
                };
            }
        }
        if let Err(e) = self.close(&mut closed, after) {
            warnings.push(e.to_string());
        }
        let news = new.news_against(&self.running);
        let news = if news.is_empty() { "nothing has changed".into() } else { news.join(", ") };
        log::info!("configuration read again ({}): {news}", trigger.about());
        for warning in &warnings {
            log::warn!("{warning}");
        }
        self.running = new;
        Outcome::Done { warnings }
    }
}
