//! The options of an IPv4 header (RFC 791 section 3.1): told apart, and which of them concern a
//! router (RFC 1812 sections 4.2.2.1 and 5.2.4).
//!
//! A source route is found here so that it can be refused, the default; record route and timestamp
//! get their entries; options that nobody here knows, router alert among them, travel on untouched.

use std::net::Ipv4Addr;
use std::time::{SystemTime, UNIX_EPOCH};

/// Option: the end of the list, one byte.
pub const END: u8 = 0;
/// Option: nothing, one byte.
pub const NO_OPERATION: u8 = 1;
/// Option: routers write their addresses.
pub const RECORD_ROUTE: u8 = 7;
/// Option: routers write the time.
pub const TIMESTAMP: u8 = 68;
/// Option: go by these routers, others between them allowed.
pub const LOOSE_SOURCE_ROUTE: u8 = 131;
/// Option: go by exactly these routers.
pub const STRICT_SOURCE_ROUTE: u8 = 137;
/// Option: routers are to look at the packet (RFC 2113).
pub const ROUTER_ALERT: u8 = 148;

/// In an option's type: it goes into every fragment.
const COPIED: u8 = 0x80;

/// One option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Option<'a> {
    /// Its type, the first byte.
    pub kind: u8,
    /// All its bytes, type and length included.
    pub bytes: &'a [u8],
    /// Where it begins, in bytes from the start of the options.
    pub offset: usize,
}

impl Ipv4Option<'_> {
    /// Whether it goes into every fragment, not only the first.
    pub const fn is_copied(&self) -> bool {
        self.kind & COPIED != 0
    }
}

/// An option whose length cannot be: less than 2, or more than is left. Behind it nothing can be
/// told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadLength {
    /// Where the option begins, in bytes from the start of the options.
    pub offset: usize,
}

/// The options of a header, without no-operations, up to the end of the list or to the first that
/// is malformed.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    all: &'a [u8],
    at: usize,
}

/// Takes the options of a header (the bytes behind its fixed part) apart.
pub const fn options(bytes: &[u8]) -> Options<'_> {
    Options { all: bytes, at: 0 }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<Ipv4Option<'a>, BadLength>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let offset = self.at;
            let left = self.all.get(offset..)?;
            let kind = *left.first()?;
            if kind == NO_OPERATION {
                self.at += 1;
                continue;
            }
            let len = left.get(1).map_or(0, |len| usize::from(*len));
            // Whatever ends the list ends the walk too.
            self.at = self.all.len();
            if kind == END {
                return None;
            }
            return match left.get(..len) {
                Some(bytes) if len >= 2 => {
                    self.at = offset + len;
                    Some(Ok(Ipv4Option { kind, bytes, offset }))
                }
                _ => Some(Err(BadLength { offset })),
            };
        }
    }
}

/// Whether the options (the bytes behind the header's fixed part) hold a source route, loose or
/// strict, used up or not.
pub fn has_source_route(bytes: &[u8]) -> bool {
    options(bytes)
        .any(|option| option.is_ok_and(|o| matches!(o.kind, LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE)))
}

/// Whether the options hold a strict source route, used up or not.
pub fn is_strict(bytes: &[u8]) -> bool {
    options(bytes).any(|option| option.is_ok_and(|o| o.kind == STRICT_SOURCE_ROUTE))
}

/// A source route with an address left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceRoute {
    /// Where the packet is to go next.
    pub next: Ipv4Addr,
    /// Where the option begins, in bytes from the start of the options.
    offset: usize,
    /// Where the address stands in the option.
    at: usize,
}

/// The source route in a header's options, if there is one that is not used up.
///
/// # Errors
/// Where the options are wrong, in bytes from their start: an option of a length that cannot be, a
/// source route whose pointer leads nowhere, or a second one (RFC 1812 section 4.2.2.1).
pub fn source_route(bytes: &[u8]) -> Result<Option<SourceRoute>, usize> {
    let mut found: Option<Option<SourceRoute>> = None;
    for option in options(bytes) {
        let Ipv4Option { kind, bytes, offset } = option.map_err(|wrong| wrong.offset + 1)?;
        if !matches!(kind, LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE) {
            continue;
        }
        if found.is_some() {
            return Err(offset);
        }
        let at = next_entry(bytes, 4, 4).map_err(|within| offset + within)?;
        found = Some(at.map(|at| {
            let next = Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
            SourceRoute { next, offset, at }
        }));
    }
    Ok(found.flatten())
}

