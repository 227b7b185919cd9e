//! Keeping what an index build reads.
//!
//! Where the values lie among the pages of the tree (small values, "inline"), the walk that finds them reads all of them:
//! nothing but a leaf says how many records it holds and how long they are. Read a second time they would cost the storage
//! twice, so whoever builds the index may have every byte handed on as it comes.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_io::ReadError;

use super::Dataset;
use crate::file::ReadAt;

/// Takes the bytes that are read of the shards; called by several threads at once.
pub trait ValueSink: Send + Sync + fmt::Debug {
    /// These bytes stand at `offset` \[bytes\] of shard `shard`.
    fn take(&self, shard: usize, offset: u64, bytes: &[u8]);
}

impl Dataset {
    /// Bytes of the tree pages, where all values lie among them; `None` where some value has pages of its own.
    pub fn inline_bytes(&self) -> Option<u64> {
        let mut bytes = 0;
        for database in self.databases("keeping values").ok()? {
            let tree = &database.identity().tree;
            if tree.overflow_pages > 0 {
                return None;
            }
            bytes += (tree.branch_pages + tree.leaf_pages) * u64::from(database.page_bytes());
        }
        Some(bytes)
    }

    /// The same data set, with everything that [`Dataset::build_index`] reads also handed to `sink`.
    #[must_use]
    pub fn read_into(&self, sink: &Arc<dyn ValueSink>) -> Self {
        let mut kept = self.clone();
        for (shard, file) in kept.files.iter_mut().enumerate() {
            if let Ok(database) = self.database(shard, "keeping values") {
                let tee = |inner| Arc::new(Tee { inner, shard, sink: Arc::clone(sink) }) as _;
                *file = Arc::new(database.read_through(tee));
            }
        }
        kept
    }
}

/// A source that hands on what it reads.
#[derive(Debug)]
struct Tee {
    inner: Arc<dyn ReadAt>,
    shard: usize,
    sink: Arc<dyn ValueSink>,
}

impl ReadAt for Tee {
    fn bytes(&self) -> io::Result<u64> {
        self.inner.bytes()
    }

    fn pread(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.pread(offset, into)?;
        self.sink.take(self.shard, offset, &into[..count]);
        Ok(count)
    }

    fn will_need(&self, offset: u64, length: u64) {
        self.inner.will_need(offset, length);
    }

    fn reopen(&self) -> Result<(), ReadError> {
        self.inner.reopen()
    }

    fn pause(&self, time: Duration) {
        self.inner.pause(time);
    }
}
