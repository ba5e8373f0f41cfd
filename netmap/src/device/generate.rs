//! `gen:`: a source of the benchmark's traffic, and a sink that counts.
//!
//! Received on the port are UDP packets of as many flows as wanted, ready-made and copied into
//! the ring: as fast as the ring is emptied, or, with `rate`, by the clock; then what finds the
//! ring full is lost and counted, exactly, as a NIC would. What is sent out of the port is counted
//! and, with `verify`, looked at. Flows are shared out among the rings, a flow stays on its ring.
//!
//! | option | default | |
//! |---|---|---|
//! | `flows=N` | 1000 | number of flows |
//! | `size=BYTES` | 60 (IPv6: 62) | length of a frame without FCS |
//! | `rate=PPS` | none | packets per second offered, all rings together |
//! | `count=N` | none | ends after so many packets, lost ones included |
//! | `family=4` or `6` | by `dst`, `src` | |
//! | `dst=PREFIX` | 10.0.0.0/8, 2001:db8::/32 | destinations, spread by `seed` |
//! | `src=PREFIX` | 198.18.0.0/15, 2001:2::/48 | sources, counted up |
//! | `dmac=MAC`, `smac=MAC` | 02:00:00:00:00:02, …:01 | `dmac` is the port's own address |
//! | `port=PORT`, `ttl=N` | 9, 64 | UDP destination port; TTL or hop limit |
//! | `order=turn` or `random` | `turn` | which flow comes next |
//! | `seed=N` | 1 | |
//! | `rings=N`, `slots=N` | 1, 1024 | ring pairs; slots in a ring |
//! | `verify` | off | the sink checks lengths, checksums, and that the TTL is one less |
//!
//! Numbers take k, M and G: `gen:flows=1M,rate=14.88M`.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use self::{
    frames::{Found, Frames, check, mix},
    spec::GenSpec,
};
use super::{Host, OpenError, OpenOptions, Port, PortControl, PortInfo, count::Count};
use crate::{
    arena::{Arena, BUF_SIZE},
    queue::{Losses, RxDevice, RxQueue, TxDevice, TxQueue, Wait},
    ring::{Direction, Kring, RxRing, TxRing},
};

mod frames;
pub mod spec;

/// Slots per ring when nobody says otherwise.
pub const DEFAULT_SLOTS: u32 = 1024;

#[derive(Debug, Default)]
#[repr(align(128))]
struct SourceCounts {
    offered: Count,
    dropped: Count,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct SinkCounts {
    packets: Count,
    bytes: Count,
    foreign: Count,
    malformed: Count,
    bad_checksum: Count,
    bad_ttl: Count,
}

/// A view of what a generator has made and its sink has seen; any thread may read it.
#[derive(Clone, Debug)]
pub struct GenCounters {
    lanes: Arc<Vec<(SourceCounts, SinkCounts)>>,
}

/// What a generator has made and its sink has seen, all rings together. Packets, except where
/// said.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct GenTotals {
    /// Made, `dropped` included.
    pub offered: u64,
    /// Lost because the ring was full when the clock said that they were due.
    pub dropped: u64,
    /// Arrived in the sink.
    pub packets: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// With `verify`: not a generator's traffic.
    pub foreign: u64,
    /// With `verify`: lengths that do not agree, or an impossible slot.
    pub malformed: u64,
    /// With `verify`: a wrong checksum.
    pub bad_checksum: u64,
    /// With `verify`: TTL or hop limit not one less than sent.
    pub bad_ttl: u64,
}

impl GenTotals {
    /// With `verify`: everything that is not as it should be.
    pub fn bad(&self) -> u64 {
        self.malformed + self.bad_checksum + self.bad_ttl
    }
}

impl GenCounters {
    fn new(lanes: u32) -> Self {
        Self { lanes: Arc::new((0..lanes).map(|_| Default::default()).collect()) }
    }

    /// The counts now.
    pub fn totals(&self) -> GenTotals {
        self.lanes.iter().fold(GenTotals::default(), |sum, (source, sink)| GenTotals {
            offered: sum.offered + source.offered.get(),
            dropped: sum.dropped + source.dropped.get(),
            packets: sum.packets + sink.packets.get(),
            bytes: sum.bytes + sink.bytes.get(),
            foreign: sum.foreign + sink.foreign.get(),
            malformed: sum.malformed + sink.malformed.get(),
            bad_checksum: sum.bad_checksum + sink.bad_checksum.get(),
            bad_ttl: sum.bad_ttl + sink.bad_ttl.get(),
        })
    }
}

