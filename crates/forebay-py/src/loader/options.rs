//! What the values of options may be, for `python/forebay/options.py`.

use forebay_engine::{Error, FieldDecoder};
use forebay_plan::options::{self, OptionError, StrategyChoice};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};
use pythonize::depythonize;
use serde_json::Value;

use crate::errors::raise;

/// A value as rules see it; null is what no option can be.
fn scalar(value: &Bound<'_, PyAny>) -> Value {
    if let Ok(flag) = value.cast::<PyBool>() {
        flag.is_true().into()
    } else if value.is_instance_of::<PyInt>() {
        let integer =
            value.extract::<u64>().map(Value::from).or_else(|_| value.extract::<i64>().map(Value::from));
        // What is too large for 64 bits becomes a float, and for that as well the largest one.
        integer.unwrap_or_else(|_| value.extract::<f64>().unwrap_or(f64::MAX).into())
    } else if let Ok(number) = value.cast::<PyFloat>() {
        number.value().into()
    } else if let Ok(text) = value.cast::<PyString>() {
        // Lone surrogates stand for bytes that are not UTF-8.
        text.to_str().map_or(Value::Null, Value::from)
    } else {
        Value::Null
    }
}

fn check(
    origin: &str,
    name: &str,
    value: &Bound<'_, PyAny>,
    shown: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let shown = || shown.unwrap_or(value).repr().map_or_else(|_| "?".into(), |text| text.to_string());
    options::check_value(origin, name, &scalar(value), shown).map_err(|error| wrong(value.py(), error))
}

fn wrong(py: Python<'_>, error: OptionError) -> PyErr {
    raise(py, &Error::from(error))
}

/// Raises where the option `name` may not be `value`, which came from `origin`; `shown` is the
/// value as the user wrote it, if that is another.
#[pyfunction]
#[pyo3(signature = (origin, name, value, shown = None))]
pub(crate) fn check_option(
    origin: &Bound<'_, PyString>,
    name: &str,
    value: &Bound<'_, PyAny>,
    shown: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    check(&origin.to_string_lossy(), name, value, shown)
}

/// Raises where a parameter of an order, a strategy, a store or a tier may not be what it is, and
/// where parameters of a strategy do not go together.
#[pyfunction]
#[pyo3(signature = (kind, prefix, values, shown = None))]
pub(crate) fn check_parameters(
    kind: &str,
    prefix: &str,
    values: &Bound<'_, PyDict>,
    shown: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    for (name, value) in values {
        let shown = shown.map(|shown| shown.as_any().get_item(&name)).transpose()?;
        check(&format!("{kind}({name}=)"), &format!("{prefix}.{name}"), &value, shown.as_ref())?;
    }
    if prefix == "strategy" {
        let strategy: StrategyChoice = depythonize(values)?;
        strategy.check().map_err(|error| wrong(values.py(), error))?;
    }
    Ok(())
}

/// The words that an option may be.
#[pyfunction]
pub(crate) fn option_words(name: &str) -> Vec<&'static str> {
    options::option_words(name).to_vec()
}

/// What is wrong with a decoder of a field; `None` if nothing is.
#[pyfunction]
pub(crate) fn check_decoder(facts: &Bound<'_, PyAny>) -> Option<String> {
    match depythonize::<FieldDecoder>(facts) {
        Ok(decoder) => decoder.check().err(),
        Err(error) => Some(error.to_string()),
    }
}
