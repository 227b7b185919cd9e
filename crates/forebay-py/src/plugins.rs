//! What a native module plugs into the loader. Traits do not cross native modules, so each links
//! the engine and has its classes.

use std::sync::{Arc, OnceLock};

use forebay_engine::{IndexedDataset, Options, Strategies};
use forebay_format::ComputeIndex;

/// See the module header.
pub trait Plugins: Send + Sync {
    /// The strategies that the options ask for.
    fn strategies(&self, source: &IndexedDataset, options: &Options) -> Strategies;

    /// What computes indexes that have no sidecar.
    fn computer(&self) -> Option<Arc<dyn ComputeIndex>>;
}

/// The index locates samples.
pub struct NoPlugins;

impl Plugins for NoPlugins {
    fn strategies(&self, _: &IndexedDataset, _: &Options) -> Strategies {
        Strategies::default()
    }

    fn computer(&self) -> Option<Arc<dyn ComputeIndex>> {
        None
    }
}

static PLUGINS: OnceLock<Box<dyn Plugins>> = OnceLock::new();

/// Sets what this native module plugs in; the first call counts.
pub(crate) fn set(plugins: impl Plugins + 'static) {
    let _ = PLUGINS.set(Box::new(plugins));
}

/// What this native module plugs in.
pub(crate) fn plugins() -> &'static dyn Plugins {
    PLUGINS.get().map_or(&NoPlugins, |plugins| &**plugins)
}
