//! Strategies that the caller of the engine plugs in. A loader without any uses the index.

use std::sync::Arc;

use forebay_format::{Error as FormatError, Index};
use forebay_plan::config::Locate;
use forebay_plan::{BoxedLocator, IndexScanner, LocatorFactory};

use crate::config::options::Options;
use crate::error::Error;

/// A locator of samples.
pub(crate) type Locator = BoxedLocator<FormatError>;

/// The plugged-in strategies.
#[derive(Clone, Default)]
pub struct Strategies {
    /// Locates samples instead of the index.
    pub locators: Option<Arc<dyn LocatorFactory<Index = Index, Error = FormatError>>>,
    /// Builds the index.
    pub scanner: Option<Arc<dyn IndexScanner<Error = FormatError>>>,
}

impl Strategies {
    /// Checks that the strategies that the options need are plugged in.
    pub(crate) fn check(&self, options: &Options) -> Result<(), Error> {
        for (is_present, is_wanted, what) in [
            (self.locators.is_some(), options.strategy.locate.walks(), "locator of samples"),
            (self.scanner.is_some(), options.strategy.locate == Locate::Scan, "scanner"),
        ] {
            if is_present != is_wanted {
                return Err(Error::Options {
                    message: format!(
                        "plugged-in strategies: {what} (expected {is_wanted}, found {is_present})"
                    ),
                    hint: String::new(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_strategy_is_rejected() {
        let options = |locate: &str| {
            let value = serde_json::json!({
                "name": "train", "job": "j", "node": "n", "rank": 0, "size": 1, "local_rank": 0, "local_ranks": [0],
                "batch_size": 8, "order": {"kind": "sequential"}, "seed": 0, "last_batch": "fill",
                "timeout_s": 600, "strategy": {"locate": locate, "access": "mmap"},
            });
            Options::of_json(value).unwrap()
        };
        let none = Strategies::default();
        for (locate, is_present) in
            [("index", true), ("provenance", true), ("cursor", false), ("scan", false)]
        {
            assert_eq!(none.check(&options(locate)).is_ok(), is_present, "{locate}");
        }
    }
}
