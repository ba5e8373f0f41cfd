//! The program's bytes run by an interpreter (anybody) and by the kernel (root), against the
//! same rules written plainly.

use std::{
    cell::RefCell,
    net::{Ipv4Addr, Ipv6Addr},
    ptr::NonNull,
};

use proptest::prelude::*;

use super::{
    super::{
        asm::{Asm, Reg::R0},
        steering::*,
    },
    *,
};
use crate::arena::Mapping;

mod plain;

use plain::*;

/// The maps as the interpreter sees them: map "addresses" that only its helpers understand.
const LOCAL4_MAP: u64 = 4;
const LOCAL6_MAP: u64 = 6;
const FORWARDED_MAP: u64 = 7;
const PASSED_MAP: u64 = 8;
const SOCKETS_MAP: u64 = 10;
const BEFORE_MAP: u64 = 12;
const REDIRECTED: u64 = 4;

thread_local! {
    /// Packets, bytes: where the program counts.
    static PASSED: RefCell<Box<[u64; 2]>> = RefCell::new(Box::new([0; 2]));
    static FRAME_LEN: RefCell<u64> = const { RefCell::new(0) };
    /// The values of the addresses: whose they are.
    static OWNERS: RefCell<Box<[u8; 8]>> = RefCell::new(Box::new([0, 1, 2, 3, 0, 0, 0, 0]));
    /// `struct bpf_sock` of the socket that is held.
    static SOCKET: RefCell<Box<[u32; 20]>> = RefCell::new(Box::new([0; 20]));
    /// References to sockets that have not been given back.
    static HELD: RefCell<i32> = const { RefCell::new(0) };
}

/// The address of the map's value that says who `owner` is.
fn value_of(owner: Owner) -> u64 {
    OWNERS.with_borrow(|owners| &raw const owners[owner as usize] as u64)
}

fn lookup(map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    let key = key as *const u8;
    // SAFETY: the program was checked to read inside the frame before it calls: the 20 or 40
    // bytes of the header, which end with the address; the key of the counters is on its stack.
    unsafe {
        match map {
            LOCAL4_MAP => match Ipv4Addr::from(key.cast::<[u8; 4]>().read_unaligned()) {
                LOCAL4 => value_of(Owner::Host),
                SHARED4 => value_of(Owner::Shared),
                ANNOUNCED4 => value_of(Owner::Announced),
                _ => 0,
            },
            FORWARDED_MAP => {
                let of = |protocol| ForwardedPort { address: SHARED4, protocol, port: FORWARDED };
                let key = key.cast::<[u8; 8]>().read_unaligned();
                u64::from([6, 17].map(|protocol| forwarded_key(of(protocol))).contains(&key))
            }
            LOCAL6_MAP => u64::from(key.cast::<[u8; 16]>().read_unaligned() == LOCAL6.octets()),
            PASSED_MAP => {
                assert_eq!(key.cast::<u32>().read_unaligned(), 0);
                PASSED.with_borrow_mut(|p| p.as_mut_ptr() as u64)
            }
            other => panic!("lookup in {other}"),
        }
    }
}

/// No program is there.
fn tail_call(_: u64, map: u64, place: u64, _: u64, _: u64) -> u64 {
    assert_eq!((map, place), (BEFORE_MAP, 0));
    u64::MAX
}

/// The socket with these ends, or the one that waits at the near end; its state is to be read.
fn find_socket(protocol: u8, ends: u64, len: u64, namespace: u64, flags: u64) -> u64 {
    assert_eq!((len, namespace, flags), (12, u64::MAX, 0));
    // SAFETY: 12 bytes on the program's stack, by `len`.
    let ends = unsafe { (ends as *const [u8; 12]).read_unaligned() };
    let (from, to) = (u16::from_be_bytes([ends[8], ends[9]]), u16::from_be_bytes([ends[10], ends[11]]));
    assert_eq!(ends[4..8], SHARED4.octets(), "nobody else's sockets are asked for");
    let from_peer = ends[..4] == PEER.octets();
    let near = SOCKETS.iter().filter(|socket| (socket.0, socket.1) == (protocol, to));
    let connected = near.clone().find(|socket| from_peer && socket.2 == Some(from));
    let Some(socket) = connected.or_else(|| near.clone().find(|socket| socket.2.is_none())) else { return 0 };
    HELD.with_borrow_mut(|held| *held += 1);
    SOCKET.with_borrow_mut(|bytes| {
        bytes[SOCKET_STATE as usize / 4] = socket.3;
        bytes.as_ptr() as u64
    })
}

