//! What the metrics say of the tables: asked from the keeper, as `show tables` is.

use std::time::Duration;

use crossbeam_channel::{Sender, bounded};

use super::{
    keeper::{Query, View, filters::Row},
    reload::Reloads,
};
use crate::stats::metrics::{RuleCount, Sizes, Source};

/// How long a scrape waits for the keeper; then it goes without.
const PATIENCE: Duration = Duration::from_secs(1);

/// What others than the keeper know.
pub struct Others {
    /// The reloads, if there are any.
    pub reloads: Option<Reloads>,
    /// How many flows each worker has room for.
    pub flows: u64,
    /// Faults of each worker's own, and how often one was found to hang.
    pub health: Box<dyn Fn() -> (Vec<u64>, u64) + Send>,
}

/// Asks the keeper that `queries` leads to, and the others.
pub fn source(queries: Sender<Query>, others: Others) -> Source {
    Box::new(move || {
        let (sender, receiver) = bounded(1);
        let query: Query = Box::new(move |view| {
            // The asker may have stopped waiting.
            let _ = sender.try_send(sizes(view));
        });
        queries.send(query).ok()?;
        let mut sizes = receiver.recv_timeout(PATIENCE).ok()?;
        sizes.flows = others.flows;
        (sizes.faults, sizes.stalls) = (others.health)();
        if let Some(reloads) = &others.reloads {
            let status = reloads.status();
            (sizes.reloads, sizes.last_reload) = (status.counts(), status.last());
        }
        Some(sizes)
    })
}

fn rule((rule, packets): Row<'_>) -> RuleCount {
    let name = rule.map(|rule| rule.name.clone()).unwrap_or_default();
    RuleCount { name, denies: rule.is_some_and(|rule| rule.denies), packets }
}

fn sizes(view: &View<'_>) -> Sizes {
    Sizes {
        generation: view.generation,
        prefixes: [view.rib.v4().installed.len() as u64, view.rib.v6().installed.len() as u64],
        fib_bytes: [view.tables.fib4.bytes() as u64, view.tables.fib6.bytes() as u64],
        adjacencies: view.rib.next_hops().len() as u64,
        neighbors: view.rib.neighbors().count() as u64,
        rules: view.filters.rows().into_iter().map(rule).collect(),
        ..Sizes::default()
    }
}
