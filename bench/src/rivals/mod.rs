//! Other people's lookup structures, measured beside ours: the crates `prefix-trie` and
//! `ip_network_table`, and DPDK's `rte_lpm` and `rte_fib`.
//!
//! All of them hold the same prefixes, go over the same traces in the same slices, and take turns,
//! so that what disturbs the machine disturbs each. The sums of the next hops that they find must
//! be the same, or there is no result.

mod crates;
pub mod dpdk;

use std::{
    hint::black_box,
    io,
    time::{Duration, Instant},
};

use sweepd::tables::{
    NextHopId,
    prefixes::{Address, Prefixes, Prefixes4},
    synthetic::Random,
};

use crate::lookup::{Table, Trace};

/// Addresses in a slice that is timed.
pub const SLICE: usize = 16384;

/// Changes that are timed: a prefix taken out, a prefix put back.
const UPDATES: usize = 2000;

/// How one trace went.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Lookups per second, the median over the trace's slices; 0 when this machine cannot do it.
    pub rate: f64,
    /// The sum of the next hops found, a miss counting 0.
    pub sum: u64,
}

/// What a table costs.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cost {
    /// Bytes that it takes.
    pub bytes: usize,
    /// Milliseconds to build it.
    pub build: f64,
    /// Nanoseconds of a change: median and 99th percentile; none where it was not measured.
    pub update: Option<(u64, u64)>,
}

/// A lookup structure that holds the table.
pub trait Rival<A> {
    /// Whose it is and how it is asked.
    fn name(&self) -> String;
    /// What it costs.
    fn cost(&self) -> Cost;
    /// Looks up all of trace number `at`.
    ///
    /// # Errors
    /// When another process does it, and has ended.
    fn measure(&mut self, at: usize, trace: &[A]) -> io::Result<Measured>;
}

/// Measures the IPv4 table beside all rivals, prints the result and gives it as lines of data.
///
/// # Errors
/// Two of them do not agree, or a program cannot be run.
pub fn ipv4(
    new: impl Fn() -> io::Result<sweepd::tables::fib4::Fib4>,
    prefixes: &Prefixes4,
    traces: &[Trace<u32>],
    rounds: usize,
) -> io::Result<String> {
    let mut rivals: Vec<Box<dyn Rival<u32>>> = Vec::new();
    for burst in [64, 32, 1] {
        rivals.push(Box::new(Ours::new(new()?, prefixes, burst)));
    }
    match dpdk::start(prefixes, traces) {
        Ok(theirs) => rivals.extend(theirs),
        Err(why) => println!("SKIPPED: rte_lpm and rte_fib: {why}"),
    }
    rivals.push(Box::new(crates::PrefixTrie::new(prefixes)));
    rivals.push(Box::new(crates::NetworkTable::new4(prefixes)));
    compare(prefixes.len(), traces, rounds, rivals)
}

/// Measures the IPv6 table beside the crates, prints the result and gives it as lines of data.
///
/// # Errors
/// Two of them do not agree.
pub fn ipv6(
    new: impl Fn() -> io::Result<sweepd::tables::fib6::Fib6>,
    prefixes: &Prefixes<u128>,
    traces: &[Trace<u128>],
    rounds: usize,
) -> io::Result<String> {
    let mut rivals: Vec<Box<dyn Rival<u128>>> = Vec::new();
    for burst in [64, 32, 1] {
        rivals.push(Box::new(Ours::new(new()?, prefixes, burst)));
    }
    rivals.push(Box::new(crates::PrefixTrie::new(prefixes)));
    rivals.push(Box::new(crates::NetworkTable::new6(prefixes)));
    compare(prefixes.len(), traces, rounds, rivals)
}

/// Lets the rivals take turns over the traces, round by round; prints and gives what came out.
fn compare<A>(
    prefixes: usize,
    traces: &[Trace<A>],
    rounds: usize,
    mut rivals: Vec<Box<dyn Rival<A>>>,
) -> io::Result<String> {
    let mut rates = vec![vec![Vec::new(); traces.len()]; rivals.len()];
    for _ in 0..rounds.max(1) {
        for (at, trace) in traces.iter().enumerate() {
            let mut sum = None;
            for (rival, rates) in rivals.iter_mut().zip(&mut rates) {
                let measured = rival.measure(at, &trace.addresses)?;
                rates[at].push(measured.rate);
                if measured.rate > 0.0 && *sum.get_or_insert(measured.sum) != measured.sum {
                    let what = format!("{} finds other next hops in trace {}", rival.name(), trace.name);
                    return Err(io::Error::other(what));
                }
            }
        }
    }
    let csv = data(prefixes, traces, &rivals, &rates);
    print(prefixes, traces, &rivals, rates);
    Ok(csv)
}

/// The lines of data: one for each table and trace.
fn data<A>(
    prefixes: usize,
    traces: &[Trace<A>],
    rivals: &[Box<dyn Rival<A>>],
    rates: &[Vec<Vec<f64>>],
) -> String {
    let mut csv = String::new();
    for (rival, rates) in rivals.iter().zip(rates) {
        let (Cost { bytes, build, update }, name) = (rival.cost(), rival.name().replace(',', ";"));
        let (p50, p99) = update.map_or(Default::default(), |(p50, p99)| (p50.to_string(), p99.to_string()));
        let family = if size_of::<A>() == 4 { "IPv4" } else { "IPv6" };
        for (trace, rates) in traces.iter().zip(rates) {
            csv += &format!(
                "{family},{prefixes},{name},{bytes},{build:.1},{p50},{p99},{},{:.2}\n",
                trace.name,
                median(rates.clone()) / 1e6
            );
        }
    }
    csv
}

