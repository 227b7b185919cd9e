//! What one of several nodes reads of a dataset in each epoch: in which runs of bytes, and whether
//! later epochs read the same again. Storage tiers keep their copies per node, so this decides what
//! copies are worth.
//!
//! W nodes share an epoch; each reads 1/W of the samples. A *run* is what stands together in the
//! dataset and goes to one node:
//!
//! | Order | Run | A node's later epochs |
//! |---|---|---|
//! | `contiguous` | its ranks' regions | the same |
//! | `sequential` | its ranks' part of a step | the same; with `carry` others¹ |
//! | `group` | a group | other groups |
//! | `local-shuffle` | a unit of its share² | the same, but for m of them |
//! | `opportunistic` | a unit³ | the same resident units, other streamed ones |
//! | `shuffle`, groups of one sample | a sample | other samples |
//! | ids given by the user | unknown, taken as a sample | unknown, taken as other samples |
//! | `sequential` of a mixture | a sample | other samples |
//!
//! ¹ The same where N is a multiple of the global batch.
//! ² See `node_shares`. A share m of the samples goes to nodes that do not hold them.
//! ³ Resident units are taken as read whole, too. What levels keep of a node's part are the units
//! that are resident there. So the node reads the rest of its part, n − R samples of n, from the
//! source once per epoch.
//!
//! So `contiguous` gives a node whole chunks. `group` does where groups are whole chunks, and
//! `sequential` where a node's part of a step is several chunks. `shuffle` does for samples of
//! several chunks only. On one node each order reads everything in each epoch.
//!
//! Formulas. Runs of r bytes that start at multiples of a bytes tile the dataset. A unit of
//! storage (a chunk or a piece) of b bytes has on average x = (b − min(a, b))/r borders of runs
//! inside. As borders are r apart, there are ⌊x⌋ or ⌊x⌋ + 1 of them, the latter with probability
//! x − ⌊x⌋. One more run than borders touches the unit: m. Orders that shuffle give each run to
//! this node with probability 1/W, so the node touches the unit with probability 1 − (1 − 1/W)^m.
//! `sequential` and `contiguous` deal the runs to the nodes in turn, so it is min(m/W, 1). Which of
//! a unit's runs comes first is chance and together they cover the unit once, so the first run to
//! touch it covers 1/m of it.
//!
//! A node fetches f bytes for each one that it needs:
//! - Samples of a segment that lie near each other are read together with what is between them. In
//!   `shuffle` a segment holds each sample with probability p, at most 1/W; in `local-shuffle`,
//!   each sample of the node's share, W times as likely. The next one of the segment is j samples
//!   on with probability p·(1 − p)^j, and J samples fit into the longest gap that is read: f = 1 +
//!   Σ j·p·(1 − p)^j over j up to J.
//! - Reads fetch whole pages of c bytes, c − min(a, c) more for each. One of 1/(1 − p)^(J+1) runs
//!   ends a read.
//!
//! So a gap of a node covers a run (f − 1)/W times in an epoch, and the node touches a unit with
//! probability 1 − ((1 − 1/W)·exp(−(f − 1)/W))^m. A gap covers the unit whole, so what touches it
//! first covers 1 − (1 − 1/m)/f of it.
//!
//! Left out: gaps between the runs of other orders, samples that `drop` leaves out or `fill`
//! repeats, groups that two lanes share, and differences between sample sizes.

use serde::{Deserialize, Serialize};

use crate::nodes::shares::NodeShares;
use crate::order::{LastBatch, Order, OrderKind};

/// What one node reads in each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReads {
    /// W, nodes that share an epoch.
    pub nodes: u64,
    /// r, bytes that stand together and go to one node.
    pub run_bytes: f64,
    /// a, runs start at multiples of so many bytes; 1 where nothing is known.
    pub aligned_bytes: u64,
    /// f, bytes fetched for each byte needed.
    pub fetched: f64,
    /// Whether a node reads the same bytes in each epoch.
    pub repeats: bool,
    /// m, share of the bytes read that are of other nodes' shares, others in each epoch.
    pub moved: f64,
    /// Mean bytes of a sample.
    pub sample_bytes: f64,
}

