//! The memory that lookup tables live in.
//!
//! A [`PageArray`] is an array with a fixed capacity in a mapping of its own, away from the heap:
//! reserved in full, taken page by page as it is touched, on transparent huge pages where the
//! system has them (a table of some megabytes otherwise costs a TLB miss a lookup). [`Backing`]
//! says where the pages come from.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use zerocopy::FromBytes;

/// Alignment of a mapping and granularity of huge pages, in bytes.
const HUGE_PAGE: usize = 2 << 20;

/// Reserves no swap for pages that are never touched; FreeBSD has no such flag and takes memory
/// page by page anyway.
#[cfg(target_os = "linux")]
const NO_RESERVE: libc::c_int = libc::MAP_NORESERVE;
#[cfg(not(target_os = "linux"))]
const NO_RESERVE: libc::c_int = 0;

/// Where the pages of a [`PageArray`] come from.
#[derive(Clone, Debug, Default)]
pub enum Backing {
    /// Anonymous memory, on transparent huge pages when the system gives them.
    #[default]
    Anonymous,
    /// Explicit 2 MiB huge pages, which the administrator must have reserved. The whole capacity
    /// is taken at once.
    HugePages,
    /// As many bytes of the array as there are in a part of memory that others read as well; what
    /// lies behind them is anonymous.
    Shared(Part),
}

/// Part of the memory behind a descriptor that can be mapped shared, such as a mappable BPF array map
/// or a memfd, all zeros.
#[derive(Clone, Debug)]
pub struct Part {
    /// The memory.
    pub descriptor: Arc<OwnedFd>,
    /// Where the part begins, in bytes: at the beginning of a page.
    pub at: usize,
    /// How long it is, in bytes: whole pages.
    pub bytes: usize,
}

/// An array of fixed capacity in its own mapping, zeroed, taken lazily.
///
/// It dereferences to a slice of the whole capacity.
#[derive(Debug)]
pub struct PageArray<T> {
    start: NonNull<T>,
    capacity: usize,
    mapping: Mapping,
}

/// Unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    address: *mut libc::c_void,
    bytes: usize,
}

// SAFETY: a PageArray owns its elements like a Box<[T]> does.
unsafe impl<T: Send> Send for PageArray<T> {}
// SAFETY: as above; `&PageArray` gives only `&[T]`.
unsafe impl<T: Sync> Sync for PageArray<T> {}

impl<T: Copy + FromBytes> PageArray<T> {
    /// Maps room for `capacity` elements, all zero bytes.
    ///
    /// # Errors
    /// When the system refuses the mapping.
    pub fn new(capacity: usize, backing: &Backing) -> io::Result<Self> {
        let bytes = capacity
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_next_multiple_of(HUGE_PAGE))
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?
            .max(HUGE_PAGE);
        const { assert!(align_of::<T>() <= 4096) };
        let (mapping, start) = match backing {
            Backing::Anonymous => map_anonymous(bytes)?,
            Backing::HugePages => map_huge(bytes)?,
            Backing::Shared(part) => map_shared(bytes, part)?,
        };
        Ok(Self { start: start.cast(), capacity, mapping })
    }

    /// Moves the first `used` elements to other memory; the others must be zero bytes.
    ///
    /// # Errors
    /// As for [`PageArray::new`]; then nothing has changed.
    pub fn move_to(&mut self, backing: &Backing, used: usize) -> io::Result<()> {
        let mut moved = Self::new(self.capacity, backing)?;
        moved[..used].copy_from_slice(&self[..used]);
        *self = moved;
        Ok(())
    }
}

impl<T> PageArray<T> {
    /// The first element.
    #[inline(always)]
    pub fn as_ptr(&self) -> *const T {
        self.start.as_ptr()
    }