fn find_tcp(_: u64, ends: u64, len: u64, namespace: u64, flags: u64) -> u64 {
    find_socket(6, ends, len, namespace, flags)
}

fn find_udp(_: u64, ends: u64, len: u64, namespace: u64, flags: u64) -> u64 {
    find_socket(17, ends, len, namespace, flags)
}

fn release(socket: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    assert_eq!(socket, SOCKET.with_borrow(|bytes| bytes.as_ptr() as u64));
    HELD.with_borrow_mut(|held| *held -= 1);
    0
}

fn redirect(map: u64, queue: u64, fallback: u64, _: u64, _: u64) -> u64 {
    assert_eq!((map, fallback), (SOCKETS_MAP, 2));
    // Queue 0 has a socket, no other.
    if queue == 0 { REDIRECTED } else { fallback }
}

fn buff_len(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    FRAME_LEN.with_borrow(|n| *n)
}

/// Memory below 4 GiB, as the context's 32-bit pointers want it when no kernel translates them.
fn low_memory() -> (Mapping, NonNull<u8>) {
    // SAFETY: a fresh mapping.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_32BIT,
            -1,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    let start = NonNull::new(start.cast()).unwrap();
    // SAFETY: just mapped, and nobody else unmaps it.
    (unsafe { Mapping::from_raw(start, 4096) }, start)
}

/// Runs the program over `frame` from receive queue `queue` in the interpreter. The interpreter
/// refuses every access outside the frame, the context, the stack and the maps' values.
fn interpret(frame: &[u8], queue: u32) -> Way {
    let [way, counted] = [Length::Asked, Length::Counted].map(|length| interpret_with(frame, queue, length));
    assert_eq!(way, counted);
    way
}

fn interpret_with(frame: &[u8], queue: u32, length: Length) -> Way {
    let owned = [LOCAL4.into(), SHARED4.into(), ANNOUNCED4.into(), LOCAL6.into()];
    let settings = Settings::new(MAC, &vlans(), &owned);
    let places = Places {
        settings: MapRef::Address(settings.0.as_ptr() as u64),
        local4: MapRef::Address(LOCAL4_MAP),
        local6: MapRef::Address(LOCAL6_MAP),
        forwarded: MapRef::Address(FORWARDED_MAP),
        passed: MapRef::Address(PASSED_MAP),
        before: MapRef::Address(BEFORE_MAP),
        sockets: MapRef::Address(SOCKETS_MAP),
    };
    let code = assemble(&places, length);
    let code: Vec<u8> = code.iter().flat_map(|i| i.to_le_bytes()).collect();
    let (_low, start) = low_memory();
    // SAFETY: 4096 bytes are there; nothing else looks at them.
    let memory = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), frame.len()) };
    memory.copy_from_slice(frame);
    let at = start.as_ptr() as u64 as u32;
    let context: Vec<u8> =
        [at, at + frame.len() as u32, 0, 1, queue].iter().flat_map(|w| w.to_ne_bytes()).collect();
    FRAME_LEN.set(frame.len() as u64);
    let counters = PASSED.with_borrow(|p| p.as_ptr() as u64);
    let before = PASSED.with_borrow(|p| **p);
    let mut vm = rbpf::EbpfVmMbuff::new(Some(&code)).unwrap();
    vm.register_helper(MAP_LOOKUP as u32, lookup).unwrap();
    vm.register_helper(TAIL_CALL as u32, tail_call).unwrap();
    vm.register_helper(REDIRECT_MAP as u32, redirect).unwrap();
    vm.register_helper(XDP_GET_BUFF_LEN as u32, buff_len).unwrap();
    vm.register_helper(SKC_LOOKUP_TCP as u32, find_tcp).unwrap();
    vm.register_helper(SK_LOOKUP_UDP as u32, find_udp).unwrap();
    vm.register_helper(SK_RELEASE as u32, release).unwrap();
    let socket = SOCKET.with_borrow(|bytes| bytes.as_ptr() as u64);
    vm.register_allowed_memory(socket..socket + 80);
    let owners = value_of(Owner::Host) - Owner::Host as u64;
    vm.register_allowed_memory(owners..owners + 8);
    vm.register_allowed_memory(counters..counters + 16);
    let at = settings.0.as_ptr() as u64;
    vm.register_allowed_memory(at..at + settings.0.len() as u64);
    let result = vm.execute_program(memory, &context).unwrap();
    let after = PASSED.with_borrow(|p| **p);
    assert_eq!(HELD.with_borrow(|held| *held), 0, "every socket is given back");
    let counted = [after[0] - before[0], after[1] - before[1]];
    match result {
        2 => {
            assert_eq!(counted, [1, frame.len() as u64], "what goes up is counted");
            Up
        }
        REDIRECTED => {
            assert_eq!(counted, [0, 0]);
            Worker
        }
        other => panic!("the program says {other}"),
    }
}

