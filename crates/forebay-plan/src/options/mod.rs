//! Options of a loader: their valid values, and what follows from them.
//!
//! 1. Python finds each value: in an argument, an environment variable or a file. It converts
//!    types, and [`check_value`] checks the value by itself; an error names where it came from.
//! 2. A [`LoaderOptions`] is made from the values once. [`LoaderOptions::checked`] checks which
//!    values go together, as far as that needs no dataset.
//!
//! What concerns only the process of a rank (launcher, links to other nodes, the command of a
//! daemon) belongs to the engine.

mod order;
mod rules;
mod store;
mod store_slots;
mod strategy;
mod tiers;

use forebay_types::MAX_COPY_LEVELS;
use serde::{Deserialize, Serialize};

pub use self::order::{OrderChoice, OrderName};
pub use self::rules::{check_value, option_words};
pub use self::store::{AutoNumber, OnLost, StoreChoice, StoreSize};
pub use self::store_slots::{NoShareRoom, store_slots};
use self::strategy::quoted;
pub use self::strategy::{Auto, Stagger, StrategyChoice};
pub use self::tiers::{TierOptions, TierSpec};
use crate::config::{Locate, ReadOptions, Settings};
use crate::{LastBatch, Mixture, Order, OrderError, OrderKind, OrderSpec};

/// Values that contradict a rule or each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OptionError {
    /// What was expected, and what was found.
    pub message: String,
    /// What the user can do; may be empty.
    pub hint: String,
}

impl OptionError {
    fn new(message: impl Into<String>, hint: &str) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

impl From<OrderError> for OptionError {
    fn from(error: OrderError) -> Self {
        Self::new(error.to_string(), error.hint().unwrap_or_default())
    }
}

/// Options of a loader from which its decisions follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoaderOptions {
    /// Distinguishes several loaders of one job.
    pub name: String,
    /// The job, as its launcher calls it.
    pub job: String,
    /// The node, as the launcher calls it.
    pub node: String,
    /// Rank in the job.
    pub rank: u32,
    /// Ranks in the job.
    pub size: u32,
    /// Rank on the node.
    pub local_rank: u32,
    /// Ranks of the job that run on this node, by local rank.
    pub local_ranks: Vec<u32>,
    /// Samples per rank and step.
    pub batch_size: u64,
    /// The order.
    pub order: OrderChoice,
    /// Seed of the order.
    pub seed: u64,
    /// What happens at the end of an epoch.
    pub last_batch: LastBatch,
    /// Number of epochs, counted from the first; nothing is read ahead beyond them.
    #[serde(default)]
    pub expected_epochs: Option<u64>,
    /// Memory per node \[bytes\].
    #[serde(default)]
    pub node_memory_bytes: Option<u64>,
    /// How samples get from storage into batches.
    #[serde(default)]
    pub strategy: StrategyChoice,
    /// Whether another sample replaces one that cannot be read or decoded.
    #[serde(default)]
    pub skips_bad_samples: bool,
    /// Whether data are checked against the checksums of the format.
    #[serde(default)]
    pub checksums: bool,
    /// How long storage may stall before it is an error \[s\].
    pub timeout_s: u64,
    /// Storage tiers of the node.
    #[serde(default)]
    pub tiers: TierOptions,
    /// The in-memory store; none without one.
    #[serde(default)]
    pub store: Option<StoreChoice>,
    /// Whether an administrator asked for the store, not the user.
    #[serde(default)]
    pub store_of_system: bool,
}

impl LoaderOptions {
    /// Checks which values go together. Tiers and a store that an administrator asked for are left
    /// out where they would be an error.
    ///
    /// # Errors
    /// With the values as the user wrote them.
    pub fn checked(mut self) -> Result<Self, OptionError> {
        let takes_none =
            self.strategy.bypasses_tiers().is_some() || self.order.kind == OrderName::Opportunistic;
        if self.tiers.of_system && takes_none {
            self.tiers.tiers.clear();
        }
        if self.store_of_system && self.check_store().is_err() {
            self.store = None;
        }
        self.check_rank()?;
        self.check_tiers()?;
        self.check_store()?;
        self.check_order()?;
        Ok(self)
    }