    /// Bytes of memory that the array really takes at this moment: its touched pages.
    ///
    /// # Errors
    /// When the system doesn't say.
    pub fn resident_bytes(&self) -> io::Result<usize> {
        // SAFETY: sysconf has no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
            .map_err(|_| io::Error::last_os_error())?;
        let mut pages = vec![0; self.mapping.bytes.div_ceil(page)];
        // SAFETY: the mapping is ours, and `pages` has one byte for each of its pages.
        let result =
            unsafe { libc::mincore(self.mapping.address, self.mapping.bytes, pages.as_mut_ptr().cast()) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(pages.iter().filter(|&&page: &&u8| page & 1 != 0).count() * page)
    }
}

impl<T> Deref for PageArray<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `capacity` elements are mapped, every byte pattern is a T (FromBytes), and they
        // are changed only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.capacity) }
    }
}

impl<T> DerefMut for PageArray<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no reference into it outlives the array.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}

fn map_anonymous(bytes: usize) -> io::Result<(Mapping, NonNull<u8>)> {
    // One huge page more, so that the array can begin at a multiple of it.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANON | NO_RESERVE;
    let mapping = map(bytes + HUGE_PAGE, flags, -1)?;
    let start = mapping.address.cast::<u8>();
    let start = start.wrapping_add(start.align_offset(HUGE_PAGE));
    // Only advice: without huge pages the table is slower, not wrong. FreeBSD promotes by itself.
    #[cfg(target_os = "linux")]
    // SAFETY: the range is inside the mapping made above.
    unsafe {
        libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE);
    }
    NonNull::new(start).map(|start| (mapping, start)).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(target_os = "linux")]
fn map_huge(bytes: usize) -> io::Result<(Mapping, NonNull<u8>)> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_HUGETLB | libc::MAP_POPULATE;
    let mapping = map(bytes, flags | libc::MAP_HUGE_2MB, -1)?;
    let start = NonNull::new(mapping.address.cast::<u8>());
    start.map(|start| (mapping, start)).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(not(target_os = "linux"))]
fn map_huge(_bytes: usize) -> io::Result<(Mapping, NonNull<u8>)> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "explicit huge pages exist on Linux only"))
}

fn map_shared(bytes: usize, part: &Part) -> io::Result<(Mapping, NonNull<u8>)> {
    let (mapping, start) = map_anonymous(bytes)?;
    let at = i64::try_from(part.at).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the pages are inside the mapping just made, which nobody knows of yet.
    let placed = unsafe {
        libc::mmap(
            start.as_ptr().cast(),
            part.bytes.min(bytes),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            part.descriptor.as_raw_fd(),
            at,
        )
    };
    if placed == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok((mapping, start)) }
}

fn map(bytes: usize, flags: i32, descriptor: i32) -> io::Result<Mapping> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, descriptor, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(Mapping { address, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zero_and_taken_only_when_touched() {
        let mut array = PageArray::<u64>::new(16 << 20, &Backing::Anonymous).unwrap();
        let before = array.resident_bytes().unwrap();
        assert_eq!(array.len(), 16 << 20);
        assert_eq!(array[(16 << 20) - 1], 0);
        array[12345] = 7;
        assert_eq!(array[12345], 7);
        let after = array.resident_bytes().unwrap();
        assert!(before < 4 << 20 && after > before && after <= 6 << 20, "{before} then {after}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_shared_backing_shows_the_writes_to_its_other_mapping() {
        let descriptor =
            nix::sys::memfd::memfd_create("table", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&descriptor, 8192).unwrap();
        let backing = Backing::Shared(Part { descriptor: Arc::new(descriptor), at: 4096, bytes: 4096 });
        let mut written = PageArray::<u32>::new(2048, &Backing::Anonymous).unwrap();
        written[1023] = 42;
        written.move_to(&backing, 1024).unwrap();
        let read = PageArray::<u32>::new(2048, &backing).unwrap();
        written[1000] = 41;
        written[1024] = 40;
        // SAFETY: the elements are mapped; volatile, because the other mapping wrote them.
        let seen = [1000, 1023, 1024].map(|n| unsafe { read.as_ptr().add(n).read_volatile() });
        assert_eq!(seen, [41, 42, 0], "what lies behind the part is not shared");
    }
}
