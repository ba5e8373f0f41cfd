#!/bin/sh
# Fuzzes one target for some seconds, on a stable compiler: coverage comes from LLVM's own pass.
# The corpus grows in target/fuzz-corpus/TARGET; what crashes is kept in target/fuzz-crashes.
# Exits 0 when nothing was found, non-zero on a crash, a hang or too much memory.
set -eu

if [ $# -ne 2 ]; then
    echo "usage: $0 TARGET SECONDS; targets: $(cd "$(dirname "$0")/../fuzz/fuzz_targets" && ls | sed 's/\.rs$//' | xargs)" >&2
    exit 2
fi
target=$1 seconds=$2
cd "$(dirname "$0")/.."

case $target in
    frame) longest=1700 seeds=fuzz/seeds/frame ;;
    config) longest=4096 seeds="fuzz/seeds/config conf/examples" ;;
    *) longest=4096 seeds= ;;
esac

host=$(rustc -vV | sed -n 's/^host: //p')
flags="-Cpasses=sancov-module
-Cllvm-args=-sanitizer-coverage-level=4
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters
-Cllvm-args=-sanitizer-coverage-pc-table
-Cllvm-args=-sanitizer-coverage-trace-compares
--cfg fuzzing"
# With --target the flags do not reach build scripts and procedural macros.
RUSTFLAGS=$(echo "$flags" | xargs) cargo build --quiet --release --manifest-path fuzz/Cargo.toml \
    --target "$host" --target-dir target/fuzz --bin "$target"

corpus=target/fuzz-corpus/$target
log=$(mktemp)
trap 'rm -f "$log"' EXIT
mkdir -p "$corpus" target/fuzz-crashes
status=0
# shellcheck disable=SC2086 # several seed folders
"target/fuzz/$host/release/$target" "$corpus" $seeds \
    -max_total_time="$seconds" -max_len="$longest" -timeout=10 -rss_limit_mb=1024 \
    -artifact_prefix=target/fuzz-crashes/"$target"- -print_final_stats=0 >"$log" 2>&1 || status=$?

if [ $status -ne 0 ]; then
    tail -40 "$log" >&2
    echo "fuzz: $target failed; the input is kept in target/fuzz-crashes" >&2
    exit $status
fi
# The last state of the coverage, and the number of runs.
grep -E 'cov: ' "$log" | tail -1
tail -1 "$log"
