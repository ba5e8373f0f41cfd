//! Makes fuzz corpora of captures: `sweepd-corpus DIRECTORY CAPTURE...` writes every frame, and what
//! becomes of it when some of its fields have other values, to the folders of the targets below
//! DIRECTORY. The same captures give the same files.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    fs::{self, File},
    hash::{Hash, Hasher},
    io::BufReader,
    path::{Path, PathBuf},
};

use pcap_file::{DataLink, pcap::PcapReader, pcapng::PcapNgReader};

/// Frames of one capture that are taken.
const FRAMES: usize = 60;
/// Mutants of each.
const MUTANTS: usize = 4;
/// Longest frame that the targets take.
const LONGEST: usize = 1600;

fn main() {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let Some(directory) = arguments.next() else {
        eprintln!("usage: sweepd-corpus DIRECTORY CAPTURE...");
        std::process::exit(2);
    };
    let (mut corpus, mut captures, mut others) = (Corpus { directory, written: BTreeMap::new() }, 0, 0);
    for capture in arguments {
        let frames = frames_of(&capture);
        if frames.is_empty() {
            others += 1;
        } else {
            captures += 1;
        }
        for frame in frames.iter().take(FRAMES) {
            corpus.add(frame);
            let mut random = Random(hash(frame));
            for _ in 0..MUTANTS {
                corpus.add(&mutant(frame, &mut random));
            }
        }
    }
    println!("{captures} captures, {others} of other link types or not readable");
    for (target, count) in corpus.written {
        println!("{target}: {count} files");
    }
}

/// The Ethernet frames in a capture: those of other link types have their packet put into one.
fn frames_of(path: &Path) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let Ok(file) = File::open(path) else { return frames };
    if let Ok(mut reader) = PcapReader::new(BufReader::new(file)) {
        let link = reader.header().datalink;
        while let Some(Ok(packet)) = reader.next_packet() {
            frames.extend(ethernet(link, &packet.data));
            if frames.len() >= FRAMES {
                break;
            }
        }
        return frames;
    }
    let Ok(file) = File::open(path) else { return frames };
    let Ok(mut reader) = PcapNgReader::new(BufReader::new(file)) else { return frames };
    let mut found = Vec::new();
    while let Some(Ok(block)) = reader.next_block() {
        if let Some(packet) = block.into_enhanced_packet() {
            found.push((packet.interface_id, packet.data.to_vec()));
        }
        if found.len() >= FRAMES {
            break;
        }
    }
    let link = |id: u32| reader.interfaces().get(id as usize).map(|interface| interface.linktype);
    frames.extend(found.iter().filter_map(|(id, data)| ethernet(link(*id)?, data)));
    frames
}

fn ethernet(link: DataLink, data: &[u8]) -> Option<Vec<u8>> {
    let (ethertype, packet) = match link {
        DataLink::ETHERNET => return Some(data.get(..data.len().min(LONGEST))?.to_vec()),
        DataLink::LINUX_SLL => (u16::from_be_bytes([*data.get(14)?, *data.get(15)?]), data.get(16..)?),
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => {
            (if data.first()? >> 4 == 6 { 0x86dd } else { 0x0800 }, data)
        }
        DataLink::NULL | DataLink::LOOP => {
            let packet = data.get(4..)?;
            (if packet.first()? >> 4 == 6 { 0x86dd } else { 0x0800 }, packet)
        }
        _ => return None,
    };
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    frame.extend(ethertype.to_be_bytes());
    frame.extend(&packet[..packet.len().min(LONGEST)]);
    Some(frame)
}

/// Where the EtherType of what is behind all VLAN tags stands.
fn ethertype_at(frame: &[u8]) -> usize {
    let mut at = 12;
    while matches!(frame.get(at..at + 2), Some([0x81, 0] | [0x88, 0xa8] | [0x91, 0])) {
        at += 4;
    }
    at
}

