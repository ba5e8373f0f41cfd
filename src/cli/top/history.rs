//! What has been seen of the counters: rates between two looks, and those of the last minutes.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use sweepd::stats::read::PortTotals;

/// Looks remembered for the graphs.
const DEPTH: usize = 512;

/// One look at the counters.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The daemon's process id.
    pub pid: u32,
    /// The ports' names.
    pub names: Vec<String>,
    /// The verdicts' names.
    pub verdicts: Vec<String>,
    /// Their counters.
    pub ports: Vec<PortTotals>,
    /// Seconds of processor time by worker.
    pub times: BTreeMap<usize, f64>,
}

/// What a port did in a second of the last interval.
#[derive(Clone, Debug, Default)]
pub struct PortRate {
    /// Its name.
    pub name: String,
    /// Packets received, and sent.
    pub packets: [f64; 2],
    /// Bits received, and sent.
    pub bits: [f64; 2],
    /// Packets lost on the way in and out, or damaged.
    pub lost: f64,
}

/// The looks so far.
#[derive(Debug)]
pub struct History {
    interval: Duration,
    last: Option<(Look, Instant)>,
    ports: Vec<PortRate>,
    verdicts: Vec<(String, f64)>,
    workers: Vec<(usize, f64)>,
    /// Packets received in a second, and sent, by look, the newest last.
    graph: [VecDeque<u64>; 2],
}

impl History {
    /// Nothing has been seen.
    pub fn new(interval: Duration) -> Self {
        let graph = [VecDeque::new(), VecDeque::new()];
        Self { interval, last: None, ports: Vec::new(), verdicts: Vec::new(), workers: Vec::new(), graph }
    }

    /// Takes a look in. The first one gives no rates yet.
    pub fn add(&mut self, look: Look, at: Instant) {
        if let Some((before, then)) = &self.last {
            let seconds = at.saturating_duration_since(*then).as_secs_f64().max(1e-3);
            // A counter that went back began anew: nothing is known of this interval.
            let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
            self.ports = port_rates(before, &look, rate);
            self.verdicts = verdict_rates(before, &look, rate);
            let share = |(worker, time): (&usize, &f64)| {
                let passed = time - before.times.get(worker)?;
                Some((*worker, (passed / seconds).clamp(0.0, 1.0)))
            };
            self.workers = look.times.iter().filter_map(share).collect();
            for (graph, way) in self.graph.iter_mut().zip([0, 1]) {
                graph.push_back(self.ports.iter().map(|port| port.packets[way]).sum::<f64>() as u64);
                if graph.len() > DEPTH {
                    graph.pop_front();
                }
            }
        }
        self.last = Some((look, at));
    }

    /// The daemon's process id.
    pub fn pid(&self) -> Option<u32> {
        self.last.as_ref().map(|(look, _)| look.pid)
    }

    /// Time between two looks.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The ports, in their order.
    pub fn ports(&self) -> &[PortRate] {
        &self.ports
    }

    /// How packets ended, by second, the most frequent first; those that none ended in are left out.
    pub fn verdicts(&self) -> &[(String, f64)] {
        &self.verdicts
    }

    /// Each worker's share of a core.
    pub fn workers(&self) -> &[(usize, f64)] {
        &self.workers
    }

    /// The last `n` rates, received (0) or sent (1), the newest last.
    pub fn graph(&self, way: usize, n: usize) -> Vec<u64> {
        let graph = &self.graph[way];
        graph.iter().skip(graph.len().saturating_sub(n)).copied().collect()
    }

    /// Flows that the workers keep.
    pub fn flows(&self) -> u64 {
        self.last.iter().flat_map(|(look, _)| &look.ports).map(|port| port.flows).sum()
    }

    /// Packets that wait for a neighbour, or are between two workers.
    pub fn waiting(&self) -> u64 {
        let ports = self.last.iter().flat_map(|(look, _)| &look.ports);
        ports.map(|port| port.held + port.in_transit).sum()
    }
}

