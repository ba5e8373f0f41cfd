//! Benchmarks: each prints a table and writes its plot.
fn main() {}
