//! `forebay._native.Engine`: a loader of one rank.

use forebay_engine::mesh::LinksSpec;
use forebay_engine::{Delivery, Error, Options};
use forebay_plan::options::LoaderOptions;
use numpy::{PyArrayDescr, PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};
use pythonize::depythonize;

use crate::batch::{dtype_of, to_python};
use crate::caller::{PythonCaller, detached, detached_keeping};
use crate::dataset::{Dataset, describe_fields};
use crate::errors::{raise, wrong_option};
use crate::job::listener::Listener;
use crate::loader::state::OrderState;
use crate::log;
use crate::plugins::plugins;

/// See `python/forebay/_native.pyi`.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Engine {
    engine: forebay_engine::Engine,
    /// The numpy types of the fields, which take longer to make than handing out a batch, and what
    /// is delivered of each.
    kinds: Vec<(Py<PyArrayDescr>, Delivery)>,
}

#[pymethods]
impl Engine {
    #[new]
    #[allow(clippy::too_many_arguments)] // the shape of a Python signature
    #[pyo3(signature = (dataset, options, *, launcher = None, tier_daemon = Vec::new(), links = None,
                        listener = None, progress = None))]
    fn new(
        py: Python<'_>,
        dataset: &Dataset,
        options: &Bound<'_, PyAny>,
        launcher: Option<String>,
        tier_daemon: Vec<String>,
        links: Option<&Bound<'_, PyAny>>,
        listener: Option<&Listener>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        log::prepare(py)?;
        let unreadable =
            |error| wrong_option(py, format!("cannot read the options of the loader: {error}"), "");
        let loader: LoaderOptions = depythonize(options).map_err(unreadable)?;
        let links: Option<LinksSpec> = links.map(depythonize).transpose().map_err(unreadable)?;
        let loader = loader.checked().map_err(|error| raise(py, &Error::from(error)))?;
        let source = dataset.source();
        let decode = source.decoders().clone();
        let options = Options { loader, decode, launcher, tier_daemon, links };
        let listener = listener.and_then(Listener::take);
        let strategies = plugins().strategies(&source, &options);
        let engine = detached(py, progress, |caller| {
            forebay_engine::Engine::new(source, options, strategies, listener, caller)
        })?;
        log::drain(py)?;
        let kind = |(field, delivery)| Ok((dtype_of(py, field)?.unbind(), delivery));
        let kinds = engine.fields().iter().zip(engine.deliveries()).map(kind).collect::<PyResult<_>>()?;
        Ok(Self { engine, kinds })
    }

    #[getter]
    fn steps(&self) -> u64 {
        self.engine.steps_per_epoch()
    }

    #[getter]
    fn last_epoch(&self) -> u64 {
        self.engine.last_epoch()
    }

    fn config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let config = crate::dataset::json(py, &self.engine.config())?;
        let fields = describe_fields(py, self.engine.fields(), self.engine.deliveries())?;
        config.get_item("data")?.set_item("fields", fields)?;
        Ok(config)
    }

    /// Samples of the dataset.
    #[getter]
    fn samples(&self) -> u64 {
        self.engine.samples()
    }

    /// Batch buffers of each rank.
    #[getter]
    fn batch_buffers(&self) -> usize {
        self.engine.batch_buffers()
    }

    /// Cores that this rank may use.
    #[getter]
    fn cores(&self) -> usize {
        self.engine.cores()
    }

    #[getter]
    fn order_state(&self) -> OrderState {
        OrderState(self.engine.order_state())
    }

    fn start(&self, py: Python<'_>, epoch: u64, step: u64) -> PyResult<u64> {
        log::prepare(py)?;
        detached(py, None, |caller| self.engine.start(epoch, step, caller))
    }

    fn next(&self, py: Python<'_>, iteration: u64, taken: &Bound<'_, PyList>) -> PyResult<()> {
        let call = |caller: &PythonCaller| self.engine.next(iteration, caller);
        detached_keeping(py, None, call, |delivered| match delivered.take() {
            Some(delivered) => taken.append(to_python(py, delivered, self.engine.fields(), &self.kinds)?),
            None => Ok(()),
        })?;
        Ok(())
    }

    fn is_ready(&self, iteration: u64) -> bool {
        self.engine.is_ready(iteration)
    }

    #[pyo3(signature = (iteration = None))]
    fn leave(&self, py: Python<'_>, iteration: Option<u64>) -> PyResult<()> {
        detached(py, None, |_| self.engine.leave(iteration))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.engine.close());
        // At exit logging may be gone already.
        let _ = log::drain(py);
    }

    #[allow(clippy::needless_pass_by_value)] // the binding hands arrays over by value
    fn give_order(&self, py: Python<'_>, epoch: u64, ids: PyReadonlyArray1<'_, i64>) -> PyResult<()> {
        debug_assert_eq!(ids.ndim(), 1);
        let copied = ids.as_array().to_vec();
        detached(py, None, |_| self.engine.give_order(epoch, &copied))
    }

    #[pyo3(signature = (groups))]
    fn set_stagger(&self, py: Python<'_>, groups: Option<u32>) -> PyResult<()> {
        detached(py, None, |_| self.engine.set_stagger(groups))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        let fill = |into: &Bound<'py, PyDict>, counters: Vec<(&'static str, u64)>| -> PyResult<()> {
            for (name, value) in counters {
                match name.strip_suffix("_ns") {
                    Some(stem) => into.set_item(format!("{stem}_seconds"), value as f64 / 1e9)?,
                    None => into.set_item(name, value)?,
                }
            }
            Ok(())
        };
        fill(&stats, self.engine.counters())?;
        let node = PyDict::new(py);
        fill(&node, self.engine.node_counters())?;
        for (into, levels) in [&stats, &node].into_iter().zip(self.engine.levels()) {
            let by_name = PyDict::new(py);
            for (name, values) in levels {
                let columns = forebay_engine::LEVEL_COLUMNS.into_iter().zip(values);
                by_name.set_item(name, columns.into_py_dict(py)?)?;
            }
            into.set_item("levels", by_name)?;
        }
        stats.set_item("node", node)?;
        let epochs = PyDict::new(py);
        for (epoch, bytes) in self.engine.read_bytes_by_epoch() {
            epochs.set_item(epoch, bytes)?;
        }
        stats.set_item("read_bytes_by_epoch", epochs)?;
        let epochs = PyDict::new(py);
        for (epoch, bytes) in self.engine.level_bytes_by_epoch() {
            epochs.set_item(epoch, bytes.into_py_dict(py)?)?;
        }
        stats.set_item("level_bytes_by_epoch", epochs)?;
        Ok(stats)
    }

    fn bad_samples(&self) -> Vec<(u64, String)> {
        self.engine.bad_samples()
    }
}
