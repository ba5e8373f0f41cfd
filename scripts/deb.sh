#!/bin/sh
# Makes a Debian package of a binary that is built already: deb.sh BINARY DIRECTORY [VERSION]. The
# package holds what scripts/install.sh installs, in Debian's places, with a configuration that
# does nothing yet. DEB_FLAGS goes to dpkg-deb. Prints the package's path.
set -eu
cd "$(dirname "$0")/.."

[ $# -ge 2 ] || {
    echo "usage: $0 BINARY DIRECTORY [VERSION]" >&2
    exit 2
}
command -v dpkg-deb >/dev/null || {
    echo "deb: there is no dpkg-deb; this makes packages on Debian only" >&2
    exit 1
}
binary=$1 out=$2
[ -x "$binary" ] || {
    echo "deb: $binary is not there; run \"make build\" first" >&2
    exit 1
}
version=${3:-$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)-1}
# Files get the time of the last commit, so that the same sources make the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
root=$work/sweepd
mkdir -p "$work/build/release" "$root/DEBIAN" "$root/etc" "$root/usr/share/doc/sweepd"
cp "$binary" "$work/build/release/sweepd"
strip --strip-unneeded "$work/build/release/sweepd"
CARGO_TARGET_DIR=$work/build DESTDIR=$root PREFIX=/usr ZSH_COMPLETIONS=zsh/vendor-completions scripts/install.sh >/dev/null

doc=$root/usr/share/doc/sweepd
mv "$root/usr/share/examples/sweepd" "$doc/examples"
rmdir "$root/usr/share/examples"
mkdir -p "$root/lib/systemd"
mv "$root/usr/lib/systemd/system" "$root/lib/systemd/"
rmdir "$root/usr/lib/systemd"
install -m 644 packaging/debian/sweepd.toml "$root/etc/sweepd.toml"
{ cat packaging/debian/copyright; sed '/^$/s/^/./; s/^/ /' LICENSE; } >"$doc/copyright"
install -D -m 644 packaging/debian/lintian-overrides "$root/usr/share/lintian/overrides/sweepd"
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
{
    echo "sweepd ($version) unstable; urgency=medium"
    echo
    echo '  * See changelog.gz.'
    echo
    echo " -- The sweepd developers <sweepd@users.noreply.github.com>  $(date -uRd "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$doc/changelog.Debian.gz"
gzip -9n "$root"/usr/share/man/man*/*

# What the binary needs of libraries, if there is a tool to tell.
libraries='libc6, libgcc-s1'
if command -v dpkg-shlibdeps >/dev/null; then
    mkdir "$work/debian"
    printf 'Source: sweepd\n\nPackage: sweepd\nArchitecture: any\n' >"$work/debian/control"
    libraries=$(cd "$work" && dpkg-shlibdeps -O sweepd/usr/sbin/sweepd | sed 's/^shlibs:Depends=//')
fi
cat >"$root/DEBIAN/control" <<END
Package: sweepd
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: The sweepd developers <sweepd@users.noreply.github.com>
Installed-Size: $(du -ks --exclude=DEBIAN "$root" | cut -f1)
Depends: $libraries, systemd | systemd-standalone-sysusers
Section: net
Priority: optional
Homepage: https://github.com/sweepd/sweepd
Description: router daemon on netmap rings
$(sed 's/^$/./; s/^/ /' packaging/freebsd/pkg-descr)
END
echo /etc/sweepd.toml >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 755 "packaging/debian/$script" "$root/DEBIAN/$script"
done
(cd "$root" && find etc lib usr -type f -exec md5sum {} + | grep -v ' etc/' | LC_ALL=C sort -k2 >DEBIAN/md5sums)

mkdir -p "$out"
# shellcheck disable=SC2086 # several words
dpkg-deb ${DEB_FLAGS:-} --root-owner-group --build "$root" "$out/sweepd_${version}_$(dpkg --print-architecture).deb" >/dev/null
echo "$out/sweepd_${version}_$(dpkg --print-architecture).deb"
