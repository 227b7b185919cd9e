//! What a record says of a file and of its copy.

/// Largest number of levels.
pub const MAX_LEVELS: usize = 8;

/// Number of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(pub u32);

/// What identifies the content of a file: if it is equal, so is the content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// `st_size`.
    pub bytes: u64,
    /// `st_mtim` in nanoseconds.
    pub modified_ns: i64,
    /// `st_ctim` in nanoseconds.
    pub changed_ns: i64,
}

/// The whole `stat` of a source, but for the time of its last access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceFile {
    /// What a program's `fstat` is compared with.
    pub identity: Identity,
    /// Time of birth in nanoseconds, where the file system has one.
    pub born_ns: Option<i64>,
    /// `st_mode`, which has 16 bits.
    pub mode: u32,
    /// `st_uid`.
    pub user: u32,
    /// `st_gid`.
    pub group: u32,
    /// `st_nlink`.
    pub links: u32,
    /// `st_blocks`: of 512 bytes.
    pub blocks: u64,
    /// `st_blksize`: a multiple of 512.
    pub block_bytes: u64,
}

/// What identifies a copy, beside the size that it shares with its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyIdentity {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// `st_mtim` in nanoseconds.
    pub modified_ns: i64,
    /// `st_ctim` in nanoseconds.
    pub changed_ns: i64,
}

/// A copy: the file `files/NUMBER` (16 hexadecimal digits) of a level's directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyFile {
    /// The level.
    pub level: u8,
    /// The number, below 2^56. The daemon never uses one twice.
    pub number: u64,
    /// What a program compares the opened copy with.
    pub identity: CopyIdentity,
}

/// What may be done with a record. A record goes from one state to a later one, never back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordState {
    /// Not written yet.
    Empty,
    /// The source is known, its copy is being made.
    Copying,
    /// The source is known and will not be copied; it is not wished for again.
    Refused,
    /// The copy is whole and served.
    Whole,
    /// The source was changed; the copy is not served.
    Stale,
    /// The copy was removed.
    Gone,
}

impl RecordState {
    pub(crate) fn of(word: u64) -> Self {
        match word {
            1 => Self::Copying,
            2 => Self::Refused,
            3 => Self::Whole,
            4 => Self::Stale,
            5 => Self::Gone,
            _ => Self::Empty,
        }
    }
}
