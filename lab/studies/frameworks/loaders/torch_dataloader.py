"""torch's DataLoader over map-style datasets; workers persist.

``NpyBatches`` reads a batch with one call of ``__getitems__`` and does not collate: the fastest
that a user can write. ``LmdbRecords`` has a record per call and torch's own collation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.data

from studies.frameworks.jpeg_functions import FUNCTIONS
from studies.frameworks.loaders.npy_records import NpyRecords
from studies.frameworks.place import Place

__all__ = ["Jpeg", "LmdbRecords", "NpyBatches"]


class _Order:
    """A sampler: this rank's numbers of the epoch."""

    def __init__(self, place: Place) -> None:
        self.place, self.epoch = place, 0

    def __iter__(self) -> Iterator[int]:
        return iter(self.place.ids(self.epoch).tolist())

    def __len__(self) -> int:
        return self.place.samples // self.place.ranks


class _Epochs:
    def __init__(self, place: Place, dataset: Any, collate: Any = None) -> None:
        torch.set_num_threads(1)
        workers = place.settings.get("workers", 0)
        self._order = _Order(place)
        self._loader: Any = torch.utils.data.DataLoader(
            dataset,
            place.batch,
            sampler=self._order,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
            collate_fn=collate,
        )

    def epoch(self, number: int) -> Iterator[Any]:
        self._order.epoch = number
        return iter(self._loader)

    def release(self) -> None:
        pass


class _NpyDataset(torch.utils.data.Dataset):
    def __init__(self, place: Place) -> None:
        self._samples, self._records = place.samples, NpyRecords(place)

    def __len__(self) -> int:
        return self._samples

    def __getitems__(self, numbers: list[int]) -> torch.Tensor:
        return torch.from_numpy(self._records.read(np.array(numbers)))


class _LmdbDataset(torch.utils.data.Dataset):
    def __init__(self, place: Place, function: Any) -> None:
        self._place, self._function = place, function
        self._transaction: Any = None

    def __len__(self) -> int:
        return self._place.samples

    def __getitem__(self, number: int) -> Any:
        if self._transaction is None:
            import lmdb

            environment = lmdb.open(
                str(self._place.path("samples.lmdb")), readonly=True, lock=False, readahead=False
            )
            self._transaction = environment.begin(buffers=True)
        return self._function(self._transaction.get(b"%08d" % number))


def _tensor(record: Any) -> torch.Tensor:
    # Collation copies it; the mapping is read-only.
    return torch.from_numpy(np.frombuffer(record, np.uint8))


def _as_it_is(batch: Any) -> Any:
    return batch


class NpyBatches(_Epochs):
    def __init__(self, place: Place) -> None:
        super().__init__(place, _NpyDataset(place), _as_it_is)


class LmdbRecords(_Epochs):
    def __init__(self, place: Place) -> None:
        super().__init__(place, _LmdbDataset(place, _tensor))


class _Decoded:
    def __init__(self, name: str) -> None:
        self._function = FUNCTIONS[name]

    def __call__(self, record: Any) -> Any:
        found = self._function(bytes(record), np.random.default_rng())
        return torch.from_numpy(found) if isinstance(found, np.ndarray) else found


class Jpeg(_Epochs):
    def __init__(self, place: Place) -> None:
        super().__init__(place, _LmdbDataset(place, _Decoded(place.settings["function"])))
