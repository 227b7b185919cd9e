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

use crate::nodes::shares::NodeShares;

/// The samples of a pool of steps.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    epoch: u64,
    steps: Range<u64>,
    /// W.
    ranks: usize,
    /// Where the samples of each step and rank begin, and the end of the last.
    starts: Vec<usize>,
    /// Samples, step after step and rank after rank.
    samples: Vec<SampleId>,
}

impl Pool {
    /// Deals `samples`, those of `shuffle` from the first of `steps` on, to the nodes of `shares`.
    /// `taken` says how many samples a rank takes in a step.
    pub(crate) fn deal(
        shares: &NodeShares,
        epoch: u64,
        steps: Range<u64>,
        samples: impl Iterator<Item = SampleId>,
        taken: impl Fn(u64, Rank) -> u64,
    ) -> Self {
        let ranks = shares.ranks() as usize;
        let mut starts = vec![0];
        let mut rooms = vec![0; shares.nodes().len()];
        for step in steps.clone() {
            for rank in (0..ranks as u32).map(Rank) {
                let count = taken(step, rank) as usize;
                starts.push(starts[starts.len() - 1] + count);
                rooms[shares.node_of_rank(rank)] += count;
            }
        }
        let count = starts[starts.len() - 1];
        let mut of_nodes = split(shares, samples.take(count), &rooms);
        let mut dealt = vec![SampleId(0); count];
        for step in 0..(steps.end - steps.start) as usize {
            for (node, ranks_of_node) in shares.nodes().enumerate() {
                for rank in ranks_of_node {
                    let place = step * ranks + rank.0 as usize;
                    let slots = dealt[starts[place]..starts[place + 1]].iter_mut();
                    slots.zip(&mut of_nodes[node]).for_each(|(slot, sample)| *slot = sample);
                }
            }
        }
        Self { epoch, steps, ranks, starts, samples: dealt }
    }

    /// Whether the pool has this step.
    pub(crate) fn has(&self, epoch: u64, step: u64) -> bool {
        self.epoch == epoch && self.steps.contains(&step)
    }

    /// The samples of a rank in one step of the pool.
    pub(crate) fn samples(&self, step: u64, rank: Rank) -> &[SampleId] {
        let place = (step - self.steps.start) as usize * self.ranks + rank.0 as usize;
        &self.samples[self.starts[place]..self.starts[place + 1]]
    }
}

/// The samples of each node, in the order of their positions: its own, up to its room, and what it
/// lacks from the surplus of the others.
fn split(
    shares: &NodeShares,
    samples: impl Iterator<Item = SampleId>,
    rooms: &[usize],
) -> Vec<std::vec::IntoIter<SampleId>> {
    let mut nodes: Vec<Vec<(usize, SampleId)>> = rooms.iter().map(|room| Vec::with_capacity(*room)).collect();
    let mut surplus = Vec::new();
    for (position, sample) in samples.enumerate() {
        let node = shares.node_of(sample);
        if nodes[node].len() < rooms[node] {
            nodes[node].push((position, sample));
        } else {
            surplus.push((position, sample));
        }
    }
    let mut surplus = surplus.into_iter();
    let fill = |(mut samples, room): (Vec<(usize, SampleId)>, &usize)| {
        let missing = room - samples.len();
        samples.extend(surplus.by_ref().take(missing));
        samples.sort_unstable_by_key(|(position, _)| *position);
        samples.into_iter().map(|(_, sample)| sample).collect::<Vec<_>>().into_iter()
    };
    nodes.into_iter().zip(rooms).map(fill).collect()
}
