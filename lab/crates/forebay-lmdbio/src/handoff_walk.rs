//! Locates samples by a walk that passes from root to root (LMDBIO-LMM-DM).
//!
//! The root of a node waits for the cursor ([`Handoff`]), walks over its own records only, and
//! touches them after it has sent the cursor on. A root that waits prefetches predicted pages
//! ([`PageGuess`]).

use std::ops::Range;
use std::sync::Arc;

use forebay_format::{Dataset, Error, Index};
use forebay_host::failpoint;
use forebay_plan::{BoxedLocator, LocatorCounter, LocatorFactory, LocatorHost, LocatorTask, SampleLocator};
use forebay_types::{Extent, Located, Piece, Rank, SampleId, SampleLocation, ShardId};

use crate::cursor_walk::{Walker, check};
use crate::handoff::Handoff;
use crate::handoff_host::{of_task, pass_on, receive};
use crate::page_guess::{PAGE_BYTES, PageGuess};

/// Creates the locators of a job that walk one after another; each node has one.
pub struct HandoffWalks {
    dataset: Arc<Dataset>,
}

impl HandoffWalks {
    /// For a dataset.
    #[must_use]
    pub fn new(dataset: Arc<Dataset>) -> Self {
        Self { dataset }
    }
}

impl LocatorFactory for HandoffWalks {
    type Index = Index;
    type Error = Error;

    fn check(&self) -> Result<(), Error> {
        check(&self.dataset)
    }

    fn locator(&self, task: LocatorTask, index: Arc<Index>) -> BoxedLocator<Error> {
        Box::new(HandoffWalk {
            handoff: of_task(&task),
            walker: Walker::new(&self.dataset, index, task),
            guess: PageGuess::default(),
            guessed_shard: 0,
            located: Vec::new(),
        })
    }
}

struct HandoffWalk {
    walker: Walker,
    handoff: Handoff,
    guess: PageGuess,
    /// The shard of the guess.
    guessed_shard: usize,
    /// Locations in the current range of ranks.
    located: Vec<SampleLocation>,
}

impl SampleLocator for HandoffWalk {
    type Error = Error;

    fn locate(&mut self, step: u64, host: &dyn LocatorHost) -> Result<(), Error> {
        let ranges = self.handoff.own_ranges();
        ranges.into_iter().try_for_each(|(number, ranks)| self.locate_range(step, number, ranks, host))
    }
}

impl HandoffWalk {
    /// Locates the samples of a range of ranks from the received cursor, then sends it on.
    fn locate_range(
        &mut self,
        step: u64,
        number: u32,
        ranks: Range<u32>,
        host: &dyn LocatorHost,
    ) -> Result<(), Error> {
        let samples = self.walker.samples(step, ranks.clone().map(Rank));
        let first = samples.first().map(|first| (*first, samples.len() as u64));
        if let Some((first, count)) = first {
            self.prefetch(first, count, host)?;
        }
        if let Some(bytes) = receive(&mut self.handoff, step, number, host) {
            if let Err(refused) = self.take(&bytes, first.map(|(first, _)| first), host) {
                host.report_refused_cursor(format!("the cursor that was handed over: {refused}"));
            }
            failpoint::at(failpoint::StopPoint::Cursor);
        }
        self.located.clear();
        // Send the cursor on before touching any record.
        let touches_at_once = !host.is_linked();
        for rank in ranks {
            if let Some(rank) = self.walker.task.ranks.iter().position(|own| *own == Rank(rank)) {
                self.walker.locate(step, rank, host, &mut |slot, location| {
                    host.publish(rank, slot, location);
                    self.located.push(location);
                    if touches_at_once {
                        host.touch(location.extent);
                    }
                })?;
            }
        }
        let bytes = pass_on(&mut self.handoff, step, number, || self.walker.export(), host);
        host.count(LocatorCounter::CursorBytes, bytes);
        if !touches_at_once {
            self.located.iter().for_each(|location| host.touch(location.extent));
        }
        first.map_or(Ok(()), |(first, _)| self.learn(first, host))
    }

    /// Adopts a received cursor if it leads to the next sample.
    ///
    /// Checks the first sample against the index: a cursor that is off by one record stays off.
    fn take(
        &mut self,
        exported: &[u8],
        first: Option<SampleId>,
        host: &dyn LocatorHost,
    ) -> Result<(), String> {
        let bytes = |shard, offset, length| host.bytes(shard, offset, length);
        let Walker { dataset, index, .. } = &self.walker;
        let failed = |error: Error| error.to_string();
        let cursor = dataset.import_cursor(index, exported, &bytes).map_err(failed)?;
        if let Some(first) = first {
            if first.0 < cursor.next_sample() {
                return Ok(()); // past it: the order starts over here
            }
            let mut ahead = cursor.clone();
            let found = dataset.find_by_cursor(&mut ahead, index, first, &bytes).map_err(failed)?;
            let expected = look_up(index, first).map_err(failed)?;
            let found = (found.extent.shard, found.extent.offset);
            if expected != Some(found) {
                let first = first.0;
                return Err(format!(
                    "sample {first} is at {expected:?} by the index and at {found:?} by the cursor"
                ));
            }
        }
        self.walker.go_on_from(cursor);
        Ok(())
    }

    /// Prefetches the predicted pages of a range of ranks.
    fn prefetch(&mut self, first: SampleId, count: u64, host: &dyn LocatorHost) -> Result<(), Error> {
        let (shard, before) = self.walker.index.shard_of_record(first)?;
        if shard != self.guessed_shard {
            (self.guess, self.guessed_shard) = (PageGuess::default(), shard);
        }
        let mut pages = self.guess.pages(first.0 - before, count);
        if failpoint::spoils_guesses() {
            pages = self.guess.spoil();
        }
        let offset = pages.start.saturating_mul(PAGE_BYTES);
        let length = pages.end.saturating_mul(PAGE_BYTES).saturating_sub(offset);
        let bytes = host.prefetch(Extent { shard: ShardId(shard as u32), offset, length });
        host.count(LocatorCounter::GuessedPages, bytes.div_ceil(PAGE_BYTES));
        Ok(())
    }

    /// Compares the guess with the locations of the samples.
    fn learn(&mut self, first: SampleId, host: &dyn LocatorHost) -> Result<(), Error> {
        let (shard, before) = self.walker.index.shard_of_record(first)?;
        let extents = self.located.iter().map(|location| location.extent);
        let in_shard = extents.filter(|extent| extent.shard.0 as usize == shard);
        let extents: Vec<(u64, u64)> = in_shard.map(|extent| (extent.offset, extent.length)).collect();
        let outcome = self.guess.learn(first.0 - before, &extents);
        host.count(LocatorCounter::GuessHits, outcome.hits);
        host.count(LocatorCounter::GuessMisses, outcome.misses);
        Ok(())
    }
}

/// Offset of a sample according to the index.
fn look_up(index: &Index, sample: SampleId) -> Result<Option<(ShardId, u64)>, Error> {
    let mut located = Located::default();
    index.locate(&[sample], &mut located)?;
    Ok(located.pieces().iter().find_map(|piece| match piece {
        Piece::Extent(extent) => Some((extent.shard, extent.offset)),
        Piece::Literal { .. } => None,
    }))
}