/// The fields of a frame's headers, as (place, length) in bytes.
fn fields(frame: &[u8]) -> Vec<(usize, usize)> {
    let at = ethertype_at(frame);
    let mut fields: Vec<_> = (12..at).step_by(2).map(|place| (place, 2)).collect();
    fields.push((at, 2));
    let start = at + 2;
    let mut add = |places: &[(usize, usize)], start: usize| {
        fields.extend(places.iter().map(|(place, len)| (start + place, *len)));
    };
    let transport = [(0, 1), (1, 1), (0, 2), (2, 2), (4, 2), (6, 2), (8, 4), (12, 2), (14, 2), (16, 2)];
    match frame.get(at..at + 2) {
        Some([0x08, 0x00]) => {
            let header = [(0, 1), (1, 1), (2, 2), (4, 2), (6, 2), (8, 1), (9, 1), (10, 2), (12, 4), (16, 4)];
            add(&header, start);
            let len = usize::from(frame.get(start).copied().unwrap_or(0) & 15) * 4;
            let options: Vec<_> = (20..len).map(|place| (place, 1)).collect();
            add(&options, start);
            add(&transport, start + len);
        }
        Some([0x86, 0xdd]) => {
            add(&[(0, 1), (1, 3), (4, 2), (6, 1), (7, 1), (8, 16), (24, 16), (8, 2), (24, 2)], start);
            add(&transport, start + 40);
        }
        Some([0x08, 0x06]) => {
            add(&[(0, 2), (2, 2), (4, 1), (5, 1), (6, 2), (8, 6), (14, 4), (18, 6), (24, 4)], start);
        }
        _ => add(&transport, start),
    }
    fields.retain(|(place, len)| place + len <= frame.len());
    fields
}

/// The frame with one to three fields changed, cut short or made longer now and then.
fn mutant(frame: &[u8], random: &mut Random) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let fields = fields(&frame);
    for _ in 0..1 + random.below(3) {
        if fields.is_empty() {
            break;
        }
        let (place, len) = fields[random.below(fields.len())];
        let field = &mut frame[place..place + len];
        match random.below(6) {
            0 => field.fill(0),
            1 => field.fill(0xff),
            2 => field[len - 1] = field[len - 1].wrapping_add(1),
            3 => field[len - 1] = field[len - 1].wrapping_sub(1),
            4 => field[0] ^= 1 << random.below(8),
            _ => field.iter_mut().for_each(|byte| *byte = random.next() as u8),
        }
    }
    match random.below(8) {
        0 => frame.truncate(1 + random.below(frame.len().max(1))),
        1 => frame.extend((0..random.below(40)).map(|_| random.next() as u8).collect::<Vec<_>>()),
        _ => {}
    }
    frame
}

struct Corpus {
    directory: PathBuf,
    written: BTreeMap<&'static str, u64>,
}

impl Corpus {
    /// Writes the frame for every target that it is of use to.
    fn add(&mut self, frame: &[u8]) {
        let mut random = Random(hash(frame) | 1);
        let how = [random.next() as u8, 2, random.next() as u8];
        self.write("frame", &how, frame);
        let at = ethertype_at(frame);
        let Some(packet) = frame.get(at + 2..) else { return };
        if at > 12 {
            let tags = ((at - 12) / 4).min(3);
            let kinds = tags as u8 | (random.next() as u8) << 2;
            let ids: Vec<u8> = (0..tags).flat_map(|n| frame[14 + 4 * n..16 + 4 * n].to_vec()).collect();
            self.write("vlan", &[&how[..], &[kinds], &ids].concat(), &frame[at..]);
        }
        match frame.get(at..at + 2) {
            Some([0x08, 0x00]) => {
                self.write("ipv4", &how, packet);
                let len = usize::from(packet.first().copied().unwrap_or(0) & 15) * 4;
                if packet.get(9) == Some(&1) && packet.len() > len {
                    let ends = [64, random.next() as u8, random.next() as u8];
                    self.write("icmp", &[how, ends].concat(), &packet[len..]);
                }
            }
            Some([0x86, 0xdd]) => {
                self.write("ipv6", &how, packet);
                if packet.get(6) == Some(&58) && packet.len() > 40 {
                    let ends = [255, random.next() as u8, random.next() as u8];
                    self.write("icmp", &[how, ends].concat(), &packet[40..]);
                    if (133..=137).contains(&packet[40]) {
                        let kind = random.next() as u8 & 12 | 17;
                        self.write("neighbors", &[&how[..], &[kind]].concat(), &packet[40..]);
                    }
                }
            }
            Some([0x08, 0x06]) if packet.len() > 6 => {
                self.write("neighbors", &[&how[..], &[random.next() as u8 & 2]].concat(), &packet[6..]);
            }
            _ => {}
        }
    }

    fn write(&mut self, target: &'static str, head: &[u8], rest: &[u8]) {
        let input = [head, rest].concat();
        let folder = self.directory.join(target);
        let file = folder.join(format!("capture-{:016x}", hash(&input)));
        let made = fs::create_dir_all(&folder).and_then(|()| fs::write(&file, input));
        if let Err(e) = made {
            eprintln!("{}: {e}", file.display());
            std::process::exit(1);
        }
        *self.written.entry(target).or_default() += 1;
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Numbers that look random: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
