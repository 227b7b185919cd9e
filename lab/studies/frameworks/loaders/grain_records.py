"""Grain over ArrayRecord: a shuffled MapDataset, whose batches threads read.

Threads that read records, with a buffer of several batches, took 25 times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain
import numpy as np

from studies.frameworks.place import Place

__all__ = ["ArrayRecord"]


class ArrayRecord:
    def __init__(self, place: Place) -> None:
        source = grain.sources.ArrayRecordDataSource([str(place.path("samples.arrayrecord"))])
        self._whole = grain.MapDataset.source(source)
        self._place = place
        threads = place.settings["threads"]
        self._options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4)

    def epoch(self, number: int) -> Iterator[Any]:
        dataset = self._whole.shuffle(seed=number)[self._place.rank :: self._place.ranks]
        batches = dataset.map(_record).batch(self._place.batch, batch_fn=np.stack)
        return iter(batches.to_iter_dataset(self._options))

    def release(self) -> None:
        pass


def _record(sample: bytes) -> np.ndarray:
    return np.frombuffer(sample, np.uint8)
