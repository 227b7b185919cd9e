//! Orders: which sample stands at which position of an epoch.
//!
//! An [`Order`] is a pure function of (seed, epoch, step, rank) that keeps no array of the size of
//! the dataset and starts at any position. Letters: N samples, B batch
//! per rank and step, W ranks, G = W·B global batch, T steps per epoch, L lanes. In step s of an
//! epoch, slot j of rank r holds:
//!
//! - `sequential`: position p = s·G + r·B + j; the sample is p.
//! - `shuffle`: the same position; the sample is π(p), π keyed by (seed, epoch).
//! - `given`: the same position; the sample is entry p of the ids given for the epoch.
//! - `local-shuffle`: the samples of `shuffle`, dealt to the nodes that hold them as
//!   `local_shuffle` says. An order that knows no nodes ([`Order::on_nodes`]) is `shuffle`.
//! - `opportunistic`: what its node holds and what it streams, in a fixed proportion, as
//!   `opportunistic` says. An order that knows no nodes ([`Order::on_nodes`],
//!   [`Order::with_residents`]) is `shuffle`.
//! - `contiguous`: rank r walks its own region [⌊r·N/W⌋, ⌊(r+1)·N/W⌋): position s·B + j of the
//!   region.
//! - `group`: rank r serves the lanes [r·L/W, (r+1)·L/W), one after the other in the batch, and
//!   takes the next G/L positions of each; what a lane holds is defined in `group`.
//!
//! Of a mixture ([`Order::mixed`]) these are the orders within each source, as `mixture` says.
//!
//! The end of an epoch ([`LastBatch`]): `partial`, the default, shares out over the ranks what no
//! step of G samples takes, in one last step or in the last two, as `steps` says; T = ⌈N/G⌉, or
//! ⌊N/G⌋ where batches have one sample. With `drop` T = ⌊N/G⌋, and what does not fill a step is
//! left out. Otherwise T = ⌈N/G⌉: `fill` fills the last step from the start of the same epoch (or
//! of the same region or lane); `carry` (sequential only) takes position (e·T + s)·G + r·B + j
//! modulo N, so that epoch e starts where epoch e − 1 ended: the circular database of the papers.
//! As regions and lanes are equal to ± 1, ⌊⌊N/L⌋ / (G/L)⌋ = ⌊N/G⌋ and ⌈⌈N/L⌉ / (G/L)⌉ = ⌈N/G⌉: they
//! never change T.
//!
//! Promises: every sample exactly once per epoch (`drop` leaves out at most G − 1, `fill` and
//! `carry` repeat at most G − 1); every rank has T steps, none of them empty; the global batch of a
//! step does not depend on W, except for `contiguous`, `opportunistic`, and the last two steps of
//! `partial` where less than one sample per rank is left. In `local-shuffle` the samples of a step,
//! or of a pool of steps, do not depend on W or the nodes; which rank gets them does. In
//! `opportunistic` the samples of an epoch do not; the steps depend on what each node holds.

pub(crate) mod convergence;
pub(crate) mod draw_entropy;
pub(crate) mod error;
pub(crate) mod group;
mod lanes;
pub(crate) mod local_shuffle;
mod mixed;
pub(crate) mod mixture;
pub(crate) mod opportunistic;
mod permutation_cache;
pub(crate) mod shuffle_quality;
mod smallest_window;
pub(crate) mod state;
mod steps;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use forebay_types::{Rank, SampleId};
use serde::{Deserialize, Serialize};

pub use self::error::OrderError;
pub(crate) use self::lanes::list;
pub use self::permutation_cache::PermutationCache;
pub(crate) use self::steps::Steps;
use crate::nodes::shares::NodeShares;
use crate::order::draw_entropy::DrawEntropy;
pub use crate::order::group::default_group;
use crate::order::group::{Shape, share};
use crate::order::local_shuffle::Pool;
use crate::order::mixture::Mixture;
use crate::order::opportunistic::{Finder, Opportunistic, SequenceEntry};
use crate::order::shuffle_quality::Quality;
use crate::permutation::{Key, Permutation, Purpose};

