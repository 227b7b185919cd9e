//! Files that change while they are read.
//!
//! A loader holds its files open and checks them at the end of every epoch; a single sample is
//! checked after its read. The checks, in this order: the headers that the format keeps, of the
//! open file, and its size (except LMDB, where one more transaction is harmless); then the file at
//! the path, which may be another one by now. Another file is an error, unless size and
//! modification time are equal. The same file with another modification time, but the same size and
//! headers, is a warning, since a `touch` does that. A file that was removed from its path is
//! accepted: the open descriptor still reads it. Files of a folder are compared when they are
//! opened.
//!
//! A write whose modification time was set back (`touch -r`, `rsync -t`) leaves the time of the
//! inode's last change, which no program sets. So do chmod(2), chown(2) and link(2), which the
//! inode's attributes show; whatever is left is a warning.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

use forebay_types::{Located, Piece, SampleId};

use super::Dataset;
use crate::{Error, Format, Index};

/// The modification time of a file [ns since 1970]. Times that are earlier or unknown count as
/// 1970; the state of the file also tells files apart.
pub(super) fn modified_ns(status: &Metadata) -> i64 {
    let since = status.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
}

/// What shows that an inode was changed, although size and modification time are as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeChange {
    /// When it was last changed [s and ns since 1970].
    at: (i64, i64),
    /// What explains that without a write: mode, owner, group and links.
    attributes: (u32, u32, u32, u64),
}

impl InodeChange {
    pub(super) fn of(status: &Metadata) -> Self {
        let at = (status.ctime(), status.ctime_nsec());
        Self { at, attributes: (status.mode(), status.uid(), status.gid(), status.nlink()) }
    }

    /// Whether the file may have been written since, and its modification time set back.
    fn hides_a_write(self, now: Self) -> bool {
        self.at != now.at && self.attributes == now.attributes
    }
}

/// Which file it is.
pub(super) fn inode(status: &Metadata) -> (u64, u64) {
    (status.dev(), status.ino())
}

impl Dataset {
    /// Checks all files again and returns warnings for the user. [`Error::Modified`] if a file was
    /// replaced, or changed so much that the opened data may be gone.
    pub fn check_unchanged(&self) -> Result<Vec<String>, Error> {
        self.check_shards(0..self.shards.len())
    }

    /// The same for the files in which a sample lies.
    pub fn check_sample(&self, index: &Index, sample: SampleId) -> Result<Vec<String>, Error> {
        if index.has_sample_files() {
            return Ok(Vec::new());
        }
        let mut located = Located::default();
        index.locate(&[sample], &mut located)?;
        let shards: BTreeSet<usize> = located
            .pieces()
            .iter()
            .filter_map(|piece| match piece {
                Piece::Extent(extent) => Some(extent.shard.0 as usize),
                Piece::Literal { .. } => None,
            })
            .collect();
        self.check_shards(shards)
    }

    /// The same for these shards, by number.
    pub fn check_shards(&self, shards: impl IntoIterator<Item = usize>) -> Result<Vec<String>, Error> {
        let checked = shards.into_iter().map(|number| self.check_shard(number).transpose());
        checked.flatten().collect()
    }

    fn check_shard(&self, number: usize) -> Result<Option<String>, Error> {
        self.files[number].check_unchanged()?;
        let shard = &self.shards[number];
        let now = match fs::metadata(&shard.path) {
            Ok(now) => now,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                let (action, path) = ("inspect".to_owned(), shard.path.clone());
                return Err(Error::Io { action, path, offset: None, source });
            }
        };
        let now_ns = modified_ns(&now);
        if self.format == Format::Folder {
            return Ok(None);
        }
        if (now.len(), now_ns) == (shard.bytes, shard.modified_ns) {
            let is_same = inode(&now) == shard.inode && self.format != Format::Lmdb;
            let hidden = is_same && shard.change.hides_a_write(InodeChange::of(&now));
            return Ok(hidden.then(|| {
                format!(
                    "{} may have been rewritten while it was read: its inode was changed, with the same size, modification \
                     time, mode, owner and links; samples of both states may have been delivered",
                    shard.path.display()
                )
            }));
        }
        let describe = |bytes: u64, ns: i64| format!("{bytes} bytes, last change {ns} ns since 1970");
        let (expected, found) = (describe(shard.bytes, shard.modified_ns), describe(now.len(), now_ns));
        if inode(&now) != shard.inode {
            let what = "another file took its place".to_owned();
            return Err(Error::Modified { path: shard.path.clone(), what, expected, found });
        }
        if self.format == Format::Lmdb {
            return Ok(None);
        }
        Ok(Some(format!(
            "{} was changed or touched while it was read: expected {expected}, found {found}; samples of both states may \
             have been delivered",
            shard.path.display()
        )))
    }
}
