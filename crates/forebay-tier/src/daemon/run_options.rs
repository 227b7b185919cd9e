//! A run of `forebay run`, as its user describes it.

use std::path::PathBuf;

use forebay_plan::Fetch;
use serde::{Deserialize, Serialize};

/// What a run is opened with. Runs with equal tiers and options share one table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunOptions {
    /// Directories, or files, that programs get copies of: absolute, as the user wrote them.
    #[serde(with = "crate::path_json::list")]
    pub sources: Vec<PathBuf>,
    /// The sources do not change: programs look paths up before they ask the source.
    #[serde(default)]
    pub frozen: bool,
    /// Copies are compared with their sources before they are served.
    #[serde(default)]
    pub check: bool,
    /// What the daemon reads of the sources.
    #[serde(default)]
    pub fetch: Fetch,
    /// Copies stay when the run ends.
    #[serde(default = "yes")]
    pub keep: bool,
}

fn yes() -> bool {
    true
}
