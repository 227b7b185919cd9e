//! What a run measured.

use forebay_model::{ModelTime, NodeTraffic, ServerResult};
use serde::{Deserialize, Serialize};

/// One run of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Seed of what varies between runs.
    pub seed: u64,
    /// Time from the first batch of all ranks to the end \[ns\].
    pub wall_ns: ModelTime,
    /// Time until all ranks had their first batch \[ns\].
    pub startup_ns: ModelTime,
    /// When each step ended, from the beginning of the run \[ns\].
    pub step_ends: Vec<ModelTime>,
    /// Per node.
    pub nodes: Vec<NodeResult>,
    /// Per server.
    pub servers: Vec<ServerResult>,
    /// Number of simulated events.
    pub events: u64,
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
    /// What it asked the file system for.
    pub traffic: NodeTraffic,
}
