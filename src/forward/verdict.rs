//! Verdicts: how a packet ended. Every packet ends in exactly one, and the verdict is also the
//! name of its counter.

/// What a verdict means for the port's live counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The packet was dealt with as it should be.
    Fine,
    /// Discarded by a rule or for want of a way; no counter of the live view shows it.
    Discard,
    /// A malformed frame: input errors.
    Error,
    /// A full ring on the way out: output drops.
    Drop,
}

macro_rules! verdicts {
    ($($name:ident $text:literal $class:ident $about:literal;)*) => {
        /// How a packet ended.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum Verdict {
            $(#[doc = $about] $name,)*
        }

        impl Verdict {
            /// All verdicts, in the order of their counters.
            pub const ALL: &'static [Verdict] = &[$(Verdict::$name,)*];

            /// The counter's name, as `show verdicts` prints it.
            pub const fn name(self) -> &'static str {
                match self { $(Verdict::$name => $text,)* }
            }

            /// One line for people.
            pub const fn about(self) -> &'static str {
                match self { $(Verdict::$name => $about,)* }
            }

            /// What it means for the port's live counter.
            pub const fn class(self) -> Class {
                match self { $(Verdict::$name => Class::$class,)* }
            }
        }
    };
}

verdicts! {
    Forwarded "forwarded" Fine "Sent on towards its destination.";
    Host "host" Fine "Given to the host's own stack.";
    FromHost "from_host" Fine "Sent by the host's own stack, passed on as it was.";
    Answered "answered" Fine "Taken by the built-in host (ARP, neighbour discovery, echo).";
    Fragmented "fragmented" Fine "Sent on in fragments (RFC 791); the fragments count as made.";
    Runt "runt" Error "Shorter than its own headers say.";
    BadSlot "bad_slot" Error "The device named a buffer or a length that cannot be.";
    Chained "chained" Error "Spans several buffers, which is not supported; dropped whole.";
    BadHeader "bad_header" Error "Version, header length or total length wrong (RFC 1812 5.2.2).";
    BadChecksum "bad_checksum" Error "The IPv4 header's checksum is wrong.";
    NotForUs "not_for_us" Discard "The frame's destination MAC address is another's.";
    LinkBroadcast "link_broadcast" Discard "Unicast IP in a link broadcast or multicast (RFC 1812 5.3.4).";
    UnknownProtocol "unknown_protocol" Discard "An EtherType that nobody here speaks.";
    UnknownVlan "unknown_vlan" Discard "A tag of a VLAN that the port does not have.";
    Martian "martian" Discard "A source or destination that must not be forwarded (RFC 1812 5.3.7).";
    ReversePath "reverse_path" Discard "The way back to the source is not by this port (RFC 3704).";
    Multicast "multicast" Discard "A multicast destination; multicast is not routed.";
    Broadcast "broadcast" Discard "A limited or directed broadcast (RFC 2644).";
    LinkLocal "link_local" Discard "A link-local or narrower scope (RFC 4007).";
    SourceRoute "source_route" Discard "Carries a source route option, which is refused.";
    TtlExpired "ttl_expired" Discard "TTL or hop limit used up.";
    NoRoute "no_route" Discard "No route to the destination.";
    Blackhole "blackhole" Discard "The route says to discard silently.";
    Unreachable "unreachable" Discard "The route says unreachable.";
    Prohibited "prohibited" Discard "The route says prohibited.";
    Denied "denied" Discard "A rule of the access list denies it.";
    TooBig "too_big" Discard "Larger than the way out takes, and may not be fragmented.";
    NeighborFailed "neighbor_failed" Discard "The next hop does not answer.";
    HoldFull "hold_full" Discard "Too many packets wait for the same next hop already.";
    Unsolicited "unsolicited" Discard "From outside, for an address in front, and nobody inside has asked for it.";
    NoMapping "no_mapping" Discard "An ICMP error from inside about nothing that was translated.";
    OutOfPorts "out_of_ports" Discard "No port of the address in front was free for a new flow (RFC 5508 REQ-8).";
    OverQuota "over_quota" Discard "The inside host has as many flows as it may.";
    FlowsFull "flows_full" Discard "No room for a new flow; those that there are go on.";
    OrphanFragment "orphan_fragment" Discard "A fragment whose datagram's first one did not come, or came too late.";
    PortDown "port_down" Discard "The way out is down.";
    TxFull "tx_full" Drop "The transmit ring is full.";
    HostFull "host_full" Drop "The ring towards the host is full.";
    HandoverFull "handover_full" Drop "The ring towards the worker that owns the way out is full.";
    WorkerFault "worker_fault" Discard "Lost by a fault of the worker's own; the log says more.";
}

/// Room for verdicts in the counters' layout; more than there are.
pub const VERDICTS_MAX: usize = 56;

const _: () = assert!(Verdict::ALL.len() <= VERDICTS_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_has_a_name_of_its_own() {
        let mut names: Vec<_> = Verdict::ALL.iter().map(|v| v.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Verdict::ALL.len());
        assert!(Verdict::ALL.iter().enumerate().all(|(i, v)| *v as usize == i));
    }
}
