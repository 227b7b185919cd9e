//! The schedule: the samples that a node reads together, in order.
//!
//! A [`Segment`] is the set of samples that are located, planned and read at once. How a schedule
//! makes them, in order:
//! - Orders without lanes: a segment is a number of consecutive steps of all ranks of the node, cut
//!   at the end of an epoch; the number doubles from a small one, so that the first steps are there
//!   soon, up to a largest one.
//! - `group`: a segment is one window of one lane that the node serves, cut to what is delivered.
//!   The lanes' windows are merged by (first step, last step, lane). A window whose samples are
//!   repeated at the end of an epoch (`fill`) is a second, small segment.
//! - `opportunistic`: see the module `opportunistic`.
//!
//! Promises:
//! 1. Every (local rank, step, slot) from the start on is in exactly one segment, with the sample
//!    of [`Order::batch`]. In `opportunistic`, resident samples are in none
//!    ([`Order::resident_batch`]).
//! 2. First steps never fall, so all demands of step a come before the first segment with
//!    `first_step` > a.
//! 3. Last steps never fall either, so staging memory that is given back in the order of segments
//!    is never held up.
//! 4. A segment never spans two epochs. It may be empty (a short last step, an epoch without a
//!    stream), so that the schedule never stalls.
//!
//! Endless: one epoch flows into the next. Nothing is kept but the permutations of the epochs under
//! way.

pub(crate) mod opportunistic;
pub(crate) mod segment;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use forebay_types::{Rank, SampleId};

use crate::order::group::{Sequence, Shape};
use crate::order::local_shuffle::Pool;
use crate::order::mixture::Draws;
use crate::order::{Order, OrderKind};
use crate::permutation::Permutation;
use crate::schedule::opportunistic::OpportunisticFlow;
use crate::schedule::segment::{Demand, Segment};

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A segment.
    Segment(Segment),
    /// Order `given` needs the sample ids of this epoch first; ask again when they are there.
    AwaitingOrder(u64),
}

/// The endless sequence of segments of a node.
#[derive(Clone, Debug)]
pub struct Schedule {
    order: Order,
    node_ranks: Vec<Rank>,
    flow: Flow,
}

#[derive(Clone, Debug)]
enum Flow {
    Steps {
        next_step: u64,
        segment_steps: u64,
        max_steps: u64,
        shuffle: Option<(u64, Permutation)>,
        /// The pool of the last step, in `local-shuffle`.
        pool: Option<Pool>,
        /// The draws of an epoch of a mixture.
        draws: Option<(u64, Draws)>,
    },
    Lanes(Lanes),
    Opportunistic(OpportunisticFlow),
}

impl Schedule {
    /// The segments of the ranks `node_ranks` from absolute step `start` on. `segment_steps` (both
    /// at least 1) is how many steps orders without lanes read together at the beginning, and
    /// later.
    ///
    /// # Panics
    /// Where one of the ranks does not exist.
    #[must_use]
    pub fn new(order: &Order, node_ranks: &[Rank], start: u64, segment_steps: RangeInclusive<u64>) -> Self {
        let ranks = order.spec().ranks;
        assert!(node_ranks.iter().all(|rank| u64::from(rank.0) < ranks), "ranks {node_ranks:?} of {ranks}");
        let max_steps = (*segment_steps.end()).clamp(1, u64::from(u32::MAX));
        // Steps within a segment are 32-bit words.
        let segment_steps = (*segment_steps.start()).clamp(1, max_steps);
        // A node without ranks has no lanes, but still has steps.
        let flow = if let Some(shape) = order.shape().filter(|_| !node_ranks.is_empty()) {
            Flow::Lanes(Lanes::new(order, *shape, node_ranks, start))
        } else if let Some(parts) = order.opportunistic() {
            Flow::Opportunistic(OpportunisticFlow::new(parts, node_ranks, start))
        } else {
            Flow::Steps { next_step: start, segment_steps, max_steps, shuffle: None, pool: None, draws: None }
        };
        Self { order: order.clone(), node_ranks: node_ranks.to_vec(), flow }
    }

