//! IPv4 headers (RFC 791), and the checks that a router makes of them (RFC 1812 section 5.2.2).

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Malformed;
use super::checksum::{Sum, after_ttl_decrement};

/// Length of a header without options, in bytes.
pub const HEADER_LEN: usize = 20;

/// Length of the longest header, in bytes.
pub const HEADER_MAX: usize = 60;

/// In `flags_offset`: the packet must not be fragmented.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// In `flags_offset`: more fragments follow.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// In `flags_offset`: where the fragment lies, in units of 8 bytes.
pub const OFFSET_MASK: u16 = 0x1fff;

/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;

/// The header without its options, as it stands in the packet.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Ipv4Header {
    /// Version (4 bits) and header length in units of 4 bytes (4 bits).
    pub version_len: u8,
    /// Differentiated services (6 bits) and congestion (2 bits).
    pub tos: u8,
    /// Length of header and payload, in bytes.
    pub total_len: U16,
    /// What fragments of one datagram share.
    pub id: U16,
    /// [`DONT_FRAGMENT`], [`MORE_FRAGMENTS`] and the offset.
    pub flags_offset: U16,
    /// Hops left.
    pub ttl: u8,
    /// What the payload is.
    pub protocol: u8,
    /// Over the header and its options.
    pub checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

const _: () = assert!(size_of::<Ipv4Header>() == HEADER_LEN);

impl Ipv4Header {
    /// A header without options for `payload_len` bytes, TTL 64, all else 0; the checksum is
    /// still to be [filled in](fill_checksum).
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, payload_len: u16) -> Self {
        Self {
            version_len: 0x45,
            tos: 0,
            total_len: U16::new(payload_len.saturating_add(HEADER_LEN as u16)),
            id: U16::new(0),
            flags_offset: U16::new(0),
            ttl: 64,
            protocol,
            checksum: U16::new(0),
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// Who sent the packet.
    pub fn source(&self) -> Ipv4Addr {
        self.source.into()
    }

    /// Who is to receive it.
    pub fn destination(&self) -> Ipv4Addr {
        self.destination.into()
    }

    /// Length of the header with its options by its own word, in bytes: 0 to 60.
    pub const fn header_len(&self) -> usize {
        (self.version_len & 0x0f) as usize * 4
    }

    /// Where the fragment lies in its datagram, in bytes.
    pub const fn fragment_offset(&self) -> usize {
        (self.flags_offset.get() & OFFSET_MASK) as usize * 8
    }

    /// Whether fragments follow this one.
    pub const fn more_fragments(&self) -> bool {
        self.flags_offset.get() & MORE_FRAGMENTS != 0
    }

    /// Whether it is a fragment of a datagram, the first included.
    pub const fn is_fragment(&self) -> bool {
        self.flags_offset.get() & (MORE_FRAGMENTS | OFFSET_MASK) != 0
    }

    /// Whether it must not be fragmented.
    pub const fn dont_fragment(&self) -> bool {
        self.flags_offset.get() & DONT_FRAGMENT != 0
    }

    /// Takes one from the TTL and brings the checksum along (RFC 1624); gives the new TTL. A TTL
    /// of 0 stays.
    pub fn decrement_ttl(&mut self) -> u8 {
        if self.ttl != 0 {
            self.ttl -= 1;
            self.checksum.set(after_ttl_decrement(self.checksum.get()));
        }
        self.ttl
    }
}

/// A packet taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    /// The header's fixed part.
    pub header: &'a Ipv4Header,
    /// The options, padding included: 0 to 40 bytes.
    pub options: &'a [u8],
    /// What the header announces, without the link's padding.
    pub payload: &'a [u8],
}

impl Ipv4<'_> {
    /// Length of the header with its options, in bytes.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Whether the header's checksum is right.
    pub fn sum_ok(&self) -> bool {
        Sum::new().bytes(self.header.as_bytes()).bytes(self.options).fold() == 0xffff
    }
}

