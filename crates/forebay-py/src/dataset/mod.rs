//! `forebay._native.Dataset`: an opened dataset.

pub(crate) mod forecast;
pub(crate) mod read_ids;
pub(crate) mod sidecars;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_engine::{Delivery, Error, FieldDecoders, Host, IndexedDataset, Loaded, offload};
use forebay_format::{
    Format, Manifest, Nulls, OpenOptions, SampleAxis, Schema, SidecarLocation, TokenLayout,
};
use forebay_image::SampleKey;
use forebay_types::{Dtype, Field, Layout};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use pythonize::{depythonize, pythonize};

use crate::batch::{dtype_of, field_shape, object};
use crate::caller::detached;
use crate::errors::{raise, wrong_option};
use crate::log;
use crate::plugins::plugins;

/// See `python/forebay/_native.pyi`.
#[pyclass(frozen, module = "forebay._native")]
pub struct Dataset {
    source: Arc<IndexedDataset>,
}

/// No limit: what a dataset does by itself has no `timeout=`, but can be interrupted.
pub(crate) const UNLIMITED_S: u64 = u64::MAX;

impl Dataset {
    pub(crate) fn source(&self) -> Arc<IndexedDataset> {
        Arc::clone(&self.source)
    }

    /// Whether its samples are opaque records.
    pub(crate) fn of_records(&self, schema: &Schema) -> bool {
        let dataset = self.source.dataset();
        match dataset.format() {
            Format::Raw => dataset.options().raw.as_ref().is_none_or(|layout| layout.fields.is_empty()),
            format => *schema == Schema::Raw && !format.names_fields(),
        }
    }

    /// Whether a sample has the field as bytes, as any library of the container returns a record:
    /// opaque records, and what is stored whole in a field that the file does not name: files of a
    /// folder, and encoded images of records.
    pub(crate) fn has_bytes(&self, schema: &Schema, field: &Field) -> bool {
        let is_whole = field.name == "data" && field.dtype == Dtype::Uint8 && field.numpy.is_none();
        let is_own =
            self.source.dataset().format() == Format::Folder || matches!(schema, Schema::ImageRecord(_));
        is_whole && (self.of_records(schema) || is_own && field.layout == Layout::Ragged)
    }

    /// Runs a call that may wait for storage, in such a way that Ctrl-C ends it.
    pub fn ask<T: Send + 'static>(
        &self,
        py: Python<'_>,
        progress: Option<Py<PyAny>>,
        what: &'static str,
        call: impl FnOnce(&IndexedDataset, &dyn Host) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let source = self.source();
        let call = move |caller: &dyn Host| call(&source, caller);
        detached(py, progress, |caller| offload(caller, what, UNLIMITED_S, call))
    }
}

/// Fields as (name, dtype, shape or None).
///
/// A field that becomes Python objects has dtype `object` and no axis.
pub(crate) fn describe_fields<'py>(
    py: Python<'py>,
    fields: &[Field],
    deliveries: impl Iterator<Item = Delivery>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (field, delivery) in fields.iter().zip(deliveries) {
        if delivery != Delivery::Array {
            list.append((&field.name, "object", PyTuple::empty(py)))?;
            continue;
        }
        let shape = match field_shape(field) {
            Some(shape) => PyTuple::new(py, shape)?.into_any(),
            None => py.None().into_bound(py),
        };
        list.append((&field.name, field.numpy.as_deref().unwrap_or(field.dtype.name()), shape))?;
    }
    Ok(list)
}

/// As the objects that Python's `json` makes of it.
pub fn json<'py>(py: Python<'py>, value: &impl serde::Serialize) -> PyResult<Bound<'py, PyAny>> {
    // A number that is not finite becomes null in JSON, and a key a string.
    let value = serde_json::to_value(value).expect("a report can be written as JSON");
    Ok(pythonize(py, &value)?)
}

/// The ids, each of which is at least 0.
fn sample_ids(ids: &PyReadonlyArray1<'_, i64>) -> Vec<u64> {
    ids.as_array().iter().map(|id| *id as u64).collect()
}

