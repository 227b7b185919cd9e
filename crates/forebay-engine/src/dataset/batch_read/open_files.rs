//! The files of a dataset that samples are read from by id; they stay open as long as the dataset.
//!
//! A shard is read through the descriptor that the dataset holds since it was opened. Of folders
//! whose samples are files, the last 128 files stay open (`forebay_io`). Reads are positioned
//! (pread), so a forked child may use the descriptors of its parent.
//!
//! After a read, the files are compared with what was opened, each at most once a second: a file
//! that was replaced is an error, one that was removed is still read.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_format::{Dataset, Index};
use forebay_io::{Failing, ReadError, ShardFiles};
use forebay_types::{Extent, ShardId};

use crate::dataset::open::open_held;
use crate::error::Error;

/// How often a file is compared with what was opened: on network file systems each comparison may
/// be a request.
const COMPARED_EVERY: Duration = Duration::from_secs(1);

/// See the module header.
pub(crate) struct OpenFiles {
    files: Arc<ShardFiles>,
    failing: Failing,
    /// When a file was compared last.
    compared: Mutex<HashMap<ShardId, Instant>>,
}

impl OpenFiles {
    pub(crate) fn open(dataset: &Dataset, index: &Arc<Index>) -> Result<Self, Error> {
        let files = Arc::new(open_held(dataset, index)?);
        Ok(Self { files, failing: Failing::default(), compared: Mutex::default() })
    }

    pub(super) fn path(&self, shard: ShardId) -> PathBuf {
        self.files.path(shard)
    }

    /// Reads `head` and `into`, which follow each other in a file, from an offset of an extent on.
    pub(super) fn read(
        &self,
        extent: Extent,
        first: u64,
        head: &mut [u8],
        into: &mut [u8],
    ) -> Result<(), ReadError> {
        if head.is_empty() && into.is_empty() {
            return Ok(());
        }
        let place = (extent.shard, extent.offset + first);
        self.failing.read(&*self.files, false, place, head, into).map(drop)
    }

    pub(super) fn will_need(&self, extent: Extent) {
        self.files.will_need(extent.shard, extent.offset, extent.length);
    }

    /// Compares these files with what was opened; returns warnings.
    pub(super) fn check_unchanged(
        &self,
        dataset: &Dataset,
        shards: impl Iterator<Item = ShardId>,
    ) -> Result<Vec<String>, Error> {
        if self.files.are_of_samples() {
            return Ok(Vec::new()); // compared when they are opened
        }
        let now = Instant::now();
        let mut due = Vec::new();
        let mut before = None;
        let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        for shard in shards {
            if before.replace(shard) == Some(shard) {
                continue;
            }
            let last = compared.get(&shard);
            if last.is_none_or(|last| now.duration_since(*last) >= COMPARED_EVERY) {
                compared.insert(shard, now);
                due.push(shard.0 as usize);
            }
        }
        drop(compared);
        let checked = dataset.check_shards(due.iter().copied());
        if checked.is_err() {
            let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
            for shard in due {
                compared.remove(&ShardId(shard as u32));
            }
        }
        Ok(checked?)
    }
}
