"""The element of a ``tf.data.Dataset``: a tree of specs, and the arrays that a batch gives for it.

The arrays of a batch go through tf.data side by side. A ragged value goes as two of them, values
and row splits, and becomes a ``tf.RaggedTensor`` on the other side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from forebay._core import option_error
from forebay._samples.collate import Padded, Ragged
from forebay.tensorflow._values import (
    Array,
    Path,
    as_strings,
    is_list_of_arrays,
    is_list_of_bytes,
    joined,
    native,
    no_tensor,
    numbers,
    where,
)

__all__ = ["arrays", "check", "empty", "packed", "spec_of", "specs"]

_HINT = "give the shapes that vary as None: element_spec=, or choose collate= so that shapes are equal"


def spec_of(value: Any, samples: int, is_fixed: bool, path: Path = ()) -> Any:
    """Return the spec of a value of an example batch.

    Parameters
    ----------
    value : object
        The value.
    samples : int
        Samples of the example.
    is_fixed : bool
        Whether each batch has as many.
    path : tuple
        Where the value stands, for errors.
    """
    if isinstance(value, Ragged):
        values = native(value.values, path)
        return tf.RaggedTensorSpec(
            [samples if is_fixed else None, None, *values.shape[1:]], values.dtype, 1, tf.int64
        )
    if isinstance(value, Padded):
        length = spec_of(value.lengths, samples, is_fixed, path)
        shape = [samples if is_fixed else None, *(None,) * (value.values.ndim - 1)]
        return Padded(tf.TensorSpec(shape, native(value.values, path).dtype), length)
    if isinstance(value, dict):
        return {key: spec_of(one, samples, is_fixed, (*path, key)) for key, one in value.items()}
    if isinstance(value, tuple):
        parts = [spec_of(one, samples, is_fixed, (*path, at)) for at, one in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list) and value and (is_list_of_bytes(value) or is_list_of_arrays(value)):
        return _list_spec(value, samples, is_fixed, path)
    array = numbers(value, path)
    shape = list(array.shape)
    if shape and shape[0] == samples and not is_fixed:
        shape[0] = None
    return tf.TensorSpec(shape, tf.string if array.dtype.kind in "SU" else native(array, path).dtype)


def _list_spec(value: list[Any], samples: int, is_fixed: bool, path: Path) -> Any:
    length = samples if is_fixed and len(value) == samples else None
    if is_list_of_bytes(value):
        return tf.TensorSpec([length], tf.string)
    first = native(value[0], path)
    return tf.RaggedTensorSpec([length, None, *first.shape[1:]], first.dtype, 1, tf.int64)


def specs(spec: Any) -> Iterator[Any]:
    """Iterate over the specs of the arrays that go through tf.data."""
    if isinstance(spec, dict):
        for one in spec.values():
            yield from specs(one)
    elif isinstance(spec, tuple | list):
        for one in spec:
            yield from specs(one)
    elif isinstance(spec, tf.RaggedTensorSpec):
        shape = spec.shape.as_list()
        yield tf.TensorSpec([None, *shape[2:]], spec.dtype)
        yield tf.TensorSpec([None if shape[0] is None else shape[0] + 1], tf.int64)
    else:
        yield spec


def packed(spec: Any, tensors: Iterator[Any]) -> Any:
    """Return the element that the tensors of :func:`specs` make."""
    if isinstance(spec, dict):
        return {key: packed(one, tensors) for key, one in spec.items()}
    if isinstance(spec, tuple | list):
        parts = [packed(one, tensors) for one in spec]
        return type(spec)(*parts) if hasattr(spec, "_fields") else tuple(parts)
    first = next(tensors)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_row_splits(first, next(tensors), validate=False)
    return first


def arrays(spec: Any, value: Any, path: Path = ()) -> Iterator[Array]:
    """Iterate over the arrays of a batch, as :func:`specs` has them.

    Raises
    ------
    OptionError
        If the batch is not what the spec says; it names the field.
    """
    if isinstance(spec, dict):
        if not isinstance(value, dict) or value.keys() != spec.keys():
            raise _other_tree(spec, value, path)
        for key, one in spec.items():
            yield from arrays(one, value[key], (*path, key))
    elif isinstance(spec, tuple | list):
        if not isinstance(value, tuple | list) or len(value) != len(spec):
            raise _other_tree(spec, value, path)
        for at, (one, part) in enumerate(zip(spec, value, strict=True)):
            yield from arrays(one, part, (*path, at))
    elif isinstance(spec, tf.RaggedTensorSpec):
        yield from _ragged(spec, value, path)
    elif spec.dtype == tf.string:
        if not isinstance(value, list | np.ndarray):
            raise no_tensor(path, value)
        yield _fitting(spec, as_strings(value, path), path)
    else:
        yield _fitting(spec, numbers(value, path), path)


def empty(spec: Any) -> Iterator[Array]:
    """Iterate over the arrays of a batch without samples."""
    if isinstance(spec, dict | tuple | list):
        for one in spec.values() if isinstance(spec, dict) else spec:
            yield from empty(one)
        return
    ragged = isinstance(spec, tf.RaggedTensorSpec)
    shape = [extent or 0 for extent in spec.shape.as_list()[1 if ragged else 0 :]]
    yield np.zeros(shape, object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype)
    if ragged:
        yield np.zeros(1, np.int64)


def _ragged(spec: Any, value: Any, path: Path) -> Iterator[Array]:
    if isinstance(value, Ragged):
        values, offsets = value
    elif isinstance(value, list) and value and is_list_of_arrays(value):
        values, offsets = joined(value)
    elif isinstance(value, list) and not value:
        values, offsets = empty(spec)
    else:
        raise no_tensor(path, value)
    first, second = specs(spec)
    yield _fitting(first, values, path)
    yield _fitting(second, offsets, path)


def _fitting(spec: Any, array: Array, path: Path) -> Array:
    """Return the array in native byte order; raise if it is not what the spec says."""
    if spec.dtype != tf.string and array.dtype != spec.dtype.as_numpy_dtype:
        array = native(array, path)
        if array.dtype != spec.dtype.as_numpy_dtype:
            raise option_error(
                f"forebay.tensorflow: {where(path)}: expected dtype {spec.dtype.name}, found {array.dtype}",
                _HINT,
            )
    if not spec.shape.is_compatible_with(array.shape):
        raise option_error(
            f"forebay.tensorflow: {where(path)}: expected shape {_shape(spec)}, found {array.shape}", _HINT
        )
    return array


def _shape(spec: Any) -> str:
    return f"({', '.join(str(extent) for extent in spec.shape.as_list())})"


def _other_tree(spec: Any, value: Any, path: Path) -> Exception:
    def tree(one: Any) -> str:
        if isinstance(one, dict):
            return f"a dictionary with {', '.join(map(repr, one)) or 'nothing'}"
        if isinstance(one, tuple | list):
            return f"a {type(one).__name__} of {len(one)}"
        return f"an object of type {type(one).__name__}"

    return option_error(
        f"forebay.tensorflow: {where(path)}: expected {tree(spec)}, found {tree(value)}",
        "return the same fields for each sample and batch, and give them in element_spec= if you pass it",
    )


def check(spec: Any, path: Path = ()) -> None:
    """Raise an OptionError unless this is a tree of specs that batches can give."""
    if isinstance(spec, dict):
        for key, one in spec.items():
            check(one, (*path, key))
    elif isinstance(spec, tuple | list):
        for at, one in enumerate(spec):
            check(one, (*path, at))
    elif not isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec) or spec.shape.rank is None:
        raise option_error(
            f"forebay.tensorflow.dataset: element_spec=: {where(path)}: expected a tf.TensorSpec or tf.RaggedTensorSpec "
            f"of known rank, found {spec!r}",
            "dictionaries and tuples of them, as the batches are",
        )
    elif isinstance(spec, tf.RaggedTensorSpec) and (
        spec.ragged_rank != 1 or spec.row_splits_dtype != tf.int64
    ):
        raise option_error(
            f"forebay.tensorflow.dataset: element_spec=: {where(path)}: expected ragged_rank 1 and int64 row splits, "
            f"found {spec!r}"
        )
