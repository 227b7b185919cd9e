//! Samples by id as Python objects: arrays of a batch, or one object per sample.
//!
//! 1. The samples are located and their reads planned.
//! 2. With the interpreter, arrays and bytes objects of the known lengths are made.
//! 3. Without it, the engine reads straight into them. If storage may stall, that happens in
//!    another thread, which owns references to the objects: when the caller gives up, that thread
//!    may still write.
//! 4. Repeated ids are copied, and fields whose lengths only decoding tells become arrays, strings
//!    or what `json` makes of them.

use std::ptr::NonNull;
use std::sync::Arc;

use forebay_engine::{BatchRead, Decoded, Delivery, Place, offload};
use forebay_types::{Field, Layout};
use numpy::PyArrayDescr;
use numpy::npyffi::npy_intp;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::batch::{data_of, dtype_of, empty, field_shape, object, view};
use crate::caller::detached;
use crate::dataset::{Dataset, UNLIMITED_S};

/// What is read, for the messages of long waits.
const READ: &str = "samples are read";

impl Dataset {
    /// Field name → array of `(ids, *shape)`; for a ragged field a list of arrays, or with `ragged`
    /// a pair of values and offsets; for texts and JSON a list of objects.
    pub(crate) fn read_arrays<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u64>,
        threads: Option<usize>,
        ragged: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let count = ids.len();
        let batch = self.prepare(py, ids)?;
        let (fields, slots) = (batch.decoding().fields(), batch.slots());
        let mut first_slots = vec![usize::MAX; batch.samples().len()];
        for (slot, sample) in slots.iter().enumerate().rev() {
            first_slots[*sample as usize] = slot;
        }
        let mut columns = Vec::with_capacity(fields.len());
        for (number, field) in fields.iter().enumerate() {
            columns.push(Column::new(py, &batch, number, field, count)?);
        }
        let mut places = Vec::with_capacity(first_slots.len() * fields.len());
        for slot in &first_slots {
            places.extend(columns.iter().map(|column| column.as_ref().map(|column| column.place(*slot))));
        }
        let held: Vec<_> = columns.iter().flatten().map(|column| column.array.clone().unbind()).collect();
        let mut decoded = self.fill(py, &batch, places, held, threads)?;
        let result = PyDict::new(py);
        let mut ragged_before = 0;
        for ((field, delivery), column) in fields.iter().zip(batch.decoding().deliveries()).zip(columns) {
            if let Some(column) = column {
                column.repeat(slots, &first_slots);
                result.set_item(&field.name, column.into_value(py, field, ragged)?)?;
                continue;
            }
            let mut values: Vec<Vec<u8>> = Vec::with_capacity(decoded.len());
            values.extend(decoded.iter_mut().map(|sample| std::mem::take(&mut sample[ragged_before])));
            ragged_before += 1;
            let value = if delivery == Delivery::Array {
                Column::of_values(py, field, slots, &values)?.into_value(py, field, ragged)?
            } else {
                let made = slots.iter().map(|sample| object(py, delivery, &values[*sample as usize]));
                PyList::new(py, made.collect::<PyResult<Vec<_>>>()?)?.into_any()
            };
            result.set_item(&field.name, value)?;
        }
        Ok(result)
    }

    /// The samples as `dataset[i]` returns them.
    pub(crate) fn read_samples<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u64>,
        threads: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let batch = self.prepare(py, ids)?;
        let fields = batch.decoding().fields();
        let kinds = (0..fields.len()).map(|number| ValueKind::of(self, &batch, number, py));
        let kinds = kinds.collect::<PyResult<Vec<_>>>()?;
        let cells = batch.samples().len() * fields.len();
        let (mut values, mut places) = (Vec::with_capacity(cells), Vec::with_capacity(cells));
        for cell in 0..cells {
            let field = cell % fields.len();
            let made = match batch.value_bytes(cell / fields.len(), field) {
                Some(bytes) => Some(kinds[field].make(py, bytes as usize)?),
                None => None,
            };
            places.push(made.as_ref().map(|(_, place)| *place));
            values.push(made.map(|(value, _)| value));
        }
        let held: Vec<_> = values.iter().flatten().map(|value| value.clone().unbind()).collect();
        let decoded = self.fill(py, &batch, places, held, threads)?;
        for (sample, ragged) in decoded.into_iter().enumerate() {
            let mut ragged = ragged.iter();
            for field in 0..fields.len() {
                let value = &mut values[sample * fields.len() + field];
                if value.is_none() {
                    *value = Some(kinds[field].with(py, ragged.next().map_or(&[], Vec::as_slice))?);
                }
            }
        }
        let are_records = self.of_records(batch.index().schema());
        let result = PyList::empty(py);
        let deepcopy = py.import("copy")?.getattr("deepcopy")?;
        let mut given = vec![false; batch.samples().len()];
        for sample in batch.slots() {
            let sample = *sample as usize;
            let again = std::mem::replace(&mut given[sample], true);
            let value = |field: usize| {
                let value = values[sample * fields.len() + field].clone().expect("made above");
                // A sample that is asked for twice is two objects; bytes never change.
                if again && !kinds[field].is_bytes { deepcopy.call1((value,)) } else { Ok(value) }
            };
            if are_records
                && let ([kind], [_]) = (kinds.as_slice(), fields)
                && kind.is_bytes
            {
                result.append(value(0)?)?;
                continue;
            }
            let fields_of_sample = PyDict::new(py);
            for (number, field) in fields.iter().enumerate() {
                fields_of_sample.set_item(&field.name, value(number)?)?;
            }
            result.append(fields_of_sample)?;
        }
        Ok(result)
    }

    /// Locates the samples.
    fn prepare(&self, py: Python<'_>, ids: Vec<u64>) -> PyResult<Arc<BatchRead>> {
        let prepared = if self.source().is_known_local() {
            detached(py, None, |caller| BatchRead::prepare(&self.source(), &ids, caller))
        } else {
            self.ask(py, None, READ, move |source, caller| BatchRead::prepare(source, &ids, caller))
        };
        Ok(Arc::new(prepared?))
    }

    /// Reads the samples to `places`, which are memory of the objects `held`.
    fn fill(
        &self,
        py: Python<'_>,
        batch: &Arc<BatchRead>,
        places: Vec<Option<Place>>,
        held: Vec<Py<PyAny>>,
        threads: Option<usize>,
    ) -> PyResult<Decoded> {
        let source = self.source();
        // No read from a file system of this node stalls for ever.
        if source.is_known_local() {
            let _held = held;
            return detached(py, None, |caller| batch.fill(&source, &places, threads, caller));
        }
        let batch = Arc::clone(batch);
        let (decoded, _held) = detached(py, None, |caller| {
            offload(caller, READ, UNLIMITED_S, move |caller| {
                let filled = batch.fill(&source, &places, threads, caller);
                // The objects come back with the result, and are dropped with the interpreter.
                filled.map(|decoded| (decoded, held))
            })
        })?;
        Ok(decoded)
    }
}

