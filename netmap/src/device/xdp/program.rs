//! The XDP program: which frames are the host's and go straight up, and which go to a worker.
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

use std::{
    collections::HashSet,
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::{
    asm::{
        Asm,
        Cond::{Above, AtMost, BitSet, Equal, NotEqual},
        Map as MapRef,
        Op::{Add, And, Multiply, ShiftLeft, ShiftRight},
        Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10},
        Size::{U8, U16, U32, U64},
    },
    bpf::{self, AttachMode, Map, MapType},
    settings::{BIT_AT, MIX, Settings},
};
use crate::device::{ForwardedPort, Vlan};

const XDP_PASS: i32 = 2;
const MAP_LOOKUP: i32 = 1;
const TAIL_CALL: i32 = 12;
const REDIRECT_MAP: i32 = 51;
const SK_LOOKUP_UDP: i32 = 85;
const SK_RELEASE: i32 = 86;
const SKC_LOOKUP_TCP: i32 = 99;
const XDP_GET_BUFF_LEN: i32 = 188;

/// Most addresses of the host's, per family.
const MAX_LOCAL: u32 = 1 << 16;
/// Most forwarded ports, each counted once for every address that has it.
const MAX_FORWARDED: u32 = 1 << 16;

/// Look for sockets in the network namespace that the interface is in.
const CURRENT_NAMESPACE: i32 = -1;
/// Where the state stands in the kernel's `struct bpf_sock`, and the states of a TCP socket that
/// listens and of a UDP socket that is not connected.
const SOCKET_STATE: i16 = 72;
const LISTENS: i32 = 10;
const UNCONNECTED: i32 = 7;

/// Whose an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Owner {
    /// The host's.
    Host = 1,
    /// The host's sockets', and the rings' else.
    Shared = 2,
    /// The rings', ARP included.
    Announced = 3,
}

/// Where the program finds its maps.
#[derive(Clone, Copy)]
struct Places {
    settings: MapRef,
    local4: MapRef,
    local6: MapRef,
    forwarded: MapRef,
    passed: MapRef,
    before: MapRef,
    sockets: MapRef,
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
fn assemble(at: &Places) -> Vec<u64> {
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
    pass(&mut a, at.passed);
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

/// How the map of forwarded ports names one.
fn forwarded_key(ForwardedPort { address, protocol, port }: ForwardedPort) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&address.octets());
    key[4..6].copy_from_slice(&port.to_be_bytes());
    key[6] = protocol;
    key
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
fn pass(a: &mut Asm, passed: MapRef) {
    a.store(U32, R10, -4, 0);
    a.load_map(R1, passed);
    a.lea(R2, R10, -4);
    a.call(MAP_LOOKUP);
    a.jump_if(R0, Equal, 0, "uncounted");
    a.mov(R7, R0);
    a.load(U64, R1, R7, 0);
    a.alu(Add, R1, 1);
    a.store(U64, R7, 0, R1);
    a.mov(R1, R6);
    a.call(XDP_GET_BUFF_LEN);
    a.load(U64, R1, R7, 8);
    a.alu(Add, R1, R0);
    a.store(U64, R7, 8, R1);
    a.label("uncounted");
    a.mov(R0, XDP_PASS);
    a.exit();
}

/// The program of one port, loaded, with its maps.
#[derive(Debug)]
pub struct Program {
    program: OwnedFd,
    settings: Map<4>,
    local4: Map<4>,
    local6: Map<16>,
    forwarded: Map<8>,
    passed: Map<4>,
    before: Map<4>,
    sockets: Map<4>,
    mac: [u8; 6],
    vlans: Vec<Vlan>,
    owned: HashSet<IpAddr>,
}

impl Program {
    /// Loads the program for a port with this MAC address and `queues` receive queues. Frames of
    /// `vlans` go to the worker. No socket is there yet, so everything goes up.
    ///
    /// # Errors
    /// The kernel's: `EPERM` without CAP_BPF and CAP_NET_ADMIN.
    pub fn load(mac: [u8; 6], vlans: &[Vlan], queues: u32) -> io::Result<Self> {
        let settings = Settings::new(mac, vlans, []);
        let this = |name, kind, size, n, flags| Map::<4>::new(name, kind, size, n, flags);
        let maps = (
            this("sweep_settings", MapType::Array, settings.0.len(), 1, bpf::PROGRAM_READS)?,
            this("sweep_local4", MapType::Hash, 1, MAX_LOCAL, bpf::NO_PREALLOC)?,
            Map::<16>::new("sweep_local6", MapType::Hash, 1, MAX_LOCAL, bpf::NO_PREALLOC)?,
            Map::<8>::new("sweep_forwarded", MapType::Hash, 1, MAX_FORWARDED, bpf::NO_PREALLOC)?,
            this("sweep_passed", MapType::PerCpuArray, 16, 1, 0)?,
            this("sweep_before", MapType::Programs, 4, 1, 0)?,
            this("sweep_sockets", MapType::Sockets, 4, queues, 0)?,
        );
        let code = assemble(&Places {
            settings: MapRef::Value(maps.0.raw()),
            local4: MapRef::Handle(maps.1.raw()),
            local6: MapRef::Handle(maps.2.raw()),
            forwarded: MapRef::Handle(maps.3.raw()),
            passed: MapRef::Handle(maps.4.raw()),
            before: MapRef::Handle(maps.5.raw()),
            sockets: MapRef::Handle(maps.6.raw()),
        });
        maps.0.set(&[0; 4], &settings.0)?;
        let program = bpf::load("sweep_port", &code)?;
        let (settings, local4, local6, forwarded, passed, before, sockets) = maps;
        Ok(Self {
            program,
            settings,
            local4,
            local6,
            forwarded,
            passed,
            before,
            sockets,
            mac,
            vlans: vlans.to_vec(),
            owned: HashSet::new(),
        })
    }

