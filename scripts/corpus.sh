#!/bin/sh
# Fills the fuzz corpora with real packets: fetches the Debian source of tcpdump for the captures of
# its tests, and writes their frames, and mutants of them, to target/fuzz-corpus/TARGET, where
# scripts/fuzz.sh finds them. Nothing of it is committed. Exits 1 when the source cannot be had.
set -eu
cd "$(dirname "$0")/.."
source=$(scripts/debian-source.sh tcpdump target/tcpdump)
cargo build --quiet --release --manifest-path fuzz/corpus/Cargo.toml --target-dir target/corpus
find "$source/tests" -name '*.pcap' -o -name '*.cap' -o -name '*.pcapng' -o -name '*.dmp' |
    sort | xargs target/corpus/release/sweepd-corpus target/fuzz-corpus
