"""Selections of a dataset: which ids a user means, and random splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay._core import option_error
from forebay._sample_ids import counted_from_0

__all__ = ["Ids", "checked_ids", "split_ids"]

Ids = npt.NDArray[np.int64]

# What the sum of fractions may differ from 1 by.
_ROUNDING = 1e-9


def checked_ids(chosen: Any, samples: int) -> Ids:
    """Return the sample ids that a mask or a sequence of ids means, in its order.

    Parameters
    ----------
    chosen : array_like of bool, shape (samples,), or of int, shape (n,)
        A mask, or ids; ids may be negative, as indices.
    samples : int
        Samples of the dataset.

    Raises
    ------
    OptionError
        If it is neither, if it selects nothing, or if an id is there twice.
    IndexError
        If there is no such sample.
    """
    found = np.asarray(chosen)
    if found.ndim != 1 or (found.dtype.kind not in "iub" and found.size):
        raise option_error(
            f"select: expected ids or a mask with one axis, found an array of {found.dtype}, shape {found.shape}",
            "dataset.select([0, 5, 7]), or dataset.select(labels == 3)",
        )
    if found.dtype.kind == "b":
        if len(found) != samples:
            raise option_error(f"select: expected a mask of {samples} samples, found one of {len(found)}")
        found = np.flatnonzero(found)
    if len(found) == 0:
        raise option_error("select: expected at least one sample, found none")
    ids = counted_from_0(found, samples, "select: sample")
    values, counts = np.unique(ids, return_counts=True)
    if len(values) < len(ids):
        raise option_error(
            f"select: expected each sample once, found sample {values[counts > 1][0]} twice",
            "forebay.Given(function, repeats=True) and forebay.Weighted are orders that repeat samples",
        )
    return ids


def split_ids(parts: Sequence[float], samples: int, seed: int) -> list[Ids]:
    """Share out all samples at random; the ids of each part ascend.

    Samples are sorted by the words of ``Philox(key=seed)``, so a split is the same everywhere.

    Raises
    ------
    OptionError
        If parts are neither counts nor fractions, are too large together, or if one would be empty.
    """
    given = np.asarray(parts)
    if given.ndim != 1 or given.dtype.kind not in "iuf" or len(given) == 0:
        raise option_error(
            f"split: expected fractions or counts, found {parts!r}", "dataset.split([0.9, 0.1])"
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise option_error(f"split: seed=: expected an integer from 0 to 2**64 - 1, found {seed!r}")
    if given.dtype.kind == "f":
        total = float(given.sum())
        if not (given > 0).all() or not total <= 1 + _ROUNDING:
            raise option_error(f"split: expected fractions above 0 with a sum of at most 1, found {parts!r}")
        ends = np.floor(np.cumsum(given) * samples + _ROUNDING * samples).astype(np.int64)
        ends = np.minimum(ends, samples)
        if total >= 1 - _ROUNDING:
            ends[-1] = samples
    else:
        ends = np.cumsum(given.astype(np.int64))
        if ends[-1] > samples:
            raise option_error(f"split: expected at most {samples} samples in all, found {ends[-1]}")
    counts = np.diff(ends, prepend=0)
    if (counts < 1).any():
        empty = int(np.flatnonzero(counts < 1)[0])
        raise option_error(f"split: part {empty} ({parts[empty]}) of {samples} samples would have no sample")
    shuffled = np.argsort(np.random.Philox(key=seed).random_raw(samples), kind="stable")
    return [np.sort(part) for part in np.split(shuffled[: ends[-1]], ends[:-1])]
