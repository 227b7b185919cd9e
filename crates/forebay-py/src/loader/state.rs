//! `forebay._native.OrderState`: the states of a loader, as Python mappings.

use forebay_plan::{OrderKind, StateError, StateValue};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyMapping, PyString};

use crate::errors::wrong_option;

/// See `python/forebay/_native.pyi`.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct OrderState(pub(crate) forebay_plan::OrderState);

#[pymethods]
impl OrderState {
    fn at<'py>(&self, py: Python<'py>, epoch: u64, step: u64) -> PyResult<Bound<'py, PyDict>> {
        to_python(py, self.0.at(epoch, step))
    }

    fn behind<'py>(&self, py: Python<'py>, position: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let items = position.try_iter().and_then(|items| items.take(3).collect::<PyResult<Vec<_>>>());
        let Ok([epoch, step]) = items.as_deref() else {
            let found = written(position);
            let message = format!("state_at: expected a pair of integers, epoch and step, found {found}");
            return Err(wrong_option(py, message, "pass batch.position"));
        };
        let (epoch, step) = (value_of(epoch), value_of(step));
        let state = self.0.behind(epoch, step).map_err(|error| refused(py, "state_at", &error))?;
        to_python(py, state)
    }

    fn resume<'py>(
        &self,
        py: Python<'py>,
        state: &Bound<'py, PyAny>,
    ) -> PyResult<(u64, u64, Option<Bound<'py, PyDict>>)> {
        const CALL: &str = "load_state_dict";
        let Ok(mapping) = state.cast::<PyMapping>() else {
            let found = state.get_type().name()?;
            let message = format!("{CALL}: expected what state_dict() returned, found {found}");
            return Err(wrong_option(py, message, ""));
        };
        let value = |key: &str| match mapping.contains(key) {
            Ok(true) => mapping.get_item(key).ok().map(|value| value_of(&value)),
            _ => None,
        };
        let resumed = self.0.resume(value).map_err(|error| refused(py, CALL, &error))?;
        if self.0.is_order_of(&resumed) {
            return Ok((resumed.epoch, resumed.step, None));
        }
        let order = PyDict::new(py);
        order.set_item("lanes", resumed.lanes)?;
        if let OrderKind::Group { samples, window } = resumed.kind {
            order.set_item("samples", samples)?;
            order.set_item("window", window)?;
        }
        if let OrderKind::Opportunistic { window } = resumed.kind {
            order.set_item("window", window)?;
        }
        Ok((resumed.epoch, resumed.step, Some(order)))
    }
}

fn refused(py: Python<'_>, call: &str, error: &StateError) -> PyErr {
    wrong_option(py, format!("{call}: {error}"), error.hint())
}

fn to_python<'py>(py: Python<'py>, values: Vec<(&'static str, StateValue)>) -> PyResult<Bound<'py, PyDict>> {
    let state = PyDict::new(py);
    for (key, value) in values {
        match value {
            StateValue::Integer(number) => state.set_item(key, number)?,
            StateValue::Text(text) | StateValue::Other(text) => state.set_item(key, text)?,
            StateValue::None => state.set_item(key, py.None())?,
        }
    }
    Ok(state)
}

/// A value of a mapping that may hold anything. Integers are those of Python, and of numpy; a bool
/// is none.
fn value_of(value: &Bound<'_, PyAny>) -> StateValue {
    if value.is_none() {
        return StateValue::None;
    }
    if value.is_instance_of::<PyString>()
        && let Ok(text) = value.extract::<String>()
    {
        return StateValue::Text(text);
    }
    let is_integer = value.is_instance_of::<PyInt>() || value.hasattr("__index__").unwrap_or(false);
    if is_integer
        && !value.is_instance_of::<PyBool>()
        && let Ok(number) = value.extract::<u64>()
    {
        return StateValue::Integer(number);
    }
    StateValue::Other(written(value))
}

/// A value as Python writes it.
fn written(value: &Bound<'_, PyAny>) -> String {
    value
        .repr()
        .map_or_else(|_| "a value without repr()".to_owned(), |text| text.to_string_lossy().into_owned())
}
