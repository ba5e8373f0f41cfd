//! IPv4 fragmentation (RFC 791 section 3.2, RFC 1812 section 4.2.2.7): one packet that is too long
//! for the way out, in pieces that are not. IPv6 packets are never fragmented on their way.
//!
//! The caller finds a place for each piece and has it written there:
//!
//! ```
//! # use sweepd::forward::fragment::Fragments;
//! # let mut packet = vec![0u8; 1500];
//! # packet[..12].copy_from_slice(&[0x45, 0, 5, 220, 0, 1, 0, 0, 64, 17, 0, 0]);
//! # let mut place = [0u8; 1400];
//! let mut pieces = Fragments::new(&packet, 1400).unwrap();
//! assert_eq!(pieces.remaining(), 2);
//! while let Some(len) = pieces.write_next(&mut place) {
//!     // send place[..len]
//! #   assert!(len <= 1400);
//! }
//! ```

use zerocopy::FromBytes;

use super::ipv4_options::{self, Ipv4Option};
use crate::wire::ipv4::{self, HEADER_LEN, HEADER_MAX, Ipv4Header, MORE_FRAGMENTS};

/// Why a packet is not fragmented.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Its sender forbids it (DF): answer "fragmentation needed".
    DontFragment,
    /// It is no valid IPv4 packet, or a fragment that no datagram can hold.
    Malformed,
    /// Not even 8 bytes fit behind the header.
    MtuTooSmall,
}

/// The fragments of one packet, in order.
#[derive(Clone, Debug)]
pub struct Fragments<'a> {
    /// The header with all options: of the first fragment.
    first_header: &'a [u8],
    /// The header with the options that go into every fragment: of the later ones.
    later_header: [u8; HEADER_MAX],
    later_header_len: usize,
    /// What is not yet written.
    payload: &'a [u8],
    /// Where `payload` lies in the datagram, in bytes.
    offset: usize,
    mtu: usize,
    /// Whether the packet itself has fragments behind it.
    more_behind: bool,
    first: bool,
}

impl<'a> Fragments<'a> {
    /// Gets ready to fragment `packet`, from its IPv4 header on, with the TTL that the fragments
    /// are to have (what follows its total length is padding), into fragments of at most `mtu`
    /// bytes. The header's checksum is not looked at.
    ///
    /// # Errors
    /// When the packet may not or cannot be fragmented: see [`Refused`].
    pub fn new(packet: &'a [u8], mtu: u16) -> Result<Self, Refused> {
        let parsed = ipv4::parse(packet).map_err(|_| Refused::Malformed)?;
        let (header, payload) = (parsed.header, parsed.payload);
        if header.dont_fragment() {
            return Err(Refused::DontFragment);
        }
        let (offset, more_behind) = (header.fragment_offset(), header.more_fragments());
        let first_header = &packet[..parsed.header_len()];
        let beyond = first_header.len() + offset + payload.len() > usize::from(u16::MAX);
        if beyond || (more_behind && !payload.len().is_multiple_of(8)) {
            return Err(Refused::Malformed);
        }
        let mtu = usize::from(mtu);
        if mtu < first_header.len() + 8 {
            return Err(Refused::MtuTooSmall);
        }
        let (later_header, later_header_len) = later_header(first_header);
        Ok(Self {
            first_header,
            later_header,
            later_header_len,
            payload,
            offset,
            mtu,
            more_behind,
            first: true,
        })
    }

    /// How many fragments are still to be written.
    pub fn remaining(&self) -> usize {
        let mut left = self.clone();
        std::iter::from_fn(|| left.advance()).count()
    }

    /// Writes the next fragment as a whole IP packet into `place`, and gives its length in bytes,
    /// at most the MTU. `None` when there are no more, or when `place` is too short for this one:
    /// then nothing has changed, and [`Fragments::remaining`] is not 0.
    pub fn write_next(&mut self, place: &mut [u8]) -> Option<usize> {
        let mut after = self.clone();
        let (data, last) = after.advance()?;
        let header: &[u8] =
            if self.first { self.first_header } else { &self.later_header[..self.later_header_len] };
        let len = header.len() + data.len();
        let (header_place, data_place) = place.get_mut(..len)?.split_at_mut(header.len());
        header_place.copy_from_slice(header);
        data_place.copy_from_slice(data);

        let (fields, _) = Ipv4Header::mut_from_prefix(header_place).ok()?;
        // The reserved bit stays as it came; offset and MF are this fragment's own.
        let reserved = fields.flags_offset.get() & 0x8000;
        let more = if last && !self.more_behind { 0 } else { MORE_FRAGMENTS };
        fields.flags_offset.set(reserved | more | (self.offset / 8) as u16);
        fields.total_len.set(len as u16);
        ipv4::fill_checksum(header_place);
        *self = after;
        Some(len)
    }

