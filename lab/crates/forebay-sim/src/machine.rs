//! A node of the machine that a job runs on.

use forebay_model::Spec;
use serde::{Deserialize, Serialize};

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

impl Machine {
    /// A file system as this node sees it: its page cache is memory of the node.
    pub(crate) fn with_page_cache(&self, spec: &Spec) -> Spec {
        let bytes = spec.cache_bytes.map_or(self.memory_bytes, |bytes| bytes.min(self.memory_bytes));
        Spec { cache_bytes: Some(bytes), ..spec.clone() }
    }
}

impl Default for Machine {
    /// A node of a cluster of 2018: 36 cores, 128 GiB.
    fn default() -> Machine {
        Machine { cores: 36, memory_bytes: 128 << 30, is_shared: false }
    }
}
