#!/bin/bash
# Every check and test of the project, in order; `make test` runs it. Arguments name steps to run
# instead of all: scripts/test.sh tests loom. What a step says goes to target/test/STEP.log and is
# shown when the step fails. Ends with a table: how each step went, how long it took, and what was
# not tested and why. Exits 0 when nothing failed.
#
# As root it installs the tools that it needs (scripts/deps.sh) and tests on real interfaces, in
# network namespaces. With SWEEPD_REQUIRE_LAB=1 it is a failure when those cannot be made.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C CARGO_TERM_COLOR=never
cargo=${CARGO:-cargo}
seconds=${FUZZ_SECONDS:-20}
target=${CARGO_TARGET_DIR:-target}
logs=$target/test
command -v "$cargo" >/dev/null || {
    echo "test: there is no $cargo; with rustup's, as root: sudo env PATH=\"\$PATH\" HOME=\"\$HOME\" make test" >&2
    exit 1
}
wanted=" $* "
rm -rf "$logs"
mkdir -p "$logs"

skipped=()

# step NAME COMMAND...: runs it, and leaves a line of the last table in target/test/NAME.row. A step
# that prints "SKIPPED: why" has left something out.
step() {
    local name=$1 log=$logs/$1.log before=$SECONDS result=ok
    [[ $wanted = '  ' || $wanted = *" $name "* ]] || return 0
    shift
    echo "$name ..."
    "$@" >"$log" 2>&1 || result=FAILED
    printf '%-9s %s, %d s\n' "$name" $result $((SECONDS - before))
    [ $result = ok ] || tail -60 "$log"
    # When it began comes first: the table is in that order.
    printf '%06d %-9s %-6s %5d s  %s\n' $before "$name" $result $((SECONDS - before)) "$(about "$name" "$log")" \
        >"$logs/$name.row"
}

# What a step's log says in a few words.
about() {
    case $1 in
        tests | loom)
            awk '/^test result: / { passed += $4; failed += $6; ignored += $8 }
                 END { printf "%d passed, %d failed, %d ignored", passed, failed, ignored }' "$2"
            ;;
        fuzz) awk '/: Done / { targets++; runs += $3 } END { printf "%d targets, %d runs", targets, runs }' "$2" ;;
    esac
}

# Without its packages a machine still tests much, if it may.
tools() {
    scripts/deps.sh all && return
    [ -z "${SWEEPD_REQUIRE_LAB:-}" ] && echo 'SKIPPED: some packages could not be installed'
}

has() {
    command -v "$1" >/dev/null 2>&1
}

formatted() {
    "$cargo" fmt --version || { echo 'SKIPPED: the format, for want of rustfmt'; return 0; }
    "$cargo" fmt --all --check && "$cargo" fmt --manifest-path fuzz/Cargo.toml --check &&
        "$cargo" fmt --manifest-path fuzz/corpus/Cargo.toml --check
}

linted() {
    "$cargo" clippy --version || { echo 'SKIPPED: the lints, for want of clippy'; return 0; }
    "$cargo" clippy --locked --workspace --all-targets -- -D warnings
}

# Types and lints for FreeBSD, which needs nothing but Rust's library for it. Linking, and its
# headers, are for `make freebsd`.
freebsd() {
    local triple=x86_64-unknown-freebsd
    library() { [ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ]; }
    # On somebody's own machine the toolchain stays as it is.
    if ! library && [ -n "${CI:-}" ] && has rustup; then
        timeout 120 rustup target add $triple
    fi
    library || {
        echo "SKIPPED: types and lints for FreeBSD, for want of Rust's library for it (rustup target add $triple)"
        return 0
    }
    "$cargo" clippy --version || { echo 'SKIPPED: types and lints for FreeBSD, for want of clippy'; return 0; }
    CARGO_TARGET_DIR="$target/freebsd" \
        "$cargo" clippy --locked --workspace --all-targets --target $triple -- -D warnings
}

