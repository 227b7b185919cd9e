//! What is simulated, and what the engine would decide for it.

use std::ops::Range;

use forebay_model::spec::PAGE_BYTES;
use forebay_model::{ReadAheadRules, Spec};
use forebay_plan::config::{
    AccessChoice, Budget, DataFacts, DirectIo, IoMode, JobFacts, JobTooLarge, Locate, Mapping, MemoryFacts,
    Settings, StorageFacts, StorageKind, budget, copy_buffer_bytes, decide_job, default_memory_bytes,
    wants_direct,
};
use forebay_plan::options::{LoaderOptions, OrderChoice, StoreChoice, StrategyChoice, TierOptions, TierSpec};
use forebay_plan::{LastBatch, Order, OrderKind, STREAM_CONTROL_BYTES, default_group, stream_buffer_bytes};
use serde::{Deserialize, Serialize};

use crate::costs::Costs;
use crate::decided::{Decisions, Streamed};
use crate::error::Error;
use crate::places::Places;
use crate::program::Program;
use crate::tier::Tier;

/// A job: a dataset on a file system, ranks, and what their loaders are asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The file system.
    pub storage: Spec,
    /// Read-ahead of the nodes' clients.
    #[serde(default)]
    pub rules: ReadAheadRules,
    /// Ranks.
    pub ranks: u32,
    /// Nodes, each with a block of the ranks; the blocks differ by one at most.
    pub nodes: u32,
    /// The node.
    #[serde(default)]
    pub machine: Machine,
    /// Samples per rank and step.
    pub batch_size: u64,
    /// The order.
    pub order: OrderChoice,
    /// What happens at the end of an epoch.
    #[serde(default = "fill")]
    pub last_batch: LastBatch,
    /// How samples get from storage into batches.
    #[serde(default)]
    pub strategy: StrategyChoice,
    /// A program in place of the loader.
    #[serde(default)]
    pub program: Option<Program>,
    /// Storage tiers of each node, the nearest first. Strategies that read past tiers have none.
    #[serde(default)]
    pub tiers: Vec<Tier>,
    /// The in-memory store; absent: none.
    #[serde(default)]
    pub store: Option<StoreChoice>,
    /// Sample ids of each epoch in the order `given`; the last ones are those of further epochs.
    #[serde(default)]
    pub given: Vec<Vec<u64>>,
    /// Memory of the loader on each node \[B\]; absent: the default.
    #[serde(default)]
    pub node_memory_bytes: Option<u64>,
    /// Epochs.
    #[serde(default = "one")]
    pub epochs: u64,
    /// Steps of the first epoch that are simulated; absent: all epochs, or `fault_window`.
    #[serde(default)]
    pub steps: Option<u64>,
    /// Where ranks or roots take page faults, `steps` is absent, and an epoch has more steps: what
    /// is simulated of it.
    #[serde(default)]
    pub fault_window: Option<Window>,
    /// Compute time of a step \[µs\].
    #[serde(default)]
    pub compute_us: f64,
    /// The compute time of a node is longer by a random fraction of up to this.
    #[serde(default)]
    pub compute_jitter: f64,
    /// Nodes begin within this time \[µs\].
    #[serde(default)]
    pub start_skew_us: f64,
    /// Seed of the order.
    #[serde(default)]
    pub seed: u64,
    /// Processor time of what the engine does.
    #[serde(default)]
    pub costs: Costs,
}

/// Steps of the first epoch that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Steps before them, which are simulated but do not count.
    pub after: u64,
    /// Steps.
    pub steps: u64,
}

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Cores.
    pub cores: u32,
    /// Memory \[B\].
    pub memory_bytes: u64,
    /// Whether all nodes are one machine, as in an emulated run.
    #[serde(default)]
    pub is_shared: bool,
}

impl Default for Machine {
    /// A node of a cluster of 2018: 36 cores, 128 GiB.
    fn default() -> Machine {
        Machine { cores: 36, memory_bytes: 128 << 30, is_shared: false }
    }
}

fn one() -> u64 {
    1
}

fn fill() -> LastBatch {
    LastBatch::Fill
}

impl Job {
    /// Validates the numbers; the error names the first invalid one.
    pub fn check(&self) -> Result<(), Error> {
        self.storage.check()?;
        self.costs.check()?;
        Tier::check_all(&self.tiers)?;
        let positive = |what, value: u64, most: u64| {
            let holds = (1..=most).contains(&value);
            if holds { Ok(()) } else { Err(Error::job(what, format!("1 to {most}"), &value)) }
        };
        positive("ranks", self.ranks.into(), 1 << 24)?;
        positive("nodes", self.nodes.into(), self.ranks.into())?;
        positive("batch_size", self.batch_size, 1 << 32)?;
        positive("epochs", self.epochs, 1 << 20)?;
        positive("machine.cores", self.machine.cores.into(), 1 << 16)?;
        positive("machine.memory_bytes", self.machine.memory_bytes, 1 << 60)?;
        self.program.as_ref().map_or(Ok(()), Program::check)?;
        if let Some(steps) = self.steps {
            positive("steps", steps, 1 << 40)?;
        }
        if let Some(window) = self.fault_window {
            positive("fault_window.steps", window.steps, 1 << 40)?;
            positive("fault_window.after", window.after + 1, 1 << 40)?;
        }
        for (what, value, most) in [
            ("compute_us", self.compute_us, 3600e6),
            ("start_skew_us", self.start_skew_us, 3600e6),
            ("compute_jitter", self.compute_jitter, 100.0),
        ] {
            if !(0.0..=most).contains(&value) {
                return Err(Error::job(what, format!("0 to {most:e}"), &value));
            }
        }
        Ok(())
    }

