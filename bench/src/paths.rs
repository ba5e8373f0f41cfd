//! Every way that a packet can go through the worker, each as a rig that sends packets down that
//! way only: for counting what they execute.

use std::{io, sync::Arc};

use sweepd::{
    forward::burst::Burst,
    tables::{
        acl::{Acl, Compiled, Rule},
        prefixes::{Prefixes4, Prefixes6},
    },
};

use crate::{
    gateway::setup::{self, Series},
    rig::{Headers, Rig},
    traffic::{self, Frame},
};

/// A way through the worker.
pub struct Way {
    /// What goes this way.
    pub name: &'static str,
    /// Packets in a sweep.
    pub packets: u32,
    /// Sweeps after which everything is as it stays.
    pub warm_up: u32,
    /// Makes the rig.
    pub make: fn() -> io::Result<Rig>,
    /// Whether it is a fast path, which takes nothing shared.
    pub fast: bool,
    /// Instructions that one packet may take in an optimised build, with some room for the
    /// compiler's moods; none when nothing was set down.
    pub most: Option<u64>,
}

/// Packets in a sweep: two bursts in the build of the tests, where counting goes on and on.
const SWEEP: u32 = if cfg!(debug_assertions) { 64 } else { 256 };

impl Way {
    const fn fast(name: &'static str, make: fn() -> io::Result<Rig>, most: Option<u64>) -> Self {
        Self { name, packets: SWEEP, warm_up: 2, make, fast: true, most }
    }

    /// The rig after its warm-up, with packets to be swept.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn ready(&self, burst: &mut Burst) -> io::Result<Rig> {
        let mut rig = (self.make)()?;
        for _ in 0..self.warm_up {
            rig.refill(self.packets);
            rig.worker.sweep(burst);
        }
        rig.refill(self.packets);
        Ok(rig)
    }
}

/// All ways.
pub fn all() -> Vec<Way> {
    vec![
        Way::fast("ipv4", ipv4, Some(320)),
        Way::fast("ipv6", ipv6, None),
        Way::fast("ipv4; 10 access rules", || filtered(10, true), None),
        Way::fast("ipv4; 1000 access rules", || filtered(1000, true), None),
        Way::fast("ipv6; 10 access rules", || filtered(10, false), None),
        Way::fast("ipv6; 1000 access rules", || filtered(1000, false), None),
        Way::fast("masquerade; known flow", || translated(false), Some(700)),
        Way::fast("gateway; 10 access rules", || translated(true), None),
        Way {
            name: "icmp error (ttl 1)",
            packets: 64,
            warm_up: 1,
            make: icmp_error,
            fast: false,
            most: None,
        },
    ]
}

/// The tables of the rigs.
pub fn routes() -> (Prefixes4, Prefixes6) {
    (sweepd::tables::synthetic::ipv4(1000, 100, 1), sweepd::tables::synthetic::ipv6(1000, 100, 1))
}

fn rig() -> io::Result<Rig> {
    let (v4, v6) = routes();
    Rig::new(&v4, &v6)
}

fn frames4() -> Vec<Frame> {
    traffic::frames4(&routes().0, 1000, 3)
}

fn frames6() -> Vec<Frame> {
    traffic::frames6(&routes().1, 1000, 3)
}

fn ipv4() -> io::Result<Rig> {
    let mut rig = rig()?;
    rig.set_flows(frames4(), Headers::Cached);
    Ok(rig)
}

fn ipv6() -> io::Result<Rig> {
    let mut rig = rig()?;
    rig.set_flows(frames6(), Headers::Cached);
    Ok(rig)
}

/// Rules that no packet fits.
fn rules(n: u16) -> Vec<Rule> {
    let rule = |port: u16| Rule {
        in_ports: vec![0],
        protocol: Some(6),
        to_ports: vec![(port, port)],
        ..Rule::of_all("", true)
    };
    (0..n).map(rule).collect()
}

/// Packets that pass so many access rules.
fn filtered(n: u16, is_v4: bool) -> io::Result<Rig> {
    let mut rig = rig()?;
    let compiled = Compiled::new(rules(n)).map_err(io::Error::other)?;
    let acl = Arc::new(Acl::new(Arc::new(compiled), 1));
    rig.worker.reader.offline();
    rig.publisher.as_mut().expect("this rig has no keeper").publish(|tables| tables.acl = Some(acl.clone()));
    rig.set_flows(if is_v4 { frames4() } else { frames6() }, Headers::Cached);
    Ok(rig)
}

/// Packets of flows that are known and translated, with or without access rules.
fn translated(filters: bool) -> io::Result<Rig> {
    let routes = setup::routes();
    let mut rig = setup::gateway(&routes, Series::Destinations)?;
    if !filters {
        rig.worker.reader.offline();
        rig.publisher.as_mut().expect("this rig has no keeper").publish(|tables| tables.acl = None);
    }
    setup::begin_flows(&mut rig, setup::frames(&routes, Series::Destinations, 1000, 0, 1))?;
    Ok(rig)
}

/// Packets whose time is up, from sources that the tables lead back to.
fn icmp_error() -> io::Result<Rig> {
    let (v4, _) = routes();
    let mut rig = rig()?;
    let sources = traffic::frames4(&v4, 1000, 4);
    let mut frames = frames4();
    for ((frame, _), (other, _)) in frames.iter_mut().zip(&sources) {
        let source: [u8; 4] = other[30..34].try_into().expect("four bytes");
        traffic::expire(frame, source);
    }
    rig.set_flows(frames, Headers::Cached);
    Ok(rig)
}
