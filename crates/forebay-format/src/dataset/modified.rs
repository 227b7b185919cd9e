//! Files that change while they are read.
//!
//! A loader holds its files open and asks at the end of every epoch, single samples are asked about when they were read.
//! What is compared, in this order: what the format knows of its headers (and the size, but of LMDB, where one further
//! transaction harms nothing) of the file that is open; then the file at the path, which may be another one by now. That
//! other file is an error, unless size and last change are the same; the same file with another last change, whose size
//! and headers are as they were, is a warning: it may be no more than a `touch`. A file that is gone from its path is not
//! looked for: who holds it open reads what he opened. Files of a folder are compared when they are opened.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

use forebay_types::{Located, Piece, SampleId};

use super::Dataset;
use crate::{Error, Format, Index};

/// The last change of a file [ns since 1970]. Times before that or unknown count as 1970: the state of the file tells files
/// apart as well.
pub(super) fn modified_ns(status: &Metadata) -> i64 {
    let since = status.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
}

/// Which file it is.
pub(super) fn inode(status: &Metadata) -> (u64, u64) {
    (status.dev(), status.ino())
}

impl Dataset {
    /// Looks at all files again, and returns what the user should know of them. One that changed so far that what was opened
    /// may be gone, or that is another one, is [`Error::Modified`].
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

    fn check_shards(&self, shards: impl IntoIterator<Item = usize>) -> Result<Vec<String>, Error> {
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
        if self.format == Format::Folder || (now.len(), now_ns) == (shard.bytes, shard.modified_ns) {
            return Ok(None);
        }
        let told = |bytes: u64, ns: i64| format!("{bytes} bytes, last change {ns} ns since 1970");
        let (expected, found) = (told(shard.bytes, shard.modified_ns), told(now.len(), now_ns));
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
