//! Every way that a packet can go through the worker, each as a rig that sends packets down that
//! way only: for counting what they execute.

use std::io;

use sweepd::tables::prefixes::{Prefixes4, Prefixes6};

use crate::{
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
}

/// All ways.
pub fn all() -> Vec<Way> {
    vec![
        Way { name: "ipv4", packets: 256, warm_up: 2, make: ipv4, fast: true },
        Way { name: "ipv6", packets: 256, warm_up: 2, make: ipv6, fast: true },
        Way { name: "icmp error (ttl 1)", packets: 64, warm_up: 1, make: icmp_error, fast: false },
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

fn ipv4() -> io::Result<Rig> {
    let mut rig = rig()?;
    rig.set_flows(frames4(), Headers::Cached);
    Ok(rig)
}

fn ipv6() -> io::Result<Rig> {
    let mut rig = rig()?;
    rig.set_flows(traffic::frames6(&routes().1, 1000, 3), Headers::Cached);
    Ok(rig)
}

/// Packets whose time is up, from sources that the tables lead back to.
fn icmp_error() -> io::Result<Rig> {
    let (v4, v6) = routes();
    let mut rig = Rig::new(&v4, &v6)?;
    let sources = traffic::frames4(&v4, 1000, 4);
    let mut frames = frames4();
    for ((frame, _), (other, _)) in frames.iter_mut().zip(&sources) {
        let source: [u8; 4] = other[30..34].try_into().expect("four bytes");
        traffic::expire(frame, source);
    }
    rig.set_flows(frames, Headers::Cached);
    Ok(rig)
}
