//! The in-memory store, as the user asks for it.

use serde::{Deserialize, Serialize};

use super::strategy::Auto;

/// The in-memory store, as `forebay.Store` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreChoice {
    /// Memory of each node for its share.
    pub size: StoreSize,
    /// What happens where the share of another node is lost.
    pub on_lost: OnLost,
    /// Requests of a rank in flight per node.
    pub requests_per_node: AutoNumber,
    /// Most bytes of one request to a node \[bytes\].
    pub request_bytes: AutoNumber,
}

/// Memory of a node for its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StoreSize {
    /// At most this many bytes.
    Bytes(u64),
    /// What the share needs, up to half of the free memory.
    Measured(Auto),
}

impl Default for StoreSize {
    fn default() -> Self {
        Self::Measured(Auto::Auto)
    }
}

/// What happens where the share of another node is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLost {
    /// An error that names the node and the step.
    #[default]
    Raise,
    /// Its samples are read from the source.
    Source,
}

/// A number, or the engine's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AutoNumber {
    /// This number.
    Given(u64),
    /// The engine's choice.
    Chosen(Auto),
}

impl AutoNumber {
    /// The number that the user gave.
    #[must_use]
    pub fn given(self) -> Option<u64> {
        match self {
            Self::Given(number) => Some(number),
            Self::Chosen(Auto::Auto) => None,
        }
    }
}

impl Default for AutoNumber {
    fn default() -> Self {
        Self::Chosen(Auto::Auto)
    }
}
