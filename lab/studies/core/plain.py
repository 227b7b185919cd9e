"""What Forebay is compared with: plain C loops (`plain.c`, compiled here), py-lmdb, numpy."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from forebay_lab.bench.turns import timed
from studies.harness.datasets import Set
from studies.harness.sections import Scope

_SOURCE = Path(__file__).with_name("plain.c")


class Plain:
    """The C loops on one file, with a pool as large as the loader's."""

    def __init__(self, scope: Scope, file: Path, pool_bytes: int, threads: int) -> None:
        self._library = _load(scope)
        self._threads = threads
        self._descriptor = os.open(file, os.O_RDONLY)
        self._bytes = os.fstat(self._descriptor).st_size
        self._mapping = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
        # Shared anonymous memory: the same kind of pages as the loader's memfd.
        self._pool = mmap.mmap(-1, pool_bytes)
        self._pool_view = np.frombuffer(self._pool, np.uint8)
        self._pool_view[:] = 1
        self._mapping_view = np.frombuffer(self._mapping, np.uint8)
        # Every page of the mapping is faulted before anything is measured.
        int(self._mapping_view[::4096].sum(dtype=np.int64))

    def copy_records(self, offsets: np.ndarray, length: int, batch: int) -> float:
        """Seconds to copy records from the mapping."""
        source = self._mapping_view.ctypes.data
        return self._records(self._library.copy_records, ctypes.c_void_p(source), offsets, length, batch)

    def read_records(self, offsets: np.ndarray, length: int, batch: int) -> float:
        """Seconds to pread records."""
        return self._records(self._library.read_records, self._descriptor, offsets, length, batch)

    def read_file(self, block_bytes: int) -> float:
        """Seconds to pread the whole file in blocks."""
        pool = self._pool_view

        def call() -> None:
            _check(
                self._library.read_file(
                    self._descriptor,
                    ctypes.c_uint64(self._bytes),
                    ctypes.c_uint64(block_bytes),
                    ctypes.c_void_p(pool.ctypes.data),
                    ctypes.c_uint64(pool.nbytes),
                    self._threads,
                )
            )

        return timed(call)

    def batch(self, number: int, length: int, batch: int) -> np.ndarray:
        """Return slot `number` of the first thread's pool, as the last copy or read left it."""
        first = number * batch * length
        return self._pool_view[first : first + batch * length].reshape(batch, length)

    def close(self) -> None:
        del self._pool_view, self._mapping_view
        self._pool.close()
        self._mapping.close()
        os.close(self._descriptor)

    def _records(self, function: Any, source: Any, offsets: np.ndarray, length: int, batch: int) -> float:
        pool = self._pool_view

        def call() -> None:
            _check(
                function(
                    source,
                    ctypes.c_void_p(offsets.ctypes.data),
                    ctypes.c_uint64(len(offsets)),
                    ctypes.c_uint64(length),
                    ctypes.c_uint64(batch),
                    ctypes.c_void_p(pool.ctypes.data),
                    ctypes.c_uint64(pool.nbytes),
                    self._threads,
                )
            )

        return timed(call)


class PyLmdb:
    """py-lmdb `get`, record by record, into one array that is made once."""

    def __init__(self, dataset: Set, batch: int) -> None:
        import lmdb

        self._environment = lmdb.open(str(dataset.path), readonly=True, lock=False)
        self._transaction = self._environment.begin(buffers=True)
        self._length = dataset.record_bytes
        self.array = np.zeros((batch, dataset.record_bytes), np.uint8)

    def random(self, batches: list[list[bytes]]) -> float:
        """Seconds to get batches of keys."""

        def call() -> None:
            get, view, length = self._transaction.get, memoryview(self.array).cast("B"), self._length
            for keys in batches:
                at = 0
                for key in keys:
                    view[at : at + length] = get(key)
                    at += length

        return timed(call)

    def close(self) -> None:
        self._transaction.abort()
        self._environment.close()


def numpy_loop(mapped: np.ndarray, batches: list[np.ndarray], into: np.ndarray) -> float:
    """Seconds to gather shuffled batches from a mapped `.npy`: one copy and nothing else."""

    def call() -> None:
        for ids in batches:
            # mode="clip" lets numpy write straight into `out`; "raise" would copy twice.
            np.take(mapped, ids, axis=0, out=into[: len(ids)], mode="clip")

    return timed(call)


def _check(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error))


def _load(scope: Scope) -> ctypes.CDLL:
    """Compile the loops if they are newer than the library, and load it."""
    library = scope.directory / "plain.so"
    if not library.exists() or library.stat().st_mtime < _SOURCE.stat().st_mtime:
        partial = library.with_name(f"plain.{os.getpid()}.partial")
        subprocess.run(
            [
                "gcc",
                "-O2",
                "-shared",
                "-fPIC",
                "-pthread",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-o",
                partial,
                _SOURCE,
            ],
            check=True,
        )
        partial.rename(library)
    return ctypes.CDLL(str(library))