fn ethernet(dst: [u8; 6], kind: u16, rest: &[u8]) -> Vec<u8> {
    let mut f = dst.to_vec();
    f.extend([2, 0, 0, 0, 0, 9]);
    f.extend(kind.to_be_bytes());
    f.extend(rest);
    f
}

fn tag(vid: u16, kind: u16, rest: &[u8]) -> Vec<u8> {
    let mut f = (vid | 0xa000).to_be_bytes().to_vec();
    f.extend(kind.to_be_bytes());
    f.extend(rest);
    f
}

fn v4(dst: [u8; 4], protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut p = vec![0x45, 0, 0, 0, 0, 0];
    p.extend(fragment.to_be_bytes());
    p.extend([64, protocol, 0, 0, 10, 0, 0, 1]);
    p.extend(dst);
    p.extend(payload);
    p
}

/// The beginning of TCP's header, or of UDP's.
fn ends(from: u16, to: u16) -> Vec<u8> {
    [&from.to_be_bytes(), &to.to_be_bytes(), &[0; 16][..]].concat()
}

/// An ARP request.
fn who_has(target: Ipv4Addr) -> Vec<u8> {
    let mut p = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    p.extend(target.octets());
    p
}

fn v6(dst: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let mut p = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next, 255];
    p.extend(Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 9).octets());
    p.extend(dst.octets());
    p.extend(payload);
    p
}