#[pymethods]
impl Dataset {
    #[new]
    #[pyo3(signature = (paths, *, database = None, schema = "auto", format = None, fields = Vec::new(), raw = None,
                        tokens = None, sample_axis = "auto", manifest = None, follow_symlinks = false, decode = None,
                        nulls = "raise"))]
    // The binding takes what `forebay.open` does.
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        database: Option<String>,
        schema: &str,
        format: Option<&str>,
        fields: Vec<String>,
        raw: Option<&str>,
        tokens: Option<&str>,
        sample_axis: &str,
        manifest: Option<(PathBuf, String)>,
        follow_symlinks: bool,
        decode: Option<&Bound<'_, PyAny>>,
        nulls: &str,
    ) -> PyResult<Self> {
        log::prepare(py)?;
        let wrong = |error: forebay_format::Error| raise(py, &error.into());
        let raw = raw.map(serde_json::from_str).transpose();
        let tokens: Option<TokenLayout> = tokens
            .map(serde_json::from_str)
            .transpose()
            .map_err(|error| wrong_option(py, format!("windows of tokens: {error}"), ""))?;
        let options = OpenOptions {
            database,
            schema: schema.parse().map_err(wrong)?,
            format: match tokens {
                None => format.map(str::parse).transpose().map_err(wrong)?,
                Some(_) => Some(Format::Tokens),
            },
            fields,
            raw: raw.map_err(|error| wrong_option(py, format!("layout of raw records: {error}"), ""))?,
            tokens,
            sample_axis: match sample_axis {
                "auto" => SampleAxis::Auto,
                "first" => SampleAxis::First,
                "file" => SampleAxis::File,
                other => return Err(wrong_option(py, format!("there is no sample axis {other:?}"), "")),
            },
            manifest: manifest.map(|(path, reading)| Manifest { path, reading }),
            follow_symlinks,
            nulls: if nulls == "mask" { Nulls::Mask } else { Nulls::Raise },
        };
        let decoders: FieldDecoders = decode
            .map(depythonize)
            .transpose()
            .map_err(|error| wrong_option(py, format!("decode=: {error}"), ""))?
            .unwrap_or_default();
        let open = move |_: &dyn Host| {
            let dataset = IndexedDataset::open(&paths, &options)?.decoding_with(decoders);
            Ok(match plugins().computer() {
                Some(computer) => dataset.computing_with(computer),
                None => dataset,
            })
        };
        let source = detached(py, None, |caller| offload(caller, "a dataset is opened", UNLIMITED_S, open))?;
        Ok(Self { source: Arc::new(source) })
    }

    #[getter]
    fn format(&self) -> &'static str {
        self.source.dataset().format().name()
    }

    #[getter]
    fn paths(&self) -> Vec<OsString> {
        self.source.dataset().shards().iter().map(|shard| shard.path.clone().into_os_string()).collect()
    }

    /// Names of the classes in the order of their labels; empty where the files name none.
    fn classes(&self) -> Vec<String> {
        self.source.dataset().classes()
    }

    /// A warning of files that were given more than once; the sources of a mixture may share files.
    fn repeated_files(&self) -> Option<String> {
        self.source.dataset().repeated_files()
    }

    #[getter]
    fn fingerprint(&self) -> String {
        self.source.fingerprint()
    }

    #[allow(clippy::needless_pass_by_value)]
    fn select(&self, py: Python<'_>, ids: PyReadonlyArray1<'_, i64>) -> PyResult<Self> {
        let ids = sample_ids(&ids);
        let selected = self.ask(py, None, BUILT, move |source, caller| source.select(&ids, caller))?;
        Ok(Self { source: Arc::new(selected) })
    }

    #[pyo3(signature = (*, progress = None))]
    fn load_index(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<()> {
        self.ask(py, progress, BUILT, |source, caller| source.index(caller).map(drop))
    }

    #[pyo3(signature = (*, beside = false, progress = None))]
    fn build_index<'py>(
        &self,
        py: Python<'py>,
        beside: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = sidecar_location(beside);
        let built = self.ask(py, progress, BUILT, move |source, caller| source.build(Some(place), caller))?;
        let mut value = serde_json::to_value(&built.report).expect("a report can be written as JSON");
        value["sidecar"] = built.path.map(|path| path.display().to_string()).into();
        json(py, &value)
    }

    /// Whether the index is loaded, so that the length and the fields are known.
    fn is_loaded(&self) -> bool {
        self.source.loaded().is_some()
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.loaded(py)?.index.samples() as usize)
    }

    fn records(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.loaded(py)?.index.records())
    }

    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let loaded = self.loaded(py)?;
        let decoding = self.source.decoding(&loaded.index).map_err(|error| raise(py, &error))?;
        describe_fields(py, decoding.fields(), decoding.deliveries())
    }

    /// Whether the samples are opaque records, which Python gets as bytes without a dict.
    fn are_records(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.of_records(self.loaded(py)?.index.schema()))
    }

    #[pyo3(signature = (index, *, seed = 0, epoch = 0))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        index: i64,
        seed: u64,
        epoch: u64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let key = SampleKey { seed, epoch, sample: self.resolve(py, index)? };
        // Another thread takes longer than a read from a file system of this node, and none of
        // those stalls for ever.
        let (fields, values) = if self.source.is_known_local() {
            detached(py, None, |caller| self.source.sample(key, caller))?
        } else {
            self.ask(py, None, "a sample is read", move |source, caller| {
                source.is_local();
                source.sample(key, caller)
            })?
        };
        let loaded = self.loaded(py)?;
        let decoding = self.source.decoding(&loaded.index).map_err(|error| raise(py, &error))?;
        let result = PyDict::new(py);
        let sources = loaded.index.fields();
        for (((field, value), delivery), source) in
            fields.iter().zip(values).zip(decoding.deliveries()).zip(sources)
        {
            if delivery != Delivery::Array {
                result.set_item(&field.name, object(py, delivery, &value)?)?;
                continue;
            }
            let bytes = pyo3::types::PyBytes::new(py, &value);
            if field == source && self.has_bytes(loaded.index.schema(), field) {
                result.set_item(&field.name, bytes)?;
                continue;
            }
            let array = py.import("numpy")?.call_method1("frombuffer", (bytes, dtype_of(py, field)?))?;
            let array = match field_shape(field) {
                Some(shape) => array.call_method1("reshape", (PyTuple::new(py, shape)?,))?,
                None => array,
            };
            result.set_item(&field.name, array.call_method0("copy")?)?;
        }
        Ok(result)
    }

    #[allow(clippy::needless_pass_by_value)]
    #[pyo3(signature = (ids, *, threads = None, ragged = false))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        ids: PyReadonlyArray1<'_, i64>,
        threads: Option<usize>,
        ragged: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.read_arrays(py, sample_ids(&ids), threads, ragged)
    }

    #[allow(clippy::needless_pass_by_value)]
    #[pyo3(signature = (ids, *, threads = None))]
    fn samples<'py>(
        &self,
        py: Python<'py>,
        ids: PyReadonlyArray1<'_, i64>,
        threads: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.read_samples(py, sample_ids(&ids), threads)
    }

    fn extents(&self, py: Python<'_>, index: i64) -> PyResult<Vec<(OsString, u64, u64)>> {
        let sample = self.resolve(py, index)?;
        // The index is there by now, so nothing is asked of storage.
        let extents = detached(py, None, |caller| self.source.extents(sample, caller))?;
        Ok(extents
            .into_iter()
            .map(|(path, offset, length)| (path.into_os_string(), offset, length))
            .collect())
    }

    fn inspect<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let value = self.ask(py, None, "a dataset is inspected", IndexedDataset::inspect)?;
        json(py, &value)
    }

    #[pyo3(signature = (*, ranks, batch_size, epochs = None))]
    fn default_order<'py>(
        &self,
        py: Python<'py>,
        ranks: u64,
        batch_size: u64,
        epochs: Option<u64>,
    ) -> PyResult<(Bound<'py, PyAny>, Option<String>)> {
        let (order, warning) = self.ask(py, None, BUILT, move |source, caller| {
            source.default_order(ranks, batch_size, epochs, caller)
        })?;
        Ok((json(py, &order)?, warning))
    }

    #[pyo3(signature = (*, progress = None))]
    fn check_sums(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<()> {
        self.ask(py, progress, "checksums are compared", |source, caller| source.check_sums(caller))
    }

    #[pyo3(signature = (*, threads = 2, listed = None, progress = None))]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        threads: usize,
        listed: Option<usize>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if threads == 0 {
            return Err(wrong_option(py, "threads is 0", "use at least one thread"));
        }
        let found = self.ask(py, progress, "a dataset is verified", move |source, caller| {
            source.verify(threads, listed, caller)
        })?;
        json(py, &found)
    }
}

/// Beside the data, or in the user's cache directory.
pub fn sidecar_location(beside: bool) -> SidecarLocation {
    if beside { SidecarLocation::Beside } else { SidecarLocation::Cache }
}

/// What an index is wanted for.
const BUILT: &str = "an index is loaded or built";

impl Dataset {
    /// The index, at once where it is there.
    fn loaded(&self, py: Python<'_>) -> PyResult<Loaded> {
        match self.source.loaded() {
            Some(loaded) => Ok(loaded),
            None => self.ask(py, None, BUILT, |source, caller| source.index(caller)),
        }
    }

    fn resolve(&self, py: Python<'_>, index: i64) -> PyResult<u64> {
        let samples = self.loaded(py)?.index.samples();
        let resolved = if index < 0 { index + samples as i64 } else { index };
        u64::try_from(resolved)
            .ok()
            .filter(|sample| *sample < samples)
            .ok_or_else(|| PyIndexError::new_err(format!("sample {index} of a dataset of {samples} samples")))
    }
}