    /// The next segment. `given` gives the sample ids of an epoch of order `given`; other orders do
    /// not call it.
    pub fn next(&mut self, given: impl Fn(u64) -> Option<Arc<[u64]>>) -> Next {
        let Self { order, node_ranks, flow } = self;
        match flow {
            Flow::Lanes(lanes) => Next::Segment(lanes.next(order)),
            Flow::Opportunistic(flow) => {
                let parts = order.opportunistic().expect("the order does not change");
                Next::Segment(flow.next(order, parts))
            }
            Flow::Steps { next_step, segment_steps, max_steps, shuffle, pool, draws } => {
                let steps = order.steps_per_epoch();
                let epoch = *next_step / steps;
                let ids = match order.kind() {
                    OrderKind::Given { .. } => match given(epoch) {
                        Some(ids) => Some(ids),
                        None => return Next::AwaitingOrder(epoch),
                    },
                    _ => None,
                };
                let is_shuffled = matches!(
                    order.kind(),
                    OrderKind::Shuffle | OrderKind::LocalShuffle { .. } | OrderKind::Opportunistic { .. }
                );
                if let Some(mixture) = order.mixture()
                    && draws.as_ref().is_none_or(|(of, _)| *of != epoch)
                {
                    *draws = Some((epoch, order.draws(mixture, epoch)));
                }
                if is_shuffled
                    && order.mixture().is_none()
                    && shuffle.as_ref().is_none_or(|(of, _)| *of != epoch)
                {
                    *shuffle = Some((epoch, order.shuffle(epoch)));
                }
                let permutation = shuffle.as_ref().map(|(_, permutation)| permutation);
                let first_step = *next_step;
                let last_step = first_step.saturating_add(*segment_steps - 1).min((epoch + 1) * steps - 1);
                *next_step = last_step + 1;
                *segment_steps = (*segment_steps * 2).min(*max_steps);
                let steps = first_step..=last_step;
                if let Some((mixture, (_, draws))) = order.mixture().zip(draws.as_mut()) {
                    let sample_at = |position| draws.sample(mixture, position);
                    let demands = step_demands(order, node_ranks, steps, sample_at);
                    return Next::Segment(Segment { first_step, last_step, demands });
                }
                let demands = match (ids, permutation) {
                    (_, Some(permutation)) if order.shares().is_some() => {
                        pool_demands(order, node_ranks, steps, permutation, pool)
                    }
                    (Some(ids), _) => {
                        step_demands(order, node_ranks, steps, |position| ids[position as usize])
                    }
                    (None, Some(Permutation::Table(table))) => {
                        step_demands(order, node_ranks, steps, |position| u64::from(table[position as usize]))
                    }
                    (None, Some(Permutation::Network(network))) => {
                        step_demands(order, node_ranks, steps, |position| network.at(position))
                    }
                    (None, None) => step_demands(order, node_ranks, steps, |position| position),
                };
                Next::Segment(Segment { first_step, last_step, demands })
            }
        }
    }
}

/// The demands of consecutive steps of one epoch.
fn step_demands(
    order: &Order,
    node_ranks: &[Rank],
    steps: RangeInclusive<u64>,
    mut sample_at: impl FnMut(u64) -> u64,
) -> Vec<Demand> {
    let per_epoch = order.steps_per_epoch();
    let count = (steps.end() - steps.start() + 1) * node_ranks.len() as u64 * order.largest_batch();
    let mut demands = Vec::with_capacity(count.min(order.spec().samples.saturating_mul(2)) as usize);
    for (step, absolute) in (0..).zip(steps) {
        for (local_rank, rank) in (0..).zip(node_ranks) {
            let run = order.run(absolute / per_epoch, absolute % per_epoch, *rank);
            let mut position = if run.count == 0 { 0 } else { run.first % run.modulus };
            for slot in 0..run.count as u32 {
                demands.push(Demand {
                    sample: SampleId(sample_at(run.base + position)),
                    local_rank,
                    step,
                    slot,
                });
                position += 1;
                if position == run.modulus {
                    position = 0;
                }
            }
        }
    }
    demands
}

