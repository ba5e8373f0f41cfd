//! Every difference between the kernel's own tables, the RIB and the FIB: none, unless something
//! is wrong or just under way. The kernel is asked afresh, apart from the news that the RIB is
//! made of; the FIB is the one that workers read, and is compared whole.
//!
//! While routes change, a listing and the RIB can't be of the same moment. What differs is
//! therefore looked at a second time, a little later and with another listing, and only what
//! still differs counts.

mod fib;
mod listing;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::{
    keeper::{Query, View},
    kernel::{Follow, Hop, Index, NextHopObject},
    rib::{Source, paths::PathKey},
    show,
};
use listing::{Digest, Listing};

/// Differences that are told at most.
const MOST: usize = 10_000;
/// Between the two looks.
const BETWEEN: Duration = Duration::from_millis(300);
/// How long the keeper may take for one page.
const PATIENCE: Duration = Duration::from_secs(10);
/// Regions of each family's address space that are compared one at a time, and their length.
const REGIONS: u8 = 255;

/// The differences, as rows of `show routes --diff`; or why there is nothing to tell.
pub type Differences = Result<Vec<Value>, String>;

/// The way to ask for differences.
#[derive(Clone)]
pub struct Differ(Sender<Sender<Differences>>);

/// The thread that compares. Drop every [`Differ`] first.
pub struct Comparison {
    differ: Option<Differ>,
    thread: Option<JoinHandle<()>>,
}

impl Comparison {
    /// Starts the thread; `queries` is the way to the keeper.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(queries: Sender<Query>) -> std::io::Result<Self> {
        let (sender, asked) = unbounded();
        let thread =
            std::thread::Builder::new().name("compare".into()).spawn(move || serve(&queries, &asked))?;
        Ok(Self { differ: Some(Differ(sender)), thread: Some(thread) })
    }

    /// The way to ask.
    pub fn differ(&self) -> Differ {
        // Taken only when `self` is dropped.
        self.differ.clone().expect("there until dropped")
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        self.differ = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Differ {
    /// Asks for the differences; they come through what this gives, which is disconnected should
    /// the daemon end first.
    pub fn ask(&self) -> Receiver<Differences> {
        let (answer, answered) = bounded(1);
        // When nobody listens any more, the daemon is ending.
        let _ = self.0.send(answer);
        answered
    }
}

fn serve(queries: &Sender<Query>, asked: &Receiver<Sender<Differences>>) {
    for first in asked {
        // Those who come while it compares share the next comparison.
        let all: Vec<_> = std::iter::once(first).chain(asked.try_iter()).collect();
        let differences = compare(queries);
        for answer in all {
            let _ = answer.try_send(differences.clone());
        }
    }
}

/// Has the keeper look at its own state.
fn ask<R: Send + 'static>(
    queries: &Sender<Query>,
    look: impl FnOnce(&View<'_>) -> R + Send + 'static,
) -> Result<R, String> {
    let (sender, receiver) = bounded(1);
    let query: Query = Box::new(move |view| {
        let _ = sender.try_send(look(view));
    });
    let busy = || "the daemon is busy or ending; try again".to_owned();
    queries.send(query).map_err(|_| busy())?;
    receiver.recv_timeout(PATIENCE).map_err(|_| busy())
}

/// What a difference is about, in the order in which they are told.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Subject {
    /// A prefix, between kernel and RIB.
    Prefix(IpNet),
    /// A next hop object of the kernel's.
    Object(u32),
    /// A region of the FIB.
    Region(IpNet),
    /// Something else that workers read.
    Other(String),
}

/// What each side says; none is nothing.
#[derive(Clone, Debug, Default)]
struct Row {
    kernel: Option<String>,
    rib: Option<String>,
    fib: Option<String>,
}

type Rows = BTreeMap<Subject, Row>;

/// What is in the RIB and needed to compare.
#[derive(Clone, Debug, Default)]
struct Links {
    up: BTreeSet<Index>,
    names: HashMap<Index, String>,
    follow: Option<Follow>,
}

impl Links {
    fn of(view: &View<'_>) -> Self {
        let links = view.rib.links();
        let mut all = Self { follow: view.follow, ..Self::default() };
        for (index, name, up) in links {
            all.names.insert(index, name.to_owned());
            if up {
                all.up.insert(index);
            }
        }
        all
    }
}

fn compare(queries: &Sender<Query>) -> Differences {
    let first = look(queries, None)?;
    if first.is_empty() {
        return Ok(Vec::new());
    }
    std::thread::sleep(BETWEEN);
    let suspects = first.into_keys().collect();
    let second = look(queries, Some(&suspects))?;
    let rows = second.into_iter().filter(|(subject, _)| suspects.contains(subject)).take(MOST);
    Ok(rows.map(|(subject, row)| tell(&subject, &row)).collect())
}