    /// The ranks of a node.
    pub fn ranks_of(&self, node: u32) -> Range<u32> {
        let begin = |node: u32| (u64::from(node) * u64::from(self.ranks) / u64::from(self.nodes)) as u32;
        begin(node)..begin(node + 1)
    }

    /// Time to compute a step \[ns\].
    pub(crate) fn compute_ns(&self) -> u64 {
        crate::costs::nanoseconds(self.compute_us * 1e3)
    }

    /// Time that a meeting takes after the last rank has arrived: a tree over all ranks \[ns\].
    pub(crate) fn meeting_ns(&self) -> u64 {
        let rounds = f64::from(self.ranks).log2().ceil();
        crate::costs::nanoseconds(self.costs.message_ns * rounds)
    }

    /// The decisions of the engine on a node with `node_ranks` ranks. `has_shares` tells whether
    /// each node holds a share of the dataset, `streamed` what the node streams in the order
    /// `opportunistic`.
    pub(crate) fn decide(
        &self,
        places: &Places,
        node_ranks: u32,
        has_shares: bool,
        streamed: Option<Streamed<'_>>,
    ) -> Result<Decisions, Error> {
        let options = self.loader_options(node_ranks).checked()?;
        options.strategy.check()?;
        if options.strategy.locate == Locate::Scan && places.leaves().is_empty() {
            return Err(Error::NotModelled("a walk through a file whose tree is not computed".to_owned()));
        }
        let samples = places.samples();
        let (group_samples, group_window) = default_group(samples, places.sample_bytes() as f64, 1);
        let order = match streamed {
            Some(streamed) => streamed.order.clone(),
            None => options.order(samples, group_samples, group_window, None)?,
        };
        self.check_given(&order, samples)?;
        let mut data = data_facts(places, order.largest_batch());
        let read_options = options.read_options(false, 0);
        let mut budget = self.budget()?;
        if let Some(streamed) = streamed {
            (data.stream_bytes, data.stream_unit_bytes) = (streamed.staging_bytes, streamed.unit_bytes);
            if budget.is_default {
                // The windows follow from the entropy, not from the default.
                let (buffers, ranks) = (options.strategy.batch_buffers, node_ranks as usize);
                let buffer_bytes = stream_buffer_bytes(buffers, ranks, data.batch_bytes);
                let needed = buffer_bytes + STREAM_CONTROL_BYTES + streamed.staging_bytes;
                budget.requested_bytes = budget.requested_bytes.max(needed);
            }
        }
        let storage = self.storage_facts(&options, &data, &order);
        let has_tiers = !options.tiers.tiers.is_empty();
        let facts = JobFacts {
            options: &read_options,
            data: &data,
            storage: &storage,
            order: &order,
            budget: &budget,
            copy_buffer_bytes: if has_tiers {
                copy_buffer_bytes(node_ranks as usize, budget.left_bytes())
            } else {
                0
            },
            has_tiers_of_shares: has_tiers && has_shares,
        };
        let plan = decide_job(&facts).map_err(|JobTooLarge { least, budget }| Error::Memory {
            minimum_bytes: least.minimum_bytes,
            buffer_bytes: least.buffer_bytes,
            staging_bytes: least.staging_bytes,
            found_bytes: budget.left_bytes(),
        })?;
        let order =
            if streamed.is_some() { order } else { options.decided_order(samples, &plan.settings)? };
        let steps = order.steps_per_epoch();
        if self.steps.is_some_and(|found| found > steps) {
            let found = self.steps.unwrap_or_default();
            return Err(Error::job("steps", format!("at most {steps}, as an epoch has"), &found));
        }
        let (settings, copy_buffer_bytes) = (plan.settings, plan.copy_buffer_bytes);
        let decisions = Decisions { order, settings, has_tiers, copy_buffer_bytes };
        if let Some(program) = self.program {
            if program.walks() && places.leaves().is_empty() {
                return Err(Error::NotModelled(
                    "a cursor through a file whose tree is not computed".to_owned(),
                ));
            }
            // What the loader would do does not matter.
            return Ok(Decisions { has_tiers: false, ..decisions });
        }
        match decisions.settings.mode {
            IoMode::CursorWalk { .. } if places.leaves().is_empty() => {
                Err(Error::NotModelled("a cursor through a file whose tree is not computed".to_owned()))
            }
            IoMode::Mapped => {
                Err(Error::NotModelled("files that are in the page cache from the beginning".to_owned()))
            }
            IoMode::Planned { .. } | IoMode::Store | IoMode::CursorWalk { .. } => Ok(decisions),
        }
    }

