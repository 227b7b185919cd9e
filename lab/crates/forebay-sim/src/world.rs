//! What all nodes of a job share.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_model::{Condition, FileId, FileSystem, Kernel, ModelTime, NodeTraffic, OpenFile, ServerResult};
use forebay_plan::config::{ReadAhead, Settings};
use forebay_plan::{ChunkMap, Order};
use forebay_types::Extent;

use crate::costs::nanoseconds;
use crate::job::Job;
use crate::mailbox::Channel;
use crate::node::Node;
use crate::places::Places;
use crate::result::EpochResult;
use crate::run::NodeRun;
use crate::store::Store;
use crate::tiers::NodeTiers;

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
    /// Steps of the run, those that do not count included.
    pub(crate) steps: u64,
    /// Steps that do not count.
    pub(crate) uncounted: u64,
    /// Nodes that have arrived where all meet.
    pub(crate) arrived: usize,
    /// All nodes have arrived.
    pub(crate) together: Condition,
    /// When the ranks met after the first batch.
    pub(crate) ready: ModelTime,
    /// When each step ended.
    pub(crate) step_ends: Vec<ModelTime>,
    /// The epochs that have ended.
    pub(crate) epochs: Vec<EpochResult>,
    /// Sample ids of each epoch in the order `given`.
    pub(crate) given: Vec<Arc<[u64]>>,
    /// How the dataset is cut; empty where nothing depends on it.
    pub(crate) chunks: &'a ChunkMap,
    /// The tiers of each node; none without any.
    pub(crate) tiers: Vec<NodeTiers>,
    /// What the daemon of each node knows, where a program runs under `forebay run`.
    pub(crate) runs: Vec<NodeRun>,
    /// The in-memory store.
    pub(crate) store: Option<Store<'a>>,
    /// What each node has still to load: parts, each for one thread.
    pub(crate) loads: Vec<VecDeque<Vec<Extent>>>,
    /// What was done when the first step that counts began.
    pub(crate) before: Before,
}

/// What a run had done when its first step that counts began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Before {
    /// When it began; 0 where all steps count.
    pub(crate) begin: ModelTime,
    pub(crate) traffic: Vec<NodeTraffic>,
    pub(crate) servers: Vec<ServerResult>,
}

/// The ids of an epoch in the order `given`.
pub(crate) fn ids_of_epoch(given: &[Arc<[u64]>], epoch: u64) -> Option<Arc<[u64]>> {
    given.get(epoch as usize).or(given.last()).map(Arc::clone)
}

impl<'a> World<'a> {
    /// What a node decided.
    pub(crate) fn settings(&self, node: usize) -> &'a Settings {
        self.settings[node]
    }

    /// Records that a step has ended.
    pub(crate) fn end_step(&mut self, now: ModelTime) {
        self.step_ends.push(now);
        let done = self.step_ends.len() as u64;
        if done == self.uncounted {
            let traffic = self.nodes.iter().map(|node| self.storage.traffic(node.id)).collect();
            self.before = Before { begin: now, traffic, servers: self.storage.servers().to_vec() };
        }
        if !done.is_multiple_of(self.order.steps_per_epoch()) && done != self.steps {
            return;
        }
        let mut found = EpochResult { end: now, ..EpochResult::default() };
        for node in &self.nodes {
            found.wait_ns += node.counters.wait_ns;
            let traffic = self.storage.traffic(node.id);
            found.traffic.reads += traffic.reads;
            found.traffic.read_bytes += traffic.read_bytes;
        }
        self.epochs.push(found);
    }

    /// The epochs, each without those before it.
    pub(crate) fn take_epochs(&mut self) -> Vec<EpochResult> {
        let mut epochs = std::mem::take(&mut self.epochs);
        for (number, epoch) in (0..).zip(&mut epochs) {
            let levels = self.nodes.iter().filter_map(|node| node.levels.get(&number));
            levels.for_each(|levels| epoch.levels.add(levels));
        }
        for later in (1..epochs.len()).rev() {
            let before = epochs[later - 1].clone();
            let epoch = &mut epochs[later];
            epoch.wait_ns -= before.wait_ns;
            epoch.traffic.reads -= before.traffic.reads;
            epoch.traffic.read_bytes -= before.traffic.read_bytes;
        }
        epochs
    }

    /// What a rank works to gather a step, of which it copies `copied` bytes \[ns\].
    pub(crate) fn gather_ns(&self, copied: u64) -> u64 {
        let costs = &self.job.costs;
        nanoseconds(self.job.batch_size as f64 * costs.gather_ns) + costs.copy(copied)
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

    /// Sends a message from a node to another one: it arrives after `message_ns`, and after its
    /// bytes have passed the link of a node.
    pub(crate) fn send(
        &mut self,
        kernel: &mut Kernel,
        channel: Channel,
        (from, to): (usize, usize),
        bytes: Vec<u8>,
    ) {
        let on_link = self.job.storage.link_bytes_per_second.map_or(0.0, |rate| bytes.len() as f64 / rate);
        let duration = nanoseconds(self.job.costs.message_ns + on_link * 1e9);
        let node = &mut self.nodes[to];
        let mailbox = match channel {
            Channel::Cursor => &mut node.cursors,
            Channel::Token => &mut node.tokens,
        };
        mailbox.push(kernel, duration, from, bytes);
    }

    /// A file, mapped by a rank of a node.
    pub(crate) fn map(&mut self, node: usize, rank: usize, shard: u32) -> OpenFile {
        let bytes = self.places.bytes_of_file(u64::from(shard));
        let node = &mut self.nodes[node];
        let client = self.storage.client(node.id);
        *node.mapped.entry((rank, shard)).or_insert_with(|| client.open(FileId(u64::from(shard)), bytes))
    }

    /// A file, opened by the readers of a node.
    pub(crate) fn open(&mut self, node: usize, shard: u32) -> OpenFile {
        let bytes = self.places.bytes_of_file(u64::from(shard));
        let by_kernel = self.settings(node).read_ahead == ReadAhead::Kernel;
        let node = &mut self.nodes[node];
        let client = self.storage.client(node.id);
        *node.opens.entry(shard).or_insert_with(|| {
            let open = client.open(FileId(u64::from(shard)), bytes);
            if !by_kernel {
                client.without_read_ahead(open);
            }
            open
        })
    }
}
