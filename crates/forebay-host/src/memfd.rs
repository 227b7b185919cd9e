//! Shared memory of the processes of a node: anonymous, passed as a descriptor, freed with its last
//! user.
//!
//! - [`sealed_memfd`] creates writable zeros with a fixed size, so no access to a mapping can raise
//!   SIGBUS. [`sealed_copy`] creates immutable bytes; a [`Draft`] is filled piece by piece and then
//!   becomes immutable.
//! - [`Map`] maps either, after it has validated size and seals.
//! - [`Map::populate`] touches pages ahead of their use: that costs 0.8 s/GiB, a first copy into
//!   untouched pages 1.0. The kernel charges a page to the control group of the process that
//!   touches it first, so the leader populates, in the background.
//! - [`Map::ask_for_huge_pages`] requests huge pages. Most systems ignore that for shared memory,
//!   so [`Map::huge_bytes`] counts them.
//!
//! [`available_bytes`](crate::available_bytes) returns how much memory may be used: a process that
//! uses more is killed without an error.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::HostError;

/// Bytes touched between two checks of `stop` \[bytes\]: about 3 ms of work.
const POPULATE_STEP_BYTES: usize = 4 << 20;

const PAGE_BYTES: usize = 4096;

/// No later change of the size, hence no SIGBUS.
fn fixed_size() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW
}

fn memfd(name: &str, bytes: u64) -> Result<OwnedFd, HostError> {
    let fail = |action: &str| {
        HostError::taking(format!("{action} {bytes} bytes of shared memory \"{name}\""), bytes)
    };
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(fail("make"))?;
    rustix::fs::ftruncate(&fd, bytes).map_err(fail("reserve"))?;
    Ok(fd)
}

/// Creates zeros whose size is sealed. `name` appears in `/proc/PID/maps` only.
pub fn sealed_memfd(name: &str, bytes: usize) -> Result<OwnedFd, HostError> {
    let fd = memfd(name, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&fd, fixed_size() | SealFlags::SEAL)
        .map_err(HostError::system(format!("seal shared memory \"{name}\"")))?;
    Ok(fd)
}

/// Creates zeros of a sealed size and maps them; nobody else can map them writable
/// ([`Map::watched`]).
pub fn published_memfd(name: &str, bytes: usize) -> Result<(OwnedFd, Map), HostError> {
    let fd = memfd(name, bytes as u64)?;
    let seal = |seals| {
        rustix::fs::fcntl_add_seals(&fd, seals)
            .map_err(HostError::system(format!("seal shared memory \"{name}\"")))
    };
    seal(fixed_size())?;
    let map = Map::shared(&fd, bytes)?;
    seal(SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
    Ok((fd, map))
}

/// Creates immutable memory that holds `bytes`.
pub fn sealed_copy(name: &str, bytes: &[u8]) -> Result<OwnedFd, HostError> {
    let draft = Draft::new(name, bytes.len() as u64)?;
    draft.write(0, bytes)?;
    draft.seal()
}

/// Memory that threads fill before it becomes immutable. Unwritten parts are holes without cost.
#[derive(Debug)]
pub struct Draft {
    name: String,
    fd: OwnedFd,
}

impl Draft {
    /// Creates `bytes` zeros.
    pub fn new(name: &str, bytes: u64) -> Result<Self, HostError> {
        Ok(Self { name: name.to_owned(), fd: memfd(name, bytes)? })
    }

    /// Writes `bytes` at `offset` \[bytes\].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), HostError> {
        let fail = HostError::taking(format!("fill shared memory \"{}\"", self.name), bytes.len() as u64);
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&self.fd, &bytes[done..], offset + done as u64) {
                Ok(0) => return Err(fail(Errno::NOSPC)),
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(error) => return Err(fail(error)),
            }
        }
        Ok(())
    }

    /// Makes the memory immutable, also for this process.
    pub fn seal(self) -> Result<OwnedFd, HostError> {
        rustix::fs::fcntl_add_seals(&self.fd, fixed_size() | SealFlags::WRITE | SealFlags::SEAL)
            .map_err(HostError::system(format!("seal shared memory \"{}\"", self.name)))?;
        Ok(self.fd)
    }
}

