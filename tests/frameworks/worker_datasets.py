"""Datasets for torch's worker processes, in a module that a spawned worker can import."""

from __future__ import annotations

from typing import Any

import torch.utils.data

import forebay

BATCH = 4


class MadeInWorker(torch.utils.data.IterableDataset):
    """Makes its loader where it is iterated."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __iter__(self) -> Any:
        with forebay.Loader(self.path, BATCH, order="sequential", node_memory="16MiB") as loader:
            for batch in loader:
                yield batch.indices


class MadeBefore(torch.utils.data.IterableDataset):
    """Iterates over a loader that it was given."""

    def __init__(self, loader: forebay.Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        for batch in self.loader:
            yield {"data": batch["data"], "indices": batch.indices}


class Samples(torch.utils.data.Dataset):
    """Opens a dataset where its first sample is asked for, as a spawned worker has to."""

    def __init__(self, path: str, length: int) -> None:
        self.path, self.length = path, length
        self.opened: forebay.Dataset | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        if self.opened is None:
            self.opened = forebay.open(self.path, schema="caffe-datum")
        sample = self.opened[number]
        return {"image": sample["image"], "label": int(sample["label"])}
