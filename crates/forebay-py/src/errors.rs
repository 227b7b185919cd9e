//! Rust errors as the Python exceptions of `forebay.errors`.

use std::path::Path;

use forebay_engine::{Error, ErrorDetails};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

struct Classes {
    base: Py<PyType>,
    option: Py<PyType>,
    format: Py<PyType>,
    storage: Py<PyType>,
    storage_timeout: Py<PyType>,
    memory: Py<PyType>,
    rendezvous: Py<PyType>,
    peer: Py<PyType>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

fn classes(py: Python<'_>) -> PyResult<&Classes> {
    CLASSES.get_or_try_init(py, || {
        let module = py.import("forebay.errors")?;
        let class = |name| Ok::<_, PyErr>(module.getattr(name)?.cast_into::<PyType>()?.unbind());
        Ok(Classes {
            base: class("ForebayError")?,
            option: class("OptionError")?,
            format: class("FormatError")?,
            storage: class("StorageError")?,
            storage_timeout: class("StorageTimeout")?,
            memory: class("MemoryLimitError")?,
            rendezvous: class("RendezvousError")?,
            peer: class("PeerLostError")?,
        })
    })
}

/// Imports the classes: an error at exit must find them.
pub(crate) fn load(py: Python<'_>) -> PyResult<()> {
    classes(py).map(drop)
}

/// The Python exception for an engine error; the hint goes below the message.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
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
    let of_details = |class: &Py<PyType>, details: &ErrorDetails| {
        os_error(py, class, &text, details.errno(), details.path()).unwrap_or_else(|failure| failure)
    };
    let class = match error {
        Error::Storage(details) | Error::Share(details) => return of_details(&classes.storage, details),
        Error::StalledThere(details) => return of_details(&classes.storage_timeout, details),
        Error::Timeout { .. } | Error::Stalled { .. } => &classes.storage_timeout,
        Error::Options { .. } => &classes.option,
        Error::Format(..) | Error::BadSample { .. } => &classes.format,
        Error::Memory { .. } | Error::NoMemory(..) => &classes.memory,
        Error::Rendezvous(..) => &classes.rendezvous,
        Error::PeerLost { .. } | Error::RemoteLost { .. } | Error::PeerEnded(..) => &classes.peer,
        _ => &classes.base,
    };
    PyErr::from_type(class.bind(py).clone(), text)
}

/// A `StorageError` with what it has of an `OSError`.
fn os_error(
    py: Python<'_>,
    class: &Py<PyType>,
    text: &str,
    errno: Option<i32>,
    path: Option<&Path>,
) -> PyResult<PyErr> {
    let attributes = PyDict::new(py);
    attributes.set_item("errno", errno)?;
    attributes.set_item("filename", path.map(Path::as_os_str))?;
    Ok(PyErr::from_value(class.bind(py).call((text,), Some(&attributes))?))
}

/// An option error that the bindings find themselves.
pub fn wrong_option(py: Python<'_>, message: impl Into<String>, hint: impl Into<String>) -> PyErr {
    raise(py, &Error::Options { message: message.into(), hint: hint.into() })
}

/// Storage that failed, found by the bindings themselves.
pub fn storage(py: Python<'_>, text: &str, source: &std::io::Error, path: &Path) -> PyErr {
    let raised = classes(py)
        .and_then(|classes| os_error(py, &classes.storage, text, source.raw_os_error(), Some(path)));
    raised.unwrap_or_else(|failure| failure)
}
