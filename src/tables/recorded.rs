//! Real routing tables, read from the files that `scripts/tables.sh` fetches: for benchmarks and
//! tests. Which router the next hops were, such files do not say; the origin's number stands for it.

use std::{
    fs, io,
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
    str::FromStr,
};

use super::NextHopId;
use super::prefixes::{Address, Prefixes4, Prefixes6};

/// The IPv4 table of a file whose lines are `PREFIX,ASN`, with next hops 1 to `next_hops` by ASN.
///
/// # Errors
/// When the file cannot be read, or a line is something else.
///
/// # Panics
/// When `next_hops` is 0.
pub fn ipv4(path: &Path, next_hops: NextHopId) -> io::Result<Prefixes4> {
    let mut prefixes = Prefixes4::new();
    each_line(path, |fields| {
        let (address, length) = fields.next()?.split_once('/')?;
        let (address, length) = (parse::<Ipv4Addr>(address)?, parse(length)?);
        prefixes.insert(address.into(), length, next_hop(fields.next()?, next_hops)?);
        Some(())
    })?;
    Ok(prefixes)
}

/// The IPv6 table of a file whose lines are `FIRST,LAST,ASN`: the least number of prefixes that
/// make up each range, with next hops 1 to `next_hops` by ASN.
///
/// # Errors
/// When the file cannot be read, or a line is something else.
///
/// # Panics
/// When `next_hops` is 0.
pub fn ipv6(path: &Path, next_hops: NextHopId) -> io::Result<Prefixes6> {
    let mut prefixes = Prefixes6::new();
    each_line(path, |fields| {
        let (first, last) = (parse::<Ipv6Addr>(fields.next()?)?, parse::<Ipv6Addr>(fields.next()?)?);
        let next_hop = next_hop(fields.next()?, next_hops)?;
        for (address, length) in cover(first.into(), last.into()) {
            prefixes.insert(address, length, next_hop);
        }
        Some(())
    })?;
    Ok(prefixes)
}

/// Has `take` look at the fields of each line.
fn each_line(
    path: &Path,
    mut take: impl FnMut(&mut dyn Iterator<Item = &str>) -> Option<()>,
) -> io::Result<()> {
    for (number, line) in (1..).zip(fs::read_to_string(path)?.lines()) {
        if take(&mut line.split(',')).is_none() {
            let text = format!("{}, line {number}: {line:?} is no route", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
    }
    Ok(())
}

fn parse<T: FromStr>(text: &str) -> Option<T> {
    text.trim().parse().ok()
}

fn next_hop(asn: &str, next_hops: NextHopId) -> Option<NextHopId> {
    Some(1 + (parse::<u32>(asn)? % u32::from(next_hops)) as NextHopId)
}

/// The least number of prefixes that make up the range from `first` to `last`.
fn cover<A: Address>(first: A, last: A) -> Vec<(A, u8)> {
    let mut prefixes = Vec::new();
    let mut next = Some(first).filter(|first| *first <= last);
    while let Some(first) = next {
        // The shortest prefix that begins here and does not go too far.
        let fits = |length: &u8| first.network(*length) == first && first.last(*length) <= last;
        let length = (0..=A::BITS).find(fits).unwrap_or(A::BITS);
        prefixes.push((first, length));
        let end = first.last(length);
        next = (end < last).then(|| end.next());
    }
    prefixes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn a_range_becomes_the_least_number_of_prefixes() {
        assert_eq!(cover(0u32, u32::MAX), [(0, 0)]);
        assert_eq!(
            cover(0x0a00_0001u32, 0x0a00_0006),
            [(0x0a00_0001, 32), (0x0a00_0002, 31), (0x0a00_0004, 31), (0x0a00_0006, 32)]
        );
        assert_eq!(cover(u128::MAX, u128::MAX), [(u128::MAX, 128)]);
        assert_eq!(cover(2u32, 1), []);
    }

    #[test]
    fn files_are_read_and_what_is_no_route_is_named() {
        let v4 = file("192.0.2.0/24,64500\n198.51.100.0/25,64501\n");
        let prefixes = ipv4(v4.path(), 100).unwrap();
        assert_eq!(prefixes.iter().collect::<Vec<_>>(), [(0xc000_0200, 24, 1), (0xc633_6400, 25, 2)]);
        let v6 = file("2001:db8::,2001:db8:1:ffff:ffff:ffff:ffff:ffff,64502\n");
        let prefixes = ipv6(v6.path(), 100).unwrap();
        assert_eq!(prefixes.iter().collect::<Vec<_>>(), [(0x2001_0db8 << 96, 47, 3)]);
        let bad = file("192.0.2.0/24,64500\n192.0.2.0,64500\n");
        let error = ipv4(bad.path(), 100).unwrap_err().to_string();
        assert!(error.ends_with("line 2: \"192.0.2.0,64500\" is no route"), "{error}");
    }
}
