//! How samples get from storage into batches, as the user asks for it.

use serde::{Deserialize, Serialize};

use crate::config::{AccessChoice, Locate, Readers};
use crate::options::OptionError;

/// Why a store goes without what tells how to read.
pub(super) const FROM_MEMORY: &str = "ranks take samples from memory, and nothing is read for them";

/// How samples get from storage into batches, as `forebay.Strategy` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StrategyChoice {
    /// How samples are located.
    pub locate: Locate,
    /// The access method.
    pub access: AccessChoice,
    /// Readers per node.
    pub readers: Option<Readers>,
    /// Whether reads bypass the page cache.
    pub direct: Option<bool>,
    /// Batch buffers per rank.
    pub batch_buffers: Option<u32>,
    /// Steps that one read may span, in orders that are read step by step.
    pub coalesce: Option<u32>,
    /// Groups of nodes that read one after another; none: all nodes read at any time.
    pub stagger: Option<Stagger>,
    /// Read-ahead in windows of each lane, or in segments for other orders.
    pub prefetch_windows: Option<u32>,
    /// Memory of each node for its share of an in-memory store.
    pub store: Option<StoreSize>,
    /// What happens where the share of another node is lost.
    pub on_lost: OnLost,
    /// Requests of a rank in flight per node of a store.
    pub fetch_buffers: AutoNumber,
    /// Most bytes of one request to a node of a store \[bytes\].
    pub fetch_bytes: AutoNumber,
}

impl StrategyChoice {
    /// Groups of nodes that read one after another; 0: the number that measures best.
    #[must_use]
    pub fn stagger_groups(&self) -> Option<u32> {
        self.stagger.map(|stagger| match stagger {
            Stagger::Groups(groups) => groups,
            Stagger::Measured(Auto::Auto) => 0,
        })
    }

    /// The parameter by which it reads the files themselves, past any tiers.
    pub(super) fn bypasses_tiers(&self) -> Option<String> {
        if matches!(self.locate, Locate::Cursor | Locate::Handoff | Locate::Scan) {
            return Some(format!("locate={}", quoted(&self.locate)));
        }
        (self.access == AccessChoice::Mmap).then(|| format!("access={}", quoted(&self.access)))
    }

    /// A limit of requests to nodes of a store that the user gave.
    fn fetch_limit(&self) -> Option<(&'static str, u64)> {
        let limits = [("fetch_buffers", self.fetch_buffers), ("fetch_bytes", self.fetch_bytes)];
        limits.into_iter().find_map(|(name, limit)| limit.given().map(|number| (name, number)))
    }

    /// Checks which values go together.
    ///
    /// # Errors
    /// With the values as the user wrote them.
    pub fn check(&self) -> Result<(), OptionError> {
        let wrong = |message: String, hint: &str| Err(OptionError::new(message, hint));
        if self.locate.walks() && self.access != AccessChoice::Mmap {
            let (locate, access) = (quoted(&self.locate), quoted(&self.access));
            return wrong(
                format!("Strategy(locate={locate}, access={access}): a cursor walks through a mapping"),
                "add access=\"mmap\", or take forebay_lab.strategy(\"lmdb\")",
            );
        }
        if self.store.is_some() {
            let other = if self.locate != Locate::Index {
                Some(format!("locate={}", quoted(&self.locate)))
            } else if self.access != AccessChoice::Auto {
                Some(format!("access={}", quoted(&self.access)))
            } else {
                None
            };
            if let Some(other) = other {
                return wrong(
                    format!("Strategy(store=, {other}): {FROM_MEMORY}"),
                    "leave one of the two out",
                );
            }
        } else if self.on_lost != OnLost::Raise {
            return wrong("Strategy(on_lost=\"source\") without store=".into(), "add store=\"auto\"");
        } else if let Some((name, number)) = self.fetch_limit() {
            return wrong(format!("Strategy({name}={number}) without store="), "add store=\"auto\"");
        }
        if self.direct == Some(true) && self.access == AccessChoice::Mmap {
            return wrong(
                "Strategy(access=\"mmap\", direct=True): a mapping always uses the page cache".into(),
                "",
            );
        }
        Ok(())
    }
}

/// Memory of a node for its share of an in-memory store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StoreSize {
    /// At most this many bytes.
    Bytes(u64),
    /// What the share needs, up to half of the free memory.
    Measured(Auto),
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

/// The word of an option, with quotes.
pub(super) fn quoted(word: &impl Serialize) -> String {
    serde_json::to_string(word).unwrap_or_default()
}

/// Groups of nodes that read one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Stagger {
    /// This many.
    Groups(u32),
    /// The number that measures best.
    Measured(Auto),
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

/// The word `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Auto {
    /// Decided by a measurement.
    #[serde(rename = "auto")]
    Auto,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_that_contradict_each_other_are_named() {
        for (parameters, found) in [
            (json!({}), None),
            (json!({"locate": "cursor", "access": "mmap"}), None),
            (json!({"locate": "cursor"}), Some("through a mapping")),
            (json!({"store": "auto", "access": "mmap"}), Some("Strategy(store=, access=\"mmap\")")),
            (json!({"store": 1 << 20, "locate": "scan"}), Some("Strategy(store=, locate=\"scan\")")),
            (json!({"on_lost": "source"}), Some("Strategy(on_lost=\"source\") without store=")),
            (json!({"fetch_bytes": 4096}), Some("Strategy(fetch_bytes=4096) without store=")),
            (json!({"fetch_bytes": 4096, "store": "auto"}), None),
            (json!({"direct": true, "access": "mmap"}), Some("a mapping always uses the page cache")),
        ] {
            let strategy: StrategyChoice = serde_json::from_value(parameters.clone()).unwrap();
            let problem = strategy.check().map_err(|error| error.message);
            match found {
                None => assert_eq!(problem, Ok(()), "{parameters}"),
                Some(found) => assert!(problem.is_err_and(|text| text.contains(found)), "{parameters}"),
            }
        }
    }
}