    fn check_rank(&self) -> Result<(), OptionError> {
        if self.rank >= self.size {
            return Err(OptionError::new(
                format!("rank {} in a world of {} ranks", self.rank, self.size),
                "ranks count from 0 to size - 1",
            ));
        }
        if self.local_ranks.get(self.local_rank as usize) != Some(&self.rank) {
            return Err(OptionError::new(
                format!(
                    "local rank {} of rank {} does not fit the node's ranks {:?}",
                    self.local_rank, self.rank, self.local_ranks
                ),
                "local_rank counts the ranks of one node from 0",
            ));
        }
        Ok(())
    }

    fn check_tiers(&self) -> Result<(), OptionError> {
        let count = self.tiers.tiers.len();
        if count > MAX_COPY_LEVELS {
            let message = format!("tiers=: expected at most {MAX_COPY_LEVELS} tiers, found {count}");
            return Err(OptionError::new(message, ""));
        }
        match self.strategy.bypasses_tiers() {
            Some(found) if count > 0 => Err(OptionError::new(
                format!("tiers= with Strategy({found}), which reads the files themselves"),
                "leave tiers= out, or take another strategy",
            )),
            _ => Ok(()),
        }
    }

    fn check_store(&self) -> Result<(), OptionError> {
        if self.store.is_none() {
            return Ok(());
        }
        let is_streamed = self.order.kind == OrderName::Opportunistic;
        let (found, hint) = if let Some(found) = self.strategy.reads_past_store() {
            (found, "leave one of the two out")
        } else if let Some(readers) = self.strategy.readers.filter(|_| !is_streamed) {
            (
                format!("readers={}", quoted(&readers)),
                "leave one of the two out; only order=\"opportunistic\" has readers beside a store",
            )
        } else {
            return Ok(());
        };
        Err(OptionError::new(
            format!(
                "store= with Strategy({found}): ranks take samples from memory, and nothing is read for them"
            ),
            hint,
        ))
    }

    fn check_order(&self) -> Result<(), OptionError> {
        let wrong = |message: String, hint: &str| Err(OptionError::new(message, hint));
        let kind = self.kind(1, 1, 1);
        if self.strategy.locate == Locate::Handoff && kind != OrderKind::Sequential {
            return wrong(
                format!(
                    "the strategy finds samples by a cursor that is handed on, and the order is {}",
                    kind.name()
                ),
                "a cursor that goes from node to node passes through the file once for all, so it takes order=\"sequential\"",
            );
        }
        if matches!(kind, OrderKind::Opportunistic { .. }) {
            if self.store.is_none() {
                return wrong(
                    "order opportunistic: it needs a store, which holds what nodes keep in memory".into(),
                    "add store=\"auto\"; order=\"local-shuffle\" uses tiers",
                );
            }
            if !self.tiers.tiers.is_empty() {
                return wrong(
                    "tiers= with order opportunistic, whose nodes keep samples in memory only".into(),
                    "leave tiers= out, or take order=\"local-shuffle\"",
                );
            }
        }
        let forward = matches!(kind, OrderKind::Sequential | OrderKind::Contiguous);
        if self.strategy.locate.walks() && !forward {
            return wrong(
                format!("the strategy finds samples by a cursor, and the order is {}", kind.name()),
                "a cursor goes from record to record, so it takes order=\"sequential\" or \"contiguous\"",
            );
        }
        if self.order.mixture.is_some() && self.strategy.locate.walks() {
            return wrong(
                "the strategy finds samples by a cursor, and the dataset is a mixture of several".into(),
                "use another strategy",
            );
        }
        Ok(())
    }

    /// Whose loaders share one budget on a node: those of the job, or those of this process where
    /// it is a job by itself.
    #[must_use]
    pub fn budget_owner(&self) -> &str {
        if self.size == 1 { "this process" } else { &self.job }
    }

    /// Whether all ranks of the job run on this node.
    #[must_use]
    pub fn is_one_node(&self) -> bool {
        self.local_ranks.len() == self.size as usize
    }

    /// The kind of order; `samples` and `window` stand in for what the user left open. The dataset
    /// has `total` samples.
    #[must_use]
    pub fn kind(&self, total: u64, samples: u64, window: u64) -> OrderKind {
        let order = &self.order;
        match order.kind {
            OrderName::Sequential => OrderKind::Sequential,
            OrderName::Contiguous => OrderKind::Contiguous,
            OrderName::Shuffle => OrderKind::Shuffle,
            OrderName::LocalShuffle => OrderKind::LocalShuffle { steps: order.steps.unwrap_or(1) },
            // Without a window, it follows from what the nodes keep.
            OrderName::Opportunistic => OrderKind::Opportunistic { window: order.window.unwrap_or(1) },
            OrderName::Group => OrderKind::Group {
                samples: order.samples.unwrap_or(samples),
                window: order.window.unwrap_or(window),
            },
            OrderName::Given => {
                OrderKind::Given { among: order.samples.map(|_| total), repeats: order.repeats }
            }
        }
    }