/// Which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderKind {
    /// All ranks together walk the dataset from its start.
    Sequential,
    /// Each rank walks its own region.
    Contiguous,
    /// A full shuffle, another one in every epoch.
    Shuffle,
    /// Groups of contiguous samples, shuffled as groups, and their samples shuffled in windows.
    Group {
        /// S, samples per group.
        samples: u64,
        /// w, groups per window.
        window: u64,
    },
    /// A full shuffle whose samples go to nodes that hold them.
    LocalShuffle {
        /// K, steps whose samples are dealt together.
        steps: u64,
    },
    /// What nodes hold and what they stream from the source, in each step.
    Opportunistic {
        /// w, units per window of what a node streams.
        window: u64,
    },
    /// Sample ids given for every epoch.
    Given {
        /// N, samples of the dataset, where an epoch has another number of ids.
        among: Option<u64>,
        /// Whether an epoch may have samples more than once, and not have others.
        repeats: bool,
    },
}

impl OrderKind {
    /// Ids given for every epoch, each sample once.
    pub const ALL_GIVEN: Self = Self::Given { among: None, repeats: false };

    /// The name of the kind, as users write it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Contiguous => "contiguous",
            Self::Shuffle => "shuffle",
            Self::Group { .. } => "group",
            Self::LocalShuffle { .. } => "local-shuffle",
            Self::Opportunistic { .. } => "opportunistic",
            Self::Given { .. } => "given",
        }
    }

    /// Numbers of ranks among which `lanes` lanes divide, ascending.
    pub(crate) fn allowed_ranks(self, lanes: u64) -> Vec<u64> {
        if self == Self::Contiguous {
            return vec![lanes];
        }
        let mut ranks = lanes::divisors(lanes);
        ranks.retain(|ranks| u32::try_from(*ranks).is_ok());
        ranks
    }
}

impl fmt::Display for OrderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group { samples, window } => write!(f, "group(samples={samples}, window={window})"),
            Self::LocalShuffle { steps } if *steps > 1 => write!(f, "local-shuffle(steps={steps})"),
            Self::Opportunistic { window } => write!(f, "opportunistic(window={window})"),
            kind => f.write_str(kind.name()),
        }
    }
}

/// What happens at the end of an epoch that global batches do not fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastBatch {
    /// The last step is filled with samples from the start of the epoch.
    Fill,
    /// The samples that do not fill a step are left out.
    Drop,
    /// What does not fill a step is shared out evenly over the ranks.
    Partial,
    /// The next epoch starts where this one ends.
    Carry,
}

impl LastBatch {
    /// The name, as users write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Drop => "drop",
            Self::Partial => "partial",
            Self::Carry => "carry",
        }
    }
}

/// What defines an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderSpec {
    /// Which order.
    pub kind: OrderKind,
    /// What the end of an epoch does.
    pub last_batch: LastBatch,
    /// Seed of everything that is shuffled.
    pub seed: u64,
    /// N, samples of an epoch: those of the dataset, but for `given` and mixtures.
    pub samples: u64,
    /// B, samples per rank and step.
    pub batch: u64,
    /// W, ranks.
    pub ranks: u64,
    /// L, lanes of a group order; chosen where it is `None`. Other kinds take only what
    /// [`Order::lanes`] gives.
    pub lanes: Option<u64>,
}

/// A validated order. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Order {
    spec: OrderSpec,
    steps: Steps,
    /// G.
    global_batch: u64,
    /// L.
    lanes: u64,
    shape: Option<Shape>,
    nodes: Nodes,
    mixture: Option<Arc<Mixture>>,
}

/// What the order knows of the nodes.
#[derive(Clone, Debug)]
enum Nodes {
    Unknown,
    /// What each node holds, for `local-shuffle`.
    Shares(Arc<NodeShares>),
    Opportunistic(Arc<Opportunistic>),
}

