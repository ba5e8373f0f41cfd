//! A slab: records with numbers, in memory that is reserved at first and taken as it is touched.

use std::io;

use zerocopy::FromBytes;

use crate::tables::memory::{Backing, PageArray};

/// Records of one kind; number 0 is none.
#[derive(Debug)]
pub struct Slab<T> {
    items: PageArray<T>,
    free: Vec<u32>,
    fresh: u32,
}

impl<T: Copy + FromBytes> Slab<T> {
    /// A slab for `capacity` records.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn new(capacity: usize) -> io::Result<Self> {
        Ok(Self {
            items: PageArray::new(capacity + 1, &Backing::Anonymous)?,
            free: Vec::with_capacity(capacity),
            fresh: 1,
        })
    }

    /// Puts a record in; gives its number, or `None` when there is no room.
    pub fn insert(&mut self, item: T) -> Option<u32> {
        let number = match self.free.pop() {
            Some(number) => number,
            None if (self.fresh as usize) < self.items.len() => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => return None,
        };
        self.items[number as usize] = item;
        Some(number)
    }

    /// Gives the number back.
    pub fn remove(&mut self, number: u32) {
        self.free.push(number);
    }

    /// The record with this number.
    pub fn get(&self, number: u32) -> &T {
        &self.items[number as usize]
    }

    /// The record with this number.
    pub fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.items[number as usize]
    }

    /// One more than the highest number that was ever given out.
    pub fn end(&self) -> u32 {
        self.fresh
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.fresh as usize - 1 - self.free.len()
    }
}
