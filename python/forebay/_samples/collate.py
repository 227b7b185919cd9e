"""Collate: the results of the samples of a batch become one value.

Results are trees: dictionaries, tuples and NamedTuples with values at their leaves. All results of
a batch have the same tree, and so has the batch. At each leaf stands what became of the values:

============  ==========================================================================
``"stack"``   an array ``(samples, *shape)``; shapes are equal
``"pad"``     :class:`Padded`: arrays filled up with zeros to the longest, and lengths
``"ragged"``  :class:`Ragged`: arrays joined along their first axis, and offsets
``"list"``    the list of values, whatever they are
============  ==========================================================================

With ``"pad"`` and ``"ragged"``, scalars are stacked. Strings and bytes are always a list. Types
never change in silence: dtypes are equal too.

A mapping says it for each field: ``{"image": "stack", "boxes": "ragged"}``. Its keys are those of
dictionaries, positions in tuples, and names or positions in NamedTuples; its values may be mappings
again. ``...`` stands for all other fields, which are stacked without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay._core import OptionError, option_error

__all__ = ["How", "Padded", "Ragged", "as_array", "collate", "collate_name", "makes_arrays"]

Array = npt.NDArray[Any]
# The keys that lead to a leaf.
Path = tuple[str | int, ...]
# How results become a batch; a function takes the list of results.
How = str | Mapping[Any, Any] | Callable[[list[Any]], Any]


class Padded(NamedTuple):
    """Arrays of different shapes, each filled up with zeros at the end (``collate="pad"``).

    Attributes
    ----------
    values : ndarray, shape (samples, *longest)
        The arrays.
    lengths : ndarray of int64, shape (samples,) or (samples, axes)
        Length of each array; where arrays have several axes, its shape.
    """

    values: Array
    lengths: npt.NDArray[np.int64]


class Ragged(NamedTuple):
    """Arrays of different lengths, one after the other (``collate="ragged"``).

    Attributes
    ----------
    values : ndarray, shape (sum of lengths, *rest)
        The arrays, joined along their first axis.
    offsets : ndarray of int64, shape (samples + 1,)
        Sample ``i`` is ``values[offsets[i]:offsets[i + 1]]``.
    """

    values: Array
    offsets: npt.NDArray[np.int64]


class _Leaf:
    """The values of one leaf, and the words that errors need."""

    def __init__(self, how: str, values: Sequence[Any], ids: Sequence[int], path: Path) -> None:
        self.how, self.values, self.ids, self.path = how, values, ids, path

    def wrong(self, at: int, found: str, other: str, fitting: str = '"list"') -> OptionError:
        """Make the error for a value that differs from the first, with what would take it."""
        return option_error(
            f'collate="{self.how}": {_name(self.path)}: sample {self.ids[at]} has {found}, sample {self.ids[0]} has {other}',
            f"return equal ones, or collate them by {fitting} or a function of the results",
        )

    def arrays(self) -> list[Array]:
        """Return the values as arrays of equal dtype, equal number of axes, and not of objects."""
        arrays = [self._array(at, value) for at, value in enumerate(self.values)]
        first = arrays[0]
        for at, array in enumerate(arrays):
            if array.dtype != first.dtype or array.ndim != first.ndim:
                self.differs(arrays, at)
        return arrays

    def differs(self, arrays: Sequence[Array], at: int) -> None:
        """Raise the error for an array that differs from the first."""
        array, first = arrays[at], arrays[0]
        found, other = (f"shape {one.shape}, dtype {one.dtype}" for one in (array, first))
        if self.how == "stack" and array.dtype == first.dtype and array.ndim == first.ndim:
            raise self.wrong(at, found, other, '"pad", "ragged", "list"')
        raise self.wrong(at, found, other)

    def _array(self, at: int, value: Any) -> Array:
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return value
        hint = (
            'return it as an array (np.asarray) or in a tuple; collate="list" or a function takes any object'
        )
        array, found = None, _tree(value)
        if not isinstance(value, list | set | dict | np.ma.MaskedArray):
            try:
                array = as_array(value)
            except (TypeError, ValueError) as error:
                found = str(error)
                hint = "return a tensor as tensor.detach().cpu()" if hasattr(value, "detach") else hint
            else:
                if not array.dtype.hasobject:
                    return array
                found += f", dtype {array.dtype}"
        raise option_error(
            f'collate="{self.how}": {_name(self.path)}: expected an array or a number, found for sample {self.ids[at]} '
            f"{found}",
            hint,
        )


def as_array(value: Any) -> Array:
    """Return an array of what has one, such as a tensor; without a copy where that is possible.

    Raises
    ------
    TypeError
        If its values cannot be had, as of a tensor on a GPU, or of one that requires gradients.
    """
    try:
        return np.asarray(value)
    except Exception as error:
        said = str(error).partition("\n")[0]
        raise TypeError(f"{_tree(value)}, whose values numpy cannot have: {said}") from error


# Where an array begins [bytes]: JAX and TensorFlow share memory that is aligned so, and copy other.
ALIGNMENT = 64


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any], make: Callable[..., Array] = np.empty) -> Array:
    """Return an array that begins at a multiple of :data:`ALIGNMENT`."""
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return make(shape, dtype)
    memory = make(size + ALIGNMENT - 1, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _stack(leaf: _Leaf) -> Array:
    arrays = leaf.arrays()
    first = arrays[0]
    for at, array in enumerate(arrays):
        if array.shape != first.shape:
            leaf.differs(arrays, at)
    # With `out`, a byte order stays as it is.
    return np.stack(arrays, out=_aligned((len(arrays), *first.shape), first.dtype))


def _pad(leaf: _Leaf) -> Padded | Array:
    arrays = leaf.arrays()
    first = arrays[0]
    if first.ndim == 0:
        return _stack(leaf)
    shapes = np.array([array.shape for array in arrays], np.int64)
    values = _aligned((len(arrays), *shapes.max(axis=0).tolist()), first.dtype, np.zeros)
    for at, array in enumerate(arrays):
        values[at][tuple(map(slice, array.shape))] = array
    return Padded(values, shapes[:, 0].copy() if first.ndim == 1 else shapes)


def _ragged(leaf: _Leaf) -> Ragged | Array:
    arrays = leaf.arrays()
    first = arrays[0]
    if first.ndim == 0:
        return _stack(leaf)
    for at, array in enumerate(arrays):
        if array.shape[1:] != first.shape[1:]:
            leaf.differs(arrays, at)
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    values = _aligned((int(offsets[-1]), *first.shape[1:]), first.dtype)
    return Ragged(np.concatenate(arrays, out=values), offsets)


_LEAVES: Mapping[str, Callable[[_Leaf], Any]] = {"stack": _stack, "pad": _pad, "ragged": _ragged}


def collate(how: str | Mapping[Any, Any], results: Sequence[Any], ids: Sequence[int], path: Path = ()) -> Any:
    """Collate the results of at least one sample.

    Parameters
    ----------
    how : str or mapping
        ``"stack"``, ``"pad"``, ``"list"`` or ``"ragged"``; or which of them for which field.
    results : sequence
        What the function returned for each sample.
    ids : sequence of int
        The ids of these samples, for errors.
    path : tuple
        Where in the results these stand, for errors.

    Raises
    ------
    OptionError
        If the results do not go together; it names the field and two samples. If ``how`` has a
        field that the results do not have.
    """
    first = results[0]
    if isinstance(first, dict):
        _check_alike(how, results, ids, path, lambda one: one.keys(), isinstance)
        hows = _hows(how, first, (), path)
        return {key: collate(hows[key], [one[key] for one in results], ids, (*path, key)) for key in first}
    if isinstance(first, tuple):
        _check_alike(how, results, ids, path, len, lambda one, kind: type(one) is kind)
        positions = range(len(first))
        names: Sequence[str | int] = getattr(first, "_fields", positions)
        hows = _hows(how, names, positions if hasattr(first, "_fields") else (), path)
        columns = zip(names, zip(*results, strict=True), strict=True)
        parts = [collate(hows[name], column, ids, (*path, name)) for name, column in columns]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if not isinstance(how, str):
        raise option_error(
            f"collate=: {_name(path)}: expected the fields {_keys(how)}, found for sample {ids[0]} {_tree(first)}",
            "the keys of collate= are fields of what transform= returns",
        )
    if how == "list":
        return list(results)
    leaf = _Leaf(how, results, ids, path)
    if isinstance(first, str | bytes):
        for at, one in enumerate(results):
            if type(one) is not type(first):
                raise leaf.wrong(at, _tree(one), _tree(first))
        return list(results)
    return _LEAVES[how](leaf)


def _hows(
    how: str | Mapping[Any, Any], names: Iterable[Any], positions: Sequence[int], path: Path
) -> Mapping[Any, Any]:
    """Return how each field is collated; ``positions`` are second names of the fields."""
    names = list(names)
    if isinstance(how, str):
        return dict.fromkeys(names, how)
    second = dict(zip(positions, names, strict=True)) if positions else {}
    found: dict[Any, Any] = {}
    for key, value in how.items():
        name = second.get(key, key)
        if key is not ... and (name not in names or name in found):
            why = "is named twice" if name in found else f"is none of the fields {_keys(names)}"
            raise option_error(
                f"collate=: {_name(path)}: {key!r} {why}",
                "the keys of collate= are fields of what transform= returns; ... stands for all others",
            )
        found[name] = value
    return {name: found.get(name, how.get(..., "stack")) for name in names}


def makes_arrays(how: How) -> bool:
    """Whether all leaves of results become parts of arrays."""
    if isinstance(how, Mapping):
        return all(map(makes_arrays, how.values()))
    return isinstance(how, str) and how != "list"


def collate_name(how: How) -> str:
    """Return the option ``collate=`` as text."""
    if isinstance(how, str):
        return how
    if not isinstance(how, Mapping):
        return "function"
    parts = ((key, collate_name(value)) for key, value in how.items())
    return ", ".join(
        f"{'*' if key is ... else key}={f'({text})' if '=' in text else text}" for key, text in parts
    )


def _keys(names: Iterable[Any]) -> str:
    return ", ".join("..." if name is ... else repr(name) for name in names) or "(none)"


def _check_alike(
    how: str | Mapping[Any, Any],
    results: Sequence[Any],
    ids: Sequence[int],
    path: Path,
    parts: Callable[[Any], Any],
    is_kind: Callable[[Any, type], bool],
) -> None:
    """Raise where a result is no tree like the first."""
    first = results[0]
    kind = dict if isinstance(first, dict) else type(first)
    for at, one in enumerate(results):
        if not is_kind(one, kind) or parts(one) != parts(first):
            said = f'collate="{how}"' if isinstance(how, str) else "collate="
            raise option_error(
                f"{said}: {_name(path)}: sample {ids[at]} has {_tree(one)}, sample {ids[0]} has {_tree(first)}",
                "return the same fields for each sample, or give collate= a function of the results",
            )


def _tree(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dictionary with {', '.join(map(repr, value)) or 'nothing'}"
    if isinstance(value, tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _name(path: Path) -> str:
    if not path:
        return "the result"
    return "field " + "".join(f"[{key!r}]" for key in path)
