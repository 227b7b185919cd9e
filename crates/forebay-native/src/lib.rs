//! The module `forebay._native`: the classes of `forebay-py`, with nothing plugged in.

use forebay_py::NoPlugins;
use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    forebay_py::add_to(module, NoPlugins)
}
