//! Storage tiers of a node, as the user describes them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A tier as the user describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TierSpec {
    /// An existing directory.
    #[serde(with = "forebay_types::path_json")]
    pub path: PathBuf,
    /// What it may take \[bytes\].
    pub bytes: u64,
    /// Whether copies in memory stay when nobody uses them.
    #[serde(default)]
    pub keep: bool,
    /// Whether a network file system may be used.
    #[serde(default)]
    pub force: bool,
}

/// Tiers of a loader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierOptions {
    /// The tiers, the nearest first.
    #[serde(default)]
    pub tiers: Vec<TierSpec>,
    /// Whether an administrator named them: where they cannot be used, the loader reads the source.
    #[serde(default)]
    pub of_system: bool,
}
