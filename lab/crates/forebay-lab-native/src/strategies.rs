//! What is plugged into the loader: cursor walks and recipes.

use std::sync::Arc;

use forebay_engine::{IndexedDataset, Locate, Options, Strategies};
use forebay_format::ComputeIndex;
use forebay_lmdbio::{CursorScan, CursorWalks, HandoffWalks};
use forebay_py::Plugins;
use forebay_recipe::KeptRecipes;

/// The strategies of the LMDBIO paper.
pub(crate) struct Lmdbio;

impl Plugins for Lmdbio {
    fn strategies(&self, source: &IndexedDataset, options: &Options) -> Strategies {
        let dataset = || Arc::clone(source.dataset());
        let mut strategies = Strategies::default();
        match options.strategy.locate {
            Locate::Cursor => strategies.locators = Some(Arc::new(CursorWalks::new(dataset()))),
            Locate::Handoff => strategies.locators = Some(Arc::new(HandoffWalks::new(dataset()))),
            Locate::Scan => strategies.scanner = Some(Arc::new(CursorScan::new(dataset()))),
            Locate::Index | Locate::Provenance => {}
        }
        strategies
    }

    fn computer(&self) -> Option<Arc<dyn ComputeIndex>> {
        Some(Arc::new(KeptRecipes))
    }
}
