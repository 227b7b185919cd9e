//! What the values of options may be, for `python/forebay/options.py`.

use forebay_engine::{FieldDecoder, StrategyChoice, expected_of_option, option_words};
use pyo3::prelude::*;
use serde_json::Value;

use crate::errors::{raise, wrong_option};

fn parsed(py: Python<'_>, json: &str) -> PyResult<Value> {
    serde_json::from_str(json).map_err(|error| wrong_option(py, format!("not JSON: {error}"), ""))
}

/// What was expected of an option, or none if its value is valid.
#[pyfunction]
pub(crate) fn option_expected(py: Python<'_>, name: &str, json: &str) -> PyResult<Option<String>> {
    Ok(expected_of_option(name, &parsed(py, json)?))
}

/// The words that an option may be.
#[pyfunction(name = "option_words")]
pub(crate) fn words_of_option(name: &str) -> Vec<&'static str> {
    option_words(name).to_vec()
}

/// Raises where values of a strategy do not go together.
#[pyfunction]
pub(crate) fn check_strategy(py: Python<'_>, json: &str) -> PyResult<()> {
    let strategy: StrategyChoice =
        serde_json::from_value(parsed(py, json)?).map_err(|error| wrong_option(py, error.to_string(), ""))?;
    strategy.check().map_err(|error| raise(py, &error))
}

/// What is wrong with a decoder of a field; `None` if nothing is.
#[pyfunction]
pub(crate) fn check_decoder(json: &str) -> Option<String> {
    match serde_json::from_str::<FieldDecoder>(json) {
        Ok(decoder) => decoder.check().err(),
        Err(error) => Some(error.to_string()),
    }
}
