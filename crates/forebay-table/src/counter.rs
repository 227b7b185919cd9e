//! What programs count, and where the counters are.

use crate::record::MAX_LEVELS;

/// Groups of counters; a process adds to one of them, so that many processes share no cache line.
pub const STRIPES: usize = 16;
pub const STRIPE_WORDS: usize = 64;
pub const COUNTER_WORDS: usize = STRIPES * STRIPE_WORDS;

/// What programs count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableCounter {
    /// Programs that have mapped the table: one for each `exec`, none for a `fork`.
    Programs,
    /// Opens that got the source because its copy is being made.
    Copying,
    /// Opens that got the source because the daemon decided not to copy it.
    Refused,
    /// Opens that got the source because the table does not know it.
    Unknown,
    /// Opens that got the source because it changed since it was copied.
    Changed,
    /// Opens that got the source because somebody opened it for writing.
    Stale,
    /// Opens that got the source because they bypass the page cache (`O_DIRECT`).
    Direct,
    /// Opens that got the source because the level of its copy is out.
    LevelOut,
    /// Opens that got the source because the copy could not be opened.
    OpenFailed,
    /// Opens that got the source because the opened copy is not the one that the record names.
    OtherCopy,
    /// Opens that got the source because the copy could not take its descriptor's number.
    NumberFailed,
    /// Opens for writing, and changes by path, of a source that the table knows.
    Writes,
    /// Changes through a descriptor of a copy, which failed.
    RefusedChanges,
    /// Results of `stat` that were translated.
    Stats,
    /// Wishes that were written.
    Wishes,
    /// Wishes that were not: the ring was busy, or the path unknown or too long.
    LostWishes,
    /// Opens that did not reach the source at all, because it is frozen. Counted as opened, too.
    Frozen,
    /// Opens that got the source because this table is not maintained, and there was no other.
    Retired,
    /// Opens that got a copy of this level.
    Opened(u8),
    /// Bytes of the files whose opens got a copy of this level.
    OpenedBytes(u8),
}

impl TableCounter {
    const FIRST_OPENED: usize = 24;
    const FIRST_BYTES: usize = Self::FIRST_OPENED + MAX_LEVELS;

    /// All that have no level, with the names under which they are shown.
    pub const NAMED: [(Self, &'static str); 18] = [
        (Self::Programs, "programs"),
        (Self::Copying, "copying"),
        (Self::Refused, "refused"),
        (Self::Unknown, "unknown"),
        (Self::Changed, "changed"),
        (Self::Stale, "stale"),
        (Self::Direct, "direct"),
        (Self::LevelOut, "level_out"),
        (Self::OpenFailed, "open_failed"),
        (Self::OtherCopy, "other_copy"),
        (Self::NumberFailed, "number_failed"),
        (Self::Writes, "writes"),
        (Self::RefusedChanges, "refused_changes"),
        (Self::Stats, "stats"),
        (Self::Wishes, "wishes"),
        (Self::LostWishes, "lost_wishes"),
        (Self::Frozen, "frozen"),
        (Self::Retired, "retired"),
    ];

    /// The place of the counter in its stripe.
    pub(crate) fn word(self) -> usize {
        match self {
            Self::Programs => 0,
            Self::Copying => 1,
            Self::Refused => 2,
            Self::Unknown => 3,
            Self::Changed => 4,
            Self::Stale => 5,
            Self::Direct => 6,
            Self::LevelOut => 7,
            Self::OpenFailed => 8,
            Self::OtherCopy => 9,
            Self::NumberFailed => 10,
            Self::Writes => 11,
            Self::RefusedChanges => 12,
            Self::Stats => 13,
            Self::Wishes => 14,
            Self::LostWishes => 15,
            Self::Frozen => 16,
            Self::Retired => 17,
            Self::Opened(level) => Self::FIRST_OPENED + usize::from(level),
            Self::OpenedBytes(level) => Self::FIRST_BYTES + usize::from(level),
        }
    }
}
