#!/bin/bash
# The lab: two hosts and a router in network namespaces of this machine. The router is sweepd, on
# xdp: ports; the kernel's own forwarding is off there, so that what gets through went through it.
#
#   lab.sh up      makes the namespaces, and a configuration
#   lab.sh run     runs sweepd as the router, until Ctrl-C
#   lab.sh down    takes everything away
#   lab.sh demo    all of it, with ping, traceroute and iperf3 in between, in half a minute
#
# Needs root, and the tools that scripts/deps.sh installs. SWEEPD names a built sweepd to use
# instead of building one.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd)
h1=sweepd_h1 r=sweepd_r h2=sweepd_h2
dir=/run/sweepd-lab
config=$dir/sweepd.toml
cargo=${CARGO:-cargo}
sweepd=${SWEEPD:-${CARGO_TARGET_DIR:-$root/target}/release/sweepd}

die() {
    echo "lab: $*" >&2
    exit 1
}

# ns NAMESPACE COMMAND...: runs it there.
ns() {
    local where=$1
    shift
    ip netns exec "$where" "$@"
}

exists() {
    [ -e "/run/netns/$1" ]
}

prepare() {
    [ "$(uname)" = Linux ] || die "the lab is made of Linux's network namespaces"
    [ "$(id -u)" -eq 0 ] || die "needs root, to make network namespaces: sudo make lab"
    "$root/scripts/deps.sh"
}

build() {
    if [ -z "${SWEEPD:-}" ]; then
        command -v "$cargo" >/dev/null ||
            die "there is no $cargo; with rustup's, as root: sudo env PATH=\"\$PATH\" HOME=\"\$HOME\" scripts/lab.sh ..., or name a built sweepd: sudo env SWEEPD=target/release/sweepd scripts/lab.sh ..."
        (cd "$root" && "$cargo" build --release --quiet --bin sweepd)
    fi
    [ -x "$sweepd" ] || die "there is no $sweepd; build it with cargo build --release"
}

# wire N HOST: port pN of the router, with HOST at the other end.
wire() {
    local n=$1 host=$2
    ip -n $r link add "p$n" type veth peer name eth0 netns "$host"
    # A veth's frames carry unfinished checksums unless told otherwise.
    ns "$host" ethtool -K eth0 tx off >/dev/null
    ip -n $r addr add "10.0.$n.1/24" dev "p$n"
    ip -n $r addr add "fd00:$n::1/64" dev "p$n" nodad
    ip -n "$host" addr add "10.0.$n.2/24" dev eth0
    ip -n "$host" addr add "fd00:$n::2/64" dev eth0 nodad
    ip -n $r link set "p$n" up
    ip -n "$host" link set eth0 up
    ip -n "$host" route add default via "10.0.$n.1"
    ip -n "$host" route add default via "fd00:$n::1"
}

write_config() {
    mkdir -p $dir
    cat >$config <<END
# Addresses, routes and neighbours are the kernel's.
[daemon]
runtime_dir = "$dir"

[[port]]
name = "p1"
device = "xdp:p1"

[[port]]
name = "p2"
device = "xdp:p2"
END
}

up() {
    local name
    for name in $h1 $r $h2; do
        if exists $name; then die "the lab is up already; scripts/lab.sh down"; fi
    done
    for name in $h1 $r $h2; do
        ip netns add $name
        ip -n $name link set lo up
    done
    # Addresses of the lab's are nobody else's: no second is spent on finding out.
    for name in $h1 $r $h2; do
        ns $name sh -c 'echo 0 | tee /proc/sys/net/ipv6/conf/*/accept_dad' >/dev/null
    done
    ns $r sh -c 'echo 0 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding'
    wire 1 $h1
    wire 2 $h2
    write_config
}

down() {
    local name pids
    for name in $h1 $h2 $r; do
        exists $name || continue
        pids=$(ip netns pids $name)
        # shellcheck disable=SC2086 # one word each
        [ -z "$pids" ] || kill $pids 2>/dev/null || true
        ip netns del $name
    done
    rm -rf $dir
}

picture() {
    cat <<END

      $h1               $r               $h2
   [ 10.0.1.2  ]------p1 [  sweepd  ] p2------[ 10.0.2.2  ]
   [ fd00:1::2 ]         10.0.1.1             [ fd00:2::2 ]
                         10.0.2.1

END
}

# --- the demonstration ---

router=
failed=

start_router() {
    # Not by the function: the process to be stopped is sweepd, no shell around it.
    ip netns exec $r "$sweepd" run --config $config >$dir/log 2>&1 &
    router=$!
    for _ in $(seq 100); do
        if grep -q 'forwarding$' $dir/log; then return; fi
        kill -0 "$router" 2>/dev/null || break
        sleep 0.1
    done
    cat $dir/log >&2
    die "sweepd does not run; its log is above"
}

