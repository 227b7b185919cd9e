//! A candidate history: a writer that repeats it, compared with the file leaf by leaf.

use forebay_format::lmdb::Identity;
use xxhash_rust::xxh3::xxh3_64;

use crate::check::compare_metas;
use crate::insertion::{InsertionResult, LeafPage};
use crate::layout::{Offsets, Writing};

/// Bytes per place that are hashed.
pub(crate) const PLACE_BYTES: usize = 16;

pub(crate) fn put_place(out: &mut Vec<u8>, offset: u64, length: u64) {
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
}

/// A leaf as the scan found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObservedLeaf {
    pub(crate) page: u64,
    pub(crate) hash: u64,
    pub(crate) records: u32,
}

/// The facts of the file that candidates are compared with.
pub(crate) struct Truth<'a> {
    pub(crate) leaves: &'a [ObservedLeaf],
    pub(crate) offsets: Offsets,
    pub(crate) identity: &'a Identity,
}

/// A writer with all leaves right so far.
#[derive(Clone)]
pub(crate) struct Candidate<'a> {
    pub(crate) writing: Writing<'a>,
    /// Leaves that are finished.
    pub(crate) leaves: usize,
}

impl Candidate<'_> {
    /// Whether what either does next is the same.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.writing.insertion == other.writing.insertion
    }
}

impl Truth<'_> {
    /// Whether the file has this leaf.
    pub(crate) fn is_right(&self, number: usize, leaf: &LeafPage, bytes: &mut Vec<u8>) -> bool {
        let Some(observed) = self.leaves.get(number) else { return false };
        if observed.page != leaf.page || observed.records as usize != leaf.records.len() {
            return false;
        }
        bytes.clear();
        for record in &leaf.records {
            put_place(bytes, self.offsets.value(leaf.page, record), u64::from(record.value_bytes));
        }
        xxh3_64(bytes) == observed.hash
    }

    fn is_end(&self, outcome: &InsertionResult) -> bool {
        compare_metas(outcome, self.identity).is_ok()
    }

    /// Ends the last transaction; whether that leads to the file.
    pub(crate) fn ends_well(
        &self,
        candidate: &mut Candidate<'_>,
        bytes: &mut Vec<u8>,
    ) -> Result<bool, String> {
        let (outcome, last) = candidate.writing.finish()?;
        Ok(self.is_end(&outcome)
            && candidate.leaves + 1 == self.leaves.len()
            && self.is_right(candidate.leaves, last.page, bytes))
    }
}
