//! The two ends of the wire: a generator and a sink, both as XDP programs, so that they cost little
//! beside what is between them.
//!
//! The generator runs by `BPF_PROG_TEST_RUN` with live frames: the kernel calls the program with a
//! recycled frame, again and again, and the program writes a header into it and sends it out of a
//! veth device. The sink drops what comes, and looks at each frame: TTL, header checksum, source,
//! and the next hop, which the generator has written into the payload.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use netmap::device::xdp::{
    asm::{
        Asm,
        Cond::{Above, NotEqual},
        Map as MapRef,
        Op::{Add, And, ShiftLeft, ShiftRight},
        Reg::{R0, R1, R2, R3, R4, R5, R7, R8, R9},
        Size::{U8, U16, U32, U64},
    },
    bpf::{self, AttachMode, Map, MapType},
};

/// Bytes of a frame, without FCS.
pub const FRAME: usize = 60;
/// Frames of one round trip through the destinations; each has a source address of its own.
pub const FLOWS: usize = 1 << 16;
/// The upper half of the sources' addresses: 10.1/16.
const SOURCES: u32 = 0x0a01_0000;
/// The generator's UDP ports, source and destination.
const PORTS: [u16; 2] = [7000, 7001];
/// Where the next hop's number stands in the frame: behind the UDP header.
const HOP_AT: i16 = 42;

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const REDIRECT: i32 = 23;

/// A MAC address.
pub type Mac = [u8; 6];

/// Where a flow goes, and the next hop that its packets must be sent to.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Host order.
    pub destination: u32,
    /// The number that the next hop's MAC address ends in.
    pub hop: u16,
}

/// The MAC address of next hop `n`.
pub fn hop_mac(n: u16) -> Mac {
    let [high, low] = n.to_be_bytes();
    [2, 0, 0, 9, high, low]
}

/// A value of 16 bits as it lies in memory in network order.
fn net16(value: u16) -> i32 {
    i32::from(value.to_be())
}

/// The frame of flow `n`, as the sender makes it.
fn frame(n: u16, flow: Flow) -> [u8; FRAME] {
    let (mut f, _) = crate::traffic::frame4(
        SOURCES | u32::from(n),
        flow.destination,
        u32::from(PORTS[0]) << 16 | u32::from(PORTS[1]),
    );
    f[HOP_AT as usize..][..2].copy_from_slice(&flow.hop.to_be_bytes());
    *f.first_chunk().expect("a frame has so many bytes")
}

/// The generator, loaded.
pub struct Generator {
    program: OwnedFd,
    template: [u8; FRAME],
    _maps: [Map<4>; 2],
}

