//! The XDP program's instructions: which frames are the host's and go straight up, and which go to a worker.
//!
//! Straight up (`XDP_PASS`, counted) goes what must reach the host's own stack on the interface
//! where it arrived:
//! - frames with a multicast or broadcast destination, and frames for other stations. The kernel
//!   drops the latter itself unless something of the host's wants them: a bridge, a macvlan with
//!   a VRRP address, a capture. A worker could only drop them, and would have to read them first;
//! - everything that is neither IPv4 nor IPv6 (ARP, LLDP, PPPoE ...);
//! - frames of VLANs that are not for the rings. Of those that are and that the host has no interface
//!   for, nothing goes up, be it ARP or broadcast;
//! - link-local destinations, neighbour discovery, and UDP to port 68 (DHCP answers to an address
//!   that the host does not have yet);
//! - the host's addresses, fragments or not, which two maps hold.
//!
//! Some IPv4 addresses are the host's and the rings' at once, since others stand behind them: there
//! the kernel is asked whether one of its sockets takes the packet, and only then does it go up.
//! What may belong to no one socket alone goes to the worker: fragments, and all but TCP and UDP.
//! A port that is forwarded belongs to the worker but for the host's own connections. ARP for an
//! address that the host does not have but the rings answer for goes to the worker, too.
//!
//! The rest goes to the socket of the receive queue, or up where no socket is. IP packets too
//! short for their header go to the worker, which counts them as malformed. Up to two VLAN tags
//! are read; a tag with VID 0 only carries a priority and counts as none (IEEE 802.1Q, 9.6).
//!
//! Before that a program of somebody else's may have its way with it: the one that stands in the
//! port's [`Hook`](super::Hook), if there is one.

use super::{
    asm::{
        Asm,
        Cond::{Above, AtMost, BitSet, Equal, NotEqual},
        Map as MapRef,
        Op::{Add, And, Multiply, ShiftLeft, ShiftRight},
        Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10},
        Size::{U8, U16, U32, U64},
    },
    program::Owner,
    settings::{BIT_AT, MIX, Settings},
};

pub(super) const XDP_PASS: i32 = 2;
pub(super) const MAP_LOOKUP: i32 = 1;
pub(super) const TAIL_CALL: i32 = 12;
pub(super) const REDIRECT_MAP: i32 = 51;
pub(super) const SK_LOOKUP_UDP: i32 = 85;
pub(super) const SK_RELEASE: i32 = 86;
pub(super) const SKC_LOOKUP_TCP: i32 = 99;
pub(super) const XDP_GET_BUFF_LEN: i32 = 188;

/// Look for sockets in the network namespace that the interface is in.
pub(super) const CURRENT_NAMESPACE: i32 = -1;
/// Where the state stands in the kernel's `struct bpf_sock`, and the states of a TCP socket that
/// listens and of a UDP socket that is not connected.
pub(super) const SOCKET_STATE: i16 = 72;
pub(super) const LISTENS: i32 = 10;
pub(super) const UNCONNECTED: i32 = 7;

/// How a program learns how long a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Length {
    /// It asks the kernel, which knows since Linux 5.18.
    Asked,
    /// It counts.
    Counted,
}

/// Where the program finds its maps.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) settings: MapRef,
    pub(super) local4: MapRef,
    pub(super) local6: MapRef,
    pub(super) forwarded: MapRef,
    pub(super) passed: MapRef,
    pub(super) before: MapRef,
    pub(super) sockets: MapRef,
}

/// What the program keeps on its stack, in bytes below its top.
mod stack {
    /// Whether the frame is for this station alone: 32 bits.
    pub const FOR_US: i16 = -4;
    /// The ends of a connection, as helpers want them: 12 bytes.
    pub const ENDS: i16 = -16;
    /// The key of a forwarded port: 8 bytes.
    pub const FORWARDED: i16 = -24;
    /// Whether it is one: 64 bits.
    pub const IS_FORWARDED: i16 = -32;
    /// The state of the socket that was found: 64 bits.
    pub const STATE: i16 = -40;
}

/// A 16-bit constant as it stands in memory in network order.
fn net16(value: u16) -> i32 {
    i32::from(value.to_be())
}

