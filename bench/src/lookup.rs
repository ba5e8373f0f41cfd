//! `sweepd-bench lookup`: the forwarding tables by themselves, on tables of the Internet's size.
//!
//! Each figure is the median over slices of a trace, so that an interruption spoils only a few.
//! Lookups are measured one at a time, and in bursts as a worker makes them.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use sweepd::tables::NextHopId;
use sweepd::tables::fib4::Fib4;
use sweepd::tables::fib6::Fib6;
use sweepd::tables::prefixes::{Prefixes, Prefixes4, Prefixes6};
use sweepd::tables::recorded;
use sweepd::tables::synthetic::{self, Random, Sample, Zipf};

use crate::rivals::{self, SLICE};

/// Addresses in a trace.
const TRACE: usize = 1 << 22;

/// Measure the IPv4 and IPv6 forwarding tables
#[derive(Args)]
pub struct Lookup {
    /// IPv4 prefixes
    #[arg(long, default_value_t = 1_000_000)]
    prefixes4: usize,
    /// IPv6 prefixes
    #[arg(long, default_value_t = 230_000)]
    prefixes6: usize,
    /// Different next hops
    #[arg(long, default_value_t = 200)]
    next_hops: NextHopId,
    /// Seed of the tables and traces
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Times that everything is measured
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Rounds of the comparison with other people's tables; 0 leaves it out
    #[arg(long, default_value_t = 5)]
    against: usize,
    /// IPv4 prefixes from a file instead of made-up ones: as scripts/tables.sh fetches them
    #[arg(long)]
    table4: Option<PathBuf>,
    /// IPv6 prefixes from a file, likewise
    #[arg(long)]
    table6: Option<PathBuf>,
    /// Where to write the data of the comparison
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
}

/// What both tables can do.
pub trait Table {
    /// An address, in host order.
    type Address: Sample;

    /// Makes the whole table.
    fn build(&mut self, prefixes: &Prefixes<Self::Address>);
    /// Brings the table up to date after a change of one prefix.
    fn update(&mut self, prefixes: &Prefixes<Self::Address>, address: Self::Address, length: u8);
    /// The next hop of one address.
    fn lookup(&self, address: Self::Address) -> NextHopId;
    /// The next hops of up to 64 addresses.
    fn lookup_batch(&self, addresses: &[Self::Address], out: &mut [NextHopId]);
    /// Bytes in use.
    fn bytes(&self) -> usize;
}

macro_rules! table {
    ($fib:ty, $address:ty) => {
        impl Table for $fib {
            type Address = $address;

            fn build(&mut self, prefixes: &Prefixes<$address>) {
                self.build(prefixes).expect("the table has room");
            }

            fn update(&mut self, prefixes: &Prefixes<$address>, address: $address, length: u8) {
                self.update(prefixes, address, length).expect("the table has room");
            }

            #[inline(always)]
            fn lookup(&self, address: $address) -> NextHopId {
                self.lookup(address)
            }

            #[inline(always)]
            fn lookup_batch(&self, addresses: &[$address], out: &mut [NextHopId]) {
                self.lookup_batch(addresses, out);
            }

            fn bytes(&self) -> usize {
                self.bytes()
            }
        }
    };
}
table!(Fib4, u32);
table!(Fib6, u128);

impl Lookup {
    /// Measures, prints, and writes `lookup.csv`.
    ///
    /// # Errors
    /// When a file cannot be read or written, there is not enough memory, or two tables disagree.
    pub fn run(&self) -> std::io::Result<()> {
        let prefixes4 = match &self.table4 {
            Some(file) => recorded::ipv4(file, self.next_hops)?,
            None => synthetic::ipv4(self.prefixes4, self.next_hops, self.seed),
        };
        let prefixes6 = match &self.table6 {
            Some(file) => recorded::ipv6(file, self.next_hops)?,
            None => synthetic::ipv6(self.prefixes6, self.next_hops, self.seed),
        };
        let mut csv = String::from(
            "family,prefixes,table,bytes,build_ms,update_p50_ns,update_p99_ns,trace,million_lookups_per_s\n",
        );
        for _ in 0..self.rounds {
            csv += &self.ipv4(&prefixes4)?;
            csv += &self.ipv6(&prefixes6)?;
        }
        if self.against > 0 {
            std::fs::create_dir_all(&self.out)?;
            std::fs::write(self.out.join("lookup.csv"), csv)?;
            println!("\nwritten: {}", self.out.join("lookup.csv").display());
        }
        Ok(())
    }

    fn ipv4(&self, prefixes: &Prefixes4) -> std::io::Result<String> {
        let mut fib = Fib4::new()?;
        println!("IPv4, {} prefixes", prefixes.len());
        let mut theirs = Ok(String::new());
        self.table(&mut fib, prefixes, |fib, traces| {
            print_lookups("", fib, traces);
            if self.against > 0 {
                theirs = rivals::ipv4(Fib4::new, prefixes, traces, self.against);
            }
        });
        theirs
    }