/// Takes a packet apart, from its IPv4 header on, and makes the checks of RFC 1812 section 5.2.2
/// but for the checksum ([`Ipv4::sum_ok`]): there are 20 bytes, the version is 4, the header has
/// at least 5 words, the total length is no less than the header and no more than there is.
///
/// # Errors
/// [`Malformed::Short`] when bytes are missing, [`Malformed::Field`] when a field is wrong.
pub fn parse(bytes: &[u8]) -> Result<Ipv4<'_>, Malformed> {
    let packet = parse_quoted(bytes)?;
    let total_len = usize::from(packet.header.total_len.get());
    if total_len > bytes.len() { Err(Malformed::Short) } else { Ok(packet) }
}

/// Like [`parse`], for a packet quoted in an ICMP error, whose payload may be cut short.
///
/// # Errors
/// [`Malformed::Short`] when the header is not all there, [`Malformed::Field`] when a field is
/// wrong.
pub fn parse_quoted(bytes: &[u8]) -> Result<Ipv4<'_>, Malformed> {
    let (header, rest) = Ipv4Header::ref_from_prefix(bytes).map_err(|_| Malformed::Short)?;
    let (header_len, total_len) = (header.header_len(), usize::from(header.total_len.get()));
    if header.version_len >> 4 != 4 || header_len < HEADER_LEN || total_len < header_len {
        return Err(Malformed::Field);
    }
    let (options, rest) = rest.split_at_checked(header_len - HEADER_LEN).ok_or(Malformed::Short)?;
    let payload_len = (total_len - header_len).min(rest.len());
    Ok(Ipv4 { header, options, payload: &rest[..payload_len] })
}

/// Whether the checksum of a header without options is right, in a few additions: the same answer
/// as [`Ipv4::sum_ok`].
#[inline]
pub fn header_sum_ok(header: &[u8; HEADER_LEN]) -> bool {
    // The sum does not care how wide the words are nor in which order their bytes lie, as long as
    // each carry out of the top comes back in below (RFC 1071 section 2).
    let [a, b, c] = split(header);
    let (sum, carry) = a.overflowing_add(b);
    let (sum, carry_again) = sum.overflowing_add(c + u64::from(carry));
    // After a second overflow little is left in the sum: this does not overflow.
    let sum = sum + u64::from(carry_again);
    // Twice: the upper half becomes the sum of both halves and of the carry out of the lower.
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    sum.wrapping_add(sum.rotate_left(16)) >> 16 == 0xffff
}

#[inline]
fn split(header: &[u8; HEADER_LEN]) -> [u64; 3] {
    let h = header;
    [
        u64::from_ne_bytes([h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]]),
        u64::from_ne_bytes([h[8], h[9], h[10], h[11], h[12], h[13], h[14], h[15]]),
        u64::from(u32::from_ne_bytes([h[16], h[17], h[18], h[19]])),
    ]
}

/// Makes the checksum of a header with its options and fills it in. `header` is the header and
/// nothing else; one shorter than 20 bytes is left alone.
pub fn fill_checksum(header: &mut [u8]) {
    let sum = Sum::new().bytes(header);
    if let Ok((fixed, _)) = Ipv4Header::mut_from_prefix(header) {
        let without = sum.word(!fixed.checksum.get());
        fixed.checksum.set(without.checksum());
    }
}

