"""Batches as eager tensors that share the memory of the batch buffer, by DLPack.

The tensor holds the array, and that the buffer. TensorFlow ends the process where memory is not
aligned as its kernels expect, so other arrays are copied.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import tensorflow as tf

from forebay._adapters.converted import ConvertedLoader
from forebay._adapters.loaders import Source, loader_for
from forebay._core import option_error
from forebay._iteration import Batch
from forebay._samples.collate import Ragged
from forebay.loader import LoaderOptions
from forebay.tensorflow._values import (
    Array,
    Path,
    as_strings,
    is_list_of_arrays,
    is_list_of_bytes,
    joined,
    native,
    numbers,
)

__all__ = ["EagerLoader", "loader"]

# What the kernels of TensorFlow rely on [bytes] (EIGEN_MAX_ALIGN_BYTES with AVX-512).
_ALIGNMENT = 64
# The dtypes that DLPack and TensorFlow have; it exports no bool of old versions of numpy.
_SHARED = frozenset(
    np.dtype(name)
    for name in (
        "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
        "float16", "float32", "float64", "complex64", "complex128",
    )
)  # fmt: skip


class EagerLoader(ConvertedLoader[Any]):
    """Deliver batches as eager tensors; :func:`loader` makes one."""


def loader(source: Source, batch_size: int | None = None, **options: Unpack[LoaderOptions]) -> EagerLoader:
    """Return a loader that delivers eager tensors, for training loops of one's own.

    Nothing is read ahead of the script by TensorFlow, so the state of the loader is exact.

    Parameters
    ----------
    source : Loader, Dataset, path-like or sequence of path-like
        The dataset, or a loader that was made before.
    batch_size : int, optional
        Samples per rank and step.
    **options
        Options of :class:`forebay.Loader`.

    Returns
    -------
    EagerLoader
        Iterate it as a :class:`forebay.Loader`. Its batches are dictionaries, tuples and
        NamedTuples of tensors, with the values of :func:`dataset`.

    Raises
    ------
    OptionError
        As :class:`forebay.Loader` raises it. Iteration raises it where TensorFlow has no tensor for
        a field.
    """
    if tf.inside_function():
        raise option_error(
            "forebay.tensorflow.loader: expected a call outside of a tf.function",
            "iterate it in Python, and pass the batches to a tf.function",
        )
    found = loader_for("forebay.tensorflow.loader", source, batch_size, options)
    dtypes = {name: dtype for name, (dtype, shape) in found.dataset.fields.items() if shape is None}

    def convert(batch: Any) -> Any:
        if isinstance(batch, Batch):
            # Where the part of a rank is empty, its lists do not say what they are lists of.
            batch = {
                key: _empty(dtypes.get(key)) if isinstance(value, list) and not value else value
                for key, value in batch.items()
            }
        return _tensors(batch)

    return EagerLoader(found, convert)


def _empty(dtype: str | None) -> Any:
    """Return a batch of no samples, of a field whose length varies."""
    if dtype in (None, "uint8"):
        return tf.zeros([0], tf.string)
    return tf.RaggedTensor.from_row_splits(tf.zeros([0], dtype), tf.zeros([1], tf.int64))


def _tensors(value: Any, path: Path = ()) -> Any:
    if type(value) is np.ndarray:
        return _tensor(value, path)
    if isinstance(value, dict):
        return {key: _tensors(one, (*path, key)) for key, one in value.items()}
    if isinstance(value, Ragged):
        return tf.RaggedTensor.from_row_splits(
            _tensor(value.values, path), _tensor(value.offsets, path), validate=False
        )
    if isinstance(value, tuple):
        parts = [_tensors(one, (*path, at)) for at, one in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return _list(value, path)
    if isinstance(value, tf.Tensor | tf.RaggedTensor):
        return value
    return _tensor(numbers(value, path), path)


def _list(value: list[Any], path: Path) -> Any:
    if not value or is_list_of_bytes(value):
        return tf.constant(as_strings(value, path), tf.string)
    if not is_list_of_arrays(value):
        return _tensor(numbers(value, path), path)
    values, offsets = joined(value)
    return tf.RaggedTensor.from_row_splits(_tensor(values, path), tf.constant(offsets), validate=False)


def _tensor(array: Array, path: Path) -> Any:
    flags = array.flags
    if (
        array.dtype in _SHARED
        and array.dtype.isnative
        and flags.c_contiguous
        and flags.writeable
        and array.size
        and array.ctypes.data % _ALIGNMENT == 0
    ):
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    if array.dtype.kind in "SU":
        return tf.constant(as_strings(array, path), tf.string)
    return tf.constant(native(array, path))
