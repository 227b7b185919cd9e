"""Convert the arrays of a batch, whatever tree they are in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from forebay._iteration import Batch, BatchTuple

__all__ = ["convert"]


def convert(batch: Any, leaf: Callable[[np.ndarray[Any, Any]], Any]) -> Any:
    """Return the same tree with ``leaf(array)`` in place of each array and numpy scalar.

    Dictionaries, tuples, NamedTuples and lists keep their types; a :class:`Batch` and a
    :class:`BatchTuple` keep ``indices`` and ``position``. Anything else stays as it is.
    """
    if isinstance(batch, np.ndarray | np.generic):
        return leaf(np.asarray(batch))
    if isinstance(batch, Batch):
        converted = Batch({key: convert(value, leaf) for key, value in batch.items()})
        converted.indices, converted.position = batch.indices, batch.position
        return converted
    if isinstance(batch, dict):
        return {key: convert(value, leaf) for key, value in batch.items()}
    if isinstance(batch, BatchTuple):
        parts = BatchTuple(convert(part, leaf) for part in batch)
        parts.indices, parts.position = batch.indices, batch.position
        return parts
    if isinstance(batch, tuple):
        values = [convert(part, leaf) for part in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
    if isinstance(batch, list):
        return [convert(part, leaf) for part in batch]
    return batch
