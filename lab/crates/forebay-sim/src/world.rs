//! What all nodes of a job share.

use forebay_model::{Condition, FileId, FileSystem, Kernel, ModelTime, OpenFile};
use forebay_plan::Order;
use forebay_plan::config::Settings;

use crate::job::Job;
use crate::node::Node;

/// The file system, the nodes, the meetings of the ranks.
pub(crate) struct World<'a> {
    pub(crate) job: &'a Job,
    pub(crate) order: &'a Order,
    /// What each node decided.
    settings: Vec<&'a Settings>,
    /// Length of each file \[B\]; empty where each sample is a file.
    pub(crate) shard_bytes: Vec<u64>,
    pub(crate) storage: FileSystem,
    pub(crate) nodes: Vec<Node>,
    /// Steps of the run.
    pub(crate) steps: u64,
    /// Nodes that have arrived where all meet.
    arrived: usize,
    /// All nodes have arrived.
    pub(crate) together: Condition,
    /// When the ranks met after the first batch.
    pub(crate) ready: ModelTime,
    /// When each step ended.
    pub(crate) step_ends: Vec<ModelTime>,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        job: &'a Job,
        order: &'a Order,
        settings: Vec<&'a Settings>,
        storage: FileSystem,
        nodes: Vec<Node>,
        steps: u64,
        kernel: &mut Kernel,
    ) -> World<'a> {
        World {
            job,
            order,
            settings,
            shard_bytes: forebay_types::SamplePlaces::shard_bytes(job.places()),
            storage,
            nodes,
            steps,
            arrived: 0,
            together: kernel.condition(),
            ready: 0,
            step_ends: Vec::new(),
        }
    }

    /// What a node decided.
    pub(crate) fn settings(&self, node: usize) -> &'a Settings {
        self.settings[node]
    }

    /// A node arrives where all meet; true for the last one, which does not wait for others.
    pub(crate) fn meet(&mut self) -> bool {
        self.arrived += 1;
        let is_last = self.arrived == self.nodes.len();
        if is_last {
            self.arrived = 0;
        }
        is_last
    }

    /// A file, opened by the readers of a node.
    pub(crate) fn open(&mut self, node: usize, shard: u32) -> OpenFile {
        let bytes = self.shard_bytes.get(shard as usize).copied().unwrap_or_else(|| {
            // Each sample is a file.
            self.job.places().header_bytes + self.job.places().stride_bytes
        });
        let node = &mut self.nodes[node];
        let client = self.storage.client(node.id);
        *node.opens.entry(shard).or_insert_with(|| client.open(FileId(u64::from(shard)), bytes))
    }
}