impl Generator {
    /// Sends to `router`'s MAC address by the device with this index, the first `count` of the flows
    /// in turn; `count` is a power of two.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(flows: &[Flow], count: usize, router: Mac, ifindex: u32) -> io::Result<Self> {
        let table = Map::<4>::new("bench_flows", MapType::Array, FLOWS * 8, 1, 0)?;
        let turn = Map::<4>::new("bench_turn", MapType::Array, 8, 1, 0)?;
        let mut bytes = vec![0; FLOWS * 8];
        for (n, (flow, entry)) in flows.iter().zip(bytes.chunks_exact_mut(8)).enumerate() {
            let frame = frame(n as u16, *flow);
            entry[..4].copy_from_slice(&frame[30..34]);
            entry[4..6].copy_from_slice(&frame[24..26]);
            entry[6..].copy_from_slice(&frame[HOP_AT as usize..][..2]);
        }
        table.set(&[0; 4], &bytes)?;
        let code = Self::assemble(&table, &turn, count as i32 - 1, router, ifindex as i32);
        let program = bpf::load("bench_generate", &code)?;
        let template = frame(0, flows[0]);
        Ok(Self { program, template, _maps: [table, turn] })
    }

    /// R7: the frame. R9: the flow's entry. Whatever a router may have changed in a frame that comes
    /// back is written anew.
    fn assemble(table: &Map<4>, turn: &Map<4>, mask: i32, router: Mac, ifindex: i32) -> Vec<u64> {
        let half = |b: &[u8]| i32::from(u16::from_ne_bytes([b[0], b[1]]));
        let word = |b: &[u8]| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
        let mut a = Asm::default();
        a.load(U32, R7, R1, 0);
        a.load(U32, R8, R1, 4);
        a.lea(R2, R7, FRAME as i32);
        a.jump_if(R2, Above, R8, "none");
        a.load_map(R2, MapRef::Value(turn.raw()));
        a.load(U64, R3, R2, 0);
        a.lea(R4, R3, 1);
        a.store(U64, R2, 0, R4);
        a.alu(And, R3, mask);
        a.alu(And, R3, FLOWS as i32 - 1);
        a.mov(R5, R3);
        a.alu(ShiftLeft, R3, 3);
        a.load_map(R9, MapRef::Value(table.raw()));
        a.alu(Add, R9, R3);
        a.store(U32, R7, 0, word(&router));
        a.store(U16, R7, 4, half(&router[4..]));
        a.store(U16, R7, 6, half(&[2, 0]));
        a.store(U32, R7, 8, word(&[0, 7, 0, 1]));
        // TTL and protocol, checksum, addresses, ports, next hop.
        a.store(U16, R7, 22, half(&[64, 17]));
        a.load(U16, R2, R9, 4);
        a.store(U16, R7, 24, R2);
        a.store(U16, R7, 26, net16((SOURCES >> 16) as u16));
        a.net_to_host16(R5);
        a.store(U16, R7, 28, R5);
        a.load(U32, R2, R9, 0);
        a.store(U32, R7, 30, R2);
        a.store(U16, R7, 34, net16(PORTS[0]));
        a.store(U16, R7, 36, net16(PORTS[1]));
        // No UDP checksum.
        a.store(U16, R7, 40, 0);
        a.load(U16, R2, R9, 6);
        a.store(U16, R7, HOP_AT, R2);
        a.mov(R1, ifindex);
        a.mov(R2, 0);
        a.call(REDIRECT);
        a.exit();
        a.label("none");
        a.mov(R0, XDP_DROP);
        a.exit();
        a.finish()
    }

    /// Keeps the program known to the kernel's dispatcher, by a device that nothing comes to: else
    /// each [`Generator::send`] would wait until all processors have forgotten the last one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn hold(&self, ifindex: u32) -> io::Result<OwnedFd> {
        bpf::attach(self.program.as_fd(), ifindex, AttachMode::Native)
    }

    /// Sends `n` frames, from the calling thread's network namespace, as fast as they go.
    ///
    /// # Errors
    /// Those of [`bpf::run_live`].
    pub fn send(&self, n: u32) -> io::Result<()> {
        bpf::run_live(self.program.as_fd(), &self.template, n)
    }
}

/// What a frame must be like when it comes.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// Its TTL.
    pub ttl: u8,
    /// Where it must have been sent.
    pub to: To,
    /// Its source address, host order; none when that must be the sender's.
    pub source: Option<u32>,
}

/// The destination MAC address that is right.
#[derive(Clone, Copy)]
pub enum To {
    /// That of the next hop that the frame names.
    Hop,
    /// Always this one.
    Mac(Mac),
}

/// What has come, by what was found.
#[derive(Clone, Copy, Default, Debug)]
pub struct Arrived {
    /// Right frames.
    pub right: u64,
    /// Frames with a wrong TTL, MAC address, checksum, source.
    pub wrong: [u64; 4],
}

impl Arrived {
    /// What came since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut wrong = self.wrong;
        wrong.iter_mut().zip(before.wrong).for_each(|(n, before)| *n -= before);
        Self { right: self.right - before.right, wrong }
    }

    /// What is wrong, if anything.
    pub fn complaint(&self) -> Option<String> {
        let names = ["TTL", "MAC address", "checksum", "source"];
        let all = names.into_iter().zip(self.wrong).filter(|(_, n)| *n > 0);
        let said: Vec<String> =
            all.map(|(name, n)| format!("{n} packets came with a wrong {name}")).collect();
        (!said.is_empty()).then(|| said.join(", "))
    }
}