/// Whether the address can be that of a single host: not in 0/8, 127/8, class D or class E, and
/// not 255.255.255.255 (RFC 1812 sections 4.3.2.7 and 5.3.7).
pub const fn is_single_host(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first != 0 && first != 127 && first < 224
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> [u8; 24] {
        let source = Ipv4Addr::new(192, 0, 2, 1);
        let header = Ipv4Header::new(source, Ipv4Addr::new(198, 51, 100, 1), UDP, 4);
        let mut packet = [0u8; 24];
        packet[..20].copy_from_slice(header.as_bytes());
        fill_checksum(&mut packet[..20]);
        packet
    }

    #[test]
    fn rule_6_each_header_check_of_rfc_1812_5_2_2_refuses() {
        let good = sample();
        assert!(parse(&good).unwrap().sum_ok());
        let with = |place: usize, value: u8| {
            let mut packet = good;
            packet[place] = value;
            parse(&packet).map(|_| ())
        };
        assert_eq!(parse(&good[..19]).err(), Some(Malformed::Short), "fewer than 20 bytes");
        assert_eq!(with(0, 0x55), Err(Malformed::Field), "version 5");
        assert_eq!(with(0, 0x44), Err(Malformed::Field), "four words of header");
        assert_eq!(with(3, 19), Err(Malformed::Field), "total length less than the header");
        assert_eq!(with(3, 25), Err(Malformed::Short), "total length more than there is");
        let mut wrong = good;
        wrong[10] ^= 1;
        assert!(!parse(&wrong).unwrap().sum_ok(), "checksum");
    }

    #[test]
    fn rule_7_the_links_padding_is_no_payload() {
        let mut frame = sample().to_vec();
        frame.extend([0xee; 22]);
        assert_eq!(parse(&frame).unwrap().payload.len(), 4);
    }

    #[test]
    fn options_are_set_apart_from_the_payload() {
        let mut packet = [0u8; 32];
        packet[..20].copy_from_slice(Ipv4Header::new([10; 4].into(), [11; 4].into(), UDP, 12).as_bytes());
        packet[0] = 0x47;
        packet[20..28].copy_from_slice(&[1; 8]);
        fill_checksum(&mut packet[..28]);
        let parsed = parse(&packet).unwrap();
        assert_eq!((parsed.options, parsed.payload.len(), parsed.header_len()), (&[1u8; 8][..], 4, 28));
        assert!(parsed.sum_ok());
        packet[0] = 0x4f;
        packet[3] = 60;
        assert_eq!(parse(&packet).err(), Some(Malformed::Short), "options that are not all there");
    }

    #[test]
    fn rule_1_the_ttl_goes_down_by_one_and_the_checksum_stays_right() {
        let mut packet = sample();
        for ttl in (0..64).rev() {
            let (header, _) = Ipv4Header::mut_from_prefix(&mut packet).unwrap();
            assert_eq!(header.decrement_ttl(), ttl);
            assert!(parse(&packet).unwrap().sum_ok());
        }
        let (header, _) = Ipv4Header::mut_from_prefix(&mut packet).unwrap();
        assert_eq!(header.decrement_ttl(), 0);
        assert!(parse(&packet).unwrap().sum_ok());
    }

    #[test]
    fn rule_12_networks_loopback_and_classes_d_and_e_are_no_single_host() {
        for no in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.5", "240.0.0.1", "255.255.255.255"] {
            assert!(!is_single_host(no.parse().unwrap()), "{no}");
        }
        assert!(is_single_host(Ipv4Addr::new(10, 0, 0, 255)));
        assert!(is_single_host(Ipv4Addr::new(223, 255, 255, 254)));
    }

    #[test]
    fn rule_6_the_fast_header_check_agrees_for_every_checksum_field() {
        let mut header: [u8; 20] = sample()[..20].try_into().unwrap();
        for field in 0..=0xffffu16 {
            header[10..12].copy_from_slice(&field.to_be_bytes());
            assert_eq!(header_sum_ok(&header), Sum::new().bytes(&header).fold() == 0xffff, "{field:#x}");
        }
        assert!(!header_sum_ok(&[0; 20]));
        assert!(header_sum_ok(&[0xff; 20]), "a sum of all ones, as full recomputation has it");
    }

    proptest! {
        #[test]
        fn rule_6_the_fast_header_check_agrees_for_random_headers(mut header in any::<[u8; 20]>(), place in 0..20usize) {
            prop_assert_eq!(header_sum_ok(&header), Sum::new().bytes(&header).fold() == 0xffff);
            fill_checksum(&mut header);
            prop_assert!(header_sum_ok(&header));
            header[place] ^= 0x10;
            prop_assert!(!header_sum_ok(&header));
        }

        #[test]
        fn the_fast_header_check_agrees_near_its_carries(picks in prop::array::uniform20(0..4usize)) {
            let header = picks.map(|p| [0x00, 0x01, 0xfe, 0xff][p]);
            prop_assert_eq!(header_sum_ok(&header), Sum::new().bytes(&header).fold() == 0xffff);
        }
    }
}