impl SourceRoute {
    /// Puts the address that the packet leaves by in place of the one that it now goes to; `bytes`
    /// are the options that the route was found in.
    pub fn advance(&self, bytes: &mut [u8], ours: Ipv4Addr) {
        if let Some(option) = bytes.get_mut(self.offset..)
            && let Some(entry) = option.get_mut(self.at..self.at + 4)
        {
            entry.copy_from_slice(&ours.octets());
            option[2] = option[2].saturating_add(4);
        }
    }
}

/// What a router enters into a packet's options.
pub struct Here<'a> {
    /// The address of the port that the packet leaves by; nothing is entered without one.
    pub address: Option<Ipv4Addr>,
    /// Whether an address is one of the router's.
    pub is_ours: &'a dyn Fn(Ipv4Addr) -> bool,
    /// Milliseconds since midnight UT.
    pub time: u32,
}

/// Milliseconds since midnight UT, by the system's clock.
pub fn milliseconds_of_the_day() -> u32 {
    const DAY: u128 = 86_400_000;
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| (since.as_millis() % DAY) as u32)
}

/// Makes the entries in a forwarded packet's options (the bytes behind the header's fixed part)
/// that their sender asks of routers: record route and timestamp (RFC 791 section 3.1, RFC 1812
/// sections 5.3.13.5 and 5.3.13.6). All else stays as it is; the header's checksum is left to the
/// caller.
///
/// # Errors
/// Where the options are wrong, in bytes from their start: an option of a length that cannot be,
/// or one of the two without room for what it announces. The packet is then to be discarded;
/// nothing behind that place has been changed.
pub fn record(bytes: &mut [u8], here: &Here<'_>) -> Result<(), usize> {
    let mut at = 0;
    loop {
        let mut walk = Options { all: bytes, at };
        let (kind, offset, len) = match walk.next() {
            None => return Ok(()),
            Some(Err(wrong)) => return Err(wrong.offset + 1),
            Some(Ok(option)) => (option.kind, option.offset, option.bytes.len()),
        };
        at = walk.at;
        let option = &mut bytes[offset..offset + len];
        match kind {
            RECORD_ROUTE => record_route(option, here),
            TIMESTAMP => timestamp(option, here),
            _ => Ok(()),
        }
        .map_err(|within| offset + within)?;
    }
}

/// Where the option's pointer says the next entry of `len` bytes goes, from the option's start;
/// none when the option is full.
fn next_entry(option: &[u8], first: u8, len: usize) -> Result<Option<usize>, usize> {
    let pointer = *option.get(2).ok_or(1usize)?;
    let at = usize::from(pointer).wrapping_sub(1);
    match pointer {
        p if p < first => Err(2),
        _ if at >= option.len() => Ok(None),
        _ if at + len > option.len() => Err(2),
        _ => Ok(Some(at)),
    }
}

fn record_route(option: &mut [u8], here: &Here<'_>) -> Result<(), usize> {
    if let (Some(at), Some(address)) = (next_entry(option, 4, 4)?, here.address) {
        option[at..at + 4].copy_from_slice(&address.octets());
        option[2] += 4;
    }
    Ok(())
}

/// Timestamp flags: times alone; each behind the address of who entered it; behind the address of
/// who is to enter it.
const TIME_ALONE: u8 = 0;
const WITH_ADDRESS: u8 = 1;
const PRESPECIFIED: u8 = 3;

fn timestamp(option: &mut [u8], here: &Here<'_>) -> Result<(), usize> {
    let how = *option.get(3).ok_or(1usize)? & 0x0f;
    let len = match how {
        TIME_ALONE => 4,
        WITH_ADDRESS | PRESPECIFIED => 8,
        _ => return Err(3),
    };
    let Some(mut at) = next_entry(option, 5, len)? else { return overflow(option, how) };
    if how == WITH_ADDRESS {
        let Some(address) = here.address else { return Ok(()) };
        option[at..at + 4].copy_from_slice(&address.octets());
    } else if how == PRESPECIFIED {
        let named: [u8; 4] = option[at..at + 4].try_into().map_err(|_| 2usize)?;
        if !(here.is_ours)(named.into()) {
            return Ok(());
        }
    }
    at += len - 4;
    option[at..at + 4].copy_from_slice(&here.time.to_be_bytes());
    option[2] += len as u8;
    Ok(())
}

