//! The tester's frames: UDP over IPv4, with a trial's number, the frame's number and the time of
//! sending in the payload.

use std::{fmt, net::Ipv4Addr, str::FromStr};

use sweepd::wire::{ethernet::Mac, ipv4};

/// Bytes of the FCS, which the rings do not hold but frame sizes count.
const FCS: usize = 4;
const HEADERS: usize = 14 + 20 + 8;
/// Trial (4), frame (4), nanoseconds (8).
const STAMP: usize = 16;

/// Bytes with FCS of the frames of an IMIX, in their order.
const IMIX: [u16; 12] = [64, 594, 64, 64, 594, 64, 64, 594, 64, 1518, 594, 64];

/// The sizes of a trial's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// All alike, in bytes with FCS.
    Bytes(u16),
    /// A mixture like the Internet's: seven frames of 64 bytes, four of 594, one of 1518.
    Imix,
}

impl Size {
    /// RFC 2544 section 9.1, and the mixture.
    pub fn all() -> Vec<Self> {
        let mut all: Vec<_> = [64, 128, 256, 512, 1024, 1280, 1518].into_iter().map(Self::Bytes).collect();
        all.push(Self::Imix);
        all
    }

    /// Bytes with FCS of frame number `n`.
    pub fn of(self, n: u64) -> usize {
        match self {
            Self::Bytes(bytes) => usize::from(bytes),
            Self::Imix => usize::from(IMIX[(n % IMIX.len() as u64) as usize]),
        }
    }

    /// Bytes with FCS, on average.
    pub fn mean_bytes(self) -> f64 {
        match self {
            Self::Bytes(bytes) => bytes.into(),
            Self::Imix => IMIX.iter().map(|&b| f64::from(b)).sum::<f64>() / IMIX.len() as f64,
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Imix => f.pad("imix"),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(bytes @ 64..=9018) => Ok(Self::Bytes(bytes)),
            Err(_) if text == "imix" => Ok(Self::Imix),
            _ => Err("a frame has 64 to 9018 bytes with FCS, or write imix".into()),
        }
    }
}

/// From whom to whom.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Our MAC address and the router's.
    pub macs: (Mac, Mac),
    /// Source and destination.
    pub addresses: (Ipv4Addr, Ipv4Addr),
}

/// What a frame of a trial carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The trial's number.
    pub trial: u32,
    /// The frame's number in it.
    pub frame: u32,
    /// Nanoseconds of the tester's clock when it was sent.
    pub sent: u64,
}

/// Bytes in a ring of a frame of `size` bytes with FCS.
pub fn ring_len(size: usize) -> u32 {
    (size - FCS) as u32
}

/// Writes a frame that fills `frame`.
pub fn write(frame: &mut [u8], path: &Path, flow: u16, stamp: Stamp) {
    frame[..6].copy_from_slice(&path.macs.1);
    frame[6..12].copy_from_slice(&path.macs.0);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    let ip_len = (frame.len() - 14) as u16;
    frame[14..34].fill(0);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&ip_len.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..30].copy_from_slice(&path.addresses.0.octets());
    frame[30..34].copy_from_slice(&path.addresses.1.octets());
    ipv4::fill_checksum(&mut frame[14..34]);
    // UDP without a checksum; port 7 is echo's, as RFC 2544 appendix C says.
    frame[34..36].copy_from_slice(&(0xc000 | flow & 0x3fff).to_be_bytes());
    frame[36..38].copy_from_slice(&7u16.to_be_bytes());
    frame[38..40].copy_from_slice(&(ip_len - 20).to_be_bytes());
    frame[40..42].fill(0);
    let payload = &mut frame[HEADERS..];
    payload[..4].copy_from_slice(&stamp.trial.to_be_bytes());
    payload[4..8].copy_from_slice(&stamp.frame.to_be_bytes());
    payload[8..16].copy_from_slice(&stamp.sent.to_be_bytes());
    payload[STAMP..].fill(0);
}

/// The stamp of a frame of ours to `address`; none when it is something else.
pub fn read(frame: &[u8], address: Ipv4Addr) -> Option<Stamp> {
    let ours = frame.len() >= HEADERS + STAMP
        && frame[12..15] == [0x08, 0x00, 0x45]
        && frame[23] == 17
        && frame[30..34] == address.octets()
        && frame[36..38] == 7u16.to_be_bytes();
    let payload = frame.get(HEADERS..HEADERS + STAMP).filter(|_| ours)?;
    Some(Stamp {
        trial: u32::from_be_bytes(payload[..4].try_into().ok()?),
        frame: u32::from_be_bytes(payload[4..8].try_into().ok()?),
        sent: u64::from_be_bytes(payload[8..].try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_comes_back_from_every_size() {
        let path = Path {
            macs: ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]),
            addresses: (Ipv4Addr::new(198, 18, 0, 2), Ipv4Addr::new(198, 19, 0, 2)),
        };
        let stamp = Stamp { trial: 7, frame: 99, sent: 1 << 40 };
        for size in Size::all() {
            for n in 0..12 {
                let mut frame = vec![0xff; ring_len(size.of(n)) as usize];
                write(&mut frame, &path, 3, stamp);
                assert!(ipv4::parse(&frame[14..]).is_ok_and(|ip| ip.sum_ok()));
                assert_eq!(read(&frame, path.addresses.1), Some(stamp));
                assert_eq!(read(&frame, path.addresses.0), None);
            }
        }
    }

    #[test]
    fn sizes_are_read_and_written_alike() {
        for size in Size::all() {
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        assert!("63".parse::<Size>().is_err() && "large".parse::<Size>().is_err());
        assert_eq!(Size::Imix.mean_bytes().round(), 362.0);
    }
}
