//! Reading captures: pcap in micro- and nanoseconds and pcapng, of either byte order.
//!
//! Records are framed by the crate `pcap-file`. Of a pcapng block only what is needed is looked
//! at here: which interface, which bytes. So an option that nobody needs cannot spoil a capture.

use std::{io::Read, ops::Range};

use byteorder_slice::{BigEndian, ByteOrder, LittleEndian};
use pcap_file::{
    PcapError,
    pcap::PcapParser,
    pcapng::{
        RawBlock,
        blocks::{
            ENHANCED_PACKET_BLOCK, INTERFACE_DESCRIPTION_BLOCK, PACKET_BLOCK, SECTION_HEADER_BLOCK,
            SIMPLE_PACKET_BLOCK,
        },
    },
};

/// Read at a time; most records are far smaller.
const CHUNK: usize = 256 << 10;
/// A record longer than this is no packet but damage.
const RECORD_MAX: usize = 16 << 20;
/// The link type of Ethernet, in both formats.
const ETHERNET: u32 = 1;

/// What is wrong with a capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// Neither format.
    #[error("not a pcap or pcapng file")]
    NotACapture,
    /// Something else than Ethernet.
    #[error("its packets have link type {0}, only Ethernet (1) can be used")]
    LinkType(u32),
    /// Ends in the middle of a record.
    #[error("cut short after packet {0}")]
    CutShort(u64),
    /// Damaged.
    #[error("damaged after packet {packet}: {what}")]
    Malformed {
        /// Packets before the damage.
        packet: u64,
        /// What is wrong.
        what: String,
    },
    /// Cannot be read.
    #[error("cannot read: {0}")]
    Io(#[from] std::io::Error),
}

/// An open capture, at one of its packets or at its end.
pub struct Capture {
    input: Box<dyn Read + Send>,
    buf: Vec<u8>,
    /// What is in the buffer and not consumed yet.
    filled: Range<usize>,
    format: Format,
    packets: u64,
    current: Option<Range<usize>>,
}

enum Format {
    Unknown,
    Pcap(PcapParser),
    PcapNg { big_endian: bool, interfaces: Vec<Interface> },
}

struct Interface {
    link_type: u32,
    snaplen: u32,
}

/// What the next record turned out to be: its length, and where in it a packet's bytes are.
struct Record {
    len: usize,
    packet: Option<Range<usize>>,
}

impl Capture {
    /// Opens a capture and goes to its first packet.
    ///
    /// # Errors
    /// [`CaptureError`]: what is wrong up to and including the first packet.
    pub fn new(input: impl Read + Send + 'static) -> Result<Self, CaptureError> {
        let mut capture = Self {
            input: Box::new(input),
            buf: vec![0; CHUNK],
            filled: 0..0,
            format: Format::Unknown,
            packets: 0,
            current: None,
        };
        capture.begin()?;
        capture.advance()?;
        Ok(capture)
    }

    /// The packet that the capture stands at; `None` at the end.
    pub fn packet(&self) -> Option<&[u8]> {
        self.current.clone().map(|range| &self.buf[range])
    }

    /// Goes to the next packet, or to the end.
    ///
    /// # Errors
    /// [`CaptureError`]; the capture is at its end then.
    pub fn advance(&mut self) -> Result<(), CaptureError> {
        self.current = None;
        loop {
            match self.record() {
                Ok(Some(record)) => {
                    let start = self.filled.start;
                    self.filled.start += record.len;
                    if let Some(range) = record.packet {
                        self.packets += 1;
                        self.current = Some(start + range.start..start + range.end);
                        return Ok(());
                    }
                }
                Ok(None) if self.fill()? => {}
                Ok(None) if self.filled.is_empty() => return Ok(()),
                Ok(None) => return Err(self.end(CaptureError::CutShort(self.packets))),
                Err(e) => return Err(self.end(e)),
            }
        }
    }

    /// Nothing more is read after an error.
    fn end(&mut self, e: CaptureError) -> CaptureError {
        self.input = Box::new(std::io::empty());
        self.filled = 0..0;
        e
    }

    /// Reads the file's header and learns the format.
    fn begin(&mut self) -> Result<(), CaptureError> {
        // The longest header that must be seen whole is that of pcap.
        while self.filled.len() < 24 && self.fill()? {}
        let start = &self.buf[self.filled.clone()];
        if start.first_chunk::<4>() == Some(&SECTION_HEADER_BLOCK.to_be_bytes()) {
            // Its first block is a section header, whose byte order is found there.
            self.format = Format::PcapNg { big_endian: true, interfaces: Vec::new() };
            return Ok(());
        }
        let (rest, parser) = PcapParser::new(start).map_err(|_| CaptureError::NotACapture)?;
        self.filled.start += start.len() - rest.len();
        // The upper bits tell of frame check sequences.
        match u32::from(parser.header().datalink) & 0xffff {
            ETHERNET => self.format = Format::Pcap(parser),
            other => return Err(CaptureError::LinkType(other)),
        }
        Ok(())
    }