/// How many packets are due: by the clock, or as many as there is room for.
enum Pace {
    Unlimited,
    Rate { per_second: u64, started: Option<Instant> },
}

/// Flows in random order, drawn some packets ahead so that their parts of the frames are there
/// when their turn comes.
struct Random {
    state: u64,
    ahead: [usize; 16],
    at: usize,
}

impl Random {
    fn new(seed: u64, flows: usize) -> Self {
        let mut random = Self { state: seed, ahead: [0; 16], at: 0 };
        random.ahead = std::array::from_fn(|_| random.one(flows));
        random
    }

    #[inline(always)]
    fn one(&mut self, flows: usize) -> usize {
        self.state = self.state.wrapping_add(1);
        ((u128::from(mix(self.state)) * flows as u128) >> 64) as usize
    }

    #[inline(always)]
    fn draw(&mut self, frames: &Frames) -> usize {
        let new = self.one(frames.len());
        frames.prefetch(new);
        self.at = (self.at + 1) % self.ahead.len();
        std::mem::replace(&mut self.ahead[self.at], new)
    }
}

/// Packets due after `passed` at `per_second`.
fn due(per_second: u64, passed: Duration) -> u64 {
    u64::try_from(passed.as_nanos().saturating_mul(per_second.into()) / 1_000_000_000).unwrap_or(u64::MAX)
}

struct GenRx {
    ring: Kring,
    frames: Frames,
    pace: Pace,
    /// Packets still to be offered.
    left: u64,
    offered: u64,
    next: usize,
    random: Option<Random>,
    counters: GenCounters,
    lane: usize,
}

impl GenRx {
    /// Offers `n` packets to the ring, at most as many as are left; what finds no room is lost.
    fn offer(&mut self, n: u64) {
        let n = n.min(self.left);
        let fits = n.min(self.ring.room().into());
        for _ in 0..fits {
            let flow = self.choose();
            let frames = &self.frames;
            self.ring.give_with(frames.size() as u32, |to| frames.write(flow, to));
        }
        let lost = n - fits;
        // The lost ones had their turn.
        self.next =
            ((self.next as u64 + lost % self.frames.len() as u64) % self.frames.len() as u64) as usize;
        self.left -= n;
        self.offered += n;
        let counts = &self.counters.lanes[self.lane].0;
        counts.offered.add(n);
        counts.dropped.add(lost);
    }

    #[inline(always)]
    fn choose(&mut self) -> usize {
        if let Some(random) = &mut self.random {
            return random.draw(&self.frames);
        }
        let flow = self.next;
        self.next = if flow + 1 == self.frames.len() { 0 } else { flow + 1 };
        flow
    }
}

impl RxDevice for GenRx {
    fn sync(&mut self) -> io::Result<()> {
        self.ring.take_all();
        if self.left > 0 && self.frames.len() > 0 {
            let n = match &mut self.pace {
                Pace::Unlimited => self.ring.room().into(),
                Pace::Rate { per_second, started } => {
                    let started = *started.get_or_insert_with(Instant::now);
                    due(*per_second, started.elapsed()).saturating_sub(self.offered)
                }
            };
            self.offer(n);
        }
        self.ring.publish();
        Ok(())
    }

    fn wait(&self) -> Wait {
        match self.pace {
            Pace::Rate { .. } if !self.finished() => Wait::Nap,
            _ => Wait::Never,
        }
    }

    fn finished(&self) -> bool {
        self.left == 0
    }
}

struct GenTx {
    ring: Kring,
    spec: Arc<GenSpec>,
    counters: GenCounters,
    lane: usize,
}

impl TxDevice for GenTx {
    fn sync(&mut self) -> io::Result<()> {
        let counts = &self.counters.lanes[self.lane].1;
        let (mut packets, mut bytes) = (0, 0);
        while let Some(slot) = self.ring.take() {
            let slot = *slot;
            packets += 1;
            bytes += u64::from(slot.len);
            if self.spec.verify {
                match self.ring.bytes(&slot).map_or(Found::Malformed, |frame| check(&self.spec, frame)) {
                    Found::Good => {}
                    Found::Foreign => counts.foreign.add(1),
                    Found::Malformed => counts.malformed.add(1),
                    Found::Checksum => counts.bad_checksum.add(1),
                    Found::Ttl => counts.bad_ttl.add(1),
                }
            }
        }
        counts.packets.add(packets);
        counts.bytes.add(bytes);
        while self.ring.room() > 0 {
            self.ring.give();
        }
        self.ring.publish();
        Ok(())
    }