/// The program's instructions.
///
/// R6: context. R7: first byte, then start of the IP header. R8: end. R9: settings. R3: EtherType
/// as it stands in memory.
pub(super) fn assemble(at: &Places, length: Length) -> Vec<u64> {
    let mut a = Asm::default();
    a.mov(R6, R1);
    a.load(U32, R7, R6, 0);
    a.load(U32, R8, R6, 4);
    a.lea(R2, R7, 14);
    a.jump_if(R2, Above, R8, "pass");
    a.load_map(R9, at.settings);
    whole_vlan(&mut a);
    our_mac(&mut a);
    a.load(U16, R3, R7, 12);
    a.alu(Add, R7, 14);
    tags(&mut a);
    a.jump_if(R3, Equal, net16(0x0806), "arp");
    a.load(U32, R2, R10, stack::FOR_US);
    a.jump_if(R2, Equal, 0, "pass");
    a.jump_if(R3, Equal, net16(0x0800), "ipv4");
    a.jump_if(R3, Equal, net16(0x86dd), "ipv6");
    a.jump("pass");
    a.label("arp");
    arp(&mut a, at.local4);
    a.label("ipv4");
    ipv4(&mut a, at.local4);
    a.label("shared");
    shared(&mut a, at.forwarded);
    a.label("ipv6");
    ipv6(&mut a, at.local6);
    a.label("worker");
    // Comes back only where no program stands.
    a.mov(R1, R6);
    a.load_map(R2, at.before);
    a.mov(R3, 0);
    a.call(TAIL_CALL);
    a.load(U32, R2, R6, 16);
    a.load_map(R1, at.sockets);
    a.mov(R3, XDP_PASS);
    a.call(REDIRECT_MAP);
    a.jump_if(R0, Equal, XDP_PASS, "pass");
    a.exit();
    a.label("pass");
    pass(&mut a, at.passed, length);
    a.finish()
}

/// Notes whether the frame is for this station. What is not goes up, unless it is ARP that the
/// worker answers.
fn our_mac(a: &mut Asm) {
    a.store(U32, R10, stack::FOR_US, 0);
    a.load(U32, R2, R7, 0);
    a.load(U32, R3, R9, 0);
    a.jump_if(R2, NotEqual, R3, "not ours");
    a.load(U16, R2, R7, 4);
    a.load(U16, R3, R9, 4);
    a.jump_if(R2, NotEqual, R3, "not ours");
    a.store(U32, R10, stack::FOR_US, 1);
    a.label("not ours");
}

/// Gives the worker all frames of a VLAN that the host has no interface for; its tag may stand behind
/// one with VID 0.
fn whole_vlan(a: &mut Asm) {
    for (at, this, is_tag, next) in
        [(12, "outer", "outer is a tag", "behind it"), (16, "behind it", "a tag behind it", "not whole")]
    {
        a.label(this);
        a.load(U16, R3, R7, at);
        a.jump_if(R3, Equal, net16(0x8100), is_tag);
        a.jump_if(R3, NotEqual, net16(0x88a8), "not whole");
        a.label(is_tag);
        a.lea(R2, R7, i32::from(at) + 6);
        a.jump_if(R2, Above, R8, "pass");
        a.load(U16, R4, R7, at + 2);
        a.net_to_host16(R4);
        a.alu(And, R4, 0xfff);
        a.jump_if(R4, Equal, 0, next);
        bit(a, Settings::WHOLE);
        a.jump_if(R1, NotEqual, 0, "worker");
        a.jump("not whole");
    }
    a.label("not whole");
}

/// R1: bit R4 of the 4096 that stand at `field` of the settings. R4 and R5 are lost.
fn bit(a: &mut Asm, field: usize) {
    a.mov(R5, R4);
    a.alu(ShiftRight, R5, 6);
    a.alu(ShiftLeft, R5, 3);
    a.mov(R1, R9);
    a.alu(Add, R1, R5);
    a.load(U64, R1, R1, field as i16);
    a.alu(And, R4, 63);
    a.alu(ShiftRight, R1, R4);
    a.alu(And, R1, 1);
}

/// Steps over VLAN tags: one of a VLAN of the worker's, one with VID 0 before it, and one behind it
/// where there are such.
fn tags(a: &mut Asm) {
    for (this, next) in [("tag", "second tag"), ("second tag", "untagged")] {
        a.label(this);
        let tagged = if this == "tag" { "first is a tag" } else { "second is a tag" };
        a.jump_if(R3, Equal, net16(0x8100), tagged);
        a.jump_if(R3, NotEqual, net16(0x88a8), "untagged");
        a.label(tagged);
        a.lea(R2, R7, 4);
        a.jump_if(R2, Above, R8, "pass");
        a.load(U16, R4, R7, 0);
        a.net_to_host16(R4);
        a.alu(And, R4, 0xfff);
        a.load(U16, R3, R7, 2);
        a.mov(R7, R2);
        a.jump_if(R4, Equal, 0, next);
        a.mov(R0, R4);
        bit(a, Settings::VLANS);
        a.jump_if(R1, Equal, 0, "pass");
        a.jump("inner tag");
    }
    a.label("inner tag");
    a.jump_if(R3, Equal, net16(0x8100), "tag in a tag");
    a.jump_if(R3, NotEqual, net16(0x88a8), "untagged");
    a.label("tag in a tag");
    a.mov(R4, R0);
    bit(a, Settings::STACKED);
    a.jump_if(R1, Equal, 0, "pass");
    a.lea(R2, R7, 4);
    a.jump_if(R2, Above, R8, "pass");
    a.load(U16, R3, R7, 2);
    a.mov(R7, R2);
    a.label("untagged");
}