/// The demands of consecutive steps of one epoch of `local-shuffle`. `pool` is kept from call to
/// call.
fn pool_demands(
    order: &Order,
    node_ranks: &[Rank],
    steps: RangeInclusive<u64>,
    permutation: &Permutation,
    pool: &mut Option<Pool>,
) -> Vec<Demand> {
    let Some(shares) = order.shares() else { return Vec::new() };
    let per_epoch = order.steps_per_epoch();
    let mut demands = Vec::new();
    for (step, absolute) in (0..).zip(steps) {
        let (epoch, in_epoch) = (absolute / per_epoch, absolute % per_epoch);
        let pool = match pool {
            Some(pool) if pool.has(epoch, in_epoch) => pool,
            _ => pool.insert(order.deal_pool(shares, permutation, epoch, in_epoch)),
        };
        for (local_rank, rank) in (0..).zip(node_ranks) {
            let samples = pool.samples(in_epoch, *rank);
            demands.extend((0..).zip(samples).map(|(slot, sample)| Demand {
                sample: *sample,
                local_rank,
                step,
                slot,
            }));
        }
    }
    demands
}

/// The lanes of a node in a group order.
#[derive(Clone, Debug)]
struct Lanes {
    shape: Shape,
    cursors: Vec<Cursor>,
    /// (first step, last step, cursor) of the next window of every cursor.
    next: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// The group sequences of the epochs under way, at most two.
    sequences: Vec<(u64, Sequence)>,
    /// Samples of the window at hand.
    samples: Vec<u64>,
}

/// How far the schedule is in a lane.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    lane: u64,
    local_rank: u32,
    /// Slot of the lane's first sample in a whole step.
    slot: u32,
    /// The same in the steps after the whole ones, where lanes may take unequal numbers.
    tail_slots: [u32; 2],
    epoch: u64,
    /// Next position of the epoch, counted on over the lane's end where the order wraps.
    position: u64,
    /// Positions of the lane.
    length: u64,
    /// Positions that are delivered per epoch.
    delivered: u64,
}

/// The next window of a cursor.
struct Window {
    number: u64,
    /// All its positions in the lane.
    positions: Range<u64>,
    /// The first that is delivered.
    from: u64,
    /// How many are delivered.
    count: u64,
}

impl Cursor {
    fn window(&self, shape: &Shape) -> Window {
        let from = if self.position < self.length { self.position } else { self.position - self.length };
        if self.delivered == 0 {
            return Window { number: 0, positions: 0..0, from: 0, count: 0 };
        }
        let (number, positions) = shape.window_at(self.lane, from);
        let count = (positions.end - from).min(self.delivered - self.position);
        Window { number, positions, from, count }
    }

    /// First and last absolute step of the next window.
    fn steps(&self, order: &Order, shape: &Shape) -> (u64, u64) {
        let base = self.epoch * order.steps_per_epoch();
        let window = self.window(shape);
        if window.count == 0 {
            // A lane without samples: an empty segment for the whole epoch.
            return (base, base + order.steps_per_epoch() - 1);
        }
        let first = order.lane_step(self.lane, self.position);
        let last = order.lane_step(self.lane, self.position + window.count - 1);
        // Lanes may differ by one sample, so that one ends a step before the others. Its last
        // window is kept as long as theirs, or last steps would fall.
        let ends = window.positions.end == self.length;
        (base + first, base + if ends { order.steps_per_epoch() - 1 } else { last })
    }
}