/// The table, and below it the ratios of the first rival, which is ours, to each of the others.
fn print<A>(prefixes: usize, traces: &[Trace<A>], rivals: &[Box<dyn Rival<A>>], rates: Vec<Vec<Vec<f64>>>) {
    let names: String = traces.iter().map(|t| format!("{:>9}", t.name)).collect();
    let rounds = rates[0][0].len();
    println!("\n  beside others, {prefixes} prefixes, Ml/s, medians of {rounds} rounds in turn; all agree");
    println!("  {:32}{:>9}{:>10}{:>16}{names}", "", "MB", "build ms", "update µs p50/99");
    for (rival, rates) in rivals.iter().zip(&rates) {
        let Cost { bytes, build, update } = rival.cost();
        let update = update
            .map_or("-".into(), |(p50, p99)| format!("{:.1} / {:.1}", p50 as f64 / 1e3, p99 as f64 / 1e3));
        let cells: String = rates.iter().map(|r| cell(median(r.clone()) / 1e6, 1)).collect();
        println!("  {:32}{:>9.2}{build:>10.1}{update:>16}{cells}", rival.name(), bytes as f64 / 1e6);
    }
    println!("  {} is so many times as fast as (median of the rounds' ratios):", rivals[0].name());
    for (rival, theirs) in rivals.iter().zip(&rates).skip(1) {
        let ratio = |(ours, theirs): (&Vec<f64>, &Vec<f64>)| {
            let ratios = ours.iter().zip(theirs).map(|(o, t)| if *t > 0.0 { o / t } else { 0.0 });
            cell(median(ratios.collect()), 2)
        };
        let cells: String = rates[0].iter().zip(theirs).map(ratio).collect();
        println!("  {:67}{cells}", rival.name());
    }
}

/// A figure, or a dash where there is none.
fn cell(value: f64, digits: usize) -> String {
    if value > 0.0 { format!("{value:>9.digits$}") } else { format!("{:>9}", "-") }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Times `lookup` over every slice of the trace; it gives the sum of a slice's next hops.
fn slices<A>(trace: &[A], mut lookup: impl FnMut(&[A]) -> u64) -> Measured {
    let mut sum = 0;
    let mut times: Vec<Duration> = trace
        .chunks_exact(SLICE)
        .map(|slice| {
            let start = Instant::now();
            sum += black_box(lookup(slice));
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    Measured { rate: SLICE as f64 / times[times.len() / 2].as_secs_f64(), sum }
}

/// Takes random prefixes out and puts them back; gives a change's median time and the 99th
/// percentile, in nanoseconds. `change` sets a prefix's next hop, or takes it away.
fn updates<A: Address>(
    prefixes: &Prefixes<A>,
    mut change: impl FnMut(A, u8, Option<NextHopId>),
) -> (u64, u64) {
    let all: Vec<_> = prefixes.iter().collect();
    let mut random = Random::new(3);
    let mut times = Vec::with_capacity(UPDATES);
    for _ in 0..UPDATES / 2 {
        let (address, length, next_hop) = all[random.below(all.len())];
        for next_hop in [None, Some(next_hop)] {
            let start = Instant::now();
            change(address, length, next_hop);
            times.push(start.elapsed().as_nanos() as u64);
        }
    }
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// Our table, asked in bursts.
struct Ours<T> {
    table: T,
    burst: usize,
    cost: Cost,
}

impl<T: Table> Ours<T>
where
    T::Address: Address,
{
    fn new(mut table: T, prefixes: &Prefixes<T::Address>, burst: usize) -> Self {
        let start = Instant::now();
        table.build(prefixes);
        let build = start.elapsed().as_secs_f64() * 1e3;
        let mut changed = prefixes.clone();
        let update = updates(prefixes, |address, length, next_hop| {
            match next_hop {
                Some(next_hop) => changed.insert(address, length, next_hop),
                None => changed.remove(address, length),
            };
            table.update(&changed, address, length);
        });
        let cost = Cost { bytes: table.bytes(), build, update: Some(update) };
        Self { table, burst, cost }
    }
}

impl<T: Table> Rival<T::Address> for Ours<T> {
    fn name(&self) -> String {
        match self.burst {
            1 => "sweepd, one by one".into(),
            n => format!("sweepd, bursts of {n}"),
        }
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn measure(&mut self, _at: usize, trace: &[T::Address]) -> io::Result<Measured> {
        let (table, burst) = (&self.table, self.burst);
        Ok(match burst {
            1 => slices(trace, |slice| slice.iter().map(|&a| u64::from(table.lookup(a))).sum()),
            _ => slices(trace, |slice| {
                let mut out = [0; 64];
                let mut sum = 0;
                for addresses in slice.chunks_exact(burst) {
                    table.lookup_batch(addresses, &mut out[..burst]);
                    sum += out[..burst].iter().map(|&n| u64::from(n)).sum::<u64>();
                }
                sum
            }),
        })
    }
}
