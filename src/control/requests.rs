//! One request of a control client's: from a line to an answer, or to a list that is sent page by
//! page. Nothing here waits for the client.

use std::{net::IpAddr, sync::Arc, time::Duration};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use serde_json::{Value, json};

use super::{
    capture::{Captures, Named, Plan, Refused},
    diff::{Differ, Differences},
    flows::{self, Filter, Subject},
    keeper::{Query, View},
    reload::{Outcome, Reloads, Trigger},
    show::{self, Cursor},
};
use crate::{forward::assembly::WorkerLink, plain::plain, stats::file::StatsFile};

/// The protocol's version.
const VERSION: u64 = 1;
/// How long the keeper may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers requests.
pub struct Answerer {
    /// The way to the keeper.
    pub queries: Sender<Query>,
    /// The counters.
    pub stats: Arc<StatsFile>,
    /// The way to reloads; none when there is no file to read again.
    pub reloads: Option<Reloads>,
    /// The way to comparisons with the kernel.
    pub differ: Differ,
    /// The capture that runs, if one does.
    pub captures: Captures,
    /// The ways to the workers.
    pub workers: Vec<WorkerLink>,
    /// How often workers met faults of their own, and how often one was found to hang.
    pub health: Box<dyn Fn() -> (u64, u64) + Send>,
}

/// What a request comes to.
#[derive(Debug)]
pub enum Answer {
    /// One line, without its end.
    Line(String),
    /// One line, after which the connection is closed.
    Last(String),
    /// One line, when something else is done.
    Later(Later),
    /// One line, [`captured`], and from then on a capture instead of answers.
    Capture(Box<Plan>),
    /// A list of routes: this beginning of the line, then [`Answerer::more`].
    List(String),
}

/// Something that is being done for a client.
#[derive(Debug)]
pub enum Later {
    /// The configuration is being read again.
    Reload(Receiver<Outcome>),
    /// The tables are being compared.
    Compare(Receiver<Differences>),
    /// The workers are being asked.
    Gather(Receiver<Result<Value, String>>),
}

impl Later {
    /// The answer, once it is there.
    pub fn poll(&self) -> Option<String> {
        match self {
            Self::Reload(outcome) => poll(outcome, reloaded),
            Self::Compare(differences) => poll(differences, |differences| match differences {
                Ok(rows) => accept(&Value::Array(rows)),
                Err(e) => refuse(e),
            }),
            Self::Gather(data) => poll(data, |data| match data {
                Ok(data) => accept(&data),
                Err(e) => refuse(e),
            }),
        }
    }
}

/// What `say` makes of what has come; `None` while nothing has.
fn poll<T>(receiver: &Receiver<T>, say: impl FnOnce(T) -> String) -> Option<String> {
    match receiver.try_recv() {
        Ok(value) => Some(say(value)),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(refuse("the daemon is ending")),
    }
}

fn reloaded(outcome: Outcome) -> String {
    match outcome {
        Outcome::Done { warnings } => accept(&json!({ "warnings": warnings })),
        Outcome::Refused { errors, configuration } => {
            let error = plain(&errors.join("\n")).into_owned();
            json!({ "version": VERSION, "ok": false, "error": error, "configuration": configuration })
                .to_string()
        }
    }
}

fn refuse(error: impl AsRef<str>) -> String {
    json!({ "version": VERSION, "ok": false, "error": plain(error.as_ref()) }).to_string()
}

/// The refusal of a line that is longer than allowed.
pub fn too_long(limit: usize) -> String {
    refuse(format!("a request is at most {limit} bytes long"))
}

/// The refusal of one client too many.
pub fn too_many() -> String {
    refuse("too many clients; try again later")
}

/// The answer with which a capture begins.
pub fn captured() -> String {
    accept(&json!({ "format": "pcapng" }))
}

/// The refusal of a capture for which there can be no thread.
pub fn no_capture(error: &std::io::Error) -> String {
    refuse(format!("nothing can be captured: {error}"))
}

fn accept(data: &Value) -> String {
    json!({ "version": VERSION, "ok": true, "data": data }).to_string()
}

impl Answerer {
    /// Answers one line.
    pub fn answer(&self, line: &[u8]) -> Answer {
        let Ok(Value::Object(request)) = serde_json::from_slice::<Value>(line) else {
            return Answer::Last(refuse("a request is one JSON object on one line"));
        };
        if request.get("version").and_then(Value::as_u64) != Some(VERSION) {
            return Answer::Last(refuse(format!(
                "this daemon speaks version {VERSION}: set \"version\":{VERSION}"
            )));
        }
        let text = |key: &str| request.get(key).and_then(Value::as_str);
        match (text("command"), text("what")) {
            (Some("reload"), _) => match &self.reloads {
                Some(reloads) => Answer::Later(Later::Reload(reloads.ask(Trigger::Client))),
                None => Answer::Line(refuse("this daemon has no configuration file to read again")),
            },
            (Some("show"), Some("routes")) if request.get("diff") == Some(&Value::Bool(true)) => {
                Answer::Later(Later::Compare(self.differ.ask()))
            }
            (Some("show"), Some("routes")) => match request.get("address") {
                None | Some(Value::Null) => {
                    Answer::List(format!("{{\"version\":{VERSION},\"ok\":true,\"data\":["))
                }
                Some(address) => self.route_to(address),
            },
            (Some("show"), Some("flows")) => self.gather(Subject::Flows, text("filter")),
            (Some("show"), Some("masquerade")) => self.gather(Subject::Masquerade, text("filter")),
            (Some("show"), Some(what)) => self.show(what),
            (Some("capture"), _) => self.capture(&request),
            (Some("show"), None) => Answer::Line(refuse(
                "\"show\" needs \"what\": ports, routes, neighbors, acl, verdicts or tables",
            )),
            _ => Answer::Line(refuse("\"command\" is \"show\", \"reload\" or \"capture\"")),
        }
    }

