#!/bin/sh
# Installs the Debian packages that the lab and its tests use, and with the argument "all" those
# that `make test` uses besides, when run as root; what is there already stays as it is. Otherwise
# says what is missing. Exits 0 when nothing is missing.
set -eu
PATH=$PATH:/usr/sbin:/sbin

# A tool, and the package that has it.
tools='ip iproute2
ethtool ethtool
ping iputils-ping
traceroute traceroute
iperf3 iperf3
tcpdump tcpdump
setpriv util-linux'
[ "${1:-}" != all ] || tools="$tools
c++ g++
mandoc mandoc
bmake bmake"

missing() {
    echo "$tools" | while read -r tool package; do
        command -v "$tool" >/dev/null 2>&1 || echo "$package"
    done
}

packages=$(missing | xargs)
[ -n "$packages" ] || exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing $packages"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    # shellcheck disable=SC2086 # one word each
    install() { apt-get install -y --no-install-recommends $packages >"$log" 2>&1; }
    # The lists of packages may be missing or old: then once more with new ones.
    install || { apt-get update >"$log" 2>&1 && install; } || tail -5 "$log" >&2
    packages=$(missing | xargs)
fi

if [ -n "$packages" ]; then
    echo "missing: $packages; install them (Debian, as root: apt-get install $packages)" >&2
    exit 1
fi
