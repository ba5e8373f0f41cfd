//! What workers and the keeper say to each other, off the fast path.
//!
//! Channels (crate `crossbeam-channel`) carry these. A worker sends only for unusual packets, with
//! `try_send`, and looks for commands only while it holds packets or has been woken.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::SystemTime,
};

use super::{
    plug::{Answer, Plug},
    slow::Slow,
    tap::Tap,
};
use crate::tables::{PortId, acl::Compiled};

/// A worker's word to the keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToKeeper {
    /// A packet waits for the MAC address of `address` on `port`; said at most once a second for
    /// each while packets wait.
    Resolve {
        /// The port that the address is reached through.
        port: PortId,
        /// The neighbour asked for.
        address: IpAddr,
    },
    /// The built-in host's port has heard the MAC address of a neighbour (ARP, neighbour
    /// discovery).
    Learned {
        /// The port it was heard on.
        port: PortId,
        /// The neighbour.
        address: IpAddr,
        /// Its MAC address.
        mac: [u8; 6],
        /// Whether an entry is made when there is none and nobody asked (RFC 826, RFC 4861 7.2.5).
        create: bool,
        /// Whether an entry with another MAC address is changed (RFC 4861's override flag).
        replace: bool,
    },
    /// Another device on the link claims one of our addresses (RFC 5227).
    Conflict {
        /// The port it was heard on.
        port: PortId,
        /// The address, ours.
        address: IpAddr,
        /// The other's MAC address.
        mac: [u8; 6],
    },
    /// Packets were sent through these next hops since the last word, so that their neighbours
    /// can be kept fresh.
    Used {
        /// Their ids.
        next_hops: Vec<crate::tables::NextHopId>,
    },
    /// TCP arrives on `port` with checksums that are wrong again and again; said once by each of
    /// the port's rings.
    WrongSums {
        /// The port.
        port: PortId,
    },
    /// A packet that a rule with `log` has fitted; said so often that it can be read, and no more.
    Judged(Box<Judged>),
    /// A mapping, or a block of ports for mappings, that a rule with `log` has given out or got
    /// back.
    Mapped(Box<Mapped>),
    /// The device behind `port` is gone.
    PortGone {
        /// Which.
        port: PortId,
        /// The system's word.
        reason: String,
    },
    /// Every input has ended (captures), and everything has left.
    Finished {
        /// The worker that says so.
        worker: usize,
    },
}

/// What is to be logged about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The rules.
    pub rules: Arc<Compiled>,
    /// The number of the one that fitted it.
    pub rule: u32,
    /// The port that it came in by.
    pub came_in: PortId,
    /// The port that it was about to leave by; none when that is a device of the host's.
    pub leaves_by: Option<PortId>,
    /// Its source.
    pub source: IpAddr,
    /// Its destination.
    pub destination: IpAddr,
    /// Its protocol.
    pub protocol: u8,
    /// Its source port and destination port.
    pub ports: (u16, u16),
    /// Packets since the last one that were to be logged and are not.
    pub unlogged: u64,
}

/// What an inside host had outside, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Whether it begins; else it has ended.
    pub begins: bool,
    /// The host.
    pub inside: Ipv4Addr,
    /// Its address outside.
    pub outside: Ipv4Addr,
    /// Its first port outside.
    pub first: u16,
    /// Its last port outside.
    pub last: u16,
    /// What it is.
    pub means: Means,
    /// When it began or ended.
    pub at: SystemTime,
    /// How many were left out since the last one.
    pub unlogged: u64,
}

/// What an inside host has outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// One port, for one of its own.
    Mapping {
        /// The protocol's number.
        protocol: u8,
        /// The port inside.
        port: u16,
    },
    /// All ports from the first to the last, of every protocol, for whichever of its own.
    Block,
}

/// A look at what a worker keeps, taken between two sweeps: it must be short.
#[derive(Clone)]
pub struct Look(Arc<dyn Fn(&Slow) + Send + Sync>);

impl Look {
    /// A look that does this.
    pub fn new(look: impl Fn(&Slow) + Send + Sync + 'static) -> Self {
        Self(Arc::new(look))
    }

    /// Takes it.
    pub fn take(&self, slow: &Slow) {
        (self.0)(slow);
    }
}

impl std::fmt::Debug for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Look")
    }
}

impl PartialEq for Look {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Look {}

/// The keeper's word to a worker, and the daemon's.
#[derive(Debug)]
pub enum ToWorker {
    /// The neighbour could not be resolved: the packets held for it at this moment are answered
    /// with host unreachable.
    Failed {
        /// The port that the address was asked for on.
        port: PortId,
        /// The neighbour.
        address: IpAddr,
    },
    /// Send an ARP request or neighbour solicitation for `address` (ports of the built-in host).
    Solicit {
        /// Out of this port.
        port: PortId,
        /// The neighbour asked for.
        address: IpAddr,
    },
    /// Tell the stations on the link of `port` that `address` is here (ARP).
    Announce {
        /// The port.
        port: PortId,
        /// The address.
        address: Ipv4Addr,
    },
    /// Somebody wants to see what the worker keeps.
    Look(Look),
    /// Tell of packets by this tap from now on, or by none.
    Tap(Option<Box<Tap>>),
    /// Take or give back rings.
    Plug {
        /// Which.
        plug: Plug,
        /// Who waits for it to be done.
        answer: Answer,
    },
    /// Finish the sweep, give the rings back, and end.
    Stop,
}
