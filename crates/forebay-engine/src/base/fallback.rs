//! What a loader wanted and does in another way: the facts of `Loader.config.fallbacks`.

use serde::{Deserialize, Serialize};

/// What was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// An index computed from the recipe of the layout; the ordinary one serves.
    Recipe,
    /// A mapping of the files; `pread` serves.
    Mapping,
    /// `io_uring`; `pread` serves.
    IoUring,
    /// `O_DIRECT`; the page cache serves.
    Direct,
    /// Steps that one read spans; groups are read a window at a time.
    Coalesce,
    /// Nodes that take turns; all read whenever they like.
    Stagger,
    /// The cursor of another node; a root walks by itself.
    Handoff,
    /// A walk through the container; the index serves.
    Walk,
    /// Checksums of records; none are computed.
    Checksums,
    /// As many gather threads as were planned; fewer gather.
    GatherThreads,
    /// Touching the staging ring ahead of the readers; they touch it themselves.
    Prefault,
}

/// Something that is done in another way than was wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// What was wanted.
    pub wanted: Wanted,
    /// Why it could not be had, for people.
    pub reason: String,
}

impl Fallback {
    /// See the fields.
    pub fn new(wanted: Wanted, reason: impl Into<String>) -> Self {
        Self { wanted, reason: reason.into() }
    }

    /// Logs it as an event of a loader.
    pub(crate) fn log(&self, loader: &str) {
        let wanted = serde_json::to_value(self.wanted).unwrap_or_default();
        let wanted = wanted.as_str().unwrap_or_default();
        tracing::info!(loader, wanted, reason = self.reason, "falls back");
    }
}

/// Records a fallback; of several reasons for one thing the last one stays.
pub(crate) fn record(fallbacks: &mut Vec<Fallback>, fallback: Fallback) {
    fallbacks.retain(|other| other.wanted != fallback.wanted);
    fallbacks.push(fallback);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_reasons_for_one_thing_the_last_one_stays() {
        let mut fallbacks = Vec::new();
        for (wanted, reason) in [(Wanted::Walk, "a"), (Wanted::Direct, "b"), (Wanted::Walk, "c")] {
            record(&mut fallbacks, Fallback::new(wanted, reason));
        }
        assert_eq!(fallbacks, [Fallback::new(Wanted::Direct, "b"), Fallback::new(Wanted::Walk, "c")]);
    }
}
