#!/bin/sh
# Installs what `make build` has built: the daemon, its manual pages, what shells complete, example
# configurations and the service. Takes DESTDIR, PREFIX and MANDIR from the environment; a configuration that exists
# is never touched, and no service is started.
set -eu
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
man=${MANDIR:-$prefix/share/man}
root=${DESTDIR:-}
binary=${CARGO_TARGET_DIR:-target}/release/sweepd

[ -x "$binary" ] || {
    echo "install: $binary is not there; run \"make build\" first (not as root)" >&2
    exit 1
}

# put MODE FILE DIRECTORY [NAME]
put() {
    mkdir -p "$root$3"
    install -m "$1" "$2" "$root$3/${4:-$(basename "$2")}"
    echo "$root$3/${4:-$(basename "$2")}"
}

put 755 "$binary" "$prefix/sbin"
put 644 man/sweepd.8 "$man/man8"
put 644 man/sweepd-stat.8 "$man/man8"
put 644 man/sweepd.toml.5 "$man/man5"
put 644 conf/sweepd.toml.example "$prefix/share/examples/sweepd"
for example in conf/examples/*; do
    put 644 "$example" "$prefix/share/examples/sweepd"
done

put 644 conf/grafana/sweepd.json "$prefix/share/examples/sweepd" grafana.json

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# completions SHELL DIRECTORY NAME: what it completes on its command line.
completions() {
    "$binary" completions "$1" >"$work/completions"
    put 644 "$work/completions" "$prefix/share/$2" "$3"
}

completions bash bash-completion/completions sweepd
completions zsh "${ZSH_COMPLETIONS:-zsh/site-functions}" _sweepd
completions fish fish/vendor_completions.d sweepd.fish

# The service, with the place of the binary in it.
service=$work/service
case $(uname) in
    FreeBSD)
        sed "s|/usr/local|$prefix|g" rc.d/sweepd >"$service"
        put 555 "$service" "$prefix/etc/rc.d" sweepd
        ;;
    *)
        sed "s|/usr/local|$prefix|g" conf/sweepd.service >"$service"
        put 644 "$service" "$prefix/lib/systemd/system" sweepd.service
        put 644 conf/sysusers.conf "$prefix/lib/sysusers.d" sweepd.conf
        ;;
esac
