//! The samples of a dataset that is there, as its index has them.

use std::sync::Arc;

use forebay_format::Index;
use forebay_types::{Located, SampleId, SamplePlaces, ShardId};

use crate::error::Error;

/// Samples that are located at a time to check the index.
const CHECKED_TOGETHER: u64 = 1 << 16;

/// An index all of whose samples can be located.
#[derive(Clone)]
pub(crate) struct Indexed {
    index: Arc<Index>,
    file_bytes: u64,
    has_sample_files: bool,
}

impl std::fmt::Debug for Indexed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Indexed").field("samples", &self.samples()).finish_non_exhaustive()
    }
}

impl Indexed {
    /// Checks an index.
    ///
    /// # Errors
    ///
    /// A sample whose place the index does not tell, and values that have to be decoded.
    pub(crate) fn of(index: Arc<Index>) -> Result<Indexed, Error> {
        if index.samples() == 0 {
            return Err(Error::job("dataset.samples", "at least 1", &0));
        }
        if index.is_coded() {
            return Err(Error::NotModelled("values that are compressed".to_owned()));
        }
        let has_sample_files = index.has_sample_files();
        let (mut located, mut file_bytes) = (Located::default(), 0);
        for first in (0..index.samples()).step_by(CHECKED_TOGETHER as usize) {
            let ids: Vec<SampleId> =
                (first..index.samples().min(first + CHECKED_TOGETHER)).map(SampleId).collect();
            index.locate(&ids, &mut located)?;
            if has_sample_files {
                for id in ids {
                    file_bytes += index.file_bytes(ShardId(id.0 as u32))?;
                }
            }
        }
        if !has_sample_files {
            file_bytes = index.shards().iter().map(|shard| shard.bytes).sum();
        }
        Ok(Indexed { index, file_bytes, has_sample_files })
    }

    pub(crate) fn samples(&self) -> u64 {
        self.index.samples()
    }

    /// Bytes of all samples \[B\].
    pub(crate) fn record_bytes(&self) -> u64 {
        self.index.record_bytes()
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub(crate) fn has_sample_files(&self) -> bool {
        self.has_sample_files
    }

    pub(crate) fn bytes_of_file(&self, file: u64) -> u64 {
        if self.has_sample_files {
            self.index.file_bytes(ShardId(file as u32)).expect("it was looked at before")
        } else {
            self.index.shards()[file as usize].bytes
        }
    }

    pub(crate) fn shard_bytes(&self) -> Vec<u64> {
        SamplePlaces::shard_bytes(&*self.index)
    }

    pub(crate) fn locate(&self, ids: &[SampleId], out: &mut Located) {
        self.index.locate(ids, out).expect("all samples were located before");
    }
}
