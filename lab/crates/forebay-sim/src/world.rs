//! What all nodes of a job share.

use forebay_model::{Condition, FileId, FileSystem, ModelTime, OpenFile};
use forebay_plan::Order;
use forebay_plan::config::Settings;

use crate::job::Job;
use crate::node::Node;
use crate::places::Places;

/// The file system, the nodes, the meetings of the ranks.
pub(crate) struct World<'a> {
    pub(crate) job: &'a Job,
    pub(crate) places: &'a Places,
    pub(crate) order: &'a Order,
    /// What each node decided.
    pub(crate) settings: Vec<&'a Settings>,
    /// Length of each file \[B\]; empty where each sample is a file.
    pub(crate) shard_bytes: Vec<u64>,
    pub(crate) storage: FileSystem,
    pub(crate) nodes: Vec<Node>,
    /// Steps of the run.
    pub(crate) steps: u64,
    /// Nodes that have arrived where all meet.
    pub(crate) arrived: usize,
    /// All nodes have arrived.
    pub(crate) together: Condition,
    /// How long a scan took before the loaders began.
    pub(crate) scan_ns: u64,
    /// When the ranks met after the first batch.
    pub(crate) ready: ModelTime,
    /// When each step ended.
    pub(crate) step_ends: Vec<ModelTime>,
}

impl<'a> World<'a> {
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
        let bytes = self.places.bytes_of_file(u64::from(shard));
        let node = &mut self.nodes[node];
        let client = self.storage.client(node.id);
        *node.opens.entry(shard).or_insert_with(|| client.open(FileId(u64::from(shard)), bytes))
    }
}
