//! The bpf(2) system call: maps, program, attachment. Everything is a descriptor and goes away
//! with the last of them, so nothing of ours outlives the process.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;
const LINK_CREATE: libc::c_int = 28;
const LINK_DETACH: libc::c_int = 34;

const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// `bpf_xdp_get_buff_len` and friends want a licence that the kernel knows; none of the helpers
/// in use asks for the GPL.
const LICENSE: &[u8] = b"Dual BSD/GPL\0";

/// Kinds of maps.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum MapType {
    /// Keys to values.
    Hash = 1,
    /// Values by number.
    Array = 2,
    /// Programs that others go on to.
    Programs = 3,
    /// Values by number, for each processor its own.
    PerCpuArray = 6,
    /// Maps, by number.
    ArrayOfMaps = 12,
    /// Interfaces that frames are redirected to.
    Devices = 14,
    /// AF_XDP sockets that frames are redirected to.
    Sockets = 17,
}

/// Map flag: take memory for an element when it comes, not all at once.
pub const NO_PREALLOC: u32 = 1;
/// Map flag: programs only read.
pub const PROGRAM_READS: u32 = 1 << 7;
/// Map flag: an array whose values can be mapped into memory.
pub const MAPPABLE: u32 = 1 << 10;

/// Flag of a test run: frames are really sent.
const LIVE_FRAMES: u32 = 1 << 1;

/// How a program is attached to an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum AttachMode {
    /// After the kernel has made a socket buffer; works everywhere.
    Generic = 2,
    /// In the driver.
    Native = 4,
}

/// The verifier gives up when a signal comes (`EAGAIN`); so often it is asked again.
const TRIES: u32 = 10;

fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_int> {
    let mut attempt = || {
        // SAFETY: the kernel reads and writes at most size_of::<T>() bytes of the attributes, and
        // what they point to is alive by each caller's construction.
        let r = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r as libc::c_int) }
    };
    let was_interrupted =
        |e: &io::Error| matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
    for _ in 1..TRIES {
        match attempt() {
            Err(e) if was_interrupted(&e) => {}
            other => return other,
        }
    }
    attempt()
}

fn descriptor<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the command gave a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn object_name(name: &str) -> [u8; 16] {
    let mut out = [0; 16];
    let n = name.len().min(15);
    out[..n].copy_from_slice(&name.as_bytes()[..n]);
    out
}

/// A map with keys of `K` bytes; values are byte strings of one length.
#[derive(Debug)]
pub struct Map<const K: usize> {
    fd: OwnedFd,
    /// Bytes that a lookup fills at most.
    lookup_bytes: usize,
}

/// More processors than any kernel is built for; a lookup in a per-processor map fills one value
/// for each possible processor.
const MAX_CPUS: usize = 8192;

#[repr(C)]
struct ElementAttributes {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl<const K: usize> Map<K> {
    /// Makes a map of up to `entries` values of `value_size` bytes each.
    ///
    /// # Errors
    /// The kernel's: `EPERM` without CAP_BPF.
    pub fn new(name: &str, kind: MapType, value_size: usize, entries: u32, flags: u32) -> io::Result<Self> {
        Self::make(name, kind, value_size, entries, flags, 0)
    }

    /// Makes an array of up to `entries` maps, each like `inner`.
    ///
    /// # Errors
    /// As for [`Map::new`].
    pub fn of_maps<const I: usize>(name: &str, entries: u32, inner: &Map<I>) -> io::Result<Self> {
        Self::make(name, MapType::ArrayOfMaps, 4, entries, 0, inner.raw() as u32)
    }

    fn make(
        name: &str,
        kind: MapType,
        value_size: usize,
        entries: u32,
        flags: u32,
        inner_map_fd: u32,
    ) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            map_type: u32,
            key_size: u32,
            value_size: u32,
            max_entries: u32,
            map_flags: u32,
            inner_map_fd: u32,
            numa_node: u32,
            map_name: [u8; 16],
        }
        let fd = descriptor(
            MAP_CREATE,
            &mut Attributes {
                map_type: kind as u32,
                key_size: K as u32,
                value_size: value_size as u32,
                max_entries: entries,
                map_flags: flags,
                inner_map_fd,
                numa_node: 0,
                map_name: object_name(name),
            },
        )?;
        let lookup_bytes = match kind {
            MapType::PerCpuArray => value_size.next_multiple_of(8) * MAX_CPUS,
            _ => value_size,
        };
        Ok(Self { fd, lookup_bytes })
    }

    /// The descriptor, to be named in a program.
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The map with another owner as well.
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub fn share(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, lookup_bytes: self.lookup_bytes })
    }

    fn element(&self, key: &[u8; K], value: u64) -> ElementAttributes {
        ElementAttributes { map_fd: self.raw() as u32, _pad: 0, key: key.as_ptr() as u64, value, flags: 0 }
    }

    /// Sets the value of `key`; `value` is as long as the map's values.
    ///
    /// # Errors
    /// The kernel's: `E2BIG` when the map is full.
    pub fn set(&self, key: &[u8; K], value: &[u8]) -> io::Result<()> {
        bpf(MAP_UPDATE_ELEM, &mut self.element(key, value.as_ptr() as u64)).map(drop)
    }

    /// Removes `key`; one that is not there is fine.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, key: &[u8; K]) -> io::Result<()> {
        match bpf(MAP_DELETE_ELEM, &mut self.element(key, 0)) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.map(drop),
        }
    }

    /// The value of `key`; of a per-processor map one value after the other, zeroes at the end.
    ///
    /// # Errors
    /// The kernel's: `ENOENT` when the key is not there.
    pub fn get(&self, key: &[u8; K]) -> io::Result<Vec<u8>> {
        let mut value = vec![0; self.lookup_bytes];
        bpf(MAP_LOOKUP_ELEM, &mut self.element(key, value.as_mut_ptr() as u64))?;
        Ok(value)
    }
}

