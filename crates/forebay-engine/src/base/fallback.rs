//! Requests that a loader could not meet: the facts of `Loader.config.fallbacks`.

use serde::{Deserialize, Serialize};

/// A request, and what is used instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// An index computed from the recipe of the layout; else the ordinary index.
    Recipe,
    /// A mapping of the files; else `pread`.
    Mapping,
    /// `io_uring`; else `pread`.
    IoUring,
    /// `O_DIRECT`; else the page cache.
    Direct,
    /// Steps that one read spans; else groups are read a window at a time.
    Coalesce,
    /// Nodes that read one after another; else all read at any time.
    Stagger,
    /// The cursor of another node; else a root walks by itself.
    Handoff,
    /// A walk through the container; else the index.
    Walk,
    /// Checksums of records; none are computed.
    Checksums,
    /// The planned number of gather threads; else fewer.
    GatherThreads,
    /// Prefaulting the staging ring; else readers fault its pages.
    Prefault,
    /// Storage tiers; else the source alone.
    Tiers,
    /// A share in the store daemon; else it is loaded from the source, or not kept.
    KeptShare,
}

/// A request that could not be met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// The request.
    pub wanted: Wanted,
    /// Why it could not be met, for users.
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

/// Records a fallback; of several reasons for one request the last one stays.
pub(crate) fn record(fallbacks: &mut Vec<Fallback>, fallback: Fallback) {
    fallbacks.retain(|other| other.wanted != fallback.wanted);
    fallbacks.push(fallback);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_reasons_for_one_request_the_last_one_stays() {
        let mut fallbacks = Vec::new();
        for (wanted, reason) in [(Wanted::Walk, "a"), (Wanted::Direct, "b"), (Wanted::Walk, "c")] {
            record(&mut fallbacks, Fallback::new(wanted, reason));
        }
        assert_eq!(fallbacks, [Fallback::new(Wanted::Direct, "b"), Fallback::new(Wanted::Walk, "c")]);
    }
}
