"""h5py, one sample per read: what a script does that indexes an HDF5 dataset with a number.

The samples of several files follow each other in the order of the paths. A sample is row i of every
dataset of its file that has as many rows as the file has samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from forebay_lab.bench.baselines import Baseline, Place, Step
from forebay_lab.bench.facts import hdf5_columns


class Hdf5Samples:
    """One rank."""

    def __init__(self, place: Place) -> None:
        import h5py

        self._place = place
        self._files = [h5py.File(path, "r") for path in place.paths]
        self._columns = [hdf5_columns(file) for file in self._files]
        self._starts = [0, *accumulate(columns[0].shape[0] for columns in self._columns)]
        if self._starts[-1] != place.samples:
            raise ValueError(f"{place.paths[0]}: expected {place.samples} samples, found {self._starts[-1]}")

    def _sample(self, number: int) -> Any:
        shard = bisect_right(self._starts, number) - 1
        rows = [column[number - self._starts[shard]] for column in self._columns[shard]]
        return rows[0] if len(rows) == 1 else b"".join(row.tobytes() for row in rows)

    def epoch(self, number: int) -> Iterator[Step]:
        """All ranks together walk over the samples, each a part of every step."""
        del number  # Every epoch is the same walk.
        place = self._place
        for step in range(place.steps):
            first = (step * place.ranks + place.rank) * place.batch_size
            ids = [(first + slot) % place.samples for slot in range(place.batch_size)]
            yield ids, [self._sample(one) for one in ids]

    def facts(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


BASELINES = (
    Baseline(
        name="h5py",
        order="sequential",
        about="h5py, one sample per read",
        open=Hdf5Samples,
        modules=("h5py",),
        formats=("hdf5",),
        several=True,
    ),
)
