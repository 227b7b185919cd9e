//! What a run measured.

use forebay_model::{ModelTime, NodeTraffic, ServerResult};
use serde::{Deserialize, Serialize};

/// One run of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Seed of what varies between runs.
    pub seed: u64,
    /// Time from the first batch of all ranks, or from the first step that counts, to the end
    /// \[ns\].
    pub wall_ns: ModelTime,
    /// Time until all ranks had their first batch \[ns\].
    pub startup_ns: ModelTime,
    /// When each step that counts ended, from the beginning of the run without the time of those
    /// that do not \[ns\].
    pub step_ends: Vec<ModelTime>,
    /// Each epoch, the last one perhaps in part.
    pub epochs: Vec<EpochResult>,
    /// Per node.
    pub nodes: Vec<NodeResult>,
    /// Per server.
    pub servers: Vec<ServerResult>,
    /// Number of simulated events.
    pub events: u64,
}

/// An epoch of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochResult {
    /// When it ended, from the beginning of the run \[ns\].
    pub end: ModelTime,
    /// Time that nodes waited for its batches, but the first of the run, summed \[ns\].
    pub wait_ns: u64,
    /// Bytes that nodes read for it, summed.
    pub levels: LevelBytes,
    /// What nodes asked the file system for until it ended, what is read ahead included.
    pub traffic: NodeTraffic,
}

/// Bytes that were read, by the level that had them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelBytes {
    /// From the files, by requests of readers and ranks \[B\].
    pub source: u64,
    /// From each tier \[B\].
    pub tiers: Vec<u64>,
    /// From the share of the node \[B\].
    pub share: u64,
    /// From the shares of other nodes \[B\].
    pub peers: u64,
}

impl LevelBytes {
    /// Adds bytes that a tier had.
    pub(crate) fn add_to_tier(&mut self, level: usize, bytes: u64) {
        self.tiers.resize(self.tiers.len().max(level + 1), 0);
        self.tiers[level] += bytes;
    }

    /// Adds those of another node.
    pub(crate) fn add(&mut self, other: &LevelBytes) {
        self.source += other.source;
        self.share += other.share;
        self.peers += other.peers;
        self.tiers.resize(self.tiers.len().max(other.tiers.len()), 0);
        self.tiers.iter_mut().zip(&other.tiers).for_each(|(sum, one)| *sum += one);
    }
}

/// One node of a run; each of its ranks has these times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeResult {
    /// Time until its first batch \[ns\].
    pub startup_ns: u64,
    /// Time that it waited for later batches \[ns\].
    pub wait_ns: u64,
    /// Time that it computed \[ns\].
    pub compute_ns: u64,
    /// Time that it waited for other nodes, and that the meetings took \[ns\].
    pub skew_ns: u64,
    /// Requests of its readers, and of its ranks for what no reader stages.
    pub reads: u64,
    /// Bytes of them \[B\].
    pub read_bytes: u64,
    /// Bytes that it copied to its tiers \[B\].
    pub copied_bytes: u64,
    /// Bytes that it should have copied, and did not, for want of memory \[B\].
    pub skipped_bytes: u64,
    /// Bytes that it read into its memory before the loader began \[B\].
    pub loaded_bytes: u64,
    /// What it asked the file system for.
    pub traffic: NodeTraffic,
}
