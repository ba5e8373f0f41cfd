#!/bin/bash
# Tests the Debian package of a binary (test-deb.sh BINARY): made twice, once as its own successor,
# looked at by lintian, then installed, run, upgraded, removed and purged on a copy of this machine
# that vanishes afterwards: an overlay over its root, in a mount namespace. What cannot be done
# here is a line that begins with SKIPPED. Exits 0 when nothing failed.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C DEBIAN_FRONTEND=noninteractive

if [ "${1:-}" = --inside ]; then
    old=$2 new=$3
    fail() {
        echo "FAILED: $*"
        exit 1
    }
    dpkg -i "$old" || fail 'it cannot be installed'
    getent passwd sweepd | grep -q nologin || fail 'the user is missing, or can log in'
    [ "$(stat -c %U:%a /usr/sbin/sweepd /etc/sweepd.toml | xargs)" = 'root:755 root:644' ] || fail 'modes are wrong'
    sweepd --version >/dev/null || fail 'it does not run'
    zcat /usr/share/man/man8/sweepd.8.gz | grep -q '^.Dt SWEEPD 8' || fail 'the manual page is missing'
    zcat /usr/share/man/man8/sweepd-stat.8.gz | grep -q '^.Dt SWEEPD-STAT 8' || fail 'the page of sweepd stat is missing'
    for file in bash-completion/completions/sweepd zsh/vendor-completions/_sweepd fish/vendor_completions.d/sweepd.fish; do
        grep -q masquerade "/usr/share/$file" || fail "the completions $file are missing"
    done
    grep -q '^ExecStart=/usr/sbin/sweepd run$' /lib/systemd/system/sweepd.service || fail 'the unit is wrong'

    # A configuration that runs anywhere, as the unit's user.
    printf '%s\n' '[daemon]' 'runtime_dir = "/run/sweepd"' '[kernel]' 'routes = false' '[[port]]' 'name = "a"' \
        'device = "gen:rate=1000"' 'addresses = ["192.0.2.0/31"]' >/etc/sweepd.toml
    mkdir -p /run/sweepd
    chown sweepd: /run/sweepd
    setpriv --reuid=sweepd --regid=sweepd --clear-groups sweepd run 2>/tmp/sweepd.log &
    daemon=$!
    for _ in $(seq 100); do
        sweepd show ports >/dev/null 2>&1 && break
        sleep 0.1
    done
    setpriv --reuid=sweepd --regid=sweepd --clear-groups sweepd show ports || { cat /tmp/sweepd.log; fail 'it does not route'; }

    # The running one goes on until it is told to stop, and the configuration stays as it is.
    dpkg -i "$new" || fail 'it cannot be upgraded'
    grep -q '192.0.2.0' /etc/sweepd.toml || fail 'the upgrade has changed the configuration'
    kill -0 $daemon || fail 'the upgrade has ended the daemon, without systemd'
    kill -TERM $daemon
    wait $daemon || fail 'it does not end as it should'
    [ "$(dpkg-query -W -f '${Version}' sweepd)" = 9-1 ] || fail 'the old version is still there'

    dpkg -r sweepd || fail 'it cannot be removed'
    [ ! -e /usr/sbin/sweepd ] && [ -e /etc/sweepd.toml ] || fail 'removal has left the program, or taken the configuration'
    dpkg -P sweepd || fail 'it cannot be purged'
    [ ! -e /etc/sweepd.toml ] || fail 'purging has left the configuration'
    exit 0
fi

binary=$1
command -v dpkg-deb >/dev/null || { echo 'SKIPPED: the Debian package, for want of dpkg-deb'; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Quick rather than small.
export DEB_FLAGS='-Zgzip -z1'
cp "$binary" "$work/sweepd"
binary=$work/sweepd
strip --strip-unneeded "$binary"
old=$(scripts/deb.sh "$binary" "$work")
again=$(scripts/deb.sh "$binary" "$work/again")
cmp "$old" "$again" || { echo 'FAILED: the same sources made another package'; exit 1; }
new=$(scripts/deb.sh "$binary" "$work" 9-1)
if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error,warning "$old"
else
    echo 'SKIPPED: lintian, which is not here'
fi
if [ "$(id -u)" -ne 0 ]; then
    echo 'SKIPPED: installing the package, for want of root'
    exit 0
fi
mkdir "$work/space"
if ! unshare --mount sh -c "mount -t tmpfs none '$work/space' && cd '$work/space' && mkdir upper work root &&
    mount -t overlay none -o lowerdir=/,upperdir=upper,workdir=work root" 2>"$work/why"; then
    echo "SKIPPED: installing the package, for want of an overlay: $(tail -1 "$work/why")"
    exit 0
fi
unshare --mount sh -euc "
    mount -t tmpfs none '$work/space'
    cd '$work/space'
    mkdir upper work root
    mount -t overlay none -o lowerdir=/,upperdir=upper,workdir=work root
    mount -t proc none root/proc
    mount -t tmpfs none root/run
    mount -t tmpfs none root/tmp
    mount --bind /dev root/dev
    cp '$old' root/tmp/old.deb
    cp '$new' root/tmp/new.deb
    cp '$PWD/scripts/test-deb.sh' root/tmp/test
    exec chroot root bash /tmp/test --inside /tmp/old.deb /tmp/new.deb
"
