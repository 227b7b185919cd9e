"""A torch `DataLoader` over py-lmdb with two workers per rank.

The map-style dataset is shuffled by a `DistributedSampler`.

The environment is opened in each worker, since py-lmdb's cannot be carried over a fork. The keys
are listed once per rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forebay_lab.bench.baselines import Baseline, Place, Step
from forebay_lab.bench.baselines.pylmdb_skipping import open_environment

WORKERS = 2
"""Worker processes of a rank: what PyTorch's ImageNet example is mostly run with on few cores."""


class Records:
    """A map-style dataset: number → (number, record)."""

    def __init__(self, path: str) -> None:
        self._path = path
        with open_environment(path, readahead=False) as environment, environment.begin() as transaction:
            self._keys = list(transaction.cursor().iternext(keys=True, values=False))
        self._transaction: Any = None

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, number: int) -> tuple[int, bytes]:
        if self._transaction is None:
            self._transaction = open_environment(self._path, readahead=False).begin()
        return number, self._transaction.get(self._keys[number])


class TorchDataLoader:
    """One rank's loader."""

    def __init__(self, place: Place) -> None:
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler

        records: Any = Records(place.path)
        self._sampler: Any = DistributedSampler(
            records, num_replicas=place.ranks, rank=place.rank, shuffle=True, seed=place.seed % 2**31
        )
        self._loader: Any = DataLoader(
            records,
            batch_size=place.batch_size,
            sampler=self._sampler,
            num_workers=WORKERS,
            persistent_workers=True,
        )

    def epoch(self, number: int) -> Iterator[Step]:
        """Walk over the rank's part of a shuffled epoch."""
        self._sampler.set_epoch(number)
        for ids, records in self._loader:
            yield ids.tolist(), records

    def facts(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """End the workers."""
        del self._loader


BASELINES = (
    Baseline(
        name="torch-dataloader",
        order="torch-sampler",
        about="a torch DataLoader over py-lmdb, shuffled, two workers",
        open=TorchDataLoader,
        modules=(
            "torch",
            "lmdb",
        ),
        formats=("lmdb",),
    ),
)
