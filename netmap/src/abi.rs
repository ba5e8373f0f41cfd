//! The kernel's netmap interface, API 14: what the ring code needs of it.
//!
//! Struct types come from the crate `netmap_sys` where they are right (slot, ring, interface, the
//! legacy request); what it lacks stands here, under the kernel's own names. The test at the end
//! asserts the size and the offset of every field that the code touches.

#![allow(non_camel_case_types, reason = "the kernel's names")]

pub use netmap_sys::netmap::{
    NR_REG_ALL_NIC, NR_REG_NIC_SW, NR_REG_ONE_NIC, NR_REG_SW, NS_BUF_CHANGED, NS_MOREFRAG, netmap_if,
    netmap_ring, netmap_slot,
};

/// The API version to ask for. `netmap_sys` says 11, which kernels since 2019 refuse.
pub const NETMAP_API: u16 = 14;
/// The newest API version that NIOCCTRL takes.
pub const NETMAP_MAX_API: u16 = 15;

/// Alignment in bytes of a ring in the shared region; `netmap_sys` has 8.
pub const RING_ALIGN: usize = 128;
/// Offset of `offset_mask` (u64) in `netmap_ring`; `netmap_sys` has it inside its padding.
pub const RING_OFFSET_MASK: usize = 56;
/// Offset of `buf_align` (u64) in `netmap_ring`.
pub const RING_BUF_ALIGN: usize = 64;
/// Offset of `ni_host_tx_rings` (u32) in `netmap_if`, spare in `netmap_sys`. It says where the
/// receive rings begin in `ring_ofs`, not how many host rings there are: it counts one that VALE
/// ports and pipes do not have.
pub const IF_HOST_TX_RINGS: usize = 36;
/// Offset of `ni_host_rx_rings` (u32) in `netmap_if`; the same caution.
pub const IF_HOST_RX_RINGS: usize = 40;

/// Buffers 0 and 1 belong to the kernel and never carry packets.
pub const FIRST_BUFFER: u32 = 2;

/// Fragment count in the flags of a VALE receive slot, and the destination port in those of a
/// VALE transmit slot: never copy flags from one to the other.
pub const NS_PORT_MASK: u16 = 0xff00;

/// Bytes of a port name in a request, the closing zero included.
pub const NETMAP_REQ_IFNAMSIZ: usize = 64;

/// Request: bind rings of a port to the descriptor.
pub const NETMAP_REQ_REGISTER: u16 = 1;
/// Request: number of rings and slots of a port.
pub const NETMAP_REQ_PORT_INFO_GET: u16 = 2;
/// Request: attach an interface to a VALE switch.
pub const NETMAP_REQ_VALE_ATTACH: u16 = 3;
/// Request: detach it.
pub const NETMAP_REQ_VALE_DETACH: u16 = 4;
/// Request: list the ports of a VALE switch.
pub const NETMAP_REQ_VALE_LIST: u16 = 5;
/// Request: set the length of the header before each packet.
pub const NETMAP_REQ_PORT_HDR_SET: u16 = 6;
/// Request: get it.
pub const NETMAP_REQ_PORT_HDR_GET: u16 = 7;
/// Request: make a VALE port that outlives its descriptors.
pub const NETMAP_REQ_VALE_NEWIF: u16 = 8;
/// Request: remove it.
pub const NETMAP_REQ_VALE_DELIF: u16 = 9;
/// Request: start polling threads for an attached port.
pub const NETMAP_REQ_VALE_POLLING_ENABLE: u16 = 10;
/// Request: stop them.
pub const NETMAP_REQ_VALE_POLLING_DISABLE: u16 = 11;
/// Request: what a port's memory is made of.
pub const NETMAP_REQ_POOLS_INFO_GET: u16 = 12;

/// `nr_flags`: refuse when anybody else uses the rings.
pub const NR_EXCLUSIVE: u64 = 0x800;
/// `nr_flags`: receive rings only.
pub const NR_RX_RINGS_ONLY: u64 = 0x2000;
/// `nr_flags`: transmit rings only.
pub const NR_TX_RINGS_ONLY: u64 = 0x4000;
/// `nr_flags`: poll for output does not sync the transmit rings unless asked for POLLOUT.
pub const NR_NO_TX_POLL: u64 = 0x2_0000;

