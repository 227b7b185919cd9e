//! How `forebay run` is started for programs.

use forebay_plan::Fetch;
use serde::{Deserialize, Serialize};

/// Options of `forebay run`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunOptions {
    /// What the daemon reads of the sources for copies.
    #[serde(default)]
    pub fetch: Fetch,
    /// Opens of files with a copy do not reach the source.
    #[serde(default)]
    pub frozen: bool,
    /// All files are copied before the program starts.
    #[serde(default)]
    pub stage: bool,
}