/// The sink, at a device; it goes away when dropped.
pub struct Sink {
    counts: Map<4>,
    link: OwnedFd,
    _program: OwnedFd,
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = bpf::detach(self.link.as_fd());
    }
}

impl Sink {
    /// Takes what comes to the device with this index, in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(ifindex: u32, wanted: Wanted) -> io::Result<Self> {
        let counts = Map::<4>::new("bench_arrived", MapType::Array, 5 * 8, 1, 0)?;
        let program = bpf::load("bench_sink", &Self::assemble(&counts, wanted))?;
        let link = bpf::attach(program.as_fd(), ifindex, AttachMode::Native)?;
        Ok(Self { counts, link, _program: program })
    }

    /// R7: the frame. R9: the counts. Only one processor works on a device's queue at a time, so
    /// counts are plain.
    fn assemble(counts: &Map<4>, wanted: Wanted) -> Vec<u64> {
        let word = |b: &[u8]| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
        let mut a = Asm::default();
        a.load(U32, R7, R1, 0);
        a.load(U32, R8, R1, 4);
        a.lea(R2, R7, FRAME as i32);
        a.jump_if(R2, Above, R8, "other");
        a.load(U16, R2, R7, 12);
        a.jump_if(R2, NotEqual, net16(0x0800), "other");
        a.load(U16, R2, R7, 36);
        a.jump_if(R2, NotEqual, net16(PORTS[1]), "other");
        a.load_map(R9, MapRef::Value(counts.raw()));
        a.load(U8, R2, R7, 22);
        a.jump_if(R2, NotEqual, i32::from(wanted.ttl), "ttl");
        match wanted.to {
            To::Hop => {
                a.load(U32, R2, R7, 0);
                a.load(U16, R3, R7, 4);
                a.load(U16, R4, R7, HOP_AT);
                a.jump_if(R2, NotEqual, word(&hop_mac(0)), "mac");
                a.jump_if(R3, NotEqual, R4, "mac");
            }
            To::Mac(mac) => {
                a.load(U32, R2, R7, 0);
                a.load(U16, R3, R7, 4);
                a.jump_if(R2, NotEqual, word(&mac), "mac");
                a.jump_if(R3, NotEqual, i32::from(u16::from_ne_bytes([mac[4], mac[5]])), "mac");
            }
        }
        a.load(U16, R5, R7, 14);
        for at in (16..34).step_by(2) {
            a.load(U16, R3, R7, at);
            a.alu(Add, R5, R3);
        }
        a.mov(R3, R5);
        a.alu(ShiftRight, R3, 16);
        a.alu(And, R5, 0xffff);
        a.alu(Add, R5, R3);
        a.jump_if(R5, NotEqual, 0xffff, "checksum");
        match wanted.source {
            None => {
                a.load(U16, R2, R7, 26);
                a.jump_if(R2, NotEqual, net16((SOURCES >> 16) as u16), "source");
            }
            // In halves: constants are sign-extended, what is loaded is not.
            Some(source) => {
                for (at, half) in [(26, source >> 16), (28, source & 0xffff)] {
                    a.load(U16, R2, R7, at);
                    a.jump_if(R2, NotEqual, net16(half as u16), "source");
                }
            }
        }
        for (at, what) in [(0, "right"), (8, "ttl"), (16, "mac"), (24, "checksum"), (32, "source")] {
            if what != "right" {
                a.label(what);
            }
            a.load(U64, R2, R9, at);
            a.alu(Add, R2, 1);
            a.store(U64, R9, at, R2);
            a.mov(R0, XDP_DROP);
            a.exit();
        }
        a.label("other");
        a.mov(R0, XDP_PASS);
        a.exit();
        a.finish()
    }

    /// What has come so far.
    ///
    /// # Errors
    /// The kernel's.
    pub fn arrived(&self) -> io::Result<Arrived> {
        let bytes = self.counts.get(&[0; 4])?;
        let word =
            |n: usize| bytes.get(8 * n..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b));
        Ok(Arrived { right: word(0), wrong: [word(1), word(2), word(3), word(4)] })
    }
}