/// Each rule with a frame, and where it must go.
fn cases() -> Vec<(&'static str, Vec<u8>, Way)> {
    let far = Ipv6Addr::new(0x2001, 0xdb8, 5, 0, 0, 0, 0, 1);
    let far4 = [198, 51, 100, 7];
    let ip = |packet: &[u8]| ethernet(MAC, 0x0800, packet);
    let ip6 = |packet: &[u8]| ethernet(MAC, 0x86dd, packet);
    let dhcp = [0, 67, 0, 68, 0, 8, 0, 0];
    let mut options = v4(far4, 17, 0, &[1, 1, 1, 1, 0, 67, 0, 68, 0, 8, 0, 0]);
    options[0] = 0x46;
    let mut shared_options = v4(SHARED4.octets(), 17, 0, &[&[1, 1, 1, 1], &ends(1, 53)[..]].concat());
    shared_options[0] = 0x46;
    let mut no_length = v4(far4, 17, 0, &dhcp);
    no_length[0] = 0x44;
    vec![
        ("transit IPv4", ip(&v4(far4, 6, 0, &[0; 20])), Worker),
        ("transit IPv6", ip6(&v6(far, 6, &[0; 20])), Worker),
        ("ARP to us", ethernet(MAC, 0x0806, &[0; 28]), Up),
        ("LLDP", ethernet([1, 0x80, 0xc2, 0, 0, 0x0e], 0x88cc, &[0; 30]), Up),
        ("broadcast", ethernet([0xff; 6], 0x0800, &v4(far4, 17, 0, &[0; 8])), Up),
        ("multicast", ethernet([1, 0, 0x5e, 0, 0, 5], 0x0800, &v4([224, 0, 0, 5], 89, 0, &[0; 20])), Up),
        ("another station", ethernet([2, 0, 0, 0, 0, 2], 0x0800, &v4(far4, 6, 0, &[0; 20])), Up),
        ("local IPv4", ip(&v4(LOCAL4.octets(), 6, 0, &[0; 20])), Up),
        ("local IPv4, first fragment", ip(&v4(LOCAL4.octets(), 17, 0x2000, &[0; 20])), Up),
        ("local IPv4, later fragment", ip(&v4(LOCAL4.octets(), 17, 0x00b9, &[0; 20])), Up),
        ("transit, later fragment that looks like DHCP", ip(&v4(far4, 17, 0x00b9, &dhcp)), Worker),
        ("local IPv6", ip6(&v6(LOCAL6, 6, &[0; 20])), Up),
        ("link-local IPv4", ip(&v4([169, 254, 1, 2], 6, 0, &[0; 20])), Up),
        ("link-local IPv6", ip6(&v6("febf::1".parse().unwrap(), 6, &[0; 20])), Up),
        ("site-local IPv6 is no link-local", ip6(&v6("fec0::1".parse().unwrap(), 6, &[0; 20])), Worker),
        ("DHCP answer", ip(&v4(far4, 17, 0, &dhcp)), Up),
        ("DHCP answer, with IP options", ip(&options), Up),
        ("TCP to port 68", ip(&v4(far4, 6, 0, &dhcp)), Worker),
        ("UDP whose header length cannot be", ip(&no_length), Worker),
        ("router solicitation", ip6(&v6(far, 58, &[133, 0, 0, 0])), Up),
        ("redirect", ip6(&v6(far, 58, &[137, 0, 0, 0])), Up),
        ("echo request", ip6(&v6(far, 58, &[128, 0, 0, 0])), Worker),
        ("inverse discovery is not neighbour discovery", ip6(&v6(far, 58, &[138, 0, 0, 0])), Worker),
        ("MLD report", ip6(&v6(far, 58, &[132, 0, 0, 0])), Worker),
        ("priority tag, transit", ethernet(MAC, 0x8100, &tag(0, 0x0800, &v4(far4, 6, 0, &[0; 20]))), Worker),
        (
            "priority tag, local",
            ethernet(MAC, 0x8100, &tag(0, 0x0800, &v4(LOCAL4.octets(), 6, 0, &[0; 20]))),
            Up,
        ),
        ("our VLAN", ethernet(MAC, 0x8100, &tag(100, 0x0800, &v4(far4, 6, 0, &[0; 20]))), Worker),
        ("our VLAN, the last bit", ethernet(MAC, 0x88a8, &tag(4095, 0x86dd, &v6(far, 6, &[0; 20]))), Worker),
        ("our VLAN, ARP", ethernet(MAC, 0x8100, &tag(100, 0x0806, &[0; 28])), Up),
        ("our VLAN, local", ethernet(MAC, 0x8100, &tag(63, 0x0800, &v4(LOCAL4.octets(), 6, 0, &[0; 8]))), Up),
        ("another VLAN", ethernet(MAC, 0x8100, &tag(101, 0x0800, &v4(far4, 6, 0, &[0; 20]))), Up),
        (
            "priority tag before our VLAN",
            ethernet(MAC, 0x8100, &tag(0, 0x8100, &tag(100, 0x0800, &v4(far4, 6, 0, &[0; 20])))),
            Worker,
        ),
        (
            "two VLAN tags",
            ethernet(MAC, 0x8100, &tag(100, 0x8100, &tag(100, 0x0800, &v4(far4, 6, 0, &[0; 20])))),
            Up,
        ),
        ("a VLAN without the host, ARP", ethernet(MAC, 0x8100, &tag(WHOLE, 0x0806, &[0; 28])), Worker),
        (
            "a VLAN without the host, broadcast",
            ethernet([0xff; 6], 0x8100, &tag(WHOLE, 0x0806, &[0; 28])),
            Worker,
        ),
        (
            "a VLAN without the host, for another station",
            ethernet([2, 0, 0, 0, 0, 2], 0x88a8, &tag(WHOLE, 0x0800, &[0; 28])),
            Worker,
        ),
        ("a VLAN without the host, cut short", ethernet(MAC, 0x8100, &[0, 7, 8]), Up),
        (
            "a VLAN without the host behind a priority tag, for another station",
            ethernet([2, 0, 0, 0, 0, 2], 0x8100, &tag(0, 0x8100, &tag(WHOLE, 0x0806, &[0; 28]))),
            Worker,
        ),
        (
            "the same behind two of them",
            ethernet(
                [2, 0, 0, 0, 0, 2],
                0x8100,
                &tag(0, 0x8100, &tag(0, 0x8100, &tag(WHOLE, 0x0800, &[0; 28]))),
            ),
            Up,
        ),
        (
            "one of two tags, broadcast",
            ethernet([0xff; 6], 0x88a8, &tag(STACKED, 0x8100, &tag(5, 0x0806, &[0; 28]))),
            Up,
        ),
        (
            "two tags, transit",
            ethernet(MAC, 0x88a8, &tag(STACKED, 0x8100, &tag(5, 0x0800, &v4(far4, 6, 0, &[0; 20])))),
            Worker,
        ),
        (
            "two tags, local",
            ethernet(MAC, 0x88a8, &tag(STACKED, 0x8100, &tag(5, 0x86dd, &v6(LOCAL6, 6, &[0; 20])))),
            Up,
        ),
        (
            "one of two tags, transit",
            ethernet(MAC, 0x88a8, &tag(STACKED, 0x0800, &v4(far4, 6, 0, &[0; 20]))),
            Worker,
        ),
        ("ARP for an address that we answer for", ethernet([0xff; 6], 0x0806, &who_has(ANNOUNCED4)), Worker),
        ("the same, to us alone", ethernet(MAC, 0x0806, &who_has(ANNOUNCED4)), Worker),
        (
            "the same, in our VLAN",
            ethernet([0xff; 6], 0x8100, &tag(100, 0x0806, &who_has(ANNOUNCED4))),
            Worker,
        ),
        (
            "the same, in another VLAN",
            ethernet([0xff; 6], 0x8100, &tag(101, 0x0806, &who_has(ANNOUNCED4))),
            Up,
        ),
        ("ARP for an address of the host's", ethernet([0xff; 6], 0x0806, &who_has(LOCAL4)), Up),
        ("ARP for a shared address", ethernet([0xff; 6], 0x0806, &who_has(SHARED4)), Up),
        ("ARP cut short", ethernet([0xff; 6], 0x0806, &who_has(ANNOUNCED4)[..27]), Up),
        ("IPv4 for an address that we answer for", ip(&v4(ANNOUNCED4.octets(), 6, 0, &ends(1, 22))), Worker),
        ("shared, TCP to a listener", ip(&v4(SHARED4.octets(), 6, 0, &ends(1, 22))), Up),
        ("shared, TCP to nobody", ip(&v4(SHARED4.octets(), 6, 0, &ends(1, 23))), Worker),
        ("shared, TCP of a connection", ip(&v4(SHARED4.octets(), 6, 0, &ends(80, 2000))), Up),
        ("shared, TCP of another connection", ip(&v4(SHARED4.octets(), 6, 0, &ends(82, 2000))), Worker),
        (
            "shared, UDP to nobody, the number a TCP listener's",
            ip(&v4(SHARED4.octets(), 17, 0, &ends(1, 22))),
            Worker,
        ),
        ("shared, UDP to a socket", ip(&v4(SHARED4.octets(), 17, 0, &ends(1, 53))), Up),
        ("shared, UDP with options", ip(&shared_options), Up),
        ("shared, first fragment", ip(&v4(SHARED4.octets(), 17, 0x2000, &ends(1, 53))), Worker),
        ("shared, later fragment", ip(&v4(SHARED4.octets(), 17, 0x00b9, &ends(1, 53))), Worker),
        ("shared, not to be fragmented", ip(&v4(SHARED4.octets(), 17, 0x4000, &ends(1, 53))), Up),
        ("shared, ports cut short", ip(&v4(SHARED4.octets(), 6, 0, &ends(1, 22)[..3])), Worker),
        ("shared, echo request", ip(&v4(SHARED4.octets(), 1, 0, &ends(1, 22))), Worker),
        (
            "forwarded, TCP, though somebody listens",
            ip(&v4(SHARED4.octets(), 6, 0, &ends(1, FORWARDED))),
            Worker,
        ),
        (
            "forwarded, TCP of a connection of the host's",
            ip(&v4(SHARED4.octets(), 6, 0, &ends(81, FORWARDED))),
            Up,
        ),
        (
            "forwarded, UDP of a connection of the host's",
            ip(&v4(SHARED4.octets(), 17, 0, &ends(5353, FORWARDED))),
            Up,
        ),
        ("forwarded, UDP", ip(&v4(SHARED4.octets(), 17, 0, &ends(1, FORWARDED))), Worker),
        ("IPv4 header cut short", ip(&v4(LOCAL4.octets(), 6, 0, &[])[..19]), Worker),
        ("IPv6 header cut short", ip6(&v6(LOCAL6, 6, &[])[..39]), Worker),
        ("tag cut short", ethernet(MAC, 0x8100, &[0, 0, 8]), Up),
    ]
}

