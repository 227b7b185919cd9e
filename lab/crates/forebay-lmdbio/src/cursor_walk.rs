//! Locates samples by a walk from record to record through a mapping (as LMDB itself does, and
//! LMDBIO-LMM).
//!
//! The walk passes over all records in between, also those of other nodes and roots. It prefetches
//! nothing, so a missing page is a page fault of its thread. It touches each record on reaching it,
//! as LMDB's users do: visiting all leaves first and the records later would double the seeks.

use std::sync::Arc;

use forebay_format::{Dataset, Error, Index, SampleCursor};
use forebay_plan::{
    BoxedLocator, LocatorFactory, LocatorHost, LocatorTask, OrderKind, PermutationCache, SampleLocator,
};
use forebay_types::{Rank, SampleId, SampleLocation};

/// Creates locators that walk independently.
pub struct CursorWalks {
    dataset: Arc<Dataset>,
}

impl CursorWalks {
    /// For a dataset.
    #[must_use]
    pub fn new(dataset: Arc<Dataset>) -> Self {
        Self { dataset }
    }
}

impl LocatorFactory for CursorWalks {
    type Index = Index;
    type Error = Error;

    fn check(&self) -> Result<(), Error> {
        check(&self.dataset)
    }

    fn locator(&self, task: LocatorTask, index: Arc<Index>) -> BoxedLocator<Error> {
        Box::new(CursorWalk(Walker::new(&self.dataset, index, task)))
    }
}

/// Checks that a dataset can be walked.
pub(crate) fn check(dataset: &Dataset) -> Result<(), Error> {
    dataset.need_lmdb("walking from record to record")
}

struct CursorWalk(Walker);

impl SampleLocator for CursorWalk {
    type Error = Error;

    fn locate(&mut self, step: u64, host: &dyn LocatorHost) -> Result<(), Error> {
        (0..self.0.task.ranks.len()).try_for_each(|rank| {
            self.0.locate(step, rank, host, &mut |slot, location| {
                host.publish(rank, slot, location);
                host.touch(location.extent);
            })
        })
    }
}

/// A position in the container, from which the samples of ranks are located.
pub(crate) struct Walker {
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) index: Arc<Index>,
    pub(crate) task: LocatorTask,
    /// One for all ranks if they read the file together, else one for each.
    cursors: Vec<SampleCursor>,
    ids: Vec<SampleId>,
    kept: PermutationCache,
}

impl Walker {
    pub(crate) fn new(dataset: &Arc<Dataset>, index: Arc<Index>, task: LocatorTask) -> Self {
        let cursors = if task.order.kind() == OrderKind::Contiguous { task.ranks.len() } else { 1 };
        let cursors = (0..cursors).map(|_| SampleCursor::default()).collect();
        Self {
            dataset: Arc::clone(dataset),
            index,
            task,
            cursors,
            ids: Vec::new(),
            kept: PermutationCache::default(),
        }
    }

    /// The cursor of all ranks, for another process.
    pub(crate) fn export(&self) -> Vec<u8> {
        self.dataset.export_cursor(&self.cursors[0])
    }

    /// Continues from a cursor.
    pub(crate) fn go_on_from(&mut self, cursor: SampleCursor) {
        self.cursors[0] = cursor;
    }

    /// Locates the samples of the `rank`-th rank at a step, in the order of their slots.
    pub(crate) fn locate(
        &mut self,
        step: u64,
        rank: usize,
        host: &dyn LocatorHost,
        found: &mut dyn FnMut(usize, SampleLocation),
    ) -> Result<(), Error> {
        self.samples(step, [self.task.ranks[rank]]);
        let bytes = |shard, offset, length| host.bytes(shard, offset, length);
        let cursor = if self.cursors.len() > 1 { rank } else { 0 };
        for (slot, id) in self.ids.iter().enumerate() {
            found(slot, self.dataset.find_by_cursor(&mut self.cursors[cursor], &self.index, *id, &bytes)?);
        }
        Ok(())
    }

    /// The samples of ranks at a step.
    pub(crate) fn samples(&mut self, step: u64, ranks: impl IntoIterator<Item = Rank>) -> &[SampleId] {
        self.task.order.batches_of_ranks(step, ranks, &mut self.kept, &mut self.ids);
        &self.ids
    }
}
