"""Fields of samples that were read one by one, as those of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["decoded_column"]


def decoded_column(values: list[Any], dtype: str, shape: tuple[int, ...] | None, ragged: bool) -> Any:
    """Return the values of a field: an array, or a list where lengths vary or values are objects.

    Parameters
    ----------
    values : list
        The field of each sample; bytes are values of ``uint8``.
    dtype, shape : str, tuple of int or None
        As :attr:`forebay.Dataset.fields` has them.
    ragged : bool
        Whether arrays whose length varies become a tuple of values and offsets.
    """
    # Texts and what JSON says are objects, one per sample.
    if shape is not None and dtype != "object":
        return np.stack(values) if values else np.empty((0, *shape), dtype)
    if not all(isinstance(value, bytes | np.ndarray) for value in values):
        return values
    # Copies: arrays of bytes are read-only.
    arrays = [
        np.frombuffer(value, np.uint8).copy() if isinstance(value, bytes) else value for value in values
    ]
    if not ragged:
        return arrays
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    return (np.concatenate(arrays) if arrays else np.empty(0, dtype)), offsets
