//! The stand-in against the measured interface: what the real kernel says to requests, and how
//! its memory looks.

use std::{mem::offset_of, os::fd::RawFd, sync::Arc};

use super::{super::standin::StandIn, *};
use crate::{
    abi::{self, netmap_if, netmap_ring, nmreq_header, nmreq_register},
    arena::Mapping,
    device::kernel::system::System,
};

fn register(
    kernel: &StandIn,
    fd: RawFd,
    name: &str,
    mut body: nmreq_register,
) -> Result<nmreq_register, i32> {
    control(kernel, fd, abi::NETMAP_API, name, &mut body).map(|()| body)
}

fn control(
    kernel: &StandIn,
    fd: RawFd,
    version: u16,
    name: &str,
    body: &mut nmreq_register,
) -> Result<(), i32> {
    let mut header = nmreq_header {
        nr_version: version,
        nr_reqtype: abi::NETMAP_REQ_REGISTER,
        nr_reserved: 0,
        nr_name: [0; 64],
        nr_options: 0,
        nr_body: std::ptr::from_mut(body) as u64,
    };
    header.nr_name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: header and body are those of a register.
    let result = unsafe { kernel.ioctl(fd, abi::NIOCCTRL, (&raw mut header).cast()) };
    assert_eq!(header.nr_version, version, "the version is never written back");
    result.map_err(|e| e.raw_os_error().unwrap())
}

fn sync(kernel: &StandIn, fd: RawFd, request: libc::c_ulong) -> Option<i32> {
    // SAFETY: syncs take no argument.
    unsafe { kernel.ioctl(fd, request, std::ptr::null_mut()) }.err().and_then(|e| e.raw_os_error())
}

fn mode(nr_mode: u32, nr_ringid: u16) -> nmreq_register {
    nmreq_register { nr_mode, nr_ringid, ..Default::default() }
}

fn poll(fd: RawFd, events: i16) -> i16 {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&mut poll, 1, 0) };
    poll.revents
}

fn machine() -> Arc<StandIn> {
    kernel_with(&[("ix0", Nic { rx_rings: 2, tx_rings: 2, ..Nic::default() })])
}

#[test]
fn only_versions_14_and_15_are_taken() {
    let kernel = machine();
    for (version, result) in [
        (11, Err(libc::EINVAL)),
        (13, Err(libc::EINVAL)),
        (14, Ok(())),
        (15, Ok(())),
        (16, Err(libc::EINVAL)),
    ] {
        let fd = kernel.open().unwrap();
        let mut body = mode(abi::NR_REG_ALL_NIC, 0);
        assert_eq!(control(&kernel, fd, version, "ix0", &mut body), result, "version {version}");
        kernel.close(fd);
    }
}

#[test]
fn requests_are_refused_as_measured() {
    let kernel = machine();
    let all = mode(abi::NR_REG_ALL_NIC, 0);
    for (name, body, error) in [
        ("nosuch0", all, libc::ENXIO),
        ("netmap:ix0", all, libc::ENXIO),
        ("ix0-1", all, libc::ENXIO),
        ("lo", all, libc::EINVAL),
        ("ix0", mode(abi::NR_REG_ONE_NIC, 2), libc::EINVAL),
        ("vale0", all, libc::ENOMEM),
        ("vale0:a", mode(abi::NR_REG_SW, 0), libc::EINVAL),
        ("p{1", mode(abi::NR_REG_NIC_SW, 0), libc::EINVAL),
        ("p{", all, libc::EINVAL),
        ("ix0", nmreq_register { nr_mem_id: 77, ..mode(9, 0) }, libc::EINVAL),
    ] {
        let fd = kernel.open().unwrap();
        assert_eq!(register(&kernel, fd, name, body).err(), Some(error), "{name}");
        kernel.close(fd);
    }
    assert_eq!(kernel.open_descriptors(), 0);
}

