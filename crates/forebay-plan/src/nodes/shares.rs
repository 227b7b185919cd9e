//! Shares: which samples of a dataset each node of a job holds.
//!
//! How it works, in order:
//! 1. The dataset is cut into units, runs of consecutive samples. The caller decides where.
//! 2. Each node has a part of the data in proportion to its ranks, since that is what a step takes
//!    of it.
//! 3. A hash of (key, unit, node) is the score of a unit on a node. A node with twice the ranks
//!    has two scores, and the higher one counts. In the order of their numbers, units go to the
//!    node with the highest score among those whose part is not full yet.
//!
//! Promises:
//! - The same numbers give the same shares for ever, on every machine.
//! - A share exceeds the node's part by less than one unit.
//! - If a node is added or removed, few units move besides those that it gets or had: rendezvous
//!   hashing moves no others, and full parts turn away some.

use std::ops::Range;

use forebay_types::{Rank, SampleId};
use serde::{Deserialize, Serialize};

use crate::ln_factorial::ln_factorial;
use crate::permutation::{Key, Purpose};

/// Most nodes: their numbers are 16-bit words.
const MAX_NODES: usize = 1 << 16;

/// The shares of all nodes of a job; see the module header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Numbers", into = "Numbers")]
pub struct NodeShares {
    /// N.
    samples: u64,
    /// First sample of each unit.
    unit_starts: Box<[u64]>,
    /// The node that holds each unit.
    unit_nodes: Box<[u16]>,
    /// Ranks of each node, by local rank.
    nodes: Box<[Box<[Rank]>]>,
    /// The node of each rank.
    rank_nodes: Box<[u16]>,
    /// Samples that each node holds.
    held: Box<[u64]>,
}

/// All that defines shares, as it travels between processes.
#[derive(Serialize, Deserialize)]
struct Numbers {
    samples: u64,
    /// Samples of each unit but the last.
    unit_samples: Vec<u64>,
    unit_nodes: Vec<u16>,
    /// Ranks of each node.
    nodes: Vec<Vec<u32>>,
}

/// A unit of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareUnit {
    /// Its first sample; it ends where the next unit starts.
    pub first_sample: SampleId,
    /// Its length \[bytes\].
    pub bytes: u64,
}

impl NodeShares {
    /// Shares out `units`, of a dataset of `samples` samples, among nodes with these ranks. `key`
    /// identifies the dataset.
    ///
    /// # Panics
    /// Where the units do not begin with sample 0 and ascend, or the ranks are not 0 to their
    /// number, each on one node.
    #[must_use]
    pub fn new(samples: u64, units: &[ShareUnit], nodes: &[Vec<Rank>], key: u64) -> Self {
        let unit_starts = units.iter().map(|unit| unit.first_sample.0).collect();
        let unit_nodes = share_out(units, nodes, key);
        let nodes = nodes.iter().map(|ranks| ranks.clone().into()).collect();
        Self::of_parts(samples, unit_starts, unit_nodes, nodes)
            .unwrap_or_else(|wrong| panic!("{wrong} of {samples} samples"))
    }

    fn of_parts(
        samples: u64,
        unit_starts: Box<[u64]>,
        unit_nodes: Box<[u16]>,
        nodes: Box<[Box<[Rank]>]>,
    ) -> Result<Self, &'static str> {
        let cover = unit_starts.first() == Some(&0)
            && unit_starts.is_sorted_by(|one, next| one < next)
            && unit_starts.last().is_some_and(|last| *last < samples);
        if !cover || unit_starts.len() != unit_nodes.len() {
            return Err("units that do not cover the dataset");
        }
        if nodes.len() > MAX_NODES {
            return Err("too many nodes");
        }
        let mut rank_nodes = vec![None; nodes.iter().map(|ranks| ranks.len()).sum()];
        for (number, ranks) in (0..).zip(&nodes) {
            for rank in ranks {
                let known = rank_nodes.get_mut(rank.0 as usize).map(|node| node.replace(number));
                if known != Some(None) {
                    return Err("ranks that are not 0 to their number, each on one node");
                }
            }
        }
        let mut held = vec![0; nodes.len()];
        let ends = unit_starts.iter().skip(1).chain([&samples]);
        for ((start, end), node) in unit_starts.iter().zip(ends).zip(&unit_nodes) {
            *held.get_mut(usize::from(*node)).ok_or("a unit of a node that is not there")? += end - start;
        }
        let rank_nodes = rank_nodes.into_iter().flatten().collect();
        Ok(Self { samples, unit_starts, unit_nodes, nodes, rank_nodes, held: held.into() })
    }

    /// Samples of the dataset.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Number of units.
    #[must_use]
    pub fn units(&self) -> usize {
        self.unit_starts.len()
    }

    /// Ranks of each node, by local rank.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &[Rank]> {
        self.nodes.iter().map(|ranks| &**ranks)
    }

    /// Ranks of one node, by local rank.
    ///
    /// # Panics
    /// Where there is no such node.
    #[must_use]
    pub fn ranks_of(&self, node: usize) -> &[Rank] {
        &self.nodes[node]
    }

    /// Ranks of the job.
    #[must_use]
    pub fn ranks(&self) -> u64 {
        self.rank_nodes.len() as u64
    }

    /// The unit of a sample of the dataset.
    #[must_use]
    pub fn unit_of(&self, sample: SampleId) -> usize {
        self.unit_starts.partition_point(|start| *start <= sample.0) - 1
    }

    /// The samples of a unit.
    ///
    /// # Panics
    /// Where there is no such unit.
    #[must_use]
    pub fn unit_samples(&self, unit: usize) -> Range<u64> {
        self.unit_starts[unit]..self.unit_starts.get(unit + 1).copied().unwrap_or(self.samples)
    }

    /// The node that holds a unit.
    ///
    /// # Panics
    /// Where there is no such unit.
    #[must_use]
    pub fn holder(&self, unit: usize) -> usize {
        usize::from(self.unit_nodes[unit])
    }

    /// The node that holds a sample of the dataset.
    #[must_use]
    pub fn node_of(&self, sample: SampleId) -> usize {
        self.holder(self.unit_of(sample))
    }

    /// The node of a rank.
    ///
    /// # Panics
    /// Where there is no such rank.
    #[must_use]
    pub fn node_of_rank(&self, rank: Rank) -> usize {
        usize::from(self.rank_nodes[rank.0 as usize])
    }

    /// Samples that a node holds.
    ///
    /// # Panics
    /// Where there is no such node.
    #[must_use]
    pub fn held_samples(&self, node: usize) -> u64 {
        self.held[node]
    }

    /// Expected share of the samples that a node does not hold, but takes from others, where each
    /// rank takes `batch` of every `batch`·ranks random ones, and those of its node first.
    #[must_use]
    pub fn moved(&self, batch: u64) -> f64 {
        let drawn = (batch * self.ranks()).min(self.samples);
        let surplus =
            self.held.iter().zip(&self.nodes).map(|(held, ranks)| {
                expected_surplus(self.samples, *held, drawn, batch * ranks.len() as u64)
            });
        surplus.sum::<f64>() / drawn.max(1) as f64
    }

    /// [`NodeShares::moved`] of `nodes` nodes that hold the same, and take the same of each
    /// `global_batch` samples.
    #[must_use]
    pub fn moved_of_equal(samples: u64, nodes: u64, global_batch: u64) -> f64 {
        let (nodes, drawn) = (nodes.max(1), global_batch.min(samples));
        let surplus = expected_surplus(samples, samples / nodes, drawn, drawn / nodes);
        surplus * nodes as f64 / drawn.max(1) as f64
    }

    /// Identifies the shares: a hash of all that decides them.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut digest = Key::new(self.samples, Purpose::Shares);
        for (start, node) in self.unit_starts.iter().zip(&self.unit_nodes) {
            digest = digest.with(*start).with(u64::from(*node));
        }
        self.rank_nodes.iter().fold(digest, |digest, node| digest.with(u64::from(*node))).word()
    }
}