impl Order {
    /// Validates a definition.
    ///
    /// # Errors
    /// Each names the numbers that contradict each other and, where there are any, those
    /// that would work.
    pub fn new(spec: OrderSpec) -> Result<Self, OrderError> {
        let kind = spec.kind.name();
        let number = |what, found, expected| Err(OrderError::Number { kind, what, found, expected });
        if spec.samples == 0 {
            return Err(OrderError::Empty { kind });
        }
        // Slots and ranks are 32-bit words, and positions of two epochs must not overflow 64 bits.
        if spec.batch == 0 || spec.batch > u64::from(u32::MAX) {
            return number("the batch", spec.batch, "1 to 4294967295");
        }
        if spec.ranks == 0 || spec.ranks > u64::from(u32::MAX) {
            return number("the number of ranks", spec.ranks, "1 to 4294967295");
        }
        if spec.samples > MAX_SAMPLES {
            return number("the number of samples", spec.samples, "at most 2^62");
        }
        let global_batch = spec.batch * spec.ranks;
        if spec.last_batch == LastBatch::Carry && spec.kind != OrderKind::Sequential {
            return Err(OrderError::Carry { kind });
        }
        let steps = Steps::new(spec.last_batch, spec.samples, spec.batch, spec.ranks);
        if steps.count == 0 && spec.last_batch == LastBatch::Partial {
            return Err(OrderError::FewerThanRanks { kind, ranks: spec.ranks, samples: spec.samples });
        }
        if steps.count == 0 {
            return Err(OrderError::BatchTooLarge {
                kind,
                last: spec.last_batch.name(),
                ranks: spec.ranks,
                batch: spec.batch,
                global_batch,
                samples: spec.samples,
            });
        }
        if let OrderKind::Given { among: Some(among), repeats: false } = spec.kind
            && spec.samples > among
        {
            return number(
                "samples, the ids of an epoch,",
                spec.samples,
                "at most the samples of the dataset",
            );
        }
        if let OrderKind::LocalShuffle { steps: pool } = spec.kind
            && pool != 1
            && !(1..steps.count).contains(&pool)
        {
            return number(
                "steps, the steps whose samples are dealt together,",
                pool,
                "1, or fewer than the steps of an epoch",
            );
        }
        if let OrderKind::Opportunistic { window } = spec.kind
            && window == 0
        {
            return number("window, the units of a window,", window, "at least 1");
        }
        let (lanes, shape) = if let OrderKind::Group { samples, window } = spec.kind {
            if samples == 0 {
                return number("samples, the size of a group,", samples, "at least 1");
            }
            let Some(positions) =
                samples.checked_mul(window).filter(|positions| (1..=MAX_SAMPLES).contains(positions))
            else {
                return number(
                    "window, the groups of a window,",
                    window,
                    "at least 1 and at most 2^62 samples in all",
                );
            };
            let lanes =
                lanes::choose(spec.batch, spec.ranks, spec.lanes).map_err(|works| OrderError::Lanes {
                    kind,
                    lanes: spec.lanes.unwrap_or_default(),
                    ranks: spec.ranks,
                    global_batch,
                    works,
                })?;
            (lanes, Some(Shape { samples: spec.samples, group: samples, window: positions, lanes }))
        } else {
            let lanes = if spec.kind == OrderKind::Contiguous { spec.ranks } else { global_batch };
            if let Some(asked) = spec.lanes.filter(|asked| *asked != lanes) {
                return Err(OrderError::LanesWithoutGroups { kind, lanes: asked });
            }
            (lanes, None)
        };
        Ok(Self { spec, steps, global_batch, lanes, shape, nodes: Nodes::Unknown, mixture: None })
    }

    /// The same order with windows of `window` units, at least 1, if it is `opportunistic`. It
    /// knows no nodes.
    #[must_use]
    pub fn with_window(self, window: u64) -> Self {
        let kind = match self.spec.kind {
            OrderKind::Opportunistic { .. } => OrderKind::Opportunistic { window: window.max(1) },
            kind => kind,
        };
        Self { spec: OrderSpec { kind, ..self.spec }, nodes: Nodes::Unknown, ..self }
    }

    /// The same order where the nodes hold these shares of the dataset. Only `local-shuffle` and
    /// `opportunistic` depend on them; in the latter, all units are resident.
    ///
    /// # Panics
    /// Where the shares are of another dataset or other ranks.
    #[must_use]
    pub fn on_nodes(self, shares: Arc<NodeShares>) -> Self {
        self.with_residents(shares, |_| true)
    }

    /// [`Order::on_nodes`], where a node keeps those units of its share that `resident` says, and
    /// `opportunistic` streams the others. A unit with which a node would keep more samples than
    /// its ranks take in an epoch is streamed, too ([`Order::streamed_units`]).
    ///
    /// # Panics
    /// Where the shares are of another dataset or other ranks.
    #[must_use]
    pub fn with_residents(self, shares: Arc<NodeShares>, resident: impl Fn(usize) -> bool) -> Self {
        let check = |shares: &NodeShares| {
            assert_eq!((shares.samples(), shares.ranks()), (self.spec.samples, self.spec.ranks));
        };
        let nodes = match self.spec.kind {
            OrderKind::LocalShuffle { .. } => {
                check(&shares);
                Nodes::Shares(shares)
            }
            OrderKind::Opportunistic { window } => {
                check(&shares);
                let taken = |rank| self.taken_once(rank);
                let parts =
                    Opportunistic::new(self.spec.seed, window, self.spec.batch, shares, resident, taken);
                Nodes::Opportunistic(Arc::new(parts))
            }
            _ => Nodes::Unknown,
        };
        Self { nodes, ..self }
    }