# Built while something else is built; tests run alone, since many look at the clock.
built() {
    "$cargo" test --locked --workspace --no-run
}

documented() {
    RUSTDOCFLAGS='-D warnings' "$cargo" doc --locked --workspace --no-deps
}

# Passing tests show their output too, so that none leaves something out in silence.
tested() {
    "$cargo" test --locked --workspace --no-fail-fast -- --show-output
}

# What every way through the worker executes, counted in the build that the tests have made, may not
# be more than what is recorded.
counted() {
    "$target/debug/sweepd-bench" locked --check --brief
}

# The publication of tables, in every order of the memory model.
modelled() {
    RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR="$target/loom" "$cargo" test --locked --manifest-path loom/Cargo.toml &&
        grep -q '^test result: ok. [1-9]' "$logs/loom.log"
}

fuzzers() {
    scripts/fuzz.sh build
}

fuzzed() {
    scripts/fuzz.sh all "$seconds"
}

# What is built in folders of its own, one after the other.
aside() {
    step tables scripts/tables.sh
    step freebsd freebsd
    step loom modelled
    step fuzzers fuzzers
}

# Known faults and licences of the crates, where the programs that know are installed and their
# data can be had; neither is a part of Debian.
crates() {
    local wrong=0 said
    # check PROGRAM WHAT COMMAND...
    check() {
        local program=$1 what=$2
        shift 2
        has "$program" || { echo "SKIPPED: $what, for want of $program (cargo install $program)"; return 0; }
        if said=$(timeout 120 "$@" 2>&1); then
            echo "$said" | tail -3
        elif grep -qiE "failed to (fetch|load|obtain|prepare)|couldn't (fetch|open)|network|timed out" <<<"$said"; then
            echo "SKIPPED: $what, since its data cannot be fetched"
        else
            echo "$said"
            wrong=1
        fi
    }
    check cargo-audit 'known faults of the crates' "$cargo" audit
    check cargo-deny 'licences and sources of the crates' "$cargo" deny check licenses bans sources
    return $wrong
}