/// Gives the worker the questions for addresses that it answers for.
fn arp(a: &mut Asm, local: MapRef) {
    a.lea(R2, R7, 28);
    a.jump_if(R2, Above, R8, "pass");
    a.load_map(R1, local);
    a.lea(R2, R7, 24);
    a.call(MAP_LOOKUP);
    a.jump_if(R0, Equal, 0, "pass");
    a.load(U8, R0, R0, 0);
    a.jump_if(R0, NotEqual, Owner::Announced as i32, "pass");
    a.jump("worker");
}

fn ipv4(a: &mut Asm, local: MapRef) {
    a.lea(R2, R7, 20);
    a.jump_if(R2, Above, R8, "worker");
    a.load(U16, R2, R7, 16);
    a.jump_if(R2, Equal, net16(0xa9fe), "pass");
    a.load(U8, R2, R7, 9);
    a.jump_if(R2, NotEqual, i32::from(libc::IPPROTO_UDP as u8), "look up 4");
    // A later fragment has no ports: skip the test when the offset is not 0.
    a.load(U16, R2, R7, 6);
    a.jump_if(R2, BitSet, net16(0x1fff), "look up 4");
    ports(a, ["no 8", "no 4", "no 2", "no 1"], "look up 4");
    a.load(U16, R2, R3, 2);
    a.jump_if(R2, Equal, net16(68), "pass");
    a.label("look up 4");
    a.load(U32, R4, R7, 16);
    filter(a);
    a.load_map(R1, local);
    a.lea(R2, R7, 16);
    a.call(MAP_LOOKUP);
    a.jump_if(R0, Equal, 0, "worker");
    a.load(U8, R0, R0, 0);
    a.jump_if(R0, Equal, Owner::Host as i32, "pass");
    a.jump_if(R0, Equal, Owner::Shared as i32, "shared");
    a.jump("worker");
}

