//! The scan of LMDBIO-LMM-DIO: one process walks over all records once, and the job uses the
//! locations that it finds.
//!
//! It walks from record to record through a mapping, like programs that use LMDB's library. So it
//! takes a page fault for each page of the tree, but touches no other page, and it prefetches the
//! leaves of a branch page on reaching it. The result is an index like any other. It is not stored:
//! the next loader scans again.

use std::sync::Arc;

use forebay_format::{Dataset, Error, Progress};
use forebay_host::failpoint;
use forebay_plan::{IndexScanner, ScanHost};
use forebay_types::Extent;

use crate::cursor_walk::check;

/// Builds the index by a walk over all records.
pub struct CursorScan {
    dataset: Arc<Dataset>,
}

impl CursorScan {
    /// For a dataset.
    #[must_use]
    pub fn new(dataset: Arc<Dataset>) -> Self {
        Self { dataset }
    }
}

impl IndexScanner for CursorScan {
    type Error = Error;

    fn check(&self) -> Result<(), Error> {
        check(&self.dataset)
    }

    fn scan(&self, host: &dyn ScanHost) -> Result<Vec<u8>, Error> {
        let bytes = |shard, offset, length| {
            failpoint::at(failpoint::StopPoint::Scan);
            host.bytes(shard, offset, length)
        };
        let prefetch = |shard, offset, length| {
            host.prefetch(Extent { shard, offset, length });
        };
        let report = |progress: Progress| host.progress(progress.what, progress.done, progress.total);
        Ok(self.dataset.scan_index(&bytes, &prefetch, &report)?.bytes)
    }
}
