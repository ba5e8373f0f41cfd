//! A tap: the worker's part in `sweepd capture`. While one is there, packets are copied as they came
//! in, before anything is done to them, and each is told with its ending when that is known.
//!
//! Without a tap nothing of this runs: the sweep asks once whether there is one. With it the stages
//! are the same, compiled a second time, with the notes between them ([`super::worker`]). A packet
//! whose ending is not known yet, since it waits or is another worker's now, is told as such, and
//! its number goes along with it; whoever ends it tells the ending under that number, and the reader
//! puts both together.

use std::{
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use self::ring::{Consumer, Producer};
use super::{
    burst::{BURST, Burst, Lane},
    outputs::NO_PORT,
    slow::Ending,
    verdict::{VERDICTS_MAX, Verdict},
    way_out::Hashed,
};
use crate::tables::{PortId, Tables};

pub mod ring;

/// The longest part of a packet, in bytes, that is copied.
pub const SNAP_MAX: usize = 16_384;

/// What there is to tell about a packet's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End(u8);

impl End {
    /// It waits for a neighbour, or for other packets.
    pub const HELD: Self = Self(62);
    /// It is on its way to another worker.
    pub const IN_TRANSIT: Self = Self(63);

    /// All that there can be, by their names.
    pub fn all() -> impl Iterator<Item = Self> {
        let verdicts = Verdict::ALL.iter().map(|verdict| Self(*verdict as u8));
        verdicts.chain([Self::HELD, Self::IN_TRANSIT])
    }

    /// Its name: that of its counter.
    pub fn name(self) -> &'static str {
        match self {
            Self::HELD => "held",
            Self::IN_TRANSIT => "in_transit",
            Self(verdict) => Verdict::ALL.get(usize::from(verdict)).map_or("unknown", |v| v.name()),
        }
    }

    /// One line for people.
    pub fn about(self) -> &'static str {
        match self {
            Self::HELD => "Held for a neighbour, or for other packets of its datagram or connection.",
            Self::IN_TRANSIT => "Handed to another worker; how it ended there was not seen.",
            Self(verdict) => Verdict::ALL.get(usize::from(verdict)).map_or("", |v| v.about()),
        }
    }

    /// Whether the packet has come to its end.
    pub fn is_final(self) -> bool {
        usize::from(self.0) < VERDICTS_MAX
    }

    /// A set with this one alone.
    pub fn bit(self) -> u64 {
        1 << (self.0 & 63)
    }
}

impl From<Ending> for End {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Verdict(verdict) => Self(verdict as u8),
            Ending::InTransit => Self::IN_TRANSIT,
            Ending::Held => Self::HELD,
        }
    }
}

/// Which packets are wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Those that came in or were to leave by a port whose place says so; none: of all ports.
    pub ports: Option<Box<[bool]>>,
    /// Those that ended so: a set of [`End::bit`].
    pub ends: u64,
}

impl Wanted {
    /// Whether a packet is wanted that came in by `came_in`, was to leave by `leaves_by` and ended so.
    pub fn takes(&self, came_in: PortId, leaves_by: Option<PortId>, end: End) -> bool {
        self.ends & end.bit() != 0 && (self.has(came_in) || leaves_by.is_some_and(|port| self.has(port)))
    }

    fn has(&self, port: PortId) -> bool {
        let has = |ports: &[bool]| ports.get(usize::from(port)).copied().unwrap_or(false);
        self.ports.as_deref().is_none_or(has)
    }
}

/// What goes along with a packet while it is being dealt with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its number in the capture; 0 when it is not captured.
    pub id: u64,
    /// The port that it has left by, or was to leave by, once that is known.
    pub leaves_by: PortId,
}

impl Seen {
    /// A packet that is not captured.
    pub const NOT: Self = Self::new(0);

    /// A packet with this number, which has left by no port yet.
    pub const fn new(id: u64) -> Self {
        Self { id, leaves_by: NO_PORT }
    }
}

