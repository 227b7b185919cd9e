"""py-lmdb with a region of the file per rank: the study of FEFS's remedy against skipping.

A rank sets its cursor once to the first record of its region, by stepping over the keys before it
as LMDB has no other way to find the n-th record, and from then on reads neighbours. At the end of
the region it goes back to its start.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from forebay_lab.bench.baselines import Baseline, Place, Step
from forebay_lab.bench.baselines.pylmdb_skipping import open_environment


class Contiguous:
    """One rank's region."""

    def __init__(self, place: Place, environment: Any) -> None:
        self._place = place
        self._environment = environment
        self._transaction = environment.begin()
        found = environment.stat()["entries"]
        if found != place.samples:
            raise ValueError(
                f"{place.path}: expected {place.samples} records, all of them samples, found {found}"
            )
        self._first = place.rank * place.samples // place.ranks
        self._end = (place.rank + 1) * place.samples // place.ranks
        self._first_key = self._find(self._first)

    def _find(self, number: int) -> bytes:
        with self._transaction.cursor() as cursor:
            for position, key in enumerate(cursor.iternext(keys=True, values=False)):
                if position == number:
                    return bytes(key)
        raise ValueError(f"{self._place.path}: expected a record of number {number}, found the end")

    def epoch(self, number: int) -> Iterator[Step]:
        """Walk once over the region."""
        del number  # Every epoch is the same walk.
        with self._transaction.cursor() as cursor:
            forward, value, position = cursor.next, cursor.value, self._first
            cursor.set_key(self._first_key)
            for _ in range(self._place.steps):
                ids, records = [], []
                for _ in range(self._place.batch_size):
                    ids.append(position)
                    records.append(value())
                    position += 1
                    if position < self._end:
                        forward()
                    else:
                        position = self._first
                        cursor.set_key(self._first_key)
                yield ids, records

    def facts(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Close the environment."""
        self._transaction.abort()
        self._environment.close()


def _open(readahead: bool, place: Place) -> Contiguous:
    return Contiguous(place, open_environment(place.path, readahead))


BASELINES = tuple(
    Baseline(
        name="pylmdb-contiguous" + suffix,
        order="contiguous",
        about="py-lmdb, every rank reads a region of its own",
        open=partial(_open, readahead),
        modules=("lmdb",),
        formats=("lmdb",),
    )
    for suffix, readahead in (("", True), ("-noreadahead", False))
)
