//! How samples get from storage into batches, as the user asks for it.

use serde::{Deserialize, Serialize};

use crate::config::{AccessChoice, Locate, Readers};
use crate::options::OptionError;

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

    /// The parameter that says how to read, which a store makes meaningless.
    pub(super) fn reads_past_store(&self) -> Option<String> {
        if self.locate != Locate::Index {
            return Some(format!("locate={}", quoted(&self.locate)));
        }
        (self.access != AccessChoice::Auto).then(|| format!("access={}", quoted(&self.access)))
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
        if self.direct == Some(true) && self.access == AccessChoice::Mmap {
            return wrong(
                "Strategy(access=\"mmap\", direct=True): a mapping always uses the page cache".into(),
                "",
            );
        }
        Ok(())
    }
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
