//! Rust errors as Python exceptions.
//!
//! One base, `ForebayError`; each kind also inherits the built-in that fits, so that `except OSError` works. Classes
//! with two bases are made by calling `type`, which is the way the stable ABI offers.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use forebay_engine::Error;

struct Classes {
    base: Py<PyType>,
    option: Py<PyType>,
    format: Py<PyType>,
    storage: Py<PyType>,
    memory: Py<PyType>,
    peer: Py<PyType>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

fn classes(py: Python<'_>) -> PyResult<&Classes> {
    CLASSES.get_or_try_init(py, || {
        let builtins = py.import("builtins")?;
        let make = |name: &str, bases: &[&Bound<'_, PyAny>], doc: &str| -> PyResult<Py<PyType>> {
            let attributes = PyDict::new(py);
            attributes.set_item("__module__", "forebay")?;
            attributes.set_item("__doc__", doc)?;
            let class = py.get_type::<PyType>().call1((name, PyTuple::new(py, bases)?, attributes))?;
            Ok(class.cast_into::<PyType>()?.unbind())
        };
        let exception = builtins.getattr("Exception")?;
        let base = make("ForebayError", &[&exception], "Base of all errors that Forebay raises.")?;
        let root = base.bind(py).as_any().clone();
        let kind = |name, builtin, doc| make(name, &[&root, &builtins.getattr(builtin)?], doc);
        let option = kind("OptionError", "ValueError", "An option is wrong, or ranks disagree on it.")?;
        Ok(Classes {
            memory: make(
                "MemoryLimitError",
                &[option.bind(py).as_any(), &builtins.getattr("MemoryError")?],
                "A limit on memory leaves too little for a loader.",
            )?,
            option,
            format: kind("FormatError", "ValueError", "A data set is not what its format says.")?,
            storage: kind("StorageError", "OSError", "Storage failed, or stalled for longer than allowed.")?,
            peer: kind("PeerLostError", "RuntimeError", "Another process of the job died or did not come.")?,
            base,
        })
    })
}

/// Adds the exception classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let classes = classes(module.py())?;
    for (name, class) in [
        ("ForebayError", &classes.base),
        ("OptionError", &classes.option),
        ("FormatError", &classes.format),
        ("StorageError", &classes.storage),
        ("MemoryLimitError", &classes.memory),
        ("PeerLostError", &classes.peer),
    ] {
        module.add(name, class.bind(module.py()))?;
    }
    Ok(())
}

/// The Python exception for an engine error; the hint goes below the message.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    if matches!(error, Error::Interrupted)
        && let Err(signal) = py.check_signals()
    {
        return signal;
    }
    let text = match error.hint() {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    };
    let classes = match classes(py) {
        Ok(classes) => classes,
        Err(failure) => return failure,
    };
    let class = match error {
        Error::Options { .. } | Error::Disagree(_) => &classes.option,
        Error::Format(..) | Error::BadSample { .. } => &classes.format,
        Error::Memory { .. } => &classes.memory,
        Error::Storage(..) | Error::Timeout { .. } | Error::Stalled { .. } => &classes.storage,
        Error::PeerLost { .. } | Error::RemoteLost { .. } | Error::Node(..) => &classes.peer,
        _ => &classes.base,
    };
    PyErr::from_type(class.bind(py).clone(), text)
}

/// An option error that the bindings find themselves.
pub(crate) fn wrong_option(py: Python<'_>, message: impl Into<String>, hint: impl Into<String>) -> PyErr {
    raise(py, &Error::Options { message: message.into(), hint: hint.into() })
}

/// Storage that failed, found by the bindings themselves.
pub(crate) fn storage(py: Python<'_>, text: impl Into<String>) -> PyErr {
    match classes(py) {
        Ok(classes) => PyErr::from_type(classes.storage.bind(py).clone(), text.into()),
        Err(failure) => failure,
    }
}
