#!/bin/sh
# The express program: from its source, restricted C, to bare BPF instructions. "make" writes them
# where the build takes them from, "check" compares them with what is there. The bytes are those of
# Debian 12's clang 14; another version may choose other instructions, and is then only asked to
# compile.
set -eu
cd "$(dirname "$0")/.."
source=src/express/express.bpf.c
version=14

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

# compile NAME OPTION...
compile() {
    name=$1
    shift
    clang -target bpf -mcpu=v3 -O2 -g0 -Wall -Wextra -Werror -Wno-parentheses "$@" -c "$source" -o "$work/$name.o"
    llvm-objcopy -O binary -j xdp "$work/$name.o" "$work/$name.bpf.bin"
}
compile express
compile express-steps -DSTEPS

case ${1:-} in
    make)
        cp "$work"/*.bpf.bin src/express/
        ls -l src/express/*.bpf.bin
        ;;
    check)
        differ=
        for bytes in "$work"/*.bpf.bin; do
            cmp "$bytes" "src/express/${bytes##*/}" || differ="$differ ${bytes##*/}"
        done
        [ -n "$differ" ] || exit 0
        have=$(clang -dumpversion)
        [ "${have%%.*}" = $version ] || { echo "SKIPPED: the express program's bytes: this is clang $have, not $version"; exit 0; }
        echo "not what $source gives:$differ; make bpf" >&2
        exit 1
        ;;
    *)
        echo "usage: $0 make|check" >&2
        exit 2
        ;;
esac
