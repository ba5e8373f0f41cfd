#!/bin/sh
# Installs the Debian packages that the lab and its tests use, with the argument "all" those that
# `make test` uses besides, and with "bench" those of `make bench`, when run as root; what is there
# already stays as it is. Otherwise says what is missing. Exits 0 when nothing is missing but
# routing daemons (BIRD, FRR, keepalived) or what a benchmark compares with: who uses these says so.
# Services that come with packages are neither started nor enabled.
set -eu
PATH=$PATH:/usr/sbin:/sbin

# A tool, and the package that has it.
tools='ip iproute2
ethtool ethtool
ping iputils-ping
traceroute traceroute
iperf3 iperf3
curl curl
tcpdump tcpdump
setpriv util-linux
nft nftables'
daemons=
if [ "${1:-}" = all ]; then
    tools="$tools
c++ g++
clang clang
llvm-objcopy llvm
mandoc mandoc
bmake bmake"
    daemons='bird bird2
/usr/lib/frr/zebra frr
keepalived keepalived'
fi
if [ "${1:-}" = bench ]; then
    daemons='clang clang
/usr/include/bpf/bpf_helpers.h libbpf-dev
/usr/include/dpdk/rte_lpm.h libdpdk-dev
dpdk-testpmd dpdk
pkg-config pkg-config'
fi

# missing TOOLS: the packages that are.
missing() {
    echo "$1" | while read -r tool package; do
        [ -z "$tool" ] || command -v "$tool" >/dev/null 2>&1 || [ -e "$tool" ] || echo "$package"
    done | xargs
}

policy=/usr/sbin/policy-rc.d
log=
policy_is_ours=
finish() {
    [ -z "$policy_is_ours" ] || rm -f "$policy"
    [ -z "$log" ] || rm -f "$log"
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

# install PACKAGE...: says why when it cannot.
install() {
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1 || return 0
    echo "installing $*"
    [ -n "$log" ] || log=$(mktemp)
    # A machine's own policy may start services; ours, while packages are installed, starts none.
    if [ ! -e "$policy" ] && printf '#!/bin/sh\nexit 101\n' >"$policy"; then
        policy_is_ours=1
        chmod 755 "$policy"
    fi
    # The lists of packages may be missing or old: then once more with new ones.
    get "$@" || { apt-get update >"$log" 2>&1 && get "$@"; } || tail -5 "$log" >&2
}

get() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >"$log" 2>&1
}

# The services of routing daemons that were installed here are not to begin at the next boot either.
disable() {
    for package; do
        case $package in
            bird2) service=bird ;;
            *) service=$package ;;
        esac
        [ ! -e "/etc/init.d/$service" ] || update-rc.d "$service" disable >/dev/null 2>&1 || true
        ! command -v systemctl >/dev/null 2>&1 || systemctl disable "$service" >/dev/null 2>&1 || true
    done
}

packages=$(missing "$tools")
# shellcheck disable=SC2086 # one word each
[ -z "$packages" ] || install $packages

wanted=$(missing "$daemons")
if [ -n "$wanted" ]; then
    # shellcheck disable=SC2086
    install $wanted
    # shellcheck disable=SC2086
    disable $wanted
    wanted=$(missing "$daemons")
    [ -z "$wanted" ] || echo "without $wanted: what needs them is left out"
fi

packages=$(missing "$tools")
if [ -n "$packages" ]; then
    echo "missing: $packages; install them (Debian, as root: apt-get install $packages)" >&2
    exit 1
fi