    /// The order of a dataset of `samples` samples. The sizes of groups and the lanes stand in for
    /// what the user left open.
    ///
    /// # Errors
    /// Numbers that contradict the dataset or each other.
    pub fn order(
        &self,
        samples: u64,
        group_samples: u64,
        group_window: u64,
        lanes: Option<u64>,
    ) -> Result<Order, OptionError> {
        let kind = self.kind(samples, group_samples, group_window);
        let of_epoch = self.order.samples.filter(|_| matches!(kind, OrderKind::Given { .. }));
        let spec = OrderSpec {
            kind,
            last_batch: self.last_batch,
            seed: self.seed,
            samples: of_epoch.unwrap_or(samples),
            batch: self.batch_size,
            ranks: u64::from(self.size),
            lanes: lanes.or(self.order.lanes),
        };
        let Some(mixture) = &self.order.mixture else { return Ok(Order::new(spec)?) };
        let mixture = Mixture::new(mixture.clone())?;
        if mixture.samples() != samples {
            return Err(OptionError::new(
                format!("mixture: its sources have {} samples, its files {samples}", mixture.samples()),
                "a file has changed since it was opened; open the sources again",
            ));
        }
        Ok(Order::mixed(spec, mixture)?)
    }

    /// The order of a dataset of `samples` samples that the settings make.
    ///
    /// # Errors
    /// Numbers that contradict the dataset or each other.
    pub fn decided_order(&self, samples: u64, settings: &Settings) -> Result<Order, OptionError> {
        let lanes = (self.order.kind == OrderName::Group).then_some(settings.lanes);
        self.order(samples, settings.group_samples, settings.group_window, lanes)
    }