#[test]
fn each_rule_sends_its_frame_the_right_way() {
    for (name, frame, way) in cases() {
        assert_eq!(expected(&frame), way, "{name}, by the plain rules");
        assert_eq!(interpret(&frame, 0), way, "{name}, by the program");
    }
}

#[test]
fn frames_of_every_length_are_read_inside_their_bounds() {
    for (name, frame, _) in cases() {
        for n in 0..=frame.len() {
            assert_eq!(interpret(&frame[..n], 0), expected(&frame[..n]), "{name}, {n} bytes");
        }
    }
}

#[test]
fn a_queue_without_a_socket_passes_everything_up() {
    for (name, frame, _) in cases() {
        assert_eq!(interpret(&frame, 1), Up, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn changed_frames_go_where_the_plain_rules_say(
        which in 0..cases().len(),
        changes in prop::collection::vec((0usize..80, any::<u8>()), 0..4),
    ) {
        let mut frame = cases()[which].1.clone();
        for (at, byte) in changes {
            if let Some(b) = frame.get_mut(at) {
                *b = byte;
            }
        }
        prop_assert_eq!(interpret(&frame, 0), expected(&frame));
    }
}

/// Whether the kernel lets this process load programs.
fn allowed() -> bool {
    // SAFETY: no arguments, cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("skipped: needs root");
    }
    root
}

#[test]
fn the_kernel_accepts_the_program_and_agrees() {
    if !allowed() {
        return;
    }
    for length in [Length::Asked, Length::Counted] {
        kernel_agrees(Program::load_as(length, MAC, &vlans(), 1).unwrap());
    }
}

fn kernel_agrees(mut port: Program) {
    let host = [IpAddr::from(LOCAL4), LOCAL6.into()].map(|address| (address, Owner::Host));
    let rings = [(SHARED4.into(), Owner::Shared), (ANNOUNCED4.into(), Owner::Announced)];
    let mut owners: HashMap<IpAddr, Owner> = host.into_iter().chain(rings).collect();
    port.set_owners(&owners).unwrap();
    port.set_owners(&owners).unwrap();
    let forwarded = ForwardedPort { address: SHARED4, protocol: 6, port: FORWARDED };
    port.set_forwarded(forwarded, true).unwrap();
    let mut sent = (0, 0);
    for (name, frame, way) in cases() {
        // The kernel takes no frame shorter than an Ethernet header here.
        let result = bpf::test_run(port.program.as_fd(), &frame).unwrap().result;
        // Without a socket the redirection falls back to passing up: so both are 2, and what
        // tells them apart is tested by the interpreter; here the verifier is the test.
        assert_eq!(result, 2, "{name} {way:?}");
        sent = (sent.0 + 1, sent.1 + frame.len() as u64);
    }
    assert_eq!(port.passed().unwrap(), sent);

    // A program before the sockets gets what would go to a worker, and nothing else.
    let mut drops = Asm::default();
    drops.mov(R0, 1);
    drops.exit();
    let drops = bpf::load("drops", &drops.finish()).unwrap();
    let (before, _) = port.before().unwrap();
    before.set(&[0; 4], &std::os::fd::AsRawFd::as_raw_fd(&drops).to_ne_bytes()).unwrap();
    for (name, frame, way) in cases() {
        let result = bpf::test_run(port.program.as_fd(), &frame).unwrap().result;
        // None of the sockets is there: what they would take is the worker's.
        let to_worker = way == Worker || name.starts_with("shared") || name.starts_with("forwarded");
        assert_eq!(result, if to_worker { 1 } else { 2 }, "{name}");
    }
    before.remove(&[0; 4]).unwrap();
    assert_eq!(bpf::test_run(port.program.as_fd(), &cases()[0].1).unwrap().result, 2);
    port.set_forwarded(forwarded, false).unwrap();
    port.set_forwarded(forwarded, false).unwrap();
    let local = cases().into_iter().find(|(name, ..)| *name == "local IPv4").unwrap().1;
    before.set(&[0; 4], &std::os::fd::AsRawFd::as_raw_fd(&drops).to_ne_bytes()).unwrap();
    let result = |port: &Program| bpf::test_run(port.program.as_fd(), &local).unwrap().result;
    assert_eq!(result(&port), 2);
    owners.remove(&LOCAL4.into());
    port.set_owners(&owners).unwrap();
    assert_eq!(result(&port), 1, "it is the network's now");
    port.set_mac([2, 0, 0, 0, 0, 7]).unwrap();
    port.set_vlans(&[]).unwrap();
}
