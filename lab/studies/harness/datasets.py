"""The datasets: LMDB files by py-lmdb, and `.npy` files of the same bytes; made once, kept.

Contents are random bytes from a fixed seed; keys are ``%08d`` in order, a transaction per 1,000
samples, as Caffe's tools write. A directory is renamed into place when it is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forebay.tools.convert import datum
from studies.harness.sections import Scope

COMMIT_EVERY = 1000
PAGE_BYTES = 4096
_HEADER_BYTES = 16
_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True)
class Set:
    """One dataset: `samples` records of `record_bytes` each."""

    path: Path
    samples: int
    record_bytes: int

    @property
    def file(self) -> Path:
        return self.path / "data.mdb"

    @property
    def npy(self) -> Path:
        return self.path.with_suffix(".npy")

    @property
    def data_bytes(self) -> int:
        return self.samples * self.record_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of the pages that hold the records: each has overflow pages of its own."""
        return self.samples * -(-(self.record_bytes + _HEADER_BYTES) // PAGE_BYTES) * PAGE_BYTES


def small(scope: Scope) -> Set:
    """200,000 records of 3,073 bytes: CIFAR-10's size, one page each."""
    return raw(scope, "small", scope.scaled(200_000), 3_073)


def large(scope: Scope) -> Set:
    """8,000 records of 110,000 bytes: ImageNet's size, 27 pages each."""
    return raw(scope, "large", scope.scaled(8_000), 110_000)


def labelled(scope: Scope) -> Set:
    """20,000 Caffe Datum records of 3x32x32 with a label: two fields."""
    samples = scope.scaled(20_000)
    head, length = datum.head(3, 32, 32), len(datum.encode(bytes(3072), 1, channels=3, height=32, width=32))
    generator = np.random.default_rng(3)

    def records(count: int) -> list[bytes]:
        pixels = generator.integers(0, 256, size=(count, 3072), dtype=np.uint8)
        return [head + pixels[i].tobytes() + datum.tail(i % 10) for i in range(count)]

    return _made(Set(scope.directory / f"labelled-{samples}.lmdb", samples, length), records)


def with_npy(dataset: Set) -> Set:
    """Add the `.npy` file of the same bytes, in file order."""
    if not dataset.npy.exists():
        import lmdb

        partial = dataset.npy.with_name(f"{dataset.npy.name}.{os.getpid()}.partial.npy")
        shape = (dataset.samples, dataset.record_bytes)
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=shape)
        with (
            lmdb.open(str(dataset.path), readonly=True, lock=False) as environment,
            environment.begin(buffers=True) as transaction,
            transaction.cursor() as cursor,
        ):
            for i, (_, value) in enumerate(cursor):
                array[i] = np.frombuffer(value, np.uint8)
        array.flush()
        del array
        partial.rename(dataset.npy)
    return dataset


def raw(scope: Scope, name: str, samples: int, record_bytes: int) -> Set:
    generator = np.random.default_rng(record_bytes)

    def records(count: int) -> list[bytes]:
        whole = generator.bytes(count * record_bytes)
        return [whole[i * record_bytes : (i + 1) * record_bytes] for i in range(count)]

    return _made(Set(scope.directory / f"{name}-{samples}.lmdb", samples, record_bytes), records)


def _made(dataset: Set, records: Callable[[int], list[bytes]]) -> Set:
    if dataset.path.exists():
        return dataset
    import lmdb

    partial = dataset.path.with_name(f"{dataset.path.name}.{os.getpid()}.partial")
    per_round = min(max(_CHUNK_BYTES // dataset.record_bytes // COMMIT_EVERY, 1) * COMMIT_EVERY, COMMIT_EVERY)
    try:
        with lmdb.open(str(partial), map_size=2 * dataset.page_bytes + (64 << 20), sync=False) as environment:
            for first in range(0, dataset.samples, per_round):
                count = min(per_round, dataset.samples - first)
                with environment.begin(write=True) as transaction:
                    for i, record in enumerate(records(count)):
                        transaction.put(b"%08d" % (first + i), record)
            environment.sync(True)
        partial.rename(dataset.path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return dataset