    /// How the node is to read. `has_vocabulary`: the format's own checksums are to be computed;
    /// `decode_threads`: threads of a rank that decode images.
    #[must_use]
    pub fn read_options(&self, has_vocabulary: bool, decode_threads: usize) -> ReadOptions {
        let strategy = &self.strategy;
        ReadOptions {
            node_ranks: self.local_ranks.len(),
            locate: strategy.locate,
            access: strategy.access,
            direct: strategy.direct,
            readers: strategy.readers,
            coalesce: strategy.coalesce,
            prefetch_windows: strategy.prefetch_windows,
            batch_buffers: strategy.batch_buffers,
            checksums: self.checksums || has_vocabulary,
            store: self.store.is_some(),
            decode_threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn options(change: impl FnOnce(&mut Value)) -> Result<LoaderOptions, OptionError> {
        let mut value = json!({
            "name": "train", "job": "j", "node": "n", "rank": 1, "size": 2, "local_rank": 1, "local_ranks": [0, 1],
            "batch_size": 8, "order": {"kind": "group"}, "seed": 0, "last_batch": "fill", "timeout_s": 600,
        });
        change(&mut value);
        serde_json::from_value::<LoaderOptions>(value).unwrap().checked()
    }

    #[test]
    fn options_that_contradict_each_other_are_named_with_advice() {
        assert!(options(|_| ()).is_ok());
        for (changed, to, message, hint) in [
            ("rank", json!(2), "rank 2 in a world of 2 ranks", "ranks count from 0"),
            ("local_rank", json!(0), "local rank 0 of rank 1 does not fit the node's ranks [0, 1]", "from 0"),
            ("order", json!({"kind": "opportunistic"}), "it needs a store", "local-shuffle"),
            ("strategy", json!({"locate": "cursor", "access": "mmap"}), "the order is group", "contiguous"),
            ("strategy", json!({"locate": "handoff", "access": "mmap"}), "is handed on", "sequential"),
        ] {
            let error = options(|values| values[changed] = to).unwrap_err();
            assert!(error.message.contains(message) && error.hint.contains(hint), "{changed}: {error:?}");
        }
    }

    #[test]
    fn a_store_is_refused_with_what_says_how_to_read_and_left_out_if_an_administrator_asked_for_it() {
        let of = |of_system: bool, order: &str, strategy: Value, store: Value| {
            options(|values| {
                values["order"]["kind"] = order.into();
                values["strategy"] = strategy;
                values["store"] = store;
                values["store_of_system"] = of_system.into();
            })
        };
        let with = |order: &str, strategy: Value, store: Value| of(false, order, strategy, store);
        let auto = || json!({"size": "auto"});
        assert_eq!(with("group", json!({}), json!({})).unwrap().store, Some(StoreChoice::default()));
        assert_eq!(with("group", json!({"access": "pread"}), Value::Null).unwrap().store, None);
        for (order, strategy, found) in [
            ("group", json!({"direct": true}), None),
            ("group", json!({"access": "mmap"}), Some("store= with Strategy(access=\"mmap\")")),
            ("group", json!({"access": "io_uring"}), Some("store= with Strategy(access=\"io_uring\")")),
            ("group", json!({"readers": 2}), Some("store= with Strategy(readers=2)")),
            ("opportunistic", json!({"locate": "scan"}), Some("store= with Strategy(locate=\"scan\")")),
            ("group", json!({"readers": "per_rank"}), Some("store= with Strategy(readers=\"per_rank\")")),
            ("opportunistic", json!({"readers": 2}), None),
        ] {
            if order == "group" {
                let left = of(true, order, strategy.clone(), auto()).unwrap().store;
                assert_eq!(left.is_some(), found.is_none(), "{strategy}");
            }
            let problem = with(order, strategy.clone(), auto()).err();
            match (problem, found) {
                (None, None) => (),
                (Some(error), Some(found)) => {
                    assert!(
                        error.message.starts_with(found) && error.hint.contains("leave one"),
                        "{error:?}"
                    );
                }
                (problem, _) => panic!("{order} {strategy}: {problem:?}"),
            }
        }
    }

    #[test]
    fn tiers_are_refused_beyond_seven_and_where_ranks_read_the_files_themselves() {
        let with_tiers = |count: usize, of_system: bool, locate: &str, access: &str| {
            options(|v| {
                v["tiers"]["of_system"] = of_system.into();
                v["tiers"]["tiers"] = vec![json!({"path": "/scratch", "bytes": 1}); count].into();
                v["strategy"] = json!({"locate": locate, "access": access});
                v["order"]["kind"] = "sequential".into();
            })
        };
        assert_eq!(with_tiers(MAX_COPY_LEVELS, false, "index", "auto").unwrap().tiers.tiers.len(), 7);
        assert!(with_tiers(MAX_COPY_LEVELS + 1, false, "index", "auto").is_err());
        for (locate, access, is_fine) in [
            ("provenance", "pread", true),
            ("index", "io_uring", true),
            ("index", "mmap", false),
            ("scan", "pread", false),
            ("cursor", "mmap", false),
            ("handoff", "mmap", false),
        ] {
            assert!(with_tiers(0, false, locate, access).is_ok(), "{locate} {access}");
            assert_eq!(with_tiers(1, false, locate, access).is_ok(), is_fine, "{locate} {access}");
            let of_system = with_tiers(1, true, locate, access).unwrap();
            assert_eq!(of_system.tiers.tiers.len(), usize::from(is_fine), "{locate} {access}");
        }
    }

    #[test]
    fn an_order_takes_from_the_dataset_what_the_user_left_open() {
        let order = |order: Value| {
            options(|values| values["order"] = order).unwrap().order(1000, 32, 4, None).unwrap()
        };
        for (given, kind) in [
            (json!({"kind": "group"}), OrderKind::Group { samples: 32, window: 4 }),
            (json!({"kind": "group", "samples": 8}), OrderKind::Group { samples: 8, window: 4 }),
            (json!({"kind": "local-shuffle"}), OrderKind::LocalShuffle { steps: 1 }),
            (json!({"kind": "given"}), OrderKind::Given { among: None, repeats: false }),
            (
                json!({"kind": "given", "samples": 2000, "repeats": true}),
                OrderKind::Given { among: Some(1000), repeats: true },
            ),
        ] {
            assert_eq!(order(given).kind(), kind);
        }
        assert_eq!(order(json!({"kind": "given", "samples": 160, "repeats": true})).steps_per_epoch(), 10);
        assert_eq!(order(json!({"kind": "sequential"})).spec().batch, 8);
    }
}