/// The values of a field in one array.
struct Column<'py> {
    /// Of `(ids, *shape)`, or one-dimensional where the field is ragged.
    array: Bound<'py, PyAny>,
    start: NonNull<u8>,
    /// Where the value of each slot begins, and the last one ends \[bytes\].
    starts: Vec<usize>,
}

impl<'py> Column<'py> {
    /// Memory for the field, if the lengths of its values are known.
    fn new(
        py: Python<'py>,
        batch: &BatchRead,
        number: usize,
        field: &Field,
        ids: usize,
    ) -> PyResult<Option<Self>> {
        if field.layout == Layout::Ragged && !batch.is_direct() {
            return Ok(None);
        }
        let mut starts = Vec::with_capacity(ids + 1);
        let mut end = 0;
        starts.push(end);
        for sample in batch.slots() {
            let Some(bytes) = batch.value_bytes(*sample as usize, number) else { return Ok(None) };
            end += bytes as usize;
            starts.push(end);
        }
        Self::empty(py, field, starts).map(Some)
    }

    /// Values that were decoded: one for each sample.
    fn of_values(py: Python<'py>, field: &Field, slots: &[u32], values: &[Vec<u8>]) -> PyResult<Self> {
        let mut starts = vec![0];
        starts.extend(slots.iter().scan(0, |end, sample| {
            *end += values[*sample as usize].len();
            Some(*end)
        }));
        let column = Self::empty(py, field, starts)?;
        for (slot, sample) in slots.iter().enumerate() {
            let value = &values[*sample as usize];
            // SAFETY: the value's place in an array that was just made; both are that long.
            unsafe {
                std::ptr::copy_nonoverlapping(value.as_ptr(), column.address(slot).as_ptr(), value.len());
            };
        }
        Ok(column)
    }

    fn empty(py: Python<'py>, field: &Field, starts: Vec<usize>) -> PyResult<Self> {
        let end = starts.last().copied().unwrap_or(0);
        let mut shape = match field_shape(field) {
            Some(shape) => vec![starts.len() as npy_intp - 1].into_iter().chain(npy_shape(shape)).collect(),
            None => vec![(end / field.dtype.item_bytes()) as npy_intp],
        };
        let array = empty(py, &dtype_of(py, field)?, &mut shape)?;
        let start = data_of(&array);
        Ok(Self { array, start, starts })
    }

    fn address(&self, slot: usize) -> NonNull<u8> {
        // SAFETY: a slot's value begins inside the array, or at its end.
        unsafe { self.start.add(self.starts[slot]) }
    }

