"""Where the batches of a training run come from: py-lmdb as Caffe reads, or Forebay.

Both deliver, for each step of an epoch, images uint8 [batch_size, 3, 32, 32] and labels int64
[batch_size] of this rank. `PyLmdb` is the pattern that LMDBIO (Pumma et al.) found in Caffe: every
rank opens the database, walks one cursor over all records, keeps its own share of each step and
skips the others'. LMDB maps the file, so a record is read when the pages under it are touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from forebay.tools.convert import datum
from forebay_lab.bench.baselines.pylmdb_skipping import Walk
from forebay_lab.demo.data import CHANNELS, HEIGHT, WIDTH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

Batch = tuple["NDArray[np.uint8]", "NDArray[np.int64]"]


class Source(Protocol):
    """Batches of one rank."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """All batches of one epoch. A batch is valid until the next one is asked for."""

    def facts(self) -> dict[str, Any]:
        """Return what the source reports of itself."""

    def close(self) -> None:
        """Let go of the file and the memory."""


class PyLmdb:
    """Caffe's skipping pattern with py-lmdb: the baseline of the bench, with decoded images."""

    def __init__(self, database: Path, batch_size: int, rank: int, ranks: int) -> None:
        import lmdb

        # Read-ahead is py-lmdb's default. No process writes, so the lock file is not needed.
        self._environment = lmdb.open(str(database), readonly=True, lock=False)
        self._transaction = self._environment.begin(buffers=True)
        self._walk = Walk(self._environment.stat()["entries"], batch_size, rank, ranks)
        self._images = np.zeros((batch_size, CHANNELS * HEIGHT * WIDTH), np.uint8)
        self._labels = np.zeros(batch_size, np.int64)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Walk over every record of the epoch; read one in `ranks`."""
        del number  # Every epoch is the same walk.
        images = self._images.reshape(-1, CHANNELS, HEIGHT, WIDTH)
        with self._transaction.cursor() as cursor:
            for _, records in self._walk.over(cursor):
                for slot, record in enumerate(records):
                    self._images[slot], self._labels[slot] = datum.decode(record)
                yield images, self._labels

    def facts(self) -> dict[str, Any]:
        """Nothing that the counters do not say."""
        return {}

    def close(self) -> None:
        """Close the environment."""
        self._transaction.abort()
        self._environment.close()


class Forebay:
    """The same through `forebay.Loader`: the three lines that a training script changes."""

    def __init__(self, database: Path, batch_size: int, order: str, seed: int) -> None:
        import forebay

        dataset = forebay.open(str(database))
        self._loader = forebay.Loader(dataset, batch_size=batch_size, order=order, seed=seed, name="demo")

    def epoch(self, number: int) -> Iterator[Batch]:
        """Hand out views of the loader's own buffers, no copy."""
        self._loader.set_epoch(number)
        for batch in self._loader:
            yield batch["image"], batch["label"]

    def facts(self) -> dict[str, Any]:
        """Return the loader's statistics and choices."""
        return {"stats": self._loader.stats(), "explain": str(self._loader.explain())}

    def close(self) -> None:
        """Close the loader."""
        self._loader.close()
