"""Values of a batch as TensorFlow takes them: arrays, ragged arrays, strings.

=========================================  =============================================
In the batch                               In TensorFlow
=========================================  =============================================
array or list of numbers                   tensor
list of ``uint8`` arrays, strings, bytes   ``tf.string``, one per sample
list of other arrays, :class:`Ragged`      ``tf.RaggedTensor``, ragged along its first axis
=========================================  =============================================

A raw record is a field of ``uint8`` values, which TensorFlow's decoders take as ``tf.string``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from forebay._core import OptionError, option_error

__all__ = [
    "Array",
    "Path",
    "as_strings",
    "is_list_of_arrays",
    "is_list_of_bytes",
    "is_number",
    "joined",
    "native",
    "no_tensor",
    "numbers",
    "where",
]

Array = npt.NDArray[Any]
# The keys that lead to a value.
Path = tuple[Any, ...]


def where(path: Path) -> str:
    """Return how an error names a value."""
    return "field " + "".join(f"[{one!r}]" for one in path) if path else "the batch"


def no_tensor(path: Path, value: object) -> OptionError:
    """Return the error for a value that TensorFlow has no tensor for."""
    if isinstance(value, np.ndarray):
        found = f"an array of dtype {value.dtype}"
    elif isinstance(value, list | tuple):
        found = f"a {type(value).__name__} of {type(value[0]).__name__ if value else 'nothing'}"
    else:
        found = f"an object of type {type(value).__name__}"
    return option_error(
        f"forebay.tensorflow: {where(path)}: expected arrays of numbers, strings or bytes, found {found}",
        "convert it with transform= or batch_transform=, or leave the field out: forebay.open(fields=)",
    )


def native(array: Array, path: Path) -> Array:
    """Return the array in this machine's byte order.

    Raises
    ------
    OptionError
        If TensorFlow has no such dtype.
    """
    dtype = array.dtype
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise no_tensor(path, array)
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    try:
        known = tf.as_dtype(array.dtype)
    except TypeError:
        known = None
    if known is None or known in (tf.string, tf.resource, tf.variant):
        raise no_tensor(path, array)
    return array


def is_list_of_bytes(value: Sequence[Any]) -> bool:
    """Return whether a list is one of strings, bytes, or ``uint8`` arrays of one axis."""
    first = value[0]
    if isinstance(first, str | bytes):
        return True
    return isinstance(first, np.ndarray) and first.dtype == np.uint8 and first.ndim == 1


def is_list_of_arrays(value: Sequence[Any]) -> bool:
    """Return whether a list is one of arrays with at least one axis."""
    return all(isinstance(one, np.ndarray) and one.ndim > 0 for one in value)


def is_number(value: object) -> bool:
    """Return whether this is an array, or one number."""
    return isinstance(value, np.ndarray | np.generic | bool | int | float | complex)


def numbers(value: Any, path: Path) -> Array:
    """Return an array, a number, or a list of numbers as an array.

    Raises
    ------
    OptionError
        If it is none of these.
    """
    if is_number(value):
        return np.asarray(value)
    if isinstance(value, list) and value and all(is_number(one) and np.ndim(one) == 0 for one in value):
        return np.stack([np.asarray(one) for one in value])
    raise no_tensor(path, value)


def as_strings(value: Any, path: Path) -> Array:
    """Return strings, bytes or ``uint8`` arrays as an array of bytes."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "SU":
            raise no_tensor(path, value)
        value = value.tolist()
        shape = np.shape(value)
        flat: list[Any] = np.asarray(value, object).ravel().tolist()
    else:
        shape, flat = (len(value),), list(value)
    strings = np.empty(len(flat), object)
    for at, one in enumerate(flat):
        strings[at] = (
            one.encode() if isinstance(one, str) else one.tobytes() if isinstance(one, np.ndarray) else one
        )
    return strings.reshape(shape)


def joined(arrays: Sequence[Array]) -> tuple[Array, npt.NDArray[np.int64]]:
    """Return arrays joined along their first axis, and where each begins and ends."""
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    return np.concatenate(arrays), offsets
