//! The flow table: what one worker knows of the flows that it sees. Nothing in it is shared.
//!
//! A flow is a record of one cache line in a slab; the [`Index`] finds it by its hash, one line
//! more. A flow that is not translated has one entry there, and both directions find it; a
//! translated one has two, one for its inside and one for its outside key. With two entries a flow
//! takes 64 bytes of record and 11.4 of index.
//!
//! The size is fixed: a full table refuses new flows and leaves the others alone. The memory is
//! reserved at first and taken as it is touched. Flows end by a wheel, a few of them looked at in
//! each sweep; the time is the loop's.

pub mod flow;
pub mod hash;
pub mod index;
pub mod tcp;
mod wheel;

use std::io;

use netmap::prefetch;

use self::{index::Index, wheel::Wheel};
use crate::tables::{
    Timeouts,
    memory::{Backing, PageArray},
};

pub use flow::{Direction, End4, Flow, Key, Key4, Key6, OutsideKey, OwnKey, Translation};
pub use hash::Secret;

/// Number of a flow; 0 is none. Given away again after the flow has ended.
pub type FlowId = u32;

/// Flows that a worker has room for unless it is told otherwise.
pub const DEFAULT_FLOWS: usize = 1 << 21;

/// Most flows that a worker can have.
pub const MAX_FLOWS: usize = index::MAX_RECORDS - 1;

/// The table has no room for another flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// A worker's flows.
#[derive(Debug)]
pub struct FlowTable {
    index: Index,
    flows: PageArray<Flow>,
    secret: Secret,
    wheel: Wheel,
    /// The first free record of those that were used before.
    free: u32,
    /// The first record that was never used.
    fresh: u32,
    live: usize,
}