stop_router() {
    local pid=$router
    router=
    kill -TERM "$pid" 2>/dev/null || true
    if wait "$pid"; then
        ok "sweepd ended, and its ports are the kernel's again"
    else
        wrong "sweepd ended with exit code $?"
    fi
}

green='' red='' plain=''
if [ -t 1 ]; then green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'; fi

ok() {
    printf '   %sok%s      %s\n' "$green" "$plain" "$*"
}

wrong() {
    failed=1
    printf '   %sfailed%s  %s\n' "$red" "$plain" "$*"
}

# step PATTERN WHAT COMMAND...: runs the command in the first host. It must succeed within 20 s;
# of what it prints, lines that match PATTERN are shown.
step() {
    local pattern=$1 what=$2 out=$dir/out
    shift 2
    if timeout --foreground 20 ip netns exec $h1 "$@" >$out 2>&1; then ok "$what"; else wrong "$what"; pattern=.; fi
    { grep -E -- "$pattern" $out || true; } | sed 's/^/             /'
}

# serve: an iperf3 server in the second host, for one client.
serve() {
    ns $h2 timeout --foreground 30 iperf3 -s -1 >/dev/null 2>&1 &
    for _ in $(seq 50); do
        if [ -n "$(ns $h2 ss -Hltn 'sport = :5201')" ]; then return; fi
        sleep 0.1
    done
    die "iperf3 does not listen"
}

# Ends with everything taken away, whatever ended it.
finish() {
    local code=$?
    trap - EXIT
    trap '' INT TERM HUP
    [ -z "$router" ] || kill -TERM "$router" 2>/dev/null || true
    [ -z "$router" ] || wait "$router" 2>/dev/null || true
    down
    exit $code
}

demo() {
    # What a killed demonstration left behind.
    if exists $r && [ -z "$(ip netns pids $r)" ]; then down; fi
    trap 'exit 130' INT TERM HUP
    if exists $r; then die "the lab is up already; scripts/lab.sh down"; fi
    trap finish EXIT
    up
    echo 'Two hosts and a router in network namespaces. The router is sweepd, on xdp: ports:'
    picture
    start_router
    sed -n 's/.*INFO *\] /   /p' $dir/log
    echo

    step 'packets|rtt' 'ping' ping -c 5 -i 0.2 10.0.2.2
    step 'packets|rtt' 'ping, IPv6' ping -c 5 -i 0.2 fd00:2::2
    step 'packets|rtt' "ping the router's own address" ping -c 3 -i 0.2 10.0.1.1
    step '^ [ 0-9]' 'traceroute' traceroute -n -q 1 -w 2 10.0.2.2
    step '^ [ 0-9]' 'traceroute, IPv6' traceroute -6 -n -q 1 -w 2 fd00:2::2
    serve
    step '(sender|receiver)$' 'TCP there (iperf3)' iperf3 -c 10.0.2.2 -t 3
    serve
    step '(sender|receiver)$' 'TCP back, IPv6 (iperf3)' iperf3 -c fd00:2::2 -R -t 3
    serve
    step '(sender|receiver)$' 'UDP, 50 Mbit/s (iperf3)' iperf3 -c 10.0.2.2 -u -b 50M -t 3

    echo
    echo 'Three seconds of TCP in the live counter (sweepd stat -w 1 -d -h):'
    live
    echo
    echo 'How every packet ended (sweepd show verdicts):'
    "$sweepd" show verdicts --config $config >$dir/out 2>&1 || wrong 'sweepd show'
    sed 's/^/   /' $dir/out
    echo
    stop_router
    if [ -n "$failed" ]; then
        echo 'The log of sweepd:'
        sed 's/^/   /' $dir/log
        die 'not everything worked'
    fi
    echo
    echo 'To look around yourself: scripts/lab.sh up, then scripts/lab.sh run.'
}

# live: the live counter while iperf3 runs.
live() {
    serve
    ns $h1 timeout --foreground 10 iperf3 -c 10.0.2.2 -t 3 >/dev/null 2>&1 &
    local client=$!
    { timeout --foreground 3.5 "$sweepd" stat -w 1 -d -h --config $config || true; } | sed 's/^/   /'
    wait $client || wrong 'iperf3, while the live counter ran'
}

case ${1:-} in
    up)
        prepare
        up
        picture
        echo "The configuration is $config. Next, scripts/lab.sh run; then in another terminal"
        echo "   ip netns exec $h1 ping 10.0.2.2"
        echo "   $sweepd stat -w 1 --config $config"
        ;;
    run)
        prepare
        build
        exists $r || up
        exec ip netns exec $r "$sweepd" run --config $config
        ;;
    down)
        prepare
        down
        ;;
    demo)
        prepare
        build
        demo
        ;;
    *)
        echo "usage: $0 up | run | down | demo" >&2
        exit 2
        ;;
esac