/// Common head of every NIOCCTRL request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nmreq_header {
    /// [`NETMAP_API`].
    pub nr_version: u16,
    /// One of the `NETMAP_REQ_` numbers.
    pub nr_reqtype: u16,
    /// Zero.
    pub nr_reserved: u32,
    /// The port, without `netmap:` and without suffixes, ended by a zero.
    pub nr_name: [u8; NETMAP_REQ_IFNAMSIZ],
    /// Address of the first option, or 0.
    pub nr_options: u64,
    /// Address of the request's body.
    pub nr_body: u64,
}

/// Body of [`NETMAP_REQ_REGISTER`].
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct nmreq_register {
    /// Out: where the `netmap_if` is, in bytes from the start of the region.
    pub nr_offset: u64,
    /// Out: bytes of the region.
    pub nr_memsize: u64,
    /// Slots of a transmit ring; in for ports made by the request, out always.
    pub nr_tx_slots: u32,
    /// Slots of a receive ring.
    pub nr_rx_slots: u32,
    /// Number of transmit rings, without the host's.
    pub nr_tx_rings: u16,
    /// Number of receive rings, without the host's.
    pub nr_rx_rings: u16,
    /// Number of transmit rings to the host: 0 when the port has none.
    pub nr_host_tx_rings: u16,
    /// Number of receive rings from the host.
    pub nr_host_rx_rings: u16,
    /// In: the memory to use, or 0; out: the memory in use.
    pub nr_mem_id: u16,
    /// Which ring, with [`NR_REG_ONE_NIC`].
    pub nr_ringid: u16,
    /// One of the `NR_REG_` numbers.
    pub nr_mode: u32,
    /// Number of extra buffers.
    pub nr_extra_bufs: u32,
    /// `NR_` flags.
    pub nr_flags: u64,
}

/// Body of [`NETMAP_REQ_PORT_INFO_GET`]; the fields are those of [`nmreq_register`].
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs, reason = "named as in nmreq_register")]
pub struct nmreq_port_info_get {
    pub nr_memsize: u64,
    pub nr_tx_slots: u32,
    pub nr_rx_slots: u32,
    pub nr_tx_rings: u16,
    pub nr_rx_rings: u16,
    pub nr_host_tx_rings: u16,
    pub nr_host_rx_rings: u16,
    pub nr_mem_id: u16,
    pub pad: [u16; 3],
}

/// Body of [`NETMAP_REQ_VALE_ATTACH`].
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct nmreq_vale_attach {
    /// How to register the interface.
    pub reg: nmreq_register,
    /// Out: the port's number in the switch.
    pub port_index: u32,
    /// Zero.
    pub pad: u32,
}

/// Body of [`NETMAP_REQ_VALE_DETACH`].
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct nmreq_vale_detach {
    /// Out: the port's number in the switch.
    pub port_index: u32,
    /// Zero.
    pub pad: u32,
}

/// Body of [`NETMAP_REQ_VALE_LIST`].
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct nmreq_vale_list {
    /// The switch's number.
    pub nr_bridge_idx: u16,
    /// Zero.
    pub pad: u16,
    /// The port's number.
    pub nr_port_idx: u32,
}

/// Body of [`NETMAP_REQ_PORT_HDR_SET`] and [`NETMAP_REQ_PORT_HDR_GET`].
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct nmreq_port_hdr {
    /// Bytes before each packet.
    pub nr_hdr_len: u32,
    /// Zero.
    pub pad: u32,
}

/// Body of [`NETMAP_REQ_VALE_NEWIF`].
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs, reason = "named as in nmreq_register")]
pub struct nmreq_vale_newif {
    pub nr_tx_slots: u32,
    pub nr_rx_slots: u32,
    pub nr_tx_rings: u16,
    pub nr_rx_rings: u16,
    pub nr_mem_id: u16,
    pub pad: u16,
}

/// Body of [`NETMAP_REQ_POOLS_INFO_GET`]: the three pools (interfaces, rings, buffers) of a
/// memory, each with its offset in the region, number of objects and bytes of an object.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs, reason = "said above")]
pub struct nmreq_pools_info {
    pub nr_memsize: u64,
    pub nr_mem_id: u16,
    pub pad: [u16; 3],
    pub nr_if_pool_offset: u64,
    pub nr_if_pool_objtotal: u32,
    pub nr_if_pool_objsize: u32,
    pub nr_ring_pool_offset: u64,
    pub nr_ring_pool_objtotal: u32,
    pub nr_ring_pool_objsize: u32,
    pub nr_buf_pool_offset: u64,
    pub nr_buf_pool_objtotal: u32,
    pub nr_buf_pool_objsize: u32,
}

