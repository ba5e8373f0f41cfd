//! `sweepd-bench rfc2544`: the benchmarks of RFC 2544 on a router between two ports of this
//! machine: throughput without loss (26.1), latency at that throughput (26.2), loss at higher rates
//! (26.3) and back-to-back frames (26.4).
//!
//! The tester is one thread on the same rings as the router's: it sends what is due, by the clock,
//! and takes what comes. Beside the rate without loss stands what comes out when as much as
//! possible is put in, since both figures are quoted and they are different things.

mod frames;
mod tester;

use std::{
    io,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use clap::Args;
use netmap::{OpenOptions, device};

pub use frames::Size;
pub use tester::{Side, Tester, Trial};

/// Share of the rate range at which the search for the throughput ends.
const RESOLUTION: f64 = 0.01;

/// Benchmark a router between two ports as RFC 2544 says
#[derive(Args)]
pub struct Rfc2544 {
    /// The tester's two ports, as devices: frames go out of the first and come back by the second
    #[arg(long, value_delimiter = ',', num_args = 2, required = true, value_name = "DEVICE,DEVICE")]
    ports: Vec<String>,
    /// The tester's addresses on the two ports
    #[arg(long, value_delimiter = ',', num_args = 2, default_values = ["198.18.0.2", "198.19.0.2"])]
    addresses: Vec<Ipv4Addr>,
    /// The router's address on the first port, to learn its MAC address
    #[arg(long, default_value = "198.18.0.1")]
    gateway: Ipv4Addr,
    /// The router's MAC address on the first port; asked for by ARP when it is not given
    #[arg(long)]
    mac: Option<String>,
    /// Frame sizes in bytes with FCS, or imix: seven frames of 64, four of 594 and one of 1518
    #[arg(long, value_delimiter = ',', default_values_t = Size::all())]
    sizes: Vec<Size>,
    /// Seconds of one trial; the RFC asks for 60
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Flows, by UDP source port
    #[arg(long, default_value_t = 1)]
    flows: u16,
    /// Frames a second at most, such as the link's rate; default: as many as the tester can send
    #[arg(long)]
    rate: Option<f64>,
}

/// What was found at one frame size.
pub struct Outcome {
    /// The frame size.
    pub size: Size,
    /// All that can be put in, and what comes out then, a second.
    pub overload: (f64, f64),
    /// Frames a second without loss.
    pub throughput: f64,
    /// The trial at that rate, with its latencies.
    pub at_throughput: Trial,
    /// Loss, as a share, at 100 %, 90 %, … of the rate put in.
    pub losses: Vec<f64>,
    /// Frames of the longest burst without loss.
    pub back_to_back: u64,
}

impl Rfc2544 {
    /// Measures and prints.
    ///
    /// # Errors
    /// A port cannot be opened, or nothing comes through.
    pub fn run(&self) -> io::Result<()> {
        let mut tester = self.open()?;
        tester.wait_for_the_way()?;
        println!(
            "{:>6} {:>10} {:>10} {:>11} {:>9}  {:>32}  {:>12}",
            "frame",
            "offered",
            "forwarded",
            "throughput",
            "Mbit/s",
            "latency µs p50 / p99 / p99.9",
            "back-to-back"
        );
        println!("{:>6} {:>10} {:>10} {:>11}", "bytes", "pps, most", "pps then", "pps, 0 lost");
        let mut outcomes = Vec::new();
        for &size in &self.sizes {
            let outcome = self.size(&mut tester, size)?;
            print(&outcome);
            outcomes.push(outcome);
        }
        println!("\nframe loss, % of the frames put in, at this share of the most that can be put in");
        println!("{:>6}{}", "bytes", (1..=10).rev().map(|n| format!("{:>8} %", n * 10)).collect::<String>());
        for outcome in &outcomes {
            let cells: String = outcome.losses.iter().map(|loss| format!("{:>10.3}", loss * 100.0)).collect();
            println!("{:>6}{cells}", outcome.size.to_string());
        }
        Ok(())
    }

    fn open(&self) -> io::Result<Tester> {
        let requests: Result<Vec<_>, _> =
            self.ports.iter().map(|s| Ok((s.parse()?, OpenOptions::default()))).collect();
        let requests = requests.map_err(|e: device::spec::SpecError| io::Error::other(e.to_string()))?;
        let mut ports = device::open_all(&requests).map_err(io::Error::other)?.into_iter();
        let (Some(first), Some(second)) = (ports.next(), ports.next()) else {
            return Err(io::Error::other("two ports are needed: --ports xdp:eth0,xdp:eth1"));
        };
        let mac = self.mac.as_deref().map(parse_mac).transpose()?;
        let (from, to) = (Side::new(first, self.addresses[0]), Side::new(second, self.addresses[1]));
        Tester::new(from, to, self.gateway, mac, self.flows.max(1))
    }

    fn size(&self, tester: &mut Tester, size: Size) -> io::Result<Outcome> {
        measure(tester, size, Duration::from_secs_f64(self.seconds.max(0.05)), self.rate)
    }
}

/// All the benchmarks at one frame size; a trial takes `time`, no more than `limit` frames a second
/// are put in.
///
/// # Errors
/// A port fails.
pub fn measure(tester: &mut Tester, size: Size, time: Duration, limit: Option<f64>) -> io::Result<Outcome> {
    let full = tester.trial(size, limit.unwrap_or(f64::INFINITY), time)?;
    let offered = full.sent_a_second();
    let (throughput, at_throughput) = search(tester, size, time, offered)?;
    let mut losses = Vec::new();
    let mut without = 0;
    for tenth in (1..=10).rev() {
        // RFC 2544 26.3: until two trials in a row lose nothing.
        if without == 2 {
            losses.push(0.0);
            continue;
        }
        let trial = tester.trial(size, offered * f64::from(tenth) / 10.0, time)?;
        without = if trial.lost() == 0 { without + 1 } else { 0 };
        losses.push(trial.loss());
    }
    let back_to_back = bursts(tester, size, (offered * 2.0) as u64)?;
    let overload = (offered, full.received_a_second());
    Ok(Outcome { size, overload, throughput, at_throughput, losses, back_to_back })
}

/// The highest rate at which nothing is lost, and the trial at it (RFC 2544 26.1, by halving).
fn search(tester: &mut Tester, size: Size, time: Duration, offered: f64) -> io::Result<(f64, Trial)> {
    let (mut low, mut high) = (0.0, offered);
    let mut best: Option<(f64, Trial)> = None;
    let mut rate = offered;
    while high - low > offered * RESOLUTION {
        let trial = tester.trial(size, rate, time)?;
        if trial.lost() == 0 && trial.kept_up() {
            low = rate;
            best = Some((trial.sent_a_second(), trial));
            if rate >= offered {
                break;
            }
        } else {
            high = rate;
        }
        rate = (low + high) / 2.0;
    }
    match best {
        Some(best) => Ok(best),
        // Something is lost even at a hundredth of the rate.
        None => Ok((0.0, tester.trial(size, offered * RESOLUTION, time)?)),
    }
}

/// The longest burst of which nothing is lost, up to `most` frames (RFC 2544 26.4).
fn bursts(tester: &mut Tester, size: Size, most: u64) -> io::Result<u64> {
    let (mut low, mut high) = (0, most.max(1));
    let mut n = high;
    let until = Instant::now() + Duration::from_secs(60);
    while high - low > high / 100 && Instant::now() < until {
        if tester.burst(size, n)?.lost() == 0 {
            low = n;
            if n == most {
                break;
            }
        } else {
            high = n;
        }
        n = (low + high).div_ceil(2);
    }
    Ok(low)
}

fn print(outcome: &Outcome) {
    let latency = |share| outcome.at_throughput.latency(share).as_nanos() as f64 / 1e3;
    let bits = outcome.throughput * outcome.size.mean_bytes() * 8.0 / 1e6;
    println!(
        "{:>6} {:>10.0} {:>10.0} {:>11.0} {:>9.1}  {:>32}  {:>12}",
        outcome.size.to_string(),
        outcome.overload.0,
        outcome.overload.1,
        outcome.throughput,
        bits,
        format!("{:.1} / {:.1} / {:.1}", latency(0.5), latency(0.99), latency(0.999)),
        outcome.back_to_back
    );
}

fn parse_mac(text: &str) -> io::Result<[u8; 6]> {
    let bytes: Option<Vec<u8>> = text.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| io::Error::other(format!("{text:?} is no MAC address; write it as 02:00:00:00:00:01")))
}
