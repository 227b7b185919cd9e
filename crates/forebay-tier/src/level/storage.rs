//! What a level does with its slabs.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::read_all::read_all;

/// A storage that holds slabs: files of slots, each slot for one chunk.
///
/// Forebay's levels are directories ([`SlabFiles`](crate::SlabFiles)). Another kind of storage can
/// be a level if it implements this trait: it must give a descriptor that pread(2) works on.
///
/// The daemon creates, allocates and removes slabs; clients write and read slots. All calls may
/// come from several threads and processes at once, but no two write the same bytes at a time.
pub trait LevelStorage: Send + Sync {
    /// Numbers of the slabs that exist.
    fn slabs(&self) -> io::Result<Vec<u32>>;

    /// Makes an empty slab.
    fn create(&self, slab: u32) -> io::Result<()>;

    /// Reserves the first `bytes` of a slab, so that writing them cannot fail for want of space.
    fn allocate(&self, slab: u32, bytes: u64) -> io::Result<()>;

    /// Space that a slab takes \[bytes\].
    fn taken_bytes(&self, slab: u32) -> io::Result<u64>;

    /// Length of a slab: what is reserved of it, unless it was truncated \[bytes\].
    fn length(&self, slab: u32) -> io::Result<u64> {
        Ok(rustix::fs::fstat(self.open(slab, false)?)?.st_size as u64)
    }

    /// Deletes a slab. Descriptors that are open go on working.
    fn remove(&self, slab: u32) -> io::Result<()>;

    /// A descriptor to read from; `direct`: around the page cache.
    fn open(&self, slab: u32, direct: bool) -> io::Result<Arc<OwnedFd>>;

    /// Reads all of `into` from `offset` on.
    fn read(&self, slab: u32, offset: u64, into: &mut [u8]) -> io::Result<()> {
        read_all(self.open(slab, false)?, offset, into)
    }

    /// Writes all of `bytes` at `offset`, which is reserved: a slab that is shorter is an error, as
    /// a write would bring back what was truncated, as zeros.
    fn write(&self, slab: u32, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Begins to bring written bytes to the device, without waiting.
    fn start_flush(&self, slab: u32, offset: u64, bytes: u64) -> io::Result<()>;

    /// Waits until written bytes are on the device, and drops them from the page cache.
    fn finish_flush(&self, slab: u32, offset: u64, bytes: u64) -> io::Result<()>;

    /// Whether the slabs are memory: they can be mapped, and need no flush.
    fn is_memory(&self) -> bool;

    /// Space that is left \[bytes\].
    fn free_bytes(&self) -> io::Result<u64>;
}
