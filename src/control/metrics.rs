//! What the metrics say of the tables: asked from the keeper, as `show tables` is.

use std::time::Duration;

use crossbeam_channel::{Sender, bounded};

use super::{
    keeper::{Query, View},
    reload::Reloads,
};
use crate::stats::metrics::{Sizes, Source};

/// How long a scrape waits for the keeper; then it goes without.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks the keeper that `queries` leads to, and the reloads.
pub fn source(queries: Sender<Query>, reloads: Option<Reloads>) -> Source {
    Box::new(move || {
        let (sender, receiver) = bounded(1);
        let query: Query = Box::new(move |view| {
            // The asker may have stopped waiting.
            let _ = sender.try_send(sizes(view));
        });
        queries.send(query).ok()?;
        let mut sizes = receiver.recv_timeout(PATIENCE).ok()?;
        if let Some(reloads) = &reloads {
            let status = reloads.status();
            (sizes.reloads, sizes.last_reload) = (status.counts(), status.last());
        }
        Some(sizes)
    })
}

fn sizes(view: &View<'_>) -> Sizes {
    Sizes {
        generation: view.generation,
        prefixes: [view.rib.v4().installed.len() as u64, view.rib.v6().installed.len() as u64],
        fib_bytes: [view.tables.fib4.bytes() as u64, view.tables.fib6.bytes() as u64],
        adjacencies: view.rib.next_hops().len() as u64,
        neighbors: view.rib.neighbors().count() as u64,
        ..Sizes::default()
    }
}