/// One more router found no room; more than 15 cannot be counted.
fn overflow(option: &mut [u8], how: u8) -> Result<(), usize> {
    if how != PRESPECIFIED {
        option[3] = option[3].checked_add(0x10).ok_or(3usize)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recorded(bytes: &[u8]) -> Result<Vec<u8>, usize> {
        let us = Ipv4Addr::new(10, 0, 1, 1);
        let here = Here { address: Some(us), is_ours: &|address| address == us, time: 0x0102_0304 };
        let mut bytes = bytes.to_vec();
        record(&mut bytes, &here).map(|()| bytes)
    }

    #[test]
    fn rule_19_a_route_is_recorded_while_there_is_room() {
        let filled = [1, 7, 7, 8, 10, 0, 1, 1];
        assert_eq!(recorded(&[1, 7, 7, 4, 0, 0, 0, 0]), Ok(filled.to_vec()));
        assert_eq!(recorded(&filled), Ok(filled.to_vec()), "full: forwarded as it is");
        assert_eq!(recorded(&[7, 7, 5, 0, 0, 0, 0, 0]), Err(2), "some room, but not enough");
        assert_eq!(recorded(&[7, 7, 3, 0, 0, 0, 0, 0]), Err(2), "a pointer into itself");
        assert_eq!(recorded(&[1, 1, 7, 2]), Err(3), "no pointer");
        assert_eq!(recorded(&[148, 4, 0, 0, 7, 9, 4, 0]), Err(5), "longer than the header");
    }

    #[test]
    fn rule_19_the_time_is_entered_as_the_flags_ask() {
        assert_eq!(recorded(&[68, 8, 5, 0, 0, 0, 0, 0]), Ok(vec![68, 8, 9, 0, 1, 2, 3, 4]));
        let with = recorded(&[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(with, [68, 12, 13, 1, 10, 0, 1, 1, 1, 2, 3, 4]);
        let named = recorded(&[68, 12, 5, 3, 10, 0, 1, 1, 0, 0, 0, 0]).unwrap();
        assert_eq!(named, [68, 12, 13, 3, 10, 0, 1, 1, 1, 2, 3, 4]);
        let other = [68, 12, 5, 3, 10, 0, 1, 2, 0, 0, 0, 0];
        assert_eq!(recorded(&other), Ok(other.to_vec()), "another is to enter its time");
        assert_eq!(recorded(&[68, 8, 9, 0x10, 1, 2, 3, 4]), Ok(vec![68, 8, 9, 0x20, 1, 2, 3, 4]));
        assert_eq!(recorded(&[68, 8, 9, 0xf0, 1, 2, 3, 4]), Err(3), "the count overflows");
        assert_eq!(recorded(&[68, 8, 5, 1, 0, 0, 0, 0]), Err(2), "no room for both");
        assert_eq!(recorded(&[68, 8, 5, 7, 0, 0, 0, 0]), Err(3), "flags that nobody knows");
    }

    proptest! {
        #[test]
        fn no_options_make_recording_panic(bytes in prop::collection::vec(any::<u8>(), 0..=40), kind in prop::sample::select(vec![7u8, 68]), len in 0..41u8) {
            let mut options = vec![kind, len];
            options.extend(bytes);
            let _ = recorded(&options);
        }
    }

    #[test]
    fn rule_19_a_source_route_is_found_wherever_it_stands() {
        assert!(has_source_route(&[131, 7, 4, 10, 0, 0, 1, 0]));
        assert!(has_source_route(&[1, 137, 7, 8, 10, 0, 0, 1]), "used up, behind a no-operation");
        assert!(has_source_route(&[148, 4, 0, 0, 7, 3, 4, 131, 3, 4, 0, 0]), "behind others");
    }

    #[test]
    fn rule_19_other_options_are_no_source_route() {
        assert!(!has_source_route(&[]));
        assert!(!has_source_route(&[148, 4, 0, 0]));
        assert!(!has_source_route(&[7, 7, 4, 131, 137, 131, 137, 0]), "inside another option");
        assert!(!has_source_route(&[0, 131, 3, 4]), "behind the end of the list");
    }

    #[test]
    fn an_option_of_a_length_that_cannot_be_ends_the_walk() {
        let all: Vec<_> = options(&[148, 4, 0, 0, 1, 9, 1, 131]).collect();
        assert_eq!(all.len(), 2);
        assert!(all[0].is_ok_and(|o| o.is_copied() && o.bytes == [148, 4, 0, 0] && o.offset == 0));
        assert_eq!(all[1], Err(BadLength { offset: 5 }));
        assert_eq!(options(&[7]).next(), Some(Err(BadLength { offset: 0 })), "no length at all");
        assert_eq!(options(&[7, 200, 0, 0]).next(), Some(Err(BadLength { offset: 0 })), "too long");
    }

    proptest! {
        #[test]
        fn the_walk_ends_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut end = 0;
            for option in options(&bytes).flatten() {
                prop_assert!(option.offset >= end && option.bytes.len() >= 2);
                end = option.offset + option.bytes.len();
            }
            prop_assert!(end <= bytes.len());
        }
    }
}