    /// Takes the next record apart; `None` when it is not whole in the buffer.
    fn record(&mut self) -> Result<Option<Record>, CaptureError> {
        let bytes = &self.buf[self.filled.clone()];
        let malformed = |e: PcapError| CaptureError::Malformed { packet: self.packets, what: e.to_string() };
        match &mut self.format {
            Format::Unknown => Ok(None),
            Format::Pcap(parser) => match parser.next_raw_packet(bytes) {
                Ok((rest, packet)) => {
                    let len = bytes.len() - rest.len();
                    Ok(Some(Record { len, packet: Some(len - packet.data.len()..len) }))
                }
                Err(PcapError::IncompleteBuffer) => Ok(None),
                Err(e) => Err(malformed(e)),
            },
            Format::PcapNg { big_endian, interfaces } => {
                let block = if *big_endian {
                    RawBlock::from_slice::<BigEndian>(bytes)
                } else {
                    RawBlock::from_slice::<LittleEndian>(bytes)
                };
                let (rest, block) = match block {
                    Ok(block) => block,
                    Err(PcapError::IncompleteBuffer) => return Ok(None),
                    Err(e) => return Err(malformed(e)),
                };
                if block.type_ == SECTION_HEADER_BLOCK {
                    *big_endian = block.body.first_chunk() == Some(&[0x1a, 0x2b, 0x3c, 0x4d]);
                    interfaces.clear();
                }
                let packet = if *big_endian {
                    block_packet::<BigEndian>(block.type_, &block.body, interfaces)
                } else {
                    block_packet::<LittleEndian>(block.type_, &block.body, interfaces)
                };
                // The body follows the block's type and length.
                match packet {
                    Ok(packet) => Ok(Some(Record {
                        len: bytes.len() - rest.len(),
                        packet: packet.map(|range| range.start + 8..range.end + 8),
                    })),
                    Err(BlockError::LinkType(other)) => Err(CaptureError::LinkType(other)),
                    Err(BlockError::Malformed(what)) => {
                        Err(CaptureError::Malformed { packet: self.packets, what: what.into() })
                    }
                }
            }
        }
    }

    /// Reads more of the file into the buffer; `false` at its end.
    fn fill(&mut self) -> Result<bool, CaptureError> {
        if self.filled.start > 0 {
            self.buf.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        if self.filled.len() == self.buf.len() {
            if self.buf.len() >= RECORD_MAX {
                let what = format!("a record of more than {} MiB", RECORD_MAX >> 20);
                return Err(self.end(CaptureError::Malformed { packet: self.packets, what }));
            }
            self.buf.resize(self.buf.len() * 2, 0);
        }
        loop {
            match self.input.read(&mut self.buf[self.filled.end..]) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.end(e.into())),
                Ok(n) => {
                    self.filled.end += n;
                    return Ok(n > 0);
                }
            }
        }
    }
}