/// A shared mapping of sealed memory, or of a file; unmapped when dropped.
#[derive(Debug)]
pub struct Map {
    start: NonNull<u8>,
    length: usize,
    /// No process can write these bytes.
    frozen: bool,
}

// SAFETY: a mapping belongs to the process, not to a thread. Each user of `as_ptr` justifies its
// own accesses.
unsafe impl Send for Map {}
// SAFETY: as above; `bytes` returns shared references to immutable memory only.
unsafe impl Sync for Map {}

impl Map {
    /// Maps all of `fd` read-write, after checking that its size is `length` and sealed.
    pub fn shared(fd: impl AsFd, length: usize) -> Result<Self, HostError> {
        let (found, seals) = examine(&fd)?;
        if found != length as u64 {
            return Err(HostError::memory(format!("{length} bytes"), format!("{found} bytes")));
        }
        if !seals.contains(fixed_size()) || seals.contains(SealFlags::WRITE) {
            return Err(HostError::memory("writable memory of a sealed size", format!("seals {seals:?}")));
        }
        Self::new(fd, length, ProtFlags::READ | ProtFlags::WRITE, false)
    }

    /// Maps all of `fd` read-only, after checking that its content is sealed.
    pub fn read_only(fd: impl AsFd) -> Result<Self, HostError> {
        let length = sealed_length(&fd)?;
        Self::new(fd, length as usize, ProtFlags::READ, true)
    }

    /// Maps all of `fd` read-only, after checking that its size is sealed and that no process can
    /// map it writable from now on; its maker may still change it.
    pub fn watched(fd: impl AsFd) -> Result<Self, HostError> {
        let (length, seals) = examine(&fd)?;
        if !seals.contains(fixed_size() | SealFlags::FUTURE_WRITE) {
            return Err(HostError::memory("memory that only its maker writes", format!("seals {seals:?}")));
        }
        Self::new(fd, length as usize, ProtFlags::READ, false)
    }

    /// Maps all of a file read-write. Nothing keeps others from shortening a file, which would end
    /// this process (SIGBUS): it must be in a directory of this user alone.
    pub fn file(file: impl AsFd) -> Result<Self, HostError> {
        let found = rustix::fs::fstat(&file).map_err(HostError::system("examine a file"))?;
        Self::new(file, found.st_size as usize, ProtFlags::READ | ProtFlags::WRITE, false)
    }

    fn new(fd: impl AsFd, length: usize, protection: ProtFlags, frozen: bool) -> Result<Self, HostError> {
        if length == 0 {
            return Ok(Self { start: NonNull::dangling(), length, frozen });
        }
        // SAFETY: a new mapping at an address that the kernel chooses affects no existing memory.
        let start = unsafe { rustix::mm::mmap(null_mut(), length, protection, MapFlags::SHARED, fd, 0) }
            .map_err(HostError::taking(format!("map {length} bytes of shared memory"), length as u64))?;
        let start = NonNull::new(start.cast()).expect("a mapping does not start at address 0");
        Ok(Self { start, length, frozen })
    }

