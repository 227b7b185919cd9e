//! How a root finds the samples of a step: from record to record, through its mapping.
//!
//! - LMDBIO-LMM: it passes over all records in between, those of other nodes and other roots included. Nothing is
//!   announced to the storage, so a page that is missing is a page fault of this thread. It touches each record when it comes to
//!   it, as LMDB's users do: who goes from leaf to leaf first, and back for the records, makes a disk seek twice.
//! - LMDBIO-LMM-DM: it waits until the cursor is handed to it (`handoff.rs`) and passes over its own records only, which it
//!   touches when it has handed the cursor on. While it waits it asks the kernel for the pages that it will need, on a guess
//!   ([`PageGuess`]).

use std::ops::Range;
use std::time::{Duration, Instant};

use forebay_format::{SampleCursor, SamplePlace};
use forebay_io::{Mappings, guard};
use forebay_plan::{Kind, PAGE_BYTES, PageGuess};
use forebay_types::{Extent, Located, Piece, Rank, SampleId, ShardId};

use super::handoff::Handoff;
use crate::base::failpoint;
use crate::base::fallback::Wanted;
use crate::config::options::Locate;
use crate::error::Error;
use crate::pipeline::session::Session;
use crate::pipeline::thread_group::out_of_storage;
use crate::shm::counters::{Counter, count, monotonic_ns};
use crate::shm::location_ring::SampleLocation;
use crate::shm::stall::Doing;

/// Where a root stands in the container.
pub(super) struct Walk<'a> {
    session: &'a Session,
    /// Of the root.
    number: usize,
    /// One cursor for all ranks where they go through the file together, else one for each.
    cursors: Vec<SampleCursor>,
    ids: Vec<SampleId>,
    handoff: Option<(Handoff, PageGuess)>,
    /// The shard that the guess is about.
    guessed_shard: usize,
    /// What the leg under way found.
    leg: Vec<SampleLocation>,
    aside: Duration,
}

impl<'a> Walk<'a> {
    pub(super) fn new(session: &'a Session, number: usize) -> Self {
        let context = &session.context;
        let apart = context.order.kind() == Kind::Contiguous;
        let cursors = if apart { context.node_ranks.len() } else { 1 };
        let hands_over = context.settings.locate == Locate::Handoff;
        Self {
            session,
            number,
            cursors: (0..cursors).map(|_| SampleCursor::default()).collect(),
            ids: Vec::new(),
            handoff: hands_over
                .then(|| (Handoff::new(&context.options, context.links.as_ref()), PageGuess::default())),
            guessed_shard: 0,
            leg: Vec::new(),
            aside: Duration::ZERO,
        }
    }

    /// Time spent waiting for the cursor and touching records since this was last asked: it is not seeking.
    pub(super) fn take_aside(&mut self) -> Duration {
        std::mem::take(&mut self.aside)
    }

    /// Whether another node waits for the cursor, so that it is handed on before anything is touched.
    fn hands_to_others(&self) -> bool {
        self.handoff.is_some() && self.session.context.links.is_some()
    }

    /// Fetches the pages of a record that was found.
    fn touch(&mut self, mappings: &Mappings, find: SampleLocation) {
        let extent = Extent { shard: ShardId(find.shard), offset: find.offset, length: find.length };
        self.aside += self.session.context.touch(mappings, extent);
    }

    /// Finds the samples that the ranks of the node need at an absolute step.
    pub(super) fn step(&mut self, step: u64) -> Result<(), Error> {
        let Some(mappings) = &self.session.context.mappings else {
            return Err(Error::local("the data set cannot be mapped"));
        };
        guard::keep();
        let faults = guard::faults();
        let walked = self.legs(mappings, step);
        if guard::faults() != faults {
            // A walk through lost pages found zeros.
            mappings.check()?;
        }
        walked
    }

    fn legs(&mut self, mappings: &Mappings, step: u64) -> Result<(), Error> {
        let legs = self.handoff.as_ref().map(|(handoff, _)| handoff.own_legs());
        let Some(legs) = legs else {
            return (0..self.session.context.node_ranks.len())
                .try_for_each(|local| self.rank(mappings, step, local));
        };
        legs.into_iter().try_for_each(|(leg, ranks)| self.leg(mappings, step, leg, ranks))
    }

    /// Finds the samples of one rank, by its place on the node.
    fn rank(&mut self, mappings: &Mappings, step: u64, local: usize) -> Result<(), Error> {
        let context = &self.session.context;
        let per_epoch = context.order.steps_per_epoch();
        let bytes = |shard, offset, length| mappings.bytes(shard, offset, length);
        let dataset = context.source.dataset();
        let rank = context.node_ranks[local];
        self.ids.clear();
        context.order.batch(step / per_epoch, step % per_epoch, rank, None, &mut self.ids);
        let cursor = if self.cursors.len() > 1 { local } else { 0 };
        for slot in 0..self.ids.len() {
            let id = self.ids[slot];
            let place = dataset.find_by_cursor(&mut self.cursors[cursor], &context.index, id, &bytes)?;
            let find = SampleLocation::from(place);
            let need = local as u64 * context.options.batch_size + slot as u64;
            context.region.finds().put(step, need, Some(find));
            if self.handoff.is_some() {
                self.leg.push(find);
            }
            if !self.hands_to_others() {
                self.touch(mappings, find);
            }
        }
        Ok(())
    }

