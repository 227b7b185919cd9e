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

/// Tiers of a loader, and how copies are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierOptions {
    /// The tiers, the nearest first.
    #[serde(default)]
    pub tiers: Vec<TierSpec>,
    /// Whether an administrator named them: where they cannot be used, the loader reads the source.
    #[serde(default)]
    pub of_system: bool,
    /// Threads of each process that write copies.
    #[serde(default = "copy_threads")]
    pub copy_threads: u32,
    /// Length of a write \[bytes\].
    #[serde(default = "copy_bytes")]
    pub copy_bytes: u64,
}

fn copy_threads() -> u32 {
    1
}

fn copy_bytes() -> u64 {
    1 << 20
}

impl Default for TierOptions {
    fn default() -> Self {
        Self { tiers: Vec::new(), of_system: false, copy_threads: copy_threads(), copy_bytes: copy_bytes() }
    }
}
