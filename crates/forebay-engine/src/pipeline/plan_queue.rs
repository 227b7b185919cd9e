//! The plans that a process holds: segments of the order with their places, reads and blocks.
//!
//! The planner adds them in order; readers and gather threads look them up; the planner removes
//! those that no thread of this process needs any more.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_plan::{Plan, Segment, next_block_of_reader, segments_ahead};
use forebay_types::Located;

/// A planned segment.
pub(crate) struct PlannedSegment {
    pub(crate) segment: Segment,
    pub(crate) located: Located,
    pub(crate) plan: Plan,
    /// Whether the plan leaves bytes to the ranks that need them.
    pub(crate) has_in_place: bool,
    /// Positions in `segment.demands` of this rank, by step (relative) and slot.
    own: Vec<u32>,
    /// For each step of the segment, where its needs begin in `own`.
    own_starts: Vec<u32>,
}

impl PlannedSegment {
    /// Selects the demands of `local_rank`.
    pub(crate) fn new(segment: Segment, located: Located, plan: Plan, local_rank: u32) -> Self {
        let steps = (segment.last_step - segment.first_step + 1) as usize;
        let mut own: Vec<u32> = (0..segment.demands.len() as u32)
            .filter(|need| segment.demands[*need as usize].local_rank == local_rank)
            .collect();
        own.sort_unstable_by_key(|need| {
            let need = &segment.demands[*need as usize];
            (need.step, need.slot)
        });
        let mut own_starts = Vec::with_capacity(steps + 1);
        let mut at = 0;
        for step in 0..=steps as u32 {
            while at < own.len() && segment.demands[own[at] as usize].step < step {
                at += 1;
            }
            own_starts.push(at as u32);
        }
        let has_in_place = plan.leaves_in_place();
        Self { segment, located, plan, has_in_place, own, own_starts }
    }

    /// This rank's needs at an absolute step: positions in `segment.demands`, by slot.
    pub(crate) fn needs_at(&self, step: u64) -> &[u32] {
        if step < self.segment.first_step || step > self.segment.last_step {
            return &[];
        }
        let relative = (step - self.segment.first_step) as usize;
        &self.own[self.own_starts[relative] as usize..self.own_starts[relative + 1] as usize]
    }

    fn last_sequence(&self) -> Option<u64> {
        self.plan.blocks.last().map(|block| block.sequence)
    }
}

/// The plans that a process holds.
pub(crate) struct PlanQueue {
    list: Mutex<VecDeque<Arc<PlannedSegment>>>,
    /// All needs of steps before this one are planned, or are not to be planned.
    covered: AtomicU64,
    /// Steps up to this one may have lost a segment; exclusive.
    forgotten: AtomicU64,
    /// The epoch + 1 for which planning waits until the user gives its order, else 0.
    lacking: AtomicU64,
    /// From this step on nothing is planned: the rank copies its samples from the page cache.
    unplanned: AtomicU64,
}

impl PlanQueue {
    pub(crate) fn new(start: u64) -> Self {
        Self {
            list: Mutex::new(VecDeque::new()),
            covered: AtomicU64::new(start),
            forgotten: AtomicU64::new(0),
            lacking: AtomicU64::new(0),
            unplanned: AtomicU64::new(u64::MAX),
        }
    }

    /// Records that all demands of steps before `step` are planned.
    pub(crate) fn cover(&self, step: u64) {
        self.covered.fetch_max(step, Ordering::AcqRel);
    }

    /// Records that nothing is planned from `step` on.
    pub(crate) fn end_at(&self, step: u64) {
        self.unplanned.store(step, Ordering::Release);
        self.cover(u64::MAX);
    }

    /// Whether a step is not planned, as the rank copies its samples from the page cache.
    pub(crate) fn leaves(&self, step: u64) -> bool {
        self.unplanned.load(Ordering::Acquire) <= step
    }

    /// Records the epoch for which planning waits until the user supplies its order, or that it
    /// waits for none.
    pub(crate) fn lack(&self, epoch: Option<u64>) {
        self.lacking.store(epoch.map_or(0, |epoch| epoch + 1), Ordering::Release);
    }

    /// Adds the next segment.
    pub(crate) fn push(&self, planned: PlannedSegment) {
        self.lock().push_back(Arc::new(planned));
    }

    /// Segments ahead of the readers ([`segments_ahead`]).
    pub(crate) fn ahead_of(&self, begun: u64, claim: Option<u64>) -> usize {
        let list = self.lock();
        let planned = list.iter().rev().map(|planned| (planned.segment.first_step, planned.last_sequence()));
        segments_ahead(planned, begun, claim)
    }

    /// Removes finished segments from the front.
    pub(crate) fn forget_while(&self, done: impl Fn(&PlannedSegment) -> bool) -> Vec<Arc<PlannedSegment>> {
        let mut list = self.lock();
        let mut forgotten = Vec::new();
        while let Some(front) = list.front().filter(|front| done(front)) {
            self.forgotten.fetch_max(front.segment.last_step + 1, Ordering::Relaxed);
            forgotten.extend(list.pop_front());
        }
        forgotten
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<PlannedSegment>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all needs of a step are planned.
    pub(crate) fn covers(&self, step: u64) -> bool {
        self.covered.load(Ordering::Acquire) > step
    }

    /// The epoch for which planning waits until the user gives its order.
    pub(crate) fn lacking(&self) -> Option<u64> {
        self.lacking.load(Ordering::Acquire).checked_sub(1)
    }

    /// Whether all blocks before block `place` of `planned` that lie in the same memory, or have
    /// the same word, are filled.
    ///
    /// A segment that was forgotten had all its blocks filled.
    pub(crate) fn is_free(
        &self,
        planned: &PlannedSegment,
        place: usize,
        words: u64,
        filled: impl Fn(u64) -> bool,
    ) -> bool {
        let block = &planned.plan.blocks[place];
        let end = block.ring_offset + block.length;
        let earlier = |other: &&forebay_plan::Block| other.sequence < block.sequence;
        self.lock().iter().flat_map(|planned| planned.plan.blocks.iter()).take_while(earlier).all(|other| {
            let overlaps = other.ring_offset < end && block.ring_offset < other.ring_offset + other.length;
            let same_word = other.sequence + words <= block.sequence;
            !(overlaps || same_word) || filled(other.sequence)
        })
    }

    /// The segments with needs at a step; `None` where one of them may have been forgotten.
    pub(crate) fn at(&self, step: u64) -> Option<Vec<Arc<PlannedSegment>>> {
        let list = self.lock();
        if step < self.forgotten.load(Ordering::Relaxed) {
            return None;
        }
        Some(
            list.iter()
                .filter(|planned| planned.segment.first_step <= step && step <= planned.segment.last_step)
                .cloned()
                .collect(),
        )
    }

    /// The segment that holds the first block at or behind `sequence` that belongs to `reader` of
    /// `readers`, and its place.
    pub(crate) fn next_block(
        &self,
        sequence: u64,
        reader: u64,
        readers: u64,
    ) -> Option<(Arc<PlannedSegment>, usize)> {
        let list = self.lock();
        for planned in list.iter() {
            let Some(first) = planned.plan.blocks.first().map(|block| block.sequence) else { continue };
            let wanted = next_block_of_reader(sequence.max(first), reader, readers);
            if let Some(place) = wanted.checked_sub(first)
                && (place as usize) < planned.plan.blocks.len()
            {
                return Some((Arc::clone(planned), place as usize));
            }
        }
        None
    }
}
