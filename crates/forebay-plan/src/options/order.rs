//! The order, as the user names it.

use serde::{Deserialize, Serialize};

use crate::MixtureSpec;

/// The orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderName {
    /// The order of the dataset; neighbours are in one batch.
    Sequential,
    /// Each rank has a contiguous part of the dataset.
    Contiguous,
    /// A full shuffle.
    Shuffle,
    /// A full shuffle whose samples go to nodes that hold them.
    LocalShuffle,
    /// From what nodes keep in memory, and from windows of a stream.
    Opportunistic,
    /// Groups of neighbours are shuffled.
    Group,
    /// Ids of a function of the epoch.
    Given,
}

/// The order, as the user names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderChoice {
    /// Which one.
    pub kind: OrderName,
    /// Samples per group; in `given`, ids of an epoch.
    #[serde(default)]
    pub samples: Option<u64>,
    /// Groups per window; in `opportunistic`, units.
    #[serde(default)]
    pub window: Option<u64>,
    /// Lanes.
    #[serde(default)]
    pub lanes: Option<u64>,
    /// Steps of `local-shuffle` whose samples are dealt together.
    #[serde(default)]
    pub steps: Option<u64>,
    /// Least order entropy of `opportunistic`.
    #[serde(default)]
    pub entropy: Option<f64>,
    /// Whether epochs of `given` may repeat samples, and leave out others.
    #[serde(default)]
    pub repeats: bool,
    /// Length of a unit of `opportunistic` \[bytes\].
    #[serde(default)]
    pub unit: Option<u64>,
    /// The sources of the dataset, where it is a mixture.
    #[serde(default)]
    pub mixture: Option<MixtureSpec>,
}
