//! What a capture is sent as: pcapng (draft-ietf-opsawg-pcapng), a section of one interface for each
//! port, packets with how they ended as their comment, and at the end what each port has seen.
//!
//! Big-endian, whatever the machine: the crate writes times in two halves only so.

use std::{borrow::Cow, time::Duration};

use pcap_file::{
    DataLink, Endianness, PcapError,
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption},
            section_header::{SectionHeaderBlock, SectionHeaderOption},
        },
    },
};

/// Times count nanoseconds: 10⁻⁹.
const NANOSECONDS: u8 = 9;

/// A port's interface.
#[derive(Clone, Copy, Default)]
struct Interface {
    /// Its place in the section.
    number: Option<u32>,
    packets: u64,
    /// Packets that were lost, as told so far.
    lost: u64,
}

/// A packet to be written.
pub struct Packet<'a> {
    /// The number of the port that it came in by.
    pub port: u16,
    /// When it came, in nanoseconds since 1970.
    pub time: u64,
    /// Its length in bytes.
    pub len: u32,
    /// As much of it as was copied.
    pub bytes: &'a [u8],
    /// What is to be said about it.
    pub comment: &'a str,
    /// How many of the port's packets have been lost since the beginning.
    pub lost: u64,
}

/// Makes a capture.
pub struct Writer {
    inner: PcapNgWriter<Vec<u8>>,
    snap: u32,
    interfaces: Vec<Interface>,
}

impl Writer {
    /// A capture of packets of which at most `snap` bytes are kept.
    ///
    /// # Errors
    /// None that a vector has.
    pub fn new(snap: u32) -> Result<Self, PcapError> {
        let program = concat!("sweepd ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::Big,
            options: vec![SectionHeaderOption::UserApplication(Cow::Borrowed(program))],
            ..SectionHeaderBlock::default()
        };
        let inner = PcapNgWriter::with_section_header(Vec::new(), section)?;
        Ok(Self { inner, snap, interfaces: Vec::new() })
    }

    /// What has been written and not been taken yet.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        self.inner.get_mut()
    }

    /// Whether port number `port` has an interface.
    pub fn has(&self, port: u16) -> bool {
        self.interfaces.get(usize::from(port)).is_some_and(|interface| interface.number.is_some())
    }

    /// Makes the interface of port number `port`.
    ///
    /// # Errors
    /// None that a vector has.
    pub fn interface(&mut self, port: u16, name: &str) -> Result<(), PcapError> {
        let at = usize::from(port);
        self.interfaces.resize(self.interfaces.len().max(at + 1), Interface::default());
        let number = self.inner.interfaces().len() as u32;
        let options = vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        let block = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: self.snap, options };
        self.inner.write_pcapng_block(block)?;
        self.interfaces[at].number = Some(number);
        Ok(())
    }

    /// Writes a packet of a port that has an interface.
    ///
    /// # Errors
    /// The port has none.
    pub fn packet(&mut self, packet: &Packet<'_>) -> Result<(), PcapError> {
        let Some(interface) = self.interfaces.get_mut(usize::from(packet.port)) else {
            return Err(PcapError::InvalidInterfaceId(packet.port.into()));
        };
        let Some(number) = interface.number else {
            return Err(PcapError::InvalidInterfaceId(packet.port.into()));
        };
        let mut options = vec![EnhancedPacketOption::Comment(Cow::Borrowed(packet.comment))];
        let lost = packet.lost.saturating_sub(interface.lost);
        if lost > 0 {
            options.push(EnhancedPacketOption::DropCount(lost));
        }
        interface.lost = packet.lost;
        interface.packets += 1;
        self.inner.write_pcapng_block(EnhancedPacketBlock {
            interface_id: number,
            timestamp: Duration::from_nanos(packet.time),
            original_len: packet.len,
            data: Cow::Borrowed(packet.bytes),
            options,
        })?;
        Ok(())
    }

    /// Ends the capture at this time, in nanoseconds since 1970; `lost` says how many packets of a
    /// port were lost.
    ///
    /// # Errors
    /// None that a vector has.
    pub fn end(&mut self, time: u64, lost: impl Fn(u16) -> u64) -> Result<(), PcapError> {
        for (port, interface) in (0..).zip(&self.interfaces) {
            let Some(interface_id) = interface.number else { continue };
            let options = vec![
                InterfaceStatisticsOption::IsbIfRecv(interface.packets + lost(port)),
                InterfaceStatisticsOption::IsbOsDrop(lost(port)),
                InterfaceStatisticsOption::IsbUsrDeliv(interface.packets),
            ];
            self.inner.write_pcapng_block(InterfaceStatisticsBlock {
                interface_id,
                timestamp: time,
                options,
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};

    #[test]
    fn a_reader_finds_ports_packets_comments_and_what_was_lost() {
        let mut writer = Writer::new(100).unwrap();
        writer.interface(3, "wan").unwrap();
        writer.interface(1, "lan").unwrap();
        assert!(writer.has(1) && !writer.has(2) && !writer.has(9));
        let time = 1_796_000_000_123_456_789;
        let packet =
            |lost| Packet { port: 1, time, len: 60, bytes: &[1, 2, 3], comment: "no_route: x", lost };
        writer.packet(&packet(0)).unwrap();
        writer.packet(&packet(5)).unwrap();
        assert!(writer.packet(&Packet { port: 2, ..packet(5) }).is_err());
        writer.end(time, |port| if port == 1 { 7 } else { 0 }).unwrap();
        let bytes = std::mem::take(writer.bytes());
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let (mut packets, mut statistics) = (Vec::new(), Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap().into_owned() {
                Block::EnhancedPacket(packet) => packets.push(packet),
                Block::InterfaceStatistics(block) => statistics.push(block),
                _ => {}
            }
        }
        let names = reader.interfaces().iter().map(|interface| interface.options[0].clone());
        let named = |name: &'static str| InterfaceDescriptionOption::IfName(name.into());
        assert_eq!(names.collect::<Vec<_>>(), [named("wan"), named("lan")]);
        let comment = EnhancedPacketOption::Comment("no_route: x".into());
        assert_eq!(packets[0].options, std::slice::from_ref(&comment));
        assert_eq!(packets[1].options, [comment, EnhancedPacketOption::DropCount(5)]);
        assert_eq!((packets[0].interface_id, packets[0].original_len), (1, 60));
        assert_eq!(packets[0].timestamp, Duration::from_nanos(time));
        assert_eq!(statistics[0].timestamp, time);
        assert_eq!(statistics[0].options[0], InterfaceStatisticsOption::IsbIfRecv(9));
        assert_eq!(statistics[0].options[1], InterfaceStatisticsOption::IsbOsDrop(7));
    }
}