    fn ipv6(&self, prefixes: &Prefixes6) -> std::io::Result<String> {
        let mut fib = Fib6::new()?;
        println!("IPv6, {} prefixes", prefixes.len());
        let mut theirs = Ok(String::new());
        self.table(&mut fib, prefixes, |fib, traces| {
            let best = fib.instructions();
            for name in ["avx512", "avx2", "plain"] {
                if fib.set_instructions(name) {
                    print_lookups(name, fib, traces);
                }
            }
            fib.set_instructions(best);
            if self.against > 0 {
                theirs = rivals::ipv6(Fib6::new, prefixes, traces, self.against);
            }
        });
        theirs
    }

    /// Builds, looks up by `lookups`, updates.
    fn table<T: Table>(
        &self,
        fib: &mut T,
        prefixes: &Prefixes<T::Address>,
        lookups: impl FnOnce(&mut T, &[Trace<T::Address>]),
    ) {
        let mut times: Vec<_> = (0..5).map(|_| time(|| fib.build(prefixes))).collect();
        times.sort_unstable();
        let bytes = fib.bytes() as f64 / 1e6;
        println!("  build {:.1} ms, {bytes:.2} MB", millis(times[2]));
        let mut random = Random::new(self.seed + 1);
        let traces = traces(prefixes, &mut random);
        println!("  {:8} {:8} {:>12} {:>12} {:>12}", "", "Ml/s", "one by one", "bursts of 32", "of 64");
        lookups(fib, &traces);
        updates(fib, prefixes.clone(), &mut random);
    }
}

/// Addresses to look up, in this order.
pub struct Trace<A> {
    /// What they are like.
    pub name: &'static str,
    /// The addresses, host order.
    pub addresses: Vec<A>,
}

/// Anywhere that has a route; each prefix as often as others; a million flows, few of them busy;
/// and 256 flows.
fn traces<A: Sample>(prefixes: &Prefixes<A>, random: &mut Random) -> Vec<Trace<A>> {
    // IPv6 has next to nothing at a uniformly drawn address, so there the trace is left out.
    let uniform: Vec<A> = if A::BITS == 32 && !prefixes.is_empty() {
        std::iter::repeat_with(|| A::any(random))
            .filter(|&address| prefixes.longest_match(address).is_some())
            .take(TRACE)
            .collect()
    } else {
        Vec::new()
    };
    let by_prefix = synthetic::addresses(prefixes, TRACE, random);
    let flows = synthetic::addresses(prefixes, 1_000_000, random);
    let choice = Zipf::new(flows.len(), 1.0);
    let zipf = (0..TRACE).map(|_| flows[choice.draw(random)]).collect();
    let hot = (0..TRACE).map(|n| flows[n % 256]).collect();
    let traces = [("uniform", uniform), ("prefix", by_prefix), ("zipf", zipf), ("hot", hot)];
    traces
        .into_iter()
        .filter(|(_, addresses)| !addresses.is_empty())
        .map(|(name, addresses)| Trace { name, addresses })
        .collect()
}

fn print_lookups<T: Table>(label: &str, fib: &T, traces: &[Trace<T::Address>]) {
    for trace in traces {
        let one = rate(&trace.addresses, |slice| {
            for &address in slice {
                black_box(fib.lookup(address));
            }
        });
        let burst = |size: usize| {
            rate(&trace.addresses, |slice| {
                let mut out = [0; 64];
                for addresses in slice.chunks_exact(size) {
                    fib.lookup_batch(addresses, &mut out[..size]);
                    black_box(&out);
                }
            })
        };
        let (of32, of64) = (burst(32), burst(64));
        println!("  {label:8} {:8} {one:>12.0} {of32:>12.0} {of64:>12.0}", trace.name);
    }
}

/// Million addresses a second that `run` gets through, the median of the slices.
fn rate<A>(addresses: &[A], mut run: impl FnMut(&[A])) -> f64 {
    let mut times: Vec<_> = addresses.chunks_exact(SLICE).map(|slice| time(|| run(slice))).collect();
    times.sort_unstable();
    SLICE as f64 / times[times.len() / 2].as_secs_f64() / 1e6
}

/// Takes prefixes away and puts them back with another next hop, at random; then the default
/// route, which touches everything.
fn updates<T: Table>(fib: &mut T, mut prefixes: Prefixes<T::Address>, random: &mut Random) {
    let all: Vec<_> = prefixes.iter().collect();
    let mut times = Vec::new();
    for n in 0..20_000 {
        let (address, length, next_hop) = all[random.below(all.len())];
        if n % 2 == 0 {
            prefixes.remove(address, length);
        } else {
            prefixes.insert(address, length, next_hop ^ 1);
        }
        times.push(time(|| fib.update(&prefixes, address, length)));
    }
    times.sort_unstable();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let (middle, high) = (micros(times[times.len() / 2]), micros(times[times.len() * 99 / 100]));
    let (address, _, _) = all[0];
    prefixes.insert(address, 0, 1);
    let appears = time(|| fib.update(&prefixes, address, 0));
    prefixes.insert(address, 0, 2);
    let changes = time(|| fib.update(&prefixes, address, 0));
    println!(
        "  update {middle:.2} µs median, {high:.1} µs p99; default route appears {:.1} ms, changes {:.1} ms",
        millis(appears),
        millis(changes),
    );
}

fn time(run: impl FnOnce()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