impl From<NodeShares> for Numbers {
    fn from(shares: NodeShares) -> Self {
        let of_units = shares.unit_starts.windows(2).map(|pair| pair[1] - pair[0]);
        Self {
            samples: shares.samples,
            unit_samples: of_units.collect(),
            unit_nodes: shares.unit_nodes.into_vec(),
            nodes: shares.nodes.iter().map(|ranks| ranks.iter().map(|rank| rank.0).collect()).collect(),
        }
    }
}

impl TryFrom<Numbers> for NodeShares {
    type Error = &'static str;

    fn try_from(numbers: Numbers) -> Result<Self, Self::Error> {
        let mut starts = vec![0_u64];
        for samples in &numbers.unit_samples {
            let last = *starts.last().unwrap_or(&0);
            starts.push(last.checked_add(*samples).ok_or("more samples than 64 bits count")?);
        }
        let nodes = numbers.nodes.into_iter().map(|ranks| ranks.into_iter().map(Rank).collect()).collect();
        Self::of_parts(numbers.samples, starts.into(), numbers.unit_nodes.into(), nodes)
    }
}

/// The node of each unit.
fn share_out(units: &[ShareUnit], nodes: &[Vec<Rank>], key: u64) -> Box<[u16]> {
    let ranks: Vec<u64> = nodes.iter().map(|ranks| ranks.len() as u64).collect();
    let scores = ranks.iter().fold(0, |divisor, ranks| greatest_common_divisor(*ranks, divisor)).max(1);
    let bytes: u128 = units.iter().map(|unit| u128::from(unit.bytes)).sum();
    let all_ranks = u128::from(ranks.iter().sum::<u64>()).max(1);
    let mut room: Vec<i128> =
        ranks.iter().map(|ranks| (bytes * u128::from(*ranks)).div_ceil(all_ranks) as i128).collect();
    let has_ranks = |node: &usize| ranks[*node] > 0;
    let choose = |(number, unit): (u64, &ShareUnit)| {
        let key = Key::new(key, Purpose::Shares).with(number);
        let score = |node: usize| {
            (0..ranks[node] / scores).map(|number| key.with(node as u64).with(number).word()).max()
        };
        let open = |node: &usize| room[*node] > 0;
        let best = |nodes: &mut dyn Iterator<Item = usize>| nodes.max_by_key(|node| score(*node));
        // Units without bytes may come when all parts are full.
        let node = best(&mut (0..nodes.len()).filter(has_ranks).filter(open))
            .or_else(|| best(&mut (0..nodes.len()).filter(has_ranks)))
            .unwrap_or(0);
        room[node] -= i128::from(unit.bytes);
        node as u16
    };
    (0..).zip(units).map(choose).collect()
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

/// Expected number of samples beyond `taken` that a node holds of `drawn` random ones, where it
/// holds `held` of all `samples`.
fn expected_surplus(samples: u64, held: u64, drawn: u64, taken: u64) -> f64 {
    let ways = |of: u64, chosen: u64| ln_factorial(of) - ln_factorial(chosen) - ln_factorial(of - chosen);
    let all = ways(samples, drawn);
    let most = drawn.min(held);
    let least = (drawn + held).saturating_sub(samples).max(taken + 1);
    (least..=most)
        .map(|found| {
            let chance = (ways(held, found) + ways(samples - held, drawn - found) - all).exp();
            (found - taken) as f64 * chance
        })
        .sum()
}
