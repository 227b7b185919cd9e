//! The order `local-shuffle`: the samples of `shuffle`, each on a node that holds it where that is
//! possible.
//!
//! How it works, in order:
//! 1. K steps form a pool; with K = 1, the default, each step is one. The last pool of an epoch may
//!    have fewer.
//! 2. A pool has the samples that `shuffle` has in these steps. In the order of their positions,
//!    each goes to the node that holds it, until that has as many as its ranks take in the pool.
//! 3. What is left, the surplus, goes to nodes that lack samples: in the order of positions, to
//!    the nodes in the order of their numbers.
//! 4. A node sorts its samples by position and deals them: step after step, to its ranks in order.
//!
//! So each rank gets as many samples as in `shuffle`, and with K = 1 each global batch has the same
//! samples, on any nodes. On one node this is `shuffle` itself. With K > 1 the samples of a pool
//! are those of `shuffle`, and the nodes decide which step gets them.
//!
//! Nothing is kept but the pool at hand; it costs its K·G samples.

use std::ops::Range;

use forebay_types::{Rank, SampleId};

use crate::node_shares::NodeShares;
use crate::order::Order;

/// The samples of a pool of steps, by node.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    epoch: u64,
    steps: Range<u64>,
    /// The samples of each node, by position.
    nodes: Vec<Vec<SampleId>>,
}

impl Pool {
    /// Steps of `epoch` to the nodes of `shares`. `sample_at` is the shuffle of the epoch.
    pub(crate) fn new(
        order: &Order,
        shares: &NodeShares,
        epoch: u64,
        steps: Range<u64>,
        sample_at: impl Fn(u64) -> u64,
    ) -> Self {
        let taken = |ranks: &[Rank]| -> usize {
            steps.clone().map(|step| taken_by(order, epoch, step, ranks) as usize).sum()
        };
        let rooms: Vec<usize> = shares.nodes().map(taken).collect();
        let mut nodes: Vec<Vec<(u64, SampleId)>> =
            rooms.iter().map(|room| Vec::with_capacity(*room)).collect();
        let mut surplus = Vec::new();
        let first = steps.start * order.global_batch();
        for position in first..first + rooms.iter().sum::<usize>() as u64 {
            let sample = SampleId(sample_at(position % order.spec().samples));
            let node = shares.node_of(sample);
            if nodes[node].len() < rooms[node] {
                nodes[node].push((position, sample));
            } else {
                surplus.push((position, sample));
            }
        }
        let mut surplus = surplus.into_iter();
        let fill = |(mut samples, room): (Vec<(u64, SampleId)>, &usize)| {
            let missing = room - samples.len();
            samples.extend(surplus.by_ref().take(missing));
            samples.sort_unstable_by_key(|(position, _)| *position);
            samples.into_iter().map(|(_, sample)| sample).collect()
        };
        let nodes = nodes.into_iter().zip(&rooms).map(fill).collect();
        Self { epoch, steps, nodes }
    }

    /// Whether the pool has this step.
    pub(crate) fn has(&self, epoch: u64, step: u64) -> bool {
        self.epoch == epoch && self.steps.contains(&step)
    }

    /// The samples of a rank in one step of the pool.
    pub(crate) fn samples(&self, order: &Order, shares: &NodeShares, step: u64, rank: Rank) -> &[SampleId] {
        let node = shares.node_of_rank(rank);
        let Some(ranks) = shares.nodes().nth(node) else { return &[] };
        let ranks_before = ranks.iter().position(|other| *other == rank).unwrap_or_default();
        let taken = |step, ranks| taken_by(order, self.epoch, step, ranks) as usize;
        let steps_before: usize = (self.steps.start..step).map(|step| taken(step, ranks)).sum();
        let start = steps_before + taken(step, &ranks[..ranks_before]);
        &self.nodes[node][start..start + taken(step, &[rank])]
    }
}

/// Samples that these ranks take in a step.
fn taken_by(order: &Order, epoch: u64, step: u64, ranks: &[Rank]) -> u64 {
    ranks.iter().map(|rank| order.run(epoch, step, *rank).count).sum()
}
