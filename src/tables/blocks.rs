//! The allocator of the blocks that the FIBs' directory words lead to.
//!
//! Blocks are counted in units of 16 bytes. One or two units share a cache line with others, and
//! never straddle two; longer blocks begin on a cache line and take whole lines. A freed block
//! goes to the list of its size and can be re-used at once, since a table is only changed while
//! no worker reads it.

use std::collections::BTreeMap;
use std::io;

use thiserror::Error;

use super::memory::{Backing, PageArray};

/// Units of 16 bytes in a cache line.
pub(crate) const LINE: u32 = 4;

/// Lines up to which each size has its own list; longer blocks are rounded to one of eight sizes
/// between two powers of two.
const EXACT_LINES: u32 = 16;

/// The table's memory is full; it is as it was before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the lookup table is full at {} MiB: announce fewer or larger prefixes", .capacity >> 20)]
pub struct FibFull {
    /// Bytes that there are for blocks.
    pub capacity: usize,
}

/// Bytes and blocks of a table at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockStats {
    /// Bytes of the blocks in use.
    pub used: usize,
    /// Bytes up to the highest block that was ever in use since the last build.
    pub reached: usize,
    /// Bytes that there are.
    pub capacity: usize,
}

/// Memory for blocks. Positions are in units.
#[derive(Debug)]
pub(crate) struct Blocks {
    memory: PageArray<u64>,
    /// Lines at the beginning that are not given out.
    reserved: u32,
    /// Lines that may be given out, the reserved ones included.
    limit: u32,
    /// First line that has never been given out.
    top: u32,
    used_units: usize,
    /// Free blocks of 1 and of 2 units.
    small: [Vec<u32>; 2],
    /// Free blocks by their number of lines.
    lines: BTreeMap<u32, Vec<u32>>,
}

/// Counts what a set of blocks takes in freshly reset memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    small: [usize; 2],
    lines: usize,
}

impl Demand {
    pub fn add(&mut self, units: u32) {
        match units {
            1 | 2 => self.small[units as usize - 1] += 1,
            _ => self.lines += size_class(units.div_ceil(LINE)) as usize,
        }
    }

    fn lines(&self) -> usize {
        self.lines + self.small[0].div_ceil(4) + self.small[1].div_ceil(2)
    }
}

impl Blocks {
    /// Maps `capacity` units and `slack` units behind them that are never given out. The first
    /// `reserved` units are the caller's.
    pub fn new(capacity: u32, reserved: u32, slack: u32, backing: &Backing) -> io::Result<Self> {
        let words = (capacity as usize + slack as usize) * 2;
        let reserved = reserved.div_ceil(LINE);
        Ok(Self {
            memory: PageArray::new(words, backing)?,
            reserved,
            limit: capacity / LINE,
            top: reserved,
            used_units: 0,
            small: Default::default(),
            lines: BTreeMap::new(),
        })
    }

    /// Moves the blocks to other memory; their positions stay.
    pub fn move_to(&mut self, backing: &Backing) -> io::Result<()> {
        // Shared blocks of the caller's, and all that was ever given out.
        self.memory.move_to(backing, self.top.max(self.reserved) as usize * LINE as usize * 2)
    }

    /// Gives out no more than the first `capacity` units from now on.
    pub fn set_limit(&mut self, capacity: u32) {
        self.limit = self.limit.min(capacity / LINE);
    }

    #[inline(always)]
    pub fn as_ptr(&self) -> *const u64 {
        self.memory.as_ptr()
    }

    /// Takes `units` units. The content is undefined.
    pub fn allocate(&mut self, units: u32) -> Option<u32> {
        let position = match units {
            1 | 2 => self.allocate_small(units),
            _ => self.allocate_lines(size_class(units.div_ceil(LINE))),
        }?;
        self.used_units += rounded(units) as usize;
        Some(position)
    }

    /// Gives back a block of `units` units.
    pub fn free(&mut self, position: u32, units: u32) {
        self.used_units -= rounded(units) as usize;
        match units {
            1 | 2 => self.small[units as usize - 1].push(position),
            _ => self.lines.entry(rounded(units) / LINE).or_default().push(position),
        }
    }

    /// Forgets all blocks.
    pub fn reset(&mut self) {
        self.top = self.reserved;
        self.used_units = 0;
        self.small = Default::default();
        self.lines.clear();
    }

    /// Whether `demand` fits after a [`Blocks::reset`].
    pub fn fits(&self, demand: &Demand) -> Result<(), FibFull> {
        let room = (self.limit - self.reserved.min(self.limit)) as usize;
        if demand.lines() <= room { Ok(()) } else { Err(self.full()) }
    }