impl NodeReads {
    /// What each of `nodes` nodes with the same number of ranks reads in an order, at
    /// `mean_sample_bytes` per sample. Runs are taken as not aligned. Where the order
    /// `local-shuffle` does not know what the nodes hold, they hold equal shares in units of 1 MiB.
    #[must_use]
    pub fn of(order: &Order, nodes: u64, mean_sample_bytes: f64) -> Self {
        let spec = order.spec();
        let nodes = nodes.max(1);
        let mut moved = 0.0;
        let (samples, repeats) = match order.kind() {
            // Where in the dataset the draws of a step lie follows from the sizes of the sources.
            OrderKind::Sequential if order.mixture().is_some() => (1, false),
            OrderKind::LocalShuffle { steps } if nodes > 1 => {
                moved = moved_share(order, nodes, steps);
                (unit_samples(order, mean_sample_bytes), true)
            }
            OrderKind::Opportunistic { .. } if order.shares().is_some() => {
                (unit_samples(order, mean_sample_bytes), true)
            }
            OrderKind::Contiguous => (spec.samples / nodes, true),
            OrderKind::Sequential if nodes == 1 => (spec.samples, true),
            OrderKind::Sequential => {
                let fills = spec.samples.is_multiple_of(order.global_batch());
                (order.global_batch() / nodes, spec.last_batch != LastBatch::Carry || fills)
            }
            OrderKind::Group { samples, .. } => (samples, false),
            OrderKind::Shuffle
            | OrderKind::LocalShuffle { .. }
            | OrderKind::Opportunistic { .. }
            | OrderKind::Given { .. } => (1, false),
        };
        Self {
            nodes,
            run_bytes: samples.clamp(1, spec.samples) as f64 * mean_sample_bytes.max(1.0),
            aligned_bytes: 1,
            fetched: 1.0,
            repeats: repeats || nodes == 1,
            moved,
            sample_bytes: mean_sample_bytes.max(1.0),
        }
    }

    /// The same with what reads fetch besides. A segment of `segment_samples` samples of `order` is
    /// read at once, with gaps up to `gap_bytes` and in pages of `page_bytes`.
    #[must_use]
    pub fn fetching(self, order: &Order, segment_samples: u64, gap_bytes: u64, page_bytes: u64) -> Self {
        let samples = order.spec().samples.max(1) as f64;
        let segment = segment_samples as f64 / samples;
        let nodes = self.nodes as f64;
        let samples_of_gap = (gap_bytes as f64 / self.sample_bytes) as i32;
        // What reads fetch for a byte that they need, where they need each sample with probability
        // `chosen`.
        let fetched = |chosen: f64, longest: i32, alone_bytes: f64, aligned_bytes: u64| {
            let other = 1.0 - chosen;
            let in_gaps: f64 = (1..=longest).map(|gap| f64::from(gap) * chosen * other.powi(gap)).sum();
            let ends = other.powi(longest + 1);
            let of_page = (page_bytes - aligned_bytes.min(page_bytes)) as f64;
            1.0 + in_gaps + ends * of_page / alone_bytes
        };
        match order.kind() {
            OrderKind::Shuffle => {
                let chosen = segment.min(1.0 / nodes);
                Self {
                    fetched: fetched(chosen, samples_of_gap, self.sample_bytes, self.aligned_bytes),
                    ..self
                }
            }
            OrderKind::LocalShuffle { .. } => {
                let own = fetched((segment * nodes).min(1.0), samples_of_gap, self.sample_bytes, 1);
                let of_others = nodes / (nodes - 1.0).max(1.0);
                let moved = fetched(
                    (self.moved * segment * of_others).min(1.0),
                    samples_of_gap,
                    self.sample_bytes,
                    1,
                );
                let fetched = (1.0 - self.moved) * own + self.moved * moved;
                Self { fetched, moved: self.moved * moved / fetched, ..self }
            }
            OrderKind::Group { .. } | OrderKind::Opportunistic { .. } => {
                Self { fetched: fetched(0.0, 0, self.run_bytes, self.aligned_bytes), ..self }
            }
            // Their runs are as long as a step at least.
            OrderKind::Sequential | OrderKind::Contiguous | OrderKind::Given { .. } => self,
        }
    }

    /// The same, where runs start at multiples of `aligned_bytes`.
    #[must_use]
    pub fn aligned(self, aligned_bytes: u64) -> Self {
        Self { aligned_bytes: aligned_bytes.max(1), ..self }
    }

    /// Probability that the node touches a unit of `unit_bytes` in an epoch; also the share of such
    /// units that it touches.
    #[must_use]
    pub fn touched(&self, unit_bytes: u64) -> f64 {
        self.units(unit_bytes).iter().map(|units| units.share * units.touched).sum()
    }

