//! The schedule of the order `opportunistic`: what a node streams.
//!
//! How it works, in order:
//! 1. An epoch begins with a segment without samples, so that a schedule never stalls: a node may
//!    stream nothing.
//! 2. A section of a node is a segment: its units are read as a whole when its first sample is
//!    needed. Its samples are known when all turns that draw from it are laid out, those of later
//!    sections in part. A schedule that starts inside an epoch takes what is left of the sections.
//! 3. Streamed samples that `fill` repeats in the last step are a segment of their own.
//!
//! Resident samples are in no segment: each rank finds its own ([`Order::resident_batch`]).

use std::sync::Arc;

use forebay_types::Rank;

use crate::order::Order;
use crate::order::opportunistic::{Finder, NodePart, Opportunistic, SequenceEntry, Slice, Stream, Turn};
use crate::schedule::segment::{Demand, Segment};
use std::collections::VecDeque;

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
    /// The first entry that the schedule takes of the epoch.
    start: u64,
    /// The next turn to lay out.
    turn: u64,
    /// The first section that is not in a segment yet; `pending` begins with it.
    section: u64,
    /// For each section from there on, its samples in the turns that are laid out; steps are those
    /// of the epoch.
    pending: VecDeque<Vec<Demand>>,
    /// The turn that was laid out last.
    last_turn: Option<Turn>,
}

impl Cursor {
    /// Begins an epoch at one of its entries.
    fn begin(&mut self, slice: &Slice<'_>, start: u64) {
        self.start = start;
        self.turn = slice.turn_at(start);
        self.section = slice.sections.drawn_in(self.turn).start;
        self.pending.clear();
        self.last_turn = None;
    }

    /// The step of the epoch that takes an entry.
    fn step(&self, order: &Order, parts: &Opportunistic, entry: u64) -> u64 {
        order.node_step(parts.shares(), self.node, parts.nodes()[self.node].position_of(entry))
    }

    /// The steps that the turns of the next section begin and end in; none after the last section.
    fn steps(&self, order: &Order, parts: &Opportunistic, stream: &Stream) -> Option<(u64, u64)> {
        let (slice, streamed) = (parts.slice(stream, self.node), parts.nodes()[self.node].streamed());
        if self.start >= streamed || self.section >= slice.sections.count() {
            return None;
        }
        let turns = slice.sections.turns_of(self.section);
        let first = slice.turn_start(turns.start).clamp(self.start, streamed - 1);
        let last = slice.turn_start(turns.end).max(first + 1) - 1;
        Some((self.step(order, parts, first), self.step(order, parts, last)))
    }

    /// Lays out all turns that draw from the next section.
    fn lay_out(&mut self, order: &Order, parts: &Opportunistic, stream: &Stream) {
        let (part, slice) = (&parts.nodes()[self.node], parts.slice(stream, self.node));
        let mut finder = Finder::new(parts, stream, self.node).after(self.last_turn.take());
        for turn in self.turn..slice.sections.turns_of(self.section).end {
            let entries = slice.turn_start(turn).max(self.start)..slice.turn_start(turn + 1);
            self.turn = turn + 1;
            if entries.is_empty() {
                continue;
            }
            let drawn = (slice.sections.drawn_in(turn).end - self.section) as usize;
            self.pending.resize_with(self.pending.len().max(drawn), Vec::new);
            for step in self.step(order, parts, entries.start)..=self.step(order, parts, entries.end - 1) {
                for (local_rank, rank) in &self.ranks {
                    let positions = order.node_run(parts.shares(), step, *rank).positions;
                    let entry = |position: u64| part.streamed_before(position.min(part.samples));
                    for entry in
                        entry(positions.start).max(entries.start)..entry(positions.end).min(entries.end)
                    {
                        let (section, sample) = finder.streamed(entry);
                        self.pending[(section - self.section) as usize].push(Demand {
                            sample,
                            local_rank: *local_rank,
                            step: step as u32,
                            slot: (part.position_of(entry) - positions.start) as u32,
                        });
                    }
                }
            }
        }
        self.last_turn = finder.into_turn();
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
                None => cursors.push(Cursor {
                    node,
                    ranks: vec![(local_rank, *rank)],
                    start: 0,
                    turn: 0,
                    section: 0,
                    pending: VecDeque::new(),
                    last_turn: None,
                }),
            }
        }
        Self { next_step: start, stream: None, cursors, last_step: start }
    }

    /// The next segment.
    pub(crate) fn next(&mut self, order: &Order, parts: &Opportunistic) -> Segment {
        let found = self.section(order, parts).or_else(|| self.repeated(order, parts));
        found.unwrap_or_else(|| self.begin(order, parts))
    }

    /// Begins an epoch at the next step.
    fn begin(&mut self, order: &Order, parts: &Opportunistic) -> Segment {
        let (steps, first_step) = (order.steps_per_epoch(), self.next_step);
        let stream = self.stream.insert(parts.stream(first_step / steps));
        for cursor in &mut self.cursors {
            let part = &parts.nodes()[cursor.node];
            let first = order.node_start(parts.shares(), cursor.node, first_step % steps);
            cursor.begin(&parts.slice(stream, cursor.node), part.streamed_before(first.min(part.samples)));
        }
        self.next_step = (first_step / steps + 1) * steps;
        self.last_step = first_step;
        Segment { first_step, last_step: first_step, demands: Vec::new() }
    }

    /// The next section of the epoch.
    fn section(&mut self, order: &Order, parts: &Opportunistic) -> Option<Segment> {
        let stream = self.stream.as_ref()?;
        let base = stream.epoch() * order.steps_per_epoch();
        let next = |cursor: &Cursor| cursor.steps(order, parts, stream);
        let (cursor, (first, last)) = self
            .cursors
            .iter_mut()
            .filter_map(|cursor| next(cursor).map(|steps| (cursor, steps)))
            .min_by_key(|(_, steps)| *steps)?;
        cursor.lay_out(order, parts, stream);
        let mut demands = cursor.pending.pop_front().unwrap_or_default();
        cursor.section += 1;
        for demand in &mut demands {
            demand.step -= first as u32;
        }
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
    position >= part.samples && matches!(part.entry(position % part.samples), SequenceEntry::Streamed(_))
}
