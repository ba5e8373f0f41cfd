#!/bin/sh
# Fetches and unpacks the source of a Debian package: scripts/debian-source.sh PACKAGE DIRECTORY.
# Uses this machine's own package sources, as "deb-src", with lists of their own, so that nothing
# of the system changes. Prints the directory that the source is in. Exits 1, with one line that
# says why, when it cannot be had.
set -eu
[ $# -eq 2 ] || { echo "usage: $0 PACKAGE DIRECTORY" >&2; exit 2; }
package=$1
command -v apt-get >/dev/null 2>&1 || { echo "debian-source: there is no apt-get here" >&2; exit 1; }
mkdir -p "$2"
cd "$2"

found() {
    find "$PWD" -mindepth 1 -maxdepth 1 -type d -name "$package-[0-9]*" | head -1
}

if [ -z "$(found)" ]; then
    mkdir -p apt/lists/partial apt/sources
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        [ -f "$file" ] || continue
        # Other people's archives have no source of Debian's packages.
        grep -q debian "$file" || continue
        case $file in
            *.sources) sed 's/^Types:.*/Types: deb-src/' "$file" >"apt/sources/$(basename "$file")" ;;
            *) sed -n 's/^deb /deb-src /p' "$file" >"apt/sources/$(basename "$file" .list).list" ;;
        esac
    done
    log=$PWD/apt/log
    options="-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$PWD/apt/sources -o Dir::State::lists=$PWD/apt/lists -o APT::Sandbox::User=root"
    # shellcheck disable=SC2086 # one word each
    if ! { apt-get $options update && apt-get $options source --download-only "$package"; } >"$log" 2>&1; then
        echo "debian-source: the source of $package cannot be fetched: $(grep '^E:' "$log" | head -1)" >&2
        exit 1
    fi
    archive=$(find . -maxdepth 1 -name "${package}_*.orig.tar.*" ! -name '*.asc' | head -1)
    [ -n "$archive" ] || { echo "debian-source: there is no archive of $package" >&2; exit 1; }
    mkdir "$package-0.partial"
    tar -xf "$archive" -C "$package-0.partial" --strip-components=1
    version=$(basename "$archive" | sed "s/^${package}_//; s/\.orig\.tar.*//")
    mv "$package-0.partial" "$package-$version"
fi
found
