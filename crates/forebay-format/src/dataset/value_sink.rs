//! Keeping what an index build reads.
//!
//! Where values lie in the pages of the tree (small values, "inline"), the scan reads all of them,
//! since only a leaf holds the number and lengths of its records. To read them again would double
//! the load on storage, so the builder of the index can have every byte passed on.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_io::ReadError;

use super::Dataset;
use crate::file::ReadAt;

/// Takes the bytes that are read of the shards; called by several threads at once.
pub trait ValueSink: Send + Sync + fmt::Debug {
    /// Takes the bytes at `offset` \[bytes\] of shard `shard`.
    fn take(&self, shard: usize, offset: u64, bytes: &[u8]);
}

impl Dataset {
    /// Size of the tree pages, if all values lie in them; `None` if a value has pages of its own
    /// \[bytes\].
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

    /// The same dataset; everything that [`Dataset::build_index`] reads also goes to `sink`.
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

/// A source that passes on the bytes it reads.
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
