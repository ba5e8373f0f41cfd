//! Building the decision trees.
//!
//! A node looks at a window of bits in one word of the key: some bits of an address, of a port, of
//! the protocol. The builder tries every window and takes the one behind which the lists are
//! shortest. An entry that says nothing about those bits would have to go into every child; at a
//! root such entries are set aside instead, and get a tree of their own, up to [`ROOTS`] of them. Leaves compare whole
//! entries, so a tree need not look at every bit.
//!
//! Memory is bounded: a subtree is given a budget, and where it is used up a leaf is as long as it
//! has to be. That happens only for rules that overlap everywhere.

use std::collections::HashMap;

use super::{
    TooMany,
    entry::{ANY, Entry, Spread},
    lanes::LANES,
    search::{BLOCKS, Block, Classifier, PLACES, Place},
};

/// Most trees.
const ROOTS: usize = 4;
/// A list that is no longer than this becomes a leaf.
const LEAF: usize = LANES;
/// So few entries need no tree: their root is a leaf.
const FEW: usize = 2 * LANES;
/// With so many a burst is quicker without a tree, since eight packets are compared at once.
const FEW_FOR_BURSTS: usize = 4 * LANES;
/// Bytes of blocks that stay in the cache of a core.
const CACHED: usize = 256 << 10;
/// Widest window.
const WIDEST: u32 = 10;
/// Entries that a window is tried on.
const SAMPLE: usize = 1024;
/// Most levels below a root.
const DEEPEST: u32 = 16;
/// Places and entries that a tree may take, for each entry and besides.
const BUDGET: (usize, usize) = (8, 1 << 12);

/// Builds the classifier of `entries`, which are in the order of their rules; `none` is the rule of
/// packets that none fits.
///
/// # Errors
/// When the trees grow larger than their places can say.
pub(super) fn build<const K: usize>(entries: &[Entry<K>], none: u32) -> Result<Classifier<K>, TooMany> {
    let list: Vec<u32> = (0..entries.len() as u32).collect();
    let mut builder = Builder {
        entries,
        table: vec![Place::leaf(0, 0, 0); ROOTS],
        blocks: vec![Block::empty()],
        leaves: HashMap::new(),
        deepest: 0,
    };
    let mut list = Region::default().pruned(entries, list);
    // What fits everything comes last, and needs no comparison.
    let otherwise = match list.last() {
        Some(&last) if Region::<K>::default().implies(&entries[last as usize]) => {
            list.pop();
            entries[last as usize].rule
        }
        _ => none,
    };
    let all_are_few = list.len() <= FEW_FOR_BURSTS;
    let mut few = if all_are_few { list.clone() } else { Vec::new() };
    let mut depths = Vec::new();
    while !list.is_empty() {
        let last = depths.len() + 1 == ROOTS;
        let budget = BUDGET.0 * list.len() + BUDGET.1;
        let (tree, rest) =
            if last || list.len() <= FEW { (list, Vec::new()) } else { builder.set_aside(list) };
        builder.deepest = 0;
        let (place, depth) = if tree.len() <= FEW {
            few.extend(tree.iter().filter(|_| !all_are_few));
            (builder.leaf(&tree), 0)
        } else {
            // Where nothing divides the list its root is a leaf, which can be passed again.
            (builder.node(tree, &Region::default(), budget, 0), builder.deepest.max(1))
        };
        builder.put(depths.len(), place);
        depths.push(depth);
        list = rest;
    }
    if builder.table.len() > PLACES || builder.blocks.len() > BLOCKS {
        return Err(TooMany::Combinations);
    }
    few.sort_unstable();
    Ok(Classifier {
        table: builder.table,
        roots: depths.len(),
        far: size_of_val(&builder.blocks[..]) > CACHED,
        blocks: builder.blocks,
        few: few.iter().rev().map(|&entry| Block::of_one(&entries[entry as usize])).collect(),
        depths: if all_are_few { Vec::new() } else { depths },
        otherwise,
        wide: is_wide(),
    })
}

fn is_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("bmi1")
        && std::is_x86_feature_detected!("bmi2")
        && std::is_x86_feature_detected!("popcnt");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl<const K: usize> Block<K> {
    fn set(&mut self, lane: usize, entry: &Entry<K>) {
        for word in 0..K {
            self.value[word][lane] = entry.value[word];
            self.mask[word][lane] = entry.mask[word];
        }
        let [from, to] = entry.ports.map(|(first, last)| (u32::from(first), u32::from(last - first)));
        self.value[K - 2][lane] = from.0 << 16 | to.0;
        self.mask[K - 2][lane] = from.1 << 16 | to.1;
        self.rules[lane] = entry.rule;
    }

    /// With the same entry in all lanes.
    fn of_one(entry: &Entry<K>) -> Self {
        let mut block = Self::empty();
        (0..LANES).for_each(|lane| block.set(lane, entry));
        block
    }
}