fn tell(subject: &Subject, row: &Row) -> Value {
    let (of, between) = match subject {
        Subject::Prefix(net) => (net.to_string(), "kernel and rib"),
        Subject::Object(id) => (format!("next hop object {id}"), "kernel and rib"),
        Subject::Region(net) => (net.to_string(), "rib and fib"),
        Subject::Other(what) => (what.clone(), "rib and fib"),
    };
    json!({ "of": of, "between": between, "kernel": row.kernel, "rib": row.rib, "fib": row.fib })
}

/// One look at everything; texts are made only for what is in `suspects`.
fn look(queries: &Sender<Query>, suspects: Option<&BTreeSet<Subject>>) -> Result<Rows, String> {
    let mut rows = Rows::new();
    let links = ask(queries, Links::of)?;
    if let Some(follow) = links.follow {
        let listing = Listing::take(follow, &links, suspects)
            .map_err(|e| format!("the kernel cannot be asked for its routes: {e}"))?;
        compare_kernel(queries, &links, listing, suspects, &mut rows)?;
    }
    for region in 0..=REGIONS {
        rows.extend(ask(queries, move |view| fib::differences4(view, region))?);
        rows.extend(ask(queries, move |view| fib::differences6(view, region))?);
    }
    rows.extend(ask(queries, fib::other_differences)?);
    Ok(rows)
}

/// The RIB's routes of the kernel's, page by page, against what the kernel has listed.
fn compare_kernel(
    queries: &Sender<Query>,
    links: &Links,
    listing: Listing,
    suspects: Option<&BTreeSet<Subject>>,
    rows: &mut Rows,
) -> Result<(), String> {
    let Listing { digests, texts, objects } = listing;
    let mut kernel = digests.into_iter().peekable();
    let mut note = |net: IpNet, rib: Option<String>| {
        rows.insert(Subject::Prefix(net), Row { kernel: texts.get(&net).cloned(), rib, fib: None });
    };
    let wants_text = |net: &IpNet| suspects.is_some_and(|all| all.contains(&Subject::Prefix(*net)));
    let mut cursor = show::Cursor::Start;
    while cursor != show::Cursor::End {
        let (page, next) = ask(queries, move |view| show::kernel_routes(view, cursor))?;
        cursor = next;
        for (net, ways) in page {
            while let Some((missing, _)) = kernel.next_if(|(other, _)| *other < net) {
                note(missing, None);
            }
            let digest = Digest::of(net, ways.iter().map(|(source, metric, key)| (*source, *metric, &**key)));
            if kernel.next_if(|(other, _)| *other == net).map(|(_, digest)| digest) != Some(digest) {
                let text = || {
                    let ways = ways.iter().map(|(source, metric, key)| way(links, *source, *metric, key));
                    ways.collect::<Vec<_>>().join(", ")
                };
                note(net, wants_text(&net).then(text));
            }
        }
    }
    for (missing, _) in kernel {
        note(missing, None);
    }
    let known: BTreeMap<u32, NextHopObject> =
        ask(queries, |view| view.rib.objects().map(|(id, object)| (id, object.clone())).collect())?;
    let ids: BTreeSet<_> = known.keys().chain(objects.keys()).copied().collect();
    for id in ids.into_iter().filter(|id| known.get(id) != objects.get(id)) {
        let text = |object: Option<&NextHopObject>| object.map(|object| format!("{object:?}"));
        let row = Row { kernel: text(objects.get(&id)), rib: text(known.get(&id)), fib: None };
        rows.insert(Subject::Object(id), row);
    }
    Ok(())
}

/// A way to a prefix, for people.
fn way(links: &Links, source: Source, metric: u32, key: &PathKey) -> String {
    let mut text = match key {
        PathKey::Fixed(id) => show::fixed_name(*id).to_owned(),
        PathKey::Object(id) => format!("next hop object {id}"),
        PathKey::Hops(hops) => hops.iter().map(|hop| hop_text(links, hop)).collect::<Vec<_>>().join(" "),
    };
    if source == Source::Local {
        text = format!("{text} (the host's own)");
    }
    if metric > 0 {
        text += &format!(" metric {metric}");
    }
    text
}

fn hop_text(links: &Links, hop: &Hop) -> String {
    let mut text = hop.gateway.map_or_else(|| "on link".to_owned(), |gateway| format!("via {gateway}"));
    if let Some(index) = hop.index {
        let name = links.names.get(&index).cloned().unwrap_or_else(|| format!("interface {index}"));
        text += &format!(" dev {name}");
    }
    if hop.weight > 1 {
        text += &format!(" weight {}", hop.weight);
    }
    for (holds, word) in [(hop.kernel_only, " encapsulated"), (hop.dead, " dead")] {
        if holds {
            text += word;
        }
    }
    text
}
