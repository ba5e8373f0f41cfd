//! Benchmarks: each prints a table and writes its plot.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sweepd_bench::{acl, flood, gateway, heap, locked, lookup, peers, r530, report, rfc2544, sweep};
#[cfg(target_os = "linux")]
use sweepd_bench::{follow, veth};

/// Counted, so that the tables of others can be measured.
#[global_allocator]
static HEAP: heap::Counted = heap::Counted;

/// Benchmarks of sweepd
#[derive(Parser)]
#[command(name = "sweepd-bench", version)]
struct Cli {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Measure access rules, from none to ten thousand, beside a plain list
    Acl,
    Flood(flood::Flood),
    Gateway(gateway::Gateway),
    Locked(locked::Locked),
    Lookup(lookup::Lookup),
    Peers(peers::Peers),
    R530(r530::R530),
    Rfc2544(rfc2544::Rfc2544),
    Loop(sweep::Loop),
    Report(report::All),
    #[cfg(target_os = "linux")]
    Follow(follow::Follow),
    #[cfg(target_os = "linux")]
    Veth(veth::Veth),
}

fn main() -> ExitCode {
    let result = match Cli::parse().benchmark {
        Benchmark::Acl => acl::run(),
        Benchmark::Flood(flood) => flood.run(),
        Benchmark::Gateway(gateway) => gateway.run(),
        Benchmark::Locked(locked) => locked.run(),
        Benchmark::Lookup(lookup) => lookup.run(),
        Benchmark::Peers(peers) => peers.run(),
        Benchmark::R530(r530) => r530.run(),
        Benchmark::Rfc2544(rfc2544) => rfc2544.run(),
        Benchmark::Loop(each) => each.run(),
        Benchmark::Report(all) => all.run(),
        #[cfg(target_os = "linux")]
        Benchmark::Follow(follow) => follow.run(),
        #[cfg(target_os = "linux")]
        Benchmark::Veth(veth) => veth.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sweepd-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
