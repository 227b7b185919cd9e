"""py-lmdb as Caffe reads: each rank walks all records and keeps its own share of a step.

This is the pattern that LMDBIO (Pumma et al.) and the study of FEFS found in Caffe and MPI-Caffe.
The environment is opened as py-lmdb's documentation shows, with the lock file beside the data that
all processes share. LMDB maps the file, so a record is read when the pages under it are touched;
the kernel's read-ahead on the mapping is py-lmdb's default, and `-noreadahead` turns it off
(MDB_NORDAHEAD).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from forebay_lab.bench.baselines import Baseline, Place, Step


def open_environment(path: str, readahead: bool) -> Any:
    """Open an LMDB environment, directory or file, for reading."""
    import lmdb

    # The lock file is part of the usual use; where it cannot be made py-lmdb has to be told to do
    # without.
    directory = Path(path) if Path(path).is_dir() else Path(path).parent
    return lmdb.open(
        path,
        subdir=Path(path).is_dir(),
        readonly=True,
        lock=os.access(directory, os.W_OK),
        readahead=readahead,
    )


@dataclass(frozen=True, slots=True)
class Walk:
    """Which records one rank keeps: the engine's order ``sequential``.

    Position ``(step * ranks + rank) * batch_size + slot`` of an epoch is the record of that number;
    the last step is filled up from the start, and every epoch starts at the first record.
    """

    samples: int
    batch_size: int
    rank: int
    ranks: int

    def over(self, cursor: Any) -> Iterator[tuple[int, list[Any]]]:
        """Walk all records of an epoch; yield each step's own records, and the first number."""
        before = self.rank * self.batch_size
        after = (self.ranks - 1 - self.rank) * self.batch_size
        forward, first, value = cursor.next, cursor.first, cursor.value
        first()
        for step in range(-(-self.samples // (self.ranks * self.batch_size))):
            for _ in range(before):
                forward() or first()
            records = []
            for _ in range(self.batch_size):
                records.append(value())
                forward() or first()
            for _ in range(after):
                forward() or first()
            yield (step * self.ranks + self.rank) * self.batch_size, records


class Skipping:
    """One rank's walk."""

    def __init__(self, place: Place, environment: Any) -> None:
        self._place = place
        self._environment = environment
        self._transaction = environment.begin()
        if (found := environment.stat()["entries"]) != place.samples:
            raise ValueError(
                f"{place.path}: expected {place.samples} records, all of them samples, found {found}"
            )

    def epoch(self, number: int) -> Iterator[Step]:
        """Walk once over the file."""
        del number  # Every epoch is the same walk.
        place = self._place
        with self._transaction.cursor() as cursor:
            for first, records in Walk(place.samples, place.batch_size, place.rank, place.ranks).over(cursor):
                yield [(first + slot) % place.samples for slot in range(len(records))], records

    def facts(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Close the environment."""
        self._transaction.abort()
        self._environment.close()


def open_skipping(readahead: bool, place: Place) -> Skipping:
    """Open the environment and begin the one transaction that Caffe has."""
    return Skipping(place, open_environment(place.path, readahead))


BASELINES = tuple(
    Baseline(
        name="pylmdb-skipping" + suffix,
        order="sequential",
        about="py-lmdb, every rank skips over the others' records",
        open=partial(open_skipping, readahead),
        modules=("lmdb",),
        formats=("lmdb",),
    )
    for suffix, readahead in (("", True), ("-noreadahead", False))
)
