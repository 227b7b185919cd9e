//! What is simulated.

use std::ops::Range;

use forebay_model::{ReadAheadRules, Spec};
use forebay_plan::LastBatch;
use forebay_plan::config::{AccessChoice, Settings};
use forebay_plan::options::{OrderChoice, StoreChoice, StrategyChoice};
use serde::{Deserialize, Serialize};

use crate::costs::Costs;
use crate::error::Error;
use crate::machine::Machine;
use crate::program::Program;
use crate::run_options::RunOptions;
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
    /// Storage tiers of each node, the nearest first. Strategies that read past tiers have none;
    /// a program runs under `forebay run`.
    #[serde(default)]
    pub tiers: Vec<Tier>,
    /// Options of `forebay run`.
    #[serde(default)]
    pub run: RunOptions,
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
}
