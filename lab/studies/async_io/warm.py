"""Warm epochs: raw bytes to batches of numpy arrays, one process; rows take turns.

Every row shuffles as it usually does, over about as many samples: Forebay in group order; tf.data
and webdataset with a shuffle buffer of one of its windows, behind a file read from front to end;
h5py with the same groups read as slices in a shuffled order and shuffled in memory, and, as most
scripts have it, sample by sample. What an epoch of a training can keep from the one before is kept:
the loader, the dataset of tf.data; and an epoch is timed behind one that is not, since what one
reads ahead for the next should count in one of the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import forebay
from forebay import Group
from forebay_lab.bench.turns import medians_in_turn
from studies.harness.samples import Samples
from studies.harness.sections import Row, Scope

SIZES = {"3k": (3_072, 512, 4, 256), "110k": (114_660, 32, 4, 32)}
"""Bytes per sample, samples per group, groups per window (our default), samples per batch."""
DATA_BYTES = 768 << 20
TINY_SAMPLES = 4096

Epoch = Callable[[Path], Iterator[np.ndarray]]


def warm(scope: Scope) -> list[Row]:
    """Warm epochs, raw bytes to batches, against tf.data, webdataset and h5py on equal data."""
    found: list[Row] = []
    for size, shape in SIZES.items():
        count = scope.pick(DATA_BYTES, TINY_SAMPLES * 3_072) // shape[0]
        samples = Samples(scope.directory / "formats", count, shape[0])
        with ExitStack() as stack:
            rows = _rows(samples, stack, 2 * (scope.repetitions + 1), *shape[1:])
            paths = {kind: samples.make(kind) for _, kind, _ in rows}
            measures = {
                name: partial(timed, samples, partial(epoch, paths[kind])) for name, kind, epoch in rows
            }
            seconds = medians_in_turn(measures, scope.repetitions)
        best = min(value for name, value in seconds.items() if not name.startswith("forebay"))
        for name, kind, _ in rows:
            row = {"name": name, "data": size, "format": kind, "samples_per_second": count / seconds[name]}
            row["rate_mb_s"] = count * shape[0] / seconds[name] / 1e6
            row["speedup"] = best / seconds[name] if name.startswith("forebay") else None
            found.append(row)
        for kind in paths:
            samples.remove(kind)
    if _missing():
        print(_missing())
    return found


def timed(samples: Samples, epoch: Callable[[], Iterator[np.ndarray]]) -> float:
    """Seconds of an epoch behind another one; every sample must have come."""
    for _ in epoch():
        pass
    begun = time.perf_counter()
    total = sum(batch.nbytes for batch in epoch())
    seconds = time.perf_counter() - begun
    if total != samples.count * samples.sample_bytes:
        raise RuntimeError(f"expected {samples.count * samples.sample_bytes} bytes, found {total}")
    return seconds


def _rows(
    samples: Samples, stack: ExitStack, epochs: int, group: int, window: int, batch: int
) -> list[tuple[str, str, Epoch]]:
    """Name, format and epoch of each row."""
    order = Group(samples=group, window=window)
    buffer = group * window

    @cache
    def loader(path: Path) -> forebay.Loader:
        options = {
            "order": order,
            "expected_epochs": epochs,
            "last_batch": "partial",
            "world": "single",
            "name": path.name,
        }
        return stack.enter_context(forebay.Loader(samples.open(path), batch, **options))

    def ours(path: Path) -> Iterator[np.ndarray]:
        for taken in loader(path):
            (values,) = taken.values()
            yield values if isinstance(values, np.ndarray) else np.stack(values)

    @cache
    def pipeline(path: Path) -> Any:
        import tensorflow as tf

        records = tf.data.TFRecordDataset(str(path)).shuffle(buffer).batch(batch)
        arrays = records.map(
            lambda some: tf.io.decode_raw(some, tf.uint8), num_parallel_calls=tf.data.AUTOTUNE
        )
        return arrays.prefetch(tf.data.AUTOTUNE)

    def tfdata(path: Path) -> Iterator[np.ndarray]:
        yield from pipeline(path).as_numpy_iterator()

    def webdataset(path: Path) -> Iterator[np.ndarray]:
        import webdataset as wds

        stages = wds.DataPipeline(
            wds.SimpleShardList([str(path)]),
            wds.tarfile_to_samples(),
            wds.shuffle(buffer),
            wds.to_tuple("data"),
        )
        yield from _stacked((np.frombuffer(one[0], np.uint8) for one in stages), batch)

    def h5py_groups(path: Path) -> Iterator[np.ndarray]:
        import h5py

        generator = np.random.default_rng()
        with h5py.File(path, "r") as file:
            data = file["data"]
            starts = generator.permutation(-(-samples.count // group)) * group
            whole = np.empty((batch + buffer, samples.sample_bytes), np.uint8)
            kept = 0  # samples that filled no batch
            for first in range(0, len(starts), window):
                end = kept
                for start in starts[first : first + window]:
                    stop = min(start + group, samples.count)
                    data.read_direct(whole, np.s_[start:stop], np.s_[end : end + stop - start])
                    end += stop - start
                order = generator.permutation(end)
                ends = end // batch * batch
                for at in range(0, ends, batch):
                    yield whole[order[at : at + batch]]
                kept = end - ends
                whole[:kept] = whole[order[ends:]]
            if kept:
                yield whole[:kept]

    def h5py_samples(path: Path) -> Iterator[np.ndarray]:
        import h5py

        with h5py.File(path, "r") as file:
            data = file["data"]
            yield from _stacked(
                (data[one] for one in np.random.default_rng().permutation(samples.count)), batch
            )

    rows: list[tuple[str, str, Epoch]] = [
        (f"forebay, {kind}", kind, ours) for kind in ("tfrecord", "tar", "hdf5", "lmdb")
    ]
    if not _missing():
        rows.append(("tf.data", "tfrecord", tfdata))
    rows.append(("webdataset", "tar", webdataset))
    return [*rows, ("h5py, slices", "hdf5", h5py_groups), ("h5py, sample by sample", "hdf5", h5py_samples)]


def _stacked(samples: Iterator[np.ndarray], batch: int) -> Iterator[np.ndarray]:
    """Put samples together."""
    part: list[np.ndarray] = []
    for one in samples:
        part.append(one)
        if len(part) == batch:
            yield np.stack(part)
            part = []
    if part:
        yield np.stack(part)


def _missing() -> str:
    """Say that there is no TensorFlow."""
    return "" if find_spec("tensorflow") else "tf.data was left out: tensorflow is not installed. "
