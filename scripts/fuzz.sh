#!/bin/sh
# Fuzzes one target, or all of them two at a time, for some seconds each, on a stable compiler:
# coverage comes from LLVM's own pass. The corpus grows in target/fuzz-corpus/TARGET, which
# scripts/corpus.sh fills too; what crashes is kept in target/fuzz-crashes. Prints a line a target.
# Exits 0 when nothing was found, non-zero on a crash, a hang or too much memory.
set -eu

targets='frame ipv4 ipv6 icmp neighbors vlan config control netlink route_socket'
if [ $# -ne 2 ] && [ "$*" != build ]; then
    echo "usage: $0 build, or $0 TARGET|all SECONDS; targets: $targets" >&2
    exit 2
fi
wanted=$1 seconds=${2:-}
cd "$(dirname "$0")/.."
case " $targets all build " in
    *" $wanted "*) ;;
    *) echo "fuzz: there is no target $wanted; targets: $targets" >&2; exit 2 ;;
esac

host=$(rustc -vV | sed -n 's/^host: //p')
program=target/fuzz/$host/release/fuzz

build() {
    flags="-Cpasses=sancov-module
-Cllvm-args=-sanitizer-coverage-level=4
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters
-Cllvm-args=-sanitizer-coverage-pc-table
-Cllvm-args=-sanitizer-coverage-trace-compares
--cfg fuzzing"
    # With --target the flags do not reach build scripts and procedural macros.
    RUSTFLAGS=$(echo "$flags" | xargs) cargo build --quiet --release --manifest-path fuzz/Cargo.toml \
        --target "$host" --target-dir target/fuzz --bin fuzz
}

# run TARGET: fuzzes it, and says how it went.
run() {
    case $1 in
        frame | ipv4 | ipv6 | icmp | neighbors | vlan) longest=1700 seeds=fuzz/seeds/$1 ;;
        config) longest=4096 seeds="fuzz/seeds/config conf/examples" ;;
        *) longest=4096 seeds=fuzz/seeds/$1 ;;
    esac
    corpus=target/fuzz-corpus/$1 log=target/fuzz-corpus/$1.log status=0
    mkdir -p "$corpus" target/fuzz-crashes
    # shellcheck disable=SC2086 # several seed folders
    SWEEPD_FUZZ=$1 "$program" "$corpus" $seeds \
        -max_total_time="$seconds" -max_len="$longest" -timeout=10 -rss_limit_mb=1024 \
        -artifact_prefix=target/fuzz-crashes/"$1"- -print_final_stats=0 >"$log" 2>&1 || status=$?
    if [ $status -ne 0 ]; then
        tail -40 "$log" >&2
        echo "fuzz: $1 failed; the input is kept in target/fuzz-crashes" >&2
        return $status
    fi
    # The last state of the coverage, and the number of runs.
    state=$(grep -E 'cov: ' "$log" | tail -1 | sed 's/.*\(cov: [0-9]* ft: [0-9]* corp: [0-9]*\).*/\1/')
    echo "$1: $(tail -1 "$log"), $state"
}

# half NUMBER: every second target.
half() {
    failed=0 number=$1
    for name in $targets; do
        if [ $((number % 2)) -eq 0 ]; then run "$name" || failed=1; fi
        number=$((number + 1))
    done
    return $failed
}

build
[ "$wanted" != build ] || exit 0
if [ "$wanted" != all ]; then
    run "$wanted"
    exit
fi
half 0 &
failed=0
half 1 || failed=1
wait $! || failed=1
exit $failed