manuals() {
    has mandoc || { echo 'SKIPPED: the manual pages, for want of mandoc'; return 0; }
    mandoc -Tlint -Wwarning man/*
}

# The express program's bytes are those that its source gives.
bpf() {
    has clang && has llvm-objcopy || { echo 'SKIPPED: the express program against its source, for want of clang and llvm'; return 0; }
    scripts/bpf.sh check
}

# Both kinds of make must do the same for every target.
makefile() {
    local name one other wrong=0
    has make && has bmake || { echo 'SKIPPED: the Makefile, for want of make and bmake'; return 0; }
    for name in $(sed -n 's/^\.PHONY: //p' Makefile); do
        [ "$name" != test ] || continue
        one=$(env -u MAKEFLAGS -u MAKELEVEL make -n "$name" 2>&1)
        other=$(env -u MAKEFLAGS -u MAKELEVEL bmake -n "$name" 2>&1)
        [ "$one" = "$other" ] || { diff <(echo "$one") <(echo "$other"); wrong=1; }
    done
    return $wrong
}

# Scripts, and the files of the two service managers.
scripts() {
    local file unit said wrong=0
    for file in scripts/*.sh .ci/run rc.d/sweepd; do
        "$(sed -n '1s/^#! *\(\/usr\/bin\/env \)*\([^ ]*\).*/\2/p' "$file")" -n "$file" || wrong=1
    done
    if has shellcheck; then
        shellcheck --severity=warning scripts/*.sh .ci/run || wrong=1
    fi
    if has systemd-analyze; then
        unit=$(mktemp -d)/sweepd.service
        sed "s|/usr/local/sbin/sweepd|$(command -v true)|; /^Documentation=/d" conf/sweepd.service >"$unit"
        said=$(systemd-analyze verify --man=no "$unit" 2>&1 | grep sweepd.service)
        rm -r "$(dirname "$unit")"
        [ -z "$said" ] || { echo "$said"; wrong=1; }
        # Exposure of 2.4 at most; what is not as it could be is listed.
        said=$(systemd-analyze security --no-pager --offline=true --threshold=24 conf/sweepd.service) || {
            echo "$said"
            wrong=1
        }
    else
        echo 'SKIPPED: conf/sweepd.service, for want of systemd-analyze'
    fi
    return $wrong
}

# The rc.d script with a stand-in for rc.subr, and the port's lists.
ports() {
    scripts/test-rc.sh && scripts/freebsd-port.sh check
}

# A Debian package of the debug binary: made, looked at, installed, upgraded and removed.
debian() {
    scripts/test-deb.sh "$target/debug/sweepd"
}

# What `make install` leaves behind, in a folder of its own.
installed() {
    local root wrong=0 file
    root=$(mktemp -d)
    mkdir -p "$root/build/release"
    cp "$target/debug/sweepd" "$root/build/release/"
    CARGO_TARGET_DIR=$root/build DESTDIR=$root/dest PREFIX=/opt/sweepd scripts/install.sh || wrong=1
    "$root/dest/opt/sweepd/sbin/sweepd" --version || wrong=1
    for file in share/man/man8/sweepd.8 share/man/man8/sweepd-stat.8 share/man/man5/sweepd.toml.5 \
        share/examples/sweepd/sweepd.toml.example share/examples/sweepd/two-routers-bird.conf \
        share/bash-completion/completions/sweepd share/zsh/site-functions/_sweepd \
        share/fish/vendor_completions.d/sweepd.fish; do
        [ -s "$root/dest/opt/sweepd/$file" ] || { echo "$file is missing"; wrong=1; }
    done
    grep -q '^ExecStart=/opt/sweepd/sbin/sweepd run' "$root/dest/opt/sweepd/lib/systemd/system/sweepd.service" || wrong=1
    rm -r "$root"
    return $wrong
}

if [ "$(id -u)" -eq 0 ]; then
    step tools tools
else
    skipped+=('everything on real interfaces: run "sudo make test" for that')
fi
# A compiler seldom keeps two cores busy.
aside &
step format formatted
step lint linted
step docs documented
step built built
wait $!
for name in tests:tested counts:counted fuzz:fuzzed crates:crates manuals:manuals makefile:makefile bpf:bpf scripts:scripts install:installed ports:ports debian:debian; do
    step "${name%:*}" "${name#*:}"
done

# What root has built in somebody's name is theirs.
[ -z "${SUDO_UID:-}" ] || chown -R "$SUDO_UID:$SUDO_GID" "$target"

mapfile -t rows < <(cat "$logs"/*.row 2>/dev/null | sort -s -k1,1n | cut -d' ' -f2-)
for log in "$logs"/*.log; do
    while read -r line; do
        skipped+=("$(basename "$log" .log): $line")
    done < <(grep -iE '^ *skipped[:,]' "$log" 2>/dev/null | sed -E 's/^ *skipped[:,] *//I' | sort | uniq -c | sed -E 's/^ *1 //; s/^ *([0-9]+) (.*)/\2 (\1 times)/')
done
[ ${#rows[@]} -gt 0 ] || {
    echo "test: there is no step $*; see $0" >&2
    exit 2
}
echo
printf '%s\n' "${rows[@]}"
printf '%-9s        %5d s\n\n' 'in all' $SECONDS
if [ ${#skipped[@]} -gt 0 ]; then
    echo 'Not tested here:'
    printf '  %s\n' "${skipped[@]}"
fi
failed=$(printf '%s\n' "${rows[@]}" | grep -c ' FAILED ')
if [ "$failed" -gt 0 ]; then
    echo "$failed steps FAILED; what they said is in $logs"
    exit 1
fi
[ ${#skipped[@]} -gt 0 ] && echo 'Everything else passed.' || echo 'Everything passed.'
