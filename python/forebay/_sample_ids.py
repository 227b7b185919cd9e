"""Sample ids that a user gives to read samples by them; they may repeat and be negative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from forebay._core import OptionError

__all__ = ["SomeIds", "counted_from_0", "index_error", "sample_ids"]

SomeIds = Sequence[SupportsIndex] | npt.NDArray[np.integer[Any]]


class _IndexError(OptionError, TypeError):
    """The index is neither an integer nor a slice; a `TypeError`, as sequences raise."""


def index_error(message: str, hint: str) -> OptionError:
    """Make the error of what is no index, which is also a :class:`TypeError`."""
    return _IndexError(f"{message}\nhint: {hint}")


def sample_ids(ids: SomeIds, samples: int, shown: str) -> npt.NDArray[np.int64]:
    """Return ids as ids that exist, counted from 0.

    Parameters
    ----------
    ids : sequence or array of int, shape (n,)
        Ids in any order.
    samples : int
        Samples of the dataset.
    shown : str
        The dataset, for errors.

    Raises
    ------
    IndexError
        If there is no such sample.
    OptionError
        If they are not integers in one axis; also a :class:`TypeError`.
    """
    is_sequence = hasattr(ids, "__len__") and hasattr(ids, "__getitem__")
    if isinstance(ids, str | bytes | Mapping) or not is_sequence:
        raise index_error(
            f"{shown}: expected a sequence or an array of sample ids, found {type(ids).__name__}",
            "dataset.read([0, 5, 7]); list(ids) makes a list of an iterator or a set",
        )
    try:
        given = np.asarray(ids)
    except (TypeError, ValueError, OverflowError) as error:
        raise index_error(f"{shown}: {error}", "sample ids are integers in one axis") from None
    if given.ndim == 1 and not len(given):
        return np.empty(0, np.int64)
    # Python's integers beyond 64 bits.
    if given.dtype.kind == "O" and given.ndim == 1 and all(type(number) is int for number in given):
        wrong = next(number for number in given if not -samples <= number < samples)
        raise IndexError(f"sample {wrong} of a dataset of {samples} samples")
    if given.dtype.kind == "b":
        raise index_error(
            f"{shown}: expected sample ids, found an array of bool",
            "numpy.flatnonzero(mask) makes ids of it",
        )
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise index_error(
            f"{shown}: expected integers in one axis, found dtype {given.dtype} and shape {given.shape}",
            "numpy.ravel and astype(int) make ids of whole numbers",
        )
    return counted_from_0(given, samples)


def counted_from_0(
    given: npt.NDArray[np.integer[Any]], samples: int, what: str = "sample"
) -> npt.NDArray[np.int64]:
    """Return ids of which negative ones count from the end as ids counted from 0.

    Parameters
    ----------
    given : ndarray of int, shape (n,)
        The ids.
    samples : int
        Samples of the dataset.
    what : str, optional
        What an error begins with, before the id.

    Raises
    ------
    IndexError
        If there is no such sample.
    """
    outside = (given >= samples) | (given < -samples if given.dtype.kind == "i" else False)
    if outside.any():
        raise IndexError(f"{what} {given[outside][0]} of a dataset of {samples} samples")
    numbers = given.astype(np.int64)
    numbers[numbers < 0] += samples
    return numbers
