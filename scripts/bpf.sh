#!/bin/sh
# The express program: from its source, restricted C, to bare BPF instructions. "make" writes them
# where the build takes them from, "check" compares them with what is there. The bytes are those of
# Debian 12's clang 14; another version may choose other instructions, and is then only asked to
# compile.
set -eu
cd "$(dirname "$0")/.."
source=src/express/express.bpf.c
bytes=src/express/express.bpf.bin
version=14

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
clang -target bpf -mcpu=v3 -O2 -g0 -Wall -Wextra -Werror -Wno-parentheses -c "$source" -o "$work/express.o"
llvm-objcopy -O binary -j xdp "$work/express.o" "$work/express.bin"

case ${1:-} in
    make)
        cp "$work/express.bin" "$bytes"
        ls -l "$bytes"
        ;;
    check)
        cmp "$work/express.bin" "$bytes" && exit
        have=$(clang -dumpversion)
        [ "${have%%.*}" = $version ] || { echo "SKIPPED: the express program's bytes: this is clang $have, not $version"; exit 0; }
        echo "$bytes is not what $source gives: make bpf" >&2
        exit 1
        ;;
    *)
        echo "usage: $0 make|check" >&2
        exit 2
        ;;
esac