/// Common head of every option.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct nmreq_option {
    /// Address of the next option, or 0.
    pub nro_next: u64,
    /// Which option.
    pub nro_reqtype: u32,
    /// Out: 0, or an errno.
    pub nro_status: u32,
    /// Bytes, for options of variable size.
    pub nro_size: u64,
}

/// Option: take the port's memory from the program's own.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct nmreq_opt_extmem {
    /// Head.
    pub nro_opt: nmreq_option,
    /// Address of the memory.
    pub nro_usrptr: u64,
    /// How to cut it.
    pub nro_info: nmreq_pools_info,
}

/// Option: packets start at an offset in their buffers.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct nmreq_opt_offsets {
    /// Head.
    pub nro_opt: nmreq_option,
    /// Largest offset in bytes.
    pub nro_max_offset: u64,
    /// Offset to begin with.
    pub nro_initial_offset: u64,
    /// Bits of the slot's `ptr` that hold the offset.
    pub nro_offset_bits: u32,
    /// Alignment of packets to be sent.
    pub nro_tx_align: u32,
    /// Zero.
    pub nro_min_gap: u64,
}

/// Option: ring indices in memory of the program's own.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct nmreq_opt_csb {
    /// Head.
    pub nro_opt: nmreq_option,
    /// Address of what the program writes.
    pub csb_atok: u64,
    /// Address of what the kernel writes.
    pub csb_ktoa: u64,
}

/// An ioctl that exchanges `size` bytes; both systems encode it alike.
const fn exchanging(number: u32, size: usize) -> libc::c_ulong {
    (0xc000_0000 | (size as u32) << 16 | (b'i' as u32) << 8 | number) as libc::c_ulong
}

/// An ioctl without data: FreeBSD marks it, Linux does not.
const fn plain(number: u32, freebsd: bool) -> libc::c_ulong {
    let mark = if freebsd { 0x2000_0000 } else { 0 };
    (mark | (b'i' as u32) << 8 | number) as libc::c_ulong
}

