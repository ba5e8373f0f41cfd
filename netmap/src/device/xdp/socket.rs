//! AF_XDP sockets and the four rings each shares with the kernel: FILL and RX for what comes in,
//! TX and COMPLETION for what goes out.
//!
//! The kernel writes one index of each ring and the descriptors of RX and COMPLETION. Every index
//! read from there is checked against the ring's size on entry; descriptors are copied out once
//! and checked by who takes them.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use crate::arena::{Arena, BUF_SIZE, Mapping};

pub use libc::xdp_desc as Descriptor;

/// How many packets one TX kick may send in copy mode, instead of 32 (Linux 6.17 and later).
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// How long a bind waits for an earlier socket on the queue to be torn down.
const BIND_PATIENCE: Duration = Duration::from_secs(5);

/// Memory shared with the kernel: two indices, flags and `size` descriptors.
struct Shared<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    descriptors: NonNull<T>,
    size: u32,
    _mapping: Mapping,
    _holds: PhantomData<T>,
}

// SAFETY: the pointers lead into the mapping, which moves along; this side of the ring has one
// owner at a time.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn map(fd: BorrowedFd, place: &libc::xdp_ring_offset, size: u32, page: i64) -> io::Result<Self> {
        let len = place.desc as usize + size as usize * size_of::<T>();
        // SAFETY: a fresh shared mapping of the socket's ring.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                page,
            )
        };
        let start = match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => start,
            _ => return Err(io::Error::last_os_error()),
        };
        // SAFETY: mapped just now with this length; the offsets are the kernel's own for this
        // ring and lie inside it.
        unsafe {
            Ok(Self {
                producer: start.add(place.producer as usize).cast(),
                consumer: start.add(place.consumer as usize).cast(),
                flags: start.add(place.flags as usize).cast(),
                descriptors: start.add(place.desc as usize).cast(),
                size,
                _mapping: Mapping::from_raw(start, len),
                _holds: PhantomData,
            })
        }
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: leads into the live mapping, aligned by the kernel.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: as above.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn descriptor(&self, index: u32) -> *mut T {
        // SAFETY: size is a power of two, so the masked index is below it.
        unsafe { self.descriptors.as_ptr().add((index & (self.size - 1)) as usize) }
    }
}

/// The kernel moved an index to where it cannot be.
fn corrupt() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an AF_XDP ring's index is out of range")
}

/// A ring that we fill and the kernel empties: FILL, TX.
pub struct Producer<T> {
    shared: Shared<T>,
    next: u32,
}

impl<T: Copy> Producer<T> {
    /// Descriptors that the kernel has not taken yet.
    ///
    /// # Errors
    /// When the kernel's index is out of range.
    pub fn waiting(&self) -> io::Result<u32> {
        let waiting = self.next.wrapping_sub(self.shared.consumer().load(Ordering::Acquire));
        if waiting <= self.shared.size { Ok(waiting) } else { Err(corrupt()) }
    }

    /// Descriptors that still fit.
    ///
    /// # Errors
    /// When the kernel's index is out of range.
    pub fn room(&self) -> io::Result<u32> {
        Ok(self.shared.size - self.waiting()?)
    }

    /// Writes one more; there must be [room](Producer::room). Seen by the kernel after
    /// [`Producer::submit`].
    pub fn push(&mut self, value: T) {
        // SAFETY: an entry that the kernel has taken (the caller asked for room) is ours.
        unsafe { self.shared.descriptor(self.next).write_volatile(value) };
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the kernel what was pushed.
    pub fn submit(&self) {
        self.shared.producer().store(self.next, Ordering::Release);
    }

    /// Whether the kernel looks at the ring only when it is called.
    pub fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }
}

/// A ring that the kernel fills and we empty: RX, COMPLETION.
pub struct Consumer<T> {
    shared: Shared<T>,
    next: u32,
}

impl<T: Copy> Consumer<T> {
    /// Descriptors to be taken.
    ///
    /// # Errors
    /// When the kernel's index is out of range.
    pub fn available(&self) -> io::Result<u32> {
        let n = self.shared.producer().load(Ordering::Acquire).wrapping_sub(self.next);
        if n <= self.shared.size { Ok(n) } else { Err(corrupt()) }
    }

    /// Takes the next one; one must be [available](Consumer::available). The kernel may write
    /// over its place after [`Consumer::release`].
    pub fn take(&mut self) -> T {
        // SAFETY: inside the ring; one volatile read, after which only the copy counts.
        let value = unsafe { self.shared.descriptor(self.next).read_volatile() };
        self.next = self.next.wrapping_add(1);
        value
    }

    /// Gives the places of what was taken back.
    pub fn release(&self) {
        self.shared.consumer().store(self.next, Ordering::Release);
    }
}

