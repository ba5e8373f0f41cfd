//! Writing a capture, the same packets always to the same bytes.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    time::Duration,
};

use byteorder_slice::LittleEndian;
use pcap_file::{
    DataLink, Endianness, PcapError, TsResolution,
    pcap::{PcapHeader, PcapPacket},
};

/// The longest packet that the output's header promises.
const SNAPLEN: u32 = 65535;

/// The file that sent packets are written to.
pub(super) struct Output {
    file: BufWriter<File>,
    device: String,
    written: u64,
    /// Packets may be in the buffer.
    dirty: bool,
    broken: bool,
}

impl Output {
    /// Makes the file and writes its header.
    pub fn create(path: &Path, device: &str) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(256 << 10, File::create(path)?);
        let header = PcapHeader {
            snaplen: SNAPLEN,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::MicroSecond,
            endianness: Endianness::Little,
            ..PcapHeader::default()
        };
        header.write_to(&mut file).map_err(system_error)?;
        file.flush()?;
        Ok(Self { file, device: device.to_owned(), written: 0, dirty: false, broken: false })
    }

    /// Appends a packet; `false` when it cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> bool {
        if self.broken {
            return false;
        }
        let packet = PcapPacket::new(Duration::from_micros(self.written), bytes.len() as u32, bytes);
        let result = packet.write_to::<_, LittleEndian>(&mut self.file, TsResolution::MicroSecond, SNAPLEN);
        self.written += 1;
        self.dirty = true;
        self.note(result.map(drop).map_err(system_error))
    }

    /// Brings everything into the file; `false` when that fails, once.
    pub fn flush(&mut self) -> bool {
        let clean = !std::mem::take(&mut self.dirty) || self.broken;
        if clean {
            return true;
        }
        let result = self.file.flush();
        self.note(result)
    }

    fn note(&mut self, result: io::Result<()>) -> bool {
        if let Err(e) = &result {
            log::error!("{}: cannot write: {e}; what is sent from now on is lost", self.device);
            self.broken = true;
        }
        result.is_ok()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.flush();
    }
}

fn system_error(e: PcapError) -> io::Error {
    match e {
        PcapError::IoError(e) => e,
        other => io::Error::other(other),
    }
}

// The device that is always full is Linux's.
#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_fills_up_loses_packets_and_says_so() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let file = BufWriter::with_capacity(64, full);
        let mut output = Output { file, device: "pcap:x".into(), written: 0, dirty: false, broken: false };
        assert!(output.write(&[0; 1]), "still in the buffer");
        assert!(!output.flush());
        assert!(!output.write(&[0; 1]));
        assert!(output.flush(), "nothing more is tried");
    }
}
