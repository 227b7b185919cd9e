"""SPDL: batches of numbers go through threads that read, and decode, them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import spdl.pipeline

from studies.frameworks.jpeg_functions import FUNCTIONS
from studies.frameworks.loaders.npy_records import NpyRecords
from studies.frameworks.place import Place

__all__ = ["Jpeg", "NpyBatches"]


def _batches(place: Place, number: int) -> list[np.ndarray]:
    ids = place.ids(number)
    return [ids[first : first + place.batch] for first in range(0, len(ids), place.batch)]


class NpyBatches:
    """A thread reads a batch."""

    def __init__(self, place: Place) -> None:
        self._place, self._records = place, NpyRecords(place)
        self._records.read(place.ids(0)[:1])

    def epoch(self, number: int) -> Iterator[Any]:
        threads = self._place.settings["threads"]
        builder = spdl.pipeline.PipelineBuilder().add_source(_batches(self._place, number))
        builder.pipe(self._records.read, concurrency=threads).add_sink(4)
        pipeline = builder.build(num_threads=threads)
        with pipeline.auto_stop():
            yield from pipeline

    def release(self) -> None:
        pass


class Jpeg:
    """A thread decodes an image of LMDB; batches are made of those that are ready."""

    def __init__(self, place: Place) -> None:
        import lmdb

        self._place = place
        self._function = FUNCTIONS[place.settings["function"]]
        self._environment = lmdb.open(
            str(place.path("samples.lmdb")), readonly=True, lock=False, readahead=False
        )
        self._local = threading.local()

    def epoch(self, number: int) -> Iterator[Any]:
        threads = self._place.settings["threads"]
        builder = spdl.pipeline.PipelineBuilder().add_source(self._place.ids(number).tolist())
        builder.pipe(self._decode, concurrency=threads).aggregate(self._place.batch).pipe(np.stack).add_sink(
            4
        )
        pipeline = builder.build(num_threads=threads)
        with pipeline.auto_stop():
            yield from pipeline

    def release(self) -> None:
        pass

    def _decode(self, number: int) -> np.ndarray:
        if not hasattr(self._local, "transaction"):
            self._local.transaction = self._environment.begin()
        record = self._local.transaction.get(b"%08d" % number)
        return self._function(record, np.random.default_rng())
