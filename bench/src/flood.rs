//! `sweepd-bench flood`: new flows from sources that nobody has, as many as an attacker sends, beside
//! a few that are there already. What is to be seen: the memory stays what it was reserved for, the
//! known flows lose nothing, and the counters say what became of the others.

use std::{collections::BTreeMap, fs, io, time::Instant};

use clap::Args;
use sweepd::forward::{burst::Burst, verdict::Verdict};

use crate::{
    gateway::{
        SWEEP,
        setup::{self, Series},
    },
    rig::{Headers, Rig},
    traffic::Frame,
};

/// Flows that are there before.
const KNOWN: usize = 1000;
/// Sweeps of new flows between two sweeps of known ones.
const BETWEEN: u32 = 64;

/// Flood a masquerade with new flows from spoofed sources
#[derive(Args)]
pub struct Flood {
    /// New flows
    #[arg(long, default_value_t = 10_000_000)]
    flows: u64,
}

/// What became of a flood.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Packets of new flows that were sent.
    pub sent: u64,
    /// Packets of known flows that were sent.
    pub known: u64,
    /// Those of them that left.
    pub known_left: u64,
    /// Flows at the end.
    pub flows: usize,
    /// Most flows that there can be.
    pub room: usize,
    /// How the packets of new flows ended, by verdict.
    pub verdicts: BTreeMap<&'static str, u64>,
}

impl Flood {
    /// Runs it and prints what became of it.
    ///
    /// # Errors
    /// When there is not enough memory, or a known flow lost a packet.
    pub fn run(&self) -> io::Result<()> {
        let start = Instant::now();
        let outcome = flood(self.flows)?;
        let took = start.elapsed().as_secs_f64();
        let Outcome { sent, known, known_left, flows, room, verdicts } = &outcome;
        println!("{sent} packets of new flows in {took:.1} s");
        println!("{known} packets of {KNOWN} known flows between them: {known_left} left");
        println!("{flows} flows at the end, of {room} that there is room for");
        if let Some(bytes) = resident() {
            println!("{} MB of memory in use at most", bytes >> 20);
        }
        println!("how the packets of new flows ended:");
        verdicts.iter().for_each(|(name, count)| println!("{count:>12}  {name}"));
        match known == known_left {
            true => Ok(()),
            false => {
                Err(io::Error::other(format!("{} packets of known flows were lost", known - known_left)))
            }
        }
    }
}

/// Sends so many packets, each of a flow of its own, and between them those of known flows.
///
/// # Errors
/// When there is not enough memory.
pub fn flood(flows: u64) -> io::Result<Outcome> {
    let routes = setup::routes();
    let series = Series::Endpoints;
    let mut rig = setup::gateway(&routes, series)?;
    let known = setup::frames(&routes, series, KNOWN, 0, 1);
    setup::begin_flows(&mut rig, known.clone())?;
    let destinations: Vec<u32> = known.iter().map(|(bytes, _)| word(bytes, 30)).collect();
    let mut outcome = Outcome { room: rig.worker.slow.flows.capacity(), ..Outcome::default() };
    let mut burst = Burst::default();
    let mut round = 0;
    while outcome.sent < flows {
        let before = counts(&rig);
        for _ in 0..BETWEEN {
            // Frames that the attacker never sends again.
            let first = outcome.sent;
            let frames = (first..first + u64::from(SWEEP)).map(|n| setup::spoofed(n, &destinations));
            rig.set_capture(frames.collect(), Headers::Cached);
            rig.refill(SWEEP);
            outcome.sent += u64::from(rig.worker.sweep(&mut burst).packets);
        }
        for (verdict, now) in counts(&rig) {
            let new = now - before.get(verdict).copied().unwrap_or(0);
            if new > 0 {
                *outcome.verdicts.entry(verdict).or_default() += new;
            }
        }
        let forwarded = counts(&rig).get(FORWARDED).copied().unwrap_or(0);
        rig.set_capture(rotated(&known, round), Headers::Cached);
        round += SWEEP as usize;
        rig.refill(SWEEP);
        outcome.known += u64::from(rig.worker.sweep(&mut burst).packets);
        outcome.known_left += counts(&rig).get(FORWARDED).copied().unwrap_or(0) - forwarded;
    }
    outcome.flows = rig.worker.slow.flows.len();
    Ok(outcome)
}

const FORWARDED: &str = Verdict::Forwarded.name();

/// The packets of the port that receives, by verdict.
fn counts(rig: &Rig) -> BTreeMap<&'static str, u64> {
    let block = &rig.worker.inputs[0].block;
    Verdict::ALL.iter().map(|verdict| (verdict.name(), block.verdicts[*verdict as usize].get())).collect()
}

/// The frames from number `from` on, round after round.
fn rotated(frames: &[Frame], from: usize) -> Vec<Frame> {
    (0..SWEEP as usize).map(|n| frames[(from + n) % frames.len()]).collect()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// The most memory that this process has had resident, in bytes.
fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_flows_lose_nothing_in_a_flood_and_every_packet_is_counted() {
        let outcome = flood(100_000).unwrap();
        assert_eq!(outcome.known, outcome.known_left, "{outcome:?}");
        assert!(outcome.sent >= 100_000 && outcome.known > 1000, "{outcome:?}");
        assert_eq!(outcome.verdicts.values().sum::<u64>(), outcome.sent, "{outcome:?}");
        assert!(outcome.flows <= outcome.room, "{outcome:?}");
    }
}
