#!/bin/sh
# Fetches real routing tables for the benchmark and the tests of the full table, by the package
# managers' own means, into TARGET/tables, where they stay:
#
#   ipv4.csv  886,117 prefixes of a full Internet table, as PREFIX,ASN: from the crate rotonda-store
#   ipv6.csv  ranges of IPv6 addresses, as FIRST,LAST,ASN: from the npm package @ip-location-db/asn
#
# What cannot be had is said in one line that begins with SKIPPED, and is no failure.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
tables=${CARGO_TARGET_DIR:-target}/tables
prefixes=886117
mkdir -p "$tables"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The crate's file has a byte order mark, a header, an empty line and some prefixes more than once;
# the first of them counts.
ipv4() {
    mkdir "$work/crate"
    printf '[package]\nname = "tables"\nversion = "0.0.0"\nedition = "2021"\n[lib]\npath = "lib.rs"\n[dependencies]\nrotonda-store = "=0.5.0"\n' \
        >"$work/crate/Cargo.toml"
    touch "$work/crate/lib.rs"
    (cd "$work/crate" && "$cargo" vendor --quiet vendor >/dev/null 2>&1) ||
        { echo 'SKIPPED: the real IPv4 table, for want of the crate rotonda-store 0.5.0'; return 0; }
    awk -F, '{ sub(/\r$/, "") }
             $1 ~ /^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$/ && !(($1, $2) in seen) {
                 seen[$1, $2] = 1
                 print $1 "/" $2 "," $3
             }' "$work/crate/vendor/rotonda-store/data/uniq_pfx_asn_dfz_rnd.csv" >"$work/ipv4.csv"
    found=$(wc -l <"$work/ipv4.csv")
    [ "$found" -eq $prefixes ] || { echo "tables: $found IPv4 prefixes, not $prefixes" >&2; return 1; }
    mv "$work/ipv4.csv" "$tables/ipv4.csv"
}

ipv6() {
    command -v npm >/dev/null 2>&1 || { echo 'SKIPPED: the real IPv6 table, for want of npm'; return 0; }
    (cd "$work" && npm pack --silent @ip-location-db/asn@2.3.2026061719 && tar xzf ip-location-db-asn-*.tgz) \
        >/dev/null 2>&1 ||
        { echo 'SKIPPED: the real IPv6 table, for want of the npm package @ip-location-db/asn'; return 0; }
    # Behind the number comes a name, which nobody needs.
    cut -d, -f1-3 "$work/package/asn-ipv6.csv" >"$work/ipv6.csv"
    mv "$work/ipv6.csv" "$tables/ipv6.csv"
}

[ -s "$tables/ipv4.csv" ] || ipv4
[ -s "$tables/ipv6.csv" ] || ipv6
for file in ipv4.csv ipv6.csv; do
    [ ! -s "$tables/$file" ] || echo "$tables/$file: $(wc -l <"$tables/$file") lines"
done
