"""Batches of records of a `.npy` file: what a map-style dataset and a thread pool can share."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from studies.frameworks.place import Place

__all__ = ["NpyRecords"]


class NpyRecords:
    """Numbers → their records in one array: from a mapping, or a read each.

    A mapping is fastest while the file is in the page cache, and keeps its pages there.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._path = place.path("records.npy")
        self._mapped: Any = None
        self._file: int | None = None

    def read(self, numbers: np.ndarray) -> np.ndarray:
        if self._place.settings["access"] == "mmap":
            if self._mapped is None:
                self._mapped = np.load(self._path, mmap_mode="r").view(np.ndarray)
            found: np.ndarray = self._mapped[numbers]
            return found
        if self._file is None:
            self._file = os.open(self._path, os.O_RDONLY)
        record_bytes = self._place.record_bytes
        header = os.fstat(self._file).st_size - self._place.samples * record_bytes
        batch = np.empty((len(numbers), record_bytes), np.uint8)
        for row, number in zip(batch, numbers.tolist(), strict=True):
            os.preadv(self._file, [row], header + number * record_bytes)
        return batch
