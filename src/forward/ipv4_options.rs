//! The options of an IPv4 header (RFC 791 section 3.1): told apart, and which of them concern a
//! router (RFC 1812 sections 4.2.2.1 and 5.2.4).
//!
//! A source route is found here so that it can be refused, the default; options that nobody here
//! knows, router alert among them, travel on untouched.

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
