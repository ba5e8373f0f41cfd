//! Who had which port outside, and when: what a worker tells the log about mappings, off the fast
//! path. The lines are written by the keeper; when it cannot keep up, or a flood makes more of them
//! than anybody could keep, they are counted and left out, and the next one says how many.

use std::time::{Instant, SystemTime};

use crossbeam_channel::Sender;

use super::{mappings::Mapping, ports::BLOCK};
use crate::{
    forward::{
        bucket::Bucket,
        messages::{Mapped, Means, ToKeeper},
    },
    tables::IcmpLimit,
};

/// Lines of a worker: a second, and at once.
const LINES: IcmpLimit = IcmpLimit { rate: 1000, burst: 4000 };

/// A worker's way to the log.
#[derive(Debug)]
pub struct Ledger {
    keeper: Sender<ToKeeper>,
    bucket: Bucket,
    started: Instant,
    unlogged: u64,
}

impl Ledger {
    /// A ledger that tells this keeper.
    pub fn new(keeper: Sender<ToKeeper>) -> Self {
        Self { keeper, bucket: Bucket::new(LINES, 0), started: Instant::now(), unlogged: 0 }
    }

    /// A mapping has begun or ended.
    #[cold]
    pub(super) fn mapping(&mut self, mapping: &Mapping, begins: bool) {
        let (inside, outside) = (mapping.inside(), mapping.external());
        let means = Means::Mapping { protocol: mapping.protocol, port: inside.port };
        self.note(Mapped {
            begins,
            inside: inside.address.into(),
            outside: outside.address.into(),
            first: outside.port,
            last: outside.port,
            means,
            at: SystemTime::now(),
            unlogged: self.unlogged,
        });
    }

    /// The host of this mapping has got the block of ports that the mapping's is in, or has given it
    /// back.
    #[cold]
    pub(super) fn block(&mut self, mapping: &Mapping, begins: bool) {
        let (inside, outside) = (mapping.inside(), mapping.external());
        let first = outside.port / BLOCK * BLOCK;
        self.note(Mapped {
            begins,
            inside: inside.address.into(),
            outside: outside.address.into(),
            first,
            last: first + (BLOCK - 1),
            means: Means::Block,
            at: SystemTime::now(),
            unlogged: self.unlogged,
        });
    }

    fn note(&mut self, mapped: Mapped) {
        let may = self.bucket.take(self.started.elapsed().as_nanos() as u64);
        // A full channel means that the keeper is busy: then this one is not logged either.
        match may && self.keeper.try_send(ToKeeper::Mapped(Box::new(mapped))).is_ok() {
            true => self.unlogged = 0,
            false => self.unlogged += 1,
        }
    }
}
