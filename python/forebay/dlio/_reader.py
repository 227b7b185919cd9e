"""A reader of DLIO that reads through forebay.Dataset.

DLIO's own data loaders call a reader in two ways. That of PyTorch asks for one sample by number, in
its worker processes. That of TensorFlow iterates the samples of a thread in batches. Both find out
from maps of DLIO which file has which sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dlio_benchmark.common.enumerations import DatasetType
from dlio_benchmark.reader.reader_handler import FormatReader

from forebay.dlio._files import Files

__all__ = ["Reader"]


class Reader(FormatReader):  # type: ignore[misc]
    """Read samples for the data loaders of DLIO.

    Name it in the workload as ``reader.reader_classname``. DLIO's readers return the same image
    for each sample that they have read, and so does this one: DLIO measures reading, not training.

    Parameters
    ----------
    dataset_type, thread_index, epoch
        As DLIO passes them: training or validation, the thread or worker, first epoch.

    Raises
    ------
    OptionError
        As :class:`forebay.dlio.DataLoader` raises it.
    """

    def __init__(self, dataset_type: Any, thread_index: int, epoch: int) -> None:
        super().__init__(dataset_type, thread_index)
        self.epoch_number = epoch
        self._files = Files(self._args, dataset_type)
        self._files.check(len(self._files.dataset))

    def open(self, filename: str) -> None:
        """Do nothing: the files of the dataset stay open."""

    def close(self, filename: str) -> None:
        """Do nothing: the files close with the reader."""

    def get_sample(self, filename: str, sample_index: int) -> None:
        """Read one sample of a file."""
        self._read([(filename, sample_index)])

    def read_index(self, global_sample_idx: int, step: int) -> Any:
        """Read one sample by its number, for DLIO's PyTorch data loader; return DLIO's image."""
        self.step, self.image_idx = step, global_sample_idx
        self.get_sample(*self.global_index_map[global_sample_idx])
        self.preprocess()
        return self._args.resized_image

    def next(self) -> Reader:
        """Return what yields the batches of this thread, anew for each epoch."""
        return self

    def __iter__(self) -> Iterator[Any]:
        # DLIO makes the maps anew for each epoch. A reader of all threads has the index -1.
        by_thread = self._map()
        places = by_thread.get(self.thread_index)
        if places is None:
            places = [place for thread in sorted(by_thread) for place in by_thread[thread]]
        images = np.stack([self._args.resized_image] * self.batch_size)
        # As DLIO's readers do, the last batch is full whatever was read for it.
        for first in range(0, len(places), self.batch_size):
            batch = places[first : first + self.batch_size]
            self._read([(path, number) for _, path, number in batch])
            for _ in batch:
                self.preprocess()
            yield images

    def _map(self) -> dict[int, Any]:
        """Return the samples of each thread: (number, path, number in the file)."""
        is_train = self.dataset_type is DatasetType.TRAIN
        found: dict[int, Any] = self._args.train_file_map if is_train else self._args.val_file_map
        return found

    def _read(self, places: list[tuple[str, int]]) -> None:
        samples = self._files.dataset.read(self._files.ids(places))
        if (parse := self._files.parse) is not None:
            for data in samples["data"]:
                parse({"data": data})

    def finalize(self) -> None:
        """Do nothing: DLIO calls this while the reader may be iterated again."""

    def is_index_based(self) -> bool:
        """Return True: samples can be read by number."""
        return True

    def is_iterator_based(self) -> bool:
        """Return True: samples can be iterated."""
        return True