/// Bits of the key that are known at a node.
#[derive(Clone)]
struct Region<const K: usize> {
    value: [u32; K],
    mask: [u32; K],
}

impl<const K: usize> Default for Region<K> {
    fn default() -> Self {
        Self { value: [0; K], mask: [0; K] }
    }
}

impl<const K: usize> Region<K> {
    /// Whether the entry, which may fit here, fits every packet here.
    fn implies(&self, entry: &Entry<K>) -> bool {
        let words = (0..K).filter(|&word| word != K - 2);
        words.into_iter().all(|word| entry.mask[word] & !self.mask[word] == 0)
            && [16, 0].iter().zip(entry.ports).all(|(&shift, range)| self.implies_ports(shift, range))
    }

    fn implies_ports(&self, shift: u32, (first, last): (u16, u16)) -> bool {
        if (first, last) == ANY {
            return true;
        }
        let mask = (self.mask[K - 2] >> shift) as u16;
        let value = (self.value[K - 2] >> shift) as u16;
        // Bits known from the top down make a range.
        let free = u16::MAX.checked_shr(mask.leading_ones()).unwrap_or(0);
        first <= value & !free && value | free <= last
    }

    /// `list` up to the first entry that fits every packet here: nothing behind it matters.
    fn pruned(&self, entries: &[Entry<K>], mut list: Vec<u32>) -> Vec<u32> {
        if let Some(at) = list.iter().position(|&entry| self.implies(&entries[entry as usize])) {
            list.truncate(at + 1);
        }
        list
    }

    /// With what is known behind a cut's child.
    fn child(&self, cut: Cut, child: usize) -> Self {
        let mut region = self.clone();
        region.mask[cut.word] |= ((1 << cut.width) - 1) << cut.shift;
        region.value[cut.word] |= (child as u32) << cut.shift;
        region
    }
}

/// A window: which bits of which word choose a child.
#[derive(Clone, Copy, Debug)]
struct Cut {
    word: usize,
    shift: u32,
    width: u32,
}

/// How a window divides a list.
struct Trial {
    cut: Cut,
    /// Entries that an entry has beside it in its child, on average, itself included.
    beside: f64,
    /// Places and entries behind the cut.
    size: usize,
    /// Share of the list that is set aside.
    aside: f64,
}

struct Builder<'a, const K: usize> {
    entries: &'a [Entry<K>],
    table: Vec<Place>,
    blocks: Vec<Block<K>>,
    /// Leaves by their entries.
    leaves: HashMap<Vec<u32>, Place>,
    /// Deepest level so far.
    deepest: u32,
}

