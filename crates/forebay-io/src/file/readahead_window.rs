//! How much the kernel fetches for one announcement.
//!
//! `posix_fadvise(POSIX_FADV_WILLNEED)` answers success and fetches no more than the larger one of
//! the mount's read-ahead window and its largest request (mm/readahead.c, `force_page_cache_ra`, as
//! of Linux 6.18). Of FUSE only the window counts, and that is 128 KiB by default:
//! longer announcements are truncated silently.

use forebay_types::MAX_ANNOUNCED_BYTES;
use rustix::fs::Stat;

use crate::file::system::{FUSE, FileSystem};

/// At most the page size of the machine \[bytes\].
pub(crate) const PAGE_BYTES: u64 = 4 << 10;
/// The window that a mount has by default \[bytes\].
const DEFAULT_BYTES: u64 = 128 << 10;

/// Length up to which an announcement of a file does something \[bytes\].
pub(crate) fn announced_bytes(file_system: &FileSystem, stat: &Stat) -> u64 {
    if file_system.magic != FUSE {
        return MAX_ANNOUNCED_BYTES;
    }
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    std::fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"))
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok())
        .filter(|kib| *kib > 0)
        .map_or(DEFAULT_BYTES, |kib| kib.saturating_mul(1 << 10).min(MAX_ANNOUNCED_BYTES))
        .next_multiple_of(PAGE_BYTES)
}
