"""h5py and tf.data, one sample per read in a shuffled order.

They stand for the rows *TF* and *TF-Pre* of "Asynchronous I/O Strategy for Large-Scale Deep
Learning Applications" (Lee et al.). The paper's public code is a callback of tf.data that opens
HDF5 with h5py and copies one sample after another, in an order shuffled anew for every epoch.
`h5py-random` is that loop alone, `tfdata-random` has it behind `tf.data.Dataset.map`,
`tfdata-random-prefetch` adds `prefetch(AUTOTUNE)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from forebay_lab.bench.baselines import Baseline, Place, Step
from forebay_lab.bench.baselines.h5py_sample import Hdf5Samples

ORDER = "random"


class RandomSamples(Hdf5Samples):
    """h5py, sample by sample; all ranks know the permutation and take their parts of each step."""

    def ids(self, number: int) -> np.ndarray:
        """Sample ids [steps, batch] of this rank; the last step is filled up from the start."""
        place = self._place
        order = np.random.default_rng([place.seed, number]).permutation(place.samples)
        positions = np.arange(place.steps * place.ranks * place.batch_size) % place.samples
        return order[positions].reshape(place.steps, place.ranks, place.batch_size)[:, place.rank]

    def record(self, number: int) -> Any:
        """Read one sample."""
        return self._sample(number)

    def epoch(self, number: int) -> Iterator[Step]:
        """Walk over this rank's part of a shuffled epoch."""
        for ids in self.ids(number):
            yield ids, [self.record(int(one)) for one in ids]


class TfRandom:
    """The same loop as a callback of tf.data."""

    def __init__(self, place: Place, prefetch: bool) -> None:
        self._samples, self._prefetch = RandomSamples(place), prefetch

    def _read(self, ids: np.ndarray) -> np.ndarray:
        records = [self._samples.record(int(one)) for one in ids]
        return np.stack([np.frombuffer(memoryview(one).cast("B"), np.uint8) for one in records])

    def epoch(self, number: int) -> Iterator[Step]:
        """Walk over this rank's part of a shuffled epoch."""
        import tensorflow as tf

        batches = tf.data.Dataset.from_tensor_slices(self._samples.ids(number))
        batches = batches.map(lambda ids: (ids, tf.numpy_function(self._read, [ids], tf.uint8)))
        if self._prefetch:
            batches = batches.prefetch(tf.data.AUTOTUNE)
        for ids, records in batches.as_numpy_iterator():
            yield ids, list(records)

    def facts(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Close the files."""
        self._samples.close()


def _baseline(name: str, about: str, program: Any, *modules: str) -> Baseline:
    return Baseline(
        name=name, order=ORDER, about=about, open=program, modules=("h5py", *modules), formats=("hdf5",), several=True
    )  # fmt: skip


BASELINES = (
    _baseline("h5py-random", "h5py, one sample per read, shuffled", RandomSamples),
    _baseline("tfdata-random", "the same in tf.data", partial(TfRandom, prefetch=False), "tensorflow"),
    _baseline(
        "tfdata-random-prefetch", "with prefetch(AUTOTUNE)", partial(TfRandom, prefetch=True), "tensorflow"
    ),
)
