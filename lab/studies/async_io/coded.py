"""gzip HDF5, warm, against h5py on two cores: sequential slices, and chunks in a shuffled order.

The samples are counts of 16 bits (Poisson, mean 2: such as CosmoFlow's volumes hold), in chunks of
about 1 MiB, with and without the shuffle filter. h5py reads chunk after chunk, each decoded once,
in one thread: its library lets one in at a time. Rows take turns; an epoch is timed from opening to
the last batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

import forebay
from forebay_lab.bench.turns import medians_in_turn
from studies.harness.sections import Row, Scope

SIZES = {"3k": (1_536, 256), "110k": (55_000, 32)}
"""Values of a sample, samples of a batch."""
DATA_BYTES, TINY_BYTES = 384 << 20, 12 << 20
CHUNK_BYTES = 1 << 20
FILTERS = {"gzip": {}, "gzip and shuffle": {"shuffle": True}}
LEVEL = 4
"""h5py's default of gzip."""


def gzip(scope: Scope) -> list[Row]:
    """Decoded bytes per second of gzip HDF5 on two cores, sequential and group, against h5py."""
    found: list[Row] = []
    for size, (values, batch) in SIZES.items():
        count = scope.pick(DATA_BYTES, TINY_BYTES) // (2 * values)
        rows = CHUNK_BYTES // (2 * values)
        for name, filters in FILTERS.items():
            path = scope.directory / f"counts-{count}-{values}-{name.replace(' ', '-')}.h5"
            if not path.exists():
                write(path, count, values, rows, filters)
            for order in ("sequential", "group"):
                seconds = medians_in_turn(
                    {
                        "h5py": partial(timed, count, partial(theirs, path, batch, rows, order)),
                        "forebay": partial(timed, count, partial(ours, path, batch, order)),
                    },
                    scope.repetitions,
                )
                whole = count * values * 2
                found.append(
                    {
                        "data": size,
                        "filters": name,
                        "compression_ratio": whole / path.stat().st_size,
                        "order": order,
                        "h5py_mb_s": whole / seconds["h5py"] / 1e6,
                        "forebay_mb_s": whole / seconds["forebay"] / 1e6,
                        "speedup": seconds["h5py"] / seconds["forebay"],
                    }
                )
    return found


def write(path: Path, count: int, values: int, rows: int, filters: dict[str, bool]) -> None:
    """Write counts; the same with every filter."""
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".partial")
    generator = np.random.default_rng(values)
    with h5py.File(beside, "w") as file:
        data = file.create_dataset(
            "data",
            (count, values),
            "u2",
            chunks=(rows, values),
            compression="gzip",
            compression_opts=LEVEL,
            **filters,
        )
        for first in range(0, count, rows):
            some = min(rows, count - first)
            data[first : first + some] = generator.poisson(2.0, (some, values)).astype("u2")
    beside.rename(path)


def timed(count: int, epoch: Callable[[], Iterator[np.ndarray]]) -> float:
    """Seconds of an epoch; every sample must have come."""
    begun = time.perf_counter()
    got = sum(len(batch) for batch in epoch())
    seconds = time.perf_counter() - begun
    if got != count:
        raise RuntimeError(f"expected {count} samples, found {got}")
    return seconds


def ours(path: Path, batch: int, order: str) -> Iterator[np.ndarray]:
    with forebay.Loader(
        path, batch, order=order, expected_epochs=1, last_batch="partial", world="single"
    ) as loader:
        for taken in loader:
            yield taken["data"]


def theirs(path: Path, batch: int, rows: int, order: str) -> Iterator[np.ndarray]:
    """Read chunk after chunk: in file order, or shuffled within batches of four shuffled chunks."""
    import h5py

    generator = np.random.default_rng()
    with h5py.File(path, "r") as file:
        data = file["data"]
        starts = np.arange(0, len(data), rows)
        window = 1
        if order == "group":
            starts, window = generator.permutation(starts), 4
        left = np.empty((0, data.shape[1]), data.dtype)
        for first in range(0, len(starts), window):
            whole = np.concatenate(
                [left, *(data[start : start + rows] for start in starts[first : first + window])]
            )
            if order == "group":
                whole = whole[generator.permutation(len(whole))]
            ends = len(whole) // batch * batch
            for at in range(0, ends, batch):
                yield whole[at : at + batch]
            left = whole[ends:]
        if len(left):
            yield left
