//! Copies of whole files, as the runs of the daemon use them: which roots are used, which files
//! below them have copies, and on which levels.
//!
//! A *root* is a source of `forebay run`. Copies of files below a root that a run uses are never
//! evicted.

#![allow(dead_code, clippy::unused_self, clippy::needless_pass_by_value, clippy::needless_pass_by_ref_mut)]

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use forebay_table::{CopyFile, SourceFile};

use crate::daemon::cache::Cache;
use crate::table::LevelState;

/// A source of runs, as this daemon numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RootId(u32);

/// A copy of this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CopyId {
    /// The level.
    pub(crate) level: u8,
    /// Its number on the level, which no other copy ever has.
    pub(crate) number: u64,
}

/// A file of a source, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFacts {
    /// The root that it lies below.
    pub(crate) root: RootId,
    /// Its path below the root; empty if the root is the file.
    pub(crate) path: PathBuf,
    /// What `stat` says of it. Copies that a log tells of have no device (0).
    pub(crate) source: SourceFile,
}

/// A copy that is being written: finish or abandon it.
#[derive(Debug)]
#[must_use]
pub(crate) struct NewCopy {
    /// Its file: all zeros, with its space reserved.
    pub(crate) file: OwnedFd,
    /// Its level and number.
    pub(crate) id: CopyId,
}

/// Why there is no place for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoCopy {
    /// There is no room now.
    Full,
    /// The file is larger than each of the levels.
    TooLarge,
    /// No level is in use: they failed or were deleted.
    LevelsOut,
}

/// A copy that a level has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownCopy {
    /// Its level and number.
    pub(crate) id: CopyId,
    /// What it is a copy of; `root` is the root that was asked for.
    pub(crate) facts: FileFacts,
    /// crc32c of its bytes.
    pub(crate) crc: u32,
    /// Whether it was written since the machine was started. Another one must be compared with
    /// `crc` before it is served.
    pub(crate) is_trusted: bool,
}

impl Cache {
    /// A run begins to use a root, with copies on these levels.
    pub(crate) fn use_root(&mut self, path: &Path, levels: &[u8]) -> RootId {
        let _ = (path, levels);
        todo!()
    }

    /// A run no longer uses a root; `levels` as in [`Self::use_root`].
    pub(crate) fn leave_root(&mut self, root: RootId, levels: &[u8]) {
        let _ = (root, levels);
        todo!()
    }

    /// An empty file on the first of these levels that has room for it, reserved in full.
    pub(crate) fn begin_copy(&mut self, levels: &[u8], bytes: u64) -> Result<NewCopy, NoCopy> {
        let _ = (levels, bytes);
        todo!()
    }

    /// Logs a copy whose bytes are written, and says what identifies it from now on; `None` if it
    /// is lost, as it is not that long or the level failed.
    pub(crate) fn finish_copy(&mut self, copy: NewCopy, facts: &FileFacts, crc: u32) -> Option<CopyFile> {
        let _ = (copy, facts, crc);
        todo!()
    }

    /// Deletes a copy that is not finished.
    pub(crate) fn abandon_copy(&mut self, copy: NewCopy) {
        let _ = copy;
        todo!()
    }

    /// The copies on these levels of files below a root, also those that were made for another
    /// root. The nearest level comes first.
    pub(crate) fn copies_of(&self, root: RootId, levels: &[u8]) -> Vec<KnownCopy> {
        let _ = (root, levels);
        todo!()
    }

    /// What identifies a copy now; `None` if it is not there in full. One system call.
    pub(crate) fn copy_file(&self, id: CopyId) -> Option<CopyFile> {
        let _ = id;
        todo!()
    }

    /// A copy was compared with its checksum: it is trusted from now on, or deleted.
    pub(crate) fn trust_copy(&mut self, id: CopyId, is_right: bool) {
        let _ = (id, is_right);
        todo!()
    }

    /// Deletes a copy.
    pub(crate) fn delete_copy(&mut self, id: CopyId) {
        let _ = id;
        todo!()
    }

    /// Opens a copy to read it.
    pub(crate) fn open_copy(&self, id: CopyId) -> io::Result<OwnedFd> {
        let _ = id;
        todo!()
    }

    /// Whether a level takes and serves copies.
    pub(crate) fn level_state(&self, level: u8) -> LevelState {
        let _ = level;
        todo!()
    }
}
