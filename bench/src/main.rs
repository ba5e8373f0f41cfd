//! Benchmarks: each prints a table and writes its plot.

mod lookup;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Benchmarks of sweepd
#[derive(Parser)]
#[command(name = "sweepd-bench", version)]
struct Cli {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    Lookup(lookup::Lookup),
}

fn main() -> ExitCode {
    let result = match Cli::parse().benchmark {
        Benchmark::Lookup(lookup) => lookup.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sweepd-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
