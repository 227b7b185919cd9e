//! The state of a loader: its position, and all that decides the stream of global batches from
//! there.
//!
//! This is the one place that writes and checks states: `state_dict`, `state_at` and
//! `load_state_dict` of the Python package call it. A state is a table of integers and strings, so
//! that any checkpoint format can hold it. A checkpoint is a file like any other and may be
//! damaged; a value of any type ([`StateValue`]) is refused with what was expected.
//!
//! | key | value |
//! |---|---|
//! | `version` | [`STATE_VERSION`] |
//! | `kind`, `last_batch` | names of the order and of what the end of an epoch does |
//! | `seed` | seed |
//! | `epoch`, `step` | position: the step that comes next |
//! | `global_batch` | G |
//! | `ranks` | W, which decides the last steps of `partial` |
//! | `lanes` | L, which decides the numbers of ranks on which the stream can go on |
//! | `group_samples`, `group_window` | S and w of the order `group`, else None |
//! | `fingerprint` | identity of the dataset |
//! | `pool_steps` | K of the order `local-shuffle`; other orders lack this key and the next |
//! | `node_shares` | digest of what each node holds, as hexadecimal digits; None on one node |
//! | `stream_window` | w of the order `opportunistic`; others lack this key and the next two |
//! | `streamed_units` | units that no node keeps; None where the order knows no nodes |
//! | `node_residents` | digest of what each node keeps, as hexadecimal digits; None there, too |
//! | `given_samples` | ids of an epoch of the order `given`; other orders lack this key |
//! | `mixture` | names, shares and samples of the sources of a mixture; others lack this key |

use std::fmt;

use crate::order::{Order, OrderKind, Steps, list};

/// Version of states: rises when a constant or a rule of an order changes, so that no run resumes
/// on another stream unnoticed.
pub const STATE_VERSION: u64 = 3;

/// Largest number of a state: positions are counted in 63 bits, so that they fit every checkpoint
/// format.
const MAX_NUMBER: u64 = (1 << 63) - 1;

/// Largest global batch of a state.
const MAX_GLOBAL_BATCH: u64 = 1 << 32;

/// The keys of a state, in the order in which they are written.
const KEYS: [&str; 12] = [
    "version",
    "kind",
    "last_batch",
    "seed",
    "epoch",
    "step",
    "global_batch",
    "ranks",
    "lanes",
    "group_samples",
    "group_window",
    "fingerprint",
];

/// The keys that states of some orders have besides.
fn more_keys(kind: OrderKind) -> &'static [&'static str] {
    match kind {
        OrderKind::LocalShuffle { .. } => &["pool_steps", "node_shares"],
        OrderKind::Given { .. } => &["given_samples"],
        OrderKind::Opportunistic { .. } => &["stream_window", "streamed_units", "node_residents"],
        _ => &[],
    }
}

/// A value of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateValue {
    /// An integer.
    Integer(u64),
    /// A string.
    Text(String),
    /// Nothing, where the key does not apply.
    None,
    /// What no state holds: another type, or an integer outside 0 to 2^64 - 1, as the caller writes
    /// it.
    Other(String),
}

impl fmt::Display for StateValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "'{}'", text.escape_debug()),
            Self::None => f.write_str("None"),
            Self::Other(written) => f.write_str(written),
        }
    }
}

impl From<u64> for StateValue {
    fn from(number: u64) -> Self {
        Self::Integer(number)
    }
}

impl From<&str> for StateValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Option<u64>> for StateValue {
    fn from(number: Option<u64>) -> Self {
        number.map_or(Self::None, Self::Integer)
    }
}

