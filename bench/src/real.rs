//! Routing tables from files: one prefix a line, a comma, and a number that stands for whom it is
//! reached by, such as the number of the autonomous system.

use std::{fs, io, path::Path};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sweepd::tables::{
    NextHopId,
    prefixes::{Prefixes4, Prefixes6},
};

/// The IPv4 prefixes of `file`, spread over next hops 1 to `next_hops` by their numbers.
///
/// # Errors
/// The file cannot be read or holds no prefix.
pub fn ipv4(file: &Path, next_hops: NextHopId) -> io::Result<Prefixes4> {
    let mut prefixes = Prefixes4::new();
    each(file, next_hops, |net, next_hop| {
        if let IpNet::V4(net) = net {
            let net: Ipv4Net = net.trunc();
            prefixes.insert(net.network().into(), net.prefix_len(), next_hop);
        }
    })?;
    if prefixes.is_empty() { Err(none(file)) } else { Ok(prefixes) }
}

/// The IPv6 prefixes of `file`, likewise.
///
/// # Errors
/// The file cannot be read or holds no prefix.
pub fn ipv6(file: &Path, next_hops: NextHopId) -> io::Result<Prefixes6> {
    let mut prefixes = Prefixes6::new();
    each(file, next_hops, |net, next_hop| {
        if let IpNet::V6(net) = net {
            let net: Ipv6Net = net.trunc();
            prefixes.insert(net.network().into(), net.prefix_len(), next_hop);
        }
    })?;
    if prefixes.is_empty() { Err(none(file)) } else { Ok(prefixes) }
}

fn none(file: &Path) -> io::Error {
    io::Error::other(format!("{}: no line begins PREFIX,NUMBER", file.display()))
}

/// Every line that begins with a prefix and a number; headers and the like are passed over.
fn each(file: &Path, next_hops: NextHopId, mut found: impl FnMut(IpNet, NextHopId)) -> io::Result<()> {
    let text = fs::read_to_string(file)
        .map_err(|e| io::Error::other(format!("{}: {e}; scripts/tables.sh fetches one", file.display())))?;
    for line in text.trim_start_matches('\u{feff}').lines() {
        let mut words = line.split(',');
        let net = words.next().and_then(|w| w.trim().parse().ok());
        let number = words.next().and_then(|w| w.trim().trim_matches('"').parse::<u64>().ok());
        if let (Some(net), Some(number)) = (net, number) {
            found(net, 1 + (number % u64::from(next_hops.max(1))) as NextHopId);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_past_its_byte_order_mark_and_header() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(
            file.path(),
            "\u{feff}prefix,asn\n\n10.0.0.0/8,65001\n192.0.2.0/24,7,more\n2001:db8::/32,3\n",
        )
        .unwrap();
        let prefixes = ipv4(file.path(), 100).unwrap();
        assert_eq!(prefixes.len(), 2);
        assert_eq!(prefixes.get(0x0a00_0000, 8), Some(2));
        assert_eq!(ipv6(file.path(), 100).unwrap().len(), 1);
        fs::write(file.path(), "nothing\n").unwrap();
        assert!(ipv4(file.path(), 100).unwrap_err().to_string().contains("PREFIX,NUMBER"));
    }
}
