//! The schedule of the order `opportunistic`: what a node streams.
//!
//! How it works, in order:
//! 1. An epoch begins with a segment without samples, so that a schedule never stalls: a node may
//!    stream nothing.
//! 2. A window of a node is a segment: its units are read as a whole when its first sample is
//!    needed. A schedule that starts inside a window takes what is left.
//! 3. Streamed samples that `wrap` repeats in the last step are a segment of their own.
//!
//! Resident samples are in no segment: each rank finds its own ([`Order::resident_batch`]).

use std::sync::Arc;

use forebay_types::Rank;

use crate::opportunistic::{Entry, Finder, NodePart, Opportunistic, Stream};
use crate::order::Order;
use crate::segment::{Demand, Segment};

/// How far a schedule is.
#[derive(Clone, Debug)]
pub(crate) struct OpportunisticFlow {
    /// Where the next epoch begins, or the schedule.
    next_step: u64,
    /// The stream of the epoch under way, until all of it is in segments.
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
    /// From absolute step `start` on, for these ranks.
    pub(crate) fn new(parts: &Opportunistic, node_ranks: &[Rank], start: u64) -> Self {
        let mut cursors: Vec<Cursor> = Vec::new();
        for (local_rank, rank) in (0..).zip(node_ranks) {
            let node = parts.shares().node_of_rank(*rank);
            match cursors.iter_mut().find(|cursor| cursor.node == node) {
                Some(cursor) => cursor.ranks.push((local_rank, *rank)),
                None => cursors.push(Cursor { node, ranks: vec![(local_rank, *rank)], entry: 0 }),
            }
        }
        Self { next_step: start, stream: None, cursors, last_step: start }
    }

    /// The next segment.
    pub(crate) fn next(&mut self, order: &Order, parts: &Opportunistic) -> Segment {
        let found = self.window(order, parts).or_else(|| self.repeated(order, parts));
        found.unwrap_or_else(|| self.begin(order, parts))
    }

    /// Begins an epoch at the next step.
    fn begin(&mut self, order: &Order, parts: &Opportunistic) -> Segment {
        let (steps, first_step) = (order.steps_per_epoch(), self.next_step);
        self.stream = Some(parts.stream(first_step / steps));
        for cursor in &mut self.cursors {
            let part = &parts.nodes()[cursor.node];
            let first = first_step % steps * order.spec().batch * part.ranks;
            cursor.entry = part.streamed_before(first.min(part.samples));
        }
        self.next_step = (first_step / steps + 1) * steps;
        self.last_step = first_step;
        Segment { first_step, last_step: first_step, demands: Vec::new() }
    }

    /// The next window of the epoch.
    fn window(&mut self, order: &Order, parts: &Opportunistic) -> Option<Segment> {
        let stream = self.stream.as_ref()?;
        let base = stream.epoch() * order.steps_per_epoch();
        let next = |cursor: &Cursor| cursor.first_step(order, parts);
        let cursor =
            self.cursors.iter_mut().filter(|cursor| next(cursor).is_some()).min_by_key(|one| next(one))?;
        let first = next(cursor)?;
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

    /// Streamed samples that the last step of the epoch repeats, if any: the end of the epoch.
    fn repeated(&mut self, order: &Order, parts: &Opportunistic) -> Option<Segment> {
        let stream = self.stream.take()?;
        let step = self.next_step - 1;
        let mut demands = Vec::new();
        for cursor in &self.cursors {
            let part = &parts.nodes()[cursor.node];
            let mut finder = Finder::new(parts, &stream, cursor.node);
            for (local_rank, rank) in &cursor.ranks {
                let positions =
                    order.node_run(parts.shares(), step % order.steps_per_epoch(), *rank).positions;
                let slots = (0..).zip(positions).filter(|(_, position)| is_repeated(part, *position));
                demands.extend(slots.map(|(slot, position)| Demand {
                    sample: finder.sample(position),
                    local_rank: *local_rank,
                    step: 0,
                    slot,
                }));
            }
        }
        self.last_step = step;
        (!demands.is_empty()).then_some(Segment { first_step: step, last_step: step, demands })
    }
}

/// Whether a streamed sample stands at a position beyond the end of the sequence.
fn is_repeated(part: &NodePart, position: u64) -> bool {
    position >= part.samples && matches!(part.entry(position % part.samples), Entry::Streamed(_))
}
