//! Batches as numpy arrays: views on the batch buffer whose base object is its lease.

use std::ptr::NonNull;
use std::sync::Arc;

use forebay_engine::{Batch, Delivered, Delivery, FieldPlacement};
use forebay_types::{Dtype, Field, Layout};
use numpy::npyffi::{self, NPY_ARRAY_WRITEABLE, NpyTypes, PY_ARRAY_API};
use numpy::{Element, PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

/// Holds a batch buffer for the views on it; dropping the last view drops the lease, which gives
/// the buffer back.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Lease {
    _batch: Arc<Batch>,
}

/// The shape of a sample as numpy sees it; `None` where the length varies.
pub(crate) fn field_shape(field: &Field) -> Option<&[u64]> {
    match &field.layout {
        // The last axis counts the bytes of an element.
        Layout::Dense(shape) if field.numpy.is_some() => Some(&shape[..shape.len().saturating_sub(1)]),
        Layout::Dense(shape) => Some(shape),
        Layout::Ragged => None,
    }
}

/// The numpy type of a field.
pub(crate) fn dtype_of<'py>(py: Python<'py>, field: &Field) -> PyResult<Bound<'py, PyArrayDescr>> {
    match &field.numpy {
        None => Ok(descriptor(py, field.dtype)),
        Some(text) if text.starts_with('[') => {
            let description = py.import("ast")?.call_method1("literal_eval", (text,))?;
            let format = py.import("numpy.lib.format")?;
            Ok(format.call_method1("descr_to_dtype", (description,))?.cast_into()?)
        }
        Some(text) => PyArrayDescr::new(py, text),
    }
}

fn descriptor(py: Python<'_>, dtype: Dtype) -> Bound<'_, PyArrayDescr> {
    match dtype {
        Dtype::Bool => bool::get_dtype(py),
        Dtype::Int8 => i8::get_dtype(py),
        Dtype::Int16 => i16::get_dtype(py),
        Dtype::Int32 => i32::get_dtype(py),
        Dtype::Int64 => i64::get_dtype(py),
        Dtype::Uint8 => u8::get_dtype(py),
        Dtype::Uint16 => u16::get_dtype(py),
        Dtype::Uint32 => u32::get_dtype(py),
        Dtype::Uint64 => u64::get_dtype(py),
        Dtype::Float16 => PyArrayDescr::new(py, "float16").expect("numpy has float16"),
        Dtype::Float32 => f32::get_dtype(py),
        Dtype::Float64 => f64::get_dtype(py),
    }
}

/// A new C-contiguous array; what it holds is not said.
pub(crate) fn empty<'py>(
    py: Python<'py>,
    dtype: &Bound<'py, PyArrayDescr>,
    shape: &mut [npyffi::npy_intp],
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: without an address numpy allocates the memory.
    unsafe { array_on(py, dtype, shape, std::ptr::null_mut(), 0) }
}

/// A C-contiguous array on `address`, or on new memory if that is null.
///
/// # Safety
/// A non-null `address` points at `shape` aligned elements of `dtype` that outlive the array, and
/// that it may write to if `flags` say so.
unsafe fn array_on<'py>(
    py: Python<'py>,
    dtype: &Bound<'py, PyArrayDescr>,
    shape: &mut [npyffi::npy_intp],
    address: *mut u8,
    flags: i32,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the caller vouches for the memory; numpy takes over the descriptor's reference.
    unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, NpyTypes::PyArray_Type),
            dtype.clone().into_dtype_ptr(),
            shape.len() as i32,
            shape.as_mut_ptr(),
            std::ptr::null_mut(),
            address.cast(),
            flags,
            std::ptr::null_mut(),
        );
        Bound::from_owned_ptr_or_err(py, array)
    }
}

/// Where the elements of an array begin.
pub(crate) fn data_of(array: &Bound<'_, PyAny>) -> NonNull<u8> {
    let array = array.cast::<PyUntypedArray>().expect("an array");
    // SAFETY: the object is an array of numpy, as was just checked.
    let data = unsafe { (*array.as_array_ptr()).fields.data };
    NonNull::new(data.cast()).expect("numpy allocates at least a byte")
}

/// A writable C-contiguous array on `address` that keeps `base` alive.
///
/// The elements are inside memory that lives as long as `base`, and are aligned.
pub(crate) fn view<'py>(
    base: &Bound<'py, PyAny>,
    dtype: &Bound<'py, PyArrayDescr>,
    shape: &mut [npyffi::npy_intp],
    address: *mut u8,
) -> PyResult<Bound<'py, PyAny>> {
    let py = base.py();
    // SAFETY: `address` points at `shape` elements of `dtype` inside memory that `base` holds: of a
    // batch, whose buffer is aligned to 64 bytes per field and to an element per value of a ragged
    // one, and belongs to this rank alone until its lease dies; or of an array of such elements.
    // SetBaseObject takes over the base's reference.
    unsafe {
        let array = array_on(py, dtype, shape, address, NPY_ARRAY_WRITEABLE)?;
        let base = base.clone().into_ptr();
        if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), base) < 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array)
    }
}

/// What Python gets of a value that becomes an object; the engine has checked it.
pub(crate) fn object<'py>(py: Python<'py>, delivery: Delivery, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let text = PyString::from_bytes(py, bytes)?.into_any();
    if delivery == Delivery::Json { py.import("json")?.call_method1("loads", (text,)) } else { Ok(text) }
}

/// Turns a batch into (fields by name, sample ids, (epoch, step), which samples are repeated).
/// `kinds` are the numpy types of the fields ([`dtype_of`]), and what is delivered of them.
pub(crate) fn to_python<'py>(
    py: Python<'py>,
    delivered: Delivered,
    fields: &[Field],
    kinds: &[(Py<PyArrayDescr>, Delivery)],
) -> PyResult<Bound<'py, PyTuple>> {
    let place = (delivered.epoch, delivered.step);
    let batch = Arc::new(delivered.batch);
    let lease = Bound::new(py, Lease { _batch: Arc::clone(&batch) })?.into_any();
    let samples = batch.samples();
    let values = PyDict::new(py);
    for ((field, (dtype, delivery)), place) in fields.iter().zip(kinds).zip(&batch.layout().places) {
        let dtype = dtype.bind(py);
        let value = match *place {
            FieldPlacement::Dense { offset, .. } => {
                let mut shape = vec![samples as npyffi::npy_intp];
                let rest = field_shape(field).unwrap_or_default();
                shape.extend(rest.iter().map(|extent| *extent as npyffi::npy_intp));
                view(&lease, dtype, &mut shape, batch.address(offset))?
            }
            FieldPlacement::Ragged { table, item_bytes } => {
                let views = PyList::empty(py);
                for sample in 0..samples as u64 {
                    let value = batch.value(table, sample);
                    if *delivery != Delivery::Array {
                        let length = (value.end - value.start) as usize;
                        // SAFETY: `value` is a range of the batch, which nothing writes to before
                        // Python has it.
                        let bytes = unsafe { std::slice::from_raw_parts(batch.address(value.start), length) };
                        views.append(object(py, *delivery, bytes)?)?;
                        continue;
                    }
                    let mut shape = [((value.end - value.start) / item_bytes) as npyffi::npy_intp];
                    views.append(view(&lease, dtype, &mut shape, batch.address(value.start))?)?;
                }
                views.into_any()
            }
        };
        values.set_item(&field.name, value)?;
    }
    let indices =
        view(&lease, &descriptor(py, Dtype::Int64), &mut [samples as npyffi::npy_intp], batch.address(0))?;
    (values, indices, place, delivered.repeated).into_pyobject(py)
}
