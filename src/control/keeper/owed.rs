//! What an instance of the tables lacks, and how it gets it. There are two instances that workers
//! read, and two that express programs read.

use std::sync::Arc;

use crate::{
    control::{
        apply,
        rib::{Changes, Rib},
    },
    tables::{IcmpLimit, Tables, acl::Acl, fib4::FibFull, masquerade::Masquerade},
};

/// Prefixes in a list from which on the whole table is owed instead.
const MOST: usize = 1 << 16;

/// Changes that others have, and an instance of the tables lacks.
#[derive(Clone, Default)]
pub(super) struct Owed {
    pub changes: Changes,
    /// Whether its FIBs lack more than that.
    pub whole: bool,
    /// Another filter, if there is one.
    pub acl: Option<Option<Arc<Acl>>>,
}

impl Owed {
    /// Everything, for an instance that is empty.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "express is Linux's"))]
    pub fn everything(rib: &Rib, acl: Option<Arc<Acl>>) -> Self {
        Self { changes: rib.everything(), whole: true, acl: Some(acl) }
    }

    /// Something more is owed.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "express is Linux's"))]
    pub fn add(&mut self, more: &Self) {
        self.changes.add(&more.changes);
        self.whole |= more.whole;
        if more.acl.is_some() {
            self.acl.clone_from(&more.acl);
        }
        if self.whole || self.changes.prefixes4.len() + self.changes.prefixes6.len() > MOST {
            self.whole = true;
            self.changes.prefixes4 = Vec::new();
            self.changes.prefixes6 = Vec::new();
        }
    }
}

/// What stands in the tables besides what the RIB holds.
pub(super) struct Settings {
    pub icmp: IcmpLimit,
    pub source_routes: bool,
    pub hash_seed: u64,
    /// The rules of translation that were published last.
    pub masquerade: Masquerade,
}

impl Settings {
    /// Writes into tables that nobody reads what is owed to them, as it is now.
    ///
    /// # Errors
    /// As for [`apply::apply`].
    pub fn write(&self, tables: &mut Tables, rib: &Rib, owed: &Owed) -> Result<(), FibFull> {
        (tables.icmp, tables.hash_seed) = (self.icmp, self.hash_seed);
        tables.source_routes = self.source_routes;
        tables.masquerade.clone_from(&self.masquerade);
        if let Some(acl) = &owed.acl {
            tables.acl.clone_from(acl);
        }
        let by_state = tables.acl.as_ref().is_some_and(|acl| acl.has_state());
        tables.keeps_flows = by_state || self.masquerade.is_on();
        apply::apply(tables, rib, &owed.changes, owed.whole)
    }
}