    /// What each node holds, where the order depends on it.
    #[must_use]
    pub fn shares(&self) -> Option<&NodeShares> {
        match &self.nodes {
            Nodes::Unknown => None,
            Nodes::Shares(shares) => Some(shares),
            Nodes::Opportunistic(parts) => Some(parts.shares()),
        }
    }

    /// The units that no node keeps, ascending; none but in `opportunistic`.
    #[must_use]
    pub fn streamed_units(&self) -> &[usize] {
        self.opportunistic().map_or(&[], Opportunistic::streamed_units)
    }

    /// The units that a node keeps in `opportunistic`, ascending; none in other orders.
    ///
    /// # Panics
    /// Where there is no such node.
    #[must_use]
    pub fn resident_units(&self, node: usize) -> &[usize] {
        self.opportunistic().map_or(&[], |parts| parts.nodes()[node].units())
    }

    /// Samples that a node keeps and those that it streams in an epoch; `None` but in
    /// `opportunistic`.
    ///
    /// # Panics
    /// Where there is no such node.
    #[must_use]
    pub fn resident_and_streamed(&self, node: usize) -> Option<(u64, u64)> {
        let part = &self.opportunistic()?.nodes()[node];
        Some((part.resident, part.streamed()))
    }

    /// The resident samples of `rank` in `step` of `epoch`, with their slots, ascending: those of
    /// [`Order::batch`] that no segment has. None but in `opportunistic`. Clears `out` first.
    ///
    /// # Panics
    /// Where the step or the rank does not exist.
    pub fn resident_batch(&self, epoch: u64, step: u64, rank: Rank, out: &mut Vec<(u32, SampleId)>) {
        out.clear();
        assert!(step < self.steps.count, "step {step} of an epoch of {} steps", self.steps.count);
        let Some(parts) = self.opportunistic() else { return };
        let stream = parts.stream(epoch);
        let run = self.node_run(parts.shares(), step, rank);
        let part = &parts.nodes()[run.node];
        let mut finder = Finder::new(parts, &stream, run.node);
        let is_resident =
            |position: u64| matches!(part.entry(position % part.samples), SequenceEntry::Resident(_));
        let slots = (0..).zip(run.positions).filter(|(_, position)| is_resident(*position));
        out.extend(slots.map(|(slot, position)| (slot, finder.sample(position))));
    }

    /// What each node holds and streams.
    pub(crate) fn opportunistic(&self) -> Option<&Opportunistic> {
        match &self.nodes {
            Nodes::Opportunistic(parts) => Some(parts),
            Nodes::Unknown | Nodes::Shares(_) => None,
        }
    }

    /// The steps of an epoch whose samples are dealt together with those of `step`; that step alone
    /// but for `local-shuffle`.
    #[must_use]
    pub fn pool(&self, step: u64) -> Range<u64> {
        let OrderKind::LocalShuffle { steps } = self.spec.kind else { return step..step + 1 };
        let start = step / steps * steps;
        start..(start + steps).min(self.steps.count)
    }

    /// The definition.
    #[must_use]
    pub fn spec(&self) -> &OrderSpec {
        &self.spec
    }

    /// Which order.
    #[must_use]
    pub fn kind(&self) -> OrderKind {
        self.spec.kind
    }