/// The head of a packet of the burst, as it came.
#[derive(Clone, Copy, Default)]
struct Head {
    /// Bytes copied.
    copied: usize,
    /// Bytes of the frame.
    len: usize,
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

/// The worker's end of a capture.
pub struct Tap {
    producer: Producer,
    wanted: Arc<Wanted>,
    /// Bytes of each packet that are copied at most.
    snap: usize,
    /// The number of the burst's first packet.
    first: u64,
    /// The number of the next burst's first packet.
    next: u64,
    /// When the burst was taken, in nanoseconds since 1970.
    time: u64,
    heads: [Head; BURST],
    /// The ways out that were found for the burst's packets.
    ways: [PortId; BURST],
    bytes: Box<[u8]>,
}

impl Tap {
    /// A tap for worker number `worker`, which puts the wanted packets, at most `snap` bytes of each,
    /// into the ring. `serial` tells one capture's packets from those of another.
    pub fn new(producer: Producer, wanted: Arc<Wanted>, snap: usize, serial: u16, worker: usize) -> Self {
        let snap = snap.min(SNAP_MAX);
        let next = u64::from(serial) << 48 | (worker as u64 & 0xff) << 40 | 1;
        Self {
            producer,
            wanted,
            snap,
            first: next,
            next,
            time: 0,
            heads: [Head::default(); BURST],
            ways: [NO_PORT; BURST],
            bytes: vec![0; BURST * snap].into(),
        }
    }

    /// Copies the burst's packets as they came.
    pub fn copy(&mut self, burst: &mut Burst) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.time = since.as_nanos() as u64;
        self.first = self.next;
        let frames = burst.frames();
        self.next += frames.len().min(BURST) as u64;
        self.ways = [NO_PORT; BURST];
        for ((at, frame), head) in frames.iter().enumerate().zip(&mut self.heads) {
            let bytes = frame.bytes();
            let copied = bytes.len().min(self.snap);
            self.bytes[at * self.snap..][..copied].copy_from_slice(&bytes[..copied]);
            *head = Head { copied, len: bytes.len() };
        }
    }

    /// Notes the ways out of the burst's routed packets, before a stage takes some of them out.
    pub fn note_ways(&mut self, burst: &mut Burst, tables: &Tables) {
        note_ways(&mut self.ways, &mut burst.v4, tables);
        note_ways(&mut self.ways, &mut burst.v6, tables);
    }

    /// The way out that was noted for packet `at` of the burst, or [`NO_PORT`].
    pub fn way(&self, at: usize) -> PortId {
        self.ways[at % BURST]
    }

    /// The number of packet `at` of the burst.
    pub fn id(&self, at: usize) -> u64 {
        self.first + (at % BURST) as u64
    }

    /// Tells how packet `at` of the burst, which came in by `came_in`, has ended, if that is wanted.
    pub fn tell(&mut self, at: usize, came_in: PortId, end: impl Into<End>, leaves_by: PortId) {
        let (end, at) = (end.into(), at % BURST);
        let out = Some(leaves_by).filter(|port| *port != NO_PORT);
        if end.is_final() && !self.wanted.takes(came_in, out, end) {
            return;
        }
        let Head { copied, len } = self.heads[at];
        let header = header(PACKET, end, came_in, leaves_by, len, self.id(at), self.time);
        if !self.producer.push(header, &self.bytes[at * self.snap..][..copied]) {
            self.producer.lose(came_in);
        }
    }

