//! The metrics' names, and what each is the number of. `sweepd(8)` lists them; a test compares.

use std::fmt::Error;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet},
    metrics::{MetricType, exemplar::Exemplar},
    registry::Unit,
};

use super::{PortTotals, RuleCount, Scrape, Sizes};
use crate::forward::verdict::Verdict;

/// What a family of a port's is called, what it means, and where it stands.
type PortFamily = (&'static str, &'static str, Unit, fn(&PortTotals) -> u64);

/// Of what there is one of.
const NO_LABELS: [(&str, &str); 0] = [];
/// No sample here has one.
const NO_EXEMPLAR: Option<&Exemplar<NoLabelSet, u64>> = None;

/// The only thing that most numbers count.
fn packets() -> Unit {
    Unit::Other("packets".into())
}

/// Everything of a port's that only grows.
fn port_counters() -> [PortFamily; 10] {
    [
        ("port_receive", "Packets received.", packets(), |p| p.rx_packets),
        ("port_receive", "Bytes received, without FCS.", Unit::Bytes, |p| p.rx_bytes),
        ("port_receive_error", "Packets that arrived damaged or malformed.", packets(), |p| p.rx_errors),
        ("port_receive_dropped", "Packets lost before a worker saw them.", packets(), |p| p.rx_dropped),
        ("port_transmit", "Packets sent.", packets(), |p| p.tx_packets),
        ("port_transmit", "Bytes sent, without FCS.", Unit::Bytes, |p| p.tx_bytes),
        ("port_transmit_error", "Packets that the device refused to send.", packets(), |p| p.tx_errors),
        (
            "port_transmit_dropped",
            "Packets for this port that were lost: its ring was full.",
            packets(),
            |p| p.tx_dropped,
        ),
        ("port_made", "Packets made here and sent: ICMP errors, fragments, answers.", packets(), |p| p.made),
        ("port_express", "Packets forwarded from this port before a worker saw them.", packets(), |p| {
            p.express
        }),
    ]
}

/// What a port has at this moment.
fn port_gauges() -> [PortFamily; 2] {
    [
        ("port_held", "Packets received here that wait for a neighbour.", packets(), |p| p.held),
        ("port_in_transit", "Packets received here that are between two workers.", packets(), |p| {
            p.in_transit
        }),
    ]
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let out = &mut encoder;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        out.encode_descriptor("build", "The program.", None, MetricType::Info)?.encode_info(&version)?;
        gauge(
            out,
            "start_time",
            "When the counters began.",
            Some(Unit::Seconds),
            [(NO_LABELS, self.started)],
        )?;
        for (name, about, unit, of) in port_counters() {
            let rows = self.ports.iter().map(|(port, counts)| ([("port", port.as_str())], of(counts)));
            counter(out, name, about, Some(unit), rows)?;
        }
        for (name, about, unit, of) in port_gauges() {
            let rows = self.ports.iter().map(|(port, counts)| ([("port", port.as_str())], of(counts)));
            gauge(out, name, about, Some(unit), rows)?;
        }
        self.verdicts(out)?;
        self.workers(out)?;
        self.sizes.as_ref().map_or(Ok(()), |sizes| tables(out, sizes))
    }
}

impl Scrape {
    fn verdicts(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let rows = self.ports.iter().flat_map(|(port, counts)| {
            let counts = counts.verdicts.iter().zip(Verdict::ALL);
            counts.map(|(n, verdict)| ([("port", port.as_str()), ("verdict", verdict.name())], *n))
        });
        counter(out, "verdict", "Packets received, by how they ended.", Some(packets()), rows)
    }

