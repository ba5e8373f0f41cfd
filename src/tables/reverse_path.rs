//! The reverse path check: may a packet with this source have come in here? RFC 1812 section 5.3.8,
//! RFC 3704.
//!
//! The question is put to the FIB, as if the source were a destination. *Strict*: the way back leads
//! out of the port that the packet came in by, or one of several ways does (the feasible paths that
//! a forwarding table knows, RFC 8704 section 2.3). *Loose*: there is a way back at all. A default
//! route is a way like any other (RFC 3704 sections 2.2 and 2.4): where there is one, loose refuses
//! only sources whose route says so, and strict lets all the world in by the default route's ports.

use super::{Action, NextHopId, PortId, Tables};

/// How the sources of a port's packets are checked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ReversePath {
    /// Not at all.
    #[default]
    Off,
    /// There must be a way back.
    Loose,
    /// The way back must lead out of the port.
    Strict,
}

impl Tables {
    /// Whether a packet that came in by `port`, and whose source's next hop is `id`, passes the
    /// check; not to be asked with [`ReversePath::Off`].
    #[inline(always)]
    pub fn takes_source(&self, id: NextHopId, port: PortId, how: ReversePath) -> bool {
        let hop = self.next_hop(id);
        let usual = hop.max_len > 0 && (how == ReversePath::Loose || hop.port == port);
        usual || self.takes_unusual_source(id, port, how)
    }

    /// The same where the way back is not simply "send there".
    #[cold]
    #[inline(never)]
    fn takes_unusual_source(&self, id: NextHopId, port: PortId, how: ReversePath) -> bool {
        let (hop, info) = (self.next_hop(id), self.next_hop_info(id));
        let loose = how == ReversePath::Loose;
        match info.action {
            Action::Forward | Action::Resolve | Action::Glean => loose || hop.port == port,
            Action::Group => {
                let group = self.groups.get(usize::from(info.group));
                group.is_some_and(|group| loose || group.ports.contains(&port))
            }
            // Behind a device that is no port.
            Action::Host => loose,
            _ => false,
        }
    }
}
