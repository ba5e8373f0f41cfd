//! OpenMetrics: the counters in the format that Prometheus and others collect.
//!
//! A scrape reads the counters that the workers write anyway, and asks the keeper for the sizes of
//! its tables; no worker notices. Everything here runs on the server's own thread.

mod families;
mod reply;
pub mod server;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prometheus_client::{encoding::text::encode, registry::Registry};

use super::{cpu, file::StatsFile, read::PortTotals};

/// Scrapes that come sooner after another get its text.
const FRESH: Duration = Duration::from_millis(100);

/// What only the keeper knows.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sizes {
    /// The generation of the tables in force.
    pub generation: u64,
    /// Prefixes in the forwarding tables: IPv4, IPv6.
    pub prefixes: [u64; 2],
    /// Bytes of the forwarding tables: IPv4, IPv6.
    pub fib_bytes: [u64; 2],
    /// Next hops in use.
    pub adjacencies: u64,
    /// Neighbours known on the ports.
    pub neighbors: u64,
    /// Reloads carried out, and refused.
    pub reloads: [u64; 2],
    /// The last reload: seconds since 1970, and whether it was carried out.
    pub last_reload: Option<(f64, bool)>,
    /// The access rules in their order, and last the packets that none fitted; empty without rules.
    pub rules: Vec<RuleCount>,
    /// How many flows each worker has room for.
    pub flows: u64,
    /// Faults of each worker's own.
    pub faults: Vec<u64>,
    /// How often a worker was found to hang.
    pub stalls: u64,
}

/// An access rule, and the packets that it fitted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuleCount {
    /// Its name; empty for no rule.
    pub name: String,
    /// Whether it denies.
    pub denies: bool,
    /// Packets.
    pub packets: u64,
}

/// Where [`Sizes`] come from; `None` when the keeper does not answer in time.
pub type Source = Box<dyn FnMut() -> Option<Sizes> + Send>;

/// Makes the text of a scrape.
pub struct Exposition {
    stats: Arc<StatsFile>,
    source: Source,
    last: Option<(Instant, Arc<str>)>,
}

/// One worker's part of the counters.
#[derive(Clone, PartialEq, Debug, Default)]
struct WorkerCounts {
    sums: PortTotals,
    /// Seconds of processor time; `None` where the system does not say.
    cpu: Option<f64>,
}

/// Everything that one scrape shows.
#[derive(Debug)]
struct Scrape {
    started: f64,
    ports: Vec<(String, PortTotals)>,
    workers: Vec<WorkerCounts>,
    sizes: Option<Sizes>,
}

impl Exposition {
    /// Of these counters, and what `source` gives.
    pub fn new(stats: Arc<StatsFile>, source: Source) -> Self {
        Self { stats, source, last: None }
    }

    /// The text as of now, or of a moment ago.
    pub fn text(&mut self) -> Arc<str> {
        if let Some((at, text)) = &self.last
            && at.elapsed() < FRESH
        {
            return text.clone();
        }
        let text: Arc<str> = self.scrape().text().into();
        self.last = Some((Instant::now(), text.clone()));
        text
    }

    fn scrape(&mut self) -> Scrape {
        // A place without a name has no port.
        let ports = self.stats.snapshot().into_iter().filter(|port| !port.name.is_empty());
        let times = cpu::times(std::process::id());
        let worker = |number: usize| {
            let mut sums = PortTotals::default();
            self.stats.writer_snapshot(number).iter().for_each(|port| sums += port);
            WorkerCounts { sums, cpu: times.get(&number).copied() }
        };
        Scrape {
            started: self.stats.started() as f64 / 1e9,
            ports: ports.map(|port| (port.name.clone(), port)).collect(),
            workers: (0..self.stats.keeper()).map(worker).collect(),
            sizes: (self.source)(),
        }
    }
}

