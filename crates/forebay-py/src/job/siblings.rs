//! `forebay._native.Siblings`: the ranks that the launcher of this process started beside it.

use std::sync::{Mutex, PoisonError};

use forebay_host as host;
use pyo3::prelude::*;

/// See `python/forebay/_native.pyi`.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Siblings {
    /// `None` where the launcher cannot be seen.
    siblings: Mutex<Option<host::Siblings>>,
}

#[pymethods]
impl Siblings {
    #[new]
    fn new(variable: &str, rank: u32) -> Self {
        Self { siblings: Mutex::new(host::Siblings::find(Some(variable), rank)) }
    }

    /// Ranks that were seen alive and have ended since, each with its process.
    fn ended(&self) -> Vec<(u32, i32)> {
        let mut siblings = self.siblings.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(siblings) = siblings.as_mut() else { return Vec::new() };
        siblings.probe();
        siblings.all_ended().into_iter().map(|(rank, ended)| (rank, ended.pid)).collect()
    }
}