#[test]
fn a_descriptor_serves_one_register_and_needs_it_first() {
    let kernel = machine();
    let fd = kernel.open().unwrap();
    assert_eq!(kernel.mmap(fd, 4096).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    assert_eq!(sync(&kernel, fd, abi::NIOCRXSYNC), Some(libc::ENXIO));
    assert_eq!(sync(&kernel, fd, abi::NIOCTXSYNC), Some(libc::ENXIO));
    assert_eq!(poll(fd, libc::POLLIN) & libc::POLLERR, libc::POLLERR);
    register(&kernel, fd, "ix0", mode(abi::NR_REG_ALL_NIC, 0)).unwrap();
    assert_eq!(register(&kernel, fd, "ix0", mode(abi::NR_REG_ALL_NIC, 0)).err(), Some(libc::EBUSY));
    assert_eq!(poll(fd, libc::POLLIN | libc::POLLOUT), libc::POLLOUT);
    assert_eq!(sync(&kernel, fd, abi::NIOCRXSYNC), None);
    kernel.receive("ix0", 1, &frame(1, 9, 60, 0));
    assert_eq!(poll(fd, libc::POLLIN), libc::POLLIN);
    kernel.close(fd);
}

#[test]
fn exclusive_rings_are_for_one() {
    let kernel = machine();
    let exclusive = nmreq_register { nr_flags: abi::NR_EXCLUSIVE, ..mode(abi::NR_REG_ALL_NIC, 0) };
    let (a, b) = (kernel.open().unwrap(), kernel.open().unwrap());
    register(&kernel, a, "ix0", mode(abi::NR_REG_ONE_NIC, 1)).unwrap();
    assert_eq!(register(&kernel, b, "ix0", exclusive).err(), Some(libc::EBUSY));
    kernel.close(a);
    register(&kernel, b, "ix0", exclusive).unwrap();
    let c = kernel.open().unwrap();
    assert_eq!(register(&kernel, c, "ix0", mode(abi::NR_REG_ONE_NIC, 0)).err(), Some(libc::EBUSY));
    for fd in [b, c] {
        kernel.close(fd);
    }
}

/// A register with the memory behind it, read by raw offsets.
struct Seen {
    map: Mapping,
    reply: nmreq_register,
}

impl Seen {
    fn new(kernel: &StandIn, name: &str, body: nmreq_register) -> Self {
        let fd = kernel.open().unwrap();
        let reply = register(kernel, fd, name, body).unwrap();
        Self { map: kernel.mmap(fd, reply.nr_memsize as usize).unwrap(), reply }
    }

    fn read<T: Copy>(&self, at: i64) -> T {
        assert!(at >= 0 && at as usize + size_of::<T>() <= self.map.len());
        // SAFETY: inside the mapping; the places read are aligned.
        unsafe { self.map.start().add(at as usize).cast::<T>().as_ptr().read_volatile() }
    }

    fn nifp(&self, field: usize) -> u32 {
        self.read(self.reply.nr_offset as i64 + field as i64)
    }

    /// `ring_ofs[i]`, and ringid and dir there; `None` where it is 0.
    fn ring(&self, i: i64) -> Option<(u16, u16)> {
        let nifp = self.reply.nr_offset as i64;
        let offset: i64 = self.read(nifp + 56 + 8 * i);
        let at = nifp + offset;
        (offset != 0).then(|| {
            assert_eq!(at % abi::RING_ALIGN as i64, 0);
            (self.read(at + 16), self.read(at + 18))
        })
    }
}

#[test]
fn ring_offsets_come_in_the_kernels_order() {
    let kernel = machine();
    let all = Seen::new(&kernel, "ix0", mode(abi::NR_REG_NIC_SW, 0));
    let rings: Vec<_> = (0..6).map(|i| all.ring(i)).collect();
    // Transmit, host transmit, receive, host receive; the host ring's number is that of the rings.
    let expected = [(0, 1), (1, 1), (2, 1), (0, 0), (1, 0), (2, 0)].map(Some);
    assert_eq!(rings, expected);
    assert_eq!(all.nifp(offset_of!(netmap_if, ni_version)), 0);
    assert_eq!((all.nifp(24), all.nifp(28), all.nifp(36), all.nifp(40)), (2, 2, 1, 1));
    assert_eq!((all.reply.nr_host_tx_rings, all.reply.nr_host_rx_rings, all.reply.nr_mem_id), (1, 1, 1));
    // A second register gives another netmap_if in the same region; rings not bound have offset 0.
    let one = Seen::new(&kernel, "ix0", mode(abi::NR_REG_ONE_NIC, 1));
    assert_ne!(one.reply.nr_offset, all.reply.nr_offset);
    let rings: Vec<_> = (0..6).map(|i| one.ring(i)).collect();
    assert_eq!(rings, [None, Some((1, 1)), None, None, Some((1, 0)), None]);
}

#[test]
fn vale_ports_and_pipes_have_no_host_rings_but_places_for_them() {
    let kernel = machine();
    for name in ["vale0:a", "p{1"] {
        let seen = Seen::new(&kernel, name, mode(abi::NR_REG_ALL_NIC, 0));
        assert_eq!((seen.reply.nr_host_tx_rings, seen.reply.nr_host_rx_rings), (0, 0), "{name}");
        assert_eq!((seen.nifp(36), seen.nifp(40)), (1, 1), "{name}");
        let rings: Vec<_> = (0..4).map(|i| seen.ring(i)).collect();
        assert_eq!(rings, [Some((0, 1)), None, Some((0, 0)), None], "{name}");
    }
}

#[test]
fn memory_ids_are_private_unless_asked_for() {
    let kernel = machine();
    let all = mode(abi::NR_REG_ALL_NIC, 0);
    let id =
        |name: &str, nr_mem_id| Seen::new(&kernel, name, nmreq_register { nr_mem_id, ..all }).reply.nr_mem_id;
    assert_eq!(id("ix0", 0), 1);
    let (a, b, p) = (id("vale0:a", 0), id("vale0:b", 0), id("p{1", 0));
    assert_eq!(BTreeSet::from([1, a, b, p]).len(), 4);
    assert_eq!(id("p}1", 0), p);
    assert_eq!(id("vale0:c", 1), 1);
    assert_eq!(id("vale0:d", a), a);
}

#[test]
fn ring_headers_lead_to_their_buffers() {
    let kernel = machine();
    let seen = Seen::new(&kernel, "ix0", mode(abi::NR_REG_ALL_NIC, 0));
    let nifp = seen.reply.nr_offset as i64;
    let mut all = BTreeSet::new();
    for i in [0, 1, 3, 4] {
        let at = nifp + seen.read::<i64>(nifp + 56 + 8 * i);
        let ring: netmap_ring = seen.read(at);
        assert_eq!((ring.num_slots, ring.nr_buf_size, ring.head, ring.cur), (64, 2048, 0, 0));
        assert_eq!(ring.tail, if ring.dir == 1 { 63 } else { 0 });
        for slot in 0..64 {
            let index: u32 = seen.read(at + 256 + 16 * slot);
            assert!(index >= abi::FIRST_BUFFER);
            assert!(at + ring.buf_ofs + (i64::from(index) + 1) * 2048 <= seen.reply.nr_memsize as i64);
            assert!(all.insert(index));
        }
    }
}