    pub fn full(&self) -> FibFull {
        FibFull { capacity: self.stats().capacity }
    }

    pub fn stats(&self) -> BlockStats {
        let bytes = |lines: u32| lines as usize * LINE as usize * 16;
        BlockStats {
            used: self.used_units * 16,
            reached: bytes(self.top - self.reserved),
            capacity: bytes(self.limit - self.reserved.min(self.limit)),
        }
    }

    /// The `units` units at `position` as 64-bit words.
    pub fn words(&self, position: u32, units: u32) -> &[u64] {
        let start = position as usize * 2;
        &self.memory[start..start + units as usize * 2]
    }

    /// As [`Blocks::words`], to be written.
    pub fn words_mut(&mut self, position: u32, units: u32) -> &mut [u64] {
        let start = position as usize * 2;
        &mut self.memory[start..start + units as usize * 2]
    }

    fn allocate_small(&mut self, units: u32) -> Option<u32> {
        let list = units as usize - 1;
        if let Some(position) = self.small[list].pop() {
            return Some(position);
        }
        let line = self.allocate_lines(1)?;
        let others = (1..LINE / units).rev().map(|i| line + i * units);
        self.small[list].extend(others);
        Some(line)
    }

    fn allocate_lines(&mut self, lines: u32) -> Option<u32> {
        if let Some(position) = self.lines.get_mut(&lines).and_then(Vec::pop) {
            return Some(position);
        }
        if lines <= self.limit.saturating_sub(self.top) {
            self.top += lines;
            return Some((self.top - lines) * LINE);
        }
        self.split(lines)
    }

    /// Takes `lines` from the smallest longer free block.
    fn split(&mut self, lines: u32) -> Option<u32> {
        let (&longer, list) = self.lines.range_mut(lines + 1..).find(|(_, list)| !list.is_empty())?;
        let position = list.pop()?;
        // The rest may be no size that is given out: it is cut into such sizes.
        let mut rest = longer - lines;
        while rest > 0 {
            let piece = largest_class(rest);
            rest -= piece;
            self.lines.entry(piece).or_default().push(position + (lines + rest) * LINE);
        }
        Some(position)
    }
}

/// Lines that a block of `lines` lines really takes.
fn size_class(lines: u32) -> u32 {
    let step = class_step(lines);
    lines.div_ceil(step) * step
}

/// The largest size that is given out and not above `lines`.
fn largest_class(lines: u32) -> u32 {
    lines / class_step(lines) * class_step(lines)
}

fn class_step(lines: u32) -> u32 {
    if lines <= EXACT_LINES { 1 } else { (1 << lines.ilog2()) / 8 }
}

/// Units that a block of `units` units really takes.
fn rounded(units: u32) -> u32 {
    if units <= 2 { units } else { size_class(units.div_ceil(LINE)) * LINE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn size_classes_cover_and_are_stable() {
        for lines in 1..100_000 {
            let class = size_class(lines);
            assert!(class >= lines && class <= lines + lines / 8);
            assert_eq!(size_class(class), class);
            let below = largest_class(lines);
            assert!(below > 0 && below <= lines && size_class(below) == below);
        }
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_nor_straddle(steps in prop::collection::vec((any::<bool>(), 1u32..200), 1..400)) {
            let mut blocks = Blocks::new(8192, 64, 0, &Backing::Anonymous).unwrap();
            let mut live: Vec<(u32, u32)> = Vec::new();
            for (take, n) in steps {
                if take {
                    let Some(position) = blocks.allocate(n) else { continue };
                    prop_assert!(position >= 64 && position + n <= 8192);
                    prop_assert!(n > 2 || position / LINE == (position + n - 1) / LINE);
                    prop_assert!(n <= 2 || position % LINE == 0);
                    for &(other, units) in &live {
                        prop_assert!(position + n <= other || other + units <= position);
                    }
                    live.push((position, n));
                } else if !live.is_empty() {
                    let (position, units) = live.swap_remove(n as usize % live.len());
                    blocks.free(position, units);
                }
            }
            for (position, units) in live {
                blocks.free(position, units);
            }
            prop_assert_eq!(blocks.stats().used, 0);
        }

        #[test]
        fn what_fits_by_count_fits_in_fact(sizes in prop::collection::vec(1u32..300, 1..200)) {
            let mut demand = Demand::default();
            sizes.iter().for_each(|&units| demand.add(units));
            let mut blocks = Blocks::new(16384, 0, 0, &Backing::Anonymous).unwrap();
            let fits = blocks.fits(&demand).is_ok();
            prop_assert_eq!(sizes.iter().all(|&units| blocks.allocate(units).is_some()), fits);
        }
    }
}
