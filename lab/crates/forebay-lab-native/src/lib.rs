//! The module `forebay_lab._native`: the classes of `forebay-py` with the strategies and recipes of
//! the LMDBIO paper plugged in, the emulated parallel file system, and simulated jobs.

mod pfs;
mod recipe;
mod sim;
mod strategies;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    forebay_py::add_to(module, strategies::Lmdbio)?;
    module.add_function(wrap_pyfunction!(recipe::build_with_recipe, module)?)?;
    module.add_function(wrap_pyfunction!(recipe::declare_recipe, module)?)?;
    module.add_function(wrap_pyfunction!(recipe::kept_recipe, module)?)?;
    module.add_function(wrap_pyfunction!(recipe::verify_recipe, module)?)?;
    module.add_function(wrap_pyfunction!(pfs::pfs_serve, module)?)?;
    module.add_function(wrap_pyfunction!(pfs::pfs_spec, module)?)?;
    module.add_function(wrap_pyfunction!(pfs::pfs_presets, module)?)?;
    module.add_function(wrap_pyfunction!(pfs::pfs_suggested_time_scale, module)?)?;
    module.add_function(wrap_pyfunction!(pfs::pfs_limit, module)?)?;
    module.add_function(wrap_pyfunction!(pfs::pfs_predict, module)?)?;
    module.add_class::<sim::SimPlaces>()?;
    module.add_function(wrap_pyfunction!(sim::sim_costs, module)?)?;
    module.add_function(wrap_pyfunction!(sim::sim_run, module)?)?;
    Ok(())
}