/// Every request of API 14.
pub const NIOCCTRL: libc::c_ulong = exchanging(151, size_of::<nmreq_header>());
/// Sync the descriptor's transmit rings.
pub const NIOCTXSYNC: libc::c_ulong = plain(148, cfg!(target_os = "freebsd"));
/// Sync the descriptor's receive rings.
pub const NIOCRXSYNC: libc::c_ulong = plain(149, cfg!(target_os = "freebsd"));

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use netmap_sys::netmap as sys;

    /// Asserts a struct's size and the offsets of its fields.
    macro_rules! layout {
        ($type:ty, $size:literal $(, $field:ident $offset:literal)* $(,)?) => {
            assert_eq!(size_of::<$type>(), $size, stringify!($type));
            $(assert_eq!(offset_of!($type, $field), $offset,
                concat!(stringify!($type), ".", stringify!($field)));)*
        };
    }

    #[test]
    fn rings_and_slots_are_the_kernels() {
        layout!(netmap_slot, 16, buf_idx 0, len 4, flags 6, ptr 8);
        layout!(netmap_ring, 256, buf_ofs 0, num_slots 8, nr_buf_size 12, ringid 16, dir 18, head 20,
            cur 24, tail 28, flags 32, ts 40, sem 128, slot 256);
        assert_eq!((size_of::<libc::timeval>(), RING_OFFSET_MASK, RING_BUF_ALIGN), (16, 56, 64));
        assert_eq!((RING_ALIGN, size_of::<netmap_ring>() % RING_ALIGN), (128, 0));
        layout!(netmap_if, 56, ni_name 0, ni_version 16, ni_flags 20, ni_tx_rings 24, ni_rx_rings 28,
            ni_bufs_head 32, ni_spare1 36, ring_ofs 56);
        assert_eq!((IF_HOST_TX_RINGS, IF_HOST_RX_RINGS), (36, 40));
        assert_eq!(size_of::<libc::ssize_t>(), 8);
    }

    #[test]
    fn the_legacy_request_is_the_kernels() {
        layout!(sys::nmreq, 60, nr_name 0, nr_version 16, nr_offset 20, nr_memsize 24, nr_tx_slots 28,
            nr_rx_slots 32, nr_tx_rings 36, nr_rx_rings 38, nr_ringid 40, nr_cmd 42, nr_arg1 44,
            nr_arg2 46, nr_arg3 48, nr_flags 52, spare2 56);
    }

    #[test]
    fn requests_are_the_kernels() {
        layout!(nmreq_header, 88, nr_version 0, nr_reqtype 2, nr_reserved 4, nr_name 8, nr_options 72,
            nr_body 80);
        layout!(nmreq_register, 56, nr_offset 0, nr_memsize 8, nr_tx_slots 16, nr_rx_slots 20,
            nr_tx_rings 24, nr_rx_rings 26, nr_host_tx_rings 28, nr_host_rx_rings 30, nr_mem_id 32,
            nr_ringid 34, nr_mode 36, nr_extra_bufs 40, nr_flags 48);
        layout!(nmreq_port_info_get, 32, nr_memsize 0, nr_tx_slots 8, nr_rx_slots 12, nr_tx_rings 16,
            nr_rx_rings 18, nr_host_tx_rings 20, nr_host_rx_rings 22, nr_mem_id 24);
        layout!(nmreq_vale_attach, 64, reg 0, port_index 56);
        layout!(nmreq_vale_detach, 8, port_index 0);
        layout!(nmreq_vale_list, 8, nr_bridge_idx 0, nr_port_idx 4);
        layout!(nmreq_vale_newif, 16, nr_tx_slots 0, nr_rx_slots 4, nr_tx_rings 8, nr_rx_rings 10,
            nr_mem_id 12);
        layout!(nmreq_port_hdr, 8, nr_hdr_len 0);
        layout!(nmreq_pools_info, 64, nr_memsize 0, nr_mem_id 8, nr_if_pool_offset 16,
            nr_if_pool_objtotal 24, nr_if_pool_objsize 28, nr_ring_pool_offset 32,
            nr_ring_pool_objtotal 40, nr_ring_pool_objsize 44, nr_buf_pool_offset 48,
            nr_buf_pool_objtotal 56, nr_buf_pool_objsize 60);
    }

    #[test]
    fn options_are_the_kernels() {
        layout!(nmreq_option, 24, nro_next 0, nro_reqtype 8, nro_status 12, nro_size 16);
        layout!(nmreq_opt_extmem, 96, nro_opt 0, nro_usrptr 24, nro_info 32);
        layout!(nmreq_opt_offsets, 56, nro_opt 0, nro_max_offset 24, nro_initial_offset 32,
            nro_offset_bits 40, nro_tx_align 44, nro_min_gap 48);
        layout!(nmreq_opt_csb, 40, nro_opt 0, csb_atok 24, csb_ktoa 32);
    }

    #[test]
    fn ioctl_numbers_are_the_kernels() {
        assert_eq!(NIOCCTRL, 0xc058_6997);
        assert_eq!([plain(148, false), plain(149, false)], [0x6994, 0x6995]);
        assert_eq!([plain(148, true), plain(149, true)], [0x2000_6994, 0x2000_6995]);
        assert_eq!([NIOCTXSYNC, NIOCRXSYNC].map(|n| n & 0xffff), [0x6994, 0x6995]);
        assert_eq!([NIOCTXSYNC, NIOCRXSYNC], [sys::NIOCTXSYNC, sys::NIOCRXSYNC].map(libc::c_ulong::from));
        let legacy = [sys::NIOCGINFO, sys::NIOCREGIF, sys::NIOCCONFIG];
        assert_eq!(legacy, [0xc03c_6991, 0xc03c_6992, 0xc110_6996]);
        assert_eq!(exchanging(146, size_of::<sys::nmreq>()), sys::NIOCREGIF);
    }

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!((NETMAP_API, NETMAP_MAX_API), (14, 15));
        let requests = [
            NETMAP_REQ_REGISTER,
            NETMAP_REQ_PORT_INFO_GET,
            NETMAP_REQ_VALE_ATTACH,
            NETMAP_REQ_VALE_DETACH,
            NETMAP_REQ_VALE_LIST,
            NETMAP_REQ_PORT_HDR_SET,
            NETMAP_REQ_PORT_HDR_GET,
            NETMAP_REQ_VALE_NEWIF,
            NETMAP_REQ_VALE_DELIF,
            NETMAP_REQ_VALE_POLLING_ENABLE,
            NETMAP_REQ_VALE_POLLING_DISABLE,
            NETMAP_REQ_POOLS_INFO_GET,
        ];
        assert!(requests.into_iter().eq(1..=12));
        assert_eq!([NR_REG_ALL_NIC, NR_REG_SW, NR_REG_NIC_SW, NR_REG_ONE_NIC], [1, 2, 3, 4]);
        assert_eq!((NS_BUF_CHANGED, NS_MOREFRAG, NS_PORT_MASK), (1, 0x20, 0xff00));
        use crate::ring::Direction;
        assert_eq!((Direction::Tx as u16, Direction::Rx as u16), (1, 0));
    }
}
