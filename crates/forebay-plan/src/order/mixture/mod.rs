//! Mixtures: an order that draws from several sources in fixed proportions.
//!
//! The sources are parts of one dataset, one after the other. `tree` says which source a position
//! takes a sample from, `draws` which sample of the source that is.
//!
//! An epoch has whole global batches of G samples. Its number of steps T follows from [`Stop`]:
//! - `first`: the most steps in which no lane draws from a second pass over a source. No sample
//!   comes twice.
//! - `all`: the fewest steps in which each lane draws its part of the first pass over each source.
//!   Each sample comes at least once.
//! - `never`: 2³⁴ steps, or fewer where positions would not fit 62 bits.

mod draws;
mod tree;

use serde::{Deserialize, Serialize};

use self::draws::Pass;
pub(crate) use self::draws::{Draws, LaneDraws, Sequences, WindowDraws};
use self::tree::Tree;
use crate::order::error::OrderError;

/// Most positions of an epoch.
const MAX_POSITIONS: u64 = 1 << 62;
/// Sum of the weights of all sources, at most.
const MAX_WEIGHT: u64 = (1 << 63) - 1;
/// Steps of an epoch that never ends: five years at 100 per second, and so few that a loader can
/// count a thousand such epochs.
const ENDLESS_STEPS: u64 = 1 << 34;

/// When an epoch of a mixture ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// Before a sample would come twice.
    First,
    /// When each sample has come.
    All,
    /// Never.
    Never,
}

impl Stop {
    /// The name, as users write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::All => "all",
            Self::Never => "never",
        }
    }
}

/// A part of the dataset, and its share of the samples that are delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixtureSource {
    /// The name, for messages and states.
    pub name: String,
    /// n, samples of the source.
    pub samples: u64,
    /// The weight, relative to the sum of all.
    pub weight: u64,
}

/// What defines a mixture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixtureSpec {
    /// The sources, in the order of their samples.
    pub sources: Vec<MixtureSource>,
    /// When an epoch ends.
    pub stop: Stop,
}

/// A validated mixture.
#[derive(Clone, Debug)]
pub struct Mixture {
    spec: MixtureSpec,
    tree: Tree,
    /// The first sample of each source.
    firsts: Vec<u64>,
}

impl Mixture {
    /// Validates a definition.
    ///
    /// # Errors
    /// If there is no source, one has no samples or no weight, or the sums are too large.
    pub fn new(spec: MixtureSpec) -> Result<Self, OrderError> {
        let wrong = |what, found, expected| Err(OrderError::Mixture { what, found, expected });
        let (mut samples, mut weight) = (0_u64, 0_u64);
        let mut firsts = Vec::new();
        for source in &spec.sources {
            if source.samples == 0 {
                return wrong(format!("samples of source {:?}", source.name), 0, "at least 1");
            }
            if source.weight == 0 {
                return wrong(format!("weight of source {:?}", source.name), 0, "at least 1");
            }
            firsts.push(samples);
            samples = samples.saturating_add(source.samples);
            weight = weight.saturating_add(source.weight);
        }
        if spec.sources.is_empty() {
            return wrong("number of sources".into(), 0, "at least 1");
        }
        if samples > MAX_POSITIONS {
            return wrong("number of samples".into(), samples, "at most 2^62");
        }
        if weight > MAX_WEIGHT {
            return wrong("sum of the weights".into(), weight, "less than 2^63");
        }
        let tree = Tree::new(spec.sources.iter().map(|source| source.weight));
        Ok(Self { spec, tree, firsts })
    }

    /// The sources, in the order of their samples.
    #[must_use]
    pub fn sources(&self) -> &[MixtureSource] {
        &self.spec.sources
    }

    /// When an epoch ends.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.spec.stop
    }

    /// Samples of all sources.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.sources().iter().map(|source| source.samples).sum()
    }

    /// The share (0 to 1) of a source.
    #[must_use]
    pub fn share(&self, source: usize) -> f64 {
        let weights: u64 = self.sources().iter().map(|source| source.weight).sum();
        self.sources()[source].weight as f64 / weights as f64
    }

    /// The definition as one line, for states and messages.
    #[must_use]
    pub fn text(&self) -> String {
        let one = |(place, source): (usize, &MixtureSource)| {
            format!("{} {} of {}", source.name, self.share(place), source.samples)
        };
        let all: Vec<String> = self.sources().iter().enumerate().map(one).collect();
        format!("{}; stop={}", all.join(", "), self.stop().name())
    }

    /// T, where `lanes` lanes take `each` positions per step.
    ///
    /// # Errors
    /// If a source has too few samples for a step, or too little weight for an epoch of at most
    /// 2^62 samples.
    pub(crate) fn steps(&self, lanes: u64, each: u64) -> Result<u64, OrderError> {
        let most = MAX_POSITIONS / (lanes * each);
        if self.stop() == Stop::Never {
            return Ok(ENDLESS_STEPS.min(most));
        }
        let (mut first, mut all) = ((u64::MAX, 0), (0, 0));
        for lane in 0..lanes {
            let phases = self.tree.phases(lane, lanes);
            for (source, of_source) in self.sources().iter().enumerate() {
                let slice = Pass::slice(of_source.samples, (lane, lanes));
                let draws = slice.end - slice.start;
                let position = |draw| self.tree.position(source, draw, &phases);
                first = first.min((position(draws), source));
                if let Some(last) = draws.checked_sub(1) {
                    all = all.max(((position(last) + 1).div_ceil(each), source));
                }
            }
        }
        let (steps, source) = if self.stop() == Stop::First { (first.0 / each, first.1) } else { all };
        let name = || self.sources()[source].name.clone();
        if steps == 0 {
            let samples = self.sources()[source].samples;
            return Err(OrderError::MixtureStep {
                source_name: name(),
                samples,
                global_batch: lanes * each,
                lanes,
            });
        }
        if steps > most {
            return Err(OrderError::MixtureEpoch {
                source_name: name(),
                share: self.share(source).to_string(),
            });
        }
        Ok(steps)
    }
}
