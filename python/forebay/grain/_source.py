"""Datasets as random-access sources of Grain: ``grain.MapDataset`` and ``grain.DataLoader``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

from forebay.dataset import Dataset, PathLike, open

__all__ = ["DataSource", "source"]


class DataSource:
    """Samples of a dataset by number; :func:`source` makes one.

    It is a ``grain.sources.RandomAccessDataSource`` that also reads several samples at once, which
    ``grain.MapDataset`` uses for batches. It can be pickled: a worker process opens the files
    itself, and loads the index from the sidecar.

    Parameters
    ----------
    dataset : Dataset
        The dataset.
    """

    __slots__ = ("_dataset", "_repr")

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        # Grain compares it when a state is loaded, also on another machine: no path, no address.
        self._repr = f"forebay.grain.source({dataset.format}, {len(dataset)} samples, {dataset.fingerprint})"

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return one sample, as ``dataset[index]`` does."""
        return self._dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples, read together, in the order of ``indices``."""
        return self._dataset.__getitems__(indices)

    # Grain's own name of it (0.2).
    _getitems = __getitems__

    def __repr__(self) -> str:
        return self._repr

    def __reduce__(self) -> tuple[Any, ...]:
        return DataSource, (self._dataset,)


def source(dataset: Dataset | PathLike | Sequence[PathLike]) -> DataSource:
    """Return the samples of a dataset as a source for Grain.

    The index is loaded or built now, and kept as a sidecar, so that worker processes load it.

    Parameters
    ----------
    dataset : Dataset, path-like or sequence of path-like
        The dataset, or what :func:`forebay.open` takes.

    Returns
    -------
    DataSource
        For ``grain.MapDataset.source(...)`` and ``grain.DataLoader(data_source=...)``.

    Raises
    ------
    StorageError, FormatError
        If the files cannot be opened, or the index cannot be built.

    Examples
    --------
    ::

        source = forebay.grain.source("train.lmdb")
        batches = grain.MapDataset.source(source).shuffle(seed=0).map(decode).batch(256)
    """
    return DataSource(dataset if isinstance(dataset, Dataset) else open(dataset))
