"""What no loader passes: one copy of the bytes in memory, one read of the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from studies.frameworks.place import Place

__all__ = ["Copy", "Read"]

BUFFERS = 4
"""Number of batches in memory that copies fill in rotation, as a loader does."""


class Copy:
    """Copies this rank's records, which are in its memory, to buffers: in order or shuffled."""

    def __init__(self, place: Place) -> None:
        self._place = place
        records = np.load(place.path("records.npy"), mmap_mode="r")
        self._own = np.array(records[place.rank :: place.ranks])
        self._buffers = np.zeros((BUFFERS, place.batch, place.record_bytes), np.uint8)

    def epoch(self, number: int) -> Iterator[Any]:
        batch = self._place.batch
        is_shuffled = self._place.settings["shuffled"]
        order = np.random.default_rng(number).permutation(len(self._own)) if is_shuffled else None
        for step in range(len(self._own) // batch):
            buffer = self._buffers[(number + step) % BUFFERS]
            part = slice(step * batch, (step + 1) * batch)
            if order is None:
                np.copyto(buffer, self._own[part])
            else:
                # This mode copies rows straight to their places; the default goes through a buffer.
                np.take(self._own, order[part], axis=0, out=buffer, mode="clip")
            yield buffer

    def release(self) -> None:
        pass


class Read:
    """Reads this rank's part of the file from first to last, a batch with a call."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._file = os.open(place.path("records.npy"), os.O_RDONLY)
        self._header = os.fstat(self._file).st_size - place.samples * place.record_bytes
        self._buffers = np.zeros((BUFFERS, place.batch, place.record_bytes), np.uint8)

    def epoch(self, number: int) -> Iterator[Any]:
        batch_bytes = self._place.batch * self._place.record_bytes
        steps = self._place.samples // self._place.ranks // self._place.batch
        for step in range(steps):
            buffer = self._buffers[(number + step) % BUFFERS]
            at = (self._place.rank * steps + step) * batch_bytes + self._header
            if (found := os.preadv(self._file, [buffer], at)) != batch_bytes:
                raise OSError(f"read of {batch_bytes} bytes at {at}: found {found}")
            yield buffer

    def release(self) -> None:
        pass