impl FlowTable {
    /// A table for `capacity` flows (at least 1, at most [`MAX_FLOWS`]), all of which may be
    /// translated.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn new(capacity: usize, secret: Secret) -> io::Result<Self> {
        let capacity = capacity.clamp(1, MAX_FLOWS);
        Ok(Self {
            index: Index::new(2 * capacity)?,
            // Number 0 is none.
            flows: PageArray::new(capacity + 1, &Backing::Anonymous)?,
            secret,
            wheel: Wheel::new(0),
            free: 0,
            fresh: 1,
            live: 0,
        })
    }

    /// How many flows there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// How many flows there can be.
    pub fn capacity(&self) -> usize {
        self.flows.len() - 1
    }

    /// Bytes that the table takes when it is full.
    pub fn bytes(&self) -> usize {
        self.index.bytes() + self.flows.len() * size_of::<Flow>()
    }

    /// The flow with this number.
    #[inline(always)]
    pub fn flow(&self, id: FlowId) -> &Flow {
        &self.flows[id as usize]
    }

    /// The flow with this number.
    #[inline(always)]
    pub fn flow_mut(&mut self, id: FlowId) -> &mut Flow {
        &mut self.flows[id as usize]
    }

    /// The flow with this key.
    #[inline]
    pub fn find<K: Key>(&self, key: &K) -> Option<FlowId> {
        self.find_hashed(key, key.hash(&self.secret))
    }

    #[inline(always)]
    fn find_hashed<K: Key>(&self, key: &K, hash: u32) -> Option<FlowId> {
        self.index.find(hash, |id| key.is_of(&self.flows[id as usize]))
    }

    /// The flows with these keys, 0 where there is none: each step is done for all keys before the
    /// next, behind a prefetch. At most [`BATCH`] keys.
    #[inline(always)]
    pub fn find_all<K: Key>(&self, keys: &[K], found: &mut [FlowId]) {
        let mut hashes = [0; BATCH];
        for (key, hash) in keys.iter().zip(&mut hashes) {
            *hash = key.hash(&self.secret);
            self.index.prefetch(*hash);
        }
        for (hash, id) in hashes.iter().zip(&mut *found).take(keys.len()) {
            *id = self.index.candidate(*hash);
            prefetch(self.flows.as_ptr().wrapping_add(*id as usize));
        }
        for ((key, hash), id) in keys.iter().zip(&hashes).zip(found) {
            // Nearly always the candidate is the one.
            if *id == 0 || !key.is_of(&self.flows[*id as usize]) {
                *id = self.find_hashed(key, *hash).unwrap_or(0);
            }
        }
    }

    /// Enters a new flow, whose key is in the table not yet; `swapped` came with the key of its
    /// first packet. The first packet itself is still to be [noted](Flow::note_packet).
    ///
    /// # Errors
    /// [`Full`].
    pub fn insert<K: OwnKey>(
        &mut self,
        key: &K,
        swapped: bool,
        now: u32,
        timeouts: &Timeouts,
    ) -> Result<FlowId, Full> {
        let id = self.take_record()?;
        let mut flow = Flow::begun(now);
        key.write(&mut flow);
        flow.set_begun_by_higher(swapped);
        if self.index.insert(key.hash(&self.secret), id).is_err() {
            self.put_back(id);
            return Err(Full);
        }
        if self.live == 0 {
            self.wheel = Wheel::new(now);
        }
        self.live += 1;
        let list = self.wheel.list_for(now, now.wrapping_add(flow.timeout(timeouts)));
        flow.next = std::mem::replace(list, id);
        self.flows[id as usize] = flow;
        Ok(id)
    }

    /// Makes an IPv4 flow a translated one.
    ///
    /// # Errors
    /// [`Full`], or the outside key is another flow's: then nothing is changed.
    pub fn translate(&mut self, id: FlowId, translation: &Translation) -> Result<(), Full> {
        let flow = &self.flows[id as usize];
        let key = OutsideKey::new(flow.protocol(), translation.external, translation.remote);
        let hash = key.hash(&self.secret);
        if flow.is_ipv6() || flow.is_translated() || self.find_hashed(&key, hash).is_some() {
            return Err(Full);
        }
        self.index.insert(hash, id).map_err(|_| Full)?;
        self.flows[id as usize].set_translation(translation);
        Ok(())
    }

    /// Ends a flow: it is not found any more. Its record is free when the wheel has come by.
    /// Nothing happens when it has ended already.
    pub fn remove(&mut self, id: FlowId) {
        let flow = &mut self.flows[id as usize];
        if !flow.is_live() {
            return;
        }
        let (own, outside) = flow.hashes(&self.secret);
        flow.set_live(false);
        self.index.remove(own, id);
        if let Some(hash) = outside {
            self.index.remove(hash, id);
        }
    }

    /// Looks at no more than `budget` flows whose time may have come, and ends those that have
    /// outlived `timeout` (milliseconds since the flow was last seen). `gone` hears of every flow
    /// that ends here or was [removed](FlowTable::remove), once.
    #[inline]
    pub fn expire(
        &mut self,
        now: u32,
        budget: usize,
        mut timeout: impl FnMut(&Flow) -> u32,
        mut gone: impl FnMut(FlowId, &Flow),
    ) {
        if self.live == 0 {
            return;
        }
        for _ in 0..budget {
            let Some(head) = self.wheel.due(now) else { return };
            let id = *head;
            let flow = &mut self.flows[id as usize];
            *head = flow.next;
            let next = flow.next;
            if flow.is_live() {
                let end = flow.seen.wrapping_add(timeout(flow));
                if end.wrapping_sub(now) as i32 > 0 {
                    flow.next = std::mem::replace(self.wheel.list_for(now, end), id);
                    prefetch(self.flows.as_ptr().wrapping_add(next as usize));
                    continue;
                }
                self.remove(id);
            }
            gone(id, &self.flows[id as usize]);
            self.put_back(id);
            self.live -= 1;
            prefetch(self.flows.as_ptr().wrapping_add(next as usize));
        }
    }

    /// The flows from number `from` on, at most `looks` records looked at; and where to go on, 0
    /// at the end.
    pub fn page(&self, from: FlowId, looks: u32) -> (impl Iterator<Item = (FlowId, &Flow)>, FlowId) {
        let from = from.max(1);
        let end = from.saturating_add(looks).min(self.fresh);
        let flows = (from..end).map(|id| (id, &self.flows[id as usize]));
        let live = flows.filter(|(_, flow)| flow.is_live());
        (live, if end < self.fresh { end } else { 0 })
    }

    fn take_record(&mut self) -> Result<FlowId, Full> {
        if self.free != 0 {
            let id = self.free;
            self.free = self.flows[id as usize].next;
            return Ok(id);
        }
        if self.fresh as usize >= self.flows.len() {
            return Err(Full);
        }
        self.fresh += 1;
        Ok(self.fresh - 1)
    }

    fn put_back(&mut self, id: FlowId) {
        self.flows[id as usize] = Flow::free(self.free);
        self.free = id;
    }
}

/// Most keys that are looked up together.
pub const BATCH: usize = 32;

#[cfg(test)]
mod tests;