/// Why a state cannot be resumed, or does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The state has not all keys.
    #[error("the state lacks {}", keys.join(", "))]
    Missing {
        /// The keys that are not there.
        keys: Vec<&'static str>,
    },
    /// A state of another stream.
    #[error("{key} is {found} in the state and {expected} in this loader")]
    Differs {
        /// Which key.
        key: &'static str,
        /// Its value in the state.
        found: StateValue,
        /// Its value in this loader.
        expected: StateValue,
    },
    /// A value that no state holds.
    #[error("{key}: expected {expected}, found {found}")]
    Damaged {
        /// Which key.
        key: &'static str,
        /// What a state holds there.
        expected: String,
        /// Its value in the state.
        found: StateValue,
    },
    /// The order `contiguous` on another number of ranks.
    #[error(
        "the order contiguous cannot go on with another number of ranks: the state is of {lanes}, this job has {ranks}, \
         and each rank walks a region that depends on it"
    )]
    Regions {
        /// Ranks of the state.
        lanes: u64,
        /// Ranks of this job.
        ranks: u64,
        /// How to fix it.
        hint: String,
    },
    /// The order `local-shuffle` inside a pool of steps, on nodes that hold other samples.
    #[error(
        "the order local-shuffle cannot go on with step {step} on nodes that hold other samples: these steps share \
         their samples with steps that were delivered"
    )]
    Pool {
        /// The step that comes next.
        step: u64,
        /// How to fix it.
        hint: String,
    },
    /// The order `opportunistic` inside an epoch, on nodes that keep other units.
    #[error(
        "the order opportunistic cannot go on with step {step} on nodes that keep other units (expected {expected}, \
         found {found})"
    )]
    Residents {
        /// The step that comes next.
        step: u64,
        /// Streamed units of this job, and digest of the resident ones.
        expected: String,
        /// The same of the state.
        found: String,
        /// How to fix it.
        hint: String,
    },
    /// Between the last steps of an epoch, which are others on this number of ranks.
    #[error(
        "the state of {found} ranks is before step {step} of {steps}: on {ranks} ranks no step begins there, as the \
         samples that fill no step are shared out over other steps"
    )]
    LastSteps {
        /// The step that comes next.
        step: u64,
        /// Steps of an epoch of the state.
        steps: u64,
        /// Ranks of the state.
        found: u64,
        /// Ranks of this job.
        ranks: u64,
        /// How to fix it.
        hint: String,
    },
    /// The lanes do not divide among the ranks.
    #[error("{ranks} ranks cannot share the {lanes} lanes of the state")]
    Ranks {
        /// Ranks of this job.
        ranks: u64,
        /// Lanes of the state.
        lanes: u64,
        /// Numbers of ranks that can.
        hint: String,
    },
    /// Another global batch.
    #[error(
        "the global batch is {found} in the state and {expected} here ({batch} on each of {ranks} ranks)"
    )]
    GlobalBatch {
        /// G of the state.
        found: u64,
        /// G of this loader.
        expected: u64,
        /// B of this loader.
        batch: u64,
        /// Ranks of this job.
        ranks: u64,
        /// The batch that fits.
        hint: String,
    },
    /// A position without a batch.
    #[error("expected an epoch of at least 0 and a step from 0 to {highest}, found ({epoch}, {step})")]
    Position {
        /// Epoch.
        epoch: StateValue,
        /// Step.
        step: StateValue,
        /// Last step of an epoch.
        highest: u64,
    },
}

impl StateError {
    /// How to fix it.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Self::Missing { .. } | Self::Damaged { .. } => {
                "the state is not as state_dict() wrote it; take that of another checkpoint"
            }
            Self::Differs { key: "fingerprint", .. } => {
                "the dataset has changed since the state was written, or fields= or the selection is another"
            }
            Self::Differs { key: "mixture", .. } => {
                "make the loader with forebay.mix of the same sources, weights and stop="
            }
            Self::Differs { key: "version", .. } => "resume with the version of forebay that wrote the state",
            Self::Differs { .. } => "make the loader with the options that the state was saved with",
            Self::Regions { hint, .. }
            | Self::Pool { hint, .. }
            | Self::LastSteps { hint, .. }
            | Self::Residents { hint, .. }
            | Self::Ranks { hint, .. }
            | Self::GlobalBatch { hint, .. } => hint,
            Self::Position { .. } => "pass batch.position of a batch of this loader",
        }
    }
}

