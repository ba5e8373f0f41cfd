//! `show flows` and `show masquerade`: what the workers keep, page by page. A worker looks at one
//! page between two sweeps and goes on forwarding; nothing stops it for longer than that.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use crossbeam_channel::{Receiver, bounded};
use ipnet::IpNet;
use serde_json::{Value, json};

use crate::{
    forward::{
        assembly::WorkerLink,
        flows::{End4, Flow, tcp},
        messages::{Look, ToWorker},
        slow::Slow,
        translate::{mappings::Mapping, protocol_name},
    },
    stats::file::StatsFile,
    wire::ipv4::TCP,
};

/// Records that a worker looks at between two sweeps.
const PAGE: u32 = 1024;
/// Rows of one answer.
const ROWS: usize = 10_000;
/// How long a worker may take to come to it: it may be asleep, no longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which flows are asked for: one of a flow's ends has to fit all that is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    protocol: Option<u8>,
    net: Option<IpNet>,
    port: Option<u16>,
}

impl Filter {
    /// Reads `tcp 10.0.0.7 443` and the like.
    ///
    /// # Errors
    /// A word that is none of these, for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut filter = Self::default();
        for word in text.split_whitespace() {
            match word {
                "icmp" => filter.protocol = Some(1),
                "tcp" => filter.protocol = Some(6),
                "udp" => filter.protocol = Some(17),
                "icmp6" => filter.protocol = Some(58),
                _ => {
                    let net = word.parse().ok().or_else(|| word.parse::<IpAddr>().ok().map(IpNet::from));
                    match (net, word.parse()) {
                        (Some(net), _) => filter.net = Some(net),
                        (None, Ok(port)) => filter.port = Some(port),
                        (None, Err(_)) => {
                            return Err(format!(
                                "{word:?} is no filter; give a protocol (tcp, udp, icmp, icmp6), an address, a \
                                 prefix or a port number"
                            ));
                        }
                    }
                }
            }
        }
        Ok(filter)
    }

    fn fits(&self, protocol: u8, ends: &[(IpAddr, u16)]) -> bool {
        let fits = |(address, port): &(IpAddr, u16)| {
            self.net.is_none_or(|net| net.contains(address)) && self.port.is_none_or(|wanted| wanted == *port)
        };
        self.protocol.is_none_or(|wanted| wanted == protocol) && ends.iter().any(fits)
    }
}

fn end4(end: End4) -> (IpAddr, u16) {
    (Ipv4Addr::from(end.address).into(), end.port)
}

/// The ends of a flow, the one that began first, and its outside end.
fn ends(flow: &Flow) -> Vec<(IpAddr, u16)> {
    if flow.is_ipv6() {
        let (from, to) = flow.ends6();
        return vec![(from.0.into(), from.1), (to.0.into(), to.1)];
    }
    let (from, to) = flow.ends4();
    let outside = flow.is_translated().then(|| end4(flow.translation().external));
    [end4(from), end4(to)].into_iter().chain(outside).collect()
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// `show flows`
    Flows,
    /// `show masquerade`
    Masquerade,
}

/// Asks the workers, on a thread of its own. The answer is the data of the reply, or why there is
/// none.
pub fn gather(
    workers: Vec<WorkerLink>,
    stats: Arc<StatsFile>,
    subject: Subject,
    filter: Filter,
) -> Receiver<Result<Value, String>> {
    let (answer, answered) = bounded(1);
    let spawned = std::thread::Builder::new().name("show".into()).spawn({
        let answer = answer.clone();
        move || {
            let data = match subject {
                Subject::Flows => flows(&workers, &stats.ports(), filter),
                Subject::Masquerade => masquerade(&workers, &stats.ports(), filter),
            };
            // The asker may have gone.
            let _ = answer.try_send(data);
        }
    });
    if let Err(e) = spawned {
        let _ = answer.try_send(Err(format!("cannot start a thread: {e}")));
    }
    answered
}

/// Has a worker look at what it keeps, between two sweeps.
fn ask<R: Send + 'static>(
    worker: &WorkerLink,
    look: impl Fn(&Slow) -> R + Send + Sync + 'static,
) -> Result<R, String> {
    let (answer, answered) = bounded(1);
    let look = Look::new(move |slow| {
        // The asker may have gone.
        let _ = answer.try_send(look(slow));
    });
    let busy = || "a worker is busy or ending; try again".to_owned();
    if !worker.send(ToWorker::Look(look)) {
        return Err(busy());
    }
    answered.recv_timeout(PATIENCE).map_err(|_| busy())
}