    /// Finds the samples of one leg, from the cursor that is handed over, and hands it on.
    fn leg(&mut self, mappings: &Mappings, step: u64, leg: u32, ranks: Range<u32>) -> Result<(), Error> {
        let context = &self.session.context;
        let first = self.first_of(step, ranks.clone());
        if let Some((first, count)) = first {
            self.announce(first, count)?;
        }
        let Some((handoff, _)) = &mut self.handoff else { return Ok(()) };
        let begun = Instant::now();
        let seeking = &context.region.readers()[self.number].seeking;
        Doing::Turn.publish(seeking);
        let told = out_of_storage(|| handoff.wait(self.session, step, leg));
        Doing::Reading(monotonic_ns()).publish(seeking);
        self.aside += begun.elapsed();
        let takes = told.is_some();
        if let Some(told) = told
            && let Err(refused) = self.take(mappings, &told, first.map(|(first, _)| first))
        {
            context.falls_back(Wanted::Handoff, format!("the cursor that was handed over: {refused}"));
        }
        if takes {
            failpoint::at(failpoint::Place::Cursor);
        }
        self.leg.clear();
        for rank in ranks {
            if let Some(local) = context.node_ranks.iter().position(|own| *own == Rank(rank)) {
                self.rank(mappings, step, local)?;
            }
        }
        let Some((handoff, _)) = &mut self.handoff else { return Ok(()) };
        let cursor = &self.cursors[0];
        let bytes = handoff.pass_on(step, leg, || context.source.dataset().export_cursor(cursor));
        count(context.slot(), Counter::CursorBytes, bytes);
        if self.hands_to_others() {
            for find in 0..self.leg.len() {
                self.touch(mappings, self.leg[find]);
            }
        }
        first.map_or(Ok(()), |(first, _)| self.learn(first))
    }

    /// The first sample of a leg, and how many it has.
    fn first_of(&mut self, step: u64, ranks: Range<u32>) -> Option<(SampleId, u64)> {
        let context = &self.session.context;
        let per_epoch = context.order.steps_per_epoch();
        self.ids.clear();
        for rank in ranks {
            context.order.batch(step / per_epoch, step % per_epoch, Rank(rank), None, &mut self.ids);
        }
        self.ids.first().map(|first| (*first, self.ids.len() as u64))
    }

    /// Takes a cursor that was handed over, if it leads to the sample that comes next.
    ///
    /// The first sample is looked up in the index, too: a cursor that is off by one record is off for good.
    fn take(&mut self, mappings: &Mappings, told: &[u8], first: Option<SampleId>) -> Result<(), Error> {
        let context = &self.session.context;
        let bytes = |shard, offset, length| mappings.bytes(shard, offset, length);
        let dataset = context.source.dataset();
        let cursor = dataset.import_cursor(&context.index, told, &bytes)?;
        if let Some(first) = first {
            if first.0 < cursor.next_sample() {
                return Ok(()); // behind it: the order begins anew here
            }
            let mut ahead = cursor.clone();
            let found = dataset.find_by_cursor(&mut ahead, &context.index, first, &bytes)?;
            let expected = self.look_up(first)?;
            if expected != Some((found.extent.shard, found.extent.offset)) {
                let (found, first) = (found.extent, first.0);
                return Err(Error::local(format!(
                    "sample {first} is at {expected:?} by the index and at {:?} by the cursor",
                    (found.shard, found.offset)
                )));
            }
        }
        self.cursors[0] = cursor;
        Ok(())
    }

    /// Where the index says that a sample begins.
    fn look_up(&self, sample: SampleId) -> Result<Option<(ShardId, u64)>, Error> {
        let mut located = Located::default();
        self.session.context.index.locate(&[sample], &mut located)?;
        let extent = located.pieces().iter().find_map(|piece| match piece {
            Piece::Extent(extent) => Some((extent.shard, extent.offset)),
            Piece::Literal { .. } => None,
        });
        Ok(extent)
    }

    /// Asks the kernel for the pages that a leg will need, on a guess.
    fn announce(&mut self, first: SampleId, count_samples: u64) -> Result<(), Error> {
        let context = &self.session.context;
        let (shard, before) = context.index.shard_of_sample(first)?;
        let Some((_, guess)) = &mut self.handoff else { return Ok(()) };
        if shard != self.guessed_shard {
            (*guess, self.guessed_shard) = (PageGuess::default(), shard);
        }
        let mut pages = guess.pages(first.0 - before, count_samples);
        if failpoint::spoils_guesses() {
            pages = guess.spoil();
        }
        let shard = ShardId(shard as u32);
        let from = pages.start.saturating_mul(PAGE_BYTES);
        let to = pages.end.saturating_mul(PAGE_BYTES).min(context.files.bytes(shard));
        if from < to {
            context.files.will_need(shard, from, to - from);
            count(context.slot(), Counter::GuessedPages, (to - from).div_ceil(PAGE_BYTES));
        }
        Ok(())
    }

    /// Compares the guess for a leg with what it found.
    fn learn(&mut self, first: SampleId) -> Result<(), Error> {
        let context = &self.session.context;
        let (shard, before) = context.index.shard_of_sample(first)?;
        let Some((_, guess)) = &mut self.handoff else { return Ok(()) };
        let in_shard = self.leg.iter().filter(|find| find.shard as usize == shard);
        let finds: Vec<(u64, u64)> = in_shard.map(|find| (find.offset, find.length)).collect();
        let outcome = guess.learn(first.0 - before, &finds);
        count(context.slot(), Counter::GuessHits, outcome.hits);
        count(context.slot(), Counter::GuessMisses, outcome.misses);
        Ok(())
    }
}

impl From<SamplePlace> for SampleLocation {
    fn from(place: SamplePlace) -> Self {
        Self {
            shard: place.extent.shard.0,
            head_bytes: place.head_bytes,
            offset: place.extent.offset,
            length: place.extent.length,
            guard: place.guard,
        }
    }
}