    /// The steps that count, where those are not all of all epochs of `steps_per_epoch` steps.
    pub(crate) fn window(&self, settings: &Settings, steps_per_epoch: u64) -> Option<Window> {
        let takes_faults = match self.program {
            Some(program) => program.takes_faults(),
            None => settings.access == AccessChoice::Mmap,
        };
        let of_faults = self.fault_window.filter(|window| {
            takes_faults && window.after.saturating_add(window.steps) < steps_per_epoch * self.epochs
        });
        self.steps.map(|steps| Window { after: 0, steps }).or(of_faults)
    }

    /// Checks the ids of the order `given`.
    fn check_given(&self, order: &Order, samples: u64) -> Result<(), Error> {
        if !matches!(order.kind(), OrderKind::Given { .. }) {
            return Ok(());
        }
        if self.given.is_empty() {
            return Err(Error::NotModelled("the order given, without ids".to_owned()));
        }
        for ids in &self.given {
            if ids.len() as u64 != order.spec().samples {
                return Err(Error::job("given", format!("{} ids", order.spec().samples), &ids.len()));
            }
            if let Some(id) = ids.iter().find(|id| **id >= samples) {
                return Err(Error::job("given", format!("ids below {samples}"), id));
            }
        }
        Ok(())
    }

    pub(crate) fn loader_options(&self, node_ranks: u32) -> LoaderOptions {
        LoaderOptions {
            name: "simulated".to_owned(),
            job: "simulated".to_owned(),
            node: "0".to_owned(),
            rank: 0,
            size: self.ranks,
            local_rank: 0,
            local_ranks: (0..node_ranks).collect(),
            batch_size: self.batch_size,
            order: self.order.clone(),
            seed: self.seed,
            last_batch: self.last_batch,
            expected_epochs: Some(self.epochs),
            node_memory_bytes: self.node_memory_bytes,
            strategy: self.strategy.clone(),
            skips_bad_samples: false,
            checksums: false,
            timeout_s: 600,
            // Rows that cannot have tiers have none, as with those that an administrator names.
            tiers: TierOptions { tiers: (0..).zip(&self.tiers).map(tier_spec).collect(), of_system: true },
            store: self.store,
            store_of_system: false,
        }
    }

    fn storage_facts(&self, options: &LoaderOptions, data: &DataFacts, order: &Order) -> StorageFacts {
        let read_options = options.read_options(false, 0);
        let (source, memory_bytes) = (StorageKind::Network, self.machine.memory_bytes);
        let wanted = wants_direct(&read_options, data, source, order.kind(), false, memory_bytes);
        StorageFacts {
            source,
            mapping: if options.strategy.access == AccessChoice::Mmap {
                Mapping::Cold
            } else {
                Mapping::None
            },
            direct: if wanted { DirectIo::IoUring } else { DirectIo::Unavailable },
            memory_bytes,
        }
    }

    pub(crate) fn budget(&self) -> Result<Budget, Error> {
        let memory_bytes = self.machine.memory_bytes;
        let facts = MemoryFacts {
            requested_bytes: self.node_memory_bytes,
            // A program keeps its batches as it likes.
            default_bytes: match self.program {
                Some(_) => memory_bytes,
                None => default_memory_bytes(memory_bytes),
            },
            free_bytes: memory_bytes,
            address_left_bytes: None,
            held_bytes: 0,
        };
        budget(&facts).map_err(|bound| {
            let found = self.node_memory_bytes.unwrap_or_default();
            Error::job("node_memory_bytes", format!("at most {}", bound.bytes()), &found)
        })
    }
}

fn tier_spec((number, tier): (u32, &Tier)) -> TierSpec {
    TierSpec { path: format!("tier{number}").into(), bytes: tier.bytes, keep: false, force: false }
}

pub(crate) fn data_facts(places: &Places, largest_batch: u64) -> DataFacts {
    // Ids, and the values of one field.
    let batch_bytes = largest_batch * (8 + places.sample_bytes());
    DataFacts {
        samples: places.samples(),
        record_bytes: places.record_bytes(),
        drawn_bytes: places.record_bytes(),
        file_bytes: places.file_bytes(),
        unit_samples: 1,
        is_coded: false,
        has_sample_files: places.has_sample_files(),
        has_checksums: false,
        batch_bytes: batch_bytes.next_multiple_of(PAGE_BYTES),
        ragged_bytes: 0,
        stream_bytes: 0,
        stream_unit_bytes: 0,
    }
}
