#!/bin/sh
# Makes the folder of a FreeBSD port: packaging/freebsd, with the list of crates from Cargo.lock in
# the form of the ports' cargo.mk. Usage: freebsd-port.sh DIRECTORY. With the argument "check" it
# says whether the port installs what the packing list names, and no more, from files that exist.
set -eu
cd "$(dirname "$0")/.."
port=packaging/freebsd

crates() {
    echo '# Written by scripts/freebsd-port.sh from Cargo.lock.'
    awk '
        /^name = / { name = $3 }
        /^version = / { version = $3 }
        /^source = "registry/ { gsub(/"/, "", name); gsub(/"/, "", version); print name "-" version }
    ' Cargo.lock | LC_ALL=C sort | awk '
        NR == 1 { printf "CARGO_CRATES=\t%s", $0; next }
        { printf " \\\n\t\t%s", $0 }
        END { print "" }
    '
}

case ${1:-} in
    '')
        echo "usage: $0 DIRECTORY | check" >&2
        exit 2
        ;;
    check) ;;
    *)
        mkdir -p "$1"
        cp $port/Makefile $port/pkg-descr $port/pkg-plist "$1"
        crates >"$1/Makefile.crates"
        exit 0
        ;;
esac

wrong=0
complain() {
    echo "$*"
    wrong=1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n '/MKDIR/!s|.*${STAGEDIR}${PREFIX}/\([^ ]*\)$|\1|p' $port/Makefile | LC_ALL=C sort >"$work/installed"
sed 's/^@sample //' $port/pkg-plist | LC_ALL=C sort >"$work/listed"
diff "$work/installed" "$work/listed" || complain "$port/pkg-plist is not what $port/Makefile installs"
for file in $(sed -n 's|.*INSTALL.* ${WRKSRC}/\([^ ]*\) .*|\1|p' $port/Makefile); do
    [ -e "$file" ] || complain "$port/Makefile installs $file, which is not there"
done
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
grep -q "^DISTVERSION=	$version\$" $port/Makefile || complain "$port/Makefile is not of version $version"
# Every crate of the lock file that comes from a registry, and no source that a port cannot fetch.
crates >"$work/crates"
locked=$(grep -c '^source = "registry' Cargo.lock)
[ "$(grep -cE '[a-z0-9]-[0-9]+\.[0-9]+\.[0-9]+' "$work/crates")" = "$locked" ] || complain "the list of crates is not of $locked"
grep '^source = ' Cargo.lock | grep -v '"registry' && complain 'a crate comes from somewhere else than the registry'
exit $wrong
