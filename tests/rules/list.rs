//! The rules, with their numbers, and what is to be said about those that are not kept or kept
//! differently.

/// What is known about a rule besides its tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// Kept, and shown by tests.
    Kept,
    /// Kept, and shown by tests, but not to the letter.
    Differs(&'static str),
    /// Not kept yet.
    #[allow(dead_code, reason = "what is not kept is to be said, when there is anything")]
    NotYet(&'static str),
}

use Note::{Differs, Kept};

/// Number, where it comes from, what it asks, and how it stands.
pub const RULES: &[(u32, &str, &str, Note)] = &[
    (1, "RFC 1812 5.3.1", "The TTL goes down by one; at 0 the packet is discarded.", Kept),
    (2, "RFC 1812 5.3.1", "Then Time Exceeded code 0, unless the packet is multicast.", Kept),
    (
        3,
        "RFC 1812 5.3.1",
        "A packet with TTL left is not discarded on a guess; one for the router needs none.",
        Kept,
    ),
    (4, "RFC 1812 5.2.7.3", "Time Exceeded is sent by default.", Kept),
    (5, "RFC 1812 5.2.6", "Datagrams on their way are not reassembled.", Kept),
    (
        6,
        "RFC 1812 5.2.2",
        "Header checks: length, checksum, version, header length, total length; silence and a count.",
        Kept,
    ),
    (
        7,
        "RFC 1812 5.2.2",
        "The total length is no more than was received; the link's padding is stripped.",
        Kept,
    ),
    (
        8,
        "RFC 1812 5.3.7",
        "Martians are not forwarded: by source, by destination, by a source of ours.",
        Differs("Counted by verdict, not logged: a line per packet would be a way to fill the disk."),
    ),
    (9, "RFC 1812 5.3.4", "IP unicast in a link broadcast or multicast is not forwarded.", Kept),
    (10, "RFC 1812 5.3.5, RFC 2644", "Neither the limited broadcast nor directed ones are forwarded.", Kept),
    (11, "RFC 1812 5.2.4.3", "Longest match, then the default route; without any, 3/0.", Kept),
    (
        12,
        "RFC 1812 4.3.2.7",
        "No ICMP error about an error, a later fragment, a broadcast or multicast, or to no single host.",
        Kept,
    ),
    (13, "RFC 1812 4.3.2.8", "ICMP errors are limited in rate.", Kept),
    (14, "RFC 1812 4.3.2.3", "An error quotes as much as fits 576 bytes.", Kept),
    (15, "RFC 1812 4.3.2.4", "An error comes from an address of the port that it leaves by.", Kept),
    (
        16,
        "RFC 1812 4.3.2.5",
        "An error has precedence 6 or 7.",
        Differs(
            "The type of service bits are 0 and not the packet's: RFC 2474 has made them one field with the precedence.",
        ),
    ),
    (17, "RFC 1812 5.2.7.2", "Redirects only on the same link, and switchable.", Kept),
    (18, "RFC 1812 5.3.8", "Source address validation, off by default.", Kept),
    (
        19,
        "RFC 1812 4.2.2.1, 5.2.4.1, 5.3.13",
        "Source routes by a switch; record route and timestamp filled in; other options untouched.",
        Differs(
            "Source routes are refused unless switched on, as RFC 7126 section 4.3 advises. An error about a \
             packet with one does not carry it reversed (4.3.2.6). On `xdp:` ports what comes for the \
             router's own addresses is the kernel's, with its own switch.",
        ),
    ),
    (
        20,
        "RFC 1812 4.2.2.7, RFC 791 3.2",
        "Fragments: offsets in units of 8, MF, options by their copy bit, never with DF.",
        Kept,
    ),
    (21, "RFC 1191 4", "Fragmentation needed carries the next hop's MTU.", Kept),
    (22, "RFC 8200 5", "IPv6 packets are not fragmented on their way.", Kept),
    (23, "RFC 1624", "Checksums are brought up to date by HC' = ~(~HC + ~m + m').", Kept),
    (24, "RFC 1624", "In every corner the result is that of full recomputation.", Kept),
    (25, "RFC 768, RFC 3022", "A UDP checksum of 0 stays 0 through translation.", Kept),
    (26, "RFC 768", "A computed UDP checksum of 0 is sent as 0xffff.", Kept),
    (
        27,
        "RFC 4443 2.4 (e)",
        "No ICMPv6 error about an error or redirect, a multicast, or to no single node.",
        Kept,
    ),
    (28, "RFC 4443 2.4 (c)", "An ICMPv6 error quotes as much as fits 1280 bytes.", Kept),
    (29, "RFC 4443 2.4 (f)", "ICMPv6 errors are limited in rate.", Kept),
    (30, "RFC 4443 3.3", "A hop limit used up: Time Exceeded code 0.", Kept),
    (
        31,
        "RFC 4443 3.1",
        "Destination Unreachable says why: no route, prohibited, beyond scope, address.",
        Kept,
    ),
    (32, "RFC 4443 3.2", "Packet Too Big carries the next hop's MTU.", Kept),
    (33, "RFC 8200 3, 4", "The hop limit goes down by one; extension headers are not examined.", Kept),
    (34, "RFC 4291 2.5.2, 2.5.6", "Link-local addresses and :: are never forwarded.", Kept),
    (35, "RFC 4291 2.5.3, 2.7, RFC 4007", "Neither is ::1, nor multicast beyond its scope.", Kept),
    (36, "RFC 826, RFC 5227", "Nobody is learned from ARP that concerns another network.", Kept),
    (37, "RFC 4861 7.1", "Neighbour discovery needs hop limit 255, a right checksum and code 0.", Kept),
    (
        38,
        "RFC 4861 7.2.2, RFC 1122 2.3.2.2",
        "Packets wait for an unresolved neighbour; when it fails, they are answered.",
        Kept,
    ),
    (39, "RFC 3021", "A /31 has two hosts and no broadcast.", Kept),
    (40, "RFC 6164", "A /127 has two hosts and no anycast address of routers.", Kept),
    (41, "RFC 4787 REQ-1", "A mapping does not depend on whom the inside talks to.", Kept),
    (42, "RFC 4787 REQ-2", "All mappings of a host have one address of the pool.", Kept),
    (43, "RFC 4787 REQ-3", "No port for two at once; ports from 1024 up stay there.", Kept),
    (44, "RFC 4787 REQ-5", "A UDP mapping lives at least two minutes, by default five.", Kept),
    (45, "RFC 4787 REQ-6", "Packets from inside refresh it.", Kept),
    (46, "RFC 4787 REQ-8", "Who may get in is said, and can be chosen.", Kept),
    (47, "RFC 4787 REQ-9", "Inside to inside by the outside end, with an outside source.", Kept),
    (48, "RFC 4787 REQ-12", "No ICMP error ends a mapping.", Kept),
    (49, "RFC 4787 REQ-13", "A packet with DF that is too long is answered: fragmentation needed.", Kept),
    (50, "RFC 4787 REQ-14", "Fragments are translated in whatever order they come.", Kept),
    (51, "RFC 5382 REQ-2", "TCP works in every valid order, both opening at once included.", Kept),
    (52, "RFC 5382 REQ-4", "An unsolicited SYN is held in silence for six seconds.", Kept),
    (53, "RFC 5382 REQ-5", "An established connection lives 2 h 4 min, another one 4 min.", Kept),
    (54, "RFC 5382 REQ-10", "No ICMP error ends a connection.", Kept),
    (55, "RFC 5508 REQ-2", "An ICMP query's mapping lives at least 60 s.", Kept),
    (
        56,
        "RFC 5508 REQ-3",
        "An error with a wrong checksum, its own or the quoted header's, is dropped.",
        Kept,
    ),
    (
        57,
        "RFC 5508 REQ-4, REQ-5",
        "An error quotes the packet as its sender knows it; without a mapping it is dropped.",
        Kept,
    ),
    (58, "RFC 5508 REQ-6", "An error neither refreshes a flow nor ends it.", Kept),
    (59, "RFC 5508 REQ-7", "Queries and errors are hairpinned.", Kept),
    (60, "RFC 5508 REQ-8", "Without resources a packet is refused with 3/13.", Kept),
    (
        61,
        "RFC 7857, RFC 6864",
        "Mappings are independent per protocol; refreshed from outside only if configured; a reset ends nothing at once; ports by chance; identifications rewritten.",
        Kept,
    ),
    (
        62,
        "RFC 6437, RFC 6438",
        "Among several next hops an IPv6 flow goes by source, destination and flow label.",
        Kept,
    ),
    (63, "RFC 2992", "When one of several next hops goes, no more flows move than must.", Kept),
    (
        101,
        "IEEE 802.1Q",
        "A tagged frame is its VLAN's sub-port's, there and back; another VLAN's is the host's or nobody's.",
        Kept,
    ),
    (102, "IEEE 802.1Q 9.6", "VID 0 counts as untagged; the priority goes from tag to tag.", Kept),
    (103, "IEEE 802.1ad", "A service tag stands outside the customer's.", Kept),
    (
        104,
        "this program",
        "A sub-port is the kernel's VLAN interface with its parent and tag, whatever its name.",
        Differs(
            "Could not run against a kernel: none at hand has VLAN interfaces. Shown by rtnetlink's \
             messages, made by hand. On FreeBSD not yet: sub-ports are the configuration's there.",
        ),
    ),
    (
        105,
        "IEEE 802.3 3.2.8",
        "A frame shorter than its own headers say is counted; one under 60 bytes alone is none.",
        Kept,
    ),
    (106, "netmap(4)", "A packet in several slots (NS_MOREFRAG) is dropped whole and counted.", Kept),
    (107, "IEEE 802.3 4.2.3.3", "To a card, frames under 60 bytes are padded with zeroes.", Kept),
];