impl<const K: usize> AsFd for Map<K> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Loads an XDP program.
///
/// # Errors
/// The kernel's; when the verifier refuses the program, with the end of its log.
pub fn load(name: &str, code: &[u64]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
        prog_name: [u8; 16],
        prog_ifindex: u32,
        expected_attach_type: u32,
    }
    let mut log = vec![0u8; 0];
    let attempt = |log: &mut Vec<u8>| {
        descriptor(
            PROG_LOAD,
            &mut Attributes {
                prog_type: PROG_TYPE_XDP,
                insn_cnt: code.len() as u32,
                insns: code.as_ptr() as u64,
                license: LICENSE.as_ptr() as u64,
                log_level: u32::from(!log.is_empty()),
                log_size: log.len() as u32,
                log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
                kern_version: 0,
                prog_flags: 0,
                prog_name: object_name(name),
                prog_ifindex: 0,
                expected_attach_type: ATTACH_XDP,
            },
        )
    };
    match attempt(&mut log) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) => {
            log.resize(1 << 18, 0);
            attempt(&mut log).map_err(|again| {
                let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
                let text = String::from_utf8_lossy(&log[..end]);
                // The verdict is the last line but one, before the statistics.
                let verdict = text.lines().rev().nth(1).unwrap_or_default().to_owned();
                io::Error::new(again.kind(), format!("{again}; the verifier says: {verdict}"))
            })
        }
        other => other,
    }
}

/// Attaches a program to an interface; it stays there until the descriptor is closed.
///
/// # Errors
/// The kernel's: `EBUSY` when another program is there, `EOPNOTSUPP` when the driver has no XDP.
pub fn attach(program: BorrowedFd, ifindex: u32, mode: AttachMode) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        prog_fd: u32,
        target_ifindex: u32,
        attach_type: u32,
        flags: u32,
    }
    descriptor(
        LINK_CREATE,
        &mut Attributes {
            prog_fd: program.as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: ATTACH_XDP,
            flags: mode as u32,
        },
    )
}

/// Detaches a program at once, even where a child process that is about to start its own program
/// still has a copy of the descriptor.
///
/// # Errors
/// The kernel's.
pub fn detach(link: BorrowedFd) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        link_fd: u32,
    }
    bpf(LINK_DETACH, &mut Attributes { link_fd: link.as_raw_fd() as u32 }).map(drop)
}

/// What became of a frame in [`test_run`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TestRun {
    /// The program's result.
    pub result: u32,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
}

/// What `BPF_PROG_TEST_RUN` is asked; older kernels take it when what they do not know is 0.
#[repr(C)]
#[derive(Default)]
struct TestAttributes {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    _pad: u32,
}

/// Runs an XDP program once over `frame` as the kernel would on a packet from queue 0; nothing is sent
/// anywhere. Frames shorter than an Ethernet header are refused.
///
/// # Errors
/// The kernel's.
pub fn test_run(program: BorrowedFd, frame: &[u8]) -> io::Result<TestRun> {
    let mut out = vec![0; frame.len() + 256];
    let mut attributes = TestAttributes {
        prog_fd: program.as_raw_fd() as u32,
        data_size_in: frame.len() as u32,
        data_size_out: out.len() as u32,
        data_in: frame.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        // More would wait for an RCU grace period each time.
        repeat: 1,
        ..TestAttributes::default()
    };
    bpf(PROG_TEST_RUN, &mut attributes)?;
    out.truncate(attributes.data_size_out as usize);
    Ok(TestRun { result: attributes.retval, frame: out })
}

/// Runs an XDP program `n` times over frames of the kernel's, which begin as copies of `frame` and
/// come back to it as the program has left them; what the program says becomes of each, and it may
/// send them. The interfaces are those of the calling thread's network namespace.
///
/// # Errors
/// The kernel's: `EINVAL` where it has no live frames (before Linux 5.18).
pub fn run_live(program: BorrowedFd, frame: &[u8], n: u32) -> io::Result<()> {
    let mut attributes = TestAttributes {
        prog_fd: program.as_raw_fd() as u32,
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        repeat: n,
        flags: LIVE_FRAMES,
        batch_size: 64,
        ..TestAttributes::default()
    };
    bpf(PROG_TEST_RUN, &mut attributes).map(drop)
}
