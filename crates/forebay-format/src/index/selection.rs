//! A selection of samples: a separate dataset, whose samples are records of the same files.
//!
//! Sample *i* is the record with the *i*-th id. Ids are in any order, and none is there twice.

use std::fmt;
use std::sync::Arc;

use forebay_types::SampleId;
use xxhash_rust::xxh3::Xxh3;

use super::{Index, no_sample};
use crate::Error;

/// Which records of the files are the samples of a dataset.
#[derive(Clone, PartialEq, Eq)]
pub struct Selection {
    ids: Vec<u64>,
    digest: u128,
}

impl fmt::Debug for Selection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Selection").field("samples", &self.samples()).finish_non_exhaustive()
    }
}

impl Selection {
    /// Of the records with these ids, of which no two are equal and all are below `records`.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no id, or names the first one that is wrong.
    pub fn new(ids: Vec<u64>, records: u64) -> Result<Self, Error> {
        if ids.is_empty() {
            return Err(wrong("the selection has no sample".to_owned()));
        }
        let mut seen = vec![0_u64; records.div_ceil(64) as usize];
        let mut hasher = Xxh3::new();
        for id in &ids {
            if *id >= records {
                return Err(no_sample(SampleId(*id), records));
            }
            let (word, bit) = (&mut seen[(id / 64) as usize], 1 << (id % 64));
            if *word & bit != 0 {
                return Err(wrong(format!("the selection has sample {id} twice")));
            }
            *word |= bit;
            hasher.update(&id.to_le_bytes());
        }
        Ok(Self { ids, digest: hasher.digest128() })
    }

    /// The selection of these samples of this one.
    ///
    /// # Errors
    /// As [`Selection::new`].
    pub fn of(&self, samples: &[u64]) -> Result<Self, Error> {
        let samples: Vec<_> = samples.iter().copied().map(SampleId).collect();
        let records = self.records_of(&samples)?;
        let end = self.ids.iter().max().map_or(0, |id| id + 1);
        Self::new(records.iter().map(|record| record.0).collect(), end)
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.ids.len() as u64
    }

    /// The ids of the records, by sample.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// The fingerprint of this selection of a dataset.
    pub(crate) fn fingerprint_of(&self, dataset: u128) -> u128 {
        let mut hasher = Xxh3::new();
        hasher.update(&dataset.to_le_bytes());
        hasher.update(&self.digest.to_le_bytes());
        hasher.digest128()
    }

    /// The records of samples.
    pub(super) fn records_of(&self, samples: &[SampleId]) -> Result<Vec<SampleId>, Error> {
        let record = |sample: &SampleId| {
            let found = usize::try_from(sample.0).ok().and_then(|at| self.ids.get(at));
            found.map(|id| SampleId(*id)).ok_or_else(|| no_sample(*sample, self.samples()))
        };
        samples.iter().map(record).collect()
    }
}

fn wrong(message: String) -> Error {
    Error::Usage { message, hint: "give at least one id, each once".to_owned() }
}

impl Index {
    /// The same index, with the samples of a selection.
    #[must_use]
    pub fn selecting(self, selection: Option<Arc<Selection>>) -> Self {
        Self { selection, ..self }
    }
}