    fn workers(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let numbered = || (0usize..).zip(&self.workers).map(|(n, worker)| ([("worker", n)], worker));
        let received = numbered().map(|(labels, worker)| (labels, worker.sums.rx_packets));
        counter(out, "worker_receive", "Packets that a worker received.", Some(packets()), received)?;
        let sent = numbered().map(|(labels, worker)| (labels, worker.sums.tx_packets));
        counter(out, "worker_transmit", "Packets that a worker sent.", Some(packets()), sent)?;
        let flows = numbered().map(|(labels, worker)| (labels, worker.sums.flows));
        gauge(out, "worker_flows", "Flows that a worker keeps.", None, flows)?;
        let times = numbered().filter_map(|(labels, worker)| Some((labels, worker.cpu?)));
        counter(out, "worker_cpu", "Processor time of a worker.", Some(Unit::Seconds), times)
    }
}

fn tables(out: &mut DescriptorEncoder<'_>, sizes: &Sizes) -> Result<(), Error> {
    let families = |of: [u64; 2]| ["ipv4", "ipv6"].map(|family| [("family", family)]).into_iter().zip(of);
    let alone = |n| [(NO_LABELS, n)];
    gauge(out, "tables_generation", "Generation of the tables in force.", None, alone(sizes.generation))?;
    gauge(out, "fib", "Prefixes that are forwarded by.", Some(prefixes()), families(sizes.prefixes))?;
    gauge(out, "fib", "Memory of the forwarding tables.", Some(Unit::Bytes), families(sizes.fib_bytes))?;
    gauge(out, "adjacencies", "Next hops in use.", None, alone(sizes.adjacencies))?;
    gauge(out, "neighbors", "Neighbours known on the ports.", None, alone(sizes.neighbors))?;
    let about = "Flows that each worker has room for.";
    gauge(out, "worker_flows_limit", about, None, alone(sizes.flows))?;
    let faults = (0usize..).zip(&sizes.faults).map(|(n, faults)| ([("worker", n)], *faults));
    counter(out, "worker_faults", "Faults of a worker's own, after which it went on.", None, faults)?;
    counter(out, "worker_stalls", "How often a worker was found to hang.", None, alone(sizes.stalls))?;
    rules(out, &sizes.rules)?;
    let outcomes = ["done", "refused"].map(|outcome| [("outcome", outcome)]).into_iter();
    counter(out, "reloads", "Reloads of the configuration.", None, outcomes.zip(sizes.reloads))?;
    let Some((when, ok)) = sizes.last_reload else { return Ok(()) };
    gauge(
        out,
        "last_reload_success",
        "Whether the last reload was carried out.",
        None,
        alone(u64::from(ok)),
    )?;
    let about = "When the last reload was.";
    gauge(out, "last_reload_timestamp", about, Some(Unit::Seconds), [(NO_LABELS, when)])
}

fn rules(out: &mut DescriptorEncoder<'_>, rules: &[RuleCount]) -> Result<(), Error> {
    let rows = rules.iter().map(|rule| {
        let action = if rule.denies { "deny" } else { "permit" };
        ([("rule", rule.name.as_str()), ("action", action)], rule.packets)
    });
    counter(out, "acl_rule", "Packets that an access rule fitted.", Some(packets()), rows)
}

fn prefixes() -> Unit {
    Unit::Other("prefixes".into())
}

fn counter<L: EncodeLabelSet, N: EncodeCounterValue>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    about: &str,
    unit: Option<Unit>,
    rows: impl IntoIterator<Item = (L, N)>,
) -> Result<(), Error> {
    let mut family = out.encode_descriptor(name, about, unit.as_ref(), MetricType::Counter)?;
    for (labels, n) in rows {
        family.encode_family(&labels)?.encode_counter(&n, NO_EXEMPLAR)?;
    }
    Ok(())
}

fn gauge<L: EncodeLabelSet, N: EncodeGaugeValue>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    about: &str,
    unit: Option<Unit>,
    rows: impl IntoIterator<Item = (L, N)>,
) -> Result<(), Error> {
    let mut family = out.encode_descriptor(name, about, unit.as_ref(), MetricType::Gauge)?;
    for (labels, n) in rows {
        family.encode_family(&labels)?.encode_gauge(&n)?;
    }
    Ok(())
}