enum BlockError {
    LinkType(u32),
    Malformed(&'static str),
}

/// Where in a pcapng block's body the bytes of a packet are, if it is one; a description of an
/// interface is taken note of.
fn block_packet<B: ByteOrder>(
    kind: u32,
    body: &[u8],
    interfaces: &mut Vec<Interface>,
) -> Result<Option<Range<usize>>, BlockError> {
    let short = BlockError::Malformed("a block shorter than its fields");
    let u16_at = |at: usize| body.get(at..at + 2).map(B::read_u16);
    let u32_at = |at: usize| body.get(at..at + 4).map(B::read_u32);
    let (interface, start, len) = match kind {
        SECTION_HEADER_BLOCK => {
            return match u16_at(4) {
                Some(1) => Ok(None),
                Some(_) => Err(BlockError::Malformed("a pcapng version that is not supported")),
                None => Err(short),
            };
        }
        INTERFACE_DESCRIPTION_BLOCK => {
            let (Some(link_type), Some(snaplen)) = (u16_at(0), u32_at(4)) else { return Err(short) };
            interfaces.push(Interface { link_type: link_type.into(), snaplen });
            return Ok(None);
        }
        ENHANCED_PACKET_BLOCK => {
            let (Some(interface), Some(len)) = (u32_at(0), u32_at(12)) else { return Err(short) };
            (interface, 20, len)
        }
        PACKET_BLOCK => {
            let (Some(interface), Some(len)) = (u16_at(0), u32_at(12)) else { return Err(short) };
            (interface.into(), 20, len)
        }
        SIMPLE_PACKET_BLOCK => {
            let Some(len) = u32_at(0) else { return Err(short) };
            let snaplen = interfaces.first().map_or(0, |i| i.snaplen);
            (0, 4, if snaplen > 0 { len.min(snaplen) } else { len })
        }
        _ => return Ok(None),
    };
    match interfaces.get(interface as usize) {
        None => Err(BlockError::Malformed("a packet of an interface that is not described")),
        Some(i) if i.link_type != ETHERNET => Err(BlockError::LinkType(i.link_type)),
        Some(_) if body.len() - start.min(body.len()) < len as usize => {
            Err(BlockError::Malformed("a packet longer than its block"))
        }
        Some(_) => Ok(Some(start..start + len as usize)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use pcap_file::{
        DataLink, Endianness, TsResolution,
        pcap::{PcapHeader, PcapPacket, PcapWriter},
    };
    use proptest::prelude::*;
    use std::{io::Cursor, time::Duration};

    /// A pcap file of these packets.
    pub fn pcap(
        packets: &[Vec<u8>],
        endianness: Endianness,
        ts_resolution: TsResolution,
        link: u32,
    ) -> Vec<u8> {
        let header =
            PcapHeader { endianness, ts_resolution, datalink: DataLink::from(link), ..Default::default() };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        for (n, p) in packets.iter().enumerate() {
            let packet = PcapPacket::new(Duration::from_micros(n as u64), p.len() as u32, p);
            writer.write_packet(&packet).unwrap();
        }
        writer.into_writer()
    }

    fn put<B: ByteOrder>(to: &mut Vec<u8>, words: &[u32]) {
        for w in words {
            let mut bytes = [0; 4];
            B::write_u32(&mut bytes, *w);
            to.extend(bytes);
        }
    }

    fn block<B: ByteOrder>(to: &mut Vec<u8>, kind: u32, body: &[u8]) {
        let len = (12 + body.len().next_multiple_of(4)) as u32;
        put::<B>(to, &[kind, len]);
        to.extend(body);
        to.resize(to.len().next_multiple_of(4), 0);
        put::<B>(to, &[len]);
    }

    /// A section of a pcapng file, its packets in the block types in turn.
    fn section<B: ByteOrder>(packets: &[Vec<u8>], link: u16) -> Vec<u8> {
        let (mut file, mut body) = (Vec::new(), Vec::new());
        let mut half = [0; 4];
        put::<B>(&mut body, &[0x1a2b_3c4d]);
        B::write_u16(&mut half, 1);
        body.extend(half);
        body.extend([0xff; 8]);
        block::<B>(&mut file, SECTION_HEADER_BLOCK, &body);
        body.clear();
        B::write_u16(&mut half, link);
        body.extend(half);
        put::<B>(&mut body, &[0]);
        // An option that `pcap-file` refuses: a time zone of four bytes.
        B::write_u16(&mut half, 10);
        B::write_u16(&mut half[2..], 4);
        body.extend(half);
        put::<B>(&mut body, &[3600, 0]);
        block::<B>(&mut file, INTERFACE_DESCRIPTION_BLOCK, &body);
        // Something unknown, and names, which have nothing to do with packets.
        block::<B>(&mut file, 0x0bad, b"what?");
        block::<B>(&mut file, 4, &[0, 9, 0, 1, 7]);
        for (n, p) in packets.iter().enumerate() {
            body.clear();
            let len = p.len() as u32;
            match n % 3 {
                0 => put::<B>(&mut body, &[0, 0, 0, len, len]),
                1 => put::<B>(&mut body, &[len]),
                _ => put::<B>(&mut body, &[0, 0, 0, len, len]),
            }
            body.extend(p);
            let kind = [ENHANCED_PACKET_BLOCK, SIMPLE_PACKET_BLOCK, PACKET_BLOCK][n % 3];
            block::<B>(&mut file, kind, &body);
        }
        file
    }

    /// All packets, and the error at the end if there is one.
    fn all(bytes: Vec<u8>) -> (Vec<Vec<u8>>, Option<CaptureError>) {
        let mut packets = Vec::new();
        let mut capture = match Capture::new(Cursor::new(bytes)) {
            Ok(capture) => capture,
            Err(e) => return (packets, Some(e)),
        };
        while let Some(p) = capture.packet() {
            packets.push(p.to_vec());
            if let Err(e) = capture.advance() {
                assert!(capture.packet().is_none() && capture.advance().is_ok(), "an error is the end");
                return (packets, Some(e));
            }
        }
        (packets, None)
    }

    fn some() -> Vec<Vec<u8>> {
        (0..20usize).map(|n| (0..n * 37 % 300 + 1).map(|b| (b + n) as u8).collect()).collect()
    }

    #[test]
    fn pcap_is_read_in_both_byte_orders_and_resolutions() {
        for endianness in [Endianness::Big, Endianness::Little] {
            for resolution in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
                // With the bits that say that frames have a check sequence.
                for link in [1, 0x2400_0001] {
                    let (packets, e) = all(pcap(&some(), endianness, resolution, link));
                    assert!(e.is_none(), "{e:?}");
                    assert_eq!(packets, some());
                }
            }
        }
    }

    #[test]
    fn pcapng_is_read_in_both_byte_orders_and_all_packet_blocks() {
        for file in [section::<BigEndian>(&some(), 1), section::<LittleEndian>(&some(), 1)] {
            let (packets, e) = all(file);
            assert!(e.is_none(), "{e:?}");
            assert_eq!(packets, some());
        }
    }

    #[test]
    fn sections_of_either_byte_order_may_follow_each_other() {
        let file = [section::<BigEndian>(&some(), 1), section::<LittleEndian>(&some(), 1)].concat();
        let (packets, e) = all(file);
        assert!(e.is_none(), "{e:?}");
        assert_eq!(packets, [some(), some()].concat());
    }

    #[test]
    fn a_capture_of_a_packet_cut_by_its_snaplen_is_read() {
        let mut file = pcap(&[], Endianness::Little, TsResolution::MicroSecond, 1);
        file[16..20].copy_from_slice(&64u32.to_le_bytes());
        put::<LittleEndian>(&mut file, &[0, 0, 3, 1500]);
        file.extend([1, 2, 3]);
        assert_eq!(all(file).0, [[1, 2, 3]]);
    }

    #[test]
    fn a_large_record_is_read_and_an_enormous_one_refused() {
        let large = vec![vec![7; 3 << 20]];
        let mut file = pcap(&[], Endianness::Little, TsResolution::MicroSecond, 1);
        put::<LittleEndian>(&mut file, &[0, 0, 3 << 20, 3 << 20]);
        file.extend(&large[0]);
        assert_eq!(all(file.clone()).0, large);
        file[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
        file.resize(20 << 20, 0);
        let (_, e) = all(file);
        assert!(matches!(e, Some(CaptureError::Malformed { packet: 0, .. })), "{e:?}");
    }

    #[test]
    fn only_ethernet_is_taken() {
        let (_, e) = all(pcap(&some(), Endianness::Big, TsResolution::MicroSecond, 101));
        assert!(matches!(e, Some(CaptureError::LinkType(101))), "{e:?}");
        let (_, e) = all(section::<LittleEndian>(&some(), 113));
        assert!(matches!(e, Some(CaptureError::LinkType(113))), "{e:?}");
    }

    #[test]
    fn a_capture_without_packets_is_at_its_end() {
        for file in [
            pcap(&[], Endianness::Big, TsResolution::MicroSecond, 1),
            section::<BigEndian>(&[], 1),
            section::<LittleEndian>(&[], 1),
        ] {
            assert!(matches!(all(file), (packets, None) if packets.is_empty()));
        }
    }

    #[test]
    fn a_file_cut_anywhere_gives_whole_packets_and_an_error() {
        for file in [
            pcap(&some(), Endianness::Little, TsResolution::MicroSecond, 1),
            section::<BigEndian>(&some(), 1),
        ] {
            for n in 0..file.len() {
                let (packets, e) = all(file[..n].to_vec());
                assert_eq!(packets, some()[..packets.len()]);
                // At the end of a record nothing is missing.
                assert!(e.is_some() || packets.len() < some().len());
                if n < 24 {
                    assert!(packets.is_empty() && e.is_some(), "{n}");
                }
            }
        }
    }

    #[test]
    fn other_files_are_no_captures() {
        for file in [&b""[..], b"#!/bin/sh\necho this is no capture\n", &[0; 100]] {
            assert!(matches!(all(file.to_vec()).1, Some(CaptureError::NotACapture)));
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(
            magic in prop::sample::select(vec![
                vec![], vec![0xa1, 0xb2, 0xc3, 0xd4], vec![0xd4, 0xc3, 0xb2, 0xa1], vec![0x0a, 0x0d, 0x0d, 0x0a],
            ]),
            bytes in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            all([magic, bytes].concat());
        }

        #[test]
        fn damaged_captures_never_panic(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            which in 0..3,
        ) {
            let mut file = match which {
                0 => pcap(&some(), Endianness::Little, TsResolution::MicroSecond, 1),
                1 => section::<BigEndian>(&some(), 1),
                _ => section::<LittleEndian>(&some(), 1),
            };
            for (at, byte) in damage {
                let at = at.index(file.len());
                file[at] = byte;
            }
            all(file);
        }
    }
}