    /// The first byte: page-aligned, valid as long as the map, and not writable for a read-only
    /// map.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length \[bytes\].
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes of a map made by [`Map::read_only`].
    ///
    /// # Panics
    /// For a writable map, whose bytes may change behind a reference.
    pub fn bytes(&self) -> &[u8] {
        assert!(self.frozen, "only a read-only map of sealed content has bytes that stay as they are");
        // SAFETY: the mapping lives as long as `self` and has `length` bytes (for 0 the pointer
        // dangles). The write seal was checked, so no process can change them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// Touches the pages of `range` \[bytes\], so that their first use is fast; keeps the content.
    ///
    /// Works in steps of a few milliseconds and calls `stop` before each. Safe while other
    /// processes use the memory. Returns whether it finished.
    ///
    /// # Panics
    /// When `range` is not inside the map, or the map is read-only.
    pub fn populate(&self, range: Range<usize>, mut stop: impl FnMut() -> bool) -> Result<bool, HostError> {
        assert!(!self.frozen && range.start <= range.end && range.end <= self.length, "{range:?}");
        let mut at = range.start / PAGE_BYTES * PAGE_BYTES;
        let mut kernel_can = true;
        while at < range.end {
            if stop() {
                return Ok(false);
            }
            let end = at.saturating_add(POPULATE_STEP_BYTES).min(range.end);
            if kernel_can {
                match self.advise(at..end, Advice::LinuxPopulateWrite) {
                    Ok(()) => {}
                    Err(Errno::INTR | Errno::AGAIN) => continue,
                    // Before Linux 5.14, or inside a sandbox.
                    Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                        kernel_can = false;
                        continue;
                    }
                    Err(error) => {
                        let bytes = (end - at) as u64;
                        return Err(
                            HostError::taking(format!("take {bytes} bytes of shared memory"), bytes)(error),
                        );
                    }
                }
            } else {
                self.touch(at..end);
            }
            at = end;
        }
        Ok(true)
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the callers' ranges lie inside the mapping. Only the advice of `release` changes
        // content. Bytes of a shared mapping may change at any time; each reader justifies its own
        // accesses.
        unsafe { rustix::mm::madvise(self.start.as_ptr().add(range.start).cast(), range.len(), advice) }
    }

    /// Returns the whole pages of `range` \[bytes\] to the system: they become zeros for all
    /// processes.
    ///
    /// # Panics
    /// When `range` is not inside the map or not made of pages, or the map is read-only.
    pub fn release(&self, range: Range<usize>) -> Result<(), HostError> {
        assert!(!self.frozen && range.start <= range.end && range.end <= self.length, "{range:?}");
        assert!(range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES), "{range:?}");
        if range.is_empty() {
            return Ok(());
        }
        self.advise(range, Advice::LinuxRemove).map_err(HostError::system("give shared memory back"))
    }

    /// Writes to each page without changing it.
    fn touch(&self, range: Range<usize>) {
        for offset in range.step_by(PAGE_BYTES) {
            // SAFETY: inside the writable mapping by the callers' check. The access is atomic and
            // adds 0, so it loses no concurrent write.
            let byte = unsafe { AtomicU8::from_ptr(self.start.as_ptr().add(offset)) };
            // Not `fetch_add(0)`: the compiler may turn it into a load.
            let value = byte.load(Ordering::Relaxed);
            let _ = byte.compare_exchange(value, value, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Requests huge pages; call it before the memory is touched. Returns whether this system may
    /// use them for shared memory.
    pub fn ask_for_huge_pages(&self) -> bool {
        const POLICY: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
        let asked = self.length > 0 && self.advise(0..self.length, Advice::LinuxHugepage).is_ok();
        let policy = std::fs::read_to_string(POLICY).unwrap_or_default();
        asked && policy_gives_huge_pages(&policy)
    }

    /// Bytes of this mapping in huge pages. Slow, as the kernel walks the page tables: for
    /// `explain()`.
    pub fn huge_bytes(&self) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let start = self.start.as_ptr() as u64;
        huge_bytes_between(&maps, start..start + self.length as u64)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: `new` made this mapping, and no borrow of it outlives `self`. A holder of an
            // address also holds the map (see `as_ptr`).
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
        }
    }
}

/// Length of memory whose size and content are sealed \[bytes\].
///
/// # Errors
/// The descriptor is no memory, or someone can still change it.
pub fn sealed_length(fd: impl AsFd) -> Result<u64, HostError> {
    let (length, seals) = examine(fd)?;
    if !seals.contains(fixed_size() | SealFlags::WRITE) {
        return Err(HostError::memory("memory of sealed content", format!("seals {seals:?}")));
    }
    Ok(length)
}