    fn capture(&self, request: &serde_json::Map<String, Value>) -> Answer {
        let Some(parents) = self.ask(|view| {
            let parents = view.tables.ports.iter().map(|port| port.sub.map(|sub| sub.parent));
            parents.collect::<Vec<_>>()
        }) else {
            return Answer::Line(refuse("the daemon is busy or ending; try again"));
        };
        let parent = |at: usize| parents.get(at).copied().flatten();
        let ports = self.stats.ports().into_iter().enumerate();
        let ports: Vec<Named> = ports.map(|(at, name)| (name, parent(at))).collect();
        match self.captures.plan(request, &ports, self.workers.clone(), self.stats.clone()) {
            Ok(plan) => Answer::Capture(Box::new(plan.of_every_packet(self.queries.clone()))),
            Err(Refused::Busy(error)) => Answer::Line(refuse(error)),
            Err(Refused::Usage(error)) => {
                let refusal = json!({ "version": VERSION, "ok": false, "error": error, "usage": true });
                Answer::Line(refusal.to_string())
            }
        }
    }

    fn route_to(&self, address: &Value) -> Answer {
        let Some(address) = address.as_str().and_then(|text| text.parse::<IpAddr>().ok()) else {
            return Answer::Line(refuse("\"address\" is an IP address, like \"198.51.100.7\""));
        };
        self.of_keeper(move |view| show::route_to(view, address))
    }

    /// Asks the workers for what they keep.
    fn gather(&self, subject: Subject, filter: Option<&str>) -> Answer {
        match Filter::parse(filter.unwrap_or_default()) {
            Ok(filter) => {
                let gathered = flows::gather(self.workers.clone(), self.stats.clone(), subject, filter);
                Answer::Later(Later::Gather(gathered))
            }
            Err(e) => Answer::Line(refuse(e)),
        }
    }

    fn show(&self, what: &str) -> Answer {
        match what {
            "ports" => {
                let totals = self.stats.snapshot();
                self.of_keeper(move |view| show::ports(view, &totals))
            }
            "neighbors" => self.of_keeper(show::neighbors),
            "tables" => {
                let status = self.reloads.as_ref().map(Reloads::status).unwrap_or_default();
                let (faults, stalls) = (self.health)();
                self.of_keeper(move |view| {
                    let mut data = show::tables(view, &status);
                    (data["worker_faults"], data["worker_stalls"]) = (json!(faults), json!(stalls));
                    data
                })
            }
            "verdicts" => Answer::Line(accept(&show::verdicts(&self.stats.snapshot()))),
            "acl" => self.of_keeper(show::acl),
            other => Answer::Line(refuse(format!(
                "there is nothing called {other:?} to show; there are ports, routes, neighbors, acl, verdicts, tables"
            ))),
        }
    }

    fn of_keeper(&self, look: impl FnOnce(&View<'_>) -> Value + Send + 'static) -> Answer {
        Answer::Line(match self.ask(look) {
            Some(data) => accept(&data),
            None => refuse("the daemon is busy or ending; try again"),
        })
    }

    /// Has the keeper look at its own state; `None` when it does not come to it in time.
    fn ask<R: Send + 'static>(&self, look: impl FnOnce(&View<'_>) -> R + Send + 'static) -> Option<R> {
        let (sender, receiver) = bounded(1);
        let query: Query = Box::new(move |view| {
            // The asker may have stopped waiting.
            let _ = sender.try_send(look(view));
        });
        self.queries.send(query).ok()?;
        receiver.recv_timeout(PATIENCE).ok()
    }

    /// The next piece of a list and where it goes on. After [`Cursor::End`] the line is complete.
    /// `None` when the keeper does not answer: the line can't be completed.
    pub fn more(&self, cursor: Cursor, first: bool) -> Option<(String, Cursor)> {
        let (rows, next) = self.ask(move |view| show::routes(view, cursor))?;
        let mut text = String::new();
        for (number, row) in rows.iter().enumerate() {
            if number > 0 || !first {
                text.push(',');
            }
            text.push_str(&row.to_string());
        }
        if next == Cursor::End {
            text.push_str("]}");
        }
        Some((text, next))
    }
}