/// Where a state continues, and the parameters of its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumption {
    /// The epoch.
    pub epoch: u64,
    /// The step that comes next; that of the end of the epoch after its last one.
    pub step: u64,
    /// The order of the state, with the sizes of its groups or its window.
    pub kind: OrderKind,
    /// L of the state.
    pub lanes: u64,
}

/// Writes and checks the states of one loader.
#[derive(Clone, Debug)]
pub struct OrderState {
    order: Order,
    fingerprint: String,
}

impl OrderState {
    /// Of an order on the dataset with this fingerprint.
    #[must_use]
    pub fn new(order: Order, fingerprint: String) -> Self {
        Self { order, fingerprint }
    }

    /// The state of a loader that continues with `step` of `epoch`: keys and values.
    #[must_use]
    pub fn at(&self, epoch: u64, step: u64) -> Vec<(&'static str, StateValue)> {
        let value = |key| match key {
            "epoch" => epoch.into(),
            "step" => step.into(),
            _ => self.own(key),
        };
        self.keys().map(|key| (key, value(key))).collect()
    }

    /// The keys of a state of this loader.
    fn keys(&self) -> impl Iterator<Item = &'static str> {
        let of_mixture = self.order.mixture().map(|_| "mixture");
        KEYS.into_iter().chain(more_keys(self.order.kind()).iter().copied()).chain(of_mixture)
    }

    /// The state after the batch at a position.
    ///
    /// # Errors
    /// If there is no batch at the position.
    pub fn behind(
        &self,
        epoch: StateValue,
        step: StateValue,
    ) -> Result<Vec<(&'static str, StateValue)>, StateError> {
        let steps = self.order.steps_per_epoch();
        match (&epoch, &step) {
            (StateValue::Integer(epoch), StateValue::Integer(step)) if *step < steps => {
                Ok(self.at(*epoch, step + 1))
            }
            _ => Err(StateError::Position { epoch, step, highest: steps - 1 }),
        }
    }

    /// Checks a state, of which `value` returns the value of a key, and returns where it continues.
    ///
    /// Seed, kind of order, end of an epoch, global batch and dataset must be those of this
    /// loader. Lanes, sizes of groups and windows may be others; the loader has to take them over.
    /// Where an epoch of `opportunistic` begins on nodes that keep other units, the window is that
    /// of this loader.
    ///
    /// # Errors
    /// The first thing that does not fit, and what would.
    pub fn resume(&self, value: impl Fn(&str) -> Option<StateValue>) -> Result<Resumption, StateError> {
        // Another version may have other keys.
        if let Some(found) = value("version") {
            self.check_same("version", found)?;
        }
        // A state of another kind has other keys.
        if let Some(found) = value("kind") {
            self.check_same("kind", found)?;
        }
        let keys: Vec<_> = self.keys().filter(|key| value(key).is_none()).collect();
        if !keys.is_empty() {
            return Err(StateError::Missing { keys });
        }
        let value = |key| value(key).unwrap_or(StateValue::None);
        // The sources before the fingerprint, as these name what differs.
        let of_mixture = self.order.mixture().map(|_| "mixture");
        for key in of_mixture.into_iter().chain(["last_batch", "seed", "fingerprint"]) {
            self.check_same(key, value(key))?;
        }
        let number = |key, lowest, highest| number(key, value(key), lowest, highest);
        let global_batch = number("global_batch", 1, MAX_GLOBAL_BATCH)?;
        let lanes = number("lanes", 1, global_batch)?;
        self.check_ranks(global_batch, lanes)?;
        let of_state = self.steps_on(global_batch, number("ranks", 1, global_batch)?)?;
        let epoch = number("epoch", 0, MAX_NUMBER / self.order.steps_per_epoch() - 1)?;
        // The epoch of a mixture may be a step longer in other lanes, which the loader takes over.
        let may_change = self.order.mixture().is_some() && lanes != self.order.lanes();
        let step = number("step", 0, if may_change { MAX_NUMBER } else { of_state.count })?;
        let step = if may_change { step } else { self.own_step(&of_state, step)? };
        let kind = match self.order.kind() {
            OrderKind::Group { .. } => OrderKind::Group {
                samples: number("group_samples", 1, MAX_NUMBER)?,
                window: number("group_window", 1, MAX_NUMBER)?,
            },
            kind => {
                for key in ["group_samples", "group_window"] {
                    self.check_same(key, value(key))?;
                }
                if let OrderKind::Given { .. } = kind {
                    self.check_same("given_samples", value("given_samples"))?;
                }
                if let OrderKind::LocalShuffle { steps: pool } = kind {
                    self.check_same("pool_steps", value("pool_steps"))?;
                    self.check_pool(step, pool, &value("node_shares"))?;
                }
                if let OrderKind::Opportunistic { window } = kind {
                    let found = number("stream_window", 1, MAX_NUMBER)?;
                    let goes_on =
                        self.check_residents(step, value("streamed_units"), value("node_residents"))?;
                    OrderKind::Opportunistic { window: if goes_on { found } else { window } }
                } else {
                    kind
                }
            }
        };
        Ok(Resumption { epoch, step, kind, lanes })
    }

    /// Whether the order of this loader is that of a state.
    #[must_use]
    pub fn is_order_of(&self, state: &Resumption) -> bool {
        (state.kind, state.lanes) == (self.order.kind(), self.order.lanes())
    }

    /// The value of this loader under a key that is not the position.
    fn own(&self, key: &str) -> StateValue {
        let groups = match self.order.kind() {
            OrderKind::Group { samples, window } => Some((samples, window)),
            _ => None,
        };
        let spec = self.order.spec();
        match key {
            "version" => STATE_VERSION.into(),
            "kind" => spec.kind.name().into(),
            "last_batch" => spec.last_batch.name().into(),
            "seed" => spec.seed.into(),
            "global_batch" => self.order.global_batch().into(),
            "ranks" => spec.ranks.into(),
            "lanes" => self.order.lanes().into(),
            "group_samples" => groups.map(|(samples, _)| samples).into(),
            "group_window" => groups.map(|(_, window)| window).into(),
            "fingerprint" => self.fingerprint.as_str().into(),
            "mixture" => match self.order.mixture() {
                Some(mixture) => StateValue::Text(mixture.text()),
                None => StateValue::None,
            },
            "pool_steps" => match spec.kind {
                OrderKind::LocalShuffle { steps } => steps.into(),
                _ => StateValue::None,
            },
            "given_samples" => match spec.kind {
                OrderKind::Given { .. } => spec.samples.into(),
                _ => StateValue::None,
            },
            "node_shares" => match self.order.shares() {
                Some(shares) => StateValue::Text(format!("{:016x}", shares.digest())),
                None => StateValue::None,
            },
            "stream_window" => match spec.kind {
                OrderKind::Opportunistic { window } => window.into(),
                _ => StateValue::None,
            },
            "streamed_units" => {
                self.order.opportunistic().map(|parts| parts.streamed_units().len() as u64).into()
            }
            "node_residents" => match self.order.opportunistic() {
                Some(parts) => StateValue::Text(format!("{:016x}", parts.digest())),
                None => StateValue::None,
            },
            _ => StateValue::None,
        }
    }

    /// The steps of an epoch of a state of `ranks` ranks.
    fn steps_on(&self, global_batch: u64, ranks: u64) -> Result<Steps, StateError> {
        let spec = self.order.spec();
        if self.order.mixture().is_some() || ranks == spec.ranks {
            return Ok(*self.order.steps());
        }
        let steps = Steps::new(spec.last_batch, spec.samples, global_batch / ranks, ranks);
        if global_batch.is_multiple_of(ranks) && steps.count > 0 {
            return Ok(steps);
        }
        let expected =
            format!("a divisor of the global batch {global_batch}, at most the samples of an epoch");
        Err(StateError::Damaged { key: "ranks", expected, found: ranks.into() })
    }

    /// The step of this loader before which as many samples are delivered as before `step` of
    /// `of_state`.
    fn own_step(&self, of_state: &Steps, step: u64) -> Result<u64, StateError> {
        let own = self.order.steps();
        own.starting_at(of_state.start(step)).ok_or_else(|| {
            let found = of_state.ranks();
            let hint = format!(
                "resume on {found} ranks, or from a state of step {} or {}",
                own.whole.min(of_state.whole),
                of_state.count
            );
            StateError::LastSteps { step, steps: of_state.count, found, ranks: own.ranks(), hint }
        })
    }

    /// Checks that the nodes keep what they kept when the state was written, if the step that comes
    /// next is inside an epoch, and returns whether they do.
    fn check_residents(
        &self,
        step: u64,
        streamed: StateValue,
        residents: StateValue,
    ) -> Result<bool, StateError> {
        let steps = self.order.steps_per_epoch();
        let own = (self.own("streamed_units"), self.own("node_residents"));
        if (&streamed, &residents) == (&own.0, &own.1) {
            return Ok(true);
        }
        if step == 0 || step == steps {
            return Ok(false);
        }
        let hint = format!(
            "resume on the nodes of the state with the same ranks and resident units on each, or from a state of step \
             0 or {steps}, where an epoch begins"
        );
        let words = |units, digest| format!("{units} streamed units, residents {digest}");
        let (expected, found) = (words(own.0, own.1), words(streamed, residents));
        Err(StateError::Residents { step, expected, found, hint })
    }

    /// Checks that the nodes hold what they held when the state was written, if the step that comes
    /// next is inside a pool.
    fn check_pool(&self, step: u64, pool: u64, shares: &StateValue) -> Result<(), StateError> {
        let steps = self.order.steps_per_epoch();
        if step == steps || step.is_multiple_of(pool) || *shares == self.own("node_shares") {
            return Ok(());
        }
        let before = step / pool * pool;
        let after = (before + pool).min(steps);
        let hint = format!(
            "resume on the nodes of the state with the same ranks on each, or from a state of step {before} or \
             {after} of an epoch, where a pool of {pool} steps begins"
        );
        Err(StateError::Pool { step, hint })
    }

    fn check_same(&self, key: &'static str, found: StateValue) -> Result<(), StateError> {
        let expected = self.own(key);
        if found == expected { Ok(()) } else { Err(StateError::Differs { key, found, expected }) }
    }

    /// Checks that the stream of a state can continue on the ranks of this loader.
    fn check_ranks(&self, global_batch: u64, lanes: u64) -> Result<(), StateError> {
        let spec = self.order.spec();
        let ranks = spec.ranks;
        if !global_batch.is_multiple_of(lanes) {
            return Err(StateError::Damaged {
                key: "lanes",
                expected: format!("a divisor of the global batch {global_batch}"),
                found: lanes.into(),
            });
        }
        if spec.kind == OrderKind::Contiguous && lanes != ranks {
            let hint = format!(
                "resume on {lanes} ranks; the orders sequential, shuffle and group can be resumed on others"
            );
            return Err(StateError::Regions { lanes, ranks, hint });
        }
        if !lanes.is_multiple_of(ranks) {
            let hint = format!("numbers of ranks that can: {}", list(&spec.kind.allowed_ranks(lanes)));
            return Err(StateError::Ranks { ranks, lanes, hint });
        }
        let expected = self.order.global_batch();
        if global_batch != expected {
            let batch = global_batch / ranks;
            let hint = format!("make the loader with batch_size={batch} or global_batch={global_batch}");
            return Err(StateError::GlobalBatch {
                found: global_batch,
                expected,
                batch: spec.batch,
                ranks,
                hint,
            });
        }
        Ok(())
    }
}

/// An integer of a state.
fn number(key: &'static str, found: StateValue, lowest: u64, highest: u64) -> Result<u64, StateError> {
    match found {
        StateValue::Integer(number) if (lowest..=highest).contains(&number) => Ok(number),
        found => {
            let limit = if highest >= MAX_GLOBAL_BATCH { String::new() } else { format!(" to {highest}") };
            Err(StateError::Damaged { key, expected: format!("an integer from {lowest}{limit}"), found })
        }
    }
}