fn examine(fd: impl AsFd) -> Result<(u64, SealFlags), HostError> {
    let size = rustix::fs::fstat(&fd).map_err(HostError::system("examine shared memory"))?.st_size;
    match rustix::fs::fcntl_get_seals(&fd) {
        Ok(seals) => Ok((size as u64, seals)),
        Err(Errno::INVAL) => Err(HostError::memory("sealed memory", "a descriptor that cannot be sealed")),
        Err(error) => Err(HostError::system("examine shared memory")(error)),
    }
}

/// `policy` has the chosen word in brackets.
fn policy_gives_huge_pages(policy: &str) -> bool {
    ["[always]", "[within_size]", "[advise]", "[force]"].iter().any(|word| policy.contains(word))
}

/// Adds up `ShmemPmdMapped` of the areas of `smaps` that lie in `range` of addresses.
fn huge_bytes_between(smaps: &str, range: Range<u64>) -> u64 {
    let mut inside = false;
    let mut bytes = 0;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some(name) = first.strip_suffix(':') {
            if inside && name == "ShmemPmdMapped" {
                bytes += words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024;
            }
        } else if let Some((start, _)) = first.split_once('-') {
            inside = u64::from_str_radix(start, 16).is_ok_and(|start| range.contains(&start));
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_memory_is_seen_by_others_who_cannot_map_it_writable() {
        let (fd, own) = published_memfd("forebay-test", 4096).unwrap();
        let other = Map::watched(&fd).unwrap();
        // SAFETY: this test is the only user of the memory, and both maps are 4096 bytes long.
        unsafe {
            own.as_ptr().add(7).write_volatile(9);
            assert_eq!(other.as_ptr().add(7).read_volatile(), 9);
        }
        assert!(Map::shared(&fd, 4096).is_err());
        assert!(Map::watched(sealed_memfd("forebay-test", 4096).unwrap()).is_err());
    }

    #[test]
    fn a_region_starts_as_zeros_and_is_the_same_memory_in_every_mapping() {
        let fd = sealed_memfd("forebay-test", 10_000).unwrap();
        let (one, two) = (Map::shared(&fd, 10_000).unwrap(), Map::shared(&fd, 10_000).unwrap());
        assert_eq!(one.len(), 10_000);
        assert!(one.as_ptr().cast_const() != two.as_ptr().cast_const() && !one.is_empty());
        // SAFETY: both addresses are inside 10,000 mapped bytes that only this test uses.
        unsafe {
            assert_eq!(two.as_ptr().add(9_999).read_volatile(), 0);
            one.as_ptr().add(9_999).write_volatile(7);
            assert_eq!(two.as_ptr().add(9_999).read_volatile(), 7);
        }
    }

    #[test]
    fn nobody_can_change_the_size_of_a_region() {
        let fd = sealed_memfd("forebay-test", 8192).unwrap();
        assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&fd, 1 << 20), Err(Errno::PERM));
    }

    #[test]
    fn nobody_can_write_a_sealed_copy() {
        let content = vec![42; 100_000];
        let fd = sealed_copy("forebay-test", &content).unwrap();
        assert_eq!(rustix::io::pwrite(&fd, b"x", 0), Err(Errno::PERM));
        assert_eq!(Map::read_only(&fd).unwrap().bytes(), content);
        let error = Map::shared(&fd, content.len()).unwrap_err().to_string();
        assert!(error.contains("expected writable memory"), "{error}");
    }

    #[test]
    fn an_empty_copy_has_no_bytes() {
        let map = Map::read_only(sealed_copy("forebay-test", b"").unwrap()).unwrap();
        assert!(map.is_empty() && map.bytes().is_empty());
    }

    #[test]
    fn memory_of_another_size_or_without_seals_is_refused() {
        let fd = sealed_memfd("forebay-test", 8192).unwrap();
        let error = Map::shared(&fd, 4096).unwrap_err().to_string();
        assert!(error.contains("expected 4096 bytes, found 8192 bytes"), "{error}");
        assert!(Map::read_only(&fd).unwrap_err().to_string().contains("sealed content"));
        let loose = rustix::fs::memfd_create("forebay-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let loose = loose.unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert!(Map::shared(&loose, 4096).unwrap_err().to_string().contains("sealed size"));
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(Map::shared(&file, 4096).is_err());
    }

    #[test]
    #[should_panic(expected = "read-only map")]
    fn a_writable_map_hands_out_no_slice() {
        let _ = Map::shared(sealed_memfd("forebay-test", 4096).unwrap(), 4096).unwrap().bytes();
    }

    #[test]
    fn populating_takes_the_pages_and_keeps_what_is_written() {
        let bytes = 3 * POPULATE_STEP_BYTES + 5000;
        let fd = sealed_memfd("forebay-test", bytes).unwrap();
        let map = Map::shared(&fd, bytes).unwrap();
        // SAFETY: inside the mapping, used by this test alone.
        unsafe { map.as_ptr().add(bytes - 1).write_volatile(9) };
        let blocks = || rustix::fs::fstat(&fd).unwrap().st_blocks as usize * 512;
        assert!(blocks() < bytes);
        assert!(!map.populate(0..bytes, || true).unwrap());
        assert!(blocks() < bytes);
        assert!(map.populate(0..bytes, || false).unwrap());
        assert!(blocks() >= bytes);
        // SAFETY: as above.
        assert_eq!(unsafe { map.as_ptr().add(bytes - 1).read_volatile() }, 9);
    }

    #[test]
    fn released_pages_are_zeros_again_and_cost_nothing() {
        let fd = sealed_memfd("forebay-test", 40_960).unwrap();
        let map = Map::shared(&fd, 40_960).unwrap();
        // SAFETY: inside the mapping, used by this test alone.
        unsafe { std::slice::from_raw_parts_mut(map.as_ptr(), 40_960) }.fill(7);
        map.release(8192..32_768).unwrap();
        map.release(4096..4096).unwrap();
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks * 512, 16_384);
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(map.as_ptr(), 40_960) };
        assert!(bytes[8192..32_768].iter().all(|byte| *byte == 0));
        assert!(bytes[..8192].iter().chain(&bytes[32_768..]).all(|byte| *byte == 7));
    }

    #[test]
    fn touching_by_hand_takes_the_pages_too() {
        let fd = sealed_memfd("forebay-test", 40_960).unwrap();
        let map = Map::shared(&fd, 40_960).unwrap();
        map.touch(0..40_960);
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks * 512, 40_960);
    }

    #[test]
    fn huge_pages_are_believed_only_when_they_are_counted() {
        let bytes = 8 << 20;
        let map = Map::shared(sealed_memfd("forebay-test", bytes).unwrap(), bytes).unwrap();
        let may = map.ask_for_huge_pages();
        map.populate(0..bytes, || false).unwrap();
        assert!(may || map.huge_bytes() == 0);
        assert!(policy_gives_huge_pages("always within_size [advise] never deny force"));
        assert!(!policy_gives_huge_pages("always within_size advise [never] deny force"));
        let smaps = "7f0000000000-7f0000400000 rw-s 0 0:1 5 /memfd:forebay (deleted)\nRss: 4096 kB\n\
                     ShmemPmdMapped:     2048 kB\nVmFlags: rd wr\n\
                     7f0000400000-7f0000800000 rw-s 0 0:1 5 /memfd:other (deleted)\nShmemPmdMapped: 4096 kB\n";
        assert_eq!(huge_bytes_between(smaps, 0x7f00_0000_0000..0x7f00_0040_0000), 2 << 20);
    }
}