    /// Tells how packet number `id`, of this worker's or another's, has ended after all.
    pub fn tell_end(&mut self, seen: Seen, came_in: PortId, end: impl Into<End>) {
        let end = end.into();
        if seen.id == 0 || !end.is_final() {
            return;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = since.as_nanos() as u64;
        // Lost for want of room: then the packet is one whose end was not seen.
        self.producer.push(header(LATER, end, came_in, seen.leaves_by, 0, seen.id, time), &[]);
    }
}

fn note_ways<Address: Hashed>(ways: &mut [PortId; BURST], lane: &mut Lane<Address>, tables: &Tables) {
    for k in 0..lane.len.min(BURST) {
        if let Some(hop) = lane.way_out(k, tables) {
            ways[usize::from(lane.at[k]) % BURST] = hop.port;
        }
    }
}

const PACKET: u64 = 0;
const LATER: u64 = 1;

/// A record's header in words, as [`read`] takes it apart.
fn header(
    kind: u64,
    end: End,
    came_in: PortId,
    leaves_by: PortId,
    len: usize,
    id: u64,
    time: u64,
) -> [u64; ring::HEADER] {
    let ports = u64::from(came_in) << 16 | u64::from(leaves_by);
    [kind << 40 | u64::from(end.0) << 32 | ports, len as u64, id, time]
}

/// Something that a worker tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// Whether this is about a packet that was told before, to whose number it belongs.
    pub later: bool,
    /// How it ended.
    pub end: End,
    /// The port that it came in by.
    pub came_in: PortId,
    /// The port that it left by, or was to leave by, where it came as far as that.
    pub leaves_by: Option<PortId>,
    /// Bytes of the frame.
    pub len: u32,
    /// The packet's number.
    pub id: u64,
    /// When it came, or ended; in nanoseconds since 1970.
    pub time: u64,
}

/// The next thing that is told, its frame, as far as it was copied, in `bytes`.
pub fn read(from: &mut Consumer, bytes: &mut Vec<u8>) -> Option<Told> {
    let [first, len, id, time] = from.pop(bytes)?;
    Some(Told {
        later: first >> 40 == LATER,
        end: End((first >> 32) as u8),
        came_in: (first >> 16) as u16,
        leaves_by: Some(first as u16).filter(|port| *port != NO_PORT),
        len: len as u32,
        id,
        time,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_a_name_and_a_bit_of_its_own() {
        let all: Vec<End> = End::all().collect();
        assert_eq!(all.len(), Verdict::ALL.len() + 2);
        assert_eq!(all.iter().fold(0, |set, end| set | end.bit()).count_ones() as usize, all.len());
        assert!(all.iter().all(|end| end.name() != "unknown" && !end.about().is_empty()));
        assert!(!End::HELD.is_final() && !End::IN_TRANSIT.is_final());
        assert!(End::from(Ending::Verdict(Verdict::WorkerFault)).is_final());
    }

    #[test]
    fn a_packet_is_wanted_by_the_ports_it_came_and_left_by_and_its_end() {
        let forwarded = End::from(Ending::Verdict(Verdict::Forwarded));
        let wanted = Wanted { ports: Some([false, true, false].into()), ends: forwarded.bit() };
        assert!(wanted.takes(1, None, forwarded) && wanted.takes(0, Some(1), forwarded));
        assert!(!wanted.takes(0, Some(2), forwarded) && !wanted.takes(9, None, forwarded));
        assert!(!wanted.takes(1, None, End::HELD));
        assert!(Wanted { ports: None, ends: u64::MAX }.takes(9, None, End::HELD));
    }

    #[test]
    fn what_is_told_is_read_as_it_was() {
        let (producer, mut consumer) = ring::ring(1 << 16, 4);
        let wanted = Arc::new(Wanted { ports: None, ends: u64::MAX });
        let mut tap = Tap::new(producer, wanted, 4, 7, 3);
        tap.heads[2] = Head { copied: 3, len: 60 };
        tap.bytes[8..11].copy_from_slice(b"abc");
        tap.tell(2, 3, Ending::Held, NO_PORT);
        let seen = Seen { id: tap.id(2), leaves_by: 2 };
        tap.tell_end(seen, 3, Ending::Verdict(Verdict::TxFull));
        tap.tell_end(Seen::NOT, 3, Ending::Verdict(Verdict::TxFull));
        let mut bytes = Vec::new();
        let told = read(&mut consumer, &mut bytes).unwrap();
        assert_eq!((told.later, told.end, told.came_in, told.leaves_by), (false, End::HELD, 3, None));
        assert_eq!((told.len, &bytes[..]), (60, &b"abc"[..]));
        let later = read(&mut consumer, &mut bytes).unwrap();
        assert_eq!((later.later, later.id, later.leaves_by), (true, told.id, Some(2)));
        assert_eq!(later.end.name(), "tx_full");
        assert_eq!(read(&mut consumer, &mut bytes), None);
    }
}