    /// T, steps per epoch of every rank; at least 1.
    #[must_use]
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps.count
    }

    /// Most samples of a rank in a step: B, or 2 in the last step of batches of one sample, which
    /// `partial` cannot make longer otherwise.
    #[must_use]
    pub fn largest_batch(&self) -> u64 {
        self.steps.largest_batch
    }

    /// The steps of an epoch.
    pub(crate) fn steps(&self) -> &Steps {
        &self.steps
    }

    /// L, sample streams that the ranks share out between them.
    ///
    /// A group order has as many as were asked for, or chosen. In `sequential`, `shuffle` and
    /// `given` every slot of the global batch is a lane of its own; in `contiguous` every rank is.
    #[must_use]
    pub fn lanes(&self) -> u64 {
        self.lanes
    }

    /// G, samples per step over all ranks.
    #[must_use]
    pub fn global_batch(&self) -> u64 {
        self.global_batch
    }

    /// Numbers of ranks that get the same stream of global batches, ascending.
    #[must_use]
    pub fn allowed_ranks(&self) -> Vec<u64> {
        self.spec.kind.allowed_ranks(self.lanes)
    }

    /// How well the order shuffles.
    #[must_use]
    pub fn quality(&self) -> Quality {
        match self.spec.kind {
            OrderKind::Sequential | OrderKind::Contiguous => Quality::FIXED,
            _ if self.mixture.is_some() => Quality::UNKNOWN,
            OrderKind::Shuffle => Quality::SHUFFLE,
            OrderKind::LocalShuffle { steps } => self
                .shares()
                .filter(|_| steps > 1)
                .map_or(Quality::SHUFFLE, |shares| Quality::of_pools(shares, self.spec.batch, steps)),
            OrderKind::Group { samples, window } => {
                Quality::of_groups(self.spec.samples, samples, window, self.lanes, self.global_batch)
            }
            OrderKind::Opportunistic { .. } => self
                .opportunistic()
                .map_or(Quality::SHUFFLE, |parts| Quality::of_draws(parts, self.global_batch)),
            OrderKind::Given { .. } => Quality::UNKNOWN,
        }
    }

    /// How random the draws of `opportunistic` are, where the order knows the nodes.
    #[must_use]
    pub fn draw_entropy(&self) -> Option<DrawEntropy> {
        self.opportunistic().map(|parts| DrawEntropy::of(parts, self.global_batch, parts.window()))
    }

    /// Staging bytes with which `node_ranks` ranks of a node never wait for room, at
    /// `mean_sample_bytes` per sample.
    ///
    /// For a group order: (lanes of the node + windows that end inside one step + 1)·w·S·mean,
    /// where the 1 is a window that is read meanwhile. Thanks to the staggered edges at most ⌈G /
    /// (w·S)⌉ windows of all lanes end inside a step. With `fill` what the last step repeats comes
    /// on top. For `opportunistic`: what the ranks take while a section is held, and the next
    /// window; resident samples pass no staging memory. Other orders: one step of the node. Before
    /// padding and alignment.
    #[must_use]
    pub fn min_staging_bytes(&self, mean_sample_bytes: f64, node_ranks: usize) -> u64 {
        let node_ranks = node_ranks as u64;
        let samples = match &self.shape {
            None => {
                let step = u128::from(node_ranks * self.steps.largest_batch);
                self.opportunistic().map_or(step, |parts| {
                    let (steps, window) = parts.longest_window(self.spec.batch);
                    let nodes = node_ranks.min(parts.nodes().len() as u64);
                    step * u128::from(steps.min(self.steps.count)) + u128::from(nodes) * u128::from(window)
                })
            }
            Some(shape) => {
                let node_lanes = u128::from(self.lanes / self.spec.ranks * node_ranks);
                let window = u128::from(shape.window.min(self.spec.samples.div_ceil(self.lanes)));
                let edges = u128::from(self.global_batch.div_ceil(shape.window));
                let in_lanes = node_lanes * u128::from(self.lane_batch().div_ceil(shape.window));
                let repeated = self.repeats().div_ceil(self.lanes).min(self.lane_batch());
                (node_lanes + edges.min(in_lanes) + 1) * window + u128::from(repeated) * node_lanes
            }
        };
        (samples as f64 * mean_sample_bytes).ceil() as u64
    }

    /// The samples of `rank` in `step` of `epoch`, by slot. THE definition: everything faster must
    /// give the same.
    ///
    /// Clears `out` first. `given` are the sample ids of the epoch for [`OrderKind::Given`],
    /// checked by [`Order::check_given`]; other kinds do not look at them.
    ///
    /// # Panics
    /// Where the step or the rank does not exist, or [`OrderKind::Given`] gets no ids or too few.
    pub fn batch(&self, epoch: u64, step: u64, rank: Rank, given: Option<&[u64]>, out: &mut Vec<SampleId>) {
        self.batch_keeping(epoch, step, rank, given, &mut PermutationCache::default(), out);
    }

    /// The samples of several ranks at a step of the job, counted over all epochs: rank by rank,
    /// each by slot. Clears `out` first; for orders that need no ids ([`Order::batch`]).
    ///
    /// # Panics
    /// As there.
    pub fn batches_of_ranks(
        &self,
        step: u64,
        ranks: impl IntoIterator<Item = Rank>,
        kept: &mut PermutationCache,
        out: &mut Vec<SampleId>,
    ) {
        let (epoch, within) = (step / self.steps.count, step % self.steps.count);
        let mut batch = Vec::new();
        out.clear();
        for rank in ranks {
            self.batch_keeping(epoch, within, rank, None, kept, &mut batch);
            out.append(&mut batch);
        }
    }

    /// [`Order::batch`] for a caller that takes many batches of this order: `kept` is what they
    /// share, and may come from any other of them.
    ///
    /// # Panics
    /// As there.
    pub fn batch_keeping(
        &self,
        epoch: u64,
        step: u64,
        rank: Rank,
        given: Option<&[u64]>,
        kept: &mut PermutationCache,
        out: &mut Vec<SampleId>,
    ) {
        out.clear();
        assert!(step < self.steps.count, "step {step} of an epoch of {} steps", self.steps.count);
        assert!(u64::from(rank.0) < self.spec.ranks, "rank {} of {} ranks", rank.0, self.spec.ranks);
        if let Some(mixture) = &self.mixture {
            return self.mixture_batch(mixture, epoch, step, rank, kept, out);
        }
        if let Some(shape) = &self.shape {
            return self.group_batch(shape, epoch, step, rank, kept, out);
        }
        if let Some(parts) = self.opportunistic() {
            let stream = parts.stream(epoch);
            let run = self.node_run(parts.shares(), step, rank);
            let mut finder = Finder::new(parts, &stream, run.node);
            return out.extend(run.positions.map(|position| finder.sample(position)));
        }
        if let Some(shares) = self.shares() {
            let pool = self.deal_pool(shares, &self.shuffle(epoch), epoch, step);
            return out.extend(pool.samples(step, rank));
        }
        let run = self.run(epoch, step, rank);
        let positions = (0..run.count).map(|slot| run.base + (run.first + slot) % run.modulus);
        match self.spec.kind {
            OrderKind::Shuffle | OrderKind::LocalShuffle { .. } | OrderKind::Opportunistic { .. } => {
                let permutation = kept.shuffle(epoch, || self.shuffle(epoch));
                out.extend(positions.map(|position| SampleId(permutation.at(position))));
            }
            OrderKind::Given { .. } => {
                let given = given.expect("order given needs the sample ids of the epoch");
                out.extend(positions.map(|position| SampleId(given[position as usize])));
            }
            _ => out.extend(positions.map(SampleId)),
        }
    }

    fn group_batch(
        &self,
        shape: &Shape,
        epoch: u64,
        step: u64,
        rank: Rank,
        kept: &mut PermutationCache,
        out: &mut Vec<SampleId>,
    ) {
        let (sequence, mut windows) = kept.windows(shape, self.spec.seed, epoch);
        for (place, lane) in self.lanes_of(rank).enumerate() {
            let slice = shape.lane(lane);
            let end = slice.end - slice.start;
            let mut positions = self.lane_run(step, lane);
            while !positions.is_empty() {
                // Those beyond its end are at its start.
                let position = if positions.start < end { positions.start } else { positions.start - end };
                let (number, window) = shape.window_at(lane, position);
                let inside = windows.permutation(place, lane, number, window.end - window.start);
                let first = slice.start + window.start;
                let drawn = (window.end - position).min(positions.end - positions.start);
                out.extend(
                    (position..position + drawn).map(|position| {
                        SampleId(sequence.sample(first + inside.at(position - window.start)))
                    }),
                );
                positions.start += drawn;
            }
        }
    }

    /// Checks the sample ids given for an epoch, and gives them back as such. No sample stands
    /// there twice, unless the order was said to repeat samples.
    ///
    /// # Errors
    /// Names the length, the first id that no sample has, or the first that stands there
    /// for the second time.
    pub fn check_given(&self, epoch: u64, ids: &[i64]) -> Result<Vec<u64>, OrderError> {
        let expected = self.spec.samples;
        let (among, repeats) = match self.spec.kind {
            OrderKind::Given { among, repeats } => (among, repeats),
            _ => (None, false),
        };
        if ids.len() as u64 != expected {
            let found = ids.len() as u64;
            return Err(OrderError::GivenLength { epoch, found, expected, is_all: among.is_none() });
        }
        let samples = among.unwrap_or(expected);
        let mut seen = vec![0_u64; if repeats { 0 } else { samples.div_ceil(64) as usize }];
        let mut checked = Vec::with_capacity(ids.len());
        for (position, found) in (0_u64..).zip(ids) {
            let Some(id) = u64::try_from(*found).ok().filter(|id| *id < samples) else {
                return Err(OrderError::GivenId { epoch, position, found: *found, highest: samples - 1 });
            };
            checked.push(id);
            if repeats {
                continue;
            }
            let (word, bit) = (&mut seen[(id / 64) as usize], 1 << (id % 64));
            if *word & bit != 0 {
                return Err(OrderError::GivenTwice { epoch, position, id });
            }
            *word |= bit;
        }
        Ok(checked)
    }

    /// The positions that a rank takes in one step of an order without lanes.
    pub(crate) fn run(&self, epoch: u64, step: u64, rank: Rank) -> PositionRun {
        let OrderSpec { ranks, samples, last_batch, kind, .. } = self.spec;
        let rank = u64::from(rank.0);
        let starts = |rank: u64| self.steps.taken(step, rank, ranks);
        let ends = |rank: u64| self.steps.taken(step + 1, rank, ranks);
        let own = starts(rank + 1) - starts(rank);
        let count = ends(rank + 1) - ends(rank) - own;
        // Of the ranks before it, in the same step.
        let before = ends(rank) - starts(rank);
        let (base, modulus, first) = if kind == OrderKind::Contiguous {
            let region = share(samples, ranks, rank);
            (region.start, region.end - region.start, own)
        } else if last_batch == LastBatch::Carry {
            let walked = (u128::from(epoch) * u128::from(self.steps.count) + u128::from(step))
                * u128::from(self.global_batch);
            (0, samples, (walked % u128::from(samples)) as u64 + before)
        } else {
            (0, samples, self.steps.start(step) + before)
        };
        PositionRun { base, modulus, first, count }
    }

    /// The positions that a lane takes in one step. With `fill`, those beyond its end are at its
    /// start.
    pub(crate) fn lane_run(&self, step: u64, lane: u64) -> Range<u64> {
        let start = |step| self.steps.part_start(step, lane, self.lanes);
        start(step)..start(step + 1)
    }

    /// The step in which a lane takes a position of an epoch.
    pub(crate) fn lane_step(&self, lane: u64, position: u64) -> u64 {
        let near = (position / self.lane_batch()).min(self.steps.whole).min(self.steps.count - 1);
        let ends_before = |step: &u64| self.lane_run(*step, lane).end <= position;
        near + (near..self.steps.count - 1).take_while(ends_before).count() as u64
    }

    /// Samples that an epoch repeats: those with which `fill` and `carry` fill its last step.
    #[must_use]
    pub fn repeats(&self) -> u64 {
        self.delivered().saturating_sub(self.spec.samples)
    }

    /// Samples that all ranks get in an epoch, repeated ones counted again.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.steps.start(self.steps.count)
    }

    /// Which samples of a batch `fill` repeats, by slot; `None` where it repeats none of them.
    ///
    /// # Panics
    /// As [`Order::batch`].
    #[must_use]
    pub fn repeated(&self, epoch: u64, step: u64, rank: Rank) -> Option<Vec<bool>> {
        let repeats = self.repeats();
        if self.spec.last_batch != LastBatch::Fill || repeats == 0 || self.pool(step).end < self.steps.count {
            return None;
        }
        let marks: Vec<bool> = if let Some(shape) = &self.shape {
            let of_lane = |lane| {
                let end = shape.lane_positions(lane);
                self.lane_run(step, lane).map(move |position| position >= end)
            };
            self.lanes_of(rank).flat_map(of_lane).collect()
        } else if let Some(parts) = self.opportunistic() {
            let run = self.node_run(parts.shares(), step, rank);
            let end = parts.nodes()[run.node].samples;
            run.positions.map(|position| position >= end).collect()
        } else if let Some(shares) = self.shares() {
            let permutation = self.shuffle(epoch);
            let pool = self.deal_pool(shares, &permutation, epoch, step);
            let is_repeated = |sample: &SampleId| permutation.position_of(sample.0) < repeats;
            pool.samples(step, rank).iter().map(is_repeated).collect()
        } else {
            let run = self.run(epoch, step, rank);
            (0..run.count).map(|slot| run.first + slot >= run.modulus).collect()
        };
        marks.contains(&true).then_some(marks)
    }

    /// What an epoch has with `partial`, `fill` and `drop`: the name, T, and the samples that all
    /// ranks get; without those that are not possible. None of a mixture, whose epochs have whole
    /// steps only.
    #[must_use]
    pub fn ends(&self) -> Vec<(LastBatch, u64, u64)> {
        let OrderSpec { samples, batch, ranks, .. } = self.spec;
        let of = |last| {
            let steps = Steps::new(last, samples, batch, ranks);
            (last, steps.count, steps.start(steps.count))
        };
        let lasts = [LastBatch::Partial, LastBatch::Fill, LastBatch::Drop];
        let all = lasts.into_iter().filter(|_| self.mixture.is_none()).map(of);
        all.filter(|(_, steps, _)| *steps > 0).collect()
    }

    /// Samples that a rank takes in an epoch, nothing twice.
    fn taken_once(&self, rank: Rank) -> u64 {
        let (rank, ranks, samples) = (u64::from(rank.0), self.spec.ranks, self.spec.samples);
        let last = self.steps.count - 1;
        let before = self.steps.part_start(last, rank, ranks);
        let run = self.run(0, last, Rank(rank as u32));
        before + run.count.min(samples.saturating_sub(run.first))
    }

    /// The positions of its node's sequence that a rank takes in one step of `opportunistic`.
    pub(crate) fn node_run(&self, shares: &NodeShares, step: u64, rank: Rank) -> NodeRun {
        let count = |rank: Rank| self.run(0, step, rank).count;
        let node = shares.node_of_rank(rank);
        let ranks = shares.ranks_of(node);
        let before = ranks.iter().take_while(|other| **other != rank).map(|rank| count(*rank)).sum::<u64>();
        let first = self.node_start(shares, node, step) + before;
        NodeRun { node, positions: first..first + count(rank) }
    }

    /// Where a step of `opportunistic` begins in the sequence of a node.
    pub(crate) fn node_start(&self, shares: &NodeShares, node: usize, step: u64) -> u64 {
        let taken = |rank: &Rank| self.steps.part_start(step, u64::from(rank.0), self.spec.ranks);
        shares.ranks_of(node).iter().map(taken).sum()
    }

    /// The step of `opportunistic` that takes a position of the sequence of a node.
    pub(crate) fn node_step(&self, shares: &NodeShares, node: usize, position: u64) -> u64 {
        let ranks = shares.ranks_of(node).len() as u64;
        let near = (position / (self.spec.batch * ranks)).min(self.steps.whole).min(self.steps.count - 1);
        let ends_before = |step: &u64| self.node_start(shares, node, step + 1) <= position;
        near + (near..self.steps.count - 1).take_while(ends_before).count() as u64
    }

    /// The pool of `step` of `local-shuffle`, whose epoch has this permutation.
    pub(crate) fn deal_pool(
        &self,
        shares: &NodeShares,
        permutation: &Permutation,
        epoch: u64,
        step: u64,
    ) -> Pool {
        let steps = self.pool(step);
        let samples = (self.steps.start(steps.start)..)
            .map(|position| SampleId(permutation.at(position % self.spec.samples)));
        Pool::deal(shares, epoch, steps, samples, |step, rank| self.run(epoch, step, rank).count)
    }

    /// The permutation of an epoch of [`OrderKind::Shuffle`], and of orders that are it on unknown
    /// nodes.
    pub(crate) fn shuffle(&self, epoch: u64) -> Permutation {
        Permutation::new(Key::new(self.spec.seed, Purpose::Samples).with(epoch), self.spec.samples)
    }

    pub(crate) fn shape(&self) -> Option<&Shape> {
        self.shape.as_ref()
    }

    /// Lanes that a rank serves.
    pub(crate) fn lanes_of(&self, rank: Rank) -> std::ops::Range<u64> {
        let each = self.lanes / self.spec.ranks;
        u64::from(rank.0) * each..(u64::from(rank.0) + 1) * each
    }

    /// G/L, positions that a step takes of every lane.
    pub(crate) fn lane_batch(&self) -> u64 {
        self.global_batch / self.lanes
    }
}

/// Positions of one rank in one step: `base + (first + slot) mod modulus` for every slot below
/// `count`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PositionRun {
    pub(crate) base: u64,
    pub(crate) modulus: u64,
    pub(crate) first: u64,
    pub(crate) count: u64,
}

/// Positions of one rank in the sequence of its node, in one step of `opportunistic`. With `fill`,
/// those beyond its end are at its start.
#[derive(Clone, Debug)]
pub(crate) struct NodeRun {
    pub(crate) node: usize,
    pub(crate) positions: Range<u64>,
}

/// Most samples of a dataset, so that positions of an epoch and its repeated part fit 64 bits.
const MAX_SAMPLES: u64 = 1 << 62;