    /// The place for a program before the sockets, and the sockets, for that program to go on to.
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub fn before(&self) -> io::Result<(Map<4>, Map<4>)> {
        Ok((self.before.share()?, self.sockets.share()?))
    }

    /// Attaches it to an interface; closing the descriptor detaches it.
    ///
    /// # Errors
    /// As for [`bpf::attach`].
    pub fn attach(&self, ifindex: u32, mode: AttachMode) -> io::Result<OwnedFd> {
        bpf::attach(self.program.as_fd(), ifindex, mode)
    }

    /// The device's MAC address has changed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> io::Result<()> {
        self.settings.set(&[0; 4], &Settings::new(mac, &self.vlans, &self.owned).0)?;
        self.mac = mac;
        Ok(())
    }

    /// Frames of these VLANs, and of no others, are for the worker.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_vlans(&mut self, vlans: &[Vlan]) -> io::Result<()> {
        if self.vlans != vlans {
            self.settings.set(&[0; 4], &Settings::new(self.mac, vlans, &self.owned).0)?;
            self.vlans = vlans.to_vec();
        }
        Ok(())
    }

    /// Gives the frames of a receive queue to a bound AF_XDP socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_socket(&self, queue: u32, socket: BorrowedFd) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        self.sockets.set(&queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())
    }

    /// Says whose an address is. One of IPv6 is the host's alone, or the network's.
    ///
    /// # Errors
    /// The kernel's: `E2BIG` for the 65537th of a family.
    pub fn set_owner(&mut self, address: IpAddr, owner: Owner) -> io::Result<()> {
        // The filter first: what it lacks is not looked for.
        if self.owned.insert(address) {
            self.filter_owned()?;
        }
        match address {
            IpAddr::V4(a) => self.local4.set(&a.octets(), &[owner as u8]),
            IpAddr::V6(a) => self.local6.set(&a.octets(), &[owner as u8]),
        }
    }

    /// Makes an address one of the network's again.
    ///
    /// # Errors
    /// The kernel's.
    pub fn disown(&mut self, address: IpAddr) -> io::Result<()> {
        match address {
            IpAddr::V4(a) => self.local4.remove(&a.octets())?,
            IpAddr::V6(a) => self.local6.remove(&a.octets())?,
        }
        self.owned.remove(&address);
        self.filter_owned()
    }

    fn filter_owned(&self) -> io::Result<()> {
        self.settings.set(&[0; 4], &Settings::new(self.mac, &self.vlans, &self.owned).0)
    }

    /// Forwards a port of a shared address, or does no longer.
    ///
    /// # Errors
    /// The kernel's: `E2BIG` for the 65537th.
    pub fn set_forwarded(&self, port: ForwardedPort, forwarded: bool) -> io::Result<()> {
        let key = forwarded_key(port);
        if forwarded { self.forwarded.set(&key, &[1]) } else { self.forwarded.remove(&key) }
    }

    /// Packets and bytes passed up so far.
    ///
    /// # Errors
    /// The kernel's.
    pub fn passed(&self) -> io::Result<(u64, u64)> {
        let values = self.passed.get(&[0; 4])?;
        let words: Vec<u64> =
            values.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
        let sum = |k: usize| words.iter().skip(k).step_by(2).fold(0, |n: u64, w| n.wrapping_add(*w));
        Ok((sum(0), sum(1)))
    }
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