/// Whose memory a new socket uses.
#[derive(Clone, Copy)]
pub enum Umem<'a> {
    /// This arena's buffers, registered now.
    Register(&'a Arena),
    /// The same as that socket's.
    Share(BorrowedFd<'a>),
}

/// A socket bound to one queue of one interface.
pub struct Socket {
    /// Shared by the two halves of the port and its control.
    pub fd: Arc<OwnedFd>,
    /// Packets that came.
    pub rx: Consumer<Descriptor>,
    /// Buffers for packets to come, as offsets into the arena's buffers.
    pub fill: Producer<u64>,
    /// Packets to go.
    pub tx: Producer<Descriptor>,
    /// Buffers of packets that went.
    pub completion: Consumer<u64>,
}

impl Socket {
    /// Makes a socket with rings of `slots` entries (a power of two) and binds it to `queue` of
    /// the interface. `zero_copy` counts only for the first socket of an arena; the others are
    /// bound as the first one is.
    ///
    /// # Errors
    /// The kernel's: `EPERM` without CAP_NET_RAW, `EBUSY` when the queue keeps another socket,
    /// `EOPNOTSUPP` when the driver cannot do what is asked.
    pub fn open(umem: Umem, ifindex: u32, queue: u32, slots: u32, zero_copy: bool) -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        if let Umem::Register(arena) = umem {
            register(fd.as_fd(), arena)?;
        }
        for ring in
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
        {
            set_option(fd.as_fd(), libc::SOL_XDP, ring, &slots)?;
        }
        // Kernels before 6.17 do not know it, and then send 32 at a time.
        let _ = set_option(fd.as_fd(), libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &slots);
        // In copy mode packets on their way count against the socket's send buffer.
        let send_buffer = (slots * 2 * BUF_SIZE) as libc::c_int;
        let _ = set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &send_buffer);
        let places = ring_places(fd.as_fd())?;
        let rx = Consumer {
            shared: Shared::map(fd.as_fd(), &places.rx, slots, libc::XDP_PGOFF_RX_RING)?,
            next: 0,
        };
        let tx = Producer {
            shared: Shared::map(fd.as_fd(), &places.tx, slots, libc::XDP_PGOFF_TX_RING)?,
            next: 0,
        };
        let page = libc::XDP_UMEM_PGOFF_FILL_RING as i64;
        let fill = Producer { shared: Shared::map(fd.as_fd(), &places.fr, slots, page)?, next: 0 };
        let page = libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64;
        let completion = Consumer { shared: Shared::map(fd.as_fd(), &places.cr, slots, page)?, next: 0 };
        bind(fd.as_fd(), umem, ifindex, queue, zero_copy)?;
        Ok(Self { fd: Arc::new(fd), rx, fill, tx, completion })
    }
}

fn register(fd: BorrowedFd, arena: &Arena) -> io::Result<()> {
    let (start, len) = arena.buffers();
    let umem = libc::xdp_umem_reg {
        addr: start.as_ptr() as u64,
        len: len as u64,
        chunk_size: BUF_SIZE,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &umem)
}

fn bind(fd: BorrowedFd, umem: Umem, ifindex: u32, queue: u32, zero_copy: bool) -> io::Result<()> {
    let mode = if zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
    let (flags, shared) = match umem {
        Umem::Register(_) => (mode | libc::XDP_USE_NEED_WAKEUP, 0),
        Umem::Share(first) => (libc::XDP_SHARED_UMEM, first.as_raw_fd() as u32),
    };
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared,
    };
    let start = Instant::now();
    loop {
        // SAFETY: the address is alive and of the length given.
        let r = unsafe {
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
        };
        if r == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // The kernel takes an old socket apart some time after it was closed.
        if error.raw_os_error() != Some(libc::EBUSY) || start.elapsed() > BIND_PATIENCE {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn set_option<T>(fd: BorrowedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value is alive and of the length given.
    let r = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get_option<T>(fd: BorrowedFd, option: libc::c_int, value: &mut T) -> io::Result<usize> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which `value` has; all types in use are
    // plain integers.
    let r = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            option,
            std::ptr::from_mut(value).cast(),
            &raw mut len,
        )
    };
    if r == 0 { Ok(len as usize) } else { Err(io::Error::last_os_error()) }
}

fn ring_places(fd: BorrowedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: zeroes are fine for integers.
    let mut places: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let len = get_option(fd, libc::XDP_MMAP_OFFSETS, &mut places)?;
    if len < size_of_val(&places) {
        return Err(io::Error::other("this kernel is too old for AF_XDP with need_wakeup (5.4 has it)"));
    }
    Ok(places)
}

/// What the kernel counts for a socket.
///
/// # Errors
/// The kernel's.
pub fn statistics(fd: BorrowedFd) -> io::Result<libc::xdp_statistics> {
    // SAFETY: zeroes are fine for integers.
    let mut statistics: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    get_option(fd, libc::XDP_STATISTICS, &mut statistics)?;
    Ok(statistics)
}

/// Whether the driver moves packets of this queue straight into our buffers: found by trying,
/// with a socket of its own that is closed at once.
pub fn can_zero_copy(ifindex: u32, queue: u32) -> bool {
    let Ok(arena) = Arena::new(0, 0, 64) else { return false };
    Socket::open(Umem::Register(&arena), ifindex, queue, 64, true).is_ok()
}
