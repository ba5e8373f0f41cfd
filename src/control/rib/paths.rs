//! Paths: where routes lead. Routes with the same next hops share one, so that what becomes of it
//! is worked out once for all of them.

use std::{collections::HashMap, sync::Arc};

use crate::control::kernel::{Hop, Index};
use crate::tables::NextHopId;

/// The number of a path.
pub type PathId = u32;

/// Where a route leads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum PathKey {
    /// To one of the next hops with a fixed place.
    Fixed(NextHopId),
    /// Through these, in order.
    Hops(Vec<Hop>),
    /// Through a next hop object of the kernel's.
    Object(u32),
}

impl PathKey {
    /// Through `hops`, put in order so that the same ones make the same path.
    pub fn through(mut hops: Vec<Hop>) -> Self {
        hops.sort_by(|a, b| {
            (a.index, a.gateway, a.weight, a.dead).cmp(&(b.index, b.gateway, b.weight, b.dead))
        });
        Self::Hops(hops)
    }

    /// Whether it names the interface itself.
    pub fn mentions(&self, index: Index) -> bool {
        matches!(self, Self::Hops(hops) if hops.iter().any(|hop| hop.index == Some(index)))
    }

    /// Whether other routes decide where it leads.
    pub fn is_recursive(&self) -> bool {
        matches!(self, Self::Hops(hops) if hops.iter().any(|hop| hop.index.is_none()))
    }
}

/// A path and what has come of it.
#[derive(Clone, Debug)]
pub struct Path {
    /// Where it leads.
    pub key: Arc<PathKey>,
    /// How many candidates there are with this path.
    pub users: u32,
    /// The next hop that it comes to; none while it is not usable.
    pub resolved: Option<NextHopId>,
    /// The next hops that it consists of, each once, with weights.
    pub members: Vec<(NextHopId, u32)>,
    /// The place of its group, when there are several.
    pub group: Option<u16>,
}

/// All paths.
#[derive(Debug, Default)]
pub struct Paths {
    by_key: HashMap<Arc<PathKey>, PathId>,
    slots: Vec<Option<Path>>,
    free: Vec<PathId>,
}

impl Paths {
    /// The path of `key`, with one user more, and whether it is new (then it has to be resolved).
    pub fn acquire(&mut self, key: PathKey) -> (PathId, bool) {
        if let Some(&id) = self.by_key.get(&key) {
            if let Some(Some(path)) = self.slots.get_mut(id as usize) {
                path.users += 1;
            }
            return (id, false);
        }
        let key = Arc::new(key);
        let path = Path { key: key.clone(), users: 1, resolved: None, members: Vec::new(), group: None };
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id as usize] = Some(path);
                id
            }
            None => {
                self.slots.push(Some(path));
                (self.slots.len() - 1) as PathId
            }
        };
        self.by_key.insert(key, id);
        (id, true)
    }

    /// One user less. Gives the path when it was the last: its next hops are to be released.
    pub fn release(&mut self, id: PathId) -> Option<Path> {
        let slot = self.slots.get_mut(id as usize)?;
        let path = slot.as_mut()?;
        path.users -= 1;
        if path.users > 0 {
            return None;
        }
        self.by_key.remove(&path.key);
        self.free.push(id);
        slot.take()
    }

    /// The path with this number.
    pub fn get(&self, id: PathId) -> Option<&Path> {
        self.slots.get(id as usize)?.as_ref()
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    /// The number of `key`, if there is such a path.
    pub fn id_of(&self, key: &PathKey) -> Option<PathId> {
        self.by_key.get(key).copied()
    }

    /// The next hop that a path comes to.
    pub fn resolved(&self, id: PathId) -> Option<NextHopId> {
        self.get(id)?.resolved
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (PathId, &Path)> {
        self.slots.iter().enumerate().filter_map(|(id, path)| Some((id as PathId, path.as_ref()?)))
    }

    /// The numbers of those that `wanted` holds for.
    pub fn select(&self, mut wanted: impl FnMut(&Path) -> bool) -> Vec<PathId> {
        self.iter().filter(|(_, path)| wanted(path)).map(|(id, _)| id).collect()
    }
}
