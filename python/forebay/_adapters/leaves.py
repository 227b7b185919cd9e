"""Convert the arrays of a batch, whatever tree they are in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from forebay._iteration import Batch, BatchTuple, marked_as

__all__ = ["convert"]

Leaf = Callable[[np.ndarray[Any, Any]], Any]


def _unchanged(value: Any) -> Any:
    return value


def convert(
    batch: Any,
    leaf: Leaf,
    *,
    arrays: Callable[[list[np.ndarray[Any, Any]]], Any] | None = None,
    other: Callable[[Any], Any] = _unchanged,
) -> Any:
    """Return the same tree with ``leaf(array)`` in place of each array and numpy scalar.

    Dictionaries, tuples, NamedTuples and lists keep their types; a :class:`Batch` and a
    :class:`BatchTuple` keep ``indices`` and ``position``.

    Parameters
    ----------
    batch : object
        The tree.
    leaf : function
        Function of an array.
    arrays : function, optional
        Function of a list of arrays, for a list of nothing else. Default: ``leaf`` of each.
    other : function, optional
        Function of any other value. Default: it stays as it is.
    """
    if isinstance(batch, np.ndarray):
        return leaf(batch)
    if isinstance(batch, Batch):
        converted = Batch(
            {key: convert(value, leaf, arrays=arrays, other=other) for key, value in batch.items()}
        )
        return marked_as(converted, batch)
    if isinstance(batch, dict):
        return {key: convert(value, leaf, arrays=arrays, other=other) for key, value in batch.items()}
    if isinstance(batch, BatchTuple):
        parts = BatchTuple(convert(part, leaf, arrays=arrays, other=other) for part in batch)
        return marked_as(parts, batch)
    if isinstance(batch, tuple):
        values = [convert(part, leaf, arrays=arrays, other=other) for part in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
    if isinstance(batch, list):
        if arrays is not None and batch and all(isinstance(part, np.ndarray) for part in batch):
            return arrays(batch)
        return [convert(part, leaf, arrays=arrays, other=other) for part in batch]
    if isinstance(batch, np.generic):
        return leaf(np.asarray(batch))
    return other(batch)
