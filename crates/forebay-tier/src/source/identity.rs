//! Which source a copy is of.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// Digest of what identifies a source across mounts and restarts: its canonical path, size, times
/// of its last change, inode, and what its format knows of it. The device number is not in it:
/// those of FUSE, NFS and Lustre change with every mount.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct SourceKey(pub [u8; 16]);

impl SourceKey {
    /// The key of a file or folder; `fingerprint` is what its format knows of it.
    #[must_use]
    pub fn new(path: &Path, state: &SourceState, inode: u64, fingerprint: &[u8]) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let path = path.as_os_str().as_bytes();
        let mut hash = Xxh3::new();
        for number in [path.len() as u64, state.bytes, inode, fingerprint.len() as u64] {
            hash.update(&number.to_le_bytes());
        }
        for time in [state.modified_ns, state.changed_ns] {
            hash.update(&time.to_le_bytes());
        }
        hash.update(path);
        hash.update(fingerprint);
        Self(hash.digest128().to_le_bytes())
    }
}

impl fmt::Debug for SourceKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SourceKey({self})")
    }
}

impl fmt::Display for SourceKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl FromStr for SourceKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected 32 hexadecimal digits, found {text:?}");
        if text.len() != 32 || !text.is_ascii() {
            return Err(expected());
        }
        u128::from_str_radix(text, 16).map(|key| Self(key.to_be_bytes())).map_err(|_| expected())
    }
}

impl From<SourceKey> for String {
    fn from(key: SourceKey) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for SourceKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Size and times of a source, by which a change is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// Size \[bytes\].
    pub bytes: u64,
    /// When its bytes were last changed [ns since 1970].
    pub modified_ns: i64,
    /// When anything about it was last changed [ns since 1970].
    pub changed_ns: i64,
}

impl SourceState {
    /// What a system call says of a file.
    #[must_use]
    pub fn of(stat: &rustix::fs::Stat) -> Self {
        let ns = |seconds: i64, ns: u64| seconds.saturating_mul(1_000_000_000).saturating_add(ns as i64);
        Self {
            bytes: stat.st_size as u64,
            modified_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
            changed_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// The same of its times and size alone.
    #[must_use]
    pub fn of_times(stat: &rustix::fs::Statx) -> Self {
        let ns = |time: rustix::fs::StatxTimestamp| {
            time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec.into())
        };
        Self { bytes: stat.stx_size, modified_ns: ns(stat.stx_mtime), changed_ns: ns(stat.stx_ctime) }
    }

    /// Whether the last change was long enough before `now_ns` that a change from then on has other
    /// times: those of files are coarse.
    #[must_use]
    pub fn is_settled(&self, now_ns: i64) -> bool {
        self.modified_ns.max(self.changed_ns).saturating_add(SETTLED_NS) <= now_ns
    }
}

/// How old the last change of a source must be before a read of it is kept [ns].
pub const SETTLED_NS: i64 = 2_000_000_000;

/// A source, as a client describes it to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its key.
    pub key: SourceKey,
    /// Where it is, for people.
    pub path: String,
    /// Number of its chunks.
    pub chunks: u64,
    /// Size \[bytes\].
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_depends_on_all_that_identifies_a_source_and_can_be_written() {
        let state = SourceState { bytes: 5, modified_ns: 6, changed_ns: 7 };
        let key = SourceKey::new(Path::new("/data/a"), &state, 8, b"tfrecord");
        let others = [
            SourceKey::new(Path::new("/data/b"), &state, 8, b"tfrecord"),
            SourceKey::new(Path::new("/data/a"), &SourceState { bytes: 6, ..state }, 8, b"tfrecord"),
            SourceKey::new(Path::new("/data/a"), &SourceState { modified_ns: 7, ..state }, 8, b"tfrecord"),
            SourceKey::new(Path::new("/data/a"), &SourceState { changed_ns: 8, ..state }, 8, b"tfrecord"),
            SourceKey::new(Path::new("/data/a"), &state, 9, b"tfrecord"),
            SourceKey::new(Path::new("/data/a"), &state, 8, b"tar"),
        ];
        assert!(others.iter().all(|other| *other != key));
        assert_eq!(key.to_string().parse(), Ok(key));
        assert!("12".parse::<SourceKey>().is_err());
    }

    /// Copies of earlier versions are found by their keys.
    #[test]
    fn the_key_of_the_page_is_what_is_computed() {
        let state = SourceState {
            bytes: 100_000,
            modified_ns: 1_767_225_600_000_000_000,
            changed_ns: 1_767_225_600_500_000_000,
        };
        let key = SourceKey::new(Path::new("/data/a"), &state, 42, b"tfrecord");
        let page = include_str!("../../../../docs/formats/tier.md");
        assert!(page.contains(&format!("`{key}`")), "docs/formats/tier.md needs this key: {key}");
    }

    #[test]
    fn a_source_is_settled_two_seconds_after_its_last_change() {
        let state = SourceState { bytes: 0, modified_ns: 10, changed_ns: 20 };
        assert!(!state.is_settled(20) && !state.is_settled(SETTLED_NS + 19));
        assert!(state.is_settled(SETTLED_NS + 20));
    }
}