impl Lanes {
    fn new(order: &Order, shape: Shape, node_ranks: &[Rank], start: u64) -> Self {
        let steps = order.steps_per_epoch();
        let each = order.lane_batch();
        let mut cursors = Vec::new();
        for (local_rank, rank) in (0..).zip(node_ranks) {
            let mut tail_slots = [0; 2];
            for (place, lane) in (0_u32..).zip(order.lanes_of(*rank)) {
                let delivered = order.lane_run(steps - 1, lane).end;
                let mut cursor = Cursor {
                    lane,
                    local_rank,
                    slot: place * each as u32,
                    tail_slots,
                    epoch: start / steps,
                    position: order.lane_run(start % steps, lane).start,
                    length: shape.lane_positions(lane),
                    delivered,
                };
                for (slot, step) in tail_slots.iter_mut().zip(order.steps().whole..steps) {
                    let run = order.lane_run(step, lane);
                    *slot += (run.end - run.start) as u32;
                }
                if cursor.position >= delivered && cursor.position > 0 {
                    (cursor.epoch, cursor.position) = (cursor.epoch + 1, 0);
                }
                cursors.push(cursor);
            }
        }
        let next = cursors.iter().enumerate().map(|(place, cursor)| {
            let (first, last) = cursor.steps(order, &shape);
            Reverse((first, last, place))
        });
        Self { next: next.collect(), shape, cursors, sequences: Vec::new(), samples: Vec::new() }
    }

    fn next(&mut self, order: &Order) -> Segment {
        let Reverse((first_step, last_step, place)) =
            self.next.pop().expect("every rank serves a lane, and lanes never end");
        let cursor = self.cursors[place];
        let demands = self.demands(order, &cursor);
        let advanced = &mut self.cursors[place];
        advanced.position += demands.len() as u64;
        if advanced.position >= advanced.delivered {
            (advanced.epoch, advanced.position) = (advanced.epoch + 1, 0);
        }
        let (first, last) = advanced.steps(order, &self.shape);
        self.next.push(Reverse((first, last, place)));
        Segment { first_step, last_step, demands }
    }

    /// The demands of a cursor's next window.
    fn demands(&mut self, order: &Order, cursor: &Cursor) -> Vec<Demand> {
        let window = cursor.window(&self.shape);
        if window.count == 0 {
            return Vec::new();
        }
        let skipped = (window.from - window.positions.start) as usize;
        let numbered = (window.number, window.positions);
        if let Some(mixture) = order.mixture() {
            let draws = order.lane_draws(mixture, cursor.lane, cursor.epoch);
            draws.window_samples(numbered, &mut self.samples);
        } else {
            self.group_samples(order.spec().seed, cursor, numbered);
        }
        self.deliveries(order, cursor, skipped, window.count as usize)
    }

    /// The samples of a window of a dataset that is no mixture.
    fn group_samples(&mut self, seed: u64, cursor: &Cursor, numbered: (u64, Range<u64>)) {
        if self.sequences.iter().all(|(epoch, _)| *epoch != cursor.epoch) {
            self.sequences.retain(|(epoch, _)| *epoch + 1 == cursor.epoch);
            self.sequences.push((cursor.epoch, self.shape.sequence(seed, cursor.epoch)));
        }
        let known = self.sequences.iter().find(|(epoch, _)| *epoch == cursor.epoch);
        let (_, sequence) = known.expect("the sequence of this epoch was just made");
        self.shape.window_samples(seed, cursor.epoch, sequence, cursor.lane, numbered, &mut self.samples);
    }

    /// Where the samples of the window at hand go: `count` of them, after the first `skipped`.
    fn deliveries(&self, order: &Order, cursor: &Cursor, skipped: usize, count: usize) -> Vec<Demand> {
        let whole = order.steps().whole;
        let first_slot = |step: u64| match step.checked_sub(whole) {
            Some(place) => cursor.tail_slots[place as usize],
            None => cursor.slot,
        };
        let mut step = order.lane_step(cursor.lane, cursor.position);
        let first_step = step;
        let mut run = order.lane_run(step, cursor.lane);
        let mut demands = Vec::with_capacity(count);
        for (position, sample) in (cursor.position..).zip(&self.samples[skipped..skipped + count]) {
            while position >= run.end {
                step += 1;
                run = order.lane_run(step, cursor.lane);
            }
            demands.push(Demand {
                sample: SampleId(*sample),
                local_rank: cursor.local_rank,
                step: (step - first_step) as u32,
                slot: first_slot(step) + (position - run.start) as u32,
            });
        }
        demands
    }
}
