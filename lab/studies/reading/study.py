"""The sections: from the page cache, and from storage."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import forebay
from forebay_lab.bench.turns import in_turn, median_ratio
from forebay_lab.ranks import page_cache
from studies.harness import datasets
from studies.harness.sections import Row, Scope, Study

BATCH = 256
WARM_UPS = 3

Read = Callable[[Sequence[int]], Any]


def files(scope: Scope) -> Iterator[tuple[str, datasets.Set, Path]]:
    """Format, dataset, and file."""
    for made in (datasets.small(scope), datasets.large(scope)):
        yield "LMDB", made, made.file
        yield "HDF5", made, hdf5(made)


def hdf5(made: datasets.Set) -> Path:
    """Write the samples of an LMDB file to a contiguous HDF5 dataset, once."""
    import h5py

    path = made.path.with_suffix(".h5")
    if not path.exists():
        partial = path.with_suffix(".partial")
        with h5py.File(partial, "w") as file:
            values = file.create_dataset("x", (made.samples, made.record_bytes), "u1")
            dataset = forebay.open(made.path, schema="raw")
            for first in range(0, made.samples, 1000):
                ids = range(first, min(first + 1000, made.samples))
                values[first : ids.stop] = dataset.read(ids)["data"]
        partial.rename(path)
    return path


@contextmanager
def library(kind: str, path: Path) -> Iterator[Read]:
    """Open a file with its own library; yield what reads samples one after the other."""
    if kind == "LMDB":
        import lmdb

        with lmdb.open(str(path.parent), readonly=True, lock=False, readahead=False) as environment:

            def get(ids: Sequence[int]) -> list[bytes]:
                with environment.begin() as transaction:
                    return [transaction.get(b"%08d" % number) for number in ids]

            yield get
    else:
        import h5py

        with h5py.File(path) as file:
            values = file["x"]
            yield lambda ids: [values[number] for number in ids]


@contextmanager
def readers(kind: str, made: datasets.Set, path: Path, *, cold: bool) -> Iterator[dict[str, Any]]:
    """All ways to read, by the name of their column; a cold library is opened for each run."""
    dataset = forebay.open(
        path.parent if kind == "LMDB" else path, **({"schema": "raw"} if kind == "LMDB" else {})
    )
    offsets = {}

    def pread(ids: Sequence[int]) -> list[bytes]:
        return [os.pread(descriptor, made.record_bytes, offsets[number]) for number in ids]

    def locate(ids: Sequence[int]) -> None:
        for number in ids:
            ((_, offset, _),) = dataset.extents(number)
            offsets[number] = offset

    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    try:
        # Pages that are mapped are not dropped from the page cache.
        with nullcontext() if cold else library(kind, path) as get:
            yield {
                "locate": locate,
                "read": dataset.read,
                "getitems": dataset.__getitems__,
                "one": lambda ids: [dataset[number] for number in ids],
                "library": get,
                "pread": pread,
            }
    finally:
        os.close(descriptor)


def measure(scope: Scope, *, cold: bool) -> list[Row]:
    """Measure all files, from the page cache or not."""
    rows = []
    # What is copied from the page cache costs the processor's time, of all threads; what is read
    # from storage is waited for.
    clock = time.perf_counter if cold else time.process_time
    for kind, made, path in files(scope):
        draw, batch = np.random.default_rng(1), min(BATCH, made.samples)
        rounds = [
            draw.choice(made.samples, batch, replace=False).tolist()
            for _ in range(WARM_UPS + scope.repetitions)
        ]
        with readers(kind, made, path, cold=cold) as ways:
            locate = ways.pop("locate")
            for ids in rounds:
                locate(ids)
                if not cold:
                    ways["pread"](ids)

            def one(name: str, numbers: Iterator[list[int]], kind: str = kind, path: Path = path) -> float:
                ids = next(numbers)
                if cold:
                    page_cache.drop(path)
                with library(kind, path) if cold and name == "library" else nullcontext(ways[name]) as way:
                    begun = clock()
                    way(ids)
                    return (clock() - begun) / len(ids) * 1e6

            found = in_turn(
                {name: partial(one, name, iter(rounds)) for name in ways}, scope.repetitions, WARM_UPS
            )
        row: Row = {"format": kind, "sample_bytes": made.record_bytes, "cache": "cold" if cold else "warm"}
        row |= {f"{name}_us": statistics.median(times) for name, times in found.items()}
        for name in ("one", "library", "pread"):
            row[f"{name}_speedup"] = median_ratio(found[name], found["read"])
        rows.append(row)
    return rows


def warm(scope: Scope) -> list[Row]:
    """256 random samples from the page cache."""
    return measure(scope, cold=False)


def cold(scope: Scope) -> list[Row]:
    """256 random samples from storage."""
    return measure(scope, cold=True)


STUDY = Study(sections={"warm": warm, "cold": cold}, repetitions=15)