fn port_rates(before: &Look, after: &Look, rate: impl Fn(u64, u64) -> f64) -> Vec<PortRate> {
    let named = after.names.iter().zip(&after.ports);
    let of = |(name, now): (&String, &PortTotals)| {
        let place = before.names.iter().position(|other| other == name)?;
        let then = before.ports.get(place)?;
        let lost = |t: &PortTotals| t.rx_dropped + t.tx_dropped + t.rx_errors + t.tx_errors;
        Some(PortRate {
            name: name.clone(),
            packets: [rate(then.rx_packets, now.rx_packets), rate(then.tx_packets, now.tx_packets)],
            bits: [8.0 * rate(then.rx_bytes, now.rx_bytes), 8.0 * rate(then.tx_bytes, now.tx_bytes)],
            lost: rate(lost(then), lost(now)),
        })
    };
    named.filter(|(name, _)| !name.is_empty()).filter_map(of).collect()
}

fn verdict_rates(before: &Look, after: &Look, rate: impl Fn(u64, u64) -> f64) -> Vec<(String, f64)> {
    let sum = |look: &Look, n: usize| look.ports.iter().filter_map(|p| p.verdicts.get(n)).sum::<u64>();
    let rates = after
        .verdicts
        .iter()
        .enumerate()
        .map(|(n, name)| (name.clone(), rate(sum(before, n), sum(after, n))));
    let mut rates: Vec<_> = rates.filter(|(_, rate)| *rate > 0.0).collect();
    rates.sort_by(|a, b| b.1.total_cmp(&a.1));
    rates
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A router with two ports, after `n` seconds of a million packets each.
    pub fn look(n: u64) -> Look {
        let port = |rx: u64, tx: u64| PortTotals {
            rx_packets: rx * n,
            rx_bytes: rx * n * 60,
            tx_packets: tx * n,
            tx_bytes: tx * n * 60,
            tx_dropped: 5 * n,
            flows: 600,
            verdicts: vec![rx * n - 10 * n, 0, 10 * n],
            ..PortTotals::default()
        };
        Look {
            pid: 4711,
            names: vec!["wan".into(), "lan".into()],
            verdicts: ["forwarded", "host", "no_route"].map(Into::into).into(),
            ports: vec![port(1_000_000, 20), port(20, 1_000_000)],
            times: [(0, 0.5 * n as f64), (1, n as f64)].into(),
        }
    }

    #[test]
    fn rates_are_differences_by_the_time_between_two_looks() {
        let mut history = History::new(Duration::from_secs(2));
        let start = Instant::now();
        history.add(look(1), start);
        assert!(history.ports().is_empty() && history.graph(0, 9).is_empty());
        history.add(look(3), start + Duration::from_secs(2));
        assert_eq!(history.ports()[0].packets, [1_000_000.0, 20.0]);
        assert_eq!((history.ports()[0].bits[0], history.ports()[1].lost), (480e6, 5.0));
        assert_eq!(history.verdicts()[0].0, "forwarded");
        assert_eq!(history.verdicts()[1], ("no_route".into(), 20.0));
        assert_eq!(history.workers(), [(0, 0.5), (1, 1.0)]);
        assert_eq!(history.graph(0, 9), [1_000_020]);
        // Another daemon's counters begin at zero.
        history.add(look(0), start + Duration::from_secs(4));
        assert_eq!(history.ports()[0].packets, [0.0, 0.0]);
    }

    #[test]
    fn a_port_that_comes_has_rates_from_its_second_look_on() {
        let mut history = History::new(Duration::from_secs(1));
        let start = Instant::now();
        let mut first = look(1);
        first.names.pop();
        first.ports.pop();
        history.add(first, start);
        history.add(look(2), start + Duration::from_secs(1));
        assert_eq!(history.ports().iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["wan"]);
        history.add(look(3), start + Duration::from_secs(2));
        assert_eq!(history.ports().len(), 2);
    }

    #[test]
    fn the_memory_of_rates_has_an_end() {
        let mut history = History::new(Duration::from_secs(1));
        let start = Instant::now();
        for n in 0..2000 {
            history.add(look(n), start + Duration::from_secs(n));
        }
        assert_eq!(history.graph(1, usize::MAX).len(), DEPTH);
    }
}
