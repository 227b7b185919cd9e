//! Where the bytes of a source file can be read: a read is answered in spans.
//!
//! The files of the dataset are one level, [`LevelId::SOURCE`]. Another [`FileIo`](crate::FileIo)
//! can hold copies of parts of them on further levels. It answers each request with one [`Span`]:
//! a level, an open file there, and how many of the bytes that file has. `pread(2)` and `io_uring`
//! both read what the span says.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use forebay_types::MAX_COPY_LEVELS;
use forebay_types::ShardId;

/// Where a read starts, and by which way it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The file.
    pub shard: ShardId,
    /// First byte [bytes from the start of the file].
    pub offset: u64,
    /// Around the page cache.
    pub direct: bool,
}

/// One storage of the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LevelId(u8);

impl LevelId {
    /// The files of the dataset.
    pub const SOURCE: Self = Self(0);

    /// Level `number` of copies, counted from 0, the nearest.
    ///
    /// # Panics
    /// If `number` is [`MAX_COPY_LEVELS`] or more.
    #[must_use]
    pub fn copy(number: usize) -> Self {
        assert!(number < MAX_COPY_LEVELS, "at most {MAX_COPY_LEVELS} levels of copies");
        Self(number as u8 + 1)
    }

    /// Number of a level of copies; `None` for the source.
    #[must_use]
    pub fn copy_number(self) -> Option<usize> {
        (self.0 as usize).checked_sub(1)
    }
}

/// Levels that a read no longer asks, because they failed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelSet(u8);

impl LevelSet {
    /// Whether the level is in the set.
    #[must_use]
    pub fn contains(self, level: LevelId) -> bool {
        self.0 & (1 << level.0) != 0
    }

    /// Adds a level.
    pub(crate) fn insert(&mut self, level: LevelId) {
        self.0 |= 1 << level.0;
    }
}

/// A descriptor that stays valid while this is kept.
pub enum Descriptor<'a> {
    /// Open for as long as its owner.
    Lent(BorrowedFd<'a>),
    /// Open for as long as one of its users.
    Shared(Arc<OwnedFd>),
}

impl AsFd for Descriptor<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Lent(descriptor) => *descriptor,
            Self::Shared(descriptor) => descriptor.as_fd(),
        }
    }
}

/// Bytes of a source file that follow each other in one file of one level.
pub struct Span<'a> {
    /// The bytes that it stands for: place in the source.
    pub source: At,
    /// The level that has them.
    pub level: LevelId,
    /// The file to read them from.
    pub descriptor: Descriptor<'a>,
    /// Their first byte in that file [bytes from its start].
    pub offset: u64,
    /// How many they are, at least 1 \[bytes\]. The rest of a request is asked for again.
    ///
    /// Under `O_DIRECT` the next request may go to the source and has to be aligned: what comes
    /// behind the last multiple of 4096 is read again.
    pub length: usize,
}

impl fmt::Debug for Span<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, level, offset, length, .. } = self;
        write!(formatter, "Span({source:?}: {length} bytes at {offset} of {level:?})")
    }
}