impl Scrape {
    fn text(self) -> String {
        let mut registry = Registry::with_prefix("sweepd");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Writing to a string does not fail; and half a text without its end is refused by
        // whoever reads it.
        if let Err(e) = encode(&mut text, &registry) {
            log::error!("metrics cannot be written: {e}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::verdict::Verdict;

    fn exposition() -> (Arc<StatsFile>, Exposition) {
        let stats = Arc::new(StatsFile::anonymous(&["wan".into(), "l\"an".into()], 2).unwrap());
        let sizes = Sizes {
            generation: 7,
            prefixes: [5, 6],
            reloads: [3, 1],
            last_reload: Some((12.5, false)),
            rules: vec![
                RuleCount { name: "no-mail".into(), denies: true, packets: 4 },
                RuleCount { packets: 9, ..RuleCount::default() },
            ],
            flows: 1000,
            faults: vec![0, 2],
            stalls: 1,
            ..Sizes::default()
        };
        let exposition = Exposition::new(stats.clone(), Box::new(move || Some(sizes.clone())));
        (stats, exposition)
    }

    fn value(text: &str, series: &str) -> Option<f64> {
        let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|l| l.starts_with(' ')))?;
        line[series.len() + 1..].parse().ok()
    }

    #[test]
    fn every_counter_has_its_series() {
        let (stats, mut exposition) = exposition();
        let block = stats.block(0, 0);
        block.rx_packets.add(10);
        block.rx_bytes.add(600);
        block.count(Verdict::Forwarded, 9);
        block.held.add(1);
        stats.block(1, 0).rx_packets.add(4);
        stats.block(1, 1).tx_packets.add(9);
        stats.block(2, 1).rx_dropped.set(3);
        stats.block(1, stats.places()).flows.set(42);
        let text = exposition.text();
        for (series, expected) in [
            ("sweepd_port_receive_packets_total{port=\"wan\"}", 14.0),
            ("sweepd_port_receive_bytes_total{port=\"wan\"}", 600.0),
            ("sweepd_port_held_packets{port=\"wan\"}", 1.0),
            ("sweepd_port_transmit_packets_total{port=\"l\\\"an\"}", 9.0),
            ("sweepd_port_receive_dropped_packets_total{port=\"l\\\"an\"}", 3.0),
            ("sweepd_verdict_packets_total{port=\"wan\",verdict=\"forwarded\"}", 9.0),
            ("sweepd_verdict_packets_total{port=\"wan\",verdict=\"no_route\"}", 0.0),
            ("sweepd_worker_receive_packets_total{worker=\"1\"}", 4.0),
            ("sweepd_worker_flows{worker=\"0\"}", 0.0),
            ("sweepd_worker_flows{worker=\"1\"}", 42.0),
            ("sweepd_worker_flows_limit", 1000.0),
            ("sweepd_worker_faults_total{worker=\"1\"}", 2.0),
            ("sweepd_worker_stalls_total", 1.0),
            ("sweepd_acl_rule_packets_total{rule=\"no-mail\",action=\"deny\"}", 4.0),
            ("sweepd_acl_rule_packets_total{rule=\"\",action=\"permit\"}", 9.0),
            ("sweepd_tables_generation", 7.0),
            ("sweepd_fib_prefixes{family=\"ipv6\"}", 6.0),
            ("sweepd_reloads_total{outcome=\"refused\"}", 1.0),
            ("sweepd_last_reload_success", 0.0),
            ("sweepd_last_reload_timestamp_seconds", 12.5),
        ] {
            assert_eq!(value(&text, series), Some(expected), "{series} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        // The keeper is no worker.
        assert!(!text.contains("worker=\"2\""));
    }

    #[test]
    fn every_verdict_of_every_port_is_there_and_they_add_up() {
        let (stats, mut exposition) = exposition();
        for (n, verdict) in (1..).zip(Verdict::ALL) {
            stats.block(0, 1).count(*verdict, n);
        }
        let text = exposition.text();
        let verdicts = text.lines().filter(|line| line.starts_with("sweepd_verdict_packets_total{"));
        let counts: Vec<u64> = verdicts.map(|l| l.split(' ').next_back().unwrap().parse().unwrap()).collect();
        let n = Verdict::ALL.len() as u64;
        assert_eq!((counts.len() as u64, counts.iter().sum::<u64>()), (2 * n, n * (n + 1) / 2));
    }

    #[test]
    fn a_keeper_that_does_not_answer_leaves_its_part_out() {
        let (stats, _) = exposition();
        let text = Exposition::new(stats, Box::new(|| None)).text();
        assert!(!text.contains("sweepd_tables_generation") && text.contains("sweepd_port_receive"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_flood_of_scrapes_asks_the_keeper_ten_times_a_second() {
        let (stats, _) = exposition();
        let mut asked = 0;
        let (sender, receiver) = crossbeam_channel::unbounded();
        let mut exposition = Exposition::new(
            stats,
            Box::new(move || {
                asked += 1;
                sender.send(asked).ok();
                None
            }),
        );
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            exposition.text();
        }
        assert!(receiver.try_iter().last().unwrap() <= 2);
    }
}
