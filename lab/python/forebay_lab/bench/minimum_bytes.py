"""The minimum that a run fetches: the pages of what it delivered, each counted once.

Caches and file systems deliver whole pages. LMDB puts small values into tree pages and large ones
into pages of their own, so a reader of a record has to read the pages that hold it. All other bytes
(other tree pages, read-ahead, repeated pages) are the read amplification of a strategy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

import forebay

__all__ = ["PAGE_BYTES", "minimum_bytes"]

PAGE_BYTES = 4096
"""Of the page cache, which is what the emulator serves, and of LMDB on the same machine."""


def minimum_bytes(paths: Sequence[str], ids: Iterable[npt.NDArray[np.int64]]) -> int:
    """Return the bytes of all pages that hold the records of some samples.

    Parameters
    ----------
    paths
        The dataset, in a format of the engine.
    ids
        Sample ids, also repeated.
    """
    dataset = forebay.open(list(paths), schema="raw")
    pages: dict[str, list[tuple[int, int]]] = {}
    for one in np.unique(np.concatenate(list(ids))):
        for path, offset, length in dataset.extents(int(one)):
            if length:
                pages.setdefault(os.fspath(path), []).append(
                    (offset // PAGE_BYTES, (offset + length - 1) // PAGE_BYTES)
                )
    return sum(_count(np.array(ranges, dtype=np.int64)) for ranges in pages.values()) * PAGE_BYTES


def _count(ranges: npt.NDArray[np.int64]) -> int:
    """Count the pages of ranges (first, last) that may overlap."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    # Up to where the ranges before have been counted.
    covered = np.concatenate(([-1], np.maximum.accumulate(ranges[:-1, 1])))
    return int(np.maximum(0, ranges[:, 1] - np.maximum(ranges[:, 0] - 1, covered)).sum())
