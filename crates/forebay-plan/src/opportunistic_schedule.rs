//! The schedule of the order `opportunistic`.
//!
//! How it works, in order:
//! 1. A window of a node is a segment: its units are read as a whole when its first sample is
//!    needed. A schedule that starts inside a window takes what is left.
//! 2. Resident samples come in segments of consecutive steps, as in orders without lanes. What
//!    `wrap` repeats of the windows is part of them.
//! 3. A window comes before the resident samples of its first step, or after those of a segment
//!    that reaches beyond it.
//! 4. Windows last longer than the segments after them. Staging memory is given back in the order
//!    of segments, so these count as needed until the window ends.

use std::sync::Arc;

use forebay_types::Rank;

use crate::opportunistic::{Entry, Finder, Opportunistic, Stream};
use crate::order::Order;
use crate::segment::{Demand, Segment};

/// How far a schedule is.
#[derive(Clone, Debug)]
pub(crate) struct OpportunisticFlow {
    /// The first step without its resident samples.
    next_step: u64,
    segment_steps: u64,
    max_steps: u64,
    /// The stream of the epoch under way.
    stream: Option<Arc<Stream>>,
    cursors: Vec<Cursor>,
    /// Last step of the segment before.
    last_step: u64,
}

/// A node that some of the ranks are on.
#[derive(Clone, Debug)]
struct Cursor {
    node: usize,
    /// The ranks, with their local numbers.
    ranks: Vec<(u32, Rank)>,
    /// The first entry of its windows that is not in a segment.
    entry: u64,
}

impl Cursor {
    /// The step of the epoch that takes an entry.
    fn step(&self, order: &Order, parts: &Opportunistic, entry: u64) -> u64 {
        let part = &parts.nodes()[self.node];
        part.position_of(entry) / (order.spec().batch * part.ranks)
    }

    /// Whether entries are left, and the step of the first one.
    fn first_step(&self, order: &Order, parts: &Opportunistic) -> Option<u64> {
        let is_left = self.entry < parts.nodes()[self.node].streamed();
        is_left.then(|| self.step(order, parts, self.entry))
    }
}

impl OpportunisticFlow {
    /// From absolute step `start` on, for these ranks. Segments of resident samples have
    /// `segment_steps` steps at first, and later up to `max_steps`.
    pub(crate) fn new(
        parts: &Opportunistic,
        node_ranks: &[Rank],
        start: u64,
        segment_steps: u64,
        max_steps: u64,
    ) -> Self {
        let mut cursors: Vec<Cursor> = Vec::new();
        for (local_rank, rank) in (0..).zip(node_ranks) {
            let node = parts.shares().node_of_rank(*rank);
            match cursors.iter_mut().find(|cursor| cursor.node == node) {
                Some(cursor) => cursor.ranks.push((local_rank, *rank)),
                None => cursors.push(Cursor { node, ranks: vec![(local_rank, *rank)], entry: 0 }),
            }
        }
        Self { next_step: start, segment_steps, max_steps, stream: None, cursors, last_step: start }
    }

    /// The next segment.
    pub(crate) fn next(&mut self, order: &Order, parts: &Opportunistic) -> Segment {
        if let Some(segment) = self.window(order, parts) {
            return segment;
        }
        let steps = order.steps_per_epoch();
        let epoch = self.next_step / steps;
        if self.stream.as_ref().is_none_or(|stream| stream.epoch() != epoch) {
            self.begin(order, parts, epoch);
            if let Some(segment) = self.window(order, parts) {
                return segment;
            }
        }
        self.steps(order, parts)
    }

    /// Begins an epoch at the next step.
    fn begin(&mut self, order: &Order, parts: &Opportunistic, epoch: u64) {
        self.stream = Some(parts.stream(epoch));
        for cursor in &mut self.cursors {
            let part = &parts.nodes()[cursor.node];
            let first = self.next_step % order.steps_per_epoch() * order.spec().batch * part.ranks;
            cursor.entry = part.streamed_before(first.min(part.samples));
        }
    }

    /// The next window, if one begins before the resident samples that come next.
    fn window(&mut self, order: &Order, parts: &Opportunistic) -> Option<Segment> {
        let stream = self.stream.as_ref()?;
        let base = stream.epoch() * order.steps_per_epoch();
        let next = |cursor: &Cursor| cursor.first_step(order, parts);
        let cursor =
            self.cursors.iter_mut().filter(|cursor| next(cursor).is_some()).min_by_key(|one| next(one))?;
        let first = next(cursor).filter(|step| base + step <= self.next_step)?;
        let part = &parts.nodes()[cursor.node];
        let end = parts.window_at(stream, cursor.node, cursor.entry).entries.end;
        let last = cursor.step(order, parts, end - 1);
        let mut finder = Finder::new(parts, stream, cursor.node);
        let mut demands = Vec::with_capacity((end - cursor.entry) as usize);
        for step in first..=last {
            for (local_rank, rank) in &cursor.ranks {
                let positions = order.node_run(parts.shares(), step, *rank).positions;
                let entry = |position: u64| part.streamed_before(position.min(part.samples));
                let entries = entry(positions.start).max(cursor.entry)..entry(positions.end).min(end);
                demands.extend(entries.map(|entry| Demand {
                    sample: finder.streamed(entry),
                    local_rank: *local_rank,
                    step: (step - first) as u32,
                    slot: (part.position_of(entry) - positions.start) as u32,
                }));
            }
        }
        cursor.entry = end;
        self.last_step = self.last_step.max(base + last);
        Some(Segment { first_step: base + first, last_step: self.last_step, demands })
    }

    /// The resident samples of the next steps.
    fn steps(&mut self, order: &Order, parts: &Opportunistic) -> Segment {
        let stream = self.stream.as_ref().expect("an epoch has begun");
        let per_epoch = order.steps_per_epoch();
        let first_step = self.next_step;
        let epoch_end = (stream.epoch() + 1) * per_epoch - 1;
        let last_step = first_step.saturating_add(self.segment_steps - 1).min(epoch_end);
        self.next_step = last_step + 1;
        self.segment_steps = (self.segment_steps * 2).min(self.max_steps);
        let mut finders: Vec<Finder> =
            self.cursors.iter().map(|cursor| Finder::new(parts, stream, cursor.node)).collect();
        let mut demands = Vec::new();
        for (step, absolute) in (0..).zip(first_step..=last_step) {
            for (cursor, finder) in self.cursors.iter().zip(&mut finders) {
                let part = &parts.nodes()[cursor.node];
                for (local_rank, rank) in &cursor.ranks {
                    let run = order.node_run(parts.shares(), absolute % per_epoch, *rank);
                    let is_here = |position: &u64| {
                        *position >= part.samples || matches!(part.entry(*position), Entry::Resident(_))
                    };
                    let slots = (0..).zip(run.positions).filter(|(_, position)| is_here(position));
                    demands.extend(slots.map(|(slot, position)| Demand {
                        sample: finder.sample(position),
                        local_rank: *local_rank,
                        step,
                        slot,
                    }));
                }
            }
        }
        self.last_step = self.last_step.max(last_step);
        Segment { first_step, last_step: self.last_step, demands }
    }
}
