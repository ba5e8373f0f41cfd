//! `sweepd-bench peers`: DPDK's example router l3fwd beside sweepd's worker, on the same capture and
//! the same table.
//!
//! Both replay the capture from memory for ever and send to nowhere, on one core. l3fwd's device is
//! `net_pcap` with `infinite_rx`, which copies each packet out of a buffer that it keeps; here each
//! round copies the frames from a pristine copy into the ring, and that is inside the figure. What
//! the devices cost by themselves stands beside, so that it can be taken away. Processes that wait
//! for their turn are stopped.

pub mod dpdk;

use std::{
    fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use sweepd::{
    forward::burst::Burst,
    tables::{
        prefixes::{Prefixes4, Prefixes6},
        recorded,
        synthetic::{self, Random, addresses},
    },
};

use crate::{
    cycles,
    rig::{Headers, NEXT_HOPS, OUT_PORTS, Rig},
    traffic::{self, Frame},
};

/// Packets in one of our sweeps.
const SWEEP: u32 = 256;

/// Measure DPDK's l3fwd and this program's worker on the same capture and table
#[derive(Args)]
pub struct Peers {
    /// Rounds; the medians count
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of one measurement
    #[arg(long, default_value_t = 1000)]
    milliseconds: u64,
    /// IPv4 prefixes of the large table
    #[arg(long, default_value_t = 1_000_000)]
    prefixes: usize,
    /// The large table from a file instead, as scripts/tables.sh fetches it
    #[arg(long)]
    table4: Option<PathBuf>,
    /// Where to write the data
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
}

/// What is replayed and by which table it is routed.
pub struct Case {
    /// Its name.
    pub name: String,
    /// The table; next hop *n* leads to port 1 + *n* mod [`OUT_PORTS`].
    pub routes: Prefixes4,
    /// The packets, in order.
    pub frames: Vec<Frame>,
    /// Their destinations, host order.
    pub destinations: Vec<u32>,
}

impl Case {
    fn new(routes: Prefixes4, packets: usize) -> Self {
        let name = format!("{} routes, {packets} packets", routes.len());
        let mut random = Random::new(5);
        let destinations = addresses(&routes, packets, &mut random);
        let frames = traffic::frames_to(&destinations, &mut random);
        Self { name, routes, frames, destinations }
    }

    /// The sum over the packets of the ports that they leave by.
    pub fn sum(&self) -> u64 {
        self.destinations.iter().map(|&to| u64::from(self.port(to))).sum()
    }

    /// The port that a packet to `destination` leaves by; 0 when there is no route.
    pub fn port(&self, destination: u32) -> u16 {
        self.routes.longest_match(destination).map_or(0, |(_, next_hop)| port_of(next_hop))
    }
}

/// The port that next hop `n` of a table leads to, as the rig lays them out.
pub fn port_of(next_hop: u16) -> u16 {
    1 + (next_hop % NEXT_HOPS) % OUT_PORTS
}

/// One contestant.
pub trait Peer {
    /// Whose it is.
    fn name(&self) -> String;
    /// Cycles (TSC) of one core a packet, over about `time`.
    ///
    /// # Errors
    /// When it does not forward what it is given, or has ended.
    fn measure(&mut self, time: Duration) -> io::Result<f64>;
}

impl Peers {
    /// Measures and prints.
    ///
    /// # Errors
    /// When there is not enough memory, or a contestant forwards wrongly.
    pub fn run(&self) -> io::Result<()> {
        let large = match &self.table4 {
            Some(file) => recorded::ipv4(file, NEXT_HOPS)?,
            None => synthetic::ipv4(self.prefixes, NEXT_HOPS, 42),
        };
        let mut small = Prefixes4::new();
        small.insert(0, 1, 0);
        small.insert(1 << 31, 1, 1);
        let mut csv = String::from("routes,packets,router,cycles,cycles_low,cycles_high,times_sweepd\n");
        for (routes, packets) in [(small, 4096), (large.clone(), 4096), (large, 65535)] {
            csv += &self.case(&Case::new(routes, packets))?;
        }
        fs::create_dir_all(&self.out)?;
        fs::write(self.out.join("peers.csv"), csv)?;
        println!("\nwritten: {}", self.out.join("peers.csv").display());
        Ok(())
    }

    /// Measures one case, prints it, and gives its lines of data.
    fn case(&self, case: &Case) -> io::Result<String> {
        let mut peers: Vec<Box<dyn Peer>> = vec![
            Box::new(Ours::new(case, Headers::Cached, true)?),
            Box::new(Ours::new(case, Headers::Memory, true)?),
            Box::new(Ours::new(case, Headers::Cached, false)?),
        ];
        match dpdk::start(case) {
            Ok(theirs) => peers.extend(theirs),
            Err(why) => println!("SKIPPED: DPDK's l3fwd: {why}"),
        }
        let mut cycles = vec![Vec::new(); peers.len()];
        for _ in 0..self.rounds.max(1) {
            for (peer, cycles) in peers.iter_mut().zip(&mut cycles) {
                cycles.push(peer.measure(Duration::from_millis(self.milliseconds))?);
            }
        }
        println!("\n{}: cycles a packet (lowest to highest of {} rounds)", case.name, self.rounds.max(1));
        let mut csv = String::new();
        for (peer, all) in peers.iter().zip(&cycles) {
            let mut sorted = all.clone();
            sorted.sort_by(f64::total_cmp);
            let ratio = |(theirs, ours): (&f64, &f64)| theirs / ours;
            let mut ratios: Vec<f64> = all.iter().zip(&cycles[0]).map(ratio).collect();
            ratios.sort_by(f64::total_cmp);
            let (median, low, high) = (sorted[sorted.len() / 2], sorted[0], sorted[sorted.len() - 1]);
            let ratio = ratios[ratios.len() / 2];
            println!("  {:44}{median:>7.1} ({low:.1} to {high:.1}){ratio:>8.2}", peer.name());
            let name = peer.name().replace(',', ";");
            csv += &format!(
                "{},{},{name},{median:.1},{low:.1},{high:.1},{ratio:.2}\n",
                case.routes.len(),
                case.frames.len()
            );
        }
        println!("  (last column: times the first line's, median of the rounds' ratios)");
        Ok(csv)
    }
}

/// Our worker, or without `forward` its devices alone.
struct Ours {
    rig: Rig,
    burst: Burst,
    headers: Headers,
    forward: bool,
    hertz: f64,
    /// Packets that each port must get of one replay of the capture, and the capture's length.
    expected: Vec<u64>,
    packets: u64,
}

impl Ours {
    fn new(case: &Case, headers: Headers, forward: bool) -> io::Result<Self> {
        let mut rig = Rig::new(&case.routes, &Prefixes6::new())?;
        rig.set_capture(case.frames.clone(), headers);
        let mut expected = vec![0; usize::from(OUT_PORTS) + 1];
        for &to in &case.destinations {
            expected[usize::from(case.port(to))] += 1;
        }
        let packets = case.frames.len() as u64;
        let hertz = cycles::hertz();
        Ok(Self { rig, burst: Burst::default(), headers, forward, hertz, expected, packets })
    }

    /// Takes the packets out of the receive ring without looking at them.
    fn drop_all(&mut self) {
        for input in &mut self.rig.worker.inputs {
            let n = input.queue.ring.available();
            input.queue.ring.advance(n);
        }
    }

    /// Packets sent by each port so far.
    fn sent(&self) -> Vec<u64> {
        self.rig.stats.snapshot().iter().map(|port| port.tx_packets).collect()
    }

    /// Whether each port got its share of `packets`, to within the packets of one replay that was
    /// not finished.
    fn check(&self, before: &[u64], packets: u64) -> io::Result<()> {
        let sent: Vec<u64> = self.sent().iter().zip(before).map(|(after, before)| after - before).collect();
        if sent.iter().sum::<u64>() != packets {
            return Err(io::Error::other(format!(
                "of {packets} packets {} were forwarded",
                sent.iter().sum::<u64>()
            )));
        }
        let replays = packets / self.packets;
        // There is room for more ports than there are.
        let wrong = sent.iter().enumerate().skip(1).find(|&(port, &sent)| {
            let expected = self.expected.get(port).copied().unwrap_or(0);
            !(replays * expected..=(replays + 1) * expected).contains(&sent)
        });
        match wrong {
            Some((port, sent)) => Err(io::Error::other(format!("port {port} has sent {sent} packets"))),
            None => Ok(()),
        }
    }
}

impl Peer for Ours {
    fn name(&self) -> String {
        match (self.forward, self.headers) {
            (true, Headers::Cached) => "sweepd".into(),
            (true, Headers::Memory) => "sweepd, headers flushed to memory first".into(),
            (false, _) => "sweepd's devices alone".into(),
        }
    }

    fn measure(&mut self, time: Duration) -> io::Result<f64> {
        // Whole replays, so that every port's share is exact.
        let sweeps = self.packets.div_ceil(u64::from(SWEEP));
        let before = self.sent();
        let (begun, cpu) = (Instant::now(), processor_time());
        let (mut took, mut packets) = (0, 0);
        while begun.elapsed() < time {
            for _ in 0..sweeps {
                let start = cycles::now();
                self.rig.refill(SWEEP);
                // Flushing is no device's work.
                let start = if self.headers == Headers::Memory { cycles::now() } else { start };
                match self.forward {
                    true => {
                        self.rig.worker.sweep(&mut self.burst);
                    }
                    false => self.drop_all(),
                }
                took += cycles::now() - start;
                packets += u64::from(SWEEP);
            }
        }
        if self.forward {
            self.check(&before, packets)?;
        }
        // Of a thread that others interrupt, only its own time counts; flushing cannot be told
        // apart in it.
        let cycles = match self.headers {
            Headers::Cached => (processor_time() - cpu).as_secs_f64() * self.hertz,
            Headers::Memory => took as f64,
        };
        Ok(cycles / packets as f64)
    }
}

/// The processor time that this thread has had.
fn processor_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(Duration::ZERO, Duration::from)
}
