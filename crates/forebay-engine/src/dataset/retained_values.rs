//! Values that the index build reads, retained in memory instead of being read again.
//!
//! If values lie among the pages of the tree, the index build reads the whole dataset. On remote
//! storage, if they fit into the budget, the leader retains those pages: one memfd per shard, each
//! byte at its own offset, with holes where nothing was read. It seals and shares them with the
//! other processes of the node, which read them instead of the files. On a local file system the
//! page cache has the same effect.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_format::{Dataset, ValueSink};
use forebay_host::{Draft, HostError};

use crate::base::memory_ledger;

/// Maximum number of retained shards: their descriptors are sent in one message, which holds 253.
const MAX_SHARDS: usize = 200;

/// Sealed memory of the shards.
#[derive(Debug)]
pub struct RetainedValues {
    shards: Vec<OwnedFd>,
    /// Memory that they take \[bytes\].
    bytes: u64,
    /// Shares of each budget: one, for any number of loaders, for the life of the dataset.
    loans: Mutex<Vec<memory_ledger::Loan>>,
}

impl RetainedValues {
    /// Memory that the shards take \[bytes\].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the memory from a budget once. Returns how much this call took \[bytes\].
    pub fn take_from(&self, owner: &str) -> u64 {
        let mut loans = self.loans.lock().unwrap_or_else(PoisonError::into_inner);
        if loans.iter().any(|loan| loan.owner() == owner) {
            return 0;
        }
        loans.push(memory_ledger::take(owner, "retained values", self.bytes, 0, true));
        self.bytes
    }

    /// Descriptors of the shards, new ones.
    pub fn share(&self) -> Result<Vec<OwnedFd>, HostError> {
        let context = self.shards.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>();
        context
            .map_err(|error: std::io::Error| HostError::system("share the memory of retained values")(error))
    }
}

/// Shards that are being read.
#[derive(Debug)]
pub struct RetainedValuesBuilder {
    shards: Vec<Draft>,
    bytes: u64,
    failed: AtomicBool,
}

impl RetainedValuesBuilder {
    /// Begins to retain a dataset, if the index build reads all of it and it fits into
    /// `budget_bytes`.
    pub fn begin(dataset: &Dataset, budget_bytes: u64) -> Option<Arc<Self>> {
        let bytes = dataset.inline_bytes().filter(|bytes| *bytes <= budget_bytes)?;
        if dataset.shards().len() > MAX_SHARDS {
            return None;
        }
        let shards = dataset
            .shards()
            .iter()
            .map(|shard| Draft::new("forebay-kept", shard.bytes))
            .collect::<Result<_, _>>();
        Some(Arc::new(Self { shards: shards.ok()?, bytes, failed: AtomicBool::new(false) }))
    }

    /// Seals the memory; `None` if memory ran out: then the loader reads the files again.
    pub fn finish(self) -> Option<RetainedValues> {
        if self.failed.into_inner() {
            return None;
        }
        let shards = self.shards.into_iter().map(Draft::seal).collect::<Result<_, _>>().ok()?;
        Some(RetainedValues { shards, bytes: self.bytes, loans: Mutex::default() })
    }
}

impl ValueSink for RetainedValuesBuilder {
    fn take(&self, shard: usize, offset: u64, bytes: &[u8]) {
        if !self.failed.load(Ordering::Relaxed) && self.shards[shard].write(offset, bytes).is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::pread;

    use super::*;

    fn builder(bytes: u64) -> RetainedValuesBuilder {
        let shards =
            vec![Draft::new("forebay-test", 10_000).unwrap(), Draft::new("forebay-test", 20_000).unwrap()];
        RetainedValuesBuilder { shards, bytes, failed: AtomicBool::new(false) }
    }

    #[test]
    fn kept_bytes_stand_at_their_own_offsets_and_cannot_be_changed() {
        let builder = builder(300);
        builder.take(0, 100, &[1; 100]);
        builder.take(1, 19_800, &[2; 200]);
        let retained = builder.finish().unwrap();
        assert_eq!(retained.bytes(), 300);
        let context = retained.share().unwrap();
        let mut bytes = [9; 200];
        assert_eq!(pread(&context[1], &mut bytes, 19_800).unwrap(), 200);
        assert_eq!(bytes, [2; 200]);
        assert_eq!(pread(&context[0], &mut bytes[..150], 50).unwrap(), 150);
        assert_eq!((&bytes[..50], &bytes[50..150]), (&[0; 50][..], &[1; 100][..]));
        assert_eq!(rustix::io::pwrite(&context[0], b"x", 0), Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn kept_bytes_are_taken_from_a_budget_once_until_they_go() {
        let retained = builder(300).finish().unwrap();
        assert_eq!((retained.take_from("kept-test"), retained.take_from("kept-test")), (300, 0));
        assert_eq!(retained.take_from("kept-test-other"), 300);
        assert_eq!(memory_ledger::taken_bytes("kept-test"), 300);
        drop(retained);
        assert_eq!(memory_ledger::taken_bytes("kept-test"), 0);
    }

    #[test]
    fn what_could_not_be_kept_whole_is_not_used() {
        let builder = builder(300);
        // After the largest offset that a file can have: a write that must fail.
        builder.take(0, i64::MAX as u64, &[1; 100]);
        builder.take(0, 100, &[1; 100]);
        assert!(builder.finish().is_none());
    }
}