fn flows(workers: &[WorkerLink], ports: &[String], filter: Filter) -> Result<Value, String> {
    let (mut rows, mut matched, mut total) = (Vec::new(), 0u64, 0);
    for (number, worker) in workers.iter().enumerate() {
        let mut at = 0;
        total += ask(worker, |slow| slow.flows.len())?;
        loop {
            let (page, next, now) = ask(worker, move |slow| {
                let (page, next) = slow.flows.page(at, PAGE);
                let page =
                    page.map(|(_, flow)| *flow).filter(|flow| filter.fits(flow.protocol(), &ends(flow)));
                (page.collect::<Vec<Flow>>(), next, slow.clock.now())
            })?;
            matched += page.len() as u64;
            let room = ROWS - rows.len();
            rows.extend(page.iter().take(room).map(|flow| flow_row(flow, number, ports, now)));
            at = next;
            if next == 0 {
                break;
            }
        }
    }
    Ok(json!({ "total": total, "matched": matched, "flows": rows }))
}

fn flow_row(flow: &Flow, worker: usize, ports: &[String], now: u32) -> Value {
    let ends = ends(flow);
    let state = match flow.protocol() {
        TCP => tcp::name(flow.state),
        _ if flow.is_answered() => "answered",
        _ => "unanswered",
    };
    let outside = ends.get(2);
    let out = flow.is_translated().then(|| ports.get(usize::from(flow.translation().out))).flatten();
    json!({
        "protocol": protocol_name(flow.protocol()),
        "from": ends[0].0, "from_port": ends[0].1,
        "to": ends[1].0, "to_port": ends[1].1,
        "outside": outside.map(|end| end.0), "outside_port": outside.map(|end| end.1),
        "out": out,
        "state": state,
        "idle": now.wrapping_sub(flow.seen) / 1000,
        "worker": worker,
    })
}

fn masquerade(workers: &[WorkerLink], ports: &[String], filter: Filter) -> Result<Value, String> {
    let (mut rows, mut used, mut matched, mut total) = (Vec::new(), Vec::new(), 0u64, 0);
    for (number, worker) in workers.iter().enumerate() {
        let (count, taken) = ask(worker, |slow| {
            let mappings = &slow.translator.mappings;
            (mappings.len(), mappings.ports.used().collect::<Vec<_>>())
        })?;
        total += count;
        used.extend(taken.into_iter().filter(|(.., taken)| *taken > 0).map(|(address, protocol, taken)| {
            json!({
                "address": Ipv4Addr::from(address), "protocol": protocol_name(protocol), "ports": taken,
                "worker": number,
            })
        }));
        let mut at = 0;
        loop {
            let (page, next) = ask(worker, move |slow| {
                let (page, next) = slow.translator.mappings.page(at, PAGE);
                let fits = |m: &&Mapping| filter.fits(m.protocol, &[end4(m.inside()), end4(m.external())]);
                (page.filter(fits).copied().collect::<Vec<Mapping>>(), next)
            })?;
            matched += page.len() as u64;
            let room = ROWS - rows.len();
            rows.extend(page.iter().take(room).map(|mapping| mapping_row(mapping, number, ports)));
            at = next;
            if next == 0 {
                break;
            }
        }
    }
    Ok(json!({ "total": total, "matched": matched, "mappings": rows, "used": used }))
}

fn mapping_row(mapping: &Mapping, worker: usize, ports: &[String]) -> Value {
    let (inside, outside) = (end4(mapping.inside()), end4(mapping.external()));
    json!({
        "protocol": protocol_name(mapping.protocol),
        "inside": inside.0, "inside_port": inside.1,
        "outside": outside.0, "outside_port": outside.1,
        "out": ports.get(usize::from(mapping.out)),
        "flows": mapping.flows,
        "worker": worker,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_fits_by_protocol_address_and_port_of_one_end() {
        let ends = [("10.0.0.7".parse().unwrap(), 4000), ("198.51.100.3".parse().unwrap(), 443)];
        for (text, fits) in [
            ("", true),
            ("tcp", true),
            ("udp", false),
            ("10.0.0.7", true),
            ("10.0.0.0/8 4000", true),
            ("10.0.0.0/8 443", false),
            ("tcp 198.51.100.3 443", true),
            ("2001:db8::/32", false),
        ] {
            assert_eq!(Filter::parse(text).unwrap().fits(6, &ends), fits, "{text}");
        }
        assert!(Filter::parse("tcp everything").unwrap_err().starts_with("\"everything\" is no filter"));
    }
}