    fn wait(&self) -> Wait {
        Wait::Never
    }
}

struct GenControl {
    counters: GenCounters,
}

impl PortControl for GenControl {
    /// What did not fit into the ring, and what the sink found wrong.
    fn losses(&mut self) -> Losses {
        let totals = self.counters.totals();
        Losses { rx_dropped: totals.dropped, tx_errors: totals.bad(), ..Losses::default() }
    }
}

/// Rings and slots, within reason.
fn shape(options: &OpenOptions) -> (u32, u32) {
    (options.rings.unwrap_or(1).clamp(1, 256), options.slots.unwrap_or(DEFAULT_SLOTS).clamp(2, 1 << 16))
}

/// The options with what the device's name, with or without `gen:`, says of rings and slots. A
/// name that cannot be read says nothing; [`open`] tells why.
pub fn sized(spec: &str, options: &OpenOptions) -> OpenOptions {
    let spec: GenSpec = spec.strip_prefix("gen:").unwrap_or(spec).parse().unwrap_or_default();
    OpenOptions {
        rings: spec.rings.or(options.rings),
        slots: spec.slots.or(options.slots),
        ..options.clone()
    }
}

/// Number of rings and slots that [`open`] takes from an arena, for [`Arena::new`]. What the
/// device's name says of them must be in the options: see [`sized`].
pub fn needs(options: &OpenOptions) -> (usize, u32) {
    let (rings, slots) = shape(options);
    (2 * rings as usize, 2 * rings * slots)
}

/// Opens a generator and sink in `arena`; `spec` is the device's name, with or without `gen:`.
///
/// # Errors
/// When an option is wrong, or there is not enough memory.
///
/// # Panics
/// When the arena has less than [`needs`] says.
pub fn open(arena: &mut Arena, spec: &str, options: &OpenOptions) -> Result<Port, OpenError> {
    open_counted(arena, spec, options).map(|(port, _)| port)
}

/// As [`open`], and a view of the counters.
///
/// # Errors
/// As [`open`].
///
/// # Panics
/// As [`open`].
pub fn open_counted(
    arena: &mut Arena,
    spec: &str,
    options: &OpenOptions,
) -> Result<(Port, GenCounters), OpenError> {
    let text = spec.strip_prefix("gen:").unwrap_or(spec);
    let device = format!("gen:{text}");
    let spec: Arc<GenSpec> = Arc::new(text.parse().map_err(|e: String| OpenError::new(&device, e))?);
    let (rings, slots) = shape(&sized(text, options));
    let counters = GenCounters::new(rings);
    let (mut rx, mut tx) = (Vec::new(), Vec::new());
    for k in 0..rings {
        let view = arena.ring(Direction::Rx, slots, k as u16);
        let source = source(Kring::new(view.clone()), &spec, k, rings, counters.clone());
        rx.push(RxQueue::new(RxRing::new(view), Box::new(source)));
        let view = arena.ring(Direction::Tx, slots, k as u16);
        let ring = Kring::new(view.clone());
        let sink = GenTx { ring, spec: spec.clone(), counters: counters.clone(), lane: k as usize };
        tx.push(TxQueue::new(TxRing::new(view), Box::new(sink)));
    }
    let info = PortInfo {
        device,
        interface: None,
        mac: Some(spec.dmac),
        max_frame: BUF_SIZE,
        mode: "generator".into(),
    };
    let control = Box::new(GenControl { counters: counters.clone() });
    Ok((Port { info, rx, tx, host: Host::Builtin, control }, counters))
}