/// R3: the end of the IPv4 header, where four bytes of ports stand; else on at `cut`. What has no
/// such header goes to the worker. The labels are for the steps. R2 and R4 are lost.
fn ports(a: &mut Asm, steps: [&'static str; 4], cut: &'static str) {
    a.load(U8, R2, R7, 0);
    a.alu(And, R2, 15);
    a.jump_if(R2, AtMost, 4, "worker");
    // Bit by bit, for adding a register to a packet's address would take CAP_PERFMON.
    a.mov(R3, R7);
    for (bit, skip) in [8, 4, 2, 1].into_iter().zip(steps) {
        a.mov(R4, R2);
        a.alu(And, R4, bit);
        a.jump_if(R4, Equal, 0, skip);
        a.alu(Add, R3, bit * 4);
        a.label(skip);
    }
    a.lea(R4, R3, 4);
    a.jump_if(R4, Above, R8, cut);
}

/// Passes up what a socket of the host's takes. R9 is lost.
fn shared(a: &mut Asm, forwarded: MapRef) {
    // More fragments to come, or a later one: the worker has all go the way of the first.
    a.load(U16, R2, R7, 6);
    a.jump_if(R2, BitSet, net16(0x3fff), "worker");
    a.load(U8, R9, R7, 9);
    a.jump_if(R9, Equal, libc::IPPROTO_TCP, "has ports");
    a.jump_if(R9, NotEqual, libc::IPPROTO_UDP, "worker");
    a.label("has ports");
    ports(a, ["ask no 8", "ask no 4", "ask no 2", "ask no 1"], "worker");
    // Source and destination address, then source and destination port.
    for (from, base, to) in [(12, R7, 0), (16, R7, 4), (0, R3, 8)] {
        a.load(U32, R1, base, from);
        a.store(U32, R10, stack::ENDS + to, R1);
    }
    a.load(U32, R1, R7, 16);
    a.store(U32, R10, stack::FORWARDED, R1);
    a.load(U16, R1, R3, 2);
    a.store(U16, R10, stack::FORWARDED + 4, R1);
    a.store(U16, R10, stack::FORWARDED + 6, 0);
    a.store(U8, R10, stack::FORWARDED + 6, R9);
    a.load_map(R1, forwarded);
    a.lea(R2, R10, stack::FORWARDED.into());
    a.call(MAP_LOOKUP);
    a.store(U64, R10, stack::IS_FORWARDED, 0);
    a.jump_if(R0, Equal, 0, "not forwarded");
    a.store(U64, R10, stack::IS_FORWARDED, 1);
    a.label("not forwarded");
    a.mov(R1, R6);
    a.lea(R2, R10, stack::ENDS.into());
    a.mov(R3, 12);
    a.mov(R4, CURRENT_NAMESPACE);
    a.mov(R5, 0);
    a.jump_if(R9, Equal, libc::IPPROTO_UDP, "ask udp");
    // One instruction cannot read from both kinds of socket.
    a.call(SKC_LOOKUP_TCP);
    a.jump_if(R0, Equal, 0, "worker");
    a.load(U32, R1, R0, SOCKET_STATE);
    a.jump("found");
    a.label("ask udp");
    a.call(SK_LOOKUP_UDP);
    a.jump_if(R0, Equal, 0, "worker");
    a.load(U32, R1, R0, SOCKET_STATE);
    a.label("found");
    a.store(U64, R10, stack::STATE, R1);
    a.mov(R1, R0);
    a.call(SK_RELEASE);
    a.load(U64, R1, R10, stack::IS_FORWARDED);
    a.jump_if(R1, Equal, 0, "pass");
    a.load(U64, R1, R10, stack::STATE);
    a.jump_if(R1, Equal, LISTENS, "worker");
    a.jump_if(R1, Equal, UNCONNECTED, "worker");
    a.jump("pass");
}

fn ipv6(a: &mut Asm, local: MapRef) {
    a.lea(R2, R7, 40);
    a.jump_if(R2, Above, R8, "worker");
    a.load(U16, R2, R7, 24);
    a.alu(And, R2, net16(0xffc0));
    a.jump_if(R2, Equal, net16(0xfe80), "pass");
    a.load(U8, R2, R7, 6);
    a.jump_if(R2, NotEqual, libc::IPPROTO_ICMPV6, "look up 6");
    a.lea(R2, R7, 41);
    a.jump_if(R2, Above, R8, "look up 6");
    a.load(U8, R2, R7, 40);
    a.alu(Add, R2, -133);
    a.jump_if(R2, AtMost, 137 - 133, "pass");
    a.label("look up 6");
    a.load(U64, R4, R7, 24);
    a.load(U64, R1, R7, 32);
    a.alu(Add, R4, R1);
    a.mov(R1, R4);
    a.alu(ShiftRight, R1, 32);
    a.alu(Add, R4, R1);
    filter(a);
    a.load_map(R1, local);
    a.lea(R2, R7, 24);
    a.call(MAP_LOOKUP);
    a.jump_if(R0, NotEqual, 0, "pass");
}

/// On to the worker where the filter has not the address that R4 was [folded](super::settings::folded) from: then no map
/// has it. R0, R1, R4 and R5 are lost.
fn filter(a: &mut Asm) {
    // The product's lower half is that of the lower halves.
    a.alu(Multiply, R4, MIX as i32);
    a.mov(R0, R4);
    for at in BIT_AT {
        a.mov(R4, R0);
        a.alu(ShiftRight, R4, at);
        a.alu(And, R4, 0xfff);
        bit(a, Settings::OWNED);
        a.jump_if(R1, Equal, 0, "worker");
    }
}

/// Counts the frame in this processor's two words and lets it go up.
fn pass(a: &mut Asm, passed: MapRef, length: Length) {
    a.store(U32, R10, -4, 0);
    a.load_map(R1, passed);
    a.lea(R2, R10, -4);
    a.call(MAP_LOOKUP);
    a.jump_if(R0, Equal, 0, "uncounted");
    a.mov(R7, R0);
    a.load(U64, R1, R7, 0);
    a.alu(Add, R1, 1);
    a.store(U64, R7, 0, R1);
    match length {
        Length::Asked => {
            a.mov(R1, R6);
            a.call(XDP_GET_BUFF_LEN);
        }
        Length::Counted => count_length(a),
    }
    a.load(U64, R1, R7, 8);
    a.alu(Add, R1, R0);
    a.store(U64, R7, 8, R1);
    a.label("uncounted");
    a.mov(R0, XDP_PASS);
    a.exit();
}

/// R0: the bytes from R6's frame's begin to its end, at most 4095, counted in steps: to subtract one
/// address from another takes CAP_PERFMON. R2 to R4 are lost.
fn count_length(a: &mut Asm) {
    a.load(U32, R2, R6, 0);
    a.load(U32, R3, R6, 4);
    a.mov(R0, 0);
    let steps = ["2048", "1024", "512", "256", "128", "64", "32", "16", "8", "4", "2", "1"];
    for (n, skip) in steps.into_iter().enumerate() {
        let step = 2048 >> n;
        a.lea(R4, R2, step);
        a.jump_if(R4, Above, R3, skip);
        a.mov(R2, R4);
        a.alu(Add, R0, step);
        a.label(skip);
    }
}
