//! Python bindings of Forebay: conversions, errors, the GIL; nothing else. [`add_to`] adds them to
//! a native module.
//!
//! Every call that may wait lets other Python threads run and looks for signals at least every 100
//! ms. No engine thread ever attaches to the interpreter or holds a Python object.

mod batch;
mod caller;
mod daemon;
pub mod dataset;
pub mod errors;
mod job;
mod limit;
mod loader;
mod log;
mod plugins;

use forebay_format::{Format, SchemaChoice};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

pub use plugins::{NoPlugins, Plugins};

/// Adds classes and functions to a native module that plugs these strategies in.
pub fn add_to(module: &Bound<'_, PyModule>, plugins: impl Plugins + 'static) -> PyResult<()> {
    plugins::set(plugins);
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("ENDPOINT_BYTES", forebay_engine::mesh::ENDPOINT_BYTES)?;
    module.add("MAX_NODES", forebay_engine::mesh::MAX_NODES)?;
    // Of a build for tests, checks are expected.
    let is_debug = cfg!(debug_assertions) && option_env!("FOREBAY_TEST_BUILD").is_none();
    module.add("DEBUG_BUILD", is_debug)?;
    module.add("FORMATS", PyTuple::new(module.py(), Format::ALL.map(Format::name))?)?;
    module.add("SCHEMAS", PyTuple::new(module.py(), SchemaChoice::ALL.map(|(name, _)| name))?)?;
    errors::load(module.py())?;
    module.add_class::<dataset::Dataset>()?;
    module.add_class::<loader::engine::Engine>()?;
    module.add_class::<batch::Lease>()?;
    module.add_class::<job::handshake::HandshakeKey>()?;
    module.add_class::<job::listener::Listener>()?;
    module.add_class::<daemon::run::RunSession>()?;
    module.add_class::<job::siblings::Siblings>()?;
    module.add_class::<loader::state::OrderState>()?;
    module.add_class::<job::watchdog::Watchdog>()?;
    module.add_function(wrap_pyfunction!(limit::limit, module)?)?;
    module.add_function(wrap_pyfunction!(loader::options::check_decoder, module)?)?;
    module.add_function(wrap_pyfunction!(loader::options::check_option, module)?)?;
    module.add_function(wrap_pyfunction!(loader::options::option_words, module)?)?;
    module.add_function(wrap_pyfunction!(loader::options::check_parameters, module)?)?;
    module.add_function(wrap_pyfunction!(job::runtime_directory::runtime_directory, module)?)?;
    module.add_function(wrap_pyfunction!(daemon::store::serve_store, module)?)?;
    module.add_function(wrap_pyfunction!(daemon::store::store_status, module)?)?;
    module.add_function(wrap_pyfunction!(daemon::store::stop_store, module)?)?;
    module.add_function(wrap_pyfunction!(daemon::tiers::serve_tiers, module)?)?;
    module.add_function(wrap_pyfunction!(daemon::tiers::tiers_usage, module)?)?;
    module.add_function(wrap_pyfunction!(daemon::tiers::clear_tiers, module)?)?;
    module.add_function(wrap_pyfunction!(daemon::tiers::stop_tiers, module)?)?;
    module.add_function(wrap_pyfunction!(daemon::tiers::stored_tier, module)?)?;
    module.add_function(wrap_pyfunction!(daemon::tiers::verify_tier, module)?)?;
    module.add_function(wrap_pyfunction!(daemon::tiers::compare_tier, module)?)?;
    module.add_function(wrap_pyfunction!(daemon::tiers::drop_copies_of_tier, module)?)?;
    module.add_function(wrap_pyfunction!(dataset::sidecars::sidecar_directory, module)?)?;
    module.add_function(wrap_pyfunction!(dataset::sidecars::describe_sidecar, module)?)?;
    module.add_function(wrap_pyfunction!(daemon::run::run_usage, module)?)?;
    module.add_function(wrap_pyfunction!(dataset::forecast::tier_forecast, module)?)?;
    Ok(())
}