impl<const K: usize> Builder<'_, K> {
    /// Divides a root's list into what a tree can tell apart, and the rest.
    fn set_aside(&self, list: Vec<u32>) -> (Vec<u32>, Vec<u32>) {
        let work = |trial: &Trial| {
            let rest = trial.aside * list.len() as f64;
            (1.0 + trial.beside).ln() + (1.0 + rest).ln()
        };
        let trials = self.windows(list.len()).filter_map(|cut| self.try_cut(&list, cut, true));
        let Some(best) = trials.min_by(|a, b| work(a).total_cmp(&work(b))) else {
            return (list, Vec::new());
        };
        let (tree, rest): (Vec<_>, Vec<_>) = list.iter().partition(|&&entry| {
            let spread = self.entries[entry as usize].spread(best.cut.word, best.cut.shift, best.cut.width);
            !is_wide_spread(&spread, best.cut.width)
        });
        // Few that go everywhere are better off there than in a tree of their own.
        if tree.is_empty() || rest.len() < LEAF / 2 { (list, Vec::new()) } else { (tree, rest) }
    }

    /// Builds a node for `list`; gives its place.
    fn node(&mut self, list: Vec<u32>, region: &Region<K>, budget: usize, level: u32) -> Place {
        self.deepest = self.deepest.max(level);
        if list.len() <= LEAF || level == DEEPEST {
            return self.leaf(&list);
        }
        let Some(cut) = self.best_cut(&list, region, budget) else { return self.leaf(&list) };
        let children = self.children(&list, region, cut);
        let base = self.table.len();
        let size: usize = children.iter().map(|(list, _)| list.len()).sum::<usize>().max(1);
        let budget = budget.saturating_sub(1 << cut.width);
        self.table.resize(base + (1 << cut.width), Place::leaf(0, 0, 0));
        for (list, numbers) in children {
            // Bits of the window are known only to a child that is not shared.
            let share = budget * list.len() / size;
            let region = if numbers.len() == 1 { region.child(cut, numbers[0]) } else { region.clone() };
            let place = self.node(list, &region, share, level + 1);
            numbers.into_iter().for_each(|number| self.put(base + number, place));
        }
        Place::cut(base, cut.word, cut.shift, cut.width)
    }

    /// The children's lists, pruned, and the numbers of those that have the same one.
    fn children(&self, list: &[u32], region: &Region<K>, cut: Cut) -> Vec<(Vec<u32>, Vec<usize>)> {
        let mut lists: Vec<Vec<u32>> = vec![Vec::new(); 1 << cut.width];
        for &entry in list {
            let spread = self.entries[entry as usize].spread(cut.word, cut.shift, cut.width);
            spread.each(cut.width, |child| lists[child].push(entry));
        }
        let mut same: HashMap<Vec<u32>, Vec<usize>> = HashMap::new();
        for (number, list) in lists.into_iter().enumerate() {
            let list = region.child(cut, number).pruned(self.entries, list);
            same.entry(list).or_default().push(number);
        }
        let mut children: Vec<_> = same.into_iter().collect();
        // The same tree for the same rules.
        children.sort_by_key(|(_, numbers)| numbers[0]);
        children
    }

    /// The window that divides best, if any is worth it and fits the budget.
    fn best_cut(&self, list: &[u32], region: &Region<K>, budget: usize) -> Option<Cut> {
        let unknown = |cut: &Cut| !region.mask[cut.word] >> cut.shift & ((1 << cut.width) - 1) != 0;
        let trials =
            self.windows(list.len()).filter(unknown).filter_map(|cut| self.try_cut(list, cut, false));
        let worth = |trial: &Trial| trial.size <= budget && trial.beside < 0.9 * list.len() as f64;
        let best = trials.filter(worth).min_by(|a, b| a.beside.total_cmp(&b.beside));
        best.map(|trial| trial.cut)
    }

    /// The windows to try for a list of `n`.
    fn windows(&self, n: usize) -> impl Iterator<Item = Cut> + use<K> {
        let width = (n.ilog2().saturating_sub(1)).clamp(2, WIDEST);
        let widths = [width, (width / 2).max(1)];
        let words = (0..K).flat_map(move |word| {
            // The fields of a word: none may be straddled.
            let fields: &[(u32, u32)] = match K - word {
                2 => &[(0, 16), (16, 32)],
                1 => &[(0, 8), (8, 18), (18, 28), (28, 30), (30, 31)],
                _ => &[(0, 32)],
            };
            fields.iter().map(move |&(low, high)| (word, low, high))
        });
        words.flat_map(move |(word, low, high)| {
            let widths = widths.into_iter().map(move |width| width.min(high - low));
            widths.flat_map(move |width| (low..=high - width).map(move |shift| Cut { word, shift, width }))
        })
    }

    /// How `cut` divides `list`, by a sample of it; none if not at all. With `aside` entries that
    /// go into many children are left out.
    fn try_cut(&self, list: &[u32], cut: Cut, aside: bool) -> Option<Trial> {
        let Cut { word, shift, width } = cut;
        let step = list.len().div_ceil(SAMPLE);
        let mut sizes = [0u32; 1 << WIDEST];
        let (mut everywhere, mut left_out, mut looked_at) = (0u32, 0u32, 0u32);
        for &entry in list.iter().step_by(step) {
            let spread = self.entries[entry as usize].spread(word, shift, width);
            looked_at += 1;
            if aside && is_wide_spread(&spread, width) {
                left_out += 1;
            } else if matches!(spread, Spread::All) {
                everywhere += 1;
            } else {
                spread.each(width, |child| sizes[child] += 1);
            }
        }
        if everywhere + left_out == looked_at {
            return None;
        }
        let (mut sum, mut squares) = (0.0, 0.0);
        for &size in &sizes[..1 << width] {
            let size = f64::from(size + everywhere);
            sum += size;
            squares += size * size;
        }
        let scale = step as f64;
        Some(Trial {
            cut,
            beside: squares / sum * scale,
            size: (sum * scale) as usize + (1 << width),
            aside: f64::from(left_out) / f64::from(looked_at),
        })
    }

    /// A leaf with these entries; one with the same is used again.
    fn leaf(&mut self, list: &[u32]) -> Place {
        if list.is_empty() {
            return Place::leaf(0, 0, 0);
        }
        if let Some(place) = self.leaves.get(list) {
            return *place;
        }
        let first = self.blocks.len();
        for (n, part) in list.chunks(LANES).enumerate() {
            let mut block = Block::empty();
            for (lane, &entry) in part.iter().enumerate() {
                block.set(lane, &self.entries[entry as usize]);
            }
            block.more = (n + 1) * LANES < list.len();
            self.blocks.push(block);
        }
        let place = Place::leaf(0, first, list.len().div_ceil(LANES));
        self.leaves.insert(list.to_vec(), place);
        place
    }

    /// Writes a place into the table.
    fn put(&mut self, at: usize, place: Place) {
        self.table[at] = if place.is_leaf() { place.moved(at) } else { place };
    }
}

/// Whether an entry goes into so many children that it had better be set aside.
fn is_wide_spread(spread: &Spread, width: u32) -> bool {
    spread.count(width) > (1 << width.saturating_sub(3)).max(1)
}