    /// Goes past the next fragment: its data, and whether it is the last.
    fn advance(&mut self) -> Option<(&'a [u8], bool)> {
        if self.payload.is_empty() && !self.first {
            return None;
        }
        let header_len = if self.first { self.first_header.len() } else { self.later_header_len };
        let room = self.mtu - header_len;
        // All but the last carry a multiple of 8 bytes.
        let take = if self.payload.len() <= room { self.payload.len() } else { room & !7 };
        let (data, rest) = self.payload.split_at(take);
        self.payload = rest;
        self.offset += take;
        self.first = false;
        Some((data, rest.is_empty()))
    }
}

/// The header with those options only whose copy bit is set (RFC 791 section 3.1), padded to whole
/// words, and its length in bytes.
fn later_header(first: &[u8]) -> ([u8; HEADER_MAX], usize) {
    let mut header = [0; HEADER_MAX];
    let (fixed, options) = first.split_at(HEADER_LEN);
    header[..HEADER_LEN].copy_from_slice(fixed);
    let mut len = HEADER_LEN;
    // Behind an option of a length that cannot be, nothing can be told apart: that is left out.
    for option in ipv4_options::options(options).map_while(Result::ok).filter(Ipv4Option::is_copied) {
        header[len..len + option.bytes.len()].copy_from_slice(option.bytes);
        len += option.bytes.len();
    }
    // The bytes up to the next whole word are 0, end of options.
    len = len.next_multiple_of(4);
    header[0] = 0x40 | (len / 4) as u8;
    (header, len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    fn packet(options: &[u8], payload: &[u8], flags_offset: u16) -> Vec<u8> {
        let mut header = Ipv4Header::new([192, 0, 2, 1].into(), [203, 0, 113, 9].into(), 17, 0);
        header.version_len = 0x40 | (5 + options.len() as u8 / 4);
        header.total_len.set((20 + options.len() + payload.len()) as u16);
        header.id.set(0x1234);
        header.flags_offset.set(flags_offset);
        let mut packet = [header.as_bytes(), options, payload].concat();
        let header_len = 20 + options.len();
        ipv4::fill_checksum(&mut packet[..header_len]);
        packet
    }

    fn pieces(packet: &[u8], mtu: u16) -> Result<Vec<Vec<u8>>, Refused> {
        let mut fragments = Fragments::new(packet, mtu)?;
        let (mut place, mut all) = (vec![0xee; usize::from(mtu)], Vec::new());
        while fragments.remaining() > 0 {
            let before = fragments.remaining();
            let len = fragments.write_next(&mut place).expect("the MTU is room enough");
            assert_eq!(fragments.remaining(), before - 1);
            all.push(place[..len].to_vec());
        }
        assert_eq!(fragments.write_next(&mut place), None);
        Ok(all)
    }

    #[test]
    fn rule_20_a_packet_of_1500_bytes_goes_through_1400_in_two() {
        let payload: Vec<u8> = (0..1480u32).map(|n| n as u8).collect();
        let all = pieces(&packet(&[], &payload, 0), 1400).unwrap();
        let fields: Vec<_> = all
            .iter()
            .map(|p| ipv4::parse(p).unwrap())
            .map(|p| (p.header.fragment_offset(), p.header.more_fragments(), p.payload.len(), p.sum_ok()))
            .collect();
        assert_eq!(fields, [(0, true, 1376, true), (1376, false, 104, true)]);
        assert!(all.iter().all(|p| ipv4::parse(p).unwrap().header.id.get() == 0x1234));
    }

    #[test]
    fn rule_20_a_packet_with_df_is_never_fragmented() {
        assert_eq!(pieces(&packet(&[], &[0; 1480], ipv4::DONT_FRAGMENT), 1400), Err(Refused::DontFragment));
    }

    #[test]
    fn rule_20_a_fragment_is_fragmented_with_more_behind_it_if_there_was() {
        let ends = |flags_offset| {
            let all = pieces(&packet(&[], &[7; 1480], flags_offset), 1400).unwrap();
            let of = |p: &Vec<u8>| {
                let p = ipv4::parse(p).unwrap();
                (p.header.fragment_offset(), p.header.more_fragments())
            };
            all.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(ends(MORE_FRAGMENTS | 100), [(800, true), (2176, true)], "from the midst");
        assert_eq!(ends(100), [(800, true), (2176, false)], "the last");
    }

    #[test]
    fn options_go_into_later_fragments_by_their_copy_bit() {
        let options = [
            0x07, 7, 4, 1, 2, 3, 4, // record route: first fragment only
            0x94, 4, 0, 0,    // router alert: copied
            0x01, // no operation
            0x82, 3, 9, // security: copied, of an odd length
            0x00,
        ];
        let all = pieces(&packet(&options, &[5; 200], 0), 124).unwrap();
        let (first, later) = (ipv4::parse(&all[0]).unwrap(), ipv4::parse(&all[1]).unwrap());
        assert_eq!(first.options, options);
        assert_eq!(later.options, [0x94, 4, 0, 0, 0x82, 3, 9, 0]);
        assert!(first.sum_ok() && later.sum_ok());
    }

    #[test]
    fn options_that_cannot_be_told_apart_are_left_out_of_later_fragments() {
        let all = pieces(&packet(&[0x94, 4, 0, 0, 0x83, 1, 0x94, 4], &[5; 200], 0), 124).unwrap();
        assert_eq!(ipv4::parse(&all[1]).unwrap().options, [0x94, 4, 0, 0]);
    }

    #[test]
    fn a_fragment_that_no_datagram_can_hold_is_refused() {
        assert_eq!(pieces(&packet(&[], &[0; 1480], 8100), 1400), Err(Refused::Malformed), "beyond 65535");
        assert_eq!(pieces(&packet(&[], &[0; 1479], MORE_FRAGMENTS), 1400), Err(Refused::Malformed));
        assert_eq!(pieces(&packet(&[], &[0; 80], 0), 27), Err(Refused::MtuTooSmall));
        assert_eq!(pieces(&[0x45; 19], 1400), Err(Refused::Malformed));
    }

    #[test]
    fn a_place_too_short_leaves_the_fragment_to_be_written() {
        let packet = packet(&[], &[3; 100], 0);
        let mut fragments = Fragments::new(&packet, 76).unwrap();
        let mut place = [0; 76];
        assert_eq!(fragments.write_next(&mut place[..75]), None);
        assert_eq!(fragments.remaining(), 2);
        assert_eq!(fragments.write_next(&mut place), Some(76));
        assert_eq!(fragments.write_next(&mut place[..64]), Some(64));
        assert_eq!(fragments.remaining(), 0);
    }

    proptest! {
        #[test]
        fn rule_20_reassembling_the_fragments_gives_the_original(
            payload in prop::collection::vec(any::<u8>(), 0..3000),
            options in prop::collection::vec(any::<u8>(), 0..=10),
            offset in 0..1000u16, more: bool, mtu in 68..1600u16,
        ) {
            let options = [&options[..], &[0; 4][..(4 - options.len() % 4) % 4]].concat();
            let payload = if more { &payload[..payload.len() & !7] } else { &payload[..] };
            let original = packet(&options, payload, offset | if more { MORE_FRAGMENTS } else { 0 });
            let all = pieces(&original, mtu).unwrap();
            let (mut data, mut at) = (Vec::new(), usize::from(offset) * 8);
            for (n, piece) in all.iter().enumerate() {
                prop_assert!(piece.len() <= usize::from(mtu));
                let parsed = ipv4::parse(piece).unwrap();
                prop_assert!(parsed.sum_ok());
                prop_assert_eq!(parsed.header.total_len.get() as usize, piece.len());
                prop_assert_eq!(parsed.header.fragment_offset(), at);
                let last = n + 1 == all.len();
                prop_assert_eq!(parsed.header.more_fragments(), more || !last);
                prop_assert!(last || parsed.payload.len().is_multiple_of(8));
                if n == 0 { prop_assert_eq!(parsed.options, &options[..]); }
                at += parsed.payload.len();
                data.extend_from_slice(parsed.payload);
            }
            prop_assert_eq!(data, payload);
        }

        #[test]
        fn no_bytes_make_fragmenting_panic(mut bytes in prop::collection::vec(any::<u8>(), 1..300), first in 0x44..=0x4fu8, mtu: u16) {
            bytes[0] = first;
            if bytes.len() > 7 { bytes[6] &= !0x40; bytes[2] = 0; }
            if let Ok(mut fragments) = Fragments::new(&bytes, mtu) {
                let mut place = vec![0; usize::from(mtu)];
                while let Some(len) = fragments.write_next(&mut place) { prop_assert!(len <= usize::from(mtu)); }
                prop_assert_eq!(fragments.remaining(), 0);
            }
        }
    }
}