    /// The units of `unit_bytes`, by the number of runs that touch them.
    pub(crate) fn units(&self, unit_bytes: u64) -> [Units; 2] {
        let nodes = self.nodes as f64;
        let untouched = (1.0 - 1.0 / nodes) * (-(self.fetched - 1.0) / nodes).exp();
        let borders = (unit_bytes - self.aligned_bytes.min(unit_bytes)) as f64 / self.run_bytes;
        let units = |share: f64, runs: f64| {
            let touched = if self.repeats { (runs / nodes).min(1.0) } else { 1.0 - untouched.powf(runs) };
            let covered = 1.0 - (1.0 - 1.0 / runs) / self.fetched;
            Units { share, touched, covered_at_first: touched * covered }
        };
        let more = borders.fract();
        [units(1.0 - more, borders.floor() + 1.0), units(more, borders.floor() + 2.0)]
    }
}

/// m of `local-shuffle` in pools of `steps` steps.
fn moved_share(order: &Order, nodes: u64, steps: u64) -> f64 {
    match order.shares() {
        Some(shares) => shares.moved(steps * order.spec().batch),
        None => NodeShares::moved_of_equal(order.spec().samples, nodes, steps * order.global_batch()),
    }
}

/// Samples of a unit of `local-shuffle`, which a node holds whole.
fn unit_samples(order: &Order, mean_sample_bytes: f64) -> u64 {
    /// Where no units are known.
    const UNIT_BYTES: f64 = 1_048_576.0;
    match order.shares() {
        Some(shares) => order.spec().samples / shares.units() as u64,
        None => (UNIT_BYTES / mean_sample_bytes) as u64,
    }
}

/// The units of storage that so many runs touch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    /// Share of all units.
    pub(crate) share: f64,
    /// Probability that the node touches one in an epoch.
    pub(crate) touched: f64,
    /// Expected share of a unit that the first run to touch it in an epoch covers; 0 where no run
    /// of this node does.
    pub(crate) covered_at_first: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::OrderSpec;

    fn order(kind: OrderKind, last: LastBatch, samples: u64) -> Order {
        Order::new(OrderSpec { kind, last_batch: last, seed: 1, samples, batch: 16, ranks: 8, lanes: None })
            .unwrap()
    }

    #[test]
    fn runs_follow_the_order() {
        let group = OrderKind::Group { samples: 64, window: 4 };
        for (kind, last, samples, run_samples, repeats) in [
            (OrderKind::Contiguous, LastBatch::Fill, 1000, 250.0, true),
            (OrderKind::Sequential, LastBatch::Fill, 1000, 32.0, true),
            (OrderKind::Sequential, LastBatch::Carry, 1000, 32.0, false),
            (OrderKind::Sequential, LastBatch::Carry, 1280, 32.0, true),
            (group, LastBatch::Fill, 1000, 64.0, false),
            (OrderKind::Shuffle, LastBatch::Fill, 1000, 1.0, false),
            (OrderKind::ALL_GIVEN, LastBatch::Drop, 1000, 1.0, false),
        ] {
            let order = order(kind, last, samples);
            let reads = NodeReads::of(&order, 4, 10.0);
            assert_eq!((reads.run_bytes, reads.repeats), (run_samples * 10.0, repeats), "{kind}");
            assert!(NodeReads::of(&order, 1, 10.0).repeats, "{kind} on one node");
        }
    }

    #[test]
    fn one_node_touches_everything() {
        let reads = NodeReads::of(&order(OrderKind::Shuffle, LastBatch::Fill, 1000), 1, 300.0);
        assert!((reads.touched(1 << 20) - 1.0).abs() < 1e-12);
        assert!((reads.touched(1) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn aligned_runs_of_whole_units_are_not_shared() {
        let reads = NodeReads {
            nodes: 4,
            run_bytes: 2048.0,
            aligned_bytes: 1024,
            fetched: 1.0,
            repeats: false,
            moved: 0.0,
            sample_bytes: 2048.0,
        };
        assert!((reads.touched(1024) - 0.25).abs() < 1e-12);
        let unaligned = NodeReads { aligned_bytes: 1, ..reads };
        // 1023 of 2048 units have a border inside, which two runs touch.
        let expected = 0.25 + 1023.0 / 2048.0 * (1.0 - 0.75 * 0.75 - 0.25);
        assert!((unaligned.touched(1024) - expected).abs() < 1e-12);
        let samples = NodeReads { run_bytes: 256.0, aligned_bytes: 256, ..reads };
        assert!((samples.touched(1024) - (1.0 - 0.75_f64.powi(4))).abs() < 1e-12);
    }
}