/// The source of ring `k` of `rings`: its flows, and its part of the rate and of the count.
fn source(ring: Kring, spec: &GenSpec, k: u32, rings: u32, counters: GenCounters) -> GenRx {
    let frames = Frames::build(spec, k, rings);
    // Rings without a flow of their own offer nothing.
    let active = u64::from(rings.min(spec.flows));
    let share = |n: u64| {
        if u64::from(k) >= active { 0 } else { n / active + u64::from(u64::from(k) < n % active) }
    };
    let flows = frames.len();
    GenRx {
        ring,
        frames,
        pace: match spec.rate {
            None => Pace::Unlimited,
            Some(rate) => Pace::Rate { per_second: share(rate), started: None },
        },
        left: spec.count.map_or(u64::MAX, share),
        offered: 0,
        next: 0,
        random: spec.random.then(|| Random::new(mix(spec.seed ^ u64::from(k)), flows)),
        counters,
        lane: k as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn opened(spec: &str, rings: u32, slots: u32) -> (Port, GenCounters) {
        let options = OpenOptions { rings: Some(rings), slots: Some(slots), ..Default::default() };
        let (n, total) = needs(&options);
        let mut arena = Arena::new(n, total, 0).unwrap();
        open_counted(&mut arena, spec, &options).unwrap()
    }

    fn buffers(port: &Port) -> Vec<u32> {
        let rx = port.rx.iter().flat_map(|q| q.ring.view().buffer_indices());
        let mut all: Vec<_> = rx.chain(port.tx.iter().flat_map(|q| q.ring.view().buffer_indices())).collect();
        all.sort_unstable();
        all
    }

    /// Sends everything that waits in receive ring `k` back out, changed by `route`.
    fn bounce(port: &mut Port, k: usize, mut route: impl FnMut(&mut [u8])) -> u32 {
        let (rx, tx) = (&mut port.rx[k], &mut port.tx[k]);
        rx.sync().unwrap();
        let n = rx.ring.available().min(tx.ring.space());
        for i in 0..n {
            let index = rx.ring.index(i);
            // SAFETY: each slot is looked at once, between head and tail.
            let mut frame = unsafe { rx.ring.frame(index) }.unwrap();
            route(frame.bytes_mut());
            assert!(tx.ring.forward(&rx.ring, index, frame.len()));
        }
        rx.ring.advance(n);
        tx.sync().unwrap();
        n
    }

    /// What a router does to an IPv4 header.
    fn hop(frame: &mut [u8]) {
        frame[22] -= 1;
        let sum = u32::from(u16::from_be_bytes([frame[24], frame[25]])) + 0x100;
        frame[24..26].copy_from_slice(&((sum & 0xffff) as u16 + (sum >> 16) as u16).to_be_bytes());
    }

    #[test]
    fn an_unlimited_source_fills_the_ring_and_buffers_are_conserved() {
        let (mut port, counters) = opened("gen:flows=100,verify", 1, 64);
        let before = buffers(&port);
        assert_eq!(port.rx[0].wait(), Wait::Never);
        for _ in 0..50 {
            assert_eq!(bounce(&mut port, 0, hop), 63);
        }
        let totals = counters.totals();
        assert_eq!((totals.offered, totals.dropped), (50 * 63, 0));
        assert_eq!((totals.packets, totals.bytes), (50 * 63, 50 * 63 * 60));
        assert_eq!((totals.bad(), totals.foreign), (0, 0));
        assert_eq!(buffers(&port), before);
        assert_eq!(before.iter().collect::<HashSet<_>>().len(), 128);
    }

    #[test]
    fn the_sink_counts_what_a_router_has_spoilt() {
        let (mut port, counters) = opened("verify", 1, 8);
        let mut kind = 0;
        bounce(&mut port, 0, |frame| {
            match kind {
                0 => {}                // TTL as sent
                1 => frame[22] -= 1,   // checksum not adjusted
                2 => frame[16] = 0x40, // longer than the frame
                3 => frame[13] = 0x06, // ARP
                _ => hop(frame),
            }
            kind += 1;
        });
        let t = counters.totals();
        assert_eq!((t.packets, t.bad_ttl, t.bad_checksum, t.malformed, t.foreign), (7, 1, 1, 1, 1));
        assert_eq!(port.control.losses(), Losses { tx_errors: 3, ..Losses::default() });
    }

    #[test]
    fn a_rate_is_offered_by_the_clock_and_what_does_not_fit_is_counted() {
        assert_eq!(due(1_000_000, Duration::from_millis(1)), 1000);
        assert_eq!(due(3, Duration::from_secs(10_000_000_000)), 30_000_000_000);
        assert_eq!(due(14_880_952, Duration::from_nanos(67)), 0);
        let (mut port, counters) = opened("flows=10,rate=1M", 1, 16);
        port.rx[0].sync().unwrap();
        std::thread::sleep(Duration::from_millis(3));
        port.rx[0].sync().unwrap();
        let t = counters.totals();
        assert_eq!(port.rx[0].ring.available(), 15);
        assert!(t.offered >= 3000, "{t:?}");
        assert_eq!(t.offered - t.dropped, 15);
        assert_eq!(port.control.losses().rx_dropped, t.dropped);
        assert_eq!(port.rx[0].wait(), Wait::Nap);
        assert!(!port.rx[0].finished());
    }

    #[test]
    fn lost_packets_have_their_turn() {
        let spec: GenSpec = "flows=10".parse().unwrap();
        let mut arena = Arena::new(1, 8, 0).unwrap();
        let view = arena.ring(Direction::Rx, 8, 0);
        let mut source = source(Kring::new(view), &spec, 0, 1, GenCounters::new(1));
        source.offer(9);
        assert_eq!(source.next, 9);
        source.offer(25);
        assert_eq!(source.next, 4);
        assert_eq!(source.counters.totals().dropped, 2 + 25);
    }

    #[test]
    fn a_count_is_met_exactly_over_all_rings() {
        for (spec, rings) in [("count=1000,flows=7", 3), ("count=10,flows=2", 4), ("count=0", 1)] {
            let (mut port, counters) = opened(spec, rings, 32);
            let want: u64 = spec[6..].split(',').next().unwrap().parse().unwrap();
            for _ in 0..100 {
                for k in 0..rings as usize {
                    bounce(&mut port, k, hop);
                }
            }
            assert!(port.rx.iter().all(RxQueue::finished), "{spec}");
            assert_eq!(counters.totals().packets, want, "{spec}");
        }
    }

    #[test]
    fn a_flow_stays_on_its_ring_and_every_flow_comes() {
        for order in ["turn", "random"] {
            let (mut port, _) = opened(&format!("flows=20,order={order}"), 2, 64);
            let mut seen = [HashSet::new(), HashSet::new()];
            for (k, seen) in seen.iter_mut().enumerate() {
                for _ in 0..5 {
                    bounce(&mut port, k, |frame| {
                        seen.insert(frame[26..38].to_vec());
                    });
                }
            }
            assert_eq!((seen[0].len(), seen[1].len()), (10, 10), "{order}");
            assert!(seen[0].is_disjoint(&seen[1]));
        }
    }

    #[test]
    fn the_ports_own_address_is_the_frames_destination() {
        let (mut port, _) = opened("gen:dmac=02:00:00:00:00:77,family=6", 1, 8);
        assert_eq!(port.info.mac, Some([2, 0, 0, 0, 0, 0x77]));
        bounce(&mut port, 0, |frame| assert_eq!(frame[..6], [2, 0, 0, 0, 0, 0x77]));
    }

    #[test]
    fn the_name_may_say_how_many_rings_and_slots() {
        let options = sized("gen:rings=3,slots=16", &OpenOptions::default());
        assert_eq!(needs(&options), (6, 96));
        let mut arena = Arena::new(6, 96, 0).unwrap();
        let port = open(&mut arena, "gen:rings=3,slots=16", &OpenOptions::default()).unwrap();
        assert_eq!((port.rx.len(), port.tx[2].ring.space()), (3, 15));
    }

    #[test]
    fn a_wrong_option_is_one_line_with_the_devices_name() {
        let mut arena = Arena::new(2, 16, 0).unwrap();
        let e = open(&mut arena, "gen:flws=1", &OpenOptions::default()).err().unwrap();
        assert!(e.to_string().starts_with("gen:flws=1: unknown option"), "{e}");
    }

    proptest! {
        #[test]
        fn buffers_are_conserved_whatever_is_forwarded(
            steps in prop::collection::vec((0..40u32, any::<bool>()), 1..40),
            rate in any::<bool>(),
        ) {
            let (mut port, counters) = opened(if rate { "rate=1G" } else { "" }, 1, 32);
            let before = buffers(&port);
            let mut sent = 0;
            for (n, keep) in steps {
                let (rx, tx) = (&mut port.rx[0], &mut port.tx[0]);
                rx.sync().unwrap();
                let n = n.min(rx.ring.available());
                for i in 0..n {
                    let index = rx.ring.index(i);
                    sent += u64::from(!keep && tx.ring.forward(&rx.ring, index, 60));
                }
                rx.ring.advance(n);
                tx.sync().unwrap();
            }
            prop_assert_eq!(counters.totals().packets, sent);
            prop_assert_eq!(buffers(&port), before);
        }
    }
}