    fn bytes(&self, slot: usize) -> usize {
        self.starts[slot + 1] - self.starts[slot]
    }

    /// Memory of the value of a slot.
    fn place(&self, slot: usize) -> Place {
        // SAFETY: memory of numpy in an array that no one else has yet; it lives as long as the
        // array, which `fill` holds.
        unsafe { Place::new(self.address(slot), self.bytes(slot)) }
    }

    /// Copies the values of ids that stand more than once.
    fn repeat(&self, slots: &[u32], first_slots: &[usize]) {
        for (slot, sample) in slots.iter().enumerate() {
            let first = first_slots[*sample as usize];
            if first != slot {
                let (from, into) = (self.address(first), self.address(slot));
                // SAFETY: two values of one length at different places of the array.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_ptr(), self.bytes(first)) };
            }
        }
    }

    /// As the batch has it.
    fn into_value(self, py: Python<'py>, field: &Field, ragged: bool) -> PyResult<Bound<'py, PyAny>> {
        if field.layout != Layout::Ragged {
            return Ok(self.array);
        }
        let item_bytes = field.dtype.item_bytes();
        if ragged {
            let offsets: Vec<i64> = self.starts.iter().map(|start| (start / item_bytes) as i64).collect();
            let offsets = numpy::PyArray1::from_vec(py, offsets);
            return Ok((self.array, offsets).into_pyobject(py)?.into_any());
        }
        let dtype = dtype_of(py, field)?;
        let values = PyList::empty(py);
        for slot in 0..self.starts.len() - 1 {
            let mut shape = [(self.bytes(slot) / item_bytes) as npy_intp];
            values.append(view(&self.array, &dtype, &mut shape, self.address(slot).as_ptr())?)?;
        }
        Ok(values.into_any())
    }
}

/// What the value of a field is in a sample.
struct ValueKind<'py> {
    /// A record, as any container library would return it.
    is_bytes: bool,
    delivery: Delivery,
    dtype: Bound<'py, PyArrayDescr>,
    shape: Option<Vec<npy_intp>>,
    item_bytes: usize,
}

impl<'py> ValueKind<'py> {
    fn of(dataset: &Dataset, batch: &BatchRead, number: usize, py: Python<'py>) -> PyResult<Self> {
        let (field, index) = (&batch.decoding().fields()[number], batch.index());
        let delivery = batch.decoding().deliveries().nth(number).unwrap_or(Delivery::Array);
        let is_as_stored = delivery == Delivery::Array && *field == index.fields()[number];
        let is_bytes = is_as_stored && dataset.has_bytes(index.schema(), field);
        let shape = field_shape(field).map(|shape| npy_shape(shape).collect());
        let (dtype, item_bytes) = (dtype_of(py, field)?, field.dtype.item_bytes());
        Ok(Self { is_bytes, delivery, dtype, shape, item_bytes })
    }

    /// An object for a value of this length, and its memory.
    fn make(&self, py: Python<'py>, bytes: usize) -> PyResult<(Bound<'py, PyAny>, Place)> {
        let (value, start) = if self.is_bytes {
            // SAFETY: without contents, it returns a new object of this size, which no one else
            // has before it is filled; of size 0 it is the one empty object, to which nothing is
            // written.
            let value = unsafe {
                let value = ffi::PyBytes_FromStringAndSize(std::ptr::null(), bytes as ffi::Py_ssize_t);
                Bound::from_owned_ptr_or_err(py, value)?
            };
            // SAFETY: it is a bytes object, whose contents are never at null.
            let start = unsafe { ffi::PyBytes_AsString(value.as_ptr()) };
            (value, NonNull::new(start.cast()).expect("a bytes object has contents"))
        } else {
            let mut shape = self.shape.clone().unwrap_or_else(|| vec![(bytes / self.item_bytes) as npy_intp]);
            let array = empty(py, &self.dtype, &mut shape)?;
            let start = data_of(&array);
            (array, start)
        };
        // SAFETY: memory of Python in an object that no one else has yet; it lives as long as the
        // object, which `fill` holds.
        Ok((value, unsafe { Place::new(start, bytes) }))
    }

    /// An object with this value.
    fn with(&self, py: Python<'py>, value: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        if self.delivery != Delivery::Array {
            return object(py, self.delivery, value);
        }
        if self.is_bytes {
            return Ok(PyBytes::new(py, value).into_any());
        }
        let (made, _) = self.make(py, value.len())?;
        // SAFETY: the array was just made, with this length.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), data_of(&made).as_ptr(), value.len()) };
        Ok(made)
    }
}

fn npy_shape(shape: &[u64]) -> impl Iterator<Item = npy_intp> + '_ {
    shape.iter().map(|extent| *extent as npy_intp)
}
